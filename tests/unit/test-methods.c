/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which drafting wishes go together; what is counted; what rounds tell; rule B's law; prompts and
 * drafts side by side.
 */
#include <math.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/noise.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define EOS FIXTURE_EOS

static const char *random_model, *alphabet_model;

/* ---- wishes ----------------------------------------------------------------------------------- */

static int no_inject(void *self, const struct draft_context *rows, uint32_t n, struct error *err)
{
    (void)self;
    (void)rows;
    (void)n;
    (void)err;
    return 0;
}
static const uint32_t layers[1] = {0};

static void set_drafter(struct engine *e, const struct block_drafter_ops *ops, void *self)
{
    struct error err = {0};
    e->drafter = (struct block_drafter){.ops = ops,
                                        .self = self,
                                        .tap_layers = layers,
                                        .n_taps = 1,
                                        .window = 5,
                                        .max_window = 16,
                                        .max_rows = 64,
                                        .max_context = e->limit,
                                        .max_passes = 4};
    ck_ok(engine_drafting_buffers(e, &err), &err);
}

START_TEST(wrong_wishes)
{
    static struct draft_script_round tree = {.at = 1, .proposal = {2, {1, 2}, {-1, -1}}};
    static struct draft_script_round twice[2] = {{.at = 1}, {.at = 1}};
    static struct draft_script_round foreign = {.proposal = {1, {FIXTURE_VOCAB}, {-1}}};
    static const struct draft_script trees = {&tree, 1}, same = {twice, 2}, far = {&foreign, 1};
    static const float bad[] = {0.5f, 1.5f}, fine[] = {0.5f, 0.5f};
    static const struct {
        struct drafting_params p;
        bool drafter;
        int code;
        const char *says;
    } cases[] = {
        {{.method = 77}, false, DEDIT_E_INVALID, "method"},
        {{.window = 1}, false, DEDIT_E_INVALID, "window: 1"},
        {{.window = 65}, false, DEDIT_E_INVALID, "window: 65"},
        {{.passes = 9}, false, DEDIT_E_INVALID, "passes: 9"},
        {{.tree_budget = 128}, false, DEDIT_E_INVALID, "tree_budget: 128"},
        {{.visibility = 5}, false, DEDIT_E_INVALID, "edit_visibility"},
        {{.verification = 5}, false, DEDIT_E_INVALID, "verification"},
        {{.method = DRAFT_AR, .window = 4}, false, DEDIT_E_INVALID, "window"},
        {{.method = DRAFT_NGRAM, .passes = 2}, false, DEDIT_E_INVALID, "passes"},
        {{.method = DRAFT_DFLASH, .passes = 2}, true, DEDIT_E_INVALID, "dflash has no edit passes"},
        {{.method = DRAFT_DFLASH, .visibility = DRAFT_CAUSAL},
         true,
         DEDIT_E_INVALID,
         "dflash has no edit passes; dedit and ddtree have"},
        {{.method = DRAFT_DDTREE, .visibility = DRAFT_CAUSAL},
         true,
         DEDIT_E_INVALID,
         "ddtree has edit passes with passes of 2 or more; it is 1"},
        {{.method = DRAFT_DEDIT, .tree_budget = 4}, true, DEDIT_E_INVALID, "tree_budget"},
        {{.method = DRAFT_DFLASH, .visibility = DRAFT_CAUSAL}, true, DEDIT_E_INVALID, "visibility"},
        {{.method = DRAFT_DDTREE, .visibility = DRAFT_CAUSAL}, true, DEDIT_E_INVALID, "visibility"},
        {{.method = DRAFT_DDTREE, .verification = DRAFT_REJECTION},
         true,
         DEDIT_E_INVALID,
         "rejection"},
        {{.verification = DRAFT_REJECTION}, true, DEDIT_E_INVALID, "rejection"},
        {{.method = DRAFT_AR, .verification = DRAFT_REJECTION}, false, DEDIT_E_INVALID, "ar"},
        {{.method = DRAFT_DFLASH}, false, DEDIT_E_UNSUPPORTED, "dflash needs a drafter"},
        {{.method = DRAFT_DEDIT}, false, DEDIT_E_UNSUPPORTED, "dedit needs a drafter"},
        {{.method = DRAFT_DDTREE}, false, DEDIT_E_UNSUPPORTED, "ddtree needs a drafter"},
        {{.method = DRAFT_DFLASH, .window = 17}, true, DEDIT_E_INVALID, "at most 16"},
        {{.window = 17}, true, DEDIT_E_INVALID, "at most 16"},
        {{.method = DRAFT_DEDIT, .passes = 5}, true, DEDIT_E_INVALID, "at most 4"},
        {{.method = DRAFT_SCRIPTED}, false, DEDIT_E_INVALID, "script"},
        {{.method = DRAFT_NGRAM, .script = &trees}, false, DEDIT_E_INVALID, "script"},
        {{.method = DRAFT_SCRIPTED, .script = &same}, false, DEDIT_E_INVALID, "ascend"},
        {{.method = DRAFT_SCRIPTED, .script = &far}, false, DEDIT_E_INVALID, "token 512"},
        {{.method = DRAFT_SCRIPTED, .script = &trees, .verification = DRAFT_REJECTION},
         false,
         DEDIT_E_INVALID,
         "tree"},
        {{.method = DRAFT_SYNTHETIC, .window = 3}, false, DEDIT_E_INVALID, "profile"},
        {{.method = DRAFT_SYNTHETIC, .window = 3, .acceptance = fine},
         false,
         DEDIT_E_INVALID,
         "benchmarks"},
    };
    struct engine_config c = test_engine_config();
    static const struct block_drafter_ops ops = {.inject = no_inject};
    const uint32_t prompt[] = {1, 2, 3};
    struct error err = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct engine *e = test_engine(random_model, &c);
        if (cases[i].drafter)
            set_drafter(e, &ops, NULL);
        struct engine_request q = test_request_init(prompt, 3, 4);
        struct test_request t = {0};
        q.drafting = cases[i].p;
        int r = test_submit(e, &q, &t, &err);
        ck_assert_msg(r == cases[i].code && strstr(err.msg, cases[i].says), "case %zu: %s: %s", i,
                      error_name(r), err.msg);
        q.drafting = (struct drafting_params){.method = DRAFT_NGRAM};
        test_generate(e, &q, &t); /* nothing stayed behind */
        test_request_done(&t);
        engine_free(e);
    }
    c.synthetic = true;
    struct engine *e = test_engine(random_model, &c);
    struct drafting_params p = {.method = DRAFT_SYNTHETIC, .window = 3, .acceptance = fine};
    ck_ok(engine_check_drafting(e, &p, &err), &err);
    p.acceptance = bad;
    ck_fails(engine_check_drafting(e, &p, &err), INVALID, &err);
    p = (struct drafting_params){.method = DRAFT_AR, .acceptance = fine};
    ck_fails(engine_check_drafting(e, &p, &err), INVALID, &err);
    p = (struct drafting_params){.method = DRAFT_SYNTHETIC, .acceptance = fine};
    ck_fails(engine_check_drafting(e, &p, &err), INVALID, &err);
    engine_free(e);
}
END_TEST

