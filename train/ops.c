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
    if (p->gemm_flags && p->train->pack) {
        p->packed = mem_map_pages(TRAIN_PACKED_BYTES);
        if (!p->packed) {
            train_par_done(p);
            return ERR_NOMEM(err);
        }
    }
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
    mem_unmap_pages(p->packed, TRAIN_PACKED_BYTES);
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

/* Products with one B. */
struct gemm_job {
    struct train_par *p;
    const struct dk_gemm *g; /* [n] */
    unsigned n;
    uint32_t rows, cols, n_cols; /* of a piece; pieces side by side */
    size_t n_pieces, n_packs;    /* copies of B's columns, made before the first piece */
    _Atomic size_t piece, pack;  /* only hand out numbers */
};
#define PACK_COLS   (2 * DK_GEMM_COLS)
#define MAX_SHARING 3u

static size_t pieces_of(const struct gemm_job *j, const struct dk_gemm *g)
{
    return (size_t)((g->m + j->rows - 1) / j->rows) * j->n_cols;
}

static void gemm_piece(const struct gemm_job *j, size_t i, unsigned tid)
{
    const struct dk_gemm *g = j->g;
    for (size_t have; i >= (have = pieces_of(j, g)); g++)
        i -= have;
    uint32_t r0 = (uint32_t)(i / j->n_cols) * j->rows, c0 = (uint32_t)(i % j->n_cols) * j->cols;
    struct dk_gemm part = *g;
    part.m = g->m - r0 < j->rows ? g->m - r0 : j->rows;
    part.n = g->n - c0 < j->cols ? g->n - c0 : j->cols;
    part.a += r0 * g->a_row;
    part.b += c0 * g->b_col;
    part.c += r0 * g->ldc + c0;
    if (g->packed)
        part.packed = (const char *)g->packed + dk_gemm_packed(c0, g->k);
    j->p->train->gemm(&part, j->p->scratch[tid]);
}

static void gemm_region(void *arg, const struct dk_par *par)
{
    struct gemm_job *j = arg;
    size_t i;
    while ((i = atomic_fetch_add_explicit(&j->pack, 1, memory_order_relaxed)) < j->n_packs) {
        const uint32_t c0 = (uint32_t)i * PACK_COLS, left = j->g->n - c0;
        j->p->train->pack(j->g, c0, left < PACK_COLS ? j->g->n : c0 + PACK_COLS, j->p->packed);
    }
    if (j->n_packs)
        dk_barrier(par);
    while ((i = atomic_fetch_add_explicit(&j->piece, 1, memory_order_relaxed)) < j->n_pieces)
        gemm_piece(j, i, par->tid);
}

static void run_pieces(struct gemm_job *j)
{
    j->n_cols = (j->g->n + j->cols - 1) / j->cols;
    for (unsigned i = 0; i < j->n; i++)
        j->n_pieces += pieces_of(j, &j->g[i]);
    if (j->n_pieces)
        dk_pool_run(j->p->pool, gemm_region, j);
}

static uint32_t divide(uint32_t n, uint32_t parts, uint32_t unit)
{
    return ((n + parts - 1) / parts + unit - 1) / unit * unit;
}

/* Pieces that copy both factors: a few for each thread, large enough that copying is little beside the
 * products. */
static void cut(const struct train_par *p, struct gemm_job *j)
{
    const uint32_t unit_m = 28 * 3, unit_n = 32;
    const struct dk_gemm *g = j->g;
    uint64_t pieces = p->n == 1 ? 1 : 2 * p->n, have;
    j->rows = g->m;
    j->cols = g->n < 1024 ? g->n : 1024;
    have = (g->n + j->cols - 1) / j->cols;
    if (have < pieces && g->m > unit_m) {
        j->rows = divide(g->m, (uint32_t)((pieces + have - 1) / have), unit_m);
        have *= (g->m + j->rows - 1) / j->rows;
    }
    if (have < p->n && g->n > unit_n)
        j->cols = divide(g->n, p->n, unit_n);
}

/* Pieces whose B is packed.  The cost of one, in cycles an input as measured on Sapphire Rapids: tiles
 * of 32 x 32, copying rows of A, fetching columns of B.  All threads wait for the last one, about
 * one piece long: their cores are not equally fast. */
static void cut_packed(const struct train_par *p, struct gemm_job *j)
{
    const struct dk_gemm *g = j->g;
    const double copy = g->a_col == 1 ? 0.25 : 0.5, fetch = 0.1;
    double best = 0;
    uint32_t m = 0;
    for (unsigned i = 0; i < j->n; i++)
        m += j->g[i].m;
    for (uint32_t r = 1; r <= 16 * p->n; r++)
        for (uint32_t c = 1; r * c <= 16 * p->n; c++) {
            const uint32_t rows = divide(m, r, DK_GEMM_COLS), cols = divide(g->n, c, DK_GEMM_COLS);
            const uint32_t n = ((m + rows - 1) / rows) * ((g->n + cols - 1) / cols);
            const double one = (double)rows * cols / 328 + copy * rows + fetch * cols,
                         all = ((double)((n + p->n - 1) / p->n) + (p->n > 1 ? 1 : 0)) * one;
            if (best > 0 && all >= best)
                continue;
            best = all;
            j->rows = rows;
            j->cols = cols;
        }
}

