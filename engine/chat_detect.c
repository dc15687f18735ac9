/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which format does a model's Jinja template describe?  Not by its exact text (copies differ in
 * white space, quotes and small guards) and not by one marker (many templates share those), but:
 *
 * - the short formats, by what the template prints, in order: literals, role and content of a
 *   message, BOS.  One more word, a default system prompt say, and it is another format.
 * - qwen3 and llama3, by their literals: each must be one that our renderer prints or compares,
 *   and those that make the format must be there.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "engine/chat_internal.h"
#include "engine/chat_template.h"

static bool is_one_of(const char *s, size_t n, const char *const *list)
{
    for (; *list; list++)
        if (strlen(*list) == n && !memcmp(*list, s, n))
            return true;
    return false;
}

static const char *word_text(const struct jinja *j, size_t i)
{
    return j->text + j->words[i].off;
}

static bool is_blank_raw(const struct jinja *j, size_t i)
{
    const struct jinja_word *w = &j->words[i];
    for (size_t k = 0; k < w->len; k++)
        if (!strchr(" \t\r\n", j->text[w->off + k]))
            return false;
    return w->kind == JINJA_RAW;
}

static bool has(const struct jinja *j, enum jinja_kind kind, const char *text)
{
    for (size_t i = 0; i < j->n; i++)
        if (jinja_is(j, i, kind, text))
            return true;
    return false;
}

/* The words of `sequence` (with blanks between them, of whatever kind) one after the other. */
static bool has_sequence(const struct jinja *j, const char *sequence)
{
    for (size_t start = 0; start < j->n; start++) {
        const char *p = sequence;
        for (size_t i = start; i < j->n; i++) {
            size_t n = strcspn(p, " ");
            if (j->words[i].len != n || memcmp(j->text + j->words[i].off, p, n) != 0)
                break;
            if (!p[n])
                return true;
            p += n + 1;
        }
    }
    return false;
}

/* ---- the short formats */

/* In the flat form of what is printed. */
#define ROLE    "\x01"
#define CONTENT "\x02"
#define TRIM    "\x03"
#define BOS     "\x04"
#define OTHER   "\x05" /* anything that is not understood */

/* message['x'] or message.x at word i: how many words, 0 when it is something else. */
static size_t member(const struct jinja *j, size_t i, const char *x)
{
    if (!jinja_is(j, i, JINJA_NAME, "message"))
        return 0;
    if (jinja_is(j, i + 1, JINJA_OP, ".") && jinja_is(j, i + 2, JINJA_NAME, x))
        return 3;
    if (jinja_is(j, i + 1, JINJA_OP, "[") && jinja_is(j, i + 2, JINJA_STRING, x) &&
        jinja_is(j, i + 3, JINJA_OP, "]"))
        return 4;
    return 0;
}

/* One expression, words [i, end of the tag); names that stand for what was assembled before
 * ("content") add nothing. */
static int flatten_expression(const struct jinja *j, size_t *i, struct strbuf *out)
{
    int r = 0;
    while (*i < j->n && j->words[*i].kind != JINJA_END && r == 0) {
        size_t n = 1;
        if (j->words[*i].kind == JINJA_STRING)
            r = strbuf_add(out, word_text(j, *i), j->words[*i].len);
        else if ((n = member(j, *i, "role")) > 0)
            r = strbuf_adds(out, ROLE);
        else if ((n = member(j, *i, "content")) > 0)
            r = strbuf_adds(out, CONTENT);
        else if ((n = 1) && jinja_is(j, *i, JINJA_NAME, "trim"))
            r = strbuf_adds(out, TRIM);
        else if (jinja_is(j, *i, JINJA_NAME, "bos_token"))
            r = strbuf_adds(out, BOS);
        else if (!jinja_is(j, *i, JINJA_NAME, "content") && !jinja_is(j, *i, JINJA_OP, "+") &&
                 !jinja_is(j, *i, JINJA_OP, "|") && !jinja_is(j, *i, JINJA_OP, "(") &&
                 !jinja_is(j, *i, JINJA_OP, ")"))
            r = strbuf_adds(out, OTHER);
        *i += n;
    }
    return r;
}