START_TEST(without_memory)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(random_model, &c);
    const uint32_t prompt[] = {1, 2, 1, 2, 1, 2};
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct engine_request q = test_request_init(prompt, 6, 12);
        struct test_request t = {0};
        struct error err = {0};
        q.sampling.ignore_eos = true;
        q.sampling.repetition_penalty = 0.8f;
        q.drafting.method = DRAFT_NGRAM;
        q.drafting.verification = DRAFT_REJECTION;
        int r = test_submit(e, &q, &t, &err);
        if (r == 0) {
            while (engine_step(e, &err) > 0)
                ;
            ck_assert(t.finished);
            r = t.reason == FINISH_ERROR ? t.error : 0;
        }
        ck_assert(r == 0 || r == DEDIT_E_NOMEM);
        ck_assert(r == 0 || o.failed);
        test_request_done(&t);
        test_engine_idle(e);
    }
    engine_free(e);
}
END_TEST

/* ---- what is counted: SMP-06 ------------------------------------------------------------------ */

static struct engine_drafting count(struct engine *e, const char *draft, uint32_t at,
                                    uint32_t max_tokens, uint32_t *ret_len)
{
    struct draft_script_round t = {.at = at};
    struct draft_script s = {&t, 1};
    const uint32_t prompt[] = {'a'};
    struct engine_request q = test_request_init(prompt, 1, max_tokens);
    struct test_request got = {0}, plain = {0};
    for (; *draft; draft++)
        (void)proposal_add(&t.proposal, *draft == '.' ? EOS : (uint32_t)*draft,
                           (int)t.proposal.n - 1, -1);
    test_generate(e, &q, &plain);
    q.drafting.method = DRAFT_SCRIPTED;
    q.drafting.script = &s;
    test_generate(e, &q, &got);
    test_same_output(&got, &plain, "drafted");
    *ret_len = (uint32_t)got.ids.len;
    struct engine_drafting d = got.usage.drafting;
    ck_assert_uint_eq(d.committed + d.plain_rounds + d.prefill_tokens, got.ids.len);
    test_request_done(&plain);
    test_request_done(&got);
    return d;
}

