/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop, on both back ends: readiness, life of sources, timers, accept; faults of the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "daemon/loop-internal.h"
#include "tests/unit/util.h"

#define MORE 2u /* IORING_CQE_F_MORE */
#define MS   1000000u

static const enum loop_kind kinds[] = {LOOP_URING, LOOP_EPOLL};

static struct loop *make(int i)
{
    struct loop *l = NULL;
    struct error err = {0};
    int r = loop_new(kinds[i], &l, NULL, &err);
    if (r == DEDIT_E_UNSUPPORTED && kinds[i] == LOOP_URING)
        TEST_SKIP_HARDWARE("no io_uring in this kernel");
    ck_ok(r, &err);
    ck_assert_str_eq(loop_backend(l), kinds[i] == LOOP_URING ? "io_uring" : "epoll");
    return l;
}

struct seen {
    struct loop_source *source;
    struct loop *loop;
    unsigned calls, events;
    int fd;
    bool drain, remove;
};

static void on_fd(void *arg, unsigned events)
{
    struct seen *s = arg;
    uint64_t n;
    s->calls++;
    s->events = events;
    if (s->drain)
        while (read(s->fd, &n, sizeof n) > 0)
            ;
    if (s->remove) {
        loop_remove(s->source);
        s->source = NULL;
    }
}

static void watch(struct loop *l, struct seen *s, int fd, unsigned events)
{
    struct error err = {0};
    s->loop = l;
    s->fd = fd;
    ck_ok(loop_add(l, fd, events, on_fd, s, &s->source, &err), &err);
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

/* Runs the loop for so long. */
static void run(struct loop *l, unsigned ms)
{
    struct loop_timer *t;
    struct error err = {0};
    bool over = false;
    ck_ok(loop_timer_new(l, set_flag, &over, &t, &err), &err);
    loop_timer_set(t, clock_now_ns() + (uint64_t)ms * MS);
    while (!over)
        ck_ok(loop_once(l, &err), &err);
    loop_timer_free(t);
}

/* ---- readiness ----------------------------------------------------------------------------------------- */

START_TEST(readiness_is_level_triggered)
{
    struct loop *l = make(_i);
    struct seen s = {0};
    struct error err = {0};
    int p[2];
    char c;
    ck_assert_int_eq(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    watch(l, &s, p[0], LOOP_READ);
    run(l, 5);
    ck_assert_uint_eq(s.calls, 0);
    ck_assert_int_eq(write(p[1], "ab", 2), 2);
    for (unsigned i = 1; i <= 3; i++) { /* nothing is read: it is called again */
        ck_ok(loop_once(l, &err), &err);
        ck_assert_uint_eq(s.calls, i);
        ck_assert_uint_eq(s.events, LOOP_READ);
    }
    ck_assert_int_eq(read(p[0], &c, 1), 1);
    ck_ok(loop_once(l, &err), &err);
    ck_assert_uint_eq(s.calls, 4);
    ck_assert_int_eq(read(p[0], &c, 1), 1);
    run(l, 5); /* one call may have been under way */
    unsigned before = s.calls;
    run(l, 5);
    ck_assert_uint_eq(s.calls, before);
    close(p[1]);
    ck_ok(loop_once(l, &err), &err);
    ck_assert(s.events & LOOP_HANGUP);
    loop_remove(s.source);
    close(p[0]);
    loop_free(l);
}
END_TEST

START_TEST(what_is_watched_can_change)
{
    struct loop *l = make(_i);
    struct seen s = {0};
    struct error err = {0};
    int p[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, p), 0);
    watch(l, &s, p[0], LOOP_READ);
    run(l, 5);
    ck_assert_uint_eq(s.calls, 0);
    ck_ok(loop_modify(s.source, LOOP_READ | LOOP_WRITE, &err), &err);
    run(l, 5);
    ck_assert_uint_gt(s.calls, 0);
    ck_assert_uint_eq(s.events, LOOP_WRITE);
    /* Readable and writable, but neither is asked for any more. */
    ck_assert_int_eq(write(p[1], "x", 1), 1);
    ck_ok(loop_once(l, &err), &err);
    ck_ok(loop_modify(s.source, 0, &err), &err);
    s.calls = 0;
    run(l, 5);
    ck_assert_uint_eq(s.calls, 0);
    ck_ok(loop_modify(s.source, LOOP_READ, &err), &err);
    run(l, 5);
    ck_assert_uint_gt(s.calls, 0);
    ck_assert_uint_eq(s.events, LOOP_READ);
    ck_ok(loop_modify(s.source, 0, &err), &err);
    close(p[1]); /* a hang-up is told always */
    s.calls = 0;
    s.remove = true;
    run(l, 5);
    ck_assert_uint_eq(s.calls, 1);
    ck_assert(s.events & LOOP_HANGUP);
    close(p[0]);
    loop_free(l);
}
END_TEST

static void remove_other(void *arg, unsigned events)
{
    struct seen *s = arg;
    (void)events;
    s->calls++;
    for (int i = 0; i < 2; i++)
        if (s[i].source) {
            loop_remove(s[i].source);
            s[i].source = NULL;
            close(s[i].fd);
        }
}

/* Two are ready in one batch; the first callback removes both, and descriptors' numbers come back. */
START_TEST(removed_sources_are_not_called)
{
    for (int round = 0; round < 50; round++) {
        struct loop *l = make(_i);
        struct error err = {0};
        struct seen s[2] = {{0}, {0}}, next = {0};
        for (int i = 0; i < 2; i++) {
            s[i].fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
            ck_ok(loop_add(l, s[i].fd, LOOP_READ, i ? on_fd : remove_other, &s[i], &s[i].source,
                           &err),
                  &err);
        }
        while (!s[0].calls)
            ck_ok(loop_once(l, &err), &err);
        unsigned late = s[1].calls;
        watch(l, &next, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), LOOP_READ);
        run(l, 2);
        ck_assert_uint_eq(s[1].calls, late);
        ck_assert_uint_eq(next.calls, 0);
        loop_remove(next.source);
        close(next.fd);
        loop_free(l);
    }
}
END_TEST

