/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one row in two steps, scores by blocks of positions and values by dimensions, so that
 * threads share it evenly however few KV heads there are.  The loops and the order are those of
 * vector.h.
 */
#pragma once

#include "kernels/cpu/attention/vector.h"

/* What is fetched behind K (or V) of blocks up to `block` of the path: its next ones, and behind the
 * last the first ones of the next KV head. */
static void following(const struct tile *t, const void *base, uint32_t block, uint32_t n_blocks,
                      const void **out)
{
    struct tile next = *t;
    for (uint32_t i = 0; i < T_AHEAD; i++, block++) {
        if (block >= n_blocks) {
            block -= n_blocks;
            next.kv_head = (t->kv_head + 1) % t->kv->n_kv_heads;
        }
        out[i] = block < n_blocks ? kv_ptr(&next, base, t->rows->blocks[block], 0) : t->w;
    }
}

static void one_row_scores(struct tile *t, const float *q, float *s, size_t lds, uint32_t block0,
                           uint32_t block1, uint32_t n_blocks)
{
    struct work *w = t->w;
    uint32_t hd = t->kv->head_dim;
    for (uint32_t h = 0; h < t->n_heads; h++)
        memcpy(w->q + h * Q_STRIDE, q + (size_t)h * hd, hd * sizeof *q);
    for (uint32_t b = block0, n; b < block1; b += n) {
        n = block1 - b < CHUNK_BLOCKS ? block1 - b : CHUNK_BLOCKS;
        for (uint32_t i = 0; i < n; i++)
            w->kb[i] = kv_ptr(t, t->kv->k, t->rows->blocks[b + i], 0);
        following(t, t->kv->k, b + n, n_blocks, w->kb + n);
        scores(t, 0, t->n_heads, w->kb, n, w->s);
        for (uint32_t h = 0; h < t->n_heads; h++)
            memcpy(s + h * lds + (size_t)b * DK_KV_BLOCK, w->s + h * S_STRIDE,
                   n * DK_KV_BLOCK * sizeof *s);
    }
}

static void one_row_values(struct tile *t, const float *s, size_t lds, float *out,
                           uint32_t n_blocks)
{
    struct work *w = t->w;
    const uint32_t n_vis = t->rows->n_vis, hd = t->kv->head_dim, d0 = t->dims.first;
    for (uint32_t p0 = 0; p0 < n_vis; p0 += DK_ATTN_CHUNK) {
        uint32_t n = clamp_chunk(n_vis, p0), b0 = p0 / DK_KV_BLOCK;
        uint32_t blocks = (n + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
        for (uint32_t i = 0; i < blocks; i++)
            w->vb[i] = kv_ptr(t, t->kv->v, t->rows->blocks[b0 + i], 0);
        following(t, t->kv->v, b0 + blocks, n_blocks, w->vb + blocks);
        for (uint32_t h = 0; h < t->n_heads; h++) {
            memcpy(w->s + h * S_STRIDE, s + h * lds + p0, blocks * DK_KV_BLOCK * sizeof *s);
            softmax(w->s + h * S_STRIDE, n, &w->m_new[h], &w->l_new[h]);
        }
        values(t, 0, t->n_heads, w->vb, DK_KV_BLOCK, 0, n, true);
        for (uint32_t h = 0; h < t->n_heads; h++)
            merge(&w->m[h], &w->l[h], w->a + h * Q_STRIDE + d0, w->m_new[h], w->l_new[h],
                  w->a_new + h * Q_STRIDE + d0, t->dims.end - d0, p0 == 0);
    }
    for (uint32_t h = 0; h < t->n_heads; h++)
        divide(out + (size_t)h * hd + d0, w->a + h * Q_STRIDE + d0, w->l[h], t->dims.end - d0);
}

/* The next heads of a group that fit a tile, from `done` on; false when there are none. */
static bool next_heads(struct tile *t, uint32_t group, uint32_t *done)
{
    *done += t->n_heads;
    t->n_heads = group - *done < TILE ? group - *done : TILE;
    return t->n_heads > 0;
}

void V_NAME(dk_cpu_attention_scores)(const struct dk_kv *kv, const struct dk_attn_row *row,
                                     const float *q, float *s, size_t lds, uint32_t n_heads,
                                     uint32_t kv_head, uint32_t block0, uint32_t block1,
                                     float scale, void *scratch)
{
    const uint32_t group = n_heads / kv->n_kv_heads;
    const uint32_t n_blocks = (row->n_vis + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    struct tile t = {
        .kv = kv, .rows = row, .n_rows = 1, .kv_head = kv_head, .scale = scale, .w = scratch};
    for (uint32_t done = 0; next_heads(&t, group, &done);) {
        size_t h = (size_t)kv_head * group + done;
        one_row_scores(&t, q + h * kv->head_dim, s + h * lds, lds, block0, block1, n_blocks);
    }
}

void V_NAME(dk_cpu_attention_values)(const struct dk_kv *kv, const struct dk_attn_row *row,
                                     const float *s, size_t lds, float *out, uint32_t n_heads,
                                     uint32_t kv_head, uint32_t dim0, uint32_t dim1, void *scratch)
{
    const uint32_t group = n_heads / kv->n_kv_heads;
    const uint32_t n_blocks = (row->n_vis + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    struct tile t = {.kv = kv, .rows = row, .n_rows = 1, .kv_head = kv_head, .w = scratch};
    t.dims = (struct dims){kv->head_dim, dim0, dim1};
    for (uint32_t done = 0; next_heads(&t, group, &done);) {
        size_t h = (size_t)kv_head * group + done;
        one_row_values(&t, s + h * lds, lds, out + h * kv->head_dim, n_blocks);
    }
}