START_TEST(counters) /* SMP-06 */
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(alphabet_model, &c);
    uint32_t len;
    /* After the prompt's token b: c d e f are right. */
    struct engine_drafting d = count(e, "cxef", 1, 10, &len); /* hits after the first miss: none */
    ck_assert_uint_eq(d.rounds, 1);
    ck_assert_uint_eq(d.drafted, 4);
    ck_assert_uint_eq(d.accepted, 1);
    ck_assert_uint_eq(d.committed, 2);
    ck_assert_uint_eq(d.accepted_at[0], 1);
    ck_assert_uint_eq(d.accepted_at[1], 0);
    d = count(e, "xxxx", 1, 10, &len);
    ck_assert_uint_eq(d.rounds, 1);
    ck_assert_uint_eq(d.accepted, 0);
    ck_assert_uint_eq(d.committed, 1);
    /* y z EOS and two more behind the end. */
    d = count(e, "yz.ab", 23, 100, &len);
    ck_assert_uint_eq(len, 26);
    ck_assert_uint_eq(d.accepted, 3);
    ck_assert_uint_eq(d.committed, 3);
    /* max_tokens after two of six. */
    d = count(e, "hijklm", 6, 8, &len);
    ck_assert_uint_eq(len, 8);
    ck_assert_uint_eq(d.committed, 2);
    ck_assert_uint_le(d.accepted, 2);
    /* No draft, no round. */
    d = count(e, "", 1, 10, &len);
    ck_assert_uint_eq(d.rounds, 0);
    ck_assert_uint_eq(d.plain_rounds, 9);
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.draft_rounds, 4);
    engine_free(e);
}
END_TEST

/* ---- rounds are told -------------------------------------------------------------------------- */

struct listener {
    uint32_t n, committed, accepted, nodes, tokens;
    bool waits; /* a round was told, its tokens were not yet */
};
static int count_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct listener *l = arg;
    (void)r;
    (void)t;
    ck_assert(l->waits);
    l->waits = false;
    l->tokens += (uint32_t)n;
    ck_assert_uint_eq(l->tokens, l->committed);
    return 0;
}
static void count_round(void *arg, struct request *r, const struct engine_round *i)
{
    struct listener *l = arg;
    (void)r;
    ck_assert(!l->waits);
    l->waits = true;
    ck_assert_uint_eq(i->round, l->n++);
    ck_assert_int_eq(i->method, i->proposal->n ? DRAFT_NGRAM : DRAFT_AR);
    ck_assert_uint_eq(i->passes, 0);
    ck_assert_uint_le(i->accepted, i->proposal->n);
    ck_assert(i->committed == i->accepted || i->committed == i->accepted + 1);
    l->committed += i->committed;
    l->accepted += i->accepted;
    l->nodes += i->proposal->n;
}
static void count_end(void *arg, struct request *r, const struct engine_finish *f)
{
    struct listener *l = arg;
    (void)r;
    ck_assert_uint_eq(l->tokens, f->usage.completion_tokens);
    ck_assert_uint_eq(l->accepted, f->usage.drafting.accepted);
    ck_assert_uint_eq(l->nodes, f->usage.drafting.drafted);
}

