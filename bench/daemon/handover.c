/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token from the store of the engine to a reader in another process, each on a CPU of its own.  The writer
 * is the daemon's ring writer behind the least daemon that the library can talk to; the reader is the
 * library.  A repetition: some hand-overs to a reader that spins, some to one that sleeps, some bare futex
 * wake-ups.  The time begins before the record is written and ends when the reader has it.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/daemon/measure.h"
#include "client/dedit.h"
#include "proto/dedit.pb-c.h"
#include "proto/packet.h"
#include "proto/ring.h"

#define SETTLE_NS 60000u /* until the reader is surely where it waits */

struct shared {
    uint32_t word;    /* the futex: number of wake-ups so far */
    uint32_t waiting; /* number of waits that were begun */
    uint64_t stored;  /* when the last wake-up was begun */
};

static void spin_for(uint64_t ns)
{
    for (uint64_t end = clock_now_ns() + ns; clock_now_ns() < end;)
        __builtin_ia32_pause();
}

/* ---- writer ----------------------------------------------------------------------------------------- */

static int answer(int sock, struct ring_writer *w, struct error *err)
{
    static uint8_t buf[WIRE_MAX_PACKET];
    struct packet_fds fds;
    ssize_t n = packet_recv(sock, buf, &fds, 0, err);
    if (n <= 0)
        return n < 0 ? (int)n : DEDIT_E_CLOSED;
    packet_fds_close(&fds);
    Dedit__Wire__ClientMessage *in = dedit__wire__client_message__unpack(NULL, (size_t)n, buf);
    Dedit__Wire__DaemonMessage out = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__HelloReply hello = DEDIT__WIRE__HELLO_REPLY__INIT;
    Dedit__Wire__Accepted accepted = DEDIT__WIRE__ACCEPTED__INIT;
    if (!in)
        return DEDIT_E_PROTOCOL;
    int ring[3] = {w->ring_fd, w->cursor_fd, w->event_fd};
    bool submit = in->body_case == DEDIT__WIRE__CLIENT_MESSAGE__BODY_SUBMIT;
    out.has_tag = 1;
    out.tag = in->tag;
    dedit__wire__client_message__free_unpacked(in, NULL);
    hello.has_version = hello.has_ring_version = 1;
    hello.version = WIRE_VERSION;
    hello.ring_version = RING_VERSION;
    accepted.has_request_id = accepted.has_new_slot = accepted.has_slot = accepted.has_start = 1;
    accepted.request_id = 1;
    accepted.new_slot = 1;
    accepted.start = ring_writer_begin(w, 1);
    out.body_case = submit ? DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED
                           : DEDIT__WIRE__DAEMON_MESSAGE__BODY_HELLO;
    out.hello = &hello;
    if (submit)
        out.accepted = &accepted;
    return packet_send_message(sock, &out.base, ring, submit ? 3 : 0, 0, err);
}

static void store_token(struct ring_writer *w)
{
    struct {
        struct ring_tokens t;
        struct ring_token k;
        char text[8];
    } * p;
    struct error err = {0};
    void *room;
    uint32_t now = (uint32_t)clock_now_ns();
    while (ring_reserve(w, sizeof *p, &room, &err) != 0)
        ;
    p = room;
    memset(p, 0, sizeof *p);
    p->t.rec = (struct ring_record){.size = sizeof *p, .type = RING_TOKENS};
    p->t.n_tokens = 1;
    p->t.text_bytes = p->k.text_bytes = 6;
    p->k.id = now;
    memcpy(p->text, " token", 6);
    ring_publish(w);
}

static void write_all(struct ring_writer *w, struct shared *s, const struct measure *m)
{
    for (uint32_t r = 0; r < m->repetitions; r++) {
        for (uint32_t i = 0; i < m->count; i++) {
            while (__atomic_load_n(&w->cursor->read_pos, __ATOMIC_ACQUIRE) != w->write_pos)
                __builtin_ia32_pause();
            spin_for(3000 + 97 * (i % 16));
            store_token(w);
        }
        for (uint32_t i = 0; i < m->count; i++) {
            while (!__atomic_load_n(&w->cursor->asleep, __ATOMIC_ACQUIRE) ||
                   __atomic_load_n(&w->cursor->read_pos, __ATOMIC_ACQUIRE) != w->write_pos)
                __builtin_ia32_pause();
            spin_for(SETTLE_NS);
            store_token(w);
        }
        for (uint32_t i = 0; i < m->count; i++) {
            uint32_t next = s->word + 1;
            while (__atomic_load_n(&s->waiting, __ATOMIC_ACQUIRE) != next)
                __builtin_ia32_pause();
            spin_for(SETTLE_NS);
            s->stored = clock_now_ns();
            __atomic_store_n(&s->word, next, __ATOMIC_RELEASE);
            syscall(SYS_futex, &s->word, FUTEX_WAKE, 1, NULL, NULL, 0);
        }
    }
}

