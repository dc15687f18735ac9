/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights, vector tiers: register tiles of R rows by P panels, and the loops
 * around them.  Included once by each tier's file, which defines
 *   vf, VF_PER_LINE, vf_zero, vf_load, vf_store, vf_set1, vf_fma    16 outputs are so many vectors
 *   vf_load_f16, vf_load_bf16                                       widening loads
 *   MAX_ROWS, PANELS[MAX_ROWS + 1], FOR_EACH_TILE(X)                tiles: X(R, P)
 *
 * A tile holds R x P x 16 chains in registers and walks the inputs in ascending order; between two
 * chunks of inputs the chains wait in memory as they are.  So no choice made here (tile, chunk,
 * order of panels) can change a bit.
 *
 * One group of rows: weights are widened on the way from memory to the registers, P panels being
 * read side by side so that P chains hide the latency of one, and fetched ahead.  More groups: a chunk
 * of P panels is widened once into the first-level cache and used by all groups.
 */
#pragma once

#include <string.h>

#include "kernels/cpu/act/float.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Where a tile's weights are: in the widened chunk, or in the matrix itself. */
enum source { FROM_CHUNK, FROM_F32, FROM_F16, FROM_BF16 };

INLINE unsigned source_bytes(enum source s)
{
    return s == FROM_CHUNK || s == FROM_F32 ? 4 : 2;
}

INLINE vf source_load(enum source s, const char *w, size_t elem)
{
    if (s == FROM_F16)
        return vf_load_f16(w + elem * 2);
    if (s == FROM_BF16)
        return vf_load_bf16(w + elem * 2);
    return vf_load((const float *)(const void *)w + elem);
}

/* One call of a tile. */
struct tile_args {
    const void *w;       /* first panel, at the first input of the call */
    size_t panel_stride; /* bytes from a panel to the next */
    const float *x;      /* the group, at the first input of the call */
    uint32_t k_blocks;   /* sixteens of inputs */
    uint32_t k_jump;     /* from this block on, what is fetched ahead lies P panels further */
    bool resume;         /* chains continue from acc */
    float *acc;          /* [R][P][16] */
};

INLINE void tile(const enum source src, const unsigned R, const unsigned P,
                 const struct tile_args *t)
{
    enum { V = VF_PER_LINE, LANES = 16 / VF_PER_LINE };
    vf c[MAX_ROWS][MAX_PANELS * V];
    const char *w = t->w;
    const float *x = t->x;
    const size_t stride = t->panel_stride;
    size_t ahead = FETCH_BYTES;

    UNROLL for (unsigned r = 0; r < R; r++)
        UNROLL for (unsigned q = 0; q < P * V; q++)
            c[r][q] = t->resume ? vf_load(t->acc + (r * P * V + q) * LANES) : vf_zero();

    for (uint32_t b = 0; b < t->k_blocks; b++) {
        if (src != FROM_CHUNK && b == t->k_jump)
            ahead += (P - 1) * stride;
        _Pragma("GCC unroll 4") for (unsigned k = 0; k < 16; k++)
        {
            vf wv[MAX_PANELS * V];
            UNROLL for (unsigned q = 0; q < P; q++)
            {
                const char *line = w + q * stride + k * 16 * source_bytes(src);
                if (src != FROM_CHUNK && (source_bytes(src) == 4 || k % 2 == 0))
                    __builtin_prefetch(line + ahead, 0, 3);
                UNROLL for (unsigned v = 0; v < V; v++)
                    wv[q * V + v] = source_load(src, line, v * LANES);
            }
            UNROLL for (unsigned r = 0; r < R; r++)
            {
                vf xv = vf_set1(x[r * 16 + k]);
                UNROLL for (unsigned q = 0; q < P * V; q++)
                    c[r][q] = vf_fma(wv[q], xv, c[r][q]);
            }
        }
        w += 16 * 16 * source_bytes(src);
        x += 16 * R;
    }

    UNROLL for (unsigned r = 0; r < R; r++)
        UNROLL for (unsigned q = 0; q < P * V; q++)
            vf_store(t->acc + (r * P * V + q) * LANES, c[r][q]);
}

