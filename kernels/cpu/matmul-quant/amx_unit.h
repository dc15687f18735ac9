/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner part of integer products on tiles: a few blocks of one panel by one tile of rows.
 *
 * What a processor with AMX does at the same time decides the order here (measured on Emerald Rapids):
 *   - while tile products are on their way, multiplications and conversions of 512 bits have one port
 *     instead of two; additions, of floats as well, keep both.  So integers become floats by additions;
 *   - a tile store waits for the product before it, and a vector load for the tile store.  So a block's
 *     products, the stores of the block before, and the float part of the one before that are issued
 *     together;
 *   - a tile load brings 16 lines: everything must lie in L1.  So few blocks at a time.
 */
#pragma once

#include "kernels/cpu/quant/avx512.h"

#define CHUNK 4u /* blocks of a panel that are unpacked together */
#define RING  2u /* results kept */
#define LEAD  2u /* blocks from unpacking to products */
#define KEPT  8u /* records of what is unpacked: two late ones, those of a chunk, LEAD */
#define AHEAD 5u /* panels from here to what is fetched */

/* A block in scratch: weights as a B tile, 8 rows of [16 outputs][4 inputs], signed (but for types
 * with a minimum, whose weights are not negative); 4 bits: before it the same times 16. */
struct record {
    __m512i q16[8], q[8];
    __m512 dw, mw;
};
/* low: of 4 bits, the sum of 16 mid + low. */
struct result {
    int32_t hi[16][DK_PANEL], low[16][DK_PANEL], mid[16][DK_PANEL];
};

/* A few blocks of some panels, by one or two tiles of rows. */
struct run {
    const struct run *next; /* what is multiplied then, NULL: nothing */
    const uint8_t *panel;   /* the first */
    size_t panel_bytes;
    uint32_t panels, tiles;
    uint32_t b0, n;             /* blocks, 1 .. CHUNK */
    bool first, last;           /* of the runs of a panel */
    const struct dk_qact *x;    /* of block b0 and the first row */
    size_t stride, tile_stride; /* of x, from a block to the next, and from a tile */
    float (*acc)[16][DK_PANEL]; /* by panel and tile: sums, from a run to the next */
    uint32_t row, first_panel;  /* in y */
};

/* A block of weights, in the order of unpacking. */
struct lead {
    const struct run *run; /* NULL: there is none */
    uint32_t panel, block; /* of the run */
    uint32_t record;       /* its number */
};

/* A block by a tile of rows whose integers are on their way. */
struct late {
    const struct record *rec;
    const struct dk_qact *x;
    float (*sums)[DK_PANEL];
    bool begin, end;     /* of a run's blocks */
    bool first, last;    /* and of a panel's */
    uint32_t row, panel; /* in y */
};

/* What is on its way between two runs. */
struct pipe {
    const struct dk_mm *mm;
    uint32_t rows;               /* of a tile */
    uint32_t step;               /* blocks by tiles so far */
    uint32_t record;             /* the next one to be multiplied */
    struct lead lead;            /* the next one to be unpacked */
    struct late late[2];         /* of step s in place s % 2, rec NULL: nothing */
    int32_t start[16][DK_PANEL]; /* what low sums begin with: PLACED(0) */
    __m512 acc[16];              /* of what is the later of the two */
    struct result ring[RING];    /* of step s in place s % RING */
    struct record kept[KEPT];    /* record i in place i % KEPT */
};

/* ---- weights ---------------------------------------------------------------------------------------- */

/* Both forms of a line of nibbles.  No bit goes over to another byte that is not masked off, and
 * 16 (u - 8) in eight bits is 16 u with the highest bit turned. */
DK_INLINE void unpack_nibbles(const uint8_t *line, bool zero, unsigned l, struct record *rec)
{
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8((char)0xf0),
                  turn = _mm512_set1_epi8((char)(zero ? 0x80 : 0)),
                  eight = _mm512_set1_epi8(zero ? 8 : 0);
    const __m512i w = dk_q512_line(line);
    const __m512i a = _mm512_and_si512(w, low), b = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
    rec->q[l] = zero ? _mm512_sub_epi8(a, eight) : a;
    rec->q[4 + l] = zero ? _mm512_sub_epi8(b, eight) : b;
    rec->q16[l] = _mm512_ternarylogic_epi64(_mm512_slli_epi16(w, 4), high, turn, 0x6a);
    rec->q16[4 + l] = _mm512_ternarylogic_epi64(w, high, turn, 0x6a); /* (w & high) ^ turn */
}

