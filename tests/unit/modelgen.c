/* SPDX-License-Identifier: Apache-2.0 */
/* Model files byte by byte; see modelgen.h. */
#include "tests/unit/modelgen.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "tests/unit/util.h"

void put_bytes(struct strbuf *b, const void *p, size_t n)
{
    ck_assert_int_eq(strbuf_add(b, p, n), 0);
}

void put_u32(struct strbuf *b, uint32_t v)
{
    put_bytes(b, &v, sizeof(v));
}

void put_u64(struct strbuf *b, uint64_t v)
{
    put_bytes(b, &v, sizeof(v));
}

void put_zeros(struct strbuf *b, size_t n)
{
    for (; n > 0; n--)
        put_bytes(b, "", 1);
}

void put_pad(struct strbuf *b, size_t align)
{
    put_zeros(b, (align - b->len % align) % align);
}

void gg_header(struct strbuf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    put_bytes(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

void gg_str(struct strbuf *b, const char *s)
{
    put_u64(b, strlen(s));
    put_bytes(b, s, strlen(s));
}

void gg_key(struct strbuf *b, const char *key, uint32_t type)
{
    gg_str(b, key);
    put_u32(b, type);
}

void gg_kv_u32(struct strbuf *b, const char *key, uint32_t v)
{
    gg_key(b, key, GGUF_U32);
    put_u32(b, v);
}

void gg_kv_i32(struct strbuf *b, const char *key, int32_t v)
{
    gg_key(b, key, GGUF_I32);
    put_bytes(b, &v, sizeof(v));
}

void gg_kv_f32(struct strbuf *b, const char *key, float v)
{
    gg_key(b, key, GGUF_F32);
    put_bytes(b, &v, sizeof(v));
}

void gg_kv_bool(struct strbuf *b, const char *key, uint8_t v)
{
    gg_key(b, key, GGUF_BOOL);
    put_bytes(b, &v, 1);
}

void gg_kv_str(struct strbuf *b, const char *key, const char *v)
{
    gg_key(b, key, GGUF_STRING);
    gg_str(b, v);
}

void gg_tensor(struct strbuf *b, const char *name, uint32_t n_dims, const uint64_t *dims,
               uint32_t type, uint64_t offset)
{
    gg_str(b, name);
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(b, dims[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

void st_file(struct strbuf *b, const char *header, size_t n_data)
{
    put_u64(b, strlen(header));
    put_bytes(b, header, strlen(header));
    for (size_t i = 0; i < n_data; i++) {
        uint8_t v = (uint8_t)i;
        put_bytes(b, &v, 1);
    }
}

void write_file(const char *dir, const char *name, const void *p, size_t n)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path); /* it may be a link to reference data */
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(p, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* ---- tiny models ------------------------------------------------------------------------------- */

struct tiny tiny_new(const char *family)
{
    return (struct tiny){.family = family,
                         .layers = 2,
                         .hidden = 64,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 32,
                         .ffn = 48,
                         .vocab = 40,
                         .tied = true,
                         .dtype = "F32"};
}

struct tensor {
    char hf[64], gguf[64];
    uint32_t out, in;       /* in 0: a vector */
    uint32_t permute_heads; /* rows are permuted in GGUF form */
};
#define MAX_TENSORS 40

static void add(struct tensor *list, size_t *n, int layer, const char *hf, const char *gguf,
                uint32_t out, uint32_t in)
{
    struct tensor *t = &list[(*n)++];
    ck_assert_uint_le(*n, MAX_TENSORS);
    *t = (struct tensor){.out = out, .in = in};
    if (layer < 0) {
        snprintf(t->hf, sizeof(t->hf), "%s", hf);
        snprintf(t->gguf, sizeof(t->gguf), "%s", gguf);
    } else {
        snprintf(t->hf, sizeof(t->hf), "model.layers.%d.%s", layer, hf);
        snprintf(t->gguf, sizeof(t->gguf), "blk.%d.%s", layer, gguf);
    }
}

static size_t list_tensors(const struct tiny *t, struct tensor *list)
{
    uint32_t q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    bool llama = !strcmp(t->family, "llama");
    size_t n = 0;
    add(list, &n, -1, "model.embed_tokens.weight", "token_embd.weight", t->vocab, t->hidden);
    for (int l = 0; l < (int)t->layers; l++) {
        add(list, &n, l, "input_layernorm.weight", "attn_norm.weight", t->hidden, 0);
        add(list, &n, l, "self_attn.q_proj.weight", "attn_q.weight", q, t->hidden);
        list[n - 1].permute_heads = llama ? t->heads : 0;
        add(list, &n, l, "self_attn.k_proj.weight", "attn_k.weight", kv, t->hidden);
        list[n - 1].permute_heads = llama ? t->kv_heads : 0;
        add(list, &n, l, "self_attn.v_proj.weight", "attn_v.weight", kv, t->hidden);
        add(list, &n, l, "self_attn.o_proj.weight", "attn_output.weight", t->hidden, q);
        if (!strcmp(t->family, "qwen2")) {
            add(list, &n, l, "self_attn.q_proj.bias", "attn_q.bias", q, 0);
            add(list, &n, l, "self_attn.k_proj.bias", "attn_k.bias", kv, 0);
            add(list, &n, l, "self_attn.v_proj.bias", "attn_v.bias", kv, 0);
        }
        if (!strcmp(t->family, "qwen3")) {
            add(list, &n, l, "self_attn.q_norm.weight", "attn_q_norm.weight", t->head_dim, 0);
            add(list, &n, l, "self_attn.k_norm.weight", "attn_k_norm.weight", t->head_dim, 0);
        }
        add(list, &n, l, "post_attention_layernorm.weight", "ffn_norm.weight", t->hidden, 0);
        add(list, &n, l, "mlp.gate_proj.weight", "ffn_gate.weight", t->ffn, t->hidden);
        add(list, &n, l, "mlp.up_proj.weight", "ffn_up.weight", t->ffn, t->hidden);
        add(list, &n, l, "mlp.down_proj.weight", "ffn_down.weight", t->hidden, t->ffn);
    }
    add(list, &n, -1, "model.norm.weight", "output_norm.weight", t->hidden, 0);
    if (!t->tied)
        add(list, &n, -1, "lm_head.weight", "output.weight", t->vocab, t->hidden);
    if (t->extra)
        add(list, &n, -1, t->extra, t->extra, t->hidden, 0);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!t->skip || (strcmp(list[i].hf, t->skip) != 0 && strcmp(list[i].gguf, t->skip) != 0))
            list[kept++] = list[i];
    return kept;
}

static size_t n_elems(const struct tensor *t)
{
    return (size_t)t->out * (t->in ? t->in : 1);
}

static float element(const struct tensor *t, size_t i)
{
    uint32_t h = 2166136261u;
    for (const char *s = t->hf; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    h = (h ^ (uint32_t)i) * 2654435761u;
    return (float)(h >> 8) / 16777216.0f - 0.5f;
}

/* Row r of the GGUF form is this row of the HF form. */
static uint32_t source_row(const struct tensor *t, uint32_t r)
{
    if (!t->permute_heads)
        return r;
    uint32_t hd = t->out / t->permute_heads, in_head = r % hd;
    return r - in_head + (in_head % 2) * (hd / 2) + in_head / 2;
}

static void put_f32s(struct strbuf *b, const struct tensor *t, bool gguf)
{
    uint32_t in = t->in ? t->in : 1;
    for (uint32_t r = 0; r < t->out; r++) {
        uint32_t from = gguf ? source_row(t, r) : r;
        for (uint32_t i = 0; i < in; i++) {
            float v = element(t, (size_t)from * in + i);
            put_bytes(b, &v, sizeof(v));
        }
    }
}

void tiny_safetensors(const struct tiny *t, struct strbuf *b)
{
    struct tensor list[MAX_TENSORS];
    size_t n = list_tensors(t, list), at = 0, size = !strcmp(t->dtype, "F32") ? 4 : 2;
    _cleanup_strbuf_ struct strbuf h = {0};
    for (size_t i = 0; i < n; i++) {
        size_t bytes = n_elems(&list[i]) * size;
        ck_assert_int_eq(strbuf_addf(&h, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{",
                                     list[i].hf, t->dtype),
                         0);
        if (list[i].in)
            ck_assert_int_eq(strbuf_addf(&h, "%u,%u", list[i].out, list[i].in), 0);
        else
            ck_assert_int_eq(strbuf_addf(&h, "%u", list[i].out), 0);
        ck_assert_int_eq(strbuf_addf(&h, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes), 0);
        at += bytes;
    }
    put_bytes(&h, "}", 1);
    while ((h.len + t->blanks) % 8 != 0)
        put_bytes(&h, " ", 1);
    for (unsigned i = 0; i < 2 * t->blanks; i++)
        put_bytes(&h, " ", 1);
    put_u64(b, h.len);
    put_bytes(b, h.s, h.len);
    for (size_t i = 0; i < n; i++) {
        if (size == 4)
            put_f32s(b, &list[i], false);
        else
            put_zeros(b, n_elems(&list[i]) * size);
    }
}

static void config_u32(const struct tiny *t, struct strbuf *b, const char *key, uint32_t v)
{
    if (!t->config_less || strcmp(t->config_less, key) != 0)
        ck_assert_int_eq(strbuf_addf(b, ", \"%s\": %u", key, v), 0);
}

void tiny_config(const struct tiny *t, struct strbuf *b)
{
    const char *arch = !strcmp(t->family, "llama")   ? "LlamaForCausalLM"
                       : !strcmp(t->family, "qwen2") ? "Qwen2ForCausalLM"
                                                     : "Qwen3ForCausalLM";
    ck_assert_int_eq(strbuf_addf(b,
                                 "{\"model_type\": \"%s\", \"architectures\": [\"%s\"], "
                                 "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
                                 "\"hidden_act\": \"silu\", \"tie_word_embeddings\": %s, "
                                 "\"eos_token_id\": 2, \"torch_dtype\": \"float32\"",
                                 t->family, arch, t->tied ? "true" : "false"),
                     0);
    config_u32(t, b, "num_hidden_layers", t->layers);
    config_u32(t, b, "hidden_size", t->hidden);
    config_u32(t, b, "num_attention_heads", t->heads);
    config_u32(t, b, "num_key_value_heads", t->kv_heads);
    config_u32(t, b, "head_dim", t->config_head_dim ? t->config_head_dim : t->head_dim);
    config_u32(t, b, "intermediate_size", t->ffn);
    config_u32(t, b, "vocab_size", t->vocab);
    config_u32(t, b, "max_position_embeddings", 128);
    ck_assert_int_eq(strbuf_addf(b, "%s}", t->config_more ? t->config_more : ""), 0);
}

void tiny_write_hf(const struct tiny *t, const char *dir)
{
    _cleanup_strbuf_ struct strbuf config = {0}, weights = {0};
    tiny_config(t, &config);
    tiny_safetensors(t, &weights);
    write_file(dir, "config.json", config.s, config.len);
    write_file(dir, "model.safetensors", weights.s, weights.len);
}

static void arch_u32(const struct tiny *t, struct strbuf *b, unsigned *n, const char *key,
                     uint32_t v)
{
    char full[96];
    snprintf(full, sizeof(full), "%s.%s", t->family, key);
    if (t->config_less && !strcmp(t->config_less, key))
        return;
    gg_kv_u32(b, full, v);
    ++*n;
}

void tiny_gguf(const struct tiny *t, struct strbuf *b)
{
    struct tensor list[MAX_TENSORS];
    size_t n = list_tensors(t, list), at = 0;
    unsigned n_kv = 2 + t->kv_more_n;
    char eps[96];
    _cleanup_strbuf_ struct strbuf kv = {0};
    snprintf(eps, sizeof(eps), "%s.attention.layer_norm_rms_epsilon", t->family);
    gg_kv_str(&kv, "general.architecture", t->family);
    gg_kv_f32(&kv, eps, 1e-6f);
    arch_u32(t, &kv, &n_kv, "block_count", t->layers);
    arch_u32(t, &kv, &n_kv, "embedding_length", t->hidden);
    arch_u32(t, &kv, &n_kv, "attention.head_count", t->heads);
    arch_u32(t, &kv, &n_kv, "attention.head_count_kv", t->kv_heads);
    arch_u32(t, &kv, &n_kv, "attention.key_length",
             t->config_head_dim ? t->config_head_dim : t->head_dim);
    arch_u32(t, &kv, &n_kv, "feed_forward_length", t->ffn);
    arch_u32(t, &kv, &n_kv, "context_length", 128);
    if (t->kv_more.len)
        put_bytes(&kv, t->kv_more.s, t->kv_more.len);
    gg_header(b, 3, n, n_kv);
    put_bytes(b, kv.s, kv.len);
    for (size_t i = 0; i < n; i++) {
        uint64_t dims[2] = {list[i].in ? list[i].in : list[i].out, list[i].out};
        gg_tensor(b, list[i].gguf, list[i].in ? 2 : 1, dims, 0, at);
        at += (n_elems(&list[i]) * 4 + 31) / 32 * 32;
    }
    for (size_t i = 0; i < n; i++) {
        put_pad(b, 32);
        put_f32s(b, &list[i], true);
    }
}
