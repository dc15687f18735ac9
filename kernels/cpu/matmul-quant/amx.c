/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer products with TDPBSSD: a tile of up to 16 rows by 32 inputs, once for each int8 plane of the
 * activations, by a block of weights, unpacked to signed bytes (zero point taken off).  Moving and
 * scaling results is what costs, so weights of 4 bits take planes mid and low in one product of 64
 * inputs, the weights of mid multiplied by 16: two tiles of results instead of three.
 *
 * A few blocks of many panels take turns with the same activations, so that those stay in L1; sums
 * wait in scratch meanwhile.  The next blocks are unpacked while these are multiplied, once for two
 * tiles of rows where there are as many.
 *
 * Worth it from DK_AMX_INT_MIN_ROWS rows; fewer, and Q6_K (two scales a block, so twice the tiles for
 * the same inputs), go the AVX-512 way: the same bits.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul-quant/amx_unit.h"

#ifndef DK_AMX_INT_MIN_ROWS
#define DK_AMX_INT_MIN_ROWS 6u
#endif
#define RUN   32u /* panels that take turns, for a tile of rows */
#define TILES 2u  /* of rows, at most */

struct scratch {
    struct pipe pipe;
    float acc[RUN][16][DK_PANEL];
};
_Static_assert(sizeof(struct scratch) <= DK_SCRATCH_BYTES, "scratch of a thread");

static void configure(uint32_t rows, bool wide)
{
    struct dk_tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        bool weights = i == 7 || (wide && i == 6), acts = !weights && i >= (wide ? 4 : 6);
        c.rows[i] = (uint8_t)(!weights ? rows : wide && i == 7 ? 16 : 8);
        c.bytes[i] = acts && !(wide && i == 5) ? 32 : 64;
    }
    dk_tile_configure(&c);
}

/* r NULL: what is on its way is finished. */
#define DEFINE_RUN(type)                                                                           \
    static void run_##type(struct pipe *p, const struct run *r)                                    \
    {                                                                                              \
        if (r)                                                                                     \
            advance(DK_##type, p, r);                                                              \
        else                                                                                       \
            finish(DK_##type, p);                                                                  \
    }
DEFINE_RUN(Q8_0)
DEFINE_RUN(Q4_0)
DEFINE_RUN(Q4_1)
DEFINE_RUN(Q5_0)
DEFINE_RUN(Q5_1)
DEFINE_RUN(Q4_K)
DEFINE_RUN(Q5_K)

static void (*const run_table[DK_TYPE_COUNT])(struct pipe *, const struct run *) = {
    [DK_Q8_0] = run_Q8_0, [DK_Q4_0] = run_Q4_0, [DK_Q4_1] = run_Q4_1, [DK_Q5_0] = run_Q5_0,
    [DK_Q5_1] = run_Q5_1, [DK_Q4_K] = run_Q4_K, [DK_Q5_K] = run_Q5_K,
};

/* ---- the order of chunks and panels ----------------------------------------------------------------- */

struct job {
    const struct dk_mm *mm;
    const struct dk_act *a;
    struct scratch *s;
    uint32_t blocks, panel1;
    uint32_t row0, rows, tiles; /* rows of a tile: 16, or of the last one, alone, fewer */
};

/* The first run, of the first panels from `panel` on; of none behind the last panel. */
static struct run run_begin(const struct job *j, uint32_t panel)
{
    const enum dk_type t = j->mm->w->type;
    const uint32_t left = j->panel1 - panel, most = RUN / j->tiles;
    struct run r = {
        .panel_bytes = dk_qpanel_bytes(t, j->blocks),
        .panels = left < most ? left : most,
        .tiles = j->tiles,
        .n = j->blocks < CHUNK ? j->blocks : CHUNK,
        .first = true,
        .last = j->blocks <= CHUNK,
        .stride = dk_qtile_rows(j->a->rows),
        .tile_stride = (size_t)j->blocks * DK_QTILE,
        .acc = j->s->acc,
        .row = j->row0,
        .first_panel = panel,
    };
    r.panel = (const uint8_t *)j->mm->w->data + panel * r.panel_bytes;
    r.x = (const struct dk_qact *)dk_act_int(j->a) + dk_qact_at(j->a->rows, j->blocks, j->row0, 0);
    return r;
}

/* The next chunk of the same panels, or the first of the next panels. */
static struct run run_next(const struct job *j, const struct run *r)
{
    struct run next = *r;
    next.next = NULL;
    if (r->last)
        return run_begin(j, r->first_panel + r->panels);
    next.b0 += r->n;
    next.n = j->blocks - next.b0 < CHUNK ? j->blocks - next.b0 : CHUNK;
    next.x += r->n * r->stride;
    next.first = false;
    next.last = next.b0 + next.n == j->blocks;
    return next;
}

static void rows_of(const struct job *j, uint32_t panel0)
{
    const enum dk_type t = j->mm->w->type;
    struct pipe *p = &j->s->pipe;
    struct run runs[2];
    p->mm = j->mm;
    p->rows = j->rows;
    for (uint32_t i = 0; i < 16 * DK_PANEL; i++)
        p->start[i / DK_PANEL][i % DK_PANEL] = PLACED(0);
    p->step = p->record = 0;
    p->lead.run = NULL;
    p->late[0].rec = p->late[1].rec = NULL;
    configure(j->rows, dk_qgeom(t).bits == 4);
    runs[0] = run_begin(j, panel0);
    for (uint32_t i = 0; runs[i % 2].panels; i++) {
        struct run *r = &runs[i % 2], *next = &runs[(i + 1) % 2];
        *next = run_next(j, r);
        r->next = next->panels ? next : NULL;
        run_table[t](p, r);
    }
    run_table[t](p, NULL);
}

DK_DECLARE_MATMUL(dk_cpu_matmul_quant_amx)
{
    const enum dk_type t = mm->w->type;
    if (a->rows < DK_AMX_INT_MIN_ROWS || dk_qgeom(t).kind == DK_QK_SUB) {
        dk_cpu_matmul_quant_avx512(mm, a, panel0, panel1, scratch);
        return;
    }
    struct job j = {
        .mm = mm,
        .a = a,
        .s = scratch,
        .blocks = mm->w->k / DK_QBLOCK,
        .panel1 = panel1,
    };
    for (; j.row0 < a->rows; j.row0 += j.rows * j.tiles) {
        const uint32_t whole = (a->rows - j.row0) / DK_QTILE;
        j.rows = whole ? DK_QTILE : a->rows - j.row0;
        j.tiles = whole < 1 ? 1 : whole < TILES ? whole : TILES;
        rows_of(&j, panel0);
    }
    _tile_release();
}
