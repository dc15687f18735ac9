/* SPDX-License-Identifier: Apache-2.0 */
/* What the thread pool costs: pool [threads].  Barriers, regions one after the other, regions after a
 * pause in which the workers fell asleep. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "kernels/kernels.h"

#define BARRIERS 20000u

static void barriers(void *arg, const struct dk_par *par)
{
    (void)arg;
    for (unsigned i = 0; i < BARRIERS; i++)
        dk_barrier(par);
}

static void nothing(void *arg, const struct dk_par *par)
{
    (void)arg;
    (void)par;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void show(const char *what, uint64_t *t, unsigned n, unsigned per)
{
    qsort(t, n, sizeof *t, by_value);
    printf("%-28s p10 %9.3f us   p50 %9.3f us   p90 %9.3f us\n", what, (double)t[n / 10] / 1e3 / per,
           (double)t[n / 2] / 1e3 / per, (double)t[n * 9 / 10] / 1e3 / per);
}

int main(int argc, char **argv)
{
    unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
    static uint64_t t[1000];
    struct dk_pool *p;
    struct error err;
    if (dk_pool_new(n, &p, &err) < 0)
        return 1;
    for (unsigned i = 0; i < 50; i++) {
        uint64_t a = clock_now_ns();
        dk_pool_run(p, barriers, NULL);
        t[i] = clock_now_ns() - a;
    }
    show("barrier", t, 50, BARRIERS);
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t a = clock_now_ns();
        dk_pool_run(p, nothing, NULL);
        t[i] = clock_now_ns() - a;
    }
    show("region, workers spinning", t, 1000, 1);
    for (unsigned i = 0; i < 200; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        uint64_t a = clock_now_ns();
        dk_pool_run(p, nothing, NULL);
        t[i] = clock_now_ns() - a;
    }
    show("region, workers asleep", t, 200, 1);
    dk_pool_free(p);
    return 0;
}
