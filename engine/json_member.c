/* SPDX-License-Identifier: Apache-2.0 */
/* One member of a big JSON text, found without parsing the others. */
#include <string.h>

#include "engine/json.h"

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
