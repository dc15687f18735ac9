/* SPDX-License-Identifier: Apache-2.0 */
/* Drafter files; see draftergen.h. */
#include "tests/unit/draftergen.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/gguf.h"
#include "tests/unit/modelgen.h"
#include "tests/unit/util.h"

#define MAX_TENSORS   1024
#define GGML_TYPE_I32 26u
#define GGML_TYPE_I64 27u

struct gen_tensor {
    char hf[96], gguf[96];
    uint32_t out, in; /* in 0: a vector */
    float scale;      /* of noise; norms are about 1 */
    bool ids;
};

struct gen_drafter gen_drafter_new(uint64_t seed)
{
    return (struct gen_drafter){.layers = 2,
                                .hidden = 64,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 32,
                                .ffn = 96,
                                .vocab = 512,
                                .block = 8,
                                .mask = 259,
                                .n_taps = 3,
                                .taps = {1, 2, 4},
                                .target_layers = 6,
                                .target_hidden = 64,
                                .prefix = "",
                                .seed = seed};
}

/* ---- tensors ------------------------------------------------------------------------------------ */

static bool is_left_out(const struct gen_drafter *g, const char *name)
{
    return (g->less && !strcmp(g->less, name)) || (g->less2 && !strcmp(g->less2, name));
}

static void add(const struct gen_drafter *g, struct gen_tensor *list, size_t *n, const char *hf,
                const char *gguf, uint32_t out, uint32_t in, float scale)
{
    if (g->skip && (!strcmp(g->skip, hf) || !strcmp(g->skip, gguf)))
        return;
    ck_assert_uint_lt(*n, MAX_TENSORS);
    struct gen_tensor *t = &list[(*n)++];
    *t = (struct gen_tensor){.out = out,
                             .in = in,
                             .scale = scale / sqrtf((float)(in ? in : 1)),
                             .ids = !strcmp(hf, "d2t")};
    (void)snprintf(t->hf, sizeof(t->hf), "%s%s", g->prefix, hf);
    (void)snprintf(t->gguf, sizeof(t->gguf), "%s", gguf);
}

static void add_layer(const struct gen_drafter *g, struct gen_tensor *list, size_t *n, uint32_t l)
{
    const uint32_t q = g->heads * g->head_dim, kv = g->kv_heads * g->head_dim, d = g->hidden;
    const struct {
        const char *hf, *gguf;
        uint32_t out, in;
        float scale;
    } t[] = {
        {"input_layernorm", "attn_norm", d, 0, 0.1f},
        {"self_attn.q_proj", "attn_q", q, d, 2},
        {"self_attn.k_proj", "attn_k", kv, d, 2},
        {"self_attn.v_proj", "attn_v", kv, d, 1},
        {"self_attn.o_proj", "attn_output", d, q, 1},
        {"self_attn.q_norm", "attn_q_norm", g->head_dim, 0, 0.1f},
        {"self_attn.k_norm", "attn_k_norm", g->head_dim, 0, 0.1f},
        {"post_attention_layernorm", "ffn_norm", d, 0, 0.1f},
        {"mlp.gate_proj", "ffn_gate", g->ffn, d, 1},
        {"mlp.up_proj", "ffn_up", g->ffn, d, 1},
        {"mlp.down_proj", "ffn_down", d, g->ffn, 1},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
        char hf[80], gguf[80];
        (void)snprintf(hf, sizeof(hf), "layers.%" PRIu32 ".%s.weight", l, t[i].hf);
        (void)snprintf(gguf, sizeof(gguf), "blk.%" PRIu32 ".%s.weight", l, t[i].gguf);
        add(g, list, n, hf, gguf, t[i].out, t[i].in, t[i].scale);
    }
}

static size_t list_tensors(const struct gen_drafter *g, struct gen_tensor *list)
{
    size_t n = 0;
    uint32_t width = g->fc_width ? g->fc_width : g->n_taps * g->target_hidden;
    uint32_t head = g->draft_vocab ? g->draft_vocab : g->vocab;
    add(g, list, &n, "fc.weight", "fc.weight", g->hidden, width, 1);
    add(g, list, &n, "hidden_norm.weight", "enc.output_norm.weight", g->hidden, 0, 0.1f);
    add(g, list, &n, "norm.weight", "output_norm.weight", g->hidden, 0, 0.1f);
    for (uint32_t l = 0; l < g->layers; l++)
        add_layer(g, list, &n, l);
    if (g->own_embed)
        add(g, list, &n, "embed_tokens.weight", "token_embd.weight", g->vocab, g->hidden,
            sqrtf((float)g->hidden));
    if (g->own_head)
        add(g, list, &n, "lm_head.weight", "output.weight", head, g->hidden, 3);
    if (g->d2t)
        add(g, list, &n, "d2t", "d2t", head, 0, 0);
    if (g->extra)
        add(g, list, &n, g->extra, g->extra, g->hidden, 0, 0.1f);
    return n;
}

