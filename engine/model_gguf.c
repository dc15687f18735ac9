/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file as a model: its metadata as a configuration, its directory as src_tensors. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/hf_config.h"
#include "engine/model_file_internal.h"

#define MAX_SIZE  (1u << 24)
#define KEY_BYTES 128

/* Reads keys "llama.…" of one architecture. */
struct reader {
    const struct gguf *g;
    const char *arch;
    struct error *err;
};

static const char *full_key(const struct reader *r, const char *key, char buf[KEY_BYTES])
{
    snprintf(buf, KEY_BYTES, "%s.%s", r->arch, key);
    return buf;
}

/* 0 found, 1 absent, negative. */
static int get_u32(const struct reader *r, const char *key, uint32_t max, uint32_t *ret)
{
    char buf[KEY_BYTES];
    uint32_t v;
    int ret_code = gguf_get_u32(r->g, full_key(r, key, buf), &v, r->err);
    if (ret_code != 0)
        return ret_code;
    if (v == 0 || v > max)
        return ERR(r->err, FORMAT, "%s: key \"%s\" must be from 1 to %" PRIu32 ", is %" PRIu32,
                   gguf_path(r->g), buf, max, v);
    *ret = v;
    return 0;
}

static int missing(const struct reader *r, const char *key)
{
    return ERR(r->err, FORMAT, "%s: key \"%s.%s\" is missing", gguf_path(r->g), r->arch, key);
}

static int need_u32(const struct reader *r, const char *key, uint32_t max, uint32_t *ret)
{
    int code = get_u32(r, key, max, ret);
    return code == 1 ? missing(r, key) : code;
}

static int get_f64(const struct reader *r, const char *key, double *ret)
{
    char buf[KEY_BYTES];
    return gguf_get_f64(r->g, full_key(r, key, buf), ret, r->err);
}

static int check_general(const struct gguf *g, struct error *err)
{
    struct gguf_str type;
    uint32_t parts = 1;
    int r = gguf_get_str(g, "general.type", &type, err);
    if (r < 0)
        return r;
    if (r == 0 && (type.len != 5 || memcmp(type.s, "model", 5) != 0))
        return ERR(err, UNSUPPORTED,
                   "%s: general.type \"%.*s\" is not a model (" MODEL_SUPPORTED_TEXT ")",
                   gguf_path(g), (int)(type.len < 64 ? type.len : 64), type.s);
    r = gguf_get_u32(g, "split.count", &parts, err);
    if (r < 0)
        return r;
    if (parts > 1)
        return ERR(err, UNSUPPORTED,
                   "%s: one of %" PRIu32 " parts of a split model; merge them into one file",
                   gguf_path(g), parts);
    return 0;
}

static int parse_family(const struct gguf *g, struct model_config *c, struct error *err)
{
    struct gguf_str arch;
    char name[65];
    int r = gguf_get_str(g, "general.architecture", &arch, err);
    if (r == 1)
        return ERR(err, FORMAT, "%s: key \"general.architecture\" is missing", gguf_path(g));
    if (r < 0)
        return r;
    if (model_family_parse(arch.s, arch.len, &c->family))
        return 0;
    snprintf(name, sizeof(name), "%.*s", (int)(arch.len < 64 ? arch.len : 64), arch.s);
    return ERR(err, UNSUPPORTED,
               "%s: architecture \"%s\"%s is not supported (" MODEL_SUPPORTED_TEXT ")",
               gguf_path(g), name, model_name_hint(name));
}

