/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: one loaded model, its sequences, and the step loop.  No sockets, no threads of its own
 * beside the kernels' pool; every call from the one thread that owns it, but for engine_cancel-like
 * wishes, which the owner's queue carries.
 *
 * Life of a request: engine_submit -> WAITING -> PREFILL -> (DRAFT -> EDIT...)* VERIFY ... -> done.
 * Each engine_step() forms one batch (prefill chunks and decode rows of many requests), runs it,
 * commits, and reports through the request's callbacks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/backend.h"
#include "engine/chat.h"
#include "engine/method.h"
#include "engine/model_file.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"

struct engine;
struct request;

struct engine_config {
    unsigned n_threads; /* 0: all CPUs allowed */
    const char *device; /* engine/device.h; NULL: the CPU; read at load only */
    enum dk_tier tier;
    bool exact, fast; /* see backend_options; not both */
    enum backend_dtype dtype;
    enum dk_kv_type kv_type;         /* default DK_KV_F32 */
    uint64_t kv_bytes;               /* pool size; 0: room for max_context positions, at least */
    uint32_t n_kv_blocks;            /* or directly; 0: from kv_bytes */
    uint32_t max_context;            /* positions per sequence; 0: the model's, at most 8192 */
    uint32_t max_num_seqs;           /* running at once; default 64 */
    uint32_t max_num_batched_tokens; /* rows of a step; default 512 */
    uint32_t prefill_chunk;          /* prompt rows of one request per step; default 256 */
    uint32_t max_queued;             /* waiting requests; default 1024 */
    /* On a device, with a drafter: 2, two cohorts of requests, one of them drafted for while the target verifies
     * the other; 1, the default, all in one batch. */
    uint32_t cohorts;
    uint32_t cohort_seqs;       /* drafted requests, from which on there are two; default 2 */
    bool enable_prefix_caching; /* default true */
    uint64_t memory_limit;      /* bytes; 0: none.  Refused before load, with the numbers */
    bool synthetic;             /* benchmarks: allow drafting_params.acceptance */
    const char *drafter;        /* path of a drafter for this model, or NULL; read at load only */
    enum backend_dtype drafter_dtype;
    const char
        *costs_dir; /* folder where measured costs are kept; NULL: nowhere; read at load only */
    struct model_file *take_drafter; /* engine_new_textless() alone: an open drafter, taken */
};
void engine_config_init(struct engine_config *c);

struct engine_load_timing { /* seconds */
    double open, vocabulary, pack, kv, first_prefill;
};

/* Loads the model at path.  progress may be NULL. */
int engine_new(const char *path, const struct engine_config *c,
               void (*progress)(void *arg, const char *phase, uint64_t done, uint64_t total),
               void *arg, struct engine **ret, struct error *err);
/*
 * Whether loading this model so would succeed, as far as that is known before memory is taken: its configuration, the
 * device, the sizes, the vocabulary.  *ret_key is the key of dedit.conf that is wrong ("path" for the file itself,
 * "memory_limit" for the whole).
 */
struct model_file;
int engine_check(struct model_file *f, const struct engine_config *c, const char **ret_key,
                 struct error *err);
/* Around an opened model, which is taken over also when this fails, and without its tokenizer: every
 * token's text is empty.  For models that have none, such as those of engine/model_random.h. */
int engine_new_textless(struct model_file *take, const struct engine_config *c,
                        struct engine **ret, struct error *err);
struct engine *engine_free(struct engine *e); /* outstanding requests are cancelled first */
DEFINE_CLEANUP(struct engine *, engine_free);

const struct model_config *engine_model_config(const struct engine *e);
const struct engine_config *engine_get_config(const struct engine *e); /* with defaults resolved */
const struct tokenizer *engine_tokenizer(const struct engine *e); /* NULL: engine_new_textless() */
/* The model's chat format; UNSUPPORTED when its template is unknown. */
int engine_chat_format(const struct engine *e, enum chat_format *ret, struct error *err);
const char *engine_model_name(const struct engine *e);
/* What the drafter's file says, or NULL: there is none. */
const struct drafter_config *engine_drafter_config(const struct engine *e);
const char *engine_drafter_name(const struct engine *e); /* NULL without one */
const char *engine_class(
    const struct engine *e); /* "exact", "amx-bf16", "cuda-mma" or "cuda-fast", with the kv type */
const char *engine_device(const struct engine *e); /* "cpu" or "cuda" */
/* How and why the model computes otherwise than "auto" looked for ("computes on the CPU: ..."), or NULL. */
const char *engine_device_note(const struct engine *e);
void engine_memory(const struct engine *e, struct backend_memory *ret);
void engine_timing(const struct engine *e, struct engine_load_timing *ret);
const struct dk_ops *engine_ops(const struct engine *e);

