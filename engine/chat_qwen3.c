/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen3: ChatML with tools and reasoning.  An assistant's reasoning is kept only after the last
 * question of a user (so while the model works with tools), and dropped from older turns.
 */
#include <string.h>

#include "engine/chat_internal.h"

/* A piece of a message's content. */
struct span {
    const char *s;
    size_t n;
};

static struct span strip_newlines(struct span a, bool left, bool right)
{
    while (left && a.n && a.s[0] == '\n') {
        a.s++;
        a.n--;
    }
    while (right && a.n && a.s[a.n - 1] == '\n')
        a.n--;
    return a;
}

static bool starts_with(struct span a, const char *s)
{
    size_t n = strlen(s);
    return a.n >= n && !memcmp(a.s, s, n);
}

static bool ends_with(struct span a, const char *s)
{
    size_t n = strlen(s);
    return a.n >= n && !memcmp(a.s + a.n - n, s, n);
}

static const char *find(struct span a, const char *s)
{
    return a.n ? memmem(a.s, a.n, s, strlen(s)) : NULL;
}

/* What follows the last s; the whole when there is none. */
static struct span after_last(struct span a, const char *s)
{
    for (const char *p; (p = find(a, s));) {
        const char *rest = p + strlen(s);
        a = (struct span){rest, a.n - (size_t)(rest - a.s)};
    }
    return a;
}

static struct span before_first(struct span a, const char *s)
{
    const char *p = find(a, s);
    return p ? (struct span){a.s, (size_t)(p - a.s)} : a;
}

/* Index of the last user message that is no wrapped tool response. */
static size_t last_query(const struct chat_message *m, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        struct span c = {m[i].content, m[i].content_len};
        if (chat_role_is(&m[i], "user") &&
            !(starts_with(c, "<tool_response>") && ends_with(c, "</tool_response>")))
            return i;
    }
    return n - 1;
}

static int put_system(struct chat_out *o, const struct chat_message *m,
                      const struct chat_options *opt, struct error *err)
{
    json_auto_t *tools = NULL;
    json_t *tool;
    size_t i;
    bool system = chat_role_is(m, "system");
    int r = chat_parse_array(opt->tools_json, "tools", &tools, err);
    if (r < 0)
        return r;
    bool has_tools = json_array_size(tools) > 0;
    if (!has_tools && !system)
        return 0;
    if ((r = chat_puts(o, "<|im_start|>system\n", err)) < 0 ||
        (system && (r = chat_put(o, ALLOW_NONE, m->content, m->content_len, err)) < 0))
        return r;
    if (!has_tools)
        return chat_puts(o, "<|im_end|>\n", err);
    if ((system && (r = chat_puts(o, "\n\n", err)) < 0) ||
        (r = chat_puts(o, CHAT_QWEN3_TOOLS_HEAD, err)) < 0)
        return r;
    json_array_foreach(tools, i, tool)
    {
        _cleanup_strbuf_ struct strbuf text = {0};
        if ((r = chat_puts(o, "\n", err)) < 0 || (r = chat_dump_json(tool, 0, &text, err)) < 0 ||
            (r = chat_put(o, ALLOW_NONE, text.s, text.len, err)) < 0)
            return r;
    }
    return chat_puts(o, CHAT_QWEN3_TOOLS_TAIL, err);
}

static int put_tool_calls(struct chat_out *o, const char *calls_json, bool after_content,
                          struct error *err)
{
    json_auto_t *calls = NULL;
    json_t *call;
    size_t i;
    int r = chat_parse_array(calls_json, "tool_calls", &calls, err);
    if (r < 0)
        return r;
    json_array_foreach(calls, i, call)
    {
        _cleanup_strbuf_ struct strbuf text = {0};
        const char *name;
        json_t *arguments;
        if ((r = chat_tool_call(call, &name, &arguments, err)) < 0)
            return r;
        /* Arguments given as a string are the model's own JSON. */
        if (json_is_string(arguments))
            r = strbuf_add(&text, json_string_value(arguments), json_string_length(arguments)) < 0
                    ? ERR_NOMEM(err)
                    : 0;
        else
            r = chat_dump_json(arguments, 0, &text, err);
        if (r < 0 || ((i > 0 || after_content) && (r = chat_puts(o, "\n", err)) < 0) ||
            (r = chat_puts(o, "<tool_call>\n{\"name\": \"", err)) < 0 ||
            (r = chat_put(o, ALLOW_NONE, name, strlen(name), err)) < 0 ||
            (r = chat_puts(o, "\", \"arguments\": ", err)) < 0 ||
            (r = chat_put(o, ALLOW_NONE, text.s, text.len, err)) < 0 ||
            (r = chat_puts(o, "}\n</tool_call>", err)) < 0)
            return r;
    }
    return 0;
}