/* More ready sources than the queues of io_uring have places. */
START_TEST(more_events_than_the_queues_hold)
{
    enum { N = 1500 };
    struct rlimit old, more = {N + 100, N + 100};
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    if (old.rlim_max < N + 100)
        TEST_SKIP_HARDWARE("too few descriptors are allowed");
    more.rlim_max = old.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &more), 0);
    struct loop *l = make(_i);
    struct seen *s = calloc(N, sizeof *s);
    for (int i = 0; i < N; i++) {
        s[i].drain = true;
        watch(l, &s[i], eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), LOOP_READ);
    }
    run(l, 5); /* all are armed */
    for (unsigned round = 1; round <= 3; round++) {
        uint64_t one = 1, until = clock_now_ns() + 20000000000ull;
        int missing = N;
        for (int i = 0; i < N; i++)
            ck_assert_int_eq(write(s[i].fd, &one, sizeof one), sizeof one);
        while (missing && clock_now_ns() < until) {
            run(l, 1);
            missing = 0;
            for (int i = 0; i < N; i++)
                missing += s[i].calls < round;
        }
        ck_assert_int_eq(missing, 0);
    }
    for (int i = 0; i < N; i++) {
        loop_remove(s[i].source);
        close(s[i].fd);
    }
    loop_free(l);
    free(s);
    setrlimit(RLIMIT_NOFILE, &old);
}
END_TEST

static void nothing(int signal)
{
    (void)signal;
}

START_TEST(signals_do_not_end_the_wait)
{
    struct loop *l = make(_i);
    struct sigaction a = {.sa_handler = nothing}; /* no SA_RESTART */
    struct itimerval every = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    struct seen s = {.drain = true};
    struct error err = {0};
    watch(l, &s, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), LOOP_READ);
    sigaction(SIGALRM, &a, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < 30; i++) /* with no timer: only a signal can end the wait */
        ck_ok(loop_once(l, &err), &err);
    run(l, 20);
    uint64_t one = 1;
    ck_assert_int_eq(write(s.fd, &one, sizeof one), sizeof one);
    run(l, 20);
    setitimer(ITIMER_REAL, &off, NULL);
    ck_assert_uint_ge(s.calls, 1);
    loop_remove(s.source);
    close(s.fd);
    loop_free(l);
}
END_TEST

/* ---- timers ------------------------------------------------------------------------------------------------ */

struct alarm_seen {
    struct loop_timer *t;
    uint64_t due;   /* 0: not armed */
    uint64_t *last; /* deadline of the one that ran before */
    unsigned *ran;
};

