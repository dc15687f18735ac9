/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in the AMX BF16 class: TDPBF16PS on tiles of 16 outputs by 32 inputs.
 *
 * Up to 16 rows: one tile of rows by four panels, so that four chains of tile products run at once
 * and a tile of activations is used four times.  More rows: two tiles of rows by two panels (four
 * tile loads for four products); the weights of two panels stay in the caches for all rows.
 * A chain runs over all inputs inside its tile, so neither choice can change a bit.
 */
#include <stdbool.h>

#include "kernels/cpu/act/float.h"
#include "kernels/cpu/amx.h"

#define TILE_ELEMS 512u   /* of a tile of weights: 1 KiB */
#define FETCH_TILES 4u    /* how far ahead of each panel its weights are fetched */

/* The work of one configuration on one set of panels. */
struct part {
    const struct dk_mm *mm;
    const uint16_t *w;   /* first panel */
    size_t panel_elems;  /* to the next panel */
    uint32_t k_tiles;
    uint32_t panel, row; /* first output panel and row */
    uint32_t rows0, rows1;
    const uint16_t *x0, *x1;
    bool fetch; /* the weights come from memory */
    float *spill; /* [16][16], for tiles that may not be stored as they are */
};

static void configure(uint32_t rows0, uint32_t rows1)
{
    struct dk_tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    c.rows[0] = c.rows[1] = c.rows[4] = (uint8_t)rows0;
    c.rows[2] = c.rows[3] = (uint8_t)(rows1 ? rows1 : rows0);
    if (rows1)
        c.rows[5] = (uint8_t)rows1;
    dk_tile_configure(&c);
}

static inline void fetch_tile(const uint16_t *p)
{
    for (unsigned i = 0; i < 16; i++)
        __builtin_prefetch((const char *)p + 64 * i, 0, 3);
}

/* What a finished tile becomes: stored as it is, or by way of spill. */
static void finish(const struct part *t, uint32_t row, uint32_t rows, uint32_t panel)
{
    uint32_t o0 = panel * DK_PANEL, left = t->mm->w->n - o0, n = left < DK_PANEL ? left : DK_PANEL;
    for (uint32_t r = 0; r < rows; r++) {
        float *y = t->mm->y + (row + r) * t->mm->ldy + o0;
        const float *s = t->spill + r * DK_PANEL;
        if (t->mm->flags & DK_MM_ADD)
            for (uint32_t o = 0; o < n; o++)
                y[o] += s[o];
        else
            memcpy(y, s, n * sizeof *y);
    }
}

/* The tile's number must be a constant of the instruction. */
#define STORE(number, row, rows, panel)                                                            \
    do {                                                                                           \
        uint32_t row_ = (row), panel_ = (panel);                                                   \
        if (!(t->mm->flags & DK_MM_ADD) && panel_ * DK_PANEL + DK_PANEL <= t->mm->w->n) {          \
            _tile_stored(number, t->mm->y + row_ * t->mm->ldy + (size_t)panel_ * DK_PANEL,         \
                         t->mm->ldy * sizeof(float));                                              \
        } else {                                                                                   \
            _tile_stored(number, t->spill, 64);                                                    \
            finish(t, row_, (rows), panel_);                                                       \
        }                                                                                          \
    } while (0)

/* One tile of rows by four panels. */
static void part_1x4(const struct part *t)
{
    const uint16_t *w0 = t->w, *w1 = w0 + t->panel_elems, *w2 = w1 + t->panel_elems,
                   *w3 = w2 + t->panel_elems, *x = t->x0;
    size_t step = t->rows0 * 32, ahead = FETCH_TILES * TILE_ELEMS;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t k = 0; k < t->k_tiles; k++) {
        /* near the end of these panels, the beginnings of the next four */
        if (k + FETCH_TILES == t->k_tiles)
            ahead += 3 * t->panel_elems;
        fetch_tile(w0 + ahead);
        fetch_tile(w1 + ahead);
        fetch_tile(w2 + ahead);
        fetch_tile(w3 + ahead);
        _tile_loadd(4, x, 64);
        _tile_loadd(5, w0, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, w1, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, w2, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, w3, 64);
        _tile_dpbf16ps(3, 4, 5);
        x += step;
        w0 += TILE_ELEMS;
        w1 += TILE_ELEMS;
        w2 += TILE_ELEMS;
        w3 += TILE_ELEMS;
    }
    STORE(0, t->row, t->rows0, t->panel);
    STORE(1, t->row, t->rows0, t->panel + 1);
    STORE(2, t->row, t->rows0, t->panel + 2);
    STORE(3, t->row, t->rows0, t->panel + 3);
}

