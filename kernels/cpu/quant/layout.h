/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-quantised weights and their activations as the kernels see them: the constants of each
 * type, the packed panel, and the prepared activation row.  Everything here is static inline and
 * folds away once the type is a constant.
 *
 * A weight is  dw * (u - zero) [+ mw]  with u an unsigned integer of 4, 5, 6 or 8 bits; dw, mw per
 * block of 32 inputs (Q6_K: dw per 16).
 *
 * Packed panel (16 outputs, K inputs, K / 32 blocks).  Quants of one block, "byte b of line l":
 *   nibbles   4 lines of 64 bytes: byte 4 * output + i of line l holds input 4l + i in its low half
 *             and input 16 + 4l + i in its high half.  "Group g" = inputs 4g .. 4g + 3: groups 0-3
 *             are the low halves of lines 0-3, groups 4-7 the high halves.
 *   plane 5   1 line after the nibbles: bit g of byte 4 * output + i is bit 4 of input 4g + i.
 *   plane 6   2 lines: bits 2j, 2j+1 of byte 4 * output + i of line h are bits 4, 5 of input
 *             4(4h + j) + i.
 *   bytes     Q8_0: 8 lines, line g holds group g, byte 4 * output + i; u = q + 128.
 * Blocks are laid out so that every line is 64-byte aligned:
 *   Q4_1 Q5_1        [d 16 x f16, m 16 x f16][quants]                          per block
 *   Q8_0 Q4_0 Q5_0   [d of block 2j, d of block 2j + 1][quants 2j][quants 2j + 1]; an odd last block
 *                    has [d, zeros][quants]
 *   Q4_K Q5_K        [d, dmin 16 x f16][8 x (16 scales, 16 minimums, one byte each)][8 x quants]
 *   Q6_K             [d 16 x f16, zeros][8 x (16 first, 16 second scales, int8)][8 x quants]
 *
 * Prepared activations: see struct dk_qact.
 */
#pragma once

#include "kernels/cpu/internal.h"

#define DK_QBLOCK 32u

#define DK_INLINE static inline __attribute__((always_inline))
/*
 * A kernel that is instantiated for constant types and row counts.  Under a sanitizer or without
 * optimisation there is one copy, which takes them as arguments: the same source, a hundredth of the
 * code to compile.
 */
#if defined(__has_feature)
#define DK_HAS_FEATURE(x) __has_feature(x)
#else
#define DK_HAS_FEATURE(x) 0
#endif
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||     \
    DK_HAS_FEATURE(address_sanitizer) || DK_HAS_FEATURE(thread_sanitizer) ||                       \
    DK_HAS_FEATURE(memory_sanitizer)
#define DK_KERNEL   static __attribute__((noinline))
#define DK_ONE_COPY 1
#else
#define DK_KERNEL   DK_INLINE
#define DK_ONE_COPY 0
#endif

/* How the float part treats the type. */
enum dk_qkind {
    DK_QK_ZERO, /* dw * (u - zero) */
    DK_QK_MIN,  /* dw * u + mw */
    DK_QK_SUB,  /* dw * (u - 32), a scale for each 16 inputs */
};

struct dk_qgeom {
    enum dk_qkind kind;
    unsigned bits;        /* of u */
    unsigned zero_shift;  /* zero point = 1 << zero_shift (DK_QK_MIN: none) */
    unsigned group;       /* blocks that share scale lines: 1, 2, 8 */
    unsigned scale_bytes; /* bytes of scale lines of a whole group */
    unsigned quant_bytes; /* bytes of quants of a block */
    unsigned file_bytes;  /* bytes of a block, or super-block, in the file */
};

