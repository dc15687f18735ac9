/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels' C ABI: data layouts, one contract per op, one table of functions per instruction-set
 * tier, and the thread pool that runs them.
 *
 * Laws of every op
 *  - Row invariance: an output row depends on that row's inputs alone, in one fixed reduction order
 *    that knows nothing of the number of rows, tiles, threads or chunks.
 *  - Same bits on every tier: the formula below is evaluated with IEEE binary32 round-to-nearest
 *    operations in exactly the stated order; "fma" is one rounding, everything else rounds once per
 *    written operation.  The one exception is DK_LAYOUT_AMX_BF16, a class of its own.
 *  - Ops work on ranges (rows, panels, heads); splitting a range over threads is the caller's job
 *    (dk_split).  No op allocates, blocks, or touches global state.
 *  - A NaN's sign and payload are not part of "the same bits": where one tier gives a NaN, all do.
 *  - Floating-point environment: dk_thread_init() sets round-to-nearest, denormals kept.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* ---- weight types ---------------------------------------------------------------------------- */

enum dk_type {
    DK_F32,
    DK_F16,
    DK_BF16,
    DK_Q8_0,
    DK_Q4_0,
    DK_Q4_1,
    DK_Q5_0,
    DK_Q5_1,
    DK_Q4_K,
    DK_Q5_K,
    DK_Q6_K,
    DK_TYPE_COUNT
};

struct dk_type_info {
    const char *name;     /* "F32", "Q4_K", ... as GGUF spells it */
    uint32_t block_elems; /* elements of one block along the input dimension */
    uint32_t block_bytes; /* bytes of one block in the file */
    bool quantised;       /* block-quantised: integer route */
};
const struct dk_type_info *dk_type_info(enum dk_type t);

/* Exact dequantisation of n_blocks file blocks of one row (the specification of the formats).
 * out: n_blocks * block_elems floats; equals the GGUF reference bit for bit (-0 equal to 0). */
void dk_dequant(enum dk_type t, const void *src, size_t n_blocks, float *out);
uint16_t dk_f32_to_f16(float x);  /* round to nearest even, overflow to inf */
uint16_t dk_f32_to_bf16(float x); /* round to nearest even, NaN stays NaN */
float dk_f16_to_f32(uint16_t h);
float dk_bf16_to_f32(uint16_t h);

/* ---- tiers ------------------------------------------------------------------------------------- */

enum dk_tier { DK_TIER_C, DK_TIER_AVX2, DK_TIER_AVX512, DK_TIER_AMX, DK_TIER_COUNT };
const char *dk_tier_name(enum dk_tier t); /* "c", "avx2", "avx512", "amx" */
bool dk_tier_parse(const char *name, enum dk_tier *ret);
/* Best tier that this CPU and kernel can run (AMX asks the kernel for tile data once). */
enum dk_tier dk_tier_best(void);
/* The tier of this name, or the best (NULL, "").  One that the machine lacks, or an unknown name, is an error; where the
 * name stands (DEDIT_CPU_TIER, a key) is the caller's to say. */
int dk_tier_choose(const char *forced, enum dk_tier *ret, struct error *err);

/* ---- threads ----------------------------------------------------------------------------------- */

/* One member of a parallel region.  All members call the same ops with the same arguments. */
struct dk_par {
    unsigned tid, n; /* this thread, number of threads */
    struct dk_pool *pool;
};
struct dk_pool;
/* n_threads 1..64 including the caller of dk_pool_run.  Workers spin briefly, then sleep. */
int dk_pool_new(unsigned n_threads, struct dk_pool **ret, struct error *err);
struct dk_pool *dk_pool_free(struct dk_pool *p); /* NULL */
unsigned dk_pool_size(const struct dk_pool *p);
/* Runs fn(arg, par) once on every thread, the caller being tid 0; returns when all are done. */
void dk_pool_run(struct dk_pool *p, void (*fn)(void *arg, const struct dk_par *par), void *arg);
/* Waits until every member of the region is here.  Orders memory among them. */
void dk_barrier(const struct dk_par *par);
/* The same; while it waits, the thread fetches the `bytes` that it is going to read from `next` on. */
void dk_barrier_fetch(const struct dk_par *par, const void *next, size_t bytes);
void dk_thread_init(void); /* MXCSR; the pool does it for its workers, callers for themselves */
/* Part [*a, *b) of 0..total for this member, in units of `grain`. */
static inline void dk_split(const struct dk_par *par, size_t total, size_t grain, size_t *a,
                            size_t *b)
{
    size_t units = (total + grain - 1) / grain;
    size_t lo = units * par->tid / par->n * grain, hi = units * (par->tid + 1) / par->n * grain;
    *a = lo < total ? lo : total;
    *b = hi < total ? hi : total;
}

/* ---- weights ------------------------------------------------------------------------------------ */

