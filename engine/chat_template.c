/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lexer of Jinja.  White space around tags is taken away as the renderers of chat templates set
 * it up: a "-" strips, a block's own line leaves no trace (trim_blocks, lstrip_blocks).
 */
#include "engine/chat_template.h"

#include <string.h>

#include "base/alloc.h"

struct lexer {
    const char *s;
    size_t len, at;
    size_t used; /* of j->text */
    struct jinja *j;
    struct error *err;
};

static int add_word(struct lexer *l, enum jinja_kind kind, size_t off)
{
    struct jinja *j = l->j;
    if (j->n == j->cap) {
        size_t cap = j->cap ? j->cap * 2 : 128;
        struct jinja_word *p = mem_realloc_array(j->words, cap, sizeof(*p));
        if (!p)
            return ERR_NOMEM(l->err);
        j->words = p;
        j->cap = cap;
    }
    j->words[j->n++] = (struct jinja_word){.kind = kind, .off = off, .len = l->used - off};
    return 0;
}

static int add_copy(struct lexer *l, enum jinja_kind kind, const char *s, size_t n)
{
    size_t off = l->used;
    memcpy(l->j->text + off, s, n);
    l->used += n;
    return add_word(l, kind, off);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static int read_string(struct lexer *l)
{
    char quote = l->s[l->at++];
    size_t off = l->used;
    while (l->at < l->len && l->s[l->at] != quote) {
        char c = l->s[l->at++];
        if (c == '\\' && l->at < l->len) {
            char e = l->s[l->at++];
            const char *from = "ntr\\'\"", *to = "\n\t\r\\'\"", *p = strchr(from, e);
            if (p && e) {
                c = to[p - from];
            } else {
                l->j->text[l->used++] = c;
                c = e;
            }
        }
        l->j->text[l->used++] = c;
    }
    if (l->at == l->len)
        return ERR(l->err, FORMAT, "a string is not closed");
    l->at++;
    return add_word(l, JINJA_STRING, off);
}

/* Inside a tag up to its end, "}}" or "%}"; *ret_dash: a "-" stands before it. */
static int read_tag(struct lexer *l, char close, bool *ret_dash)
{
    *ret_dash = false;
    while (l->at < l->len) {
        const char *p = l->s + l->at;
        size_t left = l->len - l->at, n = 1;
        int r = 0;
        if (left >= 2 && p[0] == close && p[1] == '}') {
            l->at += 2;
            return add_word(l, JINJA_END, l->used);
        }
        if (left >= 3 && p[0] == '-' && p[1] == close && p[2] == '}') {
            *ret_dash = true;
            l->at++;
            continue;
        }
        if (*p == '"' || *p == '\'') {
            r = read_string(l);
            n = 0;
        } else if (is_name(*p)) {
            while (n < left && is_name(p[n]))
                n++;
            r = add_copy(l, JINJA_NAME, p, n);
        } else if (!is_blank(*p)) {
            if (left >= 2 && p[1] == '=' && (p[0] == '=' || p[0] == '!'))
                n = 2;
            r = add_copy(l, JINJA_OP, p, n);
        }
        if (r < 0)
            return r;
        l->at += n;
    }
    return ERR(l->err, FORMAT, "a tag is not closed");
}

/* Where the next tag begins, or the end. */
static size_t find_tag(const struct lexer *l)
{
    for (size_t i = l->at; i + 1 < l->len; i++)
        if (l->s[i] == '{' && (l->s[i + 1] == '{' || l->s[i + 1] == '%' || l->s[i + 1] == '#'))
            return i;
    return l->len;
}

/* Text before the tag at `tag`. */
static int read_raw(struct lexer *l, size_t tag)
{
    size_t end = tag;
    bool dash = tag + 2 < l->len && l->s[tag + 2] == '-';
    if (dash) {
        while (end > l->at && is_blank(l->s[end - 1]))
            end--;
    } else if (tag < l->len && l->s[tag + 1] != '{') {
        size_t i = end;
        while (i > l->at && (l->s[i - 1] == ' ' || l->s[i - 1] == '\t'))
            i--;
        if (i == 0 || l->s[i - 1] == '\n')
            end = i;
    }
    if (tag == l->len && end > l->at && l->s[end - 1] == '\n')
        end--; /* the last line break is the file's */
    int r = end > l->at ? add_copy(l, JINJA_RAW, l->s + l->at, end - l->at) : 0;
    l->at = tag;
    return r;
}

static int read_all(struct lexer *l)
{
    while (l->at < l->len) {
        size_t tag = find_tag(l);
        bool dash = false;
        int r = read_raw(l, tag);
        if (r < 0 || tag == l->len)
            return r;
        char kind = l->s[tag + 1];
        l->at = tag + 2;
        if (kind == '#') {
            const char *end = memmem(l->s + l->at, l->len - l->at, "#}", 2);
            if (!end)
                return ERR(l->err, FORMAT, "a comment is not closed");
            dash = end > l->s + l->at && end[-1] == '-';
            l->at = (size_t)(end + 2 - l->s);
        } else {
            if (l->at < l->len && (l->s[l->at] == '-' || l->s[l->at] == '+'))
                l->at++;
            r = add_word(l, kind == '{' ? JINJA_PRINT : JINJA_BLOCK, l->used);
            if (r == 0)
                r = read_tag(l, kind == '{' ? '}' : '%', &dash);
            if (r < 0)
                return r;
        }
        while (dash && l->at < l->len && is_blank(l->s[l->at]))
            l->at++;
        if (!dash && kind != '{' && l->at < l->len && l->s[l->at] == '\n')
            l->at++;
    }
    return 0;
}

int jinja_read(const char *source, struct jinja *ret, struct error *err)
{
    struct jinja j = {0};
    struct lexer l = {.s = source, .len = strlen(source), .j = &j, .err = err};
    if (l.len > JINJA_MAX_BYTES)
        return ERR(err, LIMIT, "it has %zu bytes, more than %d", l.len, JINJA_MAX_BYTES);
    for (size_t i = 0; i < l.len; i++)
        if ((unsigned char)source[i] < 0x20 && !is_blank(source[i]))
            return ERR(err, FORMAT, "it has a control character at byte %zu", i);
    j.text = mem_alloc(l.len + 1);
    if (!j.text)
        return ERR_NOMEM(err);
    int r = read_all(&l);
    if (r < 0)
        jinja_done(&j);
    else
        *ret = j;
    return r;
}

void jinja_done(struct jinja *j)
{
    mem_free(j->words);
    mem_free(j->text);
    *j = (struct jinja){0};
}

bool jinja_is(const struct jinja *j, size_t i, enum jinja_kind kind, const char *text)
{
    return i < j->n && j->words[i].kind == kind && j->words[i].len == strlen(text) &&
           !memcmp(j->text + j->words[i].off, text, j->words[i].len);
}
