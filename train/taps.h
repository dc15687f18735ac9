/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target's features of training sequences: computed by the engine, divided by their size,
 * rounded to BF16; and, when asked for, what the target thinks of each next token.  A cache file
 * spares computing them again: what comes from it is the same bits.
 */
#pragma once

#include "engine/engine.h"
#include "train/data.h"
#include "train/ops.h"
#include "train/state.h"

struct taps;

struct taps_options {
    const char *target;
    unsigned threads;
    enum dk_tier tier;
    enum backend_dtype dtype;
    uint32_t n_taps;
    const uint32_t *tap_layers;
    uint32_t max_len, max_seqs; /* of a call */
    uint32_t soft_top;          /* 0: no probabilities */
    const int32_t *draft_ids;   /* [vocab]: which tokens have one; with soft_top */
    uint64_t memory_limit;      /* of the engine; 0: none */
    const char *cache;          /* file, or NULL */
    uint64_t cache_bytes;       /* at most; 0: no limit */
    uint64_t key;               /* of the data and all that the values depend on */
};
int taps_new(const struct taps_options *o, struct taps **ret, struct error *err);
struct taps *taps_free(struct taps *t);
DEFINE_CLEANUP(struct taps *, taps_free);
struct engine *taps_engine(struct taps *t);

/* For each of n samples (index: its number in the data): features of all positions but the last
 * into out[i], [s.n - 1][n_taps * hidden], times scale[tap].  soft_ids and soft: [s.n][soft_top]
 * or NULL.  par: threads that read the cache, at most those of the options. */
struct taps_want {
    uint64_t index;
    struct data_sample s;
    float *out;
    int32_t *soft_ids;
    float *soft;
};
int taps_get(struct taps *t, struct train_par *par, const struct taps_want *w, uint32_t n,
             const float *scale, struct error *err);
/* 1 / RMS of each tap over these samples. */
int taps_measure(struct taps *t, const struct data_sample *s, uint32_t n, float *ret_scale,
                 struct error *err);
/* So far: sequences from the cache, tokens computed, bytes in the cache. */
struct taps_counts {
    uint64_t hits, misses, tokens, cache_bytes;
};
void taps_get_counts(const struct taps *t, struct taps_counts *ret);
