/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer products with TDPBSSD: a tile of up to 16 rows by 32 inputs, once for each int8 plane of the
 * activations, by a block of weights, unpacked to signed bytes (zero point taken off).  Moving and
 * scaling results is what costs, so weights of 4 bits take planes mid and low in one product of 64
 * inputs, the weights of mid multiplied by 16: two tiles of results instead of three.  The results of a
 * block are stored, and its float part is done LAG blocks later, since a vector load cannot take its
 * data from a tile store that is still on its way.
 *
 * Worth it from DK_AMX_INT_MIN_ROWS rows: the cost of a block is that of moving and scaling 16 x 16
 * results, and hardly falls with fewer rows, while vpdpbusd pays for each row.  Fewer rows, and Q6_K
 * (two scales a block, so twice the tiles for the same inputs), go the AVX-512 way: the same bits.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/quant/avx512.h"

#ifndef DK_AMX_INT_MIN_ROWS
#define DK_AMX_INT_MIN_ROWS 12u
#endif
#define LAG          4u
#define RING         8u /* results kept: a power of two above LAG */
#define CHUNK_BLOCKS 16u
#define CHUNK_ROWS   128u

/* A block in scratch: weights as a B tile, 8 rows of [16 outputs][4 inputs], signed (but for types
 * with a minimum, whose weights are not negative); 4 bits: before it the same times 16. */
struct record {
    __m512i q16[8], q[8];
    __m512 dw, mw;
};
/* low: of 4 bits, the sum of 16 mid + low. */
struct result {
    int32_t hi[16][DK_PANEL], mid[16][DK_PANEL], low[16][DK_PANEL];
};
struct scratch {
    struct record rec[CHUNK_BLOCKS];
    struct result ring[RING];
    float acc[CHUNK_ROWS][DK_PANEL];
};
_Static_assert(sizeof(struct scratch) <= DK_SCRATCH_BYTES, "scratch of a thread");

/*
 * Tiles of even and of odd blocks: 0, 1, 2 and 3, 4, 5 results hi, low, mid; 6 activations and 7
 * weights.  4 bits: 0, 1 and 2, 3 results hi, low; 4 and 5 activations of 32 and of 64 inputs, 6 and 7
 * weights of the same.
 */
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

/* ---- weights ---------------------------------------------------------------------------------------- */

DK_KERNEL void unpack(enum dk_type t, const uint8_t *panel, uint32_t b0, uint32_t b1,
                      struct record *rec)
{
    const struct dk_qgeom g = dk_qgeom(t);
    const __m512i zero = _mm512_set1_epi8((char)(g.kind == DK_QK_MIN ? 0 : 1 << g.zero_shift));
    struct dk_q512_super super = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t b = b0; b < b1; b++, rec++) {
        struct dk_q512 w;
        dk_q512_unpack(t, panel, b, &super, &w);
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++) {
            __m512i q = g.kind == DK_QK_MIN ? w.q[i] : _mm512_sub_epi8(w.q[i], zero);
            rec->q[i] = q;
            /* No bit of a byte's four low ones goes over to the next, and the others are masked off. */
            if (g.bits == 4)
                rec->q16[i] =
                    _mm512_and_si512(_mm512_slli_epi16(q, 4), _mm512_set1_epi8((char)0xf0));
        }
        rec->dw = w.dw[0];
        if (g.kind == DK_QK_MIN)
            rec->mw = w.mw;
    }
}

