/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafting with a block drafter, as the scheduler runs it: passes in steps of their own, context for
 * every position whatever happened before (chunks, prefix hits, preemption, parking), and the same
 * answers as plain decoding.
 */
#include <string.h>

#include "base/hash.h"
#include "tests/unit/fake-drafter.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

static const char *model;

enum { WINDOW = 8, N = 6, PROMPT = 100, OUT = 40 };

/* Requests, their plain answers, their texts. */
struct world {
    uint32_t prompt[N][PROMPT];
    struct engine_request q[N];
    struct test_request plain[N], got[N];
    struct fake_text text[N];
};
static struct world w;

static void make_world(uint32_t n, const uint32_t *n_prompt)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(model, &c);
    memset(&w, 0, sizeof(w));
    for (uint32_t i = 0; i < n; i++) {
        test_tokens(i / 2, FIXTURE_VOCAB, w.prompt[i], PROMPT);
        w.q[i] = test_request_init(w.prompt[i], n_prompt[i], OUT);
        w.q[i].sampling.ignore_eos = true;
        w.q[i].sampling.temperature = i % 2 ? 1.0f : 0;
        w.q[i].sampling.seed = 7;
        test_generate(e, &w.q[i], &w.plain[i]);
        fake_text_init(&w.text[i], e, w.prompt[i], n_prompt[i], &w.plain[i]);
        test_request_done(&w.plain[i]);
    }
    engine_free(e);
}

static struct engine *drafted_engine(const struct engine_config *c, struct fake_drafter *f)
{
    struct engine *e = test_engine(model, c);
    fake_drafter_init(f, e, WINDOW);
    f->texts = w.text;
    f->n_texts = N;
    return e;
}

static void submit(struct engine *e, uint32_t i, enum draft_method m, uint32_t passes)
{
    struct error err = {0};
    w.q[i].drafting = (struct drafting_params){.method = m, .passes = passes};
    ck_ok(test_submit(e, &w.q[i], &w.got[i], &err), &err);
    w.text[i].r = w.got[i].r;
}

/* Ends request i and compares. */
static struct engine_drafting check(uint32_t i)
{
    struct test_request *t = &w.got[i];
    test_same_output(t, &w.plain[i], "drafted");
    struct engine_drafting d = t->usage.drafting;
    ck_assert_uint_eq(d.committed + d.plain_rounds + d.prefill_tokens, t->usage.completion_tokens);
    w.text[i].r = NULL;
    test_request_done(t);
    memset(t, 0, sizeof(*t));
    return d;
}

static const uint32_t usual[N] = {100, 20, 33, 16, 1, 60};

START_TEST(every_method)
{
    static const struct {
        enum draft_method m;
        uint32_t passes;
    } methods[] = {{DRAFT_DFLASH, 0}, {DRAFT_DEDIT, 1},  {DRAFT_DEDIT, 3}, {DRAFT_DEDIT, 8},
                   {DRAFT_DDTREE, 1}, {DRAFT_DDTREE, 2}, {DRAFT_AUTO, 0}};
    make_world(N, usual);
    struct engine_config c = test_engine_config();
    for (size_t m = 0; m < sizeof(methods) / sizeof(*methods); m++) {
        struct fake_drafter f;
        struct engine *e = drafted_engine(&c, &f);
        for (uint32_t i = 0; i < N; i++)
            submit(e, i, methods[m].m, methods[m].passes);
        test_run(e, NULL, 0);
        uint64_t rejected = 0;
        for (uint32_t i = 0; i < N; i++) {
            struct engine_drafting d = check(i);
            if (methods[m].m == DRAFT_AUTO)
                continue; /* it chooses by the clock */
            ck_assert_uint_gt(d.rounds, 0);
            ck_assert_uint_gt(d.accepted, 0);
            rejected += d.drafted - d.accepted;
            if (methods[m].passes > 1) {
                ck_assert_uint_gt(d.edits_helpful, 0);
                ck_assert_uint_ge(d.accepted_after[methods[m].passes - 1], d.accepted_after[0]);
            }
        }
        ck_assert(rejected > 0 || methods[m].passes == 8 || methods[m].m == DRAFT_AUTO);
        /* Passes are shared; auto may have found no more than one request worth it. */
        ck_assert_uint_gt(f.most_entries, methods[m].m != DRAFT_AUTO);
        test_engine_idle(e);
        engine_free(e);
        fake_drafter_done(&f);
    }
}
END_TEST

