/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli-trace-lines.h"

#include <jansson.h>
#include <string.h>

/* Whether a line belongs to a trace; the first says so. */
static int check_line(const char *file, unsigned line, const char *s, size_t len, struct error *err)
{
    json_error_t e;
    json_t *j = json_loadb(s, len, JSON_ALLOW_NUL, &e);
    /* The seed may have 64 bits; no number that is looked at here needs them. */
    if (!j && json_error_code(&e) == json_error_numeric_overflow)
        j = json_loadb(s, len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    int r = 0;
    if (!j)
        r = ERR(err, FORMAT, "%s:%u: no JSON: %s", file, line, e.text);
    else if (!json_is_object(j))
        r = ERR(err, FORMAT, "%s:%u: must be an object", file, line);
    else if (line == 1 && json_integer_value(json_object_get(j, "trace")) != 1)
        r = ERR(err, FORMAT, "%s:1: \"trace\" must be 1: the file is no trace", file);
    else if (json_object_get(j, "round") && (!json_is_array(json_object_get(j, "draft")) ||
                                             !json_is_array(json_object_get(j, "nodes")) ||
                                             !json_is_integer(json_object_get(j, "at")) ||
                                             !json_is_integer(json_object_get(j, "committed"))))
        r = ERR(err, FORMAT, "%s:%u: a round needs \"at\", \"committed\", \"draft\" and \"nodes\"",
                file, line);
    json_decref(j);
    return r;
}

int trace_embed(const char *file, const char *s, size_t len, struct strbuf *out, struct error *err)
{
    unsigned line = 0;
    int r = strbuf_adds(out, "[");
    for (size_t at = 0; at < len && r >= 0;) {
        const char *nl = memchr(s + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - (s + at)) : len - at;
        if (n) {
            int k = check_line(file, ++line, s + at, n, err);
            if (k < 0)
                return k;
            if (line > 1)
                r = strbuf_adds(out, ",\n");
            for (size_t i = 0; i < n && r >= 0; i++)
                r = s[at + i] == '<' ? strbuf_adds(out, "\\u003c") : strbuf_add(out, s + at + i, 1);
        }
        at += n + 1;
    }
    if (r >= 0)
        r = strbuf_adds(out, "]");
    if (r < 0)
        return ERR_NOMEM(err);
    return line ? 0 : ERR(err, FORMAT, "%s: it is empty", file);
}
