/* SPDX-License-Identifier: Apache-2.0 */
/* Training kernels, AVX-512. */
#include <immintrin.h>

#include "kernels/cpu/train/body.h"

/* Sixteen chains; named one by one, since arrays of them would live in memory. */
#define CHAINS(X)                                                                                  \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define BEGIN(i) __m512 x##i = _mm512_set1_ps((float)i);
#define FMA(i)   __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(x##i) : "v"(a), "v"(b));
#define DOT(i)   __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(x##i) : "v"(a));

static double fma_peak(uint64_t rounds, bool bf16)
{
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
    (void)bf16;
    CHAINS(BEGIN)
    for (uint64_t i = 0; i < rounds; i++) {
        CHAINS(FMA)
    }
    return 16.0 * 32.0 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_avx512 = {
    .tier = DK_TIER_AVX512, .gemm = dk_cpu_gemm_avx512, .fma_peak = fma_peak, TRAIN_TABLE};

static double bf16_peak(uint64_t rounds, bool bf16)
{
    const __m512 a = _mm512_castsi512_ps(_mm512_set1_epi32(0x3e803e80)); /* 1/4, twice */
    if (!bf16)
        return fma_peak(rounds, false);
    CHAINS(BEGIN)
    for (uint64_t i = 0; i < rounds; i++) {
        CHAINS(DOT)
    }
    return 16.0 * 64.0 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_avx512bf16 = {.tier = DK_TIER_AVX512,
                                                     .bf16 = true,
                                                     .gemm = dk_cpu_gemm_avx512bf16,
                                                     .fma_peak = bf16_peak,
                                                     TRAIN_TABLE};
