/* SPDX-License-Identifier: Apache-2.0 */
/* libdedit against a daemon that lies: about descriptors, about rings, about records. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "tests/unit/libdedit-util.h"

/* ---- what is accepted wrongly ------------------------------------------------------------------------------ */

enum lie {
    NO_FDS,
    TWO_FDS,
    FOUR_FDS,
    PIPES,
    UNSEALED,
    SMALL,
    MAGIC,
    LATER,
    NO_CAPACITY,
    ODD_CAPACITY,
    BEYOND_FILE,
    SMALL_CURSOR,
    SEALED_CURSOR,
    BLOCKING_EVENT,
    FILE_EVENT,
    SLOT_NUMBER,
    NOT_OPENED,
    ODD_START,
    N_LIES
};

/* A ring file with this header. */
static int ring_file(enum lie lie)
{
    struct error err = {0};
    size_t bytes = RING_HEADER_BYTES + (lie == SMALL ? RING_MIN_CAPACITY / 2 : RING_MIN_CAPACITY);
    struct ring_header h = {.magic = lie == MAGIC ? 1 : RING_MAGIC,
                            .version = lie == LATER ? RING_VERSION + 1 : RING_VERSION,
                            .header_bytes = RING_HEADER_BYTES,
                            .capacity = lie == NO_CAPACITY    ? 0
                                        : lie == ODD_CAPACITY ? RING_MIN_CAPACITY - 8
                                        : lie == BEYOND_FILE  ? 2 * RING_MIN_CAPACITY
                                                              : RING_MIN_CAPACITY};
    int fd = memfd_new("ring", bytes, &err);
    if (fd < 0 || pwrite(fd, &h, sizeof h, 0) != sizeof h)
        abort();
    if (lie != UNSEALED && memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW | 0x10, &err) < 0)
        abort();
    return fd;
}

static void accept_lie(struct fake_peer *p, int arg)
{
    struct error err = {0};
    Dedit__Wire__Accepted a = DEDIT__WIRE__ACCEPTED__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    int fds[4], pipes[2];
    unsigned n = arg == NO_FDS || arg == NOT_OPENED ? 0 : arg == TWO_FDS ? 2 : 3;
    fake_hello(p);
    fake_read(p);
    fds[0] = ring_file((enum lie)arg);
    fds[1] = memfd_new("cursor", arg == SMALL_CURSOR ? 64 : RING_CURSOR_BYTES, &err);
    memfd_seal(fds[1], F_SEAL_SHRINK | F_SEAL_GROW | (arg == SEALED_CURSOR ? F_SEAL_WRITE : 0),
               &err);
    fds[2] = arg == FILE_EVENT ? open("/dev/null", O_RDONLY | O_NONBLOCK)
                               : eventfd(0, arg == BLOCKING_EVENT ? 0 : EFD_NONBLOCK);
    if (arg == PIPES) {
        if (pipe(pipes) < 0)
            abort();
        fds[0] = pipes[0];
        fds[1] = pipes[1];
    }
    a.has_request_id = a.has_slot = a.has_start = a.has_new_slot = 1;
    a.request_id = 1;
    a.new_slot = arg != NOT_OPENED;
    a.slot = arg == SLOT_NUMBER ? 4000000 : 0;
    a.start = arg == ODD_START ? 4 : 0;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED;
    m.accepted = &a;
    if (arg == FOUR_FDS) {
        /* More than packet_send lets through. */
        union {
            struct cmsghdr align;
            char b[CMSG_SPACE(4 * sizeof(int))];
        } control = {0};
        uint8_t packed[64];
        m.has_tag = 1;
        m.tag = p->msg->tag;
        struct iovec iov = {packed, dedit__wire__daemon_message__pack(&m, packed)};
        struct msghdr h = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control.b};
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(4 * sizeof(int));
        fds[3] = fds[0];
        memcpy(CMSG_DATA(c), fds, sizeof fds);
        if (sendmsg(p->sock, &h, 0) < 0)
            abort();
    } else {
        fake_answer(p, &m, fds, n);
    }
    fake_read(p);
}