DK_INLINE struct dk_qgeom dk_qgeom(enum dk_type t)
{
    switch (t) {
    case DK_Q8_0:
        return (struct dk_qgeom){DK_QK_ZERO, 8, 7, 2, 64, 512, 34};
    case DK_Q4_0:
        return (struct dk_qgeom){DK_QK_ZERO, 4, 3, 2, 64, 256, 18};
    case DK_Q5_0:
        return (struct dk_qgeom){DK_QK_ZERO, 5, 4, 2, 64, 320, 22};
    case DK_Q4_1:
        return (struct dk_qgeom){DK_QK_MIN, 4, 0, 1, 64, 256, 20};
    case DK_Q5_1:
        return (struct dk_qgeom){DK_QK_MIN, 5, 0, 1, 64, 320, 24};
    case DK_Q4_K:
        return (struct dk_qgeom){DK_QK_MIN, 4, 0, 8, 320, 256, 144};
    case DK_Q5_K:
        return (struct dk_qgeom){DK_QK_MIN, 5, 0, 8, 320, 320, 176};
    case DK_Q6_K:
        return (struct dk_qgeom){DK_QK_SUB, 6, 5, 8, 320, 384, 210};
    case DK_F32:
    case DK_F16:
    case DK_BF16:
    case DK_TYPE_COUNT:
        break;
    }
    return (struct dk_qgeom){DK_QK_ZERO, 0, 0, 1, 0, 0, 0};
}

/* From a block of a panel to the next; on average, where blocks share scale lines. */
DK_INLINE size_t dk_qblock_bytes(enum dk_type t)
{
    struct dk_qgeom g = dk_qgeom(t);
    return g.scale_bytes / g.group + g.quant_bytes;
}

DK_INLINE size_t dk_qpanel_bytes(enum dk_type t, uint32_t blocks)
{
    struct dk_qgeom g = dk_qgeom(t);
    size_t groups = ((size_t)blocks + g.group - 1) / g.group;
    return groups * g.scale_bytes + (size_t)blocks * g.quant_bytes;
}

/* Start of the group that holds block b of a panel, and of b's quants. */
DK_INLINE size_t dk_qgroup_at(enum dk_type t, uint32_t b)
{
    struct dk_qgeom g = dk_qgeom(t);
    return (size_t)(b / g.group) * (g.scale_bytes + (size_t)g.group * g.quant_bytes);
}
DK_INLINE size_t dk_qquants_at(enum dk_type t, uint32_t b)
{
    struct dk_qgeom g = dk_qgeom(t);
    return dk_qgroup_at(t, b) + g.scale_bytes + (size_t)(b % g.group) * g.quant_bytes;
}

/* Where a call's weights end, and the way from there to what is fetched then. */
struct dk_qahead {
    uintptr_t end, jump;
};

/* Types with more arithmetic for a byte are best served from L2, Q8_0 from L1; the distances keep away
 * from multiples of 4 KiB. */
DK_INLINE size_t dk_qdistance(enum dk_type t)
{
    return dk_qgeom(t).bits == 8 ? 7168 : 9216;
}

/* For panels up to panel1 (not included).  Behind them begins what the thread reads next: so its first
 * lines are there when it comes to them.  Unknown: what has been read is named once more. */
DK_INLINE struct dk_qahead dk_qahead(const struct dk_mm *mm, uint32_t panel1)
{
    uintptr_t end =
        (uintptr_t)mm->w->data + panel1 * dk_qpanel_bytes(mm->w->type, mm->w->k / DK_QBLOCK);
    uintptr_t next = mm->next ? (uintptr_t)mm->next : end - dk_qdistance(mm->w->type);
    return (struct dk_qahead){end, next - end};
}

/* Fetches what lies ahead of block b. */
DK_INLINE void dk_qprefetch(enum dk_type t, const uint8_t *panel, uint32_t b, struct dk_qahead a)
{
    const struct dk_qgeom g = dk_qgeom(t);
    const size_t step = dk_qblock_bytes(t);
    uintptr_t at = (uintptr_t)panel + b * step + dk_qdistance(t);
    const char *p = (const char *)(at < a.end ? at : at + a.jump);
#pragma GCC unroll 9
    for (unsigned l = 0; l < (step + 63) / 64; l++) {
        if (g.bits == 8)
            __builtin_prefetch(p + 64 * l, 0, 3);
        else
            __builtin_prefetch(p + 64 * l, 0, 2);
    }
}

