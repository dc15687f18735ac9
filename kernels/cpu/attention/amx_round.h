/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries, K and V rounded to BF16 and laid out as TDPBF16PS wants them.  K and V that are kept paired
 * (dk_kv_paired) lie so already, but for what a row sees in part.
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>

#include "kernels/kernels.h"

typedef uint16_t a_tile[16][32]; /* rows by inputs */
typedef uint32_t k_tile[16][16]; /* pairs of dimensions by positions */
typedef uint32_t v_tile[8][16];  /* pairs of positions by dimensions */

/* BF16 in the upper halves, to nearest even; a NaN stays one.  The lower halves are anything. */
static inline __m512i rounded(__m512 x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), even);
    return _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                                _mm512_set1_epi32(0x400000));
}

/* Up to sixteen elements of K or V, as rounded() has them; the others are zero. */
static inline __m512i kv_rounded(enum dk_kv_type t, const void *p, size_t i, __mmask16 m)
{
    if (t == DK_KV_F32)
        return rounded(_mm512_maskz_loadu_ps(m, (const float *)p + i));
    const __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)p + i);
    return t == DK_KV_BF16 ? _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)
                           : rounded(_mm512_cvtph_ps(h));
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

static inline __attribute__((always_inline)) void round_k(enum dk_kv_type type, uint32_t hd,
                                                          const void *k, k_tile *out)
{
    const __m512i zero = _mm512_setzero_si512();
    for (uint32_t d = 0; d < (hd + 31) / 32 * 32; d += 2) {
        __m512i low = d < hd ? kv_rounded(type, k, (size_t)d * DK_KV_BLOCK, 0xffff) : zero;
        __m512i high =
            d + 1 < hd ? kv_rounded(type, k, (size_t)(d + 1) * DK_KV_BLOCK, 0xffff) : zero;
        _mm512_store_si512(out[d / 32][d % 32 / 2], pair(low, high));
    }
}

/* A block of K that is not kept paired, from its KV head on. */
static inline void lay_k(const struct dk_kv *kv, const void *k, k_tile *out)
{
    if (kv->type == DK_KV_F32)
        round_k(DK_KV_F32, kv->head_dim, k, out);
    else if (kv->type == DK_KV_F16)
        round_k(DK_KV_F16, kv->head_dim, k, out);
    else
        round_k(DK_KV_BF16, kv->head_dim, k, out);
}

#define NO_SLOT UINT32_MAX

/* Dimensions [d, d + 16) of V in a slot, as rounded() has them; zeros for NO_SLOT and from head_dim on. */
static inline __attribute__((always_inline)) __m512i v_dims(const struct dk_kv *kv,
                                                            enum dk_kv_type type, bool paired,
                                                            uint32_t kv_head, uint32_t slot,
                                                            uint32_t d)
{
    const uint32_t hd = kv->head_dim;
    if (slot == NO_SLOT)
        return _mm512_setzero_si512();
    const size_t at = ((size_t)(slot / DK_KV_BLOCK) * kv->n_kv_heads + kv_head) * hd * DK_KV_BLOCK;
    if (paired) {
        const uint16_t *v = (const uint16_t *)kv->v + at + (size_t)d * DK_KV_BLOCK;
        __m512i x = _mm512_loadu_si512(v + slot % DK_KV_BLOCK / 2 * 32);
        return slot % 2 ? x : _mm512_slli_epi32(x, 16);
    }
    return kv_rounded(type, kv->v, at + (size_t)(slot % DK_KV_BLOCK) * hd + d,
                      hd - d >= 16 ? 0xffff : (__mmask16)((1u << (hd - d)) - 1));
}

static inline __attribute__((always_inline)) void lay_v_of(const struct dk_kv *kv,
                                                           enum dk_kv_type type, bool paired,
                                                           uint32_t kv_head, const uint32_t *slots,
                                                           v_tile *out)
{
    for (uint32_t j = 0; j < DK_KV_BLOCK / 2; j++)
        for (uint32_t d = 0; d < kv->head_dim; d += 16)
            _mm512_store_si512(out[d / 16][j],
                               pair(v_dims(kv, type, paired, kv_head, slots[2 * j], d),
                                    v_dims(kv, type, paired, kv_head, slots[2 * j + 1], d)));
}

/* V of sixteen slots. */
static inline void lay_v(const struct dk_kv *kv, uint32_t kv_head, const uint32_t *slots,
                         v_tile *out)
{
    if (dk_kv_paired(kv))
        lay_v_of(kv, DK_KV_BF16, true, kv_head, slots, out);
    else if (kv->type == DK_KV_F32)
        lay_v_of(kv, DK_KV_F32, false, kv_head, slots, out);
    else if (kv->type == DK_KV_F16)
        lay_v_of(kv, DK_KV_F16, false, kv_head, slots, out);
    else
        lay_v_of(kv, DK_KV_BF16, false, kv_head, slots, out);
}

/* Whether all of V of a block, as lay_v leaves it and as it is kept paired, is finite. */
static inline bool all_finite(const void *v, uint32_t d16)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_setzero_si512();
    for (uint32_t i = 0; i < d16 * 8; i++)
        most = _mm512_max_epu16(
            most,
            _mm512_and_si512(_mm512_loadu_si512((const char *)v + (size_t)i * 64), magnitude));
    return !_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7f80));
}
