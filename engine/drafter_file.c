/* SPDX-License-Identifier: Apache-2.0 */
/* Drafter files: config.json of a DFlash folder, the rules of both forms, and opening either. */
#include "engine/drafter_file.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/hf_config.h"
#include "engine/model_file_internal.h"

#define DFLASH_ARCHITECTURE "DFlashDraftModel"
#define SUPPORTED           "supported: " DFLASH_ARCHITECTURE

static int missing(const struct js_obj *o, const char *key, struct error *err)
{
    return ERR(err, FORMAT, "%s: \"%s%s\" is missing", o->file, o->path, key);
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* round(x) with halves to even, for x = a / b >= 0 */
static int64_t round_half_even(int64_t a, int64_t b)
{
    int64_t q = a / b, twice = 2 * (a % b);
    return q + (twice > b || (twice == b && q % 2));
}

int drafter_default_taps(struct drafter_config *d, uint32_t n, uint32_t target_layers,
                         const char *file, struct error *err)
{
    d->n_taps = n;
    if (n == 1) {
        d->tap_layers[0] = target_layers / 2;
        return 0;
    }
    /* Evenly from layer 1 to layer T - 3. */
    if (target_layers < n + 3)
        return ERR(err, FORMAT,
                   "%s: \"target_layer_ids\" is missing, and %" PRIu32
                   " layers cannot be spread over the target's %" PRIu32,
                   file, n, target_layers);
    for (uint32_t i = 0; i < n; i++)
        d->tap_layers[i] =
            (uint32_t)round_half_even((int64_t)(n - 1) + (int64_t)i * (target_layers - 4), n - 1);
    return 0;
}

static int check_taps(const struct drafter_config *d, const struct model_config *target,
                      const char *file, struct error *err)
{
    for (uint32_t i = 0; i < d->n_taps; i++) {
        if (d->tap_layers[i] >= target->n_layers)
            return ERR(err, MISMATCH,
                       "%s: \"target_layer_ids\"[%" PRIu32 "] is %" PRIu32
                       ", the target has layers 0 to %" PRIu32,
                       file, i, d->tap_layers[i], target->n_layers - 1);
        if (i && d->tap_layers[i] <= d->tap_layers[i - 1])
            return ERR(err, UNSUPPORTED,
                       "%s: \"target_layer_ids\"[%" PRIu32 "]: %" PRIu32 " after %" PRIu32
                       "; layers must ascend",
                       file, i, d->tap_layers[i], d->tap_layers[i - 1]);
    }
    return 0;
}

int drafter_config_check(const struct model_config *c, const struct drafter_config *d,
                         const struct model_config *target, const char *file, struct error *err)
{
    if (c->n_layers > DRAFTER_MAX_LAYERS)
        return ERR(err, LIMIT, "%s: a drafter of %" PRIu32 " layers: at most %u", file, c->n_layers,
                   DRAFTER_MAX_LAYERS);
    if (c->vocab_size != target->vocab_size)
        return ERR(err, MISMATCH,
                   "%s: \"vocab_size\" is %" PRIu32 ", the target's embedding has %" PRIu32
                   " rows: a drafter of another model",
                   file, c->vocab_size, target->vocab_size);
    if (d->target_hidden != target->hidden)
        return ERR(err, MISMATCH,
                   "%s: it reads taps of %" PRIu32 " values, the target's layers give %" PRIu32
                   " (hidden_size): a drafter of another model",
                   file, d->target_hidden, target->hidden);
    if (d->mask_token >= target->vocab_size)
        return ERR(err, FORMAT,
                   "%s: \"mask_token_id\" is %" PRIu32 ", the embedding has rows 0 to %" PRIu32,
                   file, d->mask_token, target->vocab_size - 1);
    if (d->draft_vocab > c->vocab_size)
        return ERR(err, FORMAT, "%s: \"draft_vocab_size\" %" PRIu32 " exceeds vocab_size %" PRIu32,
                   file, d->draft_vocab, c->vocab_size);
    if (d->sliding && d->window < d->block_size)
        return ERR(err, UNSUPPORTED,
                   "%s: \"sliding_window\" of %" PRIu32 " positions: must hold a block of %" PRIu32,
                   file, d->window, d->block_size);
    return check_taps(d, target, file, err);
}

/* What the tensors decide: who else's matrices it borrows must fit. */
static int check_borrowed(const struct model_file *f, const struct model_config *target,
                          struct error *err)
{
    const struct drafter_config *d = &f->drafter;
    if (f->cfg.hidden == target->hidden || (d->own_embed && d->own_head))
        return 0;
    return ERR(err, MISMATCH,
               "%s: hidden_size is %" PRIu32 ", the target's is %" PRIu32
               ": without an embedding and a head of its own they must be equal",
               f->path, f->cfg.hidden, target->hidden);
}

/* ---- config.json ---------------------------------------------------------------------------- */

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
    if (strcmp(name, DFLASH_ARCHITECTURE) != 0 || json_array_size(archs) != 1)
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

/* ---- opening -------------------------------------------------------------------------------- */

static int open_hf(struct model_file *f, const struct model_config *target, struct error *err)
{
    _cleanup_free_ char *path = NULL, *text = NULL, *named = NULL;
    json_auto_t *root = NULL;
    size_t len;
    int r = hf_read_config(f, &path, &text, &len, err);
    if (r >= 0)
        r = js_parse_object(text, len, path, &root, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(root, path);
    r = drafter_hf_config(&o, target, &f->cfg, &f->drafter, err);
    if (r < 0)
        return r;
    f->cfg.drafter = &f->drafter;
    r = hf_take_name(f, err);
    if (r >= 0)
        r = hf_open_weights(f, &named, err);
    if (r >= 0)
        r = hf_list_tensors(f, named, err);
    return r < 0 ? r : check_borrowed(f, target, err);
}

int drafter_parse_hf(const char *config, size_t config_len, const void *data, size_t size,
                     const struct model_config *target, struct model_file **ret, struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    json_auto_t *root = NULL;
    int r = model_file_new("memory", &f, err);
    if (r >= 0)
        r = js_parse_object(config, config_len, "config.json", &root, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(root, "config.json");
    r = drafter_hf_config(&o, target, &f->cfg, &f->drafter, err);
    if (r < 0)
        return r;
    f->cfg.drafter = &f->drafter;
    f->shards = mem_calloc(1, sizeof(struct safetensors *));
    if (!f->shards)
        return ERR_NOMEM(err);
    r = safetensors_parse(data, size, "model.safetensors", &f->shards[0], err);
    if (r < 0)
        return r;
    f->n_shards = 1;
    r = hf_list_tensors(f, "model.safetensors", err);
    if (r >= 0)
        r = check_borrowed(f, target, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(f);
    return 0;
}

static int open_gguf(struct model_file *f, const struct model_config *target, struct error *err)
{
    f->cfg.drafter = &f->drafter;
    int r = drafter_gguf_config(f->gguf, target, &f->cfg, &f->drafter, err);
    if (r >= 0)
        r = gguf_take_name(f, err);
    if (r >= 0)
        r = gguf_list_tensors(f, err);
    return r < 0 ? r : check_borrowed(f, target, err);
}

int drafter_file_open(const char *path, const struct model_config *target, struct model_file **ret,
                      struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    struct stat st;
    int r = model_file_new(path, &f, err);
    if (r < 0)
        return r;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        r = open_hf(f, target, err);
    } else {
        r = gguf_open(path, &f->gguf, err);
        if (r >= 0)
            r = open_gguf(f, target, err);
    }
    if (r < 0)
        return r;
    *ret = TAKE_PTR(f);
    return 0;
}

int drafter_parse_gguf(const void *data, size_t size, const char *name,
                       const struct model_config *target, struct model_file **ret,
                       struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    int r = model_file_new(name, &f, err);
    if (r >= 0)
        r = gguf_parse(data, size, name, &f->gguf, err);
    if (r >= 0)
        r = open_gguf(f, target, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(f);
    return 0;
}
