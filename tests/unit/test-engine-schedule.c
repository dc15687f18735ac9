/* SPDX-License-Identifier: Apache-2.0 */
/* Requests beside each other: admission, preemption, fairness, parking, cancelling, the prefix cache.
 * Scripted models say which token must come; random ones notice wrong K/V. */
#include <math.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define EOS FIXTURE_EOS

static const char *random_model;   /* notices wrong K/V and positions */
static const char *alphabet_model; /* a -> b -> ... -> z -> EOS, other letters as each test says */

static void text_is(const struct test_request *t, const char *want)
{
    ck_assert_str_eq(t->text.s, want);
}

/* ---- the queue -------------------------------------------------------------------------------- */

START_TEST(admission) /* SCH-01 */
{
    struct engine_config cfg = test_engine_config();
    cfg.n_kv_blocks = 4;
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    uint32_t prompt[80];
    test_tokens(1, FIXTURE_VOCAB, prompt, 80);
    struct test_request big = {0}, t[3] = {{0}};
    struct engine_request q = test_request_init(prompt, 65, 10);
    ck_fails(test_submit(e, &q, &big, &err), CONTEXT_FULL, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "65"));
    ck_assert_ptr_nonnull(strstr(err.msg, "64"));
    for (int i = 0; i < 3; i++) {
        q = test_request_init(prompt + i, 5, 10);
        q.sampling.ignore_eos = true;
        ck_ok(test_submit(e, &q, &t[i], &err), &err);
    }
    test_run(e, NULL, 0);
    for (int i = 0; i < 3; i++) {
        ck_assert(t[i].finished);
        ck_assert_uint_eq(t[i].ids.len, 10);
        test_request_done(&t[i]);
    }
    q = test_request_init(prompt, 60, 100);
    q.sampling.ignore_eos = true;
    test_generate(e, &q, &big);
    ck_assert_uint_eq(big.ids.len, 4);
    ck_assert_int_eq(big.reason, FINISH_LENGTH);
    test_request_done(&big);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(full_queue) /* SCH-01, second part */
{
    struct engine_config cfg = test_engine_config();
    cfg.max_num_seqs = 1;
    cfg.max_queued = 1;
    struct engine *e = test_engine(alphabet_model, &cfg);
    struct error err = {0};
    const uint32_t prompt[] = {'a'};
    struct test_request t[6] = {{0}};
    for (int i = 0; i < 6; i++) {
        struct engine_request q = test_request_init(prompt, 1, 5);
        int r = test_submit(e, &q, &t[i], &err);
        ck_assert_int_eq(r, i < 2 ? 0 : DEDIT_E_BUSY);
    }
    ck_assert_ptr_nonnull(strstr(err.msg, "queue full"));
    ck_assert_int_eq(engine_step(e, &err), 1);
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.running, 1);
    ck_assert_uint_eq(s.waiting, 1);
    struct engine_request q = test_request_init(prompt, 1, 5);
    ck_assert_int_eq(test_submit(e, &q, &t[2], &err), DEDIT_E_BUSY);
    test_run(e, NULL, 0);
    for (int i = 0; i < 2; i++) {
        text_is(&t[i], "bcdef");
        test_request_done(&t[i]);
    }
    ck_ok(test_submit(e, &q, &t[2], &err), &err);
    test_run(e, NULL, 0);
    text_is(&t[2], "bcdef");
    test_request_done(&t[2]);
    engine_free(e);
}
END_TEST

