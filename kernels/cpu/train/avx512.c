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