static bool is_wide(const struct gen_drafter *g, const struct gen_tensor *t)
{
    return t->ids && !strcmp(g->d2t, "I64");
}

static size_t bytes_of(const struct gen_drafter *g, const struct gen_tensor *t)
{
    return (size_t)t->out * (t->in ? t->in : 1) * (is_wide(g, t) ? 8 : 4);
}

static void put_ids(const struct gen_drafter *g, const struct gen_tensor *t, struct strbuf *b)
{
    for (uint32_t i = 0; i < t->out; i++) {
        int64_t v = (int64_t)((uint64_t)i * g->vocab / t->out) - i;
        if (i + 1 == t->out)
            v += g->d2t_shift;
        if (is_wide(g, t)) {
            put_u64(b, (uint64_t)v);
            continue;
        }
        int32_t n = (int32_t)v;
        put_bytes(b, &n, sizeof(n));
    }
}

static void put_data(const struct gen_drafter *g, const struct gen_tensor *t, struct strbuf *b)
{
    /* By name, so that both forms and all shardings hold the same numbers. */
    uint64_t state = g->seed * 0x9e3779b97f4a7c15ull + 1;
    for (const char *s = t->gguf; *s; s++)
        state = (state ^ (uint8_t)*s) * 0x100000001b3ull;
    if (t->ids) {
        put_ids(g, t, b);
        return;
    }
    for (size_t i = 0, n = (size_t)t->out * (t->in ? t->in : 1); i < n; i++) {
        double s = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            s += (double)(state >> 40) / 16777216.0 - 0.5;
        }
        float v = (float)(s * 1.7320508) * t->scale + (t->in ? 0.0f : 1.0f);
        put_bytes(b, &v, sizeof(v));
    }
}

/* ---- Hugging Face ------------------------------------------------------------------------------- */

static void member(const struct gen_drafter *g, struct strbuf *b, const char *key, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));
static void member(const struct gen_drafter *g, struct strbuf *b, const char *key, const char *fmt,
                   ...)
{
    char value[256];
    va_list ap;
    if (is_left_out(g, key))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(value, sizeof(value), fmt, ap);
    va_end(ap);
    bool first = b->len && b->s[b->len - 1] == '{';
    ck_assert_int_eq(strbuf_addf(b, "%s\"%s\": %s", first ? "" : ", ", key, value), 0);
}

static void dflash_member(const struct gen_drafter *g, struct strbuf *b)
{
    char taps[128] = "[";
    _cleanup_strbuf_ struct strbuf in = {0};
    for (uint32_t i = 0; i < g->n_taps; i++)
        (void)snprintf(taps + strlen(taps), sizeof(taps) - strlen(taps), "%s%" PRIu32,
                       i ? ", " : "", g->taps[i]);
    ck_assert_int_eq(strbuf_addf(&in, "{"), 0);
    member(g, &in, "mask_token_id", "%" PRIu32, g->mask);
    member(g, &in, "target_layer_ids", "%s]", taps);
    if (!is_left_out(g, "dflash_config"))
        ck_assert_int_eq(strbuf_addf(b, ", \"dflash_config\": %s}", in.s), 0);
}

