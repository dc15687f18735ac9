/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One element of TDPBF16PS, portable, bit for bit.
 *
 * The instruction, for each 32 inputs (or as many as the tiles are configured for): two sums from zero,
 * one of the even and one of the odd inputs, by fused multiply-adds in ascending order; their sum; and
 * that added to the accumulator.  Round to nearest even throughout, denormal operands read as zero and
 * tiny results flushed to a zero of the same sign, whatever MXCSR says.
 */
#pragma once

#include <stddef.h>

#include "kernels/fma.h"
#include "kernels/kernels.h"

/* Results below this, had the exponent no lower end, would round to less than 2^-126. */
#define DK_TDP_TINY (0x1p-126 - 0x1p-151)

/* Rounds the value that s stands for (exact, or rounded to odd) to binary32, flushing. */
static inline float dk_tdp_flush(double s)
{
    if (s > -DK_TDP_TINY && s < DK_TDP_TINY)
        return s < 0 || (s == 0 && __builtin_signbit(s)) ? -0.0f : 0.0f;
    return (float)s;
}

/* A BF16 operand with denormals read as zero. */
static inline float dk_tdp_operand(uint16_t h)
{
    return dk_bf16_to_f32(h & 0x7f80 ? h : h & 0x8000);
}

static inline float dk_tdp_add(float a, float b)
{
    return dk_tdp_flush(dk_fma_odd(a, 1.0f, b));
}

/* acc after n inputs, 32 where tiles are whole: x[n], and pairs of weights `step` elements apart. */
static inline float dk_tdp_inputs(float acc, const uint16_t *x, const uint16_t *w, size_t step,
                                  uint32_t n)
{
    float even = 0, odd = 0;
    for (uint32_t i = 0; i < n; i += 2, w += step) {
        even = dk_tdp_flush(dk_fma_odd(dk_tdp_operand(x[i]), dk_tdp_operand(w[0]), even));
        odd = dk_tdp_flush(dk_fma_odd(dk_tdp_operand(x[i + 1]), dk_tdp_operand(w[1]), odd));
    }
    return dk_tdp_add(acc, dk_tdp_add(even, odd));
}
static inline float dk_tdp_element(float acc, const uint16_t *x, const uint16_t *w, size_t step)
{
    return dk_tdp_inputs(acc, x, w, step, 32);
}
