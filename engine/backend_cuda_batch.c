/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch as the device reads it: rows, the lists of rows that go on, and one array of words that holds
 * the tables of blocks and the tails of all paths, what rows share once.  Written in pinned memory and
 * sent by one copy.
 */
#include <string.h>

#include "engine/backend_cuda.h"

/* The words that are being written.  Tables come first, so that a tail can be continued in place. */
struct words {
    uint32_t *at;
    uint32_t n, most;
    const uint32_t *blocks; /* the last table, its length and place */
    uint32_t n_blocks, blocks_at;
    const uint32_t *tail; /* the last tail */
    uint32_t n_tail, tail_at;
    bool full;
};

static void append(struct words *w, const uint32_t *from, uint32_t n)
{
    if (n > w->most - w->n) {
        w->full = true;
        return;
    }
    memcpy(w->at + w->n, from, (size_t)n * sizeof(*from));
    w->n += n;
}

static uint32_t table_length(const struct dk_attn_row *p)
{
    uint32_t n = p->n_vis < p->tail_start ? p->n_vis : p->tail_start;
    return (n + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
}

static void put_table(struct words *w, const struct dk_attn_row *p, struct dcu_row *row)
{
    uint32_t n = table_length(p);
    if (n && (p->blocks != w->blocks || w->n_blocks == 0)) {
        w->blocks = p->blocks;
        w->blocks_at = w->n;
        w->n_blocks = 0;
    }
    if (n > w->n_blocks) { /* a longer piece of the table that was written last */
        append(w, p->blocks + w->n_blocks, n - w->n_blocks);
        w->n_blocks = n;
    }
    row->blocks = n ? w->blocks_at : 0;
}

static void put_tail(struct words *w, const struct dk_attn_row *p, struct dcu_row *row)
{
    uint32_t n = p->n_vis > p->tail_start ? p->n_vis - p->tail_start : 0;
    row->tail = 0;
    if (n == 0)
        return;
    if (!w->tail || p->tail < w->tail || p->tail > w->tail + w->n_tail) {
        w->tail = p->tail;
        w->tail_at = w->n;
        w->n_tail = 0;
    }
    uint32_t skip = (uint32_t)(p->tail - w->tail);
    if (skip + n > w->n_tail) {
        append(w, w->tail + w->n_tail, skip + n - w->n_tail);
        w->n_tail = skip + n;
    }
    row->tail = w->tail_at + skip;
}

static void put_paths(struct words *w, const struct dk_attn_row *paths, const struct fwd_row *rows,
                      uint32_t n, struct dcu_row *out)
{
    w->blocks = NULL;
    w->n_blocks = 0;
    for (uint32_t r = 0; r < n; r++) {
        const struct dk_attn_row *p = paths ? &paths[r] : &rows[r].path;
        out[r] = (struct dcu_row){.token = rows[r].token,
                                  .pos = rows[r].pos,
                                  .slot = rows[r].slot,
                                  .n_vis = p->n_vis,
                                  .tail_start = p->tail_start};
        put_table(w, p, &out[r]);
    }
    w->tail = NULL;
    w->n_tail = 0;
    for (uint32_t r = 0; r < n; r++)
        put_tail(w, paths ? &paths[r] : &rows[r].path, &out[r]);
}

int cuda_batch_fill(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *ret,
                    struct error *err)
{
    struct cuda_batch *h = &m->p.batch;
    struct words w = {.at = h->words, .most = m->max_words};
    struct cuda_rows c = {.n = b->n_rows, .windowed = b->window_paths != NULL};
    bool last_tapped = b->n_taps && b->tap_layers[b->n_taps - 1] + 1 == m->cfg.n_layers;
    uint32_t draw = 0, pick = 0;
    put_paths(&w, NULL, b->rows, b->n_rows, h->rows);
    if (c.windowed)
        put_paths(&w, b->window_paths, b->rows, b->n_rows, h->window[0]);
    if (w.full)
        return ERR(err, LIMIT, "the paths of a batch need more than %u words", m->max_words);
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const struct fwd_row *row = &b->rows[r];
        if (row->path.n_vis > c.max_vis)
            c.max_vis = row->path.n_vis;
        if (row->taps && b->n_taps) {
            bool kept = cuda_taps_kept(m, row->taps, &h->tap_kept[c.n_tap]);
            if (c.n_tap && kept != c.kept)
                return ERR(err, INTERNAL, "a batch has taps on the host and on the device");
            c.kept = kept;
            h->tap_live[c.n_tap] = c.n_live;
            h->tap_index[c.n_tap++] = r;
        }
        const bool head =
            row->logits || cuda_drawn_row(b, r, &draw) || cuda_picked_row(b, r, &pick);
        if (!head && !(row->taps && last_tapped))
            continue;
        c.n_logits += row->logits != NULL;
        if (head)
            h->head_index[c.n_head++] = c.n_live;
        h->live_index[c.n_live] = r;
        h->live[c.n_live] = h->rows[r];
        if (c.windowed)
            h->window[1][c.n_live] = h->window[0][r];
        c.n_live++;
    }
    c.n_words = w.n;
    c.picks = b->n_picks > 0;
    c.n_passes = b->n_passes ? b->n_passes : 1;
    c.held = b->spans || b->later;
    *ret = c;
    int r = b->n_draws ? cuda_draws_fill(m, b, ret, err) : 0;
    if (r == 0 && b->feed)
        r = cuda_feeds_fill(m, b, ret, err);
    if (r == 0 && b->n_picks)
        r = cuda_picks_fill(m, b, ret, err);
    return r == 0 && b->spans ? cuda_feeds_spans(m, b, ret, err) : r;
}

bool cuda_taps_kept(const struct cuda_model *m, const float *taps, uint32_t *ret)
{
    const struct cuda_kept *k = &m->kept;
    uintptr_t at = (uintptr_t)taps - (uintptr_t)k->mem;
    if (!k->mem || at >= (size_t)k->rows * k->width * sizeof(float))
        return false;
    *ret = (uint32_t)(at / sizeof(float) / k->width);
    return true;
}

int cuda_batch_send(struct cuda_model *m, const struct cuda_batch *from, uint32_t n_words,
                    struct error *err)
{
    size_t bytes = m->batch_bytes + (size_t)n_words * sizeof(uint32_t);
    CUDA_DO(m, err, "sending a batch",
            m->api->copy_in(m->stream, m->s.batch.rows, from->rows, bytes));
    return 0;
}
