/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a DFlash folder. */
#include <inttypes.h>
#include <string.h>

#include "engine/drafter_file.h"
#include "engine/hf_config.h"

#define SUPPORTED "supported: " DRAFTER_HF_ARCHITECTURE

static int missing(const struct js_obj *o, const char *key, struct error *err)
{
    return ERR(err, FORMAT, "%s: \"%s%s\" is missing", o->file, o->path, key);
}

static int check_architecture(const struct js_obj *o, struct error *err)
{
    json_t *archs = NULL;
    const char *type = NULL, *name = NULL;
    if (json_object_get(o->o, "speculators_model_type"))
        return ERR(err, UNSUPPORTED,
                   "%s: \"speculators_model_type\": this form of drafter is not read (" SUPPORTED
                   " in the authors' form)",
                   o->file);
    int r = js_array(o, "architectures", &archs, err);
    if (r < 0)
        return r;
    if (r == 0)
        name = json_string_value(json_array_get(archs, 0));
    if (!name)
        return missing(o, "architectures", err);
    if (strcmp(name, DRAFTER_HF_ARCHITECTURE) != 0 || json_array_size(archs) != 1)
        return ERR(err, UNSUPPORTED,
                   "%s: \"architectures\": \"%.64s\" is not a drafter that is read (" SUPPORTED ")",
                   o->file, name);
    r = js_str(o, "model_type", &type, err);
    if (r == 1)
        return missing(o, "model_type", err);
    if (r == 0 && strcmp(type, "qwen3") != 0)
        return ERR(err, UNSUPPORTED,
                   "%s: \"model_type\": \"%.64s\" is not supported for drafters (supported: qwen3)",
                   o->file, type);
    return r;
}

/* Other drafters share the file's form, but their rows mean something else. */
static int check_variant(const struct js_obj *o, struct error *err)
{
    bool shifted = false;
    const char *projector = NULL;
    int r = js_bool(o, "sample_from_anchor", &shifted, err);
    if (r >= 0 && !shifted)
        r = js_bool(o, "shift_label", &shifted, err);
    if (r < 0)
        return r;
    if (shifted)
        return ERR(err, UNSUPPORTED,
                   "%s: \"%ssample_from_anchor\": drafters whose rows predict the next position "
                   "are not supported (" SUPPORTED ")",
                   o->file, o->path);
    r = js_str(o, "projector_type", &projector, err);
    if (r == 0 && strcmp(projector, "dflash") != 0)
        return ERR(err, UNSUPPORTED,
                   "%s: \"%sprojector_type\": \"%.64s\" is not supported (" SUPPORTED ")", o->file,
                   o->path, projector);
    return r < 0 ? r : 0;
}

/* dflash_config.key, else the same key at the top. */
static int either_u32(const struct js_obj *nested, const struct js_obj *o, const char *key,
                      uint32_t min, uint32_t max, uint32_t *ret, struct error *err)
{
    int r = js_u32(nested, key, min, max, ret, err);
    if (r == 1)
        r = js_u32(o, key, min, max, ret, err);
    return r;
}

static int parse_taps(const struct js_obj *nested, const struct js_obj *o, uint32_t n_layers,
                      uint32_t target_layers, struct drafter_config *d, struct error *err)
{
    json_t *ids = NULL;
    const struct js_obj *at = nested;
    int r = js_array(nested, "target_layer_ids", &ids, err);
    if (r == 1) {
        at = o;
        r = js_array(o, "target_layer_ids", &ids, err);
    }
    if (r < 0)
        return r;
    if (r == 1)
        return drafter_default_taps(d, n_layers, target_layers, o->file, err);
    size_t n = json_array_size(ids);
    if (n == 0 || n > DRAFTER_MAX_TAPS)
        return ERR(err, FORMAT, "%s: \"%starget_layer_ids\" has %zu entries, must have 1 to %u",
                   at->file, at->path, n, DRAFTER_MAX_TAPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(ids, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 65535)
            return ERR(err, FORMAT,
                       "%s: \"%starget_layer_ids\"[%zu] must be an integer from 0 to 65535",
                       at->file, at->path, i);
        d->tap_layers[i] = (uint32_t)json_integer_value(v);
    }
    d->n_taps = (uint32_t)n;
    return 0;
}