#define DEFINE_TILE(R, P)                                                                          \
    static void tile_chunk_##R##_##P(const struct tile_args *t)                                    \
    {                                                                                              \
        tile(FROM_CHUNK, R, P, t);                                                                 \
    }                                                                                              \
    static void tile_f32_##R##_##P(const struct tile_args *t)                                      \
    {                                                                                              \
        tile(FROM_F32, R, P, t);                                                                   \
    }                                                                                              \
    static void tile_f16_##R##_##P(const struct tile_args *t)                                      \
    {                                                                                              \
        tile(FROM_F16, R, P, t);                                                                   \
    }                                                                                              \
    static void tile_bf16_##R##_##P(const struct tile_args *t)                                     \
    {                                                                                              \
        tile(FROM_BF16, R, P, t);                                                                  \
    }
FOR_EACH_TILE(DEFINE_TILE)

typedef void (*tile_fn)(const struct tile_args *t);
#define TILE_ENTRY(R, P)                                                                           \
    [FROM_CHUNK][R][P] = tile_chunk_##R##_##P, [FROM_F32][R][P] = tile_f32_##R##_##P,              \
    [FROM_F16][R][P] = tile_f16_##R##_##P, [FROM_BF16][R][P] = tile_bf16_##R##_##P,
static const tile_fn tiles[4][MAX_ROWS + 1][MAX_PANELS + 1] = {FOR_EACH_TILE(TILE_ENTRY)};

struct scratch {
    _Alignas(64) float w[MAX_PANELS][CHUNK_K * 16];
    _Alignas(64) float acc[BLOCK_ROWS * MAX_PANELS * 16];
};
_Static_assert(sizeof(struct scratch) <= DK_SCRATCH_BYTES, "scratch");

/* acc [R][P][16] to y. */
static void store(const struct dk_mm *mm, uint32_t row0, uint32_t R, uint32_t panel0, uint32_t P,
                  const float *acc)
{
    const bool plus = mm->flags & DK_MM_ADD;
    for (uint32_t r = 0; r < R; r++) {
        for (uint32_t q = 0; q < P; q++, acc += 16) {
            uint32_t o0 = (panel0 + q) * DK_PANEL, n = mm->w->n - o0;
            float *y = mm->y + (row0 + r) * mm->ldy + o0;
            if (n >= DK_PANEL) {
                UNROLL for (unsigned v = 0; v < VF_PER_LINE; v++)
                {
                    unsigned i = v * (16 / VF_PER_LINE);
                    vf s = vf_load(acc + i);
                    vf_storeu(y + i, plus ? vf_add(vf_loadu(y + i), s) : s);
                }
            } else {
                for (uint32_t o = 0; o < n; o++)
                    y[o] = plus ? y[o] + acc[o] : acc[o];
            }
        }
    }
}

static void widen(enum source src, float *out, const char *w, size_t elems)
{
    const unsigned lanes = 16 / VF_PER_LINE;
    if (src == FROM_F16)
        for (size_t i = 0; i < elems; i += lanes)
            vf_store(out + i, vf_load_f16(w + i * 2));
    else
        for (size_t i = 0; i < elems; i += lanes)
            vf_store(out + i, vf_load_bf16(w + i * 2));
}

/* Panels that tiles of R rows can take at once, not more than there are. */
static uint32_t panel_step(uint32_t R, uint32_t left)
{
    uint32_t P = PANELS[R];
    while (P > left)
        P /= 2;
    return P;
}

