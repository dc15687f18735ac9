/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat formats by name.  A format turns messages into token ids: control tokens come from the
 * format alone; text of users, systems and tools can never become an added token of any kind, text
 * of assistants (which a model may have written) no control token.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/tokenizer.h"

enum chat_format {
    CHAT_CHATML,
    CHAT_QWEN3,
    CHAT_SMOLLM2,
    CHAT_LLAMA3,   /* Llama 3.1 to 3.3: knowledge and today's date in the system turn, tools */
    CHAT_LLAMA3_0, /* Llama 3: bare turns */
    CHAT_FORMAT_COUNT
};
const char *chat_format_name(enum chat_format f);
bool chat_format_parse(const char *name, enum chat_format *ret);
/* Recognises a model's Jinja template.  Unknown or missing: DEDIT_E_UNSUPPORTED with the names that
 * can be chosen instead. */
int chat_format_detect(const char *jinja, enum chat_format *ret, struct error *err);

struct chat_message {
    const char *role;    /* system, user, assistant, tool */
    const char *content; /* UTF-8, may be "" */
    size_t content_len;
    const char *reasoning;       /* assistant's reasoning_content or NULL */
    const char *tool_calls_json; /* assistant: JSON array [{"name":…,"arguments":{…}}] or NULL; the
                                    OpenAI form with "function" inside is accepted */
};
struct chat_options {
    bool add_generation_prompt; /* open the assistant's turn */
    int enable_thinking;        /* qwen3: -1 the model's default (on), 0 off, 1 on */
    const char *tools_json;     /* JSON array of tool definitions or NULL */
    const char *date;           /* llama3 "Today Date", e.g. "26 Jul 2024"; NULL = that default */
};
/* The text as the reference template renders it (control tokens as text). */
int chat_render_text(enum chat_format f, const struct chat_message *m, size_t n,
                     const struct chat_options *o, struct strbuf *out, struct error *err);
/* Token ids, safe: see above.  BOS comes first exactly once where the format prints one or the
 * tokenizer wants one.  The tokenizer must have the format's control tokens (MISMATCH). */
int chat_render_ids(enum chat_format f, const struct tokenizer *t, const struct chat_message *m,
                    size_t n, const struct chat_options *o, struct token_list *out,
                    struct error *err);
