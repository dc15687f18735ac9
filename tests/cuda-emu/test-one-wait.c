/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds whose passes and verification are enqueued together: a batch of the target is fed with drafts, or
 * trees of them, that the host has not seen.  One wait a step, and the text of plain decoding, whatever else
 * happens: penalties along drafts, log-probabilities, ends inside a block, requests that come, are sent away and
 * come back, trees with fewer nodes than there is room for.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend_cuda.h"
#include "engine/drafter_internal.h"
#include "engine/engine_internal.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/draftergen.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/record.h"
#include "tests/unit/util.h"

enum { OUT = 30, PROMPT = 13, CROWD = 6 }; /* three blocks each */

static char target[512], drafter[512];
static uint32_t n_crowd = CROWD;
static uint32_t length = EMU_FEWER(OUT, 8); /* tokens of an answer, at most OUT */

/* blocks: of the K/V pool, 0: enough */
static struct engine *open_engine(const char *device, uint32_t blocks)
{
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = true;
    c.drafter = drafter;
    c.enable_prefix_caching = true;
    c.n_kv_blocks = blocks;
    return test_engine(target, &c);
}

struct one {
    struct request *r;
    struct test_record out, want;
    uint32_t prompt[PROMPT], stop;
};
static struct one crowd[CROWD];

static struct engine_request request_of(struct one *o, uint32_t i, struct test_record *out)
{
    struct engine_request q = {.prompt = o->prompt, .n_prompt = PROMPT};
    struct sampling_params *s = &q.sampling;
    sampling_params_init(s);
    s->temperature = i % 2 ? 0.8f : 0;
    s->max_tokens = length;
    s->seed = i;
    s->has_seed = true;
    s->ignore_eos = true;
    s->logprobs = i % 3 ? -1 : 2;
    s->repetition_penalty = i == 2 ? 1.3f : 1;
    s->presence_penalty = i == 3 ? 0.5f : 0;
    s->min_tokens = i == 4 ? EMU_FEWER(9, 4) : 0;
    s->stop_ids = &o->stop;
    s->n_stop_ids = o->stop != UINT32_MAX;
    *out = (struct test_record){.most = length};
    q.sink = test_record_sink(out);
    q.drafting.method = DRAFT_AR;
    return q;
}

static void plain_text(struct engine *cpu, struct one *o, uint32_t i)
{
    struct error err = {0};
    o->stop = UINT32_MAX;
    for (int again = 0; again < 2; again++) {
        struct engine_request q = request_of(o, i, &o->want);
        ck_ok(engine_submit(cpu, &q, &o->r, &err), &err);
        while (!o->want.finished)
            ck_assert_int_ge(engine_step(cpu, &err), 0);
        o->r = request_free(o->r);
        if (again || (i != 4 && i != 5))
            return;
        o->stop = o->want.ids[length / 2 + 2];
    }
}

static void make_prompts(struct engine *cpu)
{
    for (uint32_t i = 0; i < n_crowd; i++) {
        for (uint32_t j = 0; j < PROMPT; j++)
            crowd[i].prompt[j] = (i / 2 + j * 11) % 96;
        plain_text(cpu, &crowd[i], i);
    }
}

enum kind { CHAINS, TREES, BOTH };

static void submit(struct engine *e, uint32_t i, uint32_t passes, enum kind kind)
{
    static const uint32_t budgets[CROWD] = {15, 1, 12, 31, 7, EMU_FEWER(127, 30)},
                          windows[] = {4, 5, 2, 7, 8, 9};
    struct error err = {0};
    struct engine_request q = request_of(&crowd[i], i, &crowd[i].out);
    const bool tree = kind == TREES || (kind == BOTH && i % 3);
    q.drafting.method = tree ? DRAFT_DDTREE : passes == 1 ? DRAFT_DFLASH : DRAFT_DEDIT;
    q.drafting.passes = passes;
    q.drafting.window = tree ? windows[i] : 4 + i;
    q.drafting.tree_budget = tree ? budgets[i] : 0;
    q.drafting.visibility = passes > 1 && i % 3 == 1 ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL;
    /* Drafts that are chosen: rule B is rule A. */
    q.drafting.verification = i == 2 && !tree ? DRAFT_REJECTION : DRAFT_RULE_A;
    q.drafting.no_noise = i == 5;
    q.drafting.want_rounds = true;
    ck_ok(engine_submit(e, &q, &crowd[i].r, &err), &err);
}

/* How requests are drafted and run. */
struct how {
    uint32_t passes;
    enum kind kind;
    bool preempt; /* they come one after another, and are sent away in the middle of their texts */
    uint32_t blocks; /* the same happens while a batch is formed whose drafts are on their way */
    void (*spoil)(struct engine *e); /* the drafter is of no use */
};

