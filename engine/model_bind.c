/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Roles and tensors.  One table says for each role what it is called in both forms, what shape it
 * must have and when it exists.  A tensor that no role takes is an error too: it would mean that
 * the model computes something that this program does not.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/model_file_internal.h"

#define NAME_BYTES 96

/* Sizes that shapes are made of. */
enum dim { D_NONE, D_VOCAB, D_OUT, D_HIDDEN, D_Q, D_KV, D_HEAD, D_FFN, D_TAPS };
enum when { W_ALWAYS, W_EMBED, W_HEAD, W_DRAFTER, W_QKV_BIAS, W_QK_NORM };

static const struct role_info {
    const char *hf, *gguf; /* after the layer's prefix */
    enum dim out, in;      /* in D_NONE: a vector */
    enum when when;
} roles[MT_ROLE_COUNT] = {
    [MT_EMBED] = {"model.embed_tokens.weight", "token_embd.weight", D_VOCAB, D_HIDDEN, W_EMBED},
    [MT_FINAL_NORM] = {"model.norm.weight", "output_norm.weight", D_HIDDEN, D_NONE, W_ALWAYS},
    [MT_HEAD] = {"lm_head.weight", "output.weight", D_OUT, D_HIDDEN, W_HEAD},
    [MT_FC] = {"fc.weight", "fc.weight", D_HIDDEN, D_TAPS, W_DRAFTER},
    [MT_HIDDEN_NORM] = {"hidden_norm.weight", "enc.output_norm.weight", D_HIDDEN, D_NONE,
                        W_DRAFTER},
    [MT_ATTN_NORM] = {"input_layernorm.weight", "attn_norm.weight", D_HIDDEN, D_NONE, W_ALWAYS},
    [MT_Q] = {"self_attn.q_proj.weight", "attn_q.weight", D_Q, D_HIDDEN, W_ALWAYS},
    [MT_K] = {"self_attn.k_proj.weight", "attn_k.weight", D_KV, D_HIDDEN, W_ALWAYS},
    [MT_V] = {"self_attn.v_proj.weight", "attn_v.weight", D_KV, D_HIDDEN, W_ALWAYS},
    [MT_O] = {"self_attn.o_proj.weight", "attn_output.weight", D_HIDDEN, D_Q, W_ALWAYS},
    [MT_Q_BIAS] = {"self_attn.q_proj.bias", "attn_q.bias", D_Q, D_NONE, W_QKV_BIAS},
    [MT_K_BIAS] = {"self_attn.k_proj.bias", "attn_k.bias", D_KV, D_NONE, W_QKV_BIAS},
    [MT_V_BIAS] = {"self_attn.v_proj.bias", "attn_v.bias", D_KV, D_NONE, W_QKV_BIAS},
    [MT_Q_NORM] = {"self_attn.q_norm.weight", "attn_q_norm.weight", D_HEAD, D_NONE, W_QK_NORM},
    [MT_K_NORM] = {"self_attn.k_norm.weight", "attn_k_norm.weight", D_HEAD, D_NONE, W_QK_NORM},
    [MT_FFN_NORM] = {"post_attention_layernorm.weight", "ffn_norm.weight", D_HIDDEN, D_NONE,
                     W_ALWAYS},
    [MT_GATE] = {"mlp.gate_proj.weight", "ffn_gate.weight", D_FFN, D_HIDDEN, W_ALWAYS},
    [MT_UP] = {"mlp.up_proj.weight", "ffn_up.weight", D_FFN, D_HIDDEN, W_ALWAYS},
    [MT_DOWN] = {"mlp.down_proj.weight", "ffn_down.weight", D_HIDDEN, D_FFN, W_ALWAYS},
};

struct binder {
    struct model_file *f;
    const struct src_table *s;
    struct error *err;
};