#define DEFINE_UNPACK(type)                                                                        \
    static void unpack_##type(const uint8_t *panel, uint32_t b0, uint32_t b1, struct record *rec)  \
    {                                                                                              \
        unpack(DK_##type, panel, b0, b1, rec);                                                     \
    }
DEFINE_UNPACK(Q8_0)
DEFINE_UNPACK(Q4_0)
DEFINE_UNPACK(Q4_1)
DEFINE_UNPACK(Q5_0)
DEFINE_UNPACK(Q5_1)
DEFINE_UNPACK(Q4_K)
DEFINE_UNPACK(Q5_K)

static void (*const unpack_table[DK_TYPE_COUNT])(const uint8_t *, uint32_t, uint32_t,
                                                 struct record *) = {
    [DK_Q8_0] = unpack_Q8_0, [DK_Q4_0] = unpack_Q4_0, [DK_Q4_1] = unpack_Q4_1,
    [DK_Q5_0] = unpack_Q5_0, [DK_Q5_1] = unpack_Q5_1, [DK_Q4_K] = unpack_Q4_K,
    [DK_Q5_K] = unpack_Q5_K,
};

/* ---- one tile of rows ------------------------------------------------------------------------------- */

struct job {
    const struct dk_mm *mm;
    const struct dk_qact *x; /* first row, first block */
    size_t stride;           /* from a block to the next */
    const struct record *rec;
    struct result *ring;
    uint32_t n;          /* blocks */
    uint32_t rows;       /* 1 .. 16 */
    bool first, last;    /* of the chunks of blocks */
    uint32_t row, panel; /* where in y */
    float (*acc)[DK_PANEL];
    const uint8_t *ahead; /* weights to fetch meanwhile, NULL: none */
    size_t ahead_bytes;   /* for each block */
};

/* Even and odd blocks have result tiles of their own.  Tile numbers are literals. */
#define INTEGERS(hi_tile, low_tile, mid_tile)                                                      \
    do {                                                                                           \
        _tile_zero(hi_tile);                                                                       \
        _tile_zero(low_tile);                                                                      \
        _tile_zero(mid_tile);                                                                      \
        _tile_loadd(7, rec->q, 64);                                                                \
        _tile_loadd(6, x->planes.hi, sizeof *x);                                                   \
        _tile_dpbssd(hi_tile, 6, 7);                                                               \
        _tile_loadd(6, x->planes.low, sizeof *x);                                                  \
        _tile_dpbssd(low_tile, 6, 7);                                                              \
        _tile_loadd(6, x->planes.mid, sizeof *x);                                                  \
        _tile_dpbssd(mid_tile, 6, 7);                                                              \
        _tile_stored(hi_tile, r->hi, 64);                                                          \
        _tile_stored(low_tile, r->low, 64);                                                        \
        _tile_stored(mid_tile, r->mid, 64);                                                        \
    } while (0)
/* dp: TDPBSSD, or TDPBSUD where the weights times 16 are unsigned. */
#define INTEGERS_WIDE(dp, hi_tile, low_tile)                                                       \
    do {                                                                                           \
        _tile_zero(hi_tile);                                                                       \
        _tile_zero(low_tile);                                                                      \
        _tile_loadd(6, rec->q, 64);                                                                \
        _tile_loadd(4, x->planes.hi, sizeof *x);                                                   \
        dp(hi_tile, 4, 6);                                                                         \
        _tile_loadd(7, rec->q16, 64);                                                              \
        _tile_loadd(5, x->planes.mid, sizeof *x);                                                  \
        dp(low_tile, 5, 7);                                                                        \
        _tile_stored(hi_tile, r->hi, 64);                                                          \
        _tile_stored(low_tile, r->low, 64);                                                        \
    } while (0)
_Static_assert(offsetof(struct record, q) == offsetof(struct record, q16) + 512 &&
                   offsetof(struct dk_qact, planes.low) ==
                       offsetof(struct dk_qact, planes.mid) + 32,
               "one tile");

DK_INLINE void integers(enum dk_qkind kind, bool wide, bool odd, const struct record *rec,
                        const struct dk_qact *x, struct result *r)
{
    if (!wide && odd)
        INTEGERS(3, 4, 5);
    else if (!wide)
        INTEGERS(0, 1, 2);
    else if (kind == DK_QK_MIN && odd)
        INTEGERS_WIDE(_tile_dpbsud, 2, 3);
    else if (kind == DK_QK_MIN)
        INTEGERS_WIDE(_tile_dpbsud, 0, 1);
    else if (odd)
        INTEGERS_WIDE(_tile_dpbssd, 2, 3);
    else
        INTEGERS_WIDE(_tile_dpbssd, 0, 1);
}

DK_INLINE void floats(enum dk_qkind kind, bool wide, uint32_t rows, const struct record *rec,
                      const struct dk_qact *x, const struct result *r, __m512 acc[16])
{
    struct dk_q512 w;
    w.dw[0] = rec->dw;
    w.mw = kind == DK_QK_MIN ? rec->mw : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++) {
        if (i >= rows)
            break;
        __m512i hi = _mm512_load_si512(r->hi[i]), low = _mm512_load_si512(r->low[i]);
        if (wide) {
            hi = _mm512_slli_epi32(hi, 12);
        } else {
            hi = _mm512_add_epi32(_mm512_slli_epi32(hi, 8), _mm512_load_si512(r->mid[i]));
            hi = _mm512_slli_epi32(hi, 4);
        }
        __m512i sum = _mm512_add_epi32(hi, low);
        acc[i] = dk_q512_float(kind, &w, x + i, sum, sum, acc[i]);
    }
}