static int put_assistant(struct chat_out *o, const struct chat_message *m, bool after_query,
                         bool last, struct error *err)
{
    struct span content = {m->content, m->content_len}, reasoning = {"", 0};
    int r;
    if (m->reasoning) {
        reasoning = (struct span){m->reasoning, strlen(m->reasoning)};
    } else if (find(content, "</think>")) {
        reasoning = strip_newlines(before_first(content, "</think>"), false, true);
        reasoning = strip_newlines(after_last(reasoning, "<think>"), true, false);
        content = strip_newlines(after_last(content, "</think>"), true, false);
    }
    if ((r = chat_puts(o, "<|im_start|>assistant\n", err)) < 0)
        return r;
    struct span shown = content;
    if (after_query && (last || reasoning.n)) {
        struct span inner = strip_newlines(reasoning, true, true);
        if ((r = chat_puts(o, "<think>\n", err)) < 0 ||
            (r = chat_put(o, ALLOW_NOT_SPECIAL, inner.s, inner.n, err)) < 0 ||
            (r = chat_puts(o, "\n</think>\n\n", err)) < 0)
            return r;
        shown = strip_newlines(content, true, false);
    }
    if ((r = chat_put(o, ALLOW_NOT_SPECIAL, shown.s, shown.n, err)) < 0 ||
        (r = put_tool_calls(o, m->tool_calls_json, content.n > 0, err)) < 0)
        return r;
    return chat_puts(o, "<|im_end|>\n", err);
}

static int put_tool_response(struct chat_out *o, const struct chat_message *m, bool first,
                             bool last, struct error *err)
{
    int r;
    if ((first && (r = chat_puts(o, "<|im_start|>user", err)) < 0) ||
        (r = chat_puts(o, "\n<tool_response>\n", err)) < 0 ||
        (r = chat_put(o, ALLOW_NONE, m->content, m->content_len, err)) < 0 ||
        (r = chat_puts(o, "\n</tool_response>", err)) < 0)
        return r;
    return last ? chat_puts(o, "<|im_end|>\n", err) : 0;
}

static int put_plain(struct chat_out *o, const struct chat_message *m, struct error *err)
{
    int r;
    if ((r = chat_puts(o, "<|im_start|>", err)) < 0 || (r = chat_puts(o, m->role, err)) < 0 ||
        (r = chat_puts(o, "\n", err)) < 0 ||
        (r = chat_put(o, ALLOW_NONE, m->content, m->content_len, err)) < 0)
        return r;
    return chat_puts(o, "<|im_end|>\n", err);
}

int chat_render_qwen3(struct chat_out *o, const struct chat_message *m, size_t n,
                      const struct chat_options *opt, struct error *err)
{
    size_t query = last_query(m, n);
    int r = put_system(o, &m[0], opt, err);
    for (size_t i = 0; i < n && r == 0; i++) {
        if (chat_role_is(&m[i], "assistant"))
            r = put_assistant(o, &m[i], i > query, i == n - 1, err);
        else if (chat_role_is(&m[i], "tool"))
            r = put_tool_response(o, &m[i], i == 0 || !chat_role_is(&m[i - 1], "tool"),
                                  i == n - 1 || !chat_role_is(&m[i + 1], "tool"), err);
        else if (i > 0 || chat_role_is(&m[i], "user"))
            r = put_plain(o, &m[i], err);
    }
    if (r == 0 && opt->add_generation_prompt)
        r = chat_puts(o, "<|im_start|>assistant\n", err);
    if (r == 0 && opt->add_generation_prompt && opt->enable_thinking == 0)
        r = chat_puts(o, "<think>\n\n</think>\n\n", err);
    return r;
}
