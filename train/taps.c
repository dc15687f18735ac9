/* SPDX-License-Identifier: Apache-2.0 */
#include "train/taps.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "train/taps_cache.h"

struct taps {
    struct engine *engine;
    struct taps_options o;
    uint32_t layers[DRAFTER_MAX_TAPS], width, hidden, vocab,
        stride;        /* values of a position in the cache */
    struct seq **seqs; /* [max_seqs] */
    float *logits;     /* [max_len][vocab], with soft_top */
    uint32_t *drafted; /* the n_drafted tokens that have a draft id, ascending, with soft_top */
    uint32_t n_drafted;
    size_t packed_len; /* values of one sequence as in the cache, one such buffer a thread */
    uint16_t *packed;
    struct taps_cache cache;
    struct taps_counts counts;
};

struct taps *taps_free(struct taps *t)
{
    if (!t)
        return NULL;
    taps_cache_close(&t->cache);
    for (uint32_t i = 0; t->seqs && i < t->o.max_seqs; i++)
        if (t->seqs[i])
            engine_seq_free(t->engine, t->seqs[i]);
    mem_free(t->seqs);
    mem_free(t->logits);
    mem_free(t->drafted);
    mem_free(t->packed);
    engine_free(t->engine);
    mem_free(t);
    return NULL;
}

struct engine *taps_engine(struct taps *t)
{
    return t->engine;
}

static int open_engine(struct taps *t, struct error *err)
{
    const struct taps_options *o = &t->o;
    struct engine_config c;
    engine_config_init(&c);
    c.n_threads = o->threads;
    c.tier = o->tier;
    c.dtype = o->dtype;
    c.max_context = o->max_len;
    c.n_kv_blocks = (o->max_len / DK_KV_BLOCK + 1) * o->max_seqs;
    c.max_num_seqs = o->max_seqs;
    c.max_num_batched_tokens = 1024 > o->max_seqs ? 1024 : o->max_seqs;
    c.prefill_chunk = c.max_num_batched_tokens;
    c.enable_prefix_caching = false;
    c.memory_limit = o->memory_limit;
    return engine_new(o->target, &c, NULL, NULL, &t->engine, err);
}

int taps_new(const struct taps_options *o, struct taps **ret, struct error *err)
{
    _cleanup_(taps_freep) struct taps *t = mem_zalloc(sizeof(*t));
    if (!t)
        return ERR_NOMEM(err);
    t->cache.fd = -1;
    t->o = *o;
    memcpy(t->layers, o->tap_layers, o->n_taps * sizeof(*t->layers));
    int r = open_engine(t, err);
    if (r < 0)
        return r;
    const struct model_config *m = engine_model_config(t->engine);
    t->hidden = m->hidden;
    t->vocab = m->vocab_size;
    t->width = o->n_taps * m->hidden;
    t->stride = t->width + 3 * o->soft_top;
    t->seqs = mem_calloc(o->max_seqs, sizeof(*t->seqs));
    t->packed_len = (size_t)o->max_len * t->stride;
    t->packed = mem_array(o->threads * t->packed_len, sizeof(*t->packed));
    if (o->soft_top) {
        t->logits = mem_array(o->max_len, (size_t)t->vocab * sizeof(float));
        t->drafted = mem_array(t->vocab, sizeof(*t->drafted));
    }
    if (!t->seqs || !t->packed || (o->soft_top && (!t->logits || !t->drafted)))
        return ERR_NOMEM(err);
    for (uint32_t v = 0; o->soft_top && v < t->vocab; v++)
        if (o->draft_ids[v] >= 0)
            t->drafted[t->n_drafted++] = v;
    for (uint32_t i = 0; r == 0 && i < o->max_seqs; i++)
        r = engine_seq_new(t->engine, &t->seqs[i], err);
    if (r == 0 && o->cache)
        r = taps_cache_open(&t->cache, o->cache, o->cache_bytes, o->key, t->stride, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(t);
    return 0;
}

/* ---- what the target thinks ------------------------------------------------------------------ */

/* The soft_top largest logits of one row among the tokens that have a draft id, as probabilities
 * that sum to 1; ascending search in a small heap would be more than this needs. */
static void pick(const struct taps *t, const float *z, int32_t *ids, float *p)
{
    const uint32_t top = t->o.soft_top;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_drafted; i++) {
        const uint32_t v = t->drafted[i];
        if (n == top && !(z[v] > p[n - 1]))
            continue;
        uint32_t at = n < top ? n++ : n - 1;
        for (; at > 0 && z[v] > p[at - 1]; at--) {
            p[at] = p[at - 1];
            ids[at] = ids[at - 1];
        }
        p[at] = z[v];
        ids[at] = t->o.draft_ids[v];
    }
    float sum = 0, max = n ? p[0] : 0;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = dk_expf(p[i] - max);
        sum += p[i];
    }
    for (uint32_t i = 0; i < n; i++)
        p[i] /= sum;
    for (; n < top; n++) {
        ids[n] = -1;
        p[n] = 0;
    }
}

