/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine-thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "daemon/sink.h"
#include "daemon/slot.h"

#define MEASURE_AFTER_MS 500 /* without any order */

struct engine_thread {
    pthread_t thread;
    struct queue *orders, *reports;
    struct served *served; /* engine thread, like all below up to progress */
    struct job *ended;
    struct error fatal; /* written once, before it is reported */
    bool stop;
    uint64_t progress; /* relaxed */
    uint32_t busy;     /* relaxed */
};

/* The thread that a job's callbacks report to: one per process, set before the thread starts. */
static __thread struct engine_thread *self;

static void report(enum engine_report type, void *object)
{
    struct message m = {.type = (uint32_t)type, .object = object};
    if (!queue_push(self->reports, m))
        log_write(LOG_LEVEL_ERR, "engine", NULL, "report queue is full: a request was lost");
}

/* ---- jobs ------------------------------------------------------------------------------------------ */

/* Collected during the engine's callbacks; the last record and the report follow in reap(). */
static void end_job(struct job *j)
{
    job_set_cancel_error(j);
    j->ended_next = self->ended;
    self->ended = j;
}

static void reap(struct engine_thread *t)
{
    while (t->ended) {
        struct job *j = t->ended;
        t->ended = j->ended_next;
        j->request = request_free(j->request);
        /* Together, so that a client that has read the end finds its slot free. */
        sink_end(j);
        report(REPORT_ENDED, j);
    }
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct job *j = arg;
    (void)r;
    j->finish = f->reason;
    j->usage = f->usage;
    if (f->reason == FINISH_ERROR && f->error)
        j->error = *f->error;
    if (f->stop_text)
        snprintf(j->stop_reason, sizeof j->stop_reason, "%s", f->stop_text);
    else if (f->stop_is_id)
        snprintf(j->stop_reason, sizeof j->stop_reason, "%u", f->stop_id);
    sink_flush_text(j, f->text, f->text_len);
}

/* The engine's callbacks come inside engine_step and engine_cancel; the job is given back after. */
static bool has_ended(const struct job *j)
{
    return j->finish != FINISH_NONE;
}

static struct served *served_of(const struct job *j)
{
    struct served *s = self->served;
    while (s && s->model != j->model)
        s = s->next;
    return s;
}

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct job *j = arg;
    int e = sink_tokens(j, r, t, n);
    if (e > 0 && j->slot && j->slot->broken) {
        struct served *s = served_of(j); /* its cursor lies: nothing can be delivered any more */
        if (s)
            engine_cancel(s->engine, r);
    } else if (e > 0) {
        report(REPORT_STALLED, j);
    }
    return e;
}

static void on_round(void *arg, struct request *r, const struct engine_round *round)
{
    (void)r;
    sink_round(arg, round);
}

static void finished_and_report(void *arg, struct request *r, const struct engine_finish *f)
{
    on_finished(arg, r, f);
    end_job(arg);
}

static void submit(struct job *j, struct served *s)
{
    struct error err = {0};
    struct engine_request q = {
        .prompt = j->ids,
        .n_prompt = j->n_ids,
        .sampling = j->sampling,
        .drafting = j->drafting,
        .sink = {.tokens = on_tokens, .finished = finished_and_report, .round = on_round, .arg = j},
        .priority = j->priority,
        .namespace_id = j->uid_namespace,
        .skip_special = j->skip_special,
        .want_tokens_text = true,
    };
    s->idle = s->measured = false;
    if (engine_submit(s->engine, &q, &j->request, &err) < 0) {
        j->finish = FINISH_ERROR;
        j->error = err;
        end_job(j);
    }
}

static void cancel(struct job *j, enum job_cancel why)
{
    if (has_ended(j))
        return; /* its report is under way */
    struct served *s = served_of(j);
    j->cancel = why;
    if (s && j->request)
        engine_cancel(s->engine, j->request);
}

