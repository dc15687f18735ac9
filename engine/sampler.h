/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From logits to a token.  Parameters have vLLM's names, meanings and order:
 * logit_bias -> min_tokens mask -> repetition -> frequency and presence penalties -> temperature ->
 * min_p -> top_k -> top_p -> softmax.  The draw is argmax(logp_v + gumbel_v) with noise keyed by
 * (seed, position, token id, stream), see engine/noise.h; ties go to the lower id.
 * Everything is a function of the true prefix, so speculation cannot change it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "kernels/kernels.h"

#define SAMPLING_MAX_LOGIT_BIAS   1024
#define SAMPLING_MAX_STOP_IDS     64
#define SAMPLING_MAX_STOP_STRINGS 64
#define SAMPLING_MAX_STOP_BYTES   256
#define SAMPLING_MAX_LOGPROBS     20

struct logit_bias {
    uint32_t token;
    float bias; /* -100..100 */
};
struct stop_string {
    const char *s; /* UTF-8, 1..SAMPLING_MAX_STOP_BYTES bytes */
    size_t len;
};
struct sampling_params {
    float temperature;        /* 0..100; below 1e-5: greedy */
    int32_t top_k;            /* 0 or -1: off; else 1.. */
    float top_p;              /* (0, 1] */
    float min_p;              /* [0, 1] */
    float repetition_penalty; /* (0, 100], 1 = off; ids in prompt or output */
    float frequency_penalty;  /* [-2, 2]; output only */
    float presence_penalty;   /* [-2, 2]; output only */
    uint64_t seed;
    bool has_seed;       /* false: the engine draws one per request and reports it */
    uint32_t max_tokens; /* 0: no tokens */
    uint32_t min_tokens; /* EOS and stop ids are masked before; stop strings not looked for */
    bool ignore_eos;
    int32_t logprobs; /* -1 none, 0..SAMPLING_MAX_LOGPROBS alternatives beside the chosen */
    const struct logit_bias *logit_bias;
    size_t n_logit_bias;
    const uint32_t *stop_ids;
    size_t n_stop_ids;
    const struct stop_string *stop;
    size_t n_stop;
    bool include_stop_in_output; /* the text keeps the stop string */
};
void sampling_params_init(struct sampling_params *p); /* temperature 1, everything off, 16 tokens */
/* Every range above, ids below vocab, NaN: DEDIT_E_INVALID naming the field, the value, the rule. */
int sampling_params_check(const struct sampling_params *p, uint32_t vocab, struct error *err);

struct token_logprob {
    uint32_t token;
    float logprob; /* natural log, of the model's raw logits (before penalties and temperature) */
};

/* Per-request state: counts of what has been seen. */
struct sampler;
/* Copies what it needs of *p.  eos: the model's EOS ids (masked by min_tokens).  work buffers of
 * `vocab` floats belong to the engine and are passed at each call. */
int sampler_new(const struct sampling_params *p, uint32_t vocab, const uint32_t *eos, size_t n_eos,
                struct sampler **ret, struct error *err);
struct sampler *sampler_free(struct sampler *s);
DEFINE_CLEANUP(struct sampler *, sampler_free);
int sampler_add_prompt(struct sampler *s, const uint32_t *ids, size_t n); /* 0 or NOMEM */
int sampler_commit(struct sampler *s, uint32_t id);                       /* 0 or NOMEM */
/* Forgets commits after the first n_output ones (rejected drafts of a trial walk). */
void sampler_rewind(struct sampler *s, size_t n_output);
size_t sampler_n_output(const struct sampler *s);
/* Ids whose logits the next choices change: bias, mask, penalties. */
size_t sampler_n_changed(const struct sampler *s);
/* Does this committed id end the output?  Stop ids, and EOS unless ignore_eos.  (min_tokens needs no
 * look here: such an id cannot be chosen before.) */
bool sampler_is_stop_id(const struct sampler *s, uint32_t id);

/*
 * Chooses the token at absolute position pos from logits[vocab] (unchanged).  work: vocab floats +
 * vocab uint32.  DEDIT_E_NUMERIC when any logit is NaN or +inf, or none is left above -inf; nothing
 * changes then.  lp: room for 1 + logprobs entries, or NULL: chosen token first, then the best ones
 * in descending order (ties: lower id), the chosen one again among them when it is one of the best.
 * Does not commit.
 */
int sampler_choose(const struct sampler *s, const struct dk_ops *ops, const float *logits,
                   uint64_t pos, float *work, uint32_t *work_ids, uint32_t *ret_token,
                   struct token_logprob *lp, uint32_t *ret_n_lp, struct error *err);
/* Why sampler_choose refuses logits, for those who choose elsewhere; the same error, NUMERIC. */
enum sampler_fault { SAMPLER_GOOD, SAMPLER_NAN, SAMPLER_INF, SAMPLER_NOTHING };
int sampler_refuse(enum sampler_fault f, uint32_t id, struct error *err);
/* Fills lp as sampler_choose does, for a token that something else chose out of good logits. */
void sampler_logprobs(const struct sampler *s, const struct dk_ops *ops, const float *logits,
                      uint32_t token, uint32_t *work_ids, struct token_logprob *lp,
                      uint32_t *ret_n_lp);
/* The whole distribution after all steps, in double; ids ascending, only non-zero entries (tests,
 * rejection sampling).  Returns their number. */
int sampler_probs(const struct sampler *s, const struct dk_ops *ops, const float *logits,
                  uint32_t *ids, double *probs, uint32_t *ret_n, struct error *err);

/* Stop rules, token by token on committed tokens (one code for plain and drafted rounds). */
enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };
const char *finish_reason_name(enum finish_reason r); /* "stop", "length", ... as OpenAI has them */