START_TEST(rounds_are_told)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(random_model, &c);
    struct error err = {0};
    struct listener l = {0};
    struct request *r = NULL;
    const uint32_t prompt[] = {1, 2, 3, 1, 2, 3, 1, 2};
    struct engine_request q = test_request_init(prompt, 8, 60);
    q.sampling.ignore_eos = true;
    q.sampling.repetition_penalty = 0.7f;
    q.drafting = (struct drafting_params){.method = DRAFT_NGRAM, .want_rounds = true};
    q.sink = (struct engine_sink){
        .tokens = count_tokens, .finished = count_end, .round = count_round, .arg = &l};
    ck_ok(engine_submit(e, &q, &r, &err), &err);
    while (engine_step(e, &err) > 0)
        ;
    ck_assert_uint_eq(l.tokens, 60);
    ck_assert_uint_gt(l.accepted, 0);
    request_free(r);
    engine_free(e);
}
END_TEST

/* ---- rule B: SMP-02 --------------------------------------------------------------------------- */

static float table(const void *arg, uint32_t x, uint32_t y)
{
    const float *l = arg;
    (void)x;
    return l[y];
}

/* Drafts out of q, whatever the context. */
struct drawer {
    const struct engine *e;
    float q[4];
    bool draw;
    float *dense; /* [window - 1][vocab] */
};
static int draw_pass(void *self, struct draft_entry *entries, uint32_t n, struct error *err)
{
    struct drawer *d = self;
    const uint32_t vocab = d->e->model->vocab_size;
    (void)err;
    ck_assert_uint_eq(n, 1);
    struct draft_round *r = entries->round;
    ck_assert(r->draw);
    for (uint32_t k = 0; k + 1 < r->window; k++) {
        uint32_t key[2], ctr[4] = {0}, out[4], token = 0;
        noise_key(r->seed, key);
        noise_counter(entries->seq->n_kv + 1 + k, NOISE_DRAFT, ctr + 1);
        dk_philox4x32_10(ctr, key, out);
        float u = (float)(((double)out[0] + 0.5) * 0x1p-32), sum = d->q[0];
        while (d->draw && token < 3 && u >= sum)
            sum += d->q[++token];
        memset(d->dense + (size_t)k * vocab, 0, vocab * sizeof(float));
        memcpy(d->dense + (size_t)k * vocab, d->q, sizeof(d->q));
        r->tokens[r->pass][k] = token;
        (void)proposal_add(r->proposal, token, (int)k - 1, d->q[token]);
    }
    r->proposal->q = d->draw ? d->dense : NULL;
    r->pass++;
    r->done = true;
    return 0;
}

/* 20000 tokens with these parameters; frequencies within 5 sigma of p. */
static void law(struct engine *e, struct drawer *d, float temperature, int top_k, const double *p,
                uint32_t window)
{
    static struct test_request t;
    uint64_t n[4] = {0}, total = 0, accepted = 0, drafted = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        const uint32_t prompt[] = {1, 2, 3};
        struct engine_request q = test_request_init(prompt, 3, 500);
        q.sampling.ignore_eos = true;
        q.sampling.temperature = temperature;
        q.sampling.top_k = top_k;
        q.sampling.seed = seed;
        q.drafting = (struct drafting_params){
            .method = DRAFT_DFLASH, .window = window, .verification = DRAFT_REJECTION};
        memset(&t, 0, sizeof(t));
        test_generate(e, &q, &t);
        for (size_t i = 0; i < t.ids.len; i++) {
            ck_assert_uint_lt(t.ids.ids[i], 4);
            n[t.ids.ids[i]]++;
        }
        total += t.ids.len;
        accepted += t.usage.drafting.accepted;
        drafted += t.usage.drafting.drafted;
        test_request_done(&t);
    }
    ck_assert_uint_eq(total, 20000);
    for (int i = 0; i < 4; i++) {
        double sigma = sqrt(p[i] * (1 - p[i]) / (double)total), f = (double)n[i] / (double)total;
        ck_assert_msg(fabs(f - p[i]) <= 5 * sigma, "token %d: %g, wanted %g (draw %d, window %u)",
                      i, f, p[i], d->draw, window);
    }
    ck_assert_uint_gt(accepted, 0);
    ck_assert_uint_gt(drafted, accepted);
    /* Drawn drafts of one token: accepted with 1 - TV(p, q) = .1 + .3 + .05 + .05. */
    if (d->draw && window == 2 && temperature == 1 && top_k == 0)
        ck_assert(fabs((double)accepted / (double)drafted - 0.5) < 0.02);
}

