/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices in memory with factors rounded to BF16, AMX: 32 rows by 32 columns in four
 * accumulating tiles.  A chain over all of k starts from what C holds, so a sum is one chain of
 * TDPBF16PS whatever the blocks: the same bits for every split.
 *
 * B's columns for KC inputs stay in the second-level cache, copied here or by pack(); A's rows are
 * copied just before they are used, 32 or MC (where their rows are next to each other, so that whole
 * lines are read), and 32 of them meet all of B's block before the next.
 * A's panel stays in the first-level cache, so B's tiles, which pass by once a panel, are loaded past it.
 * Meanwhile the rows of A that come next are fetched, and the lines of C that are written next.
 */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm/amx_copy.h"
#include "kernels/cpu/train/internal.h"

#define KC      576u           /* inputs of a block, at most: a panel of A stays near */
#define MC      256u           /* rows of A at once, at most */
#define A_ELEMS (MC * KC)      /* that copy */
#define B_ELEMS (576u * 1280u) /* a block of B, at most */
#define SPILL   (PANEL * PANEL)

_Static_assert(PANEL *KC <= B_ELEMS, "a panel fits");
_Static_assert((size_t)(A_ELEMS + B_ELEMS) * sizeof(uint16_t) + SPILL * sizeof(float) <=
                   DK_GEMM_SCRATCH,
               "scratch");

/* ---- products ---------------------------------------------------------------------------------- */

