/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer products, from three rows on: isum = 16 * (sum of weights by the upper 16 bits) + (sum by the
 * lower four).
 *  - The upper bits by vpmaddwd: weights widened to 16 bits, pairs of inputs (0, 2) and (1, 3) of each
 *    group of four, which is how bytes fall apart into words without a shuffle.
 *  - The lower bits by vpmaddubsw on the bytes themselves: 16 products of at most 255 * 8 still fit in
 *    16 bits, so a whole block is added up there; the zero point is taken off afterwards.
 * Each is a pass of its own over the block, since a tile of six rows takes twelve registers for either
 * sum.  The first pass unpacks the block and leaves its bytes in memory for the second.  More than six
 * rows: it leaves CHUNK_BLOCKS of them in scratch, which stay in L1, and the other tiles of rows take
 * them from there.
 *
 * One or two rows do everything at once.  Weights of four or five bits meet the three int8 planes of the
 * activations by vpmaddubsw, which saves widening them: eight groups of weights up to 15, or four of
 * weights up to 31, fit in 16 bits.
 *
 * The float accumulators live in memory, one for each (row, output), blocks ascending.
 */
#include "kernels/cpu/quant/avx2.h"

#define TILE_ROWS    6u
#define CHUNK_BLOCKS 16u
#define CHUNK_ROWS   64u
#if DK_ONE_COPY
#define UNROLL_GROUPS _Pragma("GCC unroll 1")
#else
#define UNROLL_GROUPS _Pragma("GCC unroll 4")
#endif

/* An unpacked block: bytes [8 groups][16 outputs][4 inputs]; dw, then mw or the second dw. */
struct record {
    __m256i b[8][2];
    __m256 s[2][2];
};
struct scratch {
    struct record rec[CHUNK_BLOCKS];
    float acc[CHUNK_ROWS][DK_PANEL] __attribute__((aligned(32)));
};
_Static_assert(sizeof(struct scratch) <= DK_SCRATCH_BYTES, "scratch of a thread");

/* What one call works on: some rows, blocks [b0, b1) of each panel. */
struct job {
    const struct dk_mm *mm;
    const struct dk_qact_avx2 *x; /* first row, block b0 */
    size_t stride;                /* from a block to the next */
    uint32_t row;                 /* of y, for x's first row */
    uint32_t b0, b1, blocks;
    struct record *rec; /* NULL: not wanted */
    float (*acc)[DK_PANEL];
    unsigned zero_shift;
    struct dk_qahead ahead;
};

/* Sums of up to six rows by 16 outputs. */
struct sums {
    __m256i i[TILE_ROWS][2];
};

DK_INLINE void zeros(struct sums *s)
{
#pragma GCC unroll 6
    for (unsigned r = 0; r < TILE_ROWS; r++)
        s->i[r][0] = s->i[r][1] = _mm256_setzero_si256();
}

/* The empty asm here and below: gcc rearranges sums so that all products come first, and spills. */
DK_INLINE void plane(int32_t bytes, __m256i b0, __m256i b1, __m256i sum[2])
{
    __m256i q = _mm256_set1_epi32(bytes);
    sum[0] = _mm256_add_epi16(sum[0], _mm256_maddubs_epi16(b0, q));
    sum[1] = _mm256_add_epi16(sum[1], _mm256_maddubs_epi16(b1, q));
    __asm__("" : "+x"(sum[0]), "+x"(sum[1]));
}

DK_INLINE void low_bits(unsigned group, unsigned rows, __m256i b0, __m256i b1,
                        const struct dk_qact_avx2 *x, struct sums *low)
{
#pragma GCC unroll 6
    for (unsigned r = 0; r < rows; r++)
        plane(x[r].low[group], b0, b1, low->i[r]);
}

/* Pair number i (0 .. 15) of the block. */
DK_INLINE void pair(unsigned i, unsigned rows, __m256i w0, __m256i w1, const struct dk_qact_avx2 *x,
                    struct sums *s)
{
#pragma GCC unroll 6
    for (unsigned r = 0; r < rows; r++) {
        __m256i q = _mm256_set1_epi32(x[r].pair[i]);
        s->i[r][0] = _mm256_add_epi32(s->i[r][0], _mm256_madd_epi16(w0, q));
        s->i[r][1] = _mm256_add_epi32(s->i[r][1], _mm256_madd_epi16(w1, q));
        __asm__("" : "+x"(s->i[r][0]), "+x"(s->i[r][1]));
    }
}