static const struct {
    float temperature;
    int top_k;
    bool draw;
    uint32_t window;
    double p[4];
} laws[] = {
    {1, 0, false, 2, {.10, .40, .25, .25}},
    {1, 0, true, 2, {.10, .40, .25, .25}},
    {1, 0, false, 5, {.10, .40, .25, .25}},
    {1, 0, true, 5, {.10, .40, .25, .25}},
    {1, 1, true, 5, {0, 1, 0, 0}}, /* top_k cuts p before the rule looks at it */
    {0.5f, 0, true, 5, {.01 / .295, .16 / .295, .0625 / .295, .0625 / .295}},
};

START_TEST(rejection_has_the_law) /* SMP-02 */
{
    static const double p[4] = {.10, .40, .25, .25};
    static float l[FIXTURE_VOCAB];
    for (uint32_t i = 0; i < FIXTURE_VOCAB; i++)
        l[i] = i < 4 ? (float)log(p[i]) : -1e4f;
    struct fixture f = fixture_script(table, l);
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(fixture_write(&f), &c);
    static const struct block_drafter_ops ops = {.inject = no_inject, .pass = draw_pass};
    static float dense[5 * FIXTURE_VOCAB];
    struct drawer d = {
        .e = e, .q = {.60f, .30f, .05f, .05f}, .draw = laws[_i].draw, .dense = dense};
    set_drafter(e, &ops, &d);
    law(e, &d, laws[_i].temperature, laws[_i].top_k, laws[_i].p, laws[_i].window);
    engine_free(e);
}
END_TEST

/* Drafts that are chosen: rule B gives the very tokens of rule A, and of plain decoding. */
START_TEST(rejection_of_chosen_drafts)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(random_model, &c);
    const uint32_t prompt[] = {1, 2, 3, 1, 2, 3, 1, 2};
    uint64_t accepted = 0, rejected = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct test_request plain = {0}, t = {0};
        struct engine_request q = test_request_init(prompt, 8, 60);
        q.sampling.ignore_eos = true;
        q.sampling.temperature = 0.8f;
        q.sampling.repetition_penalty = 0.7f;
        q.sampling.logprobs = 2;
        q.sampling.seed = seed;
        q.drafting.method = DRAFT_AR;
        test_generate(e, &q, &plain);
        q.drafting =
            (struct drafting_params){.method = DRAFT_NGRAM, .verification = DRAFT_REJECTION};
        test_generate(e, &q, &t);
        test_same_output(&t, &plain, "rule B");
        accepted += t.usage.drafting.accepted;
        rejected += t.usage.drafting.drafted - t.usage.drafting.accepted;
        test_request_done(&plain);
        test_request_done(&t);
    }
    ck_assert(accepted > 0 && rejected > 0);
    engine_free(e);
}
END_TEST

/* ---- seeds: SMP-01 ------------------------------------------------------------------------------ */

static const uint32_t seeds_prompt[] = {24, 54, 68, 56, 62, 24};

