/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drafter's context: one row of K/V for each position before the anchor.
 *
 * After every target batch the taps of what stays are given to the drafter, all requests in one call.
 * While `auto` leaves the drafter alone, the taps of plain rounds wait in a small backlog, so that the
 * drafter's weights are read once for many positions; it is emptied when it is full, or before the
 * drafter is asked.  Positions whose blocks came from a plain request are fed again (drafting_missing).
 */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/drafting.h"
#include "engine/engine_internal.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- what is there --------------------------------------------------------------------------------- */

uint32_t drafting_cursor(struct engine *e, struct request *r)
{
    struct drafting_state *d = r->drafting;
    uint32_t end = least(r->seq.n_kv, e->drafter.max_context);
    while (d->cursor < end && seq_drafted(&r->seq, e->space.pool, d->cursor))
        d->cursor++;
    return d->cursor;
}

/* Positions from here on may be in the backlog. */
static uint32_t settled(const struct request *r)
{
    return r->drafting->n_backlog ? r->drafting->backlog_pos : r->seq.n_kv;
}

uint32_t drafting_missing(struct engine *e, struct request *r, uint32_t most, uint32_t *ret_from)
{
    const struct drafting_state *d = r->drafting;
    if (!d || !d->context || (d->puts_off && !d->automatic.wants))
        return 0; /* nobody waits for it */
    uint32_t from = drafting_cursor(e, r), end = least(settled(r), e->drafter.max_context), n = 0;
    while (n < most && from + n < end && !seq_drafted(&r->seq, e->space.pool, from + n))
        n++;
    *ret_from = from;
    return n;
}

/* ---- what comes ------------------------------------------------------------------------------------ */

static size_t row_floats(const struct engine *e)
{
    return (size_t)e->drafter.n_taps * e->model->hidden;
}

/* Rows are held by marks, not copied: they may lie where the host cannot look. */
enum { TAPS_BACKLOG = 1, TAPS_BATCH = 2 };

static uint8_t *mark_of(const struct engine *e, const float *taps)
{
    return &e->taps_held[(size_t)(taps - e->taps) / row_floats(e)];
}

static void hold(struct engine *e, const float *taps, bool held)
{
    uint8_t *mark = mark_of(e, taps);
    *mark = (uint8_t)(held ? *mark | TAPS_BACKLOG : *mark & ~TAPS_BACKLOG);
    e->n_taps_held = held ? e->n_taps_held + 1 : e->n_taps_held - 1;
}

float *drafting_taps(const struct engine *e, uint32_t *at)
{
    while (e->taps_held[*at])
        ++*at;
    return e->taps + (size_t)(*at)++ * row_floats(e);
}

float *drafting_take_taps(struct engine *e)
{
    float *taps = drafting_taps(e, &e->taps_at);
    *mark_of(e, taps) |= TAPS_BATCH;
    return taps;
}

void drafting_give_taps(struct engine *e, const struct step *s)
{
    for (uint32_t i = 0; i < s->n_rows; i++)
        if (s->rows[i].taps)
            *mark_of(e, s->rows[i].taps) &= (uint8_t)~TAPS_BATCH;
}

static void drop_backlog(struct engine *e, struct drafting_state *d)
{
    while (d->n_backlog)
        hold(e, d->backlog[--d->n_backlog], false);
}

void drafting_forget_context(struct engine *e, struct drafting_state *d)
{
    if (!d)
        return;
    drop_backlog(e, d);
    d->cursor = d->n_extended = 0;
}

static void add_context(struct engine *e, const struct seq *s, uint32_t pos, const float *taps,
                        uint32_t *n)
{
    if (pos >= e->drafter.max_context)
        return;
    e->context[(*n)++] = (struct draft_context){.taps = taps, .pos = pos, .slot = seq_slot(s, pos)};
    seq_set_drafted(s, e->space.pool, pos);
}

/* Its rows stay as they are until the next target batch, and are injected before. */
static void add_backlog(struct engine *e, struct request *r, uint32_t *n)
{
    struct drafting_state *d = r->drafting;
    for (uint32_t i = 0; i < d->n_backlog; i++)
        add_context(e, &r->seq, d->backlog_pos + i, d->backlog[i], n);
    drop_backlog(e, d);
}

