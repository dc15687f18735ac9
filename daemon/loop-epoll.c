/* SPDX-License-Identifier: Apache-2.0 */
/* Event loop on epoll: where io_uring is forbidden or too old. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "daemon/loop-internal.h"

#define BATCH           64
#define ACCEPTS_AT_ONCE 64

struct state {
    int fd;
    struct epoll_event *events; /* the batch being handed out */
    int n, next;
};

static int init(struct loop *l, struct error *err)
{
    struct state *st = mem_zalloc(sizeof *st);
    if (!st)
        return ERR_NOMEM(err);
    st->fd = epoll_create1(EPOLL_CLOEXEC);
    if (st->fd < 0) {
        mem_free(st);
        return ERR(err, IO, "epoll_create1: %s", strerror(errno));
    }
    l->state = st;
    return 0;
}

static void done(struct loop *l)
{
    struct state *st = l->state;
    fd_close(st->fd);
    mem_free(st);
}

static int control(struct loop_source *s, int op, struct error *err)
{
    struct state *st = s->loop->state;
    struct epoll_event e = {.data.ptr = s};
    if (s->events & LOOP_READ)
        e.events |= EPOLLIN;
    if (s->events & LOOP_WRITE)
        e.events |= EPOLLOUT;
    if (epoll_ctl(st->fd, op, s->fd, &e) < 0)
        return ERR(err, IO, "epoll_ctl on descriptor %d: %s", s->fd, strerror(errno));
    return 0;
}

static int arm(struct loop_source *s, struct error *err)
{
    return control(s, EPOLL_CTL_ADD, err);
}

static int modify(struct loop_source *s, struct error *err)
{
    return control(s, EPOLL_CTL_MOD, err);
}

static void disarm(struct loop_source *s)
{
    struct state *st = s->loop->state;
    epoll_ctl(st->fd, EPOLL_CTL_DEL, s->fd, NULL);
    for (int i = st->next; i < st->n; i++) /* later in the batch that is being handed out */
        if (st->events[i].data.ptr == s)
            st->events[i].data.ptr = NULL;
}

static void accept_some(struct loop_source *s)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE && !s->dead; i++) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        int result = fd >= 0 ? fd : -errno;
        loop_accepted(s, result);
        if (result < 0)
            return;
    }
}

static int wait_events(struct loop *l, uint64_t deadline_ns, struct error *err)
{
    struct state *st = l->state;
    struct epoll_event events[BATCH];
    struct timespec t, *tp = NULL;

    if (deadline_ns != UINT64_MAX) {
        uint64_t now = clock_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
        t = (struct timespec){.tv_sec = (time_t)(left / 1000000000u),
                              .tv_nsec = (long)(left % 1000000000u)};
        tp = &t;
    }
    int n = epoll_pwait2(st->fd, events, BATCH, tp, NULL);
    if (n < 0 && errno == ENOSYS) /* Linux before 5.11: milliseconds, rounded up */
        n = epoll_wait(st->fd, events, BATCH,
                       tp ? (int)(t.tv_sec * 1000 + (t.tv_nsec + 999999) / 1000000) : -1);
    if (n < 0) {
        if (errno == EINTR)
            return 0;
        return ERR(err, IO, "epoll_wait: %s", strerror(errno));
    }
    st->events = events;
    st->n = n;
    for (st->next = 0; st->next < n;) {
        const struct epoll_event *e = &events[st->next++];
        struct loop_source *s = e->data.ptr;
        if (!s)
            continue;
        if (s->accept_fn) {
            accept_some(s);
            continue;
        }
        unsigned got = 0;
        if (e->events & EPOLLIN)
            got |= LOOP_READ;
        if (e->events & EPOLLOUT)
            got |= LOOP_WRITE;
        if (e->events & (EPOLLHUP | EPOLLERR))
            got |= LOOP_HANGUP;
        loop_ready(s, got);
    }
    st->events = NULL;
    st->n = st->next = 0;
    return 0;
}

const struct loop_backend loop_epoll = {
    .name = "epoll",
    .init = init,
    .done = done,
    .arm = arm,
    .disarm = disarm,
    .modify = modify,
    .wait = wait_events,
};
