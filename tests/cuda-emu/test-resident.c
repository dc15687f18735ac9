/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stays on the device, on the emulated one: the target's taps reach the drafter's K/V there, with the
 * bits that they have by way of the host, and nothing of them is copied; and drafts are chosen there, those
 * that the host would choose.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/drafter.h"
#include "engine/engine_internal.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/cuda-emu/pair-util.h"
#include "tests/unit/draftergen.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

static void same_as_host(const size_t *chunks, size_t n_chunks)
{
    struct error err = {0};
    struct text kept = pair_text("emu", false), host = pair_text("emu", true),
                cpu = pair_text("cpu", true);
    ck_assert_ptr_nonnull(kept.e->drafter.taps);
    ck_assert_ptr_null(cpu.e->drafter.taps);
    struct text *all[3] = {&kept, &host, &cpu};
    const size_t vocab = kept.e->model->vocab_size, n = pair_block_floats(&kept);
    float *got[3], *logits = pair_floats(vocab);
    for (int k = 0; k < 3; k++) {
        got[k] = pair_floats(n);
        uint32_t at = 0;
        for (size_t i = 0; at < PAIR_N; i++) {
            uint32_t rows = (uint32_t)chunks[i % n_chunks];
            rows = rows < PAIR_N - at ? rows : PAIR_N - at;
            const struct emu_counts before = emu_counts_now();
            ck_ok(pair_feed(all[k], at, rows, i % 2 ? logits : NULL, &err), &err);
            ck_ok(pair_inject(all[k], at, rows, &err), &err);
            const uint64_t out = emu_counts_now().bytes_out - before.bytes_out;
            const uint64_t taps = rows * pair_row_floats(all[k]->e) * sizeof(float);
            const uint64_t wanted = i % 2 ? vocab * sizeof(float) : 0;
            ck_assert_uint_eq(out, k == 0 ? wanted : k == 1 ? wanted + taps : 0);
            at += rows;
        }
        pair_run_block(all[k], PAIR_N, got[k]);
    }
    test_floats_equal("taps that stay", got[0], got[1], n);
    test_floats_equal("taps on the device", got[0], got[2], n);
    for (int k = 0; k < 3; k++) {
        free(got[k]);
        pair_free(all[k]);
    }
    free(logits);
}

/* Fixed shapes, which are captured and replayed; a batch that is too large for a graph. */
START_TEST(taps_stay)
{
    static const size_t few[] = {7}, some[] = {1, 5, 64}, many[] = {PAIR_N};
    uint64_t before = emu_counts_now().replays;
    same_as_host(few, 1);
    ck_assert_uint_gt(emu_counts_now().replays, before);
    same_as_host(some, 3);
    same_as_host(many, 1);
}
END_TEST

/* Both kinds in one call would be read from the wrong memory. */
START_TEST(one_kind_only)
{
    struct error err = {0};
    struct text t = pair_text("emu", false);
    float *one = pair_floats(pair_row_floats(t.e));
    struct ctx_row rows[2] = {{.taps = t.e->taps, .pos = 0, .slot = seq_slot(t.s, 0)},
                              {.taps = one, .pos = 1, .slot = seq_slot(t.s, 1)}};
    ck_fails(drafter_inject(t.e->own_drafter, rows, 2, &err), INTERNAL, &err);
    seq_rows(t.s, 0, 2, t.e->rows);
    t.e->rows[0].taps = one;
    t.e->rows[1].taps = t.e->taps;
    struct fwd_batch b = {.n_rows = 2,
                          .rows = t.e->rows,
                          .tap_layers = t.e->drafter.tap_layers,
                          .n_taps = t.e->drafter.n_taps};
    ck_fails(t.e->space.backend->forward(t.e->space.model, &b, &err), INTERNAL, &err);
    free(one);
    pair_free(&t);
}
END_TEST

