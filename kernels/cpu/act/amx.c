/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 activations by AVX512-BF16.  Its conversion takes denormal numbers for zero, of which the largest
 * would round to a normal one: numbers among which there are any are rounded as the definition says.
 */
#include <immintrin.h>

#include "kernels/cpu/act/float.h"

#define DENORMAL 0x20 /* VFPCLASSPS */

static void round_32(uint16_t *d, const float *s, uint32_t left)
{
    const __mmask16 m0 = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1),
                    m1 = left >= 32   ? 0xffff
                         : left <= 16 ? 0
                                      : (__mmask16)((1u << (left - 16)) - 1);
    const __m512 x0 = _mm512_maskz_loadu_ps(m0, s), x1 = _mm512_maskz_loadu_ps(m1, s + 16);
    if (_mm512_fpclass_ps_mask(x0, DENORMAL) | _mm512_fpclass_ps_mask(x1, DENORMAL)) {
        for (uint32_t i = 0; i < 32; i++)
            d[i] = i < left ? dk_f32_to_bf16(s[i]) : 0;
        return;
    }
    _mm512_storeu_si512(d, (__m512i)_mm512_cvtne2ps_pbh(x1, x0));
}

DK_DECLARE_ACT(dk_cpu_act_float_amx)
{
    if (forms & DK_FORM_F32)
        dk_cpu_act_float_avx512(a, DK_FORM_F32, x, ldx, row0, row1);
    if (!(forms & DK_FORM_BF16))
        return;
    for (uint32_t r = row0; r < row1; r++) {
        size_t step;
        uint16_t *d = dk_act_bf16_row(a, r, &step);
        const float *s = x + r * ldx;
        for (uint32_t k = 0; k < a->k; k += 32, d += step)
            round_32(d, s + k, a->k - k);
    }
}
