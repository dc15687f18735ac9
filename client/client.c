/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: opening, closing, and the one descriptor for the caller's event loop. */
#include "client/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "config.h"

/* The public codes are the wire's and base/error.h's. */
#define X(NAME, number, name, text)                                                                \
    _Static_assert((int)DEDIT_ERR_##NAME == (int)DEDIT_E_##NAME, "public error codes");
DEDIT_ERRORS(X)
#undef X

const char *dedit_error_name(int code)
{
    return error_name(code);
}

const char *dedit_version(void)
{
    return PACKAGE_VERSION;
}

void dedit_free(void *p)
{
    mem_free(p);
}

/* Bounds what one send, receive or connect on the socket waits. */
static int set_timeout(int sock, int timeout_ms, struct error *err)
{
    struct timeval t = {0}; /* zero: no bound */
    if (timeout_ms >= 0) {
        t.tv_sec = timeout_ms / 1000;
        t.tv_usec = timeout_ms % 1000 * 1000;
        if (timeout_ms == 0)
            t.tv_usec = 1;
    }
    if (setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) < 0 ||
        setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t) < 0)
        return ERR(err, IO, "setsockopt: %s", strerror(errno));
    return 0;
}

static int open_socket(const char *path, int timeout_ms, int *ret, struct error *err)
{
    struct sockaddr_un a;
    char standard[WIRE_MAX_PATH + 1];
    int r = 0;

    if (!path) {
        r = wire_socket_path(standard, sizeof standard, err);
        path = standard;
    }
    if (r == 0)
        r = wire_address(path, &a, err);
    if (r < 0)
        return r;
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ERR(err, IO, "socket: %s", strerror(errno));
    r = timeout_ms >= 0 ? set_timeout(fd, timeout_ms, err) : 0;
    if (r < 0)
        return r;
    while (connect(fd, (const struct sockaddr *)&a, sizeof a) < 0) {
        if (errno == EINTR)
            continue;
        if (errno == EACCES || errno == EPERM)
            return ERR(err, DENIED, "%s: this user may not connect (%s)", path, strerror(errno));
        if (errno == EAGAIN && timeout_ms >= 0)
            return ERR(err, TIMEOUT, "%s: the daemon took no connection within %d ms", path,
                       timeout_ms);
        return ERR(err, CLOSED, "%s: %s; is dedit-d running?", path, strerror(errno));
    }
    *ret = TAKE_FD(fd);
    return 0;
}

static int watch(struct dedit_client *c, int fd, struct error *err)
{
    struct epoll_event e = {.events = EPOLLIN};
    if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
        return ERR(err, IO, "epoll_ctl: %s", strerror(errno));
    return 0;
}

static int say_hello(struct dedit_client *c, struct error *err)
{
    _cleanup_reply_ struct reply r = {0};
    Dedit__Wire__Hello h = DEDIT__WIRE__HELLO__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    char name[] = PACKAGE_STRING;

    h.has_min_version = h.has_max_version = 1;
    h.min_version = h.max_version = WIRE_VERSION;
    h.client_name = name;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_HELLO;
    m.hello = &h;
    int e = client_call(c, &m, -1, DEDIT__WIRE__DAEMON_MESSAGE__BODY_HELLO, &r, err);
    if (e < 0)
        return e;
    if (r.msg->hello->version != WIRE_VERSION || r.msg->hello->ring_version != RING_VERSION)
        return ERR(err, PROTOCOL, "the daemon chose protocol %u, ring %u; this library speaks %u, %u",
                   r.msg->hello->version, r.msg->hello->ring_version, WIRE_VERSION, RING_VERSION);
    c->version = r.msg->hello->version;
    return 0;
}

DEFINE_CLEANUP(struct dedit_client *, dedit_client_free);

int dedit_client_connect(const char *path, struct dedit_client **ret, struct dedit_error *perr)
{
    return dedit_client_connect_timeout(path, -1, ret, perr);
}

int dedit_client_connect_timeout(const char *path, int timeout_ms, struct dedit_client **ret,
                                 struct dedit_error *perr)
{
    struct error err = {0};
    _cleanup_(dedit_client_freep) struct dedit_client *c = mem_zalloc(sizeof *c);
    int r;

    if (!c)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    c->sock = c->epoll_fd = -1;
    c->spin_us = 20;
    c->packet = mem_alloc(WIRE_MAX_PACKET);
    if (!c->packet)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r = c->epoll_fd < 0 ? ERR(&err, IO, "epoll_create1: %s", strerror(errno)) : 0;
    if (r == 0)
        r = open_socket(path, timeout_ms, &c->sock, &err);
    if (r == 0)
        r = watch(c, c->sock, &err);
    if (r == 0)
        r = say_hello(c, &err);
    if (r == 0 && timeout_ms >= 0)
        r = set_timeout(c->sock, -1, &err);
    if (r < 0)
        return public_error(r, &err, perr);
    *ret = TAKE_PTR(c);
    return 0;
}

int dedit_client_set_timeout(struct dedit_client *c, int timeout_ms, struct dedit_error *perr)
{
    struct error err = {0};
    int r = set_timeout(c->sock, timeout_ms, &err);
    return r < 0 ? public_error(r, &err, perr) : 0;
}

void dedit_client_free(struct dedit_client *c)
{
    if (!c)
        return;
    for (struct dedit_request *r = c->requests, *next; r; r = next) {
        next = r->next;
        r->client = NULL;
        r->slot = NULL;
        r->prev = r->next = NULL;
    }
    for (size_t i = 0; i < c->n_slots; i++) {
        if (!c->slots[i])
            continue;
        if (c->slots[i]->open)
            ring_reader_done(&c->slots[i]->reader);
        mem_free(c->slots[i]);
    }
    mem_free(c->slots);
    mem_free(c->packet);
    fd_close(c->epoll_fd);
    fd_close(c->sock);
    mem_free(c);
}

