/* SPDX-License-Identifier: Apache-2.0 */
/* Who runs next: users share equally, whatever they ask for; then priority; then arrival. */
#include <stdlib.h>

#include "base/alloc.h"
#include "daemon/fair.h"
#include "tests/unit/util.h"

static struct job *new_job(struct account *a, uint32_t prompt, uint32_t max_tokens,
                           int32_t priority)
{
    struct job *j = job_new();
    j->account = a;
    j->n_ids = prompt;
    j->sampling.max_tokens = max_tokens;
    j->priority = priority;
    return j;
}

static bool any(void *arg, struct job *j)
{
    (void)arg;
    (void)j;
    return true;
}

/* Ran to its end with everything that it asked for. */
static void ran(struct job *j)
{
    j->usage.prompt_tokens = (uint32_t)j->n_ids;
    j->usage.completion_tokens = j->sampling.max_tokens;
    fair_refund(j);
    job_free(j);
}

static void expect(struct fair_queue *q, struct job *want)
{
    struct job *got = fair_pop(q, any, NULL);
    ck_assert_ptr_eq(got, want);
    ran(got);
}

START_TEST(within_a_user_priority_then_arrival)
{
    struct fair_queue q = {0};
    struct account a = {.uid = 1};
    static const int32_t priorities[] = {5, 0, 5, -3, 0};
    static const int order[] = {3, 1, 4, 0, 2};
    struct job *j[5];
    ck_assert_ptr_null(fair_pop(&q, any, NULL));
    for (int i = 0; i < 5; i++)
        fair_push(&q, j[i] = new_job(&a, 10, 10, priorities[i]));
    ck_assert_uint_eq(q.len, 5);
    for (int i = 0; i < 5; i++)
        expect(&q, j[order[i]]);
    ck_assert_uint_eq(q.len, 0);
    ck_assert_ptr_null(q.first);
    ck_assert_ptr_null(q.last);
}
END_TEST

START_TEST(a_users_priority_does_not_pass_other_users)
{
    struct fair_queue q = {0};
    struct account a = {.uid = 1}, b = {.uid = 2};
    struct job *j[6];
    for (int i = 0; i < 4; i++)
        fair_push(&q, j[i] = new_job(&a, 10, 10, -100));
    for (int i = 4; i < 6; i++)
        fair_push(&q, j[i] = new_job(&b, 10, 10, 100));
    static const int order[] = {0, 4, 1, 5, 2, 3};
    for (int i = 0; i < 6; i++)
        expect(&q, j[order[i]]);
}
END_TEST

static bool not_this(void *arg, struct job *j)
{
    return j->account != arg;
}

START_TEST(who_may_not_run_is_passed_over)
{
    struct fair_queue q = {0};
    struct account a = {.uid = 1}, b = {.uid = 2};
    struct job *x = new_job(&a, 1, 1, 0), *y = new_job(&b, 1, 1, 0);
    fair_push(&q, x);
    fair_push(&q, y);
    ck_assert_ptr_eq(fair_pop(&q, not_this, &a), y);
    ck_assert_ptr_null(fair_pop(&q, not_this, &a));
    ck_assert_uint_eq(a.served, 0); /* who did not run was not charged */
    ran(y);
    expect(&q, x);
}
END_TEST

START_TEST(jobs_can_be_taken_out_anywhere)
{
    for (int out = 0; out < 4; out++) {
        struct fair_queue q = {0};
        struct account a = {.uid = 1};
        struct job *j[4];
        for (int i = 0; i < 4; i++)
            fair_push(&q, j[i] = new_job(&a, 1, 1, 0));
        fair_remove(&q, j[out]);
        ck_assert_uint_eq(q.len, 3);
        for (int i = 0; i < 4; i++)
            if (i != out)
                expect(&q, j[i]);
        job_free(j[out]);
    }
}
END_TEST

START_TEST(what_was_not_used_is_given_back)
{
    struct fair_queue q = {0};
    struct account a = {.uid = 1};
    struct job *j = new_job(&a, 100, 900, 0);
    fair_push(&q, j);
    fair_pop(&q, any, NULL);
    ck_assert_uint_eq(a.served, 1000);
    j->usage.prompt_tokens = 100;
    j->usage.cached_tokens = 60; /* the prefix cost nothing */
    j->usage.completion_tokens = 10;
    fair_refund(j);
    ck_assert_uint_eq(a.served, 50);
    fair_refund(j); /* once */
    ck_assert_uint_eq(a.served, 50);
    job_free(j);
}
END_TEST

