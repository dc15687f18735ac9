/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON as the reference templates print it: Python's json.dumps(ensure_ascii=False), with ", " and
 * ": ", keys in their order, floats in the shortest form that reads back equal, no HTML escapes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "engine/chat_internal.h"

static int put_string(const char *s, size_t n, struct strbuf *out)
{
    static const char *const hex = "0123456789abcdef";
    int r = strbuf_addc(out, '"');
    for (size_t i = 0; i < n && r == 0; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *escape = c == '"'    ? "\\\""
                             : c == '\\' ? "\\\\"
                             : c == '\n' ? "\\n"
                             : c == '\r' ? "\\r"
                             : c == '\t' ? "\\t"
                             : c == '\b' ? "\\b"
                             : c == '\f' ? "\\f"
                                         : NULL;
        if (escape) {
            r = strbuf_add(out, escape, 2);
        } else if (c < 0x20) {
            char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
            r = strbuf_add(out, u, sizeof(u));
        } else {
            r = strbuf_addc(out, (char)c);
        }
    }
    return r == 0 ? strbuf_addc(out, '"') : r;
}

/* Python's repr: digits as few as read back equal, an exponent below 1e-4 and from 1e16 on. */
static int put_real(double v, struct strbuf *out)
{
    char buf[40], digits[20];
    int precision = 0, n = 0;
    double back = 0;
    do {
        snprintf(buf, sizeof(buf), "%.*e", precision, v);
        for (char *p = buf; *p; p++)
            if (*p == ',') /* a decimal comma of the process's locale */
                *p = '.';
    } while ((parse_double(buf, &back) < 0 || memcmp(&back, &v, sizeof(v)) != 0) &&
             ++precision < 17);
    char *e = strchr(buf, 'e');
    for (char *p = buf; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    int exponent = (int)strtol(e + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    int r = buf[0] == '-' ? strbuf_addc(out, '-') : 0;
    if (r < 0)
        return r;
    if (exponent < -4 || exponent >= 16) {
        r = strbuf_addc(out, digits[0]);
        if (r == 0 && n > 1)
            r = strbuf_addf(out, ".%.*s", n - 1, digits + 1);
        return r < 0 ? r : strbuf_addf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0)
        return strbuf_addf(out, "0.%.*s%.*s", -exponent - 1, "0000", n, digits);
    for (int i = 0; i <= exponent && r == 0; i++)
        r = strbuf_addc(out, i < n ? digits[i] : '0');
    if (r < 0)
        return r;
    return n > exponent + 1 ? strbuf_addf(out, ".%.*s", n - exponent - 1, digits + exponent + 1)
                            : strbuf_adds(out, ".0");
}

static int new_line(unsigned indent, unsigned depth, struct strbuf *out)
{
    int r = strbuf_addc(out, '\n');
    for (unsigned i = 0; i < indent * depth && r == 0; i++)
        r = strbuf_addc(out, ' ');
    return r;
}

static int dump(json_t *v, unsigned indent, unsigned depth, struct strbuf *out);

/* What stands before member i of an array or object. */
static int before_member(size_t i, unsigned indent, unsigned depth, struct strbuf *out)
{
    int r = 0;
    if (i > 0)
        r = strbuf_adds(out, indent ? "," : ", ");
    return r == 0 && indent ? new_line(indent, depth + 1, out) : r;
}

static int dump_array(json_t *v, unsigned indent, unsigned depth, struct strbuf *out)
{
    json_t *e;
    size_t i;
    int r = strbuf_addc(out, '[');
    json_array_foreach(v, i, e)
    {
        if (r < 0 || (r = before_member(i, indent, depth, out)) < 0 ||
            (r = dump(e, indent, depth + 1, out)) < 0)
            return r;
    }
    if (r == 0 && indent && json_array_size(v))
        r = new_line(indent, depth, out);
    return r < 0 ? r : strbuf_addc(out, ']');
}

static int dump_object(json_t *v, unsigned indent, unsigned depth, struct strbuf *out)
{
    const char *key;
    json_t *e;
    size_t i = 0;
    int r = strbuf_addc(out, '{');
    json_object_foreach(v, key, e)
    {
        if (r < 0 || (r = before_member(i++, indent, depth, out)) < 0 ||
            (r = put_string(key, strlen(key), out)) < 0 || (r = strbuf_adds(out, ": ")) < 0 ||
            (r = dump(e, indent, depth + 1, out)) < 0)
            return r;
    }
    if (r == 0 && indent && json_object_size(v))
        r = new_line(indent, depth, out);
    return r < 0 ? r : strbuf_addc(out, '}');
}

/* Depth is what the parser let through. */
static int dump(json_t *v, unsigned indent, unsigned depth, struct strbuf *out)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return dump_object(v, indent, depth, out);
    case JSON_ARRAY:
        return dump_array(v, indent, depth, out);
    case JSON_STRING:
        return put_string(json_string_value(v), json_string_length(v), out);
    case JSON_INTEGER:
        return strbuf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    case JSON_REAL:
        return put_real(json_real_value(v), out);
    case JSON_TRUE:
        return strbuf_adds(out, "true");
    case JSON_FALSE:
        return strbuf_adds(out, "false");
    case JSON_NULL:
        return strbuf_adds(out, "null");
    }
    return DEDIT_E_INTERNAL;
}

int chat_dump_json(json_t *v, unsigned indent, struct strbuf *out, struct error *err)
{
    int r = dump(v, indent, 0, out);
    return r == DEDIT_E_NOMEM ? ERR_NOMEM(err) : r;
}