/*
 * A packed weight matrix W[n][k] (n outputs, k inputs), cut into panels of 16 outputs (the last one
 * padded with zero rows).  k is a multiple of 16 for float types (padded with zeros by the packer
 * when it is not) and of block_elems for block types.
 *   DK_LAYOUT_PANEL     F32/F16/BF16: [panel][k][16].  Block types: [panel][k/32] records, see
 *                       kernels/README.md; bytes within 1.10 x of the file's.
 *   DK_LAYOUT_AMX_BF16  BF16 only: [panel][k/32][16 pairs of k][16 outputs][2], AMX B tiles of 1 KiB.
 */
enum dk_layout { DK_LAYOUT_PANEL, DK_LAYOUT_AMX_BF16 };
struct dk_weight {
    enum dk_type type;
    enum dk_layout layout;
    uint32_t n, k; /* logical sizes */
    uint32_t n_panels;
    const void *data; /* 64-byte aligned, dk_weight_bytes() long; not owned */
    size_t bytes;
};
/* False when the shape is not allowed for the type or a size overflows. */
bool dk_weight_bytes(enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k, size_t *ret);
/* Packs panels [panel0, panel1) from file rows (row-major, row r at src + r * src_row_bytes) into
 * dst (the whole matrix's memory).  Different ranges may run in parallel. */
void dk_weight_pack(void *dst, enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k,
                    const void *src, size_t src_row_bytes, uint32_t panel0, uint32_t panel1);
/* Row r as exact floats (embedding look-up): k floats, the same bits as dk_dequant of the file. */
void dk_weight_row(const struct dk_weight *w, uint32_t row, float *out);

/* ---- activations and products ------------------------------------------------------------------- */

/* Which prepared forms a set of weights wants; dk_weight_form() of each, or-ed. */
enum { DK_FORM_F32 = 1, DK_FORM_INT = 2, DK_FORM_BF16 = 4 };
unsigned dk_weight_form(const struct dk_weight *w);

/*
 * Rows of activations in the forms that products read.  Contents are private to a tier.
 *   F32   the values.
 *   INT   per 32 inputs: q = rne(x * id) in 20 bits (|q| <= 522231), scale d, and the block's sum; a
 *         block with a non-finite value gets d = NaN, so that it shows.
 *   BF16  rne(x) (AMX BF16 class).
 */
struct dk_act {
    uint32_t rows, k;         /* current content */
    uint32_t max_rows, max_k; /* capacity */
    void *mem;                /* 64-byte aligned, dk_act_bytes() long; not owned */
    size_t bytes;
};
size_t dk_act_bytes(uint32_t max_rows, uint32_t max_k);
void dk_act_init(struct dk_act *a, uint32_t max_rows, uint32_t max_k, void *mem);

/*
 * y[r][o] = sum over k of W[o][k] * x[r][k].
 *   float weights:  acc = 0; for k = 0..K-1: acc = fma(w, x, acc), w widened exactly.
 *   block weights:  isum exact integer of the (sub-)block;
 *                   acc = fma(dw * dx, (float)isum, acc); with a minimum acc = fma(mw, sumx, acc)
 *                   (order, scales and signs per type: kernels/README.md), blocks ascending.
 *   AMX_BF16:       per 32 inputs: two chains (even and odd k) of FMAs with denormals flushed, as
 *                   TDPBF16PS does; portable twin in cpu/matmul/amx_ref.c.
 * DK_MM_ADD: y = y_old + acc (one addition), else y = acc.
 */
enum { DK_MM_ADD = 1 };
struct dk_mm {
    const struct dk_weight *w;
    float *y;   /* row r at y + r * ldy; n floats each (padding outputs are never written) */
    size_t ldy; /* floats */
    unsigned flags;
    const void *next; /* what the thread reads from memory afterwards, NULL: unknown; a hint */
};
#define DK_FETCHED       7168u /* of next have been asked for when a product ends, where it is one row */
#define DK_SCRATCH_BYTES (1u << 20) /* per thread, for products and attention; 64-byte aligned */

/* ---- attention ---------------------------------------------------------------------------------- */

#define DK_KV_BLOCK     16u  /* positions of a KV block */
#define DK_MAX_HEAD_DIM 512u /* attention's scratch is cut for it; loaders refuse larger heads */
enum dk_kv_type { DK_KV_F32, DK_KV_BF16, DK_KV_F16, DK_KV_TYPE_COUNT };
const char *dk_kv_type_name(enum dk_kv_type t); /* "f32", "bf16", "f16" */
uint32_t dk_kv_elem_bytes(enum dk_kv_type t);

