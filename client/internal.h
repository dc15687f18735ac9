/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of libdedit.  One connection, its slots (rings kept for the life of the connection) and
 * its requests.  Run by the one thread that uses the client.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/error.h"
#include "client/dedit.h"
#include "proto/dedit.pb-c.h"
#include "proto/packet.h"
#include "proto/ring.h"

#define CLIENT_MAX_SLOTS 4096u

struct slot {
    struct ring_reader reader;
    struct dedit_request *request; /* who reads it; NULL when free or abandoned */
    bool open;                     /* descriptors are held */
    bool abandoned;                /* its request was freed before its end: skip what comes */
    uint64_t abandoned_id;
    bool ended; /* the last record of the abandoned request was skipped */
};

struct dedit_client {
    int sock; /* -1 after the daemon has gone */
    int epoll_fd;
    uint32_t spin_us;
    uint64_t next_tag;
    struct slot **slots; /* by number; the daemon chooses */
    size_t n_slots;
    struct dedit_request *requests; /* list of all that are held */
    uint32_t version;
    bool gone;
    struct error gone_why;
    uint8_t *packet; /* WIRE_MAX_PACKET, the receive buffer */
};

/* What the socket said about a request's end; the ring's word goes first. */
struct wire_end {
    bool set;
    char finish_reason[16];
    char *stop_reason;
    int32_t error_code;
    char *error_message;
    struct dedit_usage usage;
};

struct dedit_request {
    struct dedit_client *client; /* NULL after dedit_client_free */
    struct dedit_request *prev, *next;
    struct slot *slot;
    uint64_t id, seed;
    uint32_t prompt_tokens;
    void *user;
    uint32_t to_advance; /* size of the record that the last event points into */
    bool done;           /* the last event was given */
    struct wire_end end;
    struct dedit_token tokens[RING_MAX_TOKENS];
    char *text;      /* copies that the last event points to */
    uint8_t *record; /* of the ring's record that it came from */
    uint32_t record_bytes;
};

/* ---- rpc.c --------------------------------------------------------------------------------------- */

/* An answer: the unpacked message lives in the arena. */
struct reply {
    struct wire_arena arena;
    const Dedit__Wire__DaemonMessage *msg;
    struct packet_fds fds;
};
void reply_done(struct reply *r);
#define _cleanup_reply_ _cleanup_(reply_done)

/* Sends m and waits for the message with its tag; events that come before are taken in.  An Error
 * answer becomes the error.  want: the body's case that is expected. */
int client_call(struct dedit_client *c, Dedit__Wire__ClientMessage *m, int fd,
                Dedit__Wire__DaemonMessage__BodyCase want, struct reply *ret, struct error *err);
/* Sends without waiting. */
int client_post(struct dedit_client *c, Dedit__Wire__ClientMessage *m, struct error *err);
/* Takes in all packets that are there, without blocking.  CLOSED once the daemon is gone. */
int client_pump(struct dedit_client *c, struct error *err);
int client_code_of(
    const char *name); /* "limit-exceeded" -> code; INTERNAL for a name that is none */
int client_gone(struct dedit_client *c, struct error *err); /* the error of a lost connection */

/* ---- request.c ----------------------------------------------------------------------------------- */

void request_on_finished(struct dedit_client *c, const Dedit__Wire__Finished *f);
/* Moves past what was read, and tells a stalled daemon. */
void request_release(struct dedit_request *r);
/* Is there something to give without waiting? */
bool request_ready(const struct dedit_request *r);
void request_unlink(struct dedit_request *r);

/* ---- submit.c ------------------------------------------------------------------------------------- */

int submit_pack(const struct dedit_options *o, Dedit__Wire__Submit *s, struct wire_arena *a,
                int *ret_fd, struct error *err);

/* ---- shared --------------------------------------------------------------------------------------- */

int public_error(int code, const struct error *from, struct dedit_error *to);
char *copy_string(const char *s); /* NULL for NULL and for no memory */
