/* SPDX-License-Identifier: Apache-2.0 */
/* The queue between two threads of the daemon: order, bounds, no lost wake-up; and the worker on top. */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "daemon/queue.h"
#include "daemon/worker.h"
#include "tests/unit/util.h"

START_TEST(order_and_bounds)
{
    static const size_t wanted[] = {0, 1, 16, 17, 100};
    static const size_t made[] = {16, 16, 16, 32, 128};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        struct queue *q;
        struct error err = {0};
        struct message m;
        uint32_t in = 0, out = 0;
        ck_ok(queue_new(wanted[i], &q, &err), &err);
        ck_assert(!queue_pop(q, &m));
        for (int lap = 0; lap < 5; lap++) { /* full and empty at every position */
            while (queue_push(q, (struct message){.type = in, .arg = ~in, .object = q}))
                in++;
            ck_assert_uint_eq(in - out, made[i]);
            for (size_t k = 0; k < made[i] - (size_t)lap; k++) {
                ck_assert(queue_pop(q, &m));
                ck_assert_uint_eq(m.type, out);
                ck_assert_uint_eq(m.arg, ~out);
                ck_assert_ptr_eq(m.object, q);
                out++;
            }
        }
        queue_free(q);
    }
    queue_free(NULL);
}
END_TEST

START_TEST(sleep_is_refused_when_something_is_there)
{
    struct queue *q;
    struct error err = {0};
    struct message m = {0};
    ck_ok(queue_new(16, &q, &err), &err);
    struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
    ck_assert(queue_push(q, m));
    ck_assert_int_eq(poll(&p, 1, 0), 0); /* nobody sleeps: no system call was made */
    ck_assert(!queue_sleep(q));
    ck_assert(queue_pop(q, &m));
    ck_assert(queue_sleep(q));
    ck_assert_int_eq(poll(&p, 1, 0), 0);
    ck_assert(queue_push(q, m));
    ck_assert_int_eq(poll(&p, 1, 0), 1);
    queue_awake(q);
    ck_assert_int_eq(poll(&p, 1, 0), 0);
    ck_assert(queue_pop(q, &m));
    queue_free(q);
}
END_TEST

/* Both sides sleep without a timeout when they cannot go on: a lost wake-up is a test that hangs. */
enum { MESSAGES = 400000 };
struct both {
    struct queue *there, *back;
};

static void pop_or_sleep(struct queue *q, struct message *m)
{
    while (!queue_pop(q, m))
        if (queue_sleep(q)) {
            struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
            poll(&p, 1, -1);
            queue_awake(q);
        }
}

static void *echo(void *arg)
{
    struct both *b = arg;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        struct message m;
        pop_or_sleep(b->there, &m);
        while (!queue_push(b->back, m))
            ;
    }
    return NULL;
}

START_TEST(no_wakeup_is_lost)
{
    struct both b;
    struct error err = {0};
    pthread_t t;
    uint32_t sent = 0, got = 0, seed = 1;
    ck_ok(queue_new(64, &b.there, &err), &err);
    ck_ok(queue_new(64, &b.back, &err), &err);
    ck_assert_int_eq(pthread_create(&t, NULL, echo, &b), 0);
    while (got < MESSAGES) {
        struct message m;
        seed = seed * 1664525u + 1013904223u;
        for (uint32_t k = 1 + (seed >> 28); k && sent < MESSAGES; k--) {
            if (sent - got >= 60 ||
                !queue_push(b.there, (struct message){.type = sent, .arg = sent * 3}))
                break;
            sent++;
        }
        /* All that is under way now and then, so that both really sleep. */
        for (uint32_t k = seed >> 20 & 3 ? 1 : sent - got; k; k--) {
            pop_or_sleep(b.back, &m);
            if (m.type != got || m.arg != got * 3)
                ck_abort_msg("message %u, wanted %u", m.type, got);
            got++;
        }
    }
    pthread_join(t, NULL);
    queue_free(b.there);
    queue_free(b.back);
}
END_TEST

static void work(void *object)
{
    int *n = object;
    *n *= 2;
}

START_TEST(a_worker_gives_everything_back_in_order)
{
    enum { N = 1000 };
    struct worker *w;
    struct error err = {0};
    static int numbers[N];
    struct message m;
    int got = 0, sent = 0;
    ck_ok(worker_new("test", 32, work, &w, &err), &err);
    ck_assert_int_eq(worker_fd(w), queue_fd(worker_results(w)));
    while (got < N) {
        while (sent < N && sent - got < 32) {
            numbers[sent] = sent;
            ck_assert(worker_give(w, &numbers[sent]));
            sent++;
        }
        pop_or_sleep(worker_results(w), &m);
        ck_assert_ptr_eq(m.object, &numbers[got]);
        ck_assert_int_eq(numbers[got], 2 * got);
        got++;
    }
    /* What is under way when it stops is done, and can be read. */
    for (int i = 0; i < 20; i++)
        ck_assert(worker_give(w, &numbers[i]));
    struct queue *q = worker_drain(w);
    for (int i = 0; i < 20; i++) {
        ck_assert(queue_pop(q, &m));
        ck_assert_int_eq(numbers[i], 4 * i);
    }
    ck_assert(!queue_pop(q, &m));
    worker_free(w);
    worker_free(NULL);
}
END_TEST

START_TEST(allocations_may_fail)
{
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct worker *w = NULL;
        struct error err = {0};
        int r = worker_new("test", 16, work, &w, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        worker_free(w);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("daemon-queue");
    TCase *t = test_case(s, "queue");
    tcase_add_test(t, order_and_bounds);
    tcase_add_test(t, sleep_is_refused_when_something_is_there);
    tcase_add_test(t, no_wakeup_is_lost);
    tcase_add_test(t, a_worker_gives_everything_back_in_order);
    tcase_add_test(t, allocations_may_fail);
    return test_main(s);
}