static void give_costs(struct engine *e, double ns, double slope, double pass, double pass_slope)
{
    struct costs *c = &e->controller.costs;
    cost_fill(&c->table[COST_TARGET], ns, slope);
    cost_fill(&c->table[COST_DRAFTER], pass, pass_slope);
    c->pace = 1;
}

/* The method auto, with costs that are given instead of measured: slope is what one more row adds.  ahead: it
 * decides before rounds alone, as on a device. */
static struct engine_drafting automatic(bool ahead, double slope, double pass, uint32_t wrong,
                                        uint32_t *ret_n)
{
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    struct engine_drafting sum = {0};
    struct error err = {0};
    struct engine *e = drafted_engine(&c, &f);
    e->controller.ahead = ahead;
    f.wrong = wrong;
    *ret_n = 0;
    for (uint32_t i = 0; i < 2 * N; i++) { /* one after another: the second half has learned */
        submit(e, i % N, DRAFT_AUTO, 0);
        for (int more = 1; more > 0;) {
            give_costs(e, 1e6, slope, pass * 1e6, 0);
            more = engine_step(e, &err);
            ck_assert_int_ge(more, 0);
        }
        struct engine_drafting d = check(i % N);
        if (i < N)
            continue;
        *ret_n += OUT;
        sum.rounds += d.rounds;
        sum.plain_rounds += d.plain_rounds;
        sum.passes += d.passes;
        sum.drafted += d.drafted;
        sum.accepted += d.accepted;
    }
    engine_free(e);
    fake_drafter_done(&f);
    return sum;
}

START_TEST(auto_follows_costs)
{
    uint32_t n;
    make_world(N, usual);
    /* Rows as dear as tokens: nothing is worth verifying, and the drafter is left alone, but for tries, which verify
     * a node where nobody looks at it before. */
    struct engine_drafting d = automatic(_i, 1, 0.2, 4, &n);
    ck_assert_uint_le(d.drafted, _i ? d.passes : 0);
    ck_assert_uint_le(d.passes, n / 16);
    /* Rows for nothing, a good drafter. */
    d = automatic(_i, 0.01, 0.1, 8, &n);
    ck_assert_uint_gt(d.rounds, 4 * d.plain_rounds);
    ck_assert_uint_gt(d.accepted, n / 3);
    /* A useless drafter is tried now and then. */
    d = automatic(_i, 0.01, 0.3, 1, &n);
    ck_assert_uint_le(d.passes, n / 12);
    /* A drafter as slow as the target. */
    d = automatic(_i, 0.01, 6, 8, &n);
    ck_assert_uint_le(d.passes, n / 12);
}
END_TEST

/* Costs that make one size the right one: rows come in tiles of six, or a pass is all but free. */
static struct engine_drafting shaped(bool ahead, uint32_t tile, double pass, double pass_slope,
                                     uint32_t wrong)
{
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    struct engine_drafting sum = {0};
    struct error err = {0};
    struct engine *e = drafted_engine(&c, &f);
    e->controller.ahead = ahead;
    f.wrong = wrong;
    for (uint32_t i = 0; i < 8 * N; i++) {
        submit(e, i % N, DRAFT_AUTO, 0);
        for (int more = 1; more > 0;) {
            give_costs(e, 1e6, 0, pass * 1e6, pass_slope);
            struct cost_table *t = &e->controller.costs.table[COST_TARGET];
            for (int k = 0; k < COST_SIZES; k++)
                t->ns[k] = 1e6 * (double)((cost_sizes[k] + tile - 1) / tile);
            more = engine_step(e, &err);
            ck_assert_int_ge(more, 0);
        }
        struct engine_drafting d = check(i % N);
        sum.rounds += i < N ? 0 : d.rounds;
        sum.passes += i < N ? 0 : d.passes;
        sum.drafted += i < N ? 0 : d.drafted;
    }
    engine_free(e);
    fake_drafter_done(&f);
    return sum;
}

