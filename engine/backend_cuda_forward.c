/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch through a model on the device: one copy in, the kernels of kernels/cuda in the order of
 * backend_cpu_forward.c, copies of what was asked for, one wait.  The kernels compute each row from
 * that row alone (cuda_kernels.h), so no division into launches changes bits.
 */
#include <string.h>

#include "engine/backend_cuda.h"
#include "engine/drafter_file.h"

/* ---- products --------------------------------------------------------------------------------------- */

static unsigned form_of(const struct dcu_weight *w)
{
    return dcu_weight_form(w->type, w->layout);
}

/* Rows into the forms that the weights of the next products read. */
static int prepare(struct cuda_model *m, struct dcu_prep p, struct error *err)
{
    p.act = m->s.act;
    CUDA_DO(m, err, "preparing activations", m->api->prepare(m->stream, &p));
    return 0;
}

int cuda_products(struct cuda_model *m, const struct dcu_mm *mm, unsigned n, uint32_t rows,
                  struct error *err)
{
    CUDA_DO(m, err, "a product", m->api->matmul(m->stream, mm, n, &m->s.act, rows));
    return 0;
}

/* ---- stages of a layer ------------------------------------------------------------------------------ */

/* The rows of a stage and where they lie. */
struct stage {
    uint32_t n;
    float *x, *q;
    const struct dcu_row *rows, *window;
    const uint32_t *tap_index;
};

struct run {
    struct cuda_model *m;
    const struct fwd_batch *b;
    struct cuda_rows c;
    struct error *err;
};

