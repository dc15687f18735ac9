/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands that make and change a drafter: fit trains one, widen continues with a longer block,
 * export writes a checkpoint as a drafter that the engine loads.  Options are filled in by the
 * command line; the defaults are those of the *_init functions.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/backend.h"
#include "engine/drafter_file.h"

/* What a step supervises: masked blocks and edited ones (ProposalMix), or masked ones alone. */
enum fit_objective { FIT_DEDIT, FIT_DFLASH };
/* Which rows of its block a row of an edit pass sees. */
enum fit_visibility { FIT_BIDIRECTIONAL, FIT_CAUSAL };
/* What edit passes are shown: proposals with confident positions replaced by the truth
 * (ProposalMix), or the proposals as they are. */
enum fit_mix { FIT_PROPOSAL_MIX, FIT_PROPOSALS };
/* Where the edit passes' proposals and their training come from; for experiments. */
enum fit_init { FIT_INIT_TARGET, FIT_INIT_RANDOM };

struct fit_options {
    const char *target;      /* path of the model that is drafted for */
    const char *const *data; /* JSONL shards */
    uint32_t n_data;
    const char *out;  /* folder of checkpoints and metrics.csv; made when absent */
    const char *from; /* checkpoint, run or drafter to start from with a fresh schedule; or NULL */
    bool restart;     /* do not resume from what `out` holds: refuse when it holds anything */

    /* Shape; 0: as the target's. */
    uint32_t layers; /* 0: two */
    uint32_t ffn, heads, kv_heads, head_dim;
    uint32_t taps[DRAFTER_MAX_TAPS], n_taps; /* n_taps 0: five, spread evenly */
    uint32_t window;                         /* rows of a block, the anchor included; default 8 */
    uint32_t draft_vocab;                    /* most frequent response tokens; 0: all tokens */
    uint32_t mask_token;                     /* FIT_MASK_AUTO: an id that the data never has */
    enum fit_init init;

    enum fit_objective objective;
    enum fit_visibility visibility;
    enum fit_mix mix;
    float eta, gamma, p2_weight; /* defaults 0.5, window / 2, 1 */
    float distill;               /* share of the target's probabilities in the labels; default 0 */
    uint32_t distill_top;        /* how many of them; default 16 */

    uint64_t steps;   /* default 5000 */
    uint64_t p1_only; /* first steps without edit passes; default 0.3 of steps */
    uint32_t batch;   /* sequences of a step; default 8 */
    uint32_t anchors; /* of a sequence; default 32 */
    uint32_t max_len; /* tokens of a sequence that are used; default 1024 */
    float lr, norm_lr, beta1, beta2, weight_decay, clip,
        warmup;     /* 1.3e-3, 5 x, .9, .95, 0, 1, .04 */
    float average;  /* decay of the averaged weights; 0: none; default 0.999 */
    float held_out; /* share of the sequences that is never trained on; default 0.05 */
    uint64_t seed;

    const char *cache;     /* file for the target's features; NULL: computed anew each time */
    uint64_t cache_bytes;  /* its size at most; 0: whatever the data need */
    uint64_t memory_limit; /* bytes; 0: none */
    unsigned threads;      /* 0: CPUs of the affinity mask */
    enum dk_tier tier;
    bool bf16;                 /* products of BF16-rounded factors where the machine has them */
    enum backend_dtype dtype;  /* of the target */
    uint32_t checkpoint_every; /* seconds; default 600 */
    uint32_t keep;             /* checkpoints kept; default 2 */
    uint32_t report_every;     /* steps between lines of metrics.csv; default 10 */
    uint64_t stop_after;       /* steps of this run, for tests; 0: all */
    bool quiet;                /* no terminal line */
    const volatile sig_atomic_t *stop; /* set by SIGTERM and SIGINT: checkpoint, then end */
};
/* As --dtype has it: "file", "bf16" */
const char *train_dtype_name(enum backend_dtype t);
#define FIT_MASK_AUTO UINT32_MAX
void fit_options_init(struct fit_options *o);

/* 0: all steps are done; 1: stopped by *o->stop, a checkpoint was written. */
int train_fit(const struct fit_options *o, struct error *err);
/* The same from o->from with a block of twice its rows: fewer anchors, a fresh and smaller learning rate.
 * window 0, steps and anchors WIDEN_DEFAULT and lr below 0, as widen_options_init() has them, stand for
 * defaults that depend on what is there. */
#define WIDEN_DEFAULT UINT32_MAX
void widen_options_init(struct fit_options *o);
int train_widen(const struct fit_options *o, struct error *err);

enum export_form { EXPORT_HF, EXPORT_GGUF };
struct export_options {
    const char *from;   /* a checkpoint, a run's folder (its newest one), or a drafter to rewrite */
    const char *target; /* path of the model, for its configuration */
    const char *out;    /* folder (HF) or file (GGUF); must not exist, unless `force` */
    enum export_form form;
    enum backend_dtype dtype; /* BF16 (default), F32, or Q8_0 (GGUF alone) */
    bool last;                /* the last weights, not the averaged ones */
    bool force;
};
void export_options_init(struct export_options *o);
int train_export(const struct export_options *o, struct error *err);
