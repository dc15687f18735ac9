/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of a GGUF drafter, architecture "dflash". */
#include <inttypes.h>
#include <string.h>

#include "engine/model_file_internal.h"

#define ARCH DRAFTER_ARCH

static int missing(const struct gguf *g, const char *key, struct error *err)
{
    return ERR(err, FORMAT, "%s: key \"%s\" is missing", gguf_path(g), key);
}

static int check_arch(const struct gguf *g, struct error *err)
{
    struct gguf_str arch;
    bool shifted = false;
    int r = gguf_get_str(g, "general.architecture", &arch, err);
    if (r == 1)
        return missing(g, "general.architecture", err);
    if (r < 0)
        return r;
    if (arch.len != strlen(ARCH) || memcmp(arch.s, ARCH, arch.len) != 0)
        return ERR(err, UNSUPPORTED,
                   "%s: architecture \"%.*s\" is not a drafter that is read (supported: " ARCH ")",
                   gguf_path(g), (int)(arch.len < 64 ? arch.len : 64), arch.s);
    r = gguf_get_bool(g, ARCH ".sample_from_anchor", &shifted, err);
    if (r >= 0 && shifted)
        return ERR(err, UNSUPPORTED,
                   "%s: key \"" ARCH ".sample_from_anchor\": drafters whose rows predict the next "
                   "position are not supported",
                   gguf_path(g));
    return r < 0 ? r : 0;
}

/* The file counts the layers whose input is tapped, from 1: one more than the layer that gives it. */
static int parse_taps(const struct gguf *g, uint32_t n_layers, uint32_t target_layers,
                      struct drafter_config *d, struct error *err)
{
    static const char key[] = ARCH ".target_layers";
    uint64_t n = 0;
    const uint8_t *v = gguf_array_data(g, key, GGUF_I32, &n);
    if (!v)
        v = gguf_array_data(g, key, GGUF_U32, &n);
    if (!v) {
        /* Absent, or of another type: the second is an error. */
        int r = gguf_get_array(g, key, GGUF_I32, &n, err);
        return r < 0 ? r : drafter_default_taps(d, n_layers, target_layers, gguf_path(g), err);
    }
    if (n == 0 || n > DRAFTER_MAX_TAPS)
        return ERR(err, FORMAT, "%s: key \"%s\" has %" PRIu64 " entries, must have 1 to %u",
                   gguf_path(g), key, n, DRAFTER_MAX_TAPS);
    for (uint64_t i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, v + i * sizeof(id), sizeof(id));
        if (id < 1 || id > 65536)
            return ERR(err, FORMAT,
                       "%s: key \"%s\"[%" PRIu64 "] is %" PRId32 ", must be from 1 to 65536",
                       gguf_path(g), key, i, id);
        d->tap_layers[i] = (uint32_t)id - 1;
    }
    d->n_taps = (uint32_t)n;
    return 0;
}

static int parse_attention(const struct gguf *g, uint32_t n_layers, struct drafter_config *d,
                           struct error *err)
{
    static const char pattern[] = ARCH ".attention.sliding_window_pattern";
    bool causal = false;
    uint64_t n = 0;
    int r = gguf_get_bool(g, ARCH ".attention.causal", &causal, err);
    if (r < 0)
        return r;
    if (r == 0 && causal) /* false is what every such file says */
        d->causal = DRAFTER_CAUSAL;
    r = gguf_get_u32(g, ARCH ".attention.sliding_window", &d->window, err);
    if (r != 0 || d->window == 0)
        return r < 0 ? r : 0;
    const uint8_t *v = gguf_array_data(g, pattern, GGUF_BOOL, &n);
    if (!v)
        return missing(g, pattern, err);
    if (n != n_layers)
        return ERR(err, FORMAT, "%s: key \"%s\" has %" PRIu64 " entries, block_count is %" PRIu32,
                   gguf_path(g), pattern, n, n_layers);
    for (uint32_t i = 0; i < n_layers; i++)
        if (v[i])
            d->sliding |= (uint64_t)1 << i;
    return 0;
}

int drafter_gguf_config(const struct gguf *g, const struct model_config *target,
                        struct model_config *c, struct drafter_config *d, struct error *err)
{
    static const char mask[] = "tokenizer.ggml.mask_token_id", size[] = ARCH ".block_size";
    c->family = MODEL_QWEN3;
    int r = check_arch(g, err);
    if (r >= 0)
        r = gguf_architecture(g, ARCH, c, err);
    if (r < 0)
        return r;
    if (c->n_layers > DRAFTER_MAX_LAYERS)
        return ERR(err, LIMIT,
                   "%s: key \"" ARCH ".block_count\" is %" PRIu32 ": a drafter has at most %u",
                   gguf_path(g), c->n_layers, DRAFTER_MAX_LAYERS);
    c->tied = false;
    c->vocab_size = target->vocab_size;
    r = gguf_get_u32(g, ARCH ".vocab_size", &c->vocab_size, err);
    if (r < 0)
        return r;
    d->target_hidden = c->hidden;
    r = gguf_get_u32(g, ARCH ".target_hidden_size", &d->target_hidden, err);
    if (r < 0)
        return r;
    r = gguf_get_u32(g, size, &d->block_size, err);
    if (r == 1)
        return missing(g, size, err);
    if (r == 0 && (d->block_size < 2 || d->block_size > DRAFTER_MAX_BLOCK))
        return ERR(err, FORMAT, "%s: key \"%s\" is %" PRIu32 ", must be from 2 to %u", gguf_path(g),
                   size, d->block_size, DRAFTER_MAX_BLOCK);
    if (r == 0)
        r = gguf_get_u32(g, mask, &d->mask_token, err);
    if (r == 1)
        return missing(g, mask, err);
    if (r == 0)
        r = parse_taps(g, c->n_layers, target->n_layers, d, err);
    if (r == 0)
        r = parse_attention(g, c->n_layers, d, err);
    return r < 0 ? r : drafter_config_check(c, d, target, gguf_path(g), err);
}
