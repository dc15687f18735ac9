/* SPDX-License-Identifier: Apache-2.0 */
/* Training kernels, AVX-512. */
#include <immintrin.h>

#include "kernels/cpu/train/body.h"

static double fma_peak(uint64_t rounds, bool bf16)
{
    __m512 x[16], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
    (void)bf16;
    for (int j = 0; j < 16; j++)
        x[j] = _mm512_setzero_ps();
    for (uint64_t i = 0; i < rounds; i++)
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) {
            x[j] = _mm512_fmadd_ps(x[j], a, b);
            __asm__ volatile("" : "+v"(x[j]));
        }
    return 16.0 * 32.0 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_avx512 = {
    .tier = DK_TIER_AVX512, .gemm = dk_cpu_gemm_avx512, .fma_peak = fma_peak, TRAIN_TABLE};

__attribute__((target("avx512bf16"))) static double bf16_peak(uint64_t rounds, bool bf16)
{
    if (!bf16)
        return fma_peak(rounds, false);
    __m512 x[16];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3e803e80); /* 1/4, twice */
    for (int j = 0; j < 16; j++)
        x[j] = _mm512_setzero_ps();
    for (uint64_t i = 0; i < rounds; i++)
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) {
            x[j] = _mm512_dpbf16_ps(x[j], a, a);
            __asm__ volatile("" : "+v"(x[j]));
        }
    return 16.0 * 64.0 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_avx512bf16 = {.tier = DK_TIER_AVX512,
                                                     .bf16 = true,
                                                     .gemm = dk_cpu_gemm_avx512bf16,
                                                     .fma_peak = bf16_peak,
                                                     TRAIN_TABLE};
