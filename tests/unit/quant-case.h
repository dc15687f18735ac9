/* SPDX-License-Identifier: Apache-2.0 */
/* A random block-quantised product: file rows, packed weights, activations with every kind of
 * trouble, and the surroundings of y, which must stay as they are.  All memory that the kernels are
 * given ends at pages that may not be touched. */
#pragma once

#include <stdint.h>

#include "kernels/kernels.h"

struct qrng {
    uint32_t state;
};
static inline uint32_t qrng(struct qrng *g)
{
    g->state = g->state * 1664525u + 1013904223u;
    uint32_t x = g->state;
    x = (x ^ x >> 16) * 0x7feb352du;
    return x ^ x >> 15;
}

struct qcase {
    struct dk_weight w;
    void *packed;
    uint8_t *src; /* rows as in a file */
    size_t row_bytes;
    uint32_t rows, own_rows; /* of the product; of x_mem */
    const float *x;
    float *x_mem, *y0; /* y0: what y holds before */
    size_t ldx, ldy;
    unsigned flags;
    uint32_t cut_rows, cut_panels; /* run in two parts */
};
void qcase_new(struct qcase *c, struct qrng *g, enum dk_type t, uint32_t n, uint32_t k,
               uint32_t rows, unsigned flags);
void qcase_free(struct qcase *c);
/* y of the product, [rows][ldy], to be freed. */
float *qcase_run(const struct qcase *c, const struct dk_ops *ops);
/* Fails unless all n outputs of all rows have the same bits (any NaN equals any NaN) and the rest
 * of y is untouched. */
void qcase_equal(const struct qcase *c, const char *what, const float *got, const float *want);
