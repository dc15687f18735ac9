/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by engine/chat*.c only: the rendered text with the origin of each byte, and JSON. */
#pragma once

#include <jansson.h>

#include "base/strbuf.h"
#include "engine/chat.h"
#include "engine/tokenizer_internal.h"

/* Text, and per byte whether added tokens are recognised there (ALLOW_*). */
struct chat_out {
    struct strbuf text, allow;
    size_t bos_len; /* leading bytes that are the BOS token's text */
};
int chat_put(struct chat_out *o, uint8_t allow, const char *s, size_t n, struct error *err);
/* Text of the format itself. */
int chat_puts(struct chat_out *o, const char *s, struct error *err);

/* Renders messages that are known to be valid; chat.c checks them. */
int chat_render_qwen3(struct chat_out *o, const struct chat_message *m, size_t n,
                      const struct chat_options *opt, struct error *err);
int chat_render_llama3(struct chat_out *o, const struct chat_message *m, size_t n,
                       const struct chat_options *opt, struct error *err);
int chat_render_llama3_0(struct chat_out *o, const struct chat_message *m, size_t n,
                         const struct chat_options *opt, struct error *err);

bool chat_role_is(const struct chat_message *m, const char *role);
/* A value as Python's json.dumps(ensure_ascii=False) writes it; indent 0 = one line. */
int chat_dump_json(json_t *v, unsigned indent, struct strbuf *out, struct error *err);
/* The caller's JSON: an array, INVALID otherwise.  *ret NULL for text NULL. */
int chat_parse_array(const char *text, const char *what, json_t **ret, struct error *err);
/* One tool call: the object itself or its "function".  Its "name" is a string and "arguments" is
 * there, or INVALID. */
int chat_tool_call(json_t *call, const char **ret_name, json_t **ret_arguments, struct error *err);

/* Texts that a renderer prints and the recogniser of templates looks for. */
#define CHAT_SMOLLM2_SYSTEM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define CHAT_QWEN3_TOOLS_HEAD                                                                      \
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "     \
    "provided with function signatures within <tools></tools> XML tags:\n<tools>"
#define CHAT_QWEN3_TOOLS_TAIL                                                                      \
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments " \
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "          \
    "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n"
#define CHAT_LLAMA3_CUTOFF "Cutting Knowledge Date: December 2023\n"
#define CHAT_LLAMA3_DATE   "26 Jul 2024"
#define CHAT_LLAMA3_TOOLS_1                                                                        \
    "Given the following functions, please respond with a JSON for a function call "
#define CHAT_LLAMA3_TOOLS_2 "with its proper arguments that best answers the given prompt.\n\n"
#define CHAT_LLAMA3_TOOLS_3                                                                        \
    "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name " \
    "and its value}."
#define CHAT_LLAMA3_TOOLS_4 "Do not use variables.\n\n"