static void resume(struct job *j)
{
    __atomic_store_n(&j->resume_asked, false, __ATOMIC_RELEASE);
    if (has_ended(j) || !j->stalled)
        return;
    struct served *s = served_of(j);
    if (s && sink_can_resume(j)) {
        s->idle = false;
        engine_resume(s->engine, j->request);
        report(REPORT_RESUMED, j);
    } else if (j->slot && j->slot->broken) {
        cancel(j, JOB_CANCEL_CLIENT);
    }
}

/* ---- models ------------------------------------------------------------------------------------------ */

static void tell_costs_problem(const struct served *s)
{
    struct error buf = {0};
    const char *text = engine_costs_problem(s->engine, &buf);
    if (text)
        log_write(LOG_LEVEL_WARNING, "engine", NULL, "costs: %s", text);
}

static void attach(struct engine_thread *t, struct served *s)
{
    s->prev = NULL;
    s->next = t->served;
    if (t->served)
        t->served->prev = s;
    t->served = s;
    s->idle = true;
    tell_costs_problem(s);
}

static void detach(struct engine_thread *t, struct served *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        t->served = s->next;
    if (s->next)
        s->next->prev = s->prev;
    s->engine = engine_free(s->engine);
    report(REPORT_DETACHED, s);
}

static void snapshot(struct served *s)
{
    struct engine_stats st;
    engine_get_stats(s->engine, &st);
#define COPY(to, from) __atomic_store_n(&s->to, st.from, __ATOMIC_RELAXED)
    COPY(running, running);
    COPY(waiting, waiting);
    COPY(parked, parked);
    COPY(kv_blocks, kv_blocks);
    __atomic_store_n(&s->kv_blocks_free, st.kv_blocks_free + st.kv_blocks_cached, __ATOMIC_RELAXED);
    COPY(steps, steps);
    COPY(prompt_tokens, prompt_tokens);
    COPY(generation_tokens, generation_tokens);
    COPY(cached_tokens, cached_tokens);
    COPY(prefix_queries, prefix_queries);
    COPY(preemptions, preemptions);
#undef COPY
}

/* ---- the thread --------------------------------------------------------------------------------------- */

static void obey(struct engine_thread *t, struct message m)
{
    switch ((enum engine_order)m.type) {
    case ORDER_SUBMIT: {
        struct job *j = m.object;
        struct served *s = served_of(j);
        if (s) {
            submit(j, s);
            break;
        }
        j->finish = FINISH_ERROR;
        ERR(&j->error, NOT_FOUND, "the model was unloaded");
        end_job(j);
        break;
    }
    case ORDER_CANCEL:
        cancel(m.object, (enum job_cancel)m.arg);
        break;
    case ORDER_RESUME:
        resume(m.object);
        break;
    case ORDER_FORGET: /* orders are read in order: all that named it have been */
        report(REPORT_FORGOTTEN, m.object);
        break;
    case ORDER_ATTACH:
        attach(t, m.object);
        break;
    case ORDER_DETACH:
        detach(t, m.object);
        break;
    case ORDER_STOP:
        t->stop = true;
        break;
    }
}

/* A step or a measurement has failed; who was running has been told by the engine. */
static void tell_failure(struct engine_thread *t, enum log_level level, const char *what,
                         const struct error *err)
{
    if (err->code != DEDIT_E_DEVICE_LOST) {
        log_write(level, "engine", NULL, "%s failed: %s", what, err->msg);
    } else if (!t->fatal.code) {
        t->fatal = *err;
        report(REPORT_FATAL, &t->fatal);
    }
}

/* One step of each model that has work.  True: there is more. */
static bool step_all(struct engine_thread *t)
{
    bool more = false;
    for (struct served *s = t->served; s; s = s->next) {
        if (s->idle)
            continue;
        struct error err = {0};
        int r = engine_step(s->engine, &err);
        snapshot(s); /* before anybody can read that a request has ended */
        reap(t);
        __atomic_fetch_add(&t->progress, 1, __ATOMIC_RELAXED);
        if (r < 0)
            tell_failure(t, LOG_LEVEL_ERR, "step", &err);
        s->idle = r == 0; /* those that wait are not to wait for ever behind those that failed */
        more |= r != 0;
    }
    return more;
}

