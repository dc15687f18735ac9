/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a job through the daemon: prepare, wait, queue, run, end. */
#include "base/clock.h"
#include "daemon/peer.h"
#include "daemon/prepare.h"
#include "daemon/server.h"
#include "daemon/sink.h"

/* A load that has failed is not tried again for every request. */
#define RETRY_LOAD_NS 5000000000u

/* ---- deadlines ------------------------------------------------------------------------------------------ */

static void arm(struct job *j)
{
    const struct config *c = j->server->config;
    uint64_t t = j->deadline_ns ? j->deadline_ns : UINT64_MAX;
    if (j->stalled_since_ns && c->ring_stall_timeout_ns &&
        j->stalled_since_ns + c->ring_stall_timeout_ns < t)
        t = j->stalled_since_ns + c->ring_stall_timeout_ns;
    if (j->state < JOB_RUNNING && c->max_queue_ns && j->submitted_ns + c->max_queue_ns < t)
        t = j->submitted_ns + c->max_queue_ns;
    loop_timer_set(j->timer, t == UINT64_MAX ? 0 : t);
}

static void on_timer(void *arg)
{
    struct job *j = arg;
    const struct config *c = j->server->config;
    uint64_t now = clock_now_ns();

    if (j->stalled_since_ns && c->ring_stall_timeout_ns &&
        now >= j->stalled_since_ns + c->ring_stall_timeout_ns) {
        server_cancel_job(j->server, j, JOB_CANCEL_STALLED);
    } else if (j->deadline_ns && now >= j->deadline_ns) {
        server_cancel_job(j->server, j, JOB_CANCEL_TIMEOUT);
    } else if (j->state < JOB_RUNNING && c->max_queue_ns &&
               now >= j->submitted_ns + c->max_queue_ns) {
        ERR(&j->error, BUSY, "max_queue_time: the request waited longer than the limit of %llu ms",
            (unsigned long long)(c->max_queue_ns / 1000000u));
        server_cancel_job(j->server, j, JOB_CANCEL_CLIENT);
    } else {
        arm(j);
    }
}

/* ---- from Submit to the queue ------------------------------------------------------------------------------ */

/* Before Accepted an error is the answer to Submit; afterwards it is the job's end. */
static void refuse(struct server *s, struct job *j, const struct error *e)
{
    j->finish = FINISH_ERROR;
    if (!j->error.code)
        j->error = *e;
    server_end_job(s, j);
}

/* The ids are there: check, accept, queue. */
static void accept_job(struct server *s, struct job *j)
{
    struct error err = j->prepare_error;
    uint64_t blocks = 0, drafting = 0;
    int r = err.code;

    if (r == 0)
        r = prepare_check(j, &err);
    if (r == 0) {
        /* The most KV that it can come to hold. */
        blocks = (j->n_ids + j->sampling.max_tokens + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
        uint64_t limit = s->quota.limit[QUOTA_KV_BLOCKS];
        if (limit && blocks > limit)
            r = ERR(&err, LIMIT,
                    "max_kv_blocks_per_uid: the request may need %llu, the limit is %llu",
                    (unsigned long long)blocks, (unsigned long long)limit);
    }
    if (r == 0 && j->model->served) {
        drafting = engine_drafting_bytes(j->model->served->engine, &j->drafting,
                                         j->sampling.temperature);
        r = quota_charge(&s->quota, j->account, QUOTA_PROMPT_BYTES, drafting, &err);
    }
    if (r < 0) {
        refuse(s, j, &err);
        return;
    }
    j->kv_blocks = blocks;
    j->prompt_bytes += drafting;
    j->accepted = true;
    peer_send_accepted(j);
    j->state = JOB_QUEUED;
    fair_push(&j->model->queue, j);
    server_schedule(s, j->model);
}

/* The model is ready: prepare the prompt here or on the worker. */
static void prepare(struct server *s, struct job *j)
{
    j->state = JOB_PREPARING;
    if (j->prompt_kind == JOB_IDS || j->prompt_bytes <= PREPARE_INLINE_BYTES) {
        prepare_job(j);
        accept_job(s, j);
        return;
    }
    if (!worker_give(s->preparer, j)) {
        struct error err = {0};
        ERR(&err, BUSY, "max_requests: too many prompts are being prepared");
        refuse(s, j, &err);
        return;
    }
    j->model->preparing++;
    s->n_preparing++;
}

static void send_queued(struct job *j)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__Queued q = DEDIT__WIRE__QUEUED__INIT;
    char reason[] = "model is loading";
    if (!j->peer)
        return;
    q.has_request_id = 1;
    q.request_id = j->id;
    q.reason = reason;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_QUEUED;
    m.queued = &q;
    peer_send(j->peer, &m, 0, NULL);
}

void server_start_job(struct server *s, struct job *j)
{
    struct model *m = j->model;
    struct error err = {0};
    int r = loop_timer_new(s->loop, on_timer, j, &j->timer, &err);

    j->server = s;
    if (r == 0) {
        arm(j);
        m->last_used_ns = clock_now_ns();
        switch (m->state) {
        case MODEL_READY:
            prepare(s, j);
            return;
        case MODEL_DRAINING:
            if (!m->evicted || !m->config.on_demand)
                r = ERR(&err, BUSY, "model: %s is being unloaded", m->name);
            break; /* to make room: it waits for its turn to be loaded again */
        case MODEL_FAILED:
            if (clock_now_ns() - m->failed_ns < RETRY_LOAD_NS) {
                err = m->error;
                r = err.code;
                break;
            }
            /* fallthrough */
        case MODEL_UNLOADED:
            r = m->config.on_demand ? models_load(s, m, true, &err)
                                    : ERR(&err, BUSY, "model: %s is not loaded", m->name);
            break;
        case MODEL_LOADING:
            break;
        }
    }
    if (r < 0) {
        refuse(s, j, &err);
        return;
    }
    j->state = JOB_WAITING;
    fair_push(&m->waiting, j);
    send_queued(j);
}

