/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench generate: one prompt through an engine in this process, text to stdout as it comes. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/parse.h"
#include "bench/bench.h"
#include "bench/generate.h"

#define MAX_PROMPT_BYTES (16u << 20)

enum {
    OPT_CHAT_FORMAT = 300,
    OPT_SYSTEM,
    OPT_RAW,
    OPT_IDS,
    OPT_JSON,
    OPT_NO_THINKING,
    OPT_MAX_TOKENS,
    OPT_MIN_TOKENS,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_REPETITION,
    OPT_FREQUENCY,
    OPT_PRESENCE,
    OPT_LOGIT_BIAS,
    OPT_SEED,
    OPT_STOP,
    OPT_STOP_IDS,
    OPT_INCLUDE_STOP,
    OPT_IGNORE_EOS,
    OPT_LOGPROBS,
    OPT_METHOD,
    OPT_WINDOW,
    OPT_PASSES,
    OPT_TREE_BUDGET,
    OPT_EDIT_VISIBILITY,
    OPT_VERIFICATION,
    OPT_NO_NOISE,
    OPT_SCRIPT,
};

static const struct option_def prompt_opts[] = {
    {OPT_CHAT_FORMAT, "chat-format", "F",
     "chatml, qwen3, smollm2 or llama3\n(default: told by the model's template)"},
    {OPT_SYSTEM, "system", "TEXT", "system message (default: the format's own, if any)"},
    {OPT_NO_THINKING, "no-thinking", NULL, "qwen3: close the thinking block at once"},
    {OPT_RAW, "raw", NULL, "the prompt as it is, no chat format"},
    {OPT_IDS, "ids", NULL, "the prompt is a list of token ids"},
    {OPT_JSON, "json", NULL, "one JSON object a token, then one for the end"},
    {0, NULL, NULL, NULL},
};
static const struct option_def sampling_opts[] = {
    {OPT_MAX_TOKENS, "max-tokens", "N", "(default: 256)"},
    {OPT_MIN_TOKENS, "min-tokens", "N", "no end before N tokens (default: 0)"},
    {OPT_TEMPERATURE, "temperature", "X", "0 to 100; 0 is greedy (default: 0)"},
    {OPT_TOP_K, "top-k", "N", "0 or -1: off (default: off)"},
    {OPT_TOP_P, "top-p", "X", "above 0, at most 1 (default: 1, off)"},
    {OPT_MIN_P, "min-p", "X", "0 to 1 (default: 0, off)"},
    {OPT_REPETITION, "repetition-penalty", "X", "above 0, at most 100 (default: 1, off)"},
    {OPT_FREQUENCY, "frequency-penalty", "X", "-2 to 2 (default: 0)"},
    {OPT_PRESENCE, "presence-penalty", "X", "-2 to 2 (default: 0)"},
    {OPT_LOGIT_BIAS, "logit-bias", "ID=X", "-100 to 100 on one token; may be repeated"},
    {OPT_SEED, "seed", "N", "0 to 2^64-1 (default: drawn, and reported)"},
    {OPT_STOP, "stop", "TEXT", "ends the output before TEXT; may be repeated"},
    {OPT_STOP_IDS, "stop-token-ids", "ID,...", "tokens that end the output"},
    {OPT_INCLUDE_STOP, "include-stop-str-in-output", NULL, "keep the stop string"},
    {OPT_IGNORE_EOS, "ignore-eos", NULL, "go on past the end of sequence"},
    {OPT_LOGPROBS, "logprobs", "N", "with --json: N alternatives, 0 to 20"},
    {0, NULL, NULL, NULL},
};
static const struct option_def drafting_opts[] = {
    {OPT_METHOD, "method", "M",
     "ar (plain), ngram, dflash, dedit, ddtree, scripted\nor auto (default: auto)"},
    {OPT_WINDOW, "window", "W",
     "rows of a block, 2 to 64\n(default: the drafter's own; 8 without one)"},
    {OPT_PASSES, "passes", "K", "draft and edit passes, 1 to 8 (default: 1, dedit 2)"},
    {OPT_TREE_BUDGET, "tree-budget", "N", "ddtree: nodes, 1 to 127 (default: 15)"},
    {OPT_EDIT_VISIBILITY, "edit-visibility", "V",
     "bidirectional or causal edit passes\n(default: bidirectional)"},
    {OPT_VERIFICATION, "verification", "R",
     "exact: the text of plain decoding; rejection: its\nlaw only (default: exact)"},
    {OPT_NO_NOISE, "no-draft-noise", NULL, "the drafter does not use the target's noise"},
    {OPT_SCRIPT, "script", "FILE", "scripted: proposals, one JSON object a line\n(default: none)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {
    prompt_opts, sampling_opts, drafting_opts, engine_option_defs, engine_drafter_beside_defs,
    NULL};

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static int set_logit_bias(struct generate *g, const char *arg, struct error *err)
{
    char id[16];
    size_t n = strcspn(arg, "=");
    if (g->sampling.n_logit_bias == SAMPLING_MAX_LOGIT_BIAS)
        return ERR(err, INVALID, "more than %d are not allowed", SAMPLING_MAX_LOGIT_BIAS);
    if (arg[n] != '=' || n >= sizeof(id))
        return ERR(err, INVALID, "\"%s\" is not ID=BIAS", arg);
    memcpy(id, arg, n);
    id[n] = '\0';
    struct logit_bias *b = &g->bias[g->sampling.n_logit_bias++];
    int r = option_u32(id, 0, UINT32_MAX, &b->token, err);
    return r < 0 ? r : option_float(arg + n + 1, &b->bias, err);
}

static int set_stop_ids(struct generate *g, const char *arg, struct error *err)
{
    for (const char *s = arg;; s++) {
        char id[16];
        size_t n = strcspn(s, ",");
        if (g->sampling.n_stop_ids == SAMPLING_MAX_STOP_IDS || n >= sizeof(id))
            return ERR(err, INVALID, "\"%s\" is not a list of at most %d tokens", arg,
                       SAMPLING_MAX_STOP_IDS);
        memcpy(id, s, n);
        id[n] = '\0';
        int r = option_u32(id, 0, UINT32_MAX, &g->stop_ids[g->sampling.n_stop_ids++], err);
        if (r < 0)
            return r;
        s += n;
        if (!*s)
            return 0;
    }
}

/* 1 when id is one of these and was taken. */
static int set_drafting(struct generate *g, int id, const char *arg, struct error *err)
{
    struct drafting_params *d = &g->drafting;
    int r;
    switch (id) {
    case OPT_METHOD:
        if (!draft_method_parse(arg, &d->method) || d->method == DRAFT_SYNTHETIC)
            return ERR(err, INVALID,
                       "\"%s\" is not auto, ar, ngram, dflash, dedit, ddtree or scripted", arg);
        return 1;
    case OPT_WINDOW:
        r = option_u32(arg, 2, DRAFT_MAX_WINDOW, &d->window, err);
        return r < 0 ? r : 1;
    case OPT_PASSES:
        r = option_u32(arg, 1, DRAFT_MAX_PASSES, &d->passes, err);
        return r < 0 ? r : 1;
    case OPT_TREE_BUDGET:
        r = option_u32(arg, 1, PROPOSAL_MAX_NODES, &d->tree_budget, err);
        return r < 0 ? r : 1;
    case OPT_EDIT_VISIBILITY:
        d->visibility = strcmp(arg, "causal") == 0 ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL;
        if (d->visibility == DRAFT_BIDIRECTIONAL && strcmp(arg, "bidirectional") != 0)
            return ERR(err, INVALID, "\"%s\" is not bidirectional or causal", arg);
        return 1;
    case OPT_VERIFICATION:
        d->verification = strcmp(arg, "rejection") == 0 ? DRAFT_REJECTION : DRAFT_RULE_A;
        if (d->verification == DRAFT_RULE_A && strcmp(arg, "exact") != 0)
            return ERR(err, INVALID, "\"%s\" is not exact or rejection", arg);
        return 1;
    case OPT_NO_NOISE:
        d->no_noise = true;
        return 1;
    case OPT_SCRIPT:
        draft_script_done(&g->script);
        r = draft_script_read(arg, &g->script, err);
        d->script = &g->script;
        return r < 0 ? r : 1;
    default:
        return 0;
    }
}

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct generate *g = ctx;
    struct sampling_params *p = &g->sampling;
    int r = engine_options_set(&g->engine, id, arg, err);
    if (r == 0)
        r = set_drafting(g, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_CHAT_FORMAT:
        return engine_option_chat_format(arg, &g->format, &g->format_given, err);
    case OPT_SYSTEM:
        g->system = arg;
        return 0;
    case OPT_NO_THINKING:
        g->thinking = 0;
        return 0;
    case OPT_RAW:
        g->raw = true;
        return 0;
    case OPT_IDS:
        g->ids = true;
        return 0;
    case OPT_JSON:
        g->json = true;
        return 0;
    case OPT_MAX_TOKENS:
        return option_u32(arg, 0, 1u << 30, &p->max_tokens, err);
    case OPT_MIN_TOKENS:
        return option_u32(arg, 0, 1u << 30, &p->min_tokens, err);
    case OPT_TEMPERATURE:
        return option_float(arg, &p->temperature, err);
    case OPT_TOP_K:
        return option_i32(arg, INT32_MIN, INT32_MAX, &p->top_k, err);
    case OPT_TOP_P:
        return option_float(arg, &p->top_p, err);
    case OPT_MIN_P:
        return option_float(arg, &p->min_p, err);
    case OPT_REPETITION:
        return option_float(arg, &p->repetition_penalty, err);
    case OPT_FREQUENCY:
        return option_float(arg, &p->frequency_penalty, err);
    case OPT_PRESENCE:
        return option_float(arg, &p->presence_penalty, err);
    case OPT_LOGIT_BIAS:
        return set_logit_bias(g, arg, err);
    case OPT_SEED:
        p->has_seed = true;
        return option_u64(arg, &p->seed, err);
    case OPT_STOP:
        if (p->n_stop == SAMPLING_MAX_STOP_STRINGS)
            return ERR(err, INVALID, "more than %d are not allowed", SAMPLING_MAX_STOP_STRINGS);
        g->stop[p->n_stop++] = (struct stop_string){arg, strlen(arg)};
        return 0;
    case OPT_STOP_IDS:
        return set_stop_ids(g, arg, err);
    case OPT_INCLUDE_STOP:
        p->include_stop_in_output = true;
        return 0;
    case OPT_IGNORE_EOS:
        p->ignore_eos = true;
        return 0;
    case OPT_LOGPROBS:
        return option_i32(arg, -1, SAMPLING_MAX_LOGPROBS, &p->logprobs, err);
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

/* The arguments with blanks between them; standard input when there are none, or one "-". */
static int read_prompt(int n, char **args, struct strbuf *out, struct error *err)
{
    if (n > 0 && !(n == 1 && !strcmp(args[0], "-"))) {
        for (int i = 0; i < n; i++)
            if ((i > 0 && strbuf_addc(out, ' ') < 0) || strbuf_adds(out, args[i]) < 0)
                return ERR_NOMEM(err);
    } else {
        for (;;) {
            if (strbuf_reserve(out, 65536) < 0)
                return ERR_NOMEM(err);
            ssize_t got = read(STDIN_FILENO, out->s + out->len, 65535);
            if (got < 0 && errno == EINTR && !interrupted)
                continue;
            if (got < 0)
                return ERR(err, IO, "standard input: %s", strerror(errno));
            if (got == 0)
                break;
            out->len += (size_t)got;
            out->s[out->len] = '\0';
            if (out->len > MAX_PROMPT_BYTES)
                return ERR(err, LIMIT, "the prompt has more than %u bytes", MAX_PROMPT_BYTES);
        }
        /* The newline that ends a line of text is not meant. */
        if (out->len > 0 && out->s[out->len - 1] == '\n')
            out->s[--out->len] = '\0';
    }
    if (out->len == 0)
        return ERR(err, INVALID, "the prompt is empty");
    if (!utf8_valid(out->s, out->len))
        return ERR(err, INVALID, "the prompt is not valid UTF-8");
    return 0;
}

static int read_ids(const char *s, struct token_list *ids, struct error *err)
{
    while (*(s += strspn(s, " \t\r\n,[]"))) {
        char word[16] = "";
        size_t n = strcspn(s, " \t\r\n,[]");
        uint32_t id;
        if (n < sizeof(word))
            memcpy(word, s, n);
        int r = option_u32(word, 0, UINT32_MAX, &id, err);
        if (r < 0)
            return error_prefix(err, r, "prompt");
        if (token_list_add(ids, id) < 0)
            return ERR_NOMEM(err);
        s += n;
    }
    return 0;
}

static int make_ids(const struct generate *g, const struct engine *e, const struct strbuf *prompt,
                    struct token_list *ids, struct error *err)
{
    const struct tokenizer *t = engine_tokenizer(e);
    if (g->ids)
        return read_ids(prompt->s, ids, err);
    if (g->raw)
        return tokenizer_encode(t, prompt->s, prompt->len, TOKENIZE_BOS, ids, NULL, err);
    enum chat_format format = g->format;
    if (!g->format_given) {
        int r = engine_chat_format(e, &format, err);
        if (r < 0)
            return r;
    }
    struct chat_message m[2];
    size_t n = 0;
    memset(m, 0, sizeof(m));
    if (g->system)
        m[n++] = (struct chat_message){
            .role = "system", .content = g->system, .content_len = strlen(g->system)};
    m[n++] =
        (struct chat_message){.role = "user", .content = prompt->s, .content_len = prompt->len};
    const struct chat_options o = {.add_generation_prompt = true, .enable_thinking = g->thinking};
    return chat_render_ids(format, t, m, n, &o, ids, err);
}

/* Runs the request to its end; exit status. */
static int run_request(const struct bench_command *c, struct generate *g, struct engine *e,
                       const struct token_list *ids)
{
    struct error err = {0};
    struct request *r = NULL;
    const struct engine_request q = {
        .prompt = ids->ids,
        .n_prompt = ids->len,
        .sampling = g->sampling,
        .drafting = g->drafting,
        .sink = generate_sink(g),
        .skip_special = true,
        .want_tokens_text = true,
    };
    if (engine_submit(e, &q, &r, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    while (!g->finished) {
        if ((interrupted || g->write_error) && !g->cancelled) {
            g->cancelled = true;
            engine_cancel(e, r);
            continue;
        }
        int more = engine_step(e, &err);
        if (more < 0 && !g->finished) {
            request_free(r);
            return bench_fail(c, BENCH_FAILED, "%s", err.msg);
        }
        if (more == 0 && !g->finished) {
            request_free(r);
            return bench_fail(c, BENCH_FAILED, "the engine stopped before the request's end");
        }
    }
    request_free(r);
    if (g->write_error)
        return bench_fail(c, BENCH_FAILED, "standard output: %s", strerror(g->write_error));
    generate_statistics(g, e);
    if (g->error.code)
        return bench_fail(c, BENCH_FAILED, "%s", g->error.msg);
    return interrupted ? BENCH_INTERRUPTED : BENCH_OK;
}

static int run(const struct bench_command *c, int argc, char **argv)
{
    struct generate g;
    int first, status;
    memset(&g, 0, sizeof(g));
    engine_options_init(&g.engine);
    sampling_params_init(&g.sampling);
    g.sampling.temperature = 0;
    g.sampling.max_tokens = 256;
    g.sampling.stop = g.stop;
    g.sampling.stop_ids = g.stop_ids;
    g.sampling.logit_bias = g.bias;
    g.thinking = -1;
    if (bench_options(c, argc, argv, &g, &first, &status) < 0)
        return status;
    if ((g.raw || g.ids) && (g.system || g.format_given))
        return bench_fail(c, BENCH_USAGE, "--%s excludes --system and --chat-format",
                          g.raw ? "raw" : "ids");

    struct sigaction sa = {.sa_handler = on_interrupt};
    (void)sigaction(SIGINT, &sa, NULL);
    struct error err = {0};
    _cleanup_strbuf_ struct strbuf prompt = {0};
    if (read_prompt(argc - first, argv + first, &prompt, &err) < 0)
        return bench_fail(c, interrupted ? BENCH_INTERRUPTED : BENCH_USAGE, "%s", err.msg);
    char path[4096];
    if (!g.engine.model && engine_default_model(path, sizeof(path), &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    _cleanup_(engine_freep) struct engine *e = NULL;
    uint64_t t0 = clock_now_ns();
    const char *model = g.engine.model ? g.engine.model : path;
    if (engine_options_beside(&g.engine, model, &err) < 0 ||
        engine_options_tier(&g.engine, &err) < 0 ||
        engine_options_open(&g.engine, model, &e, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    g.load_ns = clock_now_ns() - t0;
    _cleanup_token_list_ struct token_list ids = {0};
    if (make_ids(&g, e, &prompt, &ids, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    return run_request(c, &g, e, &ids);
}

const struct bench_command bench_generate = {
    .name = "generate",
    .args = "[PROMPT...]",
    .summary = "Answers a prompt (arguments, or standard input) on standard output.",
    .groups = groups,
    .set = set,
    .run = run,
};
