/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client may send, on a real socket to a real server: framing, descriptors, unpacking, and what
 * the daemon makes of each message.  A tiny model is loaded and its tokenizer used, but its requests
 * stay in the queue, so that nothing depends on how fast an engine is.
 *
 * Input: a byte (1: greet first; 2: the allocation whose number is in the next byte fails), then packets: a byte (low half: what goes along, 16: longer than a
 * packet may be), two bytes of length, the bytes; with a memory file two more bytes of length and its
 * content.
 */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/peer.h"
#include "daemon/server.h"

#define MAX_PACKETS 64

enum along { NOTHING, SEALED, OPEN, HALF_SEALED, NO_MEMORY_FILE, TOO_MANY, TWO, ALONG_COUNT };
enum { TOO_LONG = 16 };

static struct server server;
static bool ready;

static const char *const codes[] = {"out-of-memory", "invalid-argument", "not-found", "bad-format",
                                    "unsupported",   "limit-exceeded",   "busy",      "cancelled",
                                    "timeout",       "denied",           "protocol",  "closed",
                                    "context-full"};

/* ---- the server -------------------------------------------------------------------------------------- */

/* Of the loop thread's allocations, while an input is handled. */
static __thread unsigned fail_after;

static bool fails(void *arg, size_t bytes)
{
    (void)arg;
    (void)bytes;
    return fail_after && --fail_after == 0;
}

static void start(void)
{
    char conf[64], model[512];
    const char *top = getenv("top_srcdir");
    struct error err = {0};
    struct config *c = NULL;
    enum config_action action;
    int empty = memfd_create("conf", MFD_CLOEXEC);

    signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_LEVEL_ERR);
    snprintf(conf, sizeof conf, "/proc/self/fd/%d", empty);
    snprintf(model, sizeof model, "m=%s/tests/golden/models/a_llama_tied", top ? top : ".");
    const char *argv[] = {"dedit-d", "--config",
                          conf,      "--model",
                          model,     "--event-loop",
                          "epoll",   "--threads",
                          "1",       "--cpu-tier",
                          "c",       "--ring-bytes",
                          "128K",    "--max-requests",
                          "64",      "--max-requests-per-connection",
                          "4",       "--max-prompt-bytes",
                          "32K",     "--max-prompt-bytes-per-uid",
                          "40K",     NULL};
    mem_set_fail_hook(fails, NULL);
    int r = config_load(ARRAY_LEN(argv) - 1, (char **)(uintptr_t)argv, &c, &action, &err);
    fd_close(empty);
    if (r == 0)
        r = server_init(&server, c, &err);
    while (r == 0 && server.models->state == MODEL_LOADING)
        r = loop_once(server.loop, &err);
    if (r < 0 || server.models->state != MODEL_READY) {
        fprintf(stderr, "%s\n", r < 0 ? err.msg : server.models->error.msg);
        abort();
    }
    server.models->max_running = 0;
    ready = true;
}

void fuzz_done(void)
{
    if (ready)
        server_done(&server);
    mem_set_fail_hook(NULL, NULL);
    ready = false;
}

/* ---- the client ---------------------------------------------------------------------------------------- */

struct input {
    const uint8_t *p;
    size_t left;
};

static unsigned take_byte(struct input *in)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->p++;
}

static const uint8_t *take_bytes(struct input *in, size_t *ret_len)
{
    size_t n = take_byte(in);
    n |= (size_t)take_byte(in) << 8;
    if (n > in->left)
        n = in->left;
    const uint8_t *b = in->p;
    in->p += n;
    in->left -= n;
    *ret_len = n;
    return b;
}

