/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat formats: names, checks, ChatML and SmolLM2, and the way from rendered text to ids.
 *
 * The whole chat is tokenised as one text, because a template's line break and a message's first
 * characters may share a token; a map beside the text says where added tokens may be recognised.
 */
#include "engine/chat.h"

#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/chat_internal.h"
#include "engine/json.h"

static const char *const names[CHAT_FORMAT_COUNT] = {
    [CHAT_CHATML] = "chatml", [CHAT_QWEN3] = "qwen3",       [CHAT_SMOLLM2] = "smollm2",
    [CHAT_LLAMA3] = "llama3", [CHAT_LLAMA3_0] = "llama3.0",
};

const char *chat_format_name(enum chat_format f)
{
    return (unsigned)f < CHAT_FORMAT_COUNT ? names[f] : "unknown";
}

bool chat_format_parse(const char *name, enum chat_format *ret)
{
    for (int i = 0; i < CHAT_FORMAT_COUNT; i++)
        if (!strcmp(name, names[i])) {
            *ret = (enum chat_format)i;
            return true;
        }
    return false;
}

int chat_put(struct chat_out *o, uint8_t allow, const char *s, size_t n, struct error *err)
{
    if (strbuf_add(&o->text, s, n) < 0 || strbuf_reserve(&o->allow, n) < 0)
        return ERR_NOMEM(err);
    memset(o->allow.s + o->allow.len, allow, n);
    o->allow.len += n;
    return 0;
}

int chat_puts(struct chat_out *o, const char *s, struct error *err)
{
    return chat_put(o, ALLOW_ALL, s, strlen(s), err);
}

bool chat_role_is(const struct chat_message *m, const char *role)
{
    return !strcmp(m->role, role);
}

/* ---- what the caller gave */

static int check_text(const char *s, size_t len, size_t i, const char *what, struct error *err)
{
    if (!s && len)
        return ERR(err, INVALID, "message %zu: no %s", i, what);
    for (size_t at = 0; at < len;) {
        uint32_t cp;
        size_t n = utf8_decode(s + at, len - at, &cp);
        if (n == 0)
            return ERR(err, INVALID, "message %zu: %s is not UTF-8 at byte %zu", i, what, at);
        at += n;
    }
    return 0;
}

static int check_messages(enum chat_format f, const struct chat_message *m, size_t n,
                          const struct chat_options *o, struct error *err)
{
    bool has_tools = f == CHAT_QWEN3 || f == CHAT_LLAMA3;
    if ((unsigned)f >= CHAT_FORMAT_COUNT)
        return ERR(err, INVALID, "unknown chat format %d", (int)f);
    if (n == 0)
        return ERR(err, INVALID, "a chat needs at least one message");
    if (o->tools_json && !has_tools)
        return ERR(err, UNSUPPORTED,
                   "chat format %s has no tool definitions; qwen3 and llama3 have", names[f]);
    for (size_t i = 0; i < n; i++) {
        const char *role = m[i].role;
        if (!role || (strcmp(role, "system") && strcmp(role, "user") && strcmp(role, "assistant") &&
                      strcmp(role, "tool")))
            return ERR(err, INVALID,
                       "message %zu: role \"%.40s\" is none of system, user, assistant, tool", i,
                       role ? role : "");
        if (m[i].tool_calls_json && strcmp(role, "assistant"))
            return ERR(err, INVALID, "message %zu: only an assistant can call tools", i);
        if (m[i].tool_calls_json && !has_tools)
            return ERR(err, UNSUPPORTED,
                       "message %zu: chat format %s has no tool calls; qwen3 and llama3 have", i,
                       names[f]);
        int r = check_text(m[i].content, m[i].content_len, i, "content", err);
        if (r == 0 && m[i].reasoning)
            r = check_text(m[i].reasoning, strlen(m[i].reasoning), i, "reasoning", err);
        if (r < 0)
            return r;
    }
    return 0;
}

int chat_parse_array(const char *text, const char *what, json_t **ret, struct error *err)
{
    *ret = NULL;
    if (!text)
        return 0;
    json_t *v = NULL;
    int r = js_parse(text, strlen(text), what, &v, err);
    if (r == DEDIT_E_FORMAT) {
        if (err)
            err->code = DEDIT_E_INVALID; /* it is no file that is wrong */
        return DEDIT_E_INVALID;
    }
    if (r < 0)
        return r;
    if (!json_is_array(v)) {
        r = ERR(err, INVALID, "%s must be a JSON array, is %s", what, js_type_name(v));
        json_decref(v);
        return r;
    }
    *ret = v;
    return 0;
}

int chat_tool_call(json_t *call, const char **ret_name, json_t **ret_arguments, struct error *err)
{
    json_t *f = json_object_get(call, "function");
    if (json_is_object(f))
        call = f;
    json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
    if (!json_is_string(name) || !arguments)
        return ERR(err, INVALID, "a tool call must have \"name\" (a string) and \"arguments\"");
    *ret_name = json_string_value(name);
    *ret_arguments = arguments;
    return 0;
}

