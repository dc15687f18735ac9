/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds with proposals: whatever is proposed, a request gives the same tokens, text, reason, usage
 * and log-probabilities as without.  A scripted proposer plays the drafter: chains and trees, right,
 * wrong and partly right.
 */
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define EOS FIXTURE_EOS

static const char *random_model, *alphabet_model;

/* ---- the script ------------------------------------------------------------------------------- */

enum shape { RIGHT, WRONG, PARTLY, TREE, DEC08, NOISE };

struct stub {
    enum shape shape;
    uint32_t width; /* nodes */
    uint64_t state;
    const struct test_request *truth; /* what plain decoding gave */
};

static uint32_t rnd(struct stub *s, uint32_t below)
{
    s->state = s->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(s->state >> 33) % below;
}

/* Token i of the answer; past its end something. */
static uint32_t truth_at(const struct stub *s, uint32_t i)
{
    return i < s->truth->ids.len ? s->truth->ids.ids[i] : 5;
}

static void node(struct proposal *p, uint32_t token, int32_t parent)
{
    (void)proposal_add(p, token, parent, 0.5f);
}

static void propose(struct stub *s, uint32_t at, struct proposal *p)
{
    const uint32_t vocab = FIXTURE_VOCAB;
    switch (s->shape) {
    case RIGHT:
        for (uint32_t i = 0; i < s->width; i++)
            node(p, truth_at(s, at + i), (int32_t)i - 1);
        break;
    case WRONG:
        for (uint32_t i = 0; i < s->width; i++)
            node(p, (truth_at(s, at + i) + 1) % vocab, (int32_t)i - 1);
        break;
    case PARTLY: {
        uint32_t bad = rnd(s, s->width + 1);
        for (uint32_t i = 0; i < s->width; i++)
            node(p, (truth_at(s, at + i) + (i == bad)) % vocab, (int32_t)i - 1);
        break;
    }
    case TREE: {
        /* The right path, with wrong siblings and dead ends in between, in random order. */
        int32_t path = -1;
        for (uint32_t depth = 0; p->n < s->width; depth++) {
            int32_t parent = path;
            for (uint32_t k = rnd(s, 3); k && p->n < s->width; k--)
                node(p, (truth_at(s, at + depth) + 1 + k) % vocab, parent);
            if (p->n == s->width)
                break;
            path = (int32_t)p->n;
            node(p, truth_at(s, at + depth), parent);
            if (rnd(s, 2) && p->n < s->width)
                node(p, rnd(s, vocab), (int32_t)rnd(s, p->n + 1) - 1);
        }
        break;
    }
    case DEC08: /* c1, c2, c2a, c2b: the path is c2, c2b */
        node(p, (truth_at(s, at) + 1) % vocab, -1);
        node(p, truth_at(s, at), -1);
        node(p, (truth_at(s, at + 1) + 1) % vocab, 1);
        node(p, truth_at(s, at + 1), 1);
        break;
    case NOISE:
        for (uint32_t n = rnd(s, s->width + 1); p->n < n;)
            node(p, rnd(s, 3) ? truth_at(s, at) : rnd(s, vocab), (int32_t)rnd(s, p->n + 1) - 1);
        break;
    }
}

/* Proposals for every length that the output may have; every other one takes some passes. */
static void write_script(struct stub *s, struct draft_script *ret)
{
    static struct draft_script_round rounds[4][1025];
    static uint32_t next;
    ret->rounds = rounds[next++ % 4];
    ret->n = s->truth->ids.len + 1;
    for (uint32_t at = 0; at < ret->n; at++) {
        struct draft_script_round *t = &ret->rounds[at];
        memset(t, 0, sizeof(*t));
        t->at = at;
        t->passes = s->width % 2 ? at % 4 : 0;
        propose(s, at, &t->proposal);
    }
}

static void generate_drafted(struct engine *e, const struct engine_request *q,
                             struct test_request *t, struct stub *s,
                             const struct test_request *truth)
{
    struct draft_script script;
    struct engine_request drafted = *q;
    s->truth = truth;
    write_script(s, &script);
    drafted.drafting.method = DRAFT_SCRIPTED;
    drafted.drafting.script = &script;
    *t = (struct test_request){0};
    test_generate(e, &drafted, t);
}

static void same_as_plain(const struct test_request *a, const struct test_request *b)
{
    test_same_output(a, b, "drafted");
    ck_assert_uint_eq(a->usage.completion_tokens, b->usage.completion_tokens);
    ck_assert_uint_eq(a->usage.prompt_tokens, b->usage.prompt_tokens);
    ck_assert_int_eq(a->stop_is_id, b->stop_is_id);
    ck_assert_str_eq(a->stop_text, b->stop_text);
    const struct engine_drafting *d = &a->usage.drafting;
    ck_assert_uint_eq(d->committed + d->plain_rounds + d->prefill_tokens,
                      a->usage.completion_tokens);
    ck_assert_uint_ge(d->committed, d->accepted);
    ck_assert_uint_le(d->committed, d->accepted + d->rounds);
    ck_assert_uint_ge(d->drafted, d->accepted);
}

