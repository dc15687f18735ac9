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

V_INLINE v16 kv_load(enum dk_kv_type t, const void *p, size_t i)
{
    if (t == DK_KV_F32)
        return v_load((const float *)p + i);
    if (t == DK_KV_BF16)
        return v_load_bf16((const uint16_t *)p + i);
    return v_load_f16((const uint16_t *)p + i);
}

V_INLINE float kv_load1(enum dk_kv_type t, const void *p, size_t i)
{
    if (t == DK_KV_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == DK_KV_BF16 ? dk_bf16_to_f32(h) : _cvtsh_ss(h);
}

/* s[j][16 b ..] = scale * (q[j] . K of block b), nq queries, nb blocks; both constants. */
V_INLINE void score_tile(const int nq, const int nb, const enum dk_kv_type t, const float *q,
                         const void *const *kb, uint32_t hd, float scale, float *s)
{
    v16 acc[T_QUERIES][4];
    V_UNROLL
    for (int j = 0; j < nq; j++)
        V_UNROLL
    for (int b = 0; b < nb; b++)
        acc[j][b] = v_zero();
    for (size_t d = 0; d < hd; d++) {
        v16 k[4];
        V_UNROLL
        for (int b = 0; b < nb; b++)
            k[b] = kv_load(t, kb[b], d * DK_KV_BLOCK);
        V_UNROLL
        for (int j = 0; j < nq; j++) {
            v16 x = v_set1(q[j * Q_STRIDE + d]);
            V_UNROLL
            for (int b = 0; b < nb; b++)
                acc[j][b] = v_fma(x, k[b], acc[j][b]);
        }
    }
    v16 f = v_set1(scale);
    V_UNROLL
    for (int j = 0; j < nq; j++)
        V_UNROLL
    for (int b = 0; b < nb; b++)
        v_store(s + j * S_STRIDE + b * 16, v_mul(acc[j][b], f));
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
    v16 acc[T_QUERIES][4];
    V_UNROLL
    for (int j = 0; j < nq; j++)
        V_UNROLL
    for (int i = 0; i < nv; i++)
        acc[j][i] = fresh ? v_zero() : v_load(a + j * Q_STRIDE + d0 + i * 16);
    for (uint32_t p = 0; p < n;) {
        const void *block = *vb++;
        uint32_t end = n - p < run ? n : p + run;
        for (size_t at = d0; p < end; p++, at += row_elems) {
            v16 v[4];
            V_UNROLL
            for (int i = 0; i < nv; i++)
                v[i] = kv_load(t, block, at + (size_t)i * 16);
            V_UNROLL
            for (int j = 0; j < nq; j++) {
                v16 x = v_set1(e[j * S_STRIDE + p]);
                V_UNROLL
                for (int i = 0; i < nv; i++)
                    acc[j][i] = v_fma(x, v[i], acc[j][i]);
            }
        }
    }
    V_UNROLL
    for (int j = 0; j < nq; j++)
        V_UNROLL
    for (int i = 0; i < nv; i++)
        v_store(a + j * Q_STRIDE + d0 + i * 16, acc[j][i]);
}

/* The dimensions behind the last whole sixteen. */
static void value_rest(enum dk_kv_type t, uint32_t nq, const float *e, const void *const *vb,
                       uint32_t run, uint32_t n, size_t row_elems, size_t d0, float *a, bool fresh)
{
    for (uint32_t j = 0; j < nq; j++)
        for (size_t d = d0; d < row_elems; d++) {
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

V_INLINE void values_nq(const int nq, const enum dk_kv_type t, const float *e,
                        const void *const *vb, uint32_t run, uint32_t n, uint32_t hd, float *a,
                        bool fresh)
{
    const uint32_t w = 16u * (uint32_t)tile_width(nq);
    uint32_t d = 0;
    for (; d + w <= hd; d += w)
        value_tile(nq, tile_width(nq), t, e, vb, run, n, hd, d, a, fresh);
    if (w > 32 && d + 32 <= hd) {
        value_tile(nq, 2, t, e, vb, run, n, hd, d, a, fresh);
        d += 32;
    }
    if (w > 16 && d + 16 <= hd) {
        value_tile(nq, 1, t, e, vb, run, n, hd, d, a, fresh);
        d += 16;
    }
    if (d < hd)
        value_rest(t, (uint32_t)nq, e, vb, run, n, hd, d, a, fresh);
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
                              uint32_t n, uint32_t hd, float *a, bool fresh)                       \
    {                                                                                              \
        switch (nq) {                                                                              \
        case 1:                                                                                    \
            return values_nq(1, type, e, vb, run, n, hd, a, fresh);                                \
        case 2:                                                                                    \
            return values_nq(2, type, e, vb, run, n, hd, a, fresh);                                \
        case 3:                                                                                    \
            return values_nq(3, type, e, vb, run, n, hd, a, fresh);                                \
        case 4:                                                                                    \
            return values_nq(4, type, e, vb, run, n, hd, a, fresh);                                \
        case 5:                                                                                    \
            return values_nq(5, type, e, vb, run, n, hd, a, fresh);                                \
        default:                                                                                   \
            return values_nq(6, type, e, vb, run, n, hd, a, fresh);                                \
        }                                                                                          \
    }
DEFINE_TILES(f32, DK_KV_F32)
DEFINE_TILES(bf16, DK_KV_BF16)
DEFINE_TILES(f16, DK_KV_F16)
