/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step's batch and everything that is computed from it: context features and their K/V once, then
 * one pass over all blocks for P1 and one for P2, forward and back.  Rows of the context are the
 * positions of each sequence before its last anchor; a block sees those strictly before its own
 * anchor, and its own rows.
 */
#pragma once

#include "train/ops.h"
#include "train/state.h"

/* One sequence and its blocks. */
struct train_item {
    const uint32_t *ids; /* [n] */
    const uint8_t *mask; /* [n]: supervised */
    const float
        *taps; /* [n][taps * target's hidden], scaled; rows from the last anchor on unused */
    const uint32_t *anchors; /* ascending */
    uint32_t n, n_anchors;
    /* The target's probabilities of the token at each position, [n][top], those outside the
     * draft vocabulary left out and the rest scaled to 1; draft ids, -1: none.  NULL: hard
     * labels alone. */
    const int32_t *soft_ids;
    const float *soft;
};
struct train_batch {
    const struct train_item *items;
    uint32_t n_items, soft_top;
};

/* One layer's context. */
struct train_ctx_layer {
    float *k_raw, *k, *v, *k_r; /* [rows][kv], [rows * kv heads] */
    float *dk, *dv;
};
/* What a pass over the blocks leaves for its way back. */
struct train_layer {
    float *x, *norm1, *r1;            /* input; normed */
    float *q_raw, *k_raw, *q_r, *k_r; /* before norm and RoPE; norms' factors */
    float *q, *k, *v, *attn;
    float *mid, *norm2, *r2;
    float *gate, *up, *act;
};

struct train_work {
    const struct train_model *m;
    struct train_par *par;
    /* Capacity and present content. */
    uint32_t max_items, max_ctx, max_blocks, max_len;
    uint32_t n_ctx, n_blocks;
    const struct train_batch *batch;
    struct train_block {
        uint32_t item, anchor; /* position */
        uint32_t ctx0;         /* row of the sequence's position 0 */
    } * blocks;
    uint32_t *item_ctx0, *item_block0; /* [items + 1] */

    float *grad; /* [layout.total] */
    /* Context. */
    float *taps, *fused_raw, *fused, *fused_r, *d_ctx; /* [ctx][...] */
    uint32_t *ctx_pos;
    struct train_ctx_layer *ctx;
    /* Blocks: rows = blocks * window. */
    uint32_t *tokens; /* [rows] */
    bool causal;
    struct train_layer *layer;
    float *x, *last_r; /* output of the last layer, [rows][hidden] */
    float *final;      /* normed, rows 1.. of each block: [blocks * (window - 1)][hidden] */
    float *dx, *da, *db, *dq, *dkb, *dv; /* [rows][hidden or wider] */
    float *gains; /* gradients of a norm's gains, [rows / TRAIN_CHUNK][its length] */
    /* Head, by chunks of rows. */
    struct train_frozen head;
    float *logits; /* [TRAIN_HEAD_ROWS][draft_vocab] */
    struct train_row {
        uint32_t label;   /* token */
        int32_t draft;    /* its row of the head, or -1 */
        bool supervised;  /* m_k: counts in losses and rates */
        float weight;     /* m_k w_k */
        uint32_t v[2];    /* argmax of each pass, token */
        float confidence; /* of P1 */
        float ce[2];      /* of the label */
        bool gate, bad;
        uint32_t x; /* input of P2 */
    } * rows;       /* [blocks * (window - 1)] */
    /* Attention, one piece of memory a thread. */
    float *attn_mem[TRAIN_MAX_THREADS];
    uint32_t attn_rows;
    struct train_area {
        float *base;
        size_t used, size;
    } area;
};
#define TRAIN_HEAD_ROWS 512u
#define TRAIN_CHUNK     64u /* rows whose part of a gain's gradient is one sum */

/* Bytes that a work of these capacities takes, gradients included. */
uint64_t train_work_bytes(const struct train_shape *s, uint32_t max_items, uint32_t max_ctx,
                          uint32_t max_blocks, uint32_t max_len, unsigned threads);
int train_work_init(struct train_work *w, const struct train_model *m, struct train_par *par,
                    uint32_t max_items, uint32_t max_ctx, uint32_t max_blocks, uint32_t max_len,
                    struct error *err);
void train_work_done(struct train_work *w);

/* Takes the batch, lays out its rows and labels, zeroes the gradients.  gamma: of the weights.
 * LIMIT when it does not fit, INVALID for anchors that are not ascending positions of their
 * sequence. */
int train_begin(struct train_work *w, const struct train_batch *b, float gamma, struct error *err);
/* Features and K/V of all context rows. */
void train_context(struct train_work *w);
/* One pass over w->tokens. */
void train_blocks(struct train_work *w, bool causal);
/* The way back of the last train_blocks(); w->dx holds the gradient of w->x. Adds to w->grad and
 * the context's dk, dv. */
void train_blocks_back(struct train_work *w);
/* The way back of train_context(), after all passes. */
void train_context_back(struct train_work *w);

/* attention.c */
void train_attention(struct train_work *w, uint32_t layer);
/* From w->da = gradient of the attention's output: w->dq, w->dkb, w->dv; adds to the context's. */
void train_attention_back(struct train_work *w, uint32_t layer);
size_t train_attention_floats(const struct train_shape *s, uint32_t max_len, uint32_t *ret_rows);