/* q plain, then with every shape and width. */
static struct test_request try_all(struct engine *e, struct engine_request *q)
{
    struct test_request plain = {0};
    test_generate(e, q, &plain);
    for (enum shape shape = RIGHT; shape <= NOISE; shape++)
        for (uint32_t width = 1; width <= 63; width = width * 4 - 1 + (width == 1) * 1) {
            struct stub s = {.shape = shape, .width = width, .state = shape * 100 + width};
            struct test_request t;
            generate_drafted(e, q, &t, &s, &plain);
            same_as_plain(&t, &plain);
            const struct engine_drafting *d = &t.usage.drafting;
            if (shape == RIGHT)
                ck_assert_uint_le(d->rounds + d->plain_rounds, plain.ids.len / (width + 1) + 1);
            test_request_done(&t);
        }
    test_engine_idle(e);
    return plain;
}

/* ---- tests ------------------------------------------------------------------------------------ */

static void text_is(const struct test_request *t, const char *want)
{
    ck_assert_str_eq(t->text.s, want);
}

START_TEST(stop_strings) /* DEC-01 */
{
    static const char *const stops[][2] = {
        {"de", "bc"}, {"bc", ""}, {"z", "bcdefghijklmnopqrstuvwxy"}};
    struct engine_config c = test_engine_config();
    c.max_num_seqs = 64;
    struct engine *e = test_engine(alphabet_model, &c);
    const uint32_t prompt[] = {'a'};
    for (int i = 0; i < 3; i++) {
        struct stop_string stop = {stops[i][0], strlen(stops[i][0])};
        struct engine_request q = test_request_init(prompt, 1, 100);
        q.sampling.stop = &stop;
        q.sampling.n_stop = 1;
        q.sampling.logprobs = 1;
        struct test_request t = try_all(e, &q);
        text_is(&t, stops[i][1]);
        ck_assert_int_eq(t.reason, FINISH_STOP);
        ck_assert_uint_eq(t.n_lp, 2 * t.ids.len);
        test_request_done(&t);
    }
    engine_free(e);
}
END_TEST

START_TEST(eos_inside) /* DEC-02 */
{
    struct fixture_chain chain;
    fixture_chain_init(&chain);
    chain.next['a'] = 'b';
    chain.next['b'] = EOS;
    chain.next[EOS] = 'c';
    chain.next['c'] = 'd';
    struct fixture f = fixture_script(fixture_chain_logit, &chain);
    struct engine_config c = test_engine_config();
    c.max_num_seqs = 64;
    struct engine *e = test_engine(fixture_write(&f), &c);
    const uint32_t prompt[] = {'a'};
    struct engine_request q = test_request_init(prompt, 1, 4);
    struct test_request t = try_all(e, &q);
    ck_assert_uint_eq(t.ids.len, 2);
    text_is(&t, "b");
    test_request_done(&t);
    q.sampling.ignore_eos = true;
    t = try_all(e, &q);
    ck_assert_uint_eq(t.ids.len, 4);
    ck_assert_int_eq(t.reason, FINISH_LENGTH);
    test_request_done(&t);
    engine_free(e);
}
END_TEST

START_TEST(mask_like_token) /* DEC-04 */
{
    struct fixture_chain chain;
    fixture_chain_init(&chain);
    chain.next['a'] = '*';
    chain.next['*'] = 'b';
    chain.next['b'] = EOS;
    struct fixture f = fixture_script(fixture_chain_logit, &chain);
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(fixture_write(&f), &c);
    const uint32_t prompt[] = {'*', 'a'};
    struct engine_request q = test_request_init(prompt, 2, 8);
    struct test_request t = try_all(e, &q);
    ck_assert_uint_eq(t.ids.len, 3);
    ck_assert_uint_eq(t.ids.ids[0], 42);
    ck_assert_uint_eq(t.ids.ids[2], EOS);
    text_is(&t, "*b");
    test_request_done(&t);
    engine_free(e);
}
END_TEST

static float table(const void *arg, uint32_t x, uint32_t y)
{
    const float *l = arg;
    (void)x;
    return l[y];
}

