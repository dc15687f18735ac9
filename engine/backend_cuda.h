/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the CUDA backend: a model on the device and the memory of one call.  Device memory is
 * three blocks (weights, KV, scratch), taken at load and given back with the model; pinned memory is
 * one.  Calls enqueue on the stream of the target, or, where batches may be on their way at once (backend_options.lanes),
 * those of a drafter on one of its own: what orders the two is said in backend_cuda_lane.c.  Used by
 * engine/backend_cuda*.c only.
 *
 * A batch is waited for, since its results are wanted; a drafter's passes that are run at once, all together; and
 * those that the target is fed with, together with the target's batch.  Moves of K and V, and features of taps that
 * are on the device, are not: what they send lies in a pinned area of its own, which is waited for when it is wanted
 * again and nothing else has been waited for since.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"
#include "kernels/cuda/open.h"

#define CUDA_ALIGN          256u
#define CUDA_MATRICES       7u          /* of a layer */
#define CUDA_LOGIT_ROWS     64u         /* rows of logits that are computed and copied together */
#define CUDA_PART_BYTES     (32u << 20) /* memory for partial results of attention, about */
#define CUDA_STAGING        (8u << 20) /* each of the two halves that weights go through, at least */
#define CUDA_TREE_TAIL      96u        /* words of a path behind whole blocks, without a window */
#define CUDA_TAP_LAYERS     8u         /* whose taps come to the host together */

#define CUDA_DRAW_CHANGES   65536u          /* entries of the samplers of a batch */
#define CUDA_DRAW_STOPS     1024u           /* ids that end outputs, of the draws that are walked */
#define CUDA_LANES          3u              /* backend_options.lanes and lane 0, at most */
#define CUDA_LATERS         2u              /* areas of calls that do not wait, at most */
#define CUDA_GRAPHS         32u             /* of a model */
#define CUDA_GRAPH_ROWS     CUDA_LOGIT_ROWS /* more rows: launches cost nothing beside the work */
#define CUDA_GRAPH_CONTEXT  512u            /* the smallest bucket of positions */
#define CUDA_GRAPH_FAILURES 8u              /* after so many a model does without graphs */

struct cuda_layer {
    struct dcu_weight w[CUDA_MATRICES]; /* q k v o gate up down */
    const float *attn_norm, *ffn_norm;
    const float *q_bias, *k_bias, *v_bias; /* NULL without */
    const float *q_norm, *k_norm;          /* NULL without */
    struct dk_kv kv;
};
enum { CUDA_Q, CUDA_K, CUDA_V, CUDA_O, CUDA_GATE, CUDA_UP, CUDA_DOWN };

/* What a call sends to the device, in one copy: offsets into the area are the same on both sides. */
struct cuda_batch {
    struct dcu_row
        *rows; /* [max_rows]; then the rows that the last layer goes on with, and the same */
    struct dcu_row *live; /* two as layers with a window see them */
    struct dcu_row *window[2];
    uint32_t *live_index; /* [max_rows] row of the batch of a live row */
    uint32_t *head_index; /* [max_rows] live row of a row with logits */
    uint32_t *tap_index;  /* [max_rows] row of a row with taps, below the last layer */
    uint32_t *tap_live;   /* [max_rows] the same at the last layer: its live row */
    uint32_t *tap_kept;   /* [max_rows] row of cuda_kept, of a row with taps or of one to inject */
    uint32_t *from, *to;  /* [max_rows] of kv_copy */
    uint32_t *n_pairs;
    uint32_t *words; /* [max_words] tables of blocks and tails */
};

/* What a batch's draws send to the device, in one copy more; none of it for a drafter. */
struct cuda_draws {
    struct dcu_node *nodes;       /* [max_rows] of rows with logits, in order */
    struct dcu_request *requests; /* [max_rows] */
    uint32_t *slots;              /* [max_rows] of rows with logits, for the walk */
    uint32_t *stops;              /* [CUDA_DRAW_STOPS] */
    struct dcu_feed_to *feeds;    /* [max_rows] tokens that the drafter has left on the device */
    struct dcu_planted *trees;    /* [max_rows] and trees */
    struct dcu_entry *entries;    /* [CUDA_DRAW_CHANGES] */
};
/* What comes back, [max_rows] each, by row with logits. */
struct cuda_drawn {
    struct dcu_choice *choices;
    uint32_t *n_logprobs;
    struct dcu_logprob *logprobs; /* [max_rows][SAMPLING_MAX_LOGPROBS] */
    struct dcu_path *paths;       /* by draw */
};

