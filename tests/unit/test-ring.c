/* SPDX-License-Identifier: Apache-2.0 */
/* The token ring: seals, laps, back-pressure, wake-ups without re-checks, hostile cursors. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/ring.h"
#include "tests/unit/util.h"

struct pair {
    struct ring_writer w;
    struct ring_reader r;
};

static void pair_init(struct pair *p, uint32_t capacity)
{
    struct error err = {0};
    ck_ok(ring_writer_init(&p->w, capacity, &err), &err);
    ck_ok(ring_reader_init(&p->r, dup(p->w.ring_fd), dup(p->w.cursor_fd), dup(p->w.event_fd), &err),
          &err);
}

static void pair_done(struct pair *p)
{
    ring_reader_done(&p->r);
    ring_writer_done(&p->w);
}

static uint32_t round8(uint32_t n)
{
    return (n + 7) & ~7u;
}

/* One TOKENS record of one token with the given text.  Returns ring_reserve's result. */
static int put_token(struct ring_writer *w, uint32_t id, const char *text, uint32_t len)
{
    struct error err = {0};
    void *p = NULL;
    uint32_t size = round8((uint32_t)(sizeof(struct ring_tokens) + sizeof(struct ring_token)) + len);
    int r = ring_reserve(w, size, &p, &err);
    if (r != 0)
        return r;
    struct ring_tokens *t = p;
    memset((char *)p + sizeof t->rec, 0, size - sizeof t->rec);
    t->rec.type = RING_TOKENS;
    t->round = id;
    t->n_tokens = 1;
    t->text_bytes = len;
    t->first_index = id;
    struct ring_token *k = (struct ring_token *)(t + 1);
    k->id = id;
    k->text_bytes = len;
    memcpy(k + 1, text, len);
    return 0;
}

START_TEST(client_cannot_write_the_ring)
{
    struct pair p;
    pair_init(&p, RING_MIN_CAPACITY);
    size_t bytes = RING_HEADER_BYTES + RING_MIN_CAPACITY;
    ck_assert_ptr_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p.r.ring_fd, 0),
                     MAP_FAILED);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_ne(mprotect((void *)(uintptr_t)p.r.header, 4096, PROT_READ | PROT_WRITE), 0);
    ck_assert_int_eq(write(p.r.ring_fd, "x", 1), -1);
    ck_assert_int_ne(ftruncate(p.r.ring_fd, 0), 0);
    ck_assert_int_ne(ftruncate(p.r.ring_fd, (off_t)bytes * 2), 0);
    ck_assert_int_ne(ftruncate(p.r.cursor_fd, 0), 0);
    ck_assert_int_ne(fcntl(p.r.cursor_fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    pair_done(&p);
}
END_TEST

START_TEST(capacity_must_be_a_power_of_two_in_range)
{
    static const uint32_t bad[] = {0, 1, RING_MIN_CAPACITY / 2, RING_MIN_CAPACITY + 8,
                                   RING_MAX_CAPACITY * 2u};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct ring_writer w = {.ring_fd = -1, .cursor_fd = -1, .event_fd = -1};
        struct error err = {0};
        ck_fails(ring_writer_init(&w, bad[i], &err), INVALID, &err);
    }
}
END_TEST

START_TEST(nothing_is_seen_before_publish)
{
    struct pair p;
    struct ring_view v;
    struct error err = {0};
    pair_init(&p, RING_MIN_CAPACITY);
    ck_assert_uint_eq(ring_writer_begin(&p.w, 7), 0);
    ck_assert_int_eq(put_token(&p.w, 1, "a", 1), 0);
    ck_assert_int_eq(put_token(&p.w, 2, "b", 1), 0);
    ck_assert_int_eq(ring_reader_next(&p.r, &v, &err), 1);
    ring_publish(&p.w);
    for (uint32_t i = 1; i <= 2; i++) {
        ck_ok(ring_reader_next(&p.r, &v, &err), &err);
        ck_assert_int_eq(v.type, RING_TOKENS);
        ck_assert_uint_eq(v.token[0].id, i);
        ck_assert_int_eq(v.text[0], i == 1 ? 'a' : 'b');
        ring_reader_advance(&p.r, v.size);
    }
    ck_assert_int_eq(ring_reader_next(&p.r, &v, &err), 1);
    ck_assert_int_eq(put_token(&p.w, 3, "c", 1), 0);
    ring_discard(&p.w);
    ring_publish(&p.w);
    ck_assert_int_eq(ring_reader_next(&p.r, &v, &err), 1);
    pair_done(&p);
}
END_TEST

