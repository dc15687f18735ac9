/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of JSON texts; it makes jansson's values.
 *
 * jansson's own parser is not used: when an allocation inside it fails it may go on with characters
 * missing, and then reads behind its buffer (seen with 2.14 under the failure hook).  So it can
 * neither be given a budget of memory nor survive the lack of it.  This one bounds nesting and
 * memory as it goes, ends at the first allocation that fails, and is about twice as fast.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "engine/json.h"

/* An empty object costs a hundred times its text: what the values take is added up (roughly: the
 * sizes of jansson's structures and of heap blocks) and bounded. */
#define BUDGET_BASE     ((size_t)16 << 20)
#define BUDGET_PER_BYTE ((size_t)24)
#define COST_OBJECT     320
#define COST_MEMBER     96
#define COST_ARRAY      128
#define COST_ELEMENT    16
#define COST_STRING     80
#define COST_NUMBER     48

struct parser {
    const char *start, *p, *end;
    const char *name;
    size_t first; /* number of the first line */
    size_t budget;
    struct strbuf scratch; /* a string with its escapes resolved */
    struct error *err;
};

static int parse_value(struct parser *j, unsigned depth, json_t **ret);

/* Line and column (in bytes), both from 1; found only when something is wrong. */
static void position(const struct parser *j, const char *at, size_t *line, size_t *column)
{
    *line = j->first;
    *column = 1;
    for (const char *p = j->start; p < at; p++) {
        ++*column;
        if (*p == '\n') {
            ++*line;
            *column = 1;
        }
    }
}

static int fail(struct parser *j, const char *at, const char *what)
{
    size_t line, column;
    position(j, at, &line, &column);
    return ERR(j->err, FORMAT, "%s:%zu:%zu: %s", j->name, line, column, what);
}

static int spend(struct parser *j, size_t bytes)
{
    size_t len = (size_t)(j->end - j->start);
    if (bytes > j->budget)
        return ERR(j->err, LIMIT,
                   "%s: so many values in %zu bytes that they need more than %zu MiB", j->name, len,
                   (BUDGET_BASE + BUDGET_PER_BYTE * len) >> 20);
    j->budget -= bytes;
    return 0;
}

static void skip_blanks(struct parser *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t'))
        j->p++;
}

/* ---- strings */

static int hex4(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* j->p is at the backslash. */
static int parse_escape(struct parser *j)
{
    const char *at = j->p, *from = "\"\\/bfnrt", *to = "\"\\/\b\f\n\r\t", *known;
    char out[4];
    if (j->end - at < 2)
        return fail(j, at, "the string is not closed");
    j->p += 2;
    if (at[1] && (known = strchr(from, at[1])))
        return strbuf_addc(&j->scratch, to[known - from]) < 0 ? ERR_NOMEM(j->err) : 0;
    int v = at[1] == 'u' ? hex4(j->p, j->end) : -1;
    if (v < 0)
        return fail(j, at, "not an escape of JSON");
    j->p += 4;
    uint32_t cp = (uint32_t)v;
    if (v >= 0xd800 && v <= 0xdbff && j->end - j->p >= 2 && j->p[0] == '\\' && j->p[1] == 'u') {
        int low = hex4(j->p + 2, j->end);
        if (low >= 0xdc00 && low <= 0xdfff) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
            j->p += 6;
        }
    }
    if (cp == 0)
        return fail(j, at, "\\u0000 is not allowed");
    size_t n = utf8_encode(cp, out);
    if (n == 0)
        return fail(j, at, "half a surrogate pair");
    return strbuf_add(&j->scratch, out, n) < 0 ? ERR_NOMEM(j->err) : 0;
}

/* Text of the string at j->p into scratch (NUL-terminated). */
static int parse_string(struct parser *j)
{
    const char *open = j->p++;
    int r = 0;
    strbuf_clear(&j->scratch);
    for (;;) {
        const char *run = j->p;
        while (j->p < j->end && *j->p != '"' && *j->p != '\\') {
            uint32_t cp;
            unsigned char c = (unsigned char)*j->p;
            size_t n = c < 0x80 ? 1 : utf8_decode(j->p, (size_t)(j->end - j->p), &cp);
            if (c < 0x20)
                return fail(j, j->p, "a control character in a string");
            if (n == 0)
                return fail(j, j->p, "not UTF-8");
            j->p += n;
        }
        if (strbuf_add(&j->scratch, run, (size_t)(j->p - run)) < 0)
            return ERR_NOMEM(j->err);
        if (j->p == j->end)
            return fail(j, open, "the string is not closed");
        if (*j->p == '"')
            break;
        if ((r = parse_escape(j)) < 0)
            return r;
    }
    j->p++;
    return 0;
}

static int made(struct parser *j, json_t *v, json_t **ret)
{
    if (!v)
        return ERR_NOMEM(j->err);
    *ret = v;
    return 0;
}

