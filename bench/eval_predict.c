/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval --random: the cost model beside what was measured.  A round gives the drafter its
 * context, runs K passes and verifies W rows; it commits tau tokens, where plain decoding takes a step of
 * one row for each:
 *
 *     speed-up = tau * t(1) / (t_inject(tau) + K * t_pass(W) + t(W))
 *
 * and rounds without a draft, as an answer's last one may be, take t(1).
 * The times are those of the calls alone, at the context of the middle of an answer, measured after each
 * answer, so that what disturbs the machine disturbs both; means, as the rounds' are.  W of the
 * verification and tau are the run's own means: made-up acceptance is drawn, and an answer's last rounds
 * have fewer rows.  So are the passes: a round whose draft came back stops.
 */
#include <stdio.h>

#include "bench/eval.h"
#include "engine/drafter_file.h"

#define TIMES 8u

/* Mean of calls with `rows` rows on the mean, which need not be whole. */
static int seconds(const struct eval *e, struct engine *en, enum engine_call call, double rows,
                   double *ret, struct error *err)
{
    uint64_t sum = 0, ns = 0;
    int r = 0;
    for (unsigned i = 0; i < TIMES && r == 0; i++, sum += ns)
        r = engine_time_call(en, call, (uint32_t)(rows + (i + 0.5) / TIMES),
                             e->prompt_tokens + e->max_tokens / 2, 1, &ns, err);
    *ret = (double)sum * 1e-9 / TIMES;
    return r;
}

/* Rows of a round's block. */
static uint32_t block_rows(const struct eval_setting *t, const struct engine *en)
{
    return t->drafting.window ? t->drafting.window : engine_drafter_config(en)->block_size;
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
    const double rounds = (double)d->rounds;
    int r = 0;
    if (t->drafting.method == DRAFT_AR) {
        r = seconds(e, en, ENGINE_CALL_TARGET, 1, &p.verify, err);
    } else if (has_model(t) && d->rounds) {
        r = seconds(e, en, ENGINE_CALL_DRAFTER, block_rows(t, en), &p.pass, err);
        if (r == 0)
            r = seconds(e, en, ENGINE_CALL_TARGET, 1 + (double)d->drafted / rounds, &p.verify, err);
        if (r == 0)
            r = seconds(e, en, ENGINE_CALL_INJECT, (double)d->committed / rounds, &p.inject, err);
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
        if (!has_model(t) || s->rounds == s->plain || p->n == 0 || b->n == 0)
            continue;
        double one = b->verify / b->n, drafted = (double)(s->rounds - s->plain);
        t->kernels = drafted * (p->inject + p->verify) / p->n + (double)s->plain * one +
                     (double)s->passes * p->pass / p->n;
        t->predicted = (double)s->committed * one / t->kernels;
    }
}

/* Milliseconds in a run, and alone. */
static void beside(FILE *f, double run, double alone)
{
    fprintf(f, " %7.1f /%7.1f", run * 1e3, alone * 1e3);
}

void eval_predictions(const struct eval *e, FILE *f)
{
    const struct eval_suite *s = &e->suites[0];
    fprintf(f, "\n%-24s %6s %9s %9s %11s %12s %8s %16s %16s\n", "cost model", "tau", "measured",
            "predicted", "difference", "round/parts", "at tau=", "pass /alone", "verify /alone");
    for (unsigned j = 0; j < e->n_settings; j++) {
        const struct eval_setting *t = &e->settings[j];
        const struct eval_result *r = &s->results[j], *b = &s->results[t->baseline];
        const struct eval_parts *p = &t->parts;
        double ar = eval_mean(b->tpot, b->n), got = eval_speedup(s, e, j);
        if (t->drafting.method == DRAFT_AR && p->n) {
            fprintf(f, "%-24.24s %77s", t->name, "");
            beside(f, ar, p->verify / p->n);
            fputc('\n', f);
        }
        if (!(t->predicted > 0))
            continue;
        fprintf(f, "%-24.24s %6.2f %9.2f %9.2f %10.1f%% %12.3f", t->name,
                (double)r->committed / (double)r->rounds, got, t->predicted,
                (got / t->predicted - 1) * 100, r->round_s / t->kernels);
        /* The same rounds, were they to commit what was asked for. */
        if (t->tau > 0)
            fprintf(f, " %8.2f", t->tau * ar * (double)r->rounds / r->round_s);
        else
            fprintf(f, " %8s", "");
        beside(f, r->draft_s / (double)r->passes, p->pass / p->n);
        beside(f, r->verify_s / (double)(r->rounds - r->plain), (p->verify + p->inject) / p->n);
        fputc('\n', f);
    }
}
