/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What user turns of self-written data begin with: a few words that the model goes on from, and whole
 * instructions made of a skeleton and a topic.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct text_list {
    const char *const *s;
    size_t n;
    char **owned; /* or NULL: built in */
};
extern const struct text_list list_math, list_code, list_chat, list_skeletons, list_topics;

/* One text a line, blank lines and lines with # left out; UTF-8. */
int text_list_read(const char *path, struct text_list *ret, struct error *err);
void text_list_done(struct text_list *l);
/* Of all texts, in order. */
uint64_t text_list_hash(const struct text_list *l);
