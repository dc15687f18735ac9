/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that owns every loaded engine.  It steps the models that have work in turn, and gives
 * tokens straight to the rings.  Talks to the loop thread through two bounded queues only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/job.h"
#include "daemon/queue.h"

/* Loop -> engine. */
enum engine_order {
    ORDER_SUBMIT,  /* object: job, now RUNNING */
    ORDER_CANCEL,  /* object: job; arg: enum job_cancel */
    ORDER_RESUME,  /* object: job whose reader has moved */
    ORDER_FORGET,  /* object: job that has ended: answered when no order about it is left */
    ORDER_ATTACH,  /* object: struct served */
    ORDER_DETACH,  /* object: struct served; its jobs have ended */
    ORDER_STOP,
};
/* Engine -> loop. */
enum engine_report {
    REPORT_ENDED,    /* object: job; the engine and the ring are done with it */
    REPORT_STALLED,  /* object: job: parked until its reader moves */
    REPORT_RESUMED,  /* object: job: goes on */
    REPORT_FORGOTTEN, /* object: job: nothing names it any more */
    REPORT_DETACHED, /* object: struct served; its engine is free */
    REPORT_FATAL,    /* object: const struct error, the thread's own: a device is lost; comes once */
};

/* A model as the engine thread sees it.  Made by the loop, which gets it back with REPORT_DETACHED. */
struct served {
    struct served *prev, *next;
    struct engine *engine;
    struct model *model;
    bool idle;
    bool measured; /* nothing to measure, as far as is known */
    /* A snapshot for metrics, written by the engine thread after each step (relaxed atomics). */
    uint32_t running, waiting, parked, kv_blocks, kv_blocks_free;
    uint64_t steps, prompt_tokens, generation_tokens, cached_tokens, prefix_queries, preemptions;
};

struct engine_thread;
/* max_jobs: requests that can be under way at once (sizes the queues). */
int engine_thread_new(uint32_t max_jobs, struct engine_thread **ret, struct error *err);
/* Stops it and joins; everything must have been detached. */
struct engine_thread *engine_thread_free(struct engine_thread *t);
/* Loop thread: false when the queue is full (an internal error: quotas bound what is under way). */
bool engine_thread_order(struct engine_thread *t, enum engine_order type, void *object,
                         uint32_t arg);
struct queue *engine_thread_reports(struct engine_thread *t); /* for the loop to read */
/* Steps and orders done so far: moves while the thread is alive (watchdog). */
uint64_t engine_thread_progress(const struct engine_thread *t);
/* Is a step or an order under way, or anything runnable? */
bool engine_thread_busy(const struct engine_thread *t);
