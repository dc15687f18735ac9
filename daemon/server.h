/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's state, all of it owned by the loop thread: configuration, users, peers, models, jobs.
 * What other threads own for a while is said in job.h, engine-thread.h and worker.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"
#include "daemon/engine-thread.h"
#include "daemon/job.h"
#include "daemon/loop.h"
#include "daemon/metrics.h"
#include "daemon/models.h"
#include "daemon/quota.h"
#include "daemon/slot.h"
#include "daemon/worker.h"

struct server {
    struct config *config;
    struct loop *loop;
    struct quota quota;
    struct metrics *metrics;

    struct engine_thread *engines;
    struct worker *loader, *preparer;
    struct loop_source *engine_source, *loader_source, *preparer_source;

    int listen_fd;
    struct loop_source *listener;
    struct peer *peers;
    uint32_t n_peers;
    uint64_t peers_refused;
    uint32_t n_jobs;       /* not ENDED */
    uint32_t n_preparing;
    uint32_t n_forgetting; /* ENDED, but an order on its way may still name them */

    struct model *models;

    uint64_t started_ns;
    bool draining;         /* no new requests */
    bool stopping;         /* exit when the last job has ended */
    bool stop_now;         /* second signal, or the drain timeout is over */
    struct error fatal;    /* why the process must end, to be started again; code 0: it need not */
    struct loop_timer *drain_timer;
    /* Asked for by Reload; main owns the files and flags. */
    int (*reload)(void *arg, struct error *err);
    void *reload_arg;
};

/* Threads, queues and sources; the server takes the configuration. */
int server_init(struct server *s, struct config *c, struct error *err);
/* Everything must have ended (server_idle). */
void server_done(struct server *s);
/* Takes a listening socket over. */
int server_listen(struct server *s, int fd, struct error *err);
/* Limits, policy and models of a new configuration; running requests go on.  Takes it. */
int server_apply(struct server *s, struct config *c, struct error *err);

/* No new requests; with stop, running ones get drain_timeout and the rest is refused. */
void server_drain(struct server *s, bool stop);
void server_stop_now(struct server *s); /* cancels what still runs */
/* DEVICE_LOST: no request on that device can succeed in this process.  Drains, and stops. */
void server_lose_device(struct server *s, const struct error *e);
bool server_idle(const struct server *s); /* no request under way on any thread */
bool server_loading(const struct server *s); /* the loader is at work: server_done waits for it */
const char *server_status(const struct server *s); /* "ready", "loading", "draining" */

/* ---- jobs (server-jobs.c) ------------------------------------------------------------------------- */

/* A new job of a peer, its prompt unpacked: prepares it, now or on the worker. */
void server_start_job(struct server *s, struct job *j);
/* Gives jobs to the engine as far as it has room. */
void server_schedule(struct server *s, struct model *m);
void server_cancel_job(struct server *s, struct job *j, enum job_cancel why);
/* The job is over: tells its peer, releases what it held, frees it. */
void server_end_job(struct server *s, struct job *j);
/* A model's load has ended, well or not: its waiting jobs go on. */
void server_model_settled(struct server *s, struct model *m);
/* Takes in what the engine thread has reported so far. */
void server_take_reports(struct server *s);
/* Reports of the engine thread and of the preparing worker, one at a time. */
void server_on_engine_report(struct server *s, struct message r);
void server_on_prepared(struct server *s, struct job *j);
