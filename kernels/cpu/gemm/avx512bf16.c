/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices in memory with factors rounded to BF16, AVX-512 BF16: 14 rows by two
 * registers. As tile.h, but copies hold pairs of inputs, A's [pair][14][2], B's [pair][32][2]; an
 * odd last input has a zero beside it.  Sums are those of VDPBF16PS: per pair two products added,
 * denormals flushed.
 */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/gemm/transpose16.h"
#include "kernels/cpu/train/internal.h"

#define MR   14u
#define NR   32u
#define KC   512u
#define MC   (MR * (320u / MR))
#define NC   1024u
#define BF16 __attribute__((target("avx512bf16")))

_Static_assert((size_t)KC / 2 * (MC + NC) * sizeof(uint32_t) <= DK_GEMM_SCRATCH, "scratch");

/* Pairs of (a, b), lane by lane. */
#define PAIR(a, b)                                                                                 \
    _mm512_or_si512(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a)),                         \
                    _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b)), 16))

/* UNIT lanes next to each other in memory. */
BF16 static void pack_lanes(uint32_t *dst, const float *src, size_t col, uint32_t n, uint32_t k,
                            uint32_t unit)
{
    const uint32_t n1 = n > 16 ? n - 16 : 0, u1 = unit > 16 ? unit - 16 : 0;
    const __mmask16 m0 = (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1),
                    m1 = (__mmask16)((1u << n1) - 1);
    const __mmask16 s0 = (__mmask16)(unit >= 16 ? 0xffff : (1u << unit) - 1),
                    s1 = (__mmask16)((1u << u1) - 1);
    for (uint32_t l = 0; l < k; l += 2, dst += unit, src += 2 * col) {
        const float *next = l + 1 < k ? src + col : src;
        const __mmask16 o = l + 1 < k ? 0xffff : 0;
        __m512 a = _mm512_maskz_loadu_ps(m0, src), b = _mm512_maskz_loadu_ps(m0 & o, next);
        _mm512_mask_storeu_epi32(dst, s0, PAIR(a, b));
        if (!u1)
            continue;
        a = _mm512_maskz_loadu_ps(m1, src + 16);
        b = _mm512_maskz_loadu_ps(m1 & o, next + 16);
        _mm512_mask_storeu_epi32(dst + 16, s1, PAIR(a, b));
    }
}

/* Inputs next to each other in memory: 32 of a row are 16 pairs. */
BF16 static void pack_inputs(uint32_t *dst, const float *src, size_t row, uint32_t n, uint32_t k,
                             uint32_t unit)
{
    for (uint32_t i0 = 0; i0 < unit; i0 += 16) {
        const uint32_t rows = n > i0 ? n - i0 : 0, wide = unit - i0;
        const __mmask16 store = (__mmask16)(wide >= 16 ? 0xffff : (1u << wide) - 1);
        for (uint32_t l = 0; l < k; l += 32) {
            const uint32_t left = k - l < 32 ? k - l : 32, more = left > 16 ? left - 16 : 0;
            const __mmask16 m0 = (__mmask16)(left >= 16 ? 0xffff : (1u << left) - 1),
                            m1 = (__mmask16)((1u << more) - 1);
            __m512i r[16];
#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++) {
                const float *s = src + (i0 + (i < rows ? i : 0)) * row + l;
                r[i] = i < rows ? (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(m1, s + 16),
                                                               _mm512_maskz_loadu_ps(m0, s))
                                : _mm512_setzero_si512();
            }
            transpose16(r);
            for (uint32_t i = 0; i < (left + 1) / 2; i++)
                _mm512_mask_storeu_epi32(dst + (size_t)(l / 2 + i) * unit + i0, store, r[i]);
        }
    }
}

static void pack(uint32_t *dst, const float *src, size_t row, size_t col, uint32_t n, uint32_t k,
                 uint32_t unit)
{
    if (row == 1)
        pack_lanes(dst, src, col, n, k, unit);
    else
        pack_inputs(dst, src, row, n, k, unit);
}

#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