/* A drafter's picks, [max_rows] each, by row with logits.  The pinned results are those of all passes that
 * are run at once, [DRAFT_MAX_PASSES][max_rows]; the device's, of the one that runs. */
struct cuda_picks {
    struct dcu_pick *picks;
    struct dcu_feed *feeds; /* by row of the batch, behind the picks: one copy */
    struct dcu_span *spans; /* of a batch whose results are taken later, behind them */
    struct dcu_picked *picked;
    struct dcu_logprob *top; /* ...[DCU_MAX_TOP] */
    uint32_t *of;            /* host: of the batch's picks, UINT32_MAX: none */
    uint32_t *target_ids;    /* device: [draft_vocab], NULL: the same ids */
    /* Of a batch whose results are taken later. */
    struct dcu_picked *history;      /* device: [DRAFT_MAX_PASSES][max_rows] */
    struct dcu_logprob *top_history; /* device: ...[DCU_MAX_TOP] */
    uint32_t *tokens;                /* what its rounds end with; of a lane, as grown */
    uint32_t *ends;                  /* device: the passes that they end with */
    struct dcu_grown *grown;         /* and their trees */
};

/* Activations, [max_rows][ld] each; ld in floats. */
struct cuda_scratch {
    float *x, *x2;       /* residual stream, of all rows and of the live ones; ld_x */
    float *h;            /* normalised features that somebody wants to see, ld_x */
    float *q, *q2, *att; /* ld_q */
    float *k, *v;        /* ld_kv */
    float *g, *u;        /* ld_f */
    float *cs;           /* [max_rows][head_dim] */
    float *taps;         /* [max_rows][tap_floats]: a drafter's features, or layers' taps, tight */
    float *kept;   /* [tap_rows][tap_floats of the taps alone]: backend.taps(), drafters only */
    float *logits; /* [CUDA_LOGIT_ROWS][head.n] */
    float *part;   /* attention: part_floats */
    float *work;   /* sampling and picks: [CUDA_LOGIT_ROWS][head.n] */
    void *sample;  /* the same: dcu_sample_scratch_bytes(CUDA_LOGIT_ROWS) */
    struct dcu_act act;
    void *blas;              /* DCU_BLAS_WORKSPACE, of options with `fast` */
    struct cuda_batch batch; /* device */
    struct cuda_draws draws; /* device */
    struct cuda_drawn drawn; /* device */
    struct cuda_picks picks; /* device */
    size_t ld_x, ld_q, ld_kv, ld_f, tap_floats, part_floats;
};

/* What of a batch may not be written while it is on its way: all that the host and the device copy from each other's
 * memory, and what a drafter leaves for its target. */
struct cuda_area {
    struct cuda_batch batch; /* pinned */
    struct cuda_draws draws;
    struct cuda_drawn drawn;
    struct cuda_picks picks;
    uint32_t *tokens; /* device: cuda_picks' */
    struct dcu_grown *grown;
};

struct cuda_pinned {
    struct cuda_area lanes[CUDA_LANES];
    struct cuda_batch later[CUDA_LATERS]; /* of calls that do not wait; without words */
    /* Of the lane that a call uses (cuda_lane_use). */
    struct cuda_batch batch;
    struct cuda_draws draws;
    struct cuda_drawn drawn;
    struct cuda_picks picks;
    float *taps;   /* as the scratch has it */
    float *logits; /* as the scratch has it */
    char *staging[2];
    size_t staging_bytes; /* of one */
};

/* Taps that stay on the device: rows of `width` floats in a drafter's scratch memory. */
struct cuda_kept {
    float *mem; /* NULL: none */
    uint32_t rows, width;
};

/* What a graph's launches depend on, besides the arrays on the device; no padding. */
struct cuda_shape {
    uint32_t kind; /* enum cuda_kind */
    uint32_t rows, live, head, tapped;
    uint32_t windowed, max_vis;   /* the bucket */
    uint32_t kept;                /* taps come from, or go to, cuda_kept */
    uint32_t draws, walks, picks; /* those of cuda_rows */
    uint32_t n_taps, tap_layers[CUDA_TAP_LAYERS];
};
enum cuda_kind { CUDA_FORWARD, CUDA_INJECT, CUDA_INJECT_FUSED };
struct cuda_graph {
    struct cuda_shape shape;
    dcu_graph graph; /* NULL: not captured yet */
    bool failed;     /* runs eagerly */
    uint64_t used;   /* when, for the choice of the one that goes; 0: free */
};
struct cuda_graphs {
    struct cuda_graph e[CUDA_GRAPHS];
    uint64_t clock;
    unsigned failures;
    bool on;
};

