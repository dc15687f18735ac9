/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench tokenize, detokenize: text to ids and back with a model's own tokenizer. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/parse.h"
#include "bench/bench.h"

#define MAX_INPUT (64u << 20)

enum { OPT_MODEL = 300, OPT_SPECIAL, OPT_BOS };

struct tokenize {
    const char *model;
    unsigned flags;
    bool skip_special;
};

static const struct option_def tokenize_opts[] = {
    {OPT_MODEL, "model", "PATH",
     "a .gguf file, a Hugging Face folder or a\ntokenizer.json (default: the default model)"},
    {OPT_SPECIAL, "special", NULL, "recognise control tokens in the text"},
    {OPT_BOS, "bos", NULL, "begin with BOS when the model wants one"},
    {0, NULL, NULL, NULL},
};
static const struct option_def detokenize_opts[] = {
    {OPT_MODEL, "model", "PATH",
     "a .gguf file, a Hugging Face folder or a\ntokenizer.json (default: the default model)"},
    {OPT_SPECIAL, "skip-special", NULL, "control tokens give no text"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const tokenize_groups[] = {tokenize_opts, NULL};
static const struct option_def *const detokenize_groups[] = {detokenize_opts, NULL};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct tokenize *t = ctx;
    (void)err;
    switch (id) {
    case OPT_MODEL:
        t->model = arg;
        break;
    case OPT_SPECIAL:
        t->flags |= TOKENIZE_SPECIAL;
        t->skip_special = true;
        break;
    case OPT_BOS:
        t->flags |= TOKENIZE_BOS;
        break;
    default:
        break;
    }
    return 0;
}

static int load(const char *model, struct model_file **ret_file, struct tokenizer **ret,
                struct error *err)
{
    char path[4096];
    if (!model) {
        int r = engine_default_model(path, sizeof(path), err);
        if (r < 0)
            return r;
        model = path;
    }
    size_t n = strlen(model);
    if (n > 5 && !strcmp(model + n - 5, ".json")) {
        _cleanup_free_ char *text = NULL;
        size_t len;
        int r = file_read(model, MAX_INPUT, &text, &len, err);
        return r < 0 ? r : tokenizer_from_json(text, len, NULL, 0, model, ret, err);
    }
    int r = model_file_open(model, ret_file, err);
    return r < 0 ? r : tokenizer_load(*ret_file, ret, err);
}

static int read_input(struct strbuf *b, struct error *err)
{
    size_t got;
    do {
        if (strbuf_reserve(b, 65536) < 0)
            return ERR_NOMEM(err);
        got = fread(b->s + b->len, 1, 65535, stdin);
        b->len += got;
        b->s[b->len] = '\0';
        if (b->len > MAX_INPUT)
            return ERR(err, LIMIT, "the input has more than %u bytes", MAX_INPUT);
    } while (got > 0);
    if (ferror(stdin))
        return ERR(err, IO, "standard input: %s", strerror(errno));
    return 0;
}

static int run_tokenize(const struct bench_command *c, int argc, char **argv)
{
    struct tokenize t = {0};
    struct error err = {0};
    int first, status;
    if (bench_options(c, argc, argv, &t, &first, &status) < 0)
        return status;
    _cleanup_strbuf_ struct strbuf text = {0};
    int r = 0;
    for (int i = first; i < argc && r == 0; i++)
        if ((i > first && strbuf_addc(&text, ' ') < 0) || strbuf_adds(&text, argv[i]) < 0)
            r = ERR_NOMEM(&err);
    if (first == argc)
        r = read_input(&text, &err);
    if (r < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    _cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
    _cleanup_token_list_ struct token_list ids = {0};
    size_t dropped = 0;
    if (load(t.model, &f, &tok, &err) < 0 ||
        tokenizer_encode(tok, text.s ? text.s : "", text.len, t.flags, &ids, &dropped, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    for (size_t i = 0; i < ids.len; i++)
        printf("%s%u", i ? " " : "", ids.ids[i]);
    putchar('\n');
    if (dropped)
        fprintf(stderr, "%zu bytes have no token and were dropped\n", dropped);
    return BENCH_OK;
}

static int run_detokenize(const struct bench_command *c, int argc, char **argv)
{
    struct tokenize t = {0};
    struct error err = {0};
    int first, status;
    if (bench_options(c, argc, argv, &t, &first, &status) < 0)
        return status;
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    _cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
    if (load(t.model, &f, &tok, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    _cleanup_strbuf_ struct strbuf in = {0}, out = {0};
    for (int i = first; i < argc; i++)
        if (strbuf_adds(&in, argv[i]) < 0 || strbuf_addc(&in, ' ') < 0)
            return bench_fail(c, BENCH_FAILED, "out of memory");
    if (first == argc && read_input(&in, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    struct detokenizer d = {0};
    for (const char *s = in.s ? in.s : ""; *(s += strspn(s, " \t\r\n,"));) {
        char word[16] = "";
        size_t n = strcspn(s, " \t\r\n,");
        uint32_t id;
        if (n < sizeof(word))
            memcpy(word, s, n);
        if (option_u32(word, 0, UINT32_MAX, &id, &err) < 0)
            return bench_fail(c, BENCH_USAGE, "%s", err.msg);
        if (detokenizer_push(&d, tok, id, t.skip_special ? DETOKENIZE_SKIP_SPECIAL : 0, &out) < 0)
            return bench_fail(c, BENCH_FAILED, "out of memory");
        s += n;
    }
    if (detokenizer_flush(&d, &out) < 0)
        return bench_fail(c, BENCH_FAILED, "out of memory");
    fwrite(out.s ? out.s : "", 1, out.len, stdout);
    return BENCH_OK;
}

const struct bench_command bench_tokenize = {
    .name = "tokenize",
    .args = "[TEXT...]",
    .summary = "Prints the token ids of a text (arguments, or standard input).",
    .groups = tokenize_groups,
    .set = set,
    .run = run_tokenize,
};
const struct bench_command bench_detokenize = {
    .name = "detokenize",
    .args = "[ID...]",
    .summary = "Prints the text of token ids (arguments, or standard input).",
    .groups = detokenize_groups,
    .set = set,
    .run = run_detokenize,
};