START_TEST(long_prefill) /* SCH-02 */
{
    for (int small = 0; small < 2; small++) {
        enum { LONG = 3000 };
        struct engine_config cfg = test_engine_config();
        cfg.max_context = 4096;
        cfg.n_kv_blocks = 400;
        cfg.prefill_chunk = 64;
        cfg.max_num_batched_tokens = small ? 64 : 512;
        struct engine *e = test_engine(random_model, &cfg);
        struct error err = {0};
        static uint32_t prompt[LONG];
        test_tokens(1, FIXTURE_VOCAB, prompt, LONG);
        struct test_request a = {0}, b = {0}, c = {0};
        struct engine_request qa = test_request_init(prompt, 3, 1000);
        struct engine_request qb = test_request_init(prompt, LONG, 1);
        struct engine_request qc = test_request_init(prompt + 7, 5, 4);
        qa.sampling.ignore_eos = qb.sampling.ignore_eos = qc.sampling.ignore_eos = true;
        ck_ok(test_submit(e, &qa, &a, &err), &err);
        ck_assert_int_eq(engine_step(e, &err), 1);
        ck_ok(test_submit(e, &qb, &b, &err), &err);
        int steps = 0, c_first = 0, c_at = 0;
        size_t before = a.ids.len;
        while (!b.finished) {
            steps++;
            ck_assert_int_eq(engine_step(e, &err), 1);
            ck_assert_uint_eq(a.ids.len, before + 1); /* a token in every step */
            before = a.ids.len;
            if (steps == 10) {
                ck_ok(test_submit(e, &qc, &c, &err), &err);
                c_at = steps;
            }
            if (c.ids.len && !c_first)
                c_first = steps;
        }
        ck_assert_int_le(c_first - c_at, 4);
        /* Alone: 3000 / 64 = 47 steps; what the others used is a row a step each. */
        ck_assert_int_le(steps, 47 + 5);
        engine_cancel(e, a.r);
        test_request_done(&a);
        test_request_done(&b);
        test_request_done(&c);
        test_engine_idle(e);
        engine_free(e);
    }
}
END_TEST

START_TEST(preemption) /* SCH-03, plain part */
{
    enum { N = 3 };
    for (int sampled = 0; sampled < 2; sampled++)
        for (int cache = 0; cache < 2; cache++) {
            struct engine_config cfg = test_engine_config();
            cfg.enable_prefix_caching = cache;
            struct error err = {0};
            uint32_t prompt[N][40];
            struct engine_request q[N];
            struct test_request solo[N] = {{0}}, t[N] = {{0}};
            struct engine *e = test_engine(random_model, &cfg);
            for (uint32_t i = 0; i < N; i++) {
                test_tokens(i, FIXTURE_VOCAB, prompt[i], 40);
                q[i] = test_request_init(prompt[i], 40, 60);
                q[i].sampling.ignore_eos = true;
                q[i].sampling.logprobs = 0;
                q[i].sampling.temperature = (float)sampled;
                q[i].sampling.seed = 7;
                test_generate(e, &q[i], &solo[i]);
                ck_assert_uint_eq(solo[i].ids.len, 60);
            }
            engine_free(e);
            /* 10 blocks: one and a half requests. */
            cfg.n_kv_blocks = 10;
            e = test_engine(random_model, &cfg);
            for (uint32_t i = 0; i < N; i++)
                ck_ok(test_submit(e, &q[i], &t[i], &err), &err);
            int steps = 0;
            while (engine_step(e, &err) > 0)
                steps++;
            uint32_t preemptions = 0;
            for (uint32_t i = 0; i < N; i++) {
                ck_assert(t[i].finished);
                test_same_output(&t[i], &solo[i], "preempted");
                preemptions += t[i].usage.preemptions;
                ck_assert_uint_le(t[i].usage.preemptions, 2);
            }
            ck_assert_uint_ge(preemptions, 1);
            ck_assert_uint_eq(t[0].usage.preemptions, 0); /* the oldest never is */
            ck_assert_int_lt(steps, 3 * 70);
            test_engine_idle(e);
            for (uint32_t i = 0; i < N; i++) {
                test_request_done(&solo[i]);
                test_request_done(&t[i]);
            }
            engine_free(e);
        }
}
END_TEST

START_TEST(priorities)
{
    struct engine_config cfg = test_engine_config();
    cfg.max_num_seqs = 1;
    struct engine *e = test_engine(alphabet_model, &cfg);
    struct error err = {0};
    const uint32_t prompt[] = {'a'};
    struct test_request t[4] = {{0}};
    static const int32_t priority[4] = {5, 5, -3, 0};
    static const int order[4] = {2, 3, 0, 1};
    for (int i = 0; i < 4; i++) {
        struct engine_request q = test_request_init(prompt, 1, 3);
        q.priority = priority[i];
        ck_ok(test_submit(e, &q, &t[i], &err), &err);
    }
    for (int i = 0; i < 4; i++) {
        while (!t[order[i]].finished)
            ck_assert_int_ge(engine_step(e, &err), 0);
        for (int j = i + 1; j < 4; j++)
            ck_assert_uint_eq(t[order[j]].ids.len, 0);
    }
    for (int i = 0; i < 4; i++)
        test_request_done(&t[i]);
    engine_free(e);
}
END_TEST

