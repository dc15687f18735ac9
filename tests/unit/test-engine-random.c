/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random schedules of submit, cancel, park, resume and direct evaluation on a pool that is too small:
 * whatever happens, each request's tokens are those that it gets alone.  And memory that runs out at
 * every allocation of a load and a generation.
 */
#include <string.h>

#include "engine/engine.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

enum { KINDS = 24, LIVE = 12 };

static const char *model, *tiny_model;

static uint32_t prompts[KINDS][120];
static struct engine_request kinds[KINDS];
static struct stop_string stop_text = {"e", 1};

/* Prompts share beginnings, so that the prefix cache has something to find. */
static void make_kinds(void)
{
    for (uint32_t k = 0; k < KINDS; k++) {
        uint32_t shared = test_token(k, 1, 100);
        test_tokens(1000 + k % 3, FIXTURE_VOCAB, prompts[k], 120);
        for (uint32_t i = shared; i < 120; i++)
            prompts[k][i] = test_token(k, i, FIXTURE_VOCAB);
        kinds[k] =
            test_request_init(prompts[k], 1 + test_token(k, 2, 110), 1 + test_token(k, 3, 40));
        kinds[k].priority = (int32_t)test_token(k, 4, 3);
        kinds[k].namespace_id = k % 2;
        struct sampling_params *p = &kinds[k].sampling;
        p->temperature = k % 2 ? 1.0f : 0;
        p->seed = k;
        p->ignore_eos = k % 3 == 0;
        p->presence_penalty = k % 5 == 0 ? 0.4f : 0;
        p->logprobs = k % 4 == 0;
        if (k % 6 == 1) {
            p->stop = &stop_text;
            p->n_stop = 1;
        }
    }
}

struct world {
    struct engine *e;
    struct test_request live[LIVE];
    uint32_t kind[LIVE];
    bool used[LIVE], cancelled[LIVE];
    const struct test_request *want;
    uint64_t state;
    uint32_t n_done, n_cancelled;
};

static uint32_t rnd(struct world *w, uint32_t below)
{
    w->state = w->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(w->state >> 33) % below;
}

static void check_end(struct world *w, uint32_t i)
{
    struct test_request *t = &w->live[i];
    const struct test_request *want = &w->want[w->kind[i]];
    if (w->cancelled[i] && t->reason == FINISH_CANCELLED) {
        /* What came before the end is a beginning of the whole. */
        ck_assert_uint_le(t->ids.len, want->ids.len);
        for (size_t j = 0; j < t->ids.len; j++)
            ck_assert_uint_eq(t->ids.ids[j], want->ids.ids[j]);
        w->n_cancelled++;
    } else {
        test_same_output(t, want, "random schedule");
        w->n_done++;
    }
    test_request_done(t);
    *t = (struct test_request){0};
    w->used[i] = false;
}

static void submit_one(struct world *w)
{
    struct error err = {0};
    for (uint32_t i = 0; i < LIVE; i++) {
        if (w->used[i])
            continue;
        uint32_t k = rnd(w, KINDS);
        struct engine_request q = kinds[k];
        w->live[i] = (struct test_request){.park_every = rnd(w, 4) ? 0 : 1 + rnd(w, 5)};
        int r = test_submit(w->e, &q, &w->live[i], &err);
        ck_assert_msg(r == 0 || r == DEDIT_E_BUSY, "%s", err.msg);
        if (r == 0) {
            w->used[i] = true;
            w->cancelled[i] = false;
            w->kind[i] = k;
        }
        return;
    }
}

/* A bare sequence that takes a part of the pool for a while. */
static void evaluate(struct world *w, struct seq **s)
{
    struct error err = {0};
    if (*s) {
        *s = engine_seq_free(w->e, *s);
        return;
    }
    uint32_t n = 1 + rnd(w, 60);
    ck_ok(engine_seq_new(w->e, s, &err), &err);
    struct engine_feed f = {.seq = *s, .tokens = prompts[0], .n = n};
    int r = engine_feed(w->e, &f, 1, NULL, 0, &err);
    ck_assert_msg(r == 0 || r == DEDIT_E_CONTEXT_FULL, "%s", err.msg);
}

static void play(struct world *w, int steps)
{
    struct error err = {0};
    struct seq *s = NULL;
    for (int step = 0; step < steps; step++) {
        uint32_t op = rnd(w, 20), i = rnd(w, LIVE);
        if (op < 5) {
            submit_one(w);
        } else if (op == 5 && w->used[i] && !w->live[i].finished) {
            w->cancelled[i] = true;
            engine_cancel(w->e, w->live[i].r);
            ck_assert(w->live[i].finished);
        } else if (op < 9 && w->used[i]) {
            engine_resume(w->e, w->live[i].r);
        } else if (op == 9) {
            evaluate(w, &s);
        } else {
            ck_assert_msg(engine_step(w->e, &err) >= 0, "%s", err.msg);
        }
        for (i = 0; i < LIVE; i++)
            if (w->used[i] && w->live[i].finished)
                check_end(w, i);
    }
    engine_seq_free(w->e, s);
    struct test_request *all[LIVE];
    for (uint32_t i = 0; i < LIVE; i++)
        all[i] = &w->live[i];
    test_run(w->e, all, LIVE);
    for (uint32_t i = 0; i < LIVE; i++)
        if (w->used[i]) {
            ck_assert(w->live[i].finished);
            check_end(w, i);
        }
    test_engine_idle(w->e);
}