/* ---- a sequence in the cache: per position BF16 features, then ids and probabilities --------- */

static void pack(const struct taps *t, const struct taps_want *w)
{
    const uint32_t top = t->o.soft_top;
    for (uint32_t p = 0; p + 1 < w->s.n; p++) {
        uint16_t *to = t->packed + (size_t)p * t->stride;
        for (uint32_t i = 0; i < t->width; i++)
            to[i] = dk_f32_to_bf16(w->out[(size_t)p * t->width + i]);
        if (!top)
            continue;
        /* Position p thinks of the token at p + 1. */
        memcpy(to + t->width, w->soft_ids + (size_t)(p + 1) * top, top * sizeof(int32_t));
        for (uint32_t i = 0; i < top; i++)
            to[t->width + 2 * top + i] = dk_f32_to_bf16(w->soft[(size_t)(p + 1) * top + i]);
    }
}

/* As dk_bf16_to_f32, but inline: this is done for millions of values. */
static inline float value(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static void unpack(const struct taps *t, const uint16_t *packed, const struct taps_want *w,
                   const float *scale)
{
    const uint32_t top = t->o.soft_top;
    for (uint32_t i = 0; i < top && w->soft; i++) {
        w->soft_ids[i] = -1;
        w->soft[i] = 0;
    }
    for (uint32_t p = 0; p + 1 < w->s.n; p++) {
        const uint16_t *from = packed + (size_t)p * t->stride;
        float *out = w->out + (size_t)p * t->width;
        for (uint32_t k = 0; k < t->o.n_taps; k++) {
            const float f = scale ? scale[k] : 1;
            for (uint32_t i = k * t->hidden; i < (k + 1) * t->hidden; i++)
                out[i] = value(from[i]) * f;
        }
        if (!top)
            continue;
        memcpy(w->soft_ids + (size_t)(p + 1) * top, from + t->width, top * sizeof(int32_t));
        for (uint32_t i = 0; i < top; i++)
            w->soft[(size_t)(p + 1) * top + i] = dk_bf16_to_f32(from[t->width + 2 * top + i]);
    }
}

static int compute(struct taps *t, const struct taps_want *const *w, uint32_t n, struct error *err)
{
    struct engine_feed f[64];
    int r = 0;
    /* With probabilities one at a time: the logits of one sequence are large enough. */
    const uint32_t step = t->o.soft_top ? 1 : t->o.max_seqs < 64 ? t->o.max_seqs : 64;
    for (uint32_t a = 0; r == 0 && a < n; a += step) {
        uint32_t m = n - a < step ? n - a : step;
        for (uint32_t i = 0; i < m; i++) {
            const struct taps_want *x = w[a + i];
            engine_seq_truncate(t->engine, t->seqs[i], 0);
            f[i] = (struct engine_feed){
                .seq = t->seqs[i], .tokens = x->s.ids, .n = x->s.n - 1, .taps = x->out};
            if (t->o.soft_top) {
                f[i].logits = t->logits;
                f[i].n_logits = x->s.n - 1;
            }
            t->counts.tokens += x->s.n - 1;
        }
        r = engine_feed(t->engine, f, m, t->layers, t->o.n_taps, err);
        for (uint32_t i = 0; i < m; i++)
            engine_seq_truncate(t->engine, t->seqs[i], 0);
        for (uint32_t p = 0; r == 0 && t->o.soft_top && p + 1 < w[a]->s.n; p++)
            pick(t, t->logits + (size_t)p * t->vocab,
                 w[a]->soft_ids + (size_t)(p + 1) * t->o.soft_top,
                 w[a]->soft + (size_t)(p + 1) * t->o.soft_top);
    }
    return r;
}

struct get_job {
    struct taps *t;
    const struct taps_want *w;
    const float *scale;
    bool *have;
};

static void get_pieces(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct get_job *j = arg;
    struct taps *t = j->t;
    uint16_t *packed = t->packed + tid * t->packed_len;
    for (size_t i = a; i < b; i++) {
        const struct taps_want *w = &j->w[i];
        if (w->s.n < 2)
            continue;
        size_t values = (size_t)(w->s.n - 1) * t->stride;
        j->have[i] = taps_cache_get(&t->cache, w->index, w->s.hash, packed, values);
        if (j->have[i])
            unpack(t, packed, w, j->scale);
    }
}

int taps_get(struct taps *t, struct train_par *par, const struct taps_want *w, uint32_t n,
             const float *scale, struct error *err)
{
    const struct taps_want *missing[64];
    bool have[64] = {false};
    uint32_t n_missing = 0;
    if (n > 64)
        return ERR(err, LIMIT, "features of %u sequences at once: at most 64", n);
    if (par->n > t->o.threads)
        return ERR(err, LIMIT, "features for %u threads: at most %u", par->n, t->o.threads);
    struct get_job j = {.t = t, .w = w, .scale = scale, .have = have};
    par_rows(par, n, 1, get_pieces, &j);
    for (uint32_t i = 0; i < n; i++) {
        if (w[i].s.n < 2)
            continue;
        if (have[i])
            t->counts.hits++;
        else
            missing[n_missing++] = &w[i];
    }
    t->counts.misses += n_missing;
    int r = compute(t, missing, n_missing, err);
    for (uint32_t i = 0; r == 0 && i < n_missing; i++) {
        pack(t, missing[i]);
        r = taps_cache_put(&t->cache, missing[i]->index, missing[i]->s.hash, t->packed,
                           (size_t)(missing[i]->s.n - 1) * t->stride, err);
        unpack(t, t->packed, missing[i], scale); /* rounded, cached or not */
    }
    return r;
}

int taps_measure(struct taps *t, const struct data_sample *s, uint32_t n, float *ret_scale,
                 struct error *err)
{
    double sum[DRAFTER_MAX_TAPS] = {0}, rows = 0;
    _cleanup_free_ float *out = mem_array(t->o.max_len, t->width * sizeof(float));
    if (!out)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < n; i++) {
        if (s[i].n < 2)
            continue;
        struct engine_feed f = {
            .seq = t->seqs[0], .tokens = s[i].ids, .n = s[i].n - 1, .taps = out};
        engine_seq_truncate(t->engine, t->seqs[0], 0);
        int r = engine_feed(t->engine, &f, 1, t->layers, t->o.n_taps, err);
        engine_seq_truncate(t->engine, t->seqs[0], 0);
        if (r < 0)
            return r;
        /* The first position's features are huge in many models and would hide all others. */
        for (uint32_t p = 1; p + 1 < s[i].n; p++, rows++)
            for (uint32_t k = 0; k < t->o.n_taps; k++)
                for (uint32_t j = 0; j < t->hidden; j++) {
                    double x = (double)out[(size_t)p * t->width + k * t->hidden + j];
                    sum[k] += x * x;
                }
    }
    for (uint32_t k = 0; k < t->o.n_taps; k++) {
        double rms = rows > 0 ? sqrt(sum[k] / (rows * t->hidden)) : 1;
        ret_scale[k] = rms > 1e-20 && rms < 1e20 ? (float)(1 / rms) : 1;
    }
    return 0;
}

void taps_get_counts(const struct taps *t, struct taps_counts *ret)
{
    *ret = t->counts;
    ret->cache_bytes = t->cache.end;
}