static void run(struct how h)
{
    struct error err = {0};
    struct engine *cpu = open_engine("cpu", 0), *e = open_engine("emu", h.blocks);
    struct engine_stats s;
    uint64_t drafted = 0, accepted = 0, preempted = 0;
    uint32_t n = 0;
    make_prompts(cpu);
    engine_free(cpu);
    if (h.spoil)
        h.spoil(e);
    const uint64_t waits = emu_counts_now().waits;
    for (int step = 0, more = 1; more || n < n_crowd; step++) {
        if (n < n_crowd && (!h.preempt || 2 * (int)n <= step))
            submit(e, n++, h.passes, h.kind);
        if (!h.preempt)
            while (n < n_crowd)
                submit(e, n++, h.passes, h.kind);
        more = engine_step(e, &err);
        ck_assert_msg(more >= 0, "%s", err.msg);
        for (uint32_t i = 0; i < e->n_running && h.preempt && step % 3 == 0; i++)
            if (e->running[i]->usage.preemptions == 0 &&
                e->running[i]->usage.completion_tokens > EMU_FEWER(5, 1)) {
                request_preempt(e->running[i]);
                break;
            }
        ck_assert_int_lt(step, 1000);
    }
    const uint64_t waited = emu_counts_now().waits - waits;
    engine_get_stats(e, &s);
    for (uint32_t i = 0; i < n_crowd; i++) {
        struct one *o = &crowd[i];
        test_records_equal(&o->out, &o->want, "drafts that the host has not seen");
        drafted += o->out.usage.drafting.drafted;
        accepted += o->out.usage.drafting.accepted;
        preempted += o->out.usage.preemptions;
        o->r = request_free(o->r);
    }
    ck_assert(accepted > 0 || h.spoil);
    ck_assert(drafted > accepted || (h.spoil && drafted == 0));
    ck_assert_msg(preempted > 0 || (!h.preempt && !h.blocks), "%u", (unsigned)preempted);
    if (preempted) /* a shared block that is copied may wait for a move before it */
        ck_assert_uint_le(waited, s.steps + preempted);
    else
        ck_assert_uint_eq(waited, s.steps);
    ck_assert_uint_ge(s.draft_steps, s.draft_rounds / CROWD);
    test_engine_idle(e);
    engine_free(e);
    ck_assert_uint_eq(emu_counts_now().events, 0);
}

START_TEST(together)
{
    static const struct how how[] = {{.passes = 1, .kind = CHAINS},
                                     {.passes = EMU_FEWER(8, 4), .kind = CHAINS},
                                     {.passes = 3, .kind = TREES}};
    run(how[_i]);
}
END_TEST

START_TEST(coming_and_going)
{
    static const struct how how[] = {{.passes = 3, .kind = CHAINS, .preempt = true},
                                     {.passes = 1, .kind = BOTH, .preempt = true}};
    run(how[_i]);
}
END_TEST

START_TEST(tight)
{
    static const struct how how[] = {{.passes = 1, .kind = CHAINS, .blocks = 4},
                                     {.passes = 3, .kind = BOTH, .blocks = 4}};
    length = EMU_FEWER(OUT, 22); /* three blocks */
    n_crowd = EMU_FEWER(CROWD, 4);
    run(how[_i]);
}
END_TEST

/* Every logit is a NaN: there are no candidates, and no tree has a node. */
static void break_drafter(struct engine *e)
{
    struct cuda_model *m = cuda_of(e->own_drafter->model);
    float nans[64];
    ck_assert_uint_le(m->cfg.hidden, 64);
    for (int i = 0; i < 64; i++)
        nans[i] = NAN;
    ck_assert_int_eq(m->api->copy_in(m->stream, (void *)(uintptr_t)m->final_norm, nans,
                                     m->cfg.hidden * sizeof(*nans)),
                     0);
    ck_assert_int_eq(m->api->stream_wait(m->stream), 0);
}

static void nothing(struct engine *e)
{
    (void)e;
}

START_TEST(no_nodes)
{
    length = EMU_FEWER(12, 8);
    run((struct how){.passes = 1, .kind = TREES, .spoil = break_drafter});
}
END_TEST

/* The drafter knows five tokens, and a block of two rows has so many nodes. */
START_TEST(few_nodes)
{
    static char dir[] = "/tmp/dedit-drafter-XXXXXX";
    struct fixture f = fixture_random(21);
    struct gen_drafter g = gen_drafter_new(7);
    f.n_layers = 6;
    g.d2t = "I64";
    g.draft_vocab = 5;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(&g, dir);
    (void)snprintf(target, sizeof(target), "%s", fixture_write(&f));
    (void)snprintf(drafter, sizeof(drafter), "%s", dir);
    length = EMU_FEWER(12, 8);
    run((struct how){.passes = 1, .kind = TREES, .spoil = nothing});
    gen_drafter_remove(&g, dir);
}
END_TEST