START_TEST(wrongly_accepted)
{
    struct dedit_error e;
    struct dedit_request *r = NULL;
    struct fake f;
    char word[32];
    int before = fd_count();
    fake_start(&f, accept_lie, _i);
    struct dedit_client *c = connected(&f);
    int open_before = fd_count();
    int code = submit(c, &r, &e);
    ck_assert_msg(code < 0, "lie %d was believed", _i);
    ck_assert_msg(code == DEDIT_ERR_PROTOCOL || code == DEDIT_ERR_IO || code == DEDIT_ERR_INVALID ||
                      code == DEDIT_ERR_DENIED,
                  "lie %d: %s: %s", _i, dedit_error_name(code), e.msg);
    ck_assert_uint_gt(strlen(e.msg), 10);
    ck_assert_ptr_null(r);
    ck_assert_int_eq(fd_count(), open_before);
    /* The connection is lost, and says so again. */
    ck_assert_int_eq(dedit_client_health(c, word, NULL, &e), code);
    ck_assert_int_eq(dedit_client_prepare(c, &e), code);
    dedit_client_free(c);
    ck_assert_int_eq(fd_count(), before);
    fake_stop(&f);
}
END_TEST

/* ---- what a ring may hold --------------------------------------------------------------------------------- */

enum bad_record {
    SIZE_ZERO,
    SIZE_ODD,
    SIZE_BEYOND,
    TOO_MANY_TOKENS,
    TEXT_BEYOND,
    NOT_UTF8,
    ALTERNATIVES,
    FINISH_REASON,
    POSITION_BACK,
    POSITION_FAR,
    N_BAD_RECORDS
};

static void bad_ring(struct fake_peer *p, int arg)
{
    struct {
        struct ring_tokens t;
        struct ring_token k;
        char text[16];
    } r = {.t = {.rec = {.size = sizeof r, .type = RING_TOKENS}, .n_tokens = 1, .text_bytes = 16},
           .k = {.text_bytes = 16},
           .text = "fifteen letters"};
    struct ring_finished end = {.rec = {.size = sizeof end, .type = RING_FINISHED}, .reason = 77};
    fake_hello(p);
    fake_read(p);
    fake_accept(p);
    fake_tokens(p, 1, "good");
    if (arg == SIZE_ZERO)
        r.t.rec.size = 0;
    if (arg == SIZE_ODD)
        r.t.rec.size = 63;
    if (arg == SIZE_BEYOND)
        r.t.rec.size = 4096;
    if (arg == TOO_MANY_TOKENS)
        r.t.n_tokens = 0xffffffff;
    if (arg == TEXT_BEYOND)
        r.t.text_bytes = 100;
    if (arg == NOT_UTF8)
        r.text[3] = (char)0xff;
    if (arg == ALTERNATIVES)
        r.k.n_alternatives = 9;
    if (arg == POSITION_BACK)
        __atomic_store_n(&p->ring.header->write_pos, 0, __ATOMIC_RELEASE);
    else if (arg == POSITION_FAR)
        __atomic_store_n(&p->ring.header->write_pos, 1ull << 40, __ATOMIC_RELEASE);
    else if (arg == FINISH_REASON)
        fake_record(p, &end, sizeof end);
    else
        fake_record(p, &r, sizeof r);
    fake_read(p);
}

