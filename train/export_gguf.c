/* SPDX-License-Identifier: Apache-2.0 */
/* A drafter as GGUF version 3, architecture "dflash": the keys and names that llama.cpp reads. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/strbuf.h"
#include "engine/gguf.h"
#include "train/export.h"

#define ALIGNMENT 32u
/* Numbers of tensor types in the format. */
enum { GGML_F32 = 0, GGML_Q8_0 = 8, GGML_I32 = 26, GGML_BF16 = 30 };
#define Q8_0_ELEMS 32u

/* The file in memory; the first error sticks. */
struct out {
    struct strbuf b;
    int r;
};

static void put(struct out *o, const void *p, size_t n)
{
    if (o->r == 0)
        o->r = strbuf_add(&o->b, p, n);
}

static void put_u32(struct out *o, uint32_t v)
{
    put(o, &v, sizeof(v));
}

static void put_u64(struct out *o, uint64_t v)
{
    put(o, &v, sizeof(v));
}

static void put_str(struct out *o, const char *s)
{
    put_u64(o, strlen(s));
    put(o, s, strlen(s));
}

static void pad(struct out *o)
{
    while (o->r == 0 && o->b.len % ALIGNMENT)
        o->r = strbuf_addc(&o->b, 0);
}

static void key(struct out *o, uint64_t *n, const char *name, enum gguf_type type)
{
    put_str(o, name);
    put_u32(o, (uint32_t)type);
    ++*n;
}

static void kv_u32(struct out *o, uint64_t *n, const char *name, uint32_t v)
{
    key(o, n, name, GGUF_U32);
    put_u32(o, v);
}

static void kv_f32(struct out *o, uint64_t *n, const char *name, float v)
{
    key(o, n, name, GGUF_F32);
    put(o, &v, sizeof(v));
}

static void kv_bool(struct out *o, uint64_t *n, const char *name, uint8_t v)
{
    key(o, n, name, GGUF_BOOL);
    put(o, &v, 1);
}

static void kv_str(struct out *o, uint64_t *n, const char *name, const char *v)
{
    key(o, n, name, GGUF_STRING);
    put_str(o, v);
}

