/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/controller.h"

#include "base/alloc.h"
#include "engine/engine_internal.h"

#define WORTH        1.02 /* expected speed above which rounds are drafted */
#define WORTH_A_PASS 1.003
#define FIRST_PAUSE  16u
#define LAST_PAUSE   512u
#define SKILL_RATE   0.2f
#define SKILL_NODES  8u
#define AUTO_PASSES  4u  /* unless the request allows more */
#define FIRST_LOOK   6u  /* drafted rounds until all passes are tried */
#define LOOK_EVERY   96u /* then, something else than the plan */
#define MANY         8u  /* requests: from there on, fewer plans are compared */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void controller_init(struct controller *c)
{
    *c = (struct controller){.pause = 0};
    costs_init(&c->costs);
}

void auto_init(struct auto_state *a, const struct controller *c)
{
    *a = (struct auto_state){.skill = 1, .pause = c->pause, .next_pause = FIRST_PAUSE};
}

uint32_t controller_window(uint32_t window, uint32_t w)
{
    uint32_t n = w == 0 ? window : w == 1 ? (3 * window + 3) / 4 : window / 2;
    return n < 2 ? 2 : n;
}

uint32_t controller_passes(const struct engine *e, const struct drafting_state *d)
{
    return least(d->params.passes ? d->params.passes : AUTO_PASSES, e->drafter.max_passes);
}

/* ---- how many nodes -------------------------------------------------------------------------------- */

struct candidate {
    struct drafting_state *d;
    double context; /* positions that each of its nodes sees */
    uint32_t most;  /* nodes it may have */
    float reach[SURVIVAL_NODES];
    uint32_t n, best_n; /* nodes taken so far; at the best rate */
};

int controller_new_candidates(uint32_t n, struct candidate **ret, struct error *err)
{
    *ret = mem_calloc(n, sizeof(**ret));
    return *ret ? 0 : ERR_NOMEM(err);
}

static struct candidate *most_worth(struct candidate *k, uint32_t n)
{
    struct candidate *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (k[i].n < k[i].most && (!best || k[i].reach[k[i].n] > best->reach[best->n]))
            best = &k[i];
    return best;
}

static double plain_rate(const struct controller *c, const struct draft_base *b)
{
    double cost = cost_of(&c->costs.table[COST_TARGET], &b->load);
    return cost > 0 ? (double)b->decoding / cost : 0;
}

/* Takes nodes in order of worth and keeps the number with the highest rate: tokens a nanosecond, with
 * `extra` nanoseconds of drafting whatever their number. */
static double best_nodes(const struct controller *c, struct candidate *k, uint32_t n,
                         const struct draft_base *b, double extra)
{
    const struct cost_table *t = &c->costs.table[COST_TARGET];
    struct cost_load load = b->load;
    double cost = cost_of(t, &load), expected = b->decoding, all = expected, best;
    for (uint32_t i = 0; i < n; i++) {
        k[i].n = k[i].best_n = 0;
        for (uint32_t j = 0; j < k[i].most; j++)
            all += (double)k[i].reach[j];
    }
    if (!(cost > 0))
        return 0; /* nothing is known: a plain round tells */
    best = expected / (cost + extra);
    for (struct candidate *next; (next = most_worth(k, n)) != NULL;) {
        expected += (double)next->reach[next->n++];
        load.rows++;
        load.positions += next->context;
        cost = cost_of(t, &load) + extra;
        if (all / cost <= best)
            break; /* more nodes only cost more */
        if (expected / cost <= best)
            continue;
        best = expected / cost;
        for (uint32_t i = 0; i < n; i++)
            k[i].best_n = k[i].n;
    }
    return best;
}

/* ---- what the batch is without drafts --------------------------------------------------------------- */

static bool is_auto(const struct request *r)
{
    return r->drafting && r->drafting->params.method == DRAFT_AUTO;
}