/* Without the drafter the memory is gone, and the target goes on. */
START_TEST(drafter_goes_first)
{
    struct error err = {0};
    struct text t = pair_text("emu", true);
    float *logits = pair_floats(t.e->model->vocab_size),
          *again = pair_floats(t.e->model->vocab_size);
    uint32_t layers[8]; /* the drafter's own go with it */
    ck_assert_uint_le(t.e->drafter.n_taps, 8);
    memcpy(layers, t.e->drafter.tap_layers, t.e->drafter.n_taps * sizeof(*layers));
    t.e->drafter.tap_layers = layers;
    ck_ok(pair_feed(&t, 0, 9, logits, &err), &err);
    t.e->own_drafter = drafter_free(t.e->own_drafter);
    ck_ok(pair_feed(&t, 0, 9, again, &err), &err);
    test_floats_equal("without a drafter", again, logits, t.e->model->vocab_size);
    free(logits);
    free(again);
    pair_free(&t);
}
END_TEST

/* Every call of a batch and of the injection behind it fails once: an error, and then the same bits. */
START_TEST(every_call_fails)
{
    struct error err = {0};
    setenv("DEDIT_CUDA_GRAPHS", "off", 1); /* which would make up for some */
    struct text want = pair_text("emu", false), t = pair_text("emu", false);
    const size_t n = pair_block_floats(&t);
    float *a = pair_floats(n), *b = pair_floats(n);
    ck_ok(pair_feed(&want, 0, 6, NULL, &err), &err);
    ck_ok(pair_inject(&want, 0, 6, &err), &err);
    pair_run_block(&want, 6, a);
    int r = -1;
    unsetenv("DEDIT_CUDA_GRAPHS");
    for (long i = 0; r < 0; i += EMU_FEWER(1, 3)) {
        err = (struct error){0};
        emu_fail(i, 999, false);
        r = pair_feed(&t, 0, 6, NULL, &err);
        r = r < 0 ? r : pair_inject(&t, 0, 6, &err);
        emu_fail(-1, 0, false);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", i, err.msg);
        ck_assert_int_lt(i, 500);
    }
    pair_run_block(&t, 6, b);
    test_floats_equal("after failures", b, a, n);
    free(a);
    free(b);
    pair_free(&t);
    pair_free(&want);
    ck_assert_uint_eq(emu_counts_now().blocks + emu_counts_now().pinned + emu_counts_now().graphs,
                      0);
}
END_TEST

/* ---- drafts ----------------------------------------------------------------------------------------- */

#define ROUNDS 5u
/* The last one draws its tokens (rule B). */
static const struct draft_round kinds[ROUNDS] = {
    {.method = DRAFT_DFLASH, .passes = 1},
    {.method = DRAFT_DEDIT, .passes = 3, .noise = true, .temperature = 0.7f},
    {.method = DRAFT_DDTREE, .passes = 2, .tree_budget = 15, .each_pass = true},
    {.method = DRAFT_DDTREE,
     .passes = 1,
     .tree_budget = PROPOSAL_MAX_NODES,
     .noise = true,
     .temperature = 1.3f},
    {.method = DRAFT_DEDIT, .passes = 2, .draw = true, .temperature = 1},
};

/* Takes both. */
static void drafted(struct text dev, struct text cpu)
{
    struct error err = {0};
    struct text *both[2] = {&dev, &cpu};
    struct rounds *got[2];
    for (int k = 0; k < 2; k++) {
        ck_ok(pair_feed(both[k], 0, 40, NULL, &err), &err);
        ck_ok(pair_inject(both[k], 0, 40, &err), &err);
        got[k] = pair_rounds(both[k], 40, kinds, ROUNDS);
        for (int i = 0; i < 3; i++)
            ck_ok(pair_pass(both[k], got[k], ROUNDS, &err), &err);
    }
    pair_rounds_same(&dev, got[0], got[1]);
    /* The tree of 127 nodes has other candidates than the one of 15, and more than one. */
    ck_assert_uint_eq(got[0]->proposals[2].n, 15);
    ck_assert_uint_gt(got[0]->proposals[3].n, 15);
    for (int k = 0; k < 2; k++) {
        pair_rounds_free(got[k]);
        pair_free(both[k]);
    }
}

