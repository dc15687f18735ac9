/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drafter on the CPU: a backend_model that computes with its target's threads, embedding and
 * head.  A reduced head without a matrix of its own is made of the target's rows at load.  Block rows
 * are ordinary forward passes; what is special is how features become K/V.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/backend_cpu_run.h"
#include "engine/drafter_file.h"

/* The target's options with the drafter's weights and room for its blocks. */
int cpu_drafter_options(const struct backend_options *o, enum backend_dtype dtype,
                        struct backend_options *ret, struct error *err)
{
    uint32_t more = (o->max_rows + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    if (o->n_kv_blocks > UINT32_MAX / DK_KV_BLOCK - more)
        return ERR(err, LIMIT, "n_kv_blocks %u: no room for a drafter's blocks", o->n_kv_blocks);
    *ret = *o;
    ret->dtype = dtype;
    ret->n_kv_blocks += more;
    ret->max_context += o->max_rows; /* blocks reach past the end */
    return 0;
}

/* The rows of the target's head that the drafter proposes from, copied in the draft order; data is
 * NULL when only the shape is wanted. */
struct model_tensor cpu_picked_head(const struct model_tensor *head, uint32_t n, void *data)
{
    struct model_tensor t = *head;
    t.name = "d2t rows of the target's head";
    t.dims[0] = n;
    t.bytes = head->bytes / head->dims[0] * n;
    t.data = data;
    return t;
}

int cpu_drafter_head(const struct model_file *f, const struct model_tensor *of_target,
                     struct picked_head *p, const struct model_tensor **ret, struct error *err)
{
    const struct drafter_config *d = model_file_config(f)->drafter;
    const size_t row = of_target->bytes / of_target->dims[0];
    *ret = model_file_tensor(f, MT_HEAD, 0);
    if (*ret || !d->target_ids)
        return 0;
    p->rows = mem_array(d->draft_vocab, row);
    if (!p->rows)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < d->draft_vocab; i++)
        memcpy(p->rows + i * row, (const char *)of_target->data + d->target_ids[i] * row, row);
    p->tensor = cpu_picked_head(of_target, d->draft_vocab, p->rows);
    *ret = &p->tensor;
    return 0;
}

void picked_head_done(struct picked_head *p)
{
    mem_free(p->rows);
}

static enum backend_dtype resolve_dtype(enum backend_dtype dtype, bool amx_class)
{
    return dtype == BACKEND_DTYPE_AUTO && amx_class ? BACKEND_DTYPE_BF16 : dtype;
}

int cpu_plan_drafter(const struct model_file *target, const struct model_file *f,
                     const struct backend_options *o, enum backend_dtype dtype,
                     struct backend_memory *ret, struct error *err)
{
    struct backend_options opt;
    const struct drafter_config *d = model_file_config(f)->drafter;
    const struct model_tensor *own = model_file_tensor(f, MT_HEAD, 0),
                              *head = model_file_tensor(target, MT_HEAD, 0);
    struct model_tensor picked = cpu_picked_head(head, d->draft_vocab, NULL);
    int r = cpu_drafter_options(o, resolve_dtype(dtype, cpu_amx_class(target, head, o)), &opt, err);
    if (r < 0)
        return r;
    return cpu_measure(f,
                       own             ? own
                       : d->target_ids ? &picked
                                       : NULL,
                       &opt, o->n_threads ? o->n_threads : CPU_MAX_THREADS, ret, err);
}

int cpu_load_drafter(struct backend_model *m, struct model_file *f, enum backend_dtype dtype,
                     struct backend_model **ret, struct error *err)
{
    const struct model_tensor *head = NULL;
    _cleanup_(picked_head_done) struct picked_head picked = {0};
    struct backend_model *x = mem_zalloc(sizeof(*x));
    if (!x)
        return ERR_NOMEM(err);
    x->target = m;
    x->cfg = *model_file_config(f);
    x->file = f;
    x->ops = m->ops;
    x->n_threads = m->n_threads;
    x->embed = model_file_tensor(f, MT_EMBED, 0);
    x->scale = (float)(1.0 / __builtin_sqrt((double)x->cfg.head_dim));
    int r = cpu_drafter_options(&m->opt, resolve_dtype(dtype, m->amx_class), &x->opt, err);
    if (r == 0)
        r = cpu_drafter_head(f, model_file_tensor(m->file, MT_HEAD, 0), &picked, &head, err);
    if (r == 0)
        r = cpu_load_into(x, head, NULL, NULL, err);
    if (r < 0) {
        cpu_free(x);
        return r;
    }
    if (!head)
        x->head = m->head;
    *ret = x;
    return 0;
}

