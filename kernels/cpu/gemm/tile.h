/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices in memory by register tiles of MR rows and NR columns, for the tiers that
 * include this with these two and TILE_NAME set.  Blocks of KC inputs: MC rows of A and NC columns
 * of B are copied so that a tile reads both front to back, B's part staying in the first-level
 * cache, A's in the second.  A tile starts from what C holds, so a sum is one chain over all of k,
 * whatever the blocks.
 */
#pragma once

#include <string.h>

#include "kernels/cpu/train/internal.h"

#define KC     256u
#define MC     (MR * (320u / MR))
#define NC     1024u

#define BEHIND 16u /* floats that a copy of A may write behind its end */

_Static_assert(((size_t)KC * (MC + NC) + BEHIND) * sizeof(float) <= DK_GEMM_SCRATCH, "scratch");

#ifndef PACK_INPUTS
#define PACK_INPUTS pack_inputs
/* Squares of 16 inputs, so that the rows' lines are used whole and the target stays near. */
static inline __attribute__((always_inline)) void
pack_inputs(float *dst, const float *src, size_t row, uint32_t n, uint32_t k, const uint32_t unit)
{
    for (uint32_t l0 = 0; l0 < k; l0 += 16) {
        uint32_t l1 = k - l0 < 16 ? k - l0 : 16;
        for (uint32_t i = 0; i < unit; i++) {
            float *d = dst + (size_t)l0 * unit + i;
            const float *s = src + i * row + l0;
            for (uint32_t l = 0; l < l1; l++)
                d[(size_t)l * unit] = i < n ? s[l] : 0.0f;
        }
    }
}
#endif

/* dst[l][UNIT] from UNIT rows (or columns) of src: element (i, l) at src[i * row + l * col], one
 * of the strides being 1; those from n on are zero. */
static inline __attribute__((always_inline)) void pack_unit(float *dst, const float *src,
                                                            size_t row, size_t col, uint32_t n,
                                                            uint32_t k, const uint32_t unit)
{
    if (row != 1) {
        PACK_INPUTS(dst, src, row, n, k, unit);
        return;
    }
    for (uint32_t l = 0; l < k; l++, dst += unit, src += col) {
        if (n == unit) {
            memcpy(dst, src, unit * sizeof(*dst));
        } else {
            memcpy(dst, src, n * sizeof(*dst));
            memset(dst + n, 0, (unit - n) * sizeof(*dst));
        }
    }
}

static void tile_edge(const float *a, const float *b, uint32_t k, float *c, size_t ldc, uint32_t m,
                      uint32_t n, bool fresh)
{
    _Alignas(64) float t[MR * NR];
    if (!fresh)
        for (uint32_t i = 0; i < m; i++)
            memcpy(t + i * NR, c + i * ldc, n * sizeof(*t));
    tile(a, b, k, t, NR, fresh);
    for (uint32_t i = 0; i < m; i++)
        memcpy(c + i * ldc, t + i * NR, n * sizeof(*t));
}

static void block(const float *pa, const float *pb, uint32_t m, uint32_t n, uint32_t k, float *c,
                  size_t ldc, bool fresh)
{
    for (uint32_t j = 0; j < n; j += NR) {
        for (uint32_t i = 0; i < m; i += MR) {
            const float *a = pa + (size_t)i * k, *b = pb + (size_t)j * k;
            float *out = c + (size_t)i * ldc + j;
            if (m - i >= MR && n - j >= NR)
                tile(a, b, k, out, ldc, fresh);
            else
                tile_edge(a, b, k, out, ldc, m - i < MR ? m - i : MR, n - j < NR ? n - j : NR,
                          fresh);
        }
    }
}

void TILE_NAME(dk_cpu_gemm)(const struct dk_gemm *g, void *scratch)
{
    float *pa = scratch, *pb = pa + (size_t)KC * MC + BEHIND;
    if (g->k == 0 && !(g->flags & DK_GEMM_ADD))
        for (uint32_t i = 0; i < g->m; i++)
            memset(g->c + i * g->ldc, 0, g->n * sizeof(float));
    for (uint32_t j0 = 0; j0 < g->n; j0 += NC) {
        const uint32_t n = g->n - j0 < NC ? g->n - j0 : NC;
        for (uint32_t l0 = 0; l0 < g->k; l0 += KC) {
            const uint32_t k = g->k - l0 < KC ? g->k - l0 : KC;
            const bool fresh = l0 == 0 && !(g->flags & DK_GEMM_ADD);
            for (uint32_t j = 0; j < n; j += NR)
                pack_unit(pb + (size_t)j * k, g->b + l0 * g->b_row + (j0 + j) * g->b_col, g->b_col,
                          g->b_row, n - j < NR ? n - j : NR, k, NR);
            for (uint32_t i0 = 0; i0 < g->m; i0 += MC) {
                const uint32_t m = g->m - i0 < MC ? g->m - i0 : MC;
                for (uint32_t i = 0; i < m; i += MR)
                    pack_unit(pa + (size_t)i * k, g->a + (i0 + i) * g->a_row + l0 * g->a_col,
                              g->a_row, g->a_col, m - i < MR ? m - i : MR, k, MR);
                block(pa, pb, m, n, k, g->c + i0 * g->ldc + j0, g->ldc, fresh);
            }
        }
    }
}
