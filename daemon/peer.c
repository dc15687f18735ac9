/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: who may connect, packets in, packets out, the end. */
#include "daemon/peer.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/server.h"

/* Packets of one peer that are handled before others have their turn. */
#define PACKETS_AT_ONCE 16

static void on_ready(void *arg, unsigned events);

/* ---- out -------------------------------------------------------------------------------------------- */

/* Whoever notices may be in the middle of something: the loop is told, and ends the connection. */
static void lose(struct peer *p)
{
    p->dead = true;
    shutdown(p->fd, SHUT_RDWR);
}

static void watch(struct peer *p)
{
    struct error e = {0};
    unsigned want = p->closing ? 0 : LOOP_READ;
    if (p->out_first)
        want |= LOOP_WRITE;
    if (loop_modify(p->source, want, &e) < 0)
        lose(p);
}

static int send_now(struct peer *p, const void *data, size_t len, const struct slot *fds_of)
{
    struct error e = {0};
    int fds[3];
    if (fds_of) {
        fds[0] = fds_of->ring.ring_fd;
        fds[1] = fds_of->ring.cursor_fd;
        fds[2] = fds_of->ring.event_fd;
    }
    return packet_send(p->fd, data, len, fds, fds_of ? 3 : 0, MSG_DONTWAIT, &e);
}

static void send_bytes(struct peer *p, const uint8_t *data, size_t len, const struct slot *fds_of)
{
    if (p->dead)
        return;
    if (!p->out_first) {
        int r = send_now(p, data, len, fds_of);
        if (r == 0)
            return;
        if (r < 0) {
            lose(p);
            return;
        }
    }
    struct outgoing *o = p->n_out < PEER_MAX_OUTGOING ? mem_alloc(sizeof *o + len) : NULL;
    if (!o) { /* it reads nothing: what it was told would have a gap, so it is told nothing more */
        lose(p);
        return;
    }
    o->next = NULL;
    o->fds_of = fds_of;
    o->len = len;
    memcpy(o->data, data, len);
    if (p->out_last)
        p->out_last->next = o;
    else
        p->out_first = o;
    p->out_last = o;
    p->n_out++;
    watch(p);
}

static void flush(struct peer *p)
{
    while (p->out_first && !p->dead) {
        struct outgoing *o = p->out_first;
        int r = send_now(p, o->data, o->len, o->fds_of);
        if (r > 0)
            return;
        if (r < 0) {
            p->dead = true;
            return;
        }
        p->out_first = o->next;
        if (!o->next)
            p->out_last = NULL;
        p->n_out--;
        mem_free(o);
    }
    if (p->closing)
        p->dead = true;
    else
        watch(p);
}

void peer_send(struct peer *p, Dedit__Wire__DaemonMessage *m, uint64_t tag,
               const struct slot *fds_of)
{
    m->has_tag = 1;
    m->tag = tag;
    size_t len = protobuf_c_message_get_packed_size(&m->base);
    uint8_t small[2048];
    uint8_t *buf = len <= sizeof small ? small : mem_alloc(len);
    if (!buf || len > WIRE_MAX_PACKET) {
        struct error e = {0};
        if (len > WIRE_MAX_PACKET && tag) {
            ERR(&e, LIMIT, "the answer has %zu bytes, a packet holds %u", len, WIRE_MAX_PACKET);
            peer_send_error(p, tag, &e);
        } else {
            lose(p);
        }
        if (buf != small)
            mem_free(buf);
        return;
    }
    protobuf_c_message_pack(&m->base, buf);
    send_bytes(p, buf, len, fds_of);
    if (buf != small)
        mem_free(buf);
}

void peer_send_error(struct peer *p, uint64_t tag, const struct error *e)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__Error w = DEDIT__WIRE__ERROR__INIT;
    w.code = (char *)(uintptr_t)error_name(e->code);
    w.message = (char *)(uintptr_t)e->msg;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ERROR;
    m.error = &w;
    peer_send(p, &m, tag, NULL);
}

void peer_send_ok(struct peer *p, uint64_t tag)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__Ok ok = DEDIT__WIRE__OK__INIT;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_OK;
    m.ok = &ok;
    peer_send(p, &m, tag, NULL);
}

void peer_refuse(struct peer *p, uint64_t tag, const struct error *e)
{
    log_write(LOG_LEVEL_WARNING, "peer", NULL, "connection of user %u, process %d, ended: %s",
              (unsigned)p->uid, (int)p->pid, e->msg);
    peer_send_error(p, tag, e);
    p->closing = true;
    if (!p->out_first)
        p->dead = true;
}

/* ---- in --------------------------------------------------------------------------------------------- */

/* One packet: 1 handled, 0 nothing there, negative: the connection is over. */
static int take_packet(struct peer *p)
{
    static uint8_t buf[WIRE_MAX_PACKET]; /* loop thread only */
    struct packet_fds fds = {.n = 0};
    struct error err = {0};
    ssize_t n = packet_recv(p->fd, buf, &fds, MSG_DONTWAIT, &err);

    if (n == -EAGAIN)
        return 0;
    if (n == 0)
        return -1;
    if (n < 0) {
        if (n == DEDIT_E_PROTOCOL)
            peer_refuse(p, 0, &err);
        return -1;
    }
    struct wire_arena a;
    if (wire_arena_init(&a) < 0) {
        packet_fds_close(&fds);
        ERR_NOMEM(&err);
        peer_send_error(p, 0, &err);
        return 1;
    }
    Dedit__Wire__ClientMessage *m =
        dedit__wire__client_message__unpack(&a.allocator, (size_t)n, buf);
    if (m) {
        peer_message(p, m, &fds);
    } else {
        ERR(&err, PROTOCOL, "packet of %zd bytes is no ClientMessage, or needs more than %u bytes",
            n, WIRE_MAX_UNPACKED);
        peer_refuse(p, 0, &err);
    }
    packet_fds_close(&fds);
    wire_arena_done(&a);
    return 1;
}

