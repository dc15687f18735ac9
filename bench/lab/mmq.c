/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Laboratory: time of all block-quantised weight products of one model step, by type, rows and
 * tier, beside the time to read the same bytes.  Random weights in the shapes of SmolLM2-135M
 * (small) and Qwen3-0.6B (big); tiny fits in L2.  Not installed.
 *
 *   mmq [-t threads] [-m s|q|t] [-w type[,type]] [-n rows[,rows]] [-i tier[,tier]] [-r repetitions]
 *
 * The runs of all row counts and tiers are interleaved, each between two readings of the weights;
 * median and minimum of each are printed, and the median ratio to its own two readings.  One thread:
 * also the cycles for a block of 16 outputs by 32 inputs and a row, the clock being measured, too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "kernels/kernels.h"

struct shape {
    uint32_t n, k, count;
};
static const struct shape small_shapes[] = {{960, 576, 30},  {576, 576, 30},  {3072, 576, 30},
                                            {576, 1536, 30}, {49152, 576, 1}, {0, 0, 0}};
static const struct shape big_shapes[] = {{4096, 1024, 28}, {1024, 2048, 28},  {6144, 1024, 28},
                                          {1024, 3072, 28}, {151936, 1024, 1}, {0, 0, 0}};
/* Fits in L2: what the arithmetic alone takes. */
static const struct shape tiny_shapes[] = {{256, 1024, 20}, {0, 0, 0}};

#define MAX_OPS   256
#define MAX_ROWS  512u
#define MAX_CASES 128

struct run {
    struct dk_weight w[MAX_OPS];
    unsigned n_ops;
    size_t bytes, weights;
    char *mem;
    const struct dk_ops *ops;
    struct dk_act act;
    float *x, *y;
    size_t ldx, ldy;
    char *scratch;
    uint32_t rows;
    double read_sum[64];
};

