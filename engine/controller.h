/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The method `auto`: whether to draft, with what, and how many nodes to verify, so that a batch commits
 * as many tokens a second as can be expected.  Everything it knows is measured while the engine runs:
 * what a target batch and a drafter pass of so many rows cost, and how often drafts of a given
 * confidence were right.  It uses nothing that verification has yet to find out, and it changes no text.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/proposal.h"

struct engine;
struct request;
struct batch_entry;
struct candidate;

/* Time of a call by its number of rows: measured at some sizes, guessed between and beyond them. */
#define COST_SIZES 24
struct cost_table {
    double ns[COST_SIZES]; /* 0: never seen */
};
void cost_add(struct cost_table *t, uint32_t rows, uint64_t ns);
/* All sizes at once (tests): ns for one row, and slope times as much for each more. */
void cost_fill(struct cost_table *t, double ns, double slope);
/* 0 when nothing is known.  Unknown sizes are guessed cheap, so that they are tried. */
double cost_of(const struct cost_table *t, uint32_t rows);

/* How often something was right, with old observations fading. */
struct odds {
    double hits, n;
};
#define CONTROLLER_BINS    14 /* of a drafter's confidence in a path */
#define CONTROLLER_MATCHES 4  /* lengths of an n-gram match */
struct controller {
    struct cost_table target, drafter;
    struct odds confidence[CONTROLLER_BINS];
    struct odds match[CONTROLLER_MATCHES];
    double
        gain; /* expected speed of drafted rounds, plain decoding is 1; what new requests start with */
};
void controller_init(struct controller *c);

/* What `auto` remembers of a request. */
struct auto_state {
    double gain;
    uint32_t pause, next_pause; /* rounds until the drafter is tried again */
    bool drafter;               /* this round's proposal is the drafter's; else an n-gram's */
    uint32_t match;             /* length of that match */
};
void auto_init(struct auto_state *a, const struct controller *c);

/* Is the drafter in use, as far as is known? */
bool auto_drafts(const struct auto_state *a);
/* Before drafting: is the drafter worth a try in this round? */
bool controller_wants_drafter(struct auto_state *a);
/* Confidence in each token of an n-gram's continuation after a match of that length. */
float controller_match_confidence(const struct controller *c, uint32_t match);
/* All proposals are there: cuts those of `auto` to what is worth its rows.  rows: of the batch without
 * them. */
void controller_trim(struct engine *e, uint32_t rows);
/* Where controller_trim thinks; *ret for max_num_seqs requests. */
int controller_new_candidates(uint32_t n, struct candidate **ret, struct error *err);
/* What verification found: nodes [0, n) of r's proposal, right[i] of each. */
void controller_learn(struct controller *c, const struct auto_state *a, const struct proposal *p,
                      uint32_t n, const bool *right);
