/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train eval: tables and CSV. */
#include <string.h>

#include "train/eval.h"

void eval_setting_name(const struct eval_setting *s, char name[EVAL_NAME])
{
    int n = snprintf(name, EVAL_NAME, "W%u P%u", s->window, s->passes);
    if (s->tree)
        snprintf(name + n, EVAL_NAME - (size_t)n, " tree %u", s->tree);
}

uint64_t eval_helped(const struct eval_result *r, uint32_t pass)
{
    uint64_t sum = 0;
    for (unsigned g = DRAFT_MAX_WINDOW + 1; g <= 2 * DRAFT_MAX_WINDOW; g++)
        sum += r->gain[pass][g];
    return sum;
}

uint64_t eval_harmed(const struct eval_result *r, uint32_t pass)
{
    uint64_t sum = 0;
    for (unsigned g = 0; g < DRAFT_MAX_WINDOW; g++)
        sum += r->gain[pass][g];
    return sum;
}

static double share(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double tau(const struct eval_result *r)
{
    return share(r->tau, (double)r->responses);
}

static double tau_straight(const struct eval_result *r)
{
    return share(r->tau_straight, (double)(r->responses - r->loops));
}

/* All suites as one; means over suites stand apart. */
static void add(struct eval_result *to, const struct eval_result *r)
{
    to->responses += r->responses;
    to->loops += r->loops;
    to->tokens += r->tokens;
    to->rounds += r->rounds;
    to->committed += r->committed;
    to->drafted += r->drafted;
    for (unsigned i = 0; i < DRAFT_MAX_WINDOW; i++)
        to->at[i] += r->at[i];
    for (unsigned p = 0; p < DRAFT_MAX_PASSES; p++) {
        to->unchanged[p] += r->unchanged[p];
        for (unsigned g = 0; g <= 2 * DRAFT_MAX_WINDOW; g++)
            to->gain[p][g] += r->gain[p][g];
    }
}

static void tau_table(const struct eval *e, FILE *f)
{
    fputs(
        "\ntokens a round (with the bonus token), mean of the responses; second line: without those "
        "that loop\n",
        f);
    fprintf(f, "%-16s %4s %5s", "suite", "n", "loops");
    for (unsigned j = 0; j < e->n_settings; j++) {
        char name[EVAL_NAME];
        eval_setting_name(&e->settings[j], name);
        fprintf(f, "  %12s", name);
    }
    for (unsigned i = 0; i < e->n_suites; i++) {
        const struct eval_result *r = e->suites[i].results;
        fprintf(f, "\n%-16.16s %4llu %5llu", e->suites[i].name, (unsigned long long)r->responses,
                (unsigned long long)r->loops);
        for (unsigned j = 0; j < e->n_settings; j++)
            fprintf(f, "  %12.3f", tau(&r[j]));
        fprintf(f, "\n%-27s", "");
        for (unsigned j = 0; j < e->n_settings; j++)
            fprintf(f, "  %12.3f", tau_straight(&r[j]));
    }
    fprintf(f, "\n%-16s %4s %5s", "mean", "", "");
    for (unsigned j = 0; j < e->n_settings; j++) {
        double sum = 0;
        for (unsigned i = 0; i < e->n_suites; i++)
            sum += tau(&e->suites[i].results[j]);
        fprintf(f, "  %12.3f", share(sum, e->n_suites));
    }
    fputc('\n', f);
}

static void position_table(const struct eval *e, const struct eval_result *all, FILE *f)
{
    uint32_t most = 0;
    for (unsigned j = 0; j < e->n_settings; j++)
        most = e->settings[j].window > most ? e->settings[j].window : most;
    if (most > 17)
        most = 17;
    fputs("\nshare of rounds that accept at least i drafts\n", f);
    fprintf(f, "%-16s", "i");
    for (uint32_t i = 1; i < most; i++)
        fprintf(f, " %5u", i);
    for (unsigned j = 0; j < e->n_settings; j++) {
        char name[EVAL_NAME];
        eval_setting_name(&e->settings[j], name);
        fprintf(f, "\n%-16s", name);
        for (uint32_t i = 0; i + 1 < e->settings[j].window && i + 1 < most; i++)
            fprintf(f, " %5.3f", share((double)all[j].at[i], (double)all[j].rounds));
    }
    fputc('\n', f);
}

static void edit_table(const struct eval *e, const struct eval_result *all, FILE *f)
{
    bool any = false;
    for (unsigned j = 0; j < e->n_settings; j++)
        any |= e->settings[j].passes > 1;
    if (!any)
        return;
    fputs("\nrounds that an edit pass made better, made worse, left as they were\n", f);
    for (unsigned j = 0; j < e->n_settings; j++) {
        char name[EVAL_NAME];
        eval_setting_name(&e->settings[j], name);
        for (uint32_t p = 1; p < e->settings[j].passes; p++) {
            const uint64_t better = eval_helped(&all[j], p), worse = eval_harmed(&all[j], p);
            fprintf(f, "%-16s P%u  %7llu %7llu %7llu  of %llu", name, p + 1,
                    (unsigned long long)better, (unsigned long long)worse,
                    (unsigned long long)all[j].gain[p][DRAFT_MAX_WINDOW],
                    (unsigned long long)all[j].rounds);
            if (worse)
                fprintf(f, "  (%.1f to 1)", (double)better / (double)worse);
            bool told = false;
            for (int g = -(int)DRAFT_MAX_WINDOW; g <= (int)DRAFT_MAX_WINDOW; g++)
                if (g && all[j].gain[p][g + (int)DRAFT_MAX_WINDOW]) {
                    fprintf(f, "%s %+d:%llu", told ? "" : "; gains", g,
                            (unsigned long long)all[j].gain[p][g + (int)DRAFT_MAX_WINDOW]);
                    told = true;
                }
            fputc('\n', f);
        }
    }
}

static void gain_table(const struct eval *e, FILE *f)
{
    bool any = false;
    for (unsigned j = 0; j < e->n_settings; j++)
        any |= e->settings[j].passes > 1;
    if (!any)
        return;
    fputs(
        "\ngain of an edit pass by the drafter's mean confidence in what it was given: drafts a round "
        "(95 % of a bootstrap over rounds), rounds\n",
        f);
    for (unsigned j = 0; j < e->n_settings; j++)
        for (uint32_t p = 1; p < e->settings[j].passes; p++) {
            char name[EVAL_NAME];
            eval_setting_name(&e->settings[j], name);
            for (unsigned bin = 0; bin < GAIN_BINS; bin++) {
                const struct gain_mean m = gain_of_bin(&e->gains[j][p], bin);
                if (m.rounds)
                    fprintf(f, "%-16s P%u  %.1f-%.1f  %+.3f (%+.3f to %+.3f)  %llu\n", name, p + 1,
                            (double)bin / GAIN_BINS, (double)(bin + 1) / GAIN_BINS, m.mean, m.low,
                            m.high, (unsigned long long)m.rounds);
            }
        }
}

void eval_report(struct eval *e, FILE *f)
{
    static struct eval_result all[EVAL_MAX_SETTINGS];
    memset(all, 0, sizeof(all));
    for (unsigned i = 0; i < e->n_suites; i++)
        for (unsigned j = 0; j < e->n_settings; j++)
            add(&all[j], &e->suites[i].results[j]);
    tau_table(e, f);
    position_table(e, all, f);
    edit_table(e, all, f);
    gain_table(e, f);
}

/* ---- CSV ----------------------------------------------------------------------------------------- */

static void csv_line(const struct eval *e, const struct eval_suite *s, unsigned j, FILE *f)
{
    const struct eval_setting *t = &e->settings[j];
    const struct eval_result *r = &s->results[j];
    fprintf(f, "%s,%u,%u,%u,%s,%llu,%llu,%llu,%llu,%.6f,%.6f,%.6f", s->name, t->window, t->passes,
            t->tree, e->visibility == DRAFT_CAUSAL ? "causal" : "bidirectional",
            (unsigned long long)r->responses, (unsigned long long)r->loops,
            (unsigned long long)r->tokens, (unsigned long long)r->rounds, tau(r), tau_straight(r),
            share((double)r->committed, (double)r->rounds));
    for (uint32_t p = 1; p < 4; p++)
        fprintf(f, ",%llu,%llu,%llu", (unsigned long long)eval_helped(r, p),
                (unsigned long long)eval_harmed(r, p), (unsigned long long)r->unchanged[p]);
    for (uint32_t i = 0; i < 31; i++)
        fprintf(f, ",%.6f", share((double)r->at[i], (double)r->rounds));
    fputc('\n', f);
}

void eval_write_csv(const struct eval *e, FILE *f)
{
    fputs("suite,window,passes,tree,visibility,responses,loops,tokens,rounds,tau,tau_straight,"
          "tau_pooled",
          f);
    for (unsigned p = 2; p <= 4; p++)
        fprintf(f, ",p%u_better,p%u_worse,p%u_unchanged", p, p, p);
    for (unsigned i = 1; i < 32; i++)
        fprintf(f, ",accept_%u", i);
    fputc('\n', f);
    for (unsigned i = 0; i < e->n_suites; i++)
        for (unsigned j = 0; j < e->n_settings; j++)
            csv_line(e, &e->suites[i], j, f);
}