/* Keys whose presence with a positive value means another computation. */
static int check_refused(const struct reader *r, const struct model_config *c)
{
    static const struct {
        const char *key, *what;
    } refused[] = {
        {"expert_count", "mixture-of-experts (MoE) models are"},
        {"expert_used_count", "mixture-of-experts (MoE) models are"},
        {"pooling_type", "embedding models are"},
        {"attention.scale", "an attention scale of its own is"},
        {"logit_scale", "scaled logits are"},
        {"embedding_scale", "scaled embeddings are"},
        {"residual_scale", "scaled residuals are"},
        {"attn_logit_softcapping", "soft caps are"},
        {"final_logit_softcapping", "soft caps are"},
        {"attention.clamp_kqv", "clamped attention is"},
        {"attention.max_alibi_bias", "ALiBi is"},
    };
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        double v = 0;
        int code = get_f64(r, refused[i].key, &v);
        if (code < 0)
            return code;
        if (v != 0)
            return ERR(r->err, UNSUPPORTED,
                       "%s: key \"%s.%s\": %s not supported (" MODEL_SUPPORTED_TEXT ")",
                       gguf_path(r->g), r->arch, refused[i].key, refused[i].what);
    }
    char key[KEY_BYTES];
    uint32_t window = 0;
    bool causal = true;
    if (c->drafter)
        return 0; /* it says itself what its rows see */
    int code = gguf_get_u32(r->g, full_key(r, "attention.sliding_window", key), &window, r->err);
    if (code < 0)
        return code;
    if (window > 0 && window < c->max_position)
        return ERR(r->err, UNSUPPORTED,
                   "%s: key \"%s\": a window of %" PRIu32
                   " positions is not supported (supported: full attention)",
                   gguf_path(r->g), key, window);
    code = gguf_get_bool(r->g, full_key(r, "attention.causal", key), &causal, r->err);
    if (code < 0)
        return code;
    if (!causal)
        return ERR(r->err, UNSUPPORTED, "%s: key \"%s\" is false; only causal models are supported",
                   gguf_path(r->g), key);
    struct gguf_str layout;
    code = gguf_get_str(r->g, full_key(r, "tensor_data_layout", key), &layout, r->err);
    if (code < 0)
        return code;
    if (code == 0 && (layout.len != 9 || memcmp(layout.s, "reference", 9) != 0))
        return ERR(r->err, UNSUPPORTED, "%s: key \"%s\" must be \"reference\", is \"%.*s\"",
                   gguf_path(r->g), key, (int)(layout.len < 64 ? layout.len : 64), layout.s);
    return 0;
}

