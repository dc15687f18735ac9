/* SPDX-License-Identifier: Apache-2.0 */
/* What the sampler's files share: the per-request state and the cut that says which ids are kept. */
#pragma once

#include "base/hash.h"
#include "engine/sampler.h"

#define SAMPLER_GREEDY_BELOW 1e-5f
#define SAMPLER_MAX_VOCAB    (1u << 21) /* sums of 2^42 each stay below 2^63 */

/* One id that is not treated like all others. */
struct sampler_entry {
    uint32_t id;
    uint32_t count; /* in the output */
    float bias;
    bool in_prompt;
    bool ends; /* EOS or a stop id: masked until min_tokens */
};

struct sampler {
    uint32_t vocab;
    float temperature, top_p, min_p;
    uint32_t top_k; /* 0 = off */
    double repetition, frequency, presence;
    bool penalties; /* any of the three is on: counts are kept */
    bool has_bias;
    uint64_t seed;
    size_t min_tokens, n_output;
    int32_t logprobs;

    struct sampler_entry *entries;
    size_t n_entries, cap_entries;
    struct u64map index; /* id -> index into entries */
    uint32_t *output;    /* committed ids, for rewinding; only with penalties */
    size_t cap_output;
    uint32_t *stop_ids; /* end the output: stop ids, and EOS unless ignored */
    size_t n_stop_ids;
};

/* Logits after bias, mask and penalties: `logits` itself when there is nothing to do, else `work`. */
const float *sampler_process(const struct sampler *s, const float *logits, float *work);

/* Kept: y > cut.y, or y == cut.y and id <= cut.id.  -inf is never kept. */
struct sampler_cut {
    float y;
    uint32_t id;
};

/* The ids that top_k, min_p and top_p leave of y[n], whose maximum is max. ids: n words of scratch. */
struct sampler_cut sampler_find_cut(const struct sampler *s, const struct dk_ops *ops,
                                    const float *y, float max, uint32_t *ids);
/* The k best ids of y[n] (value descending, then id ascending), -inf left out, in no order; returns
 * their number.  ids: n words. */
uint32_t sampler_top(const struct dk_ops *ops, const float *y, uint32_t n, uint32_t k,
                     uint32_t *ids);

/* Better = larger value, then lower id. */
static inline bool sampler_better(float ya, uint32_t a, float yb, uint32_t b)
{
    return ya > yb || (ya == yb && a < b);
}
/* Log-weight relative to the best: one subtraction, one product. */
static inline float sampler_z(float y, float max, float inv_t)
{
    return (y - max) * inv_t;
}
