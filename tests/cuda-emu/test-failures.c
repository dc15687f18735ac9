/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the CUDA runtime fails, wherever it is made: in loading, in steps that run as launches, are
 * captured or replayed, in drafted requests, in freeing.  Once: an error or the same bits, and what follows
 * is as if nothing had been.  For good: the device is lost, for all that want it, and nothing hangs.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "kernels/cuda/open.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, UNKNOWN = 999 };
#define MOST 4000            /* calls that anything here makes */
#define STEP EMU_FEWER(1, 7) /* those that fail: each, or so many from the last */

static const char *model; /* one with 16-bit weights */
static const char *target, *drafter;

static struct engine_config config(void)
{
    struct engine_config c = test_engine_config();
    c.device = "emu";
    c.exact = true;
    c.max_num_batched_tokens = 32;
    return c;
}

/* Calls of the runtime since before. */
static uint64_t calls_since(uint64_t before)
{
    struct emu_counts c;
    c = emu_counts_now();
    return c.calls - before;
}

/* ---- once ---------------------------------------------------------------------------------------------- */

static void loading_fails(const char *path, const struct engine_config *c)
{
    bool loaded = false;
    for (long n = 0; !loaded; n += STEP) {
        struct error err = {0};
        struct engine *e = NULL;
        emu_fail(n, n % 2 ? OUT_OF_MEMORY : UNKNOWN, false);
        int r = engine_new(path, c, NULL, NULL, &e, &err);
        emu_fail(-1, 0, false);
        loaded = r == 0;
        ck_assert_msg(loaded || strstr(err.msg, "cudaError"), "call %ld: %s", n, err.msg);
        ck_assert_int_ne(r, DEDIT_E_DEVICE_LOST);
        engine_free(e);
        emu_nothing_left("loading", n);
        ck_assert_int_lt(n, MOST);
    }
}

START_TEST(loading)
{
    struct engine_config c = config();
    setenv("DEDIT_CUDA_GRAPHS", "off", 1); /* which would make up for some */
    loading_fails(model, &c);
}
END_TEST

START_TEST(loading_a_drafter)
{
    struct engine_config c = config();
    c.cohorts = (uint32_t)_i;
    setenv("DEDIT_CUDA_GRAPHS", "off", 1);
    c.drafter = drafter;
    loading_fails(target, &c);
}
END_TEST

START_TEST(freeing)
{
    struct engine_config c = config();
    c.cohorts = (uint32_t)_i;
    bool reached = false;
    c.drafter = drafter;
    for (long n = 0; !reached; n += STEP) {
        struct emu_counts c0;
        struct engine *e = test_engine(target, &c);
        c0 = emu_counts_now();
        emu_fail(n, UNKNOWN, false);
        engine_free(e);
        emu_fail(-1, 0, false);
        reached = calls_since(c0.calls) <= (uint64_t)n;
        emu_nothing_left("freeing", n);
        ck_assert_int_lt(n, MOST);
    }
}
END_TEST

START_TEST(launches)
{
    struct engine_config c = config();
    setenv("DEDIT_CUDA_GRAPHS", "off", 1);
    struct engine *e = test_engine(model, &c);
    const struct model_config *m = engine_model_config(e);
    uint32_t tokens[5];
    float *logits = emu_floats(m->vocab_size), *again = emu_floats(m->vocab_size);
    test_tokens(3, m->vocab_size, tokens, 5);
    struct seq *s = emu_new_seq(e);
    test_feed(e, s, tokens, 5, 5, NULL, NULL, 0, NULL);
    struct engine_feed f = {.seq = s, .tokens = tokens, .n = 1, .logits = logits, .n_logits = 1};
    int r = -1;
    for (long n = 0; r < 0; n += STEP) {
        struct error err = {0};
        emu_fail(n, UNKNOWN, false);
        r = engine_feed(e, &f, 1, NULL, 0, &err);
        emu_fail(-1, 0, false);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", n, err.msg);
        ck_assert_uint_eq(engine_seq_len(s), r == 0 ? 6 : 5);
        ck_assert_int_lt(n, MOST);
        /* What failed has left nothing in the way: another sequence gives the same bits. */
        struct seq *u = emu_new_seq(e);
        test_feed(e, u, tokens, 5, 5, NULL, NULL, 0, NULL);
        test_feed(e, u, tokens, 1, 1, again, NULL, 0, NULL);
        engine_seq_free(e, u);
    }
    test_floats_equal("after failures", logits, again, m->vocab_size);
    engine_seq_free(e, s);
    engine_free(e);
    emu_nothing_left("running", 0);
    free(logits);
    free(again);
}
END_TEST