/* A statement may use these words only; "system" and "role" only where the format asks for them. */
static bool statement_is_plain(const struct jinja *j, size_t i)
{
    static const char *const names[] = {"for",      "in",
                                        "endfor",   "if",
                                        "elif",     "else",
                                        "endif",    "set",
                                        "not",      "is",
                                        "and",      "or",
                                        "defined",  "none",
                                        "true",     "false",
                                        "loop",     "first",
                                        "index0",   "last",
                                        "0",        "add_generation_prompt",
                                        "role",     "message",
                                        "messages", "loop_messages",
                                        NULL};
    static const char *const strings[] = {"role", "system", NULL};
    for (; i < j->n && j->words[i].kind != JINJA_END; i++) {
        const struct jinja_word *w = &j->words[i];
        if (w->kind == JINJA_NAME && !is_one_of(word_text(j, i), w->len, names))
            return false;
        if (w->kind == JINJA_STRING && !is_one_of(word_text(j, i), w->len, strings))
            return false;
    }
    return true;
}

/* All that the template prints, in the order of its text. */
static int flatten(const struct jinja *j, struct strbuf *out)
{
    int r = strbuf_adds(out, "");
    for (size_t i = 0; i < j->n && r == 0; i++) {
        if (j->words[i].kind == JINJA_RAW) {
            bool edge = (i == 0 || i + 1 == j->n) && is_blank_raw(j, i);
            if (!edge)
                r = strbuf_add(out, word_text(j, i), j->words[i].len);
        } else if (j->words[i].kind == JINJA_PRINT) {
            i++;
            r = flatten_expression(j, &i, out);
        } else if (j->words[i].kind == JINJA_BLOCK) {
            bool set_content = jinja_is(j, i + 1, JINJA_NAME, "set") &&
                               jinja_is(j, i + 2, JINJA_NAME, "content") &&
                               jinja_is(j, i + 3, JINJA_OP, "=");
            if (set_content) {
                i += 4;
                r = flatten_expression(j, &i, out);
            } else if (!statement_is_plain(j, i + 1)) {
                r = strbuf_adds(out, OTHER);
            }
        }
    }
    return r;
}

#define CHATML_TURNS "<|im_start|>" ROLE "\n" CONTENT "<|im_end|>\n<|im_start|>assistant\n"
#define LLAMA_TURN   "<|start_header_id|>" ROLE "<|end_header_id|>\n\n" CONTENT TRIM "<|eot_id|>"
#define LLAMA_PROMPT "<|start_header_id|>assistant<|end_header_id|>\n\n"

static bool detect_short(const struct jinja *j, const char *flat, enum chat_format *ret)
{
    bool asks_role = has(j, JINJA_STRING, "system");
    if (!has(j, JINJA_NAME, "add_generation_prompt"))
        return false;
    if (!asks_role && (!strcmp(flat, CHATML_TURNS) || !strcmp(flat, BOS CHATML_TURNS)))
        *ret = CHAT_CHATML;
    else if (asks_role && has(j, JINJA_OP, "!=") && has(j, JINJA_NAME, "first") &&
             !strcmp(flat, "<|im_start|>system\n" CHAT_SMOLLM2_SYSTEM "<|im_end|>\n" CHATML_TURNS))
        *ret = CHAT_SMOLLM2;
    else if (!asks_role && (!strcmp(flat, BOS LLAMA_TURN LLAMA_PROMPT) ||
                            (!strcmp(flat, LLAMA_TURN BOS LLAMA_PROMPT) &&
                             (has(j, JINJA_NAME, "index0") || has(j, JINJA_NAME, "first")))))
        *ret = CHAT_LLAMA3_0;
    else
        return false;
    return true;
}