/* ---- features to K/V -------------------------------------------------------------------------- */

struct inject {
    struct fwd f;
    const struct ctx_row *rows;
    uint32_t n;
};

/* The taps, wherever they lie, in the form that fc reads. */
static const struct dk_act *prepare_taps(const struct inject *j, const struct dk_par *par)
{
    struct backend_model *m = j->f.m;
    bool own = j->n <= CPU_SMALL_ROWS;
    struct dk_act *act = own ? &m->thread[par->tid].act : &m->thread[par->tid].shared;
    size_t a = 0, b = j->n;
    if (!own)
        dk_split(par, j->n, 1, &a, &b);
    act->rows = j->n;
    act->k = m->fc.k;
    for (size_t r = a; r < b; r++)
        m->ops->act_prepare(act, dk_weight_form(&m->fc), j->rows[r].taps, 0, (uint32_t)r,
                            (uint32_t)r + 1);
    if (!own)
        dk_barrier(par);
    return act;
}

static void inject_region(void *arg, const struct dk_par *par)
{
    const struct inject *j = arg;
    struct backend_model *m = j->f.m;
    const uint32_t hidden = m->cfg.hidden;
    size_t a, b;
    dk_split(par, j->n, 1, &a, &b);
    for (size_t r = a; r < b; r++)
        cpu_angles(m, j->rows[r].pos, m->s.cs + r * m->cfg.head_dim);
    const struct dk_act *act = prepare_taps(j, par);
    struct dk_mm fc = {.w = &m->fc, .y = m->s.x, .ldy = m->s.ld_x};
    cpu_mm_group(&j->f, par, &fc, 1, act, NULL);
    dk_barrier(par);

    /* All layers read the same features: prepared once, in every form that any of them wants. */
    unsigned forms = 0;
    for (uint32_t l = 0; l < m->cfg.n_layers; l++)
        forms |= dk_weight_form(&m->layers[l].k) | dk_weight_form(&m->layers[l].v);
    act = cpu_prepare(&j->f, par, forms, m->s.x, m->s.ld_x, hidden, m->hidden_norm, NULL, j->n);
    for (size_t r = a; r < b; r++)
        if (j->rows[r].fused)
            m->ops->rmsnorm(j->rows[r].fused, m->s.x + r * m->s.ld_x, m->hidden_norm, hidden,
                            m->cfg.rms_eps);
    for (uint32_t l = 0; l < m->cfg.n_layers; l++) {
        const struct cpu_layer *layer = &m->layers[l];
        struct dk_mm kv[2] = {{.w = &layer->k, .y = m->s.k, .ldy = m->s.ld_kv},
                              {.w = &layer->v, .y = m->s.v, .ldy = m->s.ld_kv}};
        cpu_mm_group(&j->f, par, kv, 2, act, NULL);
        dk_barrier(par);
        for (size_t r = a; r < b; r++)
            cpu_store_kv(m, layer, (uint32_t)r, j->rows[r].slot);
        if (l + 1 < m->cfg.n_layers)
            dk_barrier(par); /* before k and v are written anew */
    }
}

int cpu_inject(struct backend_model *d, const struct ctx_row *rows, uint32_t n, struct error *err)
{
    if (n == 0)
        return 0;
    if (n > d->opt.max_rows)
        return ERR(err, LIMIT, "features of %u rows: at most %u fit", n, d->opt.max_rows);
    struct inject j = {.f = {.m = d}, .rows = rows, .n = n};
    dk_pool_run(d->pool, inject_region, &j);
    return 0;
}