static struct engine_request sampled(uint64_t seed, bool has_seed, float temperature)
{
    struct engine_request q = test_request_init(seeds_prompt, 6, 64);
    q.sampling.ignore_eos = true;
    q.sampling.temperature = temperature;
    q.sampling.seed = seed;
    q.sampling.has_seed = has_seed;
    q.drafting = (struct drafting_params){.method = DRAFT_DEDIT, .passes = 2};
    return q;
}

static bool same_ids(const struct test_request *a, const struct test_request *b)
{
    return a->ids.len == b->ids.len &&
           memcmp(a->ids.ids, b->ids.ids, a->ids.len * sizeof(uint32_t)) == 0;
}

START_TEST(seeds) /* SMP-01 */
{
    static struct test_request t, first, neighbour[3], many[50];
    static const uint64_t odd[] = {UINT64_MAX, UINT64_MAX - 1, (1ull << 53) + 1, 1ull << 53};
    static char drafter[4200];
    struct engine_config c = test_engine_config();
    struct error err = {0};
    (void)snprintf(drafter, sizeof(drafter), "%s", test_path("tests/golden/drafter/fitted"));
    c.drafter = drafter;
    struct engine *e = test_engine(test_path("tests/golden/drafter/target"), &c);
    struct engine_request q = sampled(42, true, 1);
    test_generate(e, &q, &first);
    ck_assert_uint_gt(first.usage.drafting.accepted, 0);
    ck_assert_uint_gt(first.usage.drafting.drafted, first.usage.drafting.accepted);
    for (int i = 0; i < 2; i++) {
        test_generate(e, &q, &t);
        test_same_output(&t, &first, "the same seed again");
        test_request_done(&t);
    }
    struct engine_request beside[3];
    for (uint32_t i = 0; i < 3; i++) {
        beside[i] = sampled(7 + i, i < 2, 1.2f);
        beside[i].sampling.max_tokens = 20 + 30 * i;
        ck_ok(test_submit(e, &beside[i], &neighbour[i], &err), &err);
    }
    test_generate(e, &q, &t);
    test_same_output(&t, &first, "with neighbours");
    test_request_done(&t);
    for (int i = 0; i < 3; i++)
        test_request_done(&neighbour[i]);
    q = sampled(43, true, 1);
    test_generate(e, &q, &t);
    ck_assert(!same_ids(&t, &first));
    test_request_done(&t);
    uint32_t different = 0;
    for (int i = 0; i < 50; i++) {
        q = sampled(0, false, 1);
        test_generate(e, &q, &many[i]);
        different += i && !same_ids(&many[i], &many[0]);
        test_request_done(&many[i]);
    }
    ck_assert_uint_gt(different, 0);
    /* At temperature 0 the seed means nothing. */
    q = sampled(42, true, 0);
    test_generate(e, &q, &many[0]);
    q = sampled(0, false, 0);
    test_generate(e, &q, &many[1]);
    ck_assert(same_ids(&many[0], &many[1]));
    test_request_done(&many[0]);
    test_request_done(&many[1]);
    /* All 64 bits count. */
    for (size_t i = 0; i < 4; i++) {
        q = sampled(odd[i], true, 1);
        test_generate(e, &q, &many[i]);
        ck_assert(many[i].usage.seed == odd[i]);
        for (size_t j = 0; j < i; j++)
            ck_assert(!same_ids(&many[i], &many[j]));
        test_request_done(&many[i]);
    }
    test_request_done(&first);
    engine_free(e);
}
END_TEST

/* ---- SCH-02 with drafts ------------------------------------------------------------------------ */

