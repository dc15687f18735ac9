/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm on sixteen lanes: one accumulator a lane, the tail's missing elements are zeros, which
 * leave a sum of squares as it is. */
#pragma once

#include "kernels/cpu/internal.h"
#include "kernels/cpu/v16.h"

void V_NAME(dk_cpu_rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    v16 acc = v_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 v = v_load(x + i);
        acc = v_fma(v, v, acc);
    }
    if (rest) {
        v16 v = v_load_n(x + whole, rest);
        acc = v_fma(v, v, acc);
    }
    v16 r = v_set1(1.0f / __builtin_sqrtf(v_fold(acc) / (float)n + eps));
    for (uint32_t i = 0; i < whole; i += 16)
        v_store(y + i, v_mul(v_mul(v_load(x + i), r), v_load(w + i)));
    if (rest)
        v_store_n(y + whole, v_mul(v_mul(v_load_n(x + whole, rest), r), v_load_n(w + whole, rest)),
                  rest);
}
