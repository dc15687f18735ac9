/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A round of one request: a proposal (empty for plain decoding), its rows in the target's batch, the
 * walk along the target's own choices, the commit.
 *
 * Rows: row 0 is the anchor, the last token of the sequence, which has no K/V yet; rows 1..n are the
 * proposal's nodes.  The target chooses a token after the anchor; while that token is a child of the
 * node it was chosen at, the walk goes on there.  Every choice is the target's own, so what is
 * proposed changes how many tokens a round commits, never which.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/proposal.h"
#include "engine/sampler.h"

struct engine;
struct request;
struct batch_entry;

#define ROUND_MAX_ROWS   (1 + PROPOSAL_MAX_NODES) /* anchor and nodes */
#define ROUND_MAX_TOKENS (1 + PROPOSAL_MAX_DEPTH) /* most tokens of one commit */

/* The target's choice at one row of the path. */
struct choice {
    uint32_t token, n_lp;
    uint32_t row; /* of the round: where it was chosen */
    int node;     /* of the proposal that it is, or -1: the bonus */
    struct token_logprob lp[1 + SAMPLING_MAX_LOGPROBS];
};

/* Writes the rows of entry b (r->planned of them) to e->rows + b->row0, logits included. */
void round_rows(struct engine *e, struct batch_entry *b);
/* The proposal of entry b, which was not known when its rows were written, is there: it may be smaller. */
void round_drafted(struct engine *e, struct batch_entry *b);
/* Choices of all entries, on all threads: e->n_logits of them at most. */
void round_choose(struct engine *e, uint32_t n_entries);
/* Commits the choices of an entry, keeps the K/V of its path.  verify_ns: the target batch's time. */
void round_finish(struct engine *e, struct batch_entry *b, uint64_t verify_ns);
