/* SPDX-License-Identifier: Apache-2.0 */
/* A connection.  Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/job.h"
#include "daemon/loop.h"
#include "daemon/slot.h"
#include "proto/dedit.pb-c.h"
#include "proto/packet.h"

struct server;

/* A packet that could not be sent at once. */
struct outgoing {
    struct outgoing *next;
    const struct slot *fds_of; /* its three descriptors go with it; NULL: none */
    size_t len;
    uint8_t data[];
};
#define PEER_MAX_OUTGOING 1024u /* packets; a peer that does not read more is closed */

struct peer {
    struct peer *prev, *next;
    struct server *server;
    int fd;
    struct loop_source *source;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    struct account *account;
    bool greeted, privileged;
    bool closing; /* after the last packet is sent */
    bool dead;    /* inside a callback: freed by whoever sees it last */
    struct slot **slots;
    uint32_t n_slots;
    struct job *jobs;
    uint32_t n_jobs;
    uint64_t next_request_id;
    struct outgoing *out_first, *out_last;
    uint32_t n_out;
};

void peer_accept(void *server, int fd); /* loop_accept_fn */
/* Ends the connection: cancels its jobs, frees its slots. */
void peer_close(struct peer *p);

/* Answers and events; a peer that cannot take them is closed (later, never inside these calls). */
void peer_send(struct peer *p, Dedit__Wire__DaemonMessage *m, uint64_t tag,
               const struct slot *fds_of);
void peer_send_error(struct peer *p, uint64_t tag, const struct error *e);
void peer_send_ok(struct peer *p, uint64_t tag);
/* Says why, then closes. */
void peer_refuse(struct peer *p, uint64_t tag, const struct error *e);

/* ---- messages (peer-messages.c, peer-submit.c, peer-admin.c) ---------------------------------------- */

void peer_message(struct peer *p, const Dedit__Wire__ClientMessage *m, struct packet_fds *fds);
void peer_submit(struct peer *p, const Dedit__Wire__ClientMessage *m, struct packet_fds *fds);
void peer_admin(struct peer *p, const Dedit__Wire__ClientMessage *m);
void peer_send_accepted(struct job *j);
void peer_send_finished(struct job *j);

/* ---- slots (slot.c) --------------------------------------------------------------------------------- */

/* A free slot of at least `bytes`, or a new one (*ret_new). Charged to the peer's account. */
int slot_take(struct peer *p, uint32_t bytes, struct slot **ret, bool *ret_new, struct error *err);
void slot_free(struct server *s, struct slot *slot, struct account *a);