void server_model_settled(struct server *s, struct model *m)
{
    while (m->waiting.first) {
        struct job *j = m->waiting.first;
        fair_remove(&m->waiting, j);
        if (m->state == MODEL_READY)
            prepare(s, j);
        else
            refuse(s, j, &m->error);
    }
}

/* ---- running -------------------------------------------------------------------------------------------------- */

static bool may_run(void *arg, struct job *j)
{
    struct server *s = arg;
    uint64_t limit = s->quota.limit[QUOTA_KV_BLOCKS];
    return !limit || j->account->used[QUOTA_KV_BLOCKS] + j->kv_blocks <= limit;
}

void server_schedule(struct server *s, struct model *m)
{
    struct job *j;
    while (m->running < m->max_running && (j = fair_pop(&m->queue, may_run, s))) {
        struct error err = {0};
        if (quota_charge(&s->quota, j->account, QUOTA_KV_BLOCKS, j->kv_blocks, &err) < 0) {
            refuse(s, j, &err);
            continue;
        }
        j->kv_charged = true;
        j->state = JOB_RUNNING;
        m->running++;
        arm(j);
        if (!engine_thread_order(s->engines, ORDER_SUBMIT, j, 0)) {
            m->running--;
            ERR(&err, INTERNAL, "the engine's queue is full");
            refuse(s, j, &err);
        }
    }
}

void server_cancel_job(struct server *s, struct job *j, enum job_cancel why)
{
    if (j->asked != JOB_NOT_CANCELLED && (why != JOB_CANCEL_GONE || j->asked == why))
        return;
    j->asked = why;
    switch (j->state) {
    case JOB_PREPARING: /* the worker has it; the end comes with its result */
        j->cancel = why;
        break;
    case JOB_WAITING:
    case JOB_QUEUED:
        j->cancel = why;
        fair_remove(j->state == JOB_WAITING ? &j->model->waiting : &j->model->queue, j);
        if (!j->error.code)
            job_set_cancel_error(j);
        j->finish = j->error.code ? FINISH_ERROR : FINISH_CANCELLED;
        sink_end(j);
        server_end_job(s, j);
        break;
    case JOB_RUNNING: /* the engine thread owns the field; the order carries the reason */
        j->ordered = true;
        engine_thread_order(s->engines, ORDER_CANCEL, j, (uint32_t)why);
        loop_timer_set(j->timer, 0);
        break;
    case JOB_ENDED:
        break;
    }
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void unlink_from_peer(struct job *j)
{
    struct peer *p = j->peer;
    if (!p)
        return;
    if (j->prev)
        j->prev->next = j->next;
    else
        p->jobs = j->next;
    if (j->next)
        j->next->prev = j->prev;
    p->n_jobs--;
}

void server_end_job(struct server *s, struct job *j)
{
    struct model *m = j->model;
    bool ran = j->state == JOB_RUNNING;

    j->state = JOB_ENDED;
    loop_timer_free(j->timer);
    j->timer = NULL;
    if (j->peer) {
        if (j->accepted)
            peer_send_finished(j);
        else
            peer_send_error(j->peer, j->tag, &j->error);
    }
    metrics_job_ended(s->metrics, j);
    fair_refund(j);
    if (j->slot) {
        j->slot->job = NULL;
        if (!j->accepted)
            j->slot->released = true;
        if (!j->peer)
            slot_free(s, j->slot, j->account);
    }
    if (j->kv_charged)
        quota_release(j->account, QUOTA_KV_BLOCKS, j->kv_blocks);
    quota_release(j->account, QUOTA_REQUESTS, 1);
    quota_release(j->account, QUOTA_PROMPT_BYTES, j->prompt_bytes);
    unlink_from_peer(j);
    quota_unref(&s->quota, j->account);
    if (j->ordered) { /* an order may still name it */
        s->n_forgetting++;
        engine_thread_order(s->engines, ORDER_FORGET, j, 0);
    } else {
        job_free(j);
    }
    s->n_jobs--;
    m->last_used_ns = clock_now_ns();
    if (ran) {
        m->running--;
        server_schedule(s, m);
    }
    models_settle(s, m);
}

void server_on_engine_report(struct server *s, struct message r)
{
    struct job *j = r.object;
    switch ((enum engine_report)r.type) {
    case REPORT_ENDED:
        server_end_job(s, j);
        break;
    case REPORT_STALLED:
        if (!j->stalled_since_ns) {
            j->stalled_since_ns = clock_now_ns();
            metrics_ring_stalled(s->metrics);
            arm(j);
        }
        break;
    case REPORT_RESUMED:
        j->stalled_since_ns = 0;
        arm(j);
        break;
    case REPORT_FORGOTTEN:
        s->n_forgetting--;
        job_free(j);
        break;
    case REPORT_DETACHED:
        models_on_detached(s, r.object);
        break;
    case REPORT_FATAL:
        server_lose_device(s, r.object);
        break;
    }
}

void server_on_prepared(struct server *s, struct job *j)
{
    j->model->preparing--;
    s->n_preparing--;
    if (j->cancel == JOB_NOT_CANCELLED) {
        accept_job(s, j);
        return;
    }
    if (!j->error.code)
        job_set_cancel_error(j);
    if (!j->error.code)
        ERR(&j->error, CANCELLED, "the request was cancelled");
    j->finish = FINISH_CANCELLED;
    server_end_job(s, j);
}