static void on_alarm(void *arg)
{
    struct alarm_seen *a = arg;
    uint64_t now = clock_now_ns();
    ck_fast(a->due != 0);
    ck_fast(now >= a->due);
    ck_fast(a->due >= *a->last); /* earliest first */
    *a->last = a->due;
    a->due = 0;
    ++*a->ran;
}

START_TEST(timers_run_in_order_and_never_early)
{
    enum { N = 300 };
    struct loop *l = make(_i);
    struct alarm_seen a[N];
    struct error err = {0};
    uint64_t last = 0;
    unsigned ran = 0, armed = 0, seed = 5;
    for (int i = 0; i < N; i++) {
        a[i] = (struct alarm_seen){.last = &last, .ran = &ran};
        ck_ok(loop_timer_new(l, on_alarm, &a[i], &a[i].t, &err), &err);
    }
    uint64_t start = clock_now_ns() + 5 * MS;
    for (int k = 0; k < 5 * N;
         k++) { /* set, moved and disarmed at random before the first is due */
        struct alarm_seen *x = &a[(seed = seed * 1103515245u + 12345u) >> 8 & 255];
        x->due = k % 7 == 0 ? 0 : start + (seed >> 4) % (30 * MS);
        loop_timer_set(x->t, x->due);
    }
    for (int i = 0; i < N; i++)
        armed += a[i].due != 0;
    run(l, 60);
    ck_assert_uint_eq(ran, armed);
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(a[i].due, 0);
        loop_timer_free(a[i].t);
    }
    loop_free(l);
}
END_TEST

static void free_timer(void *arg)
{
    struct alarm_seen *a = arg;
    loop_timer_free(a->t);
    a->t = NULL;
    ++*a->ran;
}

START_TEST(a_timer_may_free_itself)
{
    struct loop *l = make(_i);
    struct error err = {0};
    unsigned ran = 0;
    struct alarm_seen a = {.ran = &ran};
    ck_ok(loop_timer_new(l, free_timer, &a, &a.t, &err), &err);
    loop_timer_set(a.t, clock_now_ns() + MS);
    run(l, 5);
    ck_assert_uint_eq(ran, 1);
    loop_free(l);
}
END_TEST

/* ---- accept ------------------------------------------------------------------------------------------------- */

struct gate {
    struct loop_source *source;
    int listen_fd;
    unsigned accepted;
    struct sockaddr_un address;
};

static void on_accept(void *arg, int fd)
{
    struct gate *g = arg;
    ck_fast((fcntl(fd, F_GETFD) & FD_CLOEXEC) && (fcntl(fd, F_GETFL) & O_NONBLOCK));
    g->accepted++;
    close(fd);
}

static void open_gate(struct loop *l, struct gate *g)
{
    struct error err = {0};
    *g = (struct gate){.address = {.sun_family = AF_UNIX}};
    socklen_t len = sizeof(sa_family_t);
    g->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* An abstract address that the kernel chooses. */
    ck_assert_int_eq(bind(g->listen_fd, (struct sockaddr *)&g->address, len), 0);
    len = sizeof g->address;
    ck_assert_int_eq(getsockname(g->listen_fd, (struct sockaddr *)&g->address, &len), 0);
    ck_assert_int_eq(listen(g->listen_fd, 200), 0);
    ck_ok(loop_add_accept(l, g->listen_fd, on_accept, g, &g->source, &err), &err);
}

static void knock(const struct gate *g, int n)
{
    socklen_t len = (socklen_t)(sizeof(sa_family_t) + 1 + strlen(g->address.sun_path + 1));
    for (int i = 0; i < n; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(connect(fd, (const struct sockaddr *)&g->address, len), 0);
        close(fd);
    }
}

static void close_gate(struct gate *g)
{
    loop_remove(g->source);
    close(g->listen_fd);
}

START_TEST(connections_are_accepted)
{
    struct loop *l = make(_i);
    struct gate g;
    open_gate(l, &g);
    knock(&g, 150);
    run(l, 30);
    ck_assert_uint_eq(g.accepted, 150);
    knock(&g, 1);
    run(l, 10);
    ck_assert_uint_eq(g.accepted, 151);
    close_gate(&g);
    loop_free(l);
}
END_TEST

