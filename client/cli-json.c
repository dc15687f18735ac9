/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON of dedit-client.  A seed has 64 bits and no sign, and jansson's integers have one: in memory a
 * seed is the integer of the same bits, and here, where text is read and written, it is what it is.
 */
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "client/cli.h"

#define FORM (JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9))

/* ---- writing ----------------------------------------------------------------------------------- */

static int dump_object(const json_t *j, FILE *f)
{
    const char *key;
    json_t *value;
    int r = fputc('{', f) == EOF ? -1 : 0;
    bool first = true;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        json_t *name = json_string(key);
        if (r == 0 && (!name || (!first && fputc(',', f) == EOF) || json_dumpf(name, f, FORM) < 0 ||
                       fputc(':', f) == EOF))
            r = -1;
        json_decref(name);
        first = false;
        if (r < 0)
            return r;
        if (strcmp(key, "seed") == 0 && json_is_integer(value))
            r = fprintf(f, "%llu", (unsigned long long)json_integer_value(value)) < 0 ? -1 : 0;
        else if (strcmp(key, "id") == 0) /* a batch's: what the line says, as it says it */
            r = json_dumpf(value, f, FORM);
        else
            r = cli_dump_json(value, f);
    }
    return r == 0 && fputc('}', f) == EOF ? -1 : r;
}

int cli_dump_json(const json_t *j, FILE *f)
{
    if (json_is_object(j))
        return dump_object(j, f);
    return json_dumpf(j, f, FORM);
}

void cli_print_json(json_t *j)
{
    if (!j)
        return;
    (void)cli_dump_json(j, stdout);
    putchar('\n');
    json_decref(j);
}

json_t *cli_usage_json(const struct dedit_usage *u)
{
    return json_pack(
        "{s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:s?}", "prompt_tokens",
        (json_int_t)u->prompt_tokens, "completion_tokens", (json_int_t)u->completion_tokens,
        "cached_tokens", (json_int_t)u->cached_tokens, "queued_ms", (double)u->queued_ns / 1e6,
        "time_to_first_token_ms", (double)u->first_token_ns / 1e6, "total_ms",
        (double)u->total_ns / 1e6, "rounds", (json_int_t)u->rounds, "drafted_tokens",
        (json_int_t)u->drafted_tokens, "accepted_tokens", (json_int_t)u->accepted_tokens,
        "preemptions", (json_int_t)u->preemptions, "seed", (json_int_t)u->seed, "committed_tokens",
        (json_int_t)u->committed_tokens, "method", u->method);
}

/* ---- reading ----------------------------------------------------------------------------------- */

/* Behind the string whose opening quote s is. */
static const char *skip_string(const char *s, const char *end)
{
    for (s++; s < end && *s != '"'; s++)
        if (*s == '\\')
            s++;
    return s < end ? s + 1 : end;
}

static const char *skip_blank(const char *s, const char *end)
{
    while (s < end && strchr(" \t\r\n", *s) && *s)
        s++;
    return s;
}

/* The number of the member "seed" of the outermost object, the last one as in jansson; NULL: there is none. */
static char *find_seed(char *line, size_t n, size_t *ret_len)
{
    static const char name[] = "\"seed\"";
    const char *s = line, *end = line + n;
    char *found = NULL;
    unsigned depth = 0;
    while (s < end) {
        const char *begin = s;
        if (*s == '"') {
            s = skip_string(s, end);
            const char *colon = skip_blank(s, end);
            if (depth != 1 || (size_t)(s - begin) != strlen(name) ||
                memcmp(begin, name, strlen(name)) != 0 || colon == end || *colon != ':')
                continue;
            s = skip_blank(colon + 1, end);
            begin = s;
            while (s < end && *s >= '0' && *s <= '9')
                s++;
            if (s > begin) {
                found = line + (begin - line);
                *ret_len = (size_t)(s - begin);
            }
            continue;
        }
        depth += *s == '{' || *s == '[';
        depth -= depth && (*s == '}' || *s == ']');
        s++;
    }
    return found;
}

/* What jansson says of these is of no help. */
static void explain(const char *line, size_t n, json_error_t *e)
{
    const enum json_error_code code = json_error_code(e);
    const char *text = NULL;
    if (n >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0)
        text = "the line begins with a byte order mark (EF BB BF), which JSON has not";
    else if (code == json_error_null_character || code == json_error_null_byte_in_key)
        text = "a string has \\u0000, which no request can hold";
    if (text)
        snprintf(e->text, sizeof e->text - 1, "%s", text); /* its last byte is the code */
}

json_t *cli_load_line(char *line, size_t n, uint64_t *ret_seed, json_error_t *ret_error)
{
    json_t *j = json_loadb(line, n, 0, ret_error);
    size_t len = 0;
    uint64_t seed = 0;
    char digits[24];
    *ret_seed = 0;
    if (!j)
        explain(line, n, ret_error);
    if (j || json_error_code(ret_error) != json_error_numeric_overflow)
        return j;
    char *at = find_seed(line, n, &len);
    if (!at || len < 2)
        return NULL;
    const size_t take = len < sizeof digits ? len : sizeof digits - 1; /* too many are too many */
    memcpy(digits, at, take);
    digits[take] = 0;
    const bool holds = parse_u64(digits, &seed) == 0;
    /* 0 stands for what is given back, -1 for what no seed can be. */
    memset(at, ' ', len);
    memcpy(at, holds ? " 0" : "-1", 2);
    j = json_loadb(line, n, 0, ret_error);
    *ret_seed = j && holds ? seed : 0;
    return j;
}
