/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/controller_internal.h"
#include "engine/engine_internal.h"

#define WORTH_A_PASS 1.003
#define FIRST_PAUSE  16u
#define LAST_PAUSE   512u
#define SKILL_RATE   0.2f
#define SKILL_NODES  8u
#define AUTO_PASSES  4u  /* unless the request allows more */
#define FIRST_LOOK   6u  /* drafted rounds until all passes are tried */
#define LOOK_EVERY   96u /* then, something else than the plan */
#define HOLDS        8u  /* rounds that nothing is drafted, without thinking again */
#define MANY         8u  /* requests: from there on, fewer plans are compared */
#define KNOWN        8u /* proposals of a drafter, before more than one request of a batch drafts */

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
    *a = (struct auto_state){.skill = 1,
                             .pause = c->pause,
                             .next_pause = c->pause > FIRST_PAUSE ? c->pause : FIRST_PAUSE};
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

/* ---- the plan --------------------------------------------------------------------------------------- */

static bool may_draft(const struct engine *e, const struct request *r)
{
    const struct drafting_state *d = r->drafting;
    return controller_has(r) && d->context && d->phase == DRAFTING_IDLE &&
           r->seq.n_tokens - r->seq.n_kv == 1 && r->seq.n_tokens > r->n_prompt &&
           r->max_total - r->seq.n_tokens > 1 &&
           (uint64_t)r->seq.n_kv + DRAFT_MAX_WINDOW <= e->drafter.max_context;
}

/* Candidates [0, n) by skill, the best first. */
static uint32_t gather(const struct engine *e, struct candidate *k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct request *r = e->members[i];
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
            double rate = controller_best(c, k, n, &p->base, extra, 1);
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

/* For the same batch, the last plan was to draft nothing, and not long ago. */
static bool still_holds(struct controller *c, uint32_t n, const struct draft_base *b)
{
    const uint32_t of[3] = {n, b->load.rows, b->decoding};
    bool same = c->stale && of[0] == c->of[0] && of[1] == c->of[1] && of[2] == c->of[2];
    for (int i = 0; i < 3; i++)
        c->of[i] = of[i];
    c->stale = same ? c->stale - 1 : 0;
    return same;
}

/* Proposals that were seen, of whatever window. */
static uint32_t n_known(const struct survival *s)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < SURVIVAL_WINDOWS; w++)
        n += least(s->curve[w][0].n, KNOWN);
    return n;
}

static double plain_rate(const struct controller *c, const struct draft_base *b)
{
    double cost = cost_of(&c->costs.table[COST_TARGET], &b->load);
    return cost > 0 ? (double)b->decoding / cost : 0;
}

/* Passes of the plan's rounds, when nobody ends them. */
static uint32_t planned_passes(const struct draft_plan *p)
{
    const uint32_t n = p->passes > p->least ? p->passes : p->least;
    return n ? n : 1;
}

/* Nodes for those of n candidates who want the drafter, as expected; one at least, since who runs passes has to
 * learn of them. */
static void decide_ahead(struct engine *e, struct candidate *k, uint32_t n)
{
    struct controller *c = &e->controller;
    struct draft_plan *p = &c->plan;
    const uint32_t passes = planned_passes(p);
    uint32_t m = 0;
    for (uint32_t i = 0; i < n && c->ahead; i++)
        if (k[i].d->automatic.wants)
            k[m++] = k[i];
    if (m == 0)
        return;
    p->spent_ns = passes * pass_ns(e, k, m, p->w);
    expect(c, k, m, p->w, passes);
    (void)controller_best(c, k, m, &p->base, p->spent_ns + inject_ns(c, m), 1);
    for (uint32_t i = 0; i < m; i++)
        k[i].d->automatic.nodes = k[i].best_n ? k[i].best_n : 1;
}

