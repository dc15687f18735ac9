/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool: everybody runs, barriers order memory, few CPUs, sleeping and waking, failures. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/alloc.h"
#include "kernels/kernels.h"
#include "tests/unit/util.h"

static struct dk_pool *pool_of(unsigned n)
{
    struct dk_pool *p = NULL;
    struct error err = {0};
    ck_ok(dk_pool_new(n, &p, &err), &err);
    ck_assert_uint_eq(dk_pool_size(p), n);
    return p;
}

struct counts {
    unsigned runs[64], n;
};

static void count(void *arg, const struct dk_par *par)
{
    struct counts *c = arg;
    c->runs[par->tid]++; /* not atomic: a member of its own each */
    if (par->tid == 0)
        c->n = par->n;
}

START_TEST(everybody_runs_once)
{
    for (unsigned n = 1; n <= 9; n++) {
        struct dk_pool *p = pool_of(n);
        struct counts c = {.n = 0};
        for (unsigned r = 1; r <= 50; r++) {
            dk_pool_run(p, count, &c);
            ck_assert_uint_eq(c.n, n);
            for (unsigned i = 0; i < n; i++)
                ck_assert_uint_eq(c.runs[i], r);
        }
        ck_assert_uint_eq(c.runs[n], 0);
        ck_assert_ptr_null(dk_pool_free(p));
    }
    ck_assert_ptr_null(dk_pool_free(NULL));
}
END_TEST

/* Each member writes its slot, and after the barrier reads the others' slots, plain memory. */
struct relay {
    uint32_t slot[64], steps;
    unsigned wrong[64];
};

static void relay(void *arg, const struct dk_par *par)
{
    struct relay *m = arg;
    for (uint32_t s = 1; s <= m->steps; s++) {
        m->slot[par->tid] = s;
        dk_barrier(par);
        for (unsigned i = 0; i < par->n; i++)
            m->wrong[par->tid] += m->slot[i] != s;
        dk_barrier(par);
    }
}

static void relay_on(unsigned n, unsigned regions, uint32_t steps)
{
    struct dk_pool *p = pool_of(n);
    struct relay m = {.steps = steps};
    for (unsigned r = 0; r < regions; r++)
        dk_pool_run(p, relay, &m);
    for (unsigned i = 0; i < n; i++)
        ck_assert_uint_eq(m.wrong[i], 0);
    dk_pool_free(p);
}

START_TEST(barriers_order_memory)
{
    relay_on(2, 40, 200);
    relay_on(3, 20, 100);
    relay_on(7, 5, 60);
}
END_TEST

START_TEST(one_cpu_for_all)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    relay_on(4, 20, 50);
}
END_TEST

static void nap(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static void uneven(void *arg, const struct dk_par *par)
{
    struct counts *c = arg;
    if (par->tid == c->n % par->n)
        nap(1500); /* longer than anybody spins */
    c->runs[par->tid]++;
    dk_barrier(par);
    for (unsigned i = 0; i < par->n; i++)
        if (c->runs[i] != c->runs[par->tid])
            c->runs[63]++;
    dk_barrier(par);
}

START_TEST(sleepers_wake)
{
    struct dk_pool *p = pool_of(3);
    struct counts c = {.n = 0};
    for (unsigned r = 0; r < 30; r++) {
        c.n = r;
        dk_pool_run(p, uneven, &c);
        if (r % 3 == 0)
            nap(2000); /* workers go to sleep between regions */
    }
    ck_assert_uint_eq(c.runs[63], 0);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(c.runs[i], 30);
    nap(3000);
    dk_pool_free(p); /* asleep */
}
END_TEST

struct env {
    unsigned csr[8];
    sigset_t mask[8];
};

static void look(void *arg, const struct dk_par *par)
{
    struct env *e = arg;
#if defined(__x86_64__)
    e->csr[par->tid] = _mm_getcsr() & 0xffc0; /* without the sticky flags */
#endif
    pthread_sigmask(SIG_SETMASK, NULL, &e->mask[par->tid]);
}

START_TEST(worker_environment)
{
#if defined(__x86_64__)
    unsigned old = _mm_getcsr();
    _mm_setcsr(0xffc0); /* what a careless caller may have: flush, and round towards zero */
#endif
    struct dk_pool *p = pool_of(3);
    struct env e;
    dk_pool_run(p, look, &e);
    dk_pool_free(p);
    for (unsigned i = 1; i < 3; i++) {
#if defined(__x86_64__)
        ck_assert_uint_eq(e.csr[i], 0x1f80);
#endif
        ck_assert_int_eq(sigismember(&e.mask[i], SIGTERM), 1);
    }
    ck_assert_int_eq(sigismember(&e.mask[0], SIGTERM), 0);
#if defined(__x86_64__)
    dk_thread_init();
    ck_assert_uint_eq(_mm_getcsr(), 0x1f80);
    _mm_setcsr(old);
#endif
}
END_TEST

START_TEST(split_covers)
{
    for (unsigned n = 1; n <= 9; n++)
        for (size_t total = 0; total < 70; total++)
            for (size_t grain = 1; grain < 20; grain += 3) {
                size_t at = 0;
                for (unsigned t = 0; t < n; t++) {
                    struct dk_par par = {.tid = t, .n = n};
                    size_t a, b;
                    dk_split(&par, total, grain, &a, &b);
                    ck_assert_uint_eq(a, at);
                    ck_assert(b >= a && (b == total || b % grain == 0));
                    at = b;
                }
                ck_assert_uint_eq(at, total);
            }
}
END_TEST

START_TEST(refusals)
{
    struct dk_pool *p = NULL;
    struct error err = {0};
    ck_fails(dk_pool_new(0, &p, &err), INVALID, &err);
    ck_fails(dk_pool_new(65, &p, &err), INVALID, &err);
    ck_assert_ptr_null(p);
    ck_assert_ptr_nonnull(strstr(err.msg, "65"));
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        int r = dk_pool_new(2, &p, &err);
        ck_assert(r == (o.failed ? DEDIT_E_NOMEM : 0));
        if (!r)
            p = dk_pool_free(p);
    }
}
END_TEST

#ifndef DEDIT_SANITIZED
START_TEST(no_more_threads)
{
    /* No room for another stack. */
    struct rlimit old, low = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    getrlimit(RLIMIT_AS, &old);
    low.rlim_max = old.rlim_max;
    struct dk_pool *p = NULL;
    struct error err = {0};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &low), 0);
    int r = dk_pool_new(3, &p, &err);
    setrlimit(RLIMIT_AS, &old);
    /* the pool itself may be what finds no memory */
    ck_assert_msg(r == DEDIT_E_IO || r == DEDIT_E_NOMEM, "%d %s", r, err.msg);
    ck_assert_ptr_null(p);
}
END_TEST
#endif

int main(void)
{
    Suite *s = suite_create("pool");
    TCase *t = test_case(s, "pool");
    tcase_add_test(t, everybody_runs_once);
    tcase_add_test(t, barriers_order_memory);
    tcase_add_test(t, one_cpu_for_all);
    tcase_add_test(t, sleepers_wake);
    tcase_add_test(t, worker_environment);
    tcase_add_test(t, split_covers);
    tcase_add_test(t, refusals);
#ifndef DEDIT_SANITIZED
    tcase_add_test(t, no_more_threads);
#endif
    return test_main(s);
}
