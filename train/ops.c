/* SPDX-License-Identifier: Apache-2.0 */
#include "train/ops.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"

int train_par_init(struct train_par *p, enum dk_tier tier, unsigned threads, bool bf16,
                   struct error *err)
{
    memset(p, 0, sizeof(*p));
    p->ops = dk_ops(tier);
    p->train = dk_train_ops(tier);
    if (!p->ops || !p->train)
        return ERR(err, UNSUPPORTED, "this machine or build lacks the %s kernels",
                   dk_tier_name(tier));
    if (threads > TRAIN_MAX_THREADS)
        return ERR(err, INVALID, "%u threads: at most %u", threads, TRAIN_MAX_THREADS);
    int r = dk_pool_new(threads, &p->pool, err);
    if (r < 0)
        return r;
    p->n = threads;
    p->gemm_flags = bf16 && p->train->bf16 ? DK_GEMM_BF16 : 0;
    for (unsigned i = 0; i < threads; i++) {
        p->scratch[i] = mem_aligned(64, DK_GEMM_SCRATCH);
        if (!p->scratch[i]) {
            train_par_done(p);
            return ERR_NOMEM(err);
        }
    }
    return 0;
}

void train_par_done(struct train_par *p)
{
    for (unsigned i = 0; i < p->n; i++)
        mem_free(p->scratch[i]);
    dk_pool_free(p->pool);
    memset(p, 0, sizeof(*p));
}

struct rows_job {
    train_rows_fn fn;
    void *arg;
    size_t n, grain;
    _Atomic size_t next; /* only hands out numbers; the pool orders the memory */
};

static void rows_region(void *arg, const struct dk_par *par)
{
    struct rows_job *j = arg;
    for (;;) {
        size_t a = atomic_fetch_add_explicit(&j->next, j->grain, memory_order_relaxed);
        if (a >= j->n)
            return;
        j->fn(j->arg, a, j->n - a < j->grain ? j->n : a + j->grain, par->tid);
    }
}

void par_rows(struct train_par *p, size_t n, size_t grain, train_rows_fn fn, void *arg)
{
    struct rows_job j = {.fn = fn, .arg = arg, .n = n, .grain = grain ? grain : 1};
    if (n)
        dk_pool_run(p->pool, rows_region, &j);
}

/* ---- products -------------------------------------------------------------------------------- */

struct gemm_job {
    struct train_par *p;
    const struct dk_gemm *g;
    uint32_t rows, cols, n_cols; /* of a piece; pieces side by side */
};

static void gemm_piece(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct gemm_job *j = arg;
    const struct dk_gemm *g = j->g;
    for (size_t i = a; i < b; i++) {
        uint32_t r0 = (uint32_t)(i / j->n_cols) * j->rows, c0 = (uint32_t)(i % j->n_cols) * j->cols;
        struct dk_gemm part = *g;
        part.m = g->m - r0 < j->rows ? g->m - r0 : j->rows;
        part.n = g->n - c0 < j->cols ? g->n - c0 : j->cols;
        part.a += r0 * g->a_row;
        part.b += c0 * g->b_col;
        part.c += r0 * g->ldc + c0;
        j->p->train->gemm(&part, j->p->scratch[tid]);
    }
}

/* Pieces: a few for each thread, large enough that copying their factors is little beside the
 * products. */
static void par_gemm(struct train_par *p, struct dk_gemm *g)
{
    const uint32_t unit_m = 28 * 3, unit_n = 32;
    struct gemm_job j = {.p = p, .g = g, .rows = g->m, .cols = g->n};
    uint64_t pieces = p->n == 1 ? 1 : 2 * p->n, have;
    if (j.cols > 1024)
        j.cols = 1024;
    have = (g->n + j.cols - 1) / j.cols;
    if (have < pieces && g->m > unit_m) {
        uint64_t want = (pieces + have - 1) / have;
        uint64_t rows = (g->m + want - 1) / want;
        j.rows = (uint32_t)((rows + unit_m - 1) / unit_m) * unit_m;
        have *= (g->m + j.rows - 1) / j.rows;
    }
    if (have < p->n && g->n > unit_n) {
        uint64_t cols = (g->n + p->n - 1) / p->n;
        j.cols = (uint32_t)((cols + unit_n - 1) / unit_n) * unit_n;
    }
    j.n_cols = (g->n + j.cols - 1) / j.cols;
    g->flags |= p->gemm_flags;
    p->flops += 2.0 * g->m * g->n * g->k;
    par_rows(p, (size_t)((g->m + j.rows - 1) / j.rows) * j.n_cols, 1, gemm_piece, &j);
}

void par_forward(struct train_par *p, float *y, const float *x, const float *w, size_t rows,
                 uint32_t out, uint32_t in)
{
    struct dk_gemm g = {.m = (uint32_t)rows,
                        .n = out,
                        .k = in,
                        .a = x,
                        .a_row = in,
                        .a_col = 1,
                        .b = w,
                        .b_row = 1,
                        .b_col = in,
                        .c = y,
                        .ldc = out};
    par_gemm(p, &g);
}

void par_grad_x(struct train_par *p, float *dx, const float *dy, const float *w, size_t rows,
                uint32_t out, uint32_t in, bool add)
{
    struct dk_gemm g = {.m = (uint32_t)rows,
                        .n = in,
                        .k = out,
                        .flags = add ? DK_GEMM_ADD : 0,
                        .a = dy,
                        .a_row = out,
                        .a_col = 1,
                        .b = w,
                        .b_row = in,
                        .b_col = 1,
                        .c = dx,
                        .ldc = in};
    par_gemm(p, &g);
}

void par_grad_w(struct train_par *p, float *dw, const float *dy, const float *x, size_t rows,
                uint32_t out, uint32_t in)
{
    struct dk_gemm g = {.m = out,
                        .n = in,
                        .k = (uint32_t)rows,
                        .flags = DK_GEMM_ADD,
                        .a = dy,
                        .a_row = 1,
                        .a_col = out,
                        .b = x,
                        .b_row = in,
                        .b_col = 1,
                        .c = dw,
                        .ldc = in};
    par_gemm(p, &g);
}
