/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval --random: the cost model beside what was measured.  A round gives the drafter its
 * context, runs K passes and verifies W rows; it commits tau tokens, where plain decoding takes a step of
 * one row for each:
 *
 *     speed-up = tau * t(1) / (t_inject(tau) + K * t_pass(W) + t(W))
 *
 * and rounds without a draft, as an answer's last one may be, take t(1).
 * The times are those of the calls alone, at the context of the middle of an answer.  After each prompt the
 * calls of all settings are made in turn, TIMES times, so that a burst of somebody else's work meets all of
 * them; the middle half of each counts.  W of the verification and tau are the run's own means: made-up
 * acceptance is drawn, and an answer's last rounds have fewer rows.  So are the passes: a round whose draft
 * came back stops.
 */
#include <stdio.h>

#include "base/alloc.h"
#include "bench/eval.h"
#include "bench/stats.h"
#include "engine/drafter_file.h"

#define TIMES 8u

enum part { PASS, VERIFY, INJECT, PARTS };

/* The calls of one setting's rounds; no rows: it has no such call. */
struct timing {
    double rows[PARTS]; /* mean, which need not be whole */
    double s[PARTS][TIMES];
};

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

static void rows_of(const struct eval_setting *t, const struct engine *en,
                    const struct engine_drafting *d, double rows[PARTS])
{
    const double rounds = (double)d->rounds;
    if (t->drafting.method == DRAFT_AR) {
        rows[VERIFY] = 1;
    } else if (has_model(t) && d->rounds) {
        rows[PASS] = block_rows(t, en);
        rows[VERIFY] = 1 + (double)d->drafted / rounds;
        rows[INJECT] = (double)d->committed / rounds;
    }
}

/* The i-th call of each part. */
static int time_once(const struct eval *e, struct engine *en, struct timing *t, unsigned i,
                     struct error *err)
{
    static const enum engine_call calls[PARTS] = {ENGINE_CALL_DRAFTER, ENGINE_CALL_TARGET,
                                                  ENGINE_CALL_INJECT};
    /* Bit by bit reversed: sizes beside a mean that is not whole come in no order. */
    const double part = ((i & 1u) * 4 + (i & 2u) + (i >> 2) + 0.5) / TIMES;
    for (unsigned k = 0; k < PARTS; k++) {
        uint64_t ns = 0;
        if (!(t->rows[k] > 0))
            continue;
        int r = engine_time_call(en, calls[k], (uint32_t)(t->rows[k] + part),
                                 e->prompt_tokens + e->max_tokens / 2, 1, &ns, err);
        if (r < 0)
            return r;
        t->s[k][i] = (double)ns * 1e-9;
    }
    return 0;
}

int eval_time_parts(struct eval *e, struct engine *en, const struct eval_answer *a,
                    struct error *err)
{
    _cleanup_free_ struct timing *t = mem_calloc(e->n_settings, sizeof(*t));
    if (!t)
        return ERR_NOMEM(err);
    for (unsigned j = 0; j < e->n_settings; j++)
        rows_of(&e->settings[j], en, &a[j].usage.drafting, t[j].rows);
    for (unsigned i = 0; i < TIMES; i++)
        for (unsigned j = 0; j < e->n_settings; j++) {
            int r = time_once(e, en, &t[j], i, err);
            if (r < 0)
                return error_prefix(err, r, "%s", e->settings[j].name);
        }
    for (unsigned j = 0; j < e->n_settings; j++) {
        struct eval_parts *p = &e->settings[j].parts;
        p->n++;
        p->pass += stats_middle(t[j].s[PASS], TIMES);
        p->verify += stats_middle(t[j].s[VERIFY], TIMES);
        p->inject += stats_middle(t[j].s[INJECT], TIMES);
    }
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