static int qkv(const struct run *f, const struct cuda_layer *l, const struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const struct dcu_weight *w = l->w;
    int r = prepare(
        m,
        (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                          .x = s->x,
                          .ldx = t->ld_x,
                          .w = l->attn_norm,
                          .eps = m->cfg.rms_eps,
                          .rows = s->n,
                          .k = m->cfg.hidden,
                          .forms = form_of(&w[CUDA_Q]) | form_of(&w[CUDA_K]) | form_of(&w[CUDA_V])},
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
static int attend(const struct run *f, const struct cuda_layer *l, const struct stage *s,
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

static int output(const struct run *f, const struct cuda_layer *l, const struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    int r = prepare(m,
                    (struct dcu_prep){.src = DCU_SRC_PLAIN,
                                      .x = t->att,
                                      .ldx = t->ld_q,
                                      .rows = s->n,
                                      .k = m->cfg.n_heads * m->cfg.head_dim,
                                      .forms = form_of(&l->w[CUDA_O])},
                    f->err);
    struct dcu_mm o = {.w = l->w[CUDA_O], .y = s->x, .ldy = t->ld_x, .flags = DK_MM_ADD};
    return r < 0 ? r : cuda_products(m, &o, 1, s->n, f->err);
}

static int feed_forward(const struct run *f, const struct cuda_layer *l, const struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const struct dcu_weight *w = l->w;
    int r = prepare(m,
                    (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                                      .x = s->x,
                                      .ldx = t->ld_x,
                                      .w = l->ffn_norm,
                                      .eps = m->cfg.rms_eps,
                                      .rows = s->n,
                                      .k = m->cfg.hidden,
                                      .forms = form_of(&w[CUDA_GATE]) | form_of(&w[CUDA_UP])},
                    f->err);
    struct dcu_mm mm[2] = {{.w = w[CUDA_GATE], .y = t->g, .ldy = t->ld_f},
                           {.w = w[CUDA_UP], .y = t->u, .ldy = t->ld_f}};
    if (r == 0)
        r = cuda_products(m, mm, 2, s->n, f->err);
    if (r == 0)
        r = prepare(m,
                    (struct dcu_prep){.src = DCU_SRC_SILU_MUL,
                                      .x = t->g,
                                      .ldx = t->ld_f,
                                      .u = t->u,
                                      .ldu = t->ld_f,
                                      .rows = s->n,
                                      .k = m->cfg.ffn,
                                      .forms = form_of(&w[CUDA_DOWN])},
                    f->err);
    struct dcu_mm down = {.w = w[CUDA_DOWN], .y = s->x, .ldy = t->ld_x, .flags = DK_MM_ADD};
    return r < 0 ? r : cuda_products(m, &down, 1, s->n, f->err);
}

/* The taps of a layer, to the host: through one buffer, so the host waits for each tapped layer. */
static int taps_to_host(const struct run *f, const struct stage *s, uint32_t layer)
{
    struct cuda_model *m = f->m;
    const uint32_t hidden = m->cfg.hidden;
    for (uint32_t t = 0; f->c.n_tap && t < f->b->n_taps; t++) {
        if (f->b->tap_layers[t] != layer)
            continue;
        CUDA_DO(m, f->err, "taps",
                m->api->gather(m->stream, m->s.taps, hidden, s->x, m->s.ld_x, s->tap_index,
                               f->c.n_tap, hidden));
        CUDA_DO(m, f->err, "taps",
                m->api->copy_out(m->stream, m->p.taps, m->s.taps,
                                 (size_t)f->c.n_tap * hidden * sizeof(float)));
        CUDA_DO(m, f->err, "taps", m->api->stream_wait(m->stream));
        for (uint32_t i = 0; i < f->c.n_tap; i++)
            memcpy(f->b->rows[m->p.batch.tap_index[i]].taps + (size_t)t * hidden,
                   m->p.taps + (size_t)i * hidden, hidden * sizeof(float));
    }
    return 0;
}

/* Nothing reads the last layer's output of rows without logits and taps: they stop at their K/V, and
 * the others move together. */
static int keep_live(const struct run *f, struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const uint32_t n = f->c.n_live, nq = m->cfg.n_heads * m->cfg.head_dim;
    CUDA_DO(m, f->err, "the live rows",
            m->api->gather(m->stream, t->x2, t->ld_x, s->x, t->ld_x, t->batch.live_index, n,
                           m->cfg.hidden));
    CUDA_DO(m, f->err, "the live rows",
            m->api->gather(m->stream, t->q2, t->ld_q, s->q, t->ld_q, t->batch.live_index, n, nq));
    *s = (struct stage){.n = n,
                        .x = t->x2,
                        .q = t->q2,
                        .rows = t->batch.live,
                        .window = t->batch.window[1],
                        .tap_index = t->batch.tap_live};
    return 0;
}

static int run_layer(const struct run *f, uint32_t layer, struct stage *s)
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
    return r < 0 ? r : taps_to_host(f, s, layer);
}

/* ---- logits ----------------------------------------------------------------------------------------- */

/* Logits of the rows that want them, some at a time. */
static int run_head(const struct run *f, const struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const uint32_t vocab = m->head.n;
    for (uint32_t i = 0, n; i < f->c.n_head; i += n) {
        n = f->c.n_head - i < CUDA_LOGIT_ROWS ? f->c.n_head - i : CUDA_LOGIT_ROWS;
        int r = prepare(m,
                        (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                                          .x = s->x,
                                          .ldx = t->ld_x,
                                          .index = t->batch.head_index + i,
                                          .w = m->final_norm,
                                          .eps = m->cfg.rms_eps,
                                          .rows = n,
                                          .k = m->cfg.hidden,
                                          .forms = form_of(&m->head)},
                        f->err);
        struct dcu_mm mm = {.w = m->head, .y = t->logits, .ldy = vocab};
        if (r == 0)
            r = cuda_products(m, &mm, 1, n, f->err);
        if (r < 0)
            return r;
        CUDA_DO(
            m, f->err, "logits",
            m->api->copy_out(m->stream, m->p.logits, t->logits, (size_t)n * vocab * sizeof(float)));
        CUDA_DO(m, f->err, "a batch", m->api->stream_wait(m->stream));
        for (uint32_t j = 0; j < n; j++) {
            uint32_t row = m->p.batch.live_index[m->p.batch.head_index[i + j]];
            memcpy(f->b->rows[row].logits, m->p.logits + (size_t)j * vocab, vocab * sizeof(float));
        }
    }
    return 0;
}

int cuda_forward(struct backend_model *model, const struct fwd_batch *b, struct error *err)
{
    struct cuda_model *m = cuda_of(model);
    const struct cuda_scratch *t = &m->s;
    struct run f = {.m = m, .b = b, .err = err};
    if (b->n_rows == 0)
        return 0;
    if (b->n_rows > m->opt.max_rows)
        return ERR(err, LIMIT, "a batch of %u rows: at most %u fit", b->n_rows, m->opt.max_rows);
    CUDA_DO(m, err, "the device", m->api->device_use(m->opt.device));
    int r = cuda_batch_fill(m, b, &f.c, err);
    if (r == 0)
        r = cuda_batch_send(m, f.c.n_words, err);
    if (r < 0)
        return r;
    CUDA_DO(m, err, "the embedding",
            m->api->embed(m->stream, &m->embed, t->batch.rows, f.c.n, t->x, t->ld_x));
    CUDA_DO(m, err, "rotation",
            m->api->angles(m->stream, m->inv_freq, m->cfg.head_dim, t->batch.rows, f.c.n, t->cs));
    struct stage s = {.n = f.c.n,
                      .x = t->x,
                      .q = t->q,
                      .rows = t->batch.rows,
                      .window = t->batch.window[0],
                      .tap_index = t->batch.tap_index};
    for (uint32_t l = 0; r == 0 && l < m->cfg.n_layers; l++)
        r = run_layer(&f, l, &s);
    if (r < 0)
        return r;
    if (f.c.n_head == 0) {
        /* The pinned rows are written again by the next call. */
        CUDA_DO(m, err, "a batch", m->api->stream_wait(m->stream));
        return 0;
    }
    return run_head(&f, &s);
}

/* ---- features to K/V -------------------------------------------------------------------------------- */

static int inject_layers(struct cuda_model *m, uint32_t n, struct error *err)
{
    const struct cuda_scratch *t = &m->s;
    for (uint32_t i = 0; i < m->cfg.n_layers; i++) {
        const struct cuda_layer *l = &m->layers[i];
        struct dcu_mm mm[2] = {{.w = l->w[CUDA_K], .y = t->k, .ldy = t->ld_kv},
                               {.w = l->w[CUDA_V], .y = t->v, .ldy = t->ld_kv}};
        int r = cuda_products(m, mm, 2, n, err);
        if (r < 0)
            return r;
        struct dcu_qkv p = {.k = t->k,
                            .v = t->v,
                            .ldk = t->ld_kv,
                            .ldv = t->ld_kv,
                            .k_bias = l->k_bias,
                            .v_bias = l->v_bias,
                            .k_norm = l->k_norm,
                            .eps = m->cfg.rms_eps,
                            .n_heads = m->cfg.n_heads,
                            .pairing = m->cfg.rope_pairing,
                            .cs = t->cs,
                            .rows = t->batch.rows,
                            .n_rows = n,
                            .kv = l->kv};
        CUDA_DO(m, err, "rotation", m->api->qkv_finish(m->stream, &p));
    }
    return 0;
}

/* All layers read the same features: prepared once, in every form that any of them wants. */
static int features(struct cuda_model *m, uint32_t n, bool fused, struct error *err)
{
    const struct cuda_scratch *t = &m->s;
    unsigned forms = 0;
    int r = prepare(m,
                    (struct dcu_prep){.src = DCU_SRC_PLAIN,
                                      .x = t->taps,
                                      .ldx = t->tap_floats,
                                      .rows = n,
                                      .k = m->fc.k,
                                      .forms = form_of(&m->fc)},
                    err);
    struct dcu_mm fc = {.w = m->fc, .y = t->x, .ldy = t->ld_x};
    if (r == 0)
        r = cuda_products(m, &fc, 1, n, err);
    for (uint32_t l = 0; l < m->cfg.n_layers; l++)
        forms |= form_of(&m->layers[l].w[CUDA_K]) | form_of(&m->layers[l].w[CUDA_V]);
    if (r == 0)
        r = prepare(m,
                    (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                                      .x = t->x,
                                      .ldx = t->ld_x,
                                      .w = m->hidden_norm,
                                      .eps = m->cfg.rms_eps,
                                      .rows = n,
                                      .k = m->cfg.hidden,
                                      .y = fused ? t->h : NULL,
                                      .ldy = t->ld_x,
                                      .forms = forms},
                    err);
    return r;
}

int cuda_inject(struct backend_model *drafter, const struct ctx_row *rows, uint32_t n,
                struct error *err)
{
    struct cuda_model *m = cuda_of(drafter);
    const struct cuda_scratch *t = &m->s;
    const size_t width = m->fc.k;
    bool fused = false;
    if (n == 0)
        return 0;
    if (n > m->opt.max_rows)
        return ERR(err, LIMIT, "features of %u rows: at most %u fit", n, m->opt.max_rows);
    CUDA_DO(m, err, "the device", m->api->device_use(m->opt.device));
    for (uint32_t i = 0; i < n; i++) {
        m->p.batch.rows[i] = (struct dcu_row){.pos = rows[i].pos, .slot = rows[i].slot, .n_vis = 1};
        memcpy(m->p.taps + i * t->tap_floats, rows[i].taps, width * sizeof(float));
        fused = fused || rows[i].fused;
    }
    int r = cuda_batch_send(m, 0, err);
    if (r < 0)
        return r;
    CUDA_DO(m, err, "features",
            m->api->copy_in(m->stream, t->taps, m->p.taps, n * t->tap_floats * sizeof(float)));
    CUDA_DO(m, err, "rotation",
            m->api->angles(m->stream, m->inv_freq, m->cfg.head_dim, t->batch.rows, n, t->cs));
    r = features(m, n, fused, err);
    if (r == 0)
        r = inject_layers(m, n, err);
    if (r < 0)
        return r;
    if (fused)
        CUDA_DO(m, err, "features",
                m->api->copy_out(m->stream, m->p.taps, t->h, n * t->ld_x * sizeof(float)));
    CUDA_DO(m, err, "features", m->api->stream_wait(m->stream));
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].fused)
            memcpy(rows[i].fused, m->p.taps + i * t->ld_x, m->cfg.hidden * sizeof(float));
    return 0;
}
