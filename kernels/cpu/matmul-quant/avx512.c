/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer products with vpdpbusd: unsigned weight bytes by the three int8 planes of the activations,
 * isum = 16 * (256 * (hi's sum) + mid's) + low's, the zero point as a start value; all modulo 2^32,
 * which isum fits.
 *
 * Up to eight rows: each block is unpacked into registers and used for all rows at once.  More rows:
 * the first tile of rows also leaves the unpacked blocks in scratch, CHUNK_BLOCKS of them so that
 * they stay in L1, and the other tiles take them from there.  Either way a (row, output) has one
 * accumulator that takes the blocks in ascending order; between chunks it rests in memory.
 */
#include "kernels/cpu/quant/avx512.h"

#define TILE_ROWS    8u
#define ROWS_ABREAST 2u /* rows of a tile that are multiplied side by side */
#define STREAMS      4u /* panels read side by side for one row */
/* Of a call's weights; less: only the first stream's beginning has been fetched when a call begins. */
#define STREAMS_BYTES (1u << 19)
#define CHUNK_BLOCKS  16u
#define CHUNK_ROWS    64u

/* A block in scratch. */
struct record {
    __m512i q[8];
    __m512 s[2]; /* dw, then mw or the second dw */
};
struct scratch {
    struct record rec[CHUNK_BLOCKS];
    float acc[CHUNK_ROWS][DK_PANEL];
};
_Static_assert(sizeof(struct scratch) <= DK_SCRATCH_BYTES, "scratch of a thread");

/* What one call works on: some rows, blocks [b0, b1) of each panel. */
struct job {
    const struct dk_mm *mm;
    const struct dk_qact *x; /* first row, block b0 */
    size_t stride;           /* from a block to the next */
    uint32_t row;            /* of y, for x's first row */
    uint32_t b0, b1, blocks;
    struct record *rec;     /* NULL: not wanted */
    float (*acc)[DK_PANEL]; /* when b0 > 0 or b1 < blocks */
    unsigned zero_shift;
    struct dk_qahead ahead;
};

/* Groups [g0, g1) of a block into isum of n rows; isum holds what they start with.  Rows side by side,
 * and every sum in two chains: vpdpbusd takes longer than it takes to issue all of one row's. */
DK_INLINE void dot(const struct dk_q512 *w, unsigned n, const struct dk_qact *x, unsigned g0,
                   unsigned g1, __m512i isum[ROWS_ABREAST])
{
    __m512i mid[ROWS_ABREAST][2], hi[ROWS_ABREAST][2], low[ROWS_ABREAST][2];
#pragma GCC unroll 2
    for (unsigned r = 0; r < n; r++) {
        low[r][0] = isum[r];
        low[r][1] = mid[r][0] = mid[r][1] = hi[r][0] = hi[r][1] = _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (unsigned g = g0; g < g1; g++) {
        const unsigned c = g % 2;
#pragma GCC unroll 2
        for (unsigned r = 0; r < n; r++) {
            const int32_t *x4 = x[r].dw + g;
            mid[r][c] = _mm512_dpbusd_epi32(mid[r][c], w->q[g], _mm512_set1_epi32(x4[0]));
            low[r][c] = _mm512_dpbusd_epi32(low[r][c], w->q[g], _mm512_set1_epi32(x4[8]));
            hi[r][c] = _mm512_dpbusd_epi32(hi[r][c], w->q[g], _mm512_set1_epi32(x4[16]));
        }
    }
#pragma GCC unroll 2
    for (unsigned r = 0; r < n; r++) {
        __m512i h = _mm512_add_epi32(hi[r][0], hi[r][1]),
                m = _mm512_add_epi32(mid[r][0], mid[r][1]);
        m = _mm512_add_epi32(_mm512_slli_epi32(h, 8), m);
        isum[r] = _mm512_add_epi32(_mm512_slli_epi32(m, 4), _mm512_add_epi32(low[r][0], low[r][1]));
    }
}

/* One block of n rows. */
DK_INLINE void step(enum dk_qkind kind, unsigned zero_shift, const struct dk_q512 *w, unsigned n,
                    const struct dk_qact *x, __m512 *acc)
{
    __m512i s0[ROWS_ABREAST], s1[ROWS_ABREAST];
#pragma GCC unroll 2
    for (unsigned r = 0; r < n; r++) {
        int32_t z = kind == DK_QK_SUB ? x[r].nsum_sub[0] : kind == DK_QK_ZERO ? x[r].nsum : 0;
        s0[r] = _mm512_slli_epi32(_mm512_set1_epi32(z), zero_shift);
        s1[r] = _mm512_slli_epi32(_mm512_set1_epi32(x[r].nsum_sub[1]), zero_shift);
    }
    dot(w, n, x, 0, kind == DK_QK_SUB ? 4 : 8, s0);
    if (kind == DK_QK_SUB)
        dot(w, n, x, 4, 8, s1);
#pragma GCC unroll 2
    for (unsigned r = 0; r < n; r++)
        acc[r] = dk_q512_float(kind, w, x + r, s0[r], s1[r], acc[r]);
}

DK_INLINE void steps(enum dk_qkind kind, unsigned zero_shift, const struct dk_q512 *w,
                     unsigned rows, const struct dk_qact *x, __m512 acc[TILE_ROWS])
{
#pragma GCC unroll 8
    for (unsigned r = 0; r < rows; r += ROWS_ABREAST)
        step(kind, zero_shift, w, rows - r < ROWS_ABREAST ? rows - r : ROWS_ABREAST, x + r,
             acc + r);
}

DK_INLINE void begin(unsigned rows, const struct job *j, __m512 acc[TILE_ROWS])
{
#pragma GCC unroll 8
    for (unsigned r = 0; r < TILE_ROWS; r++)
        acc[r] = j->b0 && r < rows ? _mm512_load_ps(j->acc[r]) : _mm512_setzero_ps();
}

DK_INLINE void end(unsigned rows, const struct job *j, uint32_t panel, const __m512 acc[TILE_ROWS])
{
#pragma GCC unroll 8
    for (unsigned r = 0; r < rows; r++) {
        if (j->b1 == j->blocks)
            dk_q512_store(j->mm, j->row + r, panel, acc[r]);
        else
            _mm512_store_ps(j->acc[r], acc[r]);
    }
}

/* ---- out of the packed panel ---------------------------------------------------------------------- */

/* Panels [panel0, panel0 + n) and, beside each, those `apart`, 2 * apart ... panels further on. */
DK_KERNEL void side_by_side(enum dk_type t, unsigned rows, unsigned streams, const struct job *j,
                            uint32_t panel0, uint32_t n, uint32_t apart)
{
    const struct dk_qgeom g = dk_qgeom(t);
    const size_t panel_bytes = dk_qpanel_bytes(t, j->blocks);
    const uint8_t *panel = (const uint8_t *)j->mm->w->data + panel0 * panel_bytes;
    const struct dk_qahead ahead = j->ahead;
    for (uint32_t p = panel0; p < panel0 + n; p++, panel += panel_bytes) {
        __m512 acc[STREAMS][TILE_ROWS];
        struct dk_q512_super super[STREAMS];
#pragma GCC unroll 4
        for (unsigned k = 0; k < streams; k++) {
            begin(rows, j, acc[k]);
            super[k].d = super[k].m = _mm512_setzero_ps();
        }
        const struct dk_qact *x = j->x;
        struct record *rec = j->rec;
        for (uint32_t b = j->b0; b < j->b1; b++, x += j->stride) {
#pragma GCC unroll 4
            for (unsigned k = 0; k < streams; k++) {
                const uint8_t *from = panel + k * apart * panel_bytes;
                struct dk_q512 w;
                dk_qprefetch(t, from, b, ahead);
                dk_q512_unpack(t, from, b, &super[k], &w);
                if (rows > TILE_ROWS / 2 && rec) {
#pragma GCC unroll 8
                    for (unsigned i = 0; i < 8; i++)
                        rec->q[i] = w.q[i];
                    rec->s[0] = w.dw[0];
                    if (g.kind != DK_QK_ZERO)
                        rec->s[1] = g.kind == DK_QK_MIN ? w.mw : w.dw[1];
                    rec++;
                }
                steps(g.kind, g.zero_shift, &w, rows, x, acc[k]);
            }
        }
#pragma GCC unroll 4
        for (unsigned k = 0; k < streams; k++)
            end(rows, j, p + k * apart, acc[k]);
    }
}

DK_KERNEL void packed(enum dk_type t, unsigned rows, const struct job *j, uint32_t panel0,
                      uint32_t panel1)
{
    const uint32_t n = panel1 - panel0, apart = n / STREAMS;
    if (rows == 1 && n * dk_qpanel_bytes(t, j->blocks) >= STREAMS_BYTES) {
        side_by_side(t, 1, STREAMS, j, panel0, apart, apart);
        panel0 += STREAMS * apart;
    }
    side_by_side(t, rows, 1, j, panel0, panel1 - panel0, 0);
}

typedef void (*packed_fn)(const struct job *j, uint32_t panel0, uint32_t panel1);

#define DEFINE_PACKED(type, rows)                                                                  \
    static void packed_##type##_##rows(const struct job *j, uint32_t panel0, uint32_t panel1)      \
    {                                                                                              \
        packed(DK_##type, rows, j, panel0, panel1);                                                \
    }
#define DEFINE_PACKED_TYPE(type)                                                                   \
    DEFINE_PACKED(type, 1)                                                                         \
    DEFINE_PACKED(type, 2)                                                                         \
    DEFINE_PACKED(type, 3)                                                                         \
    DEFINE_PACKED(type, 4)                                                                         \
    DEFINE_PACKED(type, 5) DEFINE_PACKED(type, 6) DEFINE_PACKED(type, 7) DEFINE_PACKED(type, 8)
#define PACKED_LINE(type)                                                                          \
    [DK_##type] = {packed_##type##_1, packed_##type##_2, packed_##type##_3, packed_##type##_4,     \
                   packed_##type##_5, packed_##type##_6, packed_##type##_7, packed_##type##_8}

DEFINE_PACKED_TYPE(Q8_0)
DEFINE_PACKED_TYPE(Q4_0)
DEFINE_PACKED_TYPE(Q4_1)
DEFINE_PACKED_TYPE(Q5_0)
DEFINE_PACKED_TYPE(Q5_1)
DEFINE_PACKED_TYPE(Q4_K)
DEFINE_PACKED_TYPE(Q5_K)
DEFINE_PACKED_TYPE(Q6_K)

static const packed_fn packed_table[DK_TYPE_COUNT][TILE_ROWS] = {
    PACKED_LINE(Q8_0), PACKED_LINE(Q4_0), PACKED_LINE(Q4_1), PACKED_LINE(Q5_0),
    PACKED_LINE(Q5_1), PACKED_LINE(Q4_K), PACKED_LINE(Q5_K), PACKED_LINE(Q6_K),
};

/* ---- out of scratch ------------------------------------------------------------------------------- */

DK_KERNEL void unpacked(enum dk_qkind kind, unsigned rows, const struct job *j, uint32_t panel)
{
    const struct dk_qact *x = j->x;
    const struct record *rec = j->rec;
    __m512 acc[TILE_ROWS];
    begin(rows, j, acc);
    for (uint32_t b = j->b0; b < j->b1; b++, rec++, x += j->stride) {
        struct dk_q512 w;
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++)
            w.q[i] = rec->q[i];
        w.dw[0] = rec->s[0];
        w.dw[1] = w.mw = kind == DK_QK_ZERO ? _mm512_setzero_ps() : rec->s[1];
        steps(kind, j->zero_shift, &w, rows, x, acc);
    }
    end(rows, j, panel, acc);
}

typedef void (*unpacked_fn)(const struct job *j, uint32_t panel);

#define DEFINE_UNPACKED(kind, rows)                                                                \
    static void unpacked_##kind##_##rows(const struct job *j, uint32_t panel)                      \
    {                                                                                              \
        unpacked(DK_QK_##kind, rows, j, panel);                                                    \
    }
#define DEFINE_UNPACKED_KIND(kind)                                                                 \
    DEFINE_UNPACKED(kind, 1)                                                                       \
    DEFINE_UNPACKED(kind, 2)                                                                       \
    DEFINE_UNPACKED(kind, 3)                                                                       \
    DEFINE_UNPACKED(kind, 4)                                                                       \
    DEFINE_UNPACKED(kind, 5)                                                                       \
    DEFINE_UNPACKED(kind, 6) DEFINE_UNPACKED(kind, 7) DEFINE_UNPACKED(kind, 8)
#define UNPACKED_LINE(kind)                                                                        \
    [DK_QK_##kind] = {unpacked_##kind##_1, unpacked_##kind##_2, unpacked_##kind##_3,               \
                      unpacked_##kind##_4, unpacked_##kind##_5, unpacked_##kind##_6,               \
                      unpacked_##kind##_7, unpacked_##kind##_8}
DEFINE_UNPACKED_KIND(ZERO)
DEFINE_UNPACKED_KIND(MIN)
DEFINE_UNPACKED_KIND(SUB)

static const unpacked_fn unpacked_table[3][TILE_ROWS] = {UNPACKED_LINE(ZERO), UNPACKED_LINE(MIN),
                                                         UNPACKED_LINE(SUB)};

/* ---- the product ---------------------------------------------------------------------------------- */

/* Rows [row0, row0 + rows) of one panel, more than eight of them; row0 is a multiple of 16. */
static void panel_rows(const struct dk_mm *mm, const struct dk_act *a, uint32_t panel,
                       uint32_t row0, uint32_t rows, struct dk_qahead ahead, struct scratch *s)
{
    enum dk_type t = mm->w->type;
    struct dk_qgeom g = dk_qgeom(t);
    uint32_t blocks = mm->w->k / DK_QBLOCK;
    struct job j = {
        .mm = mm,
        .stride = dk_qtile_rows(a->rows),
        .blocks = blocks,
        .rec = s->rec,
        .zero_shift = g.zero_shift,
        .ahead = ahead,
    };
    for (j.b0 = 0; j.b0 < blocks; j.b0 = j.b1) {
        j.b1 = blocks - j.b0 < CHUNK_BLOCKS ? blocks : j.b0 + CHUNK_BLOCKS;
        uint32_t n;
        for (uint32_t r = 0; r < rows; r += n) {
            /* Tiles do not cross a multiple of 16, and the two that 9 to 16 rows make are alike. */
            uint32_t left = DK_QTILE - r % DK_QTILE;
            left = rows - r < left ? rows - r : left;
            n = left <= TILE_ROWS ? left : (left + 1) / 2;
            j.x =
                (const struct dk_qact *)dk_act_int(a) + dk_qact_at(a->rows, blocks, row0 + r, j.b0);
            j.row = row0 + r;
            j.acc = s->acc + r;
            if (r == 0)
                packed_table[t][n - 1](&j, panel, panel + 1);
            else
                unpacked_table[g.kind][n - 1](&j, panel);
        }
    }
}

DK_DECLARE_MATMUL(dk_cpu_matmul_quant_avx512)
{
    uint32_t blocks = mm->w->k / DK_QBLOCK, rows;
    const struct dk_qahead ahead = dk_qahead(mm, panel1);
    for (uint32_t r = 0; r < a->rows; r += rows) {
        rows = a->rows - r < CHUNK_ROWS ? a->rows - r : CHUNK_ROWS;
        if (rows <= TILE_ROWS) {
            struct job j = {
                .mm = mm,
                .x = (const struct dk_qact *)dk_act_int(a) + dk_qact_at(a->rows, blocks, r, 0),
                .stride = dk_qtile_rows(a->rows),
                .row = r,
                .b1 = blocks,
                .blocks = blocks,
                .ahead = ahead,
            };
            packed_table[mm->w->type][rows - 1](&j, panel0, panel1);
            continue;
        }
        for (uint32_t p = panel0; p < panel1; p++)
            panel_rows(mm, a, p, r, rows, ahead, scratch);
    }
}
