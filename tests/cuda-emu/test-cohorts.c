/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two cohorts on two streams: the text of plain decoding on the CPU, whatever drafts, whoever comes, goes, is sent away or
 * parked, also while his batch is on its way; no race between the streams, and one where an order is left out;
 * no wait that leaves the device without work while both cohorts run.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend_cuda.h"
#include "engine/drafter_internal.h"
#include "engine/engine_internal.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/record.h"
#include "tests/unit/util.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LOOKED_AT 0 /* accesses, by the emulator: sanitizers do it themselves */
#else
#define LOOKED_AT 1
#endif

enum { CROWD = 6, OUT = EMU_FEWER(16, 10), LONGEST = 26 };

static char target[512], drafter[512];
static uint32_t n_crowd = CROWD, length = OUT;

struct how {
    const char *name;
    enum draft_method methods[3]; /* in turn */
    uint32_t passes;
    uint32_t cohorts;
    uint32_t blocks; /* of the K/V pool, 0: enough */
    bool calm;       /* all at once, and nobody leaves before the end */
    bool apart;      /* not even as many passes, so that not all of a cohort is enqueued at once */
};

static struct engine *open_engine(const char *device, uint32_t cohorts, uint32_t blocks)
{
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = true;
    c.drafter = drafter;
    c.n_kv_blocks = blocks ? blocks : 60;
    c.max_context = 96;
    c.max_num_batched_tokens = 96;
    c.prefill_chunk = 7;
    c.cohorts = cohorts;
    struct engine *e = test_engine(target, &c);
    ck_assert_uint_eq(e->n_cohorts, strcmp(device, "cpu") == 0 ? 1 : cohorts);
    return e;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

struct one {
    struct request *r;
    struct test_record out, want;
    uint32_t prompt[LONGEST];
    bool cancelled;
};
static struct one crowd[CROWD];

static struct engine_request request_of(uint32_t i, struct test_record *out)
{
    static const uint32_t n_prompt[CROWD] = {13, 5, 26, 9, 21, 17};
    struct engine_request q = {
        .prompt = crowd[i].prompt, .n_prompt = n_prompt[i], .want_tokens_text = true};
    struct sampling_params *s = &q.sampling;
    sampling_params_init(s);
    s->temperature = i % 2 ? 0.8f : 0;
    s->max_tokens = length - i;
    s->seed = i;
    s->has_seed = true;
    s->ignore_eos = true;
    s->logprobs = i % 3 ? -1 : 2;
    s->repetition_penalty = i == 2 ? 1.3f : 1;
    s->top_k = i == 5 ? 12 : 0;
    *out = (struct test_record){.most = length};
    q.sink = test_record_sink(out);
    q.drafting.method = DRAFT_AR;
    return q;
}

static void make_wanted(void)
{
    struct error err = {0};
    struct engine *cpu = open_engine("cpu", 2, 0);
    for (uint32_t i = 0; i < n_crowd; i++) {
        for (uint32_t j = 0; j < LONGEST; j++)
            crowd[i].prompt[j] = (i / 2 + j * 11) % 96;
        struct engine_request q = request_of(i, &crowd[i].want);
        ck_ok(engine_submit(cpu, &q, &crowd[i].r, &err), &err);
    }
    while (engine_step(cpu, &err))
        ;
    for (uint32_t i = 0; i < n_crowd; i++)
        crowd[i].r = request_free(crowd[i].r);
    engine_free(cpu);
}

static void submit(struct engine *e, uint32_t i, const struct how *h)
{
    struct error err = {0};
    struct engine_request q = request_of(i, &crowd[i].out);
    q.drafting.method = h->methods[i % 3];
    const enum draft_method m = q.drafting.method;
    if (m != DRAFT_AR && m != DRAFT_NGRAM && m != DRAFT_AUTO)
        q.drafting.window = 4 + i % 4;
    if (m == DRAFT_DEDIT || m == DRAFT_DDTREE)
        q.drafting.passes = h->apart ? h->passes + i % 2 : h->passes;
    if (m == DRAFT_DDTREE)
        q.drafting.tree_budget = 5 + i;
    q.drafting.visibility = m == DRAFT_DEDIT && i % 2 ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL;
    q.drafting.verification = h->apart && i == 1 ? DRAFT_REJECTION : DRAFT_RULE_A;
    q.drafting.want_rounds = true;
    crowd[i].out.park_every = i == 3 && !h->calm ? 3 : 0;
    crowd[i].cancelled = false;
    ck_ok(engine_submit(e, &q, &crowd[i].r, &err), &err);
}

/* Rule B that draws has another text. */
static bool comparable(const struct how *h, uint32_t i)
{
    return !(h->apart && i == 1 && crowd[i].out.usage.drafting.drafted);
}

/* ---- what happens beside the steps ------------------------------------------------------------------------ */

static uint32_t on_their_way(const struct engine *e)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < e->n_cohorts; c++)
        n += e->steps[c].flies;
    return n;
}

