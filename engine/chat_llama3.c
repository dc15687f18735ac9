/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama 3.  The template of 3.1 and later always writes a system turn with the date of its
 * knowledge and today's, and puts tool definitions into the first user turn; that of 3.0 writes the
 * turns alone.  Both strip white space around contents.
 */
#include <string.h>

#include "base/parse.h"
#include "engine/chat_internal.h"

#define BOS "<|begin_of_text|>"

/* White space as Python's str.strip() takes it. */
static bool is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static void trim(const char **s, size_t *n)
{
    uint32_t cp;
    size_t step;
    while (*n && (step = utf8_decode(*s, *n, &cp)) > 0 && is_space(cp)) {
        *s += step;
        *n -= step;
    }
    while (*n) {
        size_t at = *n - 1;
        while (at > 0 && ((uint8_t)(*s)[at] & 0xc0) == 0x80)
            at--;
        if (utf8_decode(*s + at, *n - at, &cp) == 0 || !is_space(cp))
            break;
        *n = at;
    }
}

static int put_trimmed(struct chat_out *o, const struct chat_message *m, struct error *err)
{
    const char *s = m->content;
    size_t n = m->content_len;
    trim(&s, &n);
    return chat_put(o, chat_role_is(m, "assistant") ? ALLOW_NOT_SPECIAL : ALLOW_NONE, s, n, err);
}

static int put_header(struct chat_out *o, const char *role, struct error *err)
{
    int r;
    if ((r = chat_puts(o, "<|start_header_id|>", err)) < 0 || (r = chat_puts(o, role, err)) < 0)
        return r;
    return chat_puts(o, "<|end_header_id|>\n\n", err);
}

static int put_bos(struct chat_out *o, struct error *err)
{
    int r = chat_puts(o, BOS, err);
    o->bos_len = o->text.len;
    return r;
}

static int put_turn(struct chat_out *o, const struct chat_message *m, struct error *err)
{
    int r;
    if ((r = put_header(o, m->role, err)) < 0 || (r = put_trimmed(o, m, err)) < 0)
        return r;
    return chat_puts(o, "<|eot_id|>", err);
}

int chat_render_llama3_0(struct chat_out *o, const struct chat_message *m, size_t n,
                         const struct chat_options *opt, struct error *err)
{
    int r = put_bos(o, err);
    for (size_t i = 0; i < n && r == 0; i++)
        r = put_turn(o, &m[i], err);
    if (r == 0 && opt->add_generation_prompt)
        r = put_header(o, "assistant", err);
    return r;
}

static int put_system(struct chat_out *o, const struct chat_message *system,
                      const struct chat_options *opt, bool has_tools, struct error *err)
{
    const char *date = opt->date ? opt->date : CHAT_LLAMA3_DATE;
    int r;
    if (!utf8_valid(date, strlen(date)))
        return ERR(err, INVALID, "the date is not UTF-8");
    if ((r = put_header(o, "system", err)) < 0 ||
        (has_tools && (r = chat_puts(o, "Environment: ipython\n", err)) < 0) ||
        (r = chat_puts(o, CHAT_LLAMA3_CUTOFF, err)) < 0 ||
        (r = chat_puts(o, "Today Date: ", err)) < 0 ||
        (r = chat_put(o, ALLOW_NONE, date, strlen(date), err)) < 0 ||
        (r = chat_puts(o, "\n\n", err)) < 0 || (system && (r = put_trimmed(o, system, err)) < 0))
        return r;
    return chat_puts(o, "<|eot_id|>", err);
}