START_TEST(auto_fits_the_machine)
{
    make_world(N, usual);
    /* The rows of one tile, the anchor's among them. */
    struct engine_drafting six = shaped(_i, 6, 0.1, 0, 8);
    ck_assert_uint_gt(six.rounds, 0);
    ck_assert_uint_le(six.drafted, 5 * six.rounds + six.rounds / 2);
    ck_assert_uint_gt(six.drafted, 3 * six.rounds);
    struct engine_drafting many = shaped(_i, 40, 0.1, 0, 8);
    ck_assert_uint_gt(many.drafted * six.rounds, 2 * six.drafted * many.rounds);
    /* Passes that mend something, for nothing, and dear ones. */
    struct engine_drafting cheap = shaped(_i, 40, 0.001, 0, 2), dear = shaped(_i, 40, 0.4, 0, 2);
    ck_assert_msg(4 * cheap.passes > 5 * cheap.rounds, "%u passes in %u rounds",
                  (unsigned)cheap.passes, (unsigned)cheap.rounds);
    ck_assert_msg(4 * dear.passes < 5 * dear.rounds + 4, "%u passes in %u rounds",
                  (unsigned)dear.passes, (unsigned)dear.rounds);
}
END_TEST

/* Rows behind the mark: there until the next target batch, as many as are kept, and never in the way of
 * those that belong there: the fake compares every row before every pass. */
START_TEST(rows_behind_the_mark)
{
    make_world(2, usual);
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    struct error err = {0};
    struct engine *e = drafted_engine(&c, &f);
    static float made_up[64 * 2 * 4096];
    const size_t row = (size_t)e->drafter.n_taps * e->model->hidden;
    ck_assert_uint_le(20 * row, sizeof(made_up) / sizeof(*made_up));
    uint32_t extended = 0;
    submit(e, 0, DRAFT_DEDIT, 2);
    submit(e, 1, DRAFT_AR, 0);
    for (int more = 1; more > 0;) {
        struct request *r = w.got[0].r;
        if (r->state == REQUEST_RUNNING && r->drafting->phase == DRAFTING_READY) {
            ck_fails(drafting_extend(e, w.got[1].r, made_up, 1, &err), INVALID, &err);
            uint32_t at = r->seq.n_kv;
            int k = drafting_extend(e, r, made_up, 13, &err);
            if (k == 0)
                k = drafting_extend(e, r, made_up + 13 * row, 5, &err);
            if (k == 0) {
                ck_assert_uint_eq(drafting_extended(r), 18);
                for (uint32_t i = 0; i < 18; i++)
                    ck_assert(seq_drafted(&r->seq, e->space.pool, at + i));
                drafting_roll_back(e, r, 7);
                ck_assert_uint_eq(drafting_extended(r), 7);
                for (uint32_t i = 0; i < 18; i++)
                    ck_assert(seq_drafted(&r->seq, e->space.pool, at + i) == (i < 7));
                ck_assert_uint_eq(drafting_cursor(e, r), at); /* they are nobody's context */
                extended++;
            } else {
                ck_assert_int_eq(k, DEDIT_E_INVALID); /* the end is near */
            }
        }
        more = engine_step(e, &err);
        ck_assert_int_ge(more, 0);
        if (more && w.got[0].r->state == REQUEST_RUNNING &&
            w.got[0].r->drafting->phase == DRAFTING_IDLE)
            ck_assert_uint_eq(drafting_extended(w.got[0].r), 0);
    }
    ck_assert_uint_gt(extended, 3);
    ck_assert_uint_eq(drafting_extended(w.got[1].r), 0);
    (void)check(0);
    (void)check(1);
    test_engine_idle(e);
    engine_free(e);
    fake_drafter_done(&f);
}
END_TEST

