/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_step: who takes part, with how many rows, and what becomes of the results.
 *
 * Laws: running requests never starve (each decoding one has a row in every step; prompts share the
 * rest of the rows evenly, so a long one cannot hold up a short one).  The best-ranked request that
 * runs always gets its blocks, if need be from worse-ranked ones, so somebody always progresses; who
 * was sent away comes back only when there is room for everyone's longest length, so nobody is sent
 * back and forth.
 */
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

/* ---- blocks ----------------------------------------------------------------------------------- */

static uint32_t minus(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

/* Blocks that r still takes for the tokens it has. */
static uint32_t need_now(const struct request *r)
{
    return minus(engine_blocks_for(r->seq.n_tokens), r->seq.n_blocks);
}

/* Blocks that it still takes until its longest end; the last token is never fed. */
static uint32_t need_at_most(const struct request *r)
{
    return minus(engine_blocks_for(r->max_total - 1), r->seq.n_blocks);
}

/* Somebody outside the batch who holds blocks: parked, or back in the queue after parking.  The
 * worst-ranked one; NULL without any. */
static struct request *idle_holder(const struct engine *e, const struct request *not_this)
{
    struct request *worst = NULL;
    struct request *lists[2] = {e->park_head, e->wait_head};
    for (int i = 0; i < 2; i++)
        for (struct request *r = lists[i]; r; r = r->q_next)
            if (r != not_this && r->seq.n_blocks && (!worst || request_before(worst, r)))
                worst = r;
    return worst;
}

/* Frees blocks for r until n are available: idle holders first, then running requests of worse rank,
 * the worst first. */
static bool make_room(struct engine *e, const struct request *r, uint32_t n)
{
    while (kv_pool_available(e->space.pool) < n) {
        struct request *v = idle_holder(e, r);
        if (!v && e->n_running && request_before(r, e->running[e->n_running - 1]))
            v = e->running[e->n_running - 1];
        if (!v)
            return false;
        request_preempt(v);
    }
    return true;
}

/* ---- admission -------------------------------------------------------------------------------- */

static bool fits(const struct engine *e, const struct request *r)
{
    uint64_t need = need_now(r);
    if (e->n_running) {
        /* Those who run keep what they need: the rest of their prompts and one block more, or, for
         * a request that was sent away before, all that they may ever take. */
        need = r->preempted ? need_at_most(r) : need + 1;
        for (uint32_t i = 0; i < e->n_running; i++)
            need += r->preempted ? need_at_most(e->running[i]) : need_now(e->running[i]) + 1;
    }
    return need <= kv_pool_available(e->space.pool);
}

static bool try_admit(struct engine *e, struct request *r)
{
    bool looked_up = r->seq.n_blocks == 0;
    uint32_t cached = seq_find_prefix(&r->seq, e->space.pool);
    while (!fits(e, r)) {
        struct request *v = idle_holder(e, r);
        if (!v) {
            if (looked_up)
                seq_release(&r->seq, e->space.pool);
            return false;
        }
        request_preempt(v);
    }
    if (!r->counted) {
        r->counted = true;
        r->usage.queued_ns = clock_now_ns() - r->t_submit;
        r->usage.cached_tokens = cached;
        e->stats.prompt_tokens += r->n_prompt;
        if (e->cfg.enable_prefix_caching) {
            e->stats.prefix_queries += r->n_prompt;
            e->stats.cached_tokens += cached;
        }
    }
    return true;
}

static void start_running(struct engine *e, struct request *r)
{
    request_unlist(r);
    uint32_t i = e->n_running++;
    for (; i && request_before(r, e->running[i - 1]); i--)
        e->running[i] = e->running[i - 1];
    e->running[i] = r;
    r->state = REQUEST_RUNNING;
}

static void admit(struct engine *e)
{
    /* In order: who does not fit holds up those behind, or it would wait for ever. */
    while (e->wait_head && e->n_running < e->cfg.max_num_seqs) {
        struct request *r = e->wait_head;
        if (!try_admit(e, r))
            break;
        start_running(e, r);
    }
}

static void finish_empty(struct engine *e)
{
    for (struct request *r = e->wait_head, *next; r && e->n_empty; r = next) {
        next = r->q_next;
        if (r->max_tokens == 0)
            request_finish(r, FINISH_LENGTH, NULL);
    }
}

/* ---- the batch -------------------------------------------------------------------------------- */

static uint32_t to_feed(const struct request *r)
{
    return r->seq.n_tokens - r->seq.n_kv;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Prompts share `left` rows evenly, unused shares being handed on, in an order that moves on with
 * every step. */
static uint32_t share_rows(struct engine *e, uint32_t left, uint32_t prompts)
{
    uint32_t turn = (uint32_t)(e->stats.steps % e->n_running), waiting = prompts;
    for (uint32_t j = 0; j < e->n_running; j++) {
        struct request *r = e->running[(turn + j) % e->n_running];
        if (to_feed(r) == 1)
            continue;
        uint32_t share = left < waiting ? left > 0 : left / waiting;
        r->planned = least(least(share, to_feed(r)), e->cfg.prefill_chunk);
        left -= r->planned;
        waiting--;
    }
    for (uint32_t i = 0; i < e->n_running && left; i++) {
        struct request *r = e->running[i];
        if (to_feed(r) == 1)
            continue;
        uint32_t more = least(left, minus(least(to_feed(r), e->cfg.prefill_chunk), r->planned));
        r->planned += more;
        left -= more;
    }
    return left;
}

/* Rows that drafts may have in a batch with this much left: prompts keep half of it. */
static uint32_t draft_room(const struct engine *e)
{
    uint32_t left = e->cfg.max_num_batched_tokens, prompts = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        bool decodes = to_feed(e->running[i]) == 1;
        left -= decodes;
        prompts += !decodes;
    }
    return least(e->n_logits_rows - e->n_running, prompts ? left / 2 : left);
}

/* Would a and b feed a position of a shared block again in one batch? */
static bool fed_twice(const struct request *a, const struct request *b)
{
    uint32_t from = a->again_from > b->again_from ? a->again_from : b->again_from;
    uint32_t end = least(a->again_from + a->again, b->again_from + b->again);
    for (uint32_t p = from / DK_KV_BLOCK; b->again && p * DK_KV_BLOCK < end; p++)
        if (a->seq.blocks[p] == b->seq.blocks[p])
            return true;
    return false;
}

/*
 * How many rows each may have.  One for everyone who decodes (max_num_seqs <= the budget) and has
 * logits; then proposals, in rank order; then prompts; and, of what is left then, positions whose
 * drafter context is missing.
 */
static void plan_rows(struct engine *e)
{
    uint32_t left = e->cfg.max_num_batched_tokens, prompts = 0, drafts = draft_room(e);
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        r->again = 0;
        r->planned = to_feed(r) == 1;
        prompts += !r->planned;
        r->nodes = r->planned ? least(drafting_nodes(r), drafts) : 0;
        r->planned += r->nodes;
        drafts -= r->nodes;
        left -= r->planned;
    }
    if (prompts)
        left = share_rows(e, left, prompts);
    for (uint32_t i = 0; i < e->n_running && left; i++) {
        struct request *r = e->running[i];
        r->again = drafting_missing(e, r, least(left, e->cfg.prefill_chunk), &r->again_from);
        for (uint32_t j = 0; j < i && r->again; j++)
            if (fed_twice(r, e->running[j]))
                r->again = 0; /* once is enough: next time it is there */
        left -= r->again;
    }
}

