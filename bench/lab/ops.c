/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Laboratory: attention against reading its K and V once, and the small ops, per tier.
 *
 *   ops [attention|prefill|small|threads] [heads kv_heads head_dim layers]   default: all, 9 3 64 30
 *
 * Every figure is a median over interleaved repetitions in this process: on one thread by its CPU
 * time, with threads (2 and more) by the clock.  The floor of an attention call is the best of three
 * read loops over the same blocks.
 */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/kernels.h"

#define REPS 25

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *t, size_t n)
{
    qsort(t, n, sizeof *t, by_value);
    return t[n / 2];
}
/* The thread's CPU time: other work on the machine then only shows in the caches. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t rng_state = 1;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 32);
}
static float uniform(void)
{
    return (float)(rng() >> 8) * 0x1p-23f - 1;
}

/* ---- reading ------------------------------------------------------------------------------------ */

static volatile float sink;

__attribute__((target("avx2"))) static float read_avx2(const char *p, size_t bytes)
{
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                   _mm256_setzero_ps()};
    for (size_t i = 0; i < bytes; i += 128)
        for (size_t k = 0; k < 4; k++)
            s[k] =
                _mm256_or_ps(s[k], _mm256_loadu_ps((const float *)(const void *)(p + i) + k * 8));
    s[0] = _mm256_or_ps(_mm256_or_ps(s[0], s[1]), _mm256_or_ps(s[2], s[3]));
    return _mm256_cvtss_f32(s[0]);
}
__attribute__((target("avx512f"))) static float read_avx512(const char *p, size_t bytes)
{
    __m512i s[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                    _mm512_setzero_si512()};
    for (size_t i = 0; i < bytes; i += 256)
        for (size_t k = 0; k < 4; k++)
            s[k] = _mm512_or_si512(s[k], _mm512_loadu_si512(p + i + k * 64));
    s[0] = _mm512_or_si512(_mm512_or_si512(s[0], s[1]), _mm512_or_si512(s[2], s[3]));
    return (float)_mm512_reduce_or_epi32(s[0]);
}

/* ---- attention ---------------------------------------------------------------------------------- */

struct setup {
    uint32_t heads, kv_heads, hd, layers, n_blocks;
    struct dk_kv kv[64];
    uint32_t *blocks;
    size_t head_bytes, block_bytes;
    float *q, *out;
    void *scratch;
};

static void setup_init(struct setup *s, enum dk_kv_type type, uint32_t positions, uint32_t rows)
{
    s->n_blocks = (positions + 15) / 16;
    s->head_bytes = (size_t)s->hd * 16 * dk_kv_elem_bytes(type);
    s->block_bytes = s->head_bytes * s->kv_heads;
    s->blocks = mem_array(s->n_blocks, sizeof *s->blocks);
    for (uint32_t i = 0; i < s->n_blocks; i++) {
        uint32_t j = rng() % (i + 1);
        s->blocks[i] = s->blocks[j];
        s->blocks[j] = i;
    }
    for (uint32_t l = 0; l < s->layers; l++) {
        void *m[2];
        for (int k = 0; k < 2; k++) {
            m[k] = mem_map_pages(s->block_bytes * s->n_blocks);
            for (size_t i = 0; i < s->block_bytes * s->n_blocks / 2; i++) {
                float x = uniform();
                if (type == DK_KV_F32) {
                    if (i % 2 == 0)
                        ((float *)m[k])[i / 2] = x;
                } else
                    ((uint16_t *)m[k])[i] =
                        type == DK_KV_BF16 ? dk_f32_to_bf16(x) : dk_f32_to_f16(x);
            }
        }
        s->kv[l] = (struct dk_kv){type, s->kv_heads, s->hd, m[0], m[1], false};
    }
    size_t n = (size_t)rows * s->heads * s->hd;
    s->q = mem_array(n, sizeof(float));
    s->out = mem_array(n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        s->q[i] = uniform();
    s->scratch = mem_aligned(64, DK_SCRATCH_BYTES);
}
static void setup_done(struct setup *s)
{
    for (uint32_t l = 0; l < s->layers; l++) {
        mem_unmap_pages(s->kv[l].k, s->block_bytes * s->n_blocks);
        mem_unmap_pages(s->kv[l].v, s->block_bytes * s->n_blocks);
    }
    mem_free(s->blocks);
    mem_free(s->q);
    mem_free(s->out);
    mem_free(s->scratch);
}

/* Four blocks side by side: more lines under way than one stream gives. */
__attribute__((target("avx2"))) static float read_four(const char *const p[4], size_t bytes)
{
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                   _mm256_setzero_ps()};
    for (size_t i = 0; i < bytes; i += 64)
        for (size_t k = 0; k < 4; k++) {
            s[k] = _mm256_or_ps(s[k], _mm256_loadu_ps((const float *)(const void *)(p[k] + i)));
            s[k] = _mm256_or_ps(s[k], _mm256_loadu_ps((const float *)(const void *)(p[k] + i) + 8));
        }
    s[0] = _mm256_or_ps(_mm256_or_ps(s[0], s[1]), _mm256_or_ps(s[2], s[3]));
    return _mm256_cvtss_f32(s[0]);
}
static double time_read_four(const struct setup *s)
{
    double t0 = now();
    for (uint32_t l = 0; l < s->layers; l++)
        for (uint32_t h = 0; h < s->kv_heads; h++)
            for (int kv = 0; kv < 2; kv++)
                for (uint32_t b = 0; b < s->n_blocks; b += 4) {
                    const char *p[4];
                    for (uint32_t k = 0; k < 4; k++)
                        p[k] = (const char *)(kv ? s->kv[l].v : s->kv[l].k) +
                               s->blocks[b + k < s->n_blocks ? b + k : b] * s->block_bytes +
                               h * s->head_bytes;
                    sink += read_four(p, s->head_bytes);
                }
    return now() - t0;
}

