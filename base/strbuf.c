/* SPDX-License-Identifier: Apache-2.0 */
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

int strbuf_reserve(struct strbuf *b, size_t more)
{
    size_t need, grown;
    if (!size_add(b->len, more, &need) || !size_add(need, 1, &need))
        return DEDIT_E_NOMEM;
    if (need <= b->cap)
        return 0;
    if (!size_add(b->cap, b->cap / 2 + 32, &grown) || grown < need)
        grown = need;
    char *s = mem_realloc(b->s, grown);
    if (!s)
        return DEDIT_E_NOMEM;
    if (!b->s)
        s[0] = '\0';
    b->s = s;
    b->cap = grown;
    return 0;
}

int strbuf_add(struct strbuf *b, const void *s, size_t n)
{
    int r = strbuf_reserve(b, n);
    if (r < 0)
        return r;
    if (n)
        memcpy(b->s + b->len, s, n);
    b->len += n;
    b->s[b->len] = '\0';
    return 0;
}

int strbuf_adds(struct strbuf *b, const char *s)
{
    return strbuf_add(b, s, strlen(s));
}

int strbuf_addc(struct strbuf *b, char c)
{
    return strbuf_add(b, &c, 1);
}

int strbuf_addf(struct strbuf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return DEDIT_E_NOMEM; /* longer than INT_MAX */
    int r = strbuf_reserve(b, (size_t)n);
    if (r < 0)
        return r;
    va_start(ap, fmt);
    vsnprintf(b->s + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

void strbuf_clear(struct strbuf *b)
{
    b->len = 0;
    if (b->s)
        b->s[0] = '\0';
}

void strbuf_done(struct strbuf *b)
{
    mem_free(b->s);
    *b = (struct strbuf){0};
}
