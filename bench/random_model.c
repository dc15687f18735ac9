/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/random_model.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/drafter_file.h"
#include "engine/model_random.h"

static const struct shape {
    const char *name;
    struct model_config config;
} shapes[] = {
    {"smollm2-135m",
     {.family = MODEL_LLAMA,
      .n_layers = 30,
      .hidden = 576,
      .ffn = 1536,
      .n_heads = 9,
      .n_kv_heads = 3,
      .head_dim = 64,
      .vocab_size = 49152,
      .max_position = 8192,
      .rms_eps = 1e-5f,
      .tied = true,
      .rope_theta = 1e5}},
    {"tiny",
     {.family = MODEL_QWEN3,
      .n_layers = 2,
      .hidden = 256,
      .ffn = 512,
      .n_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 64,
      .vocab_size = 512,
      .max_position = 4096,
      .rms_eps = 1e-6f,
      .tied = false,
      .qk_norm = true,
      .rope_theta = 1e6}},
    {"qwen3-4b",
     {.family = MODEL_QWEN3,
      .n_layers = 36,
      .hidden = 2560,
      .ffn = 9728,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab_size = 151936,
      .max_position = 40960,
      .rms_eps = 1e-6f,
      .tied = true,
      .qk_norm = true,
      .rope_theta = 1e6}},
    {"qwen3-0.6b",
     {.family = MODEL_QWEN3,
      .n_layers = 28,
      .hidden = 1024,
      .ffn = 3072,
      .n_heads = 16,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab_size = 151936,
      .max_position = 40960,
      .rms_eps = 1e-6f,
      .tied = true,
      .qk_norm = true,
      .rope_theta = 1e6}},
};

int random_model_new(const char *shape, enum dk_type type, uint32_t n_layers,
                     struct model_file **ret, struct error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        if (strcmp(shapes[i].name, shape) != 0)
            continue;
        struct model_config c = shapes[i].config;
        char name[64];
        if (n_layers)
            c.n_layers = n_layers;
        (void)snprintf(name, sizeof(name), "random %s %s", shape, dk_type_info(type)->name);
        return model_file_random(name, &c, type, 1, ret, err);
    }
    return ERR(err, INVALID, "\"%s\" is not smollm2-135m, qwen3-0.6b, qwen3-4b or tiny", shape);
}

int random_drafter_new(const struct model_config *target, enum dk_type type, uint32_t n_layers,
                       uint32_t draft_vocab, struct model_file **ret, struct error *err)
{
    struct model_config c = *target;
    struct drafter_config d = {.block_size = 16,
                               .mask_token = target->vocab_size - 1,
                               .target_hidden = target->hidden,
                               .draft_vocab = draft_vocab ? draft_vocab : target->vocab_size,
                               .own_head = true};
    if (d.draft_vocab > target->vocab_size || n_layers == 0 || n_layers > DRAFTER_MAX_LAYERS)
        return ERR(err, INVALID, "a random drafter of %u layers with %u tokens", n_layers,
                   d.draft_vocab);
    _cleanup_free_ uint32_t *ids = mem_array(d.draft_vocab, sizeof(*ids));
    if (!ids)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < d.draft_vocab; i++)
        ids[i] = (uint32_t)((uint64_t)i * target->vocab_size / d.draft_vocab);
    if (draft_vocab)
        d.target_ids = ids;
    int r = drafter_default_taps(&d, n_layers, target->n_layers, "random drafter", err);
    if (r < 0)
        return r;
    c.family = MODEL_QWEN3;
    c.qk_norm = true;
    c.qkv_bias = c.tied = false;
    c.rope_pairing = DK_ROPE_HALVES;
    c.n_layers = n_layers;
    c.drafter = &d;
    return model_file_random("random drafter", &c, type, 2, ret, err);
}