/* Every call of a step that captures, then of one that replays, fails: the step gives the same bits
 * eagerly, or an error and then the same bits. */
START_TEST(graphs)
{
    struct error err = {0};
    struct engine *plain = emu_open(model, false, 512);
    const struct model_config *m = engine_model_config(plain);
    uint32_t tokens[8];
    float *want = emu_floats(m->vocab_size), *got = emu_floats(m->vocab_size);
    emu_step(plain, 0, 3, want);
    test_tokens(9, m->vocab_size, tokens, 8);
    unsigned eager = 0, failed = 0;
    for (int warm = 1; warm <= 2; warm++) {
        bool reached = false;
        for (long n = 0; !reached; n += STEP) {
            struct engine *e = emu_open(model, true, 512);
            for (int i = 0; i < warm; i++)
                emu_step(e, 0, 3, got);
            uint64_t before = emu_replays();
            struct emu_counts c0;
            struct seq *s = emu_new_seq(e);
            struct engine_feed f = {
                .seq = s, .tokens = tokens, .n = 3, .logits = got, .n_logits = 1};
            c0 = emu_counts_now();
            emu_fail(n, UNKNOWN, false);
            int r = engine_feed(e, &f, 1, NULL, 0, &err);
            emu_fail(-1, 0, false);
            reached = calls_since(c0.calls) <= (uint64_t)n;
            ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", n, err.msg);
            ck_assert(!reached || (r == 0 && emu_replays() > before));
            eager += r == 0 && emu_replays() == before;
            failed += r < 0;
            if (r == 0)
                test_floats_equal("a failed graph", got, want, m->vocab_size);
            engine_seq_free(e, s);
            emu_step(e, 0, 3, got);
            test_floats_equal("after a failed graph", got, want, m->vocab_size);
            engine_free(e);
            ck_assert_int_lt(n, MOST);
        }
    }
    ck_assert_uint_gt(eager, EMU_FEWER(10, 1));
    ck_assert_uint_gt(failed, EMU_FEWER(4, 0));
    engine_free(plain);
    emu_nothing_left("failed graphs", 0);
    free(want);
    free(got);
}
END_TEST

static struct engine_request drafted(uint32_t *prompt, enum draft_method method, uint32_t n)
{
    for (uint32_t i = 0; i < 5; i++)
        prompt[i] = i * 11 % 96; /* the words of the fitted pair */
    struct engine_request q = test_request_init(prompt, 5, n);
    q.sampling.ignore_eos = true;
    q.drafting.method = method;
    q.drafting.window = method == DRAFT_AR ? 0 : 4;
    return q;
}

/* Steps until nothing is left to do, failing steps included.  The last failure's code and text. */
static int run_through(struct engine *e, struct error *ret)
{
    struct error err = {0};
    int r = 1, last = 0;
    for (int steps = 0; r != 0; steps++) {
        r = engine_step(e, &err);
        if (r < 0) {
            last = r;
            *ret = err;
        }
        ck_assert_int_lt(steps, 10000);
    }
    return last;
}

/* What drafts, and what runs it: launches, graphs that are captured on the way, or graphs that are there. */
enum state { LAUNCHED, CAPTURED, REPLAYED };
static const struct {
    enum draft_method methods[2]; /* of as many requests, which run together */
    uint32_t n;
    enum state state;
    uint32_t cohorts; /* 2: each of the two in one */
} runs[] = {
    {{DRAFT_DFLASH}, 1, LAUNCHED, 1},
    {{DRAFT_DFLASH}, 1, REPLAYED, 1},
    {{DRAFT_DEDIT}, 1, LAUNCHED, 1},
    {{DRAFT_DEDIT}, 1, REPLAYED, 1},
    {{DRAFT_DDTREE}, 1, LAUNCHED, 1},
    {{DRAFT_DDTREE}, 1, CAPTURED, 1},
    {{DRAFT_DDTREE}, 1, REPLAYED, 1},
    {{DRAFT_DFLASH, DRAFT_DDTREE}, 2, LAUNCHED, 1}, /* one batch is fed with a chain and a tree */
    {{DRAFT_AUTO}, 1, LAUNCHED, 1},
    {{DRAFT_AUTO, DRAFT_DEDIT}, 2, LAUNCHED, 1}, /* as many passes, or not: then one by one */
    {{DRAFT_DEDIT, DRAFT_DDTREE}, 2, LAUNCHED, 2},
    {{DRAFT_DEDIT, DRAFT_DDTREE}, 2, REPLAYED, 2},
};
enum { RUNS = sizeof(runs) / sizeof(*runs) };

