/* SPDX-License-Identifier: Apache-2.0 */
/* The portable table of training kernels. */
#include "kernels/cpu/train/body.h"

static double fma_peak(uint64_t rounds, bool bf16)
{
    float x[8] = {0};
    (void)bf16;
    for (uint64_t i = 0; i < rounds; i++)
        for (int j = 0; j < 8; j++)
            x[j] = dk_fmaf(x[j], 0.5f, 1.0f);
    __asm__ volatile("" : : "g"(x) : "memory");
    return 16.0 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_c = {
    .tier = DK_TIER_C, .gemm = dk_cpu_gemm_c, .fma_peak = fma_peak, TRAIN_TABLE};