static struct draft_base base_of(const struct engine *e)
{
    struct draft_base b = {.decoding = 0};
    for (uint32_t i = 0; i < e->n_running; i++) {
        const struct request *r = e->running[i];
        uint32_t feed = r->seq.n_tokens - r->seq.n_kv;
        uint32_t rows = least(feed, e->cfg.prefill_chunk) + (is_auto(r) ? 0 : drafting_nodes(r));
        b.decoding += feed == 1;
        b.load.rows += rows;
        b.load.entries += r->seq.n_kv;
        b.load.positions += (double)rows * r->seq.n_kv;
    }
    b.load.rows = least(b.load.rows, e->cfg.max_num_batched_tokens);
    return b;
}

/* ---- the plan --------------------------------------------------------------------------------------- */

static bool may_draft(const struct engine *e, const struct request *r)
{
    const struct drafting_state *d = r->drafting;
    return is_auto(r) && d->context && d->phase == DRAFTING_IDLE &&
           r->seq.n_tokens - r->seq.n_kv == 1 && r->seq.n_tokens > r->n_prompt &&
           r->max_total - r->seq.n_tokens > 1 &&
           (uint64_t)r->seq.n_kv + DRAFT_MAX_WINDOW <= e->drafter.max_context;
}

/* Candidates [0, n) by skill, the best first. */
static uint32_t gather(const struct engine *e, struct candidate *k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        if (!may_draft(e, r))
            continue;
        uint32_t j = n++;
        for (; j && k[j - 1].d->automatic.skill < r->drafting->automatic.skill; j--) {
            k[j].d = k[j - 1].d;
            k[j].context = k[j - 1].context;
            k[j].most = k[j - 1].most;
        }
        k[j].d = r->drafting;
        k[j].context = r->seq.n_kv;
        k[j].most = least(SURVIVAL_NODES, r->max_total - r->seq.n_kv - 1);
        k[j].most = least(k[j].most, r->drafting->params.tree_budget);
    }
    return n;
}

static void expect(const struct controller *c, struct candidate *k, uint32_t n, uint32_t w,
                   uint32_t passes)
{
    float reach[SURVIVAL_NODES];
    survival_expect(&c->survival, w, passes, reach);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < k[i].most; j++) {
            float r = reach[j] * k[i].d->automatic.skill;
            k[i].reach[j] = r < 0.995f ? r : 0.995f;
        }
}

/* Time of one pass for the first n candidates. */
static double pass_ns(const struct engine *e, const struct candidate *k, uint32_t n, uint32_t w)
{
    struct cost_load load = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t own = k[i].d->params.window ? k[i].d->params.window : e->drafter.window;
        uint32_t rows = controller_window(own, k[i].d->params.window ? 0 : w);
        load.rows += rows;
        load.entries += k[i].context;
        load.positions += rows * k[i].context;
    }
    return cost_of(&e->controller.costs.table[COST_DRAFTER], &load);
}

/* Gives the drafter its context: about two rows a request. */
static double inject_ns(const struct controller *c, uint32_t n)
{
    return cost_of_rows(&c->costs.table[COST_INJECT], 2 * n);
}

static uint32_t most_passes(const struct engine *e, const struct candidate *k, uint32_t n)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = controller_passes(e, k[i].d);
        most = p > most ? p : most;
    }
    return most;
}

/* The best window and number of passes for the first n candidates; returns the rate. */
static double compare(struct engine *e, struct candidate *k, uint32_t n, uint32_t windows,
                      struct draft_plan *p)
{
    struct controller *c = &e->controller;
    const uint32_t passes = least(most_passes(e, k, n), n > MANY ? 2 : DRAFT_MAX_PASSES);
    double best = -1;
    for (uint32_t w = 0; w < windows; w++) {
        double pass = pass_ns(e, k, n, w);
        for (uint32_t j = 1; j <= passes; j++) {
            double extra = j * pass + inject_ns(c, n);
            expect(c, k, n, w, j);
            double rate = best_nodes(c, k, n, &p->base, extra);
            if (rate <= best)
                continue;
            best = rate;
            p->w = w;
            p->passes = j;
            p->share_ns = extra / n;
        }
    }
    return best;
}

