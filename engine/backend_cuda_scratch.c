/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the CUDA backend's scratch and pinned memory into their parts; run once to count, once for real. */
#include "base/checked.h"
#include "engine/backend_cuda.h"
#include "engine/drafter_file.h"
#include "engine/method.h"

struct carver {
    char *base;
    size_t used;
    bool overflow;
};

static void *carve(struct carver *c, size_t n, size_t size)
{
    size_t bytes, at = c->used;
    if (!size_mul(n, size, &bytes) || !size_round_up(bytes, CUDA_ALIGN, &bytes) ||
        !size_add(c->used, bytes, &c->used)) {
        c->overflow = true;
        return NULL;
    }
    return c->base ? c->base + at : NULL;
}

static size_t stride(size_t n)
{
    return (n + 15) / 16 * 16;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void carve_batch(struct carver *c, struct cuda_batch *b, size_t rows, uint32_t words)
{
    b->rows = carve(c, rows, sizeof(*b->rows));
    b->live = carve(c, rows, sizeof(*b->live));
    b->window[0] = carve(c, rows, sizeof(*b->window[0]));
    b->window[1] = carve(c, rows, sizeof(*b->window[1]));
    b->live_index = carve(c, rows, sizeof(uint32_t));
    b->head_index = carve(c, rows, sizeof(uint32_t));
    b->tap_index = carve(c, rows, sizeof(uint32_t));
    b->tap_live = carve(c, rows, sizeof(uint32_t));
    b->tap_kept = carve(c, rows, sizeof(uint32_t));
    b->from = carve(c, rows, sizeof(uint32_t));
    b->to = carve(c, rows, sizeof(uint32_t));
    b->n_pairs = carve(c, 1, sizeof(uint32_t));
    b->words = carve(c, words, sizeof(uint32_t));
}

static void carve_draws(struct carver *c, struct cuda_draws *d, struct cuda_drawn *r, size_t rows)
{
    d->nodes = carve(c, rows, sizeof(*d->nodes));
    d->requests = carve(c, rows, sizeof(*d->requests));
    d->slots = carve(c, rows, sizeof(*d->slots));
    d->stops = carve(c, CUDA_DRAW_STOPS, sizeof(*d->stops));
    d->feeds = carve(c, rows, sizeof(*d->feeds));
    d->trees = carve(c, rows, sizeof(*d->trees));
    d->entries = carve(c, CUDA_DRAW_CHANGES, sizeof(*d->entries));
    r->choices = carve(c, rows, sizeof(*r->choices));
    r->n_logprobs = carve(c, rows, sizeof(*r->n_logprobs));
    r->logprobs = carve(c, rows * SAMPLING_MAX_LOGPROBS, sizeof(*r->logprobs));
    r->paths = carve(c, rows, sizeof(*r->paths));
}

static void carve_picks(struct carver *c, struct cuda_picks *p, size_t rows, size_t passes)
{
    p->picks = carve(c, rows, sizeof(*p->picks));
    p->feeds = carve(c, rows, sizeof(*p->feeds));
    p->spans = carve(c, rows, sizeof(*p->spans));
    p->picked = carve(c, passes * rows, sizeof(*p->picked));
    p->top = carve(c, passes * rows * DCU_MAX_TOP, sizeof(*p->top));
}

/* Words of all paths of a batch: each row a table of blocks of its own, and a tail. */
static bool count_words(const struct model_config *c, const struct backend_options *o, size_t *ret)
{
    size_t blocks = o->max_context / DK_KV_BLOCK + 1, tail = CUDA_TREE_TAIL;
    if (c->drafter && c->drafter->sliding)
        tail += c->drafter->window < o->max_context ? c->drafter->window : o->max_context;
    return size_mul(blocks + tail, o->max_rows, ret) && *ret <= UINT32_MAX;
}

/* What there is of a batch's memory in each lane. */
static void carve_lane(struct carver *c, struct carver *h, struct cuda_area *a, bool drafter,
                       size_t rows, uint32_t words)
{
    carve_batch(h, &a->batch, rows, words);
    if (!drafter) {
        carve_draws(h, &a->draws, &a->drawn, rows);
        return;
    }
    carve_picks(h, &a->picks, rows, DRAFT_MAX_PASSES);
    a->picks.of = carve(h, rows, sizeof(*a->picks.of));
    a->picks.tokens = carve(h, rows, sizeof(*a->picks.tokens));
    a->picks.grown = carve(h, rows, sizeof(*a->picks.grown));
    a->tokens = carve(c, rows, sizeof(*a->tokens));
    a->grown = carve(c, rows, sizeof(*a->grown));
}

int cuda_scratch_layout(const struct model_config *cfg, const struct backend_options *o,
                        unsigned forms, uint32_t head_n, void *device, void *pinned,
                        struct cuda_scratch *s, struct cuda_pinned *p, uint32_t *ret_words,
                        size_t *ret_device, size_t *ret_pinned)
{
    struct carver c = {.base = device}, h = {.base = pinned};
    const size_t rows = o->max_rows;
    const uint32_t nq = cfg->n_heads * cfg->head_dim;
    const struct drafter_config *d = cfg->drafter;
    const uint32_t features = d ? d->n_taps * d->target_hidden : cfg->hidden;
    const uint32_t tapped = cfg->n_layers < CUDA_TAP_LAYERS ? cfg->n_layers : CUDA_TAP_LAYERS;
    const uint32_t max_k = max_u32(max_u32(max_u32(cfg->hidden, nq), cfg->ffn), features);
    const size_t logit_rows = rows < CUDA_LOGIT_ROWS ? rows : CUDA_LOGIT_ROWS;
    size_t words;
    if (!count_words(cfg, o, &words))
        return DEDIT_E_LIMIT;
    s->ld_x = stride(cfg->hidden);
    s->ld_q = stride(nq);
    s->ld_kv = stride((size_t)cfg->n_kv_heads * cfg->head_dim);
    s->ld_f = stride(cfg->ffn);
    s->tap_floats = stride(d ? max_u32(features, cfg->hidden) : (size_t)tapped * cfg->hidden);
    s->x = carve(&c, rows * s->ld_x, sizeof(float));
    s->x2 = carve(&c, rows * s->ld_x, sizeof(float));
    s->h = carve(&c, rows * s->ld_x, sizeof(float));
    s->q = carve(&c, rows * s->ld_q, sizeof(float));
    s->q2 = carve(&c, rows * s->ld_q, sizeof(float));
    s->att = carve(&c, rows * s->ld_q, sizeof(float));
    s->k = carve(&c, rows * s->ld_kv, sizeof(float));
    s->v = carve(&c, rows * s->ld_kv, sizeof(float));
    s->g = carve(&c, rows * s->ld_f, sizeof(float));
    s->u = carve(&c, rows * s->ld_f, sizeof(float));
    s->cs = carve(&c, rows * cfg->head_dim, sizeof(float));
    s->taps = carve(&c, rows * s->tap_floats, sizeof(float));
    s->kept = d ? carve(&c, (size_t)o->tap_rows * features, sizeof(float)) : NULL;
    s->logits = carve(&c, logit_rows * head_n, sizeof(float));
    /* One row of attention always fits. */
    size_t one = dcu_attention_part_floats(1, cfg->n_heads, cfg->head_dim, o->max_context);
    s->part_floats = one;
    if (one < CUDA_PART_BYTES / sizeof(float)) {
        size_t fit = CUDA_PART_BYTES / sizeof(float) / one;
        s->part_floats = one * (fit < rows ? fit : rows);
    }
    s->part = carve(&c, s->part_floats, sizeof(float));
    s->act = (struct dcu_act){.forms = forms, .max_rows = o->max_rows, .max_k = max_k};
    s->act.mem = carve(&c, dcu_act_bytes(forms, o->max_rows, max_k), 1);
    s->blas = carve(&c, o->fast ? DCU_BLAS_WORKSPACE : 0, 1);
    carve_batch(&c, &s->batch, rows, (uint32_t)words);
    s->work = carve(&c, logit_rows * head_n, sizeof(float));
    s->sample = carve(&c, dcu_sample_scratch_bytes((uint32_t)logit_rows), 1);
    if (d) {
        carve_picks(&c, &s->picks, rows, 1);
        s->picks.history = carve(&c, DRAFT_MAX_PASSES * rows, sizeof(*s->picks.history));
        s->picks.top_history =
            carve(&c, DRAFT_MAX_PASSES * rows * DCU_MAX_TOP, sizeof(*s->picks.top_history));
        s->picks.ends = carve(&c, rows, sizeof(*s->picks.ends));
        s->picks.target_ids =
            d->target_ids ? carve(&c, d->draft_vocab, sizeof(*s->picks.target_ids)) : NULL;
    } else {
        carve_draws(&c, &s->draws, &s->drawn, rows);
    }

    for (uint32_t i = 0; i <= o->lanes; i++)
        carve_lane(&c, &h, &p->lanes[i], d != NULL, rows, (uint32_t)words);
    for (uint32_t i = 0; i < (o->lanes ? CUDA_LATERS : 1); i++)
        carve_batch(&h, &p->later[i], rows, 0);
    p->taps = carve(&h, rows * s->tap_floats, sizeof(float));
    p->logits = carve(&h, logit_rows * head_n, sizeof(float));
    p->staging_bytes = CUDA_STAGING;
    for (int i = 0; i < 2; i++)
        p->staging[i] = carve(&h, p->staging_bytes, 1);
    if (c.overflow || h.overflow)
        return DEDIT_E_LIMIT;
    *ret_words = (uint32_t)words;
    *ret_device = c.used;
    *ret_pinned = h.used;
    return 0;
}
