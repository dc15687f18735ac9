/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench controller: what the method auto loses against the best fixed setting.  For each suite, all
 * settings answer a few prompts; then the best ones of them, auto and plain decoding answer others, in
 * turn.  Regret: how much slower auto is than the best of those, which was chosen on the first prompts
 * and is measured on the second, so that neither is favoured by luck.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/eval.h"
#include "bench/stats.h"

#define FINALISTS 3u

enum {
    OPT_SETTING = 300,
    OPT_SEARCH,
    OPT_SAMPLES,
    OPT_MAX_PROMPT,
    OPT_MAX_TOKENS,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_CSV,
    OPT_CHAT_FORMAT,
    OPT_NO_THINKING,
    OPT_QUIET,
};

static const struct option_def controller_opts[] = {
    {OPT_SETTING, "setting", "S",
     "a fixed setting, as of eval; may be repeated (default:\nngram, and with a drafter dflash, dedit and "
     "ddtree\nwith some windows, passes and nodes)"},
    {OPT_SEARCH, "search", "N", "prompts of each suite for the search (default: 2)"},
    {OPT_SAMPLES, "samples", "N", "further ones for the comparison (default: 6)"},
    {OPT_MAX_PROMPT, "max-prompt", "N", "skip longer prompts, in tokens (default: 480)"},
    {OPT_MAX_TOKENS, "max-tokens", "N", "of an answer (default: 192)"},
    {OPT_TEMPERATURE, "temperature", "X", "of all settings (default: 0)"},
    {OPT_SEED, "seed", "N", "of the first prompt, then one more each (default: 1)"},
    {OPT_CSV, "csv", "FILE", "write the figures there"},
    {OPT_CHAT_FORMAT, "chat-format", "F",
     "chatml, qwen3, smollm2 or llama3\n(default: told by the model's template)"},
    {OPT_NO_THINKING, "no-thinking", NULL, "qwen3: close the thinking block at once"},
    {OPT_QUIET, "quiet", NULL, "no progress on standard error"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {controller_opts, engine_option_defs,
                                                  engine_drafter_beside_defs, NULL};

struct search {
    struct eval eval;
    uint32_t search;
};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct search *c = ctx;
    struct eval *e = &c->eval;
    struct eval_setting unused;
    int r = engine_options_set(&e->engine, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_SETTING:
        if (e->n_asked + 2 >= EVAL_MAX_SETTINGS)
            return ERR(err, INVALID, "more than %u settings", EVAL_MAX_SETTINGS - 2);
        r = eval_parse_setting(arg, 0, &unused, err);
        if (r == 0 && strstr(arg, ",t="))
            return ERR(err, INVALID, "\"%s\": --temperature is the same for all", arg);
        if (r == 0 && unused.tau > 0)
            return ERR(err, INVALID, "\"%s\": auto has no made-up acceptance to be compared with",
                       arg);
        e->asked[e->n_asked++] = arg;
        return r;
    case OPT_SEARCH:
        return option_u32(arg, 1, 1u << 20, &c->search, err);
    case OPT_SAMPLES:
        return option_u32(arg, 1, 1u << 20, &e->samples, err);
    case OPT_MAX_PROMPT:
        return option_u32(arg, 1, 1u << 30, &e->max_prompt, err);
    case OPT_MAX_TOKENS:
        return option_u32(arg, 2, 1u << 30, &e->max_tokens, err);
    case OPT_TEMPERATURE:
        return option_float(arg, &e->temperature, err);
    case OPT_SEED:
        return option_u64(arg, &e->seed, err);
    case OPT_CSV:
        e->csv_path = arg;
        return 0;
    case OPT_CHAT_FORMAT:
        return engine_option_chat_format(arg, &e->format, &e->format_given, err);
    case OPT_NO_THINKING:
        e->thinking = 0;
        return 0;
    case OPT_QUIET:
        e->quiet = true;
        return 0;
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

/* auto, then what is asked for or the standard settings.  ar is 0 (eval_make_settings), auto is 1. */
static void ask(struct eval *e)
{
    static const char *const plain[] = {"ngram", "ngram,w=4", "ngram,w=16"};
    static const char *const drafter[] = {
        "dflash",          "dedit,k=2",       "dedit,k=3",       "ddtree,n=3",
        "ddtree,n=5",      "ddtree,n=7",      "ddtree,n=11",     "ddtree,n=15",
        "ddtree,n=23",     "ddtree,n=31",     "ddtree,k=2,n=5",  "ddtree,k=2,n=7",
        "ddtree,k=2,n=11", "ddtree,k=2,n=15", "ddtree,k=2,n=31", "ddtree,k=3,n=15"};
    unsigned n = e->n_asked;
    memmove(e->asked + 1, e->asked, n * sizeof(*e->asked));
    e->asked[0] = "auto";
    for (size_t i = 0; n == 0 && i < ARRAY_LEN(plain); i++)
        e->asked[1 + e->n_asked++] = plain[i];
    for (size_t i = 0; n == 0 && e->engine.config.drafter && i < ARRAY_LEN(drafter); i++)
        e->asked[1 + e->n_asked++] = drafter[i];
    e->n_asked++;
}

enum { AR, AUTO, FIXED };

/* Mean time of a token; a setting that answered nothing is the last. */
static double time_of(const struct eval_suite *s, unsigned j)
{
    const struct eval_result *r = &s->results[j];
    return r->n ? eval_mean(r->tpot, r->n) : 1e9;
}

/* Only plain decoding, auto and the fastest settings go on. */
static void choose(const struct eval *e, struct eval_suite *s)
{
    for (unsigned j = FIXED; j < e->n_settings; j++) {
        unsigned better = time_of(s, AR) < time_of(s, j);
        for (unsigned k = FIXED; k < e->n_settings; k++)
            better += time_of(s, k) < time_of(s, j);
        s->off[j] = better >= FINALISTS;
    }
}

static unsigned best_of(const struct eval *e, const struct eval_suite *s)
{
    unsigned best = AR;
    for (unsigned j = FIXED; j < e->n_settings; j++)
        if (!s->off[j] && time_of(s, j) < time_of(s, best))
            best = j;
    return best;
}

/* How much slower auto is than setting j, in pairs of answers. */
static struct stats regret_of(const struct eval_suite *s, unsigned j, double *work)
{
    const struct eval_result *a = &s->results[AUTO], *b = &s->results[j];
    size_t n = a->n < b->n ? a->n : b->n;
    struct stats q = {0};
    if (n) {
        q = stats_ratio(a->tpot, b->tpot, n, work);
        q.median -= 1;
        q.lo -= 1;
        q.hi -= 1;
    }
    return q;
}

static int run_suite(struct search *c, struct engine *en, struct eval_suite *s,
                     enum chat_format format, struct error *err)
{
    struct eval *e = &c->eval;
    int r = eval_run_suite(e, en, s, format, c->search, err);
    choose(e, s);
    eval_results_done(s);
    return r < 0 ? r : eval_run_suite(e, en, s, format, e->samples, err);
}

static void csv_suite(const struct eval *e, const struct eval_suite *s, FILE *f, double *work)
{
    const unsigned best = best_of(e, s);
    for (unsigned j = 0; j < e->n_settings; j++) {
        const struct eval_result *r = &s->results[j];
        struct stats q = regret_of(s, j, work);
        if (r->n)
            fprintf(f, "%s,\"%s\",%s,%zu,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f\n", s->name,
                    e->settings[j].name,
                    j == AUTO   ? "auto"
                    : j == best ? "best"
                                : "other",
                    r->n, eval_mean(r->tau, r->n), eval_mean(r->tpot, r->n) * 1e3,
                    eval_speedup(s, e, j), q.median, q.lo, q.hi);
    }
}

static int write_csv(struct eval *e, double *work, struct error *err)
{
    FILE *f = e->csv.f;
    fputs(
        "suite,setting,role,responses,tau,ms_per_token,speedup,auto_regret_median,auto_regret_low,"
        "auto_regret_high\n",
        f);
    for (unsigned i = 0; i < e->n_suites; i++)
        csv_suite(e, &e->suites[i], f, work);
    return out_file_close(&e->csv, err);
}

static void print_table(const struct eval *e, double *work)
{
    printf("%-16s %12s  %-18s %8s %8s %24s %24s\n", "suite", "ar ms/token", "best fixed",
           "speed-up", "auto", "regret (95 % interval)", "against ar");
    for (unsigned i = 0; i < e->n_suites; i++) {
        const struct eval_suite *s = &e->suites[i];
        const unsigned best = best_of(e, s);
        const struct stats q = regret_of(s, best, work), p = regret_of(s, AR, work);
        printf(
            "%-16.16s %12.3f  %-18.18s %8.2f %8.2f  %6.1f%% (%6.1f ..%6.1f)  %6.1f%% (%6.1f ..%6.1f)\n",
            s->name, time_of(s, AR) * 1e3, e->settings[best].name, eval_speedup(s, e, best),
            eval_speedup(s, e, AUTO), q.median * 100, q.lo * 100, q.hi * 100, p.median * 100,
            p.lo * 100, p.hi * 100);
    }
    printf(
        "regret, against ar: the time of a token with auto over that of the best fixed setting, of plain "
        "decoding,\nless one; medians of pairs of answers\n");
}

static int report(struct search *c, const struct engine *en, struct error *err)
{
    struct eval *e = &c->eval;
    _cleanup_free_ double *work = NULL;
    size_t most = 1;
    for (unsigned i = 0; i < e->n_suites; i++)
        for (unsigned j = 0; j < e->n_settings; j++)
            most = e->suites[i].results[j].n > most ? e->suites[i].results[j].n : most;
    work = mem_array(most, sizeof(*work));
    if (!work)
        return ERR_NOMEM(err);
    printf(
        "%s, drafter %s, %s, tier %s, %u threads; %u settings on %u prompts, the best %u on %u more, of at "
        "most %u tokens\n",
        engine_model_name(en), engine_drafter_name(en) ? engine_drafter_name(en) : "none",
        engine_class(en), dk_tier_name(engine_ops(en)->tier), engine_get_config(en)->n_threads,
        e->n_settings - 2, c->search, FINALISTS, e->samples, e->max_tokens);
    print_table(e, work);
    return e->csv.f ? write_csv(e, work, err) : 0;
}

static int run(const struct bench_command *command, int argc, char **argv)
{
    static struct search c;
    struct eval *e = &c.eval;
    int first, status;
    engine_options_init(&e->engine);
    c.search = 2;
    e->samples = 6;
    e->max_prompt = 480;
    e->max_tokens = 192;
    e->turns = e->warmup = 1;
    e->seed = 1;
    e->thinking = -1;
    if (bench_options(command, argc, argv, &c, &first, &status) < 0)
        return status;
    struct error err = {0};
    enum chat_format format = CHAT_CHATML;
    _cleanup_(engine_freep) struct engine *en = NULL;
    e->prepare = ask;
    int r = eval_open(e, argc - first, argv + first, &en, &format, &err);
    for (unsigned i = 0; i < e->n_suites && r == 0 && !eval_interrupted; i++)
        r = run_suite(&c, en, &e->suites[i], format, &err);
    if (r == 0)
        r = report(&c, en, &err);
    eval_done(e);
    if (r < 0)
        return bench_fail(command, err.code == DEDIT_E_INVALID ? BENCH_USAGE : BENCH_FAILED, "%s",
                          err.msg);
    if (e->differ)
        return bench_fail(command, BENCH_FAILED, "%u answers differ from plain decoding",
                          e->differ);
    return eval_interrupted ? BENCH_INTERRUPTED : BENCH_OK;
}

const struct bench_command bench_controller = {
    .name = "controller",
    .args = "SUITE.jsonl...",
    .summary = "What the method auto loses against the best fixed setting.",
    .groups = groups,
    .set = set,
    .run = run,
};
