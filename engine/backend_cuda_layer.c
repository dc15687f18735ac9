/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launches of one layer, in the order of backend_cpu_forward.c: projections, attention, feed-forward, and the
 * taps behind it.  The kernels compute each row from that row alone (cuda_kernels.h), so no division into
 * launches changes bits.
 */
#include <string.h>

#include "engine/backend_cuda_layer.h"
#include "engine/drafter_file.h"

/* ---- products --------------------------------------------------------------------------------------- */

unsigned cuda_form_of(const struct dcu_weight *w)
{
    return dcu_weight_form(w->type, w->layout);
}

int cuda_prepare(struct cuda_model *m, struct dcu_prep p, struct error *err)
{
    p.act = m->s.act;
    CUDA_DO(m, err, "preparing activations", m->api->prepare(m->stream, &p));
    return 0;
}

/* ---- stages of a layer ------------------------------------------------------------------------------ */

static int qkv(const struct cuda_run *f, const struct cuda_layer *l, const struct cuda_stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const struct dcu_weight *w = l->w;
    int r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                                           .x = s->x,
                                           .ldx = t->ld_x,
                                           .w = l->attn_norm,
                                           .eps = m->cfg.rms_eps,
                                           .rows = s->n,
                                           .k = m->cfg.hidden,
                                           .forms = cuda_form_of(&w[CUDA_Q]) |
                                                    cuda_form_of(&w[CUDA_K]) |
                                                    cuda_form_of(&w[CUDA_V])},
                         f->err);
    struct dcu_mm mm[3] = {{.w = w[CUDA_Q], .y = t->q, .ldy = t->ld_q},
                           {.w = w[CUDA_K], .y = t->k, .ldy = t->ld_kv},
                           {.w = w[CUDA_V], .y = t->v, .ldy = t->ld_kv}};
    if (r == 0)
        r = cuda_products(m, mm, 3, s->n, f->err);
    if (r < 0)
        return r;
    struct dcu_qkv p = {.q = t->q,
                        .k = t->k,
                        .v = t->v,
                        .ldq = t->ld_q,
                        .ldk = t->ld_kv,
                        .ldv = t->ld_kv,
                        .q_bias = l->q_bias,
                        .k_bias = l->k_bias,
                        .v_bias = l->v_bias,
                        .q_norm = l->q_norm,
                        .k_norm = l->k_norm,
                        .eps = m->cfg.rms_eps,
                        .n_heads = m->cfg.n_heads,
                        .pairing = m->cfg.rope_pairing,
                        .cs = t->cs,
                        .rows = s->rows,
                        .n_rows = s->n,
                        .kv = l->kv};
    CUDA_DO(m, f->err, "rotation", m->api->qkv_finish(m->stream, &p));
    return 0;
}

/* As many rows at once as the memory for partial results holds. */
static int attend(const struct cuda_run *f, const struct cuda_layer *l, const struct cuda_stage *s,
                  bool window)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    size_t one = dcu_attention_part_floats(1, m->cfg.n_heads, m->cfg.head_dim, f->c.max_vis);
    uint32_t fit = (uint32_t)(t->part_floats / one);
    for (uint32_t i = 0, n; i < s->n; i += n) {
        n = s->n - i < fit ? s->n - i : fit;
        struct dcu_attn p = {.kv = l->kv,
                             .rows = (window ? s->window : s->rows) + i,
                             .n_rows = n,
                             .max_vis = f->c.max_vis,
                             .words = t->batch.words,
                             .q = s->q + i * t->ld_q,
                             .ldq = t->ld_q,
                             .out = t->att + i * t->ld_q,
                             .ldo = t->ld_q,
                             .n_heads = m->cfg.n_heads,
                             .scale = m->scale,
                             .part = t->part};
        CUDA_DO(m, f->err, "attention", m->api->attention(m->stream, &p));
    }
    return 0;
}

static int output(const struct cuda_run *f, const struct cuda_layer *l, const struct cuda_stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    int r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_PLAIN,
                                           .x = t->att,
                                           .ldx = t->ld_q,
                                           .rows = s->n,
                                           .k = m->cfg.n_heads * m->cfg.head_dim,
                                           .forms = cuda_form_of(&l->w[CUDA_O])},
                         f->err);
    struct dcu_mm o = {.w = l->w[CUDA_O], .y = s->x, .ldy = t->ld_x, .flags = DK_MM_ADD};
    return r < 0 ? r : cuda_products(m, &o, 1, s->n, f->err);
}

static int feed_forward(const struct cuda_run *f, const struct cuda_layer *l,
                        const struct cuda_stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const struct dcu_weight *w = l->w;
    int r = cuda_prepare(
        m,
        (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                          .x = s->x,
                          .ldx = t->ld_x,
                          .w = l->ffn_norm,
                          .eps = m->cfg.rms_eps,
                          .rows = s->n,
                          .k = m->cfg.hidden,
                          .forms = cuda_form_of(&w[CUDA_GATE]) | cuda_form_of(&w[CUDA_UP])},
        f->err);
    struct dcu_mm mm[2] = {{.w = w[CUDA_GATE], .y = t->g, .ldy = t->ld_f},
                           {.w = w[CUDA_UP], .y = t->u, .ldy = t->ld_f}};
    if (r == 0)
        r = cuda_products(m, mm, 2, s->n, f->err);
    if (r == 0)
        r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_SILU_MUL,
                                           .x = t->g,
                                           .ldx = t->ld_f,
                                           .u = t->u,
                                           .ldu = t->ld_f,
                                           .rows = s->n,
                                           .k = m->cfg.ffn,
                                           .forms = cuda_form_of(&w[CUDA_DOWN])},
                         f->err);
    struct dcu_mm down = {.w = w[CUDA_DOWN], .y = s->x, .ldy = t->ld_x, .flags = DK_MM_ADD};
    return r < 0 ? r : cuda_products(m, &down, 1, s->n, f->err);
}