int dedit_client_fd(const struct dedit_client *c)
{
    return c->epoll_fd;
}

int dedit_client_socket(const struct dedit_client *c)
{
    return c->sock;
}

void dedit_client_set_spin(struct dedit_client *c, uint32_t microseconds)
{
    c->spin_us = microseconds;
}

int dedit_client_prepare(struct dedit_client *c, struct dedit_error *perr)
{
    struct error err = {0};
    int r = client_pump(c, &err);
    if (r < 0)
        return public_error(r, &err, perr);
    for (struct dedit_request *q = c->requests; q; q = q->next) {
        if (q->done || !q->slot)
            continue;
        request_release(q);
        if (request_ready(q) || !ring_reader_sleep(&q->slot->reader))
            return 0;
    }
    return 1;
}

int dedit_client_dispatch(struct dedit_client *c, struct dedit_error *perr)
{
    struct error err = {0};
    for (size_t i = 0; i < c->n_slots; i++)
        if (c->slots[i] && c->slots[i]->open)
            ring_reader_awake(&c->slots[i]->reader);
    int r = client_pump(c, &err);
    return r < 0 ? public_error(r, &err, perr) : 0;
}

/* The slot of an Accepted message, with its ring opened when it is new. */
static int take_slot(struct dedit_client *c, const Dedit__Wire__Accepted *a, struct packet_fds *fds,
                     struct slot **ret, struct error *err)
{
    if (a->slot >= CLIENT_MAX_SLOTS)
        return ERR(err, PROTOCOL, "the daemon chose slot %u, at most %u", a->slot, CLIENT_MAX_SLOTS);
    if (a->slot >= c->n_slots) {
        size_t n = a->slot + 1;
        struct slot **s = mem_realloc_array(c->slots, n, sizeof *s);
        if (!s)
            return ERR_NOMEM(err);
        memset(s + c->n_slots, 0, (n - c->n_slots) * sizeof *s);
        c->slots = s;
        c->n_slots = n;
    }
    if (!c->slots[a->slot]) {
        c->slots[a->slot] = mem_zalloc(sizeof(struct slot));
        if (!c->slots[a->slot])
            return ERR_NOMEM(err);
    }
    struct slot *s = c->slots[a->slot];
    if (s->request)
        return ERR(err, PROTOCOL, "the daemon gave slot %u to two requests", a->slot);
    if (a->start % 8)
        return ERR(err, PROTOCOL, "the daemon chose the position %llu, no multiple of 8",
                   (unsigned long long)a->start);
    if (a->new_slot) {
        if (fds->n != 3)
            return ERR(err, PROTOCOL, "a new slot came with %u descriptors, wanted 3", fds->n);
        /* It is read after each sleep: it must not make us wait. */
        int flags = fcntl(fds->fd[2], F_GETFL);
        if (flags < 0 || !(flags & O_NONBLOCK))
            return ERR(err, PROTOCOL, "a new slot came with an eventfd that blocks");
        if (s->open)
            ring_reader_done(&s->reader);
        s->open = false;
        int r = ring_reader_init(&s->reader, TAKE_FD(fds->fd[0]), TAKE_FD(fds->fd[1]),
                                 TAKE_FD(fds->fd[2]), err);
        fds->n = 0;
        if (r < 0)
            return r;
        r = watch(c, s->reader.event_fd, err);
        if (r < 0) {
            ring_reader_done(&s->reader);
            return r;
        }
        s->open = true;
    }
    if (!s->open)
        return ERR(err, PROTOCOL, "the daemon uses slot %u before it was opened", a->slot);
    s->abandoned = s->ended = false;
    ring_reader_begin(&s->reader, a->start);
    *ret = s;
    return 0;
}

int dedit_client_submit(struct dedit_client *c, const struct dedit_options *options,
                        struct dedit_request **ret, struct dedit_error *perr)
{
    struct error err = {0};
    struct dedit_options o;
    _cleanup_wire_arena_ struct wire_arena arena = {0};
    _cleanup_reply_ struct reply reply = {0};
    _cleanup_free_ struct dedit_request *q = mem_zalloc(sizeof *q);
    _cleanup_fd_ int fd = -1;
    Dedit__Wire__Submit s = DEDIT__WIRE__SUBMIT__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;

    /* Callers built against an older header have a shorter struct. */
    dedit_options_init(&o, sizeof o);
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    if (!q || wire_arena_init(&arena) < 0)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_SUBMIT;
    m.submit = &s;
    int r = submit_pack(&o, &s, &arena, &fd, &err);
    if (r == 0)
        r = client_call(c, &m, fd, DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED, &reply, &err);
    if (r < 0)
        return public_error(r, &err, perr);
    const Dedit__Wire__Accepted *a = reply.msg->accepted;
    q->client = c;
    q->id = a->request_id;
    q->seed = a->seed;
    q->prompt_tokens = a->prompt_tokens;
    r = take_slot(c, a, &reply.fds, &q->slot, &err);
    if (r < 0) {
        /* The daemon and we disagree about the connection's state: nothing on it can be trusted. */
        c->gone = true;
        c->gone_why = err;
        shutdown(c->sock, SHUT_RDWR);
        return public_error(r, &err, perr);
    }
    q->slot->request = q;
    q->next = c->requests;
    if (c->requests)
        c->requests->prev = q;
    c->requests = q;
    *ret = TAKE_PTR(q);
    return 0;
}
