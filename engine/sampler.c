/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's sampler: what has been seen so far, and logits after everything that depends on it
 * (bias, mask of ending tokens, penalties).
 *
 * Only ids that are special in some way have an entry; all others keep their logit.  An entry's new
 * value is computed in double and rounded once, so huge logits neither overflow nor lose their
 * order among each other before the last step.
 */
#include "engine/sampler_internal.h"

#include <float.h>
#include <string.h>

#include "base/alloc.h"

/* The entry of id, made when it is new; NULL when out of memory (nothing has changed then). */
static struct sampler_entry *entry_get(struct sampler *s, uint32_t id)
{
    uint64_t at;
    if (u64map_get(&s->index, id, &at))
        return &s->entries[at];
    if (s->n_entries == s->cap_entries) {
        size_t cap = s->cap_entries ? s->cap_entries * 2 : 16;
        void *p = mem_realloc_array(s->entries, cap, sizeof(*s->entries));
        if (!p)
            return NULL;
        s->entries = p;
        s->cap_entries = cap;
    }
    if (u64map_put(&s->index, id, s->n_entries) < 0)
        return NULL;
    struct sampler_entry *e = &s->entries[s->n_entries++];
    *e = (struct sampler_entry){.id = id};
    return e;
}

static int add_ends(struct sampler *s, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= s->vocab)
            continue; /* an EOS id without a row can never come */
        struct sampler_entry *e = entry_get(s, ids[i]);
        if (!e)
            return DEDIT_E_NOMEM;
        e->ends = true;
    }
    return 0;
}

int sampler_new(const struct sampling_params *p, uint32_t vocab, const uint32_t *eos, size_t n_eos,
                struct sampler **ret, struct error *err)
{
    int r = sampling_params_check(p, vocab, err);
    if (r < 0)
        return r;
    if (vocab == 0 || vocab > SAMPLER_MAX_VOCAB)
        return ERR(err, LIMIT, "the vocabulary has %u entries; 1 to %u are allowed", vocab,
                   SAMPLER_MAX_VOCAB);
    _cleanup_(sampler_freep) struct sampler *s = mem_zalloc(sizeof(*s));
    if (!s || u64map_init(&s->index, 16) < 0)
        return ERR_NOMEM(err);
    s->vocab = vocab;
    s->temperature = p->temperature;
    s->top_p = p->top_p;
    s->min_p = p->min_p;
    s->top_k = p->top_k > 0 && (uint32_t)p->top_k < vocab ? (uint32_t)p->top_k : 0;
    s->repetition = (double)p->repetition_penalty;
    s->frequency = (double)p->frequency_penalty;
    s->presence = (double)p->presence_penalty;
    s->penalties = s->repetition != 1 || s->frequency != 0 || s->presence != 0;
    s->has_bias = p->n_logit_bias > 0;
    s->seed = p->seed;
    s->min_tokens = p->min_tokens;
    s->logprobs = p->logprobs;
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        struct sampler_entry *e = entry_get(s, p->logit_bias[i].token);
        if (!e)
            return ERR_NOMEM(err);
        e->bias = p->logit_bias[i].bias;
    }
    if (s->min_tokens > 0 &&
        (add_ends(s, eos, n_eos) < 0 || add_ends(s, p->stop_ids, p->n_stop_ids) < 0))
        return ERR_NOMEM(err);
    s->n_stop_ids = p->n_stop_ids + (p->ignore_eos ? 0 : n_eos);
    s->stop_ids = mem_array(s->n_stop_ids + 1, sizeof(*s->stop_ids));
    if (!s->stop_ids)
        return ERR_NOMEM(err);
    if (p->n_stop_ids)
        memcpy(s->stop_ids, p->stop_ids, p->n_stop_ids * sizeof(*s->stop_ids));
    if (!p->ignore_eos && n_eos)
        memcpy(s->stop_ids + p->n_stop_ids, eos, n_eos * sizeof(*s->stop_ids));
    *ret = TAKE_PTR(s);
    return 0;
}

struct sampler *sampler_free(struct sampler *s)
{
    if (!s)
        return NULL;
    u64map_done(&s->index);
    mem_free(s->entries);
    mem_free(s->output);
    mem_free(s->stop_ids);
    mem_free(s);
    return NULL;
}

int sampler_add_prompt(struct sampler *s, const uint32_t *ids, size_t n)
{
    if (s->repetition == 1)
        return 0; /* the only penalty that looks at the prompt */
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= s->vocab)
            continue;
        struct sampler_entry *e = entry_get(s, ids[i]);
        if (!e)
            return DEDIT_E_NOMEM;
        e->in_prompt = true;
    }
    return 0;
}

int sampler_commit(struct sampler *s, uint32_t id)
{
    if (s->penalties) {
        if (s->n_output == s->cap_output) {
            size_t cap = s->cap_output ? s->cap_output * 2 : 64;
            void *p = mem_realloc_array(s->output, cap, sizeof(*s->output));
            if (!p)
                return DEDIT_E_NOMEM;
            s->output = p;
            s->cap_output = cap;
        }
        struct sampler_entry *e = entry_get(s, id);
        if (!e)
            return DEDIT_E_NOMEM;
        e->count++;
        s->output[s->n_output] = id;
    }
    s->n_output++;
    return 0;
}

void sampler_rewind(struct sampler *s, size_t n_output)
{
    while (s->n_output > n_output) {
        s->n_output--;
        uint64_t at;
        if (s->penalties && u64map_get(&s->index, s->output[s->n_output], &at))
            s->entries[at].count--;
    }
}

size_t sampler_n_output(const struct sampler *s)
{
    return s->n_output;
}

/* Is any logit to be changed? */
static bool changes(const struct sampler *s)
{
    return s->penalties || s->has_bias || s->n_output < s->min_tokens;
}

size_t sampler_n_changed(const struct sampler *s)
{
    return changes(s) ? s->n_entries : 0;
}

bool sampler_is_stop_id(const struct sampler *s, uint32_t id)
{
    for (size_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

static float adjust(const struct sampler *s, const struct sampler_entry *e, float x)
{
    const float minus_inf = -__builtin_inff();
    if (x == minus_inf || (e->ends && s->n_output < s->min_tokens))
        return minus_inf;
    double y = (double)x + (double)e->bias;
    if (e->in_prompt || e->count > 0)
        y = y > 0 ? y / s->repetition : y * s->repetition;
    if (e->count > 0)
        y -= s->frequency * (double)e->count + s->presence;
    /* What was finite stays finite. */
    y = y < (double)-FLT_MAX ? (double)-FLT_MAX : y;
    return y > (double)FLT_MAX ? FLT_MAX : (float)y;
}

const float *sampler_process(const struct sampler *s, const float *logits, float *work)
{
    if (!changes(s))
        return logits;
    memcpy(work, logits, (size_t)s->vocab * sizeof(*work));
    for (size_t i = 0; i < s->n_entries; i++) {
        const struct sampler_entry *e = &s->entries[i];
        work[e->id] = adjust(s, e, logits[e->id]);
    }
    return work;
}
