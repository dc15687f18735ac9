/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a drafter's logits to drafts.  At temperature 0, and without noise, a row's draft is the argmax,
 * the lowest row on a tie.  Above, the target's choice at a position is
 *
 *     argmax over v of  logit_v / T + gumbel(seed, position, v)
 *
 * so the drafter adds the same noise to its own logits: where the two distributions agree, so do the
 * choices.  v is the token of the target's vocabulary, whatever row of the draft vocabulary it is.
 * Probabilities (confidence, trees) are the softmax of what the argmax is taken of.
 *
 * Rule B wants drafts drawn from q = softmax(logit / T): the last pass draws, by noise of a stream of
 * its own, and hands q out; the passes before it choose as at temperature 0.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ddtree.h"
#include "engine/drafter_internal.h"
#include "engine/noise.h"
#include "engine/sampler_internal.h"

#define RUN_GRAIN 16u /* tokens whose noise is made together */
#define RUN_GAP   3u  /* grains that are cheaper to make than to leave out */

int drafter_make_runs(struct drafter *d, struct error *err)
{
    if (!d->cfg->target_ids)
        return 0;
    const uint32_t grains = (d->target_vocab + RUN_GRAIN - 1) / RUN_GRAIN;
    _cleanup_free_ uint8_t *wanted = mem_zalloc(grains);
    d->runs = mem_array(grains, sizeof(*d->runs));
    if (!wanted || !d->runs)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < d->cfg->draft_vocab; i++)
        wanted[d->cfg->target_ids[i] / RUN_GRAIN] = 1;
    for (uint32_t g = 0, last = 0; g < grains; g++) {
        if (!wanted[g])
            continue;
        struct noise_run *run = d->n_runs ? &d->runs[d->n_runs - 1] : NULL;
        if (!run || g - last > RUN_GAP) {
            run = &d->runs[d->n_runs++];
            run->v0 = g * RUN_GRAIN;
        }
        uint32_t end = (g + 1) * RUN_GRAIN;
        run->n = (end < d->target_vocab ? end : d->target_vocab) - run->v0;
        last = g;
    }
    return 0;
}

float drafter_pick_inv_t(const struct pick *p)
{
    const struct draft_round *r = p->round;
    return r->temperature >= SAMPLER_GREEDY_BELOW && (r->noise || p->q)
               ? (float)(1.0 / (double)r->temperature)
               : 0;
}

/* logit / T + noise, over the draft vocabulary. */
static const float *perturbed(const struct drafter *d, const struct pick *p, unsigned tid)
{
    const uint32_t dv = d->cfg->draft_vocab, *ids = d->cfg->target_ids;
    float *g = d->noise + (size_t)tid * d->target_vocab, *y = d->scores + (size_t)tid * dv;
    const float inv_t = drafter_pick_inv_t(p);
    uint32_t key[2], ctr[3];
    noise_key(p->round->seed, key);
    noise_counter(p->pos, p->q ? NOISE_DRAFT : NOISE_GUMBEL, ctr);
    if (!ids) {
        d->ops->gumbel(g, key, ctr, 0, d->target_vocab);
        for (uint32_t i = 0; i < dv; i++)
            y[i] = p->logits[i] * inv_t + g[i];
        return y;
    }
    for (uint32_t i = 0; i < d->n_runs; i++)
        d->ops->gumbel(g + d->runs[i].v0, key, ctr, d->runs[i].v0, d->runs[i].n);
    for (uint32_t i = 0; i < dv; i++)
        y[i] = p->logits[i] * inv_t + g[ids[i]];
    return y;
}

/* The best candidates of a depth in descending order, ties by row. */
static void pick_top(const struct drafter *d, struct pick *p, const float *y, float lse,
                     unsigned tid)
{
    const uint32_t dv = d->cfg->draft_vocab, *map = d->cfg->target_ids;
    uint32_t *ids = d->ids + (size_t)tid * dv;
    p->n = sampler_top(d->ops, y, dv, p->n_top, ids);
    /* Few: sorted by insertion. */
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t id = ids[i], j = i;
        for (; j && sampler_better(y[id], id, p->logp[j - 1], p->top[j - 1]); j--) {
            p->top[j] = p->top[j - 1];
            p->logp[j] = p->logp[j - 1];
        }
        p->top[j] = id;
        p->logp[j] = y[id];
    }
    for (uint32_t i = 0; i < p->n; i++) {
        p->logp[i] -= lse;
        p->top[i] = map ? map[p->top[i]] : p->top[i];
    }
}

