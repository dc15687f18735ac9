/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices in memory with factors rounded to BF16, AMX: 32 rows by 32 columns in four
 * accumulating tiles.  Copies of the factors hold tiles that an instruction loads as one piece of
 * memory, for each 32 inputs: A's [16 rows][32 inputs], B's [16 pairs of inputs][16 columns][2]; what
 * lies behind the last input, row or column is zero.  A chain over all of k starts from what C holds,
 * so a sum is one chain of TDPBF16PS whatever the blocks: the same bits for every split.
 *
 * Blocks: NC columns of B for KC inputs stay in the second-level cache; A's rows are copied just before
 * they are used, 32 (their inputs next to each other) or more (their rows next to each other, so
 * that whole lines are read); 32 of them meet all of B's block before the next.
 */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm/transpose16.h"
#include "kernels/cpu/train/internal.h"

#define TILE    512u  /* elements of a tile: 1 KiB */
#define PANEL   32u   /* rows of A, columns of B: two tiles side by side */
#define KC      1536u /* inputs of a block, at most */
#define MC      256u  /* rows of A copied at once where they are next to each other, at most, and */
#define A_ELEMS (MC * 1024u)   /* what they take, at most */
#define B_ELEMS (576u * 1280u) /* a block of B, at most */
#define SPILL   (PANEL * PANEL)
#define BF16    __attribute__((target("avx512bf16")))

_Static_assert(PANEL *KC <= A_ELEMS && PANEL * KC <= B_ELEMS, "a panel fits");
_Static_assert((size_t)(A_ELEMS + B_ELEMS) * sizeof(uint16_t) + SPILL * sizeof(float) <=
                   DK_GEMM_SCRATCH,
               "scratch");

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline __mmask16 first(uint32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
}

/* ---- copies ------------------------------------------------------------------------------------ */

/* Sixteen floats and the sixteen of the next input: pairs, lane by lane. */
BF16 static inline __m512i pairs(__m512 even, __m512 odd)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* 32 inputs of a row, as they lie. */
BF16 static inline __m512i inputs(const float *s, uint32_t left)
{
    if (left >= 32)
        return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(s + 16), _mm512_loadu_ps(s));
    return (__m512i)_mm512_cvtne2ps_pbh(
        _mm512_maskz_loadu_ps(left > 16 ? first(left - 16) : 0, left > 16 ? s + 16 : s),
        _mm512_maskz_loadu_ps(first(left), s));
}

/* n rows, their inputs next to each other, as tiles of A: rows of 32 inputs. */
BF16 static void rows_as_rows(uint16_t *dst, const float *src, size_t row, uint32_t n, uint32_t k,
                              uint32_t tiles)
{
    const size_t step = (size_t)tiles * TILE;
    for (uint32_t i = 0; i < 16 * tiles; i++) {
        uint16_t *d = dst + (size_t)(i / 16) * TILE + i % 16 * 32;
        const float *s = src + (size_t)i * row;
        if (i < n)
            for (uint32_t l = 0; l < k; l += 32, d += step)
                _mm512_store_si512(d, inputs(s + l, k - l));
        else
            for (uint32_t l = 0; l < k; l += 32, d += step)
                _mm512_store_si512(d, _mm512_setzero_si512());
    }
}

/* The same as tiles of B: pairs of inputs by 16. */
BF16 static void rows_as_pairs(uint16_t *dst, const float *src, size_t row, uint32_t n, uint32_t k,
                               uint32_t tiles)
{
    for (uint32_t l = 0; l < k; l += 32)
        for (uint32_t t = 0; t < tiles; t++, dst += TILE) {
            const uint32_t have = n > 16 * t ? n - 16 * t : 0;
            const float *s = src + (size_t)16 * t * row + l;
            __m512i r[16];
            if (have >= 16 && k - l >= 32) {
#pragma GCC unroll 16
                for (uint32_t i = 0; i < 16; i++)
                    r[i] = inputs(s + i * row, 32);
            } else {
                for (uint32_t i = 0; i < 16; i++)
                    r[i] = i < have ? inputs(s + i * row, k - l) : _mm512_setzero_si512();
            }
            transpose16(r);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++)
                _mm512_store_si512(dst + 32 * i, r[i]);
        }
}

/* Pair p of the inputs from src on, 16 of n rows (or columns) that are next to each other. */
BF16 static inline __m512i pair_at(const float *src, size_t col, uint32_t p, uint32_t k,
                                   __mmask16 m)
{
    const float *s = src + 2 * (size_t)p * col;
    if (2 * p + 1 < k)
        return pairs(_mm512_maskz_loadu_ps(m, s), _mm512_maskz_loadu_ps(m, s + col));
    return 2 * p < k ? pairs(_mm512_maskz_loadu_ps(m, s), _mm512_setzero_ps())
                     : _mm512_setzero_si512();
}

