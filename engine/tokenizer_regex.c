/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular expressions of tokenizer.json are in Oniguruma's syntax.  What PCRE2 reads otherwise is
 * rewritten (white space, word and hex classes, \uHHHH, the m flag); what cannot be is refused, so
 * that a text is never split in another way without a word.
 */
#include "engine/tokenizer_internal.h"

#include <string.h>

#include "base/alloc.h"

#define MAX_PATTERN_BYTES 16384

/* Unicode's White_Space.  PCRE2's \s has U+180E on top. */
#define SPACE                                                                                      \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"            \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                  \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}"               \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}"
/* Oniguruma's word characters, the letters in circles and squares among them; outside brackets its
 * table for Latin-1 adds six numerals (both checked over all code points). */
#define WORD_IN_CLASS                                                                              \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"                    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define WORD    WORD_IN_CLASS "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define HEX     "0-9a-fA-F"
#define NOT_HEX "\\x00-\\x2f\\x3a-\\x40\\x47-\\x60\\x67-\\x{10ffff}"

const char split_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct translator {
    const char *s;
    size_t len, at;
    bool in_class;
    struct strbuf *out;
    const char *name;
    struct error *err;
};

static int put(struct translator *t, const char *s, size_t n)
{
    return strbuf_add(t->out, s, n) < 0 ? ERR_NOMEM(t->err) : 0;
}

static int puts_(struct translator *t, const char *s)
{
    return put(t, s, strlen(s));
}

static int unsupported(struct translator *t, const char *what)
{
    return ERR(t->err, UNSUPPORTED, "%s: regular expression at byte %zu: %s is not supported",
               t->name, t->at, what);
}

