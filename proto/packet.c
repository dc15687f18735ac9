/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/packet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"

void packet_fds_close(struct packet_fds *f)
{
    for (unsigned i = 0; i < f->n; i++)
        f->fd[i] = fd_close(f->fd[i]);
    f->n = 0;
}

int packet_take_fds(const struct msghdr *m, struct packet_fds *fds, struct error *err)
{
    struct packet_fds got = {.n = 0};
    unsigned surplus = 0;
    /* CMSG_NXTHDR wants a non-const header; nothing is written through it. */
    struct msghdr h = *m;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (got.n < WIRE_MAX_FDS)
                got.fd[got.n++] = fd;
            else {
                fd_close(fd);
                surplus++;
            }
        }
    }
    if (surplus || (h.msg_flags & MSG_CTRUNC)) {
        packet_fds_close(&got);
        return ERR(err, PROTOCOL, "packet: more than %u descriptors", WIRE_MAX_FDS);
    }
    *fds = got;
    return 0;
}

ssize_t packet_recv(int sock, void *buf, struct packet_fds *fds, int flags, struct error *err)
{
    /* Room for one descriptor more than allowed, so that the surplus is seen and closed. */
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * (WIRE_MAX_FDS + 1))];
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = WIRE_MAX_PACKET};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ssize_t n;

    fds->n = 0;
    do
        n = recvmsg(sock, &m, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN)
            return -EAGAIN;
        if (errno == ECONNRESET)
            return 0;
        return ERR(err, IO, "receiving a packet: %s", strerror(errno));
    }
    int r = packet_take_fds(&m, fds, err);
    if (r < 0)
        return r;
    if (m.msg_flags & MSG_TRUNC) {
        packet_fds_close(fds);
        return ERR(err, PROTOCOL, "packet: larger than %u bytes", WIRE_MAX_PACKET);
    }
    return n;
}

int packet_send(int sock, const void *buf, size_t len, const int *fds, unsigned n_fds, int flags,
                struct error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * WIRE_MAX_FDS)];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (n_fds > WIRE_MAX_FDS)
        return ERR(err, INTERNAL, "packet with %u descriptors", n_fds);
    if (n_fds) {
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    do
        n = sendmsg(sock, &m, flags | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0)
        return 0;
    if (errno == EAGAIN)
        return 1;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
        return ERR(err, CLOSED, "the peer has closed the connection");
    return ERR(err, IO, "sending a packet of %zu bytes: %s", len, strerror(errno));
}

int packet_send_message(int sock, const ProtobufCMessage *msg, const int *fds, unsigned n_fds,
                        int flags, struct error *err)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    if (len > WIRE_MAX_PACKET)
        return ERR(err, LIMIT, "message of %zu bytes: a packet holds %u", len, WIRE_MAX_PACKET);
    uint8_t small[1024];
    _cleanup_free_ uint8_t *big = NULL;
    uint8_t *buf = small;
    if (len > sizeof small) {
        buf = big = mem_alloc(len);
        if (!big)
            return ERR_NOMEM(err);
    }
    protobuf_c_message_pack(msg, buf);
    return packet_send(sock, buf, len, fds, n_fds, flags, err);
}

static void *arena_hook(void *data, size_t size)
{
    return arena_alloc(data, size);
}

static void arena_no_free(void *data, void *p)
{
    (void)data;
    (void)p; /* freed with the arena */
}

int wire_arena_init(struct wire_arena *a)
{
    return wire_arena_init_limit(a, WIRE_MAX_UNPACKED);
}

int wire_arena_init_limit(struct wire_arena *a, size_t limit_bytes)
{
    a->arena = arena_new(limit_bytes);
    a->allocator = (ProtobufCAllocator){arena_hook, arena_no_free, a->arena};
    return a->arena ? 0 : DEDIT_E_NOMEM;
}

void wire_arena_done(struct wire_arena *a)
{
    a->arena = arena_free(a->arena);
}

int wire_address(const char *path, struct sockaddr_un *ret, struct error *err)
{
    size_t n = strlen(path);
    if (n == 0)
        return ERR(err, INVALID, "socket path is empty");
    if (n > WIRE_MAX_PATH)
        return ERR(err, LIMIT, "socket path %s: %zu bytes, the limit is %u", path, n,
                   WIRE_MAX_PATH);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, n);
    *ret = a;
    return 0;
}

int wire_socket_path(char *buf, size_t size, struct error *err)
{
    const char *p = getenv("DEDIT_SOCKET");
    int n;

    if (p && *p) {
        n = snprintf(buf, size, "%s", p);
    } else {
        const char *run = getenv("XDG_RUNTIME_DIR");
        n = run && *run ? snprintf(buf, size, "%s/dedit/dedit.sock", run) : -1;
        if (n < 0 || (size_t)n >= size || access(buf, F_OK) != 0)
            n = snprintf(buf, size, "/run/dedit/dedit.sock");
    }
    if (n < 0 || (size_t)n >= size || (size_t)n > WIRE_MAX_PATH)
        return ERR(err, LIMIT, "socket path %.200s: %d bytes, the limit is %u", p ? p : buf, n,
                   WIRE_MAX_PATH);
    return 0;
}