/* Different numbers of passes side by side, with plain and looked-up requests between them. */
START_TEST(mixed_batch)
{
    make_world(N, usual);
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    struct engine *e = drafted_engine(&c, &f);
    submit(e, 0, DRAFT_DEDIT, 3);
    submit(e, 1, DRAFT_DFLASH, 0);
    submit(e, 2, DRAFT_AR, 0);
    submit(e, 3, DRAFT_DDTREE, 2);
    submit(e, 4, DRAFT_NGRAM, 0);
    submit(e, 5, DRAFT_DEDIT, 2);
    test_run(e, NULL, 0);
    for (uint32_t i = 0; i < N; i++)
        (void)check(i);
    /* 40 tokens of a plain request need 39 more target steps; passes come between them. */
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_gt(s.draft_steps, 0);
    ck_assert_uint_le(s.draft_steps, 3 * s.steps);
    engine_free(e);
    fake_drafter_done(&f);
}
END_TEST

/* DEC-07: what is drafted and accepted does not depend on how the prompt was cut. */
START_TEST(chunks_change_nothing)
{
    static const uint32_t chunks[] = {1, 7, 16, 100}, n_prompt[] = {100, 5, 64};
    make_world(3, n_prompt);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t record = 0;
        for (size_t k = 0; k < 4; k++) {
            struct engine_config c = test_engine_config();
            struct fake_drafter f;
            c.prefill_chunk = chunks[k];
            struct engine *e = drafted_engine(&c, &f);
            submit(e, i, DRAFT_DEDIT, 2);
            test_run(e, NULL, 0);
            struct engine_drafting d = check(i);
            ck_assert_uint_gt(d.rounds, 3);
            if (k == 0)
                record = f.record;
            ck_assert_uint_eq(f.record, record);
            engine_free(e);
            fake_drafter_done(&f);
        }
    }
}
END_TEST

/* Blocks that a plain request made have no context: it is completed while decoding goes on. */
START_TEST(after_a_plain_prefix)
{
    static const uint32_t n_prompt[] = {100, 100};
    make_world(2, n_prompt);
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    c.prefill_chunk = 30;
    struct engine *e = drafted_engine(&c, &f);
    struct engine_stats s;
    submit(e, 0, DRAFT_AR, 0);
    test_run(e, NULL, 0);
    (void)check(0);
    ck_assert_uint_eq(f.n_injected, 0);
    submit(e, 0, DRAFT_DFLASH, 0);
    test_run(e, NULL, 0);
    ck_assert_uint_eq(w.got[0].usage.cached_tokens, 96);
    struct engine_drafting d = check(0);
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.recontext_tokens, 96);
    ck_assert_uint_gt(d.plain_rounds, 1); /* meanwhile */
    ck_assert_uint_gt(d.rounds, 2);
    /* The same prefix again: all there. */
    submit(e, 1, DRAFT_DFLASH, 0);
    test_run(e, NULL, 0);
    ck_assert_uint_eq(w.got[1].usage.cached_tokens, 96);
    d = check(1);
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.recontext_tokens, 96);
    ck_assert_uint_le(d.plain_rounds, 1); /* the last token, perhaps */
    engine_free(e);
    fake_drafter_done(&f);
}
END_TEST

/* A next turn: prompt = the last turn's text, made by drafted rounds, ended in the middle of one. */
START_TEST(after_a_drafted_answer)
{
    static const uint32_t n_prompt[] = {30};
    make_world(1, n_prompt);
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    struct engine *e = drafted_engine(&c, &f);
    submit(e, 0, DRAFT_DEDIT, 2);
    test_run(e, NULL, 0);
    (void)check(0);
    memcpy(w.prompt[0], w.text[0].tokens, 70 * sizeof(uint32_t));
    w.q[0] = test_request_init(w.prompt[0], 70, OUT);
    w.q[0].sampling.ignore_eos = true;
    struct engine *plain = test_engine(model, &c);
    memset(&w.plain[0], 0, sizeof(w.plain[0]));
    test_generate(plain, &w.q[0], &w.plain[0]);
    fake_text_init(&w.text[0], plain, w.prompt[0], 70, &w.plain[0]);
    test_request_done(&w.plain[0]);
    engine_free(plain);
    submit(e, 0, DRAFT_DEDIT, 2);
    test_run(e, NULL, 0);
    ck_assert_uint_ge(w.got[0].usage.cached_tokens, 48);
    (void)check(0);
    engine_free(e);
    fake_drafter_done(&f);
}
END_TEST