static int parse_string_value(struct parser *j, json_t **ret)
{
    int r = parse_string(j);
    if (r < 0 || (r = spend(j, COST_STRING + j->scratch.len)) < 0)
        return r;
    return made(j, json_stringn_nocheck(j->scratch.s, j->scratch.len), ret);
}

/* ---- numbers: the grammar of JSON, so no plus, no leading zero or dot */

static bool is_digit(const struct parser *j)
{
    return j->p < j->end && *j->p >= '0' && *j->p <= '9';
}

static bool skip_digits(struct parser *j)
{
    if (!is_digit(j))
        return false;
    while (is_digit(j))
        j->p++;
    return true;
}

static int parse_number(struct parser *j, json_t **ret)
{
    const char *at = j->p;
    bool real = false;
    if (*j->p == '-')
        j->p++;
    if (j->p < j->end && *j->p == '0')
        j->p++;
    else if (!skip_digits(j))
        return fail(j, at, "not a value of JSON");
    if (is_digit(j))
        return fail(j, at, "a number with a leading zero");
    if (j->p < j->end && *j->p == '.') {
        real = true;
        j->p++;
        if (!skip_digits(j))
            return fail(j, at, "a number without digits behind its point");
    }
    if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
        real = true;
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-'))
            j->p++;
        if (!skip_digits(j))
            return fail(j, at, "a number without digits in its exponent");
    }
    int r = spend(j, COST_NUMBER);
    if (r < 0)
        return r;
    strbuf_clear(&j->scratch);
    if (strbuf_add(&j->scratch, at, (size_t)(j->p - at)) < 0)
        return ERR_NOMEM(j->err);
    if (real) {
        double d;
        r = parse_double(j->scratch.s, &d);
        if (r == DEDIT_E_NOMEM)
            return ERR_NOMEM(j->err);
        return r < 0 ? fail(j, at, "the number is too large") : made(j, json_real(d), ret);
    }
    errno = 0;
    long long i = strtoll(j->scratch.s, NULL, 10);
    if (errno)
        return fail(j, at, "the integer does not fit into 64 bits");
    return made(j, json_integer(i), ret);
}

/* ---- arrays and objects */

static int too_deep(struct parser *j)
{
    size_t line, column;
    position(j, j->p, &line, &column);
    return ERR(j->err, LIMIT, "%s:%zu:%zu: nested deeper than %d levels", j->name, line, column,
               JS_MAX_DEPTH);
}

/* Behind a member: 1 when another follows, 0 at the end (close is taken). */
static int next_member(struct parser *j, char close)
{
    skip_blanks(j);
    if (j->p < j->end && *j->p == close) {
        j->p++;
        return 0;
    }
    if (j->p == j->end || *j->p != ',')
        return fail(j, j->p, close == '}' ? "',' or '}' is missing" : "',' or ']' is missing");
    j->p++;
    skip_blanks(j);
    return 1;
}

static bool take(struct parser *j, char c)
{
    skip_blanks(j);
    if (j->p == j->end || *j->p != c)
        return false;
    j->p++;
    return true;
}

static int parse_array(struct parser *j, unsigned depth, json_t **ret)
{
    json_auto_t *a = NULL;
    int r = spend(j, COST_ARRAY);
    if (r < 0 || (r = made(j, json_array(), &a)) < 0)
        return r;
    j->p++;
    if (!take(j, ']'))
        do {
            json_t *v = NULL;
            if ((r = spend(j, COST_ELEMENT)) < 0 || (r = parse_value(j, depth + 1, &v)) < 0)
                return r;
            if (json_array_append_new(a, v) < 0) /* v is gone in any case */
                return ERR_NOMEM(j->err);
        } while ((r = next_member(j, ']')) > 0);
    if (r < 0)
        return r;
    *ret = a;
    a = NULL;
    return 0;
}

static int parse_member(struct parser *j, json_t *o, unsigned depth)
{
    _cleanup_free_ char *long_key = NULL;
    char short_key[128];
    const char *at = j->p, *key = short_key;
    json_t *v = NULL;
    if (j->p == j->end || *j->p != '"')
        return fail(j, j->p, "a key (a string) is missing");
    int r = parse_string(j);
    if (r < 0 || (r = spend(j, COST_MEMBER + j->scratch.len)) < 0)
        return r;
    /* The value will use scratch. */
    if (j->scratch.len < sizeof(short_key))
        memcpy(short_key, j->scratch.s, j->scratch.len + 1);
    else if (!(key = long_key = mem_strndup(j->scratch.s, j->scratch.len)))
        return ERR_NOMEM(j->err);
    if (!take(j, ':'))
        return fail(j, j->p, "':' is missing");
    skip_blanks(j);
    if ((r = parse_value(j, depth + 1, &v)) < 0)
        return r;
    size_t before = json_object_size(o);
    if (json_object_set_new_nocheck(o, key, v) < 0)
        return ERR_NOMEM(j->err);
    return json_object_size(o) == before ? fail(j, at, "duplicate object key") : 0;
}

