/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval: prompts of suites, answered plainly and with every setting, one after the other in
 * turn, so that what disturbs the machine disturbs all.  Answers are compared token by token with
 * plain decoding of the same seed; any difference fails the run.
 */
#include <stdio.h>
#include <string.h>

#include "bench/eval.h"

enum {
    OPT_SETTING = 300,
    OPT_SAMPLES,
    OPT_MAX_PROMPT,
    OPT_MAX_TOKENS,
    OPT_TURNS,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_WARM_UP,
    OPT_CLIENTS,
    OPT_CSV,
    OPT_SVG,
    OPT_ANSWERS,
    OPT_COSTS,
    OPT_CHAT_FORMAT,
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
    {OPT_CLIENTS, "clients", "N",
     "so many prompts at once; tokens a second are compared\n(default: one after the other)"},
    {OPT_CSV, "csv", "FILE", "write all figures there"},
    {OPT_SVG, "svg", "FILE", "draw the speed-ups there"},
    {OPT_ANSWERS, "answers", "FILE", "write each answer's figures there"},
    {OPT_COSTS, "costs", "FOLDER",
     "what auto knows is read there and kept there, as\nthe daemon does it (default: auto starts without)"},
    {OPT_CHAT_FORMAT, "chat-format", "F",
     "chatml, qwen3, smollm2 or llama3\n(default: told by the model's template)"},
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
static const struct option_def *const groups[] = {eval_opts, engine_option_defs,
                                                  engine_drafter_beside_defs, NULL};

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
    case OPT_CLIENTS:
        return option_u32(arg, 1, EVAL_MAX_CLIENTS, &e->clients, err);
    case OPT_CSV:
        e->csv_path = arg;
        return 0;
    case OPT_SVG:
        e->svg_path = arg;
        return 0;
    case OPT_ANSWERS:
        e->answers_path = arg;
        return 0;
    case OPT_COSTS:
        e->engine.config.costs_dir = arg;
        return 0;
    case OPT_CHAT_FORMAT:
        return engine_option_chat_format(arg, &e->format, &e->format_given, err);
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

/* ---- command ------------------------------------------------------------------------------------ */

static int write_files(struct eval *e, struct error *err)
{
    int r = 0;
    if (e->csv.f && (r = eval_csv(e, e->csv.f, err)) == 0)
        r = out_file_close(&e->csv, err);
    if (r == 0 && e->answers.f) {
        eval_answers(e, e->answers.f);
        r = out_file_close(&e->answers, err);
    }
    if (r == 0 && e->svg.f) {
        eval_svg(e, e->svg.f);
        r = out_file_close(&e->svg, err);
    }
    return r;
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
    struct error err = {0};
    enum chat_format format = CHAT_CHATML;
    _cleanup_(engine_freep) struct engine *en = NULL;
    int r = eval_open(&e, argc - first, argv + first, &en, &format, &err);
    if (r == 0 && e.random)
        r = eval_run_random(&e, en, &err);
    if (r == 0 && e.random)
        eval_predict(&e);
    for (unsigned i = 0; !e.random && i < e.n_suites && r == 0 && !eval_interrupted; i++)
        r = e.clients ? eval_run_clients(&e, en, &e.suites[i], format, &err)
                      : eval_run_suite(&e, en, &e.suites[i], format, e.samples, &err);
    if (r == 0) {
        printf("%s, drafter %s, %s, tier %s, %u threads; at most %u tokens\n",
               engine_model_name(en), engine_drafter_name(en) ? engine_drafter_name(en) : "none",
               engine_class(en), dk_tier_name(engine_ops(en)->tier),
               engine_get_config(en)->n_threads, e.max_tokens);
        eval_table(&e, stdout);
        eval_costs(&e, stdout);
        if (e.random)
            eval_predictions(&e, stdout);
        r = eval_pairs(&e, stdout, &err);
        eval_bars(&e, stdout);
    }
    if (r == 0)
        r = write_files(&e, &err);
    eval_done(&e);
    if (r < 0)
        return bench_fail(c, err.code == DEDIT_E_INVALID ? BENCH_USAGE : BENCH_FAILED, "%s",
                          err.msg);
    if (e.differ)
        return bench_fail(c, BENCH_FAILED, "%u answers differ from plain decoding", e.differ);
    return eval_interrupted ? BENCH_INTERRUPTED : BENCH_OK;
}

const struct bench_command bench_eval = {
    .name = "eval",
    .args = "SUITE.jsonl...",
    .summary = "Tokens a round and speed-up of drafting on suites of prompts.",
    .groups = groups,
    .set = set,
    .run = run,
};