DK_INLINE void unpack_block(enum dk_type t, const uint8_t *panel, uint32_t b, struct record *rec)
{
    const struct dk_qgeom g = dk_qgeom(t);
    const uint8_t *scales = panel + dk_qgroup_at(t, b), *quants = panel + dk_qquants_at(t, b);
    const bool zero = g.kind != DK_QK_MIN;
    struct dk_q512_super super = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    struct dk_q512 w;
    if (g.group == 8 && b % 8) /* what the blocks of a group share is read with its first */
        dk_q512_shared(scales, &super);
    dk_q512_scales(t, scales, b % g.group, &super, &w);
    rec->dw = w.dw[0];
    if (!zero)
        rec->mw = w.mw;
    if (g.bits == 4) {
#pragma GCC unroll 4
        for (unsigned l = 0; l < 4; l++)
            unpack_nibbles(quants + 64 * l, zero, l, rec);
        return;
    }
    dk_q512_quants(g.bits, quants, w.q);
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++)
        rec->q[i] =
            zero ? _mm512_sub_epi8(w.q[i], _mm512_set1_epi8((char)(1 << g.zero_shift))) : w.q[i];
}

/* Up to LEAD records beyond one: in the middle of things that is one block. */
DK_INLINE void unpack_lead(enum dk_type t, struct pipe *p, uint32_t record)
{
    struct lead *l = &p->lead;
    while (l->run && l->record <= record + LEAD) {
        const struct run *r = l->run;
        unpack_block(t, r->panel + l->panel * r->panel_bytes, r->b0 + l->block,
                     &p->kept[l->record++ % KEPT]);
        if (++l->block < r->n)
            continue;
        l->block = 0;
        if (++l->panel < r->panels)
            continue;
        l->panel = 0;
        l->run = r->next;
    }
}

/* The weights of a run that are AHEAD panels behind this one; NULL: there are none. */
DK_INLINE const uint8_t *ahead(enum dk_type t, const struct run *r, uint32_t panel)
{
    panel += AHEAD;
    if (panel >= r->panels) {
        panel -= r->panels;
        r = r->next;
        if (!r || panel >= r->panels)
            return NULL;
    }
    return r->panel + panel * r->panel_bytes + dk_qgroup_at(t, r->b0);
}

DK_INLINE void fetch_block(enum dk_type t, const uint8_t *from)
{
#pragma GCC unroll 10
    for (unsigned i = 0; i < (dk_qblock_bytes(t) + 63) / 64; i++)
        __builtin_prefetch(from + 64 * i, 0, 2);
}

/* ---- integers --------------------------------------------------------------------------------------- */

/*
 * Tiles of even and of odd blocks: 0, 1, 2 and 3, 4, 5 results hi, low, mid; 6 activations and 7
 * weights.  4 bits: 0, 1 and 2, 3 results hi, low; 4 and 5 activations of 32 and of 64 inputs, 6 and 7
 * weights of the same.  Tile numbers are literals.
 */
#define PRODUCTS(hi_tile, low_tile, mid_tile)                                                      \
    do {                                                                                           \
        _tile_zero(hi_tile);                                                                       \
        _tile_loadd(low_tile, p->start, 64);                                                       \
        _tile_zero(mid_tile);                                                                      \
        _tile_loadd(7, rec->q, 64);                                                                \
        _tile_loadd(6, x->planes.hi, sizeof *x);                                                   \
        _tile_dpbssd(hi_tile, 6, 7);                                                               \
        _tile_loadd(6, x->planes.low, sizeof *x);                                                  \
        _tile_dpbssd(low_tile, 6, 7);                                                              \
        _tile_loadd(6, x->planes.mid, sizeof *x);                                                  \
        _tile_dpbssd(mid_tile, 6, 7);                                                              \
    } while (0)