static int parse_object(struct parser *j, unsigned depth, json_t **ret)
{
    json_auto_t *o = NULL;
    int r = spend(j, COST_OBJECT);
    if (r < 0 || (r = made(j, json_object(), &o)) < 0)
        return r;
    j->p++;
    if (!take(j, '}'))
        do {
            if ((r = parse_member(j, o, depth)) < 0)
                return r;
        } while ((r = next_member(j, '}')) > 0);
    if (r < 0)
        return r;
    *ret = o;
    o = NULL;
    return 0;
}

static bool take_word(struct parser *j, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, word, n) != 0)
        return false;
    j->p += n;
    return true;
}

/* j->p is at the value's first character, or at the end.  depth: enclosing arrays and objects. */
static int parse_value(struct parser *j, unsigned depth, json_t **ret)
{
    if (j->p == j->end)
        return fail(j, j->p, "a value is missing");
    switch (*j->p) {
    case '{':
        return depth >= JS_MAX_DEPTH ? too_deep(j) : parse_object(j, depth, ret);
    case '[':
        return depth >= JS_MAX_DEPTH ? too_deep(j) : parse_array(j, depth, ret);
    case '"':
        return parse_string_value(j, ret);
    case 't':
        if (take_word(j, "true"))
            return made(j, json_true(), ret);
        break;
    case 'f':
        if (take_word(j, "false"))
            return made(j, json_false(), ret);
        break;
    case 'n':
        if (take_word(j, "null"))
            return made(j, json_null(), ret);
        break;
    default:
        if (*j->p == '-' || is_digit(j))
            return parse_number(j, ret);
        break;
    }
    return fail(j, j->p, "not a value of JSON");
}

static int parse(const char *text, size_t len, const char *name, uint64_t first, json_t **ret,
                 struct error *err)
{
    struct parser j = {.start = text,
                       .p = text,
                       .end = text + len,
                       .name = name,
                       .first = (size_t)first,
                       .err = err};
    json_auto_t *v = NULL;
    if (len == 0)
        return ERR(err, FORMAT, "%s: is empty", name);
    if (__builtin_mul_overflow(len, BUDGET_PER_BYTE, &j.budget) ||
        __builtin_add_overflow(j.budget, BUDGET_BASE, &j.budget))
        return ERR(err, LIMIT, "%s: too long (%zu bytes)", name, len);
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return fail(&j, j.p, "begins with a byte order mark (EF BB BF), which JSON has not");
    skip_blanks(&j);
    int r = parse_value(&j, 0, &v);
    skip_blanks(&j);
    if (r == 0 && j.p < j.end)
        r = fail(&j, j.p, "something follows the value");
    strbuf_done(&j.scratch);
    if (r < 0)
        return r;
    *ret = v;
    v = NULL;
    return 0;
}

int js_parse(const char *text, size_t len, const char *name, json_t **ret, struct error *err)
{
    return parse(text, len, name, 1, ret, err);
}

/* How a compressed file is unpacked, by what it begins with; NULL for others. */
static const char *unpacker(const char *text, size_t len)
{
    if (len >= 6 && memcmp(text,
                           "\xfd"
                           "7zXZ\0",
                           6) == 0)
        return "xz -dk";
    if (len >= 4 && memcmp(text, "\x28\xb5\x2f\xfd", 4) == 0)
        return "zstd -d";
    return len >= 2 && memcmp(text, "\x1f\x8b", 2) == 0 ? "gzip -dk" : NULL;
}

int js_parse_line(const char *text, size_t len, const char *path, uint64_t line, json_t **ret,
                  struct error *err)
{
    const char *unpack = line == 1 ? unpacker(text, len) : NULL;
    json_auto_t *v = NULL;
    if (unpack)
        return ERR(err, FORMAT, "%s: is compressed; \"%s %s\" makes the file that is read", path,
                   unpack, path);
    int r = parse(text, len, path, line, &v, err);
    if (r < 0)
        return r;
    if (!json_is_object(v))
        return ERR(err, FORMAT, "%s:%llu: must be a JSON object, is %s", path,
                   (unsigned long long)line, js_type_name(v));
    *ret = v;
    v = NULL;
    return 0;
}

int js_parse_object(const char *text, size_t len, const char *name, json_t **ret, struct error *err)
{
    json_auto_t *v = NULL;
    int r = js_parse(text, len, name, &v, err);
    if (r < 0)
        return r;
    if (!json_is_object(v))
        return ERR(err, FORMAT, "%s: must be a JSON object, is %s", name, js_type_name(v));
    *ret = v;
    v = NULL;
    return 0;
}