/* Those of a run, together: the last failure. */
static int run_requests(struct engine *e, struct engine_request *q, int run,
                        struct test_request got[2], struct error *err)
{
    for (uint32_t i = 0; i < runs[run].n; i++) {
        q->drafting.method = runs[run].methods[i];
        q->drafting.window = q->drafting.method == DRAFT_AUTO ? 0 : 4;
        got[i] = (struct test_request){0};
        ck_ok(test_submit(e, q, &got[i], err), err);
    }
    return run_through(e, err);
}

/* Each has the tokens of plain decoding, or ended with the error r, which tells what has failed. */
static void all_told(int run, struct test_request got[2], const struct test_request *want, int r,
                     const struct error *err, long n)
{
    unsigned told = 0;
    ck_assert_msg(r == 0 || strstr(err->msg, "cudaError"), "call %ld: %s", n, err->msg);
    for (uint32_t i = 0; i < runs[run].n; i++) {
        ck_assert(got[i].finished);
        if (got[i].error == 0)
            test_same_output(&got[i], want, draft_method_name(runs[run].methods[i]));
        else
            ck_assert_int_eq(got[i].error, r);
        told += got[i].error != 0;
        test_request_done(&got[i]);
    }
    ck_assert((r < 0) == (told > 0));
}

/* Drafted requests whose n-th call fails, for all n: they end with the error, or with the tokens of plain
 * decoding on the CPU, and leave nothing behind.  An engine that gave a graph up makes room for another. */
START_TEST(requests)
{
    const enum state state = runs[_i].state;
    static struct test_request want, got[2];
    struct error err = {0};
    uint32_t prompt[5];
    struct engine_config c = config();
    struct engine_request q = drafted(prompt, DRAFT_AR, 3);
    c.device = NULL;
    struct engine *e = test_engine(target, &c);
    test_generate(e, &q, &want);
    e = engine_free(e);
    c.device = "emu";
    c.drafter = drafter;
    c.cohorts = runs[_i].cohorts;
    setenv("DEDIT_CUDA_GRAPHS", state == LAUNCHED ? "off" : "on", 1);
    bool reached = false;
    unsigned failed = 0, whole = 0;
    /* Of two cohorts every few calls, for they make twice as many. */
    const long every = runs[_i].cohorts > 1 ? 5 : 1;
    for (long n = 0; !reached; n += EMU_FEWER(every, state == CAPTURED ? 23 : 7)) {
        if (!e) {
            e = test_engine(target, &c);
            for (int i = 0; i < (int)state; i++)
                all_told(_i, got, &want, run_requests(e, &q, _i, got, &err), &err, -1);
        }
        const uint64_t before = emu_replays(), calls = emu_counts_now().calls;
        emu_fail(n, UNKNOWN, false);
        const int r = run_requests(e, &q, _i, got, &err);
        emu_fail(-1, 0, false);
        reached = calls_since(calls) <= (uint64_t)n;
        ck_assert(!reached || r == 0);
        ck_assert(!reached || (emu_replays() > before) == (state != LAUNCHED));
        all_told(_i, got, &want, r, &err, n);
        failed += r < 0;
        whole += r == 0;
        test_engine_idle(e);
        if (reached || state == CAPTURED || (state == REPLAYED && r == 0))
            e = engine_free(e);
        ck_assert_int_lt(n, MOST);
    }
    ck_assert_uint_gt(failed, EMU_FEWER(10, 1));
    /* By launches, after the graph. */
    ck_assert_uint_gt(whole, EMU_FEWER(state != LAUNCHED ? 3 : 0, 0));
    test_request_done(&want);
    emu_nothing_left("drafted requests", 0);
}
END_TEST

START_TEST(no_room)
{
    struct engine_config c = test_engine_config();
    struct error err = {0};
    struct engine *e = NULL;
    setenv("CUEMU_MEMORY", "1000000", 1);
    c.device = "emu";
    ck_fails(engine_new(model, &c, NULL, NULL, &e, &err), NOMEM, &err);
    ck_assert_msg(strstr(err.msg, "of device memory"), "%s", err.msg);
    /* Where the device is not demanded, the CPU does it, and says why. */
    setenv("DEDIT_CUDA_LIBRARY", getenv("DEDIT_CUDA_EMU"), 1);
    c.device = "auto";
    ck_ok(engine_new(model, &c, NULL, NULL, &e, &err), &err);
    ck_assert_str_eq(engine_device(e), "cpu");
    ck_assert_msg(strstr(engine_device_note(e), "of device memory"), "%s", engine_device_note(e));
    e = engine_free(e);
    unsetenv("CUEMU_MEMORY");
    ck_ok(engine_new(model, &c, NULL, NULL, &e, &err), &err);
    ck_assert_str_eq(engine_device(e), "cuda");
    ck_assert_ptr_null(engine_device_note(e));
    engine_free(e);
}
END_TEST