static int memory_file(struct input *in, int seals)
{
    size_t n;
    const uint8_t *b = take_bytes(in, &n);
    int fd = memfd_create("prompt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_CHECK(fd >= 0 && write(fd, b, n) == (ssize_t)n);
    if (seals)
        FUZZ_CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static unsigned descriptors(struct input *in, enum along what, int fd[5])
{
    switch (what) {
    case SEALED:
        fd[0] = memory_file(in, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
        return 1;
    case OPEN:
        fd[0] = memory_file(in, 0);
        return 1;
    case HALF_SEALED:
        fd[0] = memory_file(in, F_SEAL_GROW | F_SEAL_WRITE);
        return 1;
    case NO_MEMORY_FILE:
        fd[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return 1;
    case TWO:
        fd[0] = memory_file(in, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
        fd[1] = dup(fd[0]);
        return 2;
    case TOO_MANY:
        for (int i = 0; i < 5; i++)
            fd[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return 5;
    case NOTHING:
    case ALONG_COUNT:
        break;
    }
    return 0;
}

/* packet_send has limits of its own. */
static bool send_any(int sock, const uint8_t *data, size_t n, const int *fd, unsigned n_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(5 * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)data, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fd) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n_fd * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fd * sizeof(int));
        memcpy(CMSG_DATA(c), fd, n_fd * sizeof(int));
    }
    return sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static bool known_code(const char *code)
{
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        if (code && strcmp(code, codes[i]) == 0)
            return true;
    return false;
}

static void check_error(const Dedit__Wire__Error *e)
{
    FUZZ_CHECK(known_code(e->code) && e->message && e->message[0]);
}

/* Whatever comes back is a whole message, and its ring is one. */
static void check_answer(const uint8_t *data, size_t n, struct packet_fds *fds)
{
    Dedit__Wire__DaemonMessage *m = dedit__wire__daemon_message__unpack(NULL, n, data);
    FUZZ_CHECK(m && m->body_case != DEDIT__WIRE__DAEMON_MESSAGE__BODY__NOT_SET);
    if (m->body_case == DEDIT__WIRE__DAEMON_MESSAGE__BODY_ERROR)
        check_error(m->error);
    if (m->body_case == DEDIT__WIRE__DAEMON_MESSAGE__BODY_FINISHED && m->finished->error)
        check_error(m->finished->error);
    if (m->body_case == DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED && m->accepted->new_slot) {
        struct ring_reader r;
        struct error err = {0};
        FUZZ_CHECK(fds->n == 3);
        FUZZ_CHECK(ring_reader_init(&r, fds->fd[0], fds->fd[1], fds->fd[2], &err) == 0);
        fds->n = 0;
        ring_reader_begin(&r, m->accepted->start);
        ring_reader_done(&r);
    } else {
        FUZZ_CHECK(fds->n == 0);
    }
    dedit__wire__daemon_message__free_unpacked(m, NULL);
}

static void read_answers(int sock)
{
    static uint8_t buf[WIRE_MAX_PACKET];
    struct packet_fds fds = {.n = 0};
    struct error err = {0};
    ssize_t n;
    while ((n = packet_recv(sock, buf, &fds, MSG_DONTWAIT, &err)) > 0) {
        check_answer(buf, (size_t)n, &fds);
        packet_fds_close(&fds);
    }
}

static bool send_one(int sock, struct input *in)
{
    static uint8_t big[WIRE_MAX_PACKET + 1];
    int fd[5];
    unsigned head = take_byte(in);
    size_t n;
    const uint8_t *b = take_bytes(in, &n);
    if (head & TOO_LONG) {
        memset(big, 0, sizeof big);
        memcpy(big, b, n);
        b = big;
        n = sizeof big;
    }
    unsigned n_fd = descriptors(in, (enum along)((head & 15) % ALONG_COUNT), fd);
    bool sent = send_any(sock, b, n, fd, n_fd);
    for (unsigned i = 0; i < n_fd; i++)
        close(fd[i]);
    return sent;
}

static void one(struct input *in)
{
    static const uint8_t hello[] = {0x12, 0x00}; /* field 2, empty */
    struct error err = {0};
    int s[2];
    int size = 4 * WIRE_MAX_PACKET;

    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s) == 0);
    setsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    peer_accept(&server, s[1]);
    FUZZ_CHECK(server.n_peers == 1);
    server.peers->privileged =
        false; /* who may load files and stop the daemon is tested elsewhere */
    unsigned options = take_byte(in);
    unsigned fail = options & 2 ? take_byte(in) + 1 : 0;
    if (options & 1) {
        FUZZ_CHECK(send_any(s[0], hello, sizeof hello, NULL, 0));
        FUZZ_CHECK(loop_once(server.loop, &err) == 0);
    }
    for (int i = 0; i < MAX_PACKETS && in->left && server.n_peers; i++) {
        fail_after = fail;
        if (send_one(s[0], in))
            FUZZ_CHECK(loop_once(server.loop, &err) == 0);
        fail = fail_after;
        fail_after = 0;
        read_answers(s[0]);
    }
    while (server.n_preparing && loop_once(server.loop, &err) == 0)
        read_answers(s[0]);
    close(s[0]);
    while (server.n_peers || server.n_jobs || server.n_forgetting)
        FUZZ_CHECK(loop_once(server.loop, &err) == 0);
    FUZZ_CHECK(!server.quota.accounts && server.models->queue.len == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    if (!ready) {
        /* One request, so that what is made once is there. */
        static const uint8_t submit[] = {1, 0, 7, 0, 0x1a, 5, 0x22, 3, 0x0a, 1, 1};
        struct input warm = {submit, sizeof submit};
        start();
        one(&warm);
    }
    size_t live = mem_live_count();
    int fd = dup(1), again;
    close(fd);
    one(&in);
    again = dup(1);
    close(again);
    FUZZ_CHECK(fd == again);
    FUZZ_CHECK(mem_live_count() == live);
    return 0;
}
