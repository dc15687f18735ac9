/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights, vector tiers: register tiles of R rows by P panels, and the loops
 * around them.  Included once by each tier's file, which defines
 *   vf, VF_PER_LINE, vf_zero, vf_load, vf_store, vf_set1, vf_fma    16 outputs are so many vectors
 *   vf_load_f16, vf_load_bf16                                       widening loads
 *   vf_line_bf16, vf_order_bf16                                     the same for 16 outputs, and what
 *                                                                   puts sums in order afterwards
 *   MAX_ROWS, FOR_EACH_R(X)                                         rows of a tile
 *   MAX_PANELS, FOR_EACH_TILE(X)                                    tiles on widened chunks: X(R, P)
 *   FETCH_BYTES, FETCH_ROWS, DIRECT_K, CHUNK_K, BLOCK_GROUPS, FEW_GROUPS   sizes, found by measuring
 *
 * A tile holds R x P x 16 chains in registers and walks the inputs in ascending order; between two
 * chunks of inputs the chains wait in memory as they are.  So no choice made here (tile, chunk,
 * order of panels) can change a bit.
 *
 * Few groups of rows: weights are widened on the way to the registers, one panel at a time, so that
 * memory is read front to back.  Many groups: a chunk of P panels is widened once into the first-level
 * cache, for all groups.  What comes from memory next is fetched ahead, evenly over the tiles, so
 * that reading and arithmetic overlap; nothing is fetched that the call does not use.
 */
#pragma once

#include <string.h>

#include "kernels/cpu/act/float.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* What a tile reads: the matrix itself, or a chunk that was widened to F32. */
enum source { FROM_F32, FROM_F16, FROM_BF16, SOURCES };

INLINE unsigned source_bytes(enum source s)
{
    return s == FROM_F32 ? 4 : 2;
}

/* The 16 outputs of one input; in an order of the tier's own where that is cheaper. */
INLINE void source_line(enum source s, const char *p, vf *v)
{
    const unsigned lanes = 16 / VF_PER_LINE;
    if (s == FROM_BF16) {
        vf_line_bf16(p, v);
        return;
    }
    UNROLL for (unsigned i = 0; i < VF_PER_LINE; i++)
        v[i] = s == FROM_F16 ? vf_load_f16(p + i * lanes * 2)
                             : vf_load((const float *)(const void *)p + i * lanes);
}

/* Back to the order of outputs. */
INLINE void source_order(enum source s, vf *v)
{
    if (s == FROM_BF16)
        vf_order_bf16(v);
}

/* One call of a tile. */
struct tile_args {
    const void *w;       /* first panel, at the first input of the call */
    size_t panel_stride; /* bytes from a panel to the next */
    const float *x;      /* the group, at the first input of the call */
    uint32_t k_blocks;   /* sixteens of inputs */
    bool resume;         /* chains continue from acc */
    float *acc;          /* [R][P][16] */
    /* Fetched ahead into the second-level cache, for each 4 inputs: so many lines of each panel. */
    const char *fetch;
    unsigned fetch_lines;
    uint32_t fetch_blocks; /* the first so many sixteens of inputs only */
    size_t fetch_step, fetch_stride; /* bytes for 4 inputs, to the next panel */
};

INLINE void tile(const enum source src, const unsigned R, const unsigned P,
                 const struct tile_args *t)
{
    enum { V = VF_PER_LINE, LANES = 16 / VF_PER_LINE };
    vf c[MAX_ROWS][MAX_PANELS * V];
    const char *w = t->w, *fetch = t->fetch;
    const float *x = t->x;
    const size_t stride = t->panel_stride;

    UNROLL for (unsigned r = 0; r < R; r++)
        UNROLL for (unsigned q = 0; q < P * V; q++)
            c[r][q] = t->resume ? vf_load(t->acc + (r * P * V + q) * LANES) : vf_zero();

    for (uint32_t b = 0; b < t->k_blocks; b++) {
        const unsigned lines = b < t->fetch_blocks ? t->fetch_lines : 0;
        for (unsigned k = 0; k < 16; k += 4) {
            for (unsigned l = 0; l < lines; l++)
                UNROLL for (unsigned q = 0; q < P; q++)
                    __builtin_prefetch(fetch + q * t->fetch_stride + l * 64, 0, 2);
            fetch += t->fetch_step;
            UNROLL for (unsigned i = 0; i < 4; i++)
            {
                vf wv[MAX_PANELS * V];
                UNROLL for (unsigned q = 0; q < P; q++)
                    source_line(src, w + q * stride + i * 16 * source_bytes(src), &wv[q * V]);
                UNROLL for (unsigned r = 0; r < R; r++)
                {
                    vf xv = vf_set1(x[r * 16 + i]);
                    UNROLL for (unsigned q = 0; q < P * V; q++)
                        c[r][q] = vf_fma(wv[q], xv, c[r][q]);
                }
                /* Loads of later steps stay there: the registers are all taken. */
                __asm__ volatile("" : : : "memory");
            }
            w += 4 * 16 * source_bytes(src);
            x += 4;
        }
        x += 16 * R - 16;
    }

    UNROLL for (unsigned r = 0; r < R; r++)
        UNROLL for (unsigned q = 0; q < P * V; q++)
            vf_store(t->acc + (r * P * V + q) * LANES, c[r][q]);
}

