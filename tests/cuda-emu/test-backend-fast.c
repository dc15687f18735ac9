/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `exactness = fast` on the emulated device: float products go through cuBLASLt, in a class that says so;
 * results are near the CPU's and repeat, as launches and as graphs; what fails is an error and leaves
 * nothing; without the library a device that was named refuses, and one that was found computes strictly.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define N EMU_FEWER(60u, 36u)

static const char *models[3]; /* BF16, F16, F32 */
/* Largest distance from the CPU, as a share of the logits, both root mean squares.  The rounding of
 * activations in each of some 20 products comes to this through random layers; kernels have exact bounds. */
static const double near[] = {0.025, 0.0026, 1.5e-6};

static struct engine_config fast_config(void)
{
    struct engine_config c = test_engine_config();
    c.device = "emu";
    c.fast = true;
    c.max_num_batched_tokens = 70; /* sizes of products: 1, 2, 4 ... 64, 70 */
    return c;
}

/* Logits of N tokens, fed in chunks. */
static float *feed(struct engine *e, size_t chunk)
{
    const struct model_config *m = engine_model_config(e);
    struct error err = {0};
    uint32_t tokens[N];
    float *logits = emu_floats((size_t)N * m->vocab_size);
    struct seq *s = NULL;
    test_tokens(7, m->vocab_size, tokens, N);
    ck_ok(engine_seq_new(e, &s, &err), &err);
    test_feed(e, s, tokens, N, chunk, logits, NULL, 0, NULL);
    engine_seq_free(e, s);
    return logits;
}

static void close_to(const char *what, const float *got, const float *want, size_t n, double share)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        off += d * d;
        size += (double)want[i] * (double)want[i];
    }
    ck_assert_msg(off <= share * share * size, "%s: off by %g of the logits", what,
                  sqrt(off / size));
}

START_TEST(near_the_cpu)
{
    struct engine_config c = test_engine_config();
    c.exact = true;
    struct engine *cpu = test_engine(models[_i], &c);
    c = fast_config();
    struct engine *emu = test_engine(models[_i], &c);
    const size_t n = (size_t)N * engine_model_config(cpu)->vocab_size;
    ck_assert_str_eq(engine_class(emu), "cuda-fast, kv f32");
    ck_assert_ptr_null(engine_device_note(emu));
    ck_assert_uint_gt(emu_counts_now().blas, 0);
    float *want = feed(cpu, N);
    static const size_t chunks[] = {N, 7, 1};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
        float *got = feed(emu, chunks[i]), *again = feed(emu, chunks[i]);
        close_to(models[_i], got, want, n, near[_i]);
        test_floats_equal("again", again, got, n);
        free(got);
        free(again);
    }
    free(want);
    engine_free(cpu);
    engine_free(emu);
    emu_nothing_left("fast", 0);
}
END_TEST

START_TEST(graphs_same_bits)
{
    struct engine_config c = fast_config();
    setenv("DEDIT_CUDA_GRAPHS", "off", 1);
    struct engine *without = test_engine(models[_i], &c);
    setenv("DEDIT_CUDA_GRAPHS", "on", 1);
    struct engine *with = test_engine(models[_i], &c);
    const size_t n = (size_t)N * engine_model_config(with)->vocab_size;
    static const size_t chunks[] = {1, 3, 17};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
        struct emu_counts before, after;
        float *want = feed(without, chunks[i]);
        before = emu_counts_now();
        float *got = feed(with, chunks[i]);
        after = emu_counts_now();
        ck_assert_uint_gt(after.replays, before.replays);
        test_floats_equal(models[_i], got, want, n);
        free(want);
        free(got);
    }
    engine_free(with);
    engine_free(without);
    emu_nothing_left("fast", 0);
}
END_TEST

/* A drafter takes part, with its target's head: the same run gives the same tokens. */
static const enum draft_method methods[] = {DRAFT_AR, DRAFT_DFLASH, DRAFT_DEDIT, DRAFT_DDTREE};

START_TEST(requests)
{
    static struct test_request first, again;
    struct engine_config c = fast_config();
    c.drafter = test_path("tests/golden/drafter/fitted");
    c.max_num_batched_tokens = 36;
    struct engine *e = test_engine(test_path("tests/golden/drafter/target"), &c);
    uint32_t prompt[21];
    for (uint32_t i = 0; i < 21; i++)
        prompt[i] = i * 11 % 96; /* the words of the fitted pair */
    ck_assert_str_eq(engine_class(e), "cuda-fast, kv f32");
    struct engine_request q = test_request_init(prompt, 21, 14);
    q.sampling.ignore_eos = true;
    q.sampling.temperature = _i % 2 ? 0.8f : 0.0f;
    q.sampling.seed = 5;
    q.sampling.has_seed = true;
    q.drafting.method = methods[_i];
    test_generate(e, &q, &first);
    test_generate(e, &q, &again);
    test_same_output(&again, &first, draft_method_name(methods[_i]));
    ck_assert(methods[_i] == DRAFT_AR || first.usage.drafting.accepted > 0);
    test_request_done(&first);
    test_request_done(&again);
    test_engine_idle(e);
    engine_free(e);
    emu_nothing_left("fast", 0);
}
END_TEST

