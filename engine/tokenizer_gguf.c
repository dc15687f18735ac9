/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer in GGUF metadata (tokenizer.ggml.*).  The file names its pre-tokenizer instead of
 * describing it, so the supported ones are written down here, as their reference tokenizers have
 * them (normalisation and ignore_merges included).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/gguf.h"
#include "engine/tokenizer_internal.h"

enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_UNUSED = 5
};

struct pre {
    const char *name;
    bool digits; /* single digits are cut out first */
    const char *pattern;
    bool nfc, ignore_merges, add_bos;
};

#define LLAMA3_LIKE(digits)                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct pre pres[] = {
    {.name = "smollm", .digits = true, .pattern = split_gpt2_pattern},
    {.name = "gpt-2", .pattern = split_gpt2_pattern},
    {.name = "llama-bpe",
     .pattern = LLAMA3_LIKE("\\p{N}{1,3}"),
     .ignore_merges = true,
     .add_bos = true},
    {.name = "qwen2", .pattern = LLAMA3_LIKE("\\p{N}"), .nfc = true},
};

static int find_pre(const struct gguf *g, const char *file, const struct pre **ret,
                    struct error *err)
{
    struct gguf_str model = {0}, pre = {0};
    int r = gguf_get_str(g, "tokenizer.ggml.model", &model, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"tokenizer.ggml.model\" is missing", file);
    if (r < 0)
        return r;
    if (model.len != 4 || memcmp(model.s, "gpt2", 4))
        return ERR(err, UNSUPPORTED,
                   "%s: \"tokenizer.ggml.model\" is \"%.*s\"; supported: gpt2 (byte-level BPE)",
                   file, (int)(model.len < 40 ? model.len : 40), model.s);
    r = gguf_get_str(g, "tokenizer.ggml.pre", &pre, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_LEN(pres); i++)
        if (pre.len == strlen(pres[i].name) && !memcmp(pre.s, pres[i].name, pre.len)) {
            *ret = &pres[i];
            return 0;
        }
    return ERR(err, UNSUPPORTED,
               "%s: \"tokenizer.ggml.pre\" is %s%.*s%s; supported: smollm, gpt-2, llama-bpe, qwen2",
               file, r > 0 ? "missing" : "\"", (int)(pre.len < 40 ? pre.len : 40),
               pre.len ? pre.s : "", r > 0 ? "" : "\"");
}

static int read_token(struct tokenizer *t, uint32_t id, const struct gguf_str *s, int32_t type,
                      struct error *err)
{
    uint32_t other = 0;
    struct added_token a = {.id = id, .special = type != TYPE_USER_DEFINED};
    int r;
    switch (type) {
    case TYPE_NORMAL:
        r = vocab_add_byte_level(&t->vocab, id, s->s, s->len, &other);
        if (r > 0)
            return ERR(err, FORMAT,
                       "%s: tokenizer.ggml.tokens[%" PRIu32 "] and [%" PRIu32
                       "] have the same text \"%.*s\"",
                       t->name, other, id, (int)(s->len < 40 ? s->len : 40), s->s);
        break;
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
    case TYPE_USER_DEFINED:
        if (s->len > ADDED_MAX_BYTES)
            return ERR(err, LIMIT,
                       "%s: tokenizer.ggml.tokens[%" PRIu32 "] has %zu bytes, more than %d",
                       t->name, id, s->len, ADDED_MAX_BYTES);
        r = vocab_add_raw(&t->vocab, id, s->s, s->len,
                          TOKEN_ADDED | (a.special ? TOKEN_SPECIAL : 0));
        if (r == 0)
            r = added_add(&t->added, &a, s->s, s->len);
        break;
    case TYPE_UNUSED: /* a row of the model without a token */
        return 0;
    default:
        return ERR(err, FORMAT,
                   "%s: tokenizer.ggml.token_type[%" PRIu32 "] is %" PRId32 ", must be from 1 to 5",
                   t->name, id, type);
    }
    return r < 0 ? ERR_NOMEM(err) : 0;
}

