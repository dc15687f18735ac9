/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread pool of the kernels: a region runs one function on every member, which meet at
 * barriers inside it.
 *
 * A decoding step is one region with some hundred barriers, so both are a counter and a generation
 * word: who arrives last resets the counter and raises the generation, everybody else spins on it
 * for a bounded time and then sleeps in a futex.
 *
 * Spinning pays only while the others have CPUs of their own.  Where there are fewer CPUs than
 * members, nobody spins.  Where other programs use them, a member that waits in vain learns from it and
 * waits shorter the next time, down to nearly nothing (a sleeper is woken on a CPU that is free;
 * yielding was measured to keep two members on one CPU); now and then it tries the full time again.
 *
 * Who runs it: dk_pool_run by one thread at a time (tid 0), the rest by the pool's own threads.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/kernels.h"

#define MAX_THREADS 64u
/* How long a member spins before it sleeps; a wake-up costs some tens of microseconds.  Between
 * regions the caller samples and schedules, so workers wait longer there. */
#define SPIN_BARRIER_NS 60000u
#define SPIN_REGION_NS  200000u
#define SPIN_CHECK      32u /* pauses between two looks at the clock */
#define YIELDS          2u  /* instead of spinning, where CPUs are short */
#define IN_VAIN_MAX     6u  /* waits in vain halve the time so often at most */
#define TRY_AGAIN       32u /* every so many short waits, a full one */

/* A word to wait on: its value and the number of those asleep on it, on a line of their own. */
struct gate {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

/* What a member knows about waiting; touched by itself only. */
struct patience {
    _Alignas(64) uint32_t in_vain; /* lately */
    uint32_t short_waits;
};

struct dk_pool {
    struct gate region;  /* raised when a region (or the end) is published */
    struct gate barrier; /* raised when all members have arrived */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) void (*fn)(void *arg, const struct dk_par *par); /* NULL: threads end */
    void *arg;
    unsigned n, n_started;
    bool crowded; /* fewer CPUs than members */
    struct patience patience[MAX_THREADS];
    struct worker {
        struct dk_pool *pool;
        unsigned tid;
        pthread_t thread;
    } workers[MAX_THREADS];
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void gate_sleep(struct gate *g, uint32_t old)
{
    /* Counted before the last look at the value: gate_raise stores first and counts after, both in
     * the one order of sequentially consistent operations, so one of the two sees the other. */
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == old)
        syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static bool changed(struct gate *g, uint32_t old)
{
    return atomic_load_explicit(&g->value, memory_order_acquire) != old;
}

/* What a member fetches while it waits. */
struct fetch {
    const char *at, *end;
};

static bool spin(struct gate *g, uint32_t old, uint64_t ns, struct fetch f)
{
    uint64_t end = 0;
    for (; f.at < f.end; f.at += 64) {
        if (changed(g, old))
            return true;
        __builtin_prefetch(f.at, 0, 2);
    }
    do {
        for (unsigned i = 0; i < SPIN_CHECK; i++) {
            if (changed(g, old))
                return true;
            cpu_relax();
        }
        if (!end)
            end = clock_now_ns() + ns;
    } while (clock_now_ns() < end);
    return false;
}

/* Waits until the value is no longer old.  Acquires what was written before the raise. */
static void gate_wait(struct dk_pool *p, struct gate *g, uint32_t old, unsigned tid, struct fetch f)
{
    if (p->crowded) {
        for (unsigned i = 0; i < YIELDS; i++) {
            if (changed(g, old))
                return;
            sched_yield();
        }
        gate_sleep(g, old);
        return;
    }
    struct patience *m = &p->patience[tid];
    bool at_barrier = g == &p->barrier, full = m->in_vain == 0;
    if (at_barrier && !full && ++m->short_waits >= TRY_AGAIN) {
        m->short_waits = 0;
        full = true;
    }
    uint64_t ns = at_barrier ? SPIN_BARRIER_NS : SPIN_REGION_NS;
    if (spin(g, old, full ? ns : ns >> m->in_vain, f)) {
        if (at_barrier && full)
            m->in_vain = 0;
        return;
    }
    /* Between regions there may just be nothing to do: that teaches nothing. */
    if (at_barrier && m->in_vain < IN_VAIN_MAX)
        m->in_vain++;
    gate_sleep(g, old);
}

/* Publishes everything written so far. */
static void gate_raise(struct gate *g, uint32_t value)
{
    atomic_store(&g->value, value);
    if (atomic_load(&g->sleepers))
        syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void dk_barrier_fetch(const struct dk_par *par, const void *next, size_t bytes)
{
    struct dk_pool *p = par->pool;
    if (par->n == 1)
        return;
    /* Read before arriving: after it, the last one may raise the gate at any time. */
    uint32_t gen = atomic_load_explicit(&p->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == par->n - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        gate_raise(&p->barrier, gen + 1);
    } else {
        struct fetch f = {next, (const char *)next + bytes};
        gate_wait(p, &p->barrier, gen, par->tid, f);
    }
}

void dk_barrier(const struct dk_par *par)
{
    dk_barrier_fetch(par, NULL, 0);
}

void dk_thread_init(void)
{
#if defined(__x86_64__)
    /* All exceptions masked, round to nearest even, denormals neither flushed nor read as zero. */
    _mm_setcsr(0x1f80);
#endif
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct dk_pool *p = w->pool;
    struct dk_par par = {.tid = w->tid, .n = p->n, .pool = p};
    dk_thread_init();
    for (uint32_t gen = 0;; gen++) {
        gate_wait(p, &p->region, gen, w->tid, (struct fetch){NULL, NULL});
        if (!p->fn)
            return NULL;
        p->fn(p->arg, &par);
        dk_barrier(&par);
    }
}

void dk_pool_run(struct dk_pool *p, void (*fn)(void *arg, const struct dk_par *par), void *arg)
{
    struct dk_par par = {.tid = 0, .n = p->n, .pool = p};
    if (p->n > 1) {
        p->fn = fn;
        p->arg = arg;
        gate_raise(&p->region, atomic_load_explicit(&p->region.value, memory_order_relaxed) + 1);
    }
    fn(arg, &par);
    dk_barrier(&par);
}

unsigned dk_pool_size(const struct dk_pool *p)
{
    return p->n;
}

static unsigned cpus_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (unsigned)n : 1;
}

struct dk_pool *dk_pool_free(struct dk_pool *p)
{
    if (!p)
        return NULL;
    p->fn = NULL;
    gate_raise(&p->region, atomic_load_explicit(&p->region.value, memory_order_relaxed) + 1);
    for (unsigned i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    mem_free(p);
    return NULL;
}
DEFINE_CLEANUP(struct dk_pool *, dk_pool_free);

int dk_pool_new(unsigned n_threads, struct dk_pool **ret, struct error *err)
{
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return ERR(err, INVALID, "threads: %u is outside 1..%u", n_threads, MAX_THREADS);
    _cleanup_(dk_pool_freep) struct dk_pool *p = mem_aligned(64, sizeof *p);
    if (!p)
        return ERR_NOMEM(err);
    memset(p, 0, sizeof *p);
    p->n = n_threads;
    p->crowded = cpus_allowed() < n_threads;
    /* Signals are for the program's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* base/mapguard.h */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = 0;
    for (unsigned i = 0; i + 1 < n_threads; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->tid = i + 1;
        r = pthread_create(&w->thread, NULL, worker_main, w);
        if (r)
            break;
        p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r)
        return ERR(err, IO, "thread %u of %u could not be started: %s", p->n_started + 1, n_threads,
                   strerror(r));
    *ret = TAKE_PTR(p);
    return 0;
}
