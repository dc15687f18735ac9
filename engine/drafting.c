/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds before verification: a request's state, and the drafter's passes.
 *
 * Drafter steps run until nobody waits for a pass; whoever starts to decode meanwhile waits for the
 * next round, so there are at most DRAFT_MAX_PASSES of them between two target steps.
 */
#include "engine/drafting.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine_internal.h"
#include "engine/sampler_internal.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- birth and end ------------------------------------------------------------------------------ */

bool drafting_has_passes(const struct drafting_state *d)
{
    return d->params.method == DRAFT_DFLASH || d->params.method == DRAFT_DEDIT ||
           d->params.method == DRAFT_DDTREE || d->automatic.drafter;
}

static int make_rejection(struct drafting_state *d, uint32_t vocab, struct error *err)
{
    if (!d->context || d->temperature < SAMPLER_GREEDY_BELOW)
        return 0; /* what is drafted is chosen, not drawn */
    d->ids = mem_array(vocab, sizeof(*d->ids));
    d->probs = mem_array(vocab, sizeof(*d->probs));
    d->weights = mem_array(vocab, sizeof(*d->weights));
    d->q = mem_calloc((size_t)(d->params.window - 1) * vocab, sizeof(*d->q));
    return d->ids && d->probs && d->weights && d->q ? 0 : ERR_NOMEM(err);
}

uint64_t engine_drafting_bytes(const struct engine *e, const struct drafting_params *p,
                               float temperature)
{
    struct drafting_params r = *p;
    const uint64_t vocab = e->model->vocab_size;
    drafting_resolve(e, &r);
    bool passes = r.method == DRAFT_DFLASH || r.method == DRAFT_DEDIT || r.method == DRAFT_DDTREE;
    if (r.verification != DRAFT_REJECTION || !passes || temperature < SAMPLER_GREEDY_BELOW)
        return 0;
    return vocab * (sizeof(uint32_t) + 2 * sizeof(double) + (r.window - 1) * sizeof(float));
}

int drafting_new(const struct engine *e, const struct drafting_params *p, uint64_t seed,
                 float temperature, struct drafting_state **ret, struct error *err)
{
    int r = engine_check_drafting(e, p, err);
    if (r < 0)
        return r;
    struct drafting_params resolved = *p;
    drafting_resolve(e, &resolved);
    if (resolved.method == DRAFT_AR)
        return 0;
    _cleanup_(drafting_freep) struct drafting_state *d = mem_zalloc(sizeof(*d));
    if (!d)
        return ERR_NOMEM(err);
    d->params = resolved;
    d->seed = seed;
    d->temperature = temperature;
    d->context = drafting_has_passes(d) || (resolved.method == DRAFT_AUTO && e->drafter.ops);
    auto_init(&d->automatic, &e->controller);
    d->puts_off = d->context && resolved.method == DRAFT_AUTO;
    if (resolved.verification == DRAFT_REJECTION) {
        r = make_rejection(d, e->model->vocab_size, err);
        if (r < 0)
            return r;
    }
    *ret = TAKE_PTR(d);
    return 0;
}

struct drafting_state *drafting_free(struct drafting_state *d)
{
    if (!d)
        return NULL;
    mem_free(d->ids);
    mem_free(d->probs);
    mem_free(d->weights);
    mem_free(d->q);
    mem_free(d);
    return NULL;
}

void drafting_reset(struct drafting_state *d)
{
    if (!d)
        return;
    d->phase = DRAFTING_IDLE;
    proposal_clear(&d->proposal);
}

uint32_t drafting_nodes(const struct request *r)
{
    return r->drafting && r->drafting->phase == DRAFTING_READY ? r->drafting->proposal.n : 0;
}

enum draft_method drafting_method(const struct drafting_state *d)
{
    if (!d || d->proposal.n == 0)
        return DRAFT_AR;
    if (d->params.method != DRAFT_AUTO)
        return d->params.method;
    return d->automatic.drafter ? DRAFT_DDTREE : DRAFT_NGRAM;
}

/* ---- passes --------------------------------------------------------------------------------------- */

bool drafting_due(const struct engine *e)
{
    for (uint32_t i = 0; i < e->n_members; i++)
        if (e->members[i]->drafting && e->members[i]->drafting->phase == DRAFTING_PASSES)
            return true;
    return false;
}

/* A node was edited when it is the last pass's draft and the first pass had another token there;
 * siblings in a tree are no edits. */