/* Records of all sizes over many laps: order and content survive; no record wraps. */
START_TEST(laps_keep_order_and_content)
{
    struct pair p;
    struct error err = {0};
    static char text[20000];
    uint32_t sent = 0, got = 0;
    unsigned seed = 1;

    pair_init(&p, RING_MIN_CAPACITY);
    for (unsigned step = 0; step < 20000; step++) {
        seed = seed * 1103515245u + 12345u;
        uint32_t len = (seed >> 16) % 3000;
        if (step % 97 == 0)
            len = 15000 + (seed >> 8) % 5000;
        memset(text, 'a' + (int)(sent % 26), len);
        int r = put_token(&p.w, sent, text, len);
        if (r == 0) {
            sent++;
            ring_publish(&p.w);
        } else {
            ck_assert_int_eq(r, 1);
        }
        if (r == 1 || seed & 0x10000) {
            struct ring_view v;
            while ((r = ring_reader_next(&p.r, &v, &err)) == 0) {
                ck_assert_uint_eq(v.token[0].id, got);
                for (uint32_t i = 0; i < v.text_bytes; i++)
                    if (v.text[i] != 'a' + (int)(got % 26))
                        ck_abort_msg("text of record %u is damaged", got);
                got++;
                ring_reader_advance(&p.r, v.size);
                if (seed & 0x20000)
                    break;
            }
            ck_assert_int_ge(r, 0);
            ring_reader_release(&p.r);
        }
    }
    ck_assert_uint_gt(sent, 10000);
    ck_assert_uint_gt(p.w.write_pos, 10ull * RING_MIN_CAPACITY);
    pair_done(&p);
}
END_TEST

START_TEST(full_ring_stalls_and_resumes)
{
    struct pair p;
    struct ring_view v;
    struct error err = {0};
    static char text[8000];
    uint32_t n = 0;

    memset(text, 'x', sizeof text);
    pair_init(&p, RING_MIN_CAPACITY);
    while (put_token(&p.w, n, text, sizeof text) == 0)
        n++;
    ck_assert_uint_ge(n, 4);
    ring_publish(&p.w);
    ck_assert_int_eq(ring_writer_stall(&p.w, &err), 1);
    ck_assert_int_eq(ring_writer_stalled(&p.w, &err), 1);

    bool told = false;
    for (uint32_t i = 0; i < n; i++) {
        ck_ok(ring_reader_next(&p.r, &v, &err), &err);
        ring_reader_advance(&p.r, v.size);
        if (ring_reader_release(&p.r)) {
            ck_assert_msg(!told, "RingMoved twice for one stall");
            told = true;
            ck_assert_int_eq(ring_writer_stalled(&p.w, &err), 0);
        } else {
            ck_assert_int_eq(ring_writer_stalled(&p.w, &err), told ? 0 : 1);
        }
    }
    ck_assert(told);
    ck_assert_int_eq(put_token(&p.w, n, text, sizeof text), 0);
    pair_done(&p);
}
END_TEST

