/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval --random: the cost model beside what was measured.  A round gives the drafter its
 * context, runs K passes and verifies W rows; it commits tau tokens, where plain decoding takes a step of
 * one row for each:
 *
 *     speed-up = tau * t(1) / (t_inject(tau) + K * t_pass(W) + t(W))
 *
 * W is the mean number of rows that were verified.  The times are those of the calls alone, at the context of the middle of an answer, measured after each
 * answer, so that what disturbs the machine disturbs both.  tau and K are the run's own: made-up acceptance
 * is drawn.
 */
#include <stdio.h>

#include "bench/eval.h"
#include "engine/drafter_file.h"

#define TIMES 3u

static int seconds(const struct eval *e, struct engine *en, enum engine_call call, uint32_t rows,
                   double *ret, struct error *err)
{
    uint64_t ns = 0;
    int r = engine_time_call(en, call, rows, e->prompt_tokens + e->max_tokens / 2, TIMES, &ns, err);
    *ret = (double)ns * 1e-9;
    return r;
}

/* Rows of a round's block, and of its verification: the last rounds of an answer have fewer. */
static void rows_of(const struct eval_setting *t, const struct engine *en,
                    const struct engine_drafting *d, uint32_t *ret_block, uint32_t *ret_verify)
{
    *ret_block = t->drafting.window ? t->drafting.window : engine_drafter_config(en)->block_size;
    *ret_verify = 1 + (uint32_t)((double)d->drafted / (double)d->rounds + 0.5);
}

static bool has_model(const struct eval_setting *t)
{
    return t->drafting.method == DRAFT_DFLASH || t->drafting.method == DRAFT_DEDIT ||
           t->drafting.method == DRAFT_DDTREE;
}

int eval_time_parts(struct eval *e, struct engine *en, unsigned j, const struct eval_answer *a,
                    struct error *err)
{
    struct eval_setting *t = &e->settings[j];
    const struct engine_drafting *d = &a->usage.drafting;
    struct eval_parts p = {.n = t->parts.n + 1};
    uint32_t block, rows;
    int r = 0;
    if (t->drafting.method == DRAFT_AR) {
        r = seconds(e, en, ENGINE_CALL_TARGET, 1, &p.verify, err);
    } else if (has_model(t) && d->rounds) {
        uint32_t tokens = (uint32_t)((double)d->committed / (double)d->rounds + 0.5);
        rows_of(t, en, d, &block, &rows);
        r = seconds(e, en, ENGINE_CALL_DRAFTER, block, &p.pass, err);
        if (r == 0)
            r = seconds(e, en, ENGINE_CALL_TARGET, rows, &p.verify, err);
        if (r == 0)
            r = seconds(e, en, ENGINE_CALL_INJECT, tokens, &p.inject, err);
    }
    if (r < 0)
        return error_prefix(err, r, "%s", t->name);
    p.pass += t->parts.pass;
    p.verify += t->parts.verify;
    p.inject += t->parts.inject;
    t->parts = p;
    return 0;
}

void eval_predict(struct eval *e)
{
    for (unsigned j = 0; j < e->n_settings; j++) {
        struct eval_setting *t = &e->settings[j];
        const struct eval_result *s = &e->suites[0].results[j];
        const struct eval_parts *p = &t->parts, *b = &e->settings[t->baseline].parts;
        if (!has_model(t) || !s->rounds || p->n == 0 || b->n == 0)
            continue;
        double tau = (double)s->committed / (double)s->rounds;
        double passes = (double)s->passes / (double)s->rounds;
        double round = (p->inject + passes * p->pass + p->verify) / p->n;
        t->predicted = tau * b->verify / b->n / round;
        t->kernels = (double)s->rounds * round;
    }
}

void eval_predictions(const struct eval *e, FILE *f)
{
    const struct eval_suite *s = &e->suites[0];
    fprintf(f, "\n%-24s %9s %9s %9s %11s %12s\n", "cost model", "tau", "measured", "predicted",
            "difference", "round/parts");
    for (unsigned j = 0; j < e->n_settings; j++) {
        const struct eval_setting *t = &e->settings[j];
        const struct eval_result *r = &s->results[j];
        double got = eval_speedup(s, e, j);
        if (t->predicted > 0)
            fprintf(f, "%-24.24s %9.2f %9.2f %9.2f %10.1f%% %12.3f\n", t->name,
                    (double)r->committed / (double)r->rounds, got, t->predicted,
                    (got / t->predicted - 1) * 100, r->round_s / t->kernels);
    }
}
