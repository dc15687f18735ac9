/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes that the emulated device runs one behind another: one wait for all of them, the drafts, confidences and
 * proposals that single passes on the CPU give, and the engine's statistics.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/drafter_internal.h"
#include "engine/engine_internal.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/cuda-emu/pair-util.h"
#include "tests/unit/draftergen.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define CONTEXT   40u /* positions before the blocks */
#define TREE_MOST 15u

static void give_context(struct text *t)
{
    struct error err = {0};
    ck_ok(pair_feed(t, 0, CONTEXT, NULL, &err), &err);
    ck_ok(pair_inject(t, 0, CONTEXT, &err), &err);
}

/* ---- rounds ------------------------------------------------------------------------------------------- */

static const struct draft_round edits[] = {{.method = DRAFT_DEDIT, .passes = 3},
                                           {.method = DRAFT_DEDIT,
                                            .passes = 3,
                                            .noise = true,
                                            .temperature = 0.7f,
                                            .visibility = DRAFT_CAUSAL},
                                           {.method = DRAFT_DDTREE,
                                            .passes = 3,
                                            .tree_budget = TREE_MOST,
                                            .noise = true,
                                            .temperature = 1.3f}};

/* Rounds of n kinds, on the device in n_calls calls of so many passes each, on the CPU in single ones.
 * Results of both, and what the device has brought of it. */
static uint64_t compare(struct text *dev, struct text *cpu, const struct draft_round *kinds,
                        uint32_t n, const uint32_t *calls, uint32_t n_calls)
{
    struct error err = {0};
    struct rounds *got = pair_rounds(dev, CONTEXT, kinds, n),
                  *want = pair_rounds(cpu, CONTEXT, kinds, n);
    const uint64_t before = emu_counts_now().bytes_out;
    uint64_t waits = emu_counts_now().waits;
    for (uint32_t i = 0; i < n_calls && !pair_rounds_done(got); i++) {
        uint32_t most = 0, first[PAIR_ROUNDS];
        for (uint32_t k = 0; k < n; k++)
            first[k] = got->r[k].pass;
        ck_ok(pair_pass(dev, got, n, &err), &err);
        ck_assert_uint_eq(pair_waits_since(&waits), 1);
        for (uint32_t k = 0; k < n; k++)
            if (got->r[k].pass - first[k] > most)
                most = got->r[k].pass - first[k];
        ck_assert_uint_le(most, calls[i]); /* fewer where all have settled */
        ck_assert(most == calls[i] || pair_rounds_done(got));
    }
    for (uint32_t i = 0; i < DRAFT_MAX_PASSES; i++)
        ck_ok(pair_pass(cpu, want, n, &err), &err);
    pair_rounds_same(dev, got, want);
    pair_rounds_free(got);
    pair_rounds_free(want);
    return emu_counts_now().bytes_out - before;
}

/* As launches, captured, replayed. */
static void compare_thrice(struct text *dev, struct text *cpu, const struct draft_round *kinds,
                           uint32_t n, const uint32_t *calls, uint32_t n_calls)
{
    const uint64_t bytes = compare(dev, cpu, kinds, n, calls, n_calls);
    for (int i = 0; i < EMU_FEWER(2, 1); i++) /* a capture is launched, too */
        ck_assert_uint_eq(compare(dev, cpu, kinds, n, calls, n_calls), bytes);
}

