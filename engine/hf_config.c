/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: the architecture, in the older style (rope_theta, rope_scaling, torch_dtype) and the
 * newer one (rope_parameters, dtype). */
#include "engine/hf_config.h"

#include <string.h>

#define MAX_SIZE (1u << 24) /* of any single dimension: far above every model, products fit */

static const struct family_info {
    const char *model_type, *architecture;
} families[MODEL_FAMILY_COUNT] = {
    [MODEL_LLAMA] = {"llama", "LlamaForCausalLM"},
    [MODEL_QWEN2] = {"qwen2", "Qwen2ForCausalLM"},
    [MODEL_QWEN3] = {"qwen3", "Qwen3ForCausalLM"},
};

/* Keys that make a model another one; true, a positive number or an object is refused. */
static const struct {
    const char *key, *what;
} refused[] = {
    {"num_experts", "mixture-of-experts (MoE) models are"},
    {"num_local_experts", "mixture-of-experts (MoE) models are"},
    {"n_routed_experts", "mixture-of-experts (MoE) models are"},
    {"moe_intermediate_size", "mixture-of-experts (MoE) models are"},
    {"vision_config", "vision models are"},
    {"visual", "vision models are"},
    {"audio_config", "audio models are"},
    {"text_config", "multimodal models are"},
    {"quantization_config", "quantised Hugging Face weights are"},
    {"compression_config", "quantised Hugging Face weights are"},
    {"is_encoder_decoder", "encoder-decoder models are"},
    {"mlp_bias", "biases in the MLP are"},
    {"attention_bias", "attention biases chosen by this key are"},
    {"attn_logit_softcapping", "soft caps are"},
    {"final_logit_softcapping", "soft caps are"},
};

bool model_family_parse(const char *name, size_t len, enum model_family *ret)
{
    for (int i = 0; i < MODEL_FAMILY_COUNT; i++) {
        if (strlen(families[i].model_type) == len && !memcmp(families[i].model_type, name, len)) {
            *ret = (enum model_family)i;
            return true;
        }
    }
    return false;
}

const char *model_family_name(enum model_family f)
{
    return families[f].model_type;
}