static void metadata(struct out *o, uint64_t *n, const struct train_state *st,
                     const struct model_config *c)
{
    const struct train_shape *s = &st->shape;
    char name[192];
    snprintf(name, sizeof(name), "%s dedit drafter", st->target);
    char *recipe = json_dumps(st->recipe, JSON_COMPACT);
    kv_str(o, n, "general.architecture", "dflash");
    kv_str(o, n, "general.name", name);
    kv_u32(o, n, "dflash.block_count", s->layers);
    kv_u32(o, n, "dflash.context_length", c->max_position);
    kv_u32(o, n, "dflash.embedding_length", s->hidden);
    kv_u32(o, n, "dflash.feed_forward_length", s->ffn);
    kv_u32(o, n, "dflash.attention.head_count", s->heads);
    kv_u32(o, n, "dflash.attention.head_count_kv", s->kv_heads);
    kv_u32(o, n, "dflash.attention.key_length", s->head_dim);
    kv_u32(o, n, "dflash.attention.value_length", s->head_dim);
    kv_f32(o, n, "dflash.attention.layer_norm_rms_epsilon", s->eps);
    kv_bool(o, n, "dflash.attention.causal", 0);
    kv_f32(o, n, "dflash.rope.freq_base", (float)s->rope_theta);
    kv_u32(o, n, "dflash.block_size", s->window);
    kv_u32(o, n, "tokenizer.ggml.mask_token_id", s->mask_token);
    kv_u32(o, n, "dedit.step", (uint32_t)st->step);
    if (recipe)
        kv_str(o, n, "dedit.recipe", recipe);
    mem_free(recipe);
    /* Layers whose input is tapped. */
    key(o, n, "dflash.target_layers", GGUF_ARRAY);
    put_u32(o, GGUF_I32);
    put_u64(o, s->n_taps);
    for (uint32_t i = 0; i < s->n_taps; i++)
        put_u32(o, s->tap_layers[i] + 1);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void gguf_name(const char *name, char *ret, size_t size)
{
    static const char *const names[][2] = {
        {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
    };
    uint32_t layer;
    int at = 0;
    snprintf(ret, size, "%s", name);
    if (!strcmp(name, "hidden_norm.weight"))
        snprintf(ret, size, "enc.output_norm.weight");
    if (!strcmp(name, "norm.weight"))
        snprintf(ret, size, "output_norm.weight");
    if (sscanf(name, "layers.%" SCNu32 ".%n", &layer, &at) != 1 || at == 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        size_t n = strlen(names[i][0]);
        if (!strncmp(name + at, names[i][0], n) && !strcmp(name + at + n, ".weight"))
            snprintf(ret, size, "blk.%" PRIu32 ".%s.weight", layer, names[i][1]);
    }
}

static uint32_t type_of(const struct train_tensor *t, enum backend_dtype dtype)
{
    if (t->norm || dtype == BACKEND_DTYPE_F32)
        return GGML_F32;
    return dtype == BACKEND_DTYPE_Q8_0 && t->cols % Q8_0_ELEMS == 0 ? GGML_Q8_0 : GGML_BF16;
}

static size_t bytes_of(const struct train_tensor *t, uint32_t type)
{
    size_t n = (size_t)t->rows * t->cols;
    return type == GGML_F32 ? n * 4 : type == GGML_BF16 ? n * 2 : n / Q8_0_ELEMS * (Q8_0_ELEMS + 2);
}

/* 32 values as a scale (the largest over 127, rounded to binary16) and the nearest multiples of
 * it. */
static void put_q8_0(struct out *o, const float *x)
{
    uint8_t block[2 + Q8_0_ELEMS];
    float max = 0;
    for (uint32_t i = 0; i < Q8_0_ELEMS; i++)
        max = __builtin_fabsf(x[i]) > max ? __builtin_fabsf(x[i]) : max;
    uint16_t h = dk_f32_to_f16(max / 127.0f);
    float d = dk_f16_to_f32(h);
    memcpy(block, &h, sizeof(h));
    for (uint32_t i = 0; i < Q8_0_ELEMS; i++) {
        float q = d > 0 ? x[i] / d : 0;
        q = q > 127 ? 127 : q < -127 ? -127 : q;
        block[2 + i] = (uint8_t)(int8_t)(q + (q < 0 ? -0.5f : 0.5f));
    }
    put(o, block, sizeof(block));
}

static void put_values(struct out *o, const float *x, size_t n, uint32_t type)
{
    if (type == GGML_F32)
        put(o, x, n * sizeof(*x));
    for (size_t i = 0; type == GGML_BF16 && i < n && o->r == 0; i++) {
        uint16_t h = dk_f32_to_bf16(x[i]);
        put(o, &h, sizeof(h));
    }
    for (size_t i = 0; type == GGML_Q8_0 && i < n && o->r == 0; i += Q8_0_ELEMS)
        put_q8_0(o, x + i);
}

static void entry(struct out *o, const char *name, uint32_t rows, uint32_t cols, uint32_t type,
                  size_t bytes, uint64_t *at)
{
    put_str(o, name);
    put_u32(o, rows ? 2 : 1);
    put_u64(o, cols);
    if (rows)
        put_u64(o, rows);
    put_u32(o, type);
    put_u64(o, *at);
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int export_gguf(const struct train_state *s, const float *p, const int32_t *d2t,
                const struct model_config *c, const struct export_options *o, struct error *err)
{
    struct out kv = {0}, file = {0};
    const bool reduced = s->shape.draft_vocab != s->shape.vocab;
    const size_t ids = s->shape.draft_vocab * sizeof(*d2t);
    uint64_t n_kv = 0, at = 0;
    metadata(&kv, &n_kv, s, c);
    put(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, s->layout.n + (reduced ? 1 : 0));
    put_u64(&file, n_kv);
    put(&file, kv.b.s, kv.b.len);
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct train_tensor *t = &s->layout.t[i];
        char name[96];
        gguf_name(t->name, name, sizeof(name));
        uint32_t type = type_of(t, o->dtype);
        entry(&file, name, t->norm ? 0 : t->rows, t->cols, type, bytes_of(t, type), &at);
    }
    if (reduced)
        entry(&file, "d2t", 0, s->shape.draft_vocab, GGML_I32, ids, &at);
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct train_tensor *t = &s->layout.t[i];
        pad(&file);
        put_values(&file, p + t->at, (size_t)t->rows * t->cols, type_of(t, o->dtype));
    }
    pad(&file);
    if (reduced)
        put(&file, d2t, ids);
    pad(&file);
    int r = kv.r < 0 || file.r < 0 ? ERR_NOMEM(err)
                                   : file_write_atomic(o->out, file.b.s, file.b.len, err);
    strbuf_done(&kv.b);
    strbuf_done(&file.b);
    return r;
}