/* ---- for good ------------------------------------------------------------------------------------------ */

START_TEST(codes)
{
    static const int lost[] = {214, 220, 226, 700, 702, 709, 710, 714,
                               715, 716, 717, 718, 719, 721, 911};
    const struct dcu_api *a;
    struct error err = {0};
    ck_ok(dcu_open(getenv("DEDIT_CUDA_EMU"), &a, &err), &err);
    size_t n = 0;
    for (int code = 1; code < 1100; code++) {
        bool is = dcu_error(a, code, &err, "a call") == DEDIT_E_DEVICE_LOST;
        ck_assert_msg(is == (n < sizeof(lost) / sizeof(*lost) && lost[n] == code), "%d", code);
        ck_assert_int_eq(is, strncmp(err.msg, "a call: the device is lost: ", 28) == 0);
        n += is;
    }
    ck_assert_uint_eq(n, sizeof(lost) / sizeof(*lost));
}
END_TEST

/* Neither asked for by name nor found by itself does a lost device leave a model on the CPU. */
START_TEST(lost_in_loading)
{
    struct engine_config c = config();
    bool loaded = false;
    c.drafter = drafter;
    setenv("DEDIT_CUDA_LIBRARY", getenv("DEDIT_CUDA_EMU"), 1);
    for (long n = 0; !loaded; n += 3) {
        struct error err = {0};
        struct engine *e = NULL;
        c.device = n % 2 ? "auto" : "emu";
        emu_fail(n, ILLEGAL_ADDRESS, true);
        int r = engine_new(target, &c, NULL, NULL, &e, &err);
        loaded = r == 0;
        if (!loaded)
            ck_fails(r, DEVICE_LOST, &err);
        ck_assert_msg(loaded || strstr(err.msg, "cudaErrorIllegalAddress"), "%s", err.msg);
        engine_free(e);
        emu_nothing_left("a lost device", n);
        emu_fail(-1, 0, false);
        ck_assert_int_lt(n, MOST);
    }
}
END_TEST

/* One runs, three wait: all are told, and the engine is empty. */
START_TEST(lost_in_requests)
{
    static struct test_request got[4];
    uint32_t prompt[5];
    struct engine_config c = config();
    c.drafter = drafter;
    c.max_num_seqs = 1;
    for (long n = 1; n < 2000; n *= 3) {
        struct error err = {0};
        struct engine *e = test_engine(target, &c);
        struct engine_request q = drafted(prompt, DRAFT_DEDIT, 14);
        memset(got, 0, sizeof(got));
        for (int i = 0; i < 4; i++)
            ck_ok(test_submit(e, &q, &got[i], &err), &err);
        emu_fail(n, ILLEGAL_ADDRESS, true);
        ck_assert_int_eq(run_through(e, &err), DEDIT_E_DEVICE_LOST);
        for (int i = 0; i < 4; i++) {
            ck_assert(got[i].finished);
            ck_assert(got[i].error == DEDIT_E_DEVICE_LOST || got[i].reason == FINISH_LENGTH);
            test_request_done(&got[i]);
        }
        ck_assert_int_eq(got[3].error, DEDIT_E_DEVICE_LOST);
        test_engine_idle(e);
        engine_free(e);
        emu_nothing_left("a lost device", n);
        emu_fail(-1, 0, false);
    }
}
END_TEST

int main(void)
{
    emu_open_library();
    setenv("CUEMU_CHECK", "1000", 0); /* other tests look at the accesses */
    struct fixture f = fixture_random(0);
    f.family = FIXTURE_LLAMA;
    f.dtype = FIXTURE_BF16;
    f.tied = true;
    model = fixture_write(&f);
    target = test_path("tests/golden/drafter/target");
    drafter = test_path("tests/golden/drafter/fitted");

    Suite *s = suite_create("cuda-failures");
    TCase *t = test_case(s, "loading");
    tcase_add_test(t, loading);
    tcase_add_loop_test(t, loading_a_drafter, 1, 3); /* cohorts */
    tcase_add_loop_test(t, freeing, 1, 3);
    tcase_add_test(t, no_room);
    t = test_case(s, "steps");
    tcase_add_test(t, launches);
    tcase_add_test(t, graphs);
    t = test_case(s, "requests");
    tcase_add_loop_test(t, requests, 0, RUNS);
    t = test_case(s, "for-good");
    tcase_add_test(t, codes);
    tcase_add_test(t, lost_in_loading);
    tcase_add_test(t, lost_in_requests);
    return test_main(s);
}