/* Direct tiles take one panel, tiles on widened chunks up to MAX_PANELS. */
#define DEFINE_DIRECT(R)                                                                           \
    static void tile_f16_##R(const struct tile_args *t)                                            \
    {                                                                                              \
        tile(FROM_F16, R, 1, t);                                                                   \
    }                                                                                              \
    static void tile_bf16_##R(const struct tile_args *t)                                           \
    {                                                                                              \
        tile(FROM_BF16, R, 1, t);                                                                  \
    }
#define DEFINE_CHUNK(R, P)                                                                         \
    static void tile_f32_##R##_##P(const struct tile_args *t)                                      \
    {                                                                                              \
        tile(FROM_F32, R, P, t);                                                                   \
    }
FOR_EACH_R(DEFINE_DIRECT)
FOR_EACH_TILE(DEFINE_CHUNK)

typedef void (*tile_fn)(const struct tile_args *t);
#define F16_ENTRY(R) [R] = tile_f16_##R,
#define BF16_ENTRY(R) [R] = tile_bf16_##R,
#define F32_ENTRY(R, P) [P][R] = tile_f32_##R##_##P,
static const tile_fn tiles_f16[MAX_ROWS + 1] = {FOR_EACH_R(F16_ENTRY)};
static const tile_fn tiles_bf16[MAX_ROWS + 1] = {FOR_EACH_R(BF16_ENTRY)};
static const tile_fn tiles_f32[MAX_PANELS + 1][MAX_ROWS + 1] = {FOR_EACH_TILE(F32_ENTRY)};

struct scratch {
    _Alignas(64) float w[MAX_PANELS][CHUNK_K * 16];
    _Alignas(64) float acc[BLOCK_GROUPS * MAX_ROWS * MAX_PANELS * 16];
};
_Static_assert(sizeof(struct scratch) <= DK_SCRATCH_BYTES, "scratch");

