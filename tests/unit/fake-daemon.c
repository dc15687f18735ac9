/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake-daemon.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "tests/unit/util.h"

/* Left by fake_read at the end of a connection. */
static jmp_buf connection_over;

static void serve(int listener, fake_script script, int arg)
{
    for (;;) {
        static struct fake_peer p;
        p = (struct fake_peer){.sock = accept(listener, NULL, NULL)};
        if (p.sock < 0)
            continue;
        p.buf = calloc(1, WIRE_MAX_PACKET);
        if (setjmp(connection_over) == 0)
            script(&p, arg);
        if (p.has_ring)
            ring_writer_done(&p.ring);
        packet_fds_close(&p.fds);
        wire_arena_done(&p.arena);
        free(p.buf);
        close(p.sock);
    }
}

void fake_start(struct fake *f, fake_script script, int arg)
{
    static char path[128];
    struct sockaddr_un a;
    struct error err = {0};
    snprintf(path, sizeof path, "%s/s", test_tmpdir());
    unlink(path);
    f->path = path;
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_ok(wire_address(path, &a, &err), &err);
    ck_assert_int_eq(bind(s, (const struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(s, 16), 0);
    f->pid = fork();
    ck_assert_int_ge(f->pid, 0);
    if (f->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(s, script, arg);
        _exit(0);
    }
    close(s);
}

void fake_stop(struct fake *f)
{
    int status;
    kill(f->pid, SIGKILL);
    ck_assert_int_eq(waitpid(f->pid, &status, 0), f->pid);
    /* A script that crashed has tested nothing. */
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    unlink(f->path);
}

void fake_read(struct fake_peer *p)
{
    struct error err = {0};
    packet_fds_close(&p->fds);
    wire_arena_done(&p->arena);
    ssize_t n = packet_recv(p->sock, p->buf, &p->fds, 0, &err);
    if (n <= 0 || wire_arena_init(&p->arena) < 0)
        longjmp(connection_over, 1);
    p->msg = dedit__wire__client_message__unpack(&p->arena.allocator, (size_t)n, p->buf);
    if (!p->msg)
        abort();
}

static void send_it(struct fake_peer *p, const Dedit__Wire__DaemonMessage *m, const int *fds,
                    unsigned n)
{
    struct error err = {0};
    if (packet_send_message(p->sock, &m->base, fds, n, 0, &err) < 0)
        longjmp(connection_over, 1);
}

void fake_answer(struct fake_peer *p, Dedit__Wire__DaemonMessage *m, const int *fds, unsigned n)
{
    m->has_tag = 1;
    m->tag = p->msg->tag;
    send_it(p, m, fds, n);
}

void fake_event(struct fake_peer *p, Dedit__Wire__DaemonMessage *m)
{
    m->has_tag = 1;
    m->tag = 0;
    send_it(p, m, NULL, 0);
}

void fake_bytes(struct fake_peer *p, const void *bytes, size_t n)
{
    struct error err = {0};
    if (packet_send(p->sock, bytes, n, NULL, 0, 0, &err) < 0)
        longjmp(connection_over, 1);
}

void fake_hello(struct fake_peer *p)
{
    Dedit__Wire__HelloReply h = DEDIT__WIRE__HELLO_REPLY__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    fake_read(p);
    h.has_version = h.has_ring_version = 1;
    h.version = WIRE_VERSION;
    h.ring_version = RING_VERSION;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_HELLO;
    m.hello = &h;
    fake_answer(p, &m, NULL, 0);
}

void fake_error(struct fake_peer *p, const char *code, const char *message)
{
    Dedit__Wire__Error e = DEDIT__WIRE__ERROR__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    e.code = (char *)(uintptr_t)code;
    e.message = (char *)(uintptr_t)message;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ERROR;
    m.error = &e;
    fake_answer(p, &m, NULL, 0);
}

void fake_accept(struct fake_peer *p)
{
    struct error err = {0};
    Dedit__Wire__Accepted a = DEDIT__WIRE__ACCEPTED__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    if (!p->has_ring) {
        if (ring_writer_init(&p->ring, RING_MIN_CAPACITY, &err) < 0)
            abort();
        a.has_new_slot = 1;
        a.new_slot = 1;
    }
    a.has_request_id = a.has_slot = a.has_start = a.has_prompt_tokens = a.has_seed = 1;
    a.request_id = ++p->request_id;
    a.start = ring_writer_begin(&p->ring, p->request_id);
    a.prompt_tokens = 3;
    a.seed = 99;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED;
    m.accepted = &a;
    int fds[3] = {p->ring.ring_fd, p->ring.cursor_fd, p->ring.event_fd};
    fake_answer(p, &m, fds, p->has_ring ? 0 : 3);
    p->has_ring = true;
}

void fake_record(struct fake_peer *p, const void *record, size_t size)
{
    struct error err = {0};
    void *to;
    size_t room = (size + 7) & ~(size_t)7;
    while (ring_reserve(&p->ring, (uint32_t)room, &to, &err) == 1)
        usleep(1000);
    memset(to, 0, room);
    memcpy(to, record, size);
    ring_publish(&p->ring);
}

void fake_tokens(struct fake_peer *p, uint32_t id, const char *text)
{
    struct {
        struct ring_tokens t;
        struct ring_token k;
        char text[64];
    } r = {0};
    size_t n = strlen(text), size = sizeof r.t + sizeof r.k + n;
    r.t.rec.type = RING_TOKENS;
    r.t.rec.size = (uint32_t)((size + 7) & ~(size_t)7);
    r.t.n_tokens = 1;
    r.t.text_bytes = r.k.text_bytes = (uint32_t)n;
    r.k.id = id;
    memcpy(r.text, text, n);
    fake_record(p, &r, size);
}

void fake_finished(struct fake_peer *p)
{
    struct ring_finished f = {.rec = {.size = sizeof f, .type = RING_FINISHED},
                              .reason = RING_FINISH_STOP,
                              .prompt_tokens = 3,
                              .completion_tokens = 2};
    fake_record(p, &f, sizeof f);
}

void fake_failed(struct fake_peer *p, int32_t code, uint32_t reason, const char *message)
{
    struct {
        struct ring_failed f;
        char text[64];
    } r = {0};
    size_t n = strlen(message), size = sizeof r.f + n;
    r.f.rec.type = RING_FAILED;
    r.f.rec.size = (uint32_t)((size + 7) & ~(size_t)7);
    r.f.code = code;
    r.f.reason = reason;
    r.f.message_bytes = (uint32_t)n;
    memcpy(r.text, message, n);
    fake_record(p, &r, size);
}

void fake_told(struct fake_peer *p, const char *reason, const char *code)
{
    Dedit__Wire__Finished f = DEDIT__WIRE__FINISHED__INIT;
    Dedit__Wire__Error e = DEDIT__WIRE__ERROR__INIT;
    Dedit__Wire__Usage u = DEDIT__WIRE__USAGE__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    char message[] = "as the script says";
    f.has_request_id = 1;
    f.request_id = p->request_id;
    f.finish_reason = (char *)(uintptr_t)reason;
    u.has_completion_tokens = 1;
    u.completion_tokens = 2;
    f.usage = &u;
    if (code) {
        e.code = (char *)(uintptr_t)code;
        e.message = message;
        f.error = &e;
    }
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_FINISHED;
    m.finished = &f;
    fake_event(p, &m);
}

void fake_hang(void)
{
    for (;;)
        pause();
}
