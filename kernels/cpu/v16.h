/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen binary32 lanes, the unit of every canonical order: one AVX-512 register or two AVX2
 * registers.  Included by files of those two tiers only; everything is inlined there.  V_NAME puts
 * the tier's name behind a function's.
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define V_INLINE static inline __attribute__((always_inline))
/* A loop to be unrolled; its bound is a constant once the function is inlined. */
#ifdef __clang__
#define V_FOR(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define V_FOR(i, n) _Pragma("GCC unroll 32") for (int i = 0; i < (n); i++)
#endif

#ifdef __AVX512F__
#define V_NAME(name) name##_avx512

typedef __m512 v16;
typedef __m512i v16i;
typedef __mmask16 v16m;

V_INLINE v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, v16 x)
{
    _mm512_storeu_ps(p, x);
}
/* The first n lanes, n = 0..16; the others are zero, and their memory is not touched. */
V_INLINE v16 v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
V_INLINE void v_store_n(float *p, v16 x, uint32_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}
V_INLINE v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
V_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* c - a b */
V_INLINE v16 v_fnma(v16 a, v16 b, v16 c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
/* a < b ? a : b and a > b ? a : b: the second operand where either is a NaN. */
V_INLINE v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
V_INLINE v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE v16 v_neg(v16 a)
{
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN)));
}
/* Lanes below n of a, the others of b. */
V_INLINE v16 v_first_n(v16 a, v16 b, uint32_t n)
{
    return _mm512_mask_blend_ps((__mmask16)((1u << n) - 1), b, a);
}
V_INLINE v16m v_gt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
V_INLINE v16m v_eq(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
V_INLINE v16m v_unordered(v16 a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
/* Not less than: true for a NaN. */
V_INLINE v16m v_nlt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ);
}
V_INLINE v16m v_mask_or(v16m a, v16m b)
{
    return a | b;
}
V_INLINE bool v_any(v16m m)
{
    return m != 0;
}
V_INLINE v16 v_select(v16m m, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
V_INLINE v16i vi_select(v16m m, v16i yes, v16i no)
{
    return _mm512_mask_blend_epi32(m, no, yes);
}
V_INLINE v16i vi_set1(uint32_t x)
{
    return _mm512_set1_epi32((int32_t)x);
}
V_INLINE v16i vi_iota(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
V_INLINE v16i vi_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
V_INLINE void vi_store(uint32_t *p, v16i x)
{
    _mm512_storeu_si512(p, x);
}
V_INLINE v16i vi_add(v16i a, v16i b)
{
    return _mm512_add_epi32(a, b);
}
V_INLINE v16i vi_sub(v16i a, v16i b)
{
    return _mm512_sub_epi32(a, b);
}
V_INLINE v16i vi_and(v16i a, v16i b)
{
    return _mm512_and_si512(a, b);
}
V_INLINE v16i vi_or(v16i a, v16i b)
{
    return _mm512_or_si512(a, b);
}
#define vi_srl(a, n) _mm512_srli_epi32((a), (n))
#define vi_sra(a, n) _mm512_srai_epi32((a), (n))
#define vi_sll(a, n) _mm512_slli_epi32((a), (n))
/* Signed integers to floats. */
V_INLINE v16 vi_to_float(v16i a)
{
    return _mm512_cvtepi32_ps(a);
}
V_INLINE v16i v_bits(v16 a)
{
    return _mm512_castps_si512(a);
}
V_INLINE v16 v_from_bits(v16i a)
{
    return _mm512_castsi512_ps(a);
}
/* Sixteen stored 16-bit values, widened exactly. */
V_INLINE v16 v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}
V_INLINE v16 v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
V_INLINE void v_store_f16(uint16_t *p, v16 x)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* The low halves of the lanes. */
V_INLINE void vi_store_u16(uint16_t *p, v16i x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(x));
}
/* Lanes 8-15 onto 0-7. */
V_INLINE __m256 v_high_half(v16 a)
{
    return _mm512_extractf32x8_ps(a, 1);
}
V_INLINE __m256 v_low_half(v16 a)
{
    return _mm512_castps512_ps256(a);
}
/* Even and odd elements of the 32 that a and b hold. */
V_INLINE void v_deinterleave(v16 a, v16 b, v16 *even, v16 *odd)
{
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, e, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}
V_INLINE void v_interleave(v16 even, v16 odd, v16 *a, v16 *b)
{
    const __m512i lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *a = _mm512_permutex2var_ps(even, lo, odd);
    *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(lo, _mm512_set1_epi32(8)), odd);
}