static int put_tools(struct chat_out *o, json_t *tools, const struct chat_message *first,
                     struct error *err)
{
    json_t *tool;
    size_t i;
    int r;
    if ((r = put_header(o, "user", err)) < 0 || (r = chat_puts(o, CHAT_LLAMA3_TOOLS_1, err)) < 0 ||
        (r = chat_puts(o, CHAT_LLAMA3_TOOLS_2, err)) < 0 ||
        (r = chat_puts(o, CHAT_LLAMA3_TOOLS_3, err)) < 0 ||
        (r = chat_puts(o, CHAT_LLAMA3_TOOLS_4, err)) < 0)
        return r;
    json_array_foreach(tools, i, tool)
    {
        _cleanup_strbuf_ struct strbuf text = {0};
        if ((r = chat_dump_json(tool, 4, &text, err)) < 0 ||
            (r = chat_put(o, ALLOW_NONE, text.s, text.len, err)) < 0 ||
            (r = chat_puts(o, "\n\n", err)) < 0)
            return r;
    }
    if ((r = put_trimmed(o, first, err)) < 0)
        return r;
    return chat_puts(o, "<|eot_id|>", err);
}

static int put_tool_call(struct chat_out *o, const struct chat_message *m, struct error *err)
{
    json_auto_t *calls = NULL;
    _cleanup_strbuf_ struct strbuf text = {0};
    const char *name;
    json_t *arguments;
    int r = chat_parse_array(m->tool_calls_json, "tool_calls", &calls, err);
    if (r < 0)
        return r;
    if (json_array_size(calls) != 1)
        return ERR(err, INVALID, "chat format llama3 takes one tool call a message, not %zu",
                   json_array_size(calls));
    if ((r = chat_tool_call(json_array_get(calls, 0), &name, &arguments, err)) < 0 ||
        (r = chat_dump_json(arguments, 0, &text, err)) < 0 ||
        (r = put_header(o, "assistant", err)) < 0 || (r = chat_puts(o, "{\"name\": \"", err)) < 0 ||
        (r = chat_put(o, ALLOW_NONE, name, strlen(name), err)) < 0 ||
        (r = chat_puts(o, "\", \"parameters\": ", err)) < 0 ||
        (r = chat_put(o, ALLOW_NONE, text.s, text.len, err)) < 0)
        return r;
    return chat_puts(o, "}<|eot_id|>", err);
}

/* A tool's answer is written as a JSON string: the template's test for structured content is true
 * for strings too. */
static int put_tool_answer(struct chat_out *o, const struct chat_message *m, struct error *err)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    json_auto_t *s = json_stringn_nocheck(m->content ? m->content : "", m->content_len);
    int r;
    if (!s)
        return ERR_NOMEM(err);
    if ((r = put_header(o, "ipython", err)) < 0 || (r = chat_dump_json(s, 0, &text, err)) < 0 ||
        (r = chat_put(o, ALLOW_NONE, text.s, text.len, err)) < 0)
        return r;
    return chat_puts(o, "<|eot_id|>", err);
}

int chat_render_llama3(struct chat_out *o, const struct chat_message *m, size_t n,
                       const struct chat_options *opt, struct error *err)
{
    json_auto_t *tools = NULL;
    bool system = chat_role_is(&m[0], "system");
    size_t i = system ? 1 : 0;
    int r = chat_parse_array(opt->tools_json, "tools", &tools, err);
    if (r < 0 || (r = put_bos(o, err)) < 0 ||
        (r = put_system(o, system ? m : NULL, opt, tools != NULL, err)) < 0)
        return r;
    if (tools) {
        if (i >= n)
            return ERR(
                err, INVALID,
                "chat format llama3 puts the tools into the first user message; there is none");
        if ((r = put_tools(o, tools, &m[i++], err)) < 0)
            return r;
    }
    for (; i < n && r == 0; i++) {
        if (m[i].tool_calls_json)
            r = put_tool_call(o, &m[i], err);
        else if (chat_role_is(&m[i], "tool"))
            r = put_tool_answer(o, &m[i], err);
        else
            r = put_turn(o, &m[i], err);
    }
    if (r == 0 && opt->add_generation_prompt)
        r = put_header(o, "assistant", err);
    return r;
}