/* ---- the long formats */

struct shape {
    enum chat_format format;
    const char *const *known;    /* literals that may occur */
    const char *const *literals; /* that must */
    const char *const *names;    /* that must */
    const char *const *rules;    /* sequences that decide; '/' between alternatives */
};

static const char *const qwen3_known[] = {"<|im_start|>system\n",
                                          "system",
                                          "\n\n",
                                          CHAT_QWEN3_TOOLS_HEAD,
                                          "\n",
                                          CHAT_QWEN3_TOOLS_TAIL,
                                          "<|im_end|>\n",
                                          "<|im_end|>",
                                          "<|im_start|>",
                                          "user",
                                          "assistant",
                                          "tool",
                                          "",
                                          "</think>",
                                          "<think>",
                                          "\n<think>\n",
                                          "\n</think>\n\n",
                                          "<tool_call>\n{\"name\": \"",
                                          "\", \"arguments\": ",
                                          "}\n</tool_call>",
                                          "<|im_start|>user",
                                          "\n<tool_response>\n",
                                          "\n</tool_response>",
                                          "<tool_response>",
                                          "</tool_response>",
                                          "<|im_start|>assistant\n",
                                          "<think>\n\n</think>\n\n",
                                          "role",
                                          "content",
                                          "reasoning_content",
                                          "tool_calls",
                                          "function",
                                          "name",
                                          "arguments",
                                          NULL};
static const char *const qwen3_literals[] = {CHAT_QWEN3_TOOLS_HEAD,
                                             CHAT_QWEN3_TOOLS_TAIL,
                                             "<|im_start|>assistant\n",
                                             "<think>\n\n</think>\n\n",
                                             "</think>",
                                             "<tool_call>\n{\"name\": \"",
                                             "\n<tool_response>\n",
                                             NULL};
static const char *const qwen3_names[] = {"add_generation_prompt",
                                          "enable_thinking",
                                          "reasoning_content",
                                          "last_query_index",
                                          "multi_step_tool",
                                          "tojson",
                                          NULL};

static const char *const qwen3_rules[] = {
    /* reasoning goes with the turns before the last question; thinking is on unless switched off */
    "loop . index0 > ns . last_query_index", "enable_thinking is false", NULL};

static const char *const llama3_known[] = {
    CHAT_LLAMA3_DATE,
    "%d %b %Y",
    "role",
    "system",
    "content",
    "",
    "Environment: ipython\n",
    "<|start_header_id|>system<|end_header_id|>\n\n",
    "Tools: ",
    "equalto",
    "code_interpreter",
    ", ",
    "\n\n",
    CHAT_LLAMA3_CUTOFF,
    "Today Date: ",
    "You have access to the following functions. To call a function, please respond with JSON for "
    "a function call.",
    CHAT_LLAMA3_TOOLS_1,
    CHAT_LLAMA3_TOOLS_2,
    CHAT_LLAMA3_TOOLS_3,
    CHAT_LLAMA3_TOOLS_4,
    "<|eot_id|>",
    "<|eom_id|>",
    "<|start_header_id|>user<|end_header_id|>\n\n",
    "<|start_header_id|>ipython<|end_header_id|>\n\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|start_header_id|>",
    "<|end_header_id|>\n\n",
    "ipython",
    "tool",
    "tool_calls",
    "<|python_tag|>",
    ".call(",
    "=\"",
    "\"",
    ")",
    "{\"name\": \"",
    "\", ",
    "\"parameters\": ",
    "}",
    "Cannot put tools in the first user message when there's no first user message!",
    "This model only supports single tool-calls at once!",
    NULL};
static const char *const llama3_literals[] = {
    CHAT_LLAMA3_DATE, CHAT_LLAMA3_CUTOFF,    "Today Date: ",     CHAT_LLAMA3_TOOLS_1,
    "<|eot_id|>",     "<|start_header_id|>", "\"parameters\": ", NULL};