static bool flies(const struct engine *e, const struct request *r)
{
    return r->state == REQUEST_RUNNING && e->steps[r->cohort].flies;
}

/* One is sent away, one ends, in the middle of their texts, and, where batches ever are, on their way. */
static void disturb(struct engine *e, const struct how *h, uint32_t n)
{
    const bool ever = h->cohorts > 1 && h->methods[0] != DRAFT_AR && !h->apart;
    for (uint32_t i = 0; i < n; i++) {
        struct one *o = &crowd[i];
        if (!o->r || o->out.finished)
            continue;
        if (o->r->state == REQUEST_PARKED)
            engine_resume(e, o->r);
        else if (i % 2 == 0 && o->out.n > 3 && o->r->usage.preemptions == 0 &&
                 (flies(e, o->r) || !ever))
            request_preempt(o->r);
        else if (i == CROWD - 2 && o->out.n > 2 && (flies(e, o->r) || !ever)) {
            o->cancelled = true;
            engine_cancel(e, o->r);
            o->r = request_free(o->r); /* and so is what its drafts were to be written to */
        }
    }
}

struct seen {
    uint64_t both; /* steps behind which both cohorts' batches were on their way */
    uint64_t preempted, accepted, rejected, cancelled;
};

static void check(const struct how *h, struct seen *seen)
{
    for (uint32_t i = 0; i < n_crowd; i++) {
        struct one *o = &crowd[i];
        char what[80];
        (void)snprintf(what, sizeof(what), "%s, %u cohorts, request %u", h->name, h->cohorts, i);
        seen->preempted += o->out.usage.preemptions;
        seen->accepted += o->out.usage.drafting.accepted;
        seen->rejected += o->out.usage.drafting.drafted - o->out.usage.drafting.accepted;
        seen->cancelled += o->cancelled;
        if (o->cancelled) {
            ck_assert_msg(o->out.reason == FINISH_CANCELLED && o->out.n < o->want.n, "%s", what);
            ck_assert_mem_eq(o->out.ids, o->want.ids, o->out.n * sizeof(*o->out.ids));
        } else if (comparable(h, i)) {
            test_records_equal(&o->out, &o->want, what);
        } else {
            ck_assert_msg(o->out.finished && o->out.n == o->want.n, "%s", what);
        }
        o->r = request_free(o->r);
    }
}

static struct seen run(struct engine *e, const struct how *h)
{
    struct error err = {0};
    struct seen seen = {0};
    uint32_t n = 0;
    for (int step = 0, more = 1; more || n < n_crowd || e->n_parked || e->n_waiting; step++) {
        while (n < n_crowd && (h->calm || n < 3 || 2 * (int)n <= step))
            submit(e, n++, h);
        more = engine_step(e, &err);
        ck_assert_msg(more >= 0, "%s: %s", h->name, err.msg);
        seen.both += on_their_way(e) == 2;
        if (!h->calm)
            disturb(e, h, n);
        ck_assert_int_lt(step, 3000);
    }
    check(h, &seen);
    test_engine_idle(e);
    return seen;
}