/* Both pairs of group 4 * sub + l. */
DK_INLINE void high_bits(unsigned l, unsigned sub, unsigned rows, __m256i b0, __m256i b1,
                         const struct dk_qact_avx2 *x, struct sums *s)
{
    unsigned i = 4 * l + 2 * sub;
    pair(i, rows, dk_q256_even(b0), dk_q256_even(b1), x, s);
    pair(i + 1, rows, dk_q256_odd(b0), dk_q256_odd(b1), x, s);
}

/* The low sums in 32 bits, and the zero point. */
DK_KERNEL void settle(enum dk_qkind kind, unsigned zero_shift, unsigned sub, unsigned rows,
                      const struct dk_qact_avx2 *x, struct sums *low)
{
#pragma GCC unroll 6
    for (unsigned r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (unsigned h = 0; h < 2; h++) {
            __m256i v = _mm256_madd_epi16(low->i[r][h], _mm256_set1_epi16(1));
            if (kind == DK_QK_SUB)
                v = _mm256_add_epi32(v,
                                     _mm256_slli_epi32(_mm256_set1_epi32(x[r].nsum_sub[sub]), 5));
            else if (kind == DK_QK_ZERO)
                v = _mm256_add_epi32(v, _mm256_sll_epi32(_mm256_set1_epi32(x[r].nsum),
                                                         _mm_cvtsi32_si128((int)zero_shift)));
            low->i[r][h] = v;
        }
    }
}

/* The float part; mw NULL: none. */
DK_KERNEL void finish(unsigned rows, int shift, const struct sums *s, const struct sums *low,
                      const __m256 dw[2], const __m256 *mw, const struct dk_qact_avx2 *x,
                      float (*acc)[DK_PANEL])
{
#pragma GCC unroll 6
    for (unsigned r = 0; r < rows; r++) {
        __m256 d = _mm256_set1_ps(x[r].d);
#pragma GCC unroll 2
        for (unsigned h = 0; h < 2; h++) {
            __m256 a = _mm256_load_ps(acc[r] + 8 * h);
            __m256i isum = _mm256_add_epi32(_mm256_slli_epi32(s->i[r][h], shift), low->i[r][h]);
            a = _mm256_fmadd_ps(_mm256_mul_ps(dw[h], d), _mm256_cvtepi32_ps(isum), a);
            if (mw)
                a = _mm256_fmadd_ps(mw[h], _mm256_set1_ps(x[r].sum), a);
            _mm256_store_ps(acc[r] + 8 * h, a);
        }
    }
}

/* ---- out of the packed panel ---------------------------------------------------------------------- */

/* Both sums of a block at once, for one or two rows. */
DK_KERNEL void packed_once(unsigned bits, unsigned rows, const uint8_t *q, unsigned sub0,
                           unsigned sub1, const struct dk_qact_avx2 *x, struct sums *s,
                           struct sums *low)
{
    zeros(low);
    zeros(s);
    UNROLL_GROUPS
    for (unsigned l = 0; l < 4; l++) {
#pragma GCC unroll 2
        for (unsigned h = sub0; h < sub1; h++) {
            __m256i b0 = dk_q256_bytes(bits, !DK_ONE_COPY, q, l, h, 0);
            __m256i b1 = dk_q256_bytes(bits, !DK_ONE_COPY, q, l, h, 1);
            low_bits(4 * h + l, rows, b0, b1, x, low);
            high_bits(l, h, rows, b0, b1, x, s);
        }
    }
}

/* 16 * mid + 4096 * hi in 32 bits, added to s. */
DK_KERNEL void settle_planes(unsigned rows, const struct sums *mid, const struct sums *hi,
                             struct sums *s)
{
#pragma GCC unroll 2
    for (unsigned r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (unsigned h = 0; h < 2; h++) {
            __m256i v = _mm256_madd_epi16(hi->i[r][h], _mm256_set1_epi16(4096));
            v = _mm256_add_epi32(v, _mm256_madd_epi16(mid->i[r][h], _mm256_set1_epi16(16)));
            s->i[r][h] = _mm256_add_epi32(s->i[r][h], v);
        }
    }
}