/* acc [R][P][16], in the order of tiles that read src, to y. */
static void store(const struct dk_mm *mm, uint32_t row0, uint32_t R, uint32_t panel0, uint32_t P,
                  const float *acc, enum source src)
{
    enum { V = VF_PER_LINE, LANES = 16 / VF_PER_LINE };
    const bool plus = mm->flags & DK_MM_ADD;
    for (uint32_t r = 0; r < R; r++) {
        for (uint32_t q = 0; q < P; q++, acc += 16) {
            uint32_t o0 = (panel0 + q) * DK_PANEL, n = mm->w->n - o0;
            float *y = mm->y + (row0 + r) * mm->ldy + o0;
            vf s[V];
            UNROLL for (unsigned v = 0; v < V; v++)
                s[v] = vf_load(acc + v * LANES);
            source_order(src, s);
            if (n >= DK_PANEL) {
                UNROLL for (unsigned v = 0; v < V; v++)
                    vf_storeu(y + v * LANES, plus ? vf_add(vf_loadu(y + v * LANES), s[v]) : s[v]);
            } else {
                _Alignas(64) float line[16];
                UNROLL for (unsigned v = 0; v < V; v++)
                    vf_store(line + v * LANES, s[v]);
                for (uint32_t o = 0; o < n; o++)
                    y[o] = plus ? y[o] + line[o] : line[o];
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

/* The product and how it is cut. */
struct job {
    const struct dk_mm *mm;
    const struct dk_act *a;
    struct dk_groups groups;
    uint32_t panel0, panel1;
    uint32_t kp;
    size_t panel_bytes;
    unsigned lines; /* of a panel, hold 4 inputs */
    enum source src;
    struct scratch *s;
};

static const char *job_panel(const struct job *j, uint32_t p)
{
    return (const char *)j->mm->w->data + p * j->panel_bytes;
}

static const float *job_rows(const struct job *j, uint32_t row)
{
    return (const float *)dk_act_f32(j->a) + (size_t)row * j->kp;
}

/* Groups [g0, g1), all panels. */
static void few_groups(const struct job *j, uint32_t g0, uint32_t g1)
{
    const tile_fn *tiles = j->src == FROM_F32   ? tiles_f32[1]
                           : j->src == FROM_F16 ? tiles_f16
                                                : tiles_bf16;
    const uint32_t G = g1 - g0, chunk = G == 1 ? j->kp : DIRECT_K;
    const uint32_t start = dk_group_start(&j->groups, g0);
    const size_t k_bytes = 16 * source_bytes(j->src); /* of one input */
    const char *end = job_panel(j, j->panel1);
    for (uint32_t p = j->panel0; p < j->panel1; p++) {
        for (uint32_t k0 = 0; k0 < j->kp; k0 += chunk) {
            const uint32_t kn = j->kp - k0 < chunk ? j->kp - k0 : chunk;
            const char *w = job_panel(j, p) + k0 * k_bytes;
            for (uint32_t g = g0; g < g1; g++) {
                uint32_t R = dk_group_rows(&j->groups, g), row = dk_group_start(&j->groups, g);
                /* Each group fetches its share of the lines. */
                unsigned from = j->lines * (g - g0) / G, to = j->lines * (g - g0 + 1) / G;
                const char *fetch = w + FETCH_BYTES;
                struct tile_args t = {
                    .w = w,
                    .x = job_rows(j, row) + (size_t)k0 * R,
                    .k_blocks = kn / 16,
                    .resume = k0 > 0,
                    .acc = j->s->acc + (size_t)(row - start) * 16,
                    .fetch = fetch + 64 * from,
                    .fetch_lines = to - from,
                    .fetch_step = 64 * j->lines,
                };
                if (fetch < end && (G > 1 || R >= FETCH_ROWS(source_bytes(j->src))))
                    t.fetch_blocks = (uint32_t)((size_t)(end - fetch) / (16 * k_bytes));
                tiles[R](&t);
            }
        }
        for (uint32_t g = g0; g < g1; g++) {
            uint32_t row = dk_group_start(&j->groups, g);
            store(j->mm, row, dk_group_rows(&j->groups, g), p, 1,
                  j->s->acc + (size_t)(row - start) * 16, j->src);
        }
    }
}

/* Groups [g0, g1) for panels [p, p + P); next: where the panels after these are, or NULL. */
static void many_groups(const struct job *j, uint32_t g0, uint32_t g1, uint32_t p, uint32_t P,
                        const char *next)
{
    const uint32_t start = dk_group_start(&j->groups, g0);
    const size_t k_bytes = 16 * source_bytes(j->src);
    for (uint32_t k0 = 0; k0 < j->kp; k0 += CHUNK_K) {
        const uint32_t kn = j->kp - k0 < CHUNK_K ? j->kp - k0 : CHUNK_K;
        const char *w = job_panel(j, p) + k0 * k_bytes;
        const char *fetch = k0 + kn < j->kp ? w + kn * k_bytes : next;
        struct tile_args t = {
            .w = w,
            .panel_stride = j->panel_bytes,
            .k_blocks = kn / 16,
            .resume = k0 > 0,
            .fetch_step = 64 * j->lines,
            .fetch_stride = j->panel_bytes,
        };
        if (j->src != FROM_F32) {
            for (uint32_t q = 0; q < P; q++)
                widen(j->src, j->s->w[q], w + q * j->panel_bytes, (size_t)kn * 16);
            t.w = j->s->w;
            t.panel_stride = sizeof j->s->w[0];
        }
        for (uint32_t g = g0; g < g1; g++) {
            uint32_t R = dk_group_rows(&j->groups, g), row = dk_group_start(&j->groups, g);
            t.x = job_rows(j, row) + (size_t)k0 * R;
            t.acc = j->s->acc + (size_t)(row - start) * P * 16;
            /* The first groups fetch one of the lines each. */
            t.fetch = fetch ? fetch + 64 * (g - g0) : NULL;
            t.fetch_lines = g - g0 < j->lines;
            t.fetch_blocks = fetch ? kn / 16 : 0;
            tiles_f32[P][R](&t);
        }
    }
    for (uint32_t g = g0; g < g1; g++) {
        uint32_t R = dk_group_rows(&j->groups, g), row = dk_group_start(&j->groups, g);
        store(j->mm, row, R, p, P, j->s->acc + (size_t)(row - start) * P * 16, FROM_F32);
    }
}

static void matmul_float(const struct dk_mm *mm, const struct dk_act *a, uint32_t panel0,
                         uint32_t panel1, void *scratch)
{
    struct job j = {
        .mm = mm,
        .a = a,
        .groups = dk_groups(a->rows, MAX_ROWS),
        .panel0 = panel0,
        .panel1 = panel1,
        .kp = dk_pad_k(mm->w->k, DK_K_PAD),
        .src = mm->w->type == DK_F32 ? FROM_F32 : mm->w->type == DK_F16 ? FROM_F16 : FROM_BF16,
        .s = scratch,
    };
    j.lines = source_bytes(j.src);
    j.panel_bytes = (size_t)j.kp * 16 * source_bytes(j.src);
    /* Blocks of groups, so that their activations stay in the second-level cache. */
    const uint32_t blocks = (j.groups.n + BLOCK_GROUPS - 1) / BLOCK_GROUPS;
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t g0 = j.groups.n * b / blocks, g1 = j.groups.n * (b + 1) / blocks;
        if (g1 - g0 <= FEW_GROUPS) {
            few_groups(&j, g0, g1);
            continue;
        }
        for (uint32_t p = panel0, P; p < panel1; p += P) {
            P = MAX_PANELS;
            while (P > panel1 - p)
                P--;
            many_groups(&j, g0, g1, p, P, p + P < panel1 ? job_panel(&j, p + P) : NULL);
        }
    }
}