/* ---- the same bytes -------------------------------------------------------------------------------------- */

static const struct how hows[] = {
    {"ar", {DRAFT_AR, DRAFT_AR, DRAFT_NGRAM}, 0, 2, 0, false, false},
    {"dflash", {DRAFT_DFLASH, DRAFT_DFLASH, DRAFT_DFLASH}, 1, 2, 0, false, false},
    {"dedit", {DRAFT_DEDIT, DRAFT_DEDIT, DRAFT_DEDIT}, 3, 2, 0, false, false},
    {"ddtree", {DRAFT_DDTREE, DRAFT_DDTREE, DRAFT_DDTREE}, 2, 2, 0, false, false},
    {"auto", {DRAFT_AUTO, DRAFT_AUTO, DRAFT_AUTO}, 0, 2, 0, false, false},
    {"mixed", {DRAFT_DEDIT, DRAFT_DDTREE, DRAFT_AR}, 2, 2, 0, false, false},
    {"apart", {DRAFT_AUTO, DRAFT_DEDIT, DRAFT_DDTREE}, 2, 2, 0, false, true},
    {"tight", {DRAFT_DEDIT, DRAFT_DDTREE, DRAFT_DFLASH}, 1, 2, 4, true, false},
    {"mixed", {DRAFT_DEDIT, DRAFT_DDTREE, DRAFT_AR}, 2, 1, 0, false, false},
};
enum { HOWS = sizeof(hows) / sizeof(*hows) };

START_TEST(same_bytes)
{
    const struct how *h = &hows[_i];
    struct engine *e = open_engine("emu", h->cohorts, h->blocks);
    if (h->blocks) { /* two may begin, and there is no room for both their ends */
        n_crowd = 3;
        length = OUT + 14;
    }
    make_wanted();
    const struct emu_counts a = emu_counts_now();
    const struct seen seen = run(e, h);
    const struct emu_counts b = emu_counts_now();
    /* All that is needed was taken when the model was loaded. */
    ck_assert(a.blocks == b.blocks && a.pinned == b.pinned && a.bytes == b.bytes);
    ck_assert(a.streams == b.streams && a.events == b.events && b.streams == h->cohorts);
    ck_assert(_i == 0 || (seen.accepted && seen.rejected));
    ck_assert(seen.preempted);
    ck_assert(h->calm || seen.cancelled == 1);
    ck_assert(h->cohorts == 1 || _i == 0 ||
              seen.both > (h->apart || h->blocks ? 0 : EMU_FEWER(10, 2)));
    engine_free(e);
    emu_nothing_left("cohorts", _i);
}
END_TEST

/* ---- overlap --------------------------------------------------------------------------------------------- */

/* While both cohorts run, a step waits once, for an event; the device has work then, and the drafter some that waits for
 * nothing. */
