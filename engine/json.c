/* SPDX-License-Identifier: Apache-2.0 */
/* JSON values: jansson's memory goes through base/alloc.h; typed access.  Parsing: json_parse.c. */
#include "engine/json.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

/* Before main(): a value must never be freed by another allocator than the one that made it. */
__attribute__((constructor)) static void route_allocator(void)
{
    json_set_alloc_funcs(mem_alloc, mem_free);
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
