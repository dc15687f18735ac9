/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a model on the device: the kernels of kernels/cuda, or cuBLASLt for weights that lie in rows
 * (`exactness = fast`).  What cuBLASLt will be asked for is settled when the model is loaded, once for each
 * shape and number of rows, and run once: from then on it allocates nothing and can be captured.
 */
#include "engine/backend_cuda.h"

static bool in_rows(const struct dcu_weight *w)
{
    return w->data && w->layout == DCU_LAYOUT_ROWS;
}

static int plan(struct cuda_model *m, const struct dcu_weight *w, float *y, size_t ldy,
                uint32_t most, struct error *err)
{
    struct dcu_mm mm = {.w = *w, .y = y, .ldy = ldy};
    if (!in_rows(w))
        return 0;
    if (!m->blas) {
        m->api->region(m->s.blas, DCU_BLAS_WORKSPACE);
        CUDA_DO(m, err, "cuBLASLt", m->api->blas_new(&m->blas, m->s.blas, DCU_BLAS_WORKSPACE));
    }
    CUDA_DO(m, err, "a product of cuBLASLt",
            m->api->blas_plan(m->stream, m->blas, &mm, &m->s.act, most));
    return 0;
}

static int plan_layer(struct cuda_model *m, const struct cuda_layer *l, struct error *err)
{
    const struct cuda_scratch *s = &m->s;
    float *const y[CUDA_MATRICES] = {s->q, s->k, s->v, s->x, s->g, s->u, s->x};
    const size_t ld[CUDA_MATRICES] = {s->ld_q, s->ld_kv, s->ld_kv, s->ld_x,
                                      s->ld_f, s->ld_f,  s->ld_x};
    int r = 0;
    for (unsigned i = 0; r == 0 && i < CUDA_MATRICES; i++)
        r = plan(m, &l->w[i], y[i], ld[i], m->opt.max_rows, err);
    return r;
}

int cuda_blas_ready(struct cuda_model *m, struct error *err)
{
    const uint32_t rows = m->opt.max_rows;
    int r = plan(m, &m->fc, m->s.x, m->s.ld_x, rows, err);
    for (uint32_t l = 0; r == 0 && l < m->cfg.n_layers; l++)
        r = plan_layer(m, &m->layers[l], err);
    if (r == 0)
        r = plan(m, &m->head, m->s.logits, m->head.n,
                 rows < CUDA_LOGIT_ROWS ? rows : CUDA_LOGIT_ROWS, err);
    if (r == 0 && m->blas)
        CUDA_DO(m, err, "the products of cuBLASLt", m->api->stream_wait(m->stream));
    return r;
}

int cuda_products(struct cuda_model *m, const struct dcu_mm *mm, unsigned n, uint32_t rows,
                  struct error *err)
{
    /* Neighbours of one kind go together. */
    for (unsigned i = 0, j; i < n; i = j) {
        const bool blas = in_rows(&mm[i].w);
        for (j = i + 1; j < n && in_rows(&mm[j].w) == blas;)
            j++;
        if (blas)
            CUDA_DO(m, err, "a product of cuBLASLt",
                    m->api->blas_matmul(m->stream, m->blas, mm + i, j - i, &m->s.act, rows));
        else
            CUDA_DO(m, err, "a product",
                    m->api->matmul(m->stream, mm + i, j - i, &m->s.act, rows));
    }
    return 0;
}