/* ---- reader ----------------------------------------------------------------------------------------- */

static int complain(const struct dedit_error *e)
{
    fprintf(stderr, "measure: %s\n", e->msg);
    return 1;
}

static int read_tokens(struct dedit_request *r, double *ns, uint32_t n, struct dedit_error *e)
{
    struct dedit_event ev;
    for (uint32_t i = 0; i < n; i++) {
        int got = dedit_request_next(r, &ev, -1, e);
        if (got < 0)
            return got;
        ns[i] = (double)((uint32_t)clock_now_ns() - ev.tokens[0].id);
    }
    return 0;
}

static void wait_futexes(struct shared *s, double *ns, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t seen = __atomic_load_n(&s->word, __ATOMIC_ACQUIRE);
        __atomic_store_n(&s->waiting, seen + 1, __ATOMIC_RELEASE);
        while (__atomic_load_n(&s->word, __ATOMIC_ACQUIRE) == seen)
            syscall(SYS_futex, &s->word, FUTEX_WAIT, seen, NULL, NULL, 0);
        ns[i] = (double)(clock_now_ns() - s->stored);
    }
}

static int read_all(const char *path, struct shared *s, const struct measure *m)
{
    struct dedit_client *c = NULL;
    struct dedit_request *r = NULL;
    struct dedit_options o;
    struct dedit_error e;
    double *one = mem_array(m->count, sizeof *one),
           *all = mem_array(4 * m->repetitions, sizeof *all);
    if (!one || !all || dedit_client_connect(path, &c, &e) < 0)
        return complain(&e);
    dedit_options_init(&o, sizeof o);
    o.text = "x";
    if (dedit_client_submit(c, &o, &r, &e) < 0)
        return complain(&e);
    double *spin = all, *sleep = all + m->repetitions, *futex = sleep + m->repetitions;
    for (uint32_t k = 0; k < m->repetitions; k++) {
        dedit_client_set_spin(c, UINT32_MAX);
        if (read_tokens(r, one, m->count, &e) < 0)
            return complain(&e);
        spin[k] = measure_median(one, m->count);
        dedit_client_set_spin(c, 0);
        if (read_tokens(r, one, m->count, &e) < 0)
            return complain(&e);
        sleep[k] = measure_median(one, m->count);
        wait_futexes(s, one, m->count);
        futex[k] = measure_median(one, m->count);
    }
    struct stats ratio = stats_ratio(sleep, futex, m->repetitions, futex + m->repetitions);
    measure_print("hand-over, the reader spins", stats_of(spin, m->repetitions), 1e-3, "us");
    measure_print("hand-over, the reader sleeps", stats_of(sleep, m->repetitions), 1e-3, "us");
    measure_print("bare futex wake-up", stats_of(futex, m->repetitions), 1e-3, "us");
    measure_print("sleeping / futex", ratio, 1, "  ");
    dedit_request_free(r);
    dedit_client_free(c);
    mem_free(one);
    mem_free(all);
    return 0;
}

int measure_handover(const struct measure *m)
{
    char path[64];
    struct sockaddr_un a;
    struct error err = {0};
    struct ring_writer w;
    struct shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), status = 1;

    snprintf(path, sizeof path, "/tmp/dedit-measure.%d", (int)getpid());
    unlink(path);
    if (s == MAP_FAILED || listener < 0 || wire_address(path, &a, &err) < 0 ||
        bind(listener, (const struct sockaddr *)&a, sizeof a) < 0 || listen(listener, 1) < 0 ||
        ring_writer_init(&w, RING_MIN_CAPACITY, &err) < 0) {
        fprintf(stderr, "measure: %s %s\n", err.msg, strerror(errno));
        return 1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        measure_pin(1);
        return read_all(path, s, m);
    }
    measure_pin(0);
    int sock = accept(listener, NULL, NULL);
    unlink(path);
    if (pid > 0 && sock >= 0 && answer(sock, &w, &err) == 0 && answer(sock, &w, &err) == 0)
        write_all(&w, s, m);
    else
        kill(pid, SIGKILL);
    if (waitpid(pid, &status, 0) == pid)
        status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    ring_writer_done(&w);
    close(sock);
    close(listener);
    return status;
}
