/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice itself.  With y = logits after bias, mask and penalties, m = their maximum:
 *
 *   temperature < 1e-5:  the lowest id with y = m.
 *   otherwise:           z_v = (y_v - m) * (1 / T)         one subtraction, one product, binary32
 *                        score_v = z_v + gumbel_v          over the ids that the cut keeps
 *                        the lowest id with the largest score.
 *
 * z differs from log p by a constant, which no argmax sees.  Blocks of ids whose largest z is too
 * far down for any noise to lift it are left out: that changes no result, since rounding is
 * monotonic.
 */
#include <math.h>

#include "base/alloc.h"
#include "engine/noise.h"
#include "engine/sampler_internal.h"

#define BLOCK      128u
#define GUMBEL_MAX 23.0f /* above -log(2^-33), the largest value of dk_ops.gumbel */

int sampler_refuse(enum sampler_fault f, uint32_t id, struct error *err)
{
    if (f == SAMPLER_NAN)
        return ERR(err, NUMERIC, "the logit of token %u is NaN", id);
    if (f == SAMPLER_INF)
        return ERR(err, NUMERIC, "the logit of token %u is +inf", id);
    return ERR(err, NUMERIC, "no token is left to choose: every logit is -inf");
}

/* Names the value that makes logits unusable. */
static int bad_logits(const float *x, uint32_t n, struct error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return sampler_refuse(SAMPLER_NAN, i, err);
        if (x[i] == INFINITY)
            return sampler_refuse(SAMPLER_INF, i, err);
    }
    return sampler_refuse(SAMPLER_NOTHING, 0, err);
}

static float inverse_temperature(const struct sampler *s)
{
    return (float)(1.0 / (double)s->temperature);
}

struct noise {
    uint32_t key[2], ctr[3];
};
struct best {
    float score;
    uint32_t id;
};

/* Scores ids [first, first + n) of y and keeps the best. */
static void score_block(const struct dk_ops *ops, const float *y, uint32_t first, uint32_t n,
                        float max, float inv_t, struct sampler_cut cut, const struct noise *noise,
                        struct best *best)
{
    float score[BLOCK], gumbel[BLOCK], top;
    bool bad;
    (void)ops->argmax(y + first, n, &top, &bad);
    if (top < cut.y || !(sampler_z(top, max, inv_t) + GUMBEL_MAX >= best->score))
        return;
    ops->gumbel(gumbel, noise->key, noise->ctr, first, n);
    if (n == BLOCK) {
        for (uint32_t i = 0; i < BLOCK; i++)
            score[i] = sampler_z(y[first + i], max, inv_t) + gumbel[i];
    } else {
        for (uint32_t i = 0; i < n; i++)
            score[i] = sampler_z(y[first + i], max, inv_t) + gumbel[i];
    }
    if (cut.y > -INFINITY)
        for (uint32_t i = 0; i < n; i++)
            if (y[first + i] < cut.y || (y[first + i] == cut.y && first + i > cut.id))
                score[i] = -INFINITY;
    float s;
    uint32_t id = first + ops->argmax(score, n, &s, &bad);
    if (s > -INFINITY && sampler_better(s, id, best->score, best->id))
        *best = (struct best){s, id};
}

static uint32_t draw(const struct sampler *s, const struct dk_ops *ops, const float *y, float max,
                     uint32_t at_max, struct sampler_cut cut, uint64_t pos)
{
    struct noise noise;
    noise_key(s->seed, noise.key);
    noise_counter(pos, NOISE_GUMBEL, noise.ctr);
    const float inv_t = inverse_temperature(s);
    struct best best = {-INFINITY, UINT32_MAX};
    /* The block of the maximum first: its score tells which others can matter. */
    const uint32_t start = at_max / BLOCK * BLOCK;
    for (uint32_t i = 0; i <= (s->vocab - 1) / BLOCK + 1; i++) {
        uint32_t first = i == 0 ? start : (i - 1) * BLOCK;
        if (i > 0 && first == start)
            continue;
        uint32_t n = s->vocab - first < BLOCK ? s->vocab - first : BLOCK;
        score_block(ops, y, first, n, max, inv_t, cut, &noise, &best);
    }
    return best.id;
}

