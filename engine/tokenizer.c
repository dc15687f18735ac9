/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer's life, its look-ups, and the way of a text through its parts. */
#include "engine/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/tokenizer_internal.h"

struct tokenizer *tokenizer_free(struct tokenizer *t)
{
    if (t) {
        vocab_done(&t->vocab);
        bpe_done(&t->bpe);
        split_done(&t->split);
        added_done(&t->added);
        mem_free(t->name);
        mem_free(t);
    }
    return NULL;
}

int token_list_add(struct token_list *l, uint32_t id)
{
    if (l->len == l->cap) {
        size_t cap = l->cap ? l->cap + l->cap / 2 : 64;
        uint32_t *ids = mem_realloc_array(l->ids, cap, sizeof(*ids));
        if (!ids)
            return DEDIT_E_NOMEM;
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->len++] = id;
    return 0;
}

void token_list_done(struct token_list *l)
{
    mem_free(l->ids);
    *l = (struct token_list){0};
}

uint32_t tokenizer_n_tokens(const struct tokenizer *t)
{
    return t->vocab.n;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, size_t *ret_len)
{
    *ret_len = 0;
    if (!t || id >= t->vocab.n || !(t->vocab.flags[id] & TOKEN_PRESENT))
        return NULL;
    *ret_len = t->vocab.len[id];
    return t->vocab.bytes.s ? t->vocab.bytes.s + t->vocab.off[id] : "";
}

bool tokenizer_is_added(const struct tokenizer *t, uint32_t id)
{
    return id < t->vocab.n && (t->vocab.flags[id] & TOKEN_ADDED);
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return t && id < t->vocab.n && (t->vocab.flags[id] & TOKEN_SPECIAL);
}

bool tokenizer_find_added(const struct tokenizer *t, const char *text, size_t len, uint32_t *ret)
{
    const struct added_token *a = added_find_text(&t->added, text, len);
    if (a)
        *ret = a->id;
    return a != NULL;
}

bool tokenizer_bos(const struct tokenizer *t, uint32_t *ret_id)
{
    if (!t->add_bos)
        return false;
    *ret_id = t->bos;
    return true;
}

bool tokenizer_eos(const struct tokenizer *t, uint32_t *ret_id)
{
    if (t->eos == TOK_NONE)
        return false;
    *ret_id = t->eos;
    return true;
}

int tokenizer_make_special(struct tokenizer *t, uint32_t id)
{
    uint8_t *flags = &t->vocab.flags[id];
    if (*flags & TOKEN_SPECIAL)
        return 0;
    *flags |= TOKEN_ADDED | TOKEN_SPECIAL;
    struct added_token *known = added_find_id(&t->added, id);
    if (known) {
        known->special = true;
        return 0;
    }
    return added_add(&t->added, &(struct added_token){.id = id, .special = true},
                     t->vocab.bytes.s + t->vocab.off[id], t->vocab.len[id]);
}

/* ---- encoding */

/* Offset of the first byte that is not part of valid UTF-8, or len. */
static size_t utf8_prefix(const char *s, size_t len)
{
    size_t at = 0;
    while (at < len) {
        uint64_t eight;
        uint32_t cp;
        while (len - at >= sizeof(eight)) {
            memcpy(&eight, s + at, sizeof(eight));
            if (eight & 0x8080808080808080u)
                break;
            at += sizeof(eight);
        }
        if (at == len)
            break;
        size_t n = utf8_decode(s + at, len - at, &cp);
        if (n == 0)
            return at;
        at += n;
    }
    return len;
}

/* Tokens searched for in normalised text, and the model for what lies between them. */
static int encode_normalized(struct encoder *e, const char *text, size_t len, const uint8_t *allow,
                             bool added)
{
    const struct added *a = &e->t->added;
    struct added_match m;
    size_t done = 0;
    int r;
    while (added && a->any_normalized &&
           added_next(a, &a->normalized, text, len, allow, done, done, &m)) {
        r = split_run(e, 0, text + done, m.start - done);
        if (r == 0 && token_list_add(e->out, m.id) < 0)
            r = ERR_NOMEM(e->err);
        if (r < 0)
            return r;
        done = m.end;
    }
    return split_run(e, 0, text + done, len - done);
}

