/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's drafting: its resolved parameters, the phase of its round, the proposal that grows.
 * Inside of the engine; the scheduler calls, methods fill.
 */
#pragma once

#include "base/cleanup.h"
#include "engine/controller.h"
#include "engine/method.h"

struct engine;
struct request;
struct batch_entry;
struct drafting_state;
struct step;

#define DRAFTING_BACKLOG 16u

enum drafting_phase {
    DRAFTING_IDLE,   /* no round has begun */
    DRAFTING_PASSES, /* waits for drafter passes */
    DRAFTING_READY   /* the proposal may be verified */
};

struct drafting_state {
    struct drafting_params params; /* resolved: no field is 0 that may not be */
    enum drafting_phase phase;
    uint32_t wait;       /* scripted: passes still to wait */
    bool context;        /* a block drafter: target rows leave taps */
    uint32_t cursor;     /* all positions below have the drafter's context */
    uint32_t n_extended; /* rows of made-up context, from the anchor's position on */
    /* Taps of the last positions before the anchor that the drafter has not been given, rows of
     * engine.taps; auto only. */
    bool puts_off;
    const float *backlog[DRAFTING_BACKLOG];
    uint32_t backlog_pos, n_backlog;
    size_t script_at; /* next entry */
    struct draft_round round;
    struct proposal proposal;
    bool begun;        /* its drafts are on the device, and the proposal has their places */
    uint64_t round_ns; /* drafter time of this round */
    uint64_t seed;
    float temperature;
    struct auto_state automatic; /* DRAFT_AUTO */
    /* Rule B's buffers, [vocab] each, for drafts that are drawn; else NULL. */
    uint32_t *ids;
    double *probs, *weights;
    float *q; /* [window - 1][vocab], with a block drafter */
};

/* method.c: defaults filled in, auto decided. */
void drafting_resolve(const struct engine *e, struct drafting_params *p);

/* Checks p for a request of this engine and resolves it.  *ret stays NULL for plain decoding. */
int drafting_new(const struct engine *e, const struct drafting_params *p, uint64_t seed,
                 float temperature, struct drafting_state **ret, struct error *err);
struct drafting_state *drafting_free(struct drafting_state *d);
DEFINE_CLEANUP(struct drafting_state *, drafting_free);
/* A round that had begun is forgotten (preemption, commit). */
void drafting_reset(struct drafting_state *d);
/* Its blocks went away. */
void drafting_forget_context(struct engine *e, struct drafting_state *d);

/* Nodes of the proposal that waits to be verified. */
uint32_t drafting_nodes(const struct request *r);

/* What drafts in this round: never DRAFT_AUTO; DRAFT_AR when it was nothing. */
enum draft_method drafting_method(const struct drafting_state *d);
/* Its round is one of the drafter's passes. */
bool drafting_has_passes(const struct drafting_state *d);
/* Begins rounds of all decoding requests; nodes: room in the next target batch.  drafting_begin.c. */
void drafting_begin(struct engine *e, uint32_t nodes);
/* Does anybody wait for drafter passes? */
bool drafting_due(const struct engine *e);
/* One pass for everyone who waits, or as many as the drafter runs at once.  Negative: it failed. */
int drafting_step(struct engine *e, struct error *err);
/*
 * Instead of drafting_step(), where the drafter can: all passes of everyone who waits are enqueued, and the
 * target's batch behind them, fed with what they draft (e->feed), before anybody waits.  drafting_collect()
 * comes behind that batch, and has the time that the passes took in it.
 */
bool drafting_may_start(struct engine *e);
int drafting_start(struct engine *e, struct error *err);
int drafting_collect(struct engine *e, uint64_t *ret_ns, struct error *err);
/* Nobody asks for drafts that are on their way: the batch failed. */
void drafting_drop(struct engine *e);

/* drafting_context.c.  All positions of r below have the drafter's context. */
uint32_t drafting_cursor(struct engine *e, struct request *r);
/* Positions [*from, *from + n) of r that have K/V but no drafter context, n <= most; 0: none. */
uint32_t drafting_missing(struct engine *e, struct request *r, uint32_t most, uint32_t *ret_from);
/* Context of the rows of a target batch that stay: n entries. */
int drafting_inject(struct engine *e, uint32_t n, struct error *err);
/*
 * Rows that are not the target's own (features that a drafter has made up for what it drafted), behind
 * those that are, for a block that begins behind them.  The anchor's position is the mark: rows from there
 * on are rolled back, or gone with the next target batch.
 */
/* Adds n rows of [n_taps][hidden] features; INVALID when the context before them is not whole or there
 * is no room, CONTEXT_FULL without blocks: then nothing has changed. */
int drafting_extend(struct engine *e, struct request *r, const float *taps, uint32_t n,
                    struct error *err);
/* Rows that were added. */
uint32_t drafting_extended(const struct request *r);
/* Keeps the first `keep` of them. */
void drafting_roll_back(struct engine *e, struct request *r, uint32_t keep);
/* The next row of engine.taps from *at on that nobody holds; there is one for every row of a batch, whatever
 * backlogs and batches that are on their way hold. */
float *drafting_taps(const struct engine *e, uint32_t *at);
/* The next one for the batch that is formed, which holds it until drafting_give_taps(): it is committed, or nobody
 * wants it. */
float *drafting_take_taps(struct engine *e);
void drafting_give_taps(struct engine *e, const struct step *s);
