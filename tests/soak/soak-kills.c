/* SPDX-License-Identifier: Apache-2.0 */
/* Every step of a client's way, as the protocol has it, and a SIGKILL at one of them. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "proto/dedit.pb-c.h"
#include "proto/packet.h"
#include "proto/ring.h"
#include "tests/soak/soak.h"

enum step {
    MADE_SOCKET,
    CONNECTED,
    SENT_HELLO,
    GREETED,
    SENT_HALF, /* the first half of a message */
    SENT_SUBMIT,
    SENT_PROMPT_FILE,
    ACCEPTED, /* descriptors received, not mapped */
    MAPPED,
    HALF_CLOSED, /* no more will be sent; it reads on */
    FIRST_TOKENS,
    INSIDE_A_RECORD, /* read, and the position not yet stored */
    ASLEEP,
    SENT_CANCEL,
    FULL,    /* its ring is full and its request parked */
    RESUMED, /* it was, and the reader has moved */
    SEVERAL, /* many requests of one connection */
    AT_THE_END,
    AFTER_RELEASE,
    STEPS
};
const unsigned soak_n_steps = STEPS;

const char *soak_step_name(unsigned step)
{
    static const char *const names[STEPS] = {
        "made a socket", "connected",          "sent Hello", "greeted",      "sent half a message",
        "sent Submit",   "sent a prompt file", "accepted",   "mapped",       "half closed",
        "first tokens",  "inside a record",    "asleep",     "sent Cancel",  "ring full",
        "resumed",       "several requests",   "at the end", "slot released"};
    return step < STEPS ? names[step] : "";
}

struct dying {
    enum step at;
    int sock;
    struct packet_fds fds;
    struct ring_reader ring;
    uint64_t start, request_id;
    bool finished;
};

static void reached(const struct dying *d, enum step step)
{
    if (d->at == step)
        raise(SIGKILL);
}

/* A client that cannot go on is not what this is about. */
static void give_up(void)
{
    raise(SIGKILL);
}

static void send_message(struct dying *d, Dedit__Wire__ClientMessage *m, const int *fd)
{
    struct error err = {0};
    if (packet_send_message(d->sock, &m->base, fd, fd ? 1 : 0, 0, &err) != 0)
        give_up();
}

/* The next message of this kind; Finished is remembered. */
static void receive(struct dying *d, int kind)
{
    static uint8_t buf[WIRE_MAX_PACKET];
    struct error err = {0};
    for (;;) {
        struct packet_fds fds = {.n = 0};
        ssize_t n = packet_recv(d->sock, buf, &fds, 0, &err);
        if (n <= 0)
            give_up();
        Dedit__Wire__DaemonMessage *m = dedit__wire__daemon_message__unpack(NULL, (size_t)n, buf);
        if (!m)
            give_up();
        int got = (int)m->body_case;
        if (got == DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED) {
            d->start = m->accepted->start;
            d->request_id = m->accepted->request_id;
            d->fds = fds;
        }
        d->finished |= got == DEDIT__WIRE__DAEMON_MESSAGE__BODY_FINISHED;
        dedit__wire__daemon_message__free_unpacked(m, NULL);
        if (got == kind)
            return;
    }
}

static void submit(struct dying *d, const struct soak_case *k)
{
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    Dedit__Wire__Submit s = DEDIT__WIRE__SUBMIT__INIT;
    Dedit__Wire__TokenIds ids = DEDIT__WIRE__TOKEN_IDS__INIT;
    Dedit__Wire__MemfdPrompt file = DEDIT__WIRE__MEMFD_PROMPT__INIT;
    Dedit__Wire__Sampling p = DEDIT__WIRE__SAMPLING__INIT;
    Dedit__Wire__ReturnOptions r = DEDIT__WIRE__RETURN_OPTIONS__INIT;
    struct error err = {0};
    int fd = -1;
    bool full = d->at == FULL || d->at == RESUMED;

    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_SUBMIT;
    m.submit = &s;
    s.sampling = &p;
    s.returns = &r;
    r.has_ring_bytes = p.has_max_tokens = p.has_ignore_eos = 1;
    r.ring_bytes = RING_MIN_CAPACITY;
    p.max_tokens = full ? 400 : d->at == AT_THE_END || d->at == AFTER_RELEASE ? 5 : 60;
    p.ignore_eos = 1;
    if (full) {
        p.has_logprobs = 1;
        p.logprobs = 20;
    }
    if (d->at == SENT_PROMPT_FILE) {
        fd = memfd_new("prompt", k->n_prompt * sizeof *k->prompt, &err);
        if (fd < 0 || write(fd, k->prompt, k->n_prompt * sizeof *k->prompt) < 0 ||
            memfd_seal(fd, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW, &err) < 0)
            give_up();
        s.prompt_case = DEDIT__WIRE__SUBMIT__PROMPT_MEMFD;
        s.memfd = &file;
        file.has_kind = file.has_size = 1;
        file.kind = DEDIT__WIRE__MEMFD_PROMPT__KIND__IDS;
        file.size = k->n_prompt * sizeof *k->prompt;
    } else {
        s.prompt_case = DEDIT__WIRE__SUBMIT__PROMPT_TOKEN_IDS;
        s.token_ids = &ids;
        ids.ids = (uint32_t *)(uintptr_t)k->prompt;
        ids.n_ids = k->n_prompt;
    }
    if (d->at == SENT_HALF) {
        uint8_t buf[2048];
        size_t n = protobuf_c_message_pack(&m.base, buf);
        if (packet_send(d->sock, buf, n / 2, NULL, 0, 0, &err) != 0)
            give_up();
        reached(d, SENT_HALF);
    }
    send_message(d, &m, fd >= 0 ? &fd : NULL);
}

