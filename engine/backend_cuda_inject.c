/* SPDX-License-Identifier: Apache-2.0 */
/* Features of committed positions into a drafter's K and V, on the device. */
#include <string.h>

#include "engine/backend_cuda.h"

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

struct injection {
    struct cuda_model *m;
    struct cuda_batch *area; /* pinned */
    uint32_t n;
    bool kept;  /* the taps are on the device */
    bool fused; /* somebody wants to see the features */
};

/* All layers read the same features: prepared once, in every form that any of them wants. */
static int features(const struct injection *in, struct error *err)
{
    struct cuda_model *m = in->m;
    const struct cuda_scratch *t = &m->s;
    const uint32_t n = in->n;
    unsigned forms = 0;
    int r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_PLAIN,
                                           .x = in->kept ? m->kept.mem : t->taps,
                                           .ldx = in->kept ? m->kept.width : t->tap_floats,
                                           .index = in->kept ? t->batch.tap_kept : NULL,
                                           .rows = n,
                                           .k = m->fc.k,
                                           .forms = cuda_form_of(&m->fc)},
                         err);
    struct dcu_mm fc = {.w = m->fc, .y = t->x, .ldy = t->ld_x};
    if (r == 0)
        r = cuda_products(m, &fc, 1, n, err);
    for (uint32_t l = 0; l < m->cfg.n_layers; l++)
        forms |= cuda_form_of(&m->layers[l].w[CUDA_K]) | cuda_form_of(&m->layers[l].w[CUDA_V]);
    if (r == 0)
        r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                                           .x = t->x,
                                           .ldx = t->ld_x,
                                           .w = m->hidden_norm,
                                           .eps = m->cfg.rms_eps,
                                           .rows = n,
                                           .k = m->cfg.hidden,
                                           .y = in->fused ? t->h : NULL,
                                           .ldy = t->ld_x,
                                           .forms = forms},
                         err);
    return r;
}

static int enqueue_inject(void *arg, struct error *err)
{
    const struct injection *in = arg;
    struct cuda_model *m = in->m;
    CUDA_DO(
        m, err, "rotation",
        m->api->angles(m->stream, m->inv_freq, m->cfg.head_dim, m->s.batch.rows, in->n, m->s.cs));
    int r = features(in, err);
    return r < 0 ? r : inject_layers(m, in->n, err);
}

/* Rows into the pinned area; their taps, too, where the device does not have them. */
static int fill_injection(struct injection *in, const struct ctx_row *rows, struct error *err)
{
    struct cuda_model *m = in->m;
    const size_t ld = m->s.tap_floats, width = m->fc.k;
    struct cuda_batch *h = in->area;
    for (uint32_t i = 0; i < in->n; i++) {
        h->rows[i] = (struct dcu_row){.pos = rows[i].pos, .slot = rows[i].slot, .n_vis = 1};
        bool kept = cuda_taps_kept(m, rows[i].taps, &h->tap_kept[i]);
        if (i && kept != in->kept)
            return ERR(err, INTERNAL, "features of taps on the host and on the device");
        in->kept = kept;
        if (!kept)
            memcpy(m->p.taps + i * ld, rows[i].taps, width * sizeof(float));
        in->fused = in->fused || rows[i].fused;
    }
    return 0;
}

static int inject(struct cuda_model *m, const struct ctx_row *rows, uint32_t n, struct error *err)
{
    const struct cuda_scratch *t = &m->s;
    struct injection in = {.m = m, .n = n};
    CUDA_DO(m, err, "the device", m->api->device_use(m->opt.device));
    int r = cuda_later_take(m, &in.area, err);
    if (r == 0)
        r = fill_injection(&in, rows, err);
    if (r == 0)
        r = cuda_batch_send(m, in.area, 0, err);
    if (r == 0)
        r = cuda_later_sent(m, err);
    if (r < 0)
        return r;
    if (!in.kept)
        CUDA_DO(m, err, "features",
                m->api->copy_in(m->stream, t->taps, m->p.taps, n * t->tap_floats * sizeof(float)));
    struct cuda_shape shape = {
        .kind = in.fused ? CUDA_INJECT_FUSED : CUDA_INJECT, .rows = n, .kept = in.kept};
    r = cuda_graph_run(m, &shape, enqueue_inject, &in, err);
    if (r == 0 && m->injected) {
        CUDA_DO(m, err, "features", m->api->event_record(m->injected, m->stream));
        m->any_injected = true;
    }
    if (r < 0 || (in.kept && !in.fused))
        return r;
    if (in.fused)
        CUDA_DO(m, err, "features",
                m->api->copy_out(m->stream, m->p.taps, t->h, n * t->ld_x * sizeof(float)));
    r = cuda_wait(m, "features", err);
    for (uint32_t i = 0; i < n && r == 0; i++)
        if (rows[i].fused)
            memcpy(rows[i].fused, m->p.taps + i * t->ld_x, m->cfg.hidden * sizeof(float));
    return r;
}

int cuda_inject(struct backend_model *drafter, const struct ctx_row *rows, uint32_t n,
                struct error *err)
{
    struct cuda_model *m = cuda_of(drafter);
    if (n == 0)
        return 0;
    if (n > m->opt.max_rows)
        return ERR(err, LIMIT, "features of %u rows: at most %u fit", n, m->opt.max_rows);
    int r = inject(m, rows, n, err);
    if (r < 0) /* what was enqueued reads taps, and nobody knows of it */
        cuda_wait_all(m);
    return r;
}
