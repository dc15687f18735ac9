/* SPDX-License-Identifier: Apache-2.0 */
/* Drafter files: the rules of both forms, and opening either. */
#include "engine/drafter_file.h"
#include "base/strbuf.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/hf_config.h"
#include "engine/model_file_internal.h"

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

/* ---- opening -------------------------------------------------------------------------------- */

/* config.json and its path, the caller's to free. */
static int read_config(struct model_file *f, char **ret_path, json_t **ret, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = hf_read_config(f, ret_path, &text, &len, err);
    return r < 0 ? r : js_parse_object(text, len, *ret_path, ret, err);
}

static int open_hf(struct model_file *f, const struct model_config *target, struct error *err)
{
    _cleanup_free_ char *path = NULL, *named = NULL;
    json_auto_t *root = NULL;
    int r = read_config(f, &path, &root, err);
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

/* A folder that dedit-train fit writes to is no drafter. */
static int refuse_run(const char *folder, struct error *err)
{
    _cleanup_strbuf_ struct strbuf config = {0}, metrics = {0};
    if (strbuf_addf(&config, "%s/config.json", folder) < 0 ||
        strbuf_addf(&metrics, "%s/metrics.csv", folder) < 0)
        return ERR_NOMEM(err);
    if (access(config.s, F_OK) == 0 || access(metrics.s, F_OK) < 0)
        return 0;
    return ERR(err, FORMAT,
               "%s: is the folder of a training run; dedit-train export makes a drafter of it",
               folder);
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
        r = refuse_run(path, err);
        if (r == 0)
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

/* "architectures" of config.json, or what a GGUF file calls itself. */
static int says_drafter(struct model_file *f, bool folder, bool *ret, struct error *err)
{
    if (!folder) {
        struct gguf_str arch;
        int r = gguf_open(f->path, &f->gguf, err);
        if (r == 0)
            r = gguf_get_str(f->gguf, "general.architecture", &arch, err);
        *ret = r == 0 && arch.len == strlen(DRAFTER_ARCH) &&
               memcmp(arch.s, DRAFTER_ARCH, arch.len) == 0;
        return r < 0 ? r : 0;
    }
    _cleanup_free_ char *path = NULL;
    json_auto_t *root = NULL;
    int r = read_config(f, &path, &root, err);
    if (r < 0)
        return r;
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    *ret = name && strcmp(name, DRAFTER_HF_ARCHITECTURE) == 0;
    return 0;
}

int drafter_file_is(const char *path, bool *ret, struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    struct stat st;
    bool is = false;
    int r = model_file_new(path, &f, err);
    if (r >= 0)
        r = says_drafter(f, stat(path, &st) == 0 && S_ISDIR(st.st_mode), &is, err);
    if (r < 0)
        return r;
    *ret = is;
    return 0;
}

int drafter_beside(const char *model_path, char **ret, struct error *err)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    size_t n = strlen(model_path);
    struct stat st;
    *ret = NULL;
    while (n > 1 && model_path[n - 1] == '/')
        n--;
    if (n > 5 && memcmp(model_path + n - 5, ".gguf", 5) == 0)
        n -= 5;
    for (size_t i = 0; i < ARRAY_LEN(DRAFTER_ENDS); i++) {
        strbuf_clear(&b);
        if (strbuf_add(&b, model_path, n) < 0 || strbuf_adds(&b, DRAFTER_ENDS[i]) < 0)
            return ERR_NOMEM(err);
        if (stat(b.s, &st) == 0) {
            *ret = TAKE_PTR(b.s);
            return 0;
        }
    }
    return 0;
}
