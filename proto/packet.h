/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of the control socket: one protobuf message each, with descriptors beside it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <protobuf-c/protobuf-c.h>

#include "base/alloc.h"
#include "base/error.h"

struct msghdr;
struct sockaddr_un;

#define WIRE_VERSION 1u
#define WIRE_MAX_PACKET 65536u
#define WIRE_MAX_FDS 3u              /* a packet with more is refused, all of them are closed */
#define WIRE_MAX_UNPACKED (4u << 20) /* bytes that unpacking one packet may allocate */
/* Longest socket path (sun_path less its NUL). */
#define WIRE_MAX_PATH 107u

/* What came with a packet.  Whoever takes a descriptor sets its place to -1. */
struct packet_fds {
    int fd[WIRE_MAX_FDS];
    unsigned n;
};
void packet_fds_close(struct packet_fds *f);

/*
 * Receives one packet into buf of WIRE_MAX_PACKET bytes.  Returns its length (> 0), 0 at the end of
 * the connection, -EAGAIN, or a DEDIT_E_*: PROTOCOL for a packet that is too large, has too many
 * descriptors or cut control data (nothing stays open).  flags: MSG_DONTWAIT or 0.
 */
ssize_t packet_recv(int sock, void *buf, struct packet_fds *fds, int flags, struct error *err);
/* Takes apart what recvmsg() or io_uring delivered: the control data of a finished msghdr. */
int packet_take_fds(const struct msghdr *m, struct packet_fds *fds, struct error *err);

/* Sends one packet, never raising SIGPIPE.  0, 1 when it would block, or CLOSED / IO. */
int packet_send(int sock, const void *buf, size_t len, const int *fds, unsigned n_fds, int flags,
                struct error *err);
/* Packs and sends a message; LIMIT when it does not fit in a packet. */
int packet_send_message(int sock, const ProtobufCMessage *m, const int *fds, unsigned n_fds,
                        int flags, struct error *err);

/* Memory of one unpacked message: bounded, freed as a whole (the unpacked message with it). */
struct wire_arena {
    struct arena *arena;
    ProtobufCAllocator allocator;
};
int wire_arena_init(struct wire_arena *a); /* 0 or DEDIT_E_NOMEM */
int wire_arena_init_limit(struct wire_arena *a, size_t limit_bytes);
void wire_arena_done(struct wire_arena *a);
#define _cleanup_wire_arena_ _cleanup_(wire_arena_done)

/* Path of the daemon's socket: DEDIT_SOCKET; else $XDG_RUNTIME_DIR/dedit/dedit.sock when it exists;
 * else /run/dedit/dedit.sock.  LIMIT with the path, its length and the limit when it is too long. */
int wire_socket_path(char *buf, size_t size, struct error *err);
/* Checks a path against the limit and fills a sockaddr_un. */
int wire_address(const char *path, struct sockaddr_un *ret, struct error *err);
