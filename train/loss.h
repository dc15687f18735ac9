/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step's losses, measures and gradients: P1 on masked blocks, then P2 on blocks that
 * ProposalMix made of P1's proposals and the truth.
 */
#pragma once

#include "train/forward.h"

struct train_objective {
    bool edit;   /* P2 too */
    bool mix;    /* confident proposals are replaced by the truth */
    bool causal; /* edit passes: a row sees the block's rows up to itself */
    float eta, gamma, p2_weight, distill;
};

/* Sums over supervised rows, or blocks. */
struct train_stats {
    double loss[2];     /* of P1 and P2: weighted mean of the hard labels' cross-entropy */
    double denominator; /* sum of weights */
    uint64_t n_supervised, n_gate, n_overwrite, n_right; /* S, O, A */
    uint64_t n_blocks;                                   /* with a supervised first row */
    uint64_t committed[2]; /* leading right proposals + 1, over these */
    uint64_t right_at[2][DRAFTER_MAX_BLOCK], n_at[DRAFTER_MAX_BLOCK]; /* by row of the block */
    uint64_t helped, harmed; /* committed more, or less, after P2 */
    bool bad;                /* a NaN or an infinity */
};

/* w holds the batch (train_begin).  With `learn`, w->grad is the gradient of L1 + p2_weight L2;
 * without, nothing goes back (held-out data).  Nothing supervised: losses 0, gradients 0. */
void train_losses(struct train_work *w, const struct train_objective *o, bool learn,
                  struct train_stats *ret);

/* Parts.  Rows 1.. of all blocks become MASK. */
void train_mask_blocks(struct train_work *w);
/* Head and cross-entropy of the pass just made; with `scale` > 0 the gradient into w->dx.
 * Logits of all rows, or NULL: [blocks * (window - 1)][draft_vocab]. */
void train_head(struct train_work *w, unsigned pass, float scale, float distill, float *logits);
/* proposalmix.c: gates, and the rows of P2 into w->tokens. */
void train_proposal_mix(struct train_work *w, float eta, bool mix);
void train_count(const struct train_work *w, unsigned passes, struct train_stats *ret);
