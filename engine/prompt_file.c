/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts from JSON lines. */
#include "engine/prompt_file.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/strbuf.h"
#include "engine/json.h"

static void prompt_done(struct prompt *p)
{
    mem_free(p->system);
    for (uint32_t i = 0; i < p->n_turns; i++)
        mem_free(p->turns[i]);
    mem_free(p->turns);
    *p = (struct prompt){0};
}

void prompt_file_done(struct prompt_file *f)
{
    for (size_t i = 0; i < f->n; i++)
        prompt_done(&f->prompts[i]);
    mem_free(f->prompts);
    *f = (struct prompt_file){0};
}

static int add_turn(struct prompt *p, const char *text, const char *name, struct error *err)
{
    if (p->n_turns == PROMPT_MAX_TURNS)
        return ERR(err, LIMIT, "%s: more than %u turns", name, PROMPT_MAX_TURNS);
    char **grown = mem_realloc_array(p->turns, p->n_turns + 1, sizeof(*grown));
    if (!grown)
        return ERR_NOMEM(err);
    p->turns = grown;
    char *copy = mem_strdup(text);
    if (!copy)
        return ERR_NOMEM(err);
    p->turns[p->n_turns++] = copy;
    return 0;
}

static int read_turns(const json_t *list, struct prompt *p, const char *name, struct error *err)
{
    if (!json_is_array(list) || json_array_size(list) == 0)
        return ERR(err, FORMAT, "%s: \"turns\" is not a list of texts", name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s)
            return ERR(err, FORMAT, "%s: \"turns\"[%zu] is not a text", name, i);
        int r = add_turn(p, s, name, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* A text, or a list of parts {"type": "text", "text": "..."}. */
static int read_content(const json_t *content, size_t i, const char *name, struct strbuf *ret,
                        struct error *err)
{
    const char *s = json_string_value(content);
    if (s)
        return strbuf_adds(ret, s) < 0 ? ERR_NOMEM(err) : 0;
    if (!json_is_array(content))
        return ERR(err, FORMAT, "%s: \"messages\"[%zu]: \"content\" is not a text", name, i);
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k);
        const char *type = json_string_value(json_object_get(part, "type"));
        s = json_string_value(json_object_get(part, "text"));
        if (!type || strcmp(type, "text") != 0 || !s)
            return ERR(err, UNSUPPORTED,
                       "%s: \"messages\"[%zu]: \"content\"[%zu] is not a text part", name, i, k);
        if (strbuf_adds(ret, s) < 0)
            return ERR_NOMEM(err);
    }
    return 0;
}

static int read_message(const json_t *m, size_t i, struct prompt *p, const char *name,
                        struct error *err)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    const char *role = json_string_value(json_object_get(m, "role"));
    if (!role)
        return ERR(err, FORMAT, "%s: \"messages\"[%zu] has no \"role\"", name, i);
    if (!strcmp(role, "assistant"))
        return 0;
    const bool system = !strcmp(role, "system") || !strcmp(role, "developer");
    if (!system && strcmp(role, "user") != 0)
        return ERR(err, UNSUPPORTED, "%s: \"messages\"[%zu]: role \"%.40s\"", name, i, role);
    int r = read_content(json_object_get(m, "content"), i, name, &text, err);
    if (r < 0)
        return r;
    if (!system)
        return add_turn(p, text.s ? text.s : "", name, err);
    if (p->system || p->n_turns)
        return ERR(err, UNSUPPORTED,
                   "%s: \"messages\"[%zu]: a system message that is not the first", name, i);
    p->system = mem_strdup(text.s ? text.s : "");
    return p->system ? 0 : ERR_NOMEM(err);
}

static int read_messages(const json_t *list, struct prompt *p, const char *name, struct error *err)
{
    if (!json_is_array(list))
        return ERR(err, FORMAT, "%s: \"messages\" is not a list", name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int r = read_message(json_array_get(list, i), i, p, name, err);
        if (r < 0)
            return r;
    }
    return p->n_turns ? 0 : ERR(err, FORMAT, "%s: \"messages\" has none of the user", name);
}

static int read_prompt(const json_t *o, struct prompt *p, const char *name, struct error *err)
{
    const json_t *turns = json_object_get(o, "turns"), *messages = json_object_get(o, "messages");
    const json_t *prompt = json_object_get(o, "prompt");
    if (turns)
        return read_turns(turns, p, name, err);
    if (messages)
        return read_messages(messages, p, name, err);
    if (!json_is_string(prompt))
        return ERR(err, FORMAT, "%s: none of \"turns\", \"messages\" and \"prompt\"", name);
    return add_turn(p, json_string_value(prompt), name, err);
}

static int add_line(struct prompt_file *f, const char *text, size_t len, const char *path,
                    uint32_t line, struct error *err)
{
    char name[512];
    json_auto_t *o = NULL;
    struct prompt p = {.line = line};
    snprintf(name, sizeof(name), "%.480s:%u", path, line);
    int r = js_parse_line(text, len, path, line, &o, err);
    if (r == 0)
        r = read_prompt(o, &p, name, err);
    if (r == 0 && f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 64;
        struct prompt *grown = mem_realloc_array(f->prompts, cap, sizeof(*grown));
        if (!grown) {
            r = ERR_NOMEM(err);
        } else {
            f->prompts = grown;
            f->cap = cap;
        }
    }
    if (r < 0) {
        prompt_done(&p);
        return r;
    }
    f->prompts[f->n++] = p;
    return 0;
}

int prompt_file_parse(const char *text, size_t len, const char *name, struct prompt_file *ret,
                      struct error *err)
{
    const size_t was = ret->n;
    uint32_t line = 0;
    int r = 0;
    for (size_t at = 0; r == 0 && at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end ? (size_t)(end - (text + at)) : len - at;
        size_t blank = 0;
        line++;
        while (blank < n && memchr(" \t\r", text[at + blank], 3))
            blank++;
        if (blank < n)
            r = add_line(ret, text + at, n, name, line, err);
        at += n + 1;
    }
    if (r == 0 && ret->n == was)
        return ERR(err, FORMAT, "%s: no prompt", name);
    return r;
}

int prompt_file_read(const char *path, struct prompt_file *ret, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t len = 0;
    int r = file_read(path, PROMPT_MAX_FILE, &text, &len, err);
    return r < 0 ? r : prompt_file_parse(text, len, path, ret, err);
}
