/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers of the CUDA kernels: plain C, no CUDA header needed.  Twin of kernels/kernels.h, whose
 * laws hold here too: a row's result depends on that row alone, in one fixed reduction order.
 *
 *  - Every launcher enqueues on a stream and returns a cudaError_t as int (0: enqueued).  Nothing is
 *    allocated, nothing waits.
 *  - Pointers are device memory of the caller's, 16-byte aligned, unless marked "host".  Structs
 *    that are passed by pointer to a launcher are host memory, read before it returns.
 *  - What changes from replay to replay of a captured graph (tokens, positions, slots, paths,
 *    requests) is read from device arrays.  Grids depend on the arguments only.
 *  - Strides (ld...) are in elements.  Outputs and inputs do not overlap unless said so.
 *  - "CPU's bits": equal to the portable C of kernels/cpu, bit for bit (a NaN's payload apart).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *dcu_stream;

/* ---- rows ----------------------------------------------------------------------------------------- */

/* One row of a batch.  blocks, tail: where its table and its tail begin in the batch's array of
 * words; position p lies in slot words[blocks + p / 16] * 16 + p % 16 below tail_start, else in
 * words[tail + p - tail_start].  tail_start is a multiple of 16; n_vis >= 1, 0 only for a row that
 * attention leaves out (its output is not written). */
struct dcu_row {
    uint32_t token, pos, slot;
    uint32_t n_vis, tail_start, blocks, tail;
    uint32_t flags; /* the caller's */
};

/* ---- weights -------------------------------------------------------------------------------------- */

/*
 *   DCU_LAYOUT_PANEL  the CPU's DK_LAYOUT_PANEL (kernels.h): F32, block types, and BF16 and F16 when
 *                     the CPU's bits are wanted: one chain of FMAs a result.
 *   DCU_LAYOUT_MMA    BF16 and F16 for the tensor cores: [panel of 16 outputs][k / 16][lane][8], lane's
 *                     eight elements being its A fragment of mma.m16n8k16; n and k padded with zeros.
 *   DCU_LAYOUT_ROWS   F32, BF16 and F16 as matrices for cuBLASLt (cuda_api.h): [n padded to 16][k padded
 *                     to 16], padded with zeros.
 */
enum dcu_layout { DCU_LAYOUT_PANEL, DCU_LAYOUT_MMA, DCU_LAYOUT_ROWS };
struct dcu_weight {
    enum dk_type type;
    enum dcu_layout layout;
    uint32_t n, k; /* outputs, inputs */
    const void *data;
};
/* Host functions, in libdedit-kernels.a.  False when type, layout and shape do not go together. */
bool dcu_weight_bytes(enum dk_type t, enum dcu_layout l, uint32_t n, uint32_t k, size_t *ret);
size_t dcu_panel_bytes(enum dk_type t, enum dcu_layout l, uint32_t k); /* of 16 outputs */
/* Packs panels [panel0, panel1) of a matrix with n rows.  src: its row 0 (row r at src + r *
 * src_row_bytes); dst: where panel0 goes.  All host memory. */
void dcu_weight_pack(void *dst, enum dk_type t, enum dcu_layout l, uint32_t n, uint32_t k,
                     const void *src, size_t src_row_bytes, uint32_t panel0, uint32_t panel1);

/* ---- activations ---------------------------------------------------------------------------------- */

/*
 * Prepared rows, one area a form, each sized for the capacity:
 *   F32   [row][k padded to 16 with zeros]                               F32, F16, BF16 in panels; F32 in rows
 *   INT   the CPU's 20-bit integers and scales (kernels/README.md), [8 rows][block] records of 896
 *         bytes: planes hi, mid, low as [row][word], words in the order 0 4 1 5 2 6 3 7; then d, sum,
 *         -sum of q of inputs 0-15 and of 16-31, for eight rows each        block types
 *   BF16  x = hi + lo, both BF16: [4 rows][k / 16][8 columns][4 words][2], column 2j hi, 2j + 1 lo of row
 *         j: B fragments of mma.m16n8k16                                  BF16 for the tensor cores
 *   F16   x * 2^e = hi + lo, both F16, e of the row: its largest magnitude lies in [2^14, 2^15); then
 *         2^-e as F32, for each row                                       F16 for the tensor cores
 *   ROW_BF16  x rounded to BF16, [row][k padded to 16 with zeros]           BF16 in rows
 *   ROW_F16   x * 2^e rounded to F16, the same, e at most 15 where the row's largest magnitude would come to
 *         [2^14, 2^15); then 2^-e as F32, for each row                    F16 in rows
 * Rows up to the next whole tile are zero; behind the last row of the forms in rows lies anything.
 */
enum {
    DCU_FORM_F32 = 1,
    DCU_FORM_INT = 2,
    DCU_FORM_BF16 = 4,
    DCU_FORM_F16 = 8,
    DCU_FORM_ROW_BF16 = 16,
    DCU_FORM_ROW_F16 = 32,
    DCU_FORM_END = 64
};
struct dcu_act {
    void *mem; /* 256-byte aligned, dcu_act_bytes() long */
    unsigned forms;
    uint32_t max_rows, max_k; /* capacity, the same as for dcu_act_bytes */
};
size_t dcu_act_bytes(unsigned forms, uint32_t max_rows, uint32_t max_k); /* host function */
unsigned dcu_weight_form(enum dk_type t, enum dcu_layout l);             /* host function */

/* ---- rows in, rows out ----------------------------------------------------------------------------- */

/* x[r] = row rows[r].token of w, exactly (CPU's bits of dk_weight_row).  Any type, any layout. */
int dcu_embed(dcu_stream s, const struct dcu_weight *w, const struct dcu_row *rows, uint32_t n_rows,
              float *x, size_t ldx);

/* cs[r] = head_dim / 2 cosines, then sines, of (float)rows[r].pos * inv_freq[i] (dk_sincosf). */
int dcu_angles(dcu_stream s, const float *inv_freq, uint32_t head_dim, const struct dcu_row *rows,
               uint32_t n_rows, float *cs);

/*
 * What stands before a product, in one pass.  v = the row's values:
 *   DCU_SRC_PLAIN     x
 *   DCU_SRC_RMSNORM   (x * r) * w, r = 1 / sqrt(ss / k + eps), ss in 16 lanes as kernels.h has it
 *   DCU_SRC_SILU_MUL  (x / (1 + exp(-x))) * u
 * index: row r is x's (and u's) row index[r]; NULL: r.  Written: v itself to y (may be x when index is
 * NULL), unless NULL; and the or-ed forms of act.  add: x[row] += add[row] first, written back to x
 * (the residual stream; index must be NULL).  CPU's bits.
 */
enum dcu_src { DCU_SRC_PLAIN, DCU_SRC_RMSNORM, DCU_SRC_SILU_MUL };
struct dcu_prep {
    enum dcu_src src;
    float *x; /* only written when add is set, or y is x */
    size_t ldx;
    const uint32_t *index;
    const float *add; /* NULL, or the other summand */
    size_t ldadd;
    const float *w; /* RMSNORM: k factors */
    float eps;
    const float *u; /* SILU_MUL */
    size_t ldu;
    uint32_t rows, k;
    float *y; /* or NULL */
    size_t ldy;
    unsigned forms; /* 0: none */
    struct dcu_act act;
};
int dcu_prepare(dcu_stream s, const struct dcu_prep *p);

/* x[r] += y[r]. */
int dcu_add(dcu_stream s, float *x, size_t ldx, const float *y, size_t ldy, uint32_t rows,
            uint32_t n);

/* dst[r] = src[index[r]]; rows with index UINT32_MAX are left out.  move: dst[to[r]] = src[from[r]], NULL:
 * r.  Live rows, taps. */
int dcu_gather(dcu_stream s, float *dst, size_t ldd, const float *src, size_t lds,
               const uint32_t *index, uint32_t rows, uint32_t n);
int dcu_move(dcu_stream s, float *dst, size_t ldd, const uint32_t *to, const float *src, size_t lds,
             const uint32_t *from, uint32_t rows, uint32_t n);

/* ---- products -------------------------------------------------------------------------------------- */

/*
 * y[r][o] (+)= sum over k of W[o][k] x[r][k], rows of act in the form dcu_weight_form(w).
 *   panels      CPU's bits: float types one FMA chain over k padded to 16; block types the exact integers
 *               and the FMAs of kernels/README.md, blocks ascending.
 *   MMA         tile t = inputs 16t .. 16t+15 goes to partial sum t % 16 by one mma for hi and lo, t
 *               ascending; the 16 sums of hi and lo are added pairwise, then partial sums are folded
 *               8-4-2-1; F16: times 2^-e.  Error: kernels/README.md.
 * DK_MM_ADD: y = y_old + acc.  All members of a call read the same act; neighbours of one type and
 * layout go into one launch.  n_mm <= 3.  Weights in rows: blas_matmul of cuda_api.h, not here.
 */
struct dcu_mm {
    struct dcu_weight w;
    float *y; /* row r at y + r * ldy */
    size_t ldy;
    unsigned flags;
};
int dcu_matmul(dcu_stream s, const struct dcu_mm *mm, unsigned n_mm, const struct dcu_act *act,
               uint32_t rows);

/* ---- attention ------------------------------------------------------------------------------------- */

/* Rotation alone: n_heads vectors of head_dim in each row of x, in place; cs as dcu_angles writes. */
int dcu_rope(dcu_stream s, float *x, size_t ldx, uint32_t rows, uint32_t n_heads, uint32_t head_dim,
             const float *cs, enum dk_rope_pairing pairing);

/* After the products of a layer: biases, norms of heads, rotation of q and k in place, and k, v
 * rounded to kv->type into slot rows[r].slot.  q NULL: K/V alone (injection).  CPU's bits. */
struct dcu_qkv {
    float *q, *k, *v;
    size_t ldq, ldk, ldv;
    const float *q_bias, *k_bias, *v_bias; /* NULL without */
    const float *q_norm, *k_norm;          /* NULL without; head_dim factors */
    float eps;
    uint32_t n_heads;
    enum dk_rope_pairing pairing;
    const float *cs;
    const struct dcu_row *rows;
    uint32_t n_rows;
    struct dk_kv kv; /* k, v device memory; layout of kernels.h */
};
int dcu_qkv_finish(dcu_stream s, const struct dcu_qkv *p);
int dcu_kv_store(dcu_stream s, const struct dk_kv *kv, const struct dcu_row *rows, uint32_t n_rows,
                 const float *k, size_t ldk, const float *v, size_t ldv);

/*
 * kernels.h' attention, CPU's bits.  Chunks of 256 positions are computed by different blocks and
 * merged in order by a second launch.  max_vis: bound of all n_vis; part: dcu_attention_part_floats()
 * floats.  Rows next to each other that look through the same blocks share loads.
 */
struct dcu_attn {
    struct dk_kv kv;
    const struct dcu_row *rows;
    uint32_t n_rows, max_vis;
    const uint32_t *words;
    const float *q;
    size_t ldq;
    float *out;
    size_t ldo;
    uint32_t n_heads;
    float scale;
    float *part;
};
size_t dcu_attention_part_floats(uint32_t n_rows, uint32_t n_heads, uint32_t head_dim,
                                 uint32_t max_vis); /* host function */
int dcu_attention(dcu_stream s, const struct dcu_attn *p);

/* Slots to slots in all layers: pair i of n from[i] -> to[i], as if in order.  layers: device array, all of
 * them with n_kv_heads and type.
 * n: device memory (a walk writes it); at most max_n. */
int dcu_kv_copy(dcu_stream s, const struct dk_kv *layers, uint32_t n_layers, uint32_t n_kv_heads,
                enum dk_kv_type type, const uint32_t *from, const uint32_t *to, const uint32_t *n,
                uint32_t max_n);

/* ---- logits ---------------------------------------------------------------------------------------- */

/* dk_ops.argmax, logsumexp and gumbel, one row of x each.  CPU's bits.  parts: rows *
 * DCU_VOCAB_PARTS entries. */
#define DCU_VOCAB_PARTS 64u
struct dcu_best {    /* of a row, or a part of it */
    float value;     /* the largest */
    uint32_t id;     /* lowest id that has it; UINT32_MAX while there is none above -inf */
    uint32_t bad_id; /* lowest id of a NaN or +inf; UINT32_MAX without */
    uint32_t pad;
};
int dcu_argmax(dcu_stream s, const float *x, size_t ldx, uint32_t rows, uint32_t n,
               struct dcu_best *parts, struct dcu_best *ret);
int dcu_logsumexp(dcu_stream s, const float *x, size_t ldx, uint32_t rows, uint32_t n,
                  const struct dcu_best *max, float *ret);
/* One row: key and counter by value (tests, tables). */
int dcu_gumbel(dcu_stream s, float *out, const uint32_t key[2], const uint32_t ctr[3], uint32_t v0,
               uint32_t n);

/* ---- sampling -------------------------------------------------------------------------------------- */

/* An id that bias, mask or penalties touch (engine/sampler_internal.h). */
struct dcu_entry {
    uint32_t id, count;
    float bias;
    uint32_t flags; /* 1: in the prompt, 2: ends the output */
};
/* What the rows of one request are sampled with.  Written by the host for each round. */
struct dcu_request {
    uint32_t row0,
        n_rows;      /* its rows of logits; row0 follows the anchor, the others are its tree; n_rows
                       * is read by the walk alone, 0: none */
    uint32_t key[2]; /* noise_key() of the seed */
    uint64_t pos;    /* absolute position of the token that row0 chooses */
    float inv_t;     /* (float)(1.0 / temperature); 0: greedy */
    float top_p;     /* 1: off */
    float z_least;   /* dk_logf(min_p); -inf: off */
    uint32_t top_k;  /* 0: off */
    uint32_t process; /* entries, penalties or a mask are to be applied */
    uint32_t n_output, min_tokens;
    uint32_t entries, n_entries; /* in the array of entries */
    uint32_t stops, n_stops;     /* ids that end the output, in the array of words */
    int32_t n_logprobs;          /* -1: none */
    double repetition, frequency, presence;
};
/* A row's node in its request's tree: the token that was fed there and its parent, a row of the same
 * request counted from row0, below itself; row0 itself is the anchor. */
struct dcu_node {
    uint32_t request;       /* in the array of requests; UINT32_MAX: the row is not sampled */
    uint32_t parent, depth; /* depth 0: row0 */
    uint32_t token;
};
#define DCU_MAX_DEPTH 64u
struct dcu_choice {
    uint32_t token;
    uint32_t bad;    /* 0, or which rule the logits broke: 1 NaN, 2 +inf, 3 nothing above -inf */
    uint32_t bad_id; /* of the first such logit */
    float logprob;   /* of the token, raw logits; only when asked for */
};
struct dcu_logprob {
    uint32_t token;
    float logprob;
};
/*
 * engine/sampler.h's choice for every row, as if the path to that row had been committed: the same
 * token as sampler_choose, the same bits of logprobs.
 * Flags say what any request wants, so that the other kernels are left out (a captured graph per set).
 */
enum { DCU_SAMPLE_PROCESS = 1, DCU_SAMPLE_CUT = 2, DCU_SAMPLE_LOGPROBS = 4 };
struct dcu_sample {
    unsigned flags;
    uint32_t rows, vocab;
    uint32_t first; /* of all rows that are sampled, the number of the first one of logits */
    const float *logits;
    size_t ldl;
    const struct dcu_request *requests; /* row0: of all rows */
    const struct dcu_node *nodes;       /* [first + rows] */
    const struct dcu_entry *entries;
    float *work;                  /* [rows][ldl]; only with DCU_SAMPLE_PROCESS */
    void *scratch;                /* dcu_sample_scratch_bytes() */
    struct dcu_choice *choices;   /* [first + rows] */
    struct dcu_logprob *logprobs; /* [first + rows][20], best first; with DCU_SAMPLE_LOGPROBS */
    uint32_t *n_logprobs;         /* [first + rows] */
};
size_t dcu_sample_scratch_bytes(uint32_t rows); /* host function */
int dcu_sample(dcu_stream s, const struct dcu_sample *p);

/*
 * The walk of engine/round.c along the choices, one request each: out[i] gets the rows of the path
 * (counted from row0; row 0 first) and how many choices there are; the walk ends at a choice without
 * child, at a stop id, or at bad logits.  Then the pairs of slots that bring the K/V of the accepted
 * nodes to where plain decoding would have put them: pair j of a request moves the slot of its j-th
 * accepted node to slot[row0 + j], slots of `rows`; all requests' pairs one after another, *n_pairs of
 * them, for dcu_kv_copy.
 */
struct dcu_path {
    uint32_t n_choices; /* choices: choices[row0 + row[i]], i < n_choices */
    uint32_t row[DCU_MAX_DEPTH];
};
struct dcu_walk {
    uint32_t n_requests;
    const struct dcu_request *requests;
    const struct dcu_node *nodes;
    const struct dcu_choice *choices;
    const uint32_t *words;  /* stop ids */
    const uint32_t *slots;  /* [rows] where each row's K/V were stored */
    struct dcu_path *paths; /* [n_requests] */
    uint32_t *from, *to;    /* [rows] */
    uint32_t *n_pairs;
};
int dcu_walk(dcu_stream s, const struct dcu_walk *p);

/*
 * A drafter's choice of each row (engine/drafter_pick.c): y = logits, or logits * inv_t + gumbel with
 * the noise of the target's ids; argmax, confidence exp(max - lse), and the n_top best in order with
 * their log-probabilities.  CPU's bits.
 */
struct dcu_pick {
    uint32_t key[2];
    uint64_t pos;
    uint32_t stream; /* enum noise_stream */
    float inv_t;     /* 0: as they are */
    uint32_t n_top;  /* 0: none; at most DCU_MAX_TOP */
    uint32_t pad;
};
#define DCU_MAX_TOP 128u
struct dcu_picked {
    uint32_t token; /* of the target's vocabulary */
    float confidence;
    uint32_t n;   /* candidates found */
    uint32_t bad; /* as dk_ops.argmax says */
};
struct dcu_draft {
    uint32_t rows, vocab; /* of the drafter */
    const float *logits;
    size_t ldl;
    const struct dcu_pick *picks; /* [rows] */
    const uint32_t *target_ids;   /* [vocab], NULL: the same ids */
    float *work;                  /* [rows][ldl] */
    void *scratch;                /* dcu_sample_scratch_bytes() */
    struct dcu_picked *picked;    /* [rows] */
    struct dcu_logprob *top;      /* [rows][DCU_MAX_TOP], NULL when no row wants any */
};
int dcu_draft(dcu_stream s, const struct dcu_draft *p);

/*
 * The rows of a drafter's next pass, out of those of the last one, in place: row r is fed the token of
 * picked[feeds[r].pick] and sees feeds[r].n_vis positions of its path.
 */
struct dcu_feed {
    uint32_t pick;              /* UINT32_MAX: it keeps its token */
    uint32_t n_vis, window_vis; /* the latter in layers with a window */
    uint32_t pad;
};
struct dcu_next {
    uint32_t n_rows, n_live;
    const struct dcu_feed *feeds; /* [n_rows] */
    const struct dcu_picked *picked;
    struct dcu_row *rows, *live; /* [n_rows]; [n_live], row live_index[i] each */
    struct dcu_row *window[2];   /* the same for layers with a window; NULL without */
    const uint32_t *live_index;
};
int dcu_next(dcu_stream s, const struct dcu_next *p);

/*
 * What rounds end with, out of the picks of all their passes: the tokens of the first pass that repeats those of
 * an earlier one, else of the last.
 */
struct dcu_span {
    uint32_t first, n;            /* picks of one round */
    uint32_t first_node, n_nodes; /* its tree, of so many nodes at most; 0: a chain */
};
struct dcu_settle {
    uint32_t n_spans, n_passes;
    const struct dcu_span *spans;     /* [n_spans] */
    const struct dcu_picked *history; /* [n_passes][ldh] */
    size_t ldh;
    uint32_t *tokens; /* by pick */
    uint32_t *ends;   /* [n_spans] that pass */
};
int dcu_settle(dcu_stream s, const struct dcu_settle *p);
/* ... and into the rows and nodes of a target's batch. */
struct dcu_feed_to {
    uint32_t pick, row, node;
};
struct dcu_verify {
    uint32_t n;
    const struct dcu_feed_to *feeds; /* [n] */
    const uint32_t *tokens;          /* by pick */
    struct dcu_row *rows;
    struct dcu_node *nodes;
};
int dcu_verify(dcu_stream s, const struct dcu_verify *p);

/*
 * The trees of rounds (engine/ddtree.h), out of the candidates of the pass that each ends with.  Node i of a tree
 * is its row i + 1; nodes that do not exist, for want of candidates, are children of the anchor with the token
 * UINT32_MAX.
 */
#define DCU_MAX_NODES 127u
struct dcu_grown {
    uint32_t token;
    uint32_t parent, depth; /* a row, 0 being the anchor's; 1 for its children */
};
struct dcu_grow {
    uint32_t n_spans;
    const struct dcu_span *spans;     /* [n_spans]; chains have none */
    const uint32_t *ends;             /* of settle */
    const struct dcu_picked *history; /* [n_passes][ldh] */
    const struct dcu_logprob *top;    /* [n_passes][ldh][DCU_MAX_TOP] */
    size_t ldh;
    struct dcu_grown *nodes; /* of all trees */
};
int dcu_grow(dcu_stream s, const struct dcu_grow *p);
/*
 * ... and into the rows and nodes of a target's batch: tokens, positions and paths.  The rows of a tree stand next to
 * each other among all, among those that the last layer goes on with, and among those with logits; they have
 * their slots, and each a tail of its own that begins with the slots of tail_start .. pos - 1 and has room for
 * the deepest node.
 */
struct dcu_planted {
    uint32_t first_node;
    uint32_t n_rows;          /* the anchor's included; at most 1 + DCU_MAX_NODES */
    uint32_t row, live, node; /* of the anchor */
    uint32_t pos;             /* of the anchor */
};
struct dcu_plant {
    uint32_t n_trees;
    const struct dcu_planted *trees; /* [n_trees] */
    const struct dcu_grown *grown;
    struct dcu_row *rows, *live;
    uint32_t *words;
    struct dcu_node *nodes;
};
int dcu_plant(dcu_stream s, const struct dcu_plant *p);

/* Launchers and their arguments' types, for tables of them: X(name, (types)). */
#define DCU_LAUNCHERS(X)                                                                           \
    X(embed,                                                                                       \
      (dcu_stream, const struct dcu_weight *, const struct dcu_row *, uint32_t, float *, size_t))  \
    X(angles, (dcu_stream, const float *, uint32_t, const struct dcu_row *, uint32_t, float *))    \
    X(prepare, (dcu_stream, const struct dcu_prep *))                                              \
    X(add, (dcu_stream, float *, size_t, const float *, size_t, uint32_t, uint32_t))               \
    X(gather,                                                                                      \
      (dcu_stream, float *, size_t, const float *, size_t, const uint32_t *, uint32_t, uint32_t))  \
    X(move, (dcu_stream, float *, size_t, const uint32_t *, const float *, size_t,                 \
             const uint32_t *, uint32_t, uint32_t))                                                \
    X(matmul, (dcu_stream, const struct dcu_mm *, unsigned, const struct dcu_act *, uint32_t))     \
    X(rope, (dcu_stream, float *, size_t, uint32_t, uint32_t, uint32_t, const float *,             \
             enum dk_rope_pairing))                                                                \
    X(qkv_finish, (dcu_stream, const struct dcu_qkv *))                                            \
    X(kv_store, (dcu_stream, const struct dk_kv *, const struct dcu_row *, uint32_t,               \
                 const float *, size_t, const float *, size_t))                                    \
    X(attention, (dcu_stream, const struct dcu_attn *))                                            \
    X(kv_copy, (dcu_stream, const struct dk_kv *, uint32_t, uint32_t, enum dk_kv_type,             \
                const uint32_t *, const uint32_t *, const uint32_t *, uint32_t))                   \
    X(argmax, (dcu_stream, const float *, size_t, uint32_t, uint32_t, struct dcu_best *,           \
               struct dcu_best *))                                                                 \
    X(logsumexp,                                                                                   \
      (dcu_stream, const float *, size_t, uint32_t, uint32_t, const struct dcu_best *, float *))   \
    X(gumbel, (dcu_stream, float *, const uint32_t[2], const uint32_t[3], uint32_t, uint32_t))     \
    X(sample, (dcu_stream, const struct dcu_sample *))                                             \
    X(walk, (dcu_stream, const struct dcu_walk *))                                                 \
    X(draft, (dcu_stream, const struct dcu_draft *))                                               \
    X(next, (dcu_stream, const struct dcu_next *))                                                 \
    X(settle, (dcu_stream, const struct dcu_settle *))                                             \
    X(verify, (dcu_stream, const struct dcu_verify *))                                             \
    X(grow, (dcu_stream, const struct dcu_grow *))                                                 \
    X(plant, (dcu_stream, const struct dcu_plant *))

#ifdef __cplusplus
}
#endif
