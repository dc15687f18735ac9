/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend on the emulated device gives the CPU's bits where its class is the CPU's, and its own
 * bits whatever the batch elsewhere, from graphs as from launches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "engine/engine.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define N EMU_FEWER(60u, 22u)

static const char *models[16];
static unsigned n_models, n_half; /* the first n_half have 16-bit weights */
static const char *small;         /* one layer, for what needs many rows */

static void add_fixture(enum fixture_family family, enum fixture_dtype dtype, bool tied)
{
    struct fixture f = fixture_random(n_models);
    f.family = family;
    f.dtype = dtype;
    f.tied = tied;
    models[n_models++] = fixture_write(&f);
}

static void add_golden(const char *name)
{
    static char paths[16][512];
    (void)snprintf(paths[n_models], sizeof(paths[0]), "%s", test_path(name));
    models[n_models] = paths[n_models];
    n_models++;
}

static struct engine *open_on(const char *path, const char *device, bool exact)
{
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = exact;
    return test_engine(path, &c);
}

/* Logits and taps of a text, fed in chunks. */
struct text {
    float *logits, *taps;
    size_t n_logits, n_taps;
};

static struct text feed(struct engine *e, size_t n, size_t chunk)
{
    const struct model_config *m = engine_model_config(e);
    uint32_t tokens[N], layers[64];
    struct text t = {.n_logits = n * m->vocab_size, .n_taps = n * m->n_layers * m->hidden};
    t.logits = emu_floats(t.n_logits);
    t.taps = emu_floats(t.n_taps);
    test_tokens(7, m->vocab_size, tokens, n);
    for (uint32_t i = 0; i < m->n_layers; i++)
        layers[i] = i;
    struct seq *s = emu_new_seq(e);
    test_feed(e, s, tokens, n, chunk, t.logits, layers, m->n_layers, t.taps);
    engine_seq_free(e, s);
    return t;
}

static void text_free(struct text *t)
{
    free(t->logits);
    free(t->taps);
}

static void same(const char *what, const struct text *got, const struct text *want)
{
    test_floats_equal(what, got->taps, want->taps, got->n_taps);
    test_floats_equal(what, got->logits, want->logits, got->n_logits);
}

START_TEST(same_bits_as_cpu)
{
    struct engine *cpu = open_on(models[_i], "cpu", true), *emu = open_on(models[_i], "emu", true);
    ck_assert_str_eq(engine_device(emu), "cuda");
    ck_assert_str_eq(engine_class(emu), "exact, kv f32");
    struct text want = feed(cpu, N, N);
    static const size_t chunks[] = {N, 7};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
        struct text got = feed(emu, N, chunks[i]);
        same(models[_i], &got, &want);
        text_free(&got);
    }
    text_free(&want);
    want = feed(cpu, 20, 20);
    struct text got = feed(emu, 20, 1);
    same(models[_i], &got, &want);
    text_free(&got);
    text_free(&want);
    engine_free(cpu);
    engine_free(emu);
}
END_TEST

START_TEST(tensor_cores)
{
    struct engine *cpu = open_on(models[_i], "cpu", true), *emu = open_on(models[_i], "emu", false);
    ck_assert_str_eq(engine_class(emu), "cuda-mma, kv f32");
    struct text want = feed(emu, N, N), near = feed(cpu, N, N);
    struct text got = feed(emu, N, 7);
    same(models[_i], &got, &want);
    test_floats_close(models[_i], want.logits, near.logits, want.n_logits, 1e-3, 1e-3);
    text_free(&got);
    text_free(&want);
    text_free(&near);
    want = feed(emu, 20, 20);
    got = feed(emu, 20, 1);
    same(models[_i], &got, &want);
    text_free(&got);
    text_free(&want);
    engine_free(cpu);
    engine_free(emu);
}
END_TEST