START_TEST(old_requests_leftovers_are_skipped)
{
    struct pair p;
    struct ring_view v;
    struct error err = {0};
    bool drained = true;
    pair_init(&p, RING_MIN_CAPACITY);
    ring_writer_begin(&p.w, 1);
    put_token(&p.w, 1, "old", 3);
    ring_publish(&p.w);
    ring_writer_end(&p.w);
    ck_ok(ring_writer_drained(&p.w, &drained, &err), &err);
    ck_assert(!drained);
    uint64_t start = ring_writer_begin(&p.w, 2);
    ring_reader_begin(&p.r, start);
    ck_ok(ring_writer_drained(&p.w, &drained, &err), &err);
    ck_assert(drained);
    put_token(&p.w, 2, "new", 3);
    ring_publish(&p.w);
    ck_ok(ring_reader_next(&p.r, &v, &err), &err);
    ck_assert_uint_eq(v.token[0].id, 2);
    ck_assert_uint_eq(p.r.header->request_id, 2);
    pair_done(&p);
}
END_TEST

START_TEST(hostile_cursor_is_refused)
{
    static const uint64_t bad[] = {1, 7, 8u << 20, UINT64_MAX, UINT64_MAX - 7, 1ull << 63};
    struct pair p;
    struct error err = {0};
    bool drained;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        pair_init(&p, RING_MIN_CAPACITY);
        put_token(&p.w, 1, "abc", 3);
        ring_publish(&p.w);
        p.r.cursor->read_pos = bad[i];
        ck_assert_int_eq(put_token(&p.w, 2, "x", 1), DEDIT_E_PROTOCOL);
        ck_fails(ring_writer_drained(&p.w, &drained, &err), PROTOCOL, &err);
        ck_fails(ring_writer_stall(&p.w, &err), PROTOCOL, &err);
        pair_done(&p);
    }
    /* Backwards: a position that was accepted may not be taken back. */
    pair_init(&p, RING_MIN_CAPACITY);
    put_token(&p.w, 1, "abc", 3);
    ring_publish(&p.w);
    p.r.cursor->read_pos = p.w.write_pos;
    ck_ok(ring_writer_drained(&p.w, &drained, &err), &err);
    p.r.cursor->read_pos = 0;
    ck_fails(ring_writer_drained(&p.w, &drained, &err), PROTOCOL, &err);
    pair_done(&p);
}
END_TEST

/* A thread scribbles over the cursor page while the writer works: no write leaves the ring. */
static void *scribble(void *arg)
{
    struct ring_cursor *c = arg;
    unsigned seed = 42;
    for (int i = 0; i < 3000000; i++) {
        seed = seed * 1664525u + 1013904223u;
        __atomic_store_n(&c->read_pos, (uint64_t)seed * seed, __ATOMIC_RELAXED);
        __atomic_store_n(&c->read_pos, seed & 0xfff8u, __ATOMIC_RELAXED);
        __atomic_store_n(&c->asleep, seed, __ATOMIC_RELAXED);
    }
    return NULL;
}

START_TEST(scribbled_cursor_never_breaks_the_writer)
{
    struct pair p;
    pthread_t t;
    static char text[3000];
    unsigned ok = 0, refused = 0;
    memset(text, 'y', sizeof text);
    pair_init(&p, RING_MIN_CAPACITY);
    /* Before the scribbling there is room; afterwards the writer may refuse everything. */
    ok += put_token(&p.w, 0, text, 1) == 0;
    ck_assert_int_eq(pthread_create(&t, NULL, scribble, p.r.cursor), 0);
    for (uint32_t i = 0; i < 200000; i++) {
        int r = put_token(&p.w, i, text, i % sizeof text);
        if (r == 0) {
            ring_publish(&p.w);
            ok++;
        } else {
            refused++;
        }
        if (p.w.last_read > p.w.write_pos)
            ck_abort_msg("read position %llu after the end", (unsigned long long)p.w.last_read);
    }
    pthread_join(t, NULL);
    ck_assert_uint_gt(refused, 0);
    ck_assert_uint_gt(ok, 0);
    ck_assert_uint_eq(p.w.header->capacity, RING_MIN_CAPACITY);
    pair_done(&p);
}
END_TEST