uint32_t cuda_tap_places(const struct cuda_model *m)
{
    size_t n = m->s.tap_floats / m->cfg.hidden;
    return n < CUDA_TAP_LAYERS ? (uint32_t)n : CUDA_TAP_LAYERS;
}

void cuda_taps_deliver(const struct cuda_run *f, uint32_t first, uint32_t end)
{
    const struct cuda_model *m = f->m;
    const size_t hidden = m->cfg.hidden;
    const float *from = m->p.taps;
    for (uint32_t t = first; t < end; t++)
        for (uint32_t i = 0; i < f->c.n_tap; i++, from += hidden)
            memcpy(f->b->rows[m->p.batch.tap_index[i]].taps + t * hidden, from,
                   hidden * sizeof(float));
}

int cuda_taps_copy(const struct cuda_run *f, uint32_t n)
{
    struct cuda_model *m = f->m;
    size_t bytes = (size_t)n * f->c.n_tap * m->cfg.hidden * sizeof(float);
    CUDA_DO(m, f->err, "taps", m->api->copy_out(m->stream, m->p.taps, m->s.taps, bytes));
    return 0;
}

uint32_t cuda_taps_last(const struct cuda_run *f)
{
    uint32_t n = f->b->n_taps;
    return n ? (n - 1) / cuda_tap_places(f->m) * cuda_tap_places(f->m) : 0;
}

/* The t-th taps, to where they stay. */
static int keep_tap(const struct cuda_run *f, const struct cuda_stage *s, uint32_t t)
{
    struct cuda_model *m = f->m;
    const uint32_t hidden = m->cfg.hidden;
    CUDA_DO(m, f->err, "taps",
            m->api->move(m->stream, m->kept.mem + (size_t)t * hidden, m->kept.width,
                         m->s.batch.tap_kept, s->x, m->s.ld_x, s->tap_index, f->c.n_tap, hidden));
    return 0;
}

/* The taps of a layer; for the host, into the buffer: where it is full and more are to come, the host
 * waits for it. */
static int tap(const struct cuda_run *f, const struct cuda_stage *s, uint32_t layer)
{
    struct cuda_model *m = f->m;
    const uint32_t hidden = m->cfg.hidden, places = cuda_tap_places(m);
    for (uint32_t t = 0; f->c.n_tap && t < f->b->n_taps; t++) {
        if (f->b->tap_layers[t] != layer)
            continue;
        if (f->c.kept) {
            int r = keep_tap(f, s, t);
            if (r < 0)
                return r;
            continue;
        }
        CUDA_DO(m, f->err, "taps",
                m->api->gather(m->stream, m->s.taps + (size_t)(t % places) * f->c.n_tap * hidden,
                               hidden, s->x, m->s.ld_x, s->tap_index, f->c.n_tap, hidden));
        if ((t + 1) % places || t + 1 == f->b->n_taps)
            continue;
        int r = cuda_taps_copy(f, places);
        if (r < 0)
            return r;
        r = cuda_wait(m, "taps", f->err);
        if (r < 0)
            return r;
        cuda_taps_deliver(f, t + 1 - places, t + 1);
    }
    return 0;
}

/* Nothing reads the last layer's output of rows without logits and taps: they stop at their K/V, and
 * the others move together. */
static int keep_live(const struct cuda_run *f, struct cuda_stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const uint32_t n = f->c.n_live, nq = m->cfg.n_heads * m->cfg.head_dim;
    CUDA_DO(m, f->err, "the live rows",
            m->api->gather(m->stream, t->x2, t->ld_x, s->x, t->ld_x, t->batch.live_index, n,
                           m->cfg.hidden));
    CUDA_DO(m, f->err, "the live rows",
            m->api->gather(m->stream, t->q2, t->ld_q, s->q, t->ld_q, t->batch.live_index, n, nq));
    *s = (struct cuda_stage){.n = n,
                             .x = t->x2,
                             .q = t->q2,
                             .rows = t->batch.live,
                             .window = t->batch.window[1],
                             .tap_index = t->batch.tap_live};
    return 0;
}

int cuda_layer_run(const struct cuda_run *f, uint32_t layer, struct cuda_stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_layer *l = &m->layers[layer];
    bool window = f->c.windowed && (m->cfg.drafter->sliding >> layer & 1);
    int r = qkv(f, l, s);
    if (r == 0 && layer + 1 == m->cfg.n_layers && f->c.n_live < s->n) {
        if (f->c.n_live == 0)
            return 0;
        r = keep_live(f, s);
    }
    if (r == 0)
        r = attend(f, l, s, window);
    if (r == 0)
        r = output(f, l, s);
    if (r == 0)
        r = feed_forward(f, l, s);
    return r < 0 ? r : tap(f, s, layer);
}