static uint64_t dim_size(const struct model_config *c, enum dim d)
{
    switch (d) {
    case D_NONE:
        return 1;
    case D_VOCAB:
        return c->vocab_size;
    case D_OUT:
        return c->drafter ? c->drafter->draft_vocab : c->vocab_size;
    case D_TAPS:
        return c->drafter ? (uint64_t)c->drafter->n_taps * c->drafter->target_hidden : 0;
    case D_HIDDEN:
        return c->hidden;
    case D_Q:
        return (uint64_t)c->n_heads * c->head_dim;
    case D_KV:
        return (uint64_t)c->n_kv_heads * c->head_dim;
    case D_HEAD:
        return c->head_dim;
    case D_FFN:
        return c->ffn;
    }
    return 0;
}

static bool exists(const struct model_config *c, enum when w)
{
    switch (w) {
    case W_ALWAYS:
        return true;
    case W_EMBED:
        return !c->drafter || c->drafter->own_embed;
    case W_HEAD:
        return c->drafter ? c->drafter->own_head : !c->tied;
    case W_DRAFTER:
        return c->drafter != NULL;
    case W_QKV_BIAS:
        return c->qkv_bias;
    case W_QK_NORM:
        return c->qk_norm;
    }
    return false;
}

bool model_role_shape(const struct model_config *c, enum model_tensor_role r, uint64_t *ret_out,
                      uint64_t *ret_in)
{
    if (!exists(c, roles[r].when))
        return false;
    *ret_out = dim_size(c, roles[r].out);
    *ret_in = roles[r].in == D_NONE ? 0 : dim_size(c, roles[r].in);
    return true;
}

struct src_tensor *src_find(const struct src_table *s, const char *name)
{
    const struct name_ref *ref = names_find(s->names, s->n, name, strlen(name));
    return ref ? &s->t[ref->index] : NULL;
}

/* Drafters' files have no fixed prefix: "model." is taken off here and looked for both ways. */
static const char *without_model(const char *name)
{
    return strncmp(name, "model.", 6) ? name : name + 6;
}

static struct src_tensor *find_role(const struct binder *b, const char *name)
{
    return b->f->cfg.drafter && b->s->hf ? src_find_drafter(b->s, name) : src_find(b->s, name);
}

static void role_name(const struct binder *b, enum model_tensor_role r, uint32_t layer,
                      char buf[NAME_BYTES])
{
    const char *suffix = b->s->hf ? roles[r].hf : roles[r].gguf;
    const char *layers = b->s->hf ? "model.layers" : "blk";
    if (b->f->cfg.drafter) {
        suffix = without_model(suffix);
        layers = without_model(layers);
    }
    if (r < MT_ATTN_NORM)
        snprintf(buf, NAME_BYTES, "%s", suffix);
    else
        snprintf(buf, NAME_BYTES, "%s.%" PRIu32 ".%s", layers, layer, suffix);
}

/* "[128, 64]" */
static const char *shape_text(uint32_t n, const uint64_t *dims, char buf[NAME_BYTES])
{
    size_t at = 0;
    buf[0] = '[';
    buf[1] = '\0';
    at = 1;
    for (uint32_t i = 0; i < n && at < NAME_BYTES - 24; i++)
        at += (size_t)snprintf(buf + at, NAME_BYTES - at, "%s%" PRIu64, i ? ", " : "", dims[i]);
    snprintf(buf + at, NAME_BYTES - at, "]");
    return buf;
}

static int check_shape(const struct binder *b, const struct src_tensor *src, uint32_t n,
                       const uint64_t *want)
{
    const struct model_config *c = &b->f->cfg;
    char has[NAME_BYTES], wants[NAME_BYTES];
    bool same = src->n_dims == n;
    for (uint32_t i = 0; same && i < n; i++)
        same = src->dims[i] == want[i];
    if (same)
        return 0;
    return ERR(b->err, MISMATCH,
               "%s: tensor \"%.*s\" is %s, the configuration wants %s (%" PRIu32 " heads, %" PRIu32
               " key/value heads, head_dim %" PRIu32 ", hidden %" PRIu32 ", ffn %" PRIu32
               ", vocabulary %" PRIu32 ")",
               src->file, SRC_NAME(src), shape_text(src->n_dims, src->dims, has),
               shape_text(n, want, wants), c->n_heads, c->n_kv_heads, c->head_dim, c->hidden,
               c->ffn, c->vocab_size);
}