START_TEST(min_tokens_and_penalties) /* DEC-03, SMP-03 */
{
    static float l[FIXTURE_VOCAB];
    for (uint32_t i = 0; i < FIXTURE_VOCAB; i++)
        l[i] = -1e4f;
    l[EOS] = 5;
    l['x'] = 4;
    struct fixture f = fixture_script(table, l);
    struct engine_config c = test_engine_config();
    c.max_num_seqs = 64;
    struct engine *e = test_engine(fixture_write(&f), &c);
    const uint32_t prompt[] = {'p'};
    for (uint32_t min = 0; min <= 8; min++) {
        struct engine_request q = test_request_init(prompt, 1, 8);
        q.sampling.min_tokens = min;
        struct test_request t = try_all(e, &q);
        ck_assert_uint_eq(t.ids.len, min < 8 ? min + 1 : 8);
        ck_assert_int_eq(t.reason, min < 8 ? FINISH_STOP : FINISH_LENGTH);
        test_request_done(&t);
    }
    engine_free(e);
    static const struct {
        float b, c, frequency, presence, repetition;
        const char *text;
    } cases[] = {{1.0f, -1e4f, 0.6f, 0, 1, "AABABABABABA"},
                 {1.0f, -1e4f, 0, 1.5f, 1, "ABAAAA"},
                 {1.9f, 1.0f, 0, 0, 1.2f, "ABAAAAAA"}};
    l[EOS] = l['x'] = -1e4f;
    l['A'] = 2;
    for (int i = 0; i < 3; i++) {
        l['B'] = cases[i].b;
        l['C'] = cases[i].c;
        f = fixture_script(table, l);
        e = test_engine(fixture_write(&f), &c);
        struct engine_request q = test_request_init(prompt, 1, (uint32_t)strlen(cases[i].text));
        q.sampling.frequency_penalty = cases[i].frequency;
        q.sampling.presence_penalty = cases[i].presence;
        q.sampling.repetition_penalty = cases[i].repetition;
        struct test_request t = try_all(e, &q);
        text_is(&t, cases[i].text);
        test_request_done(&t);
        engine_free(e);
    }
}
END_TEST

START_TEST(context_end) /* DEC-06 */
{
    struct engine_config c = test_engine_config();
    c.max_context = 32;
    c.max_num_seqs = 64;
    struct engine *e = test_engine(random_model, &c);
    uint32_t prompt[32];
    test_tokens(1, FIXTURE_VOCAB, prompt, 32);
    static const uint32_t cases[][2] = {{20, 12}, {31, 1}, {1, 31}, {16, 16}};
    for (int i = 0; i < 4; i++) {
        struct engine_request q = test_request_init(prompt, cases[i][0], 100);
        q.sampling.ignore_eos = true;
        struct test_request t = try_all(e, &q);
        ck_assert_uint_eq(t.ids.len, cases[i][1]);
        ck_assert_int_eq(t.reason, FINISH_LENGTH);
        test_request_done(&t);
    }
    engine_free(e);
}
END_TEST

/* A model that notices wrong positions, masks and K/V; greedy and sampled. */
START_TEST(random_weights) /* DEC-08, SMP-01 */
{
    struct engine_config c = test_engine_config();
    c.max_num_seqs = 64;
    struct engine *e = test_engine(random_model, &c);
    uint32_t prompt[70];
    for (uint32_t i = 0; i < 6; i++) {
        test_tokens(i, FIXTURE_VOCAB, prompt, 70);
        struct engine_request q = test_request_init(prompt, 10 + 11 * i, 48);
        q.sampling.ignore_eos = true;
        q.sampling.temperature = i % 2 ? 1.0f : 0;
        q.sampling.seed = 42;
        q.sampling.logprobs = 2;
        q.sampling.frequency_penalty = i > 3 ? 0.3f : 0;
        struct test_request t = try_all(e, &q);
        ck_assert_uint_eq(t.ids.len, 48);
        test_request_done(&t);
    }
    engine_free(e);
}
END_TEST

