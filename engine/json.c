/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON: jansson behind bounds.  Two things jansson does not bound are bounded here: nesting (its
 * parser and its destructor recurse) by a scan of the text before parsing, and memory (an empty
 * object costs a hundred times its text) by a budget that its allocator draws on.
 */
#include "engine/json.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

#define BUDGET_BASE     ((size_t)16 << 20)
#define BUDGET_PER_BYTE ((size_t)16)

/* What this thread's parse may still allocate.  Freed memory is not given back: jansson grows by
 * copying, which at most doubles the sum. */
static _Thread_local bool budget_on, budget_spent;
static _Thread_local bool out_of_memory; /* jansson itself reports some of these as bad text */
static _Thread_local size_t budget;

static void *budget_alloc(size_t bytes)
{
    if (budget_on) {
        /* 16: what the heap itself needs for a block, much when blocks are small. */
        if (bytes > SIZE_MAX - 16 || bytes + 16 > budget) {
            budget_spent = true;
            return NULL;
        }
        budget -= bytes + 16;
    }
    void *p = mem_alloc(bytes);
    out_of_memory |= !p;
    return p;
}

/* Before main(): a value must never be freed by another allocator than the one that made it. */
__attribute__((constructor)) static void route_allocator(void)
{
    json_set_alloc_funcs(budget_alloc, mem_free);
}

/* Line and column (in bytes) of text[at], both from 1. */
static void position(const char *text, size_t at, size_t *line, size_t *column)
{
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            ++*line;
            *column = 1;
        } else {
            ++*column;
        }
    }
}

/* Brackets outside strings; whatever else is wrong is left to the parser. */
static int check_depth(const char *text, size_t len, const char *name, struct error *err)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > JS_MAX_DEPTH) {
                size_t line, column;
                position(text, i, &line, &column);
                return ERR(err, LIMIT, "%s:%zu:%zu: nested deeper than %d levels", name, line,
                           column, JS_MAX_DEPTH);
            }
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return 0;
}

