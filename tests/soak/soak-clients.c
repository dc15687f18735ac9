/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/dedit.h"
#include "tests/soak/soak.h"

uint32_t soak_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

void soak_wrong(struct soak *s, const char *fmt, ...)
{
    va_list ap;
    if (__atomic_fetch_add(&s->wrong, 1, __ATOMIC_RELAXED))
        return;
    va_start(ap, fmt);
    vsnprintf(s->why, sizeof s->why, fmt, ap);
    va_end(ap);
}

/* Plain and drafted by turns: the answer is the same. */
static int submit(struct dedit_client *c, const struct soak_case *k, struct dedit_request **ret,
                  struct dedit_error *err)
{
    static const char *const methods[] = {NULL, "ar", "ngram"};
    static unsigned turn;
    struct dedit_options o;
    dedit_options_init(&o, sizeof o);
    o.ids = k->prompt;
    o.n_ids = k->n_prompt;
    o.max_tokens = k->max_tokens;
    o.temperature = k->temperature;
    o.seed = k->seed;
    o.has_seed = 1;
    o.ignore_eos = 1;
    o.ring_bytes = 131072;
    o.method = methods[turn++ % 3];
    return dedit_client_submit(c, &o, ret, err);
}

struct answer {
    uint32_t ids[SOAK_MAX_TOKENS];
    uint32_t n;
    bool finished, cancelled; /* how it ended */
};

/* Reads to the end, or up to `most` tokens.  Negative: the error. */
static int read_answer(struct dedit_request *r, uint32_t most, struct answer *a,
                       struct dedit_error *err)
{
    struct dedit_event ev;
    while (a->n < most) {
        int e = dedit_request_next(r, &ev, -1, err);
        if (e < 0)
            return e;
        if (e == 0 || ev.type == DEDIT_EVENT_FAILED) {
            err->code = ev.error_code;
            snprintf(err->msg, sizeof err->msg, "failed: %s", e ? ev.error_message : "no end");
            return DEDIT_ERR_INTERNAL;
        }
        if (ev.type == DEDIT_EVENT_FINISHED) {
            a->finished = true;
            a->cancelled = strcmp(ev.finish_reason, "cancelled") == 0;
            return 0;
        }
        for (uint32_t i = 0; ev.type == DEDIT_EVENT_TOKENS && i < ev.n_tokens; i++) {
            if (a->n == SOAK_MAX_TOKENS)
                return DEDIT_ERR_INTERNAL;
            a->ids[a->n++] = ev.tokens[i].id;
        }
    }
    return 0;
}

/* As far as it goes it is what the case has alone; whole when it was not cancelled. */
static void check(struct soak *s, const struct soak_case *k, const struct answer *a)
{
    uint32_t same = 0;
    while (same < a->n && same < k->n_answer && a->ids[same] == k->answer[same])
        same++;
    if (same < a->n)
        soak_wrong(s, "case %d: token %u of %u is %u, alone %u of %u", (int)(k - s->cases), same,
                   a->n, a->ids[same], same < k->n_answer ? k->answer[same] : 0, k->n_answer);
    else if (a->finished && !a->cancelled && a->n != k->n_answer)
        soak_wrong(s, "case %d: %u tokens, alone %u", (int)(k - s->cases), a->n, k->n_answer);
}

bool soak_references(struct soak *s)
{
    struct dedit_client *c = NULL;
    struct dedit_error err = {0};
    int e = dedit_client_connect(s->socket, &c, &err);
    for (int i = 0; i < SOAK_CASES && e == 0; i++) {
        struct soak_case *k = &s->cases[i];
        struct dedit_request *r = NULL;
        struct answer a = {.n = 0};
        e = submit(c, k, &r, &err);
        if (e == 0)
            e = read_answer(r, UINT32_MAX, &a, &err);
        memcpy(k->answer, a.ids, sizeof a.ids);
        k->n_answer = a.n;
        dedit_request_free(r);
    }
    if (e < 0)
        soak_wrong(s, "references: %s", err.msg);
    dedit_client_free(c);
    return e == 0;
}