/* A request that is cancelled in the queue, or refused, was never charged: it earns nothing. */
START_TEST(a_request_that_never_ran_earns_nothing)
{
    struct fair_queue q = {0};
    struct account a = {.uid = 1};
    struct job *j = new_job(&a, 100, 100, 0);
    fair_push(&q, j);
    fair_pop(&q, any, NULL);
    ran(j);
    uint64_t served = a.served;
    for (int i = 0; i < 10; i++) {
        j = new_job(&a, 1, 100000, 0);
        fair_push(&q, j);
        fair_remove(&q, j);
        fair_refund(j);
        ck_assert_uint_eq(a.served, served);
        job_free(j);
    }
}
END_TEST

START_TEST(a_user_who_was_away_has_no_credit)
{
    struct fair_queue q = {0};
    struct account a = {.uid = 1}, late = {.uid = 2};
    for (int i = 0; i < 100; i++) {
        struct job *j = new_job(&a, 50, 50, 0);
        fair_push(&q, j);
        expect(&q, j);
    }
    /* Both have plenty from now on: the late one gets half of it, not everything. */
    unsigned mine = 0;
    for (int i = 0; i < 40; i++) {
        fair_push(&q, new_job(&a, 50, 50, 0));
        fair_push(&q, new_job(&late, 50, 50, 0));
    }
    for (int i = 0; i < 40; i++) {
        struct job *j = fair_pop(&q, any, NULL);
        mine += j->account == &late;
        ran(j);
    }
    ck_assert_uint_ge(mine, 19);
    ck_assert_uint_le(mine, 22);
    for (struct job *j; (j = fair_pop(&q, any, NULL));)
        job_free(j);
}
END_TEST

/* Users with very different requests, all of them always waiting: equal tokens, within one request. */
START_TEST(users_get_equal_tokens)
{
    enum { USERS = 4, ROUNDS = 20000 };
    static const uint32_t biggest[USERS] = {10, 100, 1000, 4000};
    struct fair_queue q = {0};
    struct account a[USERS] = {{.uid = 1}, {.uid = 2}, {.uid = 3}, {.uid = 4}};
    uint64_t got[USERS] = {0};
    unsigned seed = 9;
    for (int u = 0; u < USERS; u++)
        for (int i = 0; i < 3 * (u + 1); i++) /* more requests do not get more either */
            fair_push(&q, new_job(&a[u], 1 + biggest[u] / 2, biggest[u] / 2, 0));
    for (int i = 0; i < ROUNDS; i++) {
        struct job *j = fair_pop(&q, any, NULL);
        int u = (int)(j->account - a);
        seed = seed * 1664525u + 1013904223u;
        j->usage.prompt_tokens = (uint32_t)j->n_ids;
        j->usage.completion_tokens = j->sampling.max_tokens;
        got[u] += fair_cost(j);
        fair_refund(j);
        job_free(j);
        uint32_t size = 1 + (seed >> 8) % biggest[u];
        fair_push(&q, new_job(&a[u], size, biggest[u] - size, 0));
        uint64_t low = UINT64_MAX, high = 0;
        for (int v = 0; v < USERS; v++) {
            low = got[v] < low ? got[v] : low;
            high = got[v] > high ? got[v] : high;
        }
        if (high - low > 2 * 4001)
            ck_abort_msg("round %d: %llu and %llu tokens", i, (unsigned long long)low,
                         (unsigned long long)high);
    }
    for (struct job *j; (j = fair_pop(&q, any, NULL));)
        job_free(j);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fair");
    TCase *t = test_case(s, "fair");
    tcase_add_test(t, within_a_user_priority_then_arrival);
    tcase_add_test(t, a_users_priority_does_not_pass_other_users);
    tcase_add_test(t, who_may_not_run_is_passed_over);
    tcase_add_test(t, jobs_can_be_taken_out_anywhere);
    tcase_add_test(t, what_was_not_used_is_given_back);
    tcase_add_test(t, a_request_that_never_ran_earns_nothing);
    tcase_add_test(t, a_user_who_was_away_has_no_credit);
    tcase_add_test(t, users_get_equal_tokens);
    return test_main(s);
}