/* The distribution that the draft was drawn from, over the target's vocabulary. */
static void write_q(const struct drafter *d, const struct pick *p, unsigned tid)
{
    const uint32_t dv = d->cfg->draft_vocab, *ids = d->cfg->target_ids;
    float *z = d->scores + (size_t)tid * dv, max;
    const float inv_t = drafter_pick_inv_t(p);
    bool bad;
    for (uint32_t i = 0; i < dv; i++)
        z[i] = p->logits[i] * inv_t;
    (void)d->ops->argmax(z, dv, &max, &bad);
    float lse = d->ops->logsumexp(z, dv, max);
    memset(p->q, 0, (size_t)d->target_vocab * sizeof(*p->q));
    for (uint32_t i = 0; i < dv; i++)
        p->q[ids ? ids[i] : i] = dk_expf(z[i] - lse);
}

static void pick_one(const struct drafter *d, struct pick *p, unsigned tid)
{
    const uint32_t dv = d->cfg->draft_vocab;
    const float *y = drafter_pick_inv_t(p) != 0 ? perturbed(d, p, tid) : p->logits;
    float max, lse;
    bool bad;
    uint32_t i = d->ops->argmax(y, dv, &max, &bad);
    p->token = d->cfg->target_ids ? d->cfg->target_ids[i] : i;
    p->confidence = 0;
    if (bad) { /* a broken drafter drafts badly, and no worse */
        p->n_top = 0;
        if (p->q) {
            memset(p->q, 0, (size_t)d->target_vocab * sizeof(*p->q));
            p->q[p->token] = 1; /* it had no choice */
        }
        return;
    }
    lse = d->ops->logsumexp(y, dv, max);
    p->confidence = dk_expf(max - lse);
    if (p->n_top)
        pick_top(d, p, y, lse, tid);
    if (p->q)
        write_q(d, p, tid);
}

struct pick_work {
    struct drafter *d;
    uint32_t n;
};

static void pick_some(void *arg, const struct dk_par *par)
{
    const struct pick_work *w = arg;
    for (uint32_t i = par->tid; i < w->n; i += par->n)
        if (!w->d->picks[i].device)
            pick_one(w->d, &w->d->picks[i], par->tid);
}

void drafter_pick(struct drafter *d, uint32_t n)
{
    struct pick_work w = {d, n};
    uint32_t i = 0;
    while (i < n && d->picks[i].device)
        i++;
    if (i < n)
        d->backend->parallel(d->target, pick_some, &w);
}

bool drafter_settled(const struct draft_round *r)
{
    const uint32_t *last = r->tokens[r->pass - 1];
    if (r->draw)
        return false; /* the last pass draws, whatever was chosen before */
    for (uint32_t p = 0; p + 1 < r->pass; p++)
        if (memcmp(r->tokens[p], last, (r->window - 1) * sizeof(*last)) == 0)
            return true;
    return false;
}

void drafter_propose(struct draft_round *r, const struct pick *picks)
{
    struct proposal *p = r->proposal;
    const uint32_t *last = r->tokens[r->pass - 1];
    proposal_clear(p);
    if (r->method == DRAFT_DDTREE) {
        struct ddtree_depth depths[DRAFT_MAX_WINDOW - 1];
        for (uint32_t k = 0; k + 1 < r->window; k++)
            depths[k] = (struct ddtree_depth){picks[k].top, picks[k].logp, picks[k].n};
        ddtree_build(depths, r->window - 1,
                     r->tree_budget < r->max_nodes ? r->tree_budget : r->max_nodes, p);
    } else {
        for (uint32_t k = 0; k + 1 < r->window && k < r->max_nodes; k++)
            if (proposal_add(p, last[k], (int)k - 1, r->confidence[r->pass - 1][k]) < 0)
                break;
        if (r->draw)
            p->q = r->q;
    }
}