/* One request, in one of the ways in which clients use them. */
static int use(struct soak *s, struct dedit_client *c, uint64_t *random, struct dedit_error *err)
{
    const struct soak_case *k = &s->cases[soak_random(random) % SOAK_CASES];
    uint32_t way = soak_random(random) % 100;
    struct dedit_request *r = NULL;
    struct answer a = {.n = 0};
    int e = submit(c, k, &r, err);
    if (e < 0)
        return e;
    if (way < 70) { /* to the end */
        e = read_answer(r, UINT32_MAX, &a, err);
    } else if (way < 90) { /* cancelled somewhere, read to its end */
        e = read_answer(r, soak_random(random) % k->max_tokens, &a, err);
        if (e == 0 && !a.finished)
            e = dedit_request_cancel(r, err);
        if (e == 0 && !a.finished)
            e = read_answer(r, UINT32_MAX, &a, err);
    } else { /* let go of, at any point */
        e = read_answer(r, soak_random(random) % k->max_tokens, &a, err);
    }
    if (e == 0)
        check(s, k, &a);
    if (e == 0)
        __atomic_fetch_add(!a.finished   ? &s->abandoned
                           : a.cancelled ? &s->cancelled
                                         : &s->whole,
                           1, __ATOMIC_RELAXED);
    dedit_request_free(r);
    return e;
}

void soak_client(struct soak *s, unsigned number, uint64_t seed)
{
    struct dedit_client *c = NULL;
    struct dedit_error err = {0};
    uint64_t random = seed;
    int e = dedit_client_connect(s->socket, &c, &err);
    while (e == 0 && __atomic_fetch_add(&s->begun, 1, __ATOMIC_RELAXED) < s->target) {
        __atomic_fetch_add(&s->doing[number], 1, __ATOMIC_RELAXED);
        e = use(s, c, &random, &err);
        if (e == 0 &&
            soak_random(&random) % 50 == 0) { /* a new connection, with what is under way */
            struct dedit_request *r = NULL;
            e = submit(c, &s->cases[0], &r, &err);
            dedit_client_free(c);
            dedit_request_free(r);
            c = NULL;
            __atomic_fetch_add(&s->reconnects, 1, __ATOMIC_RELAXED);
            if (e == 0)
                e = dedit_client_connect(s->socket, &c, &err);
        }
    }
    if (e < 0)
        soak_wrong(s, "client %u: %s", number, err.msg);
    dedit_client_free(c);
}

void soak_stream(struct soak *s, unsigned number)
{
    struct dedit_client *c = NULL;
    struct dedit_error err = {0};
    uint64_t random = number + 77;
    int e = dedit_client_connect(s->socket, &c, &err);
    while (e == 0 && !__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
        const struct soak_case *k = &s->cases[soak_random(&random) % SOAK_CASES];
        struct dedit_request *r = NULL;
        struct answer a = {.n = 0};
        e = submit(c, k, &r, &err);
        if (e == 0)
            e = read_answer(r, UINT32_MAX, &a, &err);
        if (e == 0)
            check(s, k, &a);
        if (e == 0 && a.cancelled)
            soak_wrong(s, "stream %u: cancelled by somebody else", number);
        if (e == 0)
            __atomic_fetch_add(&s->whole, 1, __ATOMIC_RELAXED);
        dedit_request_free(r);
    }
    if (e < 0)
        soak_wrong(s, "stream %u: %s", number, err.msg);
    dedit_client_free(c);
}

bool soak_metric(struct soak *s, const char *name, double *ret)
{
    struct dedit_client *c = NULL;
    struct dedit_error err = {0};
    char *text = NULL;
    size_t n = strlen(name);
    int e = dedit_client_connect(s->socket, &c, &err);
    if (e == 0)
        e = dedit_client_stats(c, &text, &err);
    *ret = 0;
    for (char *line = text; e == 0 && line && *line;) {
        char *end = strchr(line, '\n'), *value;
        if (end)
            *end = 0;
        if (!strncmp(line, name, n) && (line[n] == ' ' || line[n] == '{') &&
            (value = strrchr(line, ' ')))
            *ret += strtod(value, NULL);
        line = end ? end + 1 : NULL;
    }
    dedit_free(text);
    dedit_client_free(c);
    return e == 0;
}