/* One tile of rows by one panel: what is left over. */
static void part_1x1(const struct part *t)
{
    const uint16_t *w = t->w, *x = t->x0;
    size_t step = t->rows0 * 32;
    _tile_zero(0);
    for (uint32_t k = 0; k < t->k_tiles; k++) {
        if (t->fetch)
            fetch_tile(w + FETCH_TILES * TILE_ELEMS);
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        x += step;
        w += TILE_ELEMS;
    }
    STORE(0, t->row, t->rows0, t->panel);
}

/* Two tiles of rows by two panels. */
static void part_2x2(const struct part *t)
{
    const uint16_t *w0 = t->w, *w1 = w0 + t->panel_elems, *x0 = t->x0, *x1 = t->x1;
    size_t step0 = t->rows0 * 32, step1 = t->rows1 * 32, ahead = FETCH_TILES * TILE_ELEMS;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t k = 0; k < t->k_tiles; k++) {
        if (t->fetch) {
            if (k + FETCH_TILES == t->k_tiles)
                ahead += t->panel_elems;
            fetch_tile(w0 + ahead);
            fetch_tile(w1 + ahead);
        }
        _tile_loadd(4, x0, 64);
        _tile_loadd(6, w0, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w1, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x1, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        x0 += step0;
        x1 += step1;
        w0 += TILE_ELEMS;
        w1 += TILE_ELEMS;
    }
    STORE(0, t->row, t->rows0, t->panel);
    STORE(1, t->row, t->rows0, t->panel + 1);
    STORE(2, t->row + 16, t->rows1, t->panel);
    STORE(3, t->row + 16, t->rows1, t->panel + 1);
}

/* Two tiles of rows by one panel. */
static void part_2x1(const struct part *t)
{
    const uint16_t *w = t->w, *x0 = t->x0, *x1 = t->x1;
    size_t step0 = t->rows0 * 32, step1 = t->rows1 * 32;
    _tile_zero(0);
    _tile_zero(2);
    for (uint32_t k = 0; k < t->k_tiles; k++) {
        if (t->fetch)
            fetch_tile(w + FETCH_TILES * TILE_ELEMS);
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x0, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, x1, 64);
        _tile_dpbf16ps(2, 5, 6);
        x0 += step0;
        x1 += step1;
        w += TILE_ELEMS;
    }
    STORE(0, t->row, t->rows0, t->panel);
    STORE(2, t->row + 16, t->rows1, t->panel);
}

/* Rows [row0, row1) in steps of 32 for P panels; the configuration is set. */
static void part_rows(struct part *t, uint32_t P, uint32_t row0, uint32_t row1, const uint16_t *x)
{
    for (uint32_t r = row0; r < row1; r += 32) {
        t->row = r;
        t->x0 = x + (size_t)r * t->k_tiles * 32;
        t->x1 = t->x0 + (size_t)16 * t->k_tiles * 32;
        if (t->rows1 && P == 2) {
            part_2x2(t);
        } else if (t->rows1) {
            part_2x1(t);
        } else if (P == 4) {
            part_1x4(t);
        } else {
            struct part one = *t;
            for (uint32_t q = 0; q < P; q++) {
                part_1x1(&one);
                one.w += t->panel_elems;
                one.panel++;
            }
        }
        t->fetch = false;
    }
}

DK_DECLARE_MATMUL(dk_cpu_matmul_bf16_amx)
{
    const uint32_t rows = a->rows, full = rows / 32 * 32, rest = rows - full;
    const uint32_t rest0 = rest < 16 ? rest : 16, rest1 = rest - rest0;
    const uint32_t most = rows <= 16 ? 4 : 2; /* panels at once */
    struct part t = {.mm = mm, .k_tiles = dk_pad_k(mm->w->k, 32) / 32, .spill = scratch};
    t.panel_elems = t.k_tiles * (size_t)TILE_ELEMS;
    if (rows == 0 || panel0 >= panel1)
        return;
    /* Whole pairs of tiles and the rest have a configuration each; the one that is set goes first. */
    bool is_rest = full == 0;
    configure(is_rest ? rest0 : 16, is_rest ? rest1 : 16);
    for (uint32_t p = panel0, P; p < panel1; p += P) {
        P = panel1 - p >= most ? most : 1;
        t.panel = p;
        t.w = (const uint16_t *)mm->w->data + p * t.panel_elems;
        t.fetch = true;
        const bool first = is_rest;
        for (unsigned turn = 0; turn < 2; turn++) {
            bool want = turn ? !first : first;
            if (want ? rest == 0 : full == 0)
                continue;
            t.rows0 = want ? rest0 : 16;
            t.rows1 = want ? rest1 : 16;
            if (want != is_rest)
                configure(t.rows0, t.rows1);
            is_rest = want;
            part_rows(&t, P, want ? full : 0, want ? rows : full, dk_act_bf16(a));
        }
    }
    _tile_release();
}
