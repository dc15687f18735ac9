/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that training alone needs: products of any two matrices in memory, and the gradients of
 * the ops of kernels.h.  The laws of that header hold: fixed order of every sum, the same bits for
 * every split over threads; a split is the caller's, nothing allocates.  Products, and what is made
 * of them, are the same bits on every tier too; DK_GEMM_BF16 is a class of its own.
 */
#pragma once

#include "kernels/kernels.h"

/*
 * C[i][j] = C_old or 0, then for l = 0 .. k-1 in order: C[i][j] = fma(A[i][l], B[l][j], C[i][j]).
 *   A[i][l] = a[i * a_row + l * a_col], B[l][j] = b[l * b_row + j * b_col],
 *   C[i][j] = c[i * ldc + j].
 * One of each matrix's two strides is 1.  C overlaps neither A nor B. DK_GEMM_BF16 asks for factors
 * rounded to BF16 (nearest even) and sums over pairs of l, where the processor has instructions for
 * it (dk_train_ops.bf16); elsewhere it is ignored.
 */
enum { DK_GEMM_ADD = 1, DK_GEMM_BF16 = 2 };
struct dk_gemm {
    uint32_t m, n, k;
    unsigned flags;
    const float *a, *b;
    size_t a_row, a_col, b_row, b_col;
    float *c;
    size_t ldc;
    const void *packed; /* B's columns as pack() made them, for all of k; b does not count then */
};
#define DK_GEMM_SCRATCH ((size_t)2 << 20) /* bytes a thread, 64-byte aligned */
#define DK_GEMM_COLS    32u               /* columns of B that are packed together */

/* Columns up to j, a multiple of DK_GEMM_COLS, begin so many bytes behind the first; those of all n
 * columns take what the next multiple says. */
static inline size_t dk_gemm_packed(uint32_t j, uint32_t k)
{
    return (size_t)j * ((k + 31) / 32 * 32) * sizeof(uint16_t);
}

/* What a row of logits becomes, and what it says. */
struct dk_ce {
    uint32_t argmax;    /* lowest id of the largest */
    float confidence;   /* its probability */
    float max, log_sum; /* log of the sum of exp(z - max) */
    bool bad;           /* a NaN or an infinity among the logits */
};

struct dk_adamw {
    float clip; /* factor of all gradients */
    float keep; /* 1 - lr * weight decay */
    float beta1, beta2;
    float step;        /* lr / (1 - beta1^t) */
    float inv_sqrt_c2; /* 1 / sqrt(1 - beta2^t) */
    float eps;
};

struct dk_train_ops {
    enum dk_tier tier;
    bool bf16; /* DK_GEMM_BF16 means something */
    void (*gemm)(const struct dk_gemm *g, void *scratch);
    /* Copies columns [j0, j1) of g's B for products with DK_GEMM_BF16, dst being those of column 0: j0
     * a multiple of DK_GEMM_COLS, j1 too or n.  64-byte aligned.  NULL: products do it themselves. */
    void (*pack)(const struct dk_gemm *g, uint32_t j0, uint32_t j1, void *dst);

    /* y = (x r) w with r = 1 / sqrt(mean x^2 + eps); *ret_r = r. y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps, float *ret_r);
    /* dx += gradient of x: r (dy w) - x r^3 / n sum(dy w x); the old dx first when add. */
    void (*rmsnorm_grad)(float *dx, const float *dy, const float *x, const float *w, float r,
                         uint32_t n, bool add);
    /* dw[i] += dy[i] x[i] r, for i in [0, n). */
    void (*rmsnorm_grad_w)(float *dw, const float *dy, const float *x, float r, uint32_t n);
    /* out = g / (1 + exp(-g)) u. */
    void (*silu_mul)(float *out, const float *g, const float *u, uint32_t n);
    /* From d = gradient of out: g and u are replaced by theirs. */
    void (*silu_mul_grad)(float *g, float *u, const float *d, uint32_t n);
    /* z becomes softmax(z) * scale (zeros when scale is 0). */
    void (*cross_entropy)(float *z, uint32_t n, float scale, struct dk_ce *ret);
    /* x = exp(x - max), returns the sum; 16 lanes by i % 16, folded 8-4-2-1. */
    float (*exp_sum)(float *x, uint32_t n, float max);
    float (*max)(const float *x, uint32_t n);                 /* -inf when n is 0 */
    float (*dot)(const float *x, const float *y, uint32_t n); /* 16 lanes, folded 8-4-2-1 */
    void (*scale)(float *x, uint32_t n, float s);
    /* p = p (d - sub), and p times scale. */
    void (*softmax_grad)(float *p, const float *d, uint32_t n, float sub, float scale);
    void (*add)(float *x, const float *y, uint32_t n);

    /* g = clip grad; p = p keep; m = m beta1 + g (1 - beta1); v = v beta2 + g g (1 - beta2);
     * p = p - step m / (sqrt(v) inv_sqrt_c2 + eps). */
    void (*adamw)(float *p, float *m, float *v, const float *g, uint32_t n,
                  const struct dk_adamw *o);
    /* Sum of squares in double, in order by 16 lanes. */
    double (*sum_squares)(const float *x, uint32_t n);
    /* Runs `rounds` rounds of independent FMAs in registers; returns how many operations that were
     * (two an FMA), for the machine's peak.  bf16: pairs of products of BF16. */
    double (*fma_peak)(uint64_t rounds, bool bf16);
};
const struct dk_train_ops *dk_train_ops(enum dk_tier t); /* NULL as dk_ops() */