int js_parse(const char *text, size_t len, const char *name, json_t **ret, struct error *err)
{
    if (len == 0)
        return ERR(err, FORMAT, "%s: is empty", name);
    int r = check_depth(text, len, name, err);
    if (r < 0)
        return r;
    if (__builtin_mul_overflow(len, BUDGET_PER_BYTE, &budget) ||
        __builtin_add_overflow(budget, BUDGET_BASE, &budget))
        return ERR(err, LIMIT, "%s: too long (%zu bytes)", name, len);
    json_error_t e;
    budget_spent = false;
    out_of_memory = false;
    budget_on = true;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    budget_on = false;
    if (v) {
        *ret = v;
        return 0;
    }
    if (budget_spent)
        return ERR(err, LIMIT, "%s: so many values in %zu bytes that they need more than %zu MiB",
                   name, len, (BUDGET_BASE + BUDGET_PER_BYTE * len) >> 20);
    if (out_of_memory)
        return ERR_NOMEM(err);
    return ERR(err, FORMAT, "%s:%d:%d: %s", name, e.line, e.column, e.text);
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

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_space(const char *text, size_t len, size_t i)
{
    while (i < len && is_space(text[i]))
        i++;
    return i;
}

/* text[i] is a quote: the position after the closing one, or len. */
static size_t skip_string(const char *text, size_t len, size_t i)
{
    for (i++; i < len && text[i] != '"'; i++)
        if (text[i] == '\\')
            i++;
    return i < len ? i + 1 : len;
}

/* The end of the value at i: a comma or bracket that closes what is around it. */
static size_t skip_value(const char *text, size_t len, size_t i)
{
    size_t depth = 0;
    while (i < len) {
        char c = text[i];
        if (c == '"') {
            i = skip_string(text, len, i);
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            break;
        if (c == '[' || c == '{')
            depth++;
        else if (c == ']' || c == '}')
            depth--;
        i++;
    }
    return i;
}

bool js_member_text(const char *text, size_t len, const char *key, size_t *ret_at, size_t *ret_len)
{
    size_t key_len = strlen(key), i = skip_space(text, len, 0);
    if (i >= len || text[i] != '{')
        return false;
    for (i = skip_space(text, len, i + 1); i < len && text[i] == '"';) {
        size_t name = i + 1;
        i = skip_string(text, len, i);
        bool found = i - name == key_len + 1 && !memcmp(text + name, key, key_len);
        i = skip_space(text, len, i);
        if (i >= len || text[i] != ':')
            return false;
        i = skip_space(text, len, i + 1);
        size_t end = skip_value(text, len, i);
        if (found) {
            *ret_at = i;
            *ret_len = end - i;
            return true;
        }
        if (end >= len || text[end] != ',')
            return false;
        i = skip_space(text, len, end + 1);
    }
    return false;
}

const char *js_type_name(const json_t *v)
{
    if (!v)
        return "absent";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

struct js_obj js_root(json_t *o, const char *file)
{
    return (struct js_obj){.o = o, .file = file};
}

static json_t *member(const struct js_obj *o, const char *key)
{
    json_t *v = o->o ? json_object_get(o->o, key) : NULL;
    return v && !json_is_null(v) ? v : NULL;
}

static int wrong_type(const struct js_obj *o, const char *key, const char *rule, const json_t *v,
                      struct error *err)
{
    return ERR(err, FORMAT, "%s: \"%s%s\" must be %s, is %s", o->file, o->path, key, rule,
               js_type_name(v));
}

int js_u32(const struct js_obj *o, const char *key, uint32_t min, uint32_t max, uint32_t *ret,
           struct error *err)
{
    json_t *v = member(o, key);
    if (!v)
        return 1;
    if (!json_is_integer(v))
        return wrong_type(o, key, "an integer", v, err);
    json_int_t i = json_integer_value(v);
    if (i < (json_int_t)min || i > (json_int_t)max)
        return ERR(err, FORMAT,
                   "%s: \"%s%s\" must be from %" PRIu32 " to %" PRIu32 ", is %" JSON_INTEGER_FORMAT,
                   o->file, o->path, key, min, max, i);
    *ret = (uint32_t)i;
    return 0;
}

int js_f64(const struct js_obj *o, const char *key, double *ret, struct error *err)
{
    json_t *v = member(o, key);
    if (!v)
        return 1;
    if (!json_is_number(v))
        return wrong_type(o, key, "a number", v, err);
    *ret = json_number_value(v);
    return 0;
}

int js_bool(const struct js_obj *o, const char *key, bool *ret, struct error *err)
{
    json_t *v = member(o, key);
    if (!v)
        return 1;
    if (!json_is_boolean(v))
        return wrong_type(o, key, "true or false", v, err);
    *ret = json_is_true(v);
    return 0;
}

int js_str(const struct js_obj *o, const char *key, const char **ret, struct error *err)
{
    json_t *v = member(o, key);
    if (!v)
        return 1;
    if (!json_is_string(v))
        return wrong_type(o, key, "a string", v, err);
    *ret = json_string_value(v);
    return 0;
}

int js_array(const struct js_obj *o, const char *key, json_t **ret, struct error *err)
{
    json_t *v = member(o, key);
    if (!v)
        return 1;
    if (!json_is_array(v))
        return wrong_type(o, key, "an array", v, err);
    *ret = v;
    return 0;
}

int js_object(const struct js_obj *o, const char *key, struct js_obj *ret, struct error *err)
{
    json_t *v = member(o, key);
    if (!v)
        return 1;
    if (!json_is_object(v))
        return wrong_type(o, key, "an object", v, err);
    struct js_obj sub = {.o = v, .file = o->file};
    size_t at = strlen(o->path), n = strlen(key);
    /* A path that does not fit is cut at the front of the message's key, never wrong. */
    if (at + n + 2 <= sizeof(sub.path)) {
        memcpy(sub.path, o->path, at);
        memcpy(sub.path + at, key, n);
        memcpy(sub.path + at + n, ".", 2);
    }
    *ret = sub;
    return 0;
}
