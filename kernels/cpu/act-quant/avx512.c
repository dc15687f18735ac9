/* SPDX-License-Identifier: Apache-2.0 */
/* DK_FORM_INT in three int8 planes; formulas in c.c. */
#include <immintrin.h>

#include "kernels/cpu/quant/layout.h"

/* 16 numbers into bytes i .. i + 15 of the planes.  A plane is what is left, modulo 16 or 256 as a
 * signed number; the next one gets the rest. */
static void planes(__m512i q, struct dk_qact *ret, unsigned i)
{
    __m512i w = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(8)), 4);
    __m512i low = _mm512_sub_epi32(q, _mm512_slli_epi32(w, 4));
    __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(w, _mm512_set1_epi32(128)), 8);
    _mm_store_si128((__m128i *)(void *)(ret->planes.low + i), _mm512_cvtepi32_epi8(low));
    _mm_store_si128((__m128i *)(void *)(ret->planes.mid + i), _mm512_cvtepi32_epi8(w));
    _mm_store_si128((__m128i *)(void *)(ret->planes.hi + i), _mm512_cvtepi32_epi8(hi));
}

static void quantise(const float *x, struct dk_qact *ret)
{
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    const __m512i abs = _mm512_set1_epi32(0x7fffffff);
    uint32_t top =
        _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), abs),
                                                 _mm512_and_si512(_mm512_castps_si512(x1), abs)));
    float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)top)));
    const __m512i zero = _mm512_setzero_si512();
    _mm256_store_si256((__m256i *)(void *)&ret->d, _mm512_castsi512_si256(zero));
    if (top >= 0x7f800000 || amax < DK_QTINY) {
        _mm512_store_si512(ret->dw, zero);
        _mm256_store_si256((__m256i *)(void *)ret->planes.hi, _mm512_castsi512_si256(zero));
        if (top >= 0x7f800000)
            ret->d = ret->sum = __builtin_nanf("");
        return;
    }
    __m512 id = _mm512_set1_ps((float)DK_QMAX / amax);
    __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, id));
    __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, id));
    planes(q0, ret, 0);
    planes(q1, ret, 16);
    int32_t s0 = _mm512_reduce_add_epi32(q0), s1 = _mm512_reduce_add_epi32(q1);
    ret->d = amax / (float)DK_QMAX;
    ret->sum = ret->d * (float)(s0 + s1);
    ret->nsum = -(s0 + s1);
    ret->nsum_sub[0] = -s0;
    ret->nsum_sub[1] = -s1;
}

DK_DECLARE_ACT(dk_cpu_act_quant_avx512)
{
    if (!(forms & DK_FORM_INT))
        return;
    struct dk_qact *q = dk_act_int(a);
    uint32_t blocks = a->k / DK_QBLOCK;
    for (uint32_t r = row0; r < row1; r++)
        for (uint32_t b = 0; b < blocks; b++)
            quantise(x + r * ldx + (size_t)b * DK_QBLOCK, q + dk_qact_at(a->rows, blocks, r, b));
}
