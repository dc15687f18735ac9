/* SPDX-License-Identifier: Apache-2.0 */
/* Training kernels, AVX2. */
#include <immintrin.h>

#include "kernels/cpu/train/body.h"

/* Twelve chains; named one by one, since arrays of them would live in memory. */
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define BEGIN(i)  __m256 x##i = _mm256_set1_ps((float)i);
#define FMA(i)    __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(x##i) : "x"(a), "x"(b));

static double fma_peak(uint64_t rounds, bool bf16)
{
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
    (void)bf16;
    CHAINS(BEGIN)
    for (uint64_t i = 0; i < rounds; i++) {
        CHAINS(FMA)
    }
    return 12.0 * 16.0 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_avx2 = {
    .tier = DK_TIER_AVX2, .gemm = dk_cpu_gemm_avx2, .fma_peak = fma_peak, TRAIN_TABLE};