/*
 * What calls cost on this machine is what the method `auto` decides by.  It is read from costs_dir, or
 * measured while nobody waits: call this when engine_step() has returned 0, one measurement each (one
 * batch), until it returns 0 itself.  Returns 1 when there are more, negative when the backend failed.
 * The result is kept when it is there and, refined, by engine_free().
 */
int engine_calibrate(struct engine *e, struct error *err);
/* Time of one such call, median of `times` (at most 31): a target batch of so many rows of one request, a
 * drafter pass of one block, context of so many rows.  INVALID when this engine cannot run it. */
enum engine_call { ENGINE_CALL_TARGET, ENGINE_CALL_DRAFTER, ENGINE_CALL_INJECT };
int engine_time_call(struct engine *e, enum engine_call call, uint32_t rows, uint32_t context,
                     uint32_t times, uint64_t *ret_ns, struct error *err);
/* Why the file of costs could not be read or written: once, then NULL again. */
const char *engine_costs_problem(struct engine *e, struct error *buf);

/* ---- requests ---------------------------------------------------------------------------------- */

struct engine_token {
    uint32_t id;
    uint32_t flags;   /* ENGINE_TOKEN_* */
    const char *text; /* whole UTF-8 released by this token; may be empty */
    size_t text_len;
    const struct token_logprob *logprobs; /* n_logprobs entries, chosen first */
    uint32_t n_logprobs;
};
enum { ENGINE_TOKEN_DRAFTED = 1, ENGINE_TOKEN_EDITED = 2, ENGINE_TOKEN_BONUS = 4 };

/* What drafting did for a request.  A round counts when at least one drafted token was verified;
 * tokens behind the end of the output are not counted anywhere. */
struct engine_drafting {
    enum draft_method method; /* the one used */
    bool synthetic;           /* acceptance was made up: the tokens are not the model's */
    uint64_t rounds, plain_rounds,
        prefill_tokens;         /* committed + plain_rounds + prefill_tokens = output */
    uint64_t drafted, accepted; /* nodes verified; of them, committed */
    uint64_t committed;         /* by rounds, bonus included: tau = committed / rounds */
    uint64_t passes;            /* of the drafter */
    uint64_t edits_helpful,
        edits_harmful;            /* tokens of the path that editing made right, or wrong */
    uint64_t draft_ns, verify_ns; /* steps that it took part in */
    uint64_t committed_by[DRAFT_METHOD_COUNT]; /* committed, by what drafted the round */
    uint32_t accepted_at[PROPOSAL_MAX_DEPTH];  /* rounds that accepted more than i drafts */
    uint32_t accepted_after[DRAFT_MAX_PASSES]; /* drafts agreeing with the text, by pass */
};

/* What most tokens came from: DRAFT_AR when none was drafted, never DRAFT_AUTO. */
enum draft_method engine_main_method(const struct engine_drafting *d);

struct engine_usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t queued_ns, prefill_ns, first_token_ns, total_ns; /* since submit */
    uint32_t preemptions;
    uint64_t seed; /* the one used */
    struct engine_drafting drafting;
};
struct engine_finish {
    enum finish_reason reason;
    const char *stop_text; /* the stop string met, or NULL */
    uint32_t stop_id;      /* the stop token met, valid when stop_is_id */
    bool stop_is_id;
    const char *text; /* text still held back when the stream ended */
    size_t text_len;
    struct engine_usage usage;
    const struct error *error; /* with FINISH_ERROR */
};

/* One round, told before its tokens.  Pointers are valid during the call only. */
struct engine_round {
    uint64_t round; /* of this request, from 0 */
    enum draft_method method;
    uint32_t window, passes;         /* of a block drafter; passes 0: none */
    uint32_t committed;              /* tokens, bonus included */
    uint32_t accepted;               /* drafts among them */
    const struct proposal *proposal; /* what was verified; n may be 0 */
    /* Of a block drafter: each pass's tokens, the drafter's confidence in them, and how many of them
     * agree from the first on with what was committed. */
    const uint32_t (*tokens)[DRAFT_MAX_WINDOW - 1];
    const float (*confidence)[DRAFT_MAX_WINDOW - 1];
    const uint32_t *accepted_after;
    uint64_t draft_ns, verify_ns;
};

/* How the engine gives tokens away.  Called inside engine_step / engine_cancel; must not call back
 * into the engine except engine_cancel.  Pointers are valid during the call only. */
struct engine_sink {
    /* Tokens of one commit, in order.  Returns 0, or 1 to park the request (reader is full): it then
     * keeps its KV and leaves the batch until engine_resume. */
    int (*tokens)(void *arg, struct request *r, const struct engine_token *t, size_t n);
    void (*finished)(void *arg, struct request *r, const struct engine_finish *f); /* once, last */
    /* With drafting.want_rounds: before tokens().  May be NULL. */
    void (*round)(void *arg, struct request *r, const struct engine_round *round);
    void *arg;
};