/* n columns next to each other, as tiles of B, all panels at once: an input's line is read to its end. */
BF16 static void lanes_as_pairs(uint16_t *dst, const float *src, size_t col, uint32_t n, uint32_t k)
{
    const uint32_t steps = (k + 31) / 32;
    for (uint32_t l = 0; l < steps; l++, src += 32 * col, k -= least(k, 32))
        for (uint32_t p = 0; p < 16; p++)
            for (uint32_t j = 0; j < n; j += 16) {
                const uint32_t panel = j / PANEL * PANEL, tiles = n - panel > 16 ? 2 : 1;
                uint16_t *d = dst + (size_t)panel * steps * 32 +
                              ((size_t)l * tiles + (j - panel) / 16) * TILE + 32 * p;
                _mm512_store_si512(d, pair_at(src + j, col, p, k, first(n - j)));
            }
}

/* n rows next to each other, as tiles of A. */
BF16 static void lanes_as_rows(uint16_t *dst, const float *src, size_t col, uint32_t n, uint32_t k)
{
    const uint32_t steps = (k + 31) / 32;
    for (uint32_t l = 0; l < steps; l++, src += 32 * col, k -= least(k, 32))
        for (uint32_t i0 = 0; i0 < n; i0 += 16) {
            const uint32_t panel = i0 / PANEL * PANEL, tiles = n - panel > 16 ? 2 : 1;
            uint16_t *d =
                dst + (size_t)panel * steps * 32 + ((size_t)l * tiles + (i0 - panel) / 16) * TILE;
            const __mmask16 m = first(n - i0);
            __m512i r[16];
#pragma GCC unroll 16
            for (uint32_t p = 0; p < 16; p++)
                r[p] = pair_at(src + i0, col, p, k, m);
            transpose16(r);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++)
                _mm512_store_si512(d + 32 * i, r[i]);
        }
}

/* ---- products ---------------------------------------------------------------------------------- */

struct part {
    const uint16_t *a, *b; /* a panel each */
    uint32_t steps;        /* of 32 inputs */
    float *c;
    size_t ldc;
    const float *next; /* what C is used behind it */
    bool fresh;
};

/* A line to write; every processor with AMX knows the instruction. */
static inline void fetch_own(const float *p)
{
    __asm__ volatile("prefetchw %0" : : "m"(*p));
}

