/* SPDX-License-Identifier: Apache-2.0 */
#include "train/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/rope.h"

int train_shape_check(const struct train_shape *s, struct error *err)
{
    const struct {
        const char *name;
        uint32_t value, min, max;
    } sizes[] = {
        {"layers", s->layers, 1, DRAFTER_MAX_LAYERS},
        {"hidden", s->hidden, 1, 1u << 20},
        {"ffn", s->ffn, 1, 1u << 20},
        {"heads", s->heads, 1, 4096},
        {"kv_heads", s->kv_heads, 1, 4096},
        {"head_dim", s->head_dim, 2, DK_MAX_HEAD_DIM},
        {"taps", s->n_taps, 1, DRAFTER_MAX_TAPS},
        {"target_hidden", s->target_hidden, 1, 1u << 20},
        {"target_layers", s->target_layers, 1, 65536},
        {"window", s->window, 2, DRAFTER_MAX_BLOCK},
        {"vocab", s->vocab, 1, 1u << 24},
        {"draft_vocab", s->draft_vocab, 1, s->vocab},
        {"mask_token", s->mask_token, 0, s->vocab - 1},
        {"max_position", s->max_position, 2, 1u << 22},
    };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        if (sizes[i].value < sizes[i].min || sizes[i].value > sizes[i].max)
            return ERR(err, INVALID, "%s is %" PRIu32 ", must be from %" PRIu32 " to %" PRIu32,
                       sizes[i].name, sizes[i].value, sizes[i].min, sizes[i].max);
    if (s->heads % s->kv_heads)
        return ERR(err, INVALID, "heads %" PRIu32 " is not a multiple of kv_heads %" PRIu32,
                   s->heads, s->kv_heads);
    if (s->head_dim % 2)
        return ERR(err, INVALID, "head_dim %" PRIu32 " is odd", s->head_dim);
    for (uint32_t i = 0; i < s->n_taps; i++)
        if (s->tap_layers[i] >= s->target_layers || (i && s->tap_layers[i] <= s->tap_layers[i - 1]))
            return ERR(err, INVALID,
                       "taps[%" PRIu32 "] is %" PRIu32
                       ": layers must ascend and be below the target's %" PRIu32,
                       i, s->tap_layers[i], s->target_layers);
    if (!(s->eps > 0 && s->eps < 1))
        return ERR(err, INVALID, "eps %g must be above 0 and below 1", (double)s->eps);
    if (!(s->rope_theta >= 1 && s->rope_theta <= 1e12))
        return ERR(err, INVALID, "rope_theta %g must be from 1 to 1e12", s->rope_theta);
    return 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static void tensor(struct train_layout *l, const char *name, uint32_t layer, bool in_layer,
                   uint32_t rows, uint32_t cols)
{
    struct train_tensor *t = &l->t[l->n++];
    if (in_layer)
        snprintf(t->name, sizeof(t->name), "layers.%" PRIu32 ".%s", layer, name);
    else
        snprintf(t->name, sizeof(t->name), "%s", name);
    t->norm = rows == 0;
    t->rows = rows ? rows : 1;
    t->cols = cols;
    t->at = l->total;
    l->values += (size_t)t->rows * cols;
    l->total += ((size_t)t->rows * cols + 15) / 16 * 16;
}

void train_layout_init(struct train_layout *l, const struct train_shape *s)
{
    const uint32_t h = s->hidden, q = train_q_width(s), kv = train_kv_width(s);
    memset(l, 0, sizeof(*l));
    tensor(l, "fc.weight", 0, false, h, train_tap_width(s));
    tensor(l, "hidden_norm.weight", 0, false, 0, h);
    tensor(l, "norm.weight", 0, false, 0, h);
    for (uint32_t i = 0; i < s->layers; i++) {
        tensor(l, "input_layernorm.weight", i, true, 0, h);
        tensor(l, "self_attn.q_proj.weight", i, true, q, h);
        tensor(l, "self_attn.k_proj.weight", i, true, kv, h);
        tensor(l, "self_attn.v_proj.weight", i, true, kv, h);
        tensor(l, "self_attn.o_proj.weight", i, true, h, q);
        tensor(l, "self_attn.q_norm.weight", i, true, 0, s->head_dim);
        tensor(l, "self_attn.k_norm.weight", i, true, 0, s->head_dim);
        tensor(l, "post_attention_layernorm.weight", i, true, 0, h);
        tensor(l, "mlp.gate_proj.weight", i, true, s->ffn, h);
        tensor(l, "mlp.up_proj.weight", i, true, s->ffn, h);
        tensor(l, "mlp.down_proj.weight", i, true, h, s->ffn);
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

int train_dequant(const struct model_tensor *t, float *ret, size_t n, struct error *err)
{
    const struct dk_type_info *type = dk_type_info(t->type);
    size_t have = t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1);
    if (have != n)
        return ERR(err, MISMATCH, "tensor \"%s\" has %zu values, %zu are needed", t->name, have, n);
    dk_dequant(t->type, t->data, n / type->block_elems, ret);
    return 0;
}

void train_embed(const struct train_model *m, uint32_t token, float *ret)
{
    const struct dk_type_info *type = dk_type_info(m->embed->type);
    size_t row = m->embed->bytes / m->embed->dims[0];
    dk_dequant(m->embed->type, (const char *)m->embed->data + token * row,
               m->shape.hidden / type->block_elems, ret);
}

static int make_head(struct train_model *m, const struct model_tensor *head, struct error *err)
{
    const struct train_shape *s = &m->shape;
    const size_t row = head->bytes / head->dims[0];
    const uint32_t block = dk_type_info(head->type)->block_elems;
    m->head = mem_array(s->draft_vocab, (size_t)s->hidden * sizeof(float));
    if (!m->head)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < s->draft_vocab; i++)
        dk_dequant(head->type, (const char *)head->data + m->target_ids[i] * row, s->hidden / block,
                   m->head + (size_t)i * s->hidden);
    return 0;
}

static int make_ids(struct train_model *m, const uint32_t *target_ids, struct error *err)
{
    const struct train_shape *s = &m->shape;
    m->target_ids = mem_array(s->draft_vocab, sizeof(*m->target_ids));
    m->draft_ids = mem_array(s->vocab, sizeof(*m->draft_ids));
    if (!m->target_ids || !m->draft_ids)
        return ERR_NOMEM(err);
    if (!target_ids && s->draft_vocab != s->vocab)
        return ERR(err, INVALID, "draft_vocab %" PRIu32 " of %" PRIu32 " tokens needs their ids",
                   s->draft_vocab, s->vocab);
    for (uint32_t i = 0; i < s->vocab; i++)
        m->draft_ids[i] = -1;
    for (uint32_t i = 0; i < s->draft_vocab; i++) {
        uint32_t id = target_ids ? target_ids[i] : i;
        if (id >= s->vocab || (i && id <= m->target_ids[i - 1]))
            return ERR(err, INVALID,
                       "draft token %" PRIu32 " is %" PRIu32
                       ": ids must ascend and be below %" PRIu32,
                       i, id, s->vocab);
        m->target_ids[i] = id;
        m->draft_ids[id] = (int32_t)i;
    }
    return 0;
}

static int make_angles(struct train_model *m, struct error *err)
{
    const struct train_shape *s = &m->shape;
    const struct model_config c = {.head_dim = s->head_dim, .rope_theta = s->rope_theta};
    const uint32_t half = s->head_dim / 2;
    float inv[DK_MAX_HEAD_DIM / 2];
    rope_inv_freq(&c, inv);
    m->angles = mem_array(s->max_position, s->head_dim * sizeof(float));
    m->back = mem_array(s->max_position, s->head_dim * sizeof(float));
    if (!m->angles || !m->back)
        return ERR_NOMEM(err);
    for (uint32_t p = 0; p < s->max_position; p++) {
        float *a = m->angles + (size_t)p * s->head_dim, *b = m->back + (size_t)p * s->head_dim;
        for (uint32_t i = 0; i < half; i++) {
            dk_sincosf((float)p * inv[i], a + half + i, a + i);
            b[i] = a[i];
            b[half + i] = -a[half + i];
        }
    }
    return 0;
}

int train_model_init(struct train_model *m, const struct train_shape *s,
                     const struct model_file *target, const uint32_t *target_ids, struct error *err)
{
    memset(m, 0, sizeof(*m));
    int r = train_shape_check(s, err);
    if (r < 0)
        return r;
    const struct model_config *c = model_file_config(target);
    if (s->hidden != c->hidden || s->target_hidden != c->hidden || s->vocab != c->vocab_size ||
        s->target_layers != c->n_layers)
        return ERR(err, MISMATCH,
                   "a drafter of hidden %" PRIu32 ", %" PRIu32 " tokens, %" PRIu32
                   " target layers; %s has %" PRIu32 ", %" PRIu32 ", %" PRIu32,
                   s->hidden, s->vocab, s->target_layers, model_file_name(target), c->hidden,
                   c->vocab_size, c->n_layers);
    m->shape = *s;
    train_layout_init(&m->layout, s);
    m->embed = model_file_tensor(target, MT_EMBED, 0);
    m->p = mem_calloc(m->layout.total, sizeof(float));
    r = m->p ? make_ids(m, target_ids, err) : ERR_NOMEM(err);
    if (r == 0)
        r = make_head(m, model_file_tensor(target, MT_HEAD, 0), err);
    if (r == 0)
        r = make_angles(m, err);
    if (r < 0)
        train_model_done(m);
    return r;
}

void train_model_done(struct train_model *m)
{
    mem_free(m->p);
    mem_free(m->head);
    mem_free(m->target_ids);
    mem_free(m->draft_ids);
    mem_free(m->angles);
    mem_free(m->back);
    memset(m, 0, sizeof(*m));
}