START_TEST(direct_evaluation_shares_the_pool)
{
    struct engine_config cfg = test_engine_config();
    cfg.n_kv_blocks = 4;
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    uint32_t tokens[64];
    test_tokens(1, FIXTURE_VOCAB, tokens, 64);
    struct seq *s = NULL;
    ck_ok(engine_seq_new(e, &s, &err), &err);
    test_feed(e, s, tokens, 40, 40, NULL, NULL, 0, NULL);
    struct test_request t = {0};
    struct engine_request q = test_request_init(tokens, 20, 10);
    q.sampling.ignore_eos = true;
    ck_ok(test_submit(e, &q, &t, &err), &err);
    ck_assert_int_eq(engine_step(e, &err), 0); /* no room: it waits, and nothing spins */
    ck_assert(!t.finished);
    s = engine_seq_free(e, s);
    test_run(e, NULL, 0);
    ck_assert_uint_eq(t.ids.len, 10);
    test_request_done(&t);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

/* ---- the same bytes --------------------------------------------------------------------------- */

#define COMPANIONS 13

/* A mixed crowd: lengths, temperatures, penalties, logprobs, stop strings. */
static void crowd(struct engine_request *q, uint32_t prompt[][160], struct stop_string *stop)
{
    *stop = (struct stop_string){"~", 1};
    for (uint32_t i = 0; i < COMPANIONS; i++) {
        uint32_t n = 1 + test_token(i, 5000, i % 4 ? 20 : 150);
        test_tokens(i, FIXTURE_VOCAB, prompt[i], 160);
        q[i] = test_request_init(prompt[i], n, 1 + test_token(i, 6000, 30));
        struct sampling_params *p = &q[i].sampling;
        p->temperature = i % 3 ? 0.7f * (float)(i % 3) : 0;
        p->seed = 42 + i % 2;
        p->logprobs = i % 5 == 0 ? 3 : -1;
        p->frequency_penalty = i % 4 == 1 ? 0.5f : 0;
        p->repetition_penalty = i % 4 == 2 ? 1.1f : 1;
        p->top_k = i % 7 == 3 ? 20 : 0;
        p->top_p = i % 6 == 4 ? 0.9f : 1;
        if (i % 3 == 2) {
            p->stop = stop;
            p->n_stop = 1;
        }
    }
}

static void run_crowd(const struct engine_config *cfg, const struct test_request *want,
                      const char *what)
{
    static uint32_t prompt[COMPANIONS][160];
    struct engine_request q[COMPANIONS];
    struct stop_string stop;
    struct test_request t[COMPANIONS] = {{0}};
    struct error err = {0};
    crowd(q, prompt, &stop);
    struct engine *e = test_engine(random_model, cfg);
    for (uint32_t i = 0; i < COMPANIONS; i++) {
        ck_ok(test_submit(e, &q[i], &t[i], &err), &err);
        if (i % 4 == 3)
            ck_assert_int_ge(engine_step(e, &err), 0);
    }
    test_run(e, NULL, 0);
    for (uint32_t i = 0; i < COMPANIONS; i++) {
        test_same_output(&t[i], &want[i], what);
        test_request_done(&t[i]);
    }
    test_engine_idle(e);
    engine_free(e);
}

START_TEST(alone_and_in_a_crowd)
{
    static uint32_t prompt[COMPANIONS][160];
    struct engine_request q[COMPANIONS];
    struct stop_string stop;
    struct test_request want[COMPANIONS] = {{0}};
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    crowd(q, prompt, &stop);
    for (uint32_t i = 0; i < COMPANIONS; i++)
        test_generate(e, &q[i], &want[i]);
    engine_free(e);
    run_crowd(&cfg, want, "all at once");
    static const uint32_t chunks[] = {1, 7, 16, 100};
    for (int i = 0; i < 4; i++) {
        cfg = test_engine_config();
        cfg.prefill_chunk = chunks[i];
        run_crowd(&cfg, want, "prefill chunk");
    }
    cfg = test_engine_config();
    cfg.max_num_seqs = 5;
    cfg.max_num_batched_tokens = 9;
    run_crowd(&cfg, want, "small batches");
    for (unsigned n = 1; n <= 3; n++) {
        cfg = test_engine_config();
        cfg.n_threads = n;
        run_crowd(&cfg, want, "threads");
    }
    for (int i = 0; i < DK_TIER_COUNT; i++) {
        cfg = test_engine_config();
        cfg.tier = (enum dk_tier)i;
        if (dk_ops(cfg.tier))
            run_crowd(&cfg, want, dk_tier_name(cfg.tier));
    }
    cfg = test_engine_config();
    cfg.n_kv_blocks = 14; /* preemptions */
    run_crowd(&cfg, want, "a small pool");
    for (uint32_t i = 0; i < COMPANIONS; i++)
        test_request_done(&want[i]);
}
END_TEST

START_TEST(requests_leave_no_trace) /* DEC-05 */
{
    uint32_t prompt[2][200];
    struct engine_request q[2];
    struct test_request fresh[2] = {{0}}, t = {0};
    struct engine_config cfg = test_engine_config();
    for (int cache = 0; cache < 2; cache++) {
        cfg.enable_prefix_caching = cache;
        for (uint32_t i = 0; i < 2; i++) {
            test_tokens(i, FIXTURE_VOCAB, prompt[i], 200);
            q[i] = test_request_init(prompt[i], i ? 5 : 200, 64);
            q[i].sampling.ignore_eos = true;
            struct engine *e = test_engine(random_model, &cfg);
            test_generate(e, &q[i], &fresh[i]);
            engine_free(e);
        }
        struct engine *e = test_engine(random_model, &cfg);
        static const int order[] = {0, 1, 0, 1, 0, 0, 1};
        for (int i = 0; i < 7; i++) {
            test_generate(e, &q[order[i]], &t);
            test_same_output(&t, &fresh[order[i]], "after others");
            test_request_done(&t);
        }
        engine_free(e);
        test_request_done(&fresh[0]);
        test_request_done(&fresh[1]);
    }
}
END_TEST

START_TEST(prefix_cache)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    uint32_t prompt[200];
    test_tokens(1, FIXTURE_VOCAB, prompt, 200);
    struct test_request cold = {0}, t = {0};
    struct engine_request q = test_request_init(prompt, 100, 20);
    q.sampling.ignore_eos = true;
    test_generate(e, &q, &cold);
    ck_assert_uint_eq(cold.usage.cached_tokens, 0);
    test_generate(e, &q, &t);
    ck_assert_uint_eq(t.usage.cached_tokens, 96);
    test_same_output(&t, &cold, "prefix hit");
    test_request_done(&t);
    /* A prompt of whole blocks: its last token is computed all the same. */
    q.n_prompt = 96;
    test_generate(e, &q, &t);
    ck_assert_uint_eq(t.usage.cached_tokens, 80);
    ck_assert_uint_eq(t.ids.len, 20);
    test_request_done(&t);
    /* The next turn: prompt and answer are found again. */
    uint32_t next[140];
    memcpy(next, prompt, 100 * sizeof(*next));
    memcpy(next + 100, cold.ids.ids, 20 * sizeof(*next));
    memcpy(next + 120, prompt, 20 * sizeof(*next));
    struct engine_request turn = test_request_init(next, 140, 5);
    turn.sampling.ignore_eos = true;
    test_generate(e, &turn, &t);
    ck_assert_uint_eq(t.usage.cached_tokens, 112);
    struct test_request other = {0};
    turn.namespace_id = 1000; /* another user finds nothing, and gets the same */
    test_generate(e, &turn, &other);
    ck_assert_uint_eq(other.usage.cached_tokens, 0);
    test_same_output(&other, &t, "another namespace");
    test_request_done(&other);
    test_request_done(&t);
    /* One token differs in the second block: one block is found. */
    q.n_prompt = 100;
    prompt[20] ^= 1;
    test_generate(e, &q, &t);
    ck_assert_uint_eq(t.usage.cached_tokens, 16);
    test_request_done(&t);
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.cached_tokens, 96 + 80 + 112 + 16);
    ck_assert_uint_eq(s.prefix_queries, 100 + 100 + 96 + 140 + 140 + 100);
    ck_assert_uint_eq(s.prompt_tokens, s.prefix_queries);
    test_request_done(&cold);
    test_engine_idle(e);
    engine_free(e);
    /* Switched off: nothing is kept. */
    cfg.enable_prefix_caching = false;
    e = test_engine(random_model, &cfg);
    for (int i = 0; i < 2; i++) {
        test_generate(e, &q, &t);
        ck_assert_uint_eq(t.usage.cached_tokens, 0);
        test_request_done(&t);
    }
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.kv_blocks_free, s.kv_blocks);
    engine_free(e);
}
END_TEST