struct part {
    const uint16_t *a, *b; /* a panel each */
    uint32_t steps;        /* of 32 inputs */
    float *c;
    size_t ldc;
    const float *next;   /* what C is used behind it */
    const float *coming; /* rows of A that are copied later, and how many to fetch now */
    size_t row;
    uint32_t n_coming;
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
    const uint32_t each =
        t->steps >= 16 ? 2 : (PANEL + t->steps - 1) / t->steps; /* of next's rows */
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
        if (rows2 && cols2) {
            const float *f = t->coming + (size_t)s * 32;
            for (uint32_t i = 0; i < t->n_coming; i++, f += t->row) {
                __builtin_prefetch(f, 0, 2);
                __builtin_prefetch(f + 16, 0, 2);
            }
        }
        if (rows2 && cols2) {
            const uint32_t to = least((s + 1) * each, PANEL);
            for (uint32_t r = s * each; r < to; r++) {
                fetch_own(t->next + r * t->ldc);
                fetch_own(t->next + r * t->ldc + 16);
            }
        }
        _tile_stream_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (cols2) {
            _tile_stream_loadd(7, b + TILE, 64);
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

/* One block of each: A's panels lie behind each other, B's are `apart` elements from each other and
 * begin step0 steps in front of what is used of them. */
struct blocks {
    const uint16_t *pa, *pb;
    size_t apart;
    uint32_t step0, m, n, steps;
    float *c, *spill;
    size_t ldc;
    bool fresh;
    const float *coming; /* A's next rows */
    size_t row;
    uint32_t n_coming;
};

static void block(const struct blocks *k)
{
    /* Rows to fetch beside one pair of panels. */
    const uint32_t across = (k->n + PANEL - 1) / PANEL, pairs = (k->m + PANEL - 1) / PANEL * across;
    const uint32_t each = (k->n_coming + pairs - 1) / pairs;
    for (uint32_t i = 0; i < k->m; i += PANEL)
        for (uint32_t j = 0; j < k->n; j += PANEL) {
            const uint32_t rows = least(k->m - i, PANEL), cols = least(k->n - j, PANEL);
            const uint32_t at = least((i / PANEL * across + j / PANEL) * each, k->n_coming);
            float *c = k->c + (size_t)i * k->ldc + j;
            struct part t = {.a = k->pa + (size_t)i * k->steps * 32,
                             .b = k->pb + j / PANEL * k->apart +
                                  (size_t)k->step0 * TILE * (cols > 16 ? 2 : 1),
                             .steps = k->steps,
                             .c = c,
                             .ldc = k->ldc,
                             .next = k->n - j >= 2 * PANEL ? c + PANEL : c,
                             .coming = k->coming + at * k->row,
                             .row = k->row,
                             .n_coming = least(each, k->n_coming - at),
                             .fresh = k->fresh};
            if (k->n - j < 2 * PANEL && k->m - i >= 2 * PANEL)
                t.next = k->c + (size_t)(i + PANEL) * k->ldc;
            if (rows % 16 == 0 && cols % 16 == 0)
                tiles_of(&t, rows, cols);
            else
                edge(&t, rows, cols, k->spill);
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
    const uint32_t kp = (k + 31) / 32 * 32;
    if (g->b_row != 1)
        lanes_as_pairs(pb, src, g->b_row, n, k, (size_t)kp * PANEL);
    else
        for (uint32_t j = 0; j < n; j += PANEL)
            rows_as_pairs(pb + (size_t)j * kp, src + j * g->b_col, g->b_col, n - j, k,
                          n - j > 16 ? 2 : 1);
}

void dk_cpu_gemm_amx_pack(const struct dk_gemm *g, uint32_t j0, uint32_t j1, void *dst)
{
    pack_b((uint16_t *)dst + dk_gemm_packed(j0, g->k) / sizeof(uint16_t), g, j0, 0, j1 - j0, g->k);
}

/* All rows by the columns of b, which are those of g from j0 on, for k inputs from l0 on.  A is copied
 * once; so many of its rows meet a part of B that fetching all parts again for the next is little. */
static void sweep(const struct dk_gemm *g, const struct blocks *b, uint32_t j0, uint32_t l0,
                  uint32_t k, uint16_t *pa)
{
    const uint32_t nc = part_of(b->n, B_ELEMS / k / PANEL * PANEL, PANEL);
    const uint32_t mc = g->a_col == 1 ? PANEL : MC;
    for (uint32_t i0 = 0; i0 < g->m; i0 += mc) {
        struct blocks part = *b;
        part.pa = pa;
        part.m = least(g->m - i0, mc);
        pack_a(pa, g, i0, l0, part.m, k);
        for (uint32_t j = 0; j < b->n; j += nc) {
            part.pb = b->pb + j / PANEL * b->apart;
            part.n = least(b->n - j, nc);
            part.c = g->c + i0 * g->ldc + j0 + j;
            if (g->a_col == 1 && j + nc >= b->n) {
                part.n_coming = least(g->m - i0 - part.m, mc);
                part.coming = g->a + (i0 + part.m) * g->a_row + l0;
            }
            block(&part);
        }
    }
}

void dk_cpu_gemm_amx(const struct dk_gemm *g, void *scratch)
{
    uint16_t *pa = scratch, *copy = pa + A_ELEMS;
    float *spill = (float *)(void *)(copy + B_ELEMS);
    if (!(g->flags & DK_GEMM_BF16) || g->m == 0 || g->n == 0 || g->k == 0) {
        dk_cpu_gemm_avx512(g, scratch);
        return;
    }
    const uint32_t kc = part_of(g->k, KC, 32),
                   nc = g->packed && g->a_col != 1
                            ? g->n
                            : part_of(g->n, B_ELEMS / kc / PANEL * PANEL, PANEL);
    configure();
    for (uint32_t j0 = 0; j0 < g->n; j0 += nc)
        for (uint32_t l0 = 0; l0 < g->k; l0 += kc) {
            const uint32_t k = least(g->k - l0, kc);
            struct blocks b = {.pb = copy,
                               .coming = g->a,
                               .apart = dk_gemm_packed(PANEL, k) / sizeof(uint16_t),
                               .n = least(g->n - j0, nc),
                               .steps = (k + 31) / 32,
                               .spill = spill,
                               .ldc = g->ldc,
                               .fresh = l0 == 0 && !(g->flags & DK_GEMM_ADD),
                               .row = g->a_row};
            if (g->packed) {
                b.pb = (const uint16_t *)g->packed + dk_gemm_packed(j0, g->k) / sizeof(uint16_t);
                b.apart = dk_gemm_packed(PANEL, g->k) / sizeof(uint16_t);
                b.step0 = l0 / 32;
            } else {
                pack_b(copy, g, j0, l0, b.n, k);
            }
            sweep(g, &b, j0, l0, k, pa);
        }
    _tile_release();
}