START_TEST(overlapping)
{
    static const struct how how = {"calm", {DRAFT_DEDIT, DRAFT_DDTREE, DRAFT_DFLASH}, 1, 2, 0, true,
                                   false};
    struct error err = {0};
    struct engine *e = open_engine("emu", 2, 0);
    struct engine_stats s0, s1;
    uint64_t steps = 0;
    make_wanted();
    for (uint32_t i = 0; i < CROWD; i++)
        submit(e, i, &how);
    while (on_their_way(e) < 2 || e->steps[0].n_begun == 0 || e->steps[1].n_begun == 0)
        ck_assert_int_gt(engine_step(e, &err), 0);
    engine_get_stats(e, &s0);
    const struct emu_counts a = emu_counts_now();
    for (; e->n_running == CROWD; steps++)
        ck_assert_int_gt(engine_step(e, &err), 0);
    engine_get_stats(e, &s1);
    const struct emu_counts b = emu_counts_now();
    ck_assert_uint_ge(steps, EMU_FEWER(8, 3));
    ck_assert_uint_eq(s1.steps - s0.steps, steps);
    ck_assert_uint_eq(b.waits - a.waits, 0);
    ck_assert_uint_eq(b.event_waits - a.event_waits, steps);
    ck_assert_uint_eq(b.idle_waits - a.idle_waits, 0);
    ck_assert_uint_eq(b.overlaps - a.overlaps, steps);
    ck_assert_uint_ge(b.orders - a.orders, steps);
    while (engine_step(e, &err))
        ;
    struct seen seen = {0};
    check(&how, &seen);
    engine_free(e);
    emu_nothing_left("overlapping", 0);
}
END_TEST

/* Two requests are needed for two cohorts, and they are one again when one is left. */
START_TEST(together_again)
{
    static const struct how how = {"few", {DRAFT_DEDIT, DRAFT_DEDIT, DRAFT_DEDIT}, 2, 2, 0, true,
                                   false};
    struct error err = {0};
    struct engine *e = open_engine("emu", 2, 0);
    make_wanted();
    submit(e, 0, &how);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_gt(engine_step(e, &err), 0);
        ck_assert_uint_eq(on_their_way(e), 0);
    }
    submit(e, 1, &how);
    for (int i = 0; i < 3; i++)
        ck_assert_int_gt(engine_step(e, &err), 0);
    ck_assert_uint_eq(on_their_way(e), 2);
    ck_assert_uint_ne(crowd[0].r->cohort, crowd[1].r->cohort);
    engine_cancel(e, crowd[1].r);
    crowd[1].r = request_free(crowd[1].r);
    while (engine_step(e, &err) > 0)
        ;
    ck_assert_uint_eq(on_their_way(e), 0);
    test_records_equal(&crowd[0].out, &crowd[0].want, "alone again");
    crowd[0].r = request_free(crowd[0].r);
    /* What is on its way when nobody wants it any more is no hindrance: neither to others nor to the end. */
    for (int again = 0; again < 2; again++) {
        submit(e, 2, &how);
        submit(e, 4, &how);
        while (on_their_way(e) < 2)
            ck_assert_int_gt(engine_step(e, &err), 0);
        for (uint32_t i = 2; i < 5 && again == 0; i += 2)
            crowd[i].r = request_free(crowd[i].r);
    }
    engine_free(e);
    for (uint32_t i = 2; i < 5; i += 2)
        crowd[i].r = request_free(crowd[i].r);
    emu_nothing_left("together again", 0);
}
END_TEST

/* Lanes that there are not, batches that the host has to see, and results that nobody has asked for. */
START_TEST(refused)
{
    struct error err = {0};
    struct engine *e = open_engine("emu", 2, 0);
    const struct backend *b = e->space.backend;
    struct seq *s = NULL;
    uint64_t ns;
    ck_ok(engine_seq_new(e, &s, &err), &err);
    ck_ok(seq_reserve(s, &e->space, 1, &err), &err);
    s->tokens[0] = 1;
    seq_rows(s, 0, 1, e->rows);
    struct fwd_batch batch = {.n_rows = 1, .rows = e->rows, .later = true};
    ck_fails(b->forward(e->space.model, &batch, &err), INTERNAL, &err);
    batch.lane = 3;
    ck_fails(b->forward(e->space.model, &batch, &err), INTERNAL, &err);
    batch.lane = 2;
    e->rows[0].logits = e->logits;
    ck_fails(b->forward(e->space.model, &batch, &err), INTERNAL, &err);
    ck_fails(b->finish(e->space.model, 2, &ns, &err), INTERNAL, &err);
    ck_fails(b->finish(e->space.model, 3, &ns, &err), INTERNAL, &err);
    e->rows[0].logits = NULL;
    ck_ok(b->forward(e->space.model, &batch, &err), &err);
    ck_ok(b->forward(e->space.model, &batch, &err), &err); /* what nobody took is waited for */
    ck_ok(b->finish(e->space.model, 2, &ns, &err), &err);
    ck_fails(b->finish(e->space.model, 2, &ns, &err), INTERNAL, &err);
    engine_seq_free(e, s);
    engine_free(e);
    /* Without a drafter there is one cohort, on one stream. */
    struct engine_config c = test_engine_config();
    c.device = "emu";
    c.cohorts = 2;
    e = test_engine(target, &c);
    ck_assert_uint_eq(e->n_cohorts, 1);
    ck_assert_uint_eq(emu_counts_now().streams, 1);
    e = engine_free(e);
    c.cohorts = 3;
    ck_fails(engine_new(target, &c, NULL, NULL, &e, &err), INVALID, &err);
}
END_TEST

