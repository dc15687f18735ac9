/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: birth, lists, parking, preemption, end.  A request is in at most one of: the waiting
 * queue (by rank), the running array (by rank), the parked list.  All are in engine->all until they
 * are freed.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine_internal.h"

/* ---- lists ---------------------------------------------------------------------------------- */

bool request_before(const struct request *a, const struct request *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->order < b->order;
}

void request_enqueue(struct request *r)
{
    struct engine *e = r->engine;
    struct request *after = e->wait_tail;
    while (after && request_before(r, after))
        after = after->q_prev;
    r->q_prev = after;
    r->q_next = after ? after->q_next : e->wait_head;
    if (r->q_next)
        r->q_next->q_prev = r;
    else
        e->wait_tail = r;
    if (after)
        after->q_next = r;
    else
        e->wait_head = r;
    r->state = REQUEST_WAITING;
    e->n_waiting++;
}

static void leave_running(struct engine *e, const struct request *r)
{
    uint32_t i = 0;
    while (e->running[i] != r)
        i++;
    for (; i + 1 < e->n_running; i++)
        e->running[i] = e->running[i + 1];
    e->n_running--;
    for (i = 0; i < e->n_members && e->members[i] != r; i++)
        ;
    for (; i + 1 < e->n_members; i++)
        e->members[i] = e->members[i + 1];
    e->n_members -= i < e->n_members;
}

void request_unlist(struct request *r)
{
    struct engine *e = r->engine;
    switch (r->state) {
    case REQUEST_WAITING:
    case REQUEST_PARKED:
        if (r->q_next)
            r->q_next->q_prev = r->q_prev;
        else if (r->state == REQUEST_WAITING)
            e->wait_tail = r->q_prev;
        if (r->q_prev)
            r->q_prev->q_next = r->q_next;
        else if (r->state == REQUEST_WAITING)
            e->wait_head = r->q_next;
        else
            e->park_head = r->q_next;
        r->q_next = r->q_prev = NULL;
        if (r->state == REQUEST_WAITING)
            e->n_waiting--;
        else
            e->n_parked--;
        break;
    case REQUEST_RUNNING:
        leave_running(e, r);
        break;
    case REQUEST_DONE:
        break;
    }
}

void request_park(struct request *r)
{
    struct engine *e = r->engine;
    request_unlist(r);
    r->state = REQUEST_PARKED;
    r->q_prev = NULL;
    r->q_next = e->park_head;
    if (r->q_next)
        r->q_next->q_prev = r;
    e->park_head = r;
    e->n_parked++;
}

void request_preempt(struct request *r)
{
    struct engine *e = r->engine;
    cohorts_drop(e, r);
    seq_release(&r->seq, e->space.pool);
    drafting_reset(r->drafting);
    drafting_forget_context(e, r->drafting);
    r->preempted = true;
    r->usage.preemptions++;
    e->stats.preemptions++;
    if (r->state == REQUEST_RUNNING) {
        request_unlist(r);
        request_enqueue(r);
    }
}

/* ---- birth ---------------------------------------------------------------------------------- */

static int check_request(const struct engine *e, const struct engine_request *q, struct error *err)
{
    const uint32_t vocab = e->model->vocab_size;
    if (q->n_prompt == 0 || !q->prompt)
        return ERR(err, INVALID, "prompt: must have at least one token");
    for (size_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] >= vocab)
            return ERR(err, INVALID, "prompt: token %zu is %u, the vocabulary has %u ids", i,
                       q->prompt[i], vocab);
    int r = sampling_params_check(&q->sampling, vocab, err);
    if (r < 0)
        return r;
    if (!q->sink.tokens || !q->sink.finished)
        return ERR(err, INVALID, "sink: both callbacks are needed");
    if (q->n_prompt > e->limit || (q->n_prompt == e->limit && q->sampling.max_tokens))
        return ERR(err, CONTEXT_FULL,
                   "prompt: %zu tokens; a sequence holds at most %u (context %u, KV pool %u), one "
                   "of them generated",
                   q->n_prompt, e->limit, e->cfg.max_context, e->cfg.n_kv_blocks * DK_KV_BLOCK);
    uint32_t slots = e->cfg.max_num_seqs - e->n_running;
    if (e->n_waiting >= (uint64_t)e->cfg.max_queued + slots)
        return ERR(err, BUSY, "queue full: %u requests run and %u wait (max_queued %u)",
                   e->n_running, e->n_waiting, e->cfg.max_queued);
    return 0;
}

static int draw_seed(uint64_t *ret, struct error *err)
{
    ssize_t n;
    do
        n = getrandom(ret, sizeof(*ret), 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(*ret))
        return ERR(err, IO, "getrandom: %s", strerror(errno));
    return 0;
}

static int fill_request(struct request *r, const struct engine *e, const struct engine_request *q,
                        struct error *err)
{
    struct sampling_params p = q->sampling;
    if (!p.has_seed) {
        int n = draw_seed(&p.seed, err);
        if (n < 0)
            return n;
        p.has_seed = true;
    }
    uint64_t total = (uint64_t)q->n_prompt + p.max_tokens;
    r->sink = q->sink;
    r->priority = q->priority;
    r->want_text = q->want_tokens_text;
    r->detok_flags = q->skip_special ? DETOKENIZE_SKIP_SPECIAL : 0;
    r->n_prompt = (uint32_t)q->n_prompt;
    r->max_total = total < e->limit ? (uint32_t)total : e->limit;
    r->max_tokens = p.max_tokens;
    r->min_tokens = p.min_tokens;
    r->include_stop = p.include_stop_in_output;
    r->n_logprobs = p.logprobs;
    r->usage.prompt_tokens = r->n_prompt;
    r->usage.seed = p.seed;

