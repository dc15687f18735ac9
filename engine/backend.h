/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device must do for the engine: hold a model's weights and its paged KV, and run one batch
 * of rows through the target.  The CPU backend is the specification.  All calls of one model come
 * from the thread that owns it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/model_file.h"
#include "engine/sampler.h"
#include "kernels/kernels.h"

struct backend_model;
struct dcu_api;

enum backend_dtype {
    BACKEND_DTYPE_FILE,
    BACKEND_DTYPE_BF16,
    BACKEND_DTYPE_F32,
    BACKEND_DTYPE_Q8_0, /* float matrices of whole blocks; others stay as they are */
    /* A model: as filed.  A drafter: BF16 where its model's products are of the AMX BF16 class, which reads
     * it in less time than it multiplies integers; else as filed. */
    BACKEND_DTYPE_AUTO
};

struct backend_options {
    unsigned n_threads; /* 0: CPUs of the affinity mask */
    enum dk_tier tier;
    bool exact;               /* true: BF16 weights never take the AMX BF16 class */
    bool fast;                /* CUDA: products with float weights by cuBLASLt; not with exact */
    enum backend_dtype dtype; /* weights converted at load (rounded: another model), or as filed */
    enum dk_kv_type kv_type;
    uint32_t n_kv_blocks; /* of DK_KV_BLOCK positions */
    uint32_t max_rows;    /* rows of one forward call */
    uint32_t max_context; /* positions; RoPE tables reach so far */
    uint32_t tap_rows;    /* rows of a drafter's taps(); 0: none */
    /* Batches that may be on their way at once, see backend.finish; then a drafter has a stream of its own, and
     * works while its target does.  0: none. */
    uint32_t lanes;
    /* CUDA: the device, and what opened it (engine/device.h). */
    int device;
    const struct dcu_api *cuda;
};

/* One row of a batch.  Rows of one sequence stand next to each other, in path order. */
struct fwd_row {
    uint32_t token;
    uint32_t pos;            /* RoPE position (depth along its own path) */
    uint32_t slot;           /* where its K/V go */
    struct dk_attn_row path; /* what it sees, itself included */
    float *logits;           /* vocab floats, or NULL */
    float *taps; /* n_taps * hidden floats, or NULL; the host's or taps()'s, as all of a batch */
};
/* What sampler_choose says at a row. */
struct fwd_choice {
    enum sampler_fault fault; /* SAMPLER_GOOD, or the rest says nothing */
    uint32_t fault_id;
    uint32_t token, n_lp;
    struct token_logprob lp[1 + SAMPLING_MAX_LOGPROBS];
};
/* The rows of a draw where the tokens of its path are chosen, as engine/round.c finds them: from the first
 * row on to the row that fed what was chosen, until there is none, the token ends the output, or the choice
 * has a fault (and is not of the path). */
#define FWD_MAX_PATH 64u
struct fwd_path {
    uint32_t n, row[FWD_MAX_PATH]; /* counted from row0 */
};
/* Rows of one request that the backend chooses tokens for, each as if the path to it had been
 * committed.  They stand next to each other and have no logits. */
struct fwd_draw {
    const struct sampler *sampler; /* NULL: the largest logit */
    uint64_t pos;                  /* of the token that the first of them chooses */
    uint32_t row0, n_rows;         /* of the batch */
    const int16_t *parent;         /* row i + 1 follows row parent[i] + 1; NULL: row i */
    struct fwd_choice *ret;        /* [n_rows] */
    /* Not NULL, with parents, see backend.walks: where the path goes, n 0 being nowhere, and then K and V
     * of its i-th row lie in the slot of row0 + i. */
    struct fwd_path *path;
};
/* A row of a drafter's block, and what is drafted there (engine/drafter_pick.c).  It has no logits. */
struct fwd_pick {
    uint32_t row;       /* of the batch */
    uint64_t seed, pos; /* of the noise */
    float inv_t;        /* 0: the logits as they are, without noise */
    uint32_t n_top;     /* candidates wanted, at most PROPOSAL_MAX_NODES */
    /* Results. */
    uint32_t token; /* of the target's vocabulary */
    float confidence;
    uint32_t n; /* candidates found, best first */
    uint32_t *top;
    float *logp;
};
/* A row of a drafter's batch that runs more than once, from the second pass on. */
struct fwd_next {
    uint32_t pick; /* of the pass before: its token is fed; UINT32_MAX: the row's own */
    uint32_t n_vis, window_vis; /* of path and window_paths, at most what they are in the first */
};
/* Picks of one round, of a batch whose results are taken later.  With a tree: nodes first_node .. first_node +
 * n_nodes - 1 of those of the batch, which follow each other, at most max_rows in all; picks have as many
 * candidates. */