#else /* AVX2, FMA, F16C */
#define V_NAME(name) name##_avx2

typedef struct {
    __m256 a, b;
} v16;
typedef struct {
    __m256i a, b;
} v16i;
typedef v16 v16m;

V_INLINE v16 v_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
V_INLINE v16 v_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (v16){v, v};
}
V_INLINE v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
V_INLINE void v_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
/* All ones in the lanes below n. */
V_INLINE v16i v_mask_n(uint32_t n)
{
    __m256i k = _mm256_set1_epi32((int32_t)n);
    return (v16i){_mm256_cmpgt_epi32(k, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                  _mm256_cmpgt_epi32(k, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}
/* The first n lanes, n = 0..16; the others are zero, and their memory is not touched. */
V_INLINE v16 v_load_n(const float *p, uint32_t n)
{
    v16i m = v_mask_n(n);
    return (v16){_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b)};
}
V_INLINE void v_store_n(float *p, v16 x, uint32_t n)
{
    v16i m = v_mask_n(n);
    _mm256_maskstore_ps(p, m.a, x.a);
    _mm256_maskstore_ps(p + 8, m.b, x.b);
}
V_INLINE v16 v_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}
V_INLINE v16 v_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)};
}
V_INLINE v16 v_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)};
}
V_INLINE v16 v_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)};
}
V_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}
/* c - a b */
V_INLINE v16 v_fnma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fnmadd_ps(a.a, b.a, c.a), _mm256_fnmadd_ps(a.b, b.b, c.b)};
}
/* a < b ? a : b and a > b ? a : b: the second operand where either is a NaN. */
V_INLINE v16 v_min(v16 a, v16 b)
{
    return (v16){_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)};
}
V_INLINE v16 v_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)};
}
V_INLINE v16 v_neg(v16 a)
{
    const __m256 s = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_xor_ps(a.a, s), _mm256_xor_ps(a.b, s)};
}
V_INLINE v16 v_select(v16m m, v16 yes, v16 no)
{
    return (v16){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
/* Lanes below n of a, the others of b. */
V_INLINE v16 v_first_n(v16 a, v16 b, uint32_t n)
{
    v16i m = v_mask_n(n);
    return v_select((v16m){_mm256_castsi256_ps(m.a), _mm256_castsi256_ps(m.b)}, a, b);
}
V_INLINE v16m v_gt(v16 a, v16 b)
{
    return (v16m){_mm256_cmp_ps(a.a, b.a, _CMP_GT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_GT_OQ)};
}
V_INLINE v16m v_eq(v16 a, v16 b)
{
    return (v16m){_mm256_cmp_ps(a.a, b.a, _CMP_EQ_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_EQ_OQ)};
}
V_INLINE v16m v_unordered(v16 x)
{
    return (v16m){_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
}
/* Not less than: true for a NaN. */
V_INLINE v16m v_nlt(v16 a, v16 b)
{
    return (v16m){_mm256_cmp_ps(a.a, b.a, _CMP_NLT_UQ), _mm256_cmp_ps(a.b, b.b, _CMP_NLT_UQ)};
}
V_INLINE v16m v_mask_or(v16m a, v16m b)
{
    return (v16m){_mm256_or_ps(a.a, b.a), _mm256_or_ps(a.b, b.b)};
}
V_INLINE bool v_any(v16m m)
{
    return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0;
}
V_INLINE v16i vi_select(v16m m, v16i yes, v16i no)
{
    return (v16i){_mm256_blendv_epi8(no.a, yes.a, _mm256_castps_si256(m.a)),
                  _mm256_blendv_epi8(no.b, yes.b, _mm256_castps_si256(m.b))};
}
V_INLINE v16i vi_set1(uint32_t x)
{
    __m256i v = _mm256_set1_epi32((int32_t)x);
    return (v16i){v, v};
}
V_INLINE v16i vi_iota(void)
{
    return (v16i){_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                  _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
V_INLINE v16i vi_load(const uint32_t *p)
{
    return (v16i){_mm256_loadu_si256((const __m256i *)(const void *)p),
                  _mm256_loadu_si256((const __m256i *)(const void *)(p + 8))};
}
V_INLINE void vi_store(uint32_t *p, v16i x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x.a);
    _mm256_storeu_si256((__m256i *)(void *)(p + 8), x.b);
}
V_INLINE v16i vi_add(v16i a, v16i b)
{
    return (v16i){_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)};
}
V_INLINE v16i vi_sub(v16i a, v16i b)
{
    return (v16i){_mm256_sub_epi32(a.a, b.a), _mm256_sub_epi32(a.b, b.b)};
}
V_INLINE v16i vi_and(v16i a, v16i b)
{
    return (v16i){_mm256_and_si256(a.a, b.a), _mm256_and_si256(a.b, b.b)};
}
V_INLINE v16i vi_or(v16i a, v16i b)
{
    return (v16i){_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)};
}
#define vi_srl(x, n) ((v16i){_mm256_srli_epi32((x).a, (n)), _mm256_srli_epi32((x).b, (n))})
#define vi_sra(x, n) ((v16i){_mm256_srai_epi32((x).a, (n)), _mm256_srai_epi32((x).b, (n))})
#define vi_sll(x, n) ((v16i){_mm256_slli_epi32((x).a, (n)), _mm256_slli_epi32((x).b, (n))})
/* Signed integers to floats. */
V_INLINE v16 vi_to_float(v16i x)
{
    return (v16){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
V_INLINE v16i v_bits(v16 x)
{
    return (v16i){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
V_INLINE v16 v_from_bits(v16i x)
{
    return (v16){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
/* Sixteen stored 16-bit values, widened exactly. */
V_INLINE v16 v_load_bf16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    v16i x = {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)),
              _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
    return v_from_bits(vi_sll(x, 16));
}
V_INLINE v16 v_load_f16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
V_INLINE void v_store_f16(uint16_t *p, v16 x)
{
    __m128i *q = (__m128i *)(void *)p;
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* The low halves of the lanes, each below 2^16. */
V_INLINE void vi_store_u16(uint16_t *p, v16i x)
{
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)p, packed);
}
V_INLINE __m256 v_high_half(v16 x)
{
    return x.b;
}
V_INLINE __m256 v_low_half(v16 x)
{
    return x.a;
}
V_INLINE __m256 v_in_order(__m256 x)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}
/* Even and odd elements of the 32 that a and b hold. */
V_INLINE void v_deinterleave(v16 a, v16 b, v16 *even, v16 *odd)
{
    even->a = v_in_order(_mm256_shuffle_ps(a.a, a.b, 0x88));
    even->b = v_in_order(_mm256_shuffle_ps(b.a, b.b, 0x88));
    odd->a = v_in_order(_mm256_shuffle_ps(a.a, a.b, 0xdd));
    odd->b = v_in_order(_mm256_shuffle_ps(b.a, b.b, 0xdd));
}
V_INLINE void v_interleave(v16 even, v16 odd, v16 *a, v16 *b)
{
    __m256 e = v_in_order(even.a), o = v_in_order(odd.a);
    *a = (v16){_mm256_unpacklo_ps(e, o), _mm256_unpackhi_ps(e, o)};
    e = v_in_order(even.b), o = v_in_order(odd.b);
    *b = (v16){_mm256_unpacklo_ps(e, o), _mm256_unpackhi_ps(e, o)};
}
#endif

/* ---- the same for both ------------------------------------------------------------------------- */

/* Sum of the lanes in the canonical order: l + (l + 8), then 4, 2, 1. */
V_INLINE float v_fold(v16 x)
{
    __m256 s8 = _mm256_add_ps(v_low_half(x), v_high_half(x));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
/* The largest lane (no NaN). */
V_INLINE float v_fold_max(v16 x)
{
    __m256 s8 = _mm256_max_ps(v_low_half(x), v_high_half(x));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
