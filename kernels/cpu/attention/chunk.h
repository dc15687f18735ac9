/* SPDX-License-Identifier: Apache-2.0 */
/* What both kinds of attention on sixteen lanes share: what a row sees of a chunk, and merging chunks. */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/internal.h"
#include "kernels/cpu/vmath.h"
#include "kernels/fma.h"

static inline uint32_t clamp_chunk(uint32_t end, uint32_t p0)
{
    return end <= p0 ? 0 : end - p0 < DK_ATTN_CHUNK ? end - p0 : DK_ATTN_CHUNK;
}
/* Positions of the chunk that row r sees, and those of them in whole blocks. */
static inline uint32_t seen(const struct dk_attn_row *r, uint32_t p0)
{
    return clamp_chunk(r->n_vis, p0);
}
static inline uint32_t seen_plain(const struct dk_attn_row *r, uint32_t p0)
{
    return clamp_chunk(r->tail_start < r->n_vis ? r->tail_start : r->n_vis, p0);
}

/* K (row 0) or V of a block, V from one of its positions on. */
static inline const void *block_at(const struct dk_kv *kv, const void *base, uint32_t block,
                                   uint32_t kv_head, uint32_t row)
{
    size_t hd = kv->head_dim;
    size_t i = ((size_t)block * kv->n_kv_heads + kv_head) * hd * DK_KV_BLOCK + row * hd;
    return (const char *)base + i * (kv->type == DK_KV_F32 ? 4 : 2);
}

/* Rows from `row` on that share the block list, `most` at most. */
static inline uint32_t rows_together(const struct dk_attn_row *row, uint32_t most)
{
    uint32_t n = 1;
    while (n < most && row[n].blocks == row->blocks)
        n++;
    return n;
}

/* ---- tails ---------------------------------------------------------------------------------------- */

/*
 * Positions of tails need no copy of K: the blocks that they touch are scored as a whole, and each
 * row picks its slots' scores.  Blocks are collected until there are CHUNK_BLOCKS of them, for rows
 * [first, end): positions [from, next) of row r are in blocks [0, n_blocks), at pick[r][position].
 */
#define CHUNK_BLOCKS (DK_ATTN_CHUNK / DK_KV_BLOCK)
#define TAIL_ROWS    48u
struct tails {
    uint32_t next[TAIL_ROWS], from[TAIL_ROWS];
    uint32_t block[CHUNK_BLOCKS], n_blocks;
    uint32_t first, end;
    bool left; /* positions that are not picked yet */
};

static inline void tails_begin(struct tails *t, const struct dk_attn_row *rows, uint32_t r0,
                               uint32_t n_rows, uint32_t p0)
{
    t->left = false;
    for (uint32_t r = r0; r < n_rows; r++) {
        t->next[r] = seen_plain(&rows[r], p0);
        t->left |= t->next[r] < seen(&rows[r], p0);
    }
}

/* The number of a block among those collected, CHUNK_BLOCKS when it has no place any more; *hint: of
 * the last one. */
static inline uint32_t tails_block(struct tails *t, uint32_t want, uint32_t hint)
{
    if (hint < t->n_blocks && t->block[hint] == want)
        return hint;
    uint32_t b = 0;
    while (b < t->n_blocks && t->block[b] != want)
        b++;
    if (b == t->n_blocks && b < CHUNK_BLOCKS)
        t->block[t->n_blocks++] = want;
    return b;
}

static inline void tails_collect(struct tails *t, const struct dk_attn_row *rows, uint32_t r0,
                                 uint32_t n_rows, uint32_t p0, uint16_t (*pick)[DK_ATTN_CHUNK])
{
    uint32_t r;
    t->n_blocks = 0;
    t->left = false;
    memcpy(t->from, t->next, sizeof(t->from));
    for (r = r0; r < n_rows && !t->left; r++) {
        const struct dk_attn_row *row = &rows[r];
        uint32_t n = seen(row, p0), b = 0;
        for (; t->next[r] < n; t->next[r]++) {
            uint32_t slot = row->tail[p0 + t->next[r] - row->tail_start];
            b = tails_block(t, slot / DK_KV_BLOCK, b);
            if (b == CHUNK_BLOCKS) {
                t->left = true;
                break;
            }
            pick[r][t->next[r]] = (uint16_t)(b * DK_KV_BLOCK + slot % DK_KV_BLOCK);
        }
    }
    t->end = r;
    for (t->first = r0; t->first < t->end && t->from[t->first] == t->next[t->first];)
        t->first++;
}

/* Row r's scores of the tails' positions, out of those of the blocks. */
static inline void tails_pick(const struct tails *t, uint32_t r, const uint16_t *pick,
                              const float *of_blocks, float *s)
{
    for (uint32_t p = t->from[r]; p < t->next[r]; p++)
        s[p] = of_blocks[pick[p]];
}

/* ---- results ----------------------------------------------------------------------------------------- */

/* Merges (m1, l1, b) into (*m, *l, a), vectors of head_dim padded to 16. */
static inline void merge(float *m, float *l, float *a, float m1, float l1, const float *b,
                         uint32_t hd, bool first)
{
    if (first) {
        memcpy(a, b, hd * sizeof *a);
        *m = m1;
        *l = l1;
        return;
    }
    float top = m1 > *m ? m1 : *m, c0 = dk_exp_def(*m - top), c1 = dk_exp_def(m1 - top);
    *l = dk_fmaf(l1, c1, *l * c0);
    *m = top;
    v16 x0 = v_set1(c0), x1 = v_set1(c1);
    for (uint32_t d = 0; d < hd; d += 16)
        v_store(a + d, v_fma(v_load(b + d), x1, v_mul(v_load(a + d), x0)));
}

/* A chunk's result as merging takes it from memory, see DK_ATTN_PART. */
static inline void put_part(float *part, float m, float l, const float *a, uint32_t hd)
{
    part[0] = m;
    part[1] = l;
    memcpy(part + 16, a, hd * sizeof *a);
}

static inline void divide(float *out, const float *a, float l, uint32_t hd)
{
    v16 x = v_set1(l);
    uint32_t d = 0;
    for (; d + 16 <= hd; d += 16)
        v_store(out + d, v_div(v_load(a + d), x));
    if (d < hd)
        v_store_n(out + d, v_div(v_load_n(a + d, hd - d), x), hd - d);
}
