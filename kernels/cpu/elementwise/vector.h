/* SPDX-License-Identifier: Apache-2.0 */
/* Residual addition and SiLU gate on sixteen lanes. */
#pragma once

#include "kernels/cpu/internal.h"
#include "kernels/cpu/vmath.h"

void V_NAME(dk_cpu_add)(float *x, const float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, v_add(v_load(x + i), v_load(y + i)));
    if (i < n)
        v_store_n(x + i, v_add(v_load_n(x + i, n - i), v_load_n(y + i, n - i)), n - i);
}

V_INLINE v16 silu_mul(v16 g, v16 u)
{
    return v_mul(v_div(g, v_add(v_set1(1.0f), v_exp(v_neg(g)))), u);
}

void V_NAME(dk_cpu_silu_mul)(float *out, const float *g, const float *u, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(out + i, silu_mul(v_load(g + i), v_load(u + i)));
    if (i < n)
        v_store_n(out + i, silu_mul(v_load_n(g + i, n - i), v_load_n(u + i, n - i)), n - i);
}
