/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the event loop that both back ends share: timers, life of sources, accept policy. */
#include "daemon/loop.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "daemon/loop-internal.h"

#define ACCEPT_PAUSE_NS 100000000u

struct loop_timer {
    struct loop *loop;
    loop_timer_fn fn;
    void *arg;
    uint64_t deadline;
    size_t at; /* index in the heap + 1; 0: not armed */
};

int loop_new(enum loop_kind kind, struct loop **ret, struct error *ret_why, struct error *err)
{
    struct loop *l = mem_zalloc(sizeof *l);
    if (!l)
        return ERR_NOMEM(err);
    if (kind != LOOP_EPOLL) {
        struct error why = {0};
        l->backend = &loop_uring;
        int r = l->backend->init(l, &why);
        if (r == 0) {
            *ret = l;
            return 0;
        }
        if (kind == LOOP_URING) {
            mem_free(l);
            if (err)
                *err = why;
            return r;
        }
        if (ret_why)
            *ret_why = why;
    }
    l->backend = &loop_epoll;
    int r = l->backend->init(l, err);
    if (r < 0) {
        mem_free(l);
        return r;
    }
    *ret = l;
    return 0;
}

const char *loop_backend(const struct loop *l)
{
    return l->backend->name;
}

uint64_t loop_accept_errors(const struct loop *l)
{
    return l->accept_errors;
}

/* ---- timers: a binary heap ------------------------------------------------------------------------- */

static void place(struct loop *l, struct loop_timer *t, size_t i)
{
    l->heap[i] = t;
    t->at = i + 1;
}

static void sift(struct loop *l, size_t i)
{
    struct loop_timer *t = l->heap[i];
    while (i > 0 && l->heap[(i - 1) / 2]->deadline > t->deadline) {
        place(l, l->heap[(i - 1) / 2], i);
        i = (i - 1) / 2;
    }
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= l->n_heap)
            break;
        if (c + 1 < l->n_heap && l->heap[c + 1]->deadline < l->heap[c]->deadline)
            c++;
        if (l->heap[c]->deadline >= t->deadline)
            break;
        place(l, l->heap[c], i);
        i = c;
    }
    place(l, t, i);
}

int loop_timer_new(struct loop *l, loop_timer_fn fn, void *arg, struct loop_timer **ret,
                   struct error *err)
{
    /* Room in the heap for every timer there is, so that arming one cannot fail. */
    if (l->n_timers == l->cap_heap) {
        size_t cap = l->cap_heap ? 2 * l->cap_heap : 16;
        struct loop_timer **h = mem_realloc_array(l->heap, cap, sizeof(struct loop_timer *));
        if (!h)
            return ERR_NOMEM(err);
        l->heap = h;
        l->cap_heap = cap;
    }
    struct loop_timer *t = mem_zalloc(sizeof *t);
    if (!t)
        return ERR_NOMEM(err);
    t->loop = l;
    t->fn = fn;
    t->arg = arg;
    l->n_timers++;
    *ret = t;
    return 0;
}

static void disarm(struct loop_timer *t)
{
    struct loop *l = t->loop;
    if (!t->at)
        return;
    size_t i = t->at - 1;
    t->at = 0;
    struct loop_timer *last = l->heap[--l->n_heap];
    if (last != t) {
        place(l, last, i);
        sift(l, i);
    }
}

void loop_timer_set(struct loop_timer *t, uint64_t deadline_ns)
{
    disarm(t);
    if (!deadline_ns)
        return;
    t->deadline = deadline_ns;
    place(t->loop, t, t->loop->n_heap++);
    sift(t->loop, t->at - 1);
}

void loop_timer_free(struct loop_timer *t)
{
    if (!t)
        return;
    disarm(t);
    t->loop->n_timers--;
    mem_free(t);
}

static void run_timers(struct loop *l)
{
    if (!l->n_heap)
        return;
    uint64_t now = clock_now_ns();
    while (l->n_heap && l->heap[0]->deadline <= now) {
        struct loop_timer *t = l->heap[0];
        disarm(t);
        t->fn(t->arg);
    }
}

