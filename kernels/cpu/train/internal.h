/* SPDX-License-Identifier: Apache-2.0 */
/* What the training kernels of the CPU tiers share: one function per op and tier. */
#pragma once

#include "kernels/train.h"

#define DK_DECLARE_TRAIN(tier)                                                                     \
    void dk_cpu_gemm_##tier(const struct dk_gemm *g, void *scratch);                               \
    extern const struct dk_train_ops dk_cpu_train_##tier
DK_DECLARE_TRAIN(c);
DK_DECLARE_TRAIN(avx2);
DK_DECLARE_TRAIN(avx512);
/* The AVX-512 tier with its products in BF16 where asked for; needs AVX-512 BF16. */
void dk_cpu_gemm_avx512bf16(const struct dk_gemm *g, void *scratch);
extern const struct dk_train_ops dk_cpu_train_avx512bf16;
/* That on AMX tiles; needs AVX-512 BF16, too. */
DK_DECLARE_TRAIN(amx);
void dk_cpu_gemm_amx_pack(const struct dk_gemm *g, uint32_t j0, uint32_t j1, void *dst);
