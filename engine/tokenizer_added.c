/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Added tokens: fixed texts that are cut out before the model sees what lies between them.  The
 * leftmost match wins, the longest of those that start there.  Time is linear in the text: a step
 * looks at most ADDED_MAX_BYTES ahead, and only where some token's first byte stands.
 */
#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/tokenizer_internal.h"

void added_done(struct added *a)
{
    for (size_t i = 0; i < a->n; i++) {
        mem_free(a->tokens[i].text);
        mem_free(a->tokens[i].nfc);
    }
    mem_free(a->tokens);
    mem_free(a->raw.nodes);
    mem_free(a->normalized.nodes);
    u64map_done(&a->by_id);
    u64map_done(&a->by_text);
    *a = (struct added){0};
}

struct added_token *added_find_id(const struct added *a, uint32_t id)
{
    uint64_t i;
    return u64map_get(&a->by_id, id, &i) ? &a->tokens[i] : NULL;
}

/* Texts with one hash are told apart by the next seed; *ret_key is where this text belongs. */
static struct added_token *find_text(const struct added *a, const char *text, size_t len,
                                     uint64_t *ret_key)
{
    for (uint64_t seed = 0;; seed++) {
        uint64_t i;
        *ret_key = hash_bytes(text, len, seed);
        if (!u64map_get(&a->by_text, *ret_key, &i))
            return NULL;
        if (a->tokens[i].len == len && !memcmp(a->tokens[i].text, text, len))
            return &a->tokens[i];
    }
}

struct added_token *added_find_text(const struct added *a, const char *text, size_t len)
{
    uint64_t key;
    return find_text(a, text, len, &key);
}

int added_add(struct added *a, const struct added_token *t, const char *text, size_t len)
{
    uint64_t key;
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        struct added_token *p = mem_realloc_array(a->tokens, cap, sizeof(*p));
        if (!p)
            return DEDIT_E_NOMEM;
        a->tokens = p;
        a->cap = cap;
    }
    struct added_token *n = &a->tokens[a->n];
    *n = *t;
    n->text = mem_alloc(len + 1); /* NULs inside are possible */
    n->len = len;
    if (!n->text)
        return DEDIT_E_NOMEM;
    memcpy(n->text, text, len);
    n->text[len] = '\0';
    size_t at = a->n++; /* from here on added_done() frees it */
    /* Of equal texts (GGUF files may have them) the first is found. */
    if (u64map_put(&a->by_id, t->id, at) < 0 ||
        (!find_text(a, text, len, &key) && u64map_put(&a->by_text, key, at) < 0))
        return DEDIT_E_NOMEM;
    return 0;
}

/* ---- tries */

static int add_node(struct trie *t, uint8_t byte, uint32_t *ret)
{
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 256;
        struct trie_node *p = mem_realloc_array(t->nodes, cap, sizeof(*p));
        if (!p)
            return DEDIT_E_NOMEM;
        t->nodes = p;
        t->cap = cap;
    }
    t->nodes[t->n] = (struct trie_node){.byte = byte};
    *ret = t->n++;
    return 0;
}

/* Node 0 is the root. */
static int trie_add(struct trie *t, const char *text, size_t len, uint32_t token)
{
    uint32_t at = 0, child;
    int r;
    if (len == 0)
        return 0;
    if (t->n == 0 && (r = add_node(t, 0, &at)) < 0)
        return r;
    t->first[(uint8_t)text[0]] = 1;
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t)text[i];
        for (child = t->nodes[at].child; child; child = t->nodes[child].sibling)
            if (t->nodes[child].byte == byte)
                break;
        if (!child) {
            if ((r = add_node(t, byte, &child)) < 0)
                return r;
            t->nodes[child].sibling = t->nodes[at].child;
            t->nodes[at].child = child;
        }
        at = child;
    }
    if (!t->nodes[at].token) /* two tokens that are equal in NFC: the first one stays */
        t->nodes[at].token = token + 1;
    return 0;
}

