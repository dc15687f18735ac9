/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval: the table and the CSV file.
 *
 * tau: tokens that a round commits, bonus included, tokens after the end not counted; mean of each
 * response, then of the suite's responses.  Plain rounds (nothing was drafted) count as rounds of one
 * token.  Speed-up: mean time of a token after the first with ar, over that of the setting.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/eval.h"
#include "bench/stats.h"

double eval_mean(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return n ? sum / (double)n : 0;
}

double eval_speedup(const struct eval_suite *s, const struct eval *e, unsigned setting)
{
    const struct eval_result *r = &s->results[setting];
    const struct eval_result *b = &s->results[e->settings[setting].baseline];
    double mine = eval_mean(r->tpot, r->n);
    return mine > 0 ? eval_mean(b->tpot, b->n) / mine : 0;
}

static void head(const struct eval *e, FILE *f)
{
    fprintf(f, "%-24s", "tau / speed-up");
    for (unsigned i = 0; i < e->n_suites; i++)
        fprintf(f, " %13.13s", e->suites[i].name);
    fprintf(f, " %13s\n", e->n_suites > 1 ? "mean" : "");
}

void eval_table(const struct eval *e, FILE *f)
{
    head(e, f);
    for (unsigned j = 0; j < e->n_settings; j++) {
        double tau = 0, speed = 0;
        fprintf(f, "%-24.24s", e->settings[j].name);
        for (unsigned i = 0; i < e->n_suites; i++) {
            const struct eval_suite *s = &e->suites[i];
            double t = eval_mean(s->results[j].tau, s->results[j].n), v = eval_speedup(s, e, j);
            tau += t;
            speed += v;
            fprintf(f, "   %5.2f /%5.2f", t, v);
        }
        if (e->n_suites > 1)
            fprintf(f, "   %5.2f /%5.2f", tau / e->n_suites, speed / e->n_suites);
        fputc('\n', f);
    }
}

#define NONE (-HUGE_VAL)

/* A figure that there is none of is "-". */
static void column(FILE *f, int width, int digits, const char *unit, double v)
{
    if (isinf(v))
        fprintf(f, " %*s", width + (int)strlen(unit), "-");
    else
        fprintf(f, " %*.*f%s", width, digits, v, unit);
}

void eval_costs(const struct eval *e, FILE *f)
{
    /* pass and verify: of a round that had a draft; the others, plain steps, are not timed apart, so
     * what is left of the time is shown where there were none. */
    fprintf(f, "\n%-24s %9s %10s %10s %10s %10s %9s %9s\n", "ms", "token", "round", "pass",
            "verify", "passes", "plain", "rest");
    for (unsigned j = 0; j < e->n_settings; j++) {
        double round = 0, draft = 0, verify = 0, rounds = 0, plain = 0, passes = 0, tokens = 0;
        for (unsigned i = 0; i < e->n_suites; i++) {
            const struct eval_result *r = &e->suites[i].results[j];
            round += r->round_s;
            draft += r->draft_s;
            verify += r->verify_s;
            rounds += (double)r->rounds;
            plain += (double)r->plain;
            passes += (double)r->passes;
            tokens += (double)(r->tokens - r->n);
        }
        if (!(rounds > 0))
            continue;
        fprintf(f, "%-24.24s %9.3f %10.3f", e->settings[j].name, round / tokens * 1e3,
                round / rounds * 1e3);
        const double drafted = rounds - plain;
        column(f, 10, 3, "", passes > 0 ? draft / passes * 1e3 : NONE);
        column(f, 10, 3, "", drafted > 0 ? verify / drafted * 1e3 : NONE);
        column(f, 10, 2, "", drafted > 0 ? passes / drafted : NONE);
        column(f, 8, 1, "%", plain / rounds * 100);
        column(f, 8, 1, "%", plain > 0 ? NONE : (round - draft - verify) / round * 100);
        fputc('\n', f);
    }
}

/* Half of the 95 % interval of a mean, as of many answers. */
static double half_interval(const double *x, size_t n)
{
    double mean = eval_mean(x, n), sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? 1.96 * sqrt(sum / (double)(n - 1) / (double)n) : 0;
}

static void csv_line(const struct eval *e, const struct eval_suite *s, unsigned j, FILE *f,
                     double *work)
{
    const struct eval_setting *t = &e->settings[j];
    const struct eval_result *r = &s->results[j], *b = &s->results[t->baseline];
    size_t n = r->n < b->n ? r->n : b->n;
    struct stats q = {0};
    if (n)
        q = stats_ratio(b->tpot, r->tpot, n, work);
    fprintf(f, "%s,\"%s\",%s,%g,%u,%u,%u,%zu,%llu,%llu,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f", s->name,
            t->name, draft_method_name(t->drafting.method), (double)t->temperature,
            t->drafting.window, t->drafting.passes, t->drafting.tree_budget, r->n,
            (unsigned long long)r->tokens, (unsigned long long)r->rounds, eval_mean(r->tau, r->n),
            r->rounds ? (double)r->committed / (double)r->rounds : 0,
            eval_mean(r->tpot, r->n) * 1e3, eval_speedup(s, e, j), q.median, q.lo, q.hi);
    fprintf(f, ",%llu,%llu,%llu,%llu,%llu,%.4f,%.4f", (unsigned long long)r->drafted,
            (unsigned long long)r->accepted, (unsigned long long)r->passes,
            (unsigned long long)r->helpful, (unsigned long long)r->harmful, r->draft_s,
            r->verify_s);
    double tau = eval_mean(r->tau, r->n), half = half_interval(r->tau, r->n);
    fprintf(f, ",%.4f,%.4f,%.4f", t->predicted, tau - half, tau + half);
    for (unsigned p = 0; p < DRAFT_MAX_PASSES; p++)
        fprintf(f, ",%llu", (unsigned long long)r->after[p]);
    fputc('\n', f);
}

int eval_csv(const struct eval *e, FILE *f, struct error *err)
{
    size_t most = 1;
    for (unsigned i = 0; i < e->n_suites; i++)
        for (unsigned j = 0; j < e->n_settings; j++)
            if (e->suites[i].results[j].n > most)
                most = e->suites[i].results[j].n;
    _cleanup_free_ double *work = mem_array(most, sizeof(*work));
    if (!work)
        return ERR_NOMEM(err);
    fputs(
        "suite,setting,method,temperature,window,passes,tree_budget,responses,tokens,rounds,tau,"
        "tau_pooled,ms_per_token,speedup,speedup_median,speedup_low,speedup_high,drafted,accepted,"
        "drafter_passes,edits_helpful,edits_harmful,draft_s,verify_s,predicted_speedup,tau_low,tau_high",
        f);
    for (unsigned p = 0; p < DRAFT_MAX_PASSES; p++)
        fprintf(f, ",agree_after_p%u", p + 1);
    fputc('\n', f);
    for (unsigned i = 0; i < e->n_suites; i++)
        for (unsigned j = 0; j < e->n_settings; j++)
            csv_line(e, &e->suites[i], j, f, work);
    return 0;
}