static void mark_edited(struct drafting_state *d)
{
    for (uint32_t i = 0; i < d->proposal.n; i++) {
        uint32_t k = proposal_depth(&d->proposal, i) - 1;
        const struct draft_round *t = &d->round;
        uint32_t last = t->pass ? t->tokens[t->pass - 1][k] : 0;
        d->proposal.edited[i] =
            t->pass > 1 && d->proposal.tokens[i] == last && last != t->tokens[0][k];
    }
}

static int check_pass(struct engine *e, struct drafting_state *d, struct error *err)
{
    int r = proposal_check(&d->proposal, e->model->vocab_size, err);
    d->proposal.n = least(d->proposal.n, d->round.max_nodes);
    return r < 0 ? error_prefix(err, r, "drafter") : 0;
}

static bool in_passes(const struct drafting_state *d)
{
    return d && d->phase == DRAFTING_PASSES && drafting_has_passes(d);
}

/* Proposals that are there are looked at; who is done waits for verification. */
static int finish_passes(struct engine *e, uint64_t took, struct error *err)
{
    int r = 0;
    for (uint32_t i = 0; i < e->n_members && r == 0; i++) {
        struct drafting_state *d = e->members[i]->drafting;
        if (!in_passes(d))
            continue;
        d->round_ns += took;
        if (d->round.done || d->round.each_pass)
            r = check_pass(e, d, err);
    }
    if (r < 0)
        return r;
    controller_passed(e);
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct drafting_state *d = e->members[i]->drafting;
        if (!in_passes(d) || !d->round.done)
            continue;
        mark_edited(d);
        d->phase = DRAFTING_READY;
    }
    return 0;
}

/* A call of the drafter took so long for `passes` passes, each of which is as good as the others. */
static void add_cost(struct engine *e, const struct cost_load *load, uint32_t passes, uint64_t ns)
{
    for (uint32_t i = 0; i < passes; i++)
        cost_add(&e->controller.costs, COST_DRAFTER, load, ns / passes);
}

/* One more block in the drafter's batch. */
static void add_block(struct cost_load *load, const struct draft_entry *k)
{
    load->rows += k->round->window;
    load->entries += k->seq->n_kv;
    load->positions += (double)k->round->window * k->seq->n_kv;
}

/* Passes of the round that is the furthest. */
static uint32_t furthest(const struct engine *e, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct draft_round *r = e->at->draft_entries[i].round;
        if (r && r->pass > most)
            most = r->pass;
    }
    return most;
}

static int run_passes(struct engine *e, uint32_t n, struct error *err)
{
    const struct block_drafter *b = &e->drafter;
    uint64_t t = clock_now_ns();
    for (uint32_t i = 0, j; i < n; i = j) {
        struct cost_load load = {0};
        for (j = i; j < n && load.rows + e->at->draft_entries[j].round->window <= b->max_rows; j++)
            add_block(&load, &e->at->draft_entries[j]);
        if (j == i)
            return ERR(err, INTERNAL, "a window of %u rows: the drafter takes %u",
                       e->at->draft_entries[i].round->window, b->max_rows);
        const uint32_t passes =
            b->ops->at_once ? b->ops->at_once(b->self, e->at->draft_entries + i, j - i) : 1;
        int r = b->ops->pass(b->self, e->at->draft_entries + i, j - i, err);
        if (r < 0)
            return r;
        uint64_t now = clock_now_ns();
        if (cohorts_alone(e))
            add_cost(e, &load, passes, now - t);
        t = now;
    }
    return 0;
}

/* Steps of one pass each that what was run stands for: as many as the round that is the furthest has passes;
 * one where only scripts wait. */
static void count_steps(struct engine *e, uint32_t n)
{
    const uint32_t most = furthest(e, n);
    const uint32_t ran = n == 0 ? 1 : most > e->at->draft_steps ? most - e->at->draft_steps : 0;
    e->at->draft_steps += ran;
    e->stats.draft_steps += ran;
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct request *r = e->members[i];
        struct drafting_state *d = r->drafting;
        if (!d || d->phase != DRAFTING_PASSES || drafting_has_passes(d))
            continue;
        r->usage.drafting.passes += least(d->wait, ran);
        d->wait -= least(d->wait, ran);
        if (d->wait == 0)
            d->phase = DRAFTING_READY;
    }
}

