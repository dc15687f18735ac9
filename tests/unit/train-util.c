/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/train-util.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/safetensors.h"
#include "tests/unit/util.h"

const float *train_oracle_get(const struct train_oracle *t, const char *prefix, const char *name,
                              size_t n)
{
    char full[128];
    size_t bytes;
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    const float *x = golden_get(&t->g, full, "F32", &bytes);
    ck_assert_msg(bytes == n * sizeof(float), "%s has %zu bytes, wanted %zu", full, bytes,
                  n * sizeof(float));
    return x;
}

static uint32_t *numbers(const json_t *a, uint32_t n)
{
    uint32_t *x = mem_array(n, sizeof(*x));
    ck_assert_ptr_nonnull(x);
    ck_assert_uint_eq(json_array_size(a), n);
    for (uint32_t i = 0; i < n; i++)
        x[i] = (uint32_t)json_integer_value(json_array_get(a, i));
    return x;
}

void train_oracle_weights(struct train_oracle *t)
{
    struct safetensors *s = NULL;
    struct error err = {0};
    ck_ok(safetensors_open(test_path("tests/golden/drafter/fitted/model.safetensors"), &s, &err),
          &err);
    for (uint32_t i = 0; i < t->m.layout.n; i++) {
        const struct train_tensor *x = &t->m.layout.t[i];
        const struct st_tensor *from = safetensors_find(s, x->name);
        ck_assert_msg(from && from->bytes == (size_t)x->rows * x->cols * sizeof(float), "%s",
                      x->name);
        memcpy(t->m.p + x->at, from->data, from->bytes);
    }
    safetensors_free(s);
}

void train_oracle_open(struct train_oracle *t, enum dk_tier tier, unsigned threads, bool bf16)
{
    struct error err = {0};
    json_error_t je;
    memset(t, 0, sizeof(*t));
    t->json = json_load_file(test_path("tests/golden/train/train.json"), 0, &je);
    ck_assert_msg(t->json != NULL, "%s", je.text);
    golden_open(&t->g, test_path("tests/golden/train/train.safetensors"));
    ck_ok(model_file_open(test_path("tests/golden/drafter/target"), &t->target, &err), &err);
    const struct model_config *c = model_file_config(t->target);
    struct train_shape s = {.layers = 2,
                            .hidden = 48,
                            .ffn = 96,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .n_taps = 3,
                            .tap_layers = {1, 2, 3},
                            .target_hidden = 48,
                            .target_layers = 5,
                            .window = 8,
                            .mask_token = 271,
                            .vocab = 272,
                            .draft_vocab = 272,
                            .max_position = 512,
                            .eps = 1e-6f,
                            .rope_theta = c->rope_theta};
    ck_ok(train_model_init(&t->m, &s, t->target, NULL, &err), &err);
    ck_ok(train_par_init(&t->par, tier, threads, bf16, &err), &err);
    train_oracle_weights(t);
    const json_t *seqs = json_object_get(t->json, "sequences");
    for (uint32_t i = 0; i < 2; i++) {
        const json_t *q = json_array_get(seqs, i);
        struct train_item *it = &t->items[i];
        char name[8];
        it->n = (uint32_t)json_array_size(json_object_get(q, "ids"));
        it->n_anchors = 6;
        it->ids = numbers(json_object_get(q, "ids"), it->n);
        it->anchors = numbers(json_object_get(q, "anchors"), 6);
        uint32_t *mask = numbers(json_object_get(q, "loss_mask"), it->n);
        uint8_t *bytes = mem_alloc(it->n);
        for (uint32_t k = 0; k < it->n; k++)
            bytes[k] = (uint8_t)mask[k];
        mem_free(mask);
        it->mask = bytes;
        snprintf(name, sizeof(name), "%u", i);
        it->taps = train_oracle_get(t, "taps.", name, (size_t)it->n * 144);
    }
    t->batch = (struct train_batch){.items = t->items, .n_items = 2};
    t->o = (struct train_objective){
        .edit = true, .mix = true, .eta = 0.5f, .gamma = 7.0f, .p2_weight = 1};
    ck_ok(train_work_init(&t->w, &t->m, &t->par, 2, 128, 12, 64, &err), &err);
    ck_ok(train_begin(&t->w, &t->batch, t->o.gamma, &err), &err);
}

void train_oracle_close(struct train_oracle *t)
{
    train_work_done(&t->w);
    train_par_done(&t->par);
    train_model_done(&t->m);
    model_file_free(t->target);
    golden_close(&t->g);
    json_decref(t->json);
    for (int i = 0; i < 2; i++) {
        mem_free((void *)(uintptr_t)t->items[i].ids);
        mem_free((void *)(uintptr_t)t->items[i].anchors);
        mem_free((void *)(uintptr_t)t->items[i].mask);
    }
}