static int parse_heads(const struct reader *r, struct model_config *c)
{
    uint32_t value_length;
    int code = need_u32(r, "attention.head_count", 65536, &c->n_heads);
    if (code < 0)
        return code;
    c->n_kv_heads = c->n_heads;
    code = get_u32(r, "attention.head_count_kv", 65536, &c->n_kv_heads);
    if (code < 0)
        return code;
    code = get_u32(r, "attention.key_length", MAX_SIZE, &c->head_dim);
    if (code < 0)
        return code;
    if (code == 1) {
        if (c->hidden % c->n_heads)
            return ERR(r->err, FORMAT,
                       "%s: without key \"%s.attention.key_length\", embedding_length %" PRIu32
                       " must be a multiple of head_count %" PRIu32,
                       gguf_path(r->g), r->arch, c->hidden, c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }
    value_length = c->head_dim;
    code = get_u32(r, "attention.value_length", MAX_SIZE, &value_length);
    if (code < 0)
        return code;
    if (value_length != c->head_dim)
        return ERR(r->err, UNSUPPORTED,
                   "%s: key \"%s.attention.value_length\" is %" PRIu32 ", keys have %" PRIu32
                   "; different lengths are not supported",
                   gguf_path(r->g), r->arch, value_length, c->head_dim);
    return 0;
}

static int parse_rope(const struct reader *r, struct model_config *c)
{
    uint32_t rotated = c->head_dim;
    double factor = 0;
    char key[KEY_BYTES];
    int code = get_u32(r, "rope.dimension_count", MAX_SIZE, &rotated);
    if (code < 0)
        return code;
    if (rotated != c->head_dim)
        return ERR(r->err, UNSUPPORTED,
                   "%s: key \"%s.rope.dimension_count\" is %" PRIu32 ", heads have %" PRIu32
                   "; partial rotation is not supported",
                   gguf_path(r->g), r->arch, rotated, c->head_dim);
    c->rope_theta = 10000.0; /* the format's default */
    code = get_f64(r, "rope.freq_base", &c->rope_theta);
    if (code < 0)
        return code;
    code = get_f64(r, "rope.scaling.factor", &factor);
    if (code == 1)
        code = get_f64(r, "rope.scale_linear", &factor); /* its older name */
    if (code < 0)
        return code;
    struct gguf_str type = {"linear", 6}; /* what a factor without a type means */
    code = gguf_get_str(r->g, full_key(r, "rope.scaling.type", key), &type, r->err);
    if (code < 0)
        return code;
    bool none = type.len == 4 && !memcmp(type.s, "none", 4);
    bool linear = type.len == 6 && !memcmp(type.s, "linear", 6);
    if (!none && !linear)
        return ERR(r->err, UNSUPPORTED,
                   "%s: key \"%s\": \"%.*s\" is not supported (supported: none, linear)",
                   gguf_path(r->g), key, (int)(type.len < 64 ? type.len : 64), type.s);
    if (linear && code == 0 && factor == 0)
        return missing(r, "rope.scaling.factor");
    if (linear && factor != 0 && factor != 1.0) {
        c->rope_scaling = ROPE_SCALING_LINEAR;
        c->rope_factor = factor;
    }
    return 0;
}

static int parse_config(const struct reader *r, struct model_config *c)
{
    double eps;
    int code = need_u32(r, "block_count", 4096, &c->n_layers);
    if (code >= 0)
        code = need_u32(r, "embedding_length", MAX_SIZE, &c->hidden);
    if (code >= 0)
        code = need_u32(r, "feed_forward_length", MAX_SIZE, &c->ffn);
    if (code >= 0)
        code = need_u32(r, "context_length", UINT32_MAX / 2, &c->max_position);
    if (code >= 0)
        code = get_f64(r, "attention.layer_norm_rms_epsilon", &eps);
    if (code == 1)
        return missing(r, "attention.layer_norm_rms_epsilon");
    if (code < 0)
        return code;
    c->rms_eps = (float)eps;
    code = parse_heads(r, c);
    if (code >= 0)
        code = parse_rope(r, c);
    if (code >= 0)
        code = check_refused(r, c);
    if (code >= 0)
        code = model_config_check(c, gguf_path(r->g), r->err);
    c->qkv_bias = c->family == MODEL_QWEN2;
    c->qk_norm = c->family == MODEL_QWEN3;
    c->rope_pairing = c->family == MODEL_LLAMA ? DK_ROPE_INTERLEAVED : DK_ROPE_HALVES;
    c->tied = !gguf_tensor_find(r->g, "output.weight");
    return code;
}

int gguf_architecture(const struct gguf *g, const char *arch, struct model_config *c,
                      struct error *err)
{
    struct reader r = {g, arch, err};
    return parse_config(&r, c);
}

/* The embedding's rows; the file's other two opinions must agree. */
static int parse_vocabulary(const struct reader *r, struct model_config *c)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->g, "token_embd.weight");
    uint32_t said;
    uint64_t n_tokens;
    if (!t)
        return ERR(r->err, FORMAT, "%s: tensor \"token_embd.weight\" is missing", gguf_path(r->g));
    if (t->n_dims != 2 || t->dims[1] > MAX_SIZE)
        return ERR(r->err, FORMAT,
                   "%s: tensor \"token_embd.weight\" must have 2 dimensions and at most %u rows",
                   gguf_path(r->g), MAX_SIZE);
    c->vocab_size = (uint32_t)t->dims[1];
    int code = get_u32(r, "vocab_size", UINT32_MAX, &said);
    if (code < 0)
        return code;
    if (code == 0 && said != c->vocab_size)
        return ERR(r->err, MISMATCH,
                   "%s: key \"%s.vocab_size\" is %" PRIu32
                   ", tensor \"token_embd.weight\" has %" PRIu32 " rows",
                   gguf_path(r->g), r->arch, said, c->vocab_size);
    code = gguf_get_array(r->g, "tokenizer.ggml.tokens", GGUF_STRING, &n_tokens, r->err);
    if (code < 0)
        return code;
    if (code == 0 && n_tokens > c->vocab_size)
        return ERR(r->err, MISMATCH,
                   "%s: key \"tokenizer.ggml.tokens\" has %" PRIu64
                   " tokens, tensor \"token_embd.weight\" has %" PRIu32 " rows",
                   gguf_path(r->g), n_tokens, c->vocab_size);
    return 0;
}

