/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon made of scripts, to try the library with: a child process that serves one connection after the
 * other with a function of the test.  What it says may be right, wrong, or nothing.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "proto/dedit.pb-c.h"
#include "proto/packet.h"
#include "proto/ring.h"

/* One connection, in the child. */
struct fake_peer {
    int sock;
    uint8_t *buf;
    struct wire_arena arena;
    const Dedit__Wire__ClientMessage *msg; /* the last one read */
    struct packet_fds fds;                 /* what came with it */
    struct ring_writer ring;               /* of slot 0, once fake_accept made it */
    bool has_ring;
    uint64_t request_id;
};
typedef void (*fake_script)(struct fake_peer *p, int arg);

struct fake {
    pid_t pid;
    const char *path;
};
void fake_start(struct fake *f, fake_script script, int arg);
void fake_stop(struct fake *f);

/* For scripts.  The next message; ends the child's connection when there is none. */
void fake_read(struct fake_peer *p);
/* m with the tag of the last message (fake_answer) or with none (fake_event). */
void fake_answer(struct fake_peer *p, Dedit__Wire__DaemonMessage *m, const int *fds, unsigned n);
void fake_event(struct fake_peer *p, Dedit__Wire__DaemonMessage *m);
void fake_bytes(struct fake_peer *p, const void *bytes, size_t n);
/* Hello and its answer, as it should be. */
void fake_hello(struct fake_peer *p);
void fake_error(struct fake_peer *p, const char *code, const char *message);
/* Accepts the Submit that was read, in slot 0; the first time with a new ring. */
void fake_accept(struct fake_peer *p);
/* Records. Each is published at once. */
void fake_record(struct fake_peer *p, const void *record, size_t size);
void fake_tokens(struct fake_peer *p, uint32_t id, const char *text);
void fake_finished(struct fake_peer *p); /* FINISHED record, reason stop */
void fake_failed(struct fake_peer *p, int32_t code, uint32_t reason, const char *message);
void fake_told(struct fake_peer *p, const char *reason,
               const char *code); /* Finished on the socket */
void fake_hang(void);             /* says nothing more */