/* A tree behind some positions, then one of its paths kept, then a plain token. */
static struct text grow(struct engine *e)
{
    static const int32_t parent[] = {-1, 0, 0, 1, 1, 2, -1, 6, 3, 8, 9, 7};
    static const uint32_t path[] = {0, 1, 3, 8, 9};
    const struct model_config *m = engine_model_config(e);
    const uint32_t n = sizeof(parent) / sizeof(*parent), before = EMU_FEWER(37, 18);
    struct error err = {0};
    uint32_t tokens[64];
    struct text t = {.n_logits = (size_t)(n + 1) * m->vocab_size};
    t.logits = emu_floats(t.n_logits);
    test_tokens(11, m->vocab_size, tokens, 64);
    struct seq *s = emu_new_seq(e);
    test_feed(e, s, tokens, before, before, NULL, NULL, 0, NULL);
    ck_ok(engine_feed_tree(e, s, tokens + 37, parent, n, t.logits, NULL, 0, NULL, &err), &err);
    ck_ok(engine_keep(e, s, path, 5, &err), &err);
    test_feed(e, s, tokens + 60, 1, 1, t.logits + (size_t)n * m->vocab_size, NULL, 0, NULL);
    engine_seq_free(e, s);
    return t;
}

START_TEST(trees)
{
    struct engine *cpu = open_on(models[_i], "cpu", true), *emu = open_on(models[_i], "emu", true);
    struct text want = grow(cpu), got = grow(emu);
    test_floats_equal(models[_i], got.logits, want.logits, want.n_logits);
    text_free(&got);
    text_free(&want);
    engine_free(cpu);
    engine_free(emu);
}
END_TEST

/* ---- requests ------------------------------------------------------------------------------------------ */

/* A drafted request on the device gives what plain decoding on the CPU gives, greedy and sampled. */
static void generate(struct engine *e, enum draft_method m, bool sampled, struct test_request *t)
{
    uint32_t prompt[21];
    for (uint32_t i = 0; i < 21; i++)
        prompt[i] = i * 11 % 96; /* the words of the fitted pair */
    struct engine_request q = test_request_init(prompt, 21, EMU_FEWER(14, 7));
    q.sampling.ignore_eos = true;
    if (sampled) {
        q.sampling.temperature = 0.8f;
        q.sampling.top_p = 0.9f;
        q.sampling.seed = 5;
        q.sampling.has_seed = true;
        q.sampling.repetition_penalty = 1.1f;
    }
    q.drafting.method = m;
    test_generate(e, &q, t);
}

START_TEST(requests)
{
    static const enum draft_method methods[] = {DRAFT_AR, DRAFT_NGRAM, DRAFT_DFLASH, DRAFT_DEDIT,
                                                DRAFT_DDTREE};
    static struct test_request want, got;
    struct engine_config c = test_engine_config();
    c.device = NULL;
    struct engine *cpu = test_engine(test_path("tests/golden/drafter/target"), &c);
    c.device = "emu";
    c.exact = true;
    c.drafter = test_path("tests/golden/drafter/fitted");
    struct engine *emu = test_engine(test_path("tests/golden/drafter/target"), &c);
    uint64_t before = emu_replays();
    for (int sampled = 0; sampled < 2; sampled++) {
        generate(cpu, DRAFT_AR, sampled, &want);
        for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++) {
            generate(emu, methods[i], sampled, &got);
            test_same_output(&got, &want, draft_method_name(methods[i]));
            ck_assert(methods[i] < DRAFT_DFLASH || got.usage.drafting.accepted > 0);
            test_request_done(&got);
        }
        test_request_done(&want);
    }
    ck_assert_uint_gt(emu_replays(), before);
    test_engine_idle(emu);
    engine_free(cpu);
    engine_free(emu);
}
END_TEST

/* ---- graphs -------------------------------------------------------------------------------------------- */