/* Somebody's costs are not known yet, and nobody waits. */
static struct served *unmeasured(const struct engine_thread *t)
{
    struct served *s = t->served;
    while (s && s->measured)
        s = s->next;
    return s;
}

/* One call: who comes meanwhile waits for that much. */
static void measure(struct engine_thread *t, struct served *s)
{
    struct error err = {0};
    int r = engine_calibrate(s->engine, &err);
    __atomic_fetch_add(&t->progress, 1, __ATOMIC_RELAXED);
    s->measured = r <= 0; /* asked again after the next request */
    if (r < 0)
        tell_failure(t, LOG_LEVEL_WARNING, "measuring costs", &err);
    tell_costs_problem(s);
}

/* Sleeps until there are orders.  False: nothing came for a while and something may be measured. */
static bool wait_for_orders(struct engine_thread *t, bool measuring)
{
    int r = 1;
    __atomic_store_n(&t->busy, 0, __ATOMIC_RELAXED);
    if (queue_sleep(t->orders)) {
        struct pollfd p = {.fd = queue_fd(t->orders), .events = POLLIN};
        r = poll(&p, 1, !unmeasured(t) ? -1 : measuring ? 0 : MEASURE_AFTER_MS);
        queue_awake(t->orders);
    }
    __atomic_store_n(&t->busy, 1, __ATOMIC_RELAXED);
    return r != 0;
}

static void *run(void *arg)
{
    struct engine_thread *t = arg;
    bool more = false, measuring = false;

    self = t;
    dk_thread_init();
    while (!t->stop) {
        struct message m;
        while (queue_pop(t->orders, &m)) {
            obey(t, m);
            reap(t);
            __atomic_fetch_add(&t->progress, 1, __ATOMIC_RELAXED);
            more = true;
        }
        if (more) {
            more = step_all(t);
            for (struct served *s = t->served; s && !more; s = s->next)
                snapshot(s); /* orders may have changed what no step has shown */
            continue;
        }
        measuring = !wait_for_orders(t, measuring);
        if (measuring)
            measure(t, unmeasured(t));
    }
    return NULL;
}

int engine_thread_new(uint32_t max_jobs, struct engine_thread **ret, struct error *err)
{
    struct engine_thread *t = mem_zalloc(sizeof *t);
    if (!t)
        return ERR_NOMEM(err);
    /* A job has at most one Submit, one Cancel and one Resume under way, and as many reports. */
    size_t capacity = (size_t)max_jobs * 4 + 64;
    int r = queue_new(capacity, &t->orders, err);
    if (r == 0)
        r = queue_new(capacity, &t->reports, err);
    if (r == 0) {
        /* Signals belong to the loop thread. */
        sigset_t all, old;
        sigfillset(&all);
        sigdelset(&all, SIGBUS); /* base/mapguard.h */
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int e = pthread_create(&t->thread, NULL, run, t);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (e)
            r = ERR(err, IO, "starting the engine thread: %s", strerror(e));
    }
    if (r < 0) {
        queue_free(t->orders);
        queue_free(t->reports);
        mem_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

struct engine_thread *engine_thread_free(struct engine_thread *t)
{
    if (!t)
        return NULL;
    engine_thread_order(t, ORDER_STOP, NULL, 0);
    pthread_join(t->thread, NULL);
    queue_free(t->orders);
    queue_free(t->reports);
    mem_free(t);
    return NULL;
}

bool engine_thread_order(struct engine_thread *t, enum engine_order type, void *object,
                         uint32_t arg)
{
    struct message m = {.type = (uint32_t)type, .arg = arg, .object = object};
    return queue_push(t->orders, m);
}

struct queue *engine_thread_reports(struct engine_thread *t)
{
    return t->reports;
}

uint64_t engine_thread_progress(const struct engine_thread *t)
{
    return __atomic_load_n(&t->progress, __ATOMIC_RELAXED);
}

bool engine_thread_busy(const struct engine_thread *t)
{
    return __atomic_load_n(&t->busy, __ATOMIC_RELAXED);
}