/* The rows of a call in the pinned area. */
struct cuda_rows {
    uint32_t n, n_live, n_head, n_tap, n_words;
    uint32_t n_logits; /* of n_head: those that the host wants */
    uint32_t max_vis;  /* longest path */
    unsigned draws;    /* what kernels the draws need, DCU_SAMPLE_..., or CUDA_DRAWS; 0: no draws */
    uint32_t walks;    /* draws, where any of them is walked; else 0 */
    uint32_t n_stops;  /* of them */
    bool windowed, kept;
    bool picks;        /* some rows are a drafter's picks */
    uint32_t n_passes; /* of a drafter, at least 1 */
    uint32_t n_fed;    /* of a target: rows whose tokens the drafter has left on the device */
    uint32_t n_trees;  /* ... and trees */
    uint32_t n_grown;  /* of a drafter: nodes of the trees that it leaves there */
    bool held;         /* nobody waits */
};

/* A lane of a model: a drafter's batch whose results wait for collect(), or a target's that waits for finish(). */
struct cuda_lane {
    bool any;
    struct fwd_batch b;
    struct cuda_rows c;
    uint64_t waits; /* of the stream's owner when it was enqueued */
    dcu_event begin,
        end; /* around its work on the device, timed; NULL: no such batch in this lane */
};

/* An area of calls that do not wait. */
struct cuda_later {
    uint64_t free_at; /* from so many waits of the stream's owner on nothing reads it */
    dcu_event sent;   /* nor behind this; NULL: nobody but waits */
};

struct cuda_model {
    struct cuda_model *target; /* of a drafter: whose stream, embedding and head it may use */
    struct model_config cfg;
    struct backend_options opt;
    struct model_file *file;
    const struct dcu_api *api;
    struct dcu_device device;
    const struct dk_ops *ops; /* the host's, for sampling */
    struct dk_pool *pool;
    unsigned n_threads;

    struct cuda_layer *layers;
    struct dk_kv *device_layers; /* device memory, for copies between slots */
    struct dcu_weight head, embed, fc;
    bool own_embed;
    const float *final_norm, *hidden_norm, *inv_freq;
    float scale;
    bool mma;              /* some products go through the tensor cores: a class of its own */
    bool rows;             /* some weights lie in rows, for cuBLASLt: another one */
    struct dcu_blas *blas; /* NULL without such weights */

    void *weights, *kv, *scratch, *pinned;
    size_t weights_bytes, kv_bytes, scratch_bytes, pinned_bytes;
    uint32_t max_words;
    size_t batch_bytes; /* of the area without the words */
    unsigned forms;
    struct cuda_scratch s;
    struct cuda_pinned p;
    struct cuda_kept kept;  /* a drafter's own; a target's: of the drafter that was loaded last */
    dcu_stream stream;      /* a target's is its drafter's, too, without lanes */
    uint64_t waits;         /* for it; of its owner */
    uint32_t n_lanes, lane; /* at least 1; the one that p and s.picks are of */
    struct cuda_lane lanes[CUDA_LANES];
    uint32_t n_later, later_at; /* areas p.later; the next one */
    struct cuda_later later[CUDA_LATERS];
    dcu_event staged[2];
    dcu_event injected; /* of a drafter with a stream of its own: nothing reads taps behind it */
    bool any_injected;
    struct cuda_model *drafter; /* of a target */
    struct cuda_graphs graphs;

    struct backend_memory mem;
    struct backend_timing timing;
};

static inline struct cuda_model *cuda_of(struct backend_model *m)
{
    return (struct cuda_model *)(void *)m;
}
static inline const struct cuda_model *cuda_const(const struct backend_model *m)
{
    return (const struct cuda_model *)(const void *)m;
}

/* Leaves the function with an error object when a call of the runtime or a launch fails. */
#define CUDA_DO(m, err, what, call)                                                                \
    do {                                                                                           \
        int cuda_r_ = dcu_error((m)->api, (call), (err), (what));                                  \
        if (cuda_r_ < 0)                                                                           \
            return cuda_r_;                                                                        \
    } while (0)

/* ---- backend_cuda_lane.c -------------------------------------------------------------------------- */

