/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of the daemon's main thread: descriptors, listening sockets, timers.  Two back ends:
 * io_uring (one issuer: this thread) and, where that is forbidden or too old, epoll.  Everything here
 * is called from the loop thread; other threads reach it through an eventfd that it watches.
 *
 * Readiness is level-triggered in both: a callback that leaves data unread is called again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct loop;
struct loop_source;
struct loop_timer;

enum { LOOP_READ = 1, LOOP_WRITE = 2, LOOP_HANGUP = 4 };
typedef void (*loop_fd_fn)(void *arg, unsigned events);
/* fd: an accepted, close-on-exec, non-blocking socket that the callback owns. */
typedef void (*loop_accept_fn)(void *arg, int fd);
typedef void (*loop_timer_fn)(void *arg);

enum loop_kind { LOOP_AUTO, LOOP_URING, LOOP_EPOLL };
/* LOOP_AUTO tries io_uring first; *ret_why (may be NULL) gets the reason when it falls back. */
int loop_new(enum loop_kind kind, struct loop **ret, struct error *ret_why, struct error *err);
struct loop *loop_free(struct loop *l); /* sources and timers must be gone; NULL is fine */
const char *loop_backend(const struct loop *l); /* "io_uring" or "epoll" */

/* events: LOOP_READ and/or LOOP_WRITE; a hang-up is always reported.  The fd stays the caller's. */
int loop_add(struct loop *l, int fd, unsigned events, loop_fd_fn fn, void *arg,
             struct loop_source **ret, struct error *err);
int loop_modify(struct loop_source *s, unsigned events, struct error *err);
/* The callback will not run again; the fd may be closed afterwards.  Allowed inside callbacks. */
void loop_remove(struct loop_source *s); /* NULL is fine */

/* Accepts connections.  ECONNABORTED and the like are passed over; when descriptors or memory run
 * out, or the socket has an error of its own, it pauses for 100 ms and goes on. */
int loop_add_accept(struct loop *l, int listen_fd, loop_accept_fn fn, void *arg,
                    struct loop_source **ret, struct error *err);

int loop_timer_new(struct loop *l, loop_timer_fn fn, void *arg, struct loop_timer **ret,
                   struct error *err);
void loop_timer_set(struct loop_timer *t, uint64_t deadline_ns); /* CLOCK_MONOTONIC; 0 disarms */
void loop_timer_free(struct loop_timer *t);                      /* NULL is fine */

/* Waits for and runs one batch of events and due timers; 0, or negative when the back end broke. */
int loop_once(struct loop *l, struct error *err);
uint64_t loop_accept_errors(const struct loop *l); /* accepts that failed so far */