/* dp: TDPBSSD, or TDPBSUD where the weights times 16 are unsigned. */
#define PRODUCTS_WIDE(dp, hi_tile, low_tile)                                                       \
    do {                                                                                           \
        _tile_zero(hi_tile);                                                                       \
        _tile_loadd(low_tile, p->start, 64);                                                       \
        _tile_loadd(6, rec->q, 64);                                                                \
        _tile_loadd(4, x->planes.hi, sizeof *x);                                                   \
        dp(hi_tile, 4, 6);                                                                         \
        _tile_loadd(7, rec->q16, 64);                                                              \
        _tile_loadd(5, x->planes.mid, sizeof *x);                                                  \
        dp(low_tile, 5, 7);                                                                        \
    } while (0)
_Static_assert(offsetof(struct record, q) == offsetof(struct record, q16) + 512 &&
                   offsetof(struct dk_qact, planes.low) ==
                       offsetof(struct dk_qact, planes.mid) + 32,
               "one tile");

DK_INLINE void products(enum dk_qkind kind, bool wide, bool odd, const struct pipe *p,
                        const struct record *rec, const struct dk_qact *x)
{
    if (!wide && odd)
        PRODUCTS(3, 4, 5);
    else if (!wide)
        PRODUCTS(0, 1, 2);
    else if (kind == DK_QK_MIN && odd)
        PRODUCTS_WIDE(_tile_dpbsud, 2, 3);
    else if (kind == DK_QK_MIN)
        PRODUCTS_WIDE(_tile_dpbsud, 0, 1);
    else if (odd)
        PRODUCTS_WIDE(_tile_dpbssd, 2, 3);
    else
        PRODUCTS_WIDE(_tile_dpbssd, 0, 1);
}

DK_INLINE void keep(bool wide, bool odd, struct result *r)
{
    if (wide && odd) {
        _tile_stored(2, r->hi, 64);
        _tile_stored(3, r->low, 64);
    } else if (wide) {
        _tile_stored(0, r->hi, 64);
        _tile_stored(1, r->low, 64);
    } else if (odd) {
        _tile_stored(3, r->hi, 64);
        _tile_stored(4, r->low, 64);
        _tile_stored(5, r->mid, 64);
    } else {
        _tile_stored(0, r->hi, 64);
        _tile_stored(1, r->low, 64);
        _tile_stored(2, r->mid, 64);
    }
}

/* ---- floats ----------------------------------------------------------------------------------------- */

/* The bits of 1.5 * 2^23 * 2^shift.  An integer of up to 2^22 added to them adds 2^shift times as much. */
#define PLACED(shift) (0x4b400000 + ((shift) << 23))

DK_INLINE __m512 placed(const int32_t *i, int shift)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_load_si512(i), _mm512_set1_epi32(PLACED(shift))));
}

/*
 * (float)(4096 hi + 16 mid + low), or of 4096 hi + low where low has both: every step but the last is
 * exact, so it is rounded once, to even, as a conversion would.  |hi|, |mid| <= 2^19, |low| <= 2^15; 4
 * bits: |hi| < 2^16, |low| < 2^20.
 */
DK_INLINE __m512 as_float(bool wide, const struct result *r, uint32_t i)
{
    const __m512 low = _mm512_load_ps(r->low[i]); /* its sum began with PLACED(0) */
    if (wide) /* 4096 hi - 1.5 * 2^23 is a multiple of 4096 below 2^29 */
        return _mm512_add_ps(
            _mm512_sub_ps(placed(r->hi[i], 12), _mm512_set1_ps(0x1.8p35f + 0x1.8p23f)), low);
    const __m512 mid = _mm512_sub_ps(placed(r->mid[i], 4), _mm512_set1_ps(0x1.8p27f + 0x1.8p23f));
    const __m512 hi = _mm512_sub_ps(placed(r->hi[i], 12), _mm512_set1_ps(0x1.8p35f));
    return _mm512_add_ps(hi, _mm512_add_ps(mid, low)); /* 16 mid + low: below 2^24 */
}