/*
 * K and V of one layer.  Slot s = block * 16 + i.  In block b:
 *   K: [kv head][head_dim][16 positions]     V: [kv head][16 positions][head_dim]
 * or, where dk_kv_paired(), as TDPBF16PS takes them, pairs of dimensions and pairs of positions:
 *   K: [kv head][head_dim / 2][16 positions][2]
 *   V: [kv head][head_dim / 16][8][16 dimensions][2 positions]
 * each block n_kv_heads * head_dim * 16 elements; k and v 64-byte aligned.
 */
struct dk_kv {
    enum dk_kv_type type;
    uint32_t n_kv_heads, head_dim;
    void *k, *v;
    bool amx; /* attention of the AMX BF16 class, see below */
};
static inline bool dk_kv_paired(const struct dk_kv *kv)
{
    return kv->amx && kv->type == DK_KV_BF16 && kv->head_dim % 32 == 0;
}
/* Where dimension d of a block's position `at` lies, in elements, from the block and KV head on. */
static inline size_t dk_kv_k_at(const struct dk_kv *kv, size_t at, size_t d)
{
    return dk_kv_paired(kv) ? d / 2 * 2 * DK_KV_BLOCK + at * 2 + d % 2 : d * DK_KV_BLOCK + at;
}
static inline size_t dk_kv_v_at(const struct dk_kv *kv, size_t at, size_t d)
{
    return dk_kv_paired(kv) ? d / 16 * 16 * DK_KV_BLOCK + at / 2 * 32 + d % 16 * 2 + at % 2
                            : at * kv->head_dim + d;
}
/*
 * The path of one query row: the slots of the positions that it sees, in order, itself last.
 * Position p of the path lies in slot
 *   p <  tail_start:  blocks[p / 16] * 16 + p % 16
 *   p >= tail_start:  tail[p - tail_start]
 * tail_start is a multiple of 16.  A plain row has tail_start >= n_vis and tail NULL.
 */
struct dk_attn_row {
    uint32_t n_vis; /* length of the path, >= 1 */
    uint32_t tail_start;
    const uint32_t *blocks;
    const uint32_t *tail;
};

/* ---- the table ---------------------------------------------------------------------------------- */

enum dk_rope_pairing { DK_ROPE_HALVES, DK_ROPE_INTERLEAVED }; /* (i, i + hd/2) or (2i, 2i + 1) */

struct dk_ops {
    enum dk_tier tier;

    /* Fills rows [row0, row1) of a for the or-ed forms; x row r at x + r * ldx.  The caller has set
     * a->rows and a->k (k = inputs of the weights). */
    void (*act_prepare)(struct dk_act *a, unsigned forms, const float *x, size_t ldx, uint32_t row0,
                        uint32_t row1);
    /* One product, panels [panel0, panel1), all rows of a.  scratch: DK_SCRATCH_BYTES. */
    void (*matmul)(const struct dk_mm *mm, const struct dk_act *a, uint32_t panel0, uint32_t panel1,
                   void *scratch);

    /* y = (x * r) * w,  r = 1 / sqrt(ss / n + eps); ss: 16 lanes, lane l takes i = l, l+16, ... by
     * fma, folded 8-4-2-1.  y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    /* x += y, element by element. */
    void (*add)(float *x, const float *y, uint32_t n);
    /* out = (g / (1 + exp(-g))) * u. out may be g or u. */
    void (*silu_mul)(float *out, const float *g, const float *u, uint32_t n);
    /* Rotates n_heads vectors of head_dim in place; cs: head_dim/2 cosines then head_dim/2 sines.
     * (a, b) -> (a cos - b sin, a sin + b cos), each as fma(-b, sin, a * cos), fma(b, cos, a * sin)
     * with the product rounded first. */
    void (*rope)(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs,
                 enum dk_rope_pairing pairing);