static int check_type(const struct binder *b, const struct src_tensor *src, bool vector)
{
    bool is_float = src->type == DK_F32 || src->type == DK_F16 || src->type == DK_BF16;
    if (is_float || (!vector && !b->s->hf && src->type != DK_TYPE_COUNT))
        return 0;
    return ERR(b->err, UNSUPPORTED, "%s: tensor \"%.*s\": type %s is not supported (supported: %s)",
               src->file, SRC_NAME(src), src->type_name,
               vector || b->s->hf ? "F32 F16 BF16"
                                  : "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K");
}

/* Vectors (norms, biases) are handed out as aligned F32, whatever the file has. */
static int take_vector(const struct binder *b, const struct src_tensor *src, struct model_tensor *t)
{
    size_t n = (size_t)src->dims[0];
    if (src->type == DK_F32 && (uintptr_t)src->data % sizeof(float) == 0)
        return 0;
    float *out = arena_alloc(b->f->arena, n * sizeof(float));
    if (!out)
        return ERR_NOMEM(b->err);
    if (src->type == DK_F32)
        memcpy(out, src->data, n * sizeof(float));
    else
        dk_dequant(src->type, src->data, n, out);
    t->type = DK_F32;
    t->data = out;
    t->bytes = n * sizeof(float);
    return 0;
}

/* A writer of safetensors need not align anything; who did not, costs a copy. */
static int take_matrix(const struct binder *b, const struct src_tensor *src, struct model_tensor *t)
{
    size_t align = src->type == DK_F32 ? 4 : 2;
    if ((uintptr_t)src->data % align == 0)
        return 0;
    void *out = arena_alloc(b->f->arena, src->bytes);
    if (!out)
        return ERR_NOMEM(b->err);
    memcpy(out, src->data, src->bytes);
    t->data = out;
    return 0;
}

static int bind_role(const struct binder *b, enum model_tensor_role r, uint32_t layer,
                     struct model_tensor *t)
{
    const struct model_config *c = &b->f->cfg;
    uint64_t want[2] = {dim_size(c, roles[r].out), dim_size(c, roles[r].in)};
    bool vector = roles[r].in == D_NONE;
    char name[NAME_BYTES], shape[NAME_BYTES];
    if (!exists(c, roles[r].when))
        return 0;
    role_name(b, r, layer, name);
    struct src_tensor *src = find_role(b, name);
    if (!src)
        return ERR(b->err, FORMAT, "%s: tensor \"%s\" %s is missing", b->s->missing, name,
                   shape_text(vector ? 1 : 2, want, shape));
    int ret = check_shape(b, src, vector ? 1 : 2, want);
    if (ret >= 0)
        ret = check_type(b, src, vector);
    if (ret < 0)
        return ret;
    src->used = true;
    *t = (struct model_tensor){.name = arena_strndup(b->f->arena, name, sizeof(name)),
                               .type = src->type,
                               .n_dims = vector ? 1 : 2,
                               .dims = {want[0], vector ? 0 : want[1]},
                               .data = src->data,
                               .bytes = src->bytes};
    if (!t->name)
        return ERR_NOMEM(b->err);
    ret = vector ? take_vector(b, src, t) : take_matrix(b, src, t);
    b->f->weight_bytes += t->bytes;
    return ret;
}