static double time_read(const struct setup *s, float (*fn)(const char *, size_t))
{
    double t0 = now();
    for (uint32_t l = 0; l < s->layers; l++)
        for (uint32_t h = 0; h < s->kv_heads; h++)
            for (int kv = 0; kv < 2; kv++)
                for (uint32_t b = 0; b < s->n_blocks; b++)
                    sink += fn((const char *)(kv ? s->kv[l].v : s->kv[l].k) +
                                   s->blocks[b] * s->block_bytes + h * s->head_bytes,
                               s->head_bytes);
    return now() - t0;
}
static double time_attention(const struct setup *s, const struct dk_ops *ops,
                             const struct dk_attn_row *rows, uint32_t n_rows)
{
    size_t ld = (size_t)s->heads * s->hd;
    double t0 = now();
    for (uint32_t l = 0; l < s->layers; l++)
        ops->attention(&s->kv[l], rows, n_rows, s->q, ld, s->out, ld, s->heads, 0, s->heads, 0.125f,
                       s->scratch);
    return now() - t0;
}

/* rows of one sequence whose last position is `positions`; tail: that many last ones in a tail. */
static void bench_attention(struct setup *s, enum dk_kv_type type, uint32_t positions,
                            uint32_t n_rows, bool tree)
{
    setup_init(s, type, positions, n_rows);
    struct dk_attn_row *rows = mem_array(n_rows, sizeof *rows);
    uint32_t *tail = mem_array((size_t)n_rows * 1024, sizeof *tail);
    for (uint32_t r = 0; r < n_rows; r++) {
        rows[r] =
            (struct dk_attn_row){positions - n_rows + 1 + r, UINT32_MAX & ~15u, s->blocks, NULL};
        if (tree) { /* branches of depth 1 .. 8 over the last slots */
            uint32_t start = (positions - n_rows) & ~15u,
                     depth = positions - n_rows - start + 1 + r % 8;
            rows[r].n_vis = start + depth;
            rows[r].tail_start = start;
            rows[r].tail = tail + r * 1024;
            for (uint32_t i = 0; i < depth; i++) {
                uint32_t p = start + (i * 3 + r) % (positions - start);
                tail[r * 1024 + i] = s->blocks[p / 16] * 16 + p % 16;
            }
        }
    }
    double t[DK_TIER_COUNT + 3][REPS];
    double mib = 2.0 * s->layers * s->n_blocks * (double)s->block_bytes;
    for (int i = -2; i < REPS; i++) {
        size_t k = i < 0 ? 0 : (size_t)i;
        for (int tier = 1; tier < DK_TIER_COUNT; tier++)
            if (dk_ops((enum dk_tier)tier))
                t[tier][k] = time_attention(s, dk_ops((enum dk_tier)tier), rows, n_rows);
        double a = time_read(s, read_avx2);
        t[DK_TIER_COUNT][k] = a;
        t[DK_TIER_COUNT + 2][k] = time_read_four(s);
        if (dk_ops(DK_TIER_AVX512)) {
            a = time_read(s, read_avx512);
            t[DK_TIER_COUNT + 1][k] = a;
        }
    }
    double floor = median(t[DK_TIER_COUNT], REPS), f4 = median(t[DK_TIER_COUNT + 2], REPS);
    floor = f4 < floor ? f4 : floor;
    if (dk_ops(DK_TIER_AVX512)) {
        double f2 = median(t[DK_TIER_COUNT + 1], REPS);
        floor = f2 < floor ? f2 : floor;
    }
    double flop = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        flop += 4.0 * rows[r].n_vis * s->heads * s->hd * s->layers;
    printf("%-5s positions %5u rows %3u%s  read %7.1f us (%5.1f GB/s)", dk_kv_type_name(type),
           positions, n_rows, tree ? " tree" : "", floor * 1e6, mib / floor * 1e-9);
    for (int tier = 1; tier < DK_TIER_COUNT; tier++)
        if (dk_ops((enum dk_tier)tier)) {
            double m = median(t[tier], REPS);
            printf("  | %s %8.1f us, %5.2f x read, %5.1f GFLOP/s", dk_tier_name((enum dk_tier)tier),
                   m * 1e6, m / floor, flop / m * 1e-9);
        }
    printf("\n");
    fflush(stdout);
    mem_free(tail);
    mem_free(rows);
    setup_done(s);
}