void gen_drafter_config(const struct gen_drafter *g, struct strbuf *b)
{
    char types[2048] = "[";
    for (uint32_t i = 0; i < g->layers && i < 64; i++)
        (void)snprintf(types + strlen(types), sizeof(types) - strlen(types), "%s\"%s_attention\"",
                       i ? ", " : "", g->sliding >> i & 1 ? "sliding" : "full");
    ck_assert_int_eq(strbuf_addf(b, "{"), 0);
    member(g, b, "architectures", "[\"DFlashDraftModel\"]");
    member(g, b, "model_type", "\"qwen3\"");
    member(g, b, "block_size", "%" PRIu32, g->block);
    dflash_member(g, b);
    member(g, b, "num_target_layers", "%" PRIu32, g->target_layers);
    member(g, b, "num_hidden_layers", "%" PRIu32, g->layers);
    member(g, b, "hidden_size", "%" PRIu32, g->hidden);
    member(g, b, "intermediate_size", "%" PRIu32, g->ffn);
    member(g, b, "num_attention_heads", "%" PRIu32, g->heads);
    member(g, b, "num_key_value_heads", "%" PRIu32, g->kv_heads);
    member(g, b, "head_dim", "%" PRIu32, g->head_dim);
    member(g, b, "vocab_size", "%" PRIu32, g->vocab);
    member(g, b, "rms_norm_eps", "1e-06");
    member(g, b, "rope_theta", "10000.0");
    member(g, b, "max_position_embeddings", "4096");
    member(g, b, "hidden_act", "\"silu\"");
    member(g, b, "attention_bias", "false");
    member(g, b, "tie_word_embeddings", "false");
    if (strlen(types) < 250)
        member(g, b, "layer_types", "%s]", types);
    if (g->window)
        member(g, b, "sliding_window", "%" PRIu32, g->window);
    if (g->target_hidden != g->hidden)
        member(g, b, "target_hidden_size", "%" PRIu32, g->target_hidden);
    if (g->draft_vocab)
        member(g, b, "draft_vocab_size", "%" PRIu32, g->draft_vocab);
    ck_assert_int_eq(strbuf_addf(b, "%s}", g->more ? g->more : ""), 0);
}

/* Tensors i of the list with i % of == which. */
static void put_shard(const struct gen_drafter *g, const struct gen_tensor *list, size_t n,
                      unsigned which, unsigned of, struct strbuf *b)
{
    _cleanup_strbuf_ struct strbuf h = {0};
    size_t at = 0;
    ck_assert_int_eq(strbuf_addf(&h, "{"), 0);
    for (size_t i = which; i < n; i += of) {
        const struct gen_tensor *t = &list[i];
        char shape[48];
        if (t->in)
            (void)snprintf(shape, sizeof(shape), "%" PRIu32 ",%" PRIu32, t->out, t->in);
        else
            (void)snprintf(shape, sizeof(shape), "%" PRIu32, t->out);
        ck_assert_int_eq(strbuf_addf(&h,
                                     "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
                                     "\"data_offsets\":[%zu,%zu]}",
                                     h.len > 1 ? "," : "", t->hf, t->ids ? g->d2t : "F32", shape,
                                     at, at + bytes_of(g, t)),
                         0);
        at += bytes_of(g, t);
    }
    ck_assert_int_eq(strbuf_addf(&h, "}"), 0);
    put_u64(b, h.len);
    put_bytes(b, h.s, h.len);
    for (size_t i = which; i < n; i += of)
        put_data(g, &list[i], b);
}

static void write_shard(const struct gen_drafter *g, const struct gen_tensor *list, size_t n,
                        unsigned which, unsigned of, const char *dir, const char *name)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    put_shard(g, list, n, which, of, &b);
    write_file(dir, name, b.s, b.len);
}

void gen_drafter_safetensors(const struct gen_drafter *g, struct strbuf *b)
{
    static struct gen_tensor list[MAX_TENSORS];
    put_shard(g, list, list_tensors(g, list), 0, 1, b);
}

static void shard_name(unsigned i, unsigned of, char ret[64])
{
    (void)snprintf(ret, 64, "model-%05u-of-%05u.safetensors", i + 1, of);
}

void gen_drafter_write(const struct gen_drafter *g, const char *dir)
{
    static struct gen_tensor list[MAX_TENSORS];
    _cleanup_strbuf_ struct strbuf config = {0}, index = {0};
    size_t n = list_tensors(g, list);
    char name[64];
    gen_drafter_config(g, &config);
    write_file(dir, "config.json", config.s, config.len);
    if (!g->shards) {
        write_shard(g, list, n, 0, 1, dir, "model.safetensors");
        return;
    }
    for (unsigned i = 0; i < g->shards; i++) {
        shard_name(i, g->shards, name);
        write_shard(g, list, n, i, g->shards, dir, name);
    }
    ck_assert_int_eq(strbuf_addf(&index, "{\"weight_map\":{"), 0);
    for (size_t i = 0; i < n; i++) {
        shard_name((unsigned)(i % g->shards), g->shards, name);
        ck_assert_int_eq(strbuf_addf(&index, "%s\"%s\":\"%s\"", i ? "," : "", list[i].hf, name), 0);
    }
    ck_assert_int_eq(strbuf_addf(&index, "}}"), 0);
    write_file(dir, "model.safetensors.index.json", index.s, index.len);
}