/* Llama 3's scaling in GGUF form: divisors of the inverse frequencies. */
static int bind_freq_factors(const struct binder *b)
{
    struct model_config *c = &b->f->cfg;
    struct src_tensor *src = src_find(b->s, "rope_freqs.weight");
    if (b->s->hf || !src || c->family != MODEL_LLAMA)
        return 0;
    uint64_t want = c->head_dim / 2;
    int r = check_shape(b, src, 1, &want);
    if (r >= 0)
        r = check_type(b, src, true);
    if (r < 0)
        return r;
    struct model_tensor t = {.data = src->data};
    r = take_vector(b, src, &t);
    if (r < 0)
        return r;
    c->rope_freq_factors = t.data;
    for (uint32_t i = 0; i < c->head_dim / 2; i++)
        if (!(c->rope_freq_factors[i] > 0) || c->rope_freq_factors[i] > 1e6f)
            return ERR(b->err, FORMAT,
                       "%s: tensor \"rope_freqs.weight\"[%" PRIu32
                       "] must be above 0 and at most 1e6, is %g",
                       src->file, i, (double)c->rope_freq_factors[i]);
    src->used = true;
    return 0;
}

/* Tensors that may be there without a meaning for us. */
static bool may_ignore(const struct binder *b, const struct src_tensor *t)
{
    static const char inv_freq[] = ".rotary_emb.inv_freq";
    size_t n = sizeof(inv_freq) - 1;
    if (!b->s->hf)
        return false;
    /* Old exports saved the RoPE frequencies, which the configuration defines. */
    if (t->name_len > n && !memcmp(t->name + t->name_len - n, inv_freq, n))
        return true;
    /* A tied model may repeat its embedding as the head; the reference program ignores it. */
    const char *head = roles[MT_HEAD].hf;
    return b->f->cfg.tied && !b->f->cfg.drafter && t->name_len == strlen(head) && !memcmp(t->name, head, t->name_len);
}

static int check_all_used(const struct binder *b)
{
    const struct model_config *c = &b->f->cfg;
    for (size_t i = 0; i < b->s->n; i++) {
        const struct src_tensor *t = &b->s->t[i];
        if (t->used || may_ignore(b, t))
            continue;
        return ERR(b->err, UNSUPPORTED,
                   "%s: tensor \"%.*s\" is no part of a %s model of %" PRIu32 " layers%s", t->file,
                   SRC_NAME(t), c->drafter ? "DFlash" : model_family_name(c->family), c->n_layers,
                   b->s->hf && c->tied && !c->drafter ? " with tied embeddings" : "");
    }
    return 0;
}

int model_bind(struct model_file *f, const struct src_table *s, struct error *err)
{
    struct binder b = {f, s, err};
    const struct model_config *c = &f->cfg;
    size_t n = MT_ATTN_NORM + (size_t)c->n_layers * MODEL_LAYER_ROLES;
    f->tensors = arena_zalloc(f->arena, n * sizeof(*f->tensors));
    if (!f->tensors)
        return ERR_NOMEM(err);
    int r = c->drafter ? drafter_look(f, s, err) : 0;
    for (int role = 0; role < MT_ATTN_NORM && r >= 0; role++)
        r = bind_role(&b, (enum model_tensor_role)role, 0, &f->tensors[role]);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        struct model_tensor *layer = &f->tensors[MT_ATTN_NORM + (size_t)l * MODEL_LAYER_ROLES];
        for (int role = MT_ATTN_NORM; role < MT_ROLE_COUNT && r >= 0; role++)
            r = bind_role(&b, (enum model_tensor_role)role, l, &layer[role - MT_ATTN_NORM]);
    }
    if (r >= 0 && c->drafter)
        r = drafter_bind(f, s, err);
    else if (r >= 0 && c->tied)
        f->tensors[MT_HEAD] = f->tensors[MT_EMBED];
    if (r >= 0)
        r = bind_freq_factors(&b);
    return r < 0 ? r : check_all_used(&b);
}
