/* SPDX-License-Identifier: Apache-2.0 */
/* The table of training kernels of every tier. */
#include "config.h"

#include "kernels/cpu/internal.h"
#include "kernels/cpu/train/internal.h"

const struct dk_train_ops *dk_train_ops(enum dk_tier t)
{
    if (!dk_ops(t))
        return NULL;
    switch (t) {
    case DK_TIER_C:
        return &dk_cpu_train_c;
    case DK_TIER_AVX2:
#ifdef DEDIT_TIER_AVX2
        return &dk_cpu_train_avx2;
#endif
    case DK_TIER_AMX:
#ifdef DEDIT_TIER_AMX
        return &dk_cpu_train_amx;
#endif
        /* fall through */
    case DK_TIER_AVX512:
#ifdef DEDIT_TIER_AVX512
        return __builtin_cpu_supports("avx512bf16") ? &dk_cpu_train_avx512bf16
                                                    : &dk_cpu_train_avx512;
#endif
    case DK_TIER_COUNT:
        break;
    }
    return NULL;
}