/* ---- sources ----------------------------------------------------------------------------------------- */

static int add(struct loop *l, const struct loop_source *from, struct loop_source **ret,
               struct error *err)
{
    struct loop_source *s = mem_memdup(from, sizeof *from);
    if (!s)
        return ERR_NOMEM(err);
    s->loop = l;
    int r = l->backend->arm(s, err);
    if (r < 0) {
        mem_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

int loop_add(struct loop *l, int fd, unsigned events, loop_fd_fn fn, void *arg,
             struct loop_source **ret, struct error *err)
{
    struct loop_source s = {.fd = fd, .events = events, .fn = fn, .arg = arg};
    return add(l, &s, ret, err);
}

static void end_pause(void *arg)
{
    struct loop_source *s = arg;
    struct error e = {0};
    s->paused = false;
    if (s->loop->backend->arm(s, &e) < 0)
        loop_timer_set(s->pause, clock_now_ns() + ACCEPT_PAUSE_NS);
}

int loop_add_accept(struct loop *l, int listen_fd, loop_accept_fn fn, void *arg,
                    struct loop_source **ret, struct error *err)
{
    struct loop_source s = {.fd = listen_fd, .events = LOOP_READ, .accept_fn = fn, .arg = arg};
    struct loop_source *made;
    int r = add(l, &s, &made, err);
    if (r < 0)
        return r;
    r = loop_timer_new(l, end_pause, made, &made->pause, err);
    if (r < 0) {
        loop_remove(made);
        return r;
    }
    *ret = made;
    return 0;
}

int loop_modify(struct loop_source *s, unsigned events, struct error *err)
{
    if (s->events == events)
        return 0;
    s->events = events;
    return s->loop->backend->modify(s, err);
}

void loop_remove(struct loop_source *s)
{
    if (!s || s->dead)
        return;
    s->dead = true;
    loop_timer_free(s->pause);
    s->pause = NULL;
    s->loop->backend->disarm(s);
    s->next_dead = s->loop->dead;
    s->loop->dead = s;
}

/* Removed sources live until no completion can name them any more. */
static void bury(struct loop *l)
{
    struct loop_source **p = &l->dead;
    while (*p) {
        struct loop_source *s = *p;
        if (s->armed) {
            p = &s->next_dead;
            continue;
        }
        *p = s->next_dead;
        mem_free(s);
    }
}

void loop_ready(struct loop_source *s, unsigned events)
{
    /* What the back end saw may be older than the last loop_modify. */
    events &= s->events | LOOP_HANGUP;
    if (!s->dead && events)
        s->fn(s->arg, events);
}

/* Errors of one connection; every other one may come again at once, and for ever. */
static bool accept_goes_on(int error)
{
    return error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO ||
           error == EPERM;
}

void loop_accepted(struct loop_source *s, int result)
{
    if (s->dead) {
        if (result >= 0)
            close(result);
        return;
    }
    if (result >= 0) {
        s->accept_fn(s->arg, result);
        return;
    }
    s->loop->accept_errors++;
    if (!accept_goes_on(-result) && s->pause) {
        s->paused = true;
        s->loop->backend->disarm(s);
        loop_timer_set(s->pause, clock_now_ns() + ACCEPT_PAUSE_NS);
    }
}

int loop_once(struct loop *l, struct error *err)
{
    uint64_t deadline = l->n_heap ? l->heap[0]->deadline : UINT64_MAX;
    int r = l->backend->wait(l, deadline, err);
    if (r < 0)
        return r;
    run_timers(l);
    bury(l);
    return 0;
}

struct loop *loop_free(struct loop *l)
{
    if (!l)
        return NULL;
    l->backend->done(l);
    for (struct loop_source *s = l->dead, *next; s; s = next) {
        next = s->next_dead;
        mem_free(s);
    }
    mem_free(l->heap);
    mem_free(l);
    return NULL;
}