/* A pass for every edit of all, then those that have more; 16 bytes a row and pass, and candidates. */
static void edited(struct text *dev, struct text *cpu)
{
    give_context(dev);
    give_context(cpu);
    const uint64_t row = sizeof(struct dcu_picked), candidates = DCU_MAX_TOP * 8;
    ck_assert_uint_eq(compare(dev, cpu, edits, 1, (uint32_t[]){3}, 1), 3 * 7 * row);
    ck_assert_uint_eq(compare(dev, cpu, edits, 3, (uint32_t[]){3}, 1),
                      3 * (20 * row + 7 * candidates));
    compare_thrice(dev, cpu, edits, 3, (uint32_t[]){3}, 1);
    struct draft_round unlike[3] = {edits[0], edits[1], edits[2]};
    unlike[0].passes = 1;
    unlike[1].passes = 5;
    compare_thrice(dev, cpu, unlike, 3, (uint32_t[]){1, 2, 2}, 3);
    for (int i = 0; i < 3; i++)
        unlike[i].visibility = DRAFT_CAUSAL;
    compare_thrice(dev, cpu, unlike, 3, (uint32_t[]){1, 2, 2}, 3);
    ck_assert_uint_gt(emu_counts_now().replays, 0);
}

static void edited_by(const char *model, const char *drafter)
{
    struct text dev = pair_text_of("emu", model, drafter, true),
                cpu = pair_text_of("cpu", model, drafter, true);
    edited(&dev, &cpu);
    pair_free(&dev);
    pair_free(&cpu);
}

START_TEST(fitted)
{
    struct text dev = pair_text("emu", false), cpu = pair_text("cpu", true);
    edited(&dev, &cpu);
    pair_free(&dev);
    pair_free(&cpu);
}
END_TEST

/* Random weights: 200 of the target's tokens, by ids of its own; layers with a window, which ends inside
 * the block or before it, and whose rows see earlier ones only, or all of them. */
START_TEST(generated)
{
    struct fixture f = fixture_random(21);
    struct gen_drafter g = gen_drafter_new(7);
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    f.n_layers = 6;
    if (_i == 0) {
        g.d2t = "I64";
        g.draft_vocab = 200;
    } else {
        g.layers = 3;
        g.sliding = _i == 1 ? 1 : 2;
        g.window = _i == 1 ? 9 : 30;
    }
    if (_i == 2) {
        g.less = "dflash_config";
        g.more = ", \"dflash_config\": {\"mask_token_id\": 259, \"target_layer_ids\": [1, 2, 4], "
                 "\"causal\": false}";
    }
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(&g, dir);
    edited_by(fixture_write(&f), dir);
    gen_drafter_remove(&g, dir);
}
END_TEST

/* Tokens that repeat those of an earlier pass end a round, whatever the device has computed behind it. */
START_TEST(settled)
{
    struct error err = {0};
    struct text dev = pair_text("emu", false), cpu = pair_text("cpu", true);
    give_context(&dev);
    give_context(&cpu);
    struct draft_round kinds[3] = {edits[0], edits[0], edits[2]};
    for (int i = 0; i < 3; i++)
        kinds[i].passes = DRAFT_MAX_PASSES;
    kinds[1].visibility = DRAFT_CAUSAL;
    for (uint32_t n = 1; n <= 3; n += EMU_FEWER(1, 2))
        compare_thrice(&dev, &cpu, kinds, n, (uint32_t[]){DRAFT_MAX_PASSES}, 1);
    struct rounds *a = pair_rounds(&dev, CONTEXT, kinds, 3);
    ck_ok(pair_pass(&dev, a, 3, &err), &err);
    ck_assert(a->r[0].pass < DRAFT_MAX_PASSES || a->r[1].pass < DRAFT_MAX_PASSES);
    pair_rounds_free(a);
    pair_free(&dev);
    pair_free(&cpu);
}
END_TEST