/*
 * One row's block of 32 inputs.  x ~ d * q, |q| <= DK_QMAX, cut into q = 16 (256 hi + mid) + low with
 * hi, mid int8 and low -8 .. 7:
 *   C              int16 256 hi + mid, inputs in order; low
 *   AVX-512, AMX   planes mid, low, hi
 *   AVX2           struct dk_qact_avx2: the 16 bits as pairs that vpmaddwd meets, per l = 0 .. 3: inputs
 *                  (0, 2) (1, 3) of group l, then of group 4 + l; low; and planes mid, hi
 * Blocks of a matrix: rows are taken in tiles of 16, [tile][block][row of the tile]; a matrix of
 * fewer than 16 rows is one tile of that many.
 */
struct dk_qact {
    union {
        struct {
            int16_t w[32];
            int8_t low[32];
        } words; /* C */
        struct {
            int8_t mid[32], low[32], hi[32];
        } planes;       /* AVX-512, AMX */
        int32_t dw[24]; /* either, four bytes at a time */
    };
    float d;
    float sum;           /* d * (float)(sum of q) */
    int32_t nsum;        /* -(sum of q) */
    int32_t nsum_sub[2]; /* the same of inputs 0-15 and 16-31 */
    int32_t pad[3];
};
_Static_assert(sizeof(struct dk_qact) == 128, "rows of a tile are two lines of cache apart");

struct dk_qact_avx2 {
    int32_t pair[16], low[8];
    float d, sum; /* these as above */
    int32_t nsum, nsum_sub[2];
    int32_t pad[3];
    int32_t mid[8], hi[8];
};
_Static_assert(sizeof(struct dk_qact_avx2) == 192, "three lines of cache");

/* 16 (256 * 127 + 127) + 7, the largest q whose parts fit; and 32 * 128 * DK_QMAX < 2^31: a block's
 * sum fits in 32 bits whatever its weights. */
#define DK_QMAX  522231
#define DK_QTINY 0x1p-96f /* a block whose largest magnitude is below this counts as zero */
#define DK_QTILE 16u

static inline uint32_t dk_qtile_rows(uint32_t rows)
{
    return rows < DK_QTILE ? rows : DK_QTILE;
}
/* Index of (row, block) in the array. */
static inline size_t dk_qact_at(uint32_t rows, uint32_t blocks, uint32_t row, uint32_t block)
{
    return ((size_t)(row / DK_QTILE) * blocks * DK_QTILE) + (size_t)block * dk_qtile_rows(rows) +
           row % DK_QTILE;
}

/* ---- one block of one output, unpacked (portable code, packing, look-up) ------------------------ */

struct dk_qblock {
    uint8_t u[32];
    uint16_t d, m; /* f16 as in the file; m: minimum, or the factor of minimums */
    uint8_t sc[2]; /* sub-scales: [0] 6 bits, or both int8 */
    uint8_t mn;    /* sub-minimum, 6 bits */
};
void dk_qblock_from_file(enum dk_type t, const uint8_t *row, uint32_t block, struct dk_qblock *ret);
void dk_qblock_from_panel(enum dk_type t, const uint8_t *panel, uint32_t block, uint32_t output,
                          struct dk_qblock *ret);
/* dw of the two halves (equal but for Q6_K) and mw (0 when the type has no minimum). */
void dk_qblock_scales(enum dk_type t, const struct dk_qblock *b, float dw[2], float *mw);
/* The 32 values, exact. */
void dk_qblock_values(enum dk_type t, const struct dk_qblock *b, float out[32]);
