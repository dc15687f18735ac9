/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the loop and its two back ends. */
#pragma once

#include "daemon/loop.h"

struct loop_source {
    struct loop *loop;
    struct loop_source *next_dead; /* list of removed sources that are to be freed */
    int fd;
    unsigned events;
    loop_fd_fn fn;
    loop_accept_fn accept_fn; /* a listening socket when set */
    void *arg;
    struct loop_timer *pause; /* accept: armed while out of descriptors */
    bool paused;              /* accept: until that timer */
    bool armed;               /* io_uring: an operation is in flight */
    bool dead;
};

struct loop_backend {
    const char *name;
    int (*init)(struct loop *l, struct error *err);
    void (*done)(struct loop *l);
    int (*arm)(struct loop_source *s, struct error *err);    /* begin or go on watching */
    void (*disarm)(struct loop_source *s);                   /* stop watching */
    int (*modify)(struct loop_source *s, struct error *err); /* events have changed */
    /* Waits until `deadline_ns` (UINT64_MAX: for ever) and calls loop_ready / loop_accepted. */
    int (*wait)(struct loop *l, uint64_t deadline_ns, struct error *err);
};
extern const struct loop_backend loop_uring, loop_epoll;

struct loop {
    const struct loop_backend *backend;
    void *state; /* the back end's */
    struct loop_timer **heap; /* armed timers, earliest first */
    size_t n_heap, cap_heap;
    size_t n_timers;
    struct loop_source *dead;
    uint64_t accept_errors;
};

void loop_ready(struct loop_source *s, unsigned events);
/* One result of accept: a descriptor or -errno. */
void loop_accepted(struct loop_source *s, int result);

/* For tests: hands a completion to the io_uring back end as if the kernel had made it. */
void loop_uring_complete(struct loop_source *s, int result, unsigned cqe_flags);
