/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training and inference compute the same drafter: logits of both passes of a training step against
 * the engine's drafter for the same blocks, at starts and ends of sequences and where blocks overlap.
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/backend_cpu.h"
#include "engine/drafter_internal.h"
#include "tests/unit/train-util.h"
#include "tests/unit/util.h"

#define W       8u
#define BLOCKS  12u
#define SLOTS   16u
#define VOCAB   272u
#define CONTEXT 64u

static const enum dk_tier tiers[] = {DK_TIER_C, DK_TIER_AVX2, DK_TIER_AVX512};

/* The engine's logits of rows 1.. of one block, after its context. */
static void engine_block(struct drafter *d, const struct train_oracle *t, uint32_t block,
                         bool causal, float *logits)
{
    const struct train_block *b = &t->w.blocks[block];
    const struct train_item *it = &t->items[b->item];
    uint32_t blocks[CONTEXT / 16];
    struct ctx_row rows[CONTEXT];
    struct error err = {0};
    for (uint32_t i = 0; i < ARRAY_LEN(blocks); i++)
        blocks[i] = (i * 5 + 3) % SLOTS;
    for (uint32_t p = 0; p < b->anchor; p++)
        rows[p] = (struct ctx_row){
            .taps = it->taps + (size_t)p * 144, .pos = p, .slot = blocks[p / 16] * 16 + p % 16};
    ck_ok(drafter_inject(d, rows, b->anchor, &err), &err);
    const struct drafter_block run = {.tokens = t->w.tokens + (size_t)block * W,
                                      .n = W,
                                      .start = b->anchor,
                                      .blocks = blocks,
                                      .causal = causal,
                                      .first = 1,
                                      .logits = logits};
    ck_ok(drafter_run(d, &run, 1, &err), &err);
}

static void compare(struct drafter *d, struct train_oracle *t, unsigned pass, bool causal)
{
    float *z = mem_array((size_t)BLOCKS * (W - 1), VOCAB * sizeof(float));
    float *want = mem_array(W - 1, VOCAB * sizeof(float));
    train_head(&t->w, pass, 0, 0, z);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        engine_block(d, t, b, causal, want);
        /* Two F32 programs with sums in other orders: far below what the wrong anchor row, position
         * or mask would change. */
        test_floats_close("logits", z + (size_t)b * (W - 1) * VOCAB, want, (size_t)(W - 1) * VOCAB,
                          2e-4, 2e-4);
    }
    mem_free(z);
    mem_free(want);
}

static void run(enum dk_tier tier, const uint32_t *anchors)
{
    struct train_oracle t;
    struct backend_model *model = NULL;
    struct drafter *d = NULL;
    struct error err = {0};
    const struct backend_options o = {.n_threads = 1,
                                      .tier = tier,
                                      .exact = true,
                                      .kv_type = DK_KV_F32,
                                      .n_kv_blocks = SLOTS,
                                      .max_rows = 128,
                                      .max_context = 512};
    if (!dk_train_ops(tier))
        TEST_SKIP_HARDWARE("no %s", dk_tier_name(tier));
    train_oracle_open(&t, tier, 2, false);
    if (anchors) {
        for (int i = 0; i < 2; i++) {
            mem_free((void *)(uintptr_t)t.items[i].anchors);
            t.items[i].anchors = anchors;
        }
        ck_ok(train_begin(&t.w, &t.batch, 7, &err), &err);
    }
    ck_ok(backend_cpu.load(t.target, &o, NULL, NULL, &model, &err), &err);
    ck_ok(drafter_new(test_path("tests/golden/drafter/fitted"), &backend_cpu, model, t.target, &o,
                      BACKEND_DTYPE_F32, &d, &err),
          &err);
    train_context(&t.w);
    train_mask_blocks(&t.w);
    train_blocks(&t.w, false);
    compare(d, &t, 0, false);
    train_proposal_mix(&t.w, 0.5f, true);
    train_blocks(&t.w, false);
    compare(d, &t, 1, false);
    train_blocks(&t.w, true);
    compare(d, &t, 1, true);
    drafter_free(d);
    backend_cpu.free(model);
    if (anchors)
        t.items[0].anchors = t.items[1].anchors = NULL;
    train_oracle_close(&t);
}

START_TEST(test_agree)
{
    run(tiers[_i], NULL);
}
END_TEST

/* The first position (no context at all), neighbours, the last one (a block that is past the end). */
START_TEST(test_edges)
{
    static const uint32_t anchors[6] = {0, 1, 2, 15, 16, 32};
    run(dk_tier_best() > DK_TIER_AVX512 ? DK_TIER_AVX512 : dk_tier_best(), anchors);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-agree");
    TCase *c = test_case(s, "engine");
    tcase_add_loop_test(c, test_agree, 0, ARRAY_LEN(tiers));
    tcase_add_test(c, test_edges);
    return test_main(s);
}