/* A real drafter, and one that drafts 200 of its target's tokens, by ids of its own. */
START_TEST(drafts_are_the_same)
{
    drafted(pair_text("emu", true), pair_text("cpu", true));
    struct fixture f = fixture_random(21);
    struct gen_drafter g = gen_drafter_new(7);
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    f.n_layers = 6;
    g.d2t = "I64";
    g.draft_vocab = 200;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(&g, dir);
    const char *model = fixture_write(&f);
    drafted(pair_text_of("emu", model, dir, true), pair_text_of("cpu", model, dir, true));
    gen_drafter_remove(&g, dir);
}
END_TEST

/* 16 bytes a row, and candidates for rows of trees alone; where a round draws, its logits. */
START_TEST(logits_stay)
{
    struct error err = {0};
    struct text t = pair_text("emu", true);
    const size_t row = drafter_get_config(t.e->own_drafter)->draft_vocab * sizeof(float);
    ck_ok(pair_feed(&t, 0, 40, NULL, &err), &err);
    ck_ok(pair_inject(&t, 0, 40, &err), &err);
    for (int again = 0; again < 3; again++) { /* as launches, captured, replayed */
        struct rounds *a = pair_rounds(&t, 40, kinds, ROUNDS);
        const uint64_t before = emu_counts_now().bytes_out;
        ck_ok(pair_pass(&t, a, 2, &err), &err);
        ck_assert_uint_eq(emu_counts_now().bytes_out - before, (7 + 6) * 16);
        a->r[4].pass = 1; /* its last, which draws */
        const uint64_t half = emu_counts_now().bytes_out;
        ck_ok(pair_pass(&t, a, ROUNDS, &err), &err);
        /* Rows of the second to the last round: 6, 7 and 6 of trees, 7 that draw. */
        ck_assert_uint_eq(emu_counts_now().bytes_out - half,
                          (6 + 7 + 6 + 7) * 16 + (7 + 6) * DCU_MAX_TOP * 8 + 7 * row);
        pair_rounds_free(a);
    }
    ck_assert_uint_gt(emu_counts_now().replays, 0);
    pair_free(&t);
}
END_TEST

/* Every call of a pass fails once: an error, and then the same drafts. */
START_TEST(every_call_of_a_pass_fails)
{
    struct error err = {0};
    struct text t = pair_text("emu", true);
    ck_ok(pair_feed(&t, 0, 40, NULL, &err), &err);
    ck_ok(pair_inject(&t, 0, 40, &err), &err);
    struct rounds *want = pair_rounds(&t, 40, kinds, ROUNDS),
                  *a = pair_rounds(&t, 40, kinds, ROUNDS);
    for (int i = 0; i < 3; i++)
        ck_ok(pair_pass(&t, want, ROUNDS, &err), &err);
    setenv("DEDIT_CUDA_GRAPHS", "off", 1);
    int r = -1;
    for (long i = 0; r < 0; i += EMU_FEWER(1, 3)) {
        err = (struct error){0};
        emu_fail(i, 999, false);
        r = pair_pass(&t, a, ROUNDS, &err);
        emu_fail(-1, 0, false);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", i, err.msg);
        ck_assert_int_lt(i, 500);
    }
    unsetenv("DEDIT_CUDA_GRAPHS");
    for (int i = 0; i < 2; i++)
        ck_ok(pair_pass(&t, a, ROUNDS, &err), &err);
    pair_rounds_same(&t, a, want);
    pair_rounds_free(a);
    pair_rounds_free(want);
    pair_free(&t);
}
END_TEST

/* A round waits for each pass and for its verification; features and moves wait for nobody, unless two of
 * them come one behind the other. */