START_TEST(random_schedules)
{
    struct test_request want[KINDS] = {{0}};
    struct engine_config c = test_engine_config();
    make_kinds();
    struct engine *e = test_engine(model, &c);
    for (uint32_t k = 0; k < KINDS; k++)
        test_generate(e, &kinds[k], &want[k]);
    engine_free(e);
    static const uint32_t pools[] = {10, 17, 40}, chunks[] = {5, 64, 16}, seqs[] = {3, 12, 6};
    for (uint32_t round = 0; round < 3; round++) {
        c = test_engine_config();
        c.n_kv_blocks = pools[round];
        c.prefill_chunk = chunks[round];
        c.max_num_seqs = seqs[round];
        c.max_num_batched_tokens = round ? 48 : 8;
        c.max_queued = 5;
        c.enable_prefix_caching = round != 2;
        struct world w = {.e = test_engine(model, &c), .want = want, .state = 77 * (round + 1)};
        play(&w, 1500);
        ck_assert_uint_gt(w.n_done, 20);
        ck_assert_uint_gt(w.n_cancelled, 3);
        struct engine_stats s;
        engine_get_stats(w.e, &s);
        ck_assert(round == 2 || s.preemptions > 0);
        ck_assert(round == 2 || s.cached_tokens > 0);
        ck_assert_uint_eq(s.finished[FINISH_CANCELLED], w.n_cancelled);
        ck_assert_uint_eq(s.finished[FINISH_ERROR], 0);
        engine_free(w.e);
    }
    for (uint32_t k = 0; k < KINDS; k++)
        test_request_done(&want[k]);
}
END_TEST

/* Fails at one allocation after the other: load, submit, or the step that hits it end in an error;
 * what was given away before was right; nothing leaks (the frame counts). */
START_TEST(without_memory)
{
    struct engine_config c = test_engine_config();
    c.n_threads = 1;
    c.max_num_seqs = 2;
    c.max_num_batched_tokens = 16;
    c.max_context = 64;
    struct test_request want = {0};
    make_kinds();
    uint32_t prompt[20];
    test_tokens(3, 320, prompt, 20);
    struct stop_string stop = {"no such text", 12};
    struct engine_request q = test_request_init(prompt, 20, 12);
    q.sampling.temperature = 1;
    q.sampling.ignore_eos = true;
    q.sampling.logprobs = 2;
    q.sampling.presence_penalty = 0.1f;
    q.sampling.stop = &stop;
    q.sampling.n_stop = 1;
    struct engine *e = test_engine(tiny_model, &c);
    test_generate(e, &q, &want);
    engine_free(e);
    struct test_oom o = {0};
    unsigned in_load = 0, in_submit = 0, in_step = 0;
    while (test_oom_next(&o)) {
        struct error err = {0};
        struct test_request t = {0};
        e = NULL;
        int r = engine_new(tiny_model, &c, NULL, NULL, &e, &err);
        if (r < 0) {
            in_load++;
        } else {
            r = test_submit(e, &q, &t, &err);
            in_submit += r < 0;
        }
        if (r == 0) {
            while (engine_step(e, &err) > 0)
                ;
            ck_assert(t.finished);
            ck_assert_uint_le(t.ids.len, want.ids.len);
            for (size_t i = 0; i < t.ids.len; i++)
                ck_assert_uint_eq(t.ids.ids[i], want.ids.ids[i]);
            r = t.reason == FINISH_ERROR ? t.error : 0;
            in_step += r < 0;
            if (r == 0)
                test_same_output(&t, &want, "the run without failure");
        }
        test_request_done(&t);
        engine_free(e);
        ck_assert_msg(r == (o.failed ? DEDIT_E_NOMEM : 0), "allocation %zu: %s (%s)", o.nth,
                      error_name(r), err.msg);
    }
    ck_assert_uint_gt(in_load, 20);
    ck_assert_uint_gt(in_submit, 3);
    ck_assert_uint_gt(in_step, 0);
    test_request_done(&want);
}
END_TEST

int main(void)
{
    struct fixture f = fixture_random(21);
    model = fixture_write(&f);
    f = fixture_random(5);
    f.vocab = 320;
    tiny_model = fixture_write(&f);
    Suite *s = suite_create("engine-random");
    TCase *t = test_case(s, "random");
    tcase_add_test(t, random_schedules);
    tcase_add_test(t, without_memory);
    return test_main(s);
}
