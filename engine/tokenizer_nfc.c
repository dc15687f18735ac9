/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NFC with utf8proc's tables.  Only stretches that may change are looked at: one character that is
 * certain to stay, followed by those that are not.  Decomposition, ordering and composition run
 * over such a stretch in linear time (utf8proc's own ordering is quadratic, which a long run of
 * marks would exploit).
 */
#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/tokenizer_internal.h"

/* Unchanged by NFC, of combining class 0, and never the second of a composition: what stands before
 * such a character is settled.  A safe subset is enough; the rest takes the slow way. */
static bool is_stable(uint32_t cp)
{
    return cp < 0x300 || (cp >= 0x400 && cp <= 0x482) || /* Latin, Cyrillic */
           (cp >= 0x2010 && cp <= 0x203f) ||             /* dashes, quotes */
           (cp >= 0x3001 && cp <= 0x3029) ||             /* CJK punctuation */
           cp == 0x11a7 /* no trailing consonant, though utf8proc composes it as one */ ||
           (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x30a1 && cp <= 0x30fa) || /* kana */
           (cp >= 0x4e00 && cp <= 0x9fff) ||                                   /* ideographs */
           (cp >= 0xac00 && cp <= 0xd7a3) || /* Hangul syllables */
           (cp >= 0xff01 && cp <= 0xff9f);   /* full width */
}

/* Length of the leading part of text that is stable for certain. */
static size_t stable_prefix(const char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        uint32_t cp;
        if ((uint8_t)text[at] < 0x80) {
            at++;
            continue;
        }
        size_t n = utf8_decode(text + at, len - at, &cp);
        if (n == 0 || !is_stable(cp))
            break;
        at += n;
    }
    return at;
}

bool nfc_plain(const char *text, size_t len)
{
    return stable_prefix(text, len) == len;
}

/* Canonical ordering: stable sort by combining class of each run of characters that have one. */
static int order(utf8proc_int32_t *cps, size_t n)
{
    _cleanup_free_ utf8proc_int32_t *copy = NULL;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        bool sorted = true;
        utf8proc_propval_t last = 0;
        for (; end < n; end++) {
            utf8proc_propval_t c = utf8proc_get_property(cps[end])->combining_class;
            if (c == 0)
                break;
            sorted &= c >= last;
            last = c;
        }
        if (!sorted) {
            size_t count[257] = {0}, run = end - i;
            if (!copy && !(copy = mem_array(n, sizeof(*copy))))
                return DEDIT_E_NOMEM;
            memcpy(copy, cps + i, run * sizeof(*copy));
            for (size_t k = 0; k < run; k++)
                count[utf8proc_get_property(copy[k])->combining_class + 1]++;
            for (size_t k = 1; k < 257; k++)
                count[k] += count[k - 1];
            for (size_t k = 0; k < run; k++)
                cps[i + count[utf8proc_get_property(copy[k])->combining_class]++] = copy[k];
        }
        i = end + 1;
    }
    return 0;
}

/* Longest canonical decomposition of one code point (Unicode: 4; utf8proc asks for room). */
#define DECOMPOSED_MAX 8

static int append_stretch(const char *text, size_t len, struct strbuf *out)
{
    size_t cap = 0, n = 0;
    for (size_t i = 0; i < len; i++)
        cap += ((uint8_t)text[i] & 0xc0) != 0x80;
    if (cap > SIZE_MAX / DECOMPOSED_MAX / sizeof(utf8proc_int32_t))
        return DEDIT_E_NOMEM;
    cap *= 4;
    _cleanup_free_ utf8proc_int32_t *cps = mem_array(cap + DECOMPOSED_MAX, sizeof(*cps));
    if (!cps)
        return DEDIT_E_NOMEM;
    for (size_t i = 0; i < len;) {
        uint32_t cp = 0;
        size_t step = utf8_decode(text + i, len - i, &cp);
        int last = 0;
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, cps + n, DECOMPOSED_MAX,
                                                     UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last);
        if (step == 0 || k < 0 || k > 4)
            return DEDIT_E_INTERNAL; /* text was checked, and no decomposition is longer */
        i += step;
        n += (size_t)k;
    }
    int r = order(cps, n);
    if (r < 0)
        return r;
    utf8proc_ssize_t m =
        utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (m < 0)
        return DEDIT_E_INTERNAL;
    r = strbuf_reserve(out, (size_t)m * 4);
    for (utf8proc_ssize_t i = 0; i < m && r == 0; i++) {
        char c[4];
        r = strbuf_add(out, c, utf8_encode((uint32_t)cps[i], c));
    }
    return r;
}

/* Carries allow over for a stretch of text that gave out[from..]. */
static int append_allow(const char *text, size_t len, const uint8_t *allow,
                        const struct strbuf *out, size_t from, struct strbuf *out_allow)
{
    size_t n = out->len - from;
    if (n == len && !memcmp(out->s + from, text, n))
        return strbuf_add(out_allow, allow, n);
    uint8_t least = ALLOW_ALL;
    for (size_t i = 0; i < len; i++)
        if (allow[i] < least)
            least = allow[i];
    int r = strbuf_reserve(out_allow, n);
    for (size_t i = 0; i < n && r == 0; i++)
        r = strbuf_addc(out_allow, (char)least);
    return r;
}

int nfc_append(const char *text, size_t len, const uint8_t *allow, struct strbuf *out,
               struct strbuf *out_allow)
{
    size_t at = 0;
    while (at < len) {
        size_t plain = stable_prefix(text + at, len - at);
        if (plain > 0 && at + plain < len) {
            /* The last one before an unstable one may combine with it. */
            do
                plain--;
            while (plain > 0 && ((uint8_t)text[at + plain] & 0xc0) == 0x80);
        }
        int r = strbuf_add(out, text + at, plain);
        if (r == 0 && out_allow)
            r = strbuf_add(out_allow, allow + at, plain);
        if (r < 0)
            return r;
        at += plain;
        if (at == len)
            break;
        /* One stretch: a stable character (or none at the very front) and the unstable ones. */
        size_t end = at;
        uint32_t cp = 0;
        do
            end += utf8_decode(text + end, len - end, &cp);
        while (end < len && utf8_decode(text + end, len - end, &cp) > 0 && !is_stable(cp));
        size_t from = out->len;
        r = append_stretch(text + at, end - at, out);
        if (r == 0 && out_allow)
            r = append_allow(text + at, end - at, allow + at, out, from, out_allow);
        if (r < 0)
            return r;
        at = end;
    }
    return 0;
}