/* Events and streams of lanes, when m->target and m->opt are there; what is there of them goes. */
int cuda_lanes_new(struct cuda_model *m, struct error *err);
void cuda_lanes_free(struct cuda_model *m);
/* Whose stream it is, and who counts the waits for it. */
struct cuda_model *cuda_owner(struct cuda_model *m);
/* For all that the stream has been given. */
int cuda_wait(struct cuda_model *m, const char *what, struct error *err);
/* Nothing of m, its target and its drafter is on its way any more; errors were told before. */
void cuda_wait_all(struct cuda_model *m);
/* Lane `lane` is the one of the calls that follow; INTERNAL: there is none.  What was left in it is waited for. */
int cuda_lane_use(struct cuda_model *m, uint32_t lane, struct error *err);
int cuda_lane_empty(struct cuda_model *m, struct error *err);
/* Takes an area of p.later, which nothing reads any more; sent: what reads it is enqueued. */
int cuda_later_take(struct cuda_model *m, struct cuda_batch **ret, struct error *err);
int cuda_later_sent(struct cuda_model *m, struct error *err);
/* What a batch of a target has to come behind: its drafter's passes, and what reads the taps that it writes. */
int cuda_lane_order(struct cuda_model *m, const struct cuda_rows *c, struct error *err);
/* A batch that is not waited for: its time begins; all of it was enqueued. */
int cuda_lane_begin(struct cuda_model *m, struct error *err);
int cuda_lane_hold(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                   struct error *err);
int cuda_finish(struct backend_model *m, uint32_t lane, uint64_t *ret_ns, struct error *err);
int cuda_collect(struct backend_model *drafter, uint32_t lane, uint32_t *ret_tokens,
                 struct fwd_node *ret_nodes, uint64_t *ret_ns, struct error *err);

/* ---- backend_cuda_load.c ------------------------------------------------------------------------- */

int cuda_plan(const struct model_file *f, const struct backend_options *o,
              struct backend_memory *ret, struct error *err);
int cuda_plan_drafter(const struct model_file *target, const struct model_file *f,
                      const struct backend_options *o, enum backend_dtype dtype,
                      struct backend_memory *ret, struct error *err);
int cuda_load(struct model_file *f, const struct backend_options *o,
              void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
              struct backend_model **ret, struct error *err);
int cuda_load_drafter(struct backend_model *m, struct model_file *f, enum backend_dtype dtype,
                      struct backend_model **ret, struct error *err);
void cuda_free(struct backend_model *m);

/* ---- backend_cuda_blas.c --------------------------------------------------------------------------- */

/* When weights and memory are there: settles all products of weights in rows, if there are any. */
int cuda_blas_ready(struct cuda_model *m, struct error *err);
/* Products that read one prepared input. */
int cuda_products(struct cuda_model *m, const struct dcu_mm *mm, unsigned n, uint32_t rows,
                  struct error *err);

/* ---- backend_cuda_weights.c ------------------------------------------------------------------------ */

/* How a matrix of products lies on the device. */
enum dcu_layout cuda_layout(enum dk_type stored, const struct backend_options *o);
/* Bytes of all weights on the device; forms: which prepared activations they read. */
int cuda_weights_size(const struct model_file *f, const struct model_tensor *head,
                      const struct backend_options *o, size_t *ret, unsigned *ret_forms,
                      struct error *err);
/* Fills m->weights. */
int cuda_weights_upload(struct cuda_model *m, const struct model_tensor *head,
                        void (*progress)(void *, uint64_t, uint64_t), void *arg, struct error *err);

/* ---- backend_cuda_scratch.c ----------------------------------------------------------------------- */

/* Cuts up the scratch memory and the pinned memory, with o->lanes + 1 lanes; NULL bases only count. */
int cuda_scratch_layout(const struct model_config *c, const struct backend_options *o,
                        unsigned forms, uint32_t head_n, void *device, void *pinned,
                        struct cuda_scratch *s, struct cuda_pinned *p, uint32_t *ret_words,
                        size_t *ret_device, size_t *ret_pinned);

/* ---- backend_cuda_batch.c -------------------------------------------------------------------------- */

#define CUDA_DRAWS 8u
int cuda_batch_fill(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *ret,
                    struct error *err);
/* Where taps are kept, row *ret; false: the host has them. */
bool cuda_taps_kept(const struct cuda_model *m, const float *taps, uint32_t *ret);
/* Enqueues the copy of a pinned area. */
int cuda_batch_send(struct cuda_model *m, const struct cuda_batch *from, uint32_t n_words,
                    struct error *err);

/* ---- backend_cuda_draw.c --------------------------------------------------------------------------- */