/* ---- orders that are left out ------------------------------------------------------------------------------ */

static struct dcu_api less;
static int (*real_order)(dcu_stream, dcu_event);
static const struct cuda_model *draws; /* the drafter */
static enum { NO_INJECTED, NO_PASSES, NONE } left_out;

static int some_orders(dcu_stream s, dcu_event e)
{
    const bool passes = e == draws->lanes[1].end || e == draws->lanes[2].end;
    return left_out == (passes ? NO_PASSES : NO_INJECTED) ? 0 : real_order(s, e);
}

/* Two requests, one a cohort, whose prompts are in pieces: some batches are fed with drafts, some are not. */
START_TEST(races)
{
    static const struct how how = {"races", {DRAFT_DEDIT, DRAFT_DDTREE, DRAFT_DEDIT}, 1, 2, 0, true,
                                   false};
    struct error err = {0};
    struct engine *e = open_engine("emu", 2, 0);
    struct cuda_model *m = cuda_of(e->space.model);
    make_wanted();
    setenv("CUEMU_CHECK", "1", 1); /* every access */
    draws = m->drafter;
    less = *m->api;
    real_order = less.event_order;
    less.event_order = some_orders;
    m->api = m->drafter->api = &less;
    left_out = _i == NO_INJECTED ? NO_INJECTED : NONE;
    submit(e, 2, &how);
    submit(e, 4, &how);
    while (engine_step(e, &err) > 0)
        if (crowd[2].out.n > 5 && crowd[4].out.n > 5)
            left_out = _i; /* drafts of an earlier round are no memory's end */
    for (uint32_t i = 2; i < 5; i += 2) {
        test_records_equal(&crowd[i].out, &crowd[i].want, "in order");
        crowd[i].r = request_free(crowd[i].r);
    }
    engine_free(e);
}
END_TEST

int main(void)
{
    emu_open_library();
    setenv("CUEMU_STREAMS", "1", 1);
    setenv("CUEMU_CHECK", "100", 0); /* other tests look at all accesses of the same kernels */
    (void)snprintf(target, sizeof(target), "%s", test_path("tests/golden/drafter/target"));
    (void)snprintf(drafter, sizeof(drafter), "%s", test_path("tests/golden/drafter/fitted"));

    Suite *s = suite_create("cuda-cohorts");
    TCase *t = test_case(s, "bytes");
    tcase_add_loop_test(t, same_bytes, 0, HOWS);
    t = test_case(s, "overlap");
    tcase_add_test(t, overlapping);
    tcase_add_test(t, together_again);
    tcase_add_test(t, refused);
    if (LOOKED_AT) {
        t = test_case(s, "races");
        tcase_add_loop_test_raise_signal(t, races, SIGABRT, NO_INJECTED, NONE);
        tcase_add_loop_test(t, races, NONE, NONE + 1);
    }
    return test_main(s);
}
