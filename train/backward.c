/* SPDX-License-Identifier: Apache-2.0 */
/* The way back through the blocks' layers and through the context. */
#include <string.h>

#include "train/forward.h"

#define GRAIN 32u

static float *grad(struct train_work *w, enum train_role r, uint32_t layer)
{
    return w->grad + w->m->layout.t[train_index(r, layer)].at;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Gradient through norms of rows, or of the heads in them, with RoPE turned back first when pos is
 * there: dy (changed by the turning) and x, r of the way forward. */
struct norm_back {
    struct train_work *w;
    float *dx, *dy;
    const float *x, *r, *gain;
    float *d_gain;
    size_t rows;
    uint32_t n, heads;
    bool add;                /* to dx */
    bool only_gain;          /* dx is not wanted */
    const uint32_t *ctx_pos; /* context rows, or */
    bool rope_blocks;        /* block rows */
};

static void turn(const struct norm_back *j, size_t i)
{
    const struct train_work *w = j->w;
    const struct train_shape *s = &w->m->shape;
    uint32_t pos =
        j->ctx_pos ? j->ctx_pos[i] : w->blocks[i / s->window].anchor + (uint32_t)(i % s->window);
    w->par->ops->rope(j->dy + i * j->heads * j->n, j->heads, j->n,
                      w->m->back + (size_t)pos * s->head_dim, DK_ROPE_HALVES);
}

/* Some whole chunks: each row is read once for all that is made of it. */
static void norm_chunks(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct norm_back *j = arg;
    const struct dk_train_ops *t = j->w->par->train;
    const uint32_t n = j->n;
    (void)tid;
    for (size_t i = a; i < b; i++) {
        float *gain = j->w->gains + i / TRAIN_CHUNK * n;
        if (i % TRAIN_CHUNK == 0)
            memset(gain, 0, n * sizeof(*gain));
        if (j->ctx_pos || j->rope_blocks)
            turn(j, i);
        for (size_t h = i * j->heads; h < (i + 1) * j->heads; h++) {
            const float *dy = j->dy + h * n, *x = j->x + h * n;
            t->rmsnorm_grad_w(gain, dy, x, j->r[h], n);
            if (!j->only_gain)
                t->rmsnorm_grad(j->dx + h * n, dy, x, j->gain, j->r[h], n, j->add);
        }
    }
}

/* Gains: a sum for each TRAIN_CHUNK rows in their order, and then those, whoever makes them. */
static void norm_back(struct norm_back *j)
{
    struct train_par *p = j->w->par;
    par_rows(p, j->rows, TRAIN_CHUNK, norm_chunks, j);
    for (size_t c = 0; c * TRAIN_CHUNK < j->rows; c++)
        p->train->add(j->d_gain, j->w->gains + c * j->n, j->n);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

struct silu_job {
    const struct train_work *w;
    struct train_layer *l;
};

static void silu_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct silu_job *j = arg;
    const size_t f = j->w->m->shape.ffn;
    (void)tid;
    for (size_t i = a; i < b; i++)
        j->w->par->train->silu_mul_grad(j->l->gate + i * f, j->l->up + i * f, j->w->da + i * f,
                                        (uint32_t)f);
}

static void ffn_back(struct train_work *w, uint32_t i, size_t rows)
{
    const struct train_model *m = w->m;
    const uint32_t h = m->shape.hidden, f = m->shape.ffn;
    struct train_layer *l = &w->layer[i];
    const struct train_grad down = {grad(w, TR_DOWN, i), w->dx, h};
    par_grad_w(w->par, &down, 1, l->act, rows, f);
    par_grad_x(w->par, w->da, w->dx, train_param(m, TR_DOWN, i), rows, h, f, false);
    struct silu_job j = {.w = w, .l = l};
    par_rows(w->par, rows, GRAIN, silu_rows, &j);
    const struct train_grad wide[] = {{grad(w, TR_GATE, i), l->gate, f},
                                      {grad(w, TR_UP, i), l->up, f}};
    par_grad_w(w->par, wide, 2, l->norm2, rows, h);
    par_grad_x(w->par, w->db, l->gate, train_param(m, TR_GATE, i), rows, f, h, false);
    par_grad_x(w->par, w->db, l->up, train_param(m, TR_UP, i), rows, f, h, true);
    struct norm_back n = {.w = w,
                          .dx = w->dx,
                          .dy = w->db,
                          .x = l->mid,
                          .r = l->r2,
                          .gain = train_param(m, TR_FFN_NORM, i),
                          .d_gain = grad(w, TR_FFN_NORM, i),
                          .rows = rows,
                          .n = h,
                          .heads = 1,
                          .add = true};
    norm_back(&n);
}

static void attn_back(struct train_work *w, uint32_t i, size_t rows)
{
    const struct train_model *m = w->m;
    const struct train_shape *s = &m->shape;
    const uint32_t h = s->hidden, q = train_q_width(s), kv = train_kv_width(s);
    struct train_layer *l = &w->layer[i];
    const struct train_grad o = {grad(w, TR_O, i), w->dx, h};
    par_grad_w(w->par, &o, 1, l->attn, rows, q);
    par_grad_x(w->par, w->da, w->dx, train_param(m, TR_O, i), rows, h, q, false);
    train_attention_back(w, i);
    struct norm_back nq = {.w = w,
                           .dx = l->q,
                           .dy = w->dq,
                           .x = l->q_raw,
                           .r = l->q_r,
                           .gain = train_param(m, TR_Q_NORM, i),
                           .d_gain = grad(w, TR_Q_NORM, i),
                           .rows = rows,
                           .n = s->head_dim,
                           .heads = s->heads,
                           .rope_blocks = true};
    norm_back(&nq); /* q and k of the way forward make room for the gradients of q_raw and k_raw */
    struct norm_back nk = {.w = w,
                           .dx = l->k,
                           .dy = w->dkb,
                           .x = l->k_raw,
                           .r = l->k_r,
                           .gain = train_param(m, TR_K_NORM, i),
                           .d_gain = grad(w, TR_K_NORM, i),
                           .rows = rows,
                           .n = s->head_dim,
                           .heads = s->kv_heads,
                           .rope_blocks = true};
    norm_back(&nk);
    const struct train_grad qkv[] = {
        {grad(w, TR_Q, i), l->q, q}, {grad(w, TR_K, i), l->k, kv}, {grad(w, TR_V, i), w->dv, kv}};
    par_grad_w(w->par, qkv, 3, l->norm1, rows, h);
    par_grad_x(w->par, w->db, l->q, train_param(m, TR_Q, i), rows, q, h, false);
    par_grad_x(w->par, w->db, l->k, train_param(m, TR_K, i), rows, kv, h, true);
    par_grad_x(w->par, w->db, w->dv, train_param(m, TR_V, i), rows, kv, h, true);
    struct norm_back n = {.w = w,
                          .dx = w->dx,
                          .dy = w->db,
                          .x = l->x,
                          .r = l->r1,
                          .gain = train_param(m, TR_ATTN_NORM, i),
                          .d_gain = grad(w, TR_ATTN_NORM, i),
                          .rows = rows,
                          .n = h,
                          .heads = 1,
                          .add = true,
                          .only_gain = i == 0};
    norm_back(&n);
}

void train_blocks_back(struct train_work *w)
{
    const size_t rows = (size_t)w->n_blocks * w->m->shape.window;
    for (uint32_t i = w->m->shape.layers; i-- > 0;) {
        ffn_back(w, i, rows);
        attn_back(w, i, rows);
    }
}

/* ---- context --------------------------------------------------------------------------------- */

void train_context_back(struct train_work *w)
{
    const struct train_model *m = w->m;
    const struct train_shape *s = &m->shape;
    const uint32_t h = s->hidden, kv = train_kv_width(s);
    for (uint32_t i = 0; i < s->layers; i++) {
        struct train_ctx_layer *c = &w->ctx[i];
        struct norm_back nk = {.w = w,
                               .dx = c->k,
                               .dy = c->dk,
                               .x = c->k_raw,
                               .r = c->k_r,
                               .gain = train_param(m, TR_K_NORM, i),
                               .d_gain = grad(w, TR_K_NORM, i),
                               .rows = w->n_ctx,
                               .n = s->head_dim,
                               .heads = s->kv_heads,
                               .ctx_pos = w->ctx_pos};
        norm_back(&nk);
        const struct train_grad both[] = {{grad(w, TR_K, i), c->k, kv},
                                          {grad(w, TR_V, i), c->dv, kv}};
        par_grad_w(w->par, both, 2, w->fused, w->n_ctx, h);
        par_grad_x(w->par, w->d_ctx, c->k, train_param(m, TR_K, i), w->n_ctx, kv, h, i > 0);
        par_grad_x(w->par, w->d_ctx, c->dv, train_param(m, TR_V, i), w->n_ctx, kv, h, true);
    }
    struct norm_back n = {.w = w,
                          .dx = w->fused,
                          .dy = w->d_ctx,
                          .x = w->fused_raw,
                          .r = w->fused_r,
                          .gain = train_param(m, TR_HIDDEN_NORM, 0),
                          .d_gain = grad(w, TR_HIDDEN_NORM, 0),
                          .rows = w->n_ctx,
                          .n = h,
                          .heads = 1};
    norm_back(&n);
    const struct train_grad fc = {grad(w, TR_FC, 0), w->fused, h};
    par_grad_w(w->par, &fc, 1, w->taps, w->n_ctx, train_tap_width(s));
}