static void fill_logprobs(const struct sampler *s, const struct dk_ops *ops, const float *logits,
                          float max, uint32_t token, uint32_t *work_ids, struct token_logprob *lp,
                          uint32_t *ret_n)
{
    float lse = ops->logsumexp(logits, s->vocab, max);
    uint32_t n = 0, want = (uint32_t)s->logprobs;
    lp[n++] = (struct token_logprob){token, logits[token] - lse};
    want = want < s->vocab ? want : s->vocab;
    uint32_t found = want ? sampler_top(ops, logits, s->vocab, want, work_ids) : 0;
    for (uint32_t i = 0; i < found; i++) { /* insertion sort: at most 20 */
        uint32_t id = work_ids[i], j = i;
        for (; j > 0 && sampler_better(logits[id], id, logits[lp[j].token], lp[j].token); j--)
            lp[j + 1] = lp[j];
        lp[j + 1] = (struct token_logprob){id, logits[id] - lse};
    }
    *ret_n = n + found;
}

void sampler_logprobs(const struct sampler *s, const struct dk_ops *ops, const float *logits,
                      uint32_t token, uint32_t *work_ids, struct token_logprob *lp,
                      uint32_t *ret_n_lp)
{
    float max;
    bool bad;
    (void)ops->argmax(logits, s->vocab, &max, &bad);
    fill_logprobs(s, ops, logits, max, token, work_ids, lp, ret_n_lp);
}

int sampler_choose(const struct sampler *s, const struct dk_ops *ops, const float *logits,
                   uint64_t pos, float *work, uint32_t *work_ids, uint32_t *ret_token,
                   struct token_logprob *lp, uint32_t *ret_n_lp, struct error *err)
{
    float raw_max, max;
    bool bad;
    uint32_t token = ops->argmax(logits, s->vocab, &raw_max, &bad);
    if (bad)
        return bad_logits(logits, s->vocab, err);
    const float *y = sampler_process(s, logits, work);
    max = raw_max;
    if (y != logits) {
        token = ops->argmax(y, s->vocab, &max, &bad);
        if (bad)
            return bad_logits(y, s->vocab, err);
    }
    if (s->temperature >= SAMPLER_GREEDY_BELOW) {
        struct sampler_cut cut = sampler_find_cut(s, ops, y, max, work_ids);
        token = draw(s, ops, y, max, token, cut, pos);
    }
    uint32_t n_lp = 0;
    if (lp && s->logprobs >= 0)
        fill_logprobs(s, ops, logits, raw_max, token, work_ids, lp, &n_lp);
    *ret_token = token;
    if (ret_n_lp)
        *ret_n_lp = n_lp;
    return 0;
}

/* exp in double's range from our own exp: below binary32's normal numbers by a sixteenth power. */
static double wide_exp(float z)
{
    if (z > -80)
        return (double)dk_expf(z);
    double e = (double)dk_expf(z * 0.0625f);
    e *= e;
    e *= e;
    e *= e;
    return e * e;
}

int sampler_probs(const struct sampler *s, const struct dk_ops *ops, const float *logits,
                  uint32_t *ids, double *probs, uint32_t *ret_n, struct error *err)
{
    float max;
    bool bad;
    (void)ops->argmax(logits, s->vocab, &max, &bad);
    if (bad)
        return bad_logits(logits, s->vocab, err);
    _cleanup_free_ float *work = mem_array(s->vocab, sizeof(*work));
    if (!work)
        return ERR_NOMEM(err);
    const float *y = sampler_process(s, logits, work);
    uint32_t token = ops->argmax(y, s->vocab, &max, &bad);
    if (bad)
        return bad_logits(y, s->vocab, err);
    if (s->temperature < SAMPLER_GREEDY_BELOW) {
        ids[0] = token;
        probs[0] = 1;
        *ret_n = 1;
        return 0;
    }
    const float inv_t = inverse_temperature(s);
    struct sampler_cut cut = sampler_find_cut(s, ops, y, max, ids);
    uint32_t n = 0;
    double sum = 0;
    for (uint32_t v = 0; v < s->vocab; v++) {
        if (y[v] < cut.y || (y[v] == cut.y && v > cut.id))
            continue;
        double p = wide_exp(sampler_z(y[v], max, inv_t));
        if (!(p > 0))
            continue;
        sum += p;
        ids[n] = v;
        probs[n++] = p;
    }
    for (uint32_t i = 0; i < n; i++)
        probs[i] /= sum;
    *ret_n = n;
    return 0;
}