START_TEST(waits_of_a_round)
{
    struct error err = {0};
    struct text t = pair_text("emu", false), want = pair_text("emu", true);
    struct engine *e = t.e;
    const struct backend *b = e->space.backend;
    const size_t vocab = e->model->vocab_size;
    float *logits = pair_floats(vocab), *same = pair_floats(vocab);
    uint64_t at = emu_counts_now().waits;
    for (int again = 0; again < 3; again++) { /* as launches, captured, replayed */
        const uint32_t from = 12 * (uint32_t)again, to = from + 1;
        ck_ok(pair_feed(&t, from, 12, logits, &err), &err);
        ck_assert_uint_eq(pair_waits_since(&at), 1);
        ck_ok(pair_inject(&t, from, 12, &err), &err);
        ck_ok(b->kv_copy(e->space.model, &to, &from, 1, &err), &err);
        ck_assert_uint_eq(pair_waits_since(&at), 0);
        ck_ok(b->kv_copy(e->space.model, &from, &to, 1, &err), &err);
        ck_assert_uint_eq(pair_waits_since(&at), 1);
        struct rounds *a = pair_rounds(&t, from + 12, kinds, ROUNDS),
                      *o = pair_rounds(&want, from + 12, kinds, ROUNDS);
        ck_ok(pair_pass(&t, a, 1, &err), &err);
        ck_assert_uint_eq(pair_waits_since(&at), 1);
        ck_ok(pair_inject(&t, from, 6, &err), &err);
        ck_ok(pair_inject(&t, from + 6, 6, &err), &err);
        ck_assert_uint_eq(pair_waits_since(&at), 1);
        /* The same by way of the host, where all is waited for. */
        ck_ok(pair_feed(&want, from, 12, same, &err), &err);
        ck_ok(pair_inject(&want, from, 12, &err), &err);
        ck_ok(want.e->space.backend->kv_copy(want.e->space.model, &to, &from, 1, &err), &err);
        ck_ok(want.e->space.backend->kv_copy(want.e->space.model, &from, &to, 1, &err), &err);
        ck_ok(pair_pass(&want, o, 1, &err), &err);
        ck_assert_mem_eq(a->r[0].tokens[0], o->r[0].tokens[0], (PAIR_W - 1) * sizeof(uint32_t));
        test_floats_equal("confidence", a->r[0].confidence[0], o->r[0].confidence[0], PAIR_W - 1);
        test_floats_equal("logits", logits, same, vocab);
        pair_rounds_free(a);
        pair_rounds_free(o);
        at = emu_counts_now().waits;
    }
    free(logits);
    free(same);
    pair_free(&t);
    pair_free(&want);
}
END_TEST

/* A target drafts nothing. */
START_TEST(picks_of_a_target)
{
    struct error err = {0};
    struct text t = pair_text("emu", true);
    struct fwd_pick pick = {.row = 0};
    seq_rows(t.s, 0, 1, t.e->rows);
    struct fwd_batch b = {.n_rows = 1, .rows = t.e->rows, .picks = &pick, .n_picks = 1};
    ck_fails(t.e->space.backend->forward(t.e->space.model, &b, &err), INTERNAL, &err);
    pair_free(&t);
}
END_TEST

int main(void)
{
    emu_open_library();
    setenv("CUEMU_STREAMS", "1", 0); /* two models at once have nothing in common */

    Suite *s = suite_create("cuda-resident");
    TCase *t = test_case(s, "taps");
    tcase_add_test(t, taps_stay);
    tcase_add_test(t, one_kind_only);
    tcase_add_test(t, drafter_goes_first);
    tcase_add_test(t, every_call_fails);
    tcase_add_test(t, drafts_are_the_same);
    tcase_add_test(t, logits_stay);
    tcase_add_test(t, every_call_of_a_pass_fails);
    tcase_add_test(t, waits_of_a_round);
    tcase_add_test(t, picks_of_a_target);
    return test_main(s);
}
