/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight products alone, for tuning: one pass over all matrices of a model's shape, with random
 * weights, for a list of row counts, beside the machine's read bandwidth and FMA peak taken in the
 * same run.
 *
 *   mm [-t tier] [-w f32|f16|bf16|amx] [-s s|q|t] [-j threads] [-r repetitions] [rows...]
 *
 * Shapes: s = SmolLM2-135M, q = Qwen3-0.6B, t = one small matrix in cache, again and again.
 * Row counts take turns in every repetition; printed are the lower quartile and the minimum (the
 * machine may be busy), the median of the ratio to the first row count, the lower quartile over the
 * floor max(bytes / bandwidth, operations / peak), and the median of the ratio to plain readings of
 * all weights just before and after.
 */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "kernels/kernels.h"

#define MAX_MATRICES 256
#define MAX_COUNTS 24

static struct {
    const struct dk_ops *ops;
    struct dk_weight w[MAX_MATRICES];
    bool prepare[MAX_MATRICES]; /* a new input vector */
    unsigned n;
    size_t bytes, params;
    uint32_t max_k, max_n;
    struct dk_act act;
    float *x, *y;
    void *scratch[64];
    uint32_t rows;
} b;

static void add(enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k, bool prepare)
{
    struct dk_weight *w = &b.w[b.n];
    *w = (struct dk_weight){.type = t, .layout = l, .n = n, .k = k, .n_panels = (n + 15) / 16};
    if (!dk_weight_bytes(t, l, n, k, &w->bytes))
        exit(1);
    b.prepare[b.n++] = prepare;
    b.bytes += w->bytes;
    b.params += (size_t)n * k;
    if (k > b.max_k)
        b.max_k = k;
    if (n > b.max_n)
        b.max_n = n;
}

static void shape(enum dk_type t, enum dk_layout l, char which)
{
    bool q = which == 'q', tiny = which == 't';
    for (int i = 0; tiny && i < 100; i++)
        add(t, l, 256, 512, i == 0);
    for (int i = 0; !tiny && i < (q ? 28 : 30); i++) {
        add(t, l, q ? 4096 : 960, q ? 1024 : 576, true);
        add(t, l, q ? 1024 : 576, q ? 2048 : 576, true);
        add(t, l, q ? 6144 : 3072, q ? 1024 : 576, true);
        add(t, l, q ? 1024 : 576, q ? 3072 : 1536, true);
    }
    if (!tiny)
        add(t, l, q ? 151936 : 49152, q ? 1024 : 576, true);
    char *mem = mem_map_pages(b.bytes);
    if (!mem)
        exit(1);
    for (size_t i = 0; i < b.bytes / 4; i++) { /* numbers near 1 in every type */
        uint32_t r = (uint32_t)(i * 2654435761u) >> 20;
        ((uint32_t *)(void *)mem)[i] = t == DK_F32   ? 0x3f000000 + (r << 8)
                                       : t == DK_F16 ? 0x38003800 + r * 0x10001
                                                     : 0x3f003f00 + r % 128 * 0x10001;
    }
    for (unsigned i = 0; i < b.n; i++) {
        b.w[i].data = mem;
        if (!tiny)
            mem += b.w[i].bytes;
    }
}

static void pass(void *arg, const struct dk_par *par)
{
    (void)arg;
    size_t a, e;
    for (unsigned i = 0; i < b.n; i++) {
        const struct dk_weight *w = &b.w[i];
        if (b.prepare[i]) {
            if (par->tid == 0) {
                b.act.rows = b.rows;
                b.act.k = w->k;
            }
            dk_barrier(par);
            dk_split(par, b.rows, 1, &a, &e);
            b.ops->act_prepare(&b.act, dk_weight_form(w), b.x, b.max_k, (uint32_t)a, (uint32_t)e);
            dk_barrier(par);
        }
        struct dk_mm mm = {.w = w, .y = b.y, .ldy = w->n};
        dk_split(par, w->n_panels, 1, &a, &e);
        b.ops->matmul(&mm, &b.act, (uint32_t)a, (uint32_t)e, b.scratch[par->tid]);
        dk_barrier(par);
    }
}