/* ---- threads ------------------------------------------------------------------------------------ */

/* One row, all layers, a barrier after each, as a model's step has it. */
struct par_job {
    const struct setup *s;
    const struct dk_ops *ops; /* NULL: read */
    struct dk_attn_row row;
    bool by_chunks;
    float *part;
    char *scratch;
};
static void par_attention(void *arg, const struct dk_par *par)
{
    const struct par_job *j = arg;
    const struct setup *s = j->s;
    const uint32_t group = s->heads / s->kv_heads;
    const uint32_t chunks = (j->row.n_vis + DK_ATTN_CHUNK - 1) / DK_ATTN_CHUNK;
    void *scratch = j->scratch + par->tid * (size_t)DK_SCRATCH_BYTES;
    size_t ld = (size_t)s->heads * s->hd, a, b;
    float sum = 0;
    for (uint32_t l = 0; l < s->layers; l++, dk_barrier(par)) {
        if (!j->ops) {
            dk_split(par, (size_t)s->n_blocks * 2, 4, &a, &b);
            for (; a < b; a += 4) {
                const char *p[4], *base = a < s->n_blocks ? s->kv[l].k : s->kv[l].v;
                for (size_t k = 0; k < 4; k++)
                    p[k] = base + s->blocks[(a + k) % s->n_blocks] * s->block_bytes;
                sum += read_four(p, s->block_bytes);
            }
        } else if (!j->by_chunks) {
            dk_split(par, s->heads, 1, &a, &b);
            j->ops->attention(&s->kv[l], &j->row, 1, s->q, ld, s->out, ld, s->heads, (uint32_t)a,
                              (uint32_t)b, 0.125f, scratch);
        } else {
            dk_split(par, (size_t)chunks * s->kv_heads, 1, &a, &b);
            for (; a < b; a++) {
                uint32_t c = (uint32_t)a / s->kv_heads, h = (uint32_t)a % s->kv_heads * group;
                j->ops->attention_part(&s->kv[l], &j->row, 1, s->q, ld, j->part, s->heads, h,
                                       h + group, c, c + 1, 0.125f, scratch);
            }
            dk_barrier(par);
            dk_split(par, s->heads, 1, &a, &b);
            j->ops->attention_merge(&j->row, 1, j->part, s->out, ld, s->heads, s->hd, (uint32_t)a,
                                    (uint32_t)b);
        }
    }
    if (sum != 0)
        sink = sum;
}
static double time_pool(struct dk_pool *pool, struct par_job *j)
{
    uint64_t t0 = clock_now_ns();
    dk_pool_run(pool, par_attention, j);
    return (double)(clock_now_ns() - t0) * 1e-9;
}