/* The host's passes: the one that draws (rule B), and all of a round that it may end after each. */
START_TEST(of_the_host)
{
    struct text dev = pair_text("emu", false), cpu = pair_text("cpu", true);
    give_context(&dev);
    give_context(&cpu);
    struct draft_round kinds[2] = {edits[0], edits[0]};
    kinds[0].passes = kinds[1].passes = 4;
    kinds[0].draw = true;
    kinds[0].temperature = 1;
    const size_t row = drafter_get_config(dev.e->own_drafter)->draft_vocab * sizeof(float);
    const uint64_t bytes = compare(&dev, &cpu, kinds, 1, (uint32_t[]){3, 1}, 2);
    ck_assert_uint_eq(bytes, 3 * 7 * sizeof(struct dcu_picked) + 7 * row);
    kinds[0] = edits[0];
    kinds[0].each_pass = true;
    kinds[1].passes = 3;
    compare_thrice(&dev, &cpu, kinds, 2, (uint32_t[]){1, 1, 1}, 3);
    pair_free(&dev);
    pair_free(&cpu);
}
END_TEST

/* More rows than logits have room for, and than a graph takes. */
START_TEST(many_rows)
{
    struct text dev = pair_text("emu", false), cpu = pair_text("cpu", true);
    struct draft_round kinds[PAIR_ROUNDS];
    give_context(&dev);
    give_context(&cpu);
    for (uint32_t i = 0; i < PAIR_ROUNDS; i++)
        kinds[i] = edits[i % 3];
    compare(&dev, &cpu, kinds, PAIR_ROUNDS, (uint32_t[]){3}, 1);
    pair_free(&dev);
    pair_free(&cpu);
}
END_TEST

/* Every call fails once: an error, after which the round is where it was, and the same drafts. */
START_TEST(every_call_fails)
{
    struct error err = {0};
    struct text dev = pair_text("emu", false);
    give_context(&dev);
    struct rounds *want = pair_rounds(&dev, CONTEXT, edits, 3),
                  *a = pair_rounds(&dev, CONTEXT, edits, 3);
    ck_ok(pair_pass(&dev, want, 3, &err), &err);
    setenv("DEDIT_CUDA_GRAPHS", "off", 1);
    int r = -1;
    for (long i = 0; r < 0; i += EMU_FEWER(1, 3)) {
        err = (struct error){0};
        emu_fail(i, 999, false);
        r = pair_pass(&dev, a, 3, &err);
        emu_fail(-1, 0, false);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", i, err.msg);
        ck_assert_uint_eq(a->r[0].pass, r == 0 ? want->r[0].pass : 0);
        ck_assert_int_lt(i, 1000);
    }
    unsetenv("DEDIT_CUDA_GRAPHS");
    pair_rounds_same(&dev, a, want);
    pair_rounds_free(a);
    pair_rounds_free(want);
    pair_free(&dev);
}
END_TEST

/* Passes at once have nothing for the host in them. */
START_TEST(picks_only)
{
    struct error err = {0};
    struct text t = pair_text("emu", true);
    float *logits = pair_floats(drafter_get_config(t.e->own_drafter)->draft_vocab);
    struct fwd_pick picks[2] = {{.row = 0}};
    const struct fwd_next next[2] = {{.pick = UINT32_MAX, .n_vis = 1},
                                     {.pick = UINT32_MAX, .n_vis = 2}};
    seq_rows(t.s, 0, 2, t.e->rows);
    t.e->rows[1].logits = logits;
    struct fwd_batch b = {
        .n_rows = 2, .rows = t.e->rows, .picks = picks, .n_picks = 1, .n_passes = 2, .next = next};
    struct backend_model *m = t.e->own_drafter->model;
    ck_fails(t.e->space.backend->forward(m, &b, &err), INTERNAL, &err);
    t.e->rows[1].logits = NULL;
    ck_ok(t.e->space.backend->forward(m, &b, &err), &err);
    b.n_passes = DRAFT_MAX_PASSES + 1;
    ck_fails(t.e->space.backend->forward(m, &b, &err), INTERNAL, &err);
    free(logits);
    pair_free(&t);
}
END_TEST

/* ---- the engine ----------------------------------------------------------------------------------------- */

#define REQUESTS 3u