static int encode_between(struct encoder *e, const char *text, size_t len, const uint8_t *allow,
                          bool added)
{
    if (len == 0)
        return 0;
    if (!e->t->nfc || nfc_plain(text, len))
        return encode_normalized(e, text, len, allow, added);
    _cleanup_strbuf_ struct strbuf n = {0}, n_allow = {0};
    bool carry = allow && added && e->t->added.any_normalized;
    if (nfc_append(text, len, carry ? allow : NULL, &n, carry ? &n_allow : NULL) < 0)
        return ERR_NOMEM(e->err);
    return encode_normalized(e, n.s, n.len, carry ? (const uint8_t *)n_allow.s : NULL, added);
}

static int encode_text(struct encoder *e, const char *text, size_t len, const uint8_t *allow,
                       bool added)
{
    const struct added *a = &e->t->added;
    struct added_match m;
    size_t done = 0;
    int r;
    while (added && added_next(a, &a->raw, text, len, allow, done, done, &m)) {
        r = encode_between(e, text + done, m.start - done, allow ? allow + done : NULL, added);
        if (r == 0 && token_list_add(e->out, m.id) < 0)
            r = ERR_NOMEM(e->err);
        if (r < 0)
            return r;
        done = m.end;
    }
    return encode_between(e, text + done, len - done, allow ? allow + done : NULL, added);
}

static int encode(struct encoder *e, const char *text, size_t len, const uint8_t *allow,
                  unsigned flags)
{
    const struct tokenizer *t = e->t;
    size_t bad = utf8_prefix(text, len), first = e->out->len;
    if (bad < len)
        return ERR(e->err, INVALID, "the text is not UTF-8: byte 0x%02x at offset %zu",
                   (unsigned)(uint8_t)text[bad], bad);
    e->md = regex_match_data();
    e->mctx = regex_match_context(len);
    if (!e->md || !e->mctx || (len >= BPE_CACHE_BYTES_MIN && bpe_cache_new(e) < 0))
        return ERR_NOMEM(e->err);
    /* BOS goes first and is taken back when the text turns out to begin with it. */
    bool bos = (flags & TOKENIZE_BOS) && t->add_bos;
    if (bos && token_list_add(e->out, t->bos) < 0)
        return ERR_NOMEM(e->err);
    int r = encode_text(e, text, len, allow, allow || (flags & TOKENIZE_SPECIAL));
    if (r == 0 && bos && e->out->len > first + 1 && e->out->ids[first + 1] == t->bos) {
        e->out->len--;
        memmove(e->out->ids + first, e->out->ids + first + 1,
                (e->out->len - first) * sizeof(*e->out->ids));
    }
    return r;
}

static int encode_call(const struct tokenizer *t, const char *text, size_t len,
                       const uint8_t *allow, unsigned flags, struct token_list *out,
                       size_t *ret_dropped, struct error *err)
{
    struct encoder e = {.t = t, .out = out, .err = err, .text = text};
    size_t before = out->len;
    int r = encode(&e, text, len, allow, flags);
    pcre2_match_data_free(e.md);
    pcre2_match_context_free(e.mctx);
    mem_free(e.work);
    mem_free(e.cache);
    if (r < 0)
        out->len = before;
    else if (ret_dropped)
        *ret_dropped = e.dropped;
    return r;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     struct token_list *out, size_t *ret_dropped, struct error *err)
{
    return encode_call(t, text, len, NULL, flags, out, ret_dropped, err);
}

int tokenizer_encode_allow(const struct tokenizer *t, const char *text, size_t len,
                           const uint8_t *allow, unsigned flags, struct token_list *out,
                           size_t *ret_dropped, struct error *err)
{
    return encode_call(t, text, len, allow, flags, out, ret_dropped, err);
}
