/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a model, or a drafter beside one, onto a CUDA device: sizes are planned, memory is taken, and
 * nothing is allocated afterwards.  On failure nothing stays behind.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "engine/backend_cpu.h"
#include "engine/backend_cuda.h"
#include "engine/drafter_file.h"
#include "engine/method.h"

/* Bytes of K (= of V) of one layer. */
static bool kv_layer_size(const struct model_config *c, const struct backend_options *o,
                          size_t *ret)
{
    size_t n = (size_t)c->n_kv_heads * c->head_dim;
    return size_mul(n, (size_t)DK_KV_BLOCK * dk_kv_elem_bytes(o->kv_type), &n) &&
           size_mul(n, o->n_kv_blocks, &n) && size_round_up(n, CUDA_ALIGN, ret);
}

struct sizes {
    size_t weights, kv_layer, kv, scratch, pinned;
    unsigned forms;
    uint32_t words;
};

/* head: the matrix that is uploaded as the head, NULL: none; head_n: its rows, or those of the one that
 * is used instead. */
static int measure(const struct model_file *f, const struct model_tensor *head, uint32_t head_n,
                   const struct backend_options *o, unsigned more_forms, struct sizes *ret,
                   struct error *err)
{
    const struct model_config *c = model_file_config(f);
    struct cuda_scratch s;
    struct cuda_pinned p;
    int r = cpu_check_options(o, err);
    if (r == 0)
        r = cuda_weights_size(f, head, o, &ret->weights, &ret->forms, err);
    if (r < 0)
        return r;
    ret->forms |= more_forms;
    if (!kv_layer_size(c, o, &ret->kv_layer) ||
        !size_mul(ret->kv_layer, (size_t)2 * c->n_layers, &ret->kv) ||
        cuda_scratch_layout(c, o, ret->forms, head_n, NULL, NULL, &s, &p, &ret->words,
                            &ret->scratch, &ret->pinned) < 0)
        return ERR(err, LIMIT, "%s: the memory needed exceeds the address space",
                   model_file_path(f));
    return 0;
}

static void tell_memory(const struct model_file *f, const struct backend_options *o,
                        const struct sizes *z, struct backend_memory *ret)
{
    *ret = (struct backend_memory){.weight_bytes = model_file_weight_bytes(f),
                                   .packed_bytes = z->weights,
                                   .kv_bytes = z->kv,
                                   .scratch_bytes = z->scratch,
                                   .kv_type = o->kv_type};
}

int cuda_plan(const struct model_file *f, const struct backend_options *o,
              struct backend_memory *ret, struct error *err)
{
    const struct model_tensor *head = model_file_tensor(f, MT_HEAD, 0);
    struct sizes z;
    int r = measure(f, head, (uint32_t)head->dims[0], o, 0, &z, err);
    if (r == 0)
        tell_memory(f, o, &z, ret);
    return r;
}

/* The form that the target's own head reads, for a drafter that uses it. */
static unsigned head_form(const struct model_tensor *head, const struct backend_options *o)
{
    enum dk_type type = cpu_stored_type(head, o);
    return dcu_weight_form(type, cuda_layout(type, o));
}

int cuda_plan_drafter(const struct model_file *target, const struct model_file *f,
                      const struct backend_options *o, enum backend_dtype dtype,
                      struct backend_memory *ret, struct error *err)
{
    const struct drafter_config *d = model_file_config(f)->drafter;
    const struct model_tensor *of_target = model_file_tensor(target, MT_HEAD, 0);
    const struct model_tensor *head = model_file_tensor(f, MT_HEAD, 0);
    struct model_tensor picked = cpu_picked_head(of_target, d->draft_vocab, NULL);
    struct backend_options opt;
    struct sizes z;
    if (!head && d->target_ids)
        head = &picked;
    int r = cpu_drafter_options(o, dtype, &opt, err);
    if (r == 0)
        r = measure(f, head, d->draft_vocab, &opt, head ? 0 : head_form(of_target, o), &z, err);
    if (r == 0)
        tell_memory(f, o, &z, ret);
    return r;
}

/* ---- loading ---------------------------------------------------------------------------------------- */