/* Texts in chunks of 1 ... 7 rows, with taps, across buckets of positions and after blocks were reused. */
START_TEST(graphs_same_bits)
{
    struct engine *with = emu_open(models[_i], true, 512),
                  *without = emu_open(models[_i], false, 512);
    static const size_t chunks[] = {1, 3, 7, 1}, n = EMU_FEWER(30, 8);
    for (size_t i = 0; i < EMU_FEWER(sizeof(chunks) / sizeof(*chunks), 2); i++) {
        uint64_t before = emu_replays();
        struct text want = feed(without, n, chunks[i]);
        ck_assert_uint_eq(emu_replays(), before);
        struct text got = feed(with, n, chunks[i]);
        ck_assert_uint_gt(emu_replays(), before);
        same(models[_i], &got, &want);
        text_free(&got);
        text_free(&want);
    }
    struct text want = grow(without), first = grow(with), again = grow(with);
    test_floats_equal("a tree", first.logits, want.logits, want.n_logits);
    test_floats_equal("a tree from graphs", again.logits, want.logits, want.n_logits);
    text_free(&want);
    text_free(&first);
    text_free(&again);
    engine_free(with);
    engine_free(without);
    emu_nothing_left("graphs", 0);
}
END_TEST

/* Ever new shapes, each fed twice: rows, those with logits, with taps or without.  As many graphs as fit
 * stay, and no more. */
START_TEST(graphs_bounded)
{
    enum { ROWS = 5 };
    struct engine *e = emu_open(small, true, 512);
    const struct model_config *m = engine_model_config(e);
    const uint32_t layer = 0;
    struct error err = {0};
    uint32_t tokens[ROWS], shapes = 0;
    float *logits = emu_floats((size_t)ROWS * m->vocab_size),
          *taps = emu_floats((size_t)ROWS * m->hidden);
    struct emu_counts c;
    uint64_t most = 0;
    test_tokens(9, m->vocab_size, tokens, ROWS);
    for (uint32_t n = 1; n <= ROWS; n++)
        for (uint32_t k = 1; k < 2 * n + 2; k++, shapes++) {
            for (int i = 0; i < 2; i++) {
                struct seq *s = emu_new_seq(e);
                struct engine_feed f = {.seq = s,
                                        .tokens = tokens,
                                        .n = n,
                                        .logits = logits,
                                        .n_logits = k / 2,
                                        .taps = k % 2 ? taps : NULL};
                ck_ok(engine_feed(e, &f, 1, &layer, k % 2, &err), &err);
                engine_seq_free(e, s);
            }
            c = emu_counts_now();
            most = c.graphs > most ? c.graphs : most;
        }
    ck_assert_uint_gt(shapes, 32);
    ck_assert_uint_eq(most, 32);
    ck_assert_uint_eq(c.graphs, 32);
    engine_free(e);
    emu_nothing_left("graphs", 0);
    free(logits);
    free(taps);
}
END_TEST

/* Steps on both sides of a bucket's end, each of them captured before the last one. */
START_TEST(graphs_context)
{
    enum { LONGEST = 520 };
    static const uint32_t prefix[] = {505, 508, 511, 30, 505, LONGEST};
    struct engine *e[2] = {emu_open(small, false, 2048), emu_open(small, true, 2048)};
    const size_t vocab = engine_model_config(e[0])->vocab_size;
    struct error err = {0};
    uint32_t tokens[LONGEST + 2];
    float *logits[2] = {emu_floats(vocab), emu_floats(vocab)};
    struct seq *all[2];
    test_tokens(9, (uint32_t)vocab, tokens, LONGEST + 2);
    for (int k = 0; k < 2; k++) {
        all[k] = emu_new_seq(e[k]);
        test_feed(e[k], all[k], tokens, LONGEST, 100, NULL, NULL, 0, NULL);
    }
    uint64_t before = emu_replays();
    for (size_t i = 0; i < sizeof(prefix) / sizeof(*prefix); i++) {
        for (int k = 0; k < 2; k++) {
            struct seq *s = NULL;
            ck_ok(engine_seq_fork(e[k], all[k], &s, &err), &err);
            engine_seq_truncate(e[k], s, prefix[i]);
            struct engine_feed f = {
                .seq = s, .tokens = tokens + prefix[i], .n = 2, .logits = logits[k], .n_logits = 1};
            ck_ok(engine_feed(e[k], &f, 1, NULL, 0, &err), &err);
            engine_seq_free(e[k], s);
        }
        test_floats_equal("a step", logits[1], logits[0], vocab);
    }
    ck_assert_uint_gt(emu_replays(), before);
    for (int k = 0; k < 2; k++) {
        engine_seq_free(e[k], all[k]);
        engine_free(e[k]);
        free(logits[k]);
    }
}
END_TEST