DK_INLINE void floats(enum dk_qkind kind, bool wide, uint32_t rows, const struct record *rec,
                      const struct dk_qact *x, const struct result *r, __m512 acc[16])
{
    const __m512 dw = rec->dw, mw = kind == DK_QK_MIN ? rec->mw : dw;
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++) {
        if (i >= rows)
            break;
        const __m512 d = _mm512_mul_ps(dw, _mm512_set1_ps(x[i].d));
        acc[i] = _mm512_fmadd_ps(d, as_float(wide, r, i), acc[i]);
        if (kind == DK_QK_MIN)
            acc[i] = _mm512_fmadd_ps(mw, _mm512_set1_ps(x[i].sum), acc[i]);
    }
}

/* ---- a run ------------------------------------------------------------------------------------------ */

/* All sixteen rows, though there may be fewer: what the others hold goes nowhere. */
DK_INLINE void begin_sums(const struct late *l, __m512 acc[16])
{
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++)
        acc[i] = l->first ? _mm512_setzero_ps() : _mm512_load_ps(l->sums[i]);
}

DK_INLINE void end_sums(const struct pipe *p, const struct late *l, const __m512 acc[16])
{
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++)
        _mm512_store_ps(l->sums[i], acc[i]);
    for (uint32_t i = 0; l->last && i < p->rows; i++)
        dk_q512_store(p->mm, l->row + i, l->panel, _mm512_load_ps(l->sums[i]));
}

/* What comes after the products of step s: the block before is stored, the one before that added. */
DK_INLINE void finish_late(enum dk_type t, struct pipe *p, uint32_t s, __m512 acc[16])
{
    const enum dk_qkind kind = dk_qgeom(t).kind;
    const bool wide = dk_qgeom(t).bits == 4;
    const struct late *two = &p->late[s % 2];
    if (p->late[(s + 1) % 2].rec)
        keep(wide, (s + 1) % 2, &p->ring[(s + 1) % RING]);
    if (!two->rec)
        return;
    if (two->begin)
        begin_sums(two, acc);
    if (p->rows == 16) /* without sixteen branches */
        floats(kind, wide, 16, two->rec, two->x, &p->ring[s % RING], acc);
    else
        floats(kind, wide, p->rows, two->rec, two->x, &p->ring[s % RING], acc);
    if (two->end)
        end_sums(p, two, acc);
}

/* Issues the products of run r; the float part of its last two steps comes with the next call. */
DK_KERNEL void advance(enum dk_type t, struct pipe *p, const struct run *r)
{
    uint32_t s = p->step, record = p->record;
    __m512 acc[16];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++)
        acc[i] = p->acc[i];
    if (!p->lead.run)
        p->lead = (struct lead){.run = r, .record = record};
    for (uint32_t panel = 0; panel < r->panels; panel++, record += r->n)
        for (uint32_t tile = 0; tile < r->tiles; tile++) {
            const uint8_t *fetched = tile == 0 ? ahead(t, r, panel) : NULL;
            const struct dk_qact *x = r->x + tile * r->tile_stride;
            for (uint32_t b = 0; b < r->n; b++, s++, x += r->stride) {
                struct record *rec = &p->kept[(record + b) % KEPT];
                unpack_lead(t, p, record + b);
                __asm__ volatile("" ::: "memory"); /* gcc does not see that tile loads read */
                products(dk_qgeom(t).kind, dk_qgeom(t).bits == 4, s % 2, p, rec, x);
                if (fetched)
                    fetch_block(t, fetched + b * dk_qblock_bytes(t));
                finish_late(t, p, s, acc);
                p->late[s % 2] = (struct late){
                    .rec = rec,
                    .x = x,
                    .sums = r->acc[panel * r->tiles + tile],
                    .begin = b == 0,
                    .end = b + 1 == r->n,
                    .first = r->first,
                    .last = r->last,
                    .row = r->row + tile * DK_QTILE,
                    .panel = r->first_panel + panel,
                };
            }
        }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++)
        p->acc[i] = acc[i];
    p->step = s;
    p->record = record;
}

/* What is on its way is finished. */
DK_KERNEL void finish(enum dk_type t, struct pipe *p)
{
    __m512 acc[16];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++)
        acc[i] = p->acc[i];
    for (uint32_t i = 0; i < 2; i++) {
        finish_late(t, p, p->step, acc);
        p->late[p->step++ % 2].rec = NULL;
    }
}
