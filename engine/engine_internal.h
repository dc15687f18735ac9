/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the engine: the object, its requests, and what engine.c, feed.c, request.c, scheduler.c
 * and commit.c say to each other.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "engine/calibrate.h"
#include "engine/drafter.h"
#include "engine/drafting.h"
#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/round.h"
#include "engine/seq.h"
#include "engine/stop.h"

enum request_state {
    REQUEST_WAITING, /* in the queue; may hold KV when it comes back from parking */
    REQUEST_RUNNING, /* takes part in batches: prefill while tokens wait to be fed, then rounds */
    REQUEST_PARKED,  /* its reader is full; keeps its KV as long as nobody needs it */
    REQUEST_DONE
};

struct request {
    struct engine *engine;           /* NULL once the engine is gone */
    struct request *next, *prev;     /* all requests that were not freed */
    struct request *q_next, *q_prev; /* the waiting queue or the parked list */
    void *user;
    struct engine_sink sink;
    enum request_state state;
    int32_t priority;
    uint64_t order; /* of arrival */
    bool preempted; /* waits for room up to its longest length, so that it is not sent away again */
    bool counted;   /* its prompt is in the statistics */
    bool want_text, want_rounds;
    uint64_t n_rounds; /* done so far */
    unsigned detok_flags;
    /* Of the step that is being formed: rows, the drafted ones among them, and positions that are
     * fed again for the drafter's sake. */
    uint32_t planned, nodes, again_from, again;
    struct drafting_state *drafting; /* NULL: plain decoding */
    uint32_t cohort;                 /* of a running one: whose batches it takes part in */

    struct seq seq;
    uint32_t n_prompt;
    uint32_t max_total; /* prompt + output, at most */
    uint32_t max_tokens, min_tokens;
    bool include_stop;
    int32_t n_logprobs; /* as in sampling_params */
    struct sampler *sampler;
    struct stop_matcher *stop; /* NULL without stop strings */
    struct detokenizer detok;

    enum finish_reason ending; /* set by the token that ended it, until the end is told */
    bool stop_is_id;
    uint32_t stop_id;

    uint64_t t_submit;
    struct engine_usage usage;
};

/* One request's share of a batch. */
struct batch_entry {
    struct request *r; /* NULL: it has ended, or was sent away, while the batch was on its way */
    uint32_t row0, n_rows;
    uint32_t n_nodes;          /* drafted rows, behind the anchor's */
    bool again;                /* positions that have K/V are fed again, for their taps */
    uint32_t logit0, n_logits; /* its rows of e->logits; none: a chunk that does not end a prompt */
    uint32_t n_choices;        /* in e->choices + logit0 */
    bool drawn;                /* the backend has chosen, into e->drawn + logit0 */
    struct fwd_path *path;     /* it walks, too; NULL: only the host does */
    struct error error;        /* why the walk ended early, if code != 0 */
};

/*
 * A batch of one cohort, from its forming to its commit: what others may not use meanwhile.  Every request takes part
 * in one cohort's batches at a time.
 */
struct step {
    uint32_t lane;                     /* of the backend */
    struct fwd_row *rows;              /* [max_num_batched_tokens] */
    struct batch_entry *entries;       /* [2 * max_num_seqs] */
    struct fwd_draw *draws;            /* [max_num_seqs]; NULL where the host chooses */
    struct draft_entry *draft_entries; /* [max_num_seqs] */
    struct request **begun;            /* [max_num_seqs] whose they are; NULL: it has ended */
    uint32_t n_rows, n_entries, n_logits, n_draws, n_draw_changes;
    uint32_t n_begun;            /* draft_entries whose drafts the batch is fed with */
    struct cost_load draft_load; /* theirs */
    uint32_t draft_steps;        /* since the cohort's last batch */
    bool drafts;                 /* passes were enqueued before it */
    bool flies;                  /* it is on its way: nobody has waited */
    uint64_t t0;                 /* its passes, or it, began */
};
#define ENGINE_COHORTS 2u

struct engine {
    struct engine_config cfg;
    struct model_file *file;
    struct tokenizer *tokenizer;
    const struct model_config *model;
    struct seq_space space; /* pool, backend, its model */
    const struct dk_ops *ops;
    struct engine_load_timing timing;
    char class_name[64];
    uint32_t limit; /* positions of one sequence: context and pool, whichever is less */