/* The plan for n candidates, and who drafts by it. */
static void plan(struct engine *e, struct candidate *k, uint32_t n)
{
    struct controller *c = &e->controller;
    uint32_t drafting = n;
    struct draft_plan p = {.base = controller_base(e)};
    if (still_holds(c, n, &p.base)) {
        for (uint32_t i = 0; i < n; i++)
            decide(&k[i].d->automatic, false);
        c->plan.base = p.base;
        return;
    }
    const double plain = plain_rate(c, &p.base);
    double best = compare(e, k, n, n > MANY ? 1 : SURVIVAL_WINDOWS, &p);
    for (uint32_t m = n / 2; m; m /= 2) { /* the more promising ones alone */
        struct draft_plan q = p;
        double rate = compare(e, k, m, 1, &q);
        if (rate <= best)
            continue;
        best = rate;
        drafting = m;
        p = q;
    }
    /* What nobody knows yet is found out at the price of one request. */
    const bool unknown = n_known(&c->survival) < KNOWN;
    if (unknown)
        drafting = least(drafting, 1);
    p.gain = plain > 0 ? best / plain : CONTROLLER_WORTH + 1; /* nothing is known: find out */
    bool worth = p.gain > CONTROLLER_WORTH;
    for (uint32_t i = 0; i < n; i++) {
        struct auto_state *a = &k[i].d->automatic;
        if (unknown && i >= drafting && !a->trying && a->pause < FIRST_PAUSE)
            a->pause = FIRST_PAUSE;
        decide(a, worth && i < drafting);
    }
    /* A try costs the whole batch: the larger it is, the longer new requests wait with theirs. */
    c->pause = worth ? 0 : least(FIRST_PAUSE * p.base.decoding, LAST_PAUSE);
    c->stale = worth ? 0 : HOLDS;
    if (worth)
        look_around(e, most_passes(e, k, n), &p);
    c->plan = p;
}

void controller_plan(struct engine *e)
{
    const uint32_t n = gather(e, e->candidates);
    if (n == 0)
        return;
    plan(e, e->candidates, n);
    decide_ahead(e, e->candidates, n);
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
    double match = controller_best(c, &k, 1, &c->plan.base, 0, 1);
    expect(c, &k, 1, c->plan.w, c->plan.passes);
    return match >= controller_best(c, &k, 1, &c->plan.base, c->plan.share_ns, 1);
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

/* A pass of a round that nobody ends. */
static void look(void *arg, struct draft_round *r)
{
    struct engine *e = arg;
    look_at(&e->controller,
            (struct drafting_state *)(void *)((char *)r - offsetof(struct drafting_state, round)));
}

void controller_round(struct engine *e, struct drafting_state *d)
{
    const uint32_t nodes = d->automatic.nodes;
    d->round.passes = least(d->round.passes, planned_passes(&e->controller.plan));
    d->round.verify = nodes ? nodes : 1;
    d->round.passed = look;
    d->round.arg = e;
}

/* Candidates whose drafts are there; the open ones, which may have another pass, first. */
static uint32_t drafted(const struct engine *e, struct candidate *k, uint32_t *ret_open)
{
    uint32_t n = 0, open = 0;
    for (int closed = 0; closed < 2; closed++)
        for (uint32_t i = 0; i < e->n_members; i++) {
            struct drafting_state *d = e->members[i]->drafting;
            if (!controller_has(e->members[i]) || !d->automatic.drafter ||
                d->phase == DRAFTING_IDLE || d->round.done != (closed == 1))
                continue;
            k[n].d = d;
            k[n].context = e->members[i]->seq.n_kv;
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
    double now = controller_best(c, k, n, &p->base, spent, 1);
    for (uint32_t i = 0; i < open; i++) {
        struct auto_state *a = &k[i].d->automatic;
        if (!survival_next(&c->survival, a->w, passes, a->reach, a->n_reach, k[i].reach))
            return false; /* it is tried when the time has come to look around */
    }
    double more = pass_ns(e, k, open, k[0].d->automatic.w);
    return controller_best(c, k, n, &p->base, spent + more, 1) > WORTH_A_PASS * now;
}

void controller_passed(struct engine *e)
{
    struct candidate *k = e->candidates;
    uint32_t open = 0, ran = 0;
    if (e->controller.ahead)
        return;
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct drafting_state *d = e->members[i]->drafting;
        if (!controller_has(e->members[i]) || !d->automatic.drafter || d->phase != DRAFTING_PASSES)
            continue;
        look_at(&e->controller, d);
        k[ran].d = d;
        k[ran++].context = e->members[i]->seq.n_kv;
    }
    if (ran == 0)
        return;
    e->controller.plan.spent_ns += pass_ns(e, k, ran, k[0].d->automatic.w);
    uint32_t n = drafted(e, k, &open);
    if (open && !worth_a_pass(e, k, n, open))
        for (uint32_t i = 0; i < open; i++)
            k[i].d->round.done = true;
}