static const char *const llama3_names[] = {
    "bos_token", "date_string", "tools_in_user_message", "add_generation_prompt", "trim",
    "tojson",    NULL};

static const char *const llama3_rules[] = {"set tools_in_user_message = true",
                                           "message [ content ] | trim/message . content | trim",
                                           NULL};

static const struct shape shapes[] = {
    {CHAT_QWEN3, qwen3_known, qwen3_literals, qwen3_names, qwen3_rules},
    {CHAT_LLAMA3, llama3_known, llama3_literals, llama3_names, llama3_rules},
};

static bool follows_rule(const struct jinja *j, const char *rule)
{
    char one[80];
    for (const char *p = rule; *p;) {
        size_t n = strcspn(p, "/");
        if (n < sizeof(one)) {
            memcpy(one, p, n);
            one[n] = '\0';
            if (has_sequence(j, one))
                return true;
        }
        p += n + (p[n] == '/');
    }
    return false;
}

/* *ret_alien: the first literal that the format does not know, or j->n. */
static bool has_shape(const struct jinja *j, const struct shape *s, size_t *ret_alien)
{
    *ret_alien = j->n;
    for (const char *const *p = s->literals; *p; p++)
        if (!has(j, JINJA_STRING, *p))
            return false;
    for (const char *const *p = s->names; *p; p++)
        if (!has(j, JINJA_NAME, *p))
            return false;
    for (const char *const *p = s->rules; *p; p++)
        if (!follows_rule(j, *p))
            return false;
    for (size_t i = 0; i < j->n; i++)
        if ((j->words[i].kind == JINJA_STRING &&
             !is_one_of(word_text(j, i), j->words[i].len, s->known)) ||
            (j->words[i].kind == JINJA_RAW && !is_blank_raw(j, i))) {
            *ret_alien = i;
            return false;
        }
    return true;
}

static int unknown(struct error *err, const char *why, const struct jinja *j, size_t alien,
                   const char *like)
{
    _cleanup_strbuf_ struct strbuf list = {0};
    for (int i = 0; i < CHAT_FORMAT_COUNT; i++)
        if (strbuf_addf(&list, "%s%s", i ? ", " : "", chat_format_name((enum chat_format)i)) < 0)
            return ERR_NOMEM(err);
    if (alien < j->n)
        return ERR(
            err, UNSUPPORTED,
            "the model's chat template is like %s, but also has \"%.*s\"; choose a format by "
            "name (--chat-format): %s",
            like, (int)(j->words[alien].len < 60 ? j->words[alien].len : 60), word_text(j, alien),
            list.s);
    return ERR(err, UNSUPPORTED, "%s; choose a format by name (--chat-format): %s", why, list.s);
}

int chat_format_detect(const char *jinja, enum chat_format *ret, struct error *err)
{
    _cleanup_(jinja_done) struct jinja j = {0};
    _cleanup_strbuf_ struct strbuf flat = {0};
    struct error why = {0};
    const char *like = "";
    size_t alien = 0, found = 0;
    if (!jinja)
        return unknown(err, "the model has no chat template", &j, 0, "");
    int r = jinja_read(jinja, &j, &why);
    if (r == DEDIT_E_NOMEM)
        return ERR_NOMEM(err);
    if (r < 0) {
        error_prefix(&why, 0, "the model's chat template cannot be read");
        return unknown(err, why.msg, &j, 0, "");
    }
    if (flatten(&j, &flat) < 0)
        return ERR_NOMEM(err);
    if (detect_short(&j, flat.s, ret))
        return 0;
    alien = j.n;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        if (has_shape(&j, &shapes[i], &found)) {
            *ret = shapes[i].format;
            return 0;
        }
        if (found < j.n) {
            alien = found;
            like = chat_format_name(shapes[i].format);
        }
    }
    return unknown(err, "the model's chat template is none of the known ones", &j, alien, like);
}