/* With one thread its own CPU time is taken, so that other programs disturb less. */
static bool one_thread;
static double now(void)
{
    struct timespec t;
    clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void products(void *arg, const struct dk_par *par)
{
    struct run *r = arg;
    for (unsigned i = 0; i < r->n_ops; i++) {
        size_t p0, p1;
        dk_split(par, r->w[i].n_panels, 1, &p0, &p1);
        struct dk_act a = r->act;
        a.k = r->w[i].k;
        struct dk_mm mm = {.w = &r->w[i], .y = r->y, .ldy = r->ldy};
        r->ops->matmul(&mm, &a, (uint32_t)p0, (uint32_t)p1,
                       r->scratch + (size_t)par->tid * DK_SCRATCH_BYTES);
        dk_barrier(par);
    }
}

static void read_all(void *arg, const struct dk_par *par)
{
    struct run *r = arg;
    size_t p0, p1;
    dk_split(par, r->bytes, 4096, &p0, &p1);
    typedef uint64_t v8 __attribute__((vector_size(32)));
    v8 s[4] = {{0}};
    for (size_t i = p0; i + 128 <= p1; i += 128) {
        const v8 *v = (const v8 *)(const void *)(r->mem + i);
        for (int j = 0; j < 4; j++)
            s[j] += v[j];
    }
    s[0] += s[1] + s[2] + s[3];
    r->read_sum[par->tid] = (double)(s[0][0] + s[0][1] + s[0][2] + s[0][3]);
}

/* Seconds of a cycle. */
static double cycle(void)
{
    double least = 1;
    for (int r = 0; r < 20; r++) {
        double t = now();
        uint64_t a = 1;
        /* Three cycles each; additions of constants are free of latency on some processors. */
        for (int i = 0; i < 10000; i++)
            __asm__ volatile("imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0" : "+r"(a));
        t = (now() - t) / 120000;
        least = t < least ? t : least;
    }
    return least;
}

static double timed(struct dk_pool *pool, void (*fn)(void *, const struct dk_par *), struct run *r)
{
    double t = now();
    dk_pool_run(pool, fn, r);
    return now() - t;
}

static uint32_t seed = 1;
static uint32_t rng(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Panels of random quants and small scales, written straight in packed form. */
static int build(struct run *r, const struct shape *shapes, enum dk_type t)
{
    const struct dk_type_info *info = dk_type_info(t);
    bool reuse = shapes == tiny_shapes; /* one matrix, again and again */
    size_t at = 0;
    r->n_ops = 0;
    r->weights = 0;
    for (const struct shape *s = shapes; s->n; s++) {
        for (uint32_t c = 0; c < s->count; c++) {
            struct dk_weight *w = &r->w[r->n_ops++];
            *w = (struct dk_weight){.type = t, .n = s->n, .k = s->k, .n_panels = (s->n + 15) / 16};
            if (s->k % info->block_elems ||
                !dk_weight_bytes(t, DK_LAYOUT_PANEL, s->n, s->k, &w->bytes))
                return -1;
            if (!reuse || !at)
                at += (w->bytes + 4095) / 4096 * 4096;
            r->weights += (size_t)s->n * s->k;
        }
    }
    r->bytes = at;
    r->mem = mem_map_pages(at);
    if (!r->mem)
        return -1;
    uint32_t max_k = 3072;
    size_t row_bytes = max_k / info->block_elems * info->block_bytes;
    uint8_t *src = mem_zalloc(row_bytes * 16);
    at = 0;
    for (unsigned i = 0; i < r->n_ops; i++) {
        struct dk_weight *w = &r->w[i];
        w->data = r->mem + at;
        for (uint32_t p = 0; p < w->n_panels; p++) {
            if (p % 64 == 0) {
                for (size_t b = 0; b < row_bytes * 16; b++)
                    src[b] = (uint8_t)rng();
                for (size_t b = 0; b < row_bytes * 16; b += info->block_bytes) {
                    size_t d = b + (t == DK_Q6_K ? 208 : 0);
                    src[d + 1] = 0x10;
                    if (t != DK_Q6_K)
                        src[d + 3] = t == DK_Q4_1 || t == DK_Q5_1 || info->block_elems == 256
                                         ? 0x10
                                         : src[d + 3];
                }
            }
            size_t bytes = w->bytes / w->n_panels;
            dk_weight_pack(r->mem + at + p * bytes, t, DK_LAYOUT_PANEL, 16, w->k, src, row_bytes, 0,
                           1);
        }
        if (!reuse)
            at += (w->bytes + 4095) / 4096 * 4096;
    }
    mem_free(src);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static unsigned list(char *arg, uint32_t *out, unsigned max)
{
    unsigned n = 0;
    for (char *s = strtok(arg, ","); s && n < max; s = strtok(NULL, ","))
        out[n++] = (uint32_t)strtoul(s, NULL, 10);
    return n;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

int main(int argc, char **argv)
{
    unsigned threads = 2, n_rows = 13;
    uint32_t rows[MAX_CASES] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 512};
    int reps = 20, opt;
    const struct shape *shapes = small_shapes;
    bool want_type[DK_TYPE_COUNT] = {false}, want_tier[DK_TIER_COUNT] = {false};
    bool any_type = false, any_tier = false;
    while ((opt = getopt(argc, argv, "t:m:w:n:i:r:")) != -1) {
        if (opt == 't') {
            threads = (unsigned)strtoul(optarg, NULL, 10);
        } else if (opt == 'm') {
            shapes = optarg[0] == 'q' ? big_shapes : optarg[0] == 't' ? tiny_shapes : small_shapes;
        } else if (opt == 'r') {
            reps = (int)strtoul(optarg, NULL, 10);
        } else if (opt == 'n') {
            n_rows = list(optarg, rows, MAX_CASES);
        } else if (opt == 'w') {
            for (char *s = strtok(optarg, ","); s; s = strtok(NULL, ","))
                for (unsigned t = 0; t < DK_TYPE_COUNT; t++)
                    if (strcmp(s, dk_type_info((enum dk_type)t)->name) == 0)
                        any_type = want_type[t] = true;
        } else if (opt == 'i') {
            for (char *s = strtok(optarg, ","); s; s = strtok(NULL, ",")) {
                enum dk_tier t;
                if (dk_tier_parse(s, &t))
                    any_tier = want_tier[t] = true;
            }
        } else {
            return 2;
        }
    }
    one_thread = threads == 1;
    struct error err = {0};
    struct dk_pool *pool = NULL;
    if (reps < 1 || reps > 1000 || dk_pool_new(threads, &pool, &err) < 0)
        return 1;
    static struct run r;
    static double times[DK_TIER_COUNT][MAX_CASES][1000], pair[DK_TIER_COUNT][MAX_CASES][1000];
    static double read[1000];
    r.ldx = 3072;
    r.ldy = 151936;
    r.x = mem_map_pages(MAX_ROWS * r.ldx * sizeof(float));
    r.y = mem_map_pages(MAX_ROWS * r.ldy * sizeof(float));
    r.scratch = mem_map_pages((size_t)threads * DK_SCRATCH_BYTES);
    for (size_t i = 0; i < MAX_ROWS * r.ldx; i++)
        r.x[i] = (float)(int)(rng() & 0xffff) * 0x1p-14f - 2.0f;
    dk_act_init(&r.act, MAX_ROWS, 3072, mem_map_pages(dk_act_bytes(MAX_ROWS, 3072)));
    for (unsigned t = 0; t < DK_TYPE_COUNT; t++) {
        if (!dk_type_info((enum dk_type)t)->quantised || (any_type && !want_type[t]) ||
            build(&r, shapes, (enum dk_type)t) < 0)
            continue;
        for (int i = -1; i < reps; i++) {
            double before = timed(pool, read_all, &r);
            if (i >= 0)
                read[i] = before;
            for (unsigned tier = 0; tier < DK_TIER_COUNT; tier++) {
                r.ops = dk_ops((enum dk_tier)tier);
                if (!r.ops || (any_tier ? !want_tier[tier] : tier == DK_TIER_C))
                    continue;
                for (unsigned c = 0; c < n_rows; c++) {
                    if (rows[c] > MAX_ROWS || (rows[c] > 64 && i >= 3))
                        continue;
                    r.act.rows = r.rows = rows[c];
                    r.act.k = 3072;
                    r.ops->act_prepare(&r.act, DK_FORM_INT, r.x, r.ldx, 0, rows[c]);
                    double taken = timed(pool, products, &r);
                    double after = timed(pool, read_all, &r);
                    if (i >= 0) {
                        times[tier][c][i] = taken;
                        pair[tier][c][i] = 2 * taken / (before + after);
                    }
                    before = after;
                }
            }
        }
        double floor_ms = median(read, reps) * 1e3;
        printf("%s  %.1f M weights, %.1f MB, read %.2f ms, least %.2f = %.1f GB/s, %u threads\n",
               dk_type_info((enum dk_type)t)->name, (double)r.weights * 1e-6,
               (double)r.bytes * 1e-6, floor_ms, read[0] * 1e3, (double)r.bytes / read[0] * 1e-9,
               threads);
        for (unsigned tier = 0; tier < DK_TIER_COUNT; tier++) {
            if (!dk_ops((enum dk_tier)tier) || (any_tier ? !want_tier[tier] : tier == DK_TIER_C))
                continue;
            double one = 0;
            for (unsigned c = 0; c < n_rows; c++) {
                int n = rows[c] > 64 && reps > 3 ? 3 : reps;
                double ms = median(times[tier][c], n) * 1e3, share = median(pair[tier][c], n);
                double least = times[tier][c][0] * 1e3; /* sorted by median() */
                one = c ? one : least;
                printf("  %-7s %4u rows %8.2f ms, least %8.2f  x%5.2f of first  %5.2f of read, "
                       "median %5.2f  %6.1f GMAC/s",
                       dk_tier_name((enum dk_tier)tier), rows[c], ms, least, least / one,
                       least / (read[0] * 1e3), share, (double)r.weights * rows[c] / least * 1e-6);
                if (one_thread)
                    printf("  %5.1f cycles",
                           least * 1e-3 / cycle() / ((double)r.weights / 512 * rows[c]));
                putchar('\n');
            }
        }
        fflush(stdout);
        mem_unmap_pages(r.mem, r.bytes);
    }
    dk_pool_free(pool);
    return 0;
}
