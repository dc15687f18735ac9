/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DK_FORM_INT, the specification.  Per block of 32 inputs x:
 *   amax = largest |x|
 *   NaN or infinity among them:  d = NaN, q = 0, sum = NaN
 *   amax < 2^-96:                d = 0,   q = 0, sum = 0
 *   else  id = 522231 / amax, d = amax / 522231, q = x * id rounded to the nearest integer (even),
 *         sum = d * (float)(sum of q)
 * |q| <= 522231 since amax * id exceeds 522231 by less than half.  The error of x is at most 0.6 d:
 * half a step, the two roundings of x * id and the one of d (3 * 2^-24 of up to 522231 steps).
 */
#include <string.h>

#include "kernels/cpu/quant/layout.h"

static void quantise(const float x[32], struct dk_qact *ret)
{
    uint32_t top = 0;
    for (unsigned i = 0; i < 32; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        u &= 0x7fffffff;
        top = u > top ? u : top;
    }
    memset(ret, 0, sizeof *ret);
    if (top >= 0x7f800000) {
        ret->d = ret->sum = __builtin_nanf("");
        return;
    }
    float amax;
    memcpy(&amax, &top, sizeof amax);
    if (amax < DK_QTINY)
        return;
    float id = (float)DK_QMAX / amax;
    int32_t sums[2] = {0, 0};
    for (unsigned i = 0; i < 32; i++) {
        /* Rounds to even: 1.5 * 2^23 leaves no fraction bits. */
        float shifted = x[i] * id + 12582912.0f;
        int32_t q = (int32_t)(shifted - 12582912.0f);
        int32_t w = (q + 8) >> 4;
        ret->words.w[i] = (int16_t)w;
        ret->words.low[i] = (int8_t)(q - 16 * w);
        sums[i / 16] += q;
    }
    ret->d = amax / (float)DK_QMAX;
    ret->nsum_sub[0] = -sums[0];
    ret->nsum_sub[1] = -sums[1];
    ret->nsum = -(sums[0] + sums[1]);
    ret->sum = ret->d * (float)(sums[0] + sums[1]);
}

DK_DECLARE_ACT(dk_cpu_act_quant_c)
{
    if (!(forms & DK_FORM_INT))
        return;
    struct dk_qact *q = dk_act_int(a);
    uint32_t blocks = a->k / DK_QBLOCK;
    for (uint32_t r = row0; r < row1; r++)
        for (uint32_t b = 0; b < blocks; b++)
            quantise(x + r * ldx + (size_t)b * DK_QBLOCK, q + dk_qact_at(a->rows, blocks, r, b));
}
