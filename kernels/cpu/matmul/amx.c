/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in the AMX BF16 class: TDPBF16PS on tiles of 16 outputs by 32 inputs.
 *
 * Up to 32 rows memory decides, and weights are read front to back, a panel at a time, by one or two
 * tiles of rows.  More rows: two tiles of rows by two panels, which stay in the caches for all rows
 * while the next two are fetched a few lines at a time.  What passes by once (weights there, rows here)
 * is fetched into L2 and loaded past L1, which is left to what is used again: 7.7 ns a tile product
 * instead of 10.6, with 6.0 for the products alone.  Tile loads stand before the products: a load
 * between two products waits for the first where another hardware thread shares the tile unit (130 ns
 * instead of 109 for four of each out of L2).
 * A chain runs over all inputs inside its tile, so neither choice can change a bit.
 */
#include <stdbool.h>

#include "kernels/cpu/act/float.h"
#include "kernels/cpu/amx.h"

#define TILE_ELEMS 512u /* of a tile of weights: 1 KiB */
#define TILE_LINES 16u
#define LINE       64u

/* Where weights are being fetched; behind the last of them begins what is read next. */
struct ahead {
    const char *at, *end;
    const char *next; /* NULL: unknown, or its beginning is what is being fetched */
    size_t of_next;   /* bytes of it */
    unsigned lines;   /* a step of 32 inputs */
    bool done;
};

/*
 * Tiles that may not be stored as they are wait here: a load cannot take its data from a tile store
 * that is still on its way, so they are read when LATE others have been stored.
 */
#define LATE 8u
struct late {
    uint32_t row, rows, panel; /* rows 0: nothing waits */
};