int added_build(struct added *a, bool nfc)
{
    for (size_t i = 0; i < a->n; i++) {
        struct added_token *t = &a->tokens[i];
        if (t->normalized && nfc && !nfc_plain(t->text, t->len)) {
            _cleanup_strbuf_ struct strbuf text = {0};
            int r = nfc_append(t->text, t->len, NULL, &text, NULL);
            if (r < 0)
                return r;
            t->nfc = TAKE_PTR(text.s);
            t->nfc_len = text.len;
        }
        a->any_normalized |= t->normalized;
        int r = trie_add(t->normalized ? &a->normalized : &a->raw, t->nfc ? t->nfc : t->text,
                         t->nfc ? t->nfc_len : t->len, (uint32_t)i);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- white space and words around a match, as the reference's \s and \w see them */

static bool is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

static bool is_word(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || /* L*, M*, Nd, Nl */
           c == UTF8PROC_CATEGORY_PC || cp == 0x200c || cp == 0x200d ||
           (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
           (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
}

/* Start of the character that ends at text[end]; *ret_cp is that character. */
static size_t char_before(const char *text, size_t end, uint32_t *ret_cp)
{
    size_t at = end - 1;
    while (at > 0 && end - at < 4 && ((uint8_t)text[at] & 0xc0) == 0x80)
        at--;
    if (utf8_decode(text + at, end - at, ret_cp) == 0)
        *ret_cp = 0;
    return at;
}

static bool word_before(const char *text, size_t at)
{
    uint32_t cp;
    if (at == 0)
        return false;
    char_before(text, at, &cp);
    return is_word(cp);
}

static bool word_at(const char *text, size_t len, size_t at)
{
    uint32_t cp;
    return at < len && utf8_decode(text + at, len - at, &cp) > 0 && is_word(cp);
}

static size_t strip_left(const char *text, size_t at, size_t floor)
{
    while (at > floor) {
        uint32_t cp;
        size_t before = char_before(text, at, &cp);
        if (before < floor || !is_space(cp))
            break;
        at = before;
    }
    return at;
}

static size_t strip_right(const char *text, size_t len, size_t at)
{
    uint32_t cp;
    size_t n;
    while (at < len && (n = utf8_decode(text + at, len - at, &cp)) > 0 && is_space(cp))
        at += n;
    return at;
}

/* ---- search */

/* The longest token that starts at text[at] and that every byte of it allows; NULL = none. */
static const struct added_token *longest(const struct added *a, const struct trie *t,
                                         const char *text, size_t len, const uint8_t *allow,
                                         size_t at, size_t *ret_end)
{
    const struct added_token *best = NULL;
    uint32_t node = 0;
    uint8_t allowed = ALLOW_ALL;
    for (size_t i = at; i < len; i++) {
        if (allow && allow[i] < allowed)
            allowed = allow[i];
        if (allowed == ALLOW_NONE)
            break;
        for (node = t->nodes[node].child; node; node = t->nodes[node].sibling)
            if (t->nodes[node].byte == (uint8_t)text[i])
                break;
        if (!node)
            break;
        if (!t->nodes[node].token)
            continue;
        const struct added_token *k = &a->tokens[t->nodes[node].token - 1];
        if (k->special && allowed != ALLOW_ALL)
            continue;
        best = k;
        *ret_end = i + 1;
    }
    return best;
}

bool added_next(const struct added *a, const struct trie *t, const char *text, size_t len,
                const uint8_t *allow, size_t floor, size_t at, struct added_match *ret)
{
    if (t->n == 0)
        return false;
    while (at < len) {
        if (!t->first[(uint8_t)text[at]]) {
            at++;
            continue;
        }
        size_t end = at;
        const struct added_token *k = longest(a, t, text, len, allow, at, &end);
        if (!k) {
            at++;
            continue;
        }
        if (k->single_word && (word_before(text, at) || word_at(text, len, end))) {
            at = end; /* as the reference: nothing else is looked for inside */
            continue;
        }
        ret->start = k->lstrip ? strip_left(text, at, floor) : at;
        ret->end = k->rstrip ? strip_right(text, len, end) : end;
        ret->id = k->id;
        return true;
    }
    return false;
}