static void on_ready(void *arg, unsigned events)
{
    struct peer *p = arg;
    int r = 1;

    if (events & LOOP_WRITE)
        flush(p);
    if ((events & (LOOP_READ | LOOP_HANGUP)) && !p->closing)
        for (int i = 0; i < PACKETS_AT_ONCE && r > 0 && !p->dead && !p->closing; i++)
            r = take_packet(p);
    /* What was sent before the peer hung up has been read by now (hang-up stays readable). */
    if (r < 0 || p->dead || (p->closing && (events & LOOP_HANGUP)))
        peer_close(p);
}

/* ---- life --------------------------------------------------------------------------------------------- */

static bool is_privileged_group(const struct config *c, gid_t gid)
{
    for (size_t i = 0; i < c->n_privileged_gids; i++)
        if (c->privileged_gids[i] == gid)
            return true;
    return false;
}

/* By its supplementary groups.  Who is in more than the buffer holds is judged by its own one. */
static bool in_privileged_group(const struct config *c, int fd)
{
    gid_t groups[256];
    socklen_t len = sizeof groups;
    if (!c->n_privileged_gids || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
        return false;
    for (size_t i = 0; i < len / sizeof *groups; i++)
        if (is_privileged_group(c, groups[i]))
            return true;
    return false;
}

static bool is_privileged(const struct config *c, int fd, const struct ucred *u)
{
    if (u->uid == 0 || u->uid == geteuid())
        return true;
    for (size_t i = 0; i < c->n_privileged_uids; i++)
        if (c->privileged_uids[i] == u->uid)
            return true;
    return is_privileged_group(c, u->gid) || in_privileged_group(c, fd);
}

/* Sends an Error on a connection that is not kept. */
static void turn_away(struct server *s, int fd, const struct ucred *u, const struct error *e)
{
    log_write(LOG_LEVEL_WARNING, "peer", NULL, "connection of user %u, process %d, turned away: %s",
              (unsigned)u->uid, (int)u->pid, e->msg);
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__Error w = DEDIT__WIRE__ERROR__INIT;
    struct error ignored = {0};
    w.code = (char *)(uintptr_t)error_name(e->code);
    w.message = (char *)(uintptr_t)e->msg;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ERROR;
    m.error = &w;
    packet_send_message(fd, &m.base, NULL, 0, MSG_DONTWAIT, &ignored);
    fd_close(fd);
    s->peers_refused++;
}

void peer_accept(void *arg, int fd)
{
    struct server *s = arg;
    struct error err = {0};
    struct ucred u = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t len = sizeof u;
    struct peer *p = NULL;
    struct account *a = NULL;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &len) < 0) {
        ERR(&err, IO, "SO_PEERCRED: %s", strerror(errno));
        turn_away(s, fd, &u, &err);
        return;
    }
    if (s->n_peers >= s->config->max_connections) {
        ERR(&err, LIMIT, "max_connections: %u are open, the limit is %u", s->n_peers,
            s->config->max_connections);
        turn_away(s, fd, &u, &err);
        return;
    }
    a = quota_account(&s->quota, u.uid);
    if (!a || !(p = mem_zalloc(sizeof *p))) {
        ERR_NOMEM(&err);
        goto refuse;
    }
    if (quota_charge(&s->quota, a, QUOTA_CONNECTIONS, 1, &err) < 0)
        goto refuse;
    p->server = s;
    p->fd = fd;
    p->uid = u.uid;
    p->gid = u.gid;
    p->pid = u.pid;
    p->account = a;
    p->privileged = is_privileged(s->config, fd, &u);
    p->next_request_id = 1;
    if (loop_add(s->loop, fd, LOOP_READ, on_ready, p, &p->source, &err) < 0) {
        quota_release(a, QUOTA_CONNECTIONS, 1);
        goto refuse;
    }
    p->next = s->peers;
    if (s->peers)
        s->peers->prev = p;
    s->peers = p;
    s->n_peers++;
    return;
refuse:
    turn_away(s, fd, &u, &err);
    quota_unref(&s->quota, a);
    mem_free(p);
}

void peer_close(struct peer *p)
{
    struct server *s = p->server;

    p->dead = true;
    loop_remove(p->source);
    p->fd = fd_close(p->fd);
    models_forget_peer(s, p);
    for (struct job *j = p->jobs, *next; j; j = next) {
        next = j->next;
        server_cancel_job(s, j, JOB_CANCEL_GONE); /* may free j */
    }
    /* Jobs that the engine or a worker still has: they keep their slot, and end without a peer. */
    for (struct job *j = p->jobs, *next; j; j = next) {
        next = j->next;
        j->peer = NULL;
        j->prev = j->next = NULL;
    }
    for (uint32_t i = 0; i < p->n_slots; i++)
        if (p->slots[i] && !p->slots[i]->job)
            slot_free(s, p->slots[i], p->account);
    mem_free(p->slots);
    for (struct outgoing *o = p->out_first, *next; o; o = next) {
        next = o->next;
        mem_free(o);
    }
    quota_release(p->account, QUOTA_CONNECTIONS, 1);
    quota_unref(&s->quota, p->account);
    if (p->prev)
        p->prev->next = p->next;
    else
        s->peers = p->next;
    if (p->next)
        p->next->prev = p->prev;
    s->n_peers--;
    mem_free(p);
}
