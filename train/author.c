/* SPDX-License-Identifier: Apache-2.0 */
/* Many conversations at once: begun in order, run side by side, handed over in order. */
#include "train/author.h"

#include "base/alloc.h"
#include "train/author_internal.h"

/* Conversations that may be under way or wait for an earlier one, for each that runs. */
#define WINDOW_FACTOR 8u

const char *author_drop_name(enum author_drop d)
{
    static const char *const names[AUTHOR_DROP_COUNT] = {"kept", "empty", "looping question",
                                                         "too long", "repeated"};
    return (unsigned)d < AUTHOR_DROP_COUNT ? names[d] : "unknown";
}

int author_new(struct engine *e, const struct author_options *o, const struct author_sink *s,
               uint64_t first, struct author **ret, struct error *err)
{
    _cleanup_(author_freep) struct author *a = mem_zalloc(sizeof(*a));
    if (!a)
        return ERR_NOMEM(err);
    *a = (struct author){
        .engine = e,
        .tokenizer = engine_tokenizer(e),
        .o = *o,
        .sink = *s,
        .window = o->sequences * WINDOW_FACTOR,
        .first = first,
        .next = first,
    };
    a->ring = mem_calloc(a->window, sizeof(*a->ring));
    if (!a->ring)
        return ERR_NOMEM(err);
    *ret = TAKE_PTR(a);
    return 0;
}

struct author *author_free(struct author *a)
{
    if (!a)
        return NULL;
    for (uint32_t i = 0; a->ring && i < a->window; i++)
        talk_free(a->ring[i]);
    mem_free(a->ring);
    mem_free(a);
    return NULL;
}

void author_get_stats(const struct author *a, struct author_stats *ret)
{
    *ret = (struct author_stats){.generated = a->generated, .running = a->running};
}

static int begin_more(struct author *a, struct error *err)
{
    while (a->running < a->o.sequences && !a->no_more && a->next - a->first < a->window) {
        struct talk *t = NULL;
        int r = talk_new(a, a->next, &t, err);
        if (r == 1) {
            a->no_more = true;
            break;
        }
        if (r < 0)
            return r;
        a->ring[a->next++ % a->window] = t;
        if ((r = talk_go_on(a, t, err)) < 0)
            return error_prefix(err, r, "conversation %llu", (unsigned long long)t->number);
    }
    return 0;
}

static int take_finished(struct author *a, struct error *err)
{
    for (uint64_t n = a->first; n < a->next; n++) {
        struct talk *t = a->ring[n % a->window];
        if (t->phase == TALK_DONE || !t->finished)
            continue;
        t->finished = false;
        int r = talk_take(a, t, err);
        if (r < 0)
            return error_prefix(err, r, "conversation %llu", (unsigned long long)n);
    }
    return 0;
}

static int hand_over(struct author *a, struct error *err)
{
    while (a->first < a->next && a->ring[a->first % a->window]->phase == TALK_DONE) {
        struct talk *t = a->ring[a->first % a->window];
        const struct author_result result = {
            .number = t->number,
            .drop = t->drop,
            .record = t->drop == AUTHOR_KEPT ? &t->record : NULL,
            .messages = t->json,
            .begin_hash = t->begin_hash,
        };
        int r = a->sink.take(a->sink.arg, &result, err);
        if (r)
            return r;
        a->ring[a->first++ % a->window] = NULL;
        talk_free(t);
    }
    return 0;
}

int author_run(struct author *a, struct error *err)
{
    for (;;) {
        int r = begin_more(a, err);
        if (r == 0)
            r = hand_over(a, err);
        if (r)
            return r;
        if (a->running == 0) {
            if (a->no_more && a->first == a->next)
                return 0;
            continue; /* what was begun was done at once */
        }
        if ((r = engine_step(a->engine, err)) < 0 || (r = take_finished(a, err)) < 0)
            return r;
        if ((r = a->sink.tick(a->sink.arg, err)))
            return r;
    }
}
