/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of the error codes, and the one place where an error's message is made. */
#include "base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"

static const struct {
    const char *name;
    const char *text;
} table[] = {{"ok", "no error"},
#define X(NAME, number, name, text) [number] = {name, text},
             DEDIT_ERRORS(X)
#undef X
};
static const int table_len = (int)(sizeof(table) / sizeof(table[0]));

/* Row of the table, or -1 for a number that is no code. */
static int row(int code)
{
    if (code == DEDIT_OK)
        return 0;
    if (code >= -DEDIT_E_BASE || code <= -DEDIT_E_BASE - table_len)
        return -1;
    int i = -code - DEDIT_E_BASE;
    return table[i].name ? i : -1;
}

const char *error_name(int code)
{
    int i = row(code);
    return i < 0 ? "unknown" : table[i].name;
}

const char *error_text(int code)
{
    int i = row(code);
    return i < 0 ? "unknown error" : table[i].text;
}

/* Makes the message one clean line: control characters and bytes that are not UTF-8 become '?'.
 * cut: the buffer was full, so an unfinished character at the end is dropped instead. */
static void tidy(char *s, bool cut)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0 && cut && n - i < 4 && ((unsigned char)s[i] & 0xc0) == 0xc0) {
            s[i] = '\0';
            return;
        }
        if (len == 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) {
            if (len < 2)
                len = 1;
            memset(s + i, '?', len);
        }
        i += len;
    }
}

static int set(struct error *err, int code, const char *file, int line, const char *prefix,
               const char *msg)
{
    int n = snprintf(err->msg, sizeof(err->msg), "%s%s%s", prefix ? prefix : "", prefix ? ": " : "",
                     msg);
    tidy(err->msg, n >= (int)sizeof(err->msg));
    err->code = code;
    err->file = file;
    err->line = line;
    return code;
}

int error_set(struct error *err, int code, const char *file, int line, const char *fmt, ...)
{
    char msg[sizeof(err->msg) + 1];
    va_list ap;
    if (!err)
        return code;
    /* Formatted aside first: an argument may point into *err. */
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    return set(err, code, file, line, NULL, msg);
}

int error_prefix(struct error *err, int code, const char *fmt, ...)
{
    char prefix[sizeof(err->msg)], msg[sizeof(err->msg)];
    va_list ap;
    if (!err)
        return code;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    memcpy(msg, err->msg, sizeof(msg));
    return set(err, err->code ? err->code : code, err->file, err->line, prefix, msg);
}
