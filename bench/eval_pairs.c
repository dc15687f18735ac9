/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval: two settings that differ by the target's noise in the drafter alone.  Both give the
 * same text, so answers are compared one with one: the spread between prompts, which is much larger than what
 * the noise does, drops out.
 */
#include <stdlib.h>

#include "base/alloc.h"
#include "bench/eval.h"
#include "bench/stats.h"

/* The same setting with the noise, or -1. */
static int noisy_twin(const struct eval *e, unsigned j)
{
    const struct eval_setting *s = &e->settings[j];
    for (unsigned i = 0; i < e->n_settings; i++) {
        const struct eval_setting *t = &e->settings[i];
        const struct drafting_params *a = &s->drafting, *b = &t->drafting;
        if (a->no_noise && !b->no_noise && t->baseline == s->baseline && a->method == b->method &&
            a->window == b->window && a->passes == b->passes && a->visibility == b->visibility &&
            a->tree_budget == b->tree_budget && a->verification == b->verification &&
            !(s->tau > 0) && !(t->tau > 0))
            return (int)i;
    }
    return -1;
}

static size_t differences(const struct eval *e, unsigned with, unsigned without, double *d)
{
    size_t n = 0;
    for (unsigned i = 0; i < e->n_suites; i++) {
        const struct eval_result *a = &e->suites[i].results[with],
                                 *b = &e->suites[i].results[without];
        for (size_t k = 0; k < a->n && k < b->n; k++)
            d[n++] = a->tau[k] - b->tau[k];
    }
    return n;
}

static double mean_tau(const struct eval *e, unsigned j)
{
    double sum = 0;
    size_t n = 0;
    for (unsigned i = 0; i < e->n_suites; i++) {
        const struct eval_result *r = &e->suites[i].results[j];
        sum += eval_mean(r->tau, r->n) * (double)r->n;
        n += r->n;
    }
    return n ? sum / (double)n : 0;
}

int eval_pairs(const struct eval *e, FILE *f, struct error *err)
{
    bool any = false;
    for (unsigned j = 0; j < e->n_settings; j++) {
        int with = noisy_twin(e, j);
        size_t most = 1;
        if (with < 0)
            continue;
        for (unsigned i = 0; i < e->n_suites; i++)
            most += e->suites[i].results[j].n;
        _cleanup_free_ double *d = mem_array(most, sizeof(*d));
        if (!d)
            return ERR_NOMEM(err);
        size_t n = differences(e, (unsigned)with, j, d);
        if (n < 2)
            continue;
        struct stats s = stats_mean(d, n);
        if (!any)
            fprintf(f, "\n%-24s %7s %9s %9s %11s %20s\n", "the target's noise", "answers", "tau",
                    "without", "difference", "95 % (bootstrap)");
        any = true;
        fprintf(f, "%-24.24s %7zu %9.3f %9.3f %+11.3f %+10.3f..%+.3f\n",
                e->settings[(unsigned)with].name, n, mean_tau(e, (unsigned)with), mean_tau(e, j),
                s.median, s.lo, s.hi);
    }
    return 0;
}

void eval_answers(const struct eval *e, FILE *f)
{
    fputs("suite,setting,answer,tau,ms_per_token\n", f);
    for (unsigned i = 0; i < e->n_suites; i++)
        for (unsigned j = 0; j < e->n_settings; j++) {
            const struct eval_result *r = &e->suites[i].results[j];
            for (size_t k = 0; k < r->n; k++)
                fprintf(f, "%s,\"%s\",%zu,%.4f,%.4f\n", e->suites[i].name, e->settings[j].name, k,
                        r->tau[k], r->tpot[k] * 1e3);
        }
}
