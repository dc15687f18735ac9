/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON files: parsing with bounds, and typed access with messages that name file and key.
 *
 * Linking this file routes jansson's memory through base/alloc.h before main() starts, so that the
 * allocation-failure hook sees it.  Values are jansson's; use json_auto_t and its functions freely.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Deepest nesting of arrays and objects that is read. */
#define JS_MAX_DEPTH 64

/*
 * Parses text[0..len) (any bytes; no NUL needed behind it).  The whole text must be one JSON value
 * in UTF-8; duplicate keys, NULs in strings, deeper nesting than JS_MAX_DEPTH, and numbers outside
 * int64 / double are refused.  Memory is bounded by about 16 MiB + 24 * len, so that a small text can not
 * blow up.  Messages start with "name:line:column: ".  FORMAT, LIMIT or NOMEM.
 */
int js_parse(const char *text, size_t len, const char *name, json_t **ret, struct error *err);
/* The same for a text that must be an object. */
int js_parse_object(const char *text, size_t len, const char *name, json_t **ret,
                    struct error *err);
/* An object that is one line of a file, numbers from 1: messages start with "path:line:column: ".  A file that
 * is compressed is told with the command that unpacks it. */
int js_parse_line(const char *text, size_t len, const char *path, uint64_t line, json_t **ret,
                  struct error *err);

/*
 * Finds the text of one member of a top-level object without parsing the others (for big files of
 * which little is needed).  False when the text is no object or has no such member.  The member is
 * only delimited: js_parse() of it tells whether it is valid.  Keys with escapes are not found.
 */
bool js_member_text(const char *text, size_t len, const char *key, size_t *ret_at, size_t *ret_len);

/* An object and where it stands, for messages: file "x/config.json", path "" or "rope_scaling.". */
struct js_obj {
    json_t *o;        /* borrowed; NULL reads as an empty object */
    const char *file; /* borrowed */
    char path[64];
};
struct js_obj js_root(json_t *o, const char *file);

/*
 * Members: 0 found, 1 absent or null (*ret is left alone), negative: present with another type or
 * outside its range (FORMAT; the message names file, key, the rule and what was found).
 * Strings, arrays and values are borrowed from the object.
 */
int js_u32(const struct js_obj *o, const char *key, uint32_t min, uint32_t max, uint32_t *ret,
           struct error *err);
int js_f64(const struct js_obj *o, const char *key, double *ret,
           struct error *err); /* or integer */
int js_bool(const struct js_obj *o, const char *key, bool *ret, struct error *err);
int js_str(const struct js_obj *o, const char *key, const char **ret, struct error *err);
int js_array(const struct js_obj *o, const char *key, json_t **ret, struct error *err);
int js_object(const struct js_obj *o, const char *key, struct js_obj *ret, struct error *err);

/* "string", "integer", ... for messages. */
const char *js_type_name(const json_t *v);
