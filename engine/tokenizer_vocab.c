/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vocabulary: bytes of each id, and ids by bytes.  The byte-level alphabet writes each byte as
 * one printable code point: printable Latin-1 as itself, the other 68 bytes as U+0100 onwards.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/tokenizer_internal.h"

/* The byte that a code point of the alphabet stands for, or -1. */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff))
        return (int)cp;
    if (cp < 0x100 || cp > 0x143)
        return -1;
    uint32_t i = cp - 0x100; /* rank among the bytes that are not printable */
    if (i <= 0x20)
        return (int)i;
    if (i <= 0x42)
        return (int)(i - 0x21 + 0x7f); /* 7f..a0 */
    return 0xad;
}

bool byte_level_decode(const char *text, size_t len, char *out, size_t *ret_len)
{
    size_t n = 0;
    while (len) {
        uint32_t cp;
        size_t step = utf8_decode(text, len, &cp);
        int b = step ? alphabet_byte(cp) : -1;
        if (b < 0)
            return false;
        out[n++] = (char)b;
        text += step;
        len -= step;
    }
    *ret_len = n;
    return true;
}

int vocab_init(struct vocab *v, uint32_t n_ids, size_t n_plain)
{
    size_t cap = 16;
    while (cap / 2 < n_plain)
        cap *= 2;
    *v = (struct vocab){.n = n_ids, .mask = cap - 1};
    v->off = mem_calloc(n_ids, sizeof(*v->off));
    v->len = mem_calloc(n_ids, sizeof(*v->len));
    v->flags = mem_calloc(n_ids, sizeof(*v->flags));
    v->slots = mem_array(cap, sizeof(*v->slots));
    if (!v->off || !v->len || !v->flags || !v->slots) {
        vocab_done(v);
        return DEDIT_E_NOMEM;
    }
    memset(v->slots, 0xff, cap * sizeof(*v->slots));
    return 0;
}

void vocab_done(struct vocab *v)
{
    mem_free(v->off);
    mem_free(v->len);
    mem_free(v->flags);
    mem_free(v->slots);
    strbuf_done(&v->bytes);
    *v = (struct vocab){0};
}

/* The slot that holds the token with these bytes, or the free one where it belongs. */
static size_t find_slot(const struct vocab *v, const char *bytes, size_t len)
{
    for (size_t i = (size_t)XXH3_64bits(bytes, len) & v->mask;; i = (i + 1) & v->mask) {
        uint32_t id = v->slots[i];
        if (id == TOK_NONE || (v->len[id] == len && !memcmp(v->bytes.s + v->off[id], bytes, len)))
            return i;
    }
}

uint32_t vocab_find(const struct vocab *v, const char *bytes, size_t len)
{
    return len && v->slots ? v->slots[find_slot(v, bytes, len)] : TOK_NONE;
}

/* Where the bytes of the vocabulary stop: offsets are 32 bits. */
#define MAX_BYTES ((size_t)1 << 31)

static int put(struct vocab *v, uint32_t id, const char *text, size_t len)
{
    if (len > MAX_BYTES - v->bytes.len)
        return DEDIT_E_NOMEM;
    size_t at = v->bytes.len;
    int r = strbuf_add(&v->bytes, text, len);
    if (r < 0)
        return r;
    v->off[id] = (uint32_t)at;
    v->len[id] = (uint32_t)len;
    return 0;
}

int vocab_add_byte_level(struct vocab *v, uint32_t id, const char *text, size_t len,
                         uint32_t *ret_other)
{
    *ret_other = id;
    if (v->flags[id] & TOKEN_PRESENT)
        return VOCAB_SAME_ID;
    if (len > MAX_BYTES - v->bytes.len)
        return DEDIT_E_NOMEM;
    int r = strbuf_reserve(&v->bytes, len);
    if (r < 0)
        return r;
    size_t at = v->bytes.len, n;
    char *dst = v->bytes.s + at;
    if (!byte_level_decode(text, len, dst, &n)) {
        r = put(v, id, text, len);
        if (r == 0)
            v->flags[id] = TOKEN_PRESENT;
        return r;
    }
    if (n) {
        size_t slot = find_slot(v, dst, n);
        if (v->slots[slot] != TOK_NONE) {
            *ret_other = v->slots[slot];
            return VOCAB_SAME_TEXT;
        }
        v->slots[slot] = id;
    }
    v->bytes.len += n;
    v->bytes.s[v->bytes.len] = '\0';
    v->off[id] = (uint32_t)at;
    v->len[id] = (uint32_t)n;
    v->flags[id] = n ? TOKEN_PRESENT | TOKEN_PLAIN : TOKEN_PRESENT;
    return 0;
}

int vocab_add_raw(struct vocab *v, uint32_t id, const char *text, size_t len, unsigned flags)
{
    if (v->flags[id] & TOKEN_PRESENT)
        return VOCAB_SAME_ID;
    int r = put(v, id, text, len);
    if (r < 0)
        return r;
    v->flags[id] = (uint8_t)(flags | TOKEN_PRESENT);
    return 0;
}

void vocab_make_plain(struct vocab *v, uint32_t id)
{
    const char *text = v->bytes.s + v->off[id];
    size_t len = v->len[id];
    for (size_t i = 0; i < len; i++)
        if (text[i] < 0x21 || text[i] > 0x7e)
            return;
    size_t slot = len ? find_slot(v, text, len) : 0;
    if (len == 0 || v->slots[slot] != TOK_NONE)
        return;
    v->slots[slot] = id;
    v->flags[id] |= TOKEN_PLAIN;
}