/* The same by planes, weights of four or five bits; s gets 16 times its sum. */
DK_KERNEL void packed_planes(unsigned bits, unsigned rows, const uint8_t *q,
                             const struct dk_qact_avx2 *x, struct sums *s, struct sums *low)
{
    struct sums mid, hi;
    zeros(low);
    zeros(s);
    zeros(&mid);
    zeros(&hi);
    UNROLL_GROUPS
    for (unsigned h = 0; h < 2; h++) {
        UNROLL_GROUPS
        for (unsigned l = 0; l < 4; l++) {
            const unsigned g = 4 * h + l;
            __m256i b0 = dk_q256_bytes(bits, !DK_ONE_COPY, q, l, h, 0);
            __m256i b1 = dk_q256_bytes(bits, !DK_ONE_COPY, q, l, h, 1);
#pragma GCC unroll 2
            for (unsigned r = 0; r < rows; r++) {
                plane(x[r].low[g], b0, b1, low->i[r]);
                plane(x[r].mid[g], b0, b1, mid.i[r]);
                plane(x[r].hi[g], b0, b1, hi.i[r]);
            }
        }
        if (bits == 5 || h == 1) {
            settle_planes(rows, &mid, &hi, s);
            zeros(&mid);
            zeros(&hi);
        }
    }
}

/* The lower bits; rec gets the bytes for the upper ones. */
DK_KERNEL void packed_low(unsigned bits, unsigned rows, const uint8_t *q, unsigned sub0,
                          unsigned sub1, const struct dk_qact_avx2 *x, struct record *rec,
                          struct sums *low)
{
    zeros(low);
#pragma GCC unroll 1
    for (unsigned l = 0; l < 4; l++) {
#pragma GCC unroll 2
        for (unsigned h = sub0; h < sub1; h++) {
            __m256i b0 = dk_q256_bytes(bits, false, q, l, h, 0);
            __m256i b1 = dk_q256_bytes(bits, false, q, l, h, 1);
            low_bits(4 * h + l, rows, b0, b1, x, low);
            rec->b[4 * h + l][0] = b0;
            rec->b[4 * h + l][1] = b1;
        }
    }
}
DK_KERNEL void packed_high(unsigned rows, unsigned sub0, unsigned sub1,
                           const struct dk_qact_avx2 *x, const struct record *rec, struct sums *s)
{
    zeros(s);
#pragma GCC unroll 1
    for (unsigned l = 0; l < 4; l++)
#pragma GCC unroll 2
        for (unsigned h = sub0; h < sub1; h++)
            high_bits(l, h, rows, rec->b[4 * h + l][0], rec->b[4 * h + l][1], x, s);
}

/* A packed block: its place in its group, its quants, the group's scales. */
struct block {
    const uint8_t *q, *s;
    const struct dk_q256_super *super;
    unsigned place;
};

/* All inputs of the block, or of Q6_K the 16 of `sub`.  rec gets the block. */
DK_KERNEL void packed_part(enum dk_type t, unsigned rows, const struct block *b, unsigned sub,
                           const struct dk_qact_avx2 *x, struct record *rec, float (*acc)[DK_PANEL])
{
    const struct dk_qgeom g = dk_qgeom(t);
    const unsigned sub1 = g.kind == DK_QK_SUB ? sub + 1 : 2;
    const bool planes = rows <= 2 && g.bits <= 5;
    struct sums sums, low;
    if (planes)
        packed_planes(g.bits, rows, b->q, x, &sums, &low);
    else if (rows <= 2)
        packed_once(g.bits, rows, b->q, sub, sub1, x, &sums, &low);
    else
        packed_low(g.bits, rows, b->q, sub, sub1, x, rec, &low);
    settle(g.kind, g.zero_shift, sub, rows, x, &low);
    if (rows > 2)
        packed_high(rows, sub, sub1, x, rec, &sums);
    __m256 dw[2], mw[2];
#pragma GCC unroll 2
    for (unsigned h = 0; h < 2; h++) {
        dw[h] = dk_q256_dw(t, b->s, b->super, b->place, h, sub);
        mw[h] =
            g.kind == DK_QK_MIN ? dk_q256_mw(t, b->s, b->super, b->place, h) : _mm256_setzero_ps();
    }
    finish(rows, planes ? 0 : 4, &sums, &low, dw, g.kind == DK_QK_MIN ? mw : NULL, x, acc);
    if (rows > 2) {
        rec->s[sub][0] = dw[0];
        rec->s[sub][1] = dw[1];
        if (g.kind == DK_QK_MIN) {
            rec->s[1][0] = mw[0];
            rec->s[1][1] = mw[1];
        }
    }
}

