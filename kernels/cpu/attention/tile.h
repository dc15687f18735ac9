/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two inner loops of attention on sixteen lanes, for up to T_QUERIES queries that share every
 * load of K or V.  Scores: lanes are positions, one FMA chain over the head's dimensions.  Values:
 * lanes are dimensions, one FMA chain over the positions.  How queries, blocks and dimensions are
 * grouped does not enter a result.
 */
#pragma once

#include <stddef.h>

#include "kernels/cpu/v16.h"
#include "kernels/fma.h"
#include "kernels/kernels.h"

/* Floats from one query's vector to the next; away from powers of two, for the L1 cache's sets. */
#define Q_STRIDE  (DK_MAX_HEAD_DIM + 16)
#define S_STRIDE  (DK_ATTN_CHUNK + 16)
#define T_QUERIES 6 /* accumulators: 6 x 4 of 32 registers (AVX-512), 6 x 2 of 16 (AVX2) */

/*
 * Sixteen elements, widened.  AVX2 takes bfloat16 apart into even and odd elements, which needs no
 * shuffle: lanes are then in that order, until kv_in_order puts them straight (kv_apart undoes it).
 */
V_INLINE v16 kv_load(enum dk_kv_type t, const void *p, size_t i)
{
    if (t == DK_KV_F32)
        return v_load((const float *)p + i);
    if (t == DK_KV_F16)
        return v_load_f16((const uint16_t *)p + i);
#ifdef __AVX512F__
    return v_load_bf16((const uint16_t *)p + i);
#else
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)p + i));
    return v_from_bits(
        (v16i){_mm256_slli_epi32(x, 16), _mm256_and_si256(x, _mm256_set1_epi32(-65536))});
