/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a drafter: drafter.c runs blocks, drafter_pass.c passes of the scheduler's requests, and
 * drafter_pick.c makes drafts of their logits. */
#pragma once

#include "engine/drafter.h"

#define DRAFTER_MAX_PICK PROPOSAL_MAX_NODES /* candidates of a depth, at most the tree's budget */

/* Words of noise that are needed: tokens [v0, v0 + n). */
struct noise_run {
    uint32_t v0, n;
};

/* What one row of logits becomes. */
struct pick {
    const struct draft_round *round;
    const float *logits;
    uint64_t pos;
    uint32_t n_top; /* candidates wanted for a tree, 0: none */
    float *q;       /* the row is drawn, from what goes here; NULL: chosen */
    bool device;    /* the backend chooses: no logits */
    /* Results. */
    uint32_t token; /* of the target's vocabulary */
    float confidence;
    uint32_t n; /* candidates found */
    uint32_t *top;
    float *logp;
};

struct drafter {
    const struct backend *backend;
    struct backend_model *target, *model;
    struct model_file *file;
    const struct drafter_config *cfg;
    const struct dk_ops *ops;
    uint32_t target_vocab, max_rows, first_slot, max_context;

    /* Buffers of a call. */
    struct fwd_row *rows;             /* [max_rows] */
    struct fwd_next *next;            /* [max_rows], NULL where the backend runs one pass a call */
    struct dk_attn_row *window_paths; /* [max_rows], NULL without a window */
    uint32_t *tails;                  /* of the blocks of a call */
    size_t tails_block;               /* words of one block, beside one for each of its rows */
    struct ctx_row *context;          /* [max_rows] */
    struct drafter_block *blocks;     /* [max_rows / 2] */
    struct fwd_span *spans;           /* of the blocks' picks */
    struct fwd_node *nodes; /* [max_rows] of their trees, NULL where the host waits for each call */
    uint32_t *tokens;       /* [max_rows] */
    float *logits;          /* [n_logit_rows][draft_vocab] */
    size_t logits_bytes;
    uint32_t n_logit_rows;
    struct pick *picks;      /* [n_logit_rows] */
    struct fwd_pick *chosen; /* [n_at_once][n_logit_rows] by the backend */
    uint32_t *top;           /* [n_at_once][n_logit_rows][DRAFTER_MAX_PICK] */
    float *logp;
    uint32_t n_at_once; /* passes of one call, at most */
    /* Of each thread that picks. */
    unsigned n_threads;
    float *noise;  /* [n_threads][target_vocab] */
    float *scores; /* [n_threads][draft_vocab] */
    uint32_t *ids; /* [n_threads][draft_vocab] */
    size_t noise_bytes, scores_bytes;
    struct noise_run *runs; /* NULL: the whole vocabulary is drafted from */
    uint32_t n_runs;
};

/* Blocks as one batch, n_passes times; the first n_chosen entries of `chosen` say what the backend picks. */
int drafter_run_blocks(struct drafter *d, const struct drafter_block *b, uint32_t n,
                       uint32_t n_chosen, uint32_t n_passes, struct error *err);
/* The same without waiting for it: d->spans says which picks are whose. */
int drafter_start_blocks(struct drafter *d, uint32_t lane, const struct drafter_block *b,
                         uint32_t n, uint32_t n_chosen, uint32_t n_passes, struct error *err);
/* block_drafter_ops of a drafter. */
int drafter_pass(void *self, struct draft_entry *entries, uint32_t n, struct error *err);
uint32_t drafter_at_once(void *self, const struct draft_entry *entries, uint32_t n);
bool drafter_may_begin(void *self, const struct draft_entry *entries, uint32_t n);
int drafter_begin(void *self, uint32_t lane, struct draft_entry *entries, uint32_t n,
                  struct error *err);
int drafter_end(void *self, uint32_t lane, struct draft_entry *entries, uint32_t n,
                uint64_t *ret_ns, struct error *err);
/* Which noise a reduced vocabulary needs. */
int drafter_make_runs(struct drafter *d, struct error *err);
/* The noise that a row's choice adds is that of 1 / T times its logits; 0: it adds none. */
float drafter_pick_inv_t(const struct pick *p);
/* Picks of [0, n) that the backend leaves to the host, on all threads. */
void drafter_pick(struct drafter *d, uint32_t n);
/* The proposal of a round whose last pass is done; picks: of its rows, in order. */
void drafter_propose(struct draft_round *r, const struct pick *picks);
/* Do the tokens of the last pass repeat those of an earlier one? */
bool drafter_settled(const struct draft_round *r);
