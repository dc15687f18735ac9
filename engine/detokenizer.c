/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of tokens to whole UTF-8.  Bytes of an unfinished character wait in the detokenizer; what
 * cannot become a character any more is released at once as U+FFFD, one per maximal subpart
 * (Unicode, conformance D93b; the same as WHATWG's decoder).
 */
#include <string.h>

#include "engine/tokenizer.h"

static const char replacement[3] = {'\xef', '\xbf', '\xbd'};

/* Bytes of the character that begins with b; 0 when none does. */
static unsigned char_bytes(uint8_t b)
{
    if (b < 0x80)
        return 1;
    if (b >= 0xc2 && b <= 0xdf)
        return 2;
    if (b >= 0xe0 && b <= 0xef)
        return 3;
    return b >= 0xf0 && b <= 0xf4 ? 4 : 0;
}

/* Can b follow pending[0..n)? Only the second byte depends on the first. */
static bool can_follow(const uint8_t *pending, unsigned n, uint8_t b)
{
    uint8_t lo = 0x80, hi = 0xbf;
    if (n == 1) {
        if (pending[0] == 0xe0)
            lo = 0xa0;
        else if (pending[0] == 0xed)
            hi = 0x9f;
        else if (pending[0] == 0xf0)
            lo = 0x90;
        else if (pending[0] == 0xf4)
            hi = 0x8f;
    }
    return b >= lo && b <= hi;
}

/* out must have room. */
static void put(struct strbuf *out, const void *s, size_t n)
{
    memcpy(out->s + out->len, s, n);
    out->len += n;
}

int detokenizer_push(struct detokenizer *d, const struct tokenizer *t, uint32_t id, unsigned flags,
                     struct strbuf *out)
{
    size_t n;
    const char *bytes = tokenizer_token_bytes(t, id, &n);
    if (n == 0 || ((flags & DETOKENIZE_SKIP_SPECIAL) && tokenizer_is_special(t, id)))
        return 0;
    /* At worst each byte becomes a U+FFFD. */
    if (n > SIZE_MAX / 3 - 4)
        return DEDIT_E_NOMEM;
    int r = strbuf_reserve(out, (n + d->n_pending) * sizeof(replacement));
    if (r < 0)
        return r;
    for (size_t i = 0; i < n;) {
        uint8_t b = (uint8_t)bytes[i];
        if (d->n_pending == 0) {
            unsigned need = char_bytes(b);
            if (need == 1)
                put(out, &b, 1);
            else if (need == 0)
                put(out, replacement, sizeof(replacement));
            else
                d->pending[d->n_pending++] = b;
            i++;
        } else if (can_follow(d->pending, d->n_pending, b)) {
            d->pending[d->n_pending++] = b;
            if (d->n_pending == char_bytes(d->pending[0])) {
                put(out, d->pending, d->n_pending);
                d->n_pending = 0;
            }
            i++;
        } else {
            put(out, replacement, sizeof(replacement));
            d->n_pending = 0; /* b is looked at again, as a first byte */
        }
    }
    out->s[out->len] = '\0';
    return 0;
}

int detokenizer_flush(struct detokenizer *d, struct strbuf *out)
{
    if (d->n_pending == 0)
        return 0;
    int r = strbuf_add(out, replacement, sizeof(replacement));
    if (r == 0)
        d->n_pending = 0;
    return r;
}