BF16 static void tile(const uint32_t *a, const uint32_t *b, uint32_t pairs, float *c, size_t ldc,
                      bool fresh)
{
#define ZERO(i) __m512 x##i = _mm512_setzero_ps(), y##i = x##i;
#define LOAD(i) x##i = _mm512_loadu_ps(c + i * ldc), y##i = _mm512_loadu_ps(c + i * ldc + 16);
#define STEP(i)                                                                                    \
    {                                                                                              \
        __m512bh v = (__m512bh)_mm512_set1_epi32((int)a[i]);                                       \
        x##i = _mm512_dpbf16_ps(x##i, v, p);                                                       \
        y##i = _mm512_dpbf16_ps(y##i, v, q);                                                       \
    }
#define STORE(i)                                                                                   \
    _mm512_storeu_ps(c + i * ldc, x##i);                                                           \
    _mm512_storeu_ps(c + i * ldc + 16, y##i);
    ROWS(ZERO)
    if (!fresh) {
        ROWS(LOAD)
    }
    for (; pairs > 0; pairs--, a += MR, b += NR) {
        __m512bh p = (__m512bh)_mm512_load_si512(b), q = (__m512bh)_mm512_load_si512(b + 16);
        ROWS(STEP)
    }
    ROWS(STORE)
}

static void tile_edge(const uint32_t *a, const uint32_t *b, uint32_t pairs, float *c, size_t ldc,
                      uint32_t m, uint32_t n, bool fresh)
{
    _Alignas(64) float t[MR * NR];
    if (!fresh) {
        memset(t, 0, sizeof(t));
        for (uint32_t i = 0; i < m; i++)
            memcpy(t + i * NR, c + i * ldc, n * sizeof(*t));
    }
    tile(a, b, pairs, t, NR, fresh);
    for (uint32_t i = 0; i < m; i++)
        memcpy(c + i * ldc, t + i * NR, n * sizeof(*t));
}

static void block(const uint32_t *pa, const uint32_t *pb, uint32_t m, uint32_t n, uint32_t pairs,
                  float *c, size_t ldc, bool fresh)
{
    for (uint32_t j = 0; j < n; j += NR)
        for (uint32_t i = 0; i < m; i += MR) {
            const uint32_t *a = pa + (size_t)i * pairs, *b = pb + (size_t)j * pairs;
            float *out = c + (size_t)i * ldc + j;
            if (m - i >= MR && n - j >= NR)
                tile(a, b, pairs, out, ldc, fresh);
            else
                tile_edge(a, b, pairs, out, ldc, m - i < MR ? m - i : MR, n - j < NR ? n - j : NR,
                          fresh);
        }
}

void dk_cpu_gemm_avx512bf16(const struct dk_gemm *g, void *scratch)
{
    uint32_t *pa = scratch, *pb = pa + (size_t)KC / 2 * MC;
    if (!(g->flags & DK_GEMM_BF16) || g->k == 0) {
        dk_cpu_gemm_avx512(g, scratch);
        return;
    }
    for (uint32_t j0 = 0; j0 < g->n; j0 += NC) {
        const uint32_t n = g->n - j0 < NC ? g->n - j0 : NC;
        for (uint32_t l0 = 0; l0 < g->k; l0 += KC) {
            const uint32_t k = g->k - l0 < KC ? g->k - l0 : KC, pairs = (k + 1) / 2;
            const bool fresh = l0 == 0 && !(g->flags & DK_GEMM_ADD);
            for (uint32_t j = 0; j < n; j += NR)
                pack(pb + (size_t)j * pairs, g->b + l0 * g->b_row + (j0 + j) * g->b_col, g->b_col,
                     g->b_row, n - j < NR ? n - j : NR, k, NR);
            for (uint32_t i0 = 0; i0 < g->m; i0 += MC) {
                const uint32_t m = g->m - i0 < MC ? g->m - i0 : MC;
                for (uint32_t i = 0; i < m; i += MR)
                    pack(pa + (size_t)i * pairs, g->a + (i0 + i) * g->a_row + l0 * g->a_col,
                         g->a_row, g->a_col, m - i < MR ? m - i : MR, k, MR);
                block(pa, pb, m, n, pairs, g->c + i0 * g->ldc + j0, g->ldc, fresh);
            }
        }
    }
}