/* ---- ChatML, and SmolLM2, which puts a system turn in front of a chat that has none */

static int render_chatml(struct chat_out *o, const struct chat_message *m, size_t n,
                         const struct chat_options *opt, const char *default_system,
                         struct error *err)
{
    int r = 0;
    if (default_system && !chat_role_is(&m[0], "system")) {
        r = chat_puts(o, "<|im_start|>system\n", err);
        if (r == 0)
            r = chat_puts(o, default_system, err);
        if (r == 0)
            r = chat_puts(o, "<|im_end|>\n", err);
    }
    for (size_t i = 0; i < n && r == 0; i++) {
        bool own = chat_role_is(&m[i], "assistant");
        if ((r = chat_puts(o, "<|im_start|>", err)) < 0 || (r = chat_puts(o, m[i].role, err)) < 0 ||
            (r = chat_puts(o, "\n", err)) < 0 ||
            (r = chat_put(o, own ? ALLOW_NOT_SPECIAL : ALLOW_NONE, m[i].content, m[i].content_len,
                          err)) < 0)
            break;
        r = chat_puts(o, "<|im_end|>\n", err);
    }
    if (r == 0 && opt->add_generation_prompt)
        r = chat_puts(o, "<|im_start|>assistant\n", err);
    return r;
}

static int render(enum chat_format f, const struct chat_message *m, size_t n,
                  const struct chat_options *opt, struct chat_out *o, struct error *err)
{
    static const struct chat_options defaults = {.enable_thinking = -1};
    if (!opt)
        opt = &defaults;
    int r = check_messages(f, m, n, opt, err);
    if (r < 0)
        return r;
    switch (f) {
    case CHAT_CHATML:
        return render_chatml(o, m, n, opt, NULL, err);
    case CHAT_SMOLLM2:
        return render_chatml(o, m, n, opt, CHAT_SMOLLM2_SYSTEM, err);
    case CHAT_QWEN3:
        return chat_render_qwen3(o, m, n, opt, err);
    case CHAT_LLAMA3:
        return chat_render_llama3(o, m, n, opt, err);
    case CHAT_LLAMA3_0:
        return chat_render_llama3_0(o, m, n, opt, err);
    case CHAT_FORMAT_COUNT:
        break;
    }
    return ERR(err, INTERNAL, "chat format %d", (int)f);
}

static void out_done(struct chat_out *o)
{
    strbuf_done(&o->text);
    strbuf_done(&o->allow);
}

int chat_render_text(enum chat_format f, const struct chat_message *m, size_t n,
                     const struct chat_options *o, struct strbuf *out, struct error *err)
{
    _cleanup_(out_done) struct chat_out c = {0};
    int r = render(f, m, n, o, &c, err);
    if (r < 0)
        return r;
    return strbuf_add(out, c.text.s, c.text.len) < 0 ? ERR_NOMEM(err) : 0;
}

/* ---- ids */

static int check_tokenizer(enum chat_format f, const struct tokenizer *t, struct error *err)
{
    static const char *const chatml[] = {"<|im_start|>", "<|im_end|>", NULL};
    static const char *const llama[] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                                        NULL};
    uint32_t id;
    for (const char *const *s = f == CHAT_LLAMA3 || f == CHAT_LLAMA3_0 ? llama : chatml; *s; s++)
        if (!tokenizer_find_added(t, *s, strlen(*s), &id))
            return ERR(
                err, MISMATCH,
                "chat format %s needs the control token %s, which the model's tokenizer does "
                "not have",
                names[f], *s);
    return 0;
}

int chat_render_ids(enum chat_format f, const struct tokenizer *t, const struct chat_message *m,
                    size_t n, const struct chat_options *o, struct token_list *out,
                    struct error *err)
{
    _cleanup_(out_done) struct chat_out c = {0};
    size_t before = out->len;
    unsigned flags = TOKENIZE_BOS;
    int r = render(f, m, n, o, &c, err);
    if (r < 0 || (r = check_tokenizer(f, t, err)) < 0)
        return r;
    if (c.bos_len) {
        /* The format prints the model's BOS, whatever its text is there. */
        uint32_t bos = 0;
        if (!tokenizer_find_added(t, c.text.s, c.bos_len, &bos) && !tokenizer_bos(t, &bos))
            return ERR(err, MISMATCH,
                       "chat format %s begins with BOS, which the model's tokenizer does not have",
                       names[f]);
        if (token_list_add(out, bos) < 0)
            return ERR_NOMEM(err);
        flags = 0;
    }
    r = tokenizer_encode_allow(t, c.text.s + c.bos_len, c.text.len - c.bos_len,
                               (const uint8_t *)c.allow.s + c.bos_len, flags, out, NULL, err);
    if (r < 0)
        out->len = before;
    return r;
}