DK_KERNEL void packed(enum dk_type t, unsigned rows, bool keep, const struct job *j,
                      uint32_t panel0, uint32_t panel1)
{
    const struct dk_qgeom g = dk_qgeom(t);
    size_t panel_bytes = dk_qpanel_bytes(t, j->blocks);
    const uint8_t *panel = (const uint8_t *)j->mm->w->data + panel0 * panel_bytes;
    const struct dk_qahead ahead = j->ahead;
    for (uint32_t p = panel0; p < panel1; p++, panel += panel_bytes) {
        float own[TILE_ROWS][DK_PANEL] __attribute__((aligned(32)));
        float(*acc)[DK_PANEL] = keep ? j->acc : own;
        if (!keep || j->b0 == 0)
            memset(acc, 0, rows * sizeof acc[0]);
        const struct dk_qact_avx2 *x = j->x;
        struct record own_rec, *rec = keep ? j->rec : &own_rec;
        struct dk_q256_super super = {{_mm256_setzero_ps(), _mm256_setzero_ps()},
                                      {_mm256_setzero_ps(), _mm256_setzero_ps()}};
        for (uint32_t b = j->b0; b < j->b1; b++, x += j->stride) {
            dk_qprefetch(t, panel, b, ahead);
            const struct block block = {panel + dk_qquants_at(t, b), panel + dk_qgroup_at(t, b),
                                        &super, b % g.group};
            if (g.group == 8 && block.place == 0)
                dk_q256_load_super(t, block.s, &super);
            packed_part(t, rows, &block, 0, x, rec, acc);
            if (g.kind == DK_QK_SUB)
                packed_part(t, rows, &block, 1, x, rec, acc);
            if (keep)
                rec++;
        }
        if (!keep || j->b1 == j->blocks)
            for (unsigned r = 0; r < rows; r++)
                dk_q256_store(j->mm, j->row + r, p, acc[r]);
    }
}

typedef void (*packed_fn)(const struct job *j, uint32_t panel0, uint32_t panel1);