int drafting_step(struct engine *e, struct error *err)
{
    uint64_t t0 = clock_now_ns();
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct request *r = e->members[i];
        if (!in_passes(r->drafting))
            continue;
        r->usage.drafting.passes -= r->drafting->round.pass; /* added again with the new ones */
        e->at->draft_entries[n++] =
            (struct draft_entry){.seq = &r->seq, .round = &r->drafting->round};
    }
    int r = run_passes(e, n, err);
    for (uint32_t i = 0; i < e->n_members; i++)
        if (in_passes(e->members[i]->drafting))
            e->members[i]->usage.drafting.passes += e->members[i]->drafting->round.pass;
    count_steps(e, n);
    return r < 0 ? r : finish_passes(e, clock_now_ns() - t0, err);
}

/* ---- passes and verification in one ------------------------------------------------------------------ */

/* Everyone who waits is one of the drafter's; the step's draft_entries get them. */
static bool only_passes(struct engine *e, uint32_t *ret_n)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct drafting_state *d = e->members[i]->drafting;
        if (!d || d->phase != DRAFTING_PASSES)
            continue;
        if (!drafting_has_passes(d))
            return false;
        e->at->draft_entries[n++] =
            (struct draft_entry){.seq = &e->members[i]->seq, .round = &d->round};
    }
    *ret_n = n;
    return true;
}

bool drafting_may_start(struct engine *e)
{
    const struct block_drafter *b = &e->drafter;
    uint32_t n;
    return b->ops && b->ops->may_begin && e->feed && only_passes(e, &n) &&
           b->ops->may_begin(b->self, e->at->draft_entries, n);
}

/* As many nodes as there may be, none of which is known yet: of a chain the tokens, of a tree nothing. */
static void reserve_proposal(struct drafting_state *d)
{
    const struct draft_round *t = &d->round;
    const bool tree = t->method == DRAFT_DDTREE;
    uint32_t n = least(tree ? t->tree_budget : t->window - 1, t->max_nodes);
    if (t->verify)
        n = least(n, t->verify);
    proposal_clear(&d->proposal);
    for (uint32_t k = 0; k < n; k++)
        (void)proposal_add(&d->proposal, 0, tree ? -1 : (int)k - 1, -1);
    d->begun = true;
    d->phase = DRAFTING_READY;
}

int drafting_start(struct engine *e, struct error *err)
{
    const struct block_drafter *b = &e->drafter;
    struct step *s = e->at;
    uint32_t n = 0;
    if (!only_passes(e, &s->n_begun))
        return ERR(err, INTERNAL, "passes that cannot be started");
    s->draft_load = (struct cost_load){0};
    int r = b->ops->begin(b->self, s->lane, s->draft_entries, s->n_begun, err);
    if (r < 0) {
        s->n_begun = 0;
        return r;
    }
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct request *q = e->members[i];
        if (!in_passes(q->drafting))
            continue;
        add_block(&s->draft_load, &s->draft_entries[n]);
        s->begun[n++] = q;
        reserve_proposal(q->drafting);
    }
    return 0;
}

/* The drafts of request q are there. */
static int take_drafts(struct engine *e, struct request *q, uint64_t ns, struct error *err)
{
    struct drafting_state *d = q->drafting;
    q->usage.drafting.passes += d->round.pass;
    d->round_ns += ns;
    if (d->phase != DRAFTING_READY) { /* sent away meanwhile */
        proposal_clear(&d->proposal);
        return 0;
    }
    int r = check_pass(e, d, err);
    controller_cut(&e->controller, d);
    mark_edited(d);
    return r;
}

int drafting_collect(struct engine *e, uint64_t *ret_ns, struct error *err)
{
    const struct block_drafter *b = &e->drafter;
    struct step *s = e->at;
    const uint32_t n = s->n_begun;
    int r = b->ops->end(b->self, s->lane, s->draft_entries, n, ret_ns, err);
    e->stats.draft_steps += furthest(e, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!s->begun[i])
            continue;
        s->begun[i]->drafting->begun = false;
        if (r == 0)
            r = take_drafts(e, s->begun[i], *ret_ns, err);
    }
    s->n_begun = 0;
    if (r == 0)
        add_cost(e, &s->draft_load, s->draft_entries[0].passes, *ret_ns);
    return r;
}

void drafting_drop(struct engine *e)
{
    struct step *s = e->at;
    for (uint32_t i = 0; i < s->n_begun; i++)
        if (s->begun[i])
            s->begun[i]->drafting->begun = false;
    s->n_begun = 0;
}
