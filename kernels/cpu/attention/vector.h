/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on sixteen lanes.
 *
 * Adjacent rows with the same block list (a prompt's chunk, a tree) and the heads of one KV group
 * form a tile of up to TILE queries, which share the loads of K and V; long tiles also share the
 * widening of 16-bit K and V.  What each query sees is exact: a score outside its path is computed
 * at most, never used.
 *
 * Tails (slots of their own per row, a tree's branches) need no copy of K: all blocks that the
 * tile's tails touch are scored for all its queries, and each row then picks its slots' scores.
 */
#pragma once

#include <string.h>

#include "kernels/cpu/attention/chunk.h"
#include "kernels/cpu/attention/tile.h"

#define TILE 24u

struct work {
    float q[TILE * Q_STRIDE];
    float a[TILE * Q_STRIDE];     /* weighted sums so far */
    float a_new[TILE * Q_STRIDE]; /* of this chunk */
    float s[TILE * S_STRIDE];     /* scores, then exponentials */
    float u[TILE * S_STRIDE];     /* scores of whole blocks that tails touch */
    float wide[4 * DK_KV_BLOCK * DK_MAX_HEAD_DIM];
    float m[TILE], l[TILE], m_new[TILE], l_new[TILE];
    /* Blocks of K, of V (or single positions), and behind them what is wanted next. */
    const void *kb[CHUNK_BLOCKS + T_AHEAD], *vb[DK_ATTN_CHUNK + T_AHEAD];
    uint16_t pick[TILE][DK_ATTN_CHUNK]; /* per row and tail position: index into u */
};
_Static_assert(sizeof(struct work) <= DK_SCRATCH_BYTES, "attention's scratch");

struct tile {
    const struct dk_kv *kv;
    const struct dk_attn_row *rows;
    uint32_t n_rows, n_heads; /* heads of one KV group; query r * n_heads + h */
    uint32_t kv_head;
    struct dims dims; /* of V */
    float scale;
    struct work *w;
    /* Where chunks go that are not merged here: of query 0 in chunk 0; NULL otherwise. */
    float *part;
    size_t part_row, part_chunk; /* floats from row to row and chunk to chunk */
    uint32_t end;                /* position where this call ends, whatever a row sees */
};

static const void *kv_ptr(const struct tile *t, const void *base, uint32_t block, uint32_t row)
{
    return block_at(t->kv, base, block, t->kv_head, row);
}

/* Queries of a pass over a tile, evenly cut. */
static uint32_t pass_size(uint32_t nq)
{
    uint32_t passes = (nq + T_QUERIES - 1) / T_QUERIES;
    return (nq + passes - 1) / passes;
}

static void widen(enum dk_kv_type type, float *out, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        v_store(out + i, type == DK_KV_BF16 ? v_load_bf16((const uint16_t *)p + i)
                                            : v_load_f16((const uint16_t *)p + i));
}

/* Widens blocks when it pays; the type that b then holds. */
static enum dk_kv_type widen_blocks(const struct tile *t, uint32_t nq, const void **b, uint32_t n)
{
    if (t->kv->type == DK_KV_F32 || nq <= 2 * T_QUERIES)
        return t->kv->type;
    size_t elems = (size_t)t->kv->head_dim * DK_KV_BLOCK;
    for (uint32_t i = 0; i < n; i++) {
        widen(t->kv->type, t->w->wide + i * elems, b[i], elems);
        b[i] = t->w->wide + i * elems;
    }
    return DK_KV_F32;
}

/* Scores of queries [q0, q0 + nq) with whole blocks, into s. */
static void scores(const struct tile *t, uint32_t q0, uint32_t nq, const void **kb,
                   uint32_t n_blocks, float *s)
{
    uint32_t hd = t->kv->head_dim, step = nq > T_QUERIES ? 4 : n_blocks, pass = pass_size(nq);
    for (uint32_t b = 0; b < n_blocks; b += step) {
        uint32_t n = n_blocks - b < step ? n_blocks - b : step;
        enum dk_kv_type type = widen_blocks(t, nq, kb + b, n);
        for (uint32_t j = 0; j < nq; j += pass) {
            uint32_t k = nq - j < pass ? nq - j : pass;
            const float *q = t->w->q + (q0 + j) * Q_STRIDE;
            float *dst = s + (q0 + j) * S_STRIDE + b * DK_KV_BLOCK;
            if (type == DK_KV_F32)
                scores_f32(k, q, (const void *const *)kb + b, n, hd, t->scale, dst);
            else if (type == DK_KV_BF16)
                scores_bf16(k, q, (const void *const *)kb + b, n, hd, t->scale, dst);
            else
                scores_f16(k, q, (const void *const *)kb + b, n, hd, t->scale, dst);
        }
    }
}

/* a_new of queries [q0, q0 + nq) from positions [p, p + n) of the chunk, in runs at vb. */
static void values(const struct tile *t, uint32_t q0, uint32_t nq, const void **vb, uint32_t run,
                   uint32_t p, uint32_t n, bool fresh)
{
    uint32_t hd = t->kv->head_dim, pass = pass_size(nq);
    const struct dims *dim = &t->dims;
    /* Several passes over the same V: as many positions at a time as stay in the L1 cache. */
    bool once = nq <= T_QUERIES && dim->end - dim->first <= 16u * (uint32_t)tile_width((int)nq);
    uint32_t step = once || run == 1 ? n : (hd <= 64 ? 4u : hd <= 128 ? 2u : 1u) * run;
    for (uint32_t i = 0; i < n; i += step, vb += step / run) {
        uint32_t k = n - i < step ? n - i : step;
        enum dk_kv_type type = widen_blocks(t, nq, vb, (k + run - 1) / run);
        for (uint32_t j = 0; j < nq; j += pass) {
            uint32_t jn = nq - j < pass ? nq - j : pass;
            const float *e = t->w->s + (q0 + j) * S_STRIDE + p + i;
            float *a = t->w->a_new + (q0 + j) * Q_STRIDE;
            bool first = fresh && i == 0;
            if (type == DK_KV_F32)
                values_f32(jn, e, (const void *const *)vb, run, k, dim, a, first);
            else if (type == DK_KV_BF16)
                values_bf16(jn, e, (const void *const *)vb, run, k, dim, a, first);
            else
                values_f16(jn, e, (const void *const *)vb, run, k, dim, a, first);
        }
    }
}

/* Scores of the tails' positions in this chunk for rows [r0, n_rows). */
static void scores_tail(const struct tile *t, uint32_t r0, uint32_t p0)
{
    struct work *w = t->w;
    struct tails tails;
    const uint32_t nh = t->n_heads;
    tails_begin(&tails, t->rows, r0, t->n_rows, p0);
    while (tails.left) {
        tails_collect(&tails, t->rows, r0, t->n_rows, p0, w->pick);
        for (uint32_t b = 0; b < tails.n_blocks; b++)
            w->kb[b] = kv_ptr(t, t->kv->k, tails.block[b], 0);
        for (uint32_t b = 0; b < T_AHEAD; b++)
            w->kb[tails.n_blocks + b] = w->kb[0];
        scores(t, tails.first * nh, (tails.end - tails.first) * nh, w->kb, tails.n_blocks, w->u);
        for (uint32_t i = tails.first; i < tails.end; i++)
            for (uint32_t q = i * nh; q < (i + 1) * nh; q++)
                tails_pick(&tails, i, w->pick[i], w->u + q * S_STRIDE, w->s + q * S_STRIDE);
    }
}

/* Scores to exponentials; the chunk's maximum and sum. */
static void softmax(float *s, uint32_t n, float *ret_m, float *ret_l)
{
    const v16 low = v_set1(-__builtin_inff());
    uint32_t whole = n & ~15u, rest = n & 15u;
    v16 m = low, l = v_zero();
    for (uint32_t i = 0; i < whole; i += 16)
        m = v_max(m, v_load(s + i));
    if (rest)
        m = v_max(m, v_first_n(v_load(s + whole), low, rest));
    *ret_m = v_fold_max(m);
    m = v_set1(*ret_m);
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 e = v_exp_low(v_sub(v_load(s + i), m));
        l = v_add(l, e);
        v_store(s + i, e);
    }
    if (rest) {
        v16 e = v_first_n(v_exp_low(v_sub(v_load(s + whole), m)), v_zero(), rest);
        l = v_add(l, e);
        v_store(s + whole, e);
    }
    *ret_l = v_fold(l);
}

/* A query's result of the chunk at p0: into its part, or merged with what came before. */
static void finish_chunk(const struct tile *t, uint32_t r, uint32_t h, uint32_t p0)
{
    struct work *w = t->w;
    uint32_t j = r * t->n_heads + h, hd = t->kv->head_dim;
    const float *a = w->a_new + j * Q_STRIDE;
    if (!t->part) {
        merge(&w->m[j], &w->l[j], w->a + j * Q_STRIDE, w->m_new[j], w->l_new[j], a, hd, p0 == 0);
        return;
    }
    float *o = t->part + p0 / DK_ATTN_CHUNK * t->part_chunk + r * t->part_row +
               (size_t)h * DK_ATTN_PART(hd);
    put_part(o, w->m_new[j], w->l_new[j], a, hd);
}

/* What is read behind this chunk's V: the next chunk's K, or that of the next group of heads. */
static void following_k(const struct tile *t, uint32_t p0, const void **out)
{
    const struct dk_attn_row *row = &t->rows[t->n_rows - 1];
    uint32_t stop = row->tail_start < row->n_vis ? row->tail_start : row->n_vis;
    struct tile next = *t;
    p0 += DK_ATTN_CHUNK;
    if (p0 >= stop && !t->part) {
        p0 = 0;
        next.kv_head = (t->kv_head + 1) % t->kv->n_kv_heads;
    }
    stop = stop < t->end ? stop : t->end;
    for (uint32_t b = 0; b < T_AHEAD; b++, p0 += DK_KV_BLOCK)
        out[b] = p0 < stop ? kv_ptr(&next, t->kv->k, row->blocks[p0 / DK_KV_BLOCK], 0) : t->w;
}

static void one_chunk(const struct tile *t, uint32_t r0, uint32_t p0)
{
    struct work *w = t->w;
    uint32_t nh = t->n_heads, longest = 0, shared = DK_ATTN_CHUNK, q0 = r0 * nh;
    const uint32_t *blocks = t->rows[r0].blocks;
    bool tails = false;
    for (uint32_t r = r0; r < t->n_rows; r++) {
        uint32_t plain = seen_plain(&t->rows[r], p0);
        if (plain > longest)
            longest = plain;
        if (plain < shared)
            shared = plain;
        tails |= plain < seen(&t->rows[r], p0);
    }
    uint32_t n_blocks = (longest + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    for (uint32_t b = 0; b < n_blocks; b++)
        w->kb[b] = kv_ptr(t, t->kv->k, blocks[p0 / DK_KV_BLOCK + b], 0);
    for (uint32_t b = 0; b < T_AHEAD && n_blocks; b++)
        w->kb[n_blocks + b] =
            kv_ptr(t, t->kv->v, blocks[p0 / DK_KV_BLOCK + (b < n_blocks ? b : 0)], 0);
    scores(t, q0, t->n_rows * nh - q0, w->kb, n_blocks, w->s);
    if (tails)
        scores_tail(t, r0, p0);
    for (uint32_t r = r0; r < t->n_rows; r++) {
        uint32_t n = seen(&t->rows[r], p0);
        for (uint32_t j = r * nh; n && j < (r + 1) * nh; j++)
            softmax(w->s + j * S_STRIDE, n, &w->m_new[j], &w->l_new[j]);
    }
    /* What all rows see of the whole blocks, then each row's own rest. */
    for (uint32_t b = 0; b * DK_KV_BLOCK < shared; b++)
        w->vb[b] = kv_ptr(t, t->kv->v, blocks[p0 / DK_KV_BLOCK + b], 0);
    following_k(t, p0, w->vb + (shared + DK_KV_BLOCK - 1) / DK_KV_BLOCK);
    if (shared)
        values(t, q0, t->n_rows * nh - q0, w->vb, DK_KV_BLOCK, 0, shared, true);
    for (uint32_t r = r0; r < t->n_rows; r++) {
        const struct dk_attn_row *row = &t->rows[r];
        uint32_t n = seen(row, p0), k = 0;
        for (uint32_t p = p0 + shared; p < p0 + n; p++, k++) {
            uint32_t slot = dk_attn_slot(row, p);
            w->vb[k] = kv_ptr(t, t->kv->v, slot / DK_KV_BLOCK, slot % DK_KV_BLOCK);
        }
        for (uint32_t i = 0; i < T_AHEAD; i++)
            w->vb[k + i] = w->vb[0];
        for (uint32_t h = 0; k && h < nh; h += T_QUERIES)
            values(t, r * nh + h, nh - h < T_QUERIES ? nh - h : T_QUERIES, w->vb, 1, shared, k,
                   shared == 0);
        for (uint32_t h = 0; n && h < nh; h++)
            finish_chunk(t, r, h, p0);
    }
}

/* Chunks from position p0 on. */
static void run_tile(const struct tile *t, const float *q, size_t ldq, float *out, size_t ldo,
                     uint32_t p0)
{
    struct work *w = t->w;
    uint32_t hd = t->kv->head_dim, nh = t->n_heads, longest = 0, r0 = 0;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        for (uint32_t h = 0; h < nh; h++)
            memcpy(w->q + (r * nh + h) * Q_STRIDE, q + r * ldq + (size_t)h * hd, hd * sizeof *q);
        longest = t->rows[r].n_vis > longest ? t->rows[r].n_vis : longest;
    }
    for (; p0 < longest && p0 < t->end; p0 += DK_ATTN_CHUNK) {
        while (t->rows[r0].n_vis <= p0)
            r0++;
        one_chunk(t, r0, p0);
    }
    for (uint32_t j = 0; out && j < t->n_rows * nh; j++)
        divide(out + j / nh * ldo + (size_t)(j % nh) * hd, w->a + j * Q_STRIDE, w->l[j], hd);
}

/* Cuts rows and heads into tiles; t has everything but rows and heads.  out or part is NULL. */
static void run_tiles(struct tile *t, const struct dk_attn_row *rows, uint32_t n_rows,
                      const float *q, size_t ldq, float *out, size_t ldo, float *part,
                      uint32_t n_heads, uint32_t head0, uint32_t head1, uint32_t p0)
{
    uint32_t hd = t->kv->head_dim, group = n_heads / t->kv->n_kv_heads;
    t->dims = (struct dims){hd, 0, hd};
    t->part_row = (size_t)n_heads * DK_ATTN_PART(hd);
    t->part_chunk = n_rows * t->part_row;
    for (uint32_t h = head0; h < head1; h += t->n_heads) {
        uint32_t group_end = (h / group + 1) * group, stop = group_end < head1 ? group_end : head1;
        t->n_heads = stop - h < TILE ? stop - h : TILE;
        t->kv_head = h / group;
        uint32_t most = TILE / t->n_heads;
        for (uint32_t r = 0; r < n_rows; r += t->n_rows) {
            t->rows = rows + r;
            t->n_rows = rows_together(t->rows, n_rows - r < most ? n_rows - r : most);
            t->part = part ? part + r * t->part_row + (size_t)h * DK_ATTN_PART(hd) : NULL;
            run_tile(t, q + r * ldq + (size_t)h * hd, ldq,
                     out ? out + r * ldo + (size_t)h * hd : NULL, ldo, p0);
        }
    }
}

void V_NAME(dk_cpu_attention)(const struct dk_kv *kv, const struct dk_attn_row *rows,
                              uint32_t n_rows, const float *q, size_t ldq, float *out, size_t ldo,
                              uint32_t n_heads, uint32_t head0, uint32_t head1, float scale,
                              void *scratch)
{
    struct tile t = {.kv = kv, .scale = scale, .w = scratch, .end = UINT32_MAX};
    run_tiles(&t, rows, n_rows, q, ldq, out, ldo, NULL, n_heads, head0, head1, 0);
}

void V_NAME(dk_cpu_attention_part)(const struct dk_kv *kv, const struct dk_attn_row *rows,
                                   uint32_t n_rows, const float *q, size_t ldq, float *part,
                                   uint32_t n_heads, uint32_t head0, uint32_t head1,
                                   uint32_t chunk0, uint32_t chunk1, float scale, void *scratch)
{
    struct tile t = {.kv = kv, .scale = scale, .w = scratch, .end = chunk1 * DK_ATTN_CHUNK};
    run_tiles(&t, rows, n_rows, q, ldq, NULL, 0, part, n_heads, head0, head1,
              chunk0 * DK_ATTN_CHUNK);
}

void V_NAME(dk_cpu_attention_merge)(const struct dk_attn_row *rows, uint32_t n_rows,
                                    const float *part, float *out, size_t ldo, uint32_t n_heads,
                                    uint32_t head_dim, uint32_t head0, uint32_t head1)
{
    size_t size = DK_ATTN_PART(head_dim), chunk = (size_t)n_rows * n_heads * size;
    _Alignas(64) float a[DK_MAX_HEAD_DIM + 16];
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = head0; h < head1; h++) {
            const float *p = part + ((size_t)r * n_heads + h) * size;
            float m = 0, l = 0;
            for (uint32_t at = 0; at < rows[r].n_vis; at += DK_ATTN_CHUNK, p += chunk)
                merge(&m, &l, a, p[0], p[1], p + 16, head_dim, at == 0);
            divide(out + r * ldo + (size_t)h * head_dim, a, l, head_dim);
        }
}