/* Reader in another process; it only ever sleeps in poll without a timeout: a lost wake-up hangs. */
static void reader_process(struct ring_reader *r, uint32_t n, int moved_fd)
{
    uint32_t got = 0;
    struct error err = {0};
    while (got < n) {
        struct ring_view v;
        int e = ring_reader_next(r, &v, &err);
        if (e < 0 || (e == 0 && v.token[0].id != got))
            _exit(3);
        if (e == 0) {
            got++;
            ring_reader_advance(r, v.size);
            continue;
        }
        if (ring_reader_release(r) && write(moved_fd, "m", 1) != 1)
            _exit(4);
        if (!ring_reader_sleep(r))
            continue;
        struct pollfd f = {.fd = r->event_fd, .events = POLLIN};
        if (poll(&f, 1, -1) < 0 && errno != EINTR)
            _exit(5);
        ring_reader_awake(r);
    }
    _exit(0);
}

START_TEST(no_wakeup_is_lost_without_rechecks)
{
    const uint32_t n = 300000;
    struct pair p;
    struct error err = {0};
    int moved[2], status;
    pair_init(&p, RING_MIN_CAPACITY);
    ck_assert_int_eq(pipe(moved), 0);
    pid_t pid = fork();
    if (pid == 0)
        reader_process(&p.r, n, moved[1]);
    unsigned seed = 9;
    for (uint32_t i = 0; i < n;) {
        int r = put_token(&p.w, i, "tok", 3);
        ck_assert_int_ge(r, 0);
        if (r == 0) {
            i++;
            seed = seed * 1664525u + 1013904223u;
            if (seed >> 28 == 0 || i == n)
                ring_publish(&p.w);
            if (seed >> 20 == 5)
                for (unsigned k = seed & 0x3ff; k > 0; k--)
                    __atomic_signal_fence(__ATOMIC_SEQ_CST);
            continue;
        }
        ring_publish(&p.w);
        if (ring_writer_stall(&p.w, &err) == 1) {
            char c;
            do
                ck_assert_int_eq(read(moved[0], &c, 1), 1); /* sleeps until RingMoved */
            while (ring_writer_stalled(&p.w, &err) == 1);
        }
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_le(p.w.wakes, n);
    close(moved[0]);
    close(moved[1]);
    pair_done(&p);
}
END_TEST

START_TEST(at_most_one_wake_for_a_commit_and_none_for_a_running_reader)
{
    struct pair p;
    struct error err = {0};
    struct ring_view v;
    pair_init(&p, RING_MIN_CAPACITY);
    for (uint32_t i = 0; i < 10; i++)
        put_token(&p.w, i, "t", 1);
    ring_publish(&p.w);
    ck_assert_uint_eq(p.w.wakes, 0);
    while (ring_reader_next(&p.r, &v, &err) == 0)
        ring_reader_advance(&p.r, v.size);
    ring_reader_release(&p.r);
    ck_assert(ring_reader_sleep(&p.r));
    for (uint32_t i = 0; i < 10; i++)
        put_token(&p.w, i, "t", 1);
    ring_publish(&p.w);
    ck_assert_uint_eq(p.w.wakes, 1);
    ring_publish(&p.w); /* nothing pending: no wake */
    ck_assert_uint_eq(p.w.wakes, 1);
    ring_reader_awake(&p.r);
    ck_assert(!ring_reader_sleep(&p.r)); /* records are there */
    pair_done(&p);
}
END_TEST

START_TEST(reader_refuses_unsealed_and_small_files)
{
    struct error err = {0};
    struct ring_reader r;
    struct ring_writer w;
    ck_ok(ring_writer_init(&w, RING_MIN_CAPACITY, &err), &err);
    int plain = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(plain, RING_HEADER_BYTES + RING_MIN_CAPACITY), 0);
    ck_assert_int_lt(ring_reader_init(&r, plain, dup(w.cursor_fd), dup(w.event_fd), &err), 0);
    ck_assert_int_lt(ring_reader_init(&r, dup(w.cursor_fd), dup(w.cursor_fd), dup(w.event_fd), &err),
                     0);
    ck_assert_int_lt(ring_reader_init(&r, dup(w.ring_fd), dup(w.event_fd), dup(w.event_fd), &err), 0);
    ck_assert_int_lt(ring_reader_init(&r, -1, -1, -1, &err), 0);
    ring_writer_done(&w);
}
END_TEST

