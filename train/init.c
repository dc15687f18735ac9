/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First values of a drafter.  Its layers take over the target's last ones where the shapes allow it
 * (what stood there knew how to end in this head), the rest is normal variates; the final norm
 * begins small, since otherwise the first losses are those of a confident wrong answer.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "train/anchors.h"
#include "train/state.h"

#define FINAL_NORM 0.25f

static float *values(struct train_model *m, enum train_role r, uint32_t layer, size_t *ret_n)
{
    const struct train_tensor *t = &m->layout.t[train_index(r, layer)];
    *ret_n = (size_t)t->rows * t->cols;
    return m->p + t->at;
}

/* Box-Muller, deviation 1 / sqrt(inputs). */
static void random_matrix(struct train_model *m, uint32_t index, uint64_t seed)
{
    const struct train_tensor *t = &m->layout.t[index];
    float *p = m->p + t->at;
    const double scale = 1 / sqrt((double)t->cols);
    for (size_t i = 0; i < (size_t)t->rows * t->cols; i += 2) {
        uint64_t u = train_random(seed, STREAM_INIT, index, i);
        double a = ((double)(u >> 32) + 0.5) * 0x1p-32, b = (double)(u & 0xffffffffu) * 0x1p-32;
        double r = sqrt(-2 * log(a)) * scale;
        p[i] = (float)(r * cos(6.283185307179586477 * b));
        if (i + 1 < (size_t)t->rows * t->cols)
            p[i + 1] = (float)(r * sin(6.283185307179586477 * b));
    }
}

static const struct {
    enum train_role to;
    enum model_tensor_role from;
} roles[] = {{TR_ATTN_NORM, MT_ATTN_NORM},
             {TR_Q, MT_Q},
             {TR_K, MT_K},
             {TR_V, MT_V},
             {TR_O, MT_O},
             {TR_FFN_NORM, MT_FFN_NORM},
             {TR_GATE, MT_GATE},
             {TR_UP, MT_UP},
             {TR_DOWN, MT_DOWN}};

int train_halves(float *w, uint32_t heads, uint32_t hd, uint32_t cols, struct error *err)
{
    _cleanup_free_ float *t = mem_array(hd, cols * sizeof(float));
    if (!t)
        return ERR_NOMEM(err);
    for (uint32_t h = 0; h < heads; h++, w += (size_t)hd * cols) {
        for (uint32_t i = 0; i < hd; i++)
            memcpy(t + ((size_t)(i % 2) * (hd / 2) + i / 2) * cols, w + (size_t)i * cols,
                   cols * sizeof(float));
        memcpy(w, t, (size_t)hd * cols * sizeof(float));
    }
    return 0;
}

static int from_target(struct train_model *m, const struct model_file *target, uint32_t layer,
                       struct error *err)
{
    const struct model_config *c = model_file_config(target);
    const uint32_t source = c->n_layers - m->shape.layers + layer;
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(roles); i++) {
        const struct model_tensor *t = model_file_tensor(target, roles[i].from, source);
        size_t n;
        float *to = values(m, roles[i].to, layer, &n);
        r = train_dequant(t, to, n, err);
        if (r == 0 && c->rope_pairing == DK_ROPE_INTERLEAVED &&
            (roles[i].to == TR_Q || roles[i].to == TR_K))
            r = train_halves(to, roles[i].to == TR_Q ? c->n_heads : c->n_kv_heads, c->head_dim,
                             c->hidden, err);
    }
    const struct {
        enum train_role to;
        enum model_tensor_role from;
    } norms[] = {{TR_Q_NORM, MT_Q_NORM}, {TR_K_NORM, MT_K_NORM}};
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(norms); i++) {
        const struct model_tensor *t = model_file_tensor(target, norms[i].from, source);
        size_t n;
        float *to = values(m, norms[i].to, layer, &n);
        if (t)
            r = train_dequant(t, to, n, err);
    }
    return r;
}

int train_init(struct train_model *m, const struct model_file *target, bool from, uint64_t seed,
               struct error *err)
{
    const struct model_config *c = model_file_config(target);
    const struct train_shape *s = &m->shape;
    for (uint32_t i = 0; i < m->layout.n; i++) {
        const struct train_tensor *t = &m->layout.t[i];
        if (!t->norm)
            random_matrix(m, i, seed);
        else
            for (uint32_t k = 0; k < t->cols; k++)
                m->p[t->at + k] = 1;
    }
    if (s->ffn != c->ffn || s->heads != c->n_heads || s->kv_heads != c->n_kv_heads ||
        s->head_dim != c->head_dim || s->layers > c->n_layers)
        from = false;
    int r = 0;
    for (uint32_t l = 0; r == 0 && from && l < s->layers; l++)
        r = from_target(m, target, l, err);
    size_t n;
    float *norm = values(m, TR_NORM, 0, &n);
    if (r == 0)
        r = train_dequant(model_file_tensor(target, MT_FINAL_NORM, 0), norm, n, err);
    for (size_t i = 0; i < n; i++)
        norm[i] *= FINAL_NORM;
    return r;
}