/* Makes the rows writable; fewer rows when blocks are short, none when it has to wait. */
static int reserve_rows(struct engine *e, struct request *r, struct error *err)
{
    const struct kv_pool *pool = e->space.pool;
    /* A proposal is not worth another request's blocks. */
    while (r->nodes && seq_blocks_needed(&r->seq, pool, r->planned) > kv_pool_available(pool)) {
        r->nodes--;
        r->planned--;
    }
    if (!make_room(e, r, seq_blocks_needed(&r->seq, pool, r->planned)))
        while (r->planned && seq_blocks_needed(&r->seq, pool, r->planned) > kv_pool_available(pool))
            r->planned--;
    return seq_reserve(&r->seq, &e->space, r->planned, err);
}

static void add_entry(struct engine *e, struct request *r, uint32_t n_rows, bool again, uint32_t *n,
                      uint32_t *at)
{
    if (n_rows == 0)
        return;
    struct batch_entry *b = &e->entries[(*n)++];
    b->r = r;
    b->row0 = *at;
    b->n_rows = n_rows;
    b->again = again;
    b->n_nodes = again ? 0 : r->nodes;
    round_rows(e, b);
    *at += n_rows;
}

/* Fills e->rows and e->entries; returns the number of entries, negative when the backend failed. */
static int form_batch(struct engine *e, uint32_t *ret_rows, struct error *err)
{
    uint32_t n = 0, n_rows = 0;
    e->n_logits = 0;
    e->n_tails = 0;
    e->taps_at = 0;
    e->n_draws = e->n_draw_changes = e->n_trees = 0;
    plan_rows(e);
    /* Best rank first; make_room takes from worse ranks only, which have no rows yet. */
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        int k = reserve_rows(e, r, err);
        if (k < 0)
            return k;
        add_entry(e, r, r->again, true, &n, &n_rows);
        add_entry(e, r, r->planned, false, &n, &n_rows);
    }
    *ret_rows = n_rows;
    return (int)n;
}

