/* SPDX-License-Identifier: Apache-2.0 */
/* libdedit against a daemon that is right, that dies, that says nothing. Each test also fails when a descriptor
 * or an allocation is left behind. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/unit/libdedit-util.h"

/* ---- connecting ------------------------------------------------------------------------------------- */

START_TEST(nobody_listens)
{
    struct dedit_error e;
    struct dedit_client *c = NULL;
    char path[160], longer[200];
    snprintf(path, sizeof path, "%s/nobody", test_tmpdir());
    fails_with(dedit_client_connect(path, &c, &e), DEDIT_ERR_CLOSED, &e, "is dedit-d running");
    /* A socket file that its daemon left. */
    struct fake f;
    fake_start(&f, NULL, 0);
    char stale[160];
    snprintf(stale, sizeof stale, "%s", f.path);
    ck_assert_int_eq(rename(stale, path), 0);
    fake_stop(&f);
    fails_with(dedit_client_connect(path, &c, &e), DEDIT_ERR_CLOSED, &e, path);
    unlink(path);
    memset(longer, 'a', sizeof longer - 1);
    longer[0] = '/';
    longer[sizeof longer - 1] = 0;
    fails_with(dedit_client_connect(longer, &c, &e), DEDIT_ERR_LIMIT, &e, "107");
    fails_with(dedit_client_connect("", &c, &e), DEDIT_ERR_INVALID, &e, "empty");
    /* The message is optional. */
    ck_assert_int_eq(dedit_client_connect("", &c, NULL), DEDIT_ERR_INVALID);
    ck_assert_ptr_null(c);
}
END_TEST

static void just_hello(struct fake_peer *p, int arg)
{
    (void)arg;
    fake_hello(p);
    for (;;)
        fake_read(p);
}

START_TEST(a_socket_that_this_user_may_not_use)
{
    struct dedit_error e;
    struct dedit_client *c = NULL;
    struct fake f;
    fake_start(&f, just_hello, 0);
    chmod(f.path, 0);
    bool root = geteuid() == 0;
    if (root) {
        chmod(test_tmpdir(), 0755);
        ck_assert_int_eq(seteuid(65534), 0);
    }
    int r = dedit_client_connect(f.path, &c, &e);
    if (root)
        ck_assert_int_eq(seteuid(0), 0);
    fails_with(r, DEDIT_ERR_DENIED, &e, f.path);
    fake_stop(&f);
}
END_TEST