static int parse_attention(const struct js_obj *nested, const struct js_obj *o, uint32_t n_layers,
                           struct drafter_config *d, struct error *err)
{
    json_t *types = NULL;
    bool causal, use = false;
    int r = js_bool(nested, "causal", &causal, err);
    if (r < 0)
        return r;
    if (r == 0)
        d->causal = causal ? DRAFTER_CAUSAL : DRAFTER_BIDIRECTIONAL;
    r = js_array(o, "layer_types", &types, err);
    if (r < 0)
        return r;
    if (r == 0 && json_array_size(types) != n_layers)
        return ERR(err, FORMAT,
                   "%s: \"layer_types\" has %zu entries, num_hidden_layers is %" PRIu32, o->file,
                   json_array_size(types), n_layers);
    for (uint32_t i = 0; r == 0 && i < n_layers; i++) {
        const char *s = json_string_value(json_array_get(types, i));
        if (s && !strcmp(s, "sliding_attention"))
            d->sliding |= (uint64_t)1 << i;
        else if (!s || strcmp(s, "full_attention") != 0)
            return ERR(err, UNSUPPORTED,
                       "%s: \"layer_types\"[%" PRIu32 "]: \"%.64s\" is not supported (supported: "
                       "full_attention, sliding_attention)",
                       o->file, i, s ? s : "?");
    }
    if (r == 1) { /* without a list nothing says which layers it would be */
        r = js_bool(o, "use_sliding_window", &use, err);
        if (r >= 0 && use)
            return ERR(err, FORMAT, "%s: \"use_sliding_window\" needs \"layer_types\"", o->file);
    }
    if (r < 0 || !d->sliding)
        return r < 0 ? r : 0;
    r = js_u32(o, "sliding_window", 1, UINT32_MAX / 2, &d->window, err);
    return r == 1 ? missing(o, "sliding_window", err) : r;
}

static int parse_drafting(const struct js_obj *o, const struct model_config *target,
                          uint32_t n_layers, struct drafter_config *d, struct error *err)
{
    struct js_obj nested = {.file = o->file, .path = "dflash_config."};
    uint32_t layers = target->n_layers;
    int r = js_object(o, "dflash_config", &nested, err);
    if (r >= 0)
        r = check_variant(o, err);
    if (r >= 0)
        r = check_variant(&nested, err);
    if (r >= 0)
        r = js_u32(o, "num_target_layers", 1, 65536, &layers, err);
    if (r < 0)
        return r;
    if (layers != target->n_layers)
        return ERR(err, MISMATCH,
                   "%s: \"num_target_layers\" is %" PRIu32 ", the target has %" PRIu32
                   " layers: a drafter of another model",
                   o->file, layers, target->n_layers);
    r = either_u32(&nested, o, "block_size", 2, DRAFTER_MAX_BLOCK, &d->block_size, err);
    if (r == 1)
        return missing(o, "block_size", err);
    if (r == 0)
        r = either_u32(&nested, o, "mask_token_id", 0, UINT32_MAX, &d->mask_token, err);
    if (r == 1)
        return missing(&nested, "mask_token_id", err);
    if (r == 0)
        r = parse_taps(&nested, o, n_layers, target->n_layers, d, err);
    if (r == 0)
        r = parse_attention(&nested, o, n_layers, d, err);
    if (r == 0)
        r = either_u32(&nested, o, "draft_vocab_size", 1, 1u << 24, &d->draft_vocab, err);
    return r < 0
               ? r
               : either_u32(&nested, o, "target_hidden_size", 1, 1u << 24, &d->target_hidden, err);
}

int drafter_hf_config(const struct js_obj *o, const struct model_config *target,
                      struct model_config *ret, struct drafter_config *ret_drafter,
                      struct error *err)
{
    struct model_config c = {.family = MODEL_QWEN3};
    struct drafter_config d = {0};
    int r = check_architecture(o, err);
    if (r >= 0)
        r = hf_architecture(o, &c, err);
    if (r >= 0 && c.n_layers > DRAFTER_MAX_LAYERS)
        return ERR(err, LIMIT, "%s: \"num_hidden_layers\" is %" PRIu32 ": a drafter has at most %u",
                   o->file, c.n_layers, DRAFTER_MAX_LAYERS);
    d.target_hidden = c.hidden;
    if (r >= 0)
        r = parse_drafting(o, target, c.n_layers, &d, err);
    if (r >= 0)
        r = drafter_config_check(&c, &d, target, o->file, err);
    if (r < 0)
        return r;
    c.tied = false; /* nothing of that kind is in these files */
    *ret = c;
    *ret_drafter = d;
    return 0;
}
