/* SPDX-License-Identifier: Apache-2.0 */
/* Words of a Jinja template, for the recogniser of chat formats (chat_detect.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum jinja_kind {
    JINJA_RAW,    /* text between tags, white-space control applied */
    JINJA_STRING, /* a literal, escapes resolved */
    JINJA_NAME,
    JINJA_OP,    /* any other character, or == != */
    JINJA_PRINT, /* {{ */
    JINJA_BLOCK, /* {% */
    JINJA_END,   /* }} or %} */
};

struct jinja_word {
    enum jinja_kind kind;
    size_t off, len; /* into text */
};

struct jinja {
    struct jinja_word *words;
    size_t n, cap;
    char *text; /* of all words */
};

#define JINJA_MAX_BYTES 65536

/* FORMAT when a tag or a string is not closed, LIMIT when it is longer than JINJA_MAX_BYTES. */
int jinja_read(const char *source, struct jinja *ret, struct error *err);
void jinja_done(struct jinja *j);
/* Is word i of this kind with this text?  i may be past the end. */
bool jinja_is(const struct jinja *j, size_t i, enum jinja_kind kind, const char *text);
