/* SPDX-License-Identifier: Apache-2.0 */
/* Training kernels, AVX2. */
#include <immintrin.h>

#include "kernels/cpu/train/body.h"

static double fma_peak(uint64_t rounds, bool bf16)
{
    __m256 x[12], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
    (void)bf16;
    for (int j = 0; j < 12; j++)
        x[j] = _mm256_setzero_ps();
    for (uint64_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) {
            x[j] = _mm256_fmadd_ps(x[j], a, b);
            __asm__ volatile("" : "+x"(x[j]));
        }
    return 12.0 * 16.0 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_avx2 = {
    .tier = DK_TIER_AVX2, .gemm = dk_cpu_gemm_avx2, .fma_peak = fma_peak, TRAIN_TABLE};