    /* Buffers of a step, sized at load. */
    struct step steps[ENGINE_COHORTS];
    struct step *at;      /* the one that is formed, run or committed */
    uint32_t n_cohorts;   /* 2, or 1: there is never another */
    uint32_t turn;        /* whose batch is next */
    struct fwd_row *rows; /* [max_num_batched_tokens] of bare sequences */
    float *logits;        /* [n_logits_rows][vocab], of batches that are waited for at once */
    size_t logits_bytes;
    uint32_t n_logits_rows;
    struct choice *choices; /* [n_logits_rows] */
    /* Where the backend chooses: what it said, when the batch is there. */
    struct fwd_choice *drawn; /* [n_logits_rows] */
    struct fwd_path *paths;   /* [max_num_seqs] by draw, where it walks */
    uint32_t *tails;          /* paths of trees, [n_logits_rows][DK_KV_BLOCK + ROUND_MAX_ROWS] */
    size_t n_tails;           /* used in this step */
    /* Drafting with a drafter. */
    struct drafter *own_drafter;  /* loaded with the engine; NULL: none, or a test's */
    struct block_drafter drafter; /* ops NULL: none is loaded */
    float *taps;    /* rows of [n_taps * hidden]: those of a batch, and those that backlogs hold */
    void *own_taps; /* memory for them; NULL: the drafter has it */
    size_t taps_bytes;
    uint8_t *taps_held; /* [rows] TAPS_...: by a backlog, or a batch that is not committed */
    uint32_t n_taps_held, taps_at; /* by backlogs; of the batch that is formed: the next row */
    struct draft_context *context; /* rows of a batch, and all backlogs */
    uint32_t *feed; /* [max_num_batched_tokens], fwd_batch.feed; NULL where no batch can be fed */
    struct fwd_tree *trees; /* [max_num_seqs] of it; NULL likewise */
    uint32_t n_trees;
    struct controller controller;
    struct calibration *calibration; /* under way, or NULL */
    bool calibrated;                 /* it is done, or its result was read */
    char device_note[576];           /* engine_device_note(), or empty */
    char *costs_dir, *costs_key;     /* where costs are kept; NULL: nowhere */
    struct error costs_error;        /* why the file could not be used, or kept */
    struct candidate *candidates;    /* [max_num_seqs] */
    /* The sampler's, [threads][vocab] each. */
    float *work;
    uint32_t *work_ids;
    unsigned n_samplers;

    struct request *all;
    uint32_t n_empty; /* waiting requests with max_tokens 0 */
    struct request *wait_head, *wait_tail;
    struct request *park_head;
    struct request **running; /* [max_num_seqs], by rank: best first */
    uint32_t n_running, n_waiting, n_parked;
    struct request **members; /* those of the cohort whose turn it is, likewise */
    uint32_t n_members;
    uint64_t next_order;
    struct engine_stats stats;

    /* The commit that is being made (commit.c). */
    uint32_t n_commit;
    struct strbuf text, piece;
    struct engine_token tokens[ROUND_MAX_TOKENS];
    size_t text_at[ROUND_MAX_TOKENS];
    struct token_logprob logprobs[ROUND_MAX_TOKENS][1 + SAMPLING_MAX_LOGPROBS];
};

/* engine.c: blocks that n positions need. */
static inline uint32_t engine_blocks_for(uint64_t positions)
{
    return (uint32_t)((positions + DK_KV_BLOCK - 1) / DK_KV_BLOCK);
}

/* scheduler.c */
/* Requests that wait begin to run, as far as there is room. */
void scheduler_admit(struct engine *e);
/* Rows that drafts of e->members may have in their batch: prompts keep half of it. */
uint32_t scheduler_draft_room(const struct engine *e);
/* Forms the batch of e->members, e->at; negative when the backend failed. */
int scheduler_form(struct engine *e, struct error *err);

/* cohorts.c */
/* A cohort for a request that begins to run. */
void cohorts_join(struct engine *e, struct request *r);
/* Who takes part in the batch of e->turn, into e->members: 0 when nobody does, or all are to wait until the other
 * one's is there.  Nothing of e->turn is on its way. */
uint32_t cohorts_gather(struct engine *e);
/* Is no batch on its way?  Else the clock, between a call and its end, measures more than the call. */
bool cohorts_alone(const struct engine *e);
/* Will another cohort's batch be there while this one's is on its way? */
bool cohorts_overlap(const struct engine *e);
/* r has ended, or given its K/V away: nothing that is on its way is for it, and it may begin anew at once. */
void cohorts_drop(struct engine *e, struct request *r);

/* step.c */
/* Entries of a batch that is there whose requests still want it come together; their number. */
uint32_t step_compact(struct step *s);

/* engine_costs.c */
int engine_costs_read(struct engine *e, struct error *err);
void engine_costs_keep(struct engine *e);

/* Buffers that a drafter needs; e->drafter is set. */
int engine_drafting_buffers(struct engine *e, struct error *err);

/* request.c */
/* Best first: smaller priority, then earlier arrival. */
bool request_before(const struct request *a, const struct request *b);
void request_enqueue(struct request *r); /* WAITING, by rank */
void request_park(struct request *r);
/* Out of whatever list it is in; the state is the caller's to set. */
void request_unlist(struct request *r);
/* Takes the KV away; a running request goes back to the queue. */
void request_preempt(struct request *r);
/* The end, in any state: KV and lists are given back, then `finished` is called. */
void request_finish(struct request *r, enum finish_reason reason, const struct error *error);
void request_cancel_all(struct engine *e);

/* commit.c: tokens one by one, the same for every method. */
void commit_begin(struct engine *e);
/*
 * Token id is the target's choice at the end of r; lp (n_lp entries, chosen first) may be NULL.
 * Appends it, releases text, looks at every rule that ends a request.  Returns 0 to go on, 1 when
 * the request has ended with this token, negative when it ended with an error (out of memory).
 */
int commit_token(struct request *r, uint32_t id, uint32_t flags, const struct token_logprob *lp,
                 uint32_t n_lp);
/* Delivers the tokens of this commit and, after them, the end.  error: the request ends with it
 * (NULL: as commit_token found).  r may be done or parked when it returns. */
void commit_end(struct request *r, const struct error *error);
