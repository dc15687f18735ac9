/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event loop on io_uring.  One poll operation a source, armed again after its callback (so readiness
 * is level-triggered), and one multishot accept a listening socket.  Submissions are batched: they
 * leave with the next wait, so an event costs no system call of its own.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "daemon/loop-internal.h"

#define ENTRIES 256u

/* user_data of operations whose completion nobody waits for. */
#define NOBODY ((uint64_t)0)

static int probe(struct io_uring *u, struct error *err)
{
    static const int needed[] = {IORING_OP_POLL_ADD, IORING_OP_POLL_REMOVE, IORING_OP_ACCEPT,
                                 IORING_OP_ASYNC_CANCEL};
    struct io_uring_probe *p = io_uring_get_probe_ring(u);
    if (!p)
        return ERR(err, UNSUPPORTED, "io_uring: the kernel does not answer probes");
    int r = 0;
    for (size_t i = 0; i < ARRAY_LEN(needed) && r == 0; i++)
        if (!io_uring_opcode_supported(p, needed[i]))
            r = ERR(err, UNSUPPORTED, "io_uring: operation %d is missing", needed[i]);
    io_uring_free_probe(p);
    return r;
}

static int init(struct loop *l, struct error *err)
{
    struct io_uring *u = mem_zalloc(sizeof *u);
    if (!u)
        return ERR_NOMEM(err);
    int r = io_uring_queue_init(
        ENTRIES, u, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CLAMP);
    if (r == -EINVAL) /* before Linux 6.1 */
        r = io_uring_queue_init(ENTRIES, u, IORING_SETUP_CLAMP);
    if (r < 0) {
        mem_free(u);
        return ERR(err, UNSUPPORTED, "io_uring: %s%s", strerror(-r),
                   r == -EPERM    ? " (kernel.io_uring_disabled or a seccomp filter)"
                   : r == -ENOMEM ? " (RLIMIT_MEMLOCK)"
                                  : "");
    }
    r = probe(u, err);
    if (r < 0) {
        io_uring_queue_exit(u);
        mem_free(u);
        return r;
    }
    l->state = u;
    return 0;
}

static void done(struct loop *l)
{
    io_uring_queue_exit(l->state);
    mem_free(l->state);
}

static struct io_uring_sqe *get_sqe(struct loop *l)
{
    struct io_uring *u = l->state;
    struct io_uring_sqe *e = io_uring_get_sqe(u);
    if (!e) { /* the queue is full: hand it over, then there is room */
        io_uring_submit(u);
        e = io_uring_get_sqe(u);
    }
    return e;
}

static int arm(struct loop_source *s, struct error *err)
{
    if (s->armed)
        return 0;
    struct io_uring_sqe *e = get_sqe(s->loop);
    if (!e)
        return ERR(err, BUSY, "io_uring: the submission queue is full");
    if (s->accept_fn) {
        io_uring_prep_multishot_accept(e, s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } else {
        unsigned mask = 0;
        if (s->events & LOOP_READ)
            mask |= POLLIN;
        if (s->events & LOOP_WRITE)
            mask |= POLLOUT;
        io_uring_prep_poll_add(e, s->fd, mask);
    }
    io_uring_sqe_set_data(e, s);
    s->armed = true;
    return 0;
}

static void disarm(struct loop_source *s)
{
    if (!s->armed)
        return;
    struct io_uring_sqe *e = get_sqe(s->loop);
    if (!e)
        return; /* the operation's own completion will come; the source lives until then */
    io_uring_prep_cancel(e, s, 0);
    io_uring_sqe_set_data64(e, NOBODY);
    /* The caller may close the descriptor now: the kernel must have seen the cancellation. */
    io_uring_submit(s->loop->state);
}

static int modify(struct loop_source *s, struct error *err)
{
    if (!s->armed)
        return arm(s, err);
    disarm(s); /* the completion of the old operation arms the new one */
    return 0;
}

static unsigned from_poll(int mask)
{
    unsigned got = 0;
    if (mask & POLLIN)
        got |= LOOP_READ;
    if (mask & POLLOUT)
        got |= LOOP_WRITE;
    if (mask & (POLLHUP | POLLERR | POLLNVAL))
        got |= LOOP_HANGUP;
    return got;
}

void loop_uring_complete(struct loop_source *s, int result, unsigned cqe_flags)
{
    struct error ignored = {0};
    if (!(cqe_flags & IORING_CQE_F_MORE))
        s->armed = false;
    if (s->dead && !s->accept_fn)
        return;
    if (s->accept_fn) {
        /* Cancelled by loop_accepted (a pause) or by loop_remove: no result of a connection. */
        if (result != -ECANCELED)
            loop_accepted(s, result);
        /* A multishot that ended is armed once more, unless it pauses; the pause may be over already
         * when the word of its cancellation comes. */
        if (!s->armed && !s->dead && !s->paused && arm(s, &ignored) < 0)
            s->loop->accept_errors++;
        return;
    }
    if (result >= 0)
        loop_ready(s, from_poll(result));
    else if (result != -ECANCELED)
        loop_ready(s, LOOP_HANGUP);
    if (!s->dead && arm(s, &ignored) < 0)
        loop_ready(s, LOOP_HANGUP);
}

static int wait_events(struct loop *l, uint64_t deadline_ns, struct error *err)
{
    struct io_uring *u = l->state;
    struct __kernel_timespec t, *tp = NULL;
    struct io_uring_cqe *cqe = NULL;

    if (deadline_ns != UINT64_MAX) {
        uint64_t now = clock_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
        t.tv_sec = (long long)(left / 1000000000u);
        t.tv_nsec = (long long)(left % 1000000000u);
        tp = &t;
    }
    int r = io_uring_submit_and_wait_timeout(u, &cqe, 1, tp, NULL);
    if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
        return ERR(err, IO, "io_uring: %s", strerror(-r));
    while (io_uring_peek_cqe(u, &cqe) == 0) {
        struct loop_source *s = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        unsigned flags = cqe->flags;
        io_uring_cqe_seen(u, cqe);
        if (s)
            loop_uring_complete(s, result, flags);
    }
    return 0;
}

const struct loop_backend loop_uring = {
    .name = "io_uring",
    .init = init,
    .done = done,
    .arm = arm,
    .disarm = disarm,
    .modify = modify,
    .wait = wait_events,
};