/* Is row r one of the draws?  *k: the draw to look at first, 0 at the first row; goes on with r. */
bool cuda_drawn_row(const struct fwd_batch *b, uint32_t r, uint32_t *k);
/* The draws of a batch whose rows are in the pinned area; c->draws. */
int cuda_draws_fill(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *c,
                    struct error *err);
int cuda_draws_send(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                    struct error *err);
/* Launches for logits of n rows, the first of them being row i of those with logits. */
int cuda_draws_sample(struct cuda_model *m, const struct cuda_rows *c, uint32_t i, uint32_t n,
                      struct error *err);
/* Behind the last of them: the paths, and K and V to where they belong. */
int cuda_draws_walk(struct cuda_model *m, const struct cuda_rows *c, struct error *err);
/* Copies of their results to the pinned area. */
int cuda_draws_fetch(struct cuda_model *m, const struct cuda_rows *c, uint32_t i, uint32_t n,
                     struct error *err);
int cuda_draws_fetch_paths(struct cuda_model *m, const struct cuda_rows *c, struct error *err);
/* To whom they belong, once all are there. */
void cuda_draws_deliver(const struct cuda_model *m, const struct fwd_batch *b,
                        const struct cuda_rows *c);

/* ---- backend_cuda_pick.c --------------------------------------------------------------------------- */

/* As cuda_drawn_row. */
bool cuda_picked_row(const struct fwd_batch *b, uint32_t r, uint32_t *k);
int cuda_picks_fill(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                    struct error *err);
int cuda_picks_send(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                    struct error *err);
/* As cuda_draws_sample, cuda_draws_fetch and cuda_draws_deliver. */
int cuda_picks_choose(struct cuda_model *m, uint32_t i, uint32_t n, struct error *err);
/* The rows that the next pass begins with. */
int cuda_picks_next(struct cuda_model *m, const struct cuda_rows *c, struct error *err);
/* Of picks *first .. *end - 1: from the first to the last one that has candidates; false: none has. */
bool cuda_picks_with_top(const struct cuda_model *m, uint32_t *first, uint32_t *end);
int cuda_picks_fetch(struct cuda_model *m, uint32_t pass, uint32_t i, uint32_t n,
                     struct error *err);
void cuda_picks_deliver(const struct cuda_model *m, const struct fwd_batch *b,
                        const struct cuda_rows *c);
/* A drafter's ids to the device, once. */
int cuda_picks_upload(struct cuda_model *m, struct error *err);

/* ---- backend_cuda_feed.c --------------------------------------------------------------------------- */

/* A drafter's batch that is held: its rounds, with its picks; behind each pass; behind the last one. */
int cuda_feeds_spans(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *c,
                     struct error *err);
int cuda_feeds_keep(struct cuda_model *m, const struct cuda_rows *c, uint32_t pass,
                    struct error *err);
int cuda_feeds_settle(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                      struct error *err);
/* A target's rows that are fed with drafts on the device: which, and, once all was sent, the launches for it. */
int cuda_feeds_fill(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *c,
                    struct error *err);
int cuda_feeds_take(struct cuda_model *m, const struct cuda_rows *c, struct error *err);

/* ---- backend_cuda_graph.c -------------------------------------------------------------------------- */

/* Enqueues launches on the model's stream: no copies from or to the host, no waiting. */
typedef int (*cuda_enqueue)(void *arg, struct error *err);
void cuda_graphs_init(struct cuda_graphs *g);
void cuda_graphs_free(struct cuda_model *m);
/* n, or a bound of it that few values share; at most `most`, if n is. */
uint32_t cuda_graph_bucket(uint32_t n, uint32_t most);
/* What enqueue(arg) does, replayed where the shape came before; shape NULL: never. */
int cuda_graph_run(struct cuda_model *m, const struct cuda_shape *shape, cuda_enqueue enqueue,
                   void *arg, struct error *err);

/* ---- backend_cuda_layer.c -------------------------------------------------------------------------- */

/* The form of activations that products with w read, DCU_FORM_...; and rows in such forms, for the next products. */
unsigned cuda_form_of(const struct dcu_weight *w);
int cuda_prepare(struct cuda_model *m, struct dcu_prep p, struct error *err);

/* ---- backend_cuda_forward.c ------------------------------------------------------------------------ */

int cuda_forward(struct backend_model *m, const struct fwd_batch *b, struct error *err);
int cuda_inject(struct backend_model *drafter, const struct ctx_row *rows, uint32_t n,
                struct error *err);
