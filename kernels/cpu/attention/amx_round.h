/* SPDX-License-Identifier: Apache-2.0 */
/* Queries, K and V rounded to BF16 and laid out as TDPBF16PS wants them. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>

#include "kernels/kernels.h"

#define GROUP 32u /* positions of V in one product */

typedef uint16_t a_tile[16][32]; /* rows by inputs */
typedef uint32_t b_tile[16][16]; /* pairs of inputs by outputs */

/* BF16 in the upper halves, to nearest even; a NaN stays one.  The lower halves are anything. */
static inline __m512i rounded(__m512 x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), even);
    return _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                                _mm512_set1_epi32(0x400000));
}

/* Up to sixteen elements of K or V of F32 or F16, as rounded() has them; the others are zero. */
static inline __m512i kv_rounded(enum dk_kv_type t, const void *p, size_t i, __mmask16 m)
{
    if (t == DK_KV_F32)
        return rounded(_mm512_maskz_loadu_ps(m, (const float *)p + i));
    return rounded(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, (const uint16_t *)p + i)));
}

static inline __m512i pair(__m512i low, __m512i high)
{
    return _mm512_or_si512(_mm512_srli_epi32(low, 16),
                           _mm512_and_si512(high, _mm512_set1_epi32(-65536)));
}

static inline void round_row(uint16_t *out, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m512i r = rounded(_mm512_maskz_loadu_ps(m, x + i));
        _mm256_storeu_si256((__m256i *)(void *)(out + i),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
    }
}

/* Sixteen elements of one row, then sixteen of another, to pairs of them. */
static inline __m512i interleaved(__m512i x)
{
    const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    /* Word 2i is word i, word 2i + 1 is word 16 + i. */
    return _mm512_permutexvar_epi16(
        _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16)),
        x);
}

/* A block of K that is kept as BF16: only pairs are made.  `next` is fetched meanwhile. */
static inline void pair_k(uint32_t hd, const uint16_t *k, const void *next, b_tile *out)
{
    for (uint32_t d = 0; d < (hd + 31) / 32 * 32; d += 2) {
        __m512i x = _mm512_setzero_si512();
        if (d < hd) {
            __builtin_prefetch((const char *)next + (size_t)d * 2 * DK_KV_BLOCK, 0, 2);
            x = _mm512_maskz_loadu_epi16(d + 1 < hd ? 0xffffffff : 0xffff,
                                         k + (size_t)d * DK_KV_BLOCK);
        }
        _mm512_store_si512(out[d / 32][d % 32 / 2], interleaved(x));
    }
}

/* A block of K; `next` is fetched meanwhile. */
static inline __attribute__((always_inline)) void
round_k(enum dk_kv_type type, uint32_t hd, const void *k, const void *next, b_tile *out)
{
    const uint32_t bytes = DK_KV_BLOCK * (type == DK_KV_F32 ? 4 : 2);
    const __m512i zero = _mm512_setzero_si512();
    for (uint32_t d = 0; d < (hd + 31) / 32 * 32; d += 2) {
        if (d < hd)
            for (uint32_t i = 0; i < 2 * bytes; i += 64)
                __builtin_prefetch((const char *)next + d * bytes + i, 0, 2);
        __m512i low = d < hd ? kv_rounded(type, k, (size_t)d * DK_KV_BLOCK, 0xffff) : zero;
        __m512i high =
            d + 1 < hd ? kv_rounded(type, k, (size_t)(d + 1) * DK_KV_BLOCK, 0xffff) : zero;
        _mm512_store_si512(out[d / 32][d % 32 / 2], pair(low, high));
    }
}

static inline void round_block(const struct dk_kv *kv, const void *k, const void *next, b_tile *out)
{
    const uint32_t hd = kv->head_dim;
    if (kv->type == DK_KV_F32)
        round_k(DK_KV_F32, hd, k, next, out);
    else if (kv->type == DK_KV_BF16)
        pair_k(hd, k, next, out);
    else
        round_k(DK_KV_F16, hd, k, next, out);
}

/* The j-th two of the rows that are read next, which stand in line; next, and any of it, may be NULL. */
static inline void fetch_pair(const void *const *next, uint32_t j, uint32_t row_bytes)
{
    for (uint32_t i = 0; next && next[2 * j] && i < 2 * row_bytes; i += 64)
        __builtin_prefetch((const char *)next[2 * j] + i, 0, 2);
}

/* V of 32 positions, NULL: zeros.  next: of the 32 behind them, fetched meanwhile, or NULL.  Returns
 * whether all of it is finite. */
static inline __attribute__((always_inline)) bool round_v(enum dk_kv_type type, uint32_t hd,
                                                          const void *const *rows,
                                                          const void *const *next, b_tile *out)
{
    const uint32_t bytes = hd * (type == DK_KV_F32 ? 4 : 2);
    const __m512i zero = _mm512_setzero_si512(), top = _mm512_set1_epi32(0x7f800000),
                  bottom = _mm512_set1_epi32(0x7f80);
    __mmask16 bad = 0;
    for (uint32_t j = 0; j < GROUP / 2; j++) {
        const void *a = rows[2 * j], *b = rows[2 * j + 1];
        fetch_pair(next, j, bytes);
        for (uint32_t d = 0; d < hd; d += 16) {
            const __mmask16 m = hd - d >= 16 ? 0xffff : (__mmask16)((1u << (hd - d)) - 1);
            __m512i x =
                pair(a ? kv_rounded(type, a, d, m) : zero, b ? kv_rounded(type, b, d, m) : zero);
            bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(x, top), top) |
                   _mm512_cmpeq_epi32_mask(_mm512_and_si512(x, bottom), bottom);
            _mm512_store_si512(out[d / 16][j], x);
        }
    }
    return !bad;
}

/* The same of V that is kept as BF16. */
static inline bool pair_v(uint32_t hd, const void *const *rows, const void *const *next,
                          b_tile *out)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    const uint32_t bytes = hd * 2;
    __m512i most = _mm512_setzero_si512();
    for (uint32_t j = 0; j < GROUP / 2; j++) {
        const uint16_t *a = rows[2 * j], *b = rows[2 * j + 1];
        fetch_pair(next, j, bytes);
        for (uint32_t d = 0; d < hd; d += 16) {
            const __mmask16 m = hd - d >= 16 ? 0xffff : (__mmask16)((1u << (hd - d)) - 1);
            __m256i low = a ? _mm256_maskz_loadu_epi16(m, a + d) : _mm256_setzero_si256();
            __m256i high = b ? _mm256_maskz_loadu_epi16(m, b + d) : _mm256_setzero_si256();
            __m512i x = interleaved(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
            most = _mm512_max_epu16(most, _mm512_and_si512(x, magnitude));
            _mm512_store_si512(out[d / 16][j], x);
        }
    }
    return !_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7f80));
}

static inline bool round_group(const struct dk_kv *kv, const void *const *rows,
                               const void *const *next, b_tile *out)
{
    const uint32_t hd = kv->head_dim;
    if (kv->type == DK_KV_F32)
        return round_v(DK_KV_F32, hd, rows, next, out);
    if (kv->type == DK_KV_BF16)
        return pair_v(hd, rows, next, out);
    return round_v(DK_KV_F16, hd, rows, next, out);
}