/* Two tiles of rows or one, by two tiles of columns or one. */
static inline __attribute__((always_inline)) void tiles(const struct part *t, bool rows2,
                                                        bool cols2)
{
    const uint16_t *a = t->a, *b = t->b;
    const size_t ld = t->ldc * sizeof(float), step_a = rows2 ? 2 * TILE : TILE,
                 step_b = cols2 ? 2 * TILE : TILE;
    float *c = t->c, *below = c + 16 * t->ldc;
    if (t->fresh) {
        _tile_zero(0);
        if (cols2)
            _tile_zero(1);
        if (rows2)
            _tile_zero(2);
        if (rows2 && cols2)
            _tile_zero(3);
    } else {
        _tile_loadd(0, c, ld);
        if (cols2)
            _tile_loadd(1, c + 16, ld);
        if (rows2)
            _tile_loadd(2, below, ld);
        if (rows2 && cols2)
            _tile_loadd(3, below + 16, ld);
    }
    for (uint32_t s = 0; s < t->steps; s++, a += step_a, b += step_b) {
        if (rows2 && cols2 && s < 16) {
            const float *n = t->next + (size_t)(2 * s) * t->ldc;
            fetch_own(n);
            fetch_own(n + 16);
            fetch_own(n + t->ldc);
            fetch_own(n + t->ldc + 16);
        }
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (cols2) {
            _tile_loadd(7, b + TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (rows2) {
            _tile_loadd(5, a + TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (rows2 && cols2)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ld);
    if (cols2)
        _tile_stored(1, c + 16, ld);
    if (rows2)
        _tile_stored(2, below, ld);
    if (rows2 && cols2)
        _tile_stored(3, below + 16, ld);
}

static void tiles_of(const struct part *t, uint32_t m, uint32_t n)
{
    if (m > 16 && n > 16)
        tiles(t, true, true);
    else if (m > 16)
        tiles(t, true, false);
    else if (n > 16)
        tiles(t, false, true);
    else
        tiles(t, false, false);
}

/* Tiles that reach over C's edge, by way of spill. */
static void edge(struct part *t, uint32_t m, uint32_t n, float *spill)
{
    const __mmask16 lo = first(n), hi = n > 16 ? first(n - 16) : 0;
    float *c = t->c;
    const size_t ldc = t->ldc;
    if (!t->fresh) {
        memset(spill, 0, SPILL * sizeof(*spill));
        for (uint32_t i = 0; i < m; i++) {
            _mm512_store_ps(spill + i * PANEL, _mm512_maskz_loadu_ps(lo, c + i * ldc));
            if (hi)
                _mm512_store_ps(spill + i * PANEL + 16,
                                _mm512_maskz_loadu_ps(hi, c + i * ldc + 16));
        }
    }
    t->c = spill;
    t->ldc = PANEL;
    t->next = spill;
    tiles_of(t, m, n);
    for (uint32_t i = 0; i < m; i++) {
        _mm512_mask_storeu_ps(c + i * ldc, lo, _mm512_load_ps(spill + i * PANEL));
        if (hi)
            _mm512_mask_storeu_ps(c + i * ldc + 16, hi, _mm512_load_ps(spill + i * PANEL + 16));
    }
}

/* Panels of A by panels of B. */
static void block(const uint16_t *pa, const uint16_t *pb, uint32_t m, uint32_t n, uint32_t steps,
                  float *c, size_t ldc, bool fresh, float *spill)
{
    const size_t apart = (size_t)steps * PANEL * 32;
    for (uint32_t i = 0; i < m; i += PANEL)
        for (uint32_t j = 0; j < n; j += PANEL) {
            const uint32_t rows = least(m - i, PANEL), cols = least(n - j, PANEL);
            struct part t = {.a = pa + i / PANEL * apart,
                             .b = pb + j / PANEL * apart,
                             .steps = steps,
                             .c = c + (size_t)i * ldc + j,
                             .ldc = ldc,
                             .fresh = fresh};
            const bool right = n - j >= 2 * PANEL;
            t.next = right ? t.c + PANEL : m - i >= 2 * PANEL ? c + (size_t)(i + PANEL) * ldc : t.c;
            if (rows % 16 == 0 && cols % 16 == 0)
                tiles_of(&t, rows, cols);
            else
                edge(&t, rows, cols, spill);
        }
}

static void configure(void)
{
    struct dk_tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    dk_tile_configure(&c);
}

/* n in parts of at most `most`, as equal as multiples of `unit` are. */
static uint32_t part_of(uint32_t n, uint32_t most, uint32_t unit)
{
    const uint32_t parts = (n + most - 1) / most, each = (n + parts - 1) / parts;
    return (each + unit - 1) / unit * unit;
}

static void pack_a(uint16_t *pa, const struct dk_gemm *g, uint32_t i0, uint32_t l0, uint32_t m,
                   uint32_t k)
{
    const float *src = g->a + i0 * g->a_row + l0 * g->a_col;
    if (g->a_col != 1)
        lanes_as_rows(pa, src, g->a_col, m, k);
    else
        for (uint32_t i = 0; i < m; i += PANEL)
            rows_as_rows(pa + (size_t)i * ((k + 31) / 32 * 32), src + i * g->a_row, g->a_row, m - i,
                         k, m - i > 16 ? 2 : 1);
}

static void pack_b(uint16_t *pb, const struct dk_gemm *g, uint32_t j0, uint32_t l0, uint32_t n,
                   uint32_t k)
{
    const float *src = g->b + l0 * g->b_row + j0 * g->b_col;
    if (g->b_row != 1)
        lanes_as_pairs(pb, src, g->b_row, n, k);
    else
        for (uint32_t j = 0; j < n; j += PANEL)
            rows_as_pairs(pb + (size_t)j * ((k + 31) / 32 * 32), src + j * g->b_col, g->b_col,
                          n - j, k, n - j > 16 ? 2 : 1);
}

void dk_cpu_gemm_amx(const struct dk_gemm *g, void *scratch)
{
    uint16_t *pa = scratch, *pb = pa + A_ELEMS;
    float *spill = (float *)(void *)(pb + B_ELEMS);
    if (!(g->flags & DK_GEMM_BF16) || g->m == 0 || g->n == 0 || g->k == 0) {
        dk_cpu_gemm_avx512(g, scratch);
        return;
    }
    const uint32_t kc = part_of(g->k, KC, 32),
                   nc = part_of(g->n, B_ELEMS / kc / PANEL * PANEL, PANEL);
    const uint32_t mc = g->a_col == 1 ? PANEL : least(MC, A_ELEMS / kc / PANEL * PANEL);
    configure();
    for (uint32_t j0 = 0; j0 < g->n; j0 += nc) {
        const uint32_t n = least(g->n - j0, nc);
        for (uint32_t l0 = 0; l0 < g->k; l0 += kc) {
            const uint32_t k = least(g->k - l0, kc);
            const bool fresh = l0 == 0 && !(g->flags & DK_GEMM_ADD);
            pack_b(pb, g, j0, l0, n, k);
            for (uint32_t i0 = 0; i0 < g->m; i0 += mc) {
                const uint32_t m = least(g->m - i0, mc);
                pack_a(pa, g, i0, l0, m, k);
                block(pa, pb, m, n, (k + 31) / 32, g->c + i0 * g->ldc + j0, g->ldc, fresh, spill);
            }
        }
    }
    _tile_release();
}