#endif
}
V_INLINE v16 kv_in_order(enum dk_kv_type t, v16 x)
{
#ifndef __AVX512F__
    if (t == DK_KV_BF16) {
        __m256 lo = _mm256_unpacklo_ps(x.a, x.b), hi = _mm256_unpackhi_ps(x.a, x.b);
        return (v16){_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
    }
#endif
    (void)t;
    return x;
}
V_INLINE v16 kv_apart(enum dk_kv_type t, v16 x)
{
#ifndef __AVX512F__
    if (t == DK_KV_BF16)
        return (v16){v_in_order(_mm256_shuffle_ps(x.a, x.b, 0x88)),
                     v_in_order(_mm256_shuffle_ps(x.a, x.b, 0xdd))};
#endif
    (void)t;
    return x;
}

V_INLINE float kv_load1(enum dk_kv_type t, const void *p, size_t i)
{
    if (t == DK_KV_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == DK_KV_BF16 ? dk_bf16_to_f32(h) : _cvtsh_ss(h);
}

/*
 * Decoding streams K and V once from memory, with little arithmetic between: lines of the fourth
 * next block are asked for while this one's are used.  Every list of blocks goes on for T_AHEAD
 * blocks (what comes next, or anything valid), which are prefetched but not read.
 */
#define T_AHEAD 4
V_INLINE void ahead(const void *block, size_t elem, enum dk_kv_type t)
{
    _mm_prefetch((const char *)block + elem * (t == DK_KV_F32 ? 4 : 2), _MM_HINT_T1);
}

#ifndef __AVX512F__
/* The same pointer, without the compiler knowing: sixteen registers hold twelve accumulators, K's
 * two and one broadcast, but not the broadcasts of the last block too; so these are loaded again. */
V_INLINE const float *again(const float *p)
{
    __asm__ volatile("" : "+r"(p));
    return p;
}
#endif

/* s[j][16 b ..] = scale * (q[j] . K of block b), nq queries, nb blocks; both constants. */
V_INLINE void score_tile(const int nq, const int nb, const enum dk_kv_type t, const float *q,
                         const void *const *kb, uint32_t hd, float scale, float *s)
{
    v16 acc[T_QUERIES][4];
    V_FOR (j, nq)
        V_FOR (b, nb)
            acc[j][b] = v_zero();
    for (size_t d = 0; d < hd; d++) {
        v16 k[4];
        V_FOR (b, nb)
            ahead(kb[T_AHEAD + b], d * DK_KV_BLOCK, t);
#ifdef __AVX512F__
        V_FOR (b, nb)
            k[b] = kv_load(t, kb[b], d * DK_KV_BLOCK);
        V_FOR (j, nq) {
            v16 x = v_set1(q[j * Q_STRIDE + d]);
            V_FOR (b, nb)
                acc[j][b] = v_fma(x, k[b], acc[j][b]);
        }
#else
        V_FOR (b, nb) {
            const float *qb = again(q);
            k[b] = kv_load(t, kb[b], d * DK_KV_BLOCK);
            V_FOR (j, nq)
                acc[j][b] = v_fma(v_set1(qb[j * Q_STRIDE + d]), k[b], acc[j][b]);
        }
#endif
    }
    v16 f = v_set1(scale);
    V_FOR (j, nq)
        V_FOR (b, nb)
            v_store(s + j * S_STRIDE + b * 16, kv_in_order(t, v_mul(acc[j][b], f)));
}

/*
 * a[j][16 nv dimensions] += e[j][p] V[p] over n positions in order; a starts at zero when fresh.
 * The positions lie in runs of `run` rows of row_elems elements, starting at vb[0], vb[1], ...;
 * d0: first dimension.
 */
V_INLINE void value_tile(const int nq, const int nv, const enum dk_kv_type t, const float *e,
                         const void *const *vb, uint32_t run, uint32_t n, size_t row_elems,
                         size_t d0, float *a, bool fresh)
{
    const int lines = t == DK_KV_F32 ? nv : (nv + 1) / 2; /* of the cache, in nv vectors */
    v16 acc[T_QUERIES][4];
    V_FOR (j, nq)
        V_FOR (i, nv)
            acc[j][i] = fresh ? v_zero() : kv_apart(t, v_load(a + j * Q_STRIDE + d0 + i * 16));
    for (uint32_t p = 0; p < n;) {
        const void *block = *vb, *next = vb[T_AHEAD];
        vb++;
        uint32_t end = n - p < run ? n : p + run;
        for (size_t at = d0; p < end; p++, at += row_elems) {
            v16 v[4];
            V_FOR (i, lines)
                ahead(next, at + (size_t)i * (t == DK_KV_F32 ? 16 : 32), t);
#ifdef __AVX512F__
            V_FOR (i, nv)
                v[i] = kv_load(t, block, at + (size_t)i * 16);
            V_FOR (j, nq) {
                v16 x = v_set1(e[j * S_STRIDE + p]);
                V_FOR (i, nv)
                    acc[j][i] = v_fma(x, v[i], acc[j][i]);
            }
#else
            V_FOR (i, nv) {
                const float *ei = again(e);
                v[i] = kv_load(t, block, at + (size_t)i * 16);
                V_FOR (j, nq)
                    acc[j][i] = v_fma(v_set1(ei[j * S_STRIDE + p]), v[i], acc[j][i]);
            }
#endif
        }
    }
    V_FOR (j, nq)
        V_FOR (i, nv)
            v_store(a + j * Q_STRIDE + d0 + i * 16, kv_in_order(t, acc[j][i]));
}

/* Dimensions [d0, d1) behind the last whole sixteen. */
static void value_rest(enum dk_kv_type t, uint32_t nq, const float *e, const void *const *vb,
                       uint32_t run, uint32_t n, size_t row_elems, size_t d0, size_t d1, float *a,
                       bool fresh)
{
    for (uint32_t j = 0; j < nq; j++)
        for (size_t d = d0; d < d1; d++) {
            float acc = fresh ? 0 : a[j * Q_STRIDE + d];
            for (uint32_t p = 0; p < n; p++)
                acc = dk_fmaf(e[j * S_STRIDE + p],
                              kv_load1(t, vb[p / run], p % run * row_elems + d), acc);
            a[j * Q_STRIDE + d] = acc;
        }
}

/* How many blocks or vectors a tile of nq queries takes at once. */
V_INLINE int tile_width(const int nq)
{
#ifdef __AVX512F__
    (void)nq;
    return 4;
#else
    return nq == 1 ? 4 : nq <= 3 ? 2 : 1;
#endif
}

V_INLINE void scores_nq(const int nq, const enum dk_kv_type t, const float *q,
                        const void *const *kb, uint32_t n_blocks, uint32_t hd, float scale,
                        float *s)
{
    const int w = tile_width(nq);
    uint32_t b = 0;
    for (; b + (uint32_t)w <= n_blocks; b += (uint32_t)w)
        score_tile(nq, w, t, q, kb + b, hd, scale, s + b * 16);
    if (w > 2 && b + 2 <= n_blocks) {
        score_tile(nq, 2, t, q, kb + b, hd, scale, s + b * 16);
        b += 2;
    }
    if (w > 1 && b < n_blocks)
        score_tile(nq, 1, t, q, kb + b, hd, scale, s + b * 16);
}

/* Dimensions [first, end) of a head that has so many; first is a multiple of 16. */
struct dims {
    uint32_t all, first, end;
};

V_INLINE void values_nq(const int nq, const enum dk_kv_type t, const float *e,
                        const void *const *vb, uint32_t run, uint32_t n, const struct dims *dim,
                        float *a, bool fresh)
{
    const uint32_t w = 16u * (uint32_t)tile_width(nq), hd = dim->all, end = dim->end;
    uint32_t d = dim->first;
    for (; d + w <= end; d += w)
        value_tile(nq, tile_width(nq), t, e, vb, run, n, hd, d, a, fresh);
    if (w > 32 && d + 32 <= end) {
        value_tile(nq, 2, t, e, vb, run, n, hd, d, a, fresh);
        d += 32;
    }
    if (w > 16 && d + 16 <= end) {
        value_tile(nq, 1, t, e, vb, run, n, hd, d, a, fresh);
        d += 16;
    }
    if (d < end)
        value_rest(t, (uint32_t)nq, e, vb, run, n, hd, d, end, a, fresh);
}

/* nq = 1 .. T_QUERIES queries over any number of blocks or positions. */
#define DEFINE_TILES(name, type)                                                                   \
    static void scores_##name(uint32_t nq, const float *q, const void *const *kb,                  \
                              uint32_t n_blocks, uint32_t hd, float scale, float *s)               \
    {                                                                                              \
        switch (nq) {                                                                              \
        case 1:                                                                                    \
            return scores_nq(1, type, q, kb, n_blocks, hd, scale, s);                              \
        case 2:                                                                                    \
            return scores_nq(2, type, q, kb, n_blocks, hd, scale, s);                              \
        case 3:                                                                                    \
            return scores_nq(3, type, q, kb, n_blocks, hd, scale, s);                              \
        case 4:                                                                                    \
            return scores_nq(4, type, q, kb, n_blocks, hd, scale, s);                              \
        case 5:                                                                                    \
            return scores_nq(5, type, q, kb, n_blocks, hd, scale, s);                              \
        default:                                                                                   \
            return scores_nq(6, type, q, kb, n_blocks, hd, scale, s);                              \
        }                                                                                          \
    }                                                                                              \
    static void values_##name(uint32_t nq, const float *e, const void *const *vb, uint32_t run,    \
                              uint32_t n, const struct dims *dim, float *a, bool fresh)            \
    {                                                                                              \
        switch (nq) {                                                                              \
        case 1:                                                                                    \
            return values_nq(1, type, e, vb, run, n, dim, a, fresh);                               \
        case 2:                                                                                    \
            return values_nq(2, type, e, vb, run, n, dim, a, fresh);                               \
        case 3:                                                                                    \
            return values_nq(3, type, e, vb, run, n, dim, a, fresh);                               \
        case 4:                                                                                    \
            return values_nq(4, type, e, vb, run, n, dim, a, fresh);                               \
        case 5:                                                                                    \
            return values_nq(5, type, e, vb, run, n, dim, a, fresh);                               \
        default:                                                                                   \
            return values_nq(6, type, e, vb, run, n, dim, a, fresh);                               \
        }                                                                                          \
    }
DEFINE_TILES(f32, DK_KV_F32)
DEFINE_TILES(bf16, DK_KV_BF16)
DEFINE_TILES(f16, DK_KV_F16)
