/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval: prompts of suites, answered plainly and with every setting, one after the other in
 * turn, so that what disturbs the machine disturbs all.  Answers are compared token by token with
 * plain decoding of the same seed; any difference fails the run.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/eval.h"
#include "bench/random_model.h"

enum {
    OPT_SETTING = 300,
    OPT_SAMPLES,
    OPT_MAX_PROMPT,
    OPT_MAX_TOKENS,
    OPT_TURNS,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_WARM_UP,
    OPT_CSV,
    OPT_SVG,
    OPT_NO_THINKING,
    OPT_QUIET,
    OPT_RANDOM,
    OPT_WEIGHTS,
    OPT_LAYERS,
    OPT_DRAFTER_LAYERS,
    OPT_DRAFT_VOCAB,
    OPT_PROMPT_TOKENS,
};

static const struct option_def eval_opts[] = {
    {OPT_SETTING, "setting", "S",
     "METHOD[,w=ROWS][,k=PASSES][,n=NODES][,t=X][,tau=X]\n[,causal][,no-noise][,rejection]; may be "
     "repeated\n(default: dflash; dedit with 2, 3 passes; ddtree)"},
    {OPT_SAMPLES, "samples", "N", "prompts of each suite; 0: all (default: 10)"},
    {OPT_MAX_PROMPT, "max-prompt", "N", "skip longer prompts, in tokens (default: 480)"},
    {OPT_MAX_TOKENS, "max-tokens", "N", "of an answer (default: 192)"},
    {OPT_TURNS, "turns", "N", "turns of a conversation, each an answer of its\nown (default: 1)"},
    {OPT_TEMPERATURE, "temperature", "X", "of settings that do not say t=X (default: 0)"},
    {OPT_SEED, "seed", "N", "of the first prompt, then one more each (default: 1)"},
    {OPT_WARM_UP, "warm-up", "N", "answers that are not counted (default: 1)"},
    {OPT_CSV, "csv", "FILE", "write all figures there"},
    {OPT_SVG, "svg", "FILE", "draw the speed-ups there"},
    {OPT_NO_THINKING, "no-thinking", NULL, "qwen3: close the thinking block at once"},
    {OPT_QUIET, "quiet", NULL, "no progress on standard error"},
    {OPT_RANDOM, "random", "SHAPE",
     "costs only: smollm2-135m or qwen3-0.6b with random\nweights and drafter; settings take tau=X\n"
     "(default: the model's own weights)"},
    {OPT_WEIGHTS, "weights", "TYPE", "with --random: type of all weights (default: BF16)"},
    {OPT_LAYERS, "layers", "N", "with --random (default: those of the shape)"},
    {OPT_DRAFTER_LAYERS, "drafter-layers", "N", "with --random (default: 5)"},
    {OPT_DRAFT_VOCAB, "draft-vocab", "N",
     "with --random: tokens that are drafted from; 0: all\n(default: 32768)"},
    {OPT_PROMPT_TOKENS, "prompt-tokens", "N", "with --random (default: 256)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {eval_opts, engine_option_defs, NULL};

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct eval *e = ctx;
    int r = engine_options_set(&e->engine, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_SETTING:
        if (e->n_asked == EVAL_MAX_SETTINGS)
            return ERR(err, INVALID, "more than %u settings", EVAL_MAX_SETTINGS);
        e->asked[e->n_asked++] = arg;
        struct eval_setting unused;
        return eval_parse_setting(arg, 0, &unused, err);
    case OPT_SAMPLES:
        return option_u32(arg, 0, 1u << 30, &e->samples, err);
    case OPT_MAX_PROMPT:
        return option_u32(arg, 1, 1u << 30, &e->max_prompt, err);
    case OPT_MAX_TOKENS:
        return option_u32(arg, 2, 1u << 30, &e->max_tokens, err);
    case OPT_TURNS:
        return option_u32(arg, 1, EVAL_MAX_TURNS, &e->turns, err);
    case OPT_TEMPERATURE:
        return option_float(arg, &e->temperature, err);
    case OPT_SEED:
        return option_u64(arg, &e->seed, err);
    case OPT_WARM_UP:
        return option_u32(arg, 0, 1000, &e->warmup, err);
    case OPT_CSV:
        e->csv = arg;
        return 0;
    case OPT_SVG:
        e->svg = arg;
        return 0;
    case OPT_NO_THINKING:
        e->thinking = 0;
        return 0;
    case OPT_QUIET:
        e->quiet = true;
        return 0;
    case OPT_RANDOM:
        e->random = arg;
        return 0;
    case OPT_WEIGHTS:
        for (int t = 0; t < DK_TYPE_COUNT; t++)
            if (!strcmp(arg, dk_type_info((enum dk_type)t)->name)) {
                e->type = (enum dk_type)t;
                return 0;
            }
        return ERR(err, INVALID, "\"%s\" is no type of weights (F32, BF16, Q8_0, ...)", arg);
    case OPT_LAYERS:
        return option_u32(arg, 1, 1000, &e->layers, err);
    case OPT_DRAFTER_LAYERS:
        return option_u32(arg, 1, 64, &e->drafter_layers, err);
    case OPT_DRAFT_VOCAB:
        return option_u32(arg, 0, 1u << 24, &e->draft_vocab, err);
    case OPT_PROMPT_TOKENS:
        return option_u32(arg, 1, 1u << 20, &e->prompt_tokens, err);
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

/* ---- suites ------------------------------------------------------------------------------------- */

struct talk {
    enum chat_format format;
    struct chat_message messages[2 * EVAL_MAX_TURNS + 1];
    char *owned[EVAL_MAX_TURNS];
    size_t n;
};

static int render(const struct eval *e, struct engine *en, const struct talk *t,
                  struct token_list *ret, struct error *err)
{
    const struct chat_options o = {.add_generation_prompt = true, .enable_thinking = e->thinking};
    return chat_render_ids(t->format, engine_tokenizer(en), t->messages, t->n, &o, ret, err);
}

/* One turn with every setting; the first one's answer goes on the conversation. */
static int turn(struct eval *e, struct engine *en, struct eval_suite *s, size_t prompt,
                uint64_t seed, const struct token_list *ids, bool counted, char **ret_text,
                struct error *err)
{
    struct eval_answer a[EVAL_MAX_SETTINGS];
    memset(a, 0, sizeof(a));
    int r = 0;
    for (unsigned j = 0; j < e->n_settings && r == 0 && !interrupted; j++) {
        r = eval_ask(en, e, &e->settings[j], ids, seed, &a[j], &interrupted, err);
        if (r == 0 && counted && !interrupted)
            r = eval_count(&s->results[j], &a[j], err);
        if (r == 0 && !interrupted)
            eval_compare(e, s, prompt, j, &a[j], &a[e->settings[j].baseline]);
    }
    if (r == 0) {
        *ret_text = mem_strndup(a[0].text.s ? a[0].text.s : "", a[0].text.len);
        if (!*ret_text)
            r = ERR_NOMEM(err);
    }
    for (unsigned j = 0; j < e->n_settings; j++)
        eval_answer_done(&a[j]);
    return r;
}

/* 1: the prompt is too long. */
static int conversation(struct eval *e, struct engine *en, struct eval_suite *s, size_t prompt,
                        enum chat_format format, bool counted, struct error *err)
{
    const struct prompt *p = &s->prompts.prompts[prompt];
    struct talk t = {.format = format};
    int r = 0;
    if (p->system)
        t.messages[t.n++] = (struct chat_message){
            .role = "system", .content = p->system, .content_len = strlen(p->system)};
    for (unsigned k = 0; k < p->n_turns && k < e->turns && r == 0 && !interrupted; k++) {
        _cleanup_token_list_ struct token_list ids = {0};
        t.messages[t.n++] = (struct chat_message){
            .role = "user", .content = p->turns[k], .content_len = strlen(p->turns[k])};
        r = render(e, en, &t, &ids, err);
        if (r == 0 && ids.len > e->max_prompt)
            r = 1;
        if (r == 0)
            r = turn(e, en, s, prompt, e->seed + prompt, &ids, counted, &t.owned[k], err);
        if (r == 0)
            t.messages[t.n++] = (struct chat_message){
                .role = "assistant", .content = t.owned[k], .content_len = strlen(t.owned[k])};
    }
    for (unsigned k = 0; k < EVAL_MAX_TURNS; k++)
        mem_free(t.owned[k]);
    return r == 1 && t.n > 1 ? 0 : r; /* later turns may be too long: then the talk ends */
}

static int run_suite(struct eval *e, struct engine *en, struct eval_suite *s,
                     enum chat_format format, struct error *err)
{
    size_t done = 0;
    for (size_t i = 0; i < s->prompts.n && (!e->samples || done < e->samples) && !interrupted;
         i++) {
        for (; e->warmup && !interrupted; e->warmup--)
            if (conversation(e, en, s, i, format, false, err) < 0)
                return err->code;
        int r = conversation(e, en, s, i, format, true, err);
        if (r < 0)
            return error_prefix(err, r, "%s, prompt %zu", s->name, i);
        done += r == 0;
        if (!e->quiet)
            fprintf(stderr, "\r%s: %zu ", s->name, done);
    }
    if (!e->quiet)
        fputc('\r', stderr);
    return 0;
}

/* ---- costs without a model ---------------------------------------------------------------------- */

static int open_random(struct eval *e, struct engine **ret, struct error *err)
{
    struct model_file *target = NULL, *drafter = NULL;
    int r = random_model_new(e->random, e->type, e->layers, &target, err);
    if (r == 0)
        r = random_drafter_new(model_file_config(target), e->type, e->drafter_layers,
                               e->draft_vocab, &drafter, err);
    if (r < 0) {
        model_file_free(target);
        return r;
    }
    struct engine_config c = e->engine.config;
    c.take_drafter = drafter;
    c.synthetic = true;
    if (c.max_context == 0)
        c.max_context = e->prompt_tokens + e->max_tokens + 64;
    snprintf(e->suites[0].name, sizeof(e->suites[0].name), "random");
    e->n_suites = 1;
    return engine_new_textless(target, &c, ret, err);
}

static int run_random(struct eval *e, struct engine *en, struct error *err)
{
    const uint32_t vocab = engine_model_config(en)->vocab_size;
    int r = 0;
    for (uint32_t i = 0; i < e->samples + e->warmup && r == 0 && !interrupted; i++) {
        _cleanup_token_list_ struct token_list ids = {0};
        _cleanup_free_ char *text = NULL;
        for (uint32_t k = 0; k < e->prompt_tokens && r == 0; k++)
            r = token_list_add(&ids, (uint32_t)(((uint64_t)i * 7919 + k * 104729ull) % vocab));
        if (r < 0)
            return ERR_NOMEM(err);
        r = turn(e, en, &e->suites[0], i, e->seed + i, &ids, i >= e->warmup, &text, err);
        if (!e->quiet)
            fprintf(stderr, "\r%u ", i);
    }
    return r;
}

/* ---- command ------------------------------------------------------------------------------------ */

static int check_settings(const struct eval *e, const struct engine *en, struct error *err)
{
    int r = 0;
    for (unsigned i = 0; i < e->n_settings && r == 0; i++)
        if ((r = engine_check_drafting(en, &e->settings[i].drafting, err)) < 0)
            r = error_prefix(err, r, "%s", e->settings[i].name);
    return r;
}

/* Then what calls cost has to be known before anything is measured. */
static bool uses_auto(const struct eval *e)
{
    for (unsigned i = 0; i < e->n_settings; i++)
        if (e->settings[i].drafting.method == DRAFT_AUTO)
            return true;
    return false;
}

static int open_all(struct eval *e, int n, char **files, struct engine **ret,
                    enum chat_format *format, struct error *err)
{
    char path[4096];
    if (e->random && n)
        return ERR(err, INVALID, "--random has no suites");
    if (e->random) {
        int r = eval_make_settings(e, err);
        if (r == 0)
            r = engine_options_tier(&e->engine, err);
        e->engine.config.enable_prefix_caching = false;
        if (r == 0)
            r = open_random(e, ret, err);
        return r < 0 ? r : check_settings(e, *ret, err);
    }
    if (n == 0)
        return ERR(err, INVALID, "no suite is named; see dedit-bench eval --help");
    if (n > (int)EVAL_MAX_SUITES)
        return ERR(err, LIMIT, "%d suites: at most %u", n, EVAL_MAX_SUITES);
    int r = eval_make_settings(e, err);
    for (int i = 0; i < n && r == 0; i++) {
        e->n_suites++; /* freed even when it is half read */
        r = eval_read_suite(files[i], &e->suites[i], err);
    }
    if (r == 0 && !e->engine.model)
        r = engine_default_model(path, sizeof(path), err);
    if (r == 0)
        r = engine_options_tier(&e->engine, err);
    /* A prefix that ar left in the cache has no drafter's context: it would be made anew in the middle
     * of the measurement. */
    e->engine.config.enable_prefix_caching = false;
    if (r == 0)
        r = engine_options_open(&e->engine, e->engine.model ? e->engine.model : path, ret, err);
    if (r == 0)
        r = engine_chat_format(*ret, format, err);
    return r < 0 ? r : check_settings(e, *ret, err);
}

static int run(const struct bench_command *c, int argc, char **argv)
{
    static struct eval e;
    int first, status;
    engine_options_init(&e.engine);
    e.samples = 10;
    e.max_prompt = 480;
    e.max_tokens = 192;
    e.turns = e.warmup = 1;
    e.seed = 1;
    e.thinking = -1;
    e.type = DK_BF16;
    e.drafter_layers = 5;
    e.draft_vocab = 32768;
    e.prompt_tokens = 256;
    if (bench_options(c, argc, argv, &e, &first, &status) < 0)
        return status;
    struct sigaction sa = {.sa_handler = on_interrupt};
    (void)sigaction(SIGINT, &sa, NULL);
    struct error err = {0};
    enum chat_format format = CHAT_CHATML;
    _cleanup_(engine_freep) struct engine *en = NULL;
    int r = open_all(&e, argc - first, argv + first, &en, &format, &err);
    while (r == 0 && !interrupted && uses_auto(&e) && (r = engine_calibrate(en, &err)) > 0)
        r = 0;
    if (r == 0 && e.random)
        r = run_random(&e, en, &err);
    for (unsigned i = 0; !e.random && i < e.n_suites && r == 0 && !interrupted; i++)
        r = run_suite(&e, en, &e.suites[i], format, &err);
    if (r == 0) {
        printf("%s, drafter %s, %s, tier %s, %u threads; at most %u tokens\n",
               engine_model_name(en), engine_drafter_name(en) ? engine_drafter_name(en) : "none",
               engine_class(en), dk_tier_name(engine_ops(en)->tier),
               engine_get_config(en)->n_threads, e.max_tokens);
        eval_table(&e, stdout);
        eval_costs(&e, stdout);
        eval_bars(&e, stdout);
    }
    if (r == 0 && e.csv)
        r = eval_csv(&e, &err);
    if (r == 0 && e.svg)
        r = eval_svg(&e, e.svg, &err);
    for (unsigned i = 0; i < e.n_suites; i++)
        eval_suite_done(&e.suites[i]);
    if (r < 0)
        return bench_fail(c, err.code == DEDIT_E_INVALID ? BENCH_USAGE : BENCH_FAILED, "%s",
                          err.msg);
    if (e.differ)
        return bench_fail(c, BENCH_FAILED, "%u answers differ from plain decoding", e.differ);
    return interrupted ? BENCH_INTERRUPTED : BENCH_OK;
}

const struct bench_command bench_eval = {
    .name = "eval",
    .args = "SUITE.jsonl...",
    .summary = "Tokens a round and speed-up of drafting on suites of prompts.",
    .groups = groups,
    .set = set,
    .run = run,
};
