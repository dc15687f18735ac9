/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/survival.h"

#include <string.h>

#define FADE        0.998
#define FADE_UNUSED 0.99
#define PRIOR_COUNT 3.0 /* observations that the drafter's own word is worth */
#define CELL_COUNT  8.0 /* those that its bin is worth, for one depth and pass of it */
#define CURVE_RATE  0.15f
#define MOST        0.995f
/* What is hoped of a drafter that was never seen: a tree that is worth a try on every machine. */
#define HOPE 0.7f

/* ---- odds ----------------------------------------------------------------------------------------- */

static void observe(struct odds *o, bool right)
{
    o->hits = o->hits * FADE + right;
    o->n = o->n * FADE + 1;
}

static void fade(struct odds *o)
{
    o->hits *= FADE_UNUSED;
    o->n *= FADE_UNUSED;
}

static double odds_of(const struct odds *o, double prior, double count)
{
    return (prior * count + o->hits) / (count + o->n);
}

static int bin_of(float confidence)
{
    static const float ends[SURVIVAL_BINS] = {0.01f, 0.02f, 0.04f, 0.07f, 0.11f, 0.17f, 0.25f,
                                              0.35f, 0.45f, 0.55f, 0.67f, 0.8f,  0.92f, 1};
    int i = 0;
    while (i + 1 < SURVIVAL_BINS && confidence > ends[i])
        i++;
    return i;
}

/* 2, 3-4, 5-8, more */
static int match_class(uint32_t length)
{
    return length <= 2 ? 0 : length <= 4 ? 1 : length <= 8 ? 2 : 3;
}

float survival_match(const struct survival *s, uint32_t match)
{
    static const double prior[SURVIVAL_MATCHES] = {0.3, 0.5, 0.7, 0.8};
    int i = match_class(match);
    return (float)odds_of(&s->match[i], prior[i], PRIOR_COUNT);
}

/* The drafter's own probability of the path to node i. */
static float path_confidence(const struct proposal *p, uint32_t i)
{
    float c = 1;
    for (int at = (int)i; at >= 0; at = p->parent[at])
        c *= p->confidence[at] >= 0 ? p->confidence[at] : 0.5f;
    return c;
}

static uint32_t class_of(uint32_t n, uint32_t classes)
{
    return n == 0 ? 0 : n < classes ? n - 1 : classes - 1;
}

/* Where node i is counted; *ret_own: what the drafter says of it. */
static struct odds *cell_of(struct survival *s, uint32_t passes, const struct proposal *p,
                            uint32_t i, struct odds **ret_bin, float *ret_own)
{
    *ret_own = path_confidence(p, i);
    const int bin = bin_of(*ret_own);
    *ret_bin = &s->bin[bin];
    return &s->cell[class_of(passes, SURVIVAL_PASSES)]
                   [class_of(proposal_depth(p, i), SURVIVAL_DEPTHS)][bin];
}

uint32_t survival_reach(const struct survival *s, uint32_t passes, const struct proposal *p,
                        float *reach)
{
    uint32_t n = p->n < SURVIVAL_NODES ? p->n : SURVIVAL_NODES;
    for (uint32_t i = 0; i < n; i++) {
        struct odds *bin;
        float own;
        const struct odds *cell =
            cell_of((struct survival *)(uintptr_t)s, passes, p, i, &bin, &own);
        double prior = odds_of(bin, (double)own, PRIOR_COUNT);
        reach[i] = (float)odds_of(cell, prior, CELL_COUNT);
        /* Nodes stand in order of worth; the bins may not. */
        if (i && reach[i] > reach[i - 1])
            reach[i] = reach[i - 1];
    }
    return n;
}

void survival_learn(struct survival *s, uint32_t passes, const struct proposal *p, uint32_t n,
                    const bool *right)
{
    for (uint32_t i = 0; i < n; i++) {
        struct odds *bin;
        float own;
        observe(cell_of(s, passes, p, i, &bin, &own), right[i]);
        observe(bin, right[i]);
    }
}

void survival_learn_match(struct survival *s, uint32_t match, uint32_t n, const bool *right)
{
    for (uint32_t i = 0; i < n; i++) {
        observe(&s->match[match_class(match)], right[i]);
        if (!right[i])
            return; /* what stands behind a wrong token was never tried */
    }
}

void survival_forget(struct survival *s, uint32_t passes, const struct proposal *p, uint32_t unused)
{
    struct odds *bin;
    float own;
    if (unused >= p->n)
        return;
    fade(cell_of(s, passes, p, unused, &bin, &own));
    fade(bin);
}

void survival_forget_match(struct survival *s, uint32_t match)
{
    fade(&s->match[match_class(match)]);
}

/* ---- curves ---------------------------------------------------------------------------------------- */

void survival_add(struct survival *s, uint32_t w, uint32_t passes, const float *reach, uint32_t n)
{
    struct curve *c = &s->curve[w][passes - 1];
    float rate = 1 / ((float)c->n + 1);
    if (rate < CURVE_RATE)
        rate = CURVE_RATE;
    for (uint32_t i = 0; i < n && i < SURVIVAL_NODES; i++) {
        c->reach[i] += rate * (reach[i] - c->reach[i]);
        if (i && c->reach[i] > c->reach[i - 1])
            c->reach[i] = c->reach[i - 1];
    }
    /* Smaller proposals say nothing of the nodes that they lack, but that these are worth less. */
    for (uint32_t i = n; i < SURVIVAL_NODES; i++)
        if (i && c->reach[i] > c->reach[i - 1])
            c->reach[i] = c->reach[i - 1];
    c->n += c->n < UINT32_MAX;
}

void survival_expect(const struct survival *s, uint32_t w, uint32_t passes, float *reach)
{
    const struct curve *known = NULL;
    uint32_t k = passes - 1;
    for (uint32_t j = 0; j < DRAFT_MAX_PASSES && !known; j++) {
        uint32_t at = (k + DRAFT_MAX_PASSES - j) % DRAFT_MAX_PASSES; /* fewer passes first */
        known = s->curve[w][at].n ? &s->curve[w][at] : NULL;
    }
    for (uint32_t v = 0; v < SURVIVAL_WINDOWS && !known; v++)
        known = s->curve[v][k].n ? &s->curve[v][k] : s->curve[v][0].n ? &s->curve[v][0] : NULL;
    if (known) {
        memcpy(reach, known->reach, sizeof(known->reach));
        return;
    }
    float r = HOPE;
    for (uint32_t i = 0; i < SURVIVAL_NODES; i++, r *= 0.85f)
        reach[i] = r;
}

static float odds_ratio(float from, float to)
{
    from = from > MOST ? MOST : from < 0.001f ? 0.001f : from;
    to = to > MOST ? MOST : to < 0.001f ? 0.001f : to;
    return to / (1 - to) / (from / (1 - from));
}

bool survival_next(const struct survival *s, uint32_t w, uint32_t passes, const float *reach,
                   uint32_t n, float *ret)
{
    if (passes == 0 || passes >= DRAFT_MAX_PASSES)
        return false;
    const struct curve *now = &s->curve[w][passes - 1], *next = &s->curve[w][passes];
    if (!now->n || !next->n)
        return false;
    for (uint32_t i = 0; i < n && i < SURVIVAL_NODES; i++) {
        float r = reach[i] > MOST ? MOST : reach[i];
        float o = r / (1 - r) * odds_ratio(now->reach[i], next->reach[i]);
        ret[i] = o / (1 + o);
    }
    return true;
}