START_TEST(the_path_comes_from_the_environment)
{
    struct dedit_error e;
    struct dedit_client *c = NULL;
    struct fake f;
    fake_start(&f, just_hello, 0);
    setenv("DEDIT_SOCKET", f.path, 1);
    ck_dedit(dedit_client_connect(NULL, &c, &e), &e);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

/* How a daemon may greet. */
enum greeting {
    OTHER_VERSION,
    OTHER_RING,
    REFUSES,
    OTHER_BODY,
    NO_BODY,
    GARBAGE,
    TRUNCATED,
    HUGE,
    LEAVES,
    N_GREETINGS
};
static void greet(struct fake_peer *p, int arg)
{
    Dedit__Wire__HelloReply h = DEDIT__WIRE__HELLO_REPLY__INIT;
    Dedit__Wire__Ok ok = DEDIT__WIRE__OK__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    static char big[WIRE_MAX_PACKET + 8];
    uint8_t packed[64];
    fake_read(p);
    h.has_version = h.has_ring_version = 1;
    h.version = WIRE_VERSION + (arg == OTHER_VERSION);
    h.ring_version = RING_VERSION + (arg == OTHER_RING);
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_HELLO;
    m.hello = &h;
    if (arg == REFUSES)
        fake_error(p, "unsupported", "protocol 9 is the lowest");
    else if (arg == GARBAGE)
        fake_bytes(p, "\xff\xff\xff\xff\xff", 5);
    else if (arg == HUGE)
        fake_bytes(p, big, sizeof big);
    else if (arg == TRUNCATED) {
        m.has_tag = 1;
        m.tag = p->msg->tag;
        size_t n = dedit__wire__daemon_message__pack(&m, packed);
        fake_bytes(p, packed, n - 1);
    } else if (arg != LEAVES) {
        if (arg == OTHER_BODY) {
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_OK;
            m.ok = &ok;
        } else if (arg == NO_BODY) {
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY__NOT_SET;
        }
        fake_answer(p, &m, NULL, 0);
    }
    if (arg != LEAVES)
        fake_read(p);
}

START_TEST(wrong_greetings)
{
    static const struct {
        int code;
        const char *words;
    } wanted[N_GREETINGS] = {
        [OTHER_VERSION] = {DEDIT_ERR_PROTOCOL, "protocol 2"},
        [OTHER_RING] = {DEDIT_ERR_PROTOCOL, "ring 2"},
        [REFUSES] = {DEDIT_ERR_UNSUPPORTED, "protocol 9"},
        [OTHER_BODY] = {DEDIT_ERR_PROTOCOL, "wanted"},
        [NO_BODY] = {DEDIT_ERR_PROTOCOL, "wanted"},
        [GARBAGE] = {DEDIT_ERR_PROTOCOL, "5 bytes"},
        [TRUNCATED] = {DEDIT_ERR_PROTOCOL, "cannot be read"},
        [HUGE] = {DEDIT_ERR_PROTOCOL, "65536"},
        [LEAVES] = {DEDIT_ERR_CLOSED, "closed the connection"},
    };
    struct dedit_error e;
    struct dedit_client *c = NULL;
    struct fake f;
    fake_start(&f, greet, _i);
    fails_with(dedit_client_connect(f.path, &c, &e), wanted[_i].code, &e, wanted[_i].words);
    ck_assert_ptr_null(c);
    fake_stop(&f);
}
END_TEST

static void silent(struct fake_peer *p, int arg)
{
    if (arg)
        fake_hello(p);
    fake_hang();
}

START_TEST(silence_has_an_end)
{
    struct dedit_error e;
    struct dedit_client *c = NULL;
    struct dedit_request *r = NULL;
    struct fake f;
    char word[32];
    uint64_t start = clock_now_ns();
    fake_start(&f, silent, 0);
    fails_with(dedit_client_connect_timeout(f.path, 50, &c, &e), DEDIT_ERR_TIMEOUT, &e, "answer");
    fake_stop(&f);
    fake_start(&f, silent, 1);
    ck_dedit(dedit_client_connect_timeout(f.path, 10000, &c, &e), &e);
    ck_dedit(dedit_client_set_timeout(c, 50, &e), &e);
    fails_with(submit(c, &r, &e), DEDIT_ERR_TIMEOUT, &e, "answer");
    ck_assert_uint_lt(clock_now_ns() - start, 20000000000u);
    /* The answer might come later: nothing on this connection can be trusted. */
    fails_with(dedit_client_health(c, word, NULL, &e), DEDIT_ERR_TIMEOUT, &e, "answer");
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

/* ---- answers -------------------------------------------------------------------------------------------- */

static const struct {
    int code;
    const char *name;
} codes[] = {
#define X(NAME, number, name, text) {DEDIT_ERR_##NAME, name},
    DEDIT_ERRORS(X)
#undef X
};

static void refuses_all(struct fake_peer *p, int arg)
{
    (void)arg;
    fake_hello(p);
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        fake_read(p);
        fake_error(p, codes[i].name, i % 2 ? "queue_depth is 3" : "");
    }
    fake_read(p);
    fake_error(p, "of-a-later-version", "new");
    fake_read(p);
    fake_error(p, NULL, NULL);
    fake_read(p);
}

START_TEST(each_code_arrives)
{
    struct dedit_error e;
    struct dedit_request *r = NULL;
    struct fake f;
    fake_start(&f, refuses_all, 0);
    struct dedit_client *c = connected(&f);
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        fails_with(submit(c, &r, &e), codes[i].code, &e, i % 2 ? "queue_depth is 3" : "");
        ck_assert_str_eq(dedit_error_name(codes[i].code), codes[i].name);
        ck_assert_uint_gt(strlen(e.msg), 0);
    }
    fails_with(submit(c, &r, &e), DEDIT_ERR_INTERNAL, &e, "new");
    fails_with(submit(c, &r, &e), DEDIT_ERR_INTERNAL, &e, "");
    ck_assert_str_eq(dedit_error_name(5), "unknown");
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

static void one_answer(struct fake_peer *p, int arg)
{
    (void)arg;
    fake_hello(p);
    for (;;) {
        fake_read(p);
        fake_accept(p);
        fake_tokens(p, 5, "one ");
        fake_tokens(p, 6, "tw\xc3\xb6");
        fake_finished(p);
        fake_told(p, "stop", NULL);
    }
}

START_TEST(a_whole_answer)
{
    struct dedit_error e;
    struct dedit_event ev;
    struct dedit_request *r = NULL;
    struct fake f;
    char *text = NULL;
    size_t len = 0;
    fake_start(&f, one_answer, 0);
    struct dedit_client *c = connected(&f);
    for (int round = 0; round < 3; round++) { /* the slot is used again */
        ck_dedit(submit(c, &r, &e), &e);
        ck_assert_uint_eq(dedit_request_seed(r), 99);
        ck_assert_uint_eq(dedit_request_prompt_tokens(r), 3);
        ck_assert_uint_eq(dedit_request_id(r), (uint64_t)round + 1);
        dedit_request_set_user(r, &f);
        ck_assert_ptr_eq(dedit_request_user(r), &f);
        ck_dedit(dedit_request_collect(r, &text, &len, &ev, &e), &e);
        ck_assert_str_eq(text, "one tw\xc3\xb6");
        ck_assert_uint_eq(len, 8);
        ck_assert_str_eq(ev.finish_reason, "stop");
        ck_assert_ptr_null(ev.stop_reason);
        ck_assert_uint_eq(ev.usage.completion_tokens, 2);
        dedit_free(text);
        /* After the last event. */
        ck_assert_int_eq(dedit_request_next(r, &ev, -1, &e), 0);
        ck_assert_int_eq(dedit_request_next(r, &ev, 0, &e), 0);
        fails_with(dedit_request_collect(r, &text, NULL, NULL, &e), DEDIT_ERR_INVALID, &e,
                   "read to its end");
        ck_dedit(dedit_request_cancel(r, &e), &e);
        dedit_request_free(r);
    }
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

START_TEST(objects_may_go_in_any_order)
{
    struct dedit_error e;
    struct dedit_event ev;
    struct dedit_request *r = NULL, *s = NULL;
    struct fake f;
    fake_start(&f, one_answer, 0);
    struct dedit_client *c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    ck_dedit(dedit_request_next(r, &ev, -1, &e), &e);
    dedit_client_free(c);
    fails_with(dedit_request_next(r, &ev, -1, &e), DEDIT_ERR_CLOSED, &e, "freed");
    ck_dedit(dedit_request_cancel(r, &e), &e);
    dedit_request_free(r);
    dedit_request_free(NULL);
    dedit_client_free(NULL);
    dedit_model_list_free(NULL);
    dedit_free(NULL);
    /* Freed unread: the slot is skipped to its end. */
    c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    dedit_request_free(r);
    (void)s;
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

/* A request is freed when its last record is in the ring, and its slot is used again before its end is told on
 * the socket: what the next request has there already is not skipped with it. */
static void slot_used_early(struct fake_peer *p, int arg)
{
    Dedit__Wire__Accepted a = DEDIT__WIRE__ACCEPTED__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    fake_hello(p);
    fake_read(p);
    fake_accept(p);
    fake_tokens(p, 5, "old ");
    fake_tokens(p, 5, "old ");
    if (arg == 0)
        fake_finished(p);
    fake_read(p); /* Cancel */
    fake_read(p);
    if (arg == 1)
        fake_finished(p);
    a.has_request_id = a.has_slot = a.has_start = 1;
    a.start = p->ring.write_pos;
    fake_tokens(p, 6, "new ");
    fake_told(p, "cancelled", NULL);
    a.request_id = ++p->request_id;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED;
    m.accepted = &a;
    fake_answer(p, &m, NULL, 0);
    fake_tokens(p, 7, "answer");
    fake_finished(p);
    fake_told(p, "stop", NULL);
    fake_hang();
}

START_TEST(an_abandoned_slot_is_skipped_to_its_end_only)
{
    struct dedit_error e;
    struct dedit_event ev;
    struct dedit_request *r = NULL;
    struct fake f;
    char *text = NULL;
    fake_start(&f, slot_used_early, _i);
    struct dedit_client *c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    ck_assert_int_eq(dedit_request_next(r, &ev, -1, &e), 1);
    usleep(50000); /* what the script says before it reads on is in the ring */
    dedit_request_free(r);
    ck_dedit(submit(c, &r, &e), &e);
    ck_dedit(dedit_request_collect(r, &text, NULL, &ev, &e), &e);
    ck_assert_str_eq(text, "new answer");
    dedit_free(text);
    dedit_request_free(r);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

/* ---- how an answer may end ----------------------------------------------------------------------------------- */

static const struct {
    bool in_ring;
    int32_t ring_code;
    uint32_t ring_reason;
    const char *reason, *code; /* on the socket */
    int wanted;                /* 0: whole */
    const char *wanted_reason;
} ends[] = {
    {false, 0, 0, "stop", NULL, 0, "stop"},
    {false, 0, 0, "length", NULL, 0, "length"},
    {false, 0, 0, "cancelled", NULL, 0, "cancelled"},
    {false, 0, 0, "timeout", "timeout", DEDIT_ERR_TIMEOUT, "timeout"},
    {false, 0, 0, "shutdown", "closed", DEDIT_ERR_CLOSED, "shutdown"},
    /* Not said to be whole: not whole. */
    {false, 0, 0, "error", NULL, DEDIT_ERR_INTERNAL, "error"},
    {false, 0, 0, NULL, NULL, DEDIT_ERR_INTERNAL, "error"},
    {false, 0, 0, "stop", "no-such-code", DEDIT_ERR_INTERNAL, "stop"},
    {true, DEDIT_ERR_TIMEOUT, RING_FAILURE_TIMEOUT, "timeout", "timeout", DEDIT_ERR_TIMEOUT,
     "timeout"},
    {true, DEDIT_ERR_NUMERIC, RING_FAILURE_ERROR, "error", "numeric", DEDIT_ERR_NUMERIC, "error"},
    {true, DEDIT_ERR_CLOSED, RING_FAILURE_SHUTDOWN, "shutdown", "closed", DEDIT_ERR_CLOSED,
     "shutdown"},
    {true, DEDIT_ERR_TIMEOUT, RING_FAILURE_STALLED, "stalled", "timeout", DEDIT_ERR_TIMEOUT,
     "stalled"},
    {true, 0, RING_FAILURE_ERROR, "error", "io", DEDIT_ERR_INTERNAL, "error"},
    {true, 7, 99, "error", "io", DEDIT_ERR_INTERNAL, "error"},
};

static void ends_so(struct fake_peer *p, int arg)
{
    fake_hello(p);
    fake_read(p);
    fake_accept(p);
    fake_tokens(p, 1, "begun");
    if (ends[arg].in_ring)
        fake_failed(p, ends[arg].ring_code, ends[arg].ring_reason, "as the ring says");
    fake_told(p, ends[arg].reason, ends[arg].code);
    fake_read(p);
}

START_TEST(ends_of_answers)
{
    struct dedit_error e;
    struct dedit_event ev;
    struct dedit_request *r = NULL;
    struct fake f;
    char *text = NULL;
    fake_start(&f, ends_so, _i);
    struct dedit_client *c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    int n = dedit_request_collect(r, &text, NULL, &ev, &e);
    if (ends[_i].wanted)
        fails_with(n, ends[_i].wanted, &e, ends[_i].code || ends[_i].in_ring ? "as the" : "");
    else
        ck_dedit(n, &e);
    ck_assert_uint_eq(ev.type, ends[_i].wanted ? DEDIT_EVENT_FAILED : DEDIT_EVENT_FINISHED);
    ck_assert_str_eq(ev.finish_reason, ends[_i].wanted_reason);
    if (!ends[_i].wanted)
        ck_assert_str_eq(text, "begun");
    dedit_free(text);
    dedit_request_free(r);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

/* ---- death ------------------------------------------------------------------------------------------------------ */

#define STEPS 8
static void dies_at(struct fake_peer *p, int step)
{
    if (step == 0)
        return;
    if (step == 1) {
        fake_read(p);
        return;
    }
    fake_hello(p);
    if (step == 2)
        return;
    fake_read(p);
    if (step == 3)
        return;
    fake_accept(p);
    if (step == 4)
        return;
    fake_tokens(p, 1, "one");
    if (step == 5)
        return;
    fake_tokens(p, 2, "two");
    if (step == 6)
        return;
    fake_finished(p);
    if (step == 7)
        return;
    fake_told(p, "stop", NULL);
}

/* Death at each step: an error at once, or the whole answer; nothing in between, nothing left. */
START_TEST(a_daemon_that_dies)
{
    struct dedit_error e;
    struct dedit_client *c = NULL;
    struct dedit_request *r = NULL;
    struct fake f;
    char *text = NULL;
    fake_start(&f, dies_at, _i);
    uint64_t start = clock_now_ns();
    int n = dedit_client_connect(f.path, &c, &e);
    if (n == 0)
        n = submit(c, &r, &e);
    if (n == 0)
        n = dedit_request_collect(r, &text, NULL, NULL, &e);
    ck_assert_uint_lt(clock_now_ns() - start, 20000000000u);
    if (_i >= 7) {
        ck_dedit(n, &e);
        ck_assert_str_eq(text, "onetwo");
    } else {
        fails_with(n, DEDIT_ERR_CLOSED, &e, "closed");
        ck_assert_ptr_null(text);
    }
    if (c) {
        /* The loop's descriptor tells it, too. */
        struct pollfd p = {.fd = dedit_client_fd(c), .events = POLLIN};
        if (_i < 7) {
            ck_assert_int_eq(poll(&p, 1, 1000), 1);
            fails_with(dedit_client_prepare(c, &e), DEDIT_ERR_CLOSED, &e, "");
            fails_with(dedit_client_dispatch(c, &e), DEDIT_ERR_CLOSED, &e, "");
        }
        ck_assert_int_ge(dedit_client_socket(c), 0);
    }
    dedit_free(text);
    dedit_request_free(r);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

static void farewell(struct fake_peer *p, int arg)
{
    Dedit__Wire__Error err = DEDIT__WIRE__ERROR__INIT;
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    char code[] = "limit-exceeded", message[] = "max_connections is 4";
    (void)arg;
    fake_hello(p);
    err.code = code;
    err.message = message;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ERROR;
    m.error = &err;
    fake_event(p, &m);
}

START_TEST(last_words_are_told)
{
    struct dedit_error e;
    struct dedit_request *r = NULL;
    struct fake f;
    fake_start(&f, farewell, 0);
    struct dedit_client *c = connected(&f);
    usleep(20000);
    fails_with(submit(c, &r, &e), DEDIT_ERR_LIMIT, &e, "max_connections");
    fails_with(submit(c, &r, &e), DEDIT_ERR_LIMIT, &e, "max_connections");
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

static void slow(struct fake_peer *p, int arg)
{
    (void)arg;
    fake_hello(p);
    fake_read(p);
    fake_accept(p);
    usleep(120000);
    fake_tokens(p, 1, "late");
    fake_hang();
}

START_TEST(waiting_ends_on_time)
{
    struct dedit_error e;
    struct dedit_event ev;
    struct dedit_request *r = NULL;
    struct fake f;
    fake_start(&f, slow, 0);
    struct dedit_client *c = connected(&f);
    ck_dedit(submit(c, &r, &e), &e);
    ck_assert_int_eq(dedit_request_next(r, &ev, 0, &e), 0);
    uint64_t start = clock_now_ns();
    ck_assert_int_eq(dedit_request_next(r, &ev, 30, &e), 0);
    uint64_t took = clock_now_ns() - start;
    ck_assert_uint_ge(took, 29000000u);
    ck_assert_int_eq(dedit_request_next(r, &ev, -1, &e), 1);
    ck_assert_int_eq(memcmp(ev.text, "late", 4), 0);
    /* The caller's loop: asleep until something is there. */
    dedit_client_set_spin(c, 0);
    ck_assert_int_eq(dedit_request_next(r, &ev, 20, &e), 0);
    ck_assert_int_eq(dedit_client_prepare(c, &e), 1);
    dedit_request_free(r);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("libdedit");
    TCase *t = test_case(s, "connect");
    tcase_add_test(t, nobody_listens);
    tcase_add_test(t, a_socket_that_this_user_may_not_use);
    tcase_add_test(t, the_path_comes_from_the_environment);
    tcase_add_loop_test(t, wrong_greetings, 0, N_GREETINGS);
    tcase_add_test(t, silence_has_an_end);
    t = test_case(s, "answers");
    tcase_add_test(t, each_code_arrives);
    tcase_add_test(t, a_whole_answer);
    tcase_add_test(t, objects_may_go_in_any_order);
    tcase_add_loop_test(t, an_abandoned_slot_is_skipped_to_its_end_only, 0, 2);
    tcase_add_loop_test(t, ends_of_answers, 0, (int)ARRAY_LEN(ends));
    t = test_case(s, "death");
    tcase_add_loop_test(t, a_daemon_that_dies, 0, STEPS + 1);
    tcase_add_test(t, last_words_are_told);
    tcase_add_test(t, waiting_ends_on_time);
    return test_main(s);
}