/* SCH-03: preempted in any phase, twice and more. */
START_TEST(preemption)
{
    make_world(N, (const uint32_t[]){60, 20, 33, 16, 1, 60});
    uint32_t preemptions = 0, in_flight = 0, edited = 0;
    for (uint32_t blocks = 7; blocks < 12; blocks++) {
        struct engine_config c = test_engine_config();
        struct fake_drafter f;
        c.n_kv_blocks = blocks;
        c.max_num_batched_tokens = blocks % 2 ? 24 : 200;
        struct engine *e = drafted_engine(&c, &f);
        for (uint32_t i = 0; i < N; i++)
            submit(e, i, i % 3 ? DRAFT_DEDIT : DRAFT_DDTREE, 2 + i % 3);
        /* Somebody is sent away while others wait for an edit pass. */
        struct error err = {0};
        for (int step = 0, more = 1; more; step++) {
            more = engine_step(e, &err);
            ck_assert_int_ge(more, 0);
            ck_assert_int_lt(step, 100000);
            if (step % 7 != 5 || e->n_running < 2)
                continue;
            struct request *r = e->running[e->n_running - 1];
            in_flight += r->drafting->phase == DRAFTING_PASSES;
            edited += r->drafting->phase == DRAFTING_PASSES && r->drafting->round.pass > 0;
            request_preempt(r);
            if (step % 2 && e->wait_head) { /* and once more as soon as it is back */
                more = engine_step(e, &err);
                if (r->state == REQUEST_RUNNING && e->n_running > 1)
                    request_preempt(r);
            }
        }
        for (uint32_t i = 0; i < N; i++) {
            preemptions += w.got[i].usage.preemptions;
            (void)check(i);
        }
        test_engine_idle(e);
        engine_free(e);
        fake_drafter_done(&f);
    }
    ck_assert_uint_gt(preemptions, 20);
    ck_assert_uint_gt(in_flight, 0); /* with passes to come */
    ck_assert_uint_gt(edited, 0);    /* and after the first */
}
END_TEST

START_TEST(parking_and_cancelling)
{
    make_world(N, usual);
    for (int k = 0; k < 12; k++) {
        struct engine_config c = test_engine_config();
        struct fake_drafter f;
        struct engine *e = drafted_engine(&c, &f);
        struct test_request *parked[N];
        for (uint32_t i = 0; i < N; i++) {
            w.got[i].park_every = i % 3;
            submit(e, i, DRAFT_DEDIT, 3);
            parked[i] = &w.got[i];
        }
        struct error err = {0};
        for (int s = 0; s < 5 + k; s++)
            ck_assert_int_ge(engine_step(e, &err), 0);
        engine_cancel(e, w.got[0].r); /* in one phase or another */
        ck_assert(w.got[0].finished);
        ck_assert_int_eq(w.got[0].reason, FINISH_CANCELLED);
        test_run(e, parked, N);
        for (uint32_t i = 1; i < N; i++)
            (void)check(i);
        /* SMP-06: what was in flight is counted nowhere. */
        struct engine_drafting *d = &w.got[0].usage.drafting;
        ck_assert_uint_eq(d->committed + d->plain_rounds + d->prefill_tokens, w.got[0].ids.len);
        test_request_done(&w.got[0]);
        memset(w.got, 0, sizeof(w.got));
        test_engine_idle(e);
        engine_free(e);
        fake_drafter_done(&f);
    }
}
END_TEST