/* ---- the validator ------------------------------------------------------------------------------ */

union record {
    uint64_t align;
    uint8_t b[512];
    struct ring_record rec;
    struct ring_tokens tokens;
    struct ring_round round;
    struct ring_finished finished;
    struct ring_failed failed;
};

/* Two tokens, one alternative, a four-byte character and five letters. */
static void make_tokens(union record *u)
{
    *u = (union record){0};
    u->tokens = (struct ring_tokens){.rec = {.size = 88, .type = RING_TOKENS}, .n_tokens = 2,
                                     .n_alternatives = 1, .text_bytes = 9};
    struct ring_token *t = (struct ring_token *)(u->b + 32);
    t[0] = (struct ring_token){.id = 5, .n_alternatives = 1, .text_bytes = 4};
    t[1] = (struct ring_token){.id = 6, .text_bytes = 5};
    memcpy(u->b + 72, "\xf0\x9f\x98\x80hello", 9);
}

START_TEST(validator_accepts_what_is_whole)
{
    union record u;
    struct ring_view v;
    struct error err = {0};
    make_tokens(&u);
    ck_ok(ring_validate(&u, 88, &v, &err), &err);
    ck_assert_uint_eq(v.text_bytes, 9);
    ck_assert_uint_eq(v.token[1].id, 6);
    u = (union record){.rec = {.size = 64, .type = RING_PAD}};
    ck_assert_int_eq(ring_validate(&u, 64, &v, &err), 1);
    u.rec.type = 99;
    ck_assert_int_eq(ring_validate(&u, 64, &v, &err), 1);
    ck_assert_uint_eq(v.size, 64);
    u = (union record){0};
    u.finished.rec = (struct ring_record){.size = 104, .type = RING_FINISHED};
    u.finished.reason = RING_FINISH_STOP;
    u.finished.stop_bytes = 3;
    memcpy(u.b + 96, "END", 3);
    ck_ok(ring_validate(&u, 104, &v, &err), &err);
    ck_assert_int_eq(memcmp(v.text, "END", 3), 0);
}
END_TEST