static void hello(struct dying *d)
{
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    Dedit__Wire__Hello h = DEDIT__WIRE__HELLO__INIT;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_HELLO;
    m.hello = &h;
    send_message(d, &m, NULL);
}

static void cancel(struct dying *d)
{
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    Dedit__Wire__Cancel c = DEDIT__WIRE__CANCEL__INIT;
    c.has_request_id = 1;
    c.request_id = d->request_id;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_CANCEL;
    m.cancel = &c;
    send_message(d, &m, NULL);
}

static void moved(struct dying *d)
{
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    Dedit__Wire__RingMoved r = DEDIT__WIRE__RING_MOVED__INIT;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_RING_MOVED;
    m.ring_moved = &r;
    send_message(d, &m, NULL);
}

static void release(struct dying *d)
{
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    Dedit__Wire__ReleaseSlot r = DEDIT__WIRE__RELEASE_SLOT__INIT;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_RELEASE_SLOT;
    m.release_slot = &r;
    send_message(d, &m, NULL);
}

static void wait_until_full(const struct dying *d)
{
    struct timespec t = {.tv_nsec = 1000000};
    for (int i = 0; i < 2000; i++) {
        if (__atomic_load_n(&d->ring.header->stalled, __ATOMIC_RELAXED))
            return;
        nanosleep(&t, NULL);
    }
}

static void read_ring(struct dying *d)
{
    struct ring_view v;
    struct error err = {0};
    bool first = true;
    if (d->at == FULL || d->at == RESUMED)
        wait_until_full(d);
    reached(d, FULL);
    for (;;) {
        int e = ring_reader_next(&d->ring, &v, &err);
        if (e < 0)
            give_up();
        if (e == 0) {
            if (first)
                reached(d, FIRST_TOKENS);
            reached(d, INSIDE_A_RECORD);
            first = false;
            int type = (int)v.type;
            ring_reader_advance(&d->ring, v.size);
            if (ring_reader_release(&d->ring)) {
                moved(d);
                reached(d, RESUMED);
            }
            if (type == RING_FINISHED || type == RING_FAILED)
                return;
            continue;
        }
        if (!ring_reader_sleep(&d->ring))
            continue;
        reached(d, ASLEEP);
        struct pollfd p[2] = {{.fd = d->ring.event_fd, .events = POLLIN},
                              {.fd = d->sock, .events = 0}};
        poll(p, 2, -1);
        ring_reader_awake(&d->ring);
    }
}

void soak_die_at(struct soak *s, unsigned step)
{
    struct dying d = {.at = (enum step)step};
    struct sockaddr_un a;
    struct error err = {0};
    const struct soak_case *k = &s->cases[step % SOAK_CASES];

    d.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    reached(&d, MADE_SOCKET);
    if (wire_address(s->socket, &a, &err) < 0 ||
        connect(d.sock, (struct sockaddr *)&a, sizeof a) < 0)
        give_up();
    reached(&d, CONNECTED);
    hello(&d);
    reached(&d, SENT_HELLO);
    receive(&d, DEDIT__WIRE__DAEMON_MESSAGE__BODY_HELLO);
    reached(&d, GREETED);
    for (int i = 0; d.at == SEVERAL && i < 5; i++)
        submit(&d, &s->cases[i]);
    reached(&d, SEVERAL);
    submit(&d, k);
    reached(&d, SENT_SUBMIT);
    reached(&d, SENT_PROMPT_FILE);
    receive(&d, DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED);
    reached(&d, ACCEPTED);
    if (ring_reader_init(&d.ring, d.fds.fd[0], d.fds.fd[1], d.fds.fd[2], &err) < 0)
        give_up();
    ring_reader_begin(&d.ring, d.start);
    reached(&d, MAPPED);
    if (d.at == HALF_CLOSED) {
        shutdown(d.sock, SHUT_WR);
        poll(NULL, 0, 2);
        reached(&d, HALF_CLOSED);
    }
    if (d.at == SENT_CANCEL) {
        cancel(&d);
        reached(&d, SENT_CANCEL);
    }
    read_ring(&d);
    if (!d.finished)
        receive(&d, DEDIT__WIRE__DAEMON_MESSAGE__BODY_FINISHED);
    reached(&d, AT_THE_END);
    release(&d);
    reached(&d, AFTER_RELEASE);
    for (;;)
        raise(SIGKILL); /* steps that this run has not met: it never slept, say */
}