/* Now and then, rounds are not what seems best. */
static void look_around(struct engine *e, uint32_t most, struct draft_plan *p)
{
    struct controller *c = &e->controller;
    uint32_t k = ++c->rounds;
    if (k != FIRST_LOOK && k % LOOK_EVERY)
        return;
    p->least = most;
    if (k / LOOK_EVERY % 2 == 1)
        p->w = k / LOOK_EVERY / 2 % SURVIVAL_WINDOWS;
}

static void decide(struct auto_state *a, bool worth)
{
    if (worth) {
        a->wants = true;
        a->trying = false;
        a->pause = 0;
        a->next_pause = FIRST_PAUSE;
    } else if (!a->trying) { /* who tries goes on until a pass was run */
        a->wants = a->trying = a->pause == 0;
        a->pause -= a->pause > 0;
    }
}

void controller_plan(struct engine *e)
{
    struct controller *c = &e->controller;
    struct candidate *k = e->candidates;
    const uint32_t n = gather(e, k);
    uint32_t drafting = 0;
    if (n == 0)
        return;
    struct draft_plan p = {.base = base_of(e)};
    const double plain = plain_rate(c, &p.base);
    double best = compare(e, k, n, n > MANY ? 1 : SURVIVAL_WINDOWS, &p);
    drafting = n;
    for (uint32_t m = n / 2; m; m /= 2) { /* the more promising ones alone */
        struct draft_plan q = p;
        double rate = compare(e, k, m, 1, &q);
        if (rate <= best)
            continue;
        best = rate;
        drafting = m;
        p = q;
    }
    p.gain = plain > 0 ? best / plain : WORTH + 1; /* nothing is known: find out */
    bool worth = p.gain > WORTH;
    for (uint32_t i = 0; i < n; i++)
        decide(&k[i].d->automatic, worth && i < drafting);
    c->pause = worth ? 0 : FIRST_PAUSE;
    if (worth)
        look_around(e, most_passes(e, k, n), &p);
    c->plan = p;
}

bool controller_prefers_match(struct engine *e, const struct drafting_state *d, float confidence,
                              uint32_t most)
{
    struct controller *c = &e->controller;
    struct candidate k = {.d = (struct drafting_state *)(uintptr_t)d,
                          .context = c->plan.base.load.entries / (c->plan.base.decoding + 1),
                          .most = least(most, SURVIVAL_NODES)};
    float p = 1;
    for (uint32_t i = 0; i < k.most; i++)
        k.reach[i] = p *= confidence;
    double match = best_nodes(c, &k, 1, &c->plan.base, 0);
    expect(c, &k, 1, c->plan.w, c->plan.passes);
    return match >= best_nodes(c, &k, 1, &c->plan.base, c->plan.share_ns);
}

/* ---- after a pass ----------------------------------------------------------------------------------- */

/* This round's share of what is known of the likes of it. */
static void learn_skill(struct controller *c, struct auto_state *a, uint32_t passes)
{
    float usual[SURVIVAL_NODES], want = 0, got = 0;
    survival_expect(&c->survival, a->w, passes, usual);
    for (uint32_t i = 0; i < a->n_reach && i < SKILL_NODES; i++) {
        want += usual[i];
        got += a->reach[i];
    }
    float ratio = want > 0 ? got / want : 1;
    ratio = ratio > 3 ? 3 : ratio < 0.1f ? 0.1f : ratio;
    a->skill += SKILL_RATE * (ratio - a->skill);
}

static void look_at(struct controller *c, struct drafting_state *d)
{
    struct auto_state *a = &d->automatic;
    const uint32_t passes = d->round.pass;
    a->n_reach = survival_reach(&c->survival, passes, &d->proposal, a->reach);
    if (passes == 1)
        learn_skill(c, a, passes);
    survival_add(&c->survival, a->w, passes, a->reach, a->n_reach);
    if (a->trying) {
        a->trying = false;
        a->pause = a->next_pause;
        a->next_pause = least(2 * a->next_pause, LAST_PAUSE);
    }
}