/* Drafts, nodes, parents and ends of trees that the device did not have end the step; nobody commits what was
 * verified. */
static struct backend liar;
static int lies;

static int lie(struct backend_model *m, uint32_t lane, uint32_t *ret_tokens,
               struct fwd_node *ret_nodes, uint64_t *ret_ns, struct error *err)
{
    int r = backend_cuda.collect(m, lane, ret_tokens, ret_nodes, ret_ns, err);
    if (lies == 0 || lies == 1)
        ret_tokens[1] ^= 1;
    else if (lies == 2)
        ret_nodes[4].token ^= 1;
    else if (lies == 3)
        ret_nodes[0].parent ^= 1;
    else
        ret_nodes[6].depth++;
    return r;
}

START_TEST(other_drafts)
{
    struct error err = {0};
    struct engine *cpu = open_engine("cpu", 0), *e = open_engine("emu", 0);
    make_prompts(cpu);
    liar = backend_cuda;
    liar.collect = lie;
    e->own_drafter->backend = &liar;
    static struct test_request got;
    struct engine_request q = test_request_init(crowd[0].prompt, PROMPT, OUT);
    q.sampling.ignore_eos = true;
    lies = _i;
    q.drafting.method = lies ? DRAFT_DDTREE : DRAFT_DEDIT;
    q.drafting.tree_budget = lies ? 7 : 0;
    q.drafting.passes = 2;
    ck_ok(test_submit(e, &q, &got, &err), &err);
    while (!got.finished)
        (void)engine_step(e, &err);
    ck_assert_int_eq(got.error, DEDIT_E_INTERNAL);
    ck_assert_uint_eq(got.ids.len, 1); /* the first one, which was not drafted */
    test_request_done(&got);
    test_engine_idle(e);
    engine_free(cpu);
    engine_free(e);
}
END_TEST

/* Results that nobody has asked for, rows that nobody drafts for. */
START_TEST(one_after_another)
{
    struct error err = {0};
    struct engine *e = open_engine("emu", 0);
    uint64_t ns;
    uint32_t feed = 0, tokens[1];
    struct fwd_node nodes[1];
    struct fwd_choice choice;
    const struct backend *b = e->space.backend;
    struct seq *s = NULL;
    ck_fails(b->collect(e->own_drafter->model, 0, tokens, nodes, &ns, &err), INTERNAL, &err);
    ck_ok(engine_seq_new(e, &s, &err), &err);
    ck_ok(seq_reserve(s, &e->space, 1, &err), &err);
    s->tokens[0] = 1;
    seq_rows(s, 0, 1, e->rows);
    struct fwd_batch batch = {.n_rows = 1, .rows = e->rows, .feed = &feed};
    ck_fails(b->forward(e->space.model, &batch, &err), INTERNAL, &err); /* nothing chosen there */
    const struct fwd_tree tree = {.row0 = 0, .n_rows = 2};
    const struct fwd_draw draw = {.pos = 1, .n_rows = 1, .ret = &choice};
    feed = UINT32_MAX;
    batch.trees = &tree;
    batch.n_trees = 1;
    ck_fails(b->forward(e->space.model, &batch, &err), INTERNAL, &err);
    batch.draws = &draw;
    batch.n_draws = 1;
    ck_fails(b->forward(e->space.model, &batch, &err), INTERNAL,
             &err); /* more rows than there are */
    batch.n_trees = batch.n_draws = 0;
    e->own_drafter = drafter_free(e->own_drafter);
    ck_fails(b->forward(e->space.model, &batch, &err), INTERNAL, &err);
    engine_seq_free(e, s);
    engine_free(e);
}
END_TEST

int main(void)
{
    emu_open_library();
    setenv("CUEMU_CHECK", "200", 0); /* other tests look at all accesses of the same kernels */
    (void)snprintf(target, sizeof(target), "%s", test_path("tests/golden/drafter/target"));
    (void)snprintf(drafter, sizeof(drafter), "%s", test_path("tests/golden/drafter/fitted"));

    Suite *s = suite_create("cuda-one-wait");
    TCase *t = test_case(s, "rounds");
    tcase_add_loop_test(t, together, 0, 3);
    tcase_add_loop_test(t, coming_and_going, 0, 2);
    tcase_add_loop_test(t, tight, 0, 2);
    tcase_add_test(t, no_nodes);
    tcase_add_test(t, few_nodes);
    tcase_add_loop_test(t, other_drafts, 0, 5);
    tcase_add_test(t, one_after_another);
    return test_main(s);
}