START_TEST(validator_refuses_every_lie)
{
    /* One 32-bit word of a record that is right otherwise. */
    static const struct {
        const char *what;
        uint32_t avail, at, value;
    } lies[] = {
        {"size 0", 88, 0, 0},
        {"size 7", 88, 0, 7},
        {"size 4 G", 88, 0, 0xffffffff},
        {"size over what is there", 80, 0, 88},
        {"size under the fixed part", 88, 0, 24},
        {"n_tokens", 88, 16, 0xffffffff},
        {"n_tokens over the limit", 88, 16, 65},
        {"n_tokens one more", 88, 16, 3},
        {"n_tokens one less", 88, 16, 1},
        {"n_alternatives", 88, 20, 0xffffffff},
        {"n_alternatives other", 88, 20, 2},
        {"text_bytes", 88, 24, 0xffffffff},
        {"text_bytes other", 88, 24, 8},
        {"token's text", 88, 32 + 12, 0xffffffff},
        {"token's text cuts a character", 88, 32 + 12, 3},
        {"token's alternatives", 88, 32 + 4, 0xffff0000},
    };
    union record u;
    struct ring_view v;
    struct error err = {0};
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        make_tokens(&u);
        err.msg[0] = 0;
        memcpy(u.b + lies[i].at, &lies[i].value, 4);
        int r = ring_validate(&u, lies[i].avail, &v, &err);
        ck_assert_msg(r == DEDIT_E_PROTOCOL, "%s: %d", lies[i].what, r);
        ck_assert_msg(err.msg[0], "%s: no message", lies[i].what);
    }
    u = (union record){.rec = {.size = 48, .type = RING_FINISHED}};
    ck_fails(ring_validate(&u, 48, &v, &err), PROTOCOL, &err);
    u.rec = (struct ring_record){.size = 24, .type = RING_FAILED};
    u.failed.message_bytes = 1;
    ck_fails(ring_validate(&u, 24, &v, &err), PROTOCOL, &err);
    u = (union record){.rec = {.size = 32, .type = RING_ROUND}};
    u.round.passes = 0x40000000;
    ck_fails(ring_validate(&u, 32, &v, &err), PROTOCOL, &err);
    /* 2 passes of a window of 3, 2 nodes: 2 + 3 + 6 + 2 + 2 words. */
    static const uint32_t round_lies[][2] = {{16, 4}, {20, 3}, {20, 1}, {24, 3}, {24, 0}, {88, 2},
                                             {88, 0xfffffffe}, {24, 0xffffffff}};
    for (size_t i = 0; i <= ARRAY_LEN(round_lies); i++) {
        u = (union record){.rec = {.size = 96, .type = RING_ROUND}};
        u.round.window = 3;
        u.round.passes = 2;
        u.round.nodes = 2;
        memset(u.b + 84, 0xff, 4);
        if (i == 0) {
            ck_ok(ring_validate(&u, 96, &v, &err), &err);
            ck_assert_ptr_eq(v.node_parent, u.b + 84);
            ck_assert_int_eq(v.node_parent[1], 0);
            continue;
        }
        memcpy(u.b + round_lies[i - 1][0], &round_lies[i - 1][1], 4);
        ck_fails(ring_validate(&u, 96, &v, &err), PROTOCOL, &err);
    }
}
END_TEST

/* Any bytes: an answer, never a read outside [0, avail). */
START_TEST(validator_survives_random_bytes)
{
    unsigned seed = 3, seen[2] = {0, 0};
    for (int i = 0; i < 300000; i++) {
        size_t n = (seed >> 20) % 160;
        uint8_t *b = malloc(n ? n : 1); /* exact size: the sanitizer sees one byte too many */
        for (size_t k = 0; k < n; k++) {
            seed = seed * 1664525u + 1013904223u;
            b[k] = (seed >> 24) & ((seed >> 23) & 1 ? 0xff : 0x07);
        }
        if (n >= 8) {
            b[0] = (uint8_t)(n & 0xf8);
            b[1] = b[2] = b[3] = 0;
            b[4] = (uint8_t)(seed >> 29);
            b[5] = 0;
        }
        struct ring_view v;
        struct error err = {0};
        int r = ring_validate(b, n, &v, &err);
        ck_assert(r == 0 || r == 1 || r == DEDIT_E_PROTOCOL);
        if (r >= 0)
            seen[r]++;
        free(b);
        seed = seed * 1664525u + 1013904223u;
    }
    ck_assert_uint_gt(seen[1], 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ring");
    TCase *t = test_case(s, "ring");
    tcase_add_test(t, client_cannot_write_the_ring);
    tcase_add_test(t, capacity_must_be_a_power_of_two_in_range);
    tcase_add_test(t, nothing_is_seen_before_publish);
    tcase_add_test(t, laps_keep_order_and_content);
    tcase_add_test(t, full_ring_stalls_and_resumes);
    tcase_add_test(t, old_requests_leftovers_are_skipped);
    tcase_add_test(t, hostile_cursor_is_refused);
    tcase_add_test(t, scribbled_cursor_never_breaks_the_writer);
    tcase_add_test(t, no_wakeup_is_lost_without_rechecks);
    tcase_add_test(t, at_most_one_wake_for_a_commit_and_none_for_a_running_reader);
    tcase_add_test(t, reader_refuses_unsealed_and_small_files);
    t = test_case(s, "validator");
    tcase_add_test(t, validator_accepts_what_is_whole);
    tcase_add_test(t, validator_refuses_every_lie);
    tcase_add_test(t, validator_survives_random_bytes);
    return test_main(s);
}