/* ---- parking and cancelling ------------------------------------------------------------------- */

START_TEST(parking)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    uint32_t prompt[100];
    test_tokens(1, FIXTURE_VOCAB, prompt, 100);
    struct test_request want = {0}, t = {.park_every = 3}, other = {0};
    struct engine_request q = test_request_init(prompt, 20, 30),
                          p = test_request_init(prompt, 50, 9);
    q.sampling.ignore_eos = p.sampling.ignore_eos = true;
    test_generate(e, &q, &want);
    ck_ok(test_submit(e, &q, &t, &err), &err);
    while (t.n_calls < 3)
        ck_assert_int_ge(engine_step(e, &err), 0);
    ck_assert_int_eq(engine_step(e, &err), 0); /* everything is parked */
    ck_assert_uint_eq(t.n_calls, 3);
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.parked, 1);
    ck_assert_uint_eq(s.running, 0);
    /* Others are not held up. */
    test_generate(e, &p, &other);
    ck_assert_uint_eq(t.n_calls, 3);
    struct test_request *const all[] = {&t};
    engine_resume(e, t.r);
    engine_resume(e, t.r); /* not parked: nothing happens */
    test_run(e, all, 1);
    test_same_output(&t, &want, "parked");
    engine_resume(e, t.r);
    test_request_done(&t);
    test_request_done(&want);
    test_request_done(&other);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

