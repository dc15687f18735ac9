/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench eval: settings and suites from text. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/eval.h"

/* ---- settings ----------------------------------------------------------------------------------- */

/* One word after the method: "w=8", "causal". */
static int set_word(const char *word, struct eval_setting *s, struct error *err)
{
    struct drafting_params *d = &s->drafting;
    const char *eq = strchr(word, '=');
    size_t n = eq ? (size_t)(eq - word) : strlen(word);
    if (!eq && !strcmp(word, "causal")) {
        d->visibility = DRAFT_CAUSAL;
        return 0;
    }
    if (!eq && !strcmp(word, "no-noise")) {
        d->no_noise = true;
        return 0;
    }
    if (!eq && !strcmp(word, "rejection")) {
        d->verification = DRAFT_REJECTION;
        return 0;
    }
    if (eq && n == 1 && word[0] == 'w')
        return option_u32(eq + 1, 2, DRAFT_MAX_WINDOW, &d->window, err);
    if (eq && n == 1 && word[0] == 'k')
        return option_u32(eq + 1, 1, DRAFT_MAX_PASSES, &d->passes, err);
    if (eq && n == 1 && word[0] == 'n')
        return option_u32(eq + 1, 1, PROPOSAL_MAX_NODES, &d->tree_budget, err);
    if (eq && n == 3 && !strncmp(word, "tau", 3)) {
        float tau;
        int r = option_float(eq + 1, &tau, err);
        s->tau = (double)tau;
        return r == 0 && !(tau >= 1) ? ERR(err, INVALID, "tau is at least 1") : r;
    }
    if (eq && n == 1 && word[0] == 't')
        return option_float(eq + 1, &s->temperature, err);
    return ERR(err, INVALID,
               "\"%s\" is not w=ROWS, k=PASSES, n=NODES, t=TEMPERATURE, tau=X, causal, no-noise "
               "or rejection",
               word);
}

/* Tokens of a round whose drafts are accepted with probability a each, given those before. */
static double tokens_of(double a, uint32_t window)
{
    double sum = 1, p = 1;
    for (uint32_t i = 1; i < window; i++)
        sum += p *= a;
    return sum;
}

/* The acceptance that gives tau, the same at every position. */
static int make_profile(struct eval_setting *s, struct error *err)
{
    const uint32_t w = s->drafting.window;
    double lo = 0, hi = 1;
    if (s->tau <= 0)
        return 0;
    if (w == 0 || s->tau > w)
        return ERR(err, INVALID, "tau=%g needs w=ROWS, at least as many", s->tau);
    for (int i = 0; i < 60; i++)
        *(tokens_of((lo + hi) / 2, w) < s->tau ? &lo : &hi) = (lo + hi) / 2;
    for (uint32_t i = 0; i + 1 < w; i++)
        s->acceptance[i] = (float)lo;
    return 0;
}

int eval_parse_setting(const char *text, float temperature, struct eval_setting *ret,
                       struct error *err)
{
    char copy[EVAL_NAME], *save = NULL;
    struct eval_setting s = {.temperature = temperature};
    if (strlen(text) >= sizeof(copy))
        return ERR(err, INVALID, "a setting of more than %zu bytes", sizeof(copy) - 1);
    snprintf(copy, sizeof(copy), "%s", text);
    snprintf(s.name, sizeof(s.name), "%s", text);
    char *word = strtok_r(copy, ",", &save);
    if (!word || !draft_method_parse(word, &s.drafting.method) ||
        s.drafting.method == DRAFT_SCRIPTED || s.drafting.method == DRAFT_SYNTHETIC)
        return ERR(err, INVALID,
                   "\"%s\" does not begin with ar, ngram, dflash, dedit, ddtree or auto", text);
    while ((word = strtok_r(NULL, ",", &save))) {
        int r = set_word(word, &s, err);
        if (r < 0)
            return r;
    }
    int r = make_profile(&s, err);
    *ret = s;
    return r;
}

static int add_setting(struct eval *e, const struct eval_setting *s, struct error *err)
{
    if (e->n_settings == EVAL_MAX_SETTINGS)
        return ERR(err, LIMIT, "more than %u settings", EVAL_MAX_SETTINGS);
    struct eval_setting *to = &e->settings[e->n_settings++];
    *to = *s;
    if (to->tau > 0)
        to->drafting.acceptance = to->acceptance;
    return 0;
}

/* Index of ar at this temperature; added when it is new. */
static int baseline(struct eval *e, float temperature, uint32_t *ret, struct error *err)
{
    struct eval_setting s = {.temperature = temperature, .drafting.method = DRAFT_AR};
    for (uint32_t i = 0; i < e->n_settings; i++)
        if (e->settings[i].drafting.method == DRAFT_AR &&
            !(e->settings[i].temperature < temperature) &&
            !(e->settings[i].temperature > temperature)) {
            *ret = i;
            return 0;
        }
    if (temperature > 0)
        snprintf(s.name, sizeof(s.name), "ar,t=%g", (double)temperature);
    else
        snprintf(s.name, sizeof(s.name), "ar");
    s.baseline = *ret = e->n_settings;
    return add_setting(e, &s, err);
}

int eval_make_settings(struct eval *e, struct error *err)
{
    static const char *const standard[] = {"dflash", "dedit,k=2", "dedit,k=3", "ddtree"};
    unsigned n = e->n_asked ? e->n_asked : ARRAY_LEN(standard);
    if (!e->n_asked && !e->engine.config.drafter && !e->random)
        return ERR(
            err, INVALID,
            "no drafter lies beside the model: name one (--drafter PATH), or settings without "
            "(--setting ngram)");
    for (unsigned i = 0; i < n; i++) {
        struct eval_setting s;
        uint32_t base = 0;
        int r = eval_parse_setting(e->n_asked ? e->asked[i] : standard[i], e->temperature, &s, err);
        if (r == 0)
            r = baseline(e, s.temperature, &base, err);
        s.baseline = base;
        if (r == 0 && s.drafting.method != DRAFT_AR)
            r = add_setting(e, &s, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- suites ------------------------------------------------------------------------------------- */

int eval_read_suite(const char *path, struct eval_suite *ret, struct error *err)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    snprintf(ret->name, sizeof(ret->name), "%s", base);
    size_t n = strlen(ret->name);
    if (n > 6 && !strcmp(ret->name + n - 6, ".jsonl"))
        ret->name[n - 6] = '\0';
    return prompt_file_read(path, &ret->prompts, err);
}

void eval_results_done(struct eval_suite *s)
{
    for (unsigned i = 0; i < EVAL_MAX_SETTINGS; i++) {
        mem_free(s->results[i].tau);
        mem_free(s->results[i].tpot);
        s->results[i] = (struct eval_result){0};
    }
}

void eval_suite_done(struct eval_suite *s)
{
    prompt_file_done(&s->prompts);
    eval_results_done(s);
}
