/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/peer.h"
#include "daemon/prepare.h"

/* ---- reports of other threads ------------------------------------------------------------------------ */

void server_take_reports(struct server *s)
{
    struct queue *q = engine_thread_reports(s->engines);
    struct message m;
    while (queue_pop(q, &m))
        server_on_engine_report(s, m);
}

static void on_engine(void *arg, unsigned events)
{
    struct server *s = arg;
    struct queue *q = engine_thread_reports(s->engines);
    (void)events;
    queue_awake(q);
    do
        server_take_reports(s);
    while (!queue_sleep(q));
}

static void on_prepared(void *arg, unsigned events)
{
    struct server *s = arg;
    struct queue *q = worker_results(s->preparer);
    struct message m;
    (void)events;
    queue_awake(q);
    do
        while (queue_pop(q, &m))
            server_on_prepared(s, m.object);
    while (!queue_sleep(q));
}

static void on_loaded(void *arg, unsigned events)
{
    (void)events;
    models_on_loaded(arg);
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static void set_limits(struct server *s)
{
    const struct config *c = s->config;
    s->quota.limit[QUOTA_CONNECTIONS] = c->max_connections_per_uid;
    s->quota.limit[QUOTA_REQUESTS] = c->max_requests_per_uid;
    s->quota.limit[QUOTA_PROMPT_BYTES] = c->max_prompt_bytes_per_uid;
    s->quota.limit[QUOTA_RING_BYTES] = c->max_ring_bytes_per_uid;
    s->quota.limit[QUOTA_KV_BLOCKS] = c->max_kv_blocks_per_uid;
}

static int watch_queue(struct server *s, struct queue *q, loop_fd_fn fn, struct loop_source **ret,
                       struct error *err)
{
    int r = loop_add(s->loop, queue_fd(q), LOOP_READ, fn, s, ret, err);
    if (r == 0)
        fn(s, LOOP_READ); /* announces sleep */
    return r;
}

int server_init(struct server *s, struct config *c, struct error *err)
{
    struct error why = {0};
    *s = (struct server){.config = c, .listen_fd = -1, .started_ns = clock_now_ns()};
    set_limits(s);
    int r = loop_new(c->event_loop, &s->loop, &why, err);
    if (r == 0 && why.code)
        log_write(LOG_LEVEL_WARNING, "loop", NULL, "%s; using epoll", why.msg);
    if (r == 0)
        r = metrics_new(&s->metrics, err);
    if (r == 0)
        r = engine_thread_new(c->max_requests, &s->engines, err);
    if (r == 0)
        r = worker_new("dedit-load", 1024, models_load_task, &s->loader, err);
    if (r == 0)
        r = worker_new("dedit-prepare", c->max_requests, prepare_job, &s->preparer, err);
    if (r == 0)
        r = watch_queue(s, engine_thread_reports(s->engines), on_engine, &s->engine_source, err);
    if (r == 0)
        r = watch_queue(s, worker_results(s->loader), on_loaded, &s->loader_source, err);
    if (r == 0)
        r = watch_queue(s, worker_results(s->preparer), on_prepared, &s->preparer_source, err);
    if (r == 0)
        r = models_init(s, err);
    return r;
}

int server_listen(struct server *s, int fd, struct error *err)
{
    s->listen_fd = fd;
    return loop_add_accept(s->loop, fd, peer_accept, s, &s->listener, err);
}

static void stop_listening(struct server *s)
{
    loop_remove(s->listener);
    s->listener = NULL;
    s->listen_fd = fd_close(s->listen_fd);
}

static void on_drain_timeout(void *arg)
{
    server_stop_now(arg);
}

void server_drain(struct server *s, bool stop)
{
    struct error err = {0};
    s->draining = true;
    if (!stop || s->stopping)
        return;
    s->stopping = true;
    stop_listening(s);
    if (!s->drain_timer &&
        loop_timer_new(s->loop, on_drain_timeout, s, &s->drain_timer, &err) < 0) {
        server_stop_now(s);
        return;
    }
    loop_timer_set(s->drain_timer, clock_now_ns() + s->config->drain_timeout_ns + 1);
}

void server_stop_now(struct server *s)
{
    s->draining = s->stopping = s->stop_now = true;
    stop_listening(s);
    for (struct peer *p = s->peers; p; p = p->next)
        for (struct job *j = p->jobs, *next; j; j = next) {
            next = j->next;
            server_cancel_job(s, j, JOB_CANCEL_SHUTDOWN); /* may free j */
        }
}

void server_lose_device(struct server *s, const struct error *e)
{
    if (s->fatal.code)
        return;
    s->fatal = *e;
    log_write(LOG_LEVEL_ERR, "device", NULL, "%s; ending, to be started again", e->msg);
    server_drain(s, true);
}

bool server_idle(const struct server *s)
{
    return !s->n_jobs && !s->n_preparing && !s->n_forgetting;
}

bool server_loading(const struct server *s)
{
    for (const struct model *m = s->models; m; m = m->next)
        if (m->state == MODEL_LOADING && !m->load_waits)
            return true;
    return false;
}

const char *server_status(const struct server *s)
{
    if (s->draining)
        return "draining";
    for (const struct model *m = s->models; m; m = m->next)
        if (m->state == MODEL_LOADING)
            return "loading";
    return "ready";
}

int server_apply(struct server *s, struct config *c, struct error *err)
{
    struct config *old = s->config;
    s->config = c;
    int r = models_apply(s, err);
    if (r < 0) {
        s->config = old;
        return r;
    }
    set_limits(s);
    config_free(old);
    return 0;
}

void server_done(struct server *s)
{
    while (s->peers)
        peer_close(s->peers);
    loop_timer_free(s->drain_timer);
    if (s->listener)
        stop_listening(s);
    /* Threads first: what they hold comes back, and is freed here. */
    if (s->preparer) {
        loop_remove(s->preparer_source);
        s->preparer = worker_free(s->preparer);
    }
    models_done(s);
    loop_remove(s->engine_source);
    loop_remove(s->loader_source);
    s->engines = engine_thread_free(s->engines);
    s->metrics = metrics_free(s->metrics);
    s->loop = loop_free(s->loop);
    s->config = config_free(s->config);
}
