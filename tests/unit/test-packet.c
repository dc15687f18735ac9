/* SPDX-License-Identifier: Apache-2.0 */
/* Packets and descriptors over a SEQPACKET pair; unpacking with bounded memory; socket paths. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "proto/dedit.pb-c.h"
#include "proto/packet.h"
#include "tests/unit/util.h"

static uint8_t buf[WIRE_MAX_PACKET];

static void make_pair(int s[2])
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
}

START_TEST(message_and_descriptors_arrive_together)
{
    int s[2], p[2];
    struct error err = {0};
    struct packet_fds fds;
    make_pair(s);
    ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
    Dedit__Wire__Hello hello = DEDIT__WIRE__HELLO__INIT;
    hello.has_max_version = 1;
    hello.max_version = 3;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_HELLO;
    m.hello = &hello;
    ck_ok(packet_send_message(s[0], &m.base, p, 2, 0, &err), &err);
    ssize_t n = packet_recv(s[1], buf, &fds, 0, &err);
    ck_assert_int_gt(n, 0);
    ck_assert_uint_eq(fds.n, 2);
    ck_assert_int_eq(fcntl(fds.fd[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    struct wire_arena a;
    ck_assert_int_eq(wire_arena_init(&a), 0);
    Dedit__Wire__ClientMessage *got =
        dedit__wire__client_message__unpack(&a.allocator, (size_t)n, buf);
    ck_assert_ptr_nonnull(got);
    ck_assert_uint_eq(got->hello->max_version, 3);
    wire_arena_done(&a);
    packet_fds_close(&fds);
    close(p[0]);
    close(p[1]);
    close(s[0]);
    ck_assert_int_eq(packet_recv(s[1], buf, &fds, 0, &err), 0);
    ck_fails(packet_send(s[1], "x", 1, NULL, 0, 0, &err), CLOSED, &err);
    close(s[1]);
}
END_TEST

START_TEST(surplus_descriptors_are_closed)
{
    static const unsigned counts[] = {WIRE_MAX_FDS + 1, WIRE_MAX_FDS + 2, 100, 253};
    for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
        int s[2];
        struct error err = {0};
        struct packet_fds fds;
        make_pair(s);
        int before = fd_count();
        union {
            struct cmsghdr align;
            char b[CMSG_SPACE(253 * sizeof(int))];
        } control = {0};
        char x = 'x';
        struct iovec iov = {&x, 1};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
                           .msg_controllen = CMSG_SPACE(counts[c] * sizeof(int))};
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(counts[c] * sizeof(int));
        for (unsigned i = 0; i < counts[c]; i++)
            memcpy(CMSG_DATA(h) + i * sizeof(int), &s[0], sizeof(int));
        ck_assert_int_eq(sendmsg(s[0], &m, 0), 1);
        ck_fails((int)packet_recv(s[1], buf, &fds, 0, &err), PROTOCOL, &err);
        ck_assert_uint_eq(fds.n, 0);
        ck_assert_int_eq(fd_count(), before);
        close(s[0]);
        close(s[1]);
    }
}
END_TEST

START_TEST(large_packets_are_refused)
{
    int s[2], size = 1 << 20;
    struct error err = {0};
    struct packet_fds fds;
    make_pair(s);
    setsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    uint8_t *big = calloc(1, WIRE_MAX_PACKET + 1);
    ck_ok(packet_send(s[0], big, WIRE_MAX_PACKET, NULL, 0, 0, &err), &err);
    ck_ok(packet_send(s[0], big, WIRE_MAX_PACKET + 1, NULL, 0, 0, &err), &err);
    ck_assert_int_eq(packet_recv(s[1], buf, &fds, 0, &err), WIRE_MAX_PACKET);
    ck_fails((int)packet_recv(s[1], buf, &fds, 0, &err), PROTOCOL, &err);
    free(big);
    Dedit__Wire__Tokenize t = DEDIT__WIRE__TOKENIZE__INIT;
    t.text = malloc(WIRE_MAX_PACKET + 1);
    memset(t.text, 'a', WIRE_MAX_PACKET);
    t.text[WIRE_MAX_PACKET] = 0;
    ck_fails(packet_send_message(s[0], &t.base, NULL, 0, 0, &err), LIMIT, &err);
    free(t.text);
    ck_assert_int_eq(packet_recv(s[1], buf, &fds, MSG_DONTWAIT, &err), -EAGAIN);
    close(s[0]);
    close(s[1]);
}
END_TEST

/* A packet of empty repeated messages asks for far more memory than its own size. */
START_TEST(unpacking_is_bounded)
{
    size_t n = 0;
    while (n + 2 <= WIRE_MAX_PACKET) { /* ModelList.models = field 1, length 0 */
        buf[n++] = 0x0a;
        buf[n++] = 0x00;
    }
    struct wire_arena a;
    ck_assert_int_eq(wire_arena_init(&a), 0);
    ck_assert_ptr_null(dedit__wire__model_list__unpack(&a.allocator, n, buf));
    ck_assert_uint_le(arena_used(a.arena), WIRE_MAX_UNPACKED);
    wire_arena_done(&a);
}
END_TEST

START_TEST(unknown_bodies_have_no_case)
{
    static const uint8_t unknown[] = {0x08, 0x2a, 0xfa, 0x07, 0x02, 0x08, 0x01}; /* tag 42, field 127 */
    struct wire_arena a;
    ck_assert_int_eq(wire_arena_init(&a), 0);
    Dedit__Wire__ClientMessage *m =
        dedit__wire__client_message__unpack(&a.allocator, sizeof unknown, unknown);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->tag, 42);
    ck_assert_int_eq(m->body_case, DEDIT__WIRE__CLIENT_MESSAGE__BODY__NOT_SET);
    wire_arena_done(&a);
}
END_TEST

START_TEST(socket_paths_have_a_limit)
{
    struct error err = {0};
    struct sockaddr_un a;
    char path[301], out[256];
    memset(path, 'p', sizeof path);
    path[0] = '/';
    path[107] = 0;
    ck_ok(wire_address(path, &a, &err), &err);
    ck_assert_str_eq(a.sun_path, path);
    setenv("DEDIT_SOCKET", path, 1);
    ck_ok(wire_socket_path(out, sizeof out, &err), &err);
    ck_assert_str_eq(out, path);
    for (int n = 108; n <= 200; n += 92) {
        memset(path, 'p', sizeof path);
        path[n] = 0;
        ck_fails(wire_address(path, &a, &err), LIMIT, &err);
        ck_assert_ptr_nonnull(strstr(err.msg, "107"));
        setenv("DEDIT_SOCKET", path, 1);
        ck_fails(wire_socket_path(out, sizeof out, &err), LIMIT, &err);
    }
    ck_fails(wire_address("", &a, &err), INVALID, &err);
    unsetenv("DEDIT_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
    ck_ok(wire_socket_path(out, sizeof out, &err), &err);
    ck_assert_str_eq(out, "/run/dedit/dedit.sock");
    setenv("XDG_RUNTIME_DIR", "/nowhere", 1);
    ck_ok(wire_socket_path(out, sizeof out, &err), &err);
    ck_assert_str_eq(out, "/run/dedit/dedit.sock");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("packet");
    TCase *t = test_case(s, "packet");
    tcase_add_test(t, message_and_descriptors_arrive_together);
    tcase_add_test(t, surplus_descriptors_are_closed);
    tcase_add_test(t, large_packets_are_refused);
    tcase_add_test(t, unpacking_is_bounded);
    tcase_add_test(t, unknown_bodies_have_no_case);
    tcase_add_test(t, socket_paths_have_a_limit);
    return test_main(s);
}