struct engine_request {
    const uint32_t *prompt; /* 1.. ids below vocab_size */
    size_t n_prompt;
    struct sampling_params sampling;
    struct drafting_params drafting;
    struct engine_sink sink;
    int32_t priority;      /* lower runs first, as in vLLM */
    uint64_t namespace_id; /* prefix cache namespace (uid or salt) */
    bool skip_special;     /* control tokens give no text (default wish of callers) */
    bool want_tokens_text; /* fill engine_token.text */
};
/* Queues a request.  Errors name the field: ids outside the vocabulary, empty prompt, a prompt that
 * leaves no position to generate into (both numbers), queue full (BUSY).  max_tokens 0 finishes in
 * the next step, without any work. */
int engine_submit(struct engine *e, const struct engine_request *q, struct request **ret,
                  struct error *err);
/* Are these wishes right for this model?  Reads only what is constant once loaded: any thread. */
int engine_check_drafting(const struct engine *e, const struct drafting_params *p,
                          struct error *err);
/* Memory that these wishes take for a request's time beside what every request has: rule B with drawn
 * drafts keeps their distributions. */
uint64_t engine_drafting_bytes(const struct engine *e, const struct drafting_params *p,
                               float temperature);
/* Ends a request in any phase; its finished callback runs now, its KV is free on return.  Handle
 * stays valid until request_free.  Late calls are no-ops. */
void engine_cancel(struct engine *e, struct request *r);
void engine_resume(struct engine *e, struct request *r); /* a parked request may go on */
struct request *request_free(struct request *r); /* after finished; running ones are cancelled */
void *request_user(const struct request *r);
void request_set_user(struct request *r, void *user);

/* Runs one batch; with two cohorts, waits for the one that was enqueued first and enqueues the next one.  1: more
 * work is waiting; 0: idle or everything parked; negative: the backend failed (every running request of
 * the batch's cohort, without cohorts every one, has been finished with FINISH_ERROR). */
int engine_step(struct engine *e, struct error *err);

struct engine_stats {
    uint32_t running, waiting, parked;
    uint32_t kv_blocks, kv_blocks_free, kv_blocks_cached;
    uint64_t steps, prompt_tokens, generation_tokens, cached_tokens, prefix_queries, preemptions;
    uint64_t finished[8]; /* by finish_reason */
    /* steps = target batches; draft_steps = drafter batches.  Sums over requests, ended or not: */
    uint64_t draft_steps, draft_rounds, drafted_tokens, accepted_tokens, recontext_tokens;
};
void engine_get_stats(const struct engine *e, struct engine_stats *ret);

/* ---- direct evaluation (checks, training, benchmarks) ------------------------------------------- */

/* A bare sequence: tokens that were fed, and their KV.  Shares the pool with requests. */
struct seq;
int engine_seq_new(struct engine *e, struct seq **ret, struct error *err);
int engine_seq_fork(struct engine *e, const struct seq *s, struct seq **ret, struct error *err);
struct seq *engine_seq_free(struct engine *e, struct seq *s);
uint32_t engine_seq_len(const struct seq *s);
/* Drops everything after the first n tokens. */
void engine_seq_truncate(struct engine *e, struct seq *s, uint32_t n);

/* Feeds n tokens to the end of s.  logits: row i at logits + i * vocab for the last n_logits rows, or
 * NULL; taps: [n][n_taps][hidden] or NULL.  Several entries make one batch (as many forward calls
 * as max_num_batched_tokens asks for); CONTEXT_FULL leaves all as they were. */
struct engine_feed {
    struct seq *seq;
    const uint32_t *tokens;
    size_t n;
    float *logits;
    size_t n_logits;
    float *taps;
};
int engine_feed(struct engine *e, struct engine_feed *f, size_t n_feeds, const uint32_t *tap_layers,
                uint32_t n_taps, struct error *err);
/* Feeds a tree after the end of s without committing it: node i has parent[i] < i or -1 (the last
 * token of s); logits and taps for every node, [n][vocab].  Then keep: the nodes of one path, in
 * order, become part of s (their K/V are compacted); the others are dropped. */
int engine_feed_tree(struct engine *e, struct seq *s, const uint32_t *tokens, const int32_t *parent,
                     uint32_t n, float *logits, const uint32_t *tap_layers, uint32_t n_taps,
                     float *taps, struct error *err);
int engine_keep(struct engine *e, struct seq *s, const uint32_t *nodes, uint32_t n_nodes,
                struct error *err);