/* Row IPC-05: without descriptors it waits instead of spinning, and goes on by itself. */
START_TEST(no_descriptors_left)
{
    struct loop *l = make(_i);
    struct gate g;
    struct rlimit old, none;
    open_gate(l, &g);
    knock(&g, 3);
    /* io_uring reads the limit when the operation is submitted: with the first wait. */
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    run(l, 350);
    uint64_t errors = loop_accept_errors(l);
    unsigned accepted = g.accepted;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    run(l, 250);
    ck_assert_msg(errors >= 2 && errors <= 5, "%u tries in 350 ms, one each 100 ms is right",
                  (unsigned)errors);
    ck_assert_uint_eq(accepted, 0);
    ck_assert_uint_eq(g.accepted, 3);
    close_gate(&g);
    loop_free(l);
}
END_TEST

/* A listening socket that has broken must not take the processor. */
START_TEST(a_broken_listening_socket)
{
    struct loop *l = make(_i);
    struct gate g;
    open_gate(l, &g);
    run(l, 5);
    shutdown(g.listen_fd, SHUT_RDWR);
    run(l, 350);
    ck_assert_uint_le(loop_accept_errors(l), 5);
    close_gate(&g);
    loop_free(l);
}
END_TEST

/* ---- completions that no kernel makes on demand (io_uring) ------------------------------------------------- */

/* Row IPC-05.  pauses: no descriptors or memory, or an error of the socket itself. */
static const struct {
    int error;
    bool pauses;
} accept_faults[] = {
    {EINTR, false}, {EAGAIN, false}, {ECONNABORTED, false}, {EPROTO, false},
    {EMFILE, true}, {ENFILE, true},  {ENOBUFS, true},       {ENOMEM, true},
    {EINVAL, true}, {EBADF, true},   {EPIPE, true},         {ECONNRESET, true},
};

START_TEST(accept_completions_with_errors)
{
    struct loop *l = make(0);
    struct gate g;
    int e = accept_faults[_i].error;
    bool pauses = accept_faults[_i].pauses;
    open_gate(l, &g);
    /* The multishot operation goes on. */
    loop_uring_complete(g.source, -e, MORE);
    ck_assert_uint_eq(loop_accept_errors(l), 1);
    ck_assert_int_eq(g.source->paused, pauses);
    run(l, 150);
    knock(&g, 2);
    run(l, 20);
    ck_assert_uint_eq(g.accepted, 2);
    /* It has ended: armed again, once, at once or after the pause. */
    loop_uring_complete(g.source, -e, 0);
    ck_assert_uint_eq(loop_accept_errors(l), 2);
    ck_assert_int_eq(g.source->armed, !pauses);
    run(l, 150);
    ck_assert(g.source->armed);
    knock(&g, 3);
    run(l, 20);
    ck_assert_uint_eq(g.accepted, 5);
    ck_assert_uint_eq(loop_accept_errors(l), 2);
    close_gate(&g);
    loop_free(l);
}
END_TEST

START_TEST(a_multishot_that_ends_silently)
{
    struct loop *l = make(0);
    struct gate g;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    open_gate(l, &g);
    loop_uring_complete(g.source, fd,
                        0); /* a connection, and no more: the callback has closed it */
    ck_assert_uint_eq(g.accepted, 1);
    ck_assert(g.source->armed);
    knock(&g, 2);
    run(l, 20);
    ck_assert_uint_eq(g.accepted, 3);
    /* Cancelled by nobody here. */
    loop_uring_complete(g.source, -ECANCELED, 0);
    ck_assert(g.source->armed);
    ck_assert_uint_eq(loop_accept_errors(l), 0);
    /* The word of a cancellation that comes after the pause is over. */
    loop_uring_complete(g.source, -EMFILE, MORE);
    ck_assert(g.source->paused);
    g.source->paused = false;
    loop_uring_complete(g.source, -ECANCELED, 0);
    ck_assert(g.source->armed);
    close_gate(&g);
    /* A connection for a source that is gone is closed. */
    loop_uring_complete(g.source, eventfd(0, EFD_CLOEXEC), 0);
    ck_assert_uint_eq(g.accepted, 3);
    loop_free(l);
}
END_TEST