static void fail_running(struct engine *e, const struct error *err)
{
    while (e->n_running)
        request_finish(e->running[0], FINISH_ERROR, err);
}

static int run_target(struct engine *e, uint32_t n_rows, struct error *err)
{
    struct fwd_batch b = {.n_rows = n_rows,
                          .rows = e->rows,
                          .draws = e->draws,
                          .n_draws = e->n_draws,
                          .feed = e->n_begun ? e->feed : NULL,
                          .trees = e->trees,
                          .n_trees = e->n_trees,
                          .tap_layers = e->drafter.tap_layers,
                          .n_taps = e->drafter.n_taps};
    return e->space.backend->forward(e->space.model, &b, err);
}

/* Rows of plain rounds and prompts are part of their sequences now. */
static void advance(struct engine *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct batch_entry *b = &e->entries[i];
        if (b->again) {
            e->stats.recontext_tokens += b->n_rows;
            continue;
        }
        if (b->n_nodes)
            continue; /* which rows stay is for the walk to say */
        seq_advance(&b->r->seq, b->n_rows);
        if (e->cfg.enable_prefix_caching)
            seq_publish(&b->r->seq, e->space.pool);
    }
}

/* Does every row decode?  Then its time is one that the controller can compare. */
static bool only_rounds(const struct engine *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (e->entries[i].n_logits != e->entries[i].n_rows)
            return false;
    return true;
}

/* The batch as the controller counts it. */
static struct cost_load load_of(const struct engine *e, uint32_t n, uint32_t n_rows)
{
    struct cost_load l = {.rows = n_rows};
    for (uint32_t i = 0; i < n; i++)
        l.entries += e->rows[e->entries[i].row0].path.n_vis;
    for (uint32_t i = 0; i < n_rows; i++)
        l.positions += e->rows[i].path.n_vis;
    return l;
}

/* One target batch, with drafts: behind the passes that make them.  Number of entries; 0: nobody could
 * run. */
static int target_step(struct engine *e, bool drafts, struct error *err)
{
    uint32_t n_rows = 0;
    uint64_t drafted_ns = 0;
    for (uint32_t i = 0; i < e->n_running; i++)
        drafting_roll_back(e, e->running[i], 0);
    uint64_t t0 = clock_now_ns();
    int r = drafts ? drafting_start(e, err) : 0;
    if (r < 0)
        return r;
    controller_trim(e);
    int n = form_batch(e, &n_rows, err);
    if (n < 0)
        return n;
    if (n > 0)
        r = run_target(e, n_rows, err);
    if (r == 0 && drafts)
        r = drafting_collect(e, &drafted_ns, err);
    if (r < 0 || n == 0)
        return r;
    for (int i = 0; i < n && drafts; i++)
        round_drafted(e, &e->entries[i]);
    const uint64_t so_far = clock_now_ns() - t0;
    t0 += drafted_ns < so_far ? drafted_ns : so_far; /* two clocks */
    e->stats.steps++;
    advance(e, (uint32_t)n);
    round_choose(e, (uint32_t)n);
    if (only_rounds(e, (uint32_t)n)) {
        struct cost_load l = load_of(e, (uint32_t)n, n_rows);
        cost_add(&e->controller.costs, COST_TARGET, &l, clock_now_ns() - t0);
    }
    r = drafting_inject(e, (uint32_t)n, err);
    if (r < 0)
        return r;
    uint64_t took = clock_now_ns() - t0;
    for (int i = 0; i < n; i++) /* a callback may have ended any of those still to come */
        if (e->entries[i].n_logits && e->entries[i].r->state == REQUEST_RUNNING)
            round_finish(e, &e->entries[i], took);
    return n;
}

int engine_step(struct engine *e, struct error *err)
{
    struct error local = {0};
    int n = 1;
    if (!err)
        err = &local;
    dk_thread_init();
    finish_empty(e);
    admit(e);
    if (e->draft_steps == 0)
        drafting_begin(e, draft_room(e));
    const bool due = drafting_due(e);
    if (due && !drafting_may_start(e)) {
        n = drafting_step(e, err);
    } else {
        e->draft_steps = 0;
        n = target_step(e, due, err);
        if (n == 0)
            return 0;
    }
    if (n < 0) {
        drafting_drop(e);
        fail_running(e, err);
        return n;
    }
    return e->n_running || e->n_waiting;
}