/* DEC-06: the drafter sees fewer positions than the target. */
START_TEST(short_drafter)
{
    static const uint32_t n_prompt[] = {20, 30};
    make_world(2, n_prompt);
    struct engine_config c = test_engine_config();
    for (uint32_t limit = 1; limit < 64; limit += 3) {
        struct fake_drafter f;
        struct engine *e = drafted_engine(&c, &f);
        e->drafter.max_context = limit; /* the fake checks that no block reaches beyond */
        submit(e, 0, DRAFT_DFLASH, 0);
        submit(e, 1, DRAFT_DDTREE, 0);
        test_run(e, NULL, 0);
        struct engine_drafting a = check(0), b = check(1);
        ck_assert_int_eq(a.rounds > 0, limit >= 20 + WINDOW);
        ck_assert_int_eq(b.rounds > 0, limit >= 30 + WINDOW);
        engine_free(e);
        fake_drafter_done(&f);
    }
}
END_TEST

/* DEC-05: nothing of a request stays for the next one. */
START_TEST(one_after_another)
{
    make_world(3, (const uint32_t[]){100, 5, 100});
    static const uint32_t order[] = {0, 1, 2, 0, 1, 1, 0};
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    uint64_t first[3] = {0};
    c.enable_prefix_caching = false;
    struct engine *e = drafted_engine(&c, &f);
    for (size_t k = 0; k < sizeof(order) / sizeof(*order); k++) {
        uint32_t i = order[k];
        f.record = 0;
        submit(e, i, DRAFT_DEDIT, 2);
        test_run(e, NULL, 0);
        struct engine_drafting d = check(i);
        uint64_t all = hash_bytes(&d.accepted, sizeof(d.accepted), f.record);
        if (first[i])
            ck_assert_uint_eq(all, first[i]);
        first[i] = all;
    }
    engine_free(e);
    fake_drafter_done(&f);
}
END_TEST

START_TEST(fixed_point_ends_editing)
{
    make_world(1, (const uint32_t[]){40});
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    struct engine *e = drafted_engine(&c, &f);
    f.fixed_point = true;
    f.wrong = 0;
    submit(e, 0, DRAFT_DEDIT, 8);
    test_run(e, NULL, 0);
    struct engine_drafting d = check(0);
    ck_assert_uint_eq(d.passes, 2 * d.rounds);
    ck_assert_uint_eq(d.accepted + d.rounds, d.committed);
    engine_free(e);
    fake_drafter_done(&f);
}
END_TEST

START_TEST(failures)
{
    make_world(2, (const uint32_t[]){40, 20});
    for (int k = 0; k < 2; k++) {
        struct engine_config c = test_engine_config();
        struct fake_drafter f;
        struct error err = {0};
        struct engine *e = drafted_engine(&c, &f);
        f.fail_pass = k ? 3 : 0;
        f.fail_inject = k ? 0 : 3;
        submit(e, 0, DRAFT_DFLASH, 0);
        submit(e, 1, DRAFT_DFLASH, 0);
        int r = 1;
        while (r > 0)
            r = engine_step(e, &err);
        ck_assert_int_eq(r, DEDIT_E_INTERNAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "as asked"));
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(w.got[i].reason, FINISH_ERROR);
            test_request_done(&w.got[i]);
            memset(&w.got[i], 0, sizeof(w.got[i]));
        }
        test_engine_idle(e);
        /* It serves on. */
        submit(e, 1, DRAFT_DFLASH, 0);
        test_run(e, NULL, 0);
        (void)check(1);
        engine_free(e);
        fake_drafter_done(&f);
    }
}
END_TEST