/* A class of characters: its members inside brackets, or brackets around them. */
static int put_class(struct translator *t, const char *members, bool negate)
{
    if (t->in_class)
        return puts_(t, members);
    int r = puts_(t, negate ? "[^" : "[");
    if (r == 0)
        r = puts_(t, members);
    return r < 0 ? r : puts_(t, "]");
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static int translate_escape(struct translator *t)
{
    if (t->at + 1 >= t->len)
        return ERR(t->err, FORMAT, "%s: regular expression ends in a backslash", t->name);
    char c = t->s[t->at + 1];
    size_t n = 2;
    int r;
    switch (c) {
    case 's':
        r = put_class(t, SPACE, false);
        break;
    case 'S':
        r = put_class(t, NOT_SPACE, false);
        break;
    case 'w':
        r = put_class(t, t->in_class ? WORD_IN_CLASS : WORD, false);
        break;
    case 'W':
        if (t->in_class)
            return unsupported(t, "\\W in brackets");
        r = put_class(t, WORD, true);
        break;
    case 'd': /* both mean \p{Nd} */
    case 'D':
        r = put(t, t->s + t->at, 2);
        break;
    case 'h':
        r = put_class(t, HEX, false);
        break;
    case 'H':
        r = put_class(t, NOT_HEX, false);
        break;
    case 'u':
        for (; n < 6; n++)
            if (t->at + n >= t->len || !is_hex(t->s[t->at + n]))
                return ERR(t->err, FORMAT,
                           "%s: regular expression at byte %zu: \\u needs four hexadecimal digits",
                           t->name, t->at);
        r = puts_(t, "\\x{");
        if (r == 0)
            r = put(t, t->s + t->at + 2, 4);
        if (r == 0)
            r = puts_(t, "}");
        break;
    case 'p':
    case 'P':
        if (t->at + 2 >= t->len || t->s[t->at + 2] != '{')
            return unsupported(t, "\\p without braces");
        while (t->at + n < t->len && t->s[t->at + n] != '}')
            n++;
        if (t->at + n >= t->len)
            return ERR(t->err, FORMAT, "%s: regular expression at byte %zu: \\p{ is not closed",
                       t->name, t->at);
        n++;
        r = put(t, t->s + t->at, n);
        break;
    case 'x':
        if (t->at + 2 < t->len && t->s[t->at + 2] == '{')
            while (t->at + n < t->len && t->s[t->at + n - 1] != '}')
                n++;
        r = put(t, t->s + t->at, n);
        break;
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'v':
    case 'a':
    case 'e':
    case 'A':
    case 'z':
    case 'Z':
        /* \v is U+000B in Oniguruma, vertical white space in PCRE2. */
        r = c == 'v' ? puts_(t, "\\x0b") : put(t, t->s + t->at, 2);
        break;
    default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
            return unsupported(t, (char[]){'\\', c, '\0'});
        r = put(t, t->s + t->at, 2); /* the backslash takes a character's meaning away */
        break;
    }
    t->at += n;
    return r;
}

/* "(?" and what follows up to the ':' or ')' of a group of flags. */
static int translate_group(struct translator *t)
{
    size_t i = t->at + 2;
    while (i < t->len && (t->s[i] == 'i' || t->s[i] == 'm' || t->s[i] == 'x' || t->s[i] == '-'))
        i++;
    bool flags = i > t->at + 2;
    if (i >= t->len || !strchr(flags ? ":)" : ":=!>#<", t->s[i]))
        return unsupported(t, "this kind of group");
    if (t->s[i] == '<' && (i + 1 >= t->len || !strchr("=!", t->s[i + 1])))
        return unsupported(t, "a named group");
    int r = 0;
    for (; t->at < i && r == 0; t->at++)
        r = puts_(t, t->s[t->at] == 'm' ? "s" : (char[]){t->s[t->at], '\0'});
    return r;
}

static int translate_open_bracket(struct translator *t)
{
    int r = put(t, "[", 1);
    t->at++;
    t->in_class = true;
    if (r == 0 && t->at < t->len && t->s[t->at] == '^') {
        r = put(t, "^", 1);
        t->at++;
    }
    if (r == 0 && t->at < t->len && t->s[t->at] == ']')
        return unsupported(t, "an unescaped ] as the first of its class");
    return r;
}

static int translate_in_class(struct translator *t)
{
    const char *p = t->s + t->at;
    size_t left = t->len - t->at;
    if (p[0] == '[')
        return unsupported(t, left > 1 && p[1] == ':' ? "a POSIX class" : "a class in a class");
    if (left > 1 && p[0] == '&' && p[1] == '&')
        return unsupported(t, "&& in a class");
    t->in_class = p[0] != ']';
    t->at++;
    return put(t, p, 1);
}

int regex_translate(const char *pattern, size_t len, struct strbuf *out, const char *name,
                    struct error *err)
{
    struct translator t = {.s = pattern, .len = len, .out = out, .name = name, .err = err};
    int r = 0;
    if (len > MAX_PATTERN_BYTES)
        return ERR(err, LIMIT, "%s: regular expression of %zu bytes, more than %d", name, len,
                   MAX_PATTERN_BYTES);
    while (r == 0 && t.at < len) {
        char c = pattern[t.at], next = t.at + 1 < len ? pattern[t.at + 1] : '\0';
        if (c == '\\') {
            r = translate_escape(&t);
        } else if (t.in_class) {
            r = translate_in_class(&t);
        } else if (c == '[') {
            r = translate_open_bracket(&t);
        } else if (c == '(' && next == '*') {
            r = unsupported(&t, "(*");
        } else if (c == '(' && next == '?') {
            r = translate_group(&t);
        } else if (c == '}' && next == '+') {
            r = unsupported(&t, "a count followed by +");
        } else {
            r = put(&t, &c, 1);
            t.at++;
        }
    }
    return r;
}

/* ---- PCRE2 with our allocator */

static _Thread_local bool pcre_out_of_memory;

static void *pcre_alloc(size_t n, void *arg)
{
    (void)arg;
    void *p = mem_alloc(n);
    pcre_out_of_memory |= !p;
    return p;
}

static void pcre_free(void *p, void *arg)
{
    (void)arg;
    mem_free(p);
}

static void context_freep(pcre2_general_context **p)
{
    pcre2_general_context_free(*p);
}

static void compile_context_freep(pcre2_compile_context **p)
{
    pcre2_compile_context_free(*p);
}

int regex_compile(const char *pattern, size_t len, pcre2_code **ret, bool *ret_jit,
                  const char *name, struct error *err)
{
    _cleanup_(context_freep) pcre2_general_context *g =
        pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    _cleanup_(compile_context_freep) pcre2_compile_context *c =
        g ? pcre2_compile_context_create(g) : NULL;
    _cleanup_strbuf_ struct strbuf text = {0};
    pcre_out_of_memory = false;
    if (!c)
        return ERR_NOMEM(err);
    int r = regex_translate(pattern, len, &text, name, err);
    if (r < 0)
        return r;
    /* As Oniguruma: ^ and $ are the ends of lines, a line ends in \n. */
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)(text.s ? text.s : ""), text.len,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE |
                                       PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE,
                                   &code, &at, c);
    if (!re) {
        char why[128];
        if (pcre_out_of_memory)
            return ERR_NOMEM(err);
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
        return ERR(err, FORMAT, "%s: broken regular expression: %s", name, why);
    }
    /* No JIT (hardened kernels forbid such memory): the interpreter gives the same, slower. */
    bool jit = pcre2_jit_compile(re, PCRE2_JIT_COMPLETE) == 0;
    if (pcre_out_of_memory) {
        pcre2_code_free(re);
        return ERR_NOMEM(err);
    }
    *ret_jit = jit;
    *ret = re;
    return 0;
}

pcre2_match_data *regex_match_data(void)
{
    _cleanup_(context_freep) pcre2_general_context *g =
        pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    return g ? pcre2_match_data_create(1, g) : NULL;
}

pcre2_match_context *regex_match_context(size_t n)
{
    _cleanup_(context_freep) pcre2_general_context *g =
        pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_match_context *m = g ? pcre2_match_context_create(g) : NULL;
    if (m) {
        /* One match may walk back over a whole run, so the limit grows with the text; a pattern
         * that explodes stops here. */
        size_t limit = 1000000 + 16 * (n < (size_t)1 << 27 ? n : (size_t)1 << 27);
        pcre2_set_match_limit(m, (uint32_t)limit);
        pcre2_set_heap_limit(m, 65536 /* KiB */);
    }
    return m;
}