/* Kept: four to six rows, the sizes that the first of several tiles has. */
#define DEFINE_PACKED(type, rows, keep, name)                                                      \
    static void packed_##type##_##name(const struct job *j, uint32_t panel0, uint32_t panel1)      \
    {                                                                                              \
        packed(DK_##type, rows, keep, j, panel0, panel1);                                          \
    }
#define DEFINE_PACKED_TYPE(type)                                                                   \
    DEFINE_PACKED(type, 1, false, 1)                                                               \
    DEFINE_PACKED(type, 2, false, 2)                                                               \
    DEFINE_PACKED(type, 3, false, 3)                                                               \
    DEFINE_PACKED(type, 4, false, 4)                                                               \
    DEFINE_PACKED(type, 5, false, 5)                                                               \
    DEFINE_PACKED(type, 6, false, 6)                                                               \
    DEFINE_PACKED(type, 4, true, keep4)                                                            \
    DEFINE_PACKED(type, 5, true, keep5)                                                            \
    DEFINE_PACKED(type, 6, true, keep6)
#define PACKED_LINE(type)                                                                          \
    [DK_##type] = {packed_##type##_1,     packed_##type##_2,     packed_##type##_3,                \
                   packed_##type##_4,     packed_##type##_5,     packed_##type##_6,                \
                   packed_##type##_keep4, packed_##type##_keep5, packed_##type##_keep6}

DEFINE_PACKED_TYPE(Q8_0)
DEFINE_PACKED_TYPE(Q4_0)
DEFINE_PACKED_TYPE(Q4_1)
DEFINE_PACKED_TYPE(Q5_0)
DEFINE_PACKED_TYPE(Q5_1)
DEFINE_PACKED_TYPE(Q4_K)
DEFINE_PACKED_TYPE(Q5_K)
DEFINE_PACKED_TYPE(Q6_K)

static const packed_fn packed_table[DK_TYPE_COUNT][TILE_ROWS + 3] = {
    PACKED_LINE(Q8_0), PACKED_LINE(Q4_0), PACKED_LINE(Q4_1), PACKED_LINE(Q5_0),
    PACKED_LINE(Q5_1), PACKED_LINE(Q4_K), PACKED_LINE(Q5_K), PACKED_LINE(Q6_K),
};

/* ---- out of scratch ------------------------------------------------------------------------------- */

DK_KERNEL void unpacked_part(enum dk_qkind kind, unsigned zero_shift, unsigned rows, unsigned sub,
                             const struct record *rec, const struct dk_qact_avx2 *x,
                             float (*acc)[DK_PANEL])
{
    const unsigned g0 = kind == DK_QK_SUB ? 4 * sub : 0, g1 = kind == DK_QK_SUB ? g0 + 4 : 8;
    struct sums s, low;
    zeros(&low);
#pragma GCC unroll 8
    for (unsigned g = g0; g < g1; g++)
        low_bits(g, rows, rec->b[g][0], rec->b[g][1], x, &low);
    settle(kind, zero_shift, sub, rows, x, &low);
    zeros(&s);
#pragma GCC unroll 8
    for (unsigned g = g0; g < g1; g++)
        high_bits(g % 4, g / 4, rows, rec->b[g][0], rec->b[g][1], x, &s);
    finish(rows, 4, &s, &low, rec->s[sub], kind == DK_QK_MIN ? rec->s[1] : NULL, x, acc);
}

DK_KERNEL void unpacked(enum dk_qkind kind, unsigned rows, const struct job *j, uint32_t panel)
{
    const struct dk_qact_avx2 *x = j->x;
    const struct record *rec = j->rec;
    if (j->b0 == 0)
        memset(j->acc, 0, rows * sizeof j->acc[0]);
    for (uint32_t b = j->b0; b < j->b1; b++, rec++, x += j->stride) {
        unpacked_part(kind, j->zero_shift, rows, 0, rec, x, j->acc);
        if (kind == DK_QK_SUB)
            unpacked_part(kind, j->zero_shift, rows, 1, rec, x, j->acc);
    }
    if (j->b1 == j->blocks)
        for (unsigned r = 0; r < rows; r++)
            dk_q256_store(j->mm, j->row + r, panel, j->acc[r]);
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
    DEFINE_UNPACKED(kind, 4) DEFINE_UNPACKED(kind, 5) DEFINE_UNPACKED(kind, 6)
#define UNPACKED_LINE(kind)                                                                        \
    [DK_QK_##kind] = {unpacked_##kind##_1, unpacked_##kind##_2, unpacked_##kind##_3,               \
                      unpacked_##kind##_4, unpacked_##kind##_5, unpacked_##kind##_6}
DEFINE_UNPACKED_KIND(ZERO)
DEFINE_UNPACKED_KIND(MIN)
DEFINE_UNPACKED_KIND(SUB)

static const unpacked_fn unpacked_table[3][TILE_ROWS] = {UNPACKED_LINE(ZERO), UNPACKED_LINE(MIN),
                                                         UNPACKED_LINE(SUB)};

/* ---- the product ---------------------------------------------------------------------------------- */

/* Rows [row0, row0 + rows) of one panel, more than six of them; row0 is a multiple of 16. */
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
            /* Tiles do not cross a multiple of 16; what is left of 16 is cut into alike tiles. */
            uint32_t left = DK_QTILE - r % DK_QTILE;
            left = rows - r < left ? rows - r : left;
            uint32_t tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
            n = (left + tiles - 1) / tiles;
            j.x = (const struct dk_qact_avx2 *)dk_act_int(a) +
                  dk_qact_at(a->rows, blocks, row0 + r, j.b0);
            j.row = row0 + r;
            j.acc = s->acc + r;
            if (r == 0)
                packed_table[t][n + 2](&j, panel, panel + 1);
            else
                unpacked_table[g.kind][n - 1](&j, panel);
        }
    }
}

DK_DECLARE_MATMUL(dk_cpu_matmul_quant_avx2)
{
    uint32_t blocks = mm->w->k / DK_QBLOCK, rows;
    const struct dk_qahead ahead = dk_qahead(mm, panel1);
    for (uint32_t r = 0; r < a->rows; r += rows) {
        rows = a->rows - r < CHUNK_ROWS ? a->rows - r : CHUNK_ROWS;
        if (rows <= TILE_ROWS) {
            struct job j = {
                .mm = mm,
                .x = (const struct dk_qact_avx2 *)dk_act_int(a) + dk_qact_at(a->rows, blocks, r, 0),
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