static int parse_tokens(const struct reader *r, struct model_config *c)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    static const char bos[] = "tokenizer.ggml.bos_token_id";
    for (size_t i = 0; i < ARRAY_LEN(stops); i++) {
        uint32_t id;
        int code = gguf_get_u32(r->g, stops[i], &id, r->err);
        if (code == 0)
            code = model_config_add_eos(c, id, gguf_path(r->g), stops[i], r->err);
        if (code < 0)
            return code;
    }
    int code = gguf_get_u32(r->g, bos, &c->bos_id, r->err);
    if (code < 0)
        return code;
    c->has_bos = code == 0;
    if (c->has_bos && c->bos_id >= c->vocab_size)
        return ERR(r->err, FORMAT,
                   "%s: \"%s\": id %" PRIu32 " is outside the vocabulary of %" PRIu32,
                   gguf_path(r->g), bos, c->bos_id, c->vocab_size);
    code = gguf_get_bool(r->g, "tokenizer.ggml.add_bos_token", &c->add_bos, r->err);
    if (code < 0)
        return code;
    if (code == 1) {
        /* Without the key, Llama 3's pre-tokenizer alone implies BOS. */
        struct gguf_str pre = {"", 0};
        code = gguf_get_str(r->g, "tokenizer.ggml.pre", &pre, r->err);
        if (code < 0)
            return code;
        c->add_bos = c->has_bos && pre.len == 9 && !memcmp(pre.s, "llama-bpe", 9);
    }
    if (c->add_bos && !c->has_bos)
        return ERR(r->err, FORMAT,
                   "%s: key \"tokenizer.ggml.add_bos_token\" is true, but \"%s\" is missing",
                   gguf_path(r->g), bos);
    return 0;
}

int gguf_list_tensors(struct model_file *f, struct error *err)
{
    const struct gguf *g = f->gguf;
    struct src_table s = {.n = gguf_n_tensors(g), .missing = f->path};
    _cleanup_free_ struct src_tensor *tensors = mem_array(s.n, sizeof(*tensors));
    _cleanup_free_ struct name_ref *names = mem_array(s.n, sizeof(*names));
    if (!tensors || !names)
        return ERR_NOMEM(err);
    s.t = tensors;
    s.names = names;
    for (size_t i = 0; i < s.n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        struct src_tensor *out = &s.t[i];
        *out = (struct src_tensor){.name = t->name.s,
                                   .name_len = t->name.len,
                                   .file = f->path,
                                   .type_name = t->type_name,
                                   .type = t->type,
                                   .n_dims = t->n_dims,
                                   .data = t->data,
                                   .bytes = t->bytes};
        for (uint32_t d = 0; d < t->n_dims; d++)
            out->dims[d] = t->dims[t->n_dims - 1 - d];
        s.names[i] = (struct name_ref){out->name, out->name_len, (uint32_t)i};
    }
    names_sort(s.names, s.n);
    return model_bind(f, &s, err);
}

/* general.name, or the file's name without ".gguf". */
int gguf_take_name(struct model_file *f, struct error *err)
{
    struct gguf_str name;
    int r = gguf_get_str(f->gguf, "general.name", &name, err);
    if (r < 0)
        return r;
    if (r == 1 || name.len == 0) {
        const char *slash = strrchr(f->path, '/');
        name.s = slash ? slash + 1 : f->path;
        name.len = strlen(name.s);
        if (name.len > 5 && !strcmp(name.s + name.len - 5, ".gguf"))
            name.len -= 5;
    }
    f->name = mem_strndup(name.s, name.len);
    return f->name ? 0 : ERR_NOMEM(err);
}

static int take_chat_template(struct model_file *f, struct error *err)
{
    struct gguf_str text;
    int r = gguf_get_str(f->gguf, "tokenizer.chat_template", &text, err);
    if (r != 0)
        return r < 0 ? r : 0;
    f->chat_template = mem_strndup(text.s, text.len);
    return f->chat_template ? 0 : ERR_NOMEM(err);
}

int model_from_gguf(struct model_file *f, struct error *err)
{
    int r = check_general(f->gguf, err);
    if (r >= 0)
        r = parse_family(f->gguf, &f->cfg, err);
    if (r < 0)
        return r;
    struct reader reader = {f->gguf, model_family_name(f->cfg.family), err};
    r = parse_config(&reader, &f->cfg);
    if (r >= 0)
        r = parse_vocabulary(&reader, &f->cfg);
    if (r >= 0)
        r = parse_tokens(&reader, &f->cfg);
    if (r >= 0)
        r = gguf_take_name(f, err);
    if (r >= 0)
        r = take_chat_template(f, err);
    if (r < 0)
        return r;
    return gguf_list_tensors(f, err);
}
