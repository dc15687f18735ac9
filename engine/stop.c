/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One Knuth-Morris-Pratt automaton per stop string, all fed with the same bytes.  An automaton's
 * state is the length of the longest suffix of the text that its string begins with; the longest of
 * them all is what has to be held back.  That many bytes are in `held`, nothing else is stored.
 */
#include "engine/stop.h"

#include <string.h>

#include "base/alloc.h"

struct automaton {
    char *text; /* our copy with a NUL after it, what stop points to */
    struct stop_string stop;
    uint16_t *fail; /* fail[i]: longest proper border of the first i + 1 bytes */
    uint16_t state;
};

struct stop_matcher {
    size_t n;
    bool include;
    const struct stop_string *match;
    struct strbuf held;
    struct automaton a[];
};

static int automaton_init(struct automaton *a, const struct stop_string *s)
{
    const char *copy = a->text = mem_zalloc(s->len + 1);
    a->fail = mem_calloc(s->len, sizeof(*a->fail));
    if (!a->text || !a->fail)
        return DEDIT_E_NOMEM;
    memcpy(a->text, s->s, s->len);
    a->stop = (struct stop_string){copy, s->len};
    for (size_t i = 1, border = 0; i < s->len; i++) {
        while (border > 0 && copy[i] != copy[border])
            border = a->fail[border - 1];
        border += copy[i] == copy[border];
        a->fail[i] = (uint16_t)border;
    }
    return 0;
}

int stop_matcher_new(const struct stop_string *stop, size_t n, bool include,
                     struct stop_matcher **ret, struct error *err)
{
    if (n > SAMPLING_MAX_STOP_STRINGS)
        return ERR(err, INVALID, "stop has %zu strings; at most %d are allowed", n,
                   SAMPLING_MAX_STOP_STRINGS);
    for (size_t i = 0; i < n; i++)
        if (stop[i].len == 0 || stop[i].len > SAMPLING_MAX_STOP_BYTES)
            return ERR(err, INVALID, "stop[%zu] has %zu bytes; 1 to %d are allowed", i, stop[i].len,
                       SAMPLING_MAX_STOP_BYTES);
    _cleanup_(stop_matcher_freep) struct stop_matcher *m =
        mem_zalloc(sizeof(*m) + n * sizeof(m->a[0]));
    if (!m)
        return ERR_NOMEM(err);
    m->include = include;
    for (size_t i = 0; i < n; i++) {
        m->n = i + 1;
        if (automaton_init(&m->a[i], &stop[i]) < 0)
            return ERR_NOMEM(err);
    }
    *ret = TAKE_PTR(m);
    return 0;
}

struct stop_matcher *stop_matcher_free(struct stop_matcher *m)
{
    if (!m)
        return NULL;
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->a[i].text);
        mem_free(m->a[i].fail);
    }
    strbuf_done(&m->held);
    mem_free(m);
    return NULL;
}

/* One more byte; true when the whole string has just been seen. */
static bool automaton_step(struct automaton *a, char c)
{
    size_t s = a->state;
    if (s == a->stop.len) /* seen whole while not armed */
        s = a->fail[s - 1];
    while (s > 0 && a->stop.s[s] != c)
        s = a->fail[s - 1];
    s += a->stop.s[s] == c;
    a->state = (uint16_t)s;
    return s == a->stop.len;
}

/* How much of the text so far can still become a stop string. */
static size_t can_become(const struct stop_matcher *m)
{
    size_t most = 0;
    for (size_t i = 0; i < m->n; i++) {
        const struct automaton *a = &m->a[i];
        size_t s = a->state == a->stop.len ? a->fail[a->state - 1] : a->state;
        most = s > most ? s : most;
    }
    return most;
}

int stop_matcher_feed(struct stop_matcher *m, const char *text, size_t len, bool armed,
                      struct strbuf *out, struct error *err)
{
    if (m->match)
        return 1;
    /* Room first: after this nothing can fail. */
    if (strbuf_reserve(&m->held, len) < 0 || strbuf_reserve(out, m->held.len + len) < 0)
        return ERR_NOMEM(err);
    for (size_t at = 0; at < len; at++) {
        const struct stop_string *met = NULL;
        for (size_t i = 0; i < m->n; i++)
            if (automaton_step(&m->a[i], text[at]) && armed &&
                (!met || m->a[i].stop.len > met->len))
                met = &m->a[i].stop;
        if (!met)
            continue;
        (void)strbuf_add(&m->held, text, at + 1);
        (void)strbuf_add(out, m->held.s, m->held.len - (m->include ? 0 : met->len));
        strbuf_clear(&m->held);
        m->match = met;
        return 1;
    }
    if (len > 0)
        (void)strbuf_add(&m->held, text, len);
    size_t keep = can_become(m), safe = m->held.len - keep;
    if (safe > 0) {
        (void)strbuf_add(out, m->held.s, safe);
        memmove(m->held.s, m->held.s + safe, keep);
        m->held.len = keep;
        m->held.s[keep] = '\0';
    }
    return 0;
}

const struct stop_string *stop_matcher_match(const struct stop_matcher *m)
{
    return m->match;
}

size_t stop_matcher_held(const struct stop_matcher *m)
{
    return m->held.len;
}

int stop_matcher_flush(struct stop_matcher *m, struct strbuf *out, struct error *err)
{
    if (m->held.len > 0 && strbuf_add(out, m->held.s, m->held.len) < 0)
        return ERR_NOMEM(err);
    strbuf_clear(&m->held);
    return 0;
}
