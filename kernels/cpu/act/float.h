/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Float activations, shared by the tiers (static: compiled into each with its own instructions).
 *
 * F32: rows are cut into groups of at most `max` rows, as equal as possible; a product's register
 * tile takes one group.  A group of R rows that starts at row g begins at element g * kp (kp = k
 * padded to 16) and is [kp/16][R][16]: a tile walks it front to back with constant offsets, and
 * filling it is copying lines.
 * BF16: rows in tiles of 16, the last one with the rest.  Tile t begins at element 16 * t * kp (kp = k
 * padded to 32) and is [kp/32][rows of the tile][32], rounded to nearest even: every tile that the
 * instruction loads is one piece of memory.
 */
#pragma once

#include <string.h>

#include "kernels/cpu/internal.h"

struct dk_groups {
    uint32_t n, size; /* groups; rows of the later ones */
    uint32_t larger;  /* the first so many have one row more */
};

static inline struct dk_groups dk_groups(uint32_t rows, uint32_t max)
{
    struct dk_groups g = {.n = (rows + max - 1) / max};
    g.size = g.n ? rows / g.n : 0;
    g.larger = g.n ? rows % g.n : 0;
    return g;
}

static inline uint32_t dk_group_rows(const struct dk_groups *g, uint32_t i)
{
    return g->size + (i < g->larger);
}

static inline uint32_t dk_group_start(const struct dk_groups *g, uint32_t i)
{
    return i * g->size + (i < g->larger ? i : g->larger);
}

static inline uint32_t dk_group_of(const struct dk_groups *g, uint32_t row)
{
    uint32_t split = g->larger * (g->size + 1);
    return row < split ? row / (g->size + 1) : g->larger + (row - split) / g->size;
}

static inline void dk_act_fill_f32(struct dk_act *a, const float *x, size_t ldx, uint32_t row0,
                                   uint32_t row1, uint32_t max)
{
    struct dk_groups groups = dk_groups(a->rows, max);
    size_t kp = dk_pad_k(a->k, DK_K_PAD);
    for (uint32_t r = row0; r < row1; r++) {
        uint32_t i = dk_group_of(&groups, r), g0 = dk_group_start(&groups, i);
        size_t step = (size_t)dk_group_rows(&groups, i) * 16;
        float *d = (float *)dk_act_f32(a) + g0 * kp + (size_t)(r - g0) * 16;
        const float *s = x + r * ldx;
        uint32_t k = 0;
        for (; k + 16 <= a->k; k += 16, d += step)
            memcpy(d, s + k, 16 * sizeof *d);
        if (k < a->k) {
            memset(d, 0, 16 * sizeof *d);
            memcpy(d, s + k, (a->k - k) * sizeof *d);
        }
    }
}

/* Where row r of the BF16 form begins, and the distance from 32 inputs to the next. */
static inline uint16_t *dk_act_bf16_row(const struct dk_act *a, uint32_t r, size_t *ret_step)
{
    uint32_t first = r / 16 * 16, rows = a->rows - first < 16 ? a->rows - first : 16;
    *ret_step = (size_t)rows * 32;
    return (uint16_t *)dk_act_bf16(a) + (size_t)first * dk_pad_k(a->k, 32) + (size_t)(r - first) * 32;
}
