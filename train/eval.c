/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train eval: prompts to answers to counts. */
#include "train/eval.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/out_file.h"
#include "engine/drafter_file.h"
#include "train/loop_watch.h"

enum {
    OPT_WINDOW = 300,
    OPT_PASSES,
    OPT_TREE,
    OPT_VISIBILITY,
    OPT_SAMPLES,
    OPT_MAX_PROMPT,
    OPT_MAX_TOKENS,
    OPT_SEQUENCES,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_CHAT_FORMAT,
    OPT_NO_THINKING,
    OPT_RAW,
    OPT_CSV,
    OPT_QUIET,
};

static const struct option_def eval_opts[] = {
    {OPT_WINDOW, "window", "W,...", "rows of a block, 2 to 64 (default: the drafter's own)"},
    {OPT_PASSES, "passes", "K,...",
     "passes, 1 to 8, each number a setting of its own\n(default: 1,2,3)"},
    {OPT_TREE, "tree", "N,...",
     "nodes of a tree out of the last pass, at most 127;\n0: a chain (default: 0)"},
    {OPT_VISIBILITY, "visibility", "V",
     "of edit passes: bidirectional or causal\n(default: bidirectional)"},
    {OPT_SAMPLES, "samples", "N", "prompts of each file; 0: all (default: 20)"},
    {OPT_MAX_PROMPT, "max-prompt", "N", "skip longer prompts, in tokens (default: 480)"},
    {OPT_MAX_TOKENS, "max-tokens", "N", "of an answer (default: 192)"},
    {OPT_SEQUENCES, "sequences", "N", "answers at once (default: 8)"},
    {OPT_TEMPERATURE, "temperature", "X", "(default: 0)"},
    {OPT_SEED, "seed", "N", "of the first prompt, then one more each (default: 1)"},
    {OPT_CHAT_FORMAT, "chat-format", "F",
     "chatml, qwen3, smollm2 or llama3\n(default: told by the model's template)"},
    {OPT_NO_THINKING, "no-thinking", NULL, "qwen3: close the thinking block at once"},
    {OPT_RAW, "raw", NULL, "prompts are texts to go on with, no chat"},
    {OPT_CSV, "csv", "FILE", "write all figures there (default: none)"},
    {OPT_QUIET, "quiet", NULL, "no progress on the terminal"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {eval_opts, engine_option_defs,
                                                  engine_drafter_defs, NULL};

static int set_list(const char *arg, uint32_t min, uint32_t max, uint32_t *ret, size_t *ret_n,
                    struct error *err)
{
    int r = option_u32_list(arg, min, ret, EVAL_MAX_LIST, ret_n, err);
    for (size_t i = 0; r == 0 && i < *ret_n; i++)
        if (ret[i] > max)
            r = ERR(err, INVALID, "%u is not from %u to %u", ret[i], min, max);
    return r;
}

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct eval *e = ctx;
    int r = engine_options_set(&e->engine, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_WINDOW:
        return set_list(arg, 2, DRAFT_MAX_WINDOW, e->windows, &e->n_windows, err);
    case OPT_PASSES:
        return set_list(arg, 1, DRAFT_MAX_PASSES, e->passes, &e->n_passes, err);
    case OPT_TREE:
        return set_list(arg, 0, PROPOSAL_MAX_NODES, e->trees, &e->n_trees, err);
    case OPT_VISIBILITY:
        e->visibility = strcmp(arg, "causal") == 0 ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL;
        if (e->visibility == DRAFT_BIDIRECTIONAL && strcmp(arg, "bidirectional") != 0)
            return ERR(err, INVALID, "\"%s\" is not bidirectional or causal", arg);
        return 0;
    case OPT_SAMPLES:
        return option_u32(arg, 0, 1u << 30, &e->samples, err);
    case OPT_MAX_PROMPT:
        return option_u32(arg, 1, 1u << 30, &e->max_prompt, err);
    case OPT_MAX_TOKENS:
        return option_u32(arg, 2, 1u << 20, &e->max_tokens, err);
    case OPT_SEQUENCES:
        return option_u32(arg, 1, 256, &e->sequences, err);
    case OPT_TEMPERATURE:
        return option_float_in(arg, 0, 100, &e->temperature, err);
    case OPT_SEED:
        return option_u64(arg, &e->seed, err);
    case OPT_CHAT_FORMAT:
        return engine_option_chat_format(arg, &e->format, &e->format_given, err);
    case OPT_NO_THINKING:
        e->thinking = 0;
        return 0;
    case OPT_RAW:
        e->raw = true;
        return 0;
    case OPT_CSV:
        e->csv = arg;
        return 0;
    case OPT_QUIET:
        e->quiet = true;
        return 0;
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

/* ---- one answer ---------------------------------------------------------------------------------- */

struct answer {
    struct eval_result *into; /* counted there at its end */
    struct gain_bins *gains;  /* [passes] */
    struct request *request;
    struct token_list ids;
    struct loop_watch loop;
    struct engine_drafting drafting;
    bool looped, finished;
    uint32_t passes;
    size_t prompt; /* of the suite */
    struct error error;
};

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct answer *a = arg;
    (void)r;
    for (size_t i = 0; i < n; i++) {
        if (token_list_add(&a->ids, t[i].id) < 0) {
            (void)ERR_NOMEM(&a->error);
            return 0;
        }
        if (loop_push(&a->loop, a->ids.ids, a->ids.len))
            a->looped = true;
    }
    return 0;
}

/* A pass that the drafter left out repeats the one before. */
static void on_round(void *arg, struct request *req, const struct engine_round *d)
{
    struct answer *a = arg;
    (void)req;
    for (uint32_t p = 1; p < a->passes && d->passes; p++) {
        if (p >= d->passes) {
            a->into->unchanged[p]++;
            ++*eval_gain(a->into, p, 0);
            gain_add(&a->gains[p], d->confidence[d->passes - 1], d->window - 1, 0);
            continue;
        }
        const uint32_t *now = d->tokens[p], *was = d->tokens[p - 1];
        a->into->unchanged[p] += memcmp(now, was, (d->window - 1) * sizeof(*now)) == 0;
        const int gain = (int)d->accepted_after[p] - (int)d->accepted_after[p - 1];
        ++*eval_gain(a->into, p, gain);
        gain_add(&a->gains[p], d->confidence[p - 1], d->window - 1, gain);
    }
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct answer *a = arg;
    (void)r;
    a->finished = true;
    a->drafting = f->usage.drafting;
    if (f->error && !a->error.code)
        a->error = *f->error;
}

static void count(struct answer *a)
{
    struct eval_result *r = a->into;
    const struct engine_drafting *d = &a->drafting;
    const uint64_t rounds = d->rounds + d->plain_rounds;
    if (rounds == 0)
        return; /* the prompt's own token alone */
    const double tau = (double)(d->committed + d->plain_rounds) / (double)rounds;
    r->responses++;
    r->loops += a->looped;
    r->tokens += a->ids.len;
    r->rounds += rounds;
    r->committed += d->committed + d->plain_rounds;
    r->drafted += d->drafted;
    r->tau += tau;
    r->tau_straight += a->looped ? 0 : tau;
    for (uint32_t i = 0; i < DRAFT_MAX_WINDOW && i < PROPOSAL_MAX_DEPTH; i++)
        r->at[i] += d->accepted_at[i];
}

/* ---- one setting on one suite -------------------------------------------------------------------- */

struct job {
    struct eval *e;
    struct engine *engine;
    struct eval_suite *suite;
    unsigned setting;
    struct token_list *prompts; /* of the suite's: [n] */
    struct token_list *first;   /* answers of setting 0: [n] */
    struct answer *slots;       /* [sequences] */
};

static int submit(struct job *j, struct answer *a, size_t prompt, struct error *err)
{
    const struct eval *e = j->e;
    const struct eval_setting *s = &e->settings[j->setting];
    struct engine_request q = {
        .prompt = j->prompts[prompt].ids,
        .n_prompt = j->prompts[prompt].len,
        .drafting = {.method = s->tree         ? DRAFT_DDTREE
                               : s->passes > 1 ? DRAFT_DEDIT
                                               : DRAFT_DFLASH,
                     .window = s->window,
                     .passes = s->passes,
                     .tree_budget = s->tree,
                     .visibility = s->passes > 1 ? e->visibility : DRAFT_BIDIRECTIONAL,
                     .want_rounds = s->passes > 1},
        .sink = {.tokens = on_tokens, .finished = on_finished, .round = on_round, .arg = a},
        .skip_special = true,
    };
    sampling_params_init(&q.sampling);
    q.sampling.temperature = e->temperature;
    q.sampling.has_seed = true;
    q.sampling.seed = e->seed + prompt;
    q.sampling.max_tokens = e->max_tokens;
    token_list_done(&a->ids);
    *a = (struct answer){.into = &j->suite->results[j->setting],
                         .gains = j->e->gains[j->setting],
                         .passes = s->passes,
                         .prompt = prompt};
    return engine_submit(j->engine, &q, &a->request, err);
}

static int take(struct job *j, struct answer *a, struct error *err)
{
    struct token_list *first = &j->first[a->prompt];
    a->request = request_free(a->request);
    if (a->error.code) {
        *err = a->error;
        return err->code;
    }
    count(a);
    if (j->setting == 0) {
        *first = a->ids;
        a->ids = (struct token_list){0};
    } else if (first->len != a->ids.len ||
               memcmp(first->ids, a->ids.ids, first->len * sizeof(*first->ids)) != 0) {
        j->e->differ++;
    }
    return 0;
}

/* Prompts one after the other into whatever slot is free. */
static int run_setting(struct job *j, size_t n, struct error *err)
{
    const uint32_t slots = j->e->sequences;
    size_t next = 0, running = 0;
    int r = 0;
    while (r >= 0 && !train_stop) {
        for (uint32_t i = 0; i < slots && r >= 0; i++) {
            struct answer *a = &j->slots[i];
            if (a->request && a->finished) {
                r = take(j, a, err);
                running--;
            }
            while (next < n && !j->prompts[next].len)
                next++;
            if (r >= 0 && !a->request && next < n) {
                r = submit(j, a, next++, err);
                running += r == 0;
            }
        }
        if (r < 0 || !running)
            break;
        r = engine_step(j->engine, err);
    }
    for (uint32_t i = 0; i < slots; i++)
        j->slots[i].request = request_free(j->slots[i].request);
    return r < 0 ? r : 0;
}

/* Ids of prompts that are short enough; the others stay empty.  *ret_n: those to look at. */
static int render(struct job *j, size_t *ret_n, struct error *err)
{
    const struct eval *e = j->e;
    const struct tokenizer *t = engine_tokenizer(j->engine);
    size_t kept = 0, i = 0;
    for (; i < j->suite->prompts.n && (!e->samples || kept < e->samples); i++) {
        const struct prompt *p = &j->suite->prompts.prompts[i];
        const char *text = p->turns[0];
        struct chat_message m[2];
        const struct chat_options o = {.add_generation_prompt = true,
                                       .enable_thinking = e->thinking};
        size_t k = 0;
        memset(m, 0, sizeof(m));
        if (p->system)
            m[k++] = (struct chat_message){
                .role = "system", .content = p->system, .content_len = strlen(p->system)};
        m[k++] =
            (struct chat_message){.role = "user", .content = text, .content_len = strlen(text)};
        int r = e->raw ? tokenizer_encode(t, text, strlen(text), TOKENIZE_BOS, &j->prompts[i], NULL,
                                          err)
                       : chat_render_ids(e->format, t, m, k, &o, &j->prompts[i], err);
        if (r < 0)
            return error_prefix(err, r, "%s, line %u", j->suite->name, p->line);
        if (j->prompts[i].len > e->max_prompt)
            j->prompts[i].len = 0;
        kept += j->prompts[i].len > 0;
    }
    *ret_n = i;
    return kept ? 0
                : ERR(err, INVALID, "%s: no prompt of at most %u tokens", j->suite->name,
                      e->max_prompt);
}

static int run_suite(struct eval *e, struct engine *engine, struct eval_suite *suite,
                     struct error *err)
{
    const size_t n = suite->prompts.n;
    struct job j = {.e = e, .engine = engine, .suite = suite};
    size_t used = 0;
    j.prompts = mem_calloc(n, sizeof(*j.prompts));
    j.first = mem_calloc(n, sizeof(*j.first));
    j.slots = mem_calloc(e->sequences, sizeof(*j.slots));
    int r = j.prompts && j.first && j.slots ? render(&j, &used, err) : ERR_NOMEM(err);
    for (; j.setting < e->n_settings && r == 0 && !train_stop; j.setting++) {
        char name[EVAL_NAME];
        eval_setting_name(&e->settings[j.setting], name);
        if (!e->quiet)
            fprintf(stderr, "\r\033[K%s: %s", suite->name, name);
        r = run_setting(&j, used, err);
    }
    if (!e->quiet)
        fputs("\r\033[K", stderr);
    for (size_t i = 0; i < n && j.prompts && j.first; i++) {
        token_list_done(&j.prompts[i]);
        token_list_done(&j.first[i]);
    }
    for (uint32_t i = 0; i < e->sequences && j.slots; i++)
        token_list_done(&j.slots[i].ids);
    mem_free(j.prompts);
    mem_free(j.first);
    mem_free(j.slots);
    return r;
}

/* ---- the command --------------------------------------------------------------------------------- */

static int open_suites(struct eval *e, int n, char **files, struct error *err)
{
    for (int i = 0; i < n; i++) {
        if (e->n_suites == EVAL_MAX_SUITES)
            return ERR(err, LIMIT, "more than %u files of prompts", EVAL_MAX_SUITES);
        struct eval_suite *s = &e->suites[e->n_suites++];
        const char *slash = strrchr(files[i], '/'), *base = slash ? slash + 1 : files[i];
        const char *dot = strrchr(base, '.');
        size_t len = dot && dot != base ? (size_t)(dot - base) : strlen(base);
        snprintf(s->name, sizeof(s->name), "%.*s", (int)(len < 63 ? len : 63), base);
        int r = prompt_file_read(files[i], &s->prompts, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int make_settings(struct eval *e, const struct engine *engine, struct error *err)
{
    const struct drafter_config *d = engine_drafter_config(engine);
    if (!e->n_windows)
        e->windows[e->n_windows++] = d->block_size;
    for (size_t w = 0; w < e->n_windows; w++)
        for (size_t t = 0; t < e->n_trees; t++)
            for (size_t p = 0; p < e->n_passes; p++) {
                if (e->n_settings == EVAL_MAX_SETTINGS)
                    return ERR(err, LIMIT, "more than %u settings", EVAL_MAX_SETTINGS);
                const struct eval_setting s = {e->windows[w], e->passes[p], e->trees[t]};
                const struct drafting_params q = {.method = s.tree         ? DRAFT_DDTREE
                                                            : s.passes > 1 ? DRAFT_DEDIT
                                                                           : DRAFT_DFLASH,
                                                  .window = s.window,
                                                  .passes = s.passes,
                                                  .tree_budget = s.tree,
                                                  .visibility = s.passes > 1 ? e->visibility
                                                                             : DRAFT_BIDIRECTIONAL};
                int r = engine_check_drafting(engine, &q, err);
                if (r < 0)
                    return r;
                e->settings[e->n_settings++] = s;
            }
    return 0;
}

/* --csv is opened before the first answer: what cannot be written is told before anything is measured. */
static int open_csv(const struct eval *e, const char *model, int n, char **files,
                    struct out_file *csv, struct error *err)
{
    const struct out_use out = {"--csv", e->csv};
    const char *const own[] = {model, e->engine.config.drafter};
    if (!e->csv)
        return 0;
    int r = out_files_check(&out, 1, (const char *const *)files, (size_t)n, err);
    if (r == 0)
        r = out_files_check(&out, 1, own, ARRAY_LEN(own), err);
    if (r < 0)
        return r;
    r = out_file_open(csv, e->csv, err);
    return r < 0 ? error_prefix(err, r, "--csv") : 0;
}

static int open_engine(struct eval *e, const char *path, struct engine **ret, struct error *err)
{
    struct engine_config *c = &e->engine.config;
    int r = engine_options_tier(&e->engine, err);
    if (r < 0)
        return r;
    /* Every request's proposal has room in every batch, so that none is cut. */
    c->max_num_seqs = e->sequences;
    c->max_num_batched_tokens = e->sequences * (PROPOSAL_MAX_NODES + 1) + 256;
    c->n_kv_blocks =
        e->sequences * ((e->max_prompt + e->max_tokens + PROPOSAL_MAX_NODES) / DK_KV_BLOCK + 2) +
        64;
    r = engine_options_open(&e->engine, path, ret, err);
    if (r == 0 && !e->format_given && !e->raw)
        r = engine_chat_format(*ret, &e->format, err);
    return r;
}

static int run_all(struct eval *e, int n, char **files, struct error *err)
{
    _cleanup_(engine_freep) struct engine *engine = NULL;
    _cleanup_(out_file_drop) struct out_file csv = {0};
    char model[4096];
    int r = train_model_path(&e->engine, model, sizeof(model), err);
    if (r == 0)
        r = open_csv(e, model, n, files, &csv, err);
    if (r == 0)
        r = open_suites(e, n, files, err);
    if (r == 0)
        r = open_engine(e, model, &engine, err);
    if (r == 0)
        r = make_settings(e, engine, err);
    for (unsigned i = 0; i < e->n_suites && r == 0 && !train_stop; i++)
        r = run_suite(e, engine, &e->suites[i], err);
    if (r == 0 && !train_stop) {
        printf("target %s, drafter %s, %s\n", engine_model_name(engine),
               engine_drafter_name(engine), engine_class(engine));
        eval_report(e, stdout);
        if (csv.f) {
            eval_write_csv(e, csv.f);
            r = out_file_close(&csv, err);
        }
    }
    return r;
}

static int run(const struct train_command *c, int argc, char **argv)
{
    struct error err = {0};
    int first, status;
    struct eval *e = mem_zalloc(sizeof(*e));
    if (!e)
        return train_fail(c, TRAIN_FAILED, "out of memory");
    *e = (struct eval){.passes = {1, 2, 3},
                       .n_passes = 3,
                       .n_trees = 1,
                       .samples = 20,
                       .max_prompt = 480,
                       .max_tokens = 192,
                       .sequences = 8,
                       .seed = 1,
                       .thinking = -1};
    engine_options_init(&e->engine);
    if (train_options(c, argc, argv, e, &first, &status) < 0) {
        mem_free(e);
        return status;
    }
    e->quiet |= !isatty(STDERR_FILENO);
    train_catch_signals();
    if (first == argc || !e->engine.config.drafter)
        status = train_fail(c, TRAIN_USAGE, "--drafter PATH and files of prompts are needed");
    else if (run_all(e, argc - first, argv + first, &err) < 0)
        status = train_error(c, &err);
    else if (e->differ)
        status = train_fail(c, TRAIN_FAILED, "%llu answers differ from the first setting's",
                            (unsigned long long)e->differ);
    else
        status = train_stop ? TRAIN_INTERRUPTED : TRAIN_OK;
    for (unsigned i = 0; i < e->n_suites; i++)
        prompt_file_done(&e->suites[i].prompts);
    mem_free(e);
    return status;
}

const struct train_command train_eval = {
    .name = "eval",
    .args = "FILE...",
    .summary = "Tokens of a round by window, pass and position, on prompts (JSON lines).",
    .groups = groups,
    .set = set,
    .run = run,
};
