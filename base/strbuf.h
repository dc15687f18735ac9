/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte string.  Zero-initialised is empty; always NUL-terminated once non-NULL. */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"

struct strbuf {
    char *s; /* NULL while empty and never grown */
    size_t len, cap;
};

/* 0 or DEDIT_E_NOMEM; on failure the content is unchanged. */
int strbuf_add(struct strbuf *b, const void *s, size_t n);
int strbuf_adds(struct strbuf *b, const char *s);
int strbuf_addc(struct strbuf *b, char c);
int strbuf_addf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int strbuf_reserve(struct strbuf *b, size_t more);
void strbuf_clear(struct strbuf *b); /* keeps the memory */
void strbuf_done(struct strbuf *b);  /* frees, leaves it zero */
#define _cleanup_strbuf_ _cleanup_(strbuf_done)