static void bench_threads(struct setup *s, enum dk_kv_type type, uint32_t positions, unsigned n)
{
    struct error err = {0};
    struct dk_pool *pool = NULL;
    if (dk_pool_new(n, &pool, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return;
    }
    setup_init(s, type, positions, 1);
    size_t chunks = (positions + DK_ATTN_CHUNK - 1) / DK_ATTN_CHUNK;
    struct par_job j = {
        .s = s,
        .row = {positions, UINT32_MAX & ~15u, s->blocks, NULL},
        .part = mem_aligned(64, chunks * s->heads * DK_ATTN_PART(s->hd) * sizeof(float)),
        .scratch = mem_aligned(64, n * (size_t)DK_SCRATCH_BYTES),
    };
    double t[1 + 2 * DK_TIER_COUNT][REPS];
    for (int i = -2; i < REPS; i++) {
        size_t k = i < 0 ? 0 : (size_t)i;
        j.ops = NULL;
        t[0][k] = time_pool(pool, &j);
        for (int tier = 1; tier < DK_TIER_COUNT; tier++)
            for (int by = 0; by < 2; by++) {
                j.ops = dk_ops((enum dk_tier)tier);
                j.by_chunks = by;
                if (j.ops)
                    t[1 + 2 * tier + by - 2][k] = time_pool(pool, &j);
            }
    }
    double floor = median(t[0], REPS);
    printf("%-5s positions %5u threads %u  read %7.1f us (%5.1f GB/s)", dk_kv_type_name(type),
           positions, n, floor * 1e6,
           2.0 * s->layers * s->n_blocks * (double)s->block_bytes / floor * 1e-9);
    for (int tier = 1; tier < DK_TIER_COUNT; tier++)
        if (dk_ops((enum dk_tier)tier))
            printf("  | %s by heads %5.2f x, by chunks %5.2f x", dk_tier_name((enum dk_tier)tier),
                   median(t[2 * tier - 1], REPS) / floor, median(t[2 * tier], REPS) / floor);
    printf("\n");
    fflush(stdout);
    mem_free(j.part);
    mem_free(j.scratch);
    setup_done(s);
    dk_pool_free(pool);
}

/* FMA peak of one thread, for the share that prefill reaches. */
__attribute__((target("avx2,fma"))) static double peak_avx2(void)
{
    __m256 a[12];
    for (int i = 0; i < 12; i++)
        a[i] = _mm256_set1_ps((float)i);
    __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    double best = 0;
    for (int r = 0; r < 5; r++) {
        double t0 = now();
        for (int k = 0; k < 200000; k++) {
#pragma GCC unroll 12
            for (int i = 0; i < 12; i++)
                a[i] = _mm256_fmadd_ps(a[i], x, y);
        }
        double g = 200000.0 * 12 * 16 / (now() - t0) * 1e-9;
        best = g > best ? g : best;
    }
    for (int i = 1; i < 12; i++)
        a[0] = _mm256_add_ps(a[0], a[i]);
    sink = _mm256_cvtss_f32(a[0]);
    return best;
}

/* ---- small ops ------------------------------------------------------------------------------------ */

#define TIME(label, n, call)                                                                       \
    do {                                                                                           \
        double t_[REPS];                                                                           \
        for (int i_ = 0; i_ < REPS; i_++) {                                                        \
            double t0_ = now();                                                                    \
            for (int k_ = 0; k_ < (n); k_++)                                                       \
                call;                                                                              \
            t_[i_] = (now() - t0_) / (n);                                                          \
        }                                                                                          \
        printf("%-7s %-28s %9.3f us\n", dk_tier_name(ops->tier), label, median(t_, REPS) * 1e6);   \
    } while (0)

static void bench_small(const struct dk_ops *ops)
{
    enum { V = 151936, D = 4096 };
    float *x = mem_aligned(64, V * sizeof *x), *y = mem_aligned(64, V * sizeof *y);
    float *w = mem_aligned(64, V * sizeof *w), max = 0, lse = 0;
    bool bad;
    for (size_t i = 0; i < V; i++) {
        x[i] = 4 * uniform();
        w[i] = uniform();
        y[i] = 0;
    }
    const uint32_t key[2] = {1, 2}, ctr[3] = {3, 4, 0};
    TIME("rmsnorm 576", 200, ops->rmsnorm(y, x, w, 576, 1e-5f));
    TIME("rmsnorm 4096", 100, ops->rmsnorm(y, x, w, D, 1e-5f));
    TIME("add 576", 500, ops->add(y, x, 576));
    TIME("silu_mul 1536", 100, ops->silu_mul(y, x, w, 1536));
    TIME("silu_mul 4096", 50, ops->silu_mul(y, x, w, D));
    for (size_t i = 0; i < V; i++)
        y[i] = x[i];
    TIME("rope halves 9 x 64", 200, ops->rope(y, 9, 64, w, DK_ROPE_HALVES));
    TIME("rope interleaved 9 x 64", 200, ops->rope(y, 9, 64, w, DK_ROPE_INTERLEAVED));
    struct dk_kv kv = {DK_KV_F32, 3, 64, y, x, false};
    TIME("kv_store f32 3 x 64", 200, ops->kv_store(&kv, 7, 0, kv.n_kv_heads, w, w + 4096));
    kv.type = DK_KV_BF16;
    TIME("kv_store bf16 3 x 64", 200, ops->kv_store(&kv, 7, 0, kv.n_kv_heads, w, w + 4096));
    kv.type = DK_KV_F16;
    TIME("kv_store f16 3 x 64", 200, ops->kv_store(&kv, 7, 0, kv.n_kv_heads, w, w + 4096));
    TIME("argmax 49152", 5, lse += (float)ops->argmax(w, 49152, &max, &bad));
    TIME("argmax 151936", 2, lse += (float)ops->argmax(w, V, &max, &bad));
    TIME("logsumexp 49152", 3, lse += ops->logsumexp(w, 49152, 1));
    TIME("logsumexp 151936", 1, lse += ops->logsumexp(w, V, 1));
    TIME("gumbel 49152", 2, ops->gumbel(y, key, ctr, 0, 49152));
    TIME("gumbel 151936", 1, ops->gumbel(y, key, ctr, 0, V));
    sink = lse;
    mem_free(x);
    mem_free(y);
    mem_free(w);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    bool all = !strcmp(what, "all");
    struct setup s = {.heads = 9, .kv_heads = 3, .hd = 64, .layers = 30};
    if (argc > 5) {
        s.heads = (uint32_t)atoi(argv[2]);
        s.kv_heads = (uint32_t)atoi(argv[3]);
        s.hd = (uint32_t)atoi(argv[4]);
        s.layers = (uint32_t)atoi(argv[5]);
    }
    if (s.layers > 64 || !s.kv_heads || s.heads % s.kv_heads || s.hd % 16 ||
        s.hd > DK_MAX_HEAD_DIM) {
        fprintf(stderr, "ops: heads in whole groups, head_dim a multiple of 16, up to 64 layers\n");
        return 2;
    }
    dk_thread_init();
    if (all || !strcmp(what, "attention"))
        for (int type = 0; type < DK_KV_TYPE_COUNT; type++) {
            bench_attention(&s, (enum dk_kv_type)type, 512, 1, false);
            bench_attention(&s, (enum dk_kv_type)type, 4096, 1, false);
        }
    if (all || !strcmp(what, "prefill")) {
        printf("FMA peak of one thread, AVX2: %.1f GFLOP/s\n", peak_avx2());
        for (int type = 0; type < DK_KV_TYPE_COUNT; type++) {
            bench_attention(&s, (enum dk_kv_type)type, 512, 512, false);
            bench_attention(&s, (enum dk_kv_type)type, 528, 16, false);
            bench_attention(&s, (enum dk_kv_type)type, 528, 16, true);
        }
    }
    if (all || !strcmp(what, "threads"))
        for (int type = 0; type < DK_KV_TYPE_COUNT; type++) {
            bench_threads(&s, (enum dk_kv_type)type, 512, 2);
            bench_threads(&s, (enum dk_kv_type)type, 4096, 2);
        }
    if (all || !strcmp(what, "small"))
        for (int tier = 0; tier < DK_TIER_AMX; tier++)
            if (dk_ops((enum dk_tier)tier))
                bench_small(dk_ops((enum dk_tier)tier));
    return 0;
}
