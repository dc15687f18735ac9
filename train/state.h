/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drafter in training: its shape, its tensors in one flat array of F32 masters (gradients and
 * moments have the same layout), and what of the target is frozen beside it: embedding, head, draft
 * vocabulary.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/drafter_file.h"
#include "engine/model_file.h"

struct train_shape {
    uint32_t layers, hidden, ffn, heads, kv_heads, head_dim;
    uint32_t n_taps, tap_layers[DRAFTER_MAX_TAPS];
    uint32_t target_hidden, target_layers;
    uint32_t window, mask_token;
    uint32_t vocab, draft_vocab;
    uint32_t max_position;
    float eps;
    double rope_theta;
};
static inline uint32_t train_q_width(const struct train_shape *s)
{
    return s->heads * s->head_dim;
}
static inline uint32_t train_kv_width(const struct train_shape *s)
{
    return s->kv_heads * s->head_dim;
}
static inline uint32_t train_tap_width(const struct train_shape *s)
{
    return s->n_taps * s->target_hidden;
}
/* Every size is positive and what it must be to the others; INVALID names it. */
int train_shape_check(const struct train_shape *s, struct error *err);

enum train_role {
    TR_FC,          /* [hidden][taps * target's hidden] */
    TR_HIDDEN_NORM, /* [hidden] */
    TR_NORM,        /* [hidden] */
    TR_ATTN_NORM,   /* per layer from here on; [hidden] */
    TR_Q,
    TR_K,
    TR_V,
    TR_O,
    TR_Q_NORM, /* [head_dim] */
    TR_K_NORM,
    TR_FFN_NORM,
    TR_GATE,
    TR_UP,
    TR_DOWN,
    TR_ROLE_COUNT
};
struct train_tensor {
    char name[64]; /* as in a DFlash folder */
    uint32_t rows, cols;
    bool norm; /* a vector of gains: rows is 1 */
    size_t at; /* in floats, a multiple of 16 */
};
#define TRAIN_MAX_TENSORS (TR_ATTN_NORM + DRAFTER_MAX_LAYERS * (TR_ROLE_COUNT - TR_ATTN_NORM))
struct train_layout {
    uint32_t n;
    struct train_tensor t[TRAIN_MAX_TENSORS];
    size_t total;  /* floats, padding (always zero) included */
    size_t values; /* without padding */
};
/* The shape was checked. */
void train_layout_init(struct train_layout *l, const struct train_shape *s);
static inline uint32_t train_index(enum train_role r, uint32_t layer)
{
    return r < TR_ATTN_NORM
               ? r
               : TR_ATTN_NORM + layer * (TR_ROLE_COUNT - TR_ATTN_NORM) + r - TR_ATTN_NORM;
}

struct train_model {
    struct train_shape shape;
    struct train_layout layout;
    float *p; /* [layout.total] */
    /* Frozen. */
    const struct model_tensor *embed; /* of the target; the file stays open */
    float *head;                      /* [draft_vocab][hidden] */
    uint32_t *target_ids;             /* [draft_vocab]: draft -> token, ascending */
    int32_t *draft_ids;               /* [vocab]: token -> draft, or -1 */
    float *angles, *back; /* [max_position][head_dim]: cosines and sines; the other way round */
};
/* Masters zero.  target_ids: [draft_vocab], or NULL: all tokens. */
int train_model_init(struct train_model *m, const struct train_shape *s,
                     const struct model_file *target, const uint32_t *target_ids,
                     struct error *err);
void train_model_done(struct train_model *m);
static inline const float *train_param(const struct train_model *m, enum train_role r,
                                       uint32_t layer)
{
    return m->p + m->layout.t[train_index(r, layer)].at;
}
/* Row `token` of the embedding. */
void train_embed(const struct train_model *m, uint32_t token, float *ret);
/* A matrix or vector of the target as floats, [n] in all. */
int train_dequant(const struct model_tensor *t, float *ret, size_t n, struct error *err);

/* Rows of each head from pairs (2i, 2i + 1) to pairs (i, i + hd / 2): w is [heads * hd][cols]. */
int train_halves(float *w, uint32_t heads, uint32_t hd, uint32_t cols, struct error *err);

/* First values: the target's last layers where the shapes allow it and `from_target`, else normal
 * variates by `seed`; norms 1, the final one 0.25 of the target's. */
int train_init(struct train_model *m, const struct model_file *target, bool from_target,
               uint64_t seed, struct error *err);