/* Block types have kernels of their own in both classes: the CPU's bits. */
START_TEST(block_types)
{
    const char *path = test_path("tests/golden/gguf/c_qwen2.Q8_0.gguf");
    struct engine_config c = test_engine_config();
    struct engine *cpu = test_engine(path, &c);
    c = fast_config();
    struct engine *emu = test_engine(path, &c);
    float *want = feed(cpu, N), *got = feed(emu, 9);
    ck_assert_str_eq(engine_class(emu), "exact, kv f32");
    ck_assert_uint_eq(emu_counts_now().blas, 0);
    test_floats_equal(path, got, want, (size_t)N * engine_model_config(cpu)->vocab_size);
    free(want);
    free(got);
    engine_free(cpu);
    engine_free(emu);
}
END_TEST

START_TEST(without_the_library)
{
    struct engine_config c = fast_config();
    struct error err = {0};
    struct engine *e = NULL;
    setenv("DEDIT_CUBLASLT_LIBRARY", "/nonexistent/libcublasLt.so.13", 1);
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), NOT_FOUND, &err);
    ck_assert_msg(strstr(err.msg, "exactness = fast: /nonexistent/libcublasLt.so.13"), "%s",
                  err.msg);
    setenv("DEDIT_CUDA_LIBRARY", getenv("DEDIT_CUDA_EMU"), 1);
    c.device = "auto";
    ck_ok(engine_new(models[0], &c, NULL, NULL, &e, &err), &err);
    ck_assert_str_eq(engine_device(e), "cuda");
    ck_assert_str_eq(engine_class(e), "cuda-mma, kv f32");
    const char *note = engine_device_note(e);
    ck_assert_msg(note && strstr(note, "is computed with exactness = strict: exactness = fast: "
                                       "/nonexistent/libcublasLt.so.13"),
                  "%s", note ? note : "no note");
    engine_free(e);
    emu_nothing_left("fast", 0);
}
END_TEST

START_TEST(rules)
{
    struct engine_config c = fast_config();
    struct error err = {0};
    struct engine *e = NULL;
    c.exact = true;
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), INVALID, &err);
    ck_assert_msg(strstr(err.msg, "exactness: fast does not go with exact"), "%s", err.msg);
    c = fast_config();
    c.device = "cpu"; /* which has one class for all batches anyway */
    ck_ok(engine_new(models[2], &c, NULL, NULL, &e, &err), &err);
    ck_assert_str_eq(engine_class(e), "exact, kv f32");
    ck_assert_ptr_null(engine_device_note(e));
    engine_free(e);
}
END_TEST

/* Every call fails once: of loading, with its plans, and of a step that captures and one that replays. */
START_TEST(every_call_fails)
{
    struct engine_config c = fast_config();
    struct error err = {0};
    bool loaded = false;
    long n = 0;
    c.max_num_batched_tokens = 2;
    c.max_num_seqs = 2;
    for (; !loaded; n += EMU_FEWER(1, 7)) {
        struct engine *e = NULL;
        err = (struct error){0};
        emu_fail(n, n % 2 ? 2 : 999, false);
        loaded = engine_new(models[1], &c, NULL, NULL, &e, &err) == 0;
        emu_fail(-1, 0, false);
        ck_assert_msg(loaded || strstr(err.msg, "cudaError") || strstr(err.msg, "CUBLAS_STATUS"),
                      "call %ld: %s", n, err.msg);
        engine_free(e);
        emu_nothing_left("fast", n);
        ck_assert_int_lt(n, 2000);
    }
    ck_assert_int_gt(n, 100);
    struct engine *e = test_engine(models[1], &c);
    const size_t vocab = engine_model_config(e)->vocab_size;
    float *want = emu_floats(vocab), *got = emu_floats(vocab);
    const uint32_t token = 3;
    unsigned failed = 0;
    for (long i = -1; i < 200; i += EMU_FEWER(1, 7)) {
        struct seq *s = NULL;
        ck_ok(engine_seq_new(e, &s, &err), &err);
        struct engine_feed f = {
            .seq = s, .tokens = &token, .n = 1, .logits = i < 0 ? want : got, .n_logits = 1};
        emu_fail(i, 999, false);
        int r = engine_feed(e, &f, 1, NULL, 0, &err);
        emu_fail(-1, 0, false);
        failed += r < 0;
        if (r == 0 && i >= 0)
            test_floats_equal("a step", got, want, vocab);
        engine_seq_free(e, s);
    }
    ck_assert_uint_gt(failed, EMU_FEWER(5, 1));
    engine_free(e);
    emu_nothing_left("fast", n);
    free(want);
    free(got);
}
END_TEST

int main(void)
{
    emu_open_library();
    static const enum fixture_dtype dtypes[] = {FIXTURE_BF16, FIXTURE_F16, FIXTURE_F32};
    static const enum fixture_family families[] = {FIXTURE_LLAMA, FIXTURE_QWEN2, FIXTURE_QWEN3};
    for (unsigned i = 0; i < 3; i++) {
        struct fixture f = fixture_random(i);
        f.family = families[i];
        f.dtype = dtypes[i];
        f.tied = i != 1;
        models[i] = fixture_write(&f);
    }

    Suite *s = suite_create("cuda-backend-fast");
    TCase *t = test_case(s, "results");
    tcase_add_loop_test(t, near_the_cpu, 0, 3);
    tcase_add_loop_test(t, graphs_same_bits, 0, 3);
    tcase_add_loop_test(t, requests, 0, sizeof(methods) / sizeof(*methods));
    tcase_add_test(t, block_types);
    t = test_case(s, "failures");
    tcase_add_test(t, without_the_library);
    tcase_add_test(t, rules);
    tcase_add_test(t, every_call_fails);
    return test_main(s);
}
