/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a request may be drafted, and what a drafter that runs in batched passes looks like to the
 * scheduler.  Everything here changes speed only: the text is the target's own (engine/round.h).
 *
 * A round with a block drafter: DRAFT (pass 1), EDIT (passes 2..K), VERIFY (one target batch), COMMIT.
 * Passes of several requests share one call, whatever pass each is at.  The drafter's context K/V live
 * beside the target's in the paged pool (same block numbers, same slots), one position for each
 * committed token before the anchor.  The pool remembers which positions have them (engine/kv.h); the
 * scheduler injects after every target batch, and feeds positions again whose context is missing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/proposal.h"

struct seq;

#define DRAFT_MAX_WINDOW 64u /* rows of a block, the anchor included */
#define DRAFT_MAX_PASSES 8u

enum draft_method {
    DRAFT_AUTO,      /* the engine chooses, round by round */
    DRAFT_AR,        /* plain decoding */
    DRAFT_NGRAM,     /* what followed the last tokens before, in prompt or output */
    DRAFT_SCRIPTED,  /* tests: proposals out of a list */
    DRAFT_SYNTHETIC, /* benchmarks: a given acceptance; marked, needs engine_config.synthetic */
    DRAFT_DFLASH,    /* one pass, a chain */
    DRAFT_DEDIT,     /* passes of drafting and editing, a chain */
    DRAFT_DDTREE,    /* a tree out of the last pass's probabilities */
    DRAFT_METHOD_COUNT
};
const char *draft_method_name(enum draft_method m); /* "auto", "ar", ... */
bool draft_method_parse(const char *name, enum draft_method *ret);

enum draft_visibility { DRAFT_BIDIRECTIONAL, DRAFT_CAUSAL }; /* inside the block, in edit passes */
enum draft_verification { DRAFT_RULE_A, DRAFT_REJECTION };

/* A request's wishes.  All zero: auto. */
struct drafting_params {
    enum draft_method method;
    uint32_t window;      /* 2..64; 0: the drafter's own, or 8 without one; auto: chosen */
    uint32_t passes;      /* 1..8; 0: 1, for dedit 2; auto: at most so many (4) */
    uint32_t tree_budget; /* nodes, 1..127; 0: 15; auto: at most so many (31) */
    enum draft_visibility visibility;
    enum draft_verification verification;
    bool no_noise;    /* drafter without the target's Gumbel noise (temperature > 0) */
    bool want_rounds; /* call engine_sink.round */
    const struct draft_script *script; /* DRAFT_SCRIPTED; must outlive the request */
    const float
        *acceptance; /* DRAFT_SYNTHETIC: [window - 1], of each position given the ones before */
};

/* ---- block drafters ------------------------------------------------------------------------------ */

/* One request's round while it is drafted.  Kept by the scheduler; zeroed when a round begins, but for
 * the fields of the first group. */
struct draft_round {
    /* Set by the scheduler. */
    enum draft_method method; /* DRAFT_DFLASH, DEDIT or DDTREE */
    enum draft_visibility visibility;
    uint32_t window, passes; /* rows of the block; passes to run at most */
    uint32_t tree_budget;
    uint32_t max_nodes; /* room of the target's batch: longer proposals are cut */
    bool each_pass;     /* the proposal is filled by every pass: the scheduler may end the round */
    /* Called behind every pass, whose proposal is filled, too, whoever ends the round; NULL: only the last
     * one is of interest. */
    void (*passed)(void *arg, struct draft_round *r);
    void *arg;
    uint32_t verify; /* of a tree, nodes that the target is given; 0: all of them */
    bool noise;      /* add Gumbel noise of (seed, position, target token id) */
    bool draw;       /* rule B: draw the last pass's tokens, and give proposal.q */
    float *q;        /* then: room for [window - 1][vocabulary of the target] */
    float temperature;
    uint64_t seed;
    /* Written by the drafter, pass by pass. */
    uint32_t pass;       /* passes done */
    uint32_t first_pick; /* by begin(): its first draft, for fwd_batch.feed; the others follow */
    uint32_t first_node; /* by begin(), of a tree: its first node, for fwd_tree */
    bool done;           /* the proposal is there */
    uint32_t tokens[DRAFT_MAX_PASSES][DRAFT_MAX_WINDOW - 1];  /* [pass][k]: draft of row k + 1 */
    float confidence[DRAFT_MAX_PASSES][DRAFT_MAX_WINDOW - 1]; /* of those tokens */
    struct proposal *proposal; /* filled by the pass that sets done, and others if asked for */
};

