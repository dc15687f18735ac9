/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for the steps of training: products and loops over rows, cut into pieces that whoever is
 * free takes, so that a thread that lost its processor holds up little.  No sum crosses a piece:
 * results do not depend on who did what.
 */
#pragma once

#include "kernels/train.h"

#define TRAIN_MAX_THREADS  64u
#define TRAIN_PACKED_BYTES ((size_t)8 << 20)

struct train_par {
    struct dk_pool *pool;
    const struct dk_ops *ops;
    const struct dk_train_ops *train;
    unsigned n, gemm_flags; /* threads; DK_GEMM_BF16 or 0 */
    void *scratch[TRAIN_MAX_THREADS];
    void *packed; /* a product's B, where the kernels share it; else NULL */
    double flops; /* of products so far, two for a multiply-add */
};
int train_par_init(struct train_par *p, enum dk_tier tier, unsigned threads, bool bf16,
                   struct error *err);
void train_par_done(struct train_par *p);

/* fn for pieces [a, b) of `grain` at most, in any order, on any thread. */
typedef void (*train_rows_fn)(void *arg, size_t a, size_t b, unsigned tid);
void par_rows(struct train_par *p, size_t n, size_t grain, train_rows_fn fn, void *arg);

/* A grain for n columns: two pieces a thread, of at least 32. */
static inline size_t train_columns(const struct train_par *p, size_t n)
{
    const size_t each = (n / (2 * p->n) + 15) / 16 * 16;
    return each < 32 ? 32 : each;
}

/* Y[r][o] (+)= X[r][i] W[o][i]: forward. */
void par_forward(struct train_par *p, float *y, const float *x, const float *w, size_t rows,
                 uint32_t out, uint32_t in);
/* DX[r][i] (+)= DY[r][o] W[o][i]. */
void par_grad_x(struct train_par *p, float *dx, const float *dy, const float *w, size_t rows,
                uint32_t out, uint32_t in, bool add);
/* DW[o][i] += DY[r][o] X[r][i], for at most three that share X. */
struct train_grad {
    float *dw;
    const float *dy;
    uint32_t out;
};
void par_grad_w(struct train_par *p, const struct train_grad *d, unsigned n, const float *x,
                size_t rows, uint32_t in);

/* A matrix that many products share and nobody changes, packed once where the kernels do that. */
struct train_frozen {
    const float *w; /* [out][in], not owned */
    uint32_t out, in;
    void *forward, *back; /* NULL: products copy what they need */
};
uint64_t train_frozen_bytes(const struct train_par *p, uint32_t out, uint32_t in); /* beside w */
int train_frozen_init(struct train_frozen *f, struct train_par *p, const float *w, uint32_t out,
                      uint32_t in, struct error *err);
void train_frozen_done(struct train_frozen *f);
/* As par_forward and par_grad_x. */
void par_forward_frozen(struct train_par *p, float *y, const float *x, const struct train_frozen *f,
                        size_t rows);
void par_grad_x_frozen(struct train_par *p, float *dx, const float *dy,
                       const struct train_frozen *f, size_t rows);
