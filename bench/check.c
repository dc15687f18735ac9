/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench check: options, the table of kinds, one line a case, the total. */
#include "bench/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"

enum { OPT_TAP = 300, OPT_CHUNK, OPT_ROWS, OPT_ONLY, OPT_QWEN3 };

static const struct option_def check_opts[] = {
    {OPT_TAP, "tap", NULL, "print the Test Anything Protocol"},
    {OPT_ONLY, "only", "KIND,...", "run these kinds (default: all)"},
    {OPT_CHUNK, "chunk", "N", "prompt rows of one call (default: the whole prompt)"},
    {OPT_ROWS, "rows", "N", "rows of one forward pass (default: 512)"},
    {OPT_QWEN3, "qwen3-tokenizer", "FILE",
     "tokenizer.json of Qwen3 (default: qwen3-tokenizer/\nin DIR or beside it)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {check_opts, engine_option_defs,
                                                  engine_drafter_defs, NULL};

static const struct {
    const char *name;
    void (*run)(struct check *k, const char *kind); /* NULL: known, not supported yet */
} kinds[] = {
    {"sampling", check_sampling},
    {"tokenizer", check_tokenizer},
    {"chat", check_chat},
    {"dequant", check_dequant},
    {"models", check_models},
    {"gguf", check_models},
    {"smollm2", check_smollm2},
    {"nll", check_smollm2},
    {"drafter", check_drafter},
    {"verify", check_verify},
    {"train", NULL},
};

static void line(struct check *k, const char *word, const char *kind, const char *name,
                 const char *detail)
{
    if (!k->tap) {
        printf("%s %-9s %s%s%s\n", word, kind, name, *detail ? "  " : "", detail);
    } else {
        unsigned n = k->passed + k->failed + k->skipped;
        bool skip = !strcmp(word, "SKIP");
        printf("%s %u - %s:%s%s%s\n", strcmp(word, "FAIL") ? "ok" : "not ok", n, kind, name,
               skip      ? " # SKIP "
               : *detail ? " "
                         : "",
               detail);
    }
    fflush(stdout);
}

void check_result(struct check *k, bool ok, const char *kind, const char *name, const char *fmt,
                  ...)
{
    char detail[640];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    for (char *s = detail; *s; s++)
        if (*s == '\n' || (k->tap && *s == '#'))
            *s = ' '; /* '#' begins a directive there */
    if (ok)
        k->passed++;
    else
        k->failed++;
    line(k, ok ? "PASS" : "FAIL", kind, name, detail);
}

void check_skip(struct check *k, const char *kind, const char *name, const char *why)
{
    k->skipped++;
    line(k, "SKIP", kind, name, why);
}

static bool wanted(const struct check *k, const char *kind)
{
    if (!k->only)
        return true;
    for (const char *s = k->only; *s;) {
        size_t n = strcspn(s, ",");
        if (n == strlen(kind) && !memcmp(s, kind, n))
            return true;
        s += n + (s[n] == ',');
    }
    return false;
}

/* Some kinds are a file in another's folder. */
static bool present(const struct check *k, const char *kind)
{
    if (!strcmp(kind, "dequant"))
        return check_exists(check_path(k, "gguf", "dequant_blocks.safetensors"));
    if (!strcmp(kind, "smollm2"))
        return check_exists(check_path(k, kind, "generate.jsonl"));
    if (!strcmp(kind, "nll"))
        return check_exists(check_path(k, "smollm2", "nll.jsonl"));
    return check_exists(check_path(k, kind, ""));
}

static int check_only(const char *list, struct error *err)
{
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, ",");
        bool known = false;
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
            known |= kinds[i].run && n == strlen(kinds[i].name) && !memcmp(s, kinds[i].name, n);
        if (!known)
            return ERR(err, INVALID,
                       "\"%.*s\" is not one of sampling, tokenizer, chat, dequant, models, gguf, "
                       "smollm2, nll, drafter, verify",
                       (int)n, s);
        s += n + (s[n] == ',');
    }
    return 0;
}

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct check *k = ctx;
    int r = engine_options_set(&k->engine, id, arg, err);
    if (r)
        return r;
    switch (id) {
    case OPT_TAP:
        k->tap = true;
        return 0;
    case OPT_CHUNK:
        return option_u32(arg, 1, 1u << 16, &k->chunk, err);
    case OPT_ROWS:
        return option_u32(arg, 1, 1u << 16, &k->engine.config.max_num_batched_tokens, err);
    case OPT_ONLY:
        k->only = arg;
        return check_only(arg, err);
    case OPT_QWEN3:
        k->qwen3 = arg;
        return 0;
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

static int run(const struct bench_command *c, int argc, char **argv)
{
    struct check k;
    int first, status;
    memset(&k, 0, sizeof(k));
    engine_options_init(&k.engine);
    if (bench_options(c, argc, argv, &k, &first, &status) < 0)
        return status;
    if (first == argc)
        return bench_fail(c, BENCH_USAGE, "no folder is named; see dedit-bench check --help");
    struct error err = {0};
    if (engine_options_tier(&k.engine, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    struct engine_config *cfg = &k.engine.config;
    if (cfg->max_num_seqs > cfg->max_num_batched_tokens)
        cfg->max_num_seqs = cfg->max_num_batched_tokens;
    if (k.engine.model)
        snprintf(k.model, sizeof(k.model), "%s", k.engine.model);
    else if (engine_default_model(k.model, sizeof(k.model), &k.model_error) < 0)
        k.model[0] = '\0';
    char unsupported[256] = "";
    unsigned kinds_run = 0;
    for (int i = first; i < argc; i++) {
        k.dir = argv[i];
        if (!check_exists(k.dir))
            return bench_fail(c, BENCH_FAILED, "%s: no such folder", k.dir);
        for (size_t j = 0; j < ARRAY_LEN(kinds); j++) {
            if (!present(&k, kinds[j].name) || (kinds[j].run && !wanted(&k, kinds[j].name)))
                continue;
            if (kinds[j].run) {
                kinds[j].run(&k, kinds[j].name);
                kinds_run++;
            } else if (!k.only && !strstr(unsupported, kinds[j].name)) {
                size_t n = strlen(unsupported);
                snprintf(unsupported + n, sizeof(unsupported) - n, "%s%s", n ? ", " : "",
                         kinds[j].name);
            }
        }
    }
    if (!kinds_run)
        return bench_fail(c, BENCH_FAILED, "%s: no case of any kind; see dedit-bench check --help",
                          argv[first]);
    if (k.tap)
        printf("1..%u\n", k.passed + k.failed + k.skipped);
    if (*unsupported)
        printf("%snot yet supported kind: %s\n", k.tap ? "# " : "", unsupported);
    printf("%s%u passed, %u failed, %u skipped\n", k.tap ? "# " : "", k.passed, k.failed,
           k.skipped);
    return k.failed ? BENCH_FAILED : BENCH_OK;
}

const struct bench_command bench_check = {
    .name = "check",
    .args = "DIR...",
    .summary = "Runs every case of folders of reference values; exit status 1 when one fails.",
    .groups = groups,
    .set = set,
    .run = run,
};
