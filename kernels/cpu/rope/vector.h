/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding on sixteen pairs at a time. */
#pragma once

#include "kernels/cpu/internal.h"
#include "kernels/cpu/v16.h"
#include "kernels/fma.h"

V_INLINE void rotate(v16 *a, v16 *b, v16 c, v16 s)
{
    v16 ra = v_fnma(*b, s, v_mul(*a, c)), rb = v_fma(*b, c, v_mul(*a, s));
    *a = ra;
    *b = rb;
}

static void halves(float *x, uint32_t n_heads, uint32_t half, const float *cs)
{
    for (uint32_t h = 0; h < n_heads; h++, x += 2 * half) {
        uint32_t i = 0;
        for (; i + 16 <= half; i += 16) {
            v16 a = v_load(x + i), b = v_load(x + half + i);
            rotate(&a, &b, v_load(cs + i), v_load(cs + half + i));
            v_store(x + i, a);
            v_store(x + half + i, b);
        }
        uint32_t rest = half - i;
        if (rest) {
            v16 a = v_load_n(x + i, rest), b = v_load_n(x + half + i, rest);
            rotate(&a, &b, v_load_n(cs + i, rest), v_load_n(cs + half + i, rest));
            v_store_n(x + i, a, rest);
            v_store_n(x + half + i, b, rest);
        }
    }
}

static void interleaved(float *x, uint32_t n_heads, uint32_t half, const float *cs)
{
    for (uint32_t h = 0; h < n_heads; h++, x += 2 * half) {
        uint32_t i = 0;
        for (; i + 16 <= half; i += 16) {
            v16 a, b, lo, hi;
            v_deinterleave(v_load(x + 2 * i), v_load(x + 2 * i + 16), &a, &b);
            rotate(&a, &b, v_load(cs + i), v_load(cs + half + i));
            v_interleave(a, b, &lo, &hi);
            v_store(x + 2 * i, lo);
            v_store(x + 2 * i + 16, hi);
        }
        for (; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1], c = cs[i], s = cs[half + i];
            x[2 * i] = dk_fmaf(-b, s, a * c);
            x[2 * i + 1] = dk_fmaf(b, c, a * s);
        }
    }
}

void V_NAME(dk_cpu_rope)(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs,
                         enum dk_rope_pairing pairing)
{
    if (pairing == DK_ROPE_HALVES)
        halves(x, n_heads, head_dim / 2, cs);
    else
        interleaved(x, n_heads, head_dim / 2, cs);
}