    int n = seq_init(&r->seq, r->max_total, e->cfg.enable_prefix_caching, err);
    if (n < 0)
        return n;
    memcpy(r->seq.tokens, q->prompt, q->n_prompt * sizeof(*q->prompt));
    r->seq.n_tokens = r->n_prompt;
    r->seq.namespace_id = q->namespace_id;
    n = sampler_new(&p, e->model->vocab_size, e->model->eos_ids, e->model->n_eos_ids, &r->sampler,
                    err);
    if (n < 0)
        return n;
    if (sampler_add_prompt(r->sampler, q->prompt, q->n_prompt) < 0)
        return ERR_NOMEM(err);
    n = drafting_new(e, &q->drafting, p.seed, p.temperature, &r->drafting, err);
    if (n < 0)
        return n;
    r->want_rounds = q->drafting.want_rounds && q->sink.round;
    r->usage.drafting.method = r->drafting ? r->drafting->params.method : DRAFT_AR;
    r->usage.drafting.synthetic = r->drafting && r->drafting->params.acceptance;
    return p.n_stop ? stop_matcher_new(p.stop, p.n_stop, p.include_stop_in_output, &r->stop, err)
                    : 0;
}

static void drop_parts(struct request *r, struct kv_pool *pool)
{
    seq_done(&r->seq, pool);
    r->sampler = sampler_free(r->sampler);
    r->stop = stop_matcher_free(r->stop);
    r->drafting = drafting_free(r->drafting);
}

int engine_submit(struct engine *e, const struct engine_request *q, struct request **ret,
                  struct error *err)
{
    int n = check_request(e, q, err);
    if (n < 0)
        return n;
    struct request *r = mem_zalloc(sizeof(*r));
    if (!r)
        return ERR_NOMEM(err);
    n = fill_request(r, e, q, err);
    if (n < 0) {
        drop_parts(r, e->space.pool);
        mem_free(r);
        return n;
    }
    r->engine = e;
    r->order = e->next_order++;
    r->t_submit = clock_now_ns();
    r->next = e->all;
    if (e->all)
        e->all->prev = r;
    e->all = r;
    request_enqueue(r);
    e->n_empty += r->max_tokens == 0;
    *ret = r;
    return 0;
}

/* ---- end ------------------------------------------------------------------------------------ */

/* Text that was held back, in case no stop string was met. */
static int held_text(struct request *r, struct strbuf *out)
{
    _cleanup_strbuf_ struct strbuf rest = {0};
    if (!r->want_text || (r->stop && stop_matcher_match(r->stop)))
        return 0;
    int n = detokenizer_flush(&r->detok, &rest);
    if (n < 0 || !r->stop)
        return n < 0 ? n : strbuf_add(out, rest.s ? rest.s : "", rest.len);
    n = stop_matcher_feed(r->stop, rest.s ? rest.s : "", rest.len, false, out, NULL);
    return n < 0 ? n : stop_matcher_flush(r->stop, out, NULL);
}

void request_finish(struct request *r, enum finish_reason reason, const struct error *error)
{
    struct engine *e = r->engine;
    struct error nomem = {0};
    _cleanup_strbuf_ struct strbuf text = {0};
    if (r->state == REQUEST_DONE)
        return;
    if (held_text(r, &text) < 0 && reason != FINISH_ERROR) {
        (void)ERR_NOMEM(&nomem);
        reason = FINISH_ERROR;
        error = &nomem;
    }
    request_unlist(r);
    cohorts_drop(e, r);
    e->n_empty -= r->max_tokens == 0;
    r->state = REQUEST_DONE;
    seq_done(&r->seq, e->space.pool);
    drafting_forget_context(e, r->drafting);
    r->usage.total_ns = clock_now_ns() - r->t_submit;
    e->stats.finished[reason]++;

    struct engine_finish f = {.reason = reason,
                              .text = text.s ? text.s : "",
                              .text_len = text.len,
                              .usage = r->usage,
                              .error = error};
    if (reason == FINISH_STOP) {
        const struct stop_string *m = r->stop ? stop_matcher_match(r->stop) : NULL;
        f.stop_text = m ? m->s : NULL;
        f.stop_is_id = r->stop_is_id;
        f.stop_id = r->stop_id;
    }
    r->sink.finished(r->sink.arg, r, &f);
}

void engine_cancel(struct engine *e, struct request *r)
{
    (void)e;
    if (r->engine)
        request_finish(r, FINISH_CANCELLED, NULL);
}

void engine_resume(struct engine *e, struct request *r)
{
    (void)e;
    if (!r->engine || r->state != REQUEST_PARKED)
        return;
    request_unlist(r);
    request_enqueue(r);
}

struct request *request_free(struct request *r)
{
    if (!r)
        return NULL;
    if (r->engine) {
        struct engine *e = r->engine;
        engine_cancel(e, r);
        if (r->next)
            r->next->prev = r->prev;
        if (r->prev)
            r->prev->next = r->next;
        else
            e->all = r->next;
    }
    drop_parts(r, NULL); /* the blocks went when it finished */
    mem_free(r);
    return NULL;
}

void request_cancel_all(struct engine *e)
{
    while (e->all) {
        struct request *r = e->all;
        engine_cancel(e, r);
        e->all = r->next;
        r->next = r->prev = NULL;
        r->engine = NULL;
    }
}

void *request_user(const struct request *r)
{
    return r->user;
}

void request_set_user(struct request *r, void *user)
{
    r->user = user;
}