static struct engine *open_engine(const char *device)
{
    static char paths[2][512];
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = true;
    (void)snprintf(paths[0], sizeof(paths[0]), "%s", test_path("tests/golden/drafter/target"));
    (void)snprintf(paths[1], sizeof(paths[1]), "%s", test_path("tests/golden/drafter/fitted"));
    c.drafter = paths[1];
    return test_engine(paths[0], &c);
}

static void run(const char *device, const uint32_t *passes, uint32_t n, struct test_request *t,
                struct engine_stats *ret_stats, uint64_t *ret_waits)
{
    struct error err = {0};
    struct engine *e = open_engine(device);
    uint32_t prompts[REQUESTS][5];
    const uint64_t before = emu_counts_now().waits;
    memset(t, 0, n * sizeof(*t));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < 5; j++)
            prompts[i][j] = (i + j * 11) % 96;
        struct engine_request q = test_request_init(prompts[i], 5, EMU_FEWER(24, 14));
        q.sampling.ignore_eos = true;
        q.sampling.temperature = i == 1 ? 0.8f : 0;
        q.sampling.seed = 5;
        q.sampling.has_seed = true;
        q.drafting.method = DRAFT_DEDIT;
        q.drafting.window = 6;
        q.drafting.passes = passes[i];
        q.drafting.visibility = i == 2 ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL;
        ck_ok(test_submit(e, &q, &t[i], &err), &err);
    }
    test_run(e, NULL, 0);
    *ret_waits = emu_counts_now().waits - before;
    engine_get_stats(e, ret_stats);
    engine_free(e);
}

/* Tokens, and every number of a request's drafting that is no time; one wait for all passes of a round and for the
 * verification, where requests have as many. */
START_TEST(statistics)
{
    static const uint32_t passes[][REQUESTS] = {
        {3, 3, 3}, {1, 2, 4}, {8, 8, 3}, {3, 3, 3}, {8, 8, 8}};
    static struct test_request got[REQUESTS], want[REQUESTS];
    const uint32_t n = _i == 0 ? 1 : REQUESTS;
    struct engine_stats s, o;
    uint64_t waits, none;
    run("emu", passes[_i], n, got, &s, &waits);
    run("cpu", passes[_i], n, want, &o, &none);
    ck_assert_uint_eq(s.draft_steps, o.draft_steps);
    ck_assert_uint_eq(s.steps, o.steps);
    ck_assert_uint_eq(s.draft_rounds, o.draft_rounds);
    ck_assert_uint_gt(s.draft_steps, s.draft_rounds / n);
    for (uint32_t i = 0; i < n; i++) {
        struct engine_drafting *a = &got[i].usage.drafting, *b = &want[i].usage.drafting;
        test_same_output(&got[i], &want[i], "passes at once");
        a->draft_ns = b->draft_ns = a->verify_ns = b->verify_ns = 0;
        ck_assert_mem_eq(a, b, sizeof(*a));
        ck_assert_uint_ge(a->passes, a->rounds);
        test_request_done(&got[i]);
        test_request_done(&want[i]);
    }
    if (passes[_i][0] == passes[_i][2])
        ck_assert_uint_eq(waits, s.steps);
    else
        ck_assert_uint_gt(waits, s.steps);
    ck_assert_uint_eq(none, 0);
}
END_TEST

int main(void)
{
    emu_open_library();
    setenv("CUEMU_CHECK", "10", 0); /* test-resident looks at all accesses of the same kernels */

    Suite *s = suite_create("cuda-passes");
    TCase *t = test_case(s, "rounds");
    tcase_add_test(t, fitted);
    tcase_add_loop_test(t, generated, 0, 3);
    tcase_add_test(t, settled);
    tcase_add_test(t, of_the_host);
    tcase_add_test(t, many_rows);
    tcase_add_test(t, every_call_fails);
    tcase_add_test(t, picks_only);
    t = test_case(s, "engine");
    tcase_add_loop_test(t, statistics, 0, 5);
    return test_main(s);
}