/* ---- the machine -------------------------------------------------------------------------------- */

static volatile float sink;

__attribute__((target("avx2,fma"))) static void fma_avx2(void)
{
    __m256 c[12], x = _mm256_set1_ps(0.5f);
    for (int i = 0; i < 12; i++)
        c[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < 1000000; n++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            c[i] = _mm256_fmadd_ps(c[i], x, x);
    for (int i = 1; i < 12; i++)
        c[0] = _mm256_add_ps(c[0], c[i]);
    sink = _mm256_cvtss_f32(c[0]);
}

__attribute__((target("avx512f"))) static void fma_avx512(void)
{
    __m512 c[12], x = _mm512_set1_ps(0.5f);
    for (int i = 0; i < 12; i++)
        c[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < 1000000; n++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            c[i] = _mm512_fmadd_ps(c[i], x, x);
    for (int i = 1; i < 12; i++)
        c[0] = _mm512_add_ps(c[0], c[i]);
    sink = _mm512_cvtss_f32(c[0]);
}

__attribute__((target("avx2"))) static void read_all(void *arg, const struct dk_par *par)
{
    (void)arg;
    size_t a, e;
    dk_split(par, b.bytes, 4096, &a, &e);
    const char *p = b.w[0].data;
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
    for (size_t i = a; i + 128 <= e; i += 128) {
        _mm_prefetch(p + i + 4096, _MM_HINT_T0);
        _mm_prefetch(p + i + 4160, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            s[j] = _mm256_xor_si256(
                s[j], _mm256_load_si256((const __m256i *)(const void *)(p + i + 32 * j)));
    }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    sink = (float)_mm256_extract_epi32(s[0], 0);
}

static void fma_all(void *arg, const struct dk_par *par)
{
    (void)arg;
    (void)par;
    if (b.ops->tier >= DK_TIER_AVX512)
        fma_avx512();
    else
        fma_avx2();
}

/* One thread is timed by its own clock, which stands still while others have the CPU. */
static double seconds(const struct dk_pool *pool)
{
    struct timespec t;
    clock_gettime(dk_pool_size(pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double timed(struct dk_pool *pool, void (*fn)(void *, const struct dk_par *))
{
    double t = seconds(pool);
    dk_pool_run(pool, fn, NULL);
    return seconds(pool) - t;
}

static int by_value(const void *a, const void *c)
{
    double x = *(const double *)a, y = *(const double *)c;
    return (x > y) - (x < y);
}

static double quantile(double *v, unsigned n, double q)
{
    qsort(v, n, sizeof *v, by_value);
    return v[(unsigned)(q * (n - 1))];
}

int main(int argc, char **argv)
{
    enum dk_tier tier = dk_tier_best();
    enum dk_type type = DK_BF16;
    enum dk_layout layout = DK_LAYOUT_PANEL;
    unsigned threads = 2, reps = 15;
    char which = 's';
    for (int o; (o = getopt(argc, argv, "t:w:s:j:r:")) != -1;) {
        if (o == 't' && !dk_tier_parse(optarg, &tier))
            return 2;
        if (o == 'w') {
            type = strcmp(optarg, "f32") == 0 ? DK_F32 : strcmp(optarg, "f16") == 0 ? DK_F16 : DK_BF16;
            layout = strcmp(optarg, "amx") == 0 ? DK_LAYOUT_AMX_BF16 : DK_LAYOUT_PANEL;
        }
        if (o == 's')
            which = *optarg;
        if (o == 'j')
            threads = (unsigned)atoi(optarg);
        if (o == 'r')
            reps = (unsigned)atoi(optarg);
    }
    uint32_t counts[MAX_COUNTS] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 18, 24, 32, 48, 64};
    unsigned n = 17;
    if (optind < argc)
        n = 0;
    for (; optind < argc && n < MAX_COUNTS; optind++)
        counts[n++] = (uint32_t)atoi(argv[optind]);
    uint32_t max_rows = 1;
    for (unsigned i = 0; i < n; i++)
        max_rows = counts[i] > max_rows ? counts[i] : max_rows;

    b.ops = dk_ops(tier);
    struct dk_pool *pool;
    struct error err;
    if (!b.ops || dk_pool_new(threads, &pool, &err) < 0)
        return 1;
    dk_thread_init();
    shape(type, layout, which);
    dk_act_init(&b.act, max_rows, b.max_k, mem_map_pages(dk_act_bytes(max_rows, b.max_k)));
    b.x = mem_map_pages((size_t)max_rows * b.max_k * sizeof *b.x);
    b.y = mem_map_pages((size_t)max_rows * b.max_n * sizeof *b.y);
    for (size_t i = 0; i < (size_t)max_rows * b.max_k; i++)
        b.x[i] = (float)(i % 97) * 0.01f - 0.5f;
    for (unsigned i = 0; i < threads; i++)
        b.scratch[i] = mem_map_pages(DK_SCRATCH_BYTES);

    double *t[MAX_COUNTS], *pair[MAX_COUNTS], *read = mem_array(reps, sizeof *read), *fma = mem_array(reps, sizeof *fma);
    for (unsigned i = 0; i < n; i++)
        t[i] = mem_array(reps, sizeof **t), pair[i] = mem_array(reps, sizeof **pair);
    for (unsigned r = 0; r < reps; r++) {
        read[r] = timed(pool, read_all);
        fma[r] = timed(pool, fma_all);
        for (unsigned i = 0; i < n; i++) {
            b.rows = counts[i];
            /* A reading right before and after: others use the memory too. */
            double before = timed(pool, read_all);
            t[i][r] = timed(pool, pass);
            pair[i][r] = 2 * t[i][r] / (before + timed(pool, read_all));
        }
    }
    double bw = (double)b.bytes / quantile(read, reps, 0.1);
    double peak = 12e6 * (tier >= DK_TIER_AVX512 ? 32 : 16) * threads / quantile(fma, reps, 0.1);
    printf("# %s %s%s, shape %c, %u threads: %.1f M weights, %.1f MB; read %.1f GB/s, FMA %.0f "
           "GFLOP/s\n",
           dk_tier_name(tier), dk_type_info(type)->name, layout ? " (AMX)" : "",
           which, threads, (double)b.params / 1e6, (double)b.bytes / 1e6, bw / 1e9,
           peak / 1e9);
    printf("%5s %9s %9s %7s %7s %8s %7s %7s\n", "rows", "q1 ms", "min ms", "ratio", "GB/s",
           "GFLOP/s", "x floor", "x read");
    double *base = mem_array(reps, sizeof *base), *ratio = mem_array(reps, sizeof *ratio);
    memcpy(base, t[0], reps * sizeof *base);
    for (unsigned i = 0; i < n; i++) {
        for (unsigned r = 0; r < reps; r++)
            ratio[r] = t[i][r] / base[r];
        double q1 = quantile(t[i], reps, 0.25), ops = 2.0 * (double)b.params * counts[i];
        double floor = (double)b.bytes / bw > ops / peak ? (double)b.bytes / bw : ops / peak;
        printf("%5u %9.2f %9.2f %7.2f %7.1f %8.0f %7.2f %7.2f\n", counts[i], q1 * 1e3, t[i][0] * 1e3,
               quantile(ratio, reps, 0.5), (double)b.bytes / q1 / 1e9, ops / q1 / 1e9, q1 / floor,
               quantile(pair[i], reps, 0.5));
    }
    dk_pool_free(pool);
    return 0;
}