START_TEST(names)
{
    struct error err = {0};
    static const char *const good[] = {"auto", "cpu", "cuda", "cuda:0", "cuda:63", "emu"};
    static const char *const bad[] = {"", "gpu", "cuda:", "cuda:64", "cuda:-1", "cuda:1x", "cuda0"};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        ck_ok(device_check(good[i], &err), &err);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_fails(device_check(bad[i], &err), INVALID, &err);
    struct engine_config c = test_engine_config();
    struct engine *e = NULL;
    c.device = "cuda:7";
    setenv("DEDIT_CUDA_LIBRARY", getenv("DEDIT_CUDA_EMU"), 1);
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), NOT_FOUND, &err);
    ck_assert_msg(strstr(err.msg, "there is 1 CUDA device"), "%s", err.msg);
    setenv("DEDIT_CUDA_LIBRARY", "/nonexistent/libdedit-cuda.so", 1);
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), NOT_FOUND, &err);
    c.device = "auto";
    ck_ok(engine_new(models[0], &c, NULL, NULL, &e, &err), &err);
    ck_assert_msg(strstr(engine_device_note(e), "nonexistent"), "%s", engine_device_note(e));
    engine_free(e);
}
END_TEST

int main(void)
{
    emu_open_library();
    add_fixture(FIXTURE_LLAMA, FIXTURE_BF16, true);
    add_fixture(FIXTURE_QWEN2, FIXTURE_F16, false);
    n_half = n_models;
    add_fixture(FIXTURE_QWEN3, FIXTURE_F32, false);
    struct fixture f = fixture_random(77);
    f.n_layers = 1;
    f.hidden = f.ffn = 32;
    f.n_heads = 2;
    f.n_kv_heads = 1;
    f.head_dim = 16;
    f.vocab = 320;
    small = fixture_write(&f);
    add_golden("tests/golden/models/b_llama_rope3");
    add_golden("tests/golden/models/e_odd");
    add_golden("tests/golden/gguf/a_llama_tied.Q4_0.gguf");
    add_golden("tests/golden/gguf/a_llama_tied.Q5_1.gguf");
    add_golden("tests/golden/gguf/c_qwen2.Q8_0.gguf");
    add_golden("tests/golden/gguf/d_qwen3.Q4_1.gguf");
    add_golden("tests/golden/gguf/k_qwen3.MIX.gguf");

    Suite *s = suite_create("cuda-backend");
    TCase *t = test_case(s, "bits");
    tcase_add_loop_test(t, same_bits_as_cpu, 0, (int)n_models);
    tcase_add_loop_test(t, trees, 0, (int)n_models);
    tcase_add_loop_test(t, tensor_cores, 0, (int)n_half);
    t = test_case(s, "graphs");
    tcase_add_loop_test(t, graphs_same_bits, 0, (int)n_models);
    t = test_case(s, "shapes");
    tcase_add_test(t, graphs_bounded);
    tcase_add_test(t, graphs_context);
    t = test_case(s, "requests");
    tcase_add_test(t, requests);
    t = test_case(s, "names");
    tcase_add_test(t, names);
    return test_main(s);
}
