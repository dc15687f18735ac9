/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The method `auto`: whether to draft, with what, with how wide a block, how often to edit and how many
 * nodes to verify, so that a batch commits as many tokens a second as can be expected.  It knows what
 * calls cost here (engine/cost.h) and how far drafts came so far (engine/survival.h); nothing that
 * verification has yet to find out, and it changes no text.
 *
 * Three times a round: before it (controller_plan), after each pass (controller_passed), and when all
 * proposals of the batch are there (controller_trim).  Where the passes and their verification can be
 * enqueued one behind another, everything is decided before (`ahead`), by what proposals of the plan's window and
 * passes are expected to be: a look at these drafts would cost a wait for each decision.  What they were is
 * learned behind the verification, pass by pass (draft_round.passed); a plan depends on nothing but what was known
 * when it was made, so it is the same wherever and however its rounds are run.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/cost.h"
#include "engine/proposal.h"
#include "engine/survival.h"

struct engine;
struct request;
struct drafting_state;
struct candidate;

/* The batch without drafts of `auto`, and what it commits. */
struct draft_base {
    struct cost_load load;
    uint32_t decoding;
};

/* What the rounds that begin together are meant to be. */
struct draft_plan {
    struct draft_base base;
    uint32_t w;      /* class of window */
    uint32_t passes; /* expected */
    uint32_t least;  /* passes that are run whatever they promise: to learn of them */
    double spent_ns; /* passes so far; ahead: all of them */
    double share_ns; /* expected drafter time of one request */
    double gain;     /* expected speed, plain decoding is 1 */
};

struct controller {
    struct costs costs;
    struct survival survival;
    struct draft_plan plan;
    uint32_t rounds; /* begun with a drafter */
    uint32_t stale;  /* rounds that a plan of drafting nothing still holds */
    uint32_t of[3];  /* what it was made for: candidates, rows, decoding */
    uint32_t pause;  /* rounds before new requests try the drafter */
    bool ahead;      /* nothing is decided between passes, or behind them */
};
void controller_init(struct controller *c);

/* What `auto` remembers of a request. */
struct auto_state {
    float skill;                 /* how far its drafts come, others' are 1 */
    bool wants;                  /* the drafter's context is kept up, passes may begin */
    bool trying;                 /* wants it only to see */
    uint32_t pause, next_pause;  /* rounds until the drafter is tried again */
    bool drafter;                /* this round's proposal is the drafter's; else an n-gram's */
    uint32_t match;              /* length of that match */
    uint32_t w;                  /* class of this round's window */
    uint32_t nodes;              /* ahead: how many the plan verifies */
    float reach[SURVIVAL_NODES]; /* of this round's proposal, as far as is known */
    uint32_t n_reach;
};
void auto_init(struct auto_state *a, const struct controller *c);

/* Rows of a block of class w (0: the drafter's own) of a drafter whose own has `window` rows. */
uint32_t controller_window(uint32_t window, uint32_t w);
/* Passes that `auto` may run for this request. */
uint32_t controller_passes(const struct engine *e, const struct drafting_state *d);

/* Rounds are about to begin: who wants the drafter, and the plan. */
void controller_plan(struct engine *e);
/* Is an n-gram's continuation, free and of this confidence, better than a round of the plan? */
bool controller_prefers_match(struct engine *e, const struct drafting_state *d, float confidence,
                              uint32_t most);
/* A pass was run: what it was worth, and whether another one is; sets round.done of those that end. */
void controller_passed(struct engine *e);
/* All proposals are there, or on their way: cuts those of `auto` that are there to what is worth its rows, or was
 * decided ahead. */
void controller_trim(struct engine *e);
/* Ahead: fills in what the plan makes of the round of d that begins. */
void controller_round(struct engine *e, struct drafting_state *d);
/* ... whose proposal came with its verification: keeps the nodes that were decided on.  Other rounds stay as they
 * are. */
void controller_cut(struct controller *c, struct drafting_state *d);
/* Where all of them think; *ret for max_num_seqs requests. */
int controller_new_candidates(uint32_t n, struct candidate **ret, struct error *err);
/* What verification found: nodes [0, n) of the proposal, right[i] of each. */
void controller_learn(struct controller *c, const struct drafting_state *d, uint32_t n,
                      const bool *right);