static int take_memory(struct cuda_model *m, const struct sizes *z, struct error *err)
{
    const struct dcu_api *a = m->api;
    const double mib = 1.0 / (1 << 20);
    size_t free_bytes, need;
    CUDA_DO(m, err, "device memory", a->memory_free(&free_bytes));
    if (!size_add(z->weights, z->kv, &need) || !size_add(need, z->scratch, &need))
        return ERR(err, LIMIT, "the memory needed exceeds the address space");
    if (need > free_bytes)
        return ERR(err, NOMEM,
                   "%s needs %.1f MiB of device memory (weights %.1f, KV pool %.1f, activations "
                   "%.1f), %.1f MiB are free",
                   model_file_path(m->file), (double)need * mib, (double)z->weights * mib,
                   (double)z->kv * mib, (double)z->scratch * mib, (double)free_bytes * mib);
    CUDA_DO(m, err, "memory for weights", a->alloc(&m->weights, z->weights));
    CUDA_DO(m, err, "memory for the KV pool", a->alloc(&m->kv, z->kv));
    CUDA_DO(m, err, "memory for activations", a->alloc(&m->scratch, z->scratch));
    CUDA_DO(m, err, "pinned memory", a->host_alloc(&m->pinned, z->pinned));
    m->weights_bytes = z->weights;
    m->kv_bytes = z->kv;
    m->scratch_bytes = z->scratch;
    m->pinned_bytes = z->pinned;
    m->forms = z->forms;
    m->max_words = z->words;
    return 0;
}

/* The parts of the scratch memory, for the checks of an emulated device. */
static void name_regions(struct cuda_model *m)
{
    const struct cuda_scratch *s = &m->s;
    const size_t rows = m->opt.max_rows, f = sizeof(float);
    const struct cuda_batch *b = &s->batch;
    void (*name)(const void *, size_t) = m->api->region;
    name(s->x, rows * s->ld_x * f);
    name(s->x2, rows * s->ld_x * f);
    name(s->h, rows * s->ld_x * f);
    name(s->q, rows * s->ld_q * f);
    name(s->q2, rows * s->ld_q * f);
    name(s->att, rows * s->ld_q * f);
    name(s->k, rows * s->ld_kv * f);
    name(s->v, rows * s->ld_kv * f);
    name(s->g, rows * s->ld_f * f);
    name(s->u, rows * s->ld_f * f);
    name(s->cs, rows * m->cfg.head_dim * f);
    name(s->taps, rows * s->tap_floats * f);
    if (m->kept.mem)
        name(m->kept.mem, (size_t)m->kept.rows * m->kept.width * f);
    name(s->logits, (rows < CUDA_LOGIT_ROWS ? rows : CUDA_LOGIT_ROWS) * (size_t)m->head.n * f);
    name(s->part, s->part_floats * f);
    name(s->act.mem, dcu_act_bytes(s->act.forms, s->act.max_rows, s->act.max_k));
    name(b->rows, rows * sizeof(*b->rows));
    name(b->live, rows * sizeof(*b->live));
    name(b->window[0], rows * sizeof(*b->rows));
    name(b->window[1], rows * sizeof(*b->rows));
    name(b->live_index, rows * sizeof(uint32_t));
    name(b->head_index, rows * sizeof(uint32_t));
    name(b->tap_index, rows * sizeof(uint32_t));
    name(b->tap_live, rows * sizeof(uint32_t));
    name(b->tap_kept, rows * sizeof(uint32_t));
    name(b->from, rows * sizeof(uint32_t));
    name(b->to, rows * sizeof(uint32_t));
    name(b->n_pairs, sizeof(uint32_t));
    name(b->words, m->max_words * sizeof(uint32_t));
    const size_t logit_rows = rows < CUDA_LOGIT_ROWS ? rows : CUDA_LOGIT_ROWS;
    name(s->work, logit_rows * m->head.n * f);
    name(s->sample, dcu_sample_scratch_bytes((uint32_t)logit_rows));
    if (m->cfg.drafter) {
        const struct cuda_picks *p = &s->picks;
        name(p->picks, rows * sizeof(*p->picks));
        name(p->feeds, rows * sizeof(*p->feeds));
        name(p->spans, rows * sizeof(*p->spans));
        name(p->history, DRAFT_MAX_PASSES * rows * sizeof(*p->history));
        name(p->top_history, DRAFT_MAX_PASSES * rows * DCU_MAX_TOP * sizeof(*p->top_history));
        name(p->ends, rows * sizeof(*p->ends));
        for (uint32_t i = 0; i < m->n_lanes; i++) {
            name(m->p.lanes[i].tokens, rows * sizeof(*p->tokens));
            name(m->p.lanes[i].grown, rows * sizeof(*p->grown));
        }
        name(p->picked, rows * sizeof(*p->picked));
        name(p->top, rows * DCU_MAX_TOP * sizeof(*p->top));
        if (p->target_ids)
            name(p->target_ids, m->cfg.drafter->draft_vocab * sizeof(*p->target_ids));
        return;
    }
    name(s->draws.nodes, rows * sizeof(*s->draws.nodes));
    name(s->draws.requests, rows * sizeof(*s->draws.requests));
    name(s->draws.slots, rows * sizeof(*s->draws.slots));
    name(s->draws.stops, CUDA_DRAW_STOPS * sizeof(*s->draws.stops));
    name(s->draws.feeds, rows * sizeof(*s->draws.feeds));
    name(s->draws.trees, rows * sizeof(*s->draws.trees));
    name(s->draws.entries, CUDA_DRAW_CHANGES * sizeof(*s->draws.entries));
    name(s->drawn.choices, rows * sizeof(*s->drawn.choices));
    name(s->drawn.n_logprobs, rows * sizeof(*s->drawn.n_logprobs));
    name(s->drawn.logprobs, rows * SAMPLING_MAX_LOGPROBS * sizeof(*s->drawn.logprobs));
    name(s->drawn.paths, rows * sizeof(*s->drawn.paths));
}