/* One request's share of a drafter pass. */
struct draft_entry {
    const struct seq *seq;     /* anchor: tokens[n_kv], at position n_kv; context: all before it */
    struct draft_round *round; /* between begin() and end(): NULL, nobody wants it any more */
    /* Written by begin(), read by end(): rows, passes and nodes of the round. */
    uint32_t window, passes, n_nodes, first_pick, first_node;
};

/* One position of context. */
struct draft_context {
    const float *taps; /* [n_taps][hidden of the target] */
    uint32_t pos, slot;
};

struct block_drafter_ops {
    /* K/V of context rows, all layers, into their slots.  Rows of several requests, any order, at
     * most max_rows. */
    int (*inject)(void *self, const struct draft_context *rows, uint32_t n, struct error *err);
    /* One pass for each entry (round->pass tells which), or as many as at_once() says.  Adds to
     * round->pass; at the last pass, or when the tokens repeat those of an earlier pass, fills the
     * proposal and sets done.  The rows of all entries together are at most max_rows. */
    int (*pass)(void *self, struct draft_entry *entries, uint32_t n, struct error *err);
    /* Copies context K/V of all layers from slot to slot, in order (a block is copied on write). */
    int (*kv_copy)(void *self, const uint32_t *from, const uint32_t *to, size_t n,
                   struct error *err);
    /* Passes that one call of pass() runs for these entries, none of which it ends before `done` would
     * have: the results are those of as many calls.  NULL: one. */
    uint32_t (*at_once)(void *self, const struct draft_entry *entries, uint32_t n);
    /*
     * All passes of rounds that have none yet, in two halves, so that the target's batch can be enqueued
     * between them: begin() leaves the drafts where that batch is fed with them, end() brings them to the
     * rounds, and says how long the passes took.  Between them others may begin, in another lane
     * (engine/backend.h).  Where may_begin() says so; NULL: never.
     */
    bool (*may_begin)(void *self, const struct draft_entry *entries, uint32_t n);
    int (*begin)(void *self, uint32_t lane, struct draft_entry *entries, uint32_t n,
                 struct error *err);
    int (*end)(void *self, uint32_t lane, struct draft_entry *entries, uint32_t n, uint64_t *ret_ns,
               struct error *err);
};
struct block_drafter {
    const struct block_drafter_ops *ops; /* NULL: no drafter is loaded */
    void *self;
    const uint32_t *tap_layers; /* ascending */
    uint32_t n_taps;
    uint32_t window;      /* its own: block_size */
    uint32_t max_window;  /* what it can run */
    uint32_t max_rows;    /* of one call */
    uint32_t max_context; /* positions: no drafting beyond */
    uint32_t max_passes;
    float *taps; /* where taps stay (backend.taps()); NULL: the engine has memory for them */
};

/* ---- scripts (tests) ------------------------------------------------------------------------------ */

/* Proposals by the number of output tokens there are when a round begins. */
struct draft_script_round {
    uint32_t at;
    uint32_t passes; /* drafter steps before it is ready; 0: at once */
    struct proposal proposal;
};
struct draft_script {
    struct draft_script_round *rounds; /* ascending `at`; outputs in between are decoded plainly */
    size_t n;
};
/* Reads {"at": 3, "tokens": [..], "parents": [..], "confidence": [..], "passes": 1} lines; parents
 * default to a chain.  Errors name file, line and field. */
int draft_script_read(const char *path, struct draft_script *ret, struct error *err);
void draft_script_done(struct draft_script *s);
