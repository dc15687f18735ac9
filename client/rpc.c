/* SPDX-License-Identifier: Apache-2.0 */
/* Packets between the library and the daemon: calls, events, and the end of the connection. */
#include "client/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"

void reply_done(struct reply *r)
{
    packet_fds_close(&r->fds);
    wire_arena_done(&r->arena);
}

int client_gone(struct dedit_client *c, struct error *err)
{
    if (err)
        *err = c->gone_why;
    return c->gone_why.code;
}

static int lose(struct dedit_client *c, const struct error *why)
{
    if (!c->gone) {
        c->gone = true;
        c->gone_why = *why;
        /* Kept open, so that the caller's descriptors stay valid; shut, so that the daemon knows. */
        shutdown(c->sock, SHUT_RDWR);
    }
    return c->gone_why.code;
}

static int lose_closed(struct dedit_client *c)
{
    struct error e = {0};
    ERR(&e, CLOSED, "the daemon has closed the connection");
    return lose(c, &e);
}

int client_code_of(const char *name)
{
#define X(NAME, number, text_name, text)                                                           \
    if (strcmp(name, text_name) == 0)                                                              \
        return DEDIT_E_##NAME;
    DEDIT_ERRORS(X)
#undef X
    return DEDIT_E_INTERNAL;
}

static int take_error(const Dedit__Wire__Error *e, struct error *err)
{
    int code = client_code_of(e->code ? e->code : "");
    return error_set(err, code, __FILE__, __LINE__, "%s",
                     e->message && *e->message ? e->message : error_text(code));
}

/* 1: one message into *r; 0: none there (flags MSG_DONTWAIT); negative: the connection is lost. */
static int receive(struct dedit_client *c, int flags, struct reply *r)
{
    struct error e = {0};
    ssize_t n = packet_recv(c->sock, c->packet, &r->fds, flags, &e);
    if (n == -EAGAIN && (flags & MSG_DONTWAIT))
        return 0;
    if (n == -EAGAIN) {
        ERR(&e, TIMEOUT, "the daemon does not answer");
        return lose(c, &e);
    }
    if (n == 0)
        return lose_closed(c);
    if (n < 0)
        return lose(c, &e);
    if (wire_arena_init(&r->arena) < 0) {
        ERR_NOMEM(&e);
        return lose(c, &e);
    }
    r->msg = dedit__wire__daemon_message__unpack(&r->arena.allocator, (size_t)n, c->packet);
    if (!r->msg && arena_out_of_memory(r->arena.arena)) {
        ERR_NOMEM(&e);
        return lose(c, &e);
    }
    if (!r->msg) {
        ERR(&e, PROTOCOL, "the daemon sent a message of %zd bytes that cannot be read", n);
        return lose(c, &e);
    }
    return 1;
}

/* An Error without a tag is about the connection: the daemon says it, then closes. */
static bool take_farewell(struct dedit_client *c, const Dedit__Wire__DaemonMessage *m)
{
    struct error e = {0};
    if (m->body_case != DEDIT__WIRE__DAEMON_MESSAGE__BODY_ERROR || (m->has_tag && m->tag))
        return false;
    take_error(m->error, &e);
    lose(c, &e);
    return true;
}

static void take_event(struct dedit_client *c, const Dedit__Wire__DaemonMessage *m)
{
    /* Anything else without a tag belongs to a later version. */
    if (m->body_case == DEDIT__WIRE__DAEMON_MESSAGE__BODY_FINISHED)
        request_on_finished(c, m->finished);
}

int client_pump(struct dedit_client *c, struct error *err)
{
    if (c->gone)
        return client_gone(c, err);
    for (;;) {
        _cleanup_reply_ struct reply r = {0};
        int n = receive(c, MSG_DONTWAIT, &r);
        if (n < 0)
            return client_gone(c, err);
        if (n == 0)
            return 0;
        if (take_farewell(c, r.msg))
            return client_gone(c, err);
        take_event(c, r.msg);
    }
}

static int send_message(struct dedit_client *c, const Dedit__Wire__ClientMessage *m, int fd,
                        struct error *err)
{
    struct error e = {0};
    int r = packet_send_message(c->sock, &m->base, &fd, fd >= 0 ? 1 : 0, 0, &e);
    if (r == DEDIT_E_CLOSED || r == DEDIT_E_IO) {
        /* It may have said why before it closed. */
        while (!c->gone) {
            _cleanup_reply_ struct reply in = {0};
            int n = receive(c, MSG_DONTWAIT, &in);
            if (n == 0)
                lose_closed(c);
            if (n > 0 && !take_farewell(c, in.msg))
                take_event(c, in.msg);
        }
        return client_gone(c, err);
    }
    if (r > 0) {
        ERR(&e, TIMEOUT, "the daemon does not read");
        r = lose(c, &e);
    }
    if (r < 0 && err)
        *err = e;
    return r;
}

int client_post(struct dedit_client *c, Dedit__Wire__ClientMessage *m, struct error *err)
{
    if (c->gone)
        return client_gone(c, err);
    m->has_tag = 1;
    m->tag = 0;
    return send_message(c, m, -1, err);
}

int client_call(struct dedit_client *c, Dedit__Wire__ClientMessage *m, int fd,
                Dedit__Wire__DaemonMessage__BodyCase want, struct reply *ret, struct error *err)
{
    if (c->gone)
        return client_gone(c, err);
    m->has_tag = 1;
    m->tag = ++c->next_tag;
    int r = send_message(c, m, fd, err);
    if (r < 0)
        return r;
    for (;;) {
        struct reply in = {0};
        int n = receive(c, 0, &in);
        if (n < 0) {
            reply_done(&in);
            return client_gone(c, err);
        }
        if (!in.msg->has_tag || in.msg->tag != m->tag) {
            bool over = take_farewell(c, in.msg);
            if (!over)
                take_event(c, in.msg);
            reply_done(&in);
            if (over)
                return client_gone(c, err);
            continue;
        }
        if (in.msg->body_case == DEDIT__WIRE__DAEMON_MESSAGE__BODY_ERROR) {
            r = take_error(in.msg->error, err);
            reply_done(&in);
            return r;
        }
        if (in.msg->body_case != want) {
            r = ERR(err, PROTOCOL, "the daemon answered with message %d, wanted %d",
                    (int)in.msg->body_case, (int)want);
            reply_done(&in);
            return r;
        }
        *ret = in;
        return 0;
    }
}

int public_error(int code, const struct error *from, struct dedit_error *to)
{
    if (to) {
        to->code = code;
        snprintf(to->msg, sizeof to->msg, "%s",
                 from && from->msg[0] ? from->msg : error_text(code));
    }
    return code;
}

char *copy_string(const char *s)
{
    return s ? mem_strdup(s) : NULL;
}