/* The work of one configuration on one set of panels. */
struct part {
    const struct dk_mm *mm;
    const uint16_t *w;  /* first panel */
    size_t panel_elems; /* to the next panel */
    uint32_t k_tiles;
    uint32_t panel, row; /* first output panel and row */
    uint32_t rows0, rows1;
    const uint16_t *x0, *x1;
    struct ahead ahead;
    unsigned lines, more; /* to fetch with every step; and with those of the next rows */
    float *spill;         /* [LATE][16][16] */
    struct late late[LATE];
    unsigned n_late;
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

/* Into L2 only. */
static inline __attribute__((always_inline)) void fetch(struct ahead *f)
{
    for (unsigned i = 0; i < f->lines; i++)
        __builtin_prefetch(f->at + (size_t)LINE * i, 0, 2);
    f->at += (size_t)LINE * f->lines;
    if (f->at < f->end)
        return;
    if (f->next) {
        f->at = f->next + (f->at - f->end);
        f->end = f->next + f->of_next;
        f->next = NULL;
    } else {
        f->lines = 0;
        f->done = true;
    }
}

/* A panel's results of a row: one register, which the compiler does not see in a loop. */
typedef float panel_row
    __attribute__((vector_size(DK_PANEL * sizeof(float)), aligned(4), may_alias));

static void finish(struct part *t, unsigned i)
{
    const struct late *l = &t->late[i];
    uint32_t o0 = l->panel * DK_PANEL, left = t->mm->w->n - o0,
             n = left < DK_PANEL ? left : DK_PANEL;
    const float *s = t->spill + (size_t)i * 16 * DK_PANEL;
    float *y = t->mm->y + l->row * t->mm->ldy + o0;
    for (uint32_t r = 0; r < l->rows; r++, y += t->mm->ldy, s += DK_PANEL) {
        if (t->mm->flags & DK_MM_ADD && n == DK_PANEL)
            *(panel_row *)(void *)y += *(const panel_row *)(const void *)s;
        else if (t->mm->flags & DK_MM_ADD)
            for (uint32_t o = 0; o < n; o++)
                y[o] += s[o];
        else
            memcpy(y, s, n * sizeof *y);
    }
    t->late[i].rows = 0;
}

static bool stored_whole(const struct part *t, uint32_t panel)
{
    return !(t->mm->flags & DK_MM_ADD) && (panel + 1) * DK_PANEL <= t->mm->w->n;
}

/* Where the next tile waits. */
static float *wait_place(struct part *t, uint32_t row, uint32_t rows, uint32_t panel)
{
    unsigned i = t->n_late++ % LATE;
    if (t->late[i].rows)
        finish(t, i);
    t->late[i] = (struct late){row, rows, panel};
    return t->spill + (size_t)i * 16 * DK_PANEL;
}

/* The tile's number must be a constant of the instruction. */
#define STORE(number, row, rows, panel)                                                            \
    do {                                                                                           \
        uint32_t row_ = (row), panel_ = (panel);                                                   \
        if (stored_whole(t, panel_))                                                               \
            _tile_stored(number, t->mm->y + row_ * t->mm->ldy + (size_t)panel_ * DK_PANEL,         \
                         t->mm->ldy * sizeof(float));                                              \
        else                                                                                       \
            _tile_stored(number, wait_place(t, row_, (rows), panel_), 64);                         \
    } while (0)

/* The lines of a panel's results, which are about to be written and may be another core's. */
static inline void claim(const struct part *t, uint32_t row, uint32_t rows, uint32_t panel)
{
    const float *y = t->mm->y + row * t->mm->ldy + (size_t)panel * DK_PANEL;
    for (uint32_t r = 0; r < rows; r++, y += t->mm->ldy)
        __asm__ volatile("prefetchw %0" : : "m"(*y));
}

/* One tile of rows by one panel. */
static void part_1x1(struct part *t)
{
    const uint16_t *w = t->w, *x = t->x0;
    const size_t step = t->rows0 * 32;
    struct ahead f = t->ahead;
    claim(t, t->row, t->rows0, t->panel);
    _tile_zero(0);
    for (uint32_t k = 0; k < t->k_tiles; k++) {
        fetch(&f);
        _tile_loadd(4, x, 64);
        _tile_stream_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        x += step;
        w += TILE_ELEMS;
    }
    t->ahead = f;
    STORE(0, t->row, t->rows0, t->panel);
}

/* Two tiles of rows by one panel. */
static void part_2x1(struct part *t)
{
    const uint16_t *w = t->w, *x0 = t->x0, *x1 = t->x1;
    const size_t step0 = t->rows0 * 32, step1 = t->rows1 * 32;
    struct ahead f = t->ahead;
    claim(t, t->row, t->rows0, t->panel);
    claim(t, t->row + 16, t->rows1, t->panel);
    _tile_zero(0);
    _tile_zero(2);
    for (uint32_t k = 0; k < t->k_tiles; k++) {
        fetch(&f);
        _tile_stream_loadd(6, w, 64);
        _tile_loadd(4, x0, 64);
        _tile_loadd(5, x1, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        x0 += step0;
        x1 += step1;
        w += TILE_ELEMS;
    }
    t->ahead = f;
    STORE(0, t->row, t->rows0, t->panel);
    STORE(2, t->row + 16, t->rows1, t->panel);
}

/* Two tiles of rows by two panels. */
static void part_2x2(struct part *t)
{
    const uint16_t *w0 = t->w, *w1 = w0 + t->panel_elems, *x0 = t->x0, *x1 = t->x1;
    const size_t step0 = t->rows0 * 32, step1 = t->rows1 * 32;
    struct ahead f = t->ahead;
    for (uint32_t p = t->panel; p < t->panel + 2; p++) {
        claim(t, t->row, t->rows0, p);
        claim(t, t->row + 16, t->rows1, p);
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t k = 0; k < t->k_tiles; k++) {
        fetch(&f);
        _tile_stream_loadd(4, x0, 64);
        _tile_loadd(6, w0, 64);
        _tile_loadd(7, w1, 64);
        _tile_stream_loadd(5, x1, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        x0 += step0;
        x1 += step1;
        w0 += TILE_ELEMS;
        w1 += TILE_ELEMS;
    }
    t->ahead = f;
    STORE(0, t->row, t->rows0, t->panel);
    STORE(1, t->row, t->rows0, t->panel + 1);
    STORE(2, t->row + 16, t->rows1, t->panel);
    STORE(3, t->row + 16, t->rows1, t->panel + 1);
}

/* Rows [row0, row1) in steps of 32 for P panels; the configuration is set. */
static void part_rows(struct part *t, uint32_t P, uint32_t row0, uint32_t row1, const uint16_t *x)
{
    const uint16_t *w = t->w;
    const uint32_t panel = t->panel;
    for (uint32_t r = row0; r < row1; r += 32) {
        t->row = r;
        t->x0 = x + (size_t)r * t->k_tiles * 32;
        t->x1 = t->x0 + (size_t)16 * t->k_tiles * 32;
        t->ahead.lines = t->ahead.done ? 0 : t->lines + t->more;
        t->more = 0;
        if (t->rows1 && P == 2) {
            part_2x2(t);
            continue;
        }
        for (uint32_t q = 0; q < P; q++) {
            if (t->rows1)
                part_2x1(t);
            else
                part_1x1(t);
            t->w += t->panel_elems;
            t->panel++;
        }
        t->w = w;
        t->panel = panel;
    }
}

/*
 * What is fetched when.  Up to 32 rows: a tile with each tile that is read, DK_FETCHED bytes ahead.
 * More: two panels, spread over all rows of the two before; the first rows of a call fetch their own
 * two as well.
 */
static void plan_ahead(struct part *t, uint32_t rows, uint32_t panel0, uint32_t panel1)
{
    const char *w = t->mm->w->data;
    const size_t panel = t->panel_elems * sizeof(uint16_t);
    const uint32_t turns = (rows + 31) / 32;
    t->ahead = (struct ahead){.at = w + panel0 * panel + DK_FETCHED,
                              .end = w + panel1 * panel,
                              .next = t->mm->next,
                              .of_next = turns == 1 ? DK_FETCHED : 2 * panel};
    t->lines = turns == 1 ? TILE_LINES : (2 * TILE_LINES + turns - 1) / turns;
    t->more = turns == 1 ? 0 : 2 * TILE_LINES;
}

DK_DECLARE_MATMUL(dk_cpu_matmul_bf16_amx)
{
    const uint32_t rows = a->rows, full = rows / 32 * 32, rest = rows - full;
    const uint32_t rest0 = rest < 16 ? rest : 16, rest1 = rest - rest0;
    const uint32_t most = rows <= 32 ? 1 : 2; /* panels at once */
    struct part t = {.mm = mm, .k_tiles = dk_pad_k(mm->w->k, 32) / 32, .spill = scratch};
    t.panel_elems = t.k_tiles * (size_t)TILE_ELEMS;
    if (rows == 0 || panel0 >= panel1)
        return;
    const uint16_t *w = mm->w->data;
    plan_ahead(&t, rows, panel0, panel1);
    /* Whole pairs of tiles and the rest have a configuration each; the one that is set goes first. */
    bool is_rest = full == 0;
    configure(is_rest ? rest0 : 16, is_rest ? rest1 : 16);
    for (uint32_t p = panel0, P; p < panel1; p += P) {
        P = panel1 - p >= most ? most : 1;
        t.panel = p;
        t.w = w + p * t.panel_elems;
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
    for (unsigned i = 0; i < LATE; i++)
        if (t.late[i].rows)
            finish(&t, i);
    _tile_release();
}