static int inject(struct engine *e, uint32_t n, struct error *err)
{
    const struct block_drafter *d = &e->drafter;
    for (uint32_t i = 0, k; i < n; i += k) {
        const uint64_t t = clock_now_ns();
        k = least(n - i, d->max_rows);
        int r = d->ops->inject(d->self, e->context + i, k, err);
        if (r < 0)
            return r;
        cost_add(&e->controller.costs, COST_INJECT, &(struct cost_load){.rows = k},
                 clock_now_ns() - t);
    }
    return 0;
}

/* Taps of the j-th position of an entry that stays. */
static const float *taps_of(const struct engine *e, const struct batch_entry *b, uint32_t j)
{
    uint32_t row = b->n_nodes ? e->choices[b->logit0 + j].row : j;
    return e->at->rows[b->row0 + row].taps;
}

/* Keeps the rows for later, if they are few and nobody needs them now.  Parked requests may hold so many
 * that there is no room for those of all who run. */
static bool put_off(struct engine *e, const struct batch_entry *b, uint32_t first, uint32_t rows)
{
    struct drafting_state *d = b->r->drafting;
    if (!d->puts_off || b->again || d->automatic.wants || d->n_backlog + rows > DRAFTING_BACKLOG ||
        e->n_taps_held + rows > e->cfg.max_num_seqs * DRAFTING_BACKLOG)
        return false;
    if (d->n_backlog == 0)
        d->backlog_pos = first;
    for (uint32_t j = 0; j < rows; j++) {
        d->backlog[d->n_backlog++] = taps_of(e, b, j);
        hold(e, taps_of(e, b, j), true);
    }
    return true;
}

int drafting_inject(struct engine *e, uint32_t n, struct error *err)
{
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n && e->drafter.ops; i++) {
        const struct batch_entry *b = &e->at->entries[i];
        if (!b->r->drafting || !b->r->drafting->context)
            continue;
        /* Of a tree, the path that was taken, to where it is going to stand. */
        uint32_t rows = b->n_nodes ? b->n_choices : b->n_rows;
        uint32_t first = b->n_nodes ? b->r->seq.n_kv : e->at->rows[b->row0].pos;
        if (put_off(e, b, first, rows))
            continue;
        if (!b->again)
            add_backlog(e, b->r, &n_rows);
        for (uint32_t j = 0; j < rows; j++)
            add_context(e, &b->r->seq, first + j, taps_of(e, b, j), &n_rows);
    }
    return inject(e, n_rows, err);
}

/* ---- rows behind the mark ---------------------------------------------------------------------------- */

int drafting_extend(struct engine *e, struct request *r, const float *taps, uint32_t n,
                    struct error *err)
{
    struct drafting_state *d = r->drafting;
    if (!d || !d->context)
        return ERR(err, INVALID, "context: this request has no drafter");
    const uint32_t first = r->seq.n_kv + d->n_extended;
    if (drafting_cursor(e, r) < r->seq.n_kv)
        return ERR(err, INVALID, "context: position %u has none, rows follow %u", d->cursor, first);
    if (n > e->drafter.max_rows || (uint64_t)first + n > e->drafter.max_context ||
        (uint64_t)first + n > r->seq.max_tokens)
        return ERR(err, INVALID, "context: no room for %u rows behind %u", n, first);
    int k = seq_reserve(&r->seq, &e->space, d->n_extended + n, err);
    if (k < 0)
        return k;
    for (uint32_t i = 0; i < n; i++)
        e->context[i] = (struct draft_context){.taps = taps + i * row_floats(e),
                                               .pos = first + i,
                                               .slot = seq_slot(&r->seq, first + i)};
    k = inject(e, n, err);
    if (k < 0)
        return k;
    d->n_extended += n;
    for (uint32_t i = 0; i < d->n_extended; i++) /* reserving has forgotten the earlier ones */
        seq_set_drafted(&r->seq, e->space.pool, r->seq.n_kv + i);
    return 0;
}

uint32_t drafting_extended(const struct request *r)
{
    return r->drafting ? r->drafting->n_extended : 0;
}

void drafting_roll_back(struct engine *e, struct request *r, uint32_t keep)
{
    struct drafting_state *d = r->drafting;
    while (d && d->n_extended > keep) {
        uint32_t pos = r->seq.n_kv + --d->n_extended;
        if (pos / DK_KV_BLOCK < r->seq.n_blocks) /* else its block is gone, and the mark with it */
            seq_clear_drafted(&r->seq, e->space.pool, pos);
    }
}
