/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/controller.h"

#include "base/alloc.h"
#include "engine/engine_internal.h"

/* ---- costs ---------------------------------------------------------------------------------------- */

static const uint16_t sizes[COST_SIZES] = {1,  2,  3,  4,  5,  6,  7,  8,   10,  12,  16,  20,
                                           24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512};
#define GUESSED_GROWTH 0.03 /* of the time, by one more row, where nothing is known */

/* The size that stands for this number of rows: the nearest one. */
static int size_index(uint32_t rows)
{
    int i = 0;
    while (i + 1 < COST_SIZES && 2 * rows > (uint32_t)sizes[i] + sizes[i + 1])
        i++;
    return i;
}

void cost_add(struct cost_table *t, uint32_t rows, uint64_t ns)
{
    double *c = &t->ns[size_index(rows)], x = (double)ns;
    /* Disturbances only ever add time: go down quickly, up slowly. */
    if (*c == 0)
        *c = x;
    else
        *c += (x < *c ? 0.3 : 0.04) * (x - *c);
}

void cost_fill(struct cost_table *t, double ns, double slope)
{
    for (int i = 0; i < COST_SIZES; i++)
        t->ns[i] = ns * (1 + slope * (sizes[i] - 1));
}

double cost_of(const struct cost_table *t, uint32_t rows)
{
    int lo = -1, hi = -1;
    for (int i = 0; i < COST_SIZES; i++) {
        if (t->ns[i] == 0)
            continue;
        if (sizes[i] <= rows)
            lo = i;
        if (sizes[i] >= rows && hi < 0)
            hi = i;
    }
    if (lo < 0 && hi < 0)
        return 0;
    if (hi < 0) {
        double growth = GUESSED_GROWTH, at = sizes[lo];
        return t->ns[lo] * (1 + growth * ((double)rows - at) / (1 + growth * at));
    }
    if (lo < 0)
        return t->ns[hi] * (1 - 0.5 * (1 - (double)rows / sizes[hi]));
    if (lo == hi)
        return t->ns[lo];
    double part = ((double)rows - sizes[lo]) / (double)(sizes[hi] - sizes[lo]);
    return t->ns[lo] + part * (t->ns[hi] - t->ns[lo]);
}

/* ---- odds ----------------------------------------------------------------------------------------- */

#define FADE        0.998
#define FADE_UNUSED 0.99 /* what is not tried any more is forgotten, and tried again one day */
#define PRIOR_COUNT 6.0

static void observe(struct odds *o, bool right)
{
    o->hits = o->hits * FADE + right;
    o->n = o->n * FADE + 1;
}

static double odds_of(const struct odds *o, double prior)
{
    return (prior * PRIOR_COUNT + o->hits) / (PRIOR_COUNT + o->n);
}

static const float bin_ends[CONTROLLER_BINS] = {0.01f, 0.02f, 0.04f, 0.07f, 0.11f, 0.17f, 0.25f,
                                                0.35f, 0.45f, 0.55f, 0.67f, 0.8f,  0.92f, 1};

static int bin_of(float confidence)
{
    int i = 0;
    while (i + 1 < CONTROLLER_BINS && confidence > bin_ends[i])
        i++;
    return i;
}

/* 2, 3-4, 5-8, more */
static int match_class(uint32_t length)
{
    return length <= 2 ? 0 : length <= 4 ? 1 : length <= 8 ? 2 : 3;
}

float controller_match_confidence(const struct controller *c, uint32_t match)
{
    static const double prior[CONTROLLER_MATCHES] = {0.3, 0.5, 0.7, 0.8};
    int i = match_class(match);
    return (float)odds_of(&c->match[i], prior[i]);
}

/* The drafter's own probability of the path to node i. */
static float path_confidence(const struct proposal *p, uint32_t i)
{
    float c = 1;
    for (int at = (int)i; at >= 0; at = p->parent[at])
        c *= p->confidence[at] >= 0 ? p->confidence[at] : 0.5f;
    return c;
}

/* How probably the walk comes to node i. */
static double reach(const struct controller *c, const struct auto_state *a,
                    const struct proposal *p, uint32_t i)
{
    float own = path_confidence(p, i);
    return a->drafter ? odds_of(&c->confidence[bin_of(own)], (double)own) : (double)own;
}

void controller_learn(struct controller *c, const struct auto_state *a, const struct proposal *p,
                      uint32_t n, const bool *right)
{
    for (uint32_t i = 0; i < n; i++) {
        if (a->drafter) {
            observe(&c->confidence[bin_of(path_confidence(p, i))], right[i]);
            continue;
        }
        observe(&c->match[match_class(a->match)], right[i]);
        if (!right[i])
            return; /* what stands behind a wrong token was never tried */
    }
}

/* ---- is the drafter worth its passes? -------------------------------------------------------------- */

#define WORTH       1.02 /* expected speed above which rounds are drafted */
#define FIRST_PAUSE 16u
#define LAST_PAUSE  256u

void controller_init(struct controller *c)
{
    *c = (struct controller){.gain = 1.5};
}