static uint32_t d_taps(const struct model_config *c)
{
    return c->drafter->n_taps * c->drafter->target_hidden;
}

/* m has its file, options and, for a drafter, its target. */
static int load_into(struct cuda_model *m, const struct model_tensor *head, unsigned more_forms,
                     void (*progress)(void *, uint64_t, uint64_t), void *arg, struct error *err)
{
    uint64_t t0 = clock_now_ns();
    const struct dcu_api *a = m->api;
    struct sizes z;
    cuda_graphs_init(&m->graphs);
    uint32_t head_n = head ? (uint32_t)head->dims[0] : m->head.n;
    int r = measure(m->file, head, head_n, &m->opt, more_forms, &z, err);
    if (r < 0)
        return r;
    tell_memory(m->file, &m->opt, &z, &m->mem);
    m->layers = mem_calloc(m->cfg.n_layers, sizeof(*m->layers));
    if (!m->layers)
        return ERR_NOMEM(err);
    r = cuda_lanes_new(m, err);
    if (r < 0)
        return r;
    for (int i = 0; i < 2; i++)
        CUDA_DO(m, err, "an event", a->event_new(&m->staged[i], 0));
    r = take_memory(m, &z, err);
    if (r < 0)
        return r;
    size_t device, pinned;
    uint32_t words;
    if (cuda_scratch_layout(&m->cfg, &m->opt, m->forms, head_n, m->scratch, m->pinned, &m->s, &m->p,
                            &words, &device, &pinned) < 0)
        return ERR(err, INTERNAL, "activation size changed while loading");
    r = cuda_lane_use(m, 0, err);
    if (r < 0)
        return r;
    if (m->cfg.drafter && m->opt.tap_rows)
        m->kept = (struct cuda_kept){m->s.kept, m->opt.tap_rows, d_taps(&m->cfg)};
    m->batch_bytes = (size_t)((char *)m->s.batch.words - (char *)m->s.batch.rows);
    for (uint32_t l = 0; l < m->cfg.n_layers; l++) {
        char *k = (char *)m->kv + (size_t)2 * l * z.kv_layer;
        m->layers[l].kv = (struct dk_kv){.type = m->opt.kv_type,
                                         .n_kv_heads = m->cfg.n_kv_heads,
                                         .head_dim = m->cfg.head_dim,
                                         .k = k,
                                         .v = k + z.kv_layer};
    }
    if (m->target)
        m->pool = m->target->pool;
    else if ((r = dk_pool_new(m->n_threads, &m->pool, err)) < 0)
        return r;
    uint64_t t1 = clock_now_ns();
    r = cuda_weights_upload(m, head, progress, arg, err);
    if (r < 0)
        return r;
    name_regions(m);
    uint64_t t2 = clock_now_ns();
    m->timing =
        (struct backend_timing){.map = (double)(t1 - t0) * 1e-9, .pack = (double)(t2 - t1) * 1e-9};
    return 0;
}

