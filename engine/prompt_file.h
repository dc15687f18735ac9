/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompts in a file of JSON lines.  A line is one conversation, in one of three forms:
 *   {"turns": ["...", ...]}     what the user says, turn by turn
 *   {"messages": [{"role": "user", "content": "..."}, ...]}   as OpenAI's API has it
 *   {"prompt": "..."}
 * Of messages, the system's first one and the user's are taken; answers in between are left out, since a
 * model is to write its own.  Other members are ignored.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define PROMPT_MAX_TURNS 64u
#define PROMPT_MAX_FILE  ((size_t)1 << 30)

struct prompt {
    char *system; /* or NULL */
    char **turns;
    uint32_t n_turns; /* 1 at least */
    uint32_t line;
};
struct prompt_file {
    struct prompt *prompts;
    size_t n, cap;
};
/* Appends.  Errors name file, line and member; a file without any prompt is one. */
int prompt_file_read(const char *path, struct prompt_file *ret, struct error *err);
/* The same of a text in memory. */
int prompt_file_parse(const char *text, size_t len, const char *name, struct prompt_file *ret,
                      struct error *err);
void prompt_file_done(struct prompt_file *f);
#define _cleanup_prompts_ _cleanup_(prompt_file_done)