/* Only called after an architecture was refused: says what it probably is. */
const char *model_name_hint(const char *architecture)
{
    static const struct {
        const char *part, *hint;
    } hints[] = {
        {"moe", " (a mixture-of-experts model)"},
        {"mixtral", " (a mixture-of-experts model)"},
        {"deepseek", " (a mixture-of-experts model)"},
        {"clip", " (a vision projector, mmproj)"},
        {"mllama", " (a vision model)"},
        {"llava", " (a vision model)"},
        {"vl", " (a vision model)"},
        {"vision", " (a vision model)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(hints); i++)
        if (strstr(architecture, hints[i].part))
            return hints[i].hint;
    return "";
}

static int missing(const struct js_obj *o, const char *key, struct error *err)
{
    return ERR(err, FORMAT, "%s: \"%s%s\" is missing", o->file, o->path, key);
}

static int need_u32(const struct js_obj *o, const char *key, uint32_t max, uint32_t *ret,
                    struct error *err)
{
    int r = js_u32(o, key, 1, max, ret, err);
    return r == 1 ? missing(o, key, err) : r;
}

static int need_f64(const struct js_obj *o, const char *key, double *ret, struct error *err)
{
    int r = js_f64(o, key, ret, err);
    return r == 1 ? missing(o, key, err) : r;
}

static int parse_family(const struct js_obj *o, struct model_config *c, struct error *err)
{
    const char *type;
    json_t *archs = NULL;
    int r = js_str(o, "model_type", &type, err);
    if (r == 1)
        return missing(o, "model_type", err);
    if (r < 0)
        return r;
    if (!model_family_parse(type, strlen(type), &c->family))
        return ERR(err, UNSUPPORTED,
                   "%s: model_type \"%.64s\"%s is not supported (" MODEL_SUPPORTED_TEXT ")",
                   o->file, type, model_name_hint(type));
    r = js_array(o, "architectures", &archs, err);
    if (r != 0)
        return r < 0 ? r : 0;
    const char *want = families[c->family].architecture, *found = NULL;
    for (size_t i = 0; i < json_array_size(archs); i++) {
        const char *name = json_string_value(json_array_get(archs, i));
        if (!name)
            return ERR(err, FORMAT, "%s: \"architectures\" must be strings", o->file);
        if (!strcmp(name, want))
            return 0;
        found = name;
    }
    if (!found)
        return 0;
    return ERR(
        err, UNSUPPORTED,
        "%s: architecture \"%.64s\" is not supported for model_type \"%s\" (%s is; " MODEL_SUPPORTED_TEXT
        ")",
        o->file, found, type, want);
}

static int check_refused(const struct js_obj *o, const struct model_config *c, struct error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        const json_t *v = json_object_get(o->o, refused[i].key);
        bool on =
            json_is_true(v) || json_is_object(v) || (json_is_number(v) && json_number_value(v) > 0);
        /* Qwen2 always has its biases; published configs repeat that or not. */
        if (c->family == MODEL_QWEN2 && !strcmp(refused[i].key, "attention_bias"))
            continue;
        if (on)
            return ERR(err, UNSUPPORTED, "%s: \"%s\": %s not supported (" MODEL_SUPPORTED_TEXT ")",
                       o->file, refused[i].key, refused[i].what);
    }
    return 0;
}

static int check_activation(const struct js_obj *o, struct error *err)
{
    const char *act;
    int r = js_str(o, "hidden_act", &act, err);
    if (r == 0 && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return ERR(err, UNSUPPORTED, "%s: hidden_act \"%.64s\" is not supported (supported: silu)",
                   o->file, act);
    return r < 0 ? r : 0;
}

/* A sliding window is fine as long as no layer uses it. */
static int check_window(const struct js_obj *o, const struct model_config *c, struct error *err)
{
    bool use = false;
    uint32_t window = 0, from_layer = c->n_layers;
    json_t *types;
    int r = js_array(o, "layer_types", &types, err);
    if (r < 0)
        return r;
    if (r == 0) {
        if (json_array_size(types) != c->n_layers)
            return ERR(err, FORMAT, "%s: \"layer_types\" has %zu entries, num_hidden_layers is %u",
                       o->file, json_array_size(types), c->n_layers);
        for (size_t i = 0; i < json_array_size(types); i++) {
            const char *s = json_string_value(json_array_get(types, i));
            if (!s)
                return ERR(err, FORMAT, "%s: \"layer_types\"[%zu] must be a string", o->file, i);
            if (strcmp(s, "full_attention") != 0)
                return ERR(err, UNSUPPORTED,
                           "%s: \"layer_types\"[%zu]: \"%.64s\" is not supported (supported: "
                           "full_attention)",
                           o->file, i, s);
        }
        return 0;
    }
    r = js_bool(o, "use_sliding_window", &use, err);
    if (r >= 0)
        r = js_u32(o, "sliding_window", 0, UINT32_MAX, &window, err);
    if (r >= 0)
        r = js_u32(o, "max_window_layers", 0, UINT32_MAX, &from_layer, err);
    if (r < 0)
        return r;
    if (use && window > 0 && window < c->max_position && from_layer < c->n_layers)
        return ERR(err, UNSUPPORTED,
                   "%s: \"use_sliding_window\": layers from %u on use a window of %u positions, "
                   "which is not supported (supported: full attention)",
                   o->file, from_layer, window);
    return 0;
}

static int parse_rope_llama3(const struct js_obj *o, const struct js_obj *rope,
                             struct model_config *c, struct error *err)
{
    int r = need_f64(rope, "factor", &c->rope_factor, err);
    if (r >= 0)
        r = need_f64(rope, "low_freq_factor", &c->rope_low_freq_factor, err);
    if (r >= 0)
        r = need_f64(rope, "high_freq_factor", &c->rope_high_freq_factor, err);
    if (r >= 0)
        r = js_u32(rope, "original_max_position_embeddings", 1, MAX_SIZE, &c->rope_original_context,
                   err);
    if (r == 1)
        r = js_u32(o, "original_max_position_embeddings", 1, MAX_SIZE, &c->rope_original_context,
                   err);
    return r == 1 ? missing(rope, "original_max_position_embeddings", err) : r;
}

/* rope: rope_scaling or rope_parameters; an object without a type is the default. */
static int parse_rope_type(const struct js_obj *o, const struct js_obj *rope,
                           struct model_config *c, struct error *err)
{
    const char *type = "default", *old = NULL;
    int has_new = js_str(rope, "rope_type", &type, err);
    if (has_new < 0)
        return has_new;
    int has_old = js_str(rope, "type", &old, err);
    if (has_old < 0)
        return has_old;
    if (has_old == 0 && has_new == 0 && strcmp(type, old) != 0)
        return ERR(err, MISMATCH, "%s: \"%srope_type\" is \"%.64s\", \"%stype\" is \"%.64s\"",
                   o->file, rope->path, type, rope->path, old);
    if (has_old == 0)
        type = old;
    if (!strcmp(type, "default"))
        return 0;
    if (!strcmp(type, "linear")) {
        c->rope_scaling = ROPE_SCALING_LINEAR;
        return need_f64(rope, "factor", &c->rope_factor, err);
    }
    if (!strcmp(type, "llama3")) {
        c->rope_scaling = ROPE_SCALING_LLAMA3;
        return parse_rope_llama3(o, rope, c, err);
    }
    return ERR(
        err, UNSUPPORTED,
        "%s: \"%srope_type\": \"%.64s\" is not supported (supported: default, linear, llama3)",
        o->file, rope->path, type);
}

static int check_partial(const struct js_obj *o, struct error *err)
{
    double f = 1.0;
    int r = js_f64(o, "partial_rotary_factor", &f, err);
    if (r >= 0 && f != 1.0)
        return ERR(err, UNSUPPORTED,
                   "%s: \"%spartial_rotary_factor\": partial rotation is not supported (supported: "
                   "1.0)",
                   o->file, o->path);
    return r < 0 ? r : 0;
}

static int parse_rope(const struct js_obj *o, struct model_config *c, struct error *err)
{
    struct js_obj rope = {.file = o->file};
    double theta = 0, nested = 0;
    int has_theta = js_f64(o, "rope_theta", &theta, err);
    if (has_theta < 0)
        return has_theta;
    int r = js_object(o, "rope_parameters", &rope, err);
    if (r == 1)
        r = js_object(o, "rope_scaling", &rope, err);
    if (r < 0)
        return r;
    const char *key;
    json_t *v;
    json_object_foreach(rope.o, key, v)
    {
        if (json_is_object(v))
            return ERR(err, UNSUPPORTED,
                       "%s: \"%s%.48s\": RoPE that differs from layer to layer is not supported",
                       o->file, rope.path, key);
    }
    int has_nested = js_f64(&rope, "rope_theta", &nested, err);
    if (has_nested < 0)
        return has_nested;
    if (has_nested == 0 && has_theta == 0 && theta != nested)
        return ERR(err, MISMATCH, "%s: \"rope_theta\" is %g, \"%srope_theta\" is %g", o->file,
                   theta, rope.path, nested);
    if (has_nested == 0)
        theta = nested;
    else if (has_theta == 1 && c->family != MODEL_LLAMA)
        return missing(o, "rope_theta", err);
    else if (has_theta == 1)
        theta = 10000.0; /* Llama 1 and 2 were published without the key */
    c->rope_theta = theta;
    r = check_partial(o, err);
    if (r >= 0)
        r = check_partial(&rope, err);
    if (r >= 0)
        r = parse_rope_type(o, &rope, c, err);
    return r;
}

static int parse_sizes(const struct js_obj *o, struct model_config *c, struct error *err)
{
    double eps = 0;
    int r = need_u32(o, "num_hidden_layers", 4096, &c->n_layers, err);
    if (r >= 0)
        r = need_u32(o, "hidden_size", MAX_SIZE, &c->hidden, err);
    if (r >= 0)
        r = need_u32(o, "num_attention_heads", 65536, &c->n_heads, err);
    if (r >= 0)
        r = need_u32(o, "intermediate_size", MAX_SIZE, &c->ffn, err);
    if (r >= 0)
        r = need_u32(o, "vocab_size", MAX_SIZE, &c->vocab_size, err);
    if (r >= 0)
        r = need_u32(o, "max_position_embeddings", UINT32_MAX / 2, &c->max_position, err);
    if (r >= 0)
        r = need_f64(o, "rms_norm_eps", &eps, err);
    if (r < 0)
        return r;
    c->rms_eps = (float)eps;
    c->n_kv_heads = c->n_heads;
    r = js_u32(o, "num_key_value_heads", 1, 65536, &c->n_kv_heads, err);
    if (r < 0)
        return r;
    r = js_u32(o, "head_dim", 1, MAX_SIZE, &c->head_dim, err);
    if (r < 0)
        return r;
    if (r == 1) {
        if (c->hidden % c->n_heads)
            return ERR(err, FORMAT,
                       "%s: without \"head_dim\", hidden_size %u must be a multiple of "
                       "num_attention_heads %u",
                       o->file, c->hidden, c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }
    r = js_bool(o, "tie_word_embeddings", &c->tied, err);
    return r < 0 ? r : 0;
}

int model_config_check(const struct model_config *c, const char *file, struct error *err)
{
    if (c->head_dim > DK_MAX_HEAD_DIM || c->head_dim % 2)
        return ERR(err, UNSUPPORTED, "%s: head_dim must be even and at most %u, is %u", file,
                   DK_MAX_HEAD_DIM, c->head_dim);
    if (c->n_kv_heads > c->n_heads || c->n_heads % c->n_kv_heads)
        return ERR(err, FORMAT, "%s: %u query heads are not a multiple of %u key/value heads", file,
                   c->n_heads, c->n_kv_heads);
    if (!(c->rms_eps > 0) || !(c->rms_eps < 1))
        return ERR(err, FORMAT, "%s: the epsilon of the norms must be between 0 and 1, is %g", file,
                   (double)c->rms_eps);
    if (!(c->rope_theta >= 1) || c->rope_theta > 1e12)
        return ERR(err, FORMAT, "%s: the RoPE base must be from 1 to 1e12, is %g", file,
                   c->rope_theta);
    if (c->rope_scaling != ROPE_SCALING_NONE && (!(c->rope_factor > 0) || c->rope_factor > 1e6))
        return ERR(err, FORMAT,
                   "%s: the RoPE scaling factor must be above 0 and at most 1e6, is %g", file,
                   c->rope_factor);
    if (c->rope_scaling == ROPE_SCALING_LLAMA3 &&
        (!(c->rope_low_freq_factor > 0) || !(c->rope_high_freq_factor > c->rope_low_freq_factor)))
        return ERR(
            err, FORMAT,
            "%s: RoPE scaling needs 0 < low_freq_factor < high_freq_factor, they are %g and %g",
            file, c->rope_low_freq_factor, c->rope_high_freq_factor);
    return 0;
}

int hf_architecture(const struct js_obj *o, struct model_config *c, struct error *err)
{
    int r = check_refused(o, c, err);
    if (r >= 0)
        r = check_activation(o, err);
    if (r >= 0)
        r = parse_sizes(o, c, err);
    if (r >= 0)
        r = parse_rope(o, c, err);
    if (r >= 0)
        r = model_config_check(c, o->file, err);
    c->qkv_bias = c->family == MODEL_QWEN2;
    c->qk_norm = c->family == MODEL_QWEN3;
    c->rope_pairing = DK_ROPE_HALVES;
    return r;
}

int hf_config_parse(const struct hf_texts *t, struct model_config *ret, struct error *err)
{
    struct model_config c = {0};
    json_auto_t *root = NULL;
    int r = js_parse_object(t->config.text, t->config.len, t->config.name, &root, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(root, t->config.name);
    r = parse_family(&o, &c, err);
    if (r >= 0)
        r = hf_architecture(&o, &c, err);
    if (r >= 0)
        r = check_window(&o, &c, err);
    if (r >= 0)
        r = hf_token_ids(t, &o, &c, err);
    if (r < 0)
        return r;
    *ret = c;
    return 0;
}
