/* SPDX-License-Identifier: Apache-2.0 */
/* A drafter that the engine could load becomes a state to train on from: weights, no moments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "train/from_drafter.h"

int drafter_is(const char *path, bool *ret, struct error *err)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    const size_t n = strlen(path);
    struct stat st;
    if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) {
        *ret = true;
        return 0;
    }
    if (strbuf_addf(&b, "%s/config.json", path) < 0)
        return ERR_NOMEM(err);
    *ret = stat(b.s, &st) == 0;
    return 0;
}

/* What training has no gradients for. */
static int check(const struct model_file *f, struct error *err)
{
    const struct model_config *c = model_file_config(f);
    const struct drafter_config *d = c->drafter;
    const char *why = NULL;
    if (d->own_embed || d->own_head)
        why = "an embedding or a head of its own";
    else if (d->sliding)
        why = "layers with a sliding window";
    else if (c->rope_scaling != ROPE_SCALING_NONE || c->rope_freq_factors)
        why = "scaled rotary positions";
    else if (c->qkv_bias)
        why = "biases";
    else if (!c->qk_norm)
        why = "no norms of queries and keys";
    return why ? ERR(err, UNSUPPORTED,
                     "%s has %s; drafters that are trained on have the target's embedding and head, "
                     "full attention, plain rotary positions, q and k norms, and no biases",
                     model_file_path(f), why)
               : 0;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int take(struct train_state *s, const struct model_file *f, enum train_role to,
                enum model_tensor_role from, uint32_t layer, struct error *err)
{
    const struct model_config *c = model_file_config(f);
    const struct train_tensor *t = &s->layout.t[train_index(to, layer)];
    float *p = s->param + t->at;
    int r = train_dequant(model_file_tensor(f, from, layer), p, (size_t)t->rows * t->cols, err);
    if (r == 0 && c->rope_pairing == DK_ROPE_INTERLEAVED && (to == TR_Q || to == TR_K))
        r = train_halves(p, to == TR_Q ? c->n_heads : c->n_kv_heads, c->head_dim, c->hidden, err);
    return r;
}

static int take_all(struct train_state *s, const struct model_file *f, struct error *err)
{
    static const enum model_tensor_role from[TR_ROLE_COUNT] = {
        [TR_FC] = MT_FC,
        [TR_HIDDEN_NORM] = MT_HIDDEN_NORM,
        [TR_NORM] = MT_FINAL_NORM,
        [TR_ATTN_NORM] = MT_ATTN_NORM,
        [TR_Q] = MT_Q,
        [TR_K] = MT_K,
        [TR_V] = MT_V,
        [TR_O] = MT_O,
        [TR_Q_NORM] = MT_Q_NORM,
        [TR_K_NORM] = MT_K_NORM,
        [TR_FFN_NORM] = MT_FFN_NORM,
        [TR_GATE] = MT_GATE,
        [TR_UP] = MT_UP,
        [TR_DOWN] = MT_DOWN,
    };
    int r = 0;
    for (enum train_role to = TR_FC; to < TR_ATTN_NORM && r == 0; to++)
        r = take(s, f, to, from[to], 0, err);
    for (uint32_t l = 0; l < s->shape.layers && r == 0; l++)
        for (enum train_role to = TR_ATTN_NORM; to < TR_ROLE_COUNT && r == 0; to++)
            r = take(s, f, to, from[to], l, err);
    return r;
}

int state_from_drafter(const char *path, const struct model_file *target, bool average,
                       struct train_state *ret, struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    const struct model_config *tc = model_file_config(target);
    int r = drafter_file_open(path, tc, &f, err);
    if (r == 0)
        r = check(f, err);
    if (r < 0)
        return r;
    const struct model_config *c = model_file_config(f);
    const struct drafter_config *d = c->drafter;
    ret->shape = (struct train_shape){
        .layers = c->n_layers,
        .hidden = c->hidden,
        .ffn = c->ffn,
        .heads = c->n_heads,
        .kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .n_taps = d->n_taps,
        .target_hidden = tc->hidden,
        .target_layers = tc->n_layers,
        .window = d->block_size,
        .mask_token = d->mask_token,
        .vocab = tc->vocab_size,
        .draft_vocab = d->draft_vocab,
        .max_position = d->block_size,
        .eps = c->rms_eps,
        .rope_theta = c->rope_theta,
    };
    memcpy(ret->shape.tap_layers, d->tap_layers, d->n_taps * sizeof d->tap_layers[0]);
    r = train_shape_check(&ret->shape, err);
    if (r < 0)
        return r;
    train_layout_init(&ret->layout, &ret->shape);
    r = train_state_alloc(ret, average, err);
    if (r == 0)
        r = take_all(ret, f, err);
    if (r < 0)
        return r;
    /* The rows of the head are the target's, so their order is free. */
    for (uint32_t i = 0; i < d->draft_vocab; i++)
        ret->target_ids[i] = d->target_ids ? d->target_ids[i] : i;
    qsort(ret->target_ids, d->draft_vocab, sizeof ret->target_ids[0], by_id);
    for (uint32_t i = 0; i < ret->shape.n_taps; i++)
        ret->tap_scale[i] = 1;
    snprintf(ret->target, sizeof ret->target, "%s", model_file_name(target));
    return 0;
}

void state_unfold_taps(struct train_state *s)
{
    const struct train_tensor *fc = &s->layout.t[TR_FC];
    const uint32_t one = s->shape.target_hidden;
    for (uint32_t r = 0; r < fc->rows; r++)
        for (uint32_t i = 0; i < fc->cols; i++)
            s->param[fc->at + (size_t)r * fc->cols + i] /= s->tap_scale[i / one];
    if (s->average)
        memcpy(s->average, s->param, s->layout.total * sizeof(float));
}