    /* Stores KV heads [head0, head1) of one position: k_row, v_row: [n_kv_heads][head_dim], rounded to
     * the KV type (rne). */
    void (*kv_store)(const struct dk_kv *kv, uint32_t slot, uint32_t head0, uint32_t head1,
                     const float *k_row, const float *v_row);
    /*
     * Grouped-query attention of rows [0, n_rows) for query heads [head0, head1).  q, out: row r at
     * + r * ld, [n_heads][head_dim]; out and q do not overlap.  Adjacent rows with the same blocks
     * pointer share the loads of K and V.  Per row and head, positions p ascending in chunks of
     * DK_ATTN_CHUNK aligned to position 0:
     *   s_p = (sum over d ascending of fma(q_d, K_pd)) * scale
     *   m = max of the chunk; e_p = exp(s_p - m); l = 16 lanes (p % 16) of sums, folded 8-4-2-1;
     *   a_d = sum over p ascending of fma(e_p, V_pd)
     * and chunks merged in order: (m, l, a) with M = max, each side scaled by exp(its m - M),
     * a = fma(a_new, c_new, a_old * c_old), l alike.  out = a / l (division).
     *
     * kv->amx: q, K, V are rounded to BF16, e_p where it multiplies V, and the two sums are those of
     * TDPBF16PS, over 32 dimensions and over 16 positions (a block's) at a time, padded with
     * zeros; 0.0 is added to a_d.  K and V of F32 and those of BF16 give the same, therefore.
     * Portable twin in cpu/attention/amx_ref.c.  scale: positive.
     */
    void (*attention)(const struct dk_kv *kv, const struct dk_attn_row *rows, uint32_t n_rows,
                      const float *q, size_t ldq, float *out, size_t ldo, uint32_t n_heads,
                      uint32_t head0, uint32_t head1, float scale, void *scratch);
    /*
     * The same in two steps, so that threads can share one long row by chunks: chunks
     * [chunk0, chunk1) leave their (m, l, a), as far as a row reaches them, in part (chunk c, row r,
     * head h at + ((c * n_rows + r) * n_heads + h) * DK_ATTN_PART(head_dim)); the merge over all
     * chunks of a row then gives what attention gives.  head_dim and rows as before.
     */
    void (*attention_part)(const struct dk_kv *kv, const struct dk_attn_row *rows, uint32_t n_rows,
                           const float *q, size_t ldq, float *part, uint32_t n_heads,
                           uint32_t head0, uint32_t head1, uint32_t chunk0, uint32_t chunk1,
                           float scale, void *scratch);
    void (*attention_merge)(const struct dk_attn_row *rows, uint32_t n_rows, const float *part,
                            float *out, size_t ldo, uint32_t n_heads, uint32_t head_dim,
                            uint32_t head0, uint32_t head1);

    /*
     * One row without a tail, again what attention gives (not where kv->amx), in two steps that
     * threads can share however few KV heads there are.  First the scores s_p of all query heads of KV head kv_head with the
     * positions of blocks [block0, block1) of the path, head h at s + h * lds; the last block is
     * scored as a whole.  Then, with all scores there, dimensions [dim0, dim1) of out, dim0 a multiple
     * of 16 and dim1 one or head_dim.  q, out: [n_heads][head_dim]; lds: a multiple of 16, not less
     * than n_vis.
     */
    void (*attention_scores)(const struct dk_kv *kv, const struct dk_attn_row *row, const float *q,
                             float *s, size_t lds, uint32_t n_heads, uint32_t kv_head,
                             uint32_t block0, uint32_t block1, float scale, void *scratch);
    void (*attention_values)(const struct dk_kv *kv, const struct dk_attn_row *row, const float *s,
                             size_t lds, float *out, uint32_t n_heads, uint32_t kv_head,
                             uint32_t dim0, uint32_t dim1, void *scratch);

    /* Lowest id of the largest value, -inf included.  *ret_bad: true when any value is NaN or
     * +inf, or every value is -inf. */
    uint32_t (*argmax)(const float *x, uint32_t n, float *ret_max, bool *ret_bad);
    /* log(sum exp(x_i - max)) + max; 16 lanes by i % 16, folded 8-4-2-1; max = the true maximum. */
    float (*logsumexp)(const float *x, uint32_t n, float max);
    /* Gumbel noise g_v, v = v0 .. v0+n-1, from Philox4x32-10: word v % 4 of the block with
     * counter {v / 4, ctr[0], ctr[1], ctr[2]} and the given key:
     *   w = min(fma(word >> 16, 2^-16, ((word & 0xffff) + 0.5) * 2^-32), 1 - 2^-24)
     *   g = -log(-log(1 - w)), log as dk_logf; the inner one takes -w itself where 1 - w >= 2/3.
     * Large g come from small w, which keep all 32 bits: with u = 1 - w taken to 23 bits instead,
     * a token of probability below 2^-24 could hardly be drawn, and the noise of large
     * vocabularies would tie.  dk_gumbelf in kernels/math.h is the definition. */
    void (*gumbel)(float *out, const uint32_t key[2], const uint32_t ctr[3], uint32_t v0,
                   uint32_t n);
};
#define DK_ATTN_CHUNK 256u
/* Floats of one chunk's result: m, l, padding to 16; a, padded to a multiple of 16. */
#define DK_ATTN_PART(head_dim) (16u + ((head_dim) + 15u) / 16u * 16u)

/* NULL when this build or this CPU cannot run the tier. */
const struct dk_ops *dk_ops(enum dk_tier t);

/* One Philox4x32-10 block (Salmon et al., SC 2011). */
void dk_philox4x32_10(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);
/* The project's own functions; the same bits on every tier.  Error bounds in kernels/README.md. */
float dk_expf(float x);
float dk_logf(float x);
/* cos and sin of a (|a| up to 2^24), rounded from double arithmetic of our own. */
void dk_sincosf(float a, float *ret_sin, float *ret_cos);