/* Many at once on a small pool: preemption with proposals in flight, prefix hits, small batches. */
START_TEST(crowd_on_a_small_pool) /* SCH-03 */
{
    enum { N = 10 };
    static uint32_t prompt[N][60];
    struct engine_request q[N];
    struct test_request plain[N] = {{0}};
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(random_model, &c);
    for (uint32_t i = 0; i < N; i++) {
        test_tokens(i / 2, FIXTURE_VOCAB, prompt[i], 60);
        q[i] = test_request_init(prompt[i], 20 + 4 * i, 40);
        q[i].sampling.ignore_eos = true;
        q[i].sampling.temperature = i % 2 ? 1.0f : 0;
        q[i].sampling.seed = 7;
        test_generate(e, &q[i], &plain[i]);
    }
    engine_free(e);
    for (enum shape shape = RIGHT; shape <= NOISE; shape++) {
        static struct draft_script_round rounds[N][41];
        struct draft_script script[N];
        struct test_request t[N];
        struct error err = {0};
        c = test_engine_config();
        c.n_kv_blocks = 7;
        c.max_num_seqs = 9;
        c.max_num_batched_tokens = shape % 2 ? 20 : 100;
        e = test_engine(random_model, &c);
        memset(t, 0, sizeof(t));
        for (uint32_t i = 0; i < N; i++) {
            struct stub s = {
                .shape = shape, .width = 7 + i % 2, .state = shape, .truth = &plain[i]};
            struct engine_request drafted = q[i];
            write_script(&s, &script[i]);
            memcpy(rounds[i], script[i].rounds, sizeof(rounds[i]));
            script[i].rounds = rounds[i];
            drafted.drafting.method = DRAFT_SCRIPTED;
            drafted.drafting.script = &script[i];
            ck_ok(test_submit(e, &drafted, &t[i], &err), &err);
        }
        test_run(e, NULL, 0);
        uint32_t preemptions = 0;
        for (uint32_t i = 0; i < N; i++) {
            same_as_plain(&t[i], &plain[i]);
            preemptions += t[i].usage.preemptions;
            test_request_done(&t[i]);
        }
        ck_assert_uint_gt(preemptions, 0);
        test_engine_idle(e);
        engine_free(e);
    }
    for (uint32_t i = 0; i < N; i++)
        test_request_done(&plain[i]);
}
END_TEST

/* The next turn finds the blocks that drafted rounds left: they hold the right K/V. */
START_TEST(cached_after_drafting)
{
    struct engine_config c = test_engine_config();
    c.max_num_seqs = 64;
    struct engine *e = test_engine(random_model, &c);
    uint32_t turn[150];
    test_tokens(5, FIXTURE_VOCAB, turn, 150);
    struct engine_request q = test_request_init(turn, 30, 60);
    q.sampling.ignore_eos = true;
    struct test_request plain = {0}, want = {0}, got = {0};
    test_generate(e, &q, &plain);
    engine_free(e);
    e = test_engine(random_model, &c);
    struct stub s = {.shape = TREE, .width = 12, .state = 9};
    struct test_request d;
    generate_drafted(e, &q, &d, &s, &plain);
    memcpy(turn + 30, plain.ids.ids, 60 * sizeof(*turn));
    struct engine_request next = test_request_init(turn, 100, 30);
    next.sampling.ignore_eos = true;
    test_generate(e, &next, &got);
    ck_assert_uint_eq(got.usage.cached_tokens, 80); /* 89 of 90 have K/V: five whole blocks */
    next.namespace_id = 1;
    test_generate(e, &next, &want);
    ck_assert_uint_eq(want.usage.cached_tokens, 0);
    test_same_output(&got, &want, "cached K/V of drafted rounds");
    test_request_done(&plain);
    test_request_done(&want);
    test_request_done(&got);
    test_request_done(&d);
    engine_free(e);
}
END_TEST

/* Flags of tokens, and one callback a round. */
START_TEST(rounds_are_commits)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(alphabet_model, &c);
    const uint32_t prompt[] = {'a'};
    struct engine_request q = test_request_init(prompt, 1, 12);
    struct test_request plain = {0};
    struct stub s = {.shape = RIGHT, .width = 4};
    struct test_request d;
    q.sampling.max_tokens = 16;
    test_generate(e, &q, &plain);
    generate_drafted(e, &q, &d, &s, &plain);
    /* The prompt gives one token, then 5 a round. */
    ck_assert_uint_eq(d.n_calls, 4);
    ck_assert_uint_eq(d.usage.drafting.prefill_tokens, 1);
    ck_assert_uint_eq(d.usage.drafting.rounds, 3);
    ck_assert_uint_eq(d.usage.drafting.accepted, 12);
    ck_assert_uint_eq(d.usage.drafting.committed, 15);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(d.usage.drafting.accepted_at[i], 3);
    ck_assert_uint_eq(d.usage.drafting.accepted_at[4], 0);
    test_request_done(&plain);
    test_request_done(&d);
    engine_free(e);
}
END_TEST

int main(void)
{
    struct fixture f = fixture_random(11);
    random_model = fixture_write(&f);
    alphabet_model = fixture_write_alphabet();

    Suite *s = suite_create("engine-round");
    TCase *t = test_case(s, "lossless");
    tcase_add_test(t, stop_strings);
    tcase_add_test(t, eos_inside);
    tcase_add_test(t, mask_like_token);
    tcase_add_test(t, min_tokens_and_penalties);
    tcase_add_test(t, context_end);
    tcase_add_test(t, random_weights);
    tcase_add_test(t, crowd_on_a_small_pool);
    tcase_add_test(t, cached_after_drafting);
    tcase_add_test(t, rounds_are_commits);
    return test_main(s);
}
