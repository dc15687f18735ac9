/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who runs, who takes part in a batch, and with how many rows.
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
    cohorts_join(e, r);
}

static void finish_empty(struct engine *e)
{
    for (struct request *r = e->wait_head, *next; r && e->n_empty; r = next) {
        next = r->q_next;
        if (r->max_tokens == 0)
            request_finish(r, FINISH_LENGTH, NULL);
    }
}

void scheduler_admit(struct engine *e)
{
    finish_empty(e);
    /* In order: who does not fit holds up those behind, or it would wait for ever. */
    while (e->wait_head && e->n_running < e->cfg.max_num_seqs) {
        struct request *r = e->wait_head;
        if (!try_admit(e, r))
            break;
        start_running(e, r);
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
    uint32_t turn = (uint32_t)(e->stats.steps % e->n_members), waiting = prompts;
    for (uint32_t j = 0; j < e->n_members; j++) {
        struct request *r = e->members[(turn + j) % e->n_members];
        if (to_feed(r) == 1)
            continue;
        uint32_t share = left < waiting ? left > 0 : left / waiting;
        r->planned = least(least(share, to_feed(r)), e->cfg.prefill_chunk);
        left -= r->planned;
        waiting--;
    }
    for (uint32_t i = 0; i < e->n_members && left; i++) {
        struct request *r = e->members[i];
        if (to_feed(r) == 1)
            continue;
        uint32_t more = least(left, minus(least(to_feed(r), e->cfg.prefill_chunk), r->planned));
        r->planned += more;
        left -= more;
    }
    return left;
}

/* Rows that drafts may have in a batch with this much left: prompts keep half of it. */
uint32_t scheduler_draft_room(const struct engine *e)
{
    uint32_t left = e->cfg.max_num_batched_tokens, prompts = 0;
    for (uint32_t i = 0; i < e->n_members; i++) {
        bool decodes = to_feed(e->members[i]) == 1;
        left -= decodes;
        prompts += !decodes;
    }
    return least(e->n_logits_rows - e->n_members, prompts ? left / 2 : left);
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
    uint32_t left = e->cfg.max_num_batched_tokens, prompts = 0, drafts = scheduler_draft_room(e);
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct request *r = e->members[i];
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
    for (uint32_t i = 0; i < e->n_members && left; i++) {
        struct request *r = e->members[i];
        r->again = drafting_missing(e, r, least(left, e->cfg.prefill_chunk), &r->again_from);
        for (uint32_t j = 0; j < i && r->again; j++)
            if (fed_twice(r, e->members[j]))
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

static void add_entry(struct engine *e, struct request *r, uint32_t n_rows, bool again)
{
    struct step *s = e->at;
    if (n_rows == 0)
        return;
    struct batch_entry *b = &s->entries[s->n_entries++];
    b->r = r;
    b->row0 = s->n_rows;
    b->n_rows = n_rows;
    b->again = again;
    b->n_nodes = again ? 0 : r->nodes;
    round_rows(e, b);
    s->n_rows += n_rows;
}

int scheduler_form(struct engine *e, struct error *err)
{
    struct step *s = e->at;
    s->n_entries = s->n_rows = s->n_logits = s->n_draws = s->n_draw_changes = 0;
    e->n_tails = 0;
    e->taps_at = 0;
    e->n_trees = 0;
    plan_rows(e);
    /* Best rank first; make_room takes from worse ranks only, which have no rows yet, or are on their way in another
     * batch, which goes on without them. */
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct request *r = e->members[i];
        int k = reserve_rows(e, r, err);
        if (k < 0)
            return k;
        add_entry(e, r, r->again, true);
        add_entry(e, r, r->planned, false);
    }
    return 0;
}