struct fwd_span {
    uint32_t first, n;
    uint32_t first_node, n_nodes; /* 0: a chain of the picks' tokens */
};
/* A node of such a tree, as ddtree_build makes it. */
struct fwd_node {
    uint32_t token;         /* UINT32_MAX: the tree has no more nodes */
    uint32_t parent, depth; /* 0: the anchor, else a node, counted from 1 */
};
/* Rows of a target's batch for nodes of its drafter's last batch, behind the anchor's row: each has a path as long
 * as the deepest node's, in a tail of its own, which begins with the sequence's slots; token, position and
 * path are written by the backend. */
struct fwd_tree {
    uint32_t row0, n_rows, first_node;
};
struct fwd_batch {
    uint32_t n_rows;
    const struct fwd_row *rows;
    const struct fwd_draw *draws; /* rows ascending; see backend.draw_changes */
    uint32_t n_draws;
    struct fwd_pick *picks; /* rows ascending; of a drafter, see backend.picks */
    uint32_t n_picks;
    /* Of a drafter, see backend.passes: how often it runs, 0 being once.  Then rows have no logits and no
     * taps, and picks has room for n_passes * n_picks: the first pass's say what is wanted of each, the
     * results stand pass by pass. */
    uint32_t n_passes;
    const struct fwd_next *next; /* [n_rows] */
    /* Of a drafter, see backend.collect: its rounds; NULL: the results are there when forward() returns. */
    const struct fwd_span *spans;
    uint32_t n_spans;
    /* What the batch's memory on the host is taken from: 0, or 1 .. backend_options.lanes.  Nobody may use a lane
     * whose batch is on its way.  The same for a drafter's passes and the target's batch that is fed with them. */
    uint32_t lane;
    /* Of a target: nobody waits, see backend.finish.  Rows have no logits, and no taps on the host; draws stay as
     * they are. */
    bool later;
    /* Of a target, [n_rows]: the pick of its drafter's last batch of this lane, which had spans, whose token a row is fed:
     * that of the first pass that repeats an earlier one in its round, else of the last.  UINT32_MAX: the
     * row's own.  NULL: all rows have theirs. */
    const uint32_t *feed;
    const struct fwd_tree *trees; /* with `feed`, rows ascending: rows that are fed with trees */
    uint32_t n_trees;
    /* A drafter's layers with a sliding window: what each row sees there; NULL without such layers. */
    const struct dk_attn_row *window_paths;
    const uint32_t *tap_layers; /* residual stream after these layers, ascending */
    uint32_t n_taps;
};

/* A committed position that a drafter is to know: its taps become K/V of every drafter layer. */
struct ctx_row {
    const float *taps; /* n_taps * hidden of the target; the host's or taps()'s, as all of a call */
    uint32_t pos, slot;
    float *fused; /* hidden floats of the drafter: what its layers read, or NULL */
};

struct backend_memory {
    uint64_t weight_bytes; /* as filed */
    uint64_t packed_bytes; /* copies */
    uint64_t kv_bytes;
    uint64_t scratch_bytes;
    enum dk_kv_type kv_type; /* what K and V are kept as; not the option's in the AMX BF16 class */
};
struct backend_timing { /* seconds */
    double map, pack, warm;
};