void auto_init(struct auto_state *a, const struct controller *c)
{
    *a = (struct auto_state){.gain = c->gain, .next_pause = FIRST_PAUSE};
    if (a->gain <= WORTH)
        a->pause = FIRST_PAUSE / 2;
}

bool auto_drafts(const struct auto_state *a)
{
    return a->gain > WORTH || a->pause == 0;
}

bool controller_wants_drafter(struct auto_state *a)
{
    if (a->gain > WORTH)
        return true;
    if (a->pause) {
        a->pause--;
        return false;
    }
    return true; /* times may have changed */
}

static void learn_gain(struct controller *c, struct auto_state *a, double gain)
{
    a->gain += 0.25 * (gain - a->gain);
    c->gain += 0.12 * (gain - c->gain);
    if (a->gain > WORTH) {
        a->next_pause = FIRST_PAUSE;
        return;
    }
    a->pause = a->next_pause;
    a->next_pause = 2 * a->next_pause < LAST_PAUSE ? 2 * a->next_pause : LAST_PAUSE;
}

/* ---- how many nodes -------------------------------------------------------------------------------- */

struct candidate {
    struct drafting_state *d;
    uint32_t n, best_n; /* nodes taken so far; at the best rate */
    double next;        /* worth of the next node */
};

int controller_new_candidates(uint32_t n, struct candidate **ret, struct error *err)
{
    *ret = mem_calloc(n, sizeof(**ret));
    return *ret ? 0 : ERR_NOMEM(err);
}

static void look_ahead(const struct controller *c, struct candidate *k)
{
    const struct proposal *p = &k->d->proposal;
    double before = k->next;
    k->next = k->n < p->n ? reach(c, &k->d->automatic, p, k->n) : -1;
    if (k->n && k->next > before)
        k->next = before; /* nodes stand in order of worth; the bins may not */
}

static struct candidate *most_worth(struct candidate *k, uint32_t n)
{
    struct candidate *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (k[i].next > 0 && (!best || k[i].next > best->next))
            best = &k[i];
    return best;
}

/* Takes nodes in order of worth and keeps the number with the highest rate.  *ret_gain: that rate, the
 * passes counted, against plain rounds. */
static void choose_nodes(const struct controller *c, struct candidate *k, uint32_t n, uint32_t rows,
                         uint32_t decoding, double passes, double *ret_gain)
{
    const double plain = cost_of(&c->target, rows);
    double expected = decoding, best = plain > 0 ? expected / plain : 0;
    double best_expected = expected, best_cost = plain;
    struct candidate *next;
    for (uint32_t taken = 1; plain > 0 && (next = most_worth(k, n)) != NULL; taken++) {
        expected += next->next;
        next->n++;
        look_ahead(c, next);
        double cost = cost_of(&c->target, rows + taken);
        if (expected / cost <= best)
            continue;
        best = expected / cost;
        best_expected = expected;
        best_cost = cost;
        for (uint32_t i = 0; i < n; i++)
            k[i].best_n = k[i].n;
    }
    *ret_gain = plain > 0 ? best_expected / (best_cost + passes) / ((double)decoding / plain) : 1;
}

/* The first node that is cut off: its odds fade. */
static void forget_unused(struct controller *c, const struct candidate *k)
{
    const struct auto_state *a = &k->d->automatic;
    if (k->best_n == k->d->proposal.n)
        return;
    struct odds *o = a->drafter
                         ? &c->confidence[bin_of(path_confidence(&k->d->proposal, k->best_n))]
                         : &c->match[match_class(a->match)];
    o->hits *= FADE_UNUSED;
    o->n *= FADE_UNUSED;
}

void controller_trim(struct engine *e, uint32_t rows)
{
    struct controller *c = &e->controller;
    struct candidate *k = e->candidates;
    uint32_t n = 0, decoding = 0, drafted = 0, block = 0, passes = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        struct drafting_state *d = r->drafting;
        decoding += r->seq.n_tokens - r->seq.n_kv == 1;
        if (!d || d->params.method != DRAFT_AUTO || d->phase != DRAFTING_READY)
            continue;
        if (d->automatic.drafter) {
            drafted++;
            block += d->round.window;
            passes = d->round.pass > passes ? d->round.pass : passes;
        }
        if (d->proposal.n == 0)
            continue;
        k[n] = (struct candidate){.d = d};
        look_ahead(c, &k[n++]);
    }
    if (n == 0 && drafted == 0)
        return;
    double gain = 1;
    choose_nodes(c, k, n, rows, decoding, block ? passes * cost_of(&c->drafter, block) : 0, &gain);
    for (uint32_t i = 0; i < n; i++) {
        forget_unused(c, &k[i]);
        k[i].d->proposal.n = k[i].best_n;
    }
    for (uint32_t i = 0; i < e->n_running && drafted; i++) {
        struct drafting_state *d = e->running[i]->drafting;
        if (d && d->params.method == DRAFT_AUTO && d->phase == DRAFTING_READY &&
            d->automatic.drafter)
            learn_gain(c, &d->automatic, gain);
    }
}
