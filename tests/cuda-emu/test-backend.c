/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend on the emulated device gives the CPU's bits where its class is the CPU's, and its own
 * bits whatever the batch elsewhere; a failing call is an error, and nothing stays behind.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "engine/engine.h"
#include "tests/cuda-emu/emu.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define N 60u

static const char *models[16];
static unsigned n_models, n_half; /* the first n_half have 16-bit weights */

static void (*fail_at)(long, int, int);
static void (*count)(struct emu_counts *);

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

static void *symbol(void *h, const char *name)
{
    void *p = dlsym(h, name);
    if (!p) {
        (void)fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
    return p;
}

static struct engine *open_on(const char *path, const char *device, bool exact)
{
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = exact;
    return test_engine(path, &c);
}

static uint64_t replays(void)
{
    struct emu_counts c;
    count(&c);
    return c.replays;
}

static float *floats(size_t n)
{
    float *p = malloc(n * sizeof(*p));
    ck_assert_ptr_nonnull(p);
    for (size_t i = 0; i < n; i++)
        p[i] = -12345.0f;
    return p;
}

static struct seq *new_seq(struct engine *e)
{
    struct error err = {0};
    struct seq *s = NULL;
    ck_ok(engine_seq_new(e, &s, &err), &err);
    return s;
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
    t.logits = floats(t.n_logits);
    t.taps = floats(t.n_taps);
    test_tokens(7, m->vocab_size, tokens, n);
    for (uint32_t i = 0; i < m->n_layers; i++)
        layers[i] = i;
    struct seq *s = new_seq(e);
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

/* A tree behind 37 positions, then one of its paths kept, then a plain token. */
static struct text grow(struct engine *e)
{
    static const int32_t parent[] = {-1, 0, 0, 1, 1, 2, -1, 6, 3, 8, 9, 7};
    static const uint32_t path[] = {0, 1, 3, 8, 9};
    const struct model_config *m = engine_model_config(e);
    const uint32_t n = sizeof(parent) / sizeof(*parent);
    struct error err = {0};
    uint32_t tokens[64];
    struct text t = {.n_logits = (size_t)(n + 1) * m->vocab_size};
    t.logits = floats(t.n_logits);
    test_tokens(11, m->vocab_size, tokens, 64);
    struct seq *s = new_seq(e);
    test_feed(e, s, tokens, 37, 37, NULL, NULL, 0, NULL);
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
    struct engine_request q = test_request_init(prompt, 21, 14);
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
    uint64_t before = replays();
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
    ck_assert_uint_gt(replays(), before);
    test_engine_idle(emu);
    engine_free(cpu);
    engine_free(emu);
}
END_TEST

/* ---- failures ------------------------------------------------------------------------------------------ */

static void nothing_left(const char *what, long n)
{
    struct emu_counts c;
    count(&c);
    ck_assert_msg(c.blocks + c.pinned + c.streams + c.events + c.graphs == 0,
                  "%s, call %ld: %lu blocks, %lu pinned, %lu streams, %lu events, %lu graphs stay",
                  what, n, (unsigned long)c.blocks, (unsigned long)c.pinned,
                  (unsigned long)c.streams, (unsigned long)c.events, (unsigned long)c.graphs);
}

/* Every call of the runtime fails once, in loading and in the first batches. */
START_TEST(every_call_fails)
{
    struct engine_config c = test_engine_config();
    c.device = "emu";
    c.exact = true;
    c.max_num_batched_tokens = 32;
    bool loaded = false;
    setenv("DEDIT_CUDA_GRAPHS", "off", 1); /* which would make up for some */
    for (long n = 0; !loaded; n++) {
        struct error err = {0};
        struct engine *e = NULL;
        fail_at(n, n % 2 ? 2 : 999, 0);
        int r = engine_new(models[0], &c, NULL, NULL, &e, &err);
        fail_at(-1, 0, 0);
        loaded = r == 0;
        ck_assert_msg(loaded || strstr(err.msg, "cudaError"), "call %ld: %s", n, err.msg);
        engine_free(e);
        nothing_left("loading", n);
        ck_assert_int_lt(n, 2000);
    }
    struct engine *e = test_engine(models[0], &c);
    const struct model_config *m = engine_model_config(e);
    uint32_t tokens[5];
    float *logits = floats(m->vocab_size), *again = floats(m->vocab_size);
    test_tokens(3, m->vocab_size, tokens, 5);
    struct seq *s = new_seq(e);
    test_feed(e, s, tokens, 5, 5, NULL, NULL, 0, NULL);
    struct engine_feed f = {.seq = s, .tokens = tokens, .n = 1, .logits = logits, .n_logits = 1};
    int r = -1;
    for (long n = 0; r < 0; n++) {
        struct error err = {0};
        fail_at(n, 999, 0);
        r = engine_feed(e, &f, 1, NULL, 0, &err);
        fail_at(-1, 0, 0);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", n, err.msg);
        ck_assert_uint_eq(engine_seq_len(s), r == 0 ? 6 : 5);
        ck_assert_int_lt(n, 2000);
    }
    /* What failed has left nothing in the way: the same token gives the same bits. */
    struct seq *u = new_seq(e);
    test_feed(e, u, tokens, 5, 5, NULL, NULL, 0, NULL);
    test_feed(e, u, tokens, 1, 1, again, NULL, 0, NULL);
    test_floats_equal("after failures", logits, again, m->vocab_size);
    engine_seq_free(e, s);
    engine_seq_free(e, u);
    engine_free(e);
    nothing_left("running", 0);
    free(logits);
    free(again);
}
END_TEST

/* ---- graphs -------------------------------------------------------------------------------------------- */

static struct engine *open_graphs(const char *path, bool on, uint32_t context)
{
    setenv("DEDIT_CUDA_GRAPHS", on ? "on" : "off", 1);
    struct engine_config c = test_engine_config();
    c.device = "emu";
    c.max_context = context;
    return test_engine(path, &c);
}

/* Texts in chunks of 1 ... 7 rows, with taps, across buckets of positions and after blocks were reused. */
START_TEST(graphs_same_bits)
{
    struct engine *with = open_graphs(models[_i], true, 512),
                  *without = open_graphs(models[_i], false, 512);
    static const size_t chunks[] = {1, 3, 7, 1};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
        uint64_t before = replays();
        struct text want = feed(without, 30, chunks[i]);
        ck_assert_uint_eq(replays(), before);
        struct text got = feed(with, 30, chunks[i]);
        ck_assert_uint_gt(replays(), before);
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
    nothing_left("graphs", 0);
}
END_TEST

/* Logits of the last of n tokens that are fed at once, behind `prefix` others. */
static void step(struct engine *e, uint32_t prefix, uint32_t n, float *ret)
{
    const struct model_config *m = engine_model_config(e);
    struct error err = {0};
    uint32_t tokens[600];
    test_tokens(9, m->vocab_size, tokens, 600);
    struct seq *s = new_seq(e);
    for (uint32_t i = 0; i < prefix; i += 100)
        test_feed(e, s, tokens + i, prefix - i < 100 ? prefix - i : 100, 100, NULL, NULL, 0, NULL);
    struct engine_feed f = {
        .seq = s, .tokens = tokens + prefix, .n = n, .logits = ret, .n_logits = 1};
    ck_ok(engine_feed(e, &f, 1, NULL, 0, &err), &err);
    engine_seq_free(e, s);
}

/* Ever new shapes: as many graphs as fit stay, and no more. */
START_TEST(graphs_bounded)
{
    struct engine *e = open_graphs(models[n_half], true, 512);
    float *got = floats(engine_model_config(e)->vocab_size);
    struct emu_counts c;
    uint64_t most = 0;
    for (uint32_t n = 1; n <= 40; n++) {
        for (int i = 0; i < 2; i++)
            step(e, 0, n, got);
        count(&c);
        most = c.graphs > most ? c.graphs : most;
    }
    ck_assert_uint_eq(most, 32);
    ck_assert_uint_eq(c.graphs, 32);
    engine_free(e);
    nothing_left("graphs", 0);
    free(got);
}
END_TEST

/* Steps on both sides of a bucket's end, each of them captured before the last one. */
START_TEST(graphs_context)
{
    static const uint32_t prefix[] = {505, 508, 511, 30, 505, 520};
    struct engine *with = open_graphs(models[n_half], true, 2048);
    struct engine *without = open_graphs(models[n_half], false, 2048);
    const size_t vocab = engine_model_config(with)->vocab_size;
    float *want = floats(vocab), *got = floats(vocab);
    for (size_t i = 0; i < sizeof(prefix) / sizeof(*prefix); i++) {
        step(without, prefix[i], 2, want);
        step(with, prefix[i], 2, got);
        test_floats_equal("a step", got, want, vocab);
    }
    engine_free(with);
    engine_free(without);
    free(want);
    free(got);
}
END_TEST

/* Every call of a step that captures, then of one that replays, fails: the step gives the same bits
 * eagerly, or an error and then the same bits. */
START_TEST(graphs_fail)
{
    struct error err = {0};
    struct engine *plain = open_graphs(models[n_half], false, 512);
    const struct model_config *m = engine_model_config(plain);
    uint32_t tokens[8];
    float *want = floats(m->vocab_size), *got = floats(m->vocab_size);
    step(plain, 0, 3, want);
    test_tokens(9, m->vocab_size, tokens, 8);
    unsigned eager = 0, failed = 0;
    for (int warm = 1; warm <= 2; warm++) {
        bool reached = false;
        for (long n = 0; !reached; n++) {
            struct engine *e = open_graphs(models[n_half], true, 512);
            for (int i = 0; i < warm; i++)
                step(e, 0, 3, got);
            uint64_t before = replays();
            struct emu_counts c0, c1;
            struct seq *s = new_seq(e);
            struct engine_feed f = {
                .seq = s, .tokens = tokens, .n = 3, .logits = got, .n_logits = 1};
            count(&c0);
            fail_at(n, 999, 0);
            int r = engine_feed(e, &f, 1, NULL, 0, &err);
            fail_at(-1, 0, 0);
            count(&c1);
            reached = c1.calls - c0.calls <= (uint64_t)n;
            ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", n, err.msg);
            ck_assert(!reached || (r == 0 && replays() > before));
            eager += r == 0 && replays() == before;
            failed += r < 0;
            if (r == 0)
                test_floats_equal("a failed graph", got, want, m->vocab_size);
            engine_seq_free(e, s);
            step(e, 0, 3, got);
            test_floats_equal("after a failed graph", got, want, m->vocab_size);
            engine_free(e);
            ck_assert_int_lt(n, 500);
        }
    }
    ck_assert_uint_gt(eager, 10);
    ck_assert_uint_gt(failed, 4);
    engine_free(plain);
    nothing_left("failed graphs", 0);
    free(want);
    free(got);
}
END_TEST

START_TEST(no_room)
{
    struct engine_config c = test_engine_config();
    struct error err = {0};
    struct engine *e = NULL;
    setenv("CUEMU_MEMORY", "1000000", 1);
    c.device = "emu";
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), NOMEM, &err);
    ck_assert_msg(strstr(err.msg, "of device memory"), "%s", err.msg);
    /* Where the device is not demanded, the CPU does it, and says why. */
    setenv("DEDIT_CUDA_LIBRARY", getenv("DEDIT_CUDA_EMU"), 1);
    c.device = "auto";
    ck_ok(engine_new(models[0], &c, NULL, NULL, &e, &err), &err);
    ck_assert_str_eq(engine_device(e), "cpu");
    ck_assert_msg(strstr(engine_device_note(e), "of device memory"), "%s", engine_device_note(e));
    e = engine_free(e);
    unsetenv("CUEMU_MEMORY");
    ck_ok(engine_new(models[0], &c, NULL, NULL, &e, &err), &err);
    ck_assert_str_eq(engine_device(e), "cuda");
    ck_assert_ptr_null(engine_device_note(e));
    engine_free(e);
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
    static char library[4096];
    const char *dir = getenv("top_builddir");
    (void)snprintf(library, sizeof(library), "%s/libdedit-cuda-emu.so", dir ? dir : ".");
    setenv("DEDIT_CUDA_EMU", library, 1);
    void *h = dlopen(library, RTLD_NOW | RTLD_LOCAL), *p;
    if (!h) {
        (void)fprintf(stderr, "%s\n", dlerror());
        return 99;
    }
    p = symbol(h, "emu_fail_at");
    memcpy(&fail_at, &p, sizeof(fail_at));
    p = symbol(h, "emu_count");
    memcpy(&count, &p, sizeof(count));

    add_fixture(FIXTURE_LLAMA, FIXTURE_BF16, true);
    add_fixture(FIXTURE_QWEN2, FIXTURE_F16, false);
    n_half = n_models;
    add_fixture(FIXTURE_QWEN3, FIXTURE_F32, false);
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
    tcase_add_test(t, graphs_bounded);
    tcase_add_test(t, graphs_context);
    t = test_case(s, "requests");
    tcase_add_test(t, requests);
    t = test_case(s, "failures");
    tcase_add_test(t, every_call_fails);
    tcase_add_test(t, graphs_fail);
    tcase_add_test(t, no_room);
    tcase_add_test(t, names);
    return test_main(s);
}