void gen_drafter_remove(const struct gen_drafter *g, const char *dir)
{
    char path[4096], name[64];
    const char *const names[] = {"config.json", "model.safetensors",
                                 "model.safetensors.index.json"};
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    for (unsigned i = 0; i < g->shards; i++) {
        shard_name(i, g->shards, name);
        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

/* ---- GGUF --------------------------------------------------------------------------------------- */

static void kv_u32(const struct gen_drafter *g, struct strbuf *b, unsigned *n, const char *key,
                   uint32_t v)
{
    if (is_left_out(g, key))
        return;
    gg_kv_u32(b, key, v);
    ++*n;
}

static void kv_taps(const struct gen_drafter *g, struct strbuf *b, unsigned *n)
{
    if (is_left_out(g, "dflash.target_layers"))
        return;
    gg_key(b, "dflash.target_layers", GGUF_ARRAY);
    put_u32(b, GGUF_I32);
    put_u64(b, g->n_taps);
    for (uint32_t i = 0; i < g->n_taps; i++)
        put_u32(b, g->taps[i] + 1);
    ++*n;
}

static void kv_window(const struct gen_drafter *g, struct strbuf *b, unsigned *n)
{
    if (!g->window)
        return;
    kv_u32(g, b, n, "dflash.attention.sliding_window", g->window);
    if (is_left_out(g, "dflash.attention.sliding_window_pattern"))
        return;
    gg_key(b, "dflash.attention.sliding_window_pattern", GGUF_ARRAY);
    put_u32(b, GGUF_BOOL);
    put_u64(b, g->layers);
    for (uint32_t i = 0; i < g->layers; i++) {
        uint8_t v = g->sliding >> i & 1;
        put_bytes(b, &v, 1);
    }
    ++*n;
}

void gen_drafter_gguf(const struct gen_drafter *g, struct strbuf *b)
{
    static struct gen_tensor list[MAX_TENSORS];
    _cleanup_strbuf_ struct strbuf kv = {0};
    size_t n = list_tensors(g, list), at = 0;
    unsigned n_kv = 4;
    gg_kv_str(&kv, "general.architecture", "dflash");
    gg_kv_f32(&kv, "dflash.attention.layer_norm_rms_epsilon", 1e-6f);
    gg_kv_f32(&kv, "dflash.rope.freq_base", 10000.0f);
    gg_kv_bool(&kv, "dflash.attention.causal", 0);
    kv_u32(g, &kv, &n_kv, "dflash.block_count", g->layers);
    kv_u32(g, &kv, &n_kv, "dflash.embedding_length", g->hidden);
    kv_u32(g, &kv, &n_kv, "dflash.attention.head_count", g->heads);
    kv_u32(g, &kv, &n_kv, "dflash.attention.head_count_kv", g->kv_heads);
    kv_u32(g, &kv, &n_kv, "dflash.attention.key_length", g->head_dim);
    kv_u32(g, &kv, &n_kv, "dflash.feed_forward_length", g->ffn);
    kv_u32(g, &kv, &n_kv, "dflash.context_length", 4096);
    kv_u32(g, &kv, &n_kv, "dflash.block_size", g->block);
    kv_u32(g, &kv, &n_kv, "tokenizer.ggml.mask_token_id", g->mask);
    kv_taps(g, &kv, &n_kv);
    kv_window(g, &kv, &n_kv);
    gg_header(b, 3, n, n_kv);
    put_bytes(b, kv.s, kv.len);
    for (size_t i = 0; i < n; i++) {
        const struct gen_tensor *t = &list[i];
        uint64_t dims[2] = {t->in ? t->in : t->out, t->out};
        uint32_t type = !t->ids ? 0 : is_wide(g, t) ? GGML_TYPE_I64 : GGML_TYPE_I32;
        gg_tensor(b, t->gguf, t->in ? 2 : 1, dims, type, at);
        at += (bytes_of(g, t) + 31) / 32 * 32;
    }
    for (size_t i = 0; i < n; i++) {
        put_pad(b, 32);
        put_data(g, &list[i], b);
    }
}