/* Every allocation fails once: the request ends with that, or as it should. */
START_TEST(without_memory)
{
    static const enum draft_method methods[] = {DRAFT_DEDIT, DRAFT_AUTO, DRAFT_DDTREE};
    make_world(1, (const uint32_t[]){40});
    struct engine_config c = test_engine_config();
    for (size_t m = 0; m < 3; m++) {
        struct fake_drafter f;
        struct engine *e = drafted_engine(&c, &f);
        struct test_oom o = {0};
        uint32_t n = 0, failed = 0;
        while (test_oom_next(&o)) {
            struct error err = {0};
            w.q[0].drafting = (struct drafting_params){.method = methods[m]};
            int r = test_submit(e, &w.q[0], &w.got[0], &err);
            w.text[0].r = w.got[0].r;
            while (r == 0 && engine_step(e, &err) > 0)
                ;
            if (r == 0 && w.got[0].reason != FINISH_ERROR) {
                (void)check(0);
            } else {
                ck_assert(o.failed);
                ck_assert_int_eq(r ? r : w.got[0].error, DEDIT_E_NOMEM);
                test_request_done(&w.got[0]);
                memset(&w.got[0], 0, sizeof(w.got[0]));
                w.text[0].r = NULL;
                failed++;
            }
            test_engine_idle(e);
            n++;
        }
        ck_assert_uint_gt(failed, 3);
        ck_assert_uint_lt(failed, n);
        engine_free(e);
        fake_drafter_done(&f);
    }
}
END_TEST

/* Sequences: which positions have context, across forks, copies on write and truncation. */
START_TEST(context_marks)
{
    make_world(1, (const uint32_t[]){40});
    struct engine_config c = test_engine_config();
    struct fake_drafter f;
    struct error err = {0};
    struct engine *e = drafted_engine(&c, &f);
    struct seq *a = NULL, *b = NULL;
    ck_ok(engine_seq_new(e, &a, &err), &err);
    test_feed(e, a, w.prompt[0], 22, 22, NULL, NULL, 0, NULL);
    for (uint32_t p = 0; p < 22; p++) {
        ck_assert(!seq_drafted(a, e->space.pool, p));
        if (p % 3) {
            seq_set_drafted(a, e->space.pool, p);
            f.context[seq_slot(a, p)] = p;
        }
    }
    ck_ok(engine_seq_fork(e, a, &b, &err), &err);
    test_feed(e, b, w.prompt[0] + 22, 10, 10, NULL, NULL, 0, NULL); /* the second block is copied */
    ck_assert_uint_eq(f.n_copied, 6);
    for (uint32_t p = 0; p < 22; p++) {
        ck_assert_int_eq(seq_drafted(b, e->space.pool, p), p % 3 != 0);
        if (p % 3)
            ck_assert_uint_eq(f.context[seq_slot(b, p)], p);
    }
    for (uint32_t p = 22; p < 32; p++)
        ck_assert(!seq_drafted(b, e->space.pool, p));
    /* Written again: the marks behind go. */
    engine_seq_truncate(e, a, 18);
    test_feed(e, a, w.prompt[0], 6, 6, NULL, NULL, 0, NULL);
    for (uint32_t p = 0; p < 24; p++)
        ck_assert_int_eq(seq_drafted(a, e->space.pool, p), p < 18 && p % 3 != 0);
    ck_assert(seq_drafted(b, e->space.pool, 20));
    a = engine_seq_free(e, a);
    b = engine_seq_free(e, b);
    engine_free(e);
    fake_drafter_done(&f);
}
END_TEST

int main(void)
{
    struct fixture f = fixture_random(11);
    model = fixture_write(&f);
    Suite *s = suite_create("drafting");
    TCase *t = test_case(s, "drafter");
    tcase_add_test(t, every_method);
    tcase_add_test(t, mixed_batch);
    tcase_add_loop_test(t, auto_follows_costs, 0, 2);
    tcase_add_loop_test(t, auto_fits_the_machine, 0, 2);
    tcase_add_test(t, rows_behind_the_mark);
    tcase_add_test(t, chunks_change_nothing);
    tcase_add_test(t, after_a_plain_prefix);
    tcase_add_test(t, after_a_drafted_answer);
    tcase_add_test(t, preemption);
    tcase_add_test(t, parking_and_cancelling);
    tcase_add_test(t, short_drafter);
    tcase_add_test(t, one_after_another);
    tcase_add_test(t, fixed_point_ends_editing);
    tcase_add_test(t, failures);
    tcase_add_test(t, without_memory);
    tcase_add_test(t, context_marks);
    return test_main(s);
}
