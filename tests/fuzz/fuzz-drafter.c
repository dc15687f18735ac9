/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafter files, for a target of 6 layers, hidden 16 and 32 tokens.  Input: "GGUF..." a file of that
 * form; else config.json, a NUL, model.safetensors.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "engine/drafter_file.h"

static void check_drafter(const struct model_file *f, const struct model_config *target)
{
    const struct model_config *c = model_file_config(f);
    const struct drafter_config *d = c->drafter;
    FUZZ_CHECK(d && c->n_layers <= DRAFTER_MAX_LAYERS && c->vocab_size == target->vocab_size);
    FUZZ_CHECK(d->block_size >= 2 && d->mask_token < target->vocab_size);
    FUZZ_CHECK(d->n_taps >= 1 && d->n_taps <= DRAFTER_MAX_TAPS);
    FUZZ_CHECK(d->target_hidden == target->hidden);
    for (uint32_t i = 0; i < d->n_taps; i++)
        FUZZ_CHECK(d->tap_layers[i] < target->n_layers &&
                   (i == 0 || d->tap_layers[i] > d->tap_layers[i - 1]));
    FUZZ_CHECK(d->draft_vocab >= 1 && d->draft_vocab <= c->vocab_size);
    FUZZ_CHECK(d->target_ids || d->draft_vocab == c->vocab_size);
    for (uint32_t i = 0; d->target_ids && i < d->draft_vocab; i++)
        FUZZ_CHECK(d->target_ids[i] < c->vocab_size);
    FUZZ_CHECK(!d->sliding || d->window >= d->block_size);
    const struct model_tensor *fc = model_file_tensor(f, MT_FC, 0);
    const struct model_tensor *head = model_file_tensor(f, MT_HEAD, 0);
    FUZZ_CHECK(fc && fc->dims[0] == c->hidden &&
               fc->dims[1] == (uint64_t)d->n_taps * target->hidden);
    FUZZ_CHECK(!head == !d->own_head && (!head || head->dims[0] == d->draft_vocab));
    FUZZ_CHECK(!model_file_tensor(f, MT_EMBED, 0) == !d->own_embed);
    FUZZ_CHECK(c->hidden == target->hidden || (d->own_embed && d->own_head));
    /* All that was promised to be there is readable. */
    unsigned sum = 0;
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (int r = l ? MT_ATTN_NORM : 0; r < MT_ROLE_COUNT; r++) {
            const struct model_tensor *t = model_file_tensor(f, (enum model_tensor_role)r, l);
            for (size_t i = 0; t && i < t->bytes; i += 61)
                sum += ((const uint8_t *)t->data)[i];
        }
    FUZZ_CHECK(sum < 1u << 30);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct model_config target = {
        .family = MODEL_QWEN3, .n_layers = 6, .hidden = 16, .vocab_size = 32};
    struct model_file *f = NULL;
    struct error err = {0};
    int r;
    if (size >= 4 && !memcmp(data, "GGUF", 4)) {
        r = drafter_parse_gguf(data, size, "drafter.gguf", &target, &f, &err);
    } else {
        const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
        size_t n = end ? (size_t)(end - data) : size, rest = end ? n + 1 : n;
        r = drafter_parse_hf((const char *)data, n, data + rest, size - rest, &target, &f, &err);
    }
    FUZZ_CHECK(r == 0 || (r == err.code && err.msg[0]));
    if (r == 0)
        check_drafter(f, &target);
    model_file_free(f);
    return 0;
}