int cuda_load(struct model_file *f, const struct backend_options *o,
              void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
              struct backend_model **ret, struct error *err)
{
    const struct model_tensor *head = model_file_tensor(f, MT_HEAD, 0);
    int r = cpu_check_options(o, err);
    if (r < 0)
        return r;
    struct cuda_model *m = mem_zalloc(sizeof(*m));
    if (!m)
        return ERR_NOMEM(err);
    m->cfg = *model_file_config(f);
    m->opt = *o;
    m->file = f;
    m->api = o->cuda;
    m->ops = dk_ops(o->tier);
    m->n_threads = cpu_resolve_threads(o->n_threads);
    m->own_embed = !m->cfg.tied;
    m->scale = (float)(1.0 / __builtin_sqrt((double)m->cfg.head_dim));
    m->head.n = (uint32_t)head->dims[0];
    r = dcu_device_check(m->api, o->device, &m->device, err);
    if (r == 0)
        r = load_into(m, head, 0, progress, arg, err);
    if (r == 0)
        r = cuda_blas_ready(m, err);
    if (r == 0 && m->cfg.tied)
        m->embed = m->head;
    if (r < 0) {
        cuda_free((void *)m);
        return r;
    }
    *ret = (void *)m;
    return 0;
}

int cuda_load_drafter(struct backend_model *target, struct model_file *f, enum backend_dtype dtype,
                      struct backend_model **ret, struct error *err)
{
    struct cuda_model *t = cuda_of(target);
    const struct drafter_config *d = model_file_config(f)->drafter;
    const struct model_tensor *head = NULL;
    const struct model_tensor *of_target = model_file_tensor(t->file, MT_HEAD, 0);
    _cleanup_(picked_head_done) struct picked_head picked = {0};
    struct cuda_model *m = mem_zalloc(sizeof(*m));
    if (!m)
        return ERR_NOMEM(err);
    m->target = t;
    m->cfg = *model_file_config(f);
    m->file = f;
    m->api = t->api;
    m->device = t->device;
    m->ops = t->ops;
    m->n_threads = t->n_threads;
    m->own_embed = model_file_tensor(f, MT_EMBED, 0) != NULL;
    m->cfg.tied = !m->own_embed;
    m->scale = (float)(1.0 / __builtin_sqrt((double)m->cfg.head_dim));
    m->head.n = d->draft_vocab;
    int r = cpu_drafter_options(&t->opt, dtype, &m->opt, err);
    if (r == 0)
        r = dcu_error(m->api, m->api->device_use(m->opt.device), err, "the device");
    if (r == 0)
        r = cpu_drafter_head(f, of_target, &picked, &head, err);
    if (r == 0)
        r = load_into(m, head, head ? 0 : head_form(of_target, &t->opt), NULL, NULL, err);
    if (r == 0)
        r = cuda_picks_upload(m, err);
    if (r == 0 && !head)
        m->head = t->head;
    if (r == 0)
        r = cuda_blas_ready(m, err);
    if (r < 0) {
        cuda_free((void *)m);
        return r;
    }
    if (!m->own_embed)
        m->embed = t->embed;
    t->kept = m->kept;
    t->drafter = m;
    *ret = (void *)m;
    return 0;
}

void cuda_free(struct backend_model *model)
{
    struct cuda_model *m = cuda_of(model);
    if (!m)
        return;
    const struct dcu_api *a = m->api;
    (void)a->device_use(m->opt.device);
    if (m->target && m->target->kept.mem == m->kept.mem)
        m->target->kept = (struct cuda_kept){0};
    if (m->target && m->target->drafter == m)
        m->target->drafter = NULL;
    cuda_wait_all(m); /* moves, features and batches may be on their way */
    cuda_graphs_free(m);
    cuda_lanes_free(m);
    for (int i = 0; i < 2; i++)
        if (m->staged[i])
            (void)a->event_free(m->staged[i]);
    (void)a->blas_free(m->blas);
    (void)a->free(m->weights);
    (void)a->free(m->kv);
    (void)a->free(m->scratch);
    (void)a->host_free(m->pinned);
    if (!m->target)
        dk_pool_free(m->pool);
    mem_free(m->layers);
    mem_free(m);
}