struct backend {
    const char *name; /* "cpu", "cuda" */
    /* Sum of sampler_n_changed() of a batch's draws, at most; 0: forward() takes no draws. */
    uint32_t draw_changes;
    bool walks; /* forward() walks draws that want it, and moves K and V */
    bool picks; /* forward() of a drafter takes picks */
    bool
        passes; /* ... and runs a batch several times, each pass fed with the picks of the one before */
    /* Bytes needed before anything is allocated. */
    int (*plan)(const struct model_file *f, const struct backend_options *o,
                struct backend_memory *ret, struct error *err);
    /* progress(arg, done, total) may be NULL.  On failure nothing stays behind. */
    int (*load)(struct model_file *f, const struct backend_options *o,
                void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                struct backend_model **ret, struct error *err);
    void (*free)(struct backend_model *m);
    /* Runs the rows; nothing is allocated.  Tokens, positions and slots were checked by the caller. */
    int (*forward)(struct backend_model *m, const struct fwd_batch *b, struct error *err);
    /*
     * A drafter of m, which must outlive it: a model of its own that computes with m's threads, and
     * with m's embedding and head where its file has none.  Slots below m's own n_kv_blocks * 16
     * are there for the same positions as m's; behind them are max_rows slots for the blocks that are
     * being drafted.  forward() runs block rows, whose logits are draft_vocab floats.
     */
    int (*load_drafter)(struct backend_model *m, struct model_file *f, enum backend_dtype dtype,
                        struct backend_model **ret, struct error *err);
    /* Bytes of it. */
    int (*plan_drafter)(const struct model_file *target, const struct model_file *f,
                        const struct backend_options *o, enum backend_dtype dtype,
                        struct backend_memory *ret, struct error *err);
    /*
     * Waits for a target's batch that nobody has waited for, and fills in what its draws are for; *ret_ns: the time
     * that it took on the device, beside whatever else ran there.  When it fails nothing is on its way any
     * more.  NULL: every batch is waited for.
     */
    int (*finish)(struct backend_model *m, uint32_t lane, uint64_t *ret_ns, struct error *err);
    /*
     * Results of forward() of a batch with spans, which nobody has waited for, the tokens by pick and the nodes
     * that rows of the target are fed with, and the time that it took on the device; behind a forward() of
     * the target, or its finish().  NULL: no batch has spans.
     */
    int (*collect)(struct backend_model *drafter, uint32_t lane, uint32_t *ret_tokens,
                   struct fwd_node *ret_nodes, uint64_t *ret_ns, struct error *err);
    /*
     * Room for the taps of backend_options.tap_rows rows, n_taps * hidden floats each, in the memory
     * where forward() of the target and inject() of the drafter work: rows that point there stay
     * there, and the host must not look at them.  NULL (the member, or what it returns): rows point
     * to the host's memory.
     */
    float *(*taps)(struct backend_model *drafter);
    /* At most max_rows of the target's options. */
    int (*inject)(struct backend_model *drafter, const struct ctx_row *rows, uint32_t n,
                  struct error *err);
    /* Copies K/V of all layers from slot to slot, in order (compaction of accepted tree rows). */
    int (*kv_copy)(struct backend_model *m, const uint32_t *from, const uint32_t *to, size_t n,
                   struct error *err);
    void (*describe)(const struct backend_model *m, struct backend_memory *mem,
                     struct backend_timing *timing,
                     const char **ret_class); /* "exact", "amx-bf16", "cuda-mma", "cuda-fast" */
    const struct dk_ops *(*ops)(const struct backend_model *m); /* for the sampler */
    unsigned (*threads)(const struct backend_model *m);
    /* Runs fn once on each of threads(m) host threads, the caller's included (sampling). */
    void (*parallel)(struct backend_model *m, void (*fn)(void *arg, const struct dk_par *par),
                     void *arg);
};
extern const struct backend backend_cpu;
extern const struct backend backend_cuda; /* needs backend_options.cuda */
