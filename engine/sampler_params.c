/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling parameters: defaults, and every rule that a request's values must keep. */
#include "base/parse.h"
#include "engine/sampler.h"

/* The largest value of max_tokens and min_tokens: counts stay far from overflow. */
#define MAX_TOKENS_LIMIT (1u << 30)

void sampling_params_init(struct sampling_params *p)
{
    *p = (struct sampling_params){
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 16,
        .logprobs = -1,
    };
}

struct range {
    const char *field;
    float value;
    double lo, hi;
    bool open_lo; /* lo itself is not allowed */
};

static int check_range(const struct range *r, struct error *err)
{
    double v = (double)r->value;
    if (v >= r->lo && v <= r->hi && !(r->open_lo && v <= r->lo))
        return 0; /* a NaN fails the comparisons */
    char text[32], lo[32], hi[32];
    return ERR(err, INVALID, "%s is %s; it must be %s %s and at most %s", r->field,
               v != v ? "NaN" : format_double(v, text), r->open_lo ? "above" : "at least",
               format_double(r->lo, lo), format_double(r->hi, hi));
}

static int check_ids(const struct sampling_params *p, uint32_t vocab, struct error *err)
{
    if (p->n_logit_bias > SAMPLING_MAX_LOGIT_BIAS)
        return ERR(err, INVALID, "logit_bias has %zu entries; at most %d are allowed",
                   p->n_logit_bias, SAMPLING_MAX_LOGIT_BIAS);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const struct logit_bias *b = &p->logit_bias[i];
        if (b->token >= vocab)
            return ERR(err, INVALID, "logit_bias names token %u; the vocabulary has %u", b->token,
                       vocab);
        int r = check_range(&(struct range){"logit_bias", b->bias, -100, 100, false}, err);
        if (r < 0)
            return r;
        for (size_t j = 0; j < i; j++)
            if (p->logit_bias[j].token == b->token)
                return ERR(err, INVALID, "logit_bias names token %u twice", b->token);
    }
    if (p->n_stop_ids > SAMPLING_MAX_STOP_IDS)
        return ERR(err, INVALID, "stop_token_ids has %zu entries; at most %d are allowed",
                   p->n_stop_ids, SAMPLING_MAX_STOP_IDS);
    for (size_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] >= vocab)
            return ERR(err, INVALID, "stop_token_ids names token %u; the vocabulary has %u",
                       p->stop_ids[i], vocab);
    return 0;
}

static int check_stop(const struct sampling_params *p, struct error *err)
{
    if (p->n_stop > SAMPLING_MAX_STOP_STRINGS)
        return ERR(err, INVALID, "stop has %zu strings; at most %d are allowed", p->n_stop,
                   SAMPLING_MAX_STOP_STRINGS);
    for (size_t i = 0; i < p->n_stop; i++) {
        const struct stop_string *s = &p->stop[i];
        if (!s->s || s->len == 0)
            return ERR(err, INVALID, "stop[%zu] is empty; a stop string needs at least one byte",
                       i);
        if (s->len > SAMPLING_MAX_STOP_BYTES)
            return ERR(err, INVALID, "stop[%zu] has %zu bytes; at most %d are allowed", i, s->len,
                       SAMPLING_MAX_STOP_BYTES);
        if (!utf8_valid(s->s, s->len))
            return ERR(err, INVALID, "stop[%zu] is not valid UTF-8", i);
    }
    return 0;
}

int sampling_params_check(const struct sampling_params *p, uint32_t vocab, struct error *err)
{
    const struct range ranges[] = {
        {"temperature", p->temperature, 0, 100, false},
        {"top_p", p->top_p, 0, 1, true},
        {"min_p", p->min_p, 0, 1, false},
        {"repetition_penalty", p->repetition_penalty, 0, 100, true},
        {"frequency_penalty", p->frequency_penalty, -2, 2, false},
        {"presence_penalty", p->presence_penalty, -2, 2, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        int r = check_range(&ranges[i], err);
        if (r < 0)
            return r;
    }
    if (p->top_k < -1)
        return ERR(err, INVALID, "top_k is %d; it must be at least 1, or 0 or -1 for off",
                   p->top_k);
    if (p->logprobs < -1 || p->logprobs > SAMPLING_MAX_LOGPROBS)
        return ERR(err, INVALID, "logprobs is %d; it must be 0 to %d, or -1 for off", p->logprobs,
                   SAMPLING_MAX_LOGPROBS);
    if (p->max_tokens > MAX_TOKENS_LIMIT)
        return ERR(err, INVALID, "max_tokens is %u; at most %u are allowed", p->max_tokens,
                   MAX_TOKENS_LIMIT);
    if (p->min_tokens > p->max_tokens)
        return ERR(err, INVALID, "min_tokens is %u, above max_tokens, which is %u", p->min_tokens,
                   p->max_tokens);
    int r = check_ids(p, vocab, err);
    if (r < 0)
        return r;
    return check_stop(p, err);
}

const char *finish_reason_name(enum finish_reason r)
{
    switch (r) {
    case FINISH_NONE:
        return "none";
    case FINISH_STOP:
        return "stop";
    case FINISH_LENGTH:
        return "length";
    case FINISH_CANCELLED:
        return "cancelled";
    case FINISH_ERROR:
        return "error";
    }
    return "none";
}