START_TEST(prompts_and_drafts)
{
    enum { LONG = 2000 };
    struct engine_config c = test_engine_config();
    c.max_context = 4096;
    c.n_kv_blocks = 400;
    c.prefill_chunk = 64;
    c.max_num_batched_tokens = 128;
    struct engine *e = test_engine(random_model, &c);
    struct error err = {0};
    static uint32_t prompt[LONG];
    static struct draft_script_round rounds[500];
    struct draft_script script = {rounds, 500};
    test_tokens(1, FIXTURE_VOCAB, prompt, LONG);
    for (uint32_t i = 0; i < 500; i++) { /* 50 useless nodes after one pass */
        rounds[i].at = i;
        rounds[i].passes = 1;
        for (uint32_t k = 0; k < 50; k++)
            (void)proposal_add(&rounds[i].proposal, k, (int)k - 1, -1);
    }
    struct test_request a = {0}, b = {0}, s = {0};
    struct engine_request qa = test_request_init(prompt, 3, 500);
    struct engine_request qb = test_request_init(prompt, LONG, 1);
    struct engine_request qs = test_request_init(prompt + 7, 5, 4);
    qa.sampling.ignore_eos = qb.sampling.ignore_eos = qs.sampling.ignore_eos = true;
    qa.drafting.method = DRAFT_SCRIPTED;
    qa.drafting.script = &script;
    ck_ok(test_submit(e, &qa, &a, &err), &err);
    ck_assert_int_eq(engine_step(e, &err), 1);
    ck_ok(test_submit(e, &qb, &b, &err), &err);
    int steps = 0, s_first = 0;
    size_t before = a.ids.len;
    while (!b.finished) {
        ck_assert_int_eq(engine_step(e, &err), 1);
        if (++steps % 2 == 0) { /* a pass, then a target step */
            ck_assert_uint_gt(a.ids.len, before);
            before = a.ids.len;
        }
        if (steps == 10)
            ck_ok(test_submit(e, &qs, &s, &err), &err);
        if (s.ids.len && !s_first)
            s_first = steps;
    }
    ck_assert_int_le(s_first - 10, 4);
    /* 64 prompt rows in every other step: drafts take at most half of the 128. */
    ck_assert_int_le(steps, 2 * (LONG / 64 + 1) + 10);
    ck_assert_uint_gt(a.ids.len, 0);
    engine_cancel(e, a.r);
    test_request_done(&a);
    test_request_done(&b);
    test_request_done(&s);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

/* ---- made-up acceptance ------------------------------------------------------------------------ */

START_TEST(synthetic)
{
    static const float profile[] = {0.9f, 0.5f, 0.1f};
    struct engine_config c = test_engine_config();
    c.synthetic = true;
    struct engine *e = test_engine(random_model, &c);
    const uint32_t prompt[] = {1, 2, 3};
    static struct test_request t;
    struct engine_request q = test_request_init(prompt, 3, 500);
    uint64_t rounds = 0, at[3] = {0};
    q.sampling.ignore_eos = true;
    q.drafting =
        (struct drafting_params){.method = DRAFT_SYNTHETIC, .window = 4, .acceptance = profile};
    for (q.sampling.seed = 0; q.sampling.seed < 10; q.sampling.seed++) {
        memset(&t, 0, sizeof(t));
        test_generate(e, &q, &t);
        ck_assert(t.usage.drafting.synthetic);
        rounds += t.usage.drafting.rounds;
        for (int i = 0; i < 3; i++)
            at[i] += t.usage.drafting.accepted_at[i];
        test_request_done(&t);
    }
    double n = (double)rounds;
    ck_assert(fabs((double)at[0] / n - 0.9) < 0.05);
    ck_assert(fabs((double)at[1] / n - 0.45) < 0.06);
    ck_assert(fabs((double)at[2] / n - 0.045) < 0.03);
    engine_free(e);
}
END_TEST

int main(void)
{
    struct fixture f = fixture_random(11);
    random_model = fixture_write(&f);
    alphabet_model = fixture_write_alphabet();

    Suite *s = suite_create("methods");
    TCase *t = test_case(s, "wishes");
    tcase_add_test(t, wrong_wishes);
    tcase_add_test(t, without_memory);
    t = test_case(s, "counting");
    tcase_add_test(t, counters);
    tcase_add_test(t, rounds_are_told);
    t = test_case(s, "rounds");
    tcase_add_test(t, seeds);
    tcase_add_loop_test(t, rejection_has_the_law, 0, sizeof(laws) / sizeof(*laws));
    tcase_add_test(t, rejection_of_chosen_drafts);
    tcase_add_test(t, prompts_and_drafts);
    tcase_add_test(t, synthetic);
    return test_main(s);
}