/* Somebody needs the blocks of a parked request: it loses them, and is none the worse. */
START_TEST(parked_without_blocks)
{
    struct engine_config cfg = test_engine_config();
    cfg.n_kv_blocks = 8;
    cfg.enable_prefix_caching = false;
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    uint32_t prompt[100];
    test_tokens(1, FIXTURE_VOCAB, prompt, 100);
    struct test_request want = {0}, t = {.park_every = 4}, big = {0};
    struct engine_request q = test_request_init(prompt, 30, 30);
    struct engine_request b = test_request_init(prompt, 90, 30);
    q.sampling.ignore_eos = b.sampling.ignore_eos = true;
    test_generate(e, &q, &want);
    ck_ok(test_submit(e, &q, &t, &err), &err);
    while (t.n_calls < 4)
        ck_assert_int_ge(engine_step(e, &err), 0);
    ck_ok(test_submit(e, &b, &big, &err), &err);
    test_run(e, NULL, 0);
    ck_assert_uint_eq(big.ids.len, 30);
    ck_assert_uint_eq(t.n_calls, 4);
    struct test_request *const all[] = {&t};
    test_run(e, all, 1);
    test_same_output(&t, &want, "parked and sent away");
    ck_assert_uint_eq(t.usage.preemptions, 1);
    test_request_done(&t);
    test_request_done(&want);
    test_request_done(&big);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(cancelling)
{
    struct engine_config cfg = test_engine_config();
    cfg.max_num_seqs = 2;
    cfg.prefill_chunk = 16;
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    uint32_t prompt[300];
    test_tokens(1, FIXTURE_VOCAB, prompt, 300);
    /* In the queue, during prefill, while decoding, parked, from its own callback. */
    for (int when = 0; when < 5; when++) {
        struct test_request t = {.park_every = when == 3, .cancel_after = when == 4};
        struct test_request fill[2] = {{0}}, next = {0};
        struct engine_request q = test_request_init(prompt, when == 1 ? 300 : 20, 100);
        q.sampling.ignore_eos = true;
        q.namespace_id = (uint64_t)when;
        for (int i = 0; i < 2 && when == 0; i++)
            ck_ok(test_submit(e, &q, &fill[i], &err), &err);
        ck_ok(test_submit(e, &q, &t, &err), &err);
        for (int i = 0; i < (when == 2 ? 10 : 5); i++)
            ck_assert_int_ge(engine_step(e, &err), 0);
        ck_assert_int_eq(t.finished, when == 4);
        engine_cancel(e, t.r);
        ck_assert(t.finished);
        ck_assert_int_eq(t.reason, FINISH_CANCELLED);
        engine_cancel(e, t.r); /* late: nothing */
        engine_resume(e, t.r);
        for (int i = 0; i < 2 && when == 0; i++) {
            engine_cancel(e, fill[i].r);
            test_request_done(&fill[i]);
        }
        test_engine_idle(e);
        ck_assert_int_eq(engine_step(e, &err), 0);
        struct engine_request small = test_request_init(prompt, 5, 3);
        small.sampling.ignore_eos = true;
        test_generate(e, &small, &next);
        ck_assert_uint_eq(next.ids.len, 3);
        test_request_done(&next);
        test_request_done(&t);
    }
    engine_free(e);
}
END_TEST

static struct test_request *victim;
static int cancel_the_other(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    (void)r;
    (void)t;
    (void)n;
    engine_cancel(arg, victim->r);
    return 0;
}
static void ignore_end(void *arg, struct request *r, const struct engine_finish *f)
{
    (void)arg;
    (void)r;
    (void)f;
}

/* A callback ends another request of the same batch, which must not be touched after that. */
START_TEST(cancelling_a_companion)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    const uint32_t prompt[] = {1, 2, 3};
    struct test_request t = {0};
    struct engine_request q = test_request_init(prompt, 3, 10);
    struct request *killer = NULL;
    q.sink = (struct engine_sink){.tokens = cancel_the_other, .finished = ignore_end, .arg = e};
    ck_ok(engine_submit(e, &q, &killer, &err), &err);
    ck_ok(test_submit(e, &q, &t, &err), &err);
    victim = &t;
    ck_assert_int_eq(engine_step(e, &err), 1);
    ck_assert(t.finished && t.reason == FINISH_CANCELLED);
    ck_assert_uint_eq(t.ids.len, 0);
    test_run(e, NULL, 0);
    test_request_done(&t);
    request_free(killer);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(engine_goes_first)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    const uint32_t prompt[] = {1, 2, 3};
    struct test_request t[3] = {{0}};
    struct engine_request q = test_request_init(prompt, 3, 10);
    q.sampling.ignore_eos = true;
    test_generate(e, &q, &t[0]);
    ck_ok(test_submit(e, &q, &t[1], &err), &err);
    ck_assert_int_eq(engine_step(e, &err), 1);
    ck_ok(test_submit(e, &q, &t[2], &err), &err);
    engine_free(e);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(t[i].reason, i ? FINISH_CANCELLED : FINISH_LENGTH);
        engine_cancel(NULL, t[i].r);
        test_request_done(&t[i]);
    }
    ck_assert_ptr_null(request_free(NULL));
}
END_TEST