START_TEST(damaged_rings)
{
    struct dedit_error e;
    struct dedit_event ev;
    struct dedit_request *r = NULL;
    struct fake f;
    fake_start(&f, bad_ring, _i);
    struct dedit_client *c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    usleep(20000);
    int n;
    while ((n = dedit_request_next(r, &ev, 2000, &e)) > 0)
        ck_assert_uint_eq(ev.type, DEDIT_EVENT_TOKENS);
    if (_i == POSITION_BACK && n == 0) {
        /* It went back before we looked: then there is nothing to see. */
        ck_assert_int_eq(dedit_request_next(r, &ev, 0, &e), 0);
    } else {
        fails_with(n, DEDIT_ERR_PROTOCOL, &e, "ring");
        fails_with(dedit_request_next(r, &ev, -1, &e), DEDIT_ERR_PROTOCOL, &e, "ring");
    }
    dedit_request_free(r);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

/* Records that change while they are read: whatever comes of it stays inside. */
#define CHANGING 1500
static void changing_ring(struct fake_peer *p, int arg)
{
    struct ring_tokens *at[CHANGING];
    (void)arg;
    fake_hello(p);
    fake_read(p);
    fake_accept(p);
    for (int i = 0; i < CHANGING; i++) {
        at[i] = (void *)(p->ring.data + p->ring.write_pos % p->ring.capacity);
        fake_tokens(p, 7, "abcdefgh");
    }
    for (uint32_t k = 0;; k++) {
        volatile struct ring_tokens *t = at[k * 7 % CHANGING];
        volatile struct ring_token *token = (volatile void *)(t + 1);
        t->n_tokens = 0xffffffff;
        token->text_bytes = 0x7fffffff;
        t->rec.size = 8;
        t->rec.size = 56;
        token->text_bytes = 8;
        t->n_tokens = 1;
        t->text_bytes = 0xfffffff0;
        token->n_alternatives = 0xffff;
        token->n_alternatives = 0;
        t->text_bytes = 8;
    }
}

START_TEST(rings_that_change)
{
    struct dedit_error e;
    struct dedit_event ev;
    struct dedit_request *r = NULL;
    struct fake f;
    unsigned good = 0, bad = 0;
    fake_start(&f, changing_ring, 0);
    struct dedit_client *c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    for (int i = 0; i < 2000000 && good < CHANGING; i++) {
        int n = dedit_request_next(r, &ev, 1, &e);
        if (n < 0) {
            ck_assert_int_eq(n, DEDIT_ERR_PROTOCOL);
            bad++;
            continue;
        }
        if (n == 0)
            continue;
        ck_assert_uint_eq(ev.type, DEDIT_EVENT_TOKENS);
        ck_assert_uint_le(ev.n_tokens, 64);
        size_t sum = 0;
        for (uint32_t k = 0; k < ev.n_tokens; k++)
            for (size_t b = 0; b < ev.tokens[k].text_len; b++)
                sum += (unsigned char)ev.tokens[k].text[b];
        ck_assert(sum > 0 || ev.n_tokens == 0 || ev.tokens[0].text_len == 0);
        good++;
    }
    ck_assert_uint_gt(good + bad, 0);
    dedit_request_free(r);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

static void odd_but_allowed(struct fake_peer *p, int arg)
{
    struct ring_record later = {.size = 64, .type = 900};
    uint8_t body[64] = {0};
    Dedit__Wire__Queued q = DEDIT__WIRE__QUEUED__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    (void)arg;
    fake_hello(p);
    fake_read(p);
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_QUEUED;
    m.queued = &q;
    fake_event(p, &m);                                /* an event before the answer */
    fake_bytes(p, "\x08\x63\xfa\x07\x02\x08\x01", 7); /* another's answer, of a later version */
    fake_accept(p);
    memcpy(body, &later, sizeof later);
    fake_record(p, body, sizeof body); /* a record of a later version */
    fake_tokens(p, 1, "good");
    fake_told(p, "nonsense", "no-such-code"); /* about another request */
    fake_finished(p);
    fake_tokens(p, 2, "late"); /* after the end */
    fake_read(p);
}

START_TEST(what_a_later_version_may_say)
{
    struct dedit_error e;
    struct dedit_request *r = NULL;
    struct fake f;
    char *text = NULL;
    fake_start(&f, odd_but_allowed, 0);
    struct dedit_client *c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    usleep(50000); /* all of it has come: the ring's own end goes first */
    ck_dedit(dedit_request_collect(r, &text, NULL, NULL, &e), &e);
    ck_assert_str_eq(text, "good");
    dedit_free(text);
    dedit_request_free(r);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("libdedit");
    TCase *t = test_case(s, "lies");
    tcase_add_loop_test(t, wrongly_accepted, 0, N_LIES);
    tcase_add_loop_test(t, damaged_rings, 0, N_BAD_RECORDS);
    tcase_add_test(t, rings_that_change);
    tcase_add_test(t, what_a_later_version_may_say);
    return test_main(s);
}