DK_KERNEL void tile(enum dk_qkind kind, bool wide, const struct job *j)
{
    __m512 acc[16];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++)
        acc[i] = j->first || i >= j->rows ? _mm512_setzero_ps() : _mm512_load_ps(j->acc[i]);
    for (uint32_t b = 0; b < j->n + LAG; b++) {
        if (b < j->n) {
            struct result *r = j->ring + b % RING;
            integers(kind, wide, b % 2, j->rec + b, j->x + b * j->stride, r);
            if (j->ahead)
                for (size_t i = 0; i < j->ahead_bytes; i += 64)
                    _mm_prefetch((const char *)j->ahead + b * j->ahead_bytes + i, _MM_HINT_T0);
        }
        if (b >= LAG) {
            uint32_t d = b - LAG;
            floats(kind, wide, j->rows, j->rec + d, j->x + d * j->stride, j->ring + d % RING, acc);
        }
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++) {
        if (i >= j->rows)
            break;
        if (j->last)
            dk_q512_store(j->mm, j->row + i, j->panel, acc[i]);
        else
            _mm512_store_ps(j->acc[i], acc[i]);
    }
}

static void tile_zero(const struct job *j)
{
    tile(DK_QK_ZERO, false, j);
}

static void tile_min(const struct job *j)
{
    tile(DK_QK_MIN, false, j);
}

static void tile_zero_wide(const struct job *j)
{
    tile(DK_QK_ZERO, true, j);
}

static void tile_min_wide(const struct job *j)
{
    tile(DK_QK_MIN, true, j);
}

static void (*const tiles[2][2])(const struct job *) = {{tile_zero, tile_zero_wide},
                                                        {tile_min, tile_min_wide}};

/* ---- the product ------------------------------------------------------------------------------------ */

/* Rows [row0, row0 + rows) of one panel; row0 is a multiple of 16.  *configured: rows of the tiles. */
static void panel_rows(const struct dk_mm *mm, const struct dk_act *a, uint32_t p, uint32_t row0,
                       uint32_t rows, struct scratch *s, uint32_t *configured)
{
    enum dk_type t = mm->w->type;
    struct dk_qgeom g = dk_qgeom(t);
    uint32_t blocks = mm->w->k / DK_QBLOCK;
    const uint8_t *panel = (const uint8_t *)mm->w->data + p * dk_qpanel_bytes(t, blocks);
    for (uint32_t b = 0; b < blocks; b += CHUNK_BLOCKS) {
        uint32_t n = blocks - b < CHUNK_BLOCKS ? blocks - b : CHUNK_BLOCKS;
        unpack_table[t](panel, b, b + n, s->rec);
        for (uint32_t r = 0; r < rows; r += DK_QTILE) {
            struct job j = {
                .mm = mm,
                .x = (const struct dk_qact *)dk_act_int(a) +
                     dk_qact_at(a->rows, blocks, row0 + r, b),
                .stride = dk_qtile_rows(a->rows),
                .rec = s->rec,
                .ring = s->ring,
                .n = n,
                .rows = rows - r < DK_QTILE ? rows - r : DK_QTILE,
                .first = b == 0,
                .last = b + n == blocks,
                .row = row0 + r,
                .panel = p,
                .acc = s->acc + r,
                .ahead = r ? NULL : panel + dk_qquants_at(t, b + n),
                .ahead_bytes = g.quant_bytes + (g.group == 1 ? 64u : 32u),
            };
            if (*configured != j.rows)
                configure(*configured = j.rows, g.bits == 4);
            tiles[g.kind == DK_QK_MIN][g.bits == 4](&j);
        }
    }
}

DK_DECLARE_MATMUL(dk_cpu_matmul_quant_amx)
{
    if (a->rows < DK_AMX_INT_MIN_ROWS || dk_qgeom(mm->w->type).kind == DK_QK_SUB) {
        dk_cpu_matmul_quant_avx512(mm, a, panel0, panel1, scratch);
        return;
    }
    uint32_t configured = 0;
    for (uint32_t r = 0; r < a->rows; r += CHUNK_ROWS) {
        uint32_t rows = a->rows - r < CHUNK_ROWS ? a->rows - r : CHUNK_ROWS;
        for (uint32_t p = panel0; p < panel1; p++)
            panel_rows(mm, a, p, r, rows, scratch, &configured);
    }
    _tile_release();
}
