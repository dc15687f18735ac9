/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/kernels.h"

struct worker {
    pthread_t thread;
    void (*fn)(void *object);
    struct queue *in, *out;
    bool stopped;
};

static void *run(void *arg)
{
    struct worker *w = arg;
    dk_thread_init();
    for (;;) {
        struct message m;
        while (queue_pop(w->in, &m)) {
            if (!m.object)
                return NULL; /* worker_free */
            w->fn(m.object);
            while (!queue_push(w->out, m))
                ; /* cannot happen: both queues have the same capacity */
        }
        if (queue_sleep(w->in)) {
            struct pollfd p = {.fd = queue_fd(w->in), .events = POLLIN};
            poll(&p, 1, -1);
            queue_awake(w->in);
        }
    }
}

int worker_new(const char *name, size_t capacity, void (*fn)(void *object), struct worker **ret,
               struct error *err)
{
    struct worker *w = mem_zalloc(sizeof *w);
    if (!w)
        return ERR_NOMEM(err);
    w->fn = fn;
    int r = queue_new(capacity + 1, &w->in, err);
    if (r == 0)
        r = queue_new(capacity + 1, &w->out, err);
    if (r == 0) {
        sigset_t all, old;
        sigfillset(&all);
        sigdelset(&all, SIGBUS); /* base/mapguard.h */
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int e = pthread_create(&w->thread, NULL, run, w);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (e)
            r = ERR(err, IO, "starting the %s thread: %s", name, strerror(e));
        else
            pthread_setname_np(w->thread, name);
    }
    if (r < 0) {
        queue_free(w->in);
        queue_free(w->out);
        mem_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

struct queue *worker_drain(struct worker *w)
{
    struct message stop = {0};
    if (!w->stopped) {
        while (!queue_push(w->in, stop))
            ; /* full for as long as the worker is busy */
        pthread_join(w->thread, NULL);
        w->stopped = true;
    }
    return w->out;
}

struct worker *worker_free(struct worker *w)
{
    if (!w)
        return NULL;
    worker_drain(w);
    queue_free(w->in);
    queue_free(w->out);
    mem_free(w);
    return NULL;
}

bool worker_give(struct worker *w, void *object)
{
    struct message m = {.object = object};
    return queue_push(w->in, m);
}

int worker_fd(const struct worker *w)
{
    return queue_fd(w->out);
}

struct queue *worker_results(struct worker *w)
{
    return w->out;
}
