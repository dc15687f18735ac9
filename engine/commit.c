/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Committing tokens, one by one: the one place where a token becomes part of a request.  Stop rules,
 * counters, penalties, log-probabilities and text look at each token here exactly as if it had come
 * alone, so plain and drafted rounds cannot differ.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine_internal.h"

void commit_begin(struct engine *e)
{
    e->n_commit = 0;
    strbuf_clear(&e->text);
}

/* The text that this token releases, appended to e->text.  1: a stop string was met. */
static int release_text(struct engine *e, struct request *r, uint32_t id, bool is_stop)
{
    if (!r->want_text && !r->stop)
        return 0;
    if (is_stop && !r->include_stop)
        return 0; /* the token that ends it has no text */
    if (!r->stop)
        return detokenizer_push(&r->detok, e->tokenizer, id, r->detok_flags, &e->text);
    strbuf_clear(&e->piece);
    int n = detokenizer_push(&r->detok, e->tokenizer, id, r->detok_flags, &e->piece);
    if (n < 0)
        return n;
    size_t before = e->text.len;
    bool armed = r->usage.completion_tokens + 1 > r->min_tokens; /* this token counted */
    n = stop_matcher_feed(r->stop, e->piece.s ? e->piece.s : "", e->piece.len, armed, &e->text,
                          NULL);
    if (n >= 0 && !r->want_text)
        e->text.len = before;
    return n;
}

int commit_token(struct request *r, uint32_t id, uint32_t flags, const struct token_logprob *lp,
                 uint32_t n_lp)
{
    struct engine *e = r->engine;
    struct seq *s = &r->seq;
    bool is_stop = sampler_is_stop_id(r->sampler, id);
    int n = sampler_commit(r->sampler, id);
    if (n < 0)
        return n;
    uint32_t i = e->n_commit;
    e->text_at[i] = e->text.len;
    n = release_text(e, r, id, is_stop);
    if (n < 0)
        return n; /* it ends without this token, which nobody counts */
    s->tokens[s->n_tokens++] = id;
    r->usage.completion_tokens++;
    e->stats.generation_tokens++;
    if (r->usage.completion_tokens == 1)
        r->usage.first_token_ns = clock_now_ns() - r->t_submit;
    e->n_commit++;
    e->tokens[i] = (struct engine_token){.id = id, .flags = flags, .n_logprobs = n_lp};
    if (n_lp)
        memcpy(e->logprobs[i], lp, n_lp * sizeof(*lp));

    if (n > 0) {
        r->ending = FINISH_STOP;
    } else if (is_stop) {
        r->ending = FINISH_STOP;
        r->stop_is_id = true;
        r->stop_id = id;
    } else if (s->n_tokens == r->max_total) {
        r->ending = FINISH_LENGTH;
    }
    return r->ending != FINISH_NONE;
}

void commit_end(struct request *r, const struct error *error)
{
    struct engine *e = r->engine;
    int full = 0;
    for (uint32_t i = 0; i < e->n_commit; i++) {
        struct engine_token *t = &e->tokens[i];
        size_t end = i + 1 < e->n_commit ? e->text_at[i + 1] : e->text.len;
        t->text = e->text.s ? e->text.s + e->text_at[i] : "";
        t->text_len = end - e->text_at[i];
        t->logprobs = t->n_logprobs ? e->logprobs[i] : NULL;
    }
    if (e->n_commit)
        full = r->sink.tokens(r->sink.arg, r, e->tokens, e->n_commit);
    if (r->state == REQUEST_DONE)
        return; /* cancelled by its own callback */
    if (error)
        request_finish(r, FINISH_ERROR, error);
    else if (r->ending != FINISH_NONE)
        request_finish(r, r->ending, NULL);
    else if (full && r->state == REQUEST_RUNNING)
        request_park(r);
}