static void one_group(const struct dk_mm *mm, const struct dk_act *a, uint32_t panel0,
                      uint32_t panel1, struct scratch *s, enum source src)
{
    uint32_t kb = dk_pad_k(mm->w->k, DK_K_PAD) / 16, R = a->rows;
    size_t panel_bytes = (size_t)kb * 16 * 16 * source_bytes(src);
    uint32_t fetch_blocks = FETCH_BYTES / (16 * 16 * source_bytes(src));
    struct tile_args t = {
        .panel_stride = panel_bytes,
        .x = dk_act_f32(a),
        .k_blocks = kb,
        .k_jump = kb > fetch_blocks ? kb - fetch_blocks : 0,
        .acc = s->acc,
    };
    for (uint32_t p = panel0, P; p < panel1; p += P) {
        P = panel_step(R, panel1 - p);
        t.w = (const char *)mm->w->data + p * panel_bytes;
        tiles[src][R][P](&t);
        store(mm, 0, R, p, P, s->acc);
    }
}

/* Groups [g0, g1) for panels [p, p + P). */
static void many_groups(const struct dk_mm *mm, const struct dk_act *a,
                        const struct dk_groups *groups, uint32_t g0, uint32_t g1, uint32_t p,
                        uint32_t P, struct scratch *s, enum source src)
{
    uint32_t kp = dk_pad_k(mm->w->k, DK_K_PAD), start = dk_group_start(groups, g0);
    size_t elem = source_bytes(src), panel_bytes = (size_t)kp * 16 * elem;
    const char *w = (const char *)mm->w->data + p * panel_bytes;
    for (uint32_t k0 = 0; k0 < kp; k0 += CHUNK_K) {
        uint32_t kn = kp - k0 < CHUNK_K ? kp - k0 : CHUNK_K;
        struct tile_args t = {
            .w = w + k0 * 16 * elem,
            .panel_stride = panel_bytes,
            .k_blocks = kn / 16,
            .k_jump = UINT32_MAX,
            .resume = k0 > 0,
        };
        enum source from = src;
        if (src != FROM_F32) {
            for (uint32_t q = 0; q < P; q++)
                widen(src, s->w[q], (const char *)t.w + q * panel_bytes, (size_t)kn * 16);
            from = FROM_CHUNK;
            t.w = s->w;
            t.panel_stride = sizeof s->w[0];
        }
        for (uint32_t g = g0; g < g1; g++) {
            uint32_t R = dk_group_rows(groups, g), row = dk_group_start(groups, g);
            t.x = (const float *)dk_act_f32(a) + (size_t)row * kp + (size_t)k0 * R;
            t.acc = s->acc + (size_t)(row - start) * P * 16;
            tiles[from][R][P](&t);
            from = FROM_CHUNK; /* near by now */
        }
    }
    for (uint32_t g = g0; g < g1; g++) {
        uint32_t R = dk_group_rows(groups, g), row = dk_group_start(groups, g);
        store(mm, row, R, p, P, s->acc + (size_t)(row - start) * P * 16);
    }
}

static void matmul_float(const struct dk_mm *mm, const struct dk_act *a, uint32_t panel0,
                         uint32_t panel1, void *scratch)
{
    enum source src = mm->w->type == DK_F32 ? FROM_F32
                      : mm->w->type == DK_F16 ? FROM_F16
                                              : FROM_BF16;
    struct dk_groups groups = dk_groups(a->rows, MAX_ROWS);
    if (groups.n <= 1) {
        if (groups.n)
            one_group(mm, a, panel0, panel1, scratch, src);
        return;
    }
    uint32_t largest = dk_group_rows(&groups, 0);
    for (uint32_t g = 0, next; g < groups.n; g = next) {
        next = g + BLOCK_ROWS / MAX_ROWS;
        if (next > groups.n)
            next = groups.n;
        for (uint32_t p = panel0, P; p < panel1; p += P) {
            P = panel_step(largest, panel1 - p);
            many_groups(mm, a, &groups, g, next, p, P, scratch, src);
        }
    }
}