static int read_tokens(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    uint64_t n = 0, n_types = 0;
    struct gguf_str_iter it;
    struct gguf_str s;
    int r = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &n, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"tokenizer.ggml.tokens\" is missing", t->name);
    if (r < 0 || (r = gguf_iter_strings(g, "tokenizer.ggml.tokens", &it, err)) < 0)
        return r;
    if (n == 0 || n > INT32_MAX)
        return ERR(err, FORMAT, "%s: \"tokenizer.ggml.tokens\" has %" PRIu64 " tokens", t->name, n);
    uint64_t n_declared = 0;
    r = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &n_declared, err);
    if (r < 0)
        return r;
    if (r == 0 && n_declared != n)
        return ERR(err, FORMAT,
                   "%s: \"tokenizer.ggml.token_type\" has %" PRIu64 " entries for %" PRIu64
                   " tokens",
                   t->name, n_declared, n);
    const char *types =
        r == 0 ? gguf_array_data(g, "tokenizer.ggml.token_type", GGUF_I32, &n_types) : NULL;
    if (vocab_init(&t->vocab, (uint32_t)n, n) < 0)
        return ERR_NOMEM(err);
    for (uint32_t id = 0; id < n && gguf_iter_next(&it, &s); id++) {
        int32_t type = TYPE_NORMAL;
        if (types)
            memcpy(&type, types + (size_t)id * sizeof(type), sizeof(type));
        if (!utf8_valid(s.s, s.len))
            return ERR(err, FORMAT, "%s: tokenizer.ggml.tokens[%" PRIu32 "] is not UTF-8", t->name,
                       id);
        r = read_token(t, id, &s, type, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_merges(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    uint64_t n = 0;
    struct gguf_str_iter it;
    struct gguf_str s;
    _cleanup_strbuf_ struct strbuf name = {0};
    int r = gguf_get_array(g, "tokenizer.ggml.merges", GGUF_STRING, &n, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"tokenizer.ggml.merges\" is missing", t->name);
    if (r < 0 || (r = gguf_iter_strings(g, "tokenizer.ggml.merges", &it, err)) < 0)
        return r;
    if (n > INT32_MAX)
        return ERR(err, LIMIT, "%s: \"tokenizer.ggml.merges\" has %" PRIu64 " merges", t->name, n);
    if (bpe_init(&t->bpe, n) < 0 || strbuf_addf(&name, "%s: tokenizer.ggml.merges", t->name) < 0)
        return ERR_NOMEM(err);
    /* Single bytes are looked up before added tokens can be named: those are no bytes. */
    bpe_set_bytes(&t->bpe, &t->vocab);
    for (size_t i = 0; i < t->added.n; i++)
        vocab_make_plain(&t->vocab, t->added.tokens[i].id);
    for (uint32_t rank = 0; rank < n && gguf_iter_next(&it, &s); rank++) {
        const char *space = s.len ? memchr(s.s, ' ', s.len) : NULL;
        size_t left = space ? (size_t)(space - s.s) : 0, right = space ? s.len - left - 1 : 0;
        if (!space || memchr(space + 1, ' ', right))
            return ERR(err, FORMAT, "%s[%" PRIu32 "]: \"%.*s\" is not two texts with one space",
                       name.s, rank, (int)(s.len < 40 ? s.len : 40), s.s);
        r = bpe_add_merge_text(&t->bpe, &t->vocab, s.s, left, space + 1, right, rank, name.s, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* 0 found, 1 absent. */
static int read_named_id(const struct tokenizer *t, const struct gguf *g, const char *key,
                         uint32_t *ret, struct error *err)
{
    uint32_t id = 0;
    int r = gguf_get_u32(g, key, &id, err);
    if (r != 0)
        return r;
    if (id >= t->vocab.n || !(t->vocab.flags[id] & TOKEN_PRESENT))
        return ERR(err, FORMAT, "%s: \"%s\" is %" PRIu32 ", not an id of the %" PRIu32 " tokens",
                   t->name, key, id, t->vocab.n);
    *ret = id;
    return 0;
}

static int load(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    const struct pre *pre = NULL;
    int r;
    if ((r = find_pre(g, t->name, &pre, err)) < 0 || (r = read_tokens(t, g, err)) < 0)
        return r;
    if ((r = read_named_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, err)) < 0)
        return r;
    if (r == 0 && tokenizer_make_special(t, t->eos) < 0)
        return ERR_NOMEM(err);
    if ((r = read_merges(t, g, err)) < 0)
        return r;
    t->add_bos = pre->add_bos;
    if ((r = gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err)) < 0)
        return r;
    if (t->add_bos) {
        r = read_named_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err);
        if (r > 0)
            return ERR(err, FORMAT,
                       "%s: BOS is to be added, but \"tokenizer.ggml.bos_token_id\" is missing",
                       t->name);
        if (r < 0)
            return r;
    }
    t->nfc = pre->nfc;
    t->bpe.ignore_merges = pre->ignore_merges;
    char name[64];
    snprintf(name, sizeof(name), "pre-tokenizer %s", pre->name);
    r = pre->digits ? split_add_digits(&t->split, true, name, err) : 0;
    if (r == 0)
        r = split_add_regex(&t->split, pre->pattern, strlen(pre->pattern), SPLIT_ISOLATED, false,
                            name, err);
    if (r < 0)
        return r;
    return added_build(&t->added, t->nfc) < 0 ? ERR_NOMEM(err) : 0;
}

int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **ret, struct error *err)
{
    _cleanup_(tokenizer_freep) struct tokenizer *t = mem_zalloc(sizeof(*t));
    if (!t || !(t->name = mem_strdup(gguf_path(g))))
        return ERR_NOMEM(err);
    t->bos = t->eos = TOK_NONE;
    int r = load(t, g, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(t);
    return 0;
}