/* Candidates whose drafts are there; the open ones, which may have another pass, first. */
static uint32_t drafted(const struct engine *e, struct candidate *k, uint32_t *ret_open)
{
    uint32_t n = 0, open = 0;
    for (int closed = 0; closed < 2; closed++)
        for (uint32_t i = 0; i < e->n_running; i++) {
            struct drafting_state *d = e->running[i]->drafting;
            if (!is_auto(e->running[i]) || !d->automatic.drafter || d->phase == DRAFTING_IDLE ||
                d->round.done != (closed == 1))
                continue;
            k[n].d = d;
            k[n].context = e->running[i]->seq.n_kv;
            k[n].most = d->automatic.n_reach;
            for (uint32_t j = 0; j < k[n].most; j++)
                k[n].reach[j] = d->automatic.reach[j];
            n++;
            open += closed == 0;
        }
    *ret_open = open;
    return n;
}

/* Does another pass of the first `open` of n candidates raise the rate? */
static bool worth_a_pass(struct engine *e, struct candidate *k, uint32_t n, uint32_t open)
{
    struct controller *c = &e->controller;
    struct draft_plan *p = &c->plan;
    const uint32_t passes = k[0].d->round.pass;
    if (passes < p->least)
        return true;
    double spent = p->spent_ns + inject_ns(c, n);
    double now = best_nodes(c, k, n, &p->base, spent);
    for (uint32_t i = 0; i < open; i++) {
        struct auto_state *a = &k[i].d->automatic;
        if (!survival_next(&c->survival, a->w, passes, a->reach, a->n_reach, k[i].reach))
            return false; /* it is tried when the time has come to look around */
    }
    double more = pass_ns(e, k, open, k[0].d->automatic.w);
    return best_nodes(c, k, n, &p->base, spent + more) > WORTH_A_PASS * now;
}

void controller_passed(struct engine *e)
{
    struct candidate *k = e->candidates;
    uint32_t open = 0, ran = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct drafting_state *d = e->running[i]->drafting;
        if (!is_auto(e->running[i]) || !d->automatic.drafter || d->phase != DRAFTING_PASSES)
            continue;
        look_at(&e->controller, d);
        k[ran].d = d;
        k[ran++].context = e->running[i]->seq.n_kv;
    }
    if (ran == 0)
        return;
    e->controller.plan.spent_ns += pass_ns(e, k, ran, k[0].d->automatic.w);
    uint32_t n = drafted(e, k, &open);
    if (open && !worth_a_pass(e, k, n, open))
        for (uint32_t i = 0; i < open; i++)
            k[i].d->round.done = true;
}

/* ---- before verification ---------------------------------------------------------------------------- */

static void forget_unused(struct survival *s, const struct drafting_state *d, uint32_t n)
{
    if (n == d->proposal.n)
        return;
    if (d->automatic.drafter)
        survival_forget(s, d->round.pass, &d->proposal, n);
    else
        survival_forget_match(s, d->automatic.match);
}

void controller_trim(struct engine *e)
{
    struct controller *c = &e->controller;
    struct candidate *k = e->candidates;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        struct drafting_state *d = r->drafting;
        if (!is_auto(r) || d->phase != DRAFTING_READY || d->proposal.n == 0)
            continue;
        k[n].d = d;
        k[n].context = r->seq.n_kv;
        k[n].most = least(d->automatic.n_reach, d->proposal.n);
        for (uint32_t j = 0; j < k[n].most; j++)
            k[n].reach[j] = d->automatic.reach[j];
        n++;
    }
    if (n == 0)
        return;
    struct draft_base base = base_of(e);
    double extra = 0; /* what was spent: a longer round asks for more tokens */
    for (uint32_t i = 0; i < n; i++)
        if (k[i].d->automatic.drafter)
            extra = c->plan.spent_ns;
    (void)best_nodes(c, k, n, &base, extra);
    for (uint32_t i = 0; i < n; i++) {
        forget_unused(&c->survival, k[i].d, k[i].best_n);
        k[i].d->proposal.n = k[i].best_n;
    }
}

void controller_learn(struct controller *c, const struct drafting_state *d, uint32_t n,
                      const bool *right)
{
    if (d->automatic.drafter)
        survival_learn(&c->survival, d->round.pass, &d->proposal, n, right);
    else
        survival_learn_match(&c->survival, d->automatic.match, n, right);
}
