/* SPDX-License-Identifier: Apache-2.0 */
/* DK_FORM_INT in 16-bit pairs and the low four bits, and the 16 bits as two int8 planes; formulas in
 * c.c. */
#include <immintrin.h>

#include "kernels/cpu/quant/layout.h"

static __m256i max_abs(__m256i m, __m256 x)
{
    __m256i a = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
    return _mm256_max_epu32(m, a);
}

static int32_t lanes_sum(__m256i a, __m256i b)
{
    __m256i s = _mm256_add_epi32(a, b);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

/* Four times eight small numbers as bytes in order. */
static __m256i bytes(const __m256i v[4])
{
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    return _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static void quantise(const float *x, struct dk_qact_avx2 *ret)
{
    __m256 v[4];
    __m256i m = _mm256_setzero_si256(), *out = (__m256i *)(void *)ret;
    for (unsigned i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        m = max_abs(m, v[i]);
    }
    __m128i h = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0xb1));
    uint32_t top = (uint32_t)_mm_cvtsi128_si32(h);
    float amax = _mm_cvtss_f32(_mm_castsi128_ps(h));
    _mm256_store_si256(out + 3, _mm256_setzero_si256());
    if (top >= 0x7f800000 || amax < DK_QTINY) {
        for (unsigned i = 0; i < 6; i++)
            _mm256_store_si256(out + i, _mm256_setzero_si256());
        if (top >= 0x7f800000)
            ret->d = ret->sum = __builtin_nanf("");
        return;
    }
    __m256 id = _mm256_set1_ps((float)DK_QMAX / amax);
    __m256i q[4], high[4], low[4], mid[4], hi[4];
    for (unsigned i = 0; i < 4; i++) {
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], id));
        high[i] = _mm256_srai_epi32(_mm256_add_epi32(q[i], _mm256_set1_epi32(8)), 4);
        low[i] = _mm256_sub_epi32(q[i], _mm256_slli_epi32(high[i], 4));
        hi[i] = _mm256_srai_epi32(_mm256_add_epi32(high[i], _mm256_set1_epi32(128)), 8);
        mid[i] = _mm256_sub_epi32(high[i], _mm256_slli_epi32(hi[i], 8));
    }
    _mm256_store_si256(out + 2, bytes(low));
    _mm256_store_si256(out + 4, bytes(mid));
    _mm256_store_si256(out + 5, bytes(hi));
    __m256i w[2];
    for (unsigned i = 0; i < 2; i++) {
        /* 16 numbers in order, then in each four: the second and third change places. */
        w[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(high[2 * i], high[2 * i + 1]), 0xd8);
        w[i] = _mm256_shufflelo_epi16(_mm256_shufflehi_epi16(w[i], 0xd8), 0xd8);
    }
    /* groups 0 4 2 6 and 1 5 3 7; then 0 4 1 5 and 2 6 3 7 */
    __m256i even = _mm256_unpacklo_epi64(w[0], w[1]), odd = _mm256_unpackhi_epi64(w[0], w[1]);
    _mm256_store_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_store_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    int32_t s0 = lanes_sum(q[0], q[1]), s1 = lanes_sum(q[2], q[3]);
    ret->d = amax / (float)DK_QMAX;
    ret->sum = ret->d * (float)(s0 + s1);
    ret->nsum = -(s0 + s1);
    ret->nsum_sub[0] = -s0;
    ret->nsum_sub[1] = -s1;
}

DK_DECLARE_ACT(dk_cpu_act_quant_avx2)
{
    if (!(forms & DK_FORM_INT))
        return;
    struct dk_qact_avx2 *q = dk_act_int(a);
    uint32_t blocks = a->k / DK_QBLOCK;
    for (uint32_t r = row0; r < row1; r++)
        for (uint32_t b = 0; b < blocks; b++)
            quantise(x + r * ldx + (size_t)b * DK_QBLOCK, q + dk_qact_at(a->rows, blocks, r, b));
}