START_TEST(usage_and_statistics)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    uint32_t prompt[40];
    test_tokens(1, FIXTURE_VOCAB, prompt, 40);
    struct engine_request q = test_request_init(prompt, 40, 7);
    q.sampling.ignore_eos = true;
    struct test_request t = {0};
    test_generate(e, &q, &t);
    ck_assert_uint_eq(t.usage.prompt_tokens, 40);
    ck_assert_uint_eq(t.usage.completion_tokens, 7);
    ck_assert_uint_gt(t.usage.queued_ns, 0);
    ck_assert(t.usage.queued_ns <= t.usage.prefill_ns);
    ck_assert(t.usage.prefill_ns <= t.usage.first_token_ns);
    ck_assert(t.usage.first_token_ns < t.usage.total_ns);
    ck_assert_uint_eq(t.n_calls, 7);
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.steps, 7);
    ck_assert_uint_eq(s.prompt_tokens, 40);
    ck_assert_uint_eq(s.generation_tokens, 7);
    ck_assert_uint_eq(s.finished[FINISH_LENGTH], 1);
    ck_assert_uint_eq(s.preemptions, 0);
    test_request_done(&t);
    engine_free(e);
}
END_TEST

int main(void)
{
    struct fixture f = fixture_random(11);
    random_model = fixture_write(&f);
    alphabet_model = fixture_write_alphabet();

    Suite *s = suite_create("engine-schedule");
    TCase *t = test_case(s, "queue");
    tcase_add_test(t, admission);
    tcase_add_test(t, full_queue);
    tcase_add_test(t, long_prefill);
    tcase_add_test(t, preemption);
    tcase_add_test(t, priorities);
    tcase_add_test(t, direct_evaluation_shares_the_pool);
    t = test_case(s, "same-bytes");
    tcase_add_test(t, alone_and_in_a_crowd);
    tcase_add_test(t, requests_leave_no_trace);
    tcase_add_test(t, prefix_cache);
    t = test_case(s, "parking");
    tcase_add_test(t, parking);
    tcase_add_test(t, parked_without_blocks);
    tcase_add_test(t, cancelling);
    tcase_add_test(t, cancelling_a_companion);
    tcase_add_test(t, engine_goes_first);
    tcase_add_test(t, usage_and_statistics);
    return test_main(s);
}