/* As many columns and inputs at once as the shared copy of B takes. */
static void gemm_packing(struct train_par *p, const struct dk_gemm *g, unsigned n)
{
    const size_t most = TRAIN_PACKED_BYTES / dk_gemm_packed(PACK_COLS, 1024) * PACK_COLS;
    const uint32_t nc = g->n < most ? g->n : (uint32_t)most;
    const size_t column = (nc + PACK_COLS - 1) / PACK_COLS * dk_gemm_packed(PACK_COLS, 32);
    const uint32_t kc = (uint32_t)(TRAIN_PACKED_BYTES / column * 32);
    for (uint32_t j0 = 0; j0 < g->n; j0 += nc)
        for (uint32_t l0 = 0; l0 < g->k; l0 += kc) {
            struct dk_gemm part[MAX_SHARING];
            for (unsigned i = 0; i < n; i++) {
                part[i] = g[i];
                part[i].n = g->n - j0 < nc ? g->n - j0 : nc;
                part[i].k = g->k - l0 < kc ? g->k - l0 : kc;
                part[i].a += l0 * g[i].a_col;
                part[i].b += l0 * g->b_row + j0 * g->b_col;
                part[i].c += j0;
                part[i].packed = p->packed;
                part[i].flags |= l0 ? DK_GEMM_ADD : 0;
            }
            struct gemm_job j = {
                .p = p, .g = part, .n = n, .n_packs = (part->n + PACK_COLS - 1) / PACK_COLS};
            cut_packed(p, &j);
            run_pieces(&j);
        }
}

/* n products with one B. */
static void par_gemm(struct train_par *p, struct dk_gemm *g, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        g[i].flags |= p->gemm_flags;
        p->flops += 2.0 * g[i].m * g[i].n * g[i].k;
    }
    if (p->packed && !g->packed && g->m && g->k) {
        gemm_packing(p, g, n);
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        struct gemm_job j = {.p = p, .g = &g[i], .n = 1};
        if (!g->m || !g->n)
            continue;
        if (g->packed)
            cut_packed(p, &j);
        else
            cut(p, &j);
        run_pieces(&j);
    }
}

static struct dk_gemm forward_of(float *y, const float *x, const float *w, size_t rows,
                                 uint32_t out, uint32_t in)
{
    return (struct dk_gemm){.m = (uint32_t)rows,
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
}

static struct dk_gemm grad_x_of(float *dx, const float *dy, const float *w, size_t rows,
                                uint32_t out, uint32_t in)
{
    return (struct dk_gemm){.m = (uint32_t)rows,
                            .n = in,
                            .k = out,
                            .a = dy,
                            .a_row = out,
                            .a_col = 1,
                            .b = w,
                            .b_row = in,
                            .b_col = 1,
                            .c = dx,
                            .ldc = in};
}

void par_forward(struct train_par *p, float *y, const float *x, const float *w, size_t rows,
                 uint32_t out, uint32_t in)
{
    struct dk_gemm g = forward_of(y, x, w, rows, out, in);
    par_gemm(p, &g, 1);
}

void par_grad_x(struct train_par *p, float *dx, const float *dy, const float *w, size_t rows,
                uint32_t out, uint32_t in, bool add)
{
    struct dk_gemm g = grad_x_of(dx, dy, w, rows, out, in);
    g.flags = add ? DK_GEMM_ADD : 0;
    par_gemm(p, &g, 1);
}

void par_forward_frozen(struct train_par *p, float *y, const float *x, const struct train_frozen *f,
                        size_t rows)
{
    struct dk_gemm g = forward_of(y, x, f->w, rows, f->out, f->in);
    g.packed = f->forward;
    par_gemm(p, &g, 1);
}

void par_grad_x_frozen(struct train_par *p, float *dx, const float *dy,
                       const struct train_frozen *f, size_t rows)
{
    struct dk_gemm g = grad_x_of(dx, dy, f->w, rows, f->out, f->in);
    g.packed = f->back;
    par_gemm(p, &g, 1);
}

/* ---- matrices that stay as they are ---------------------------------------------------------- */

static size_t frozen_bytes(uint32_t n, uint32_t k)
{
    return dk_gemm_packed((n + DK_GEMM_COLS - 1) / DK_GEMM_COLS * DK_GEMM_COLS, k);
}

uint64_t train_frozen_bytes(const struct train_par *p, uint32_t out, uint32_t in)
{
    return p->packed ? frozen_bytes(out, in) + frozen_bytes(in, out) : 0;
}

int train_frozen_init(struct train_frozen *f, struct train_par *p, const float *w, uint32_t out,
                      uint32_t in, struct error *err)
{
    *f = (struct train_frozen){.w = w, .out = out, .in = in};
    if (!p->packed || !out || !in)
        return 0;
    f->forward = mem_map_pages(frozen_bytes(out, in));
    f->back = mem_map_pages(frozen_bytes(in, out));
    if (!f->forward || !f->back) {
        train_frozen_done(f);
        return ERR_NOMEM(err);
    }
    const struct dk_gemm forward = forward_of(NULL, NULL, w, 0, out, in),
                         back = grad_x_of(NULL, NULL, w, 0, out, in);
    p->train->pack(&forward, 0, out, f->forward);
    p->train->pack(&back, 0, in, f->back);
    return 0;
}

void train_frozen_done(struct train_frozen *f)
{
    mem_unmap_pages(f->forward, frozen_bytes(f->out, f->in));
    mem_unmap_pages(f->back, frozen_bytes(f->in, f->out));
    *f = (struct train_frozen){0};
}

void par_grad_w(struct train_par *p, const struct train_grad *d, unsigned n, const float *x,
                size_t rows, uint32_t in)
{
    struct dk_gemm g[MAX_SHARING];
    for (unsigned i = 0; i < n; i++)
        g[i] = (struct dk_gemm){.m = d[i].out,
                                .n = in,
                                .k = (uint32_t)rows,
                                .flags = DK_GEMM_ADD,
                                .a = d[i].dy,
                                .a_row = 1,
                                .a_col = d[i].out,
                                .b = x,
                                .b_row = in,
                                .b_col = 1,
                                .c = d[i].dw,
                                .ldc = in};
    par_gemm(p, g, n);
}