START_TEST(poll_completions_with_errors)
{
    static const int errors[] = {EINTR, EAGAIN, ECONNRESET, EPIPE, ENOBUFS, ENOMEM, EBADF};
    struct loop *l = make(0);
    struct seen s = {.drain = true};
    uint64_t one = 1;
    watch(l, &s, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), LOOP_READ);
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        s.calls = 0;
        loop_uring_complete(s.source, -errors[i], 0);
        ck_assert_uint_eq(s.calls, 1); /* its owner looks at the descriptor */
        ck_assert_uint_eq(s.events, LOOP_HANGUP);
        ck_assert(s.source->armed);
    }
    s.calls = 0;
    loop_uring_complete(s.source, -ECANCELED, 0);
    ck_assert_uint_eq(s.calls, 0);
    ck_assert(s.source->armed);
    loop_uring_complete(s.source, 0, 0); /* a poll without a reason */
    ck_assert_uint_eq(s.calls, 0);
    ck_assert_int_eq(write(s.fd, &one, sizeof one), sizeof one);
    run(l, 10);
    ck_assert_uint_ge(s.calls, 1);
    loop_remove(s.source);
    close(s.fd);
    loop_free(l);
}
END_TEST

/* ---- where io_uring cannot be had ------------------------------------------------------------------------------ */

static const int setup_errors[] = {EPERM, ENOSYS, ENOMEM, EMFILE, EINVAL};

/* From here on io_uring_setup answers with this errno. */
static void forbid_io_uring(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {ARRAY_LEN(code), code};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
        TEST_SKIP_HARDWARE("no seccomp filters");
}

START_TEST(without_io_uring_epoll_is_taken) /* row IPC-05 */
{
    struct loop *l = NULL;
    struct error why = {0}, err = {0};
    struct gate g;
    forbid_io_uring(setup_errors[_i]);
    ck_fails(loop_new(LOOP_URING, &l, NULL, &err), UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, strerror(setup_errors[_i])));
    ck_ok(loop_new(LOOP_AUTO, &l, &why, &err), &err);
    ck_assert_str_eq(loop_backend(l), "epoll");
    ck_assert_ptr_nonnull(strstr(why.msg, strerror(setup_errors[_i])));
    open_gate(l, &g);
    knock(&g, 1);
    run(l, 5);
    ck_assert_uint_eq(g.accepted, 1);
    close_gate(&g);
    loop_free(l);
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------------------------- */

START_TEST(allocations_may_fail)
{
    struct test_oom o = {0};
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop_free(make(_i)); /* skips when there is no such back end */
    while (test_oom_next(&o)) {
        struct loop *l = NULL;
        struct loop_source *s = NULL;
        struct loop_timer *t = NULL;
        struct seen seen = {0};
        struct error err = {0};
        int r = loop_new(kinds[_i], &l, NULL, &err);
        if (r == 0)
            r = loop_add(l, fd, LOOP_READ, on_fd, &seen, &s, &err);
        if (r == 0)
            r = loop_timer_new(l, set_flag, NULL, &t, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        loop_remove(s);
        loop_timer_free(t);
        loop_free(l);
    }
    close(fd);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loop");
    TCase *t = test_case(s, "both");
    tcase_add_loop_test(t, readiness_is_level_triggered, 0, 2);
    tcase_add_loop_test(t, what_is_watched_can_change, 0, 2);
    tcase_add_loop_test(t, removed_sources_are_not_called, 0, 2);
    tcase_add_loop_test(t, more_events_than_the_queues_hold, 0, 2);
    tcase_add_loop_test(t, signals_do_not_end_the_wait, 0, 2);
    tcase_add_loop_test(t, timers_run_in_order_and_never_early, 0, 2);
    tcase_add_loop_test(t, a_timer_may_free_itself, 0, 2);
    tcase_add_loop_test(t, connections_are_accepted, 0, 2);
    tcase_add_loop_test(t, no_descriptors_left, 0, 2);
    tcase_add_loop_test(t, a_broken_listening_socket, 0, 2);
    tcase_add_loop_test(t, allocations_may_fail, 0, 2);
    t = test_case(s, "completions");
    tcase_add_loop_test(t, accept_completions_with_errors, 0, (int)ARRAY_LEN(accept_faults));
    tcase_add_test(t, a_multishot_that_ends_silently);
    tcase_add_test(t, poll_completions_with_errors);
    t = test_case(s, "fallback");
    tcase_add_loop_test(t, without_io_uring_epoll_is_taken, 0, (int)ARRAY_LEN(setup_errors));
    return test_main(s);
}
