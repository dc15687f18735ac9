/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: when they end and with what.  Scripted models say which token must come; random ones
 * notice wrong K/V. */
#include <math.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define EOS FIXTURE_EOS

static const char *random_model;   /* notices wrong K/V and positions */
static const char *alphabet_model; /* a -> b -> ... -> z -> EOS, other letters as each test says */

static struct engine *script(const struct fixture_chain *c)
{
    struct fixture f = fixture_script(fixture_chain_logit, c);
    struct engine_config cfg = test_engine_config();
    return test_engine(fixture_write(&f), &cfg);
}

static void ids_are(const struct test_request *t, const uint32_t *want, size_t n)
{
    ck_assert_uint_eq(t->ids.len, n);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(t->ids.ids[i] == want[i], "token %zu is %u, wanted %u", i, t->ids.ids[i],
                      want[i]);
}

static void text_is(const struct test_request *t, const char *want)
{
    ck_assert_str_eq(t->text.s, want);
}

/* ---- ends ------------------------------------------------------------------------------------- */

START_TEST(eos_and_padded_id) /* TOK-09 */
{
    struct fixture_chain c;
    fixture_chain_init(&c);
    c.next['x'] = 'a';
    c.next['a'] = 300; /* a row of the model without a token */
    c.next[300] = 'b';
    c.next['b'] = EOS;
    struct engine *e = script(&c);
    const uint32_t prompt[] = {'x'}, want[] = {'a', 300, 'b', EOS};
    struct engine_request q = test_request_init(prompt, 1, 16);
    struct test_request t = {0};
    test_generate(e, &q, &t);
    ids_are(&t, want, 4);
    text_is(&t, "ab");
    ck_assert_int_eq(t.reason, FINISH_STOP);
    ck_assert(t.stop_is_id);
    ck_assert_uint_eq(t.stop_id, EOS);
    ck_assert_uint_eq(t.usage.prompt_tokens, 1);
    ck_assert_uint_eq(t.usage.completion_tokens, 4);
    test_request_done(&t);
    engine_free(e);
}
END_TEST

START_TEST(eos_ids_of_all_files) /* DEC-02 */
{
    static const struct {
        const char *generation_config;
        uint32_t stop;
    } cases[] = {
        {"{}", 258}, {"{\"eos_token_id\":[256,258]}", 256}, {"{\"eos_token_id\":[256]}", 258}};
    for (int i = 0; i < 3; i++) {
        struct fixture_chain c;
        fixture_chain_init(&c);
        c.next['a'] = 'b';
        c.next['b'] = cases[i].stop;
        c.next[cases[i].stop] = 'c';
        c.next['c'] = 'd';
        struct fixture f = fixture_script(fixture_chain_logit, &c);
        f.generation_config = cases[i].generation_config;
        struct engine_config cfg = test_engine_config();
        struct engine *e = test_engine(fixture_write(&f), &cfg);
        const uint32_t prompt[] = {'a'}, want[] = {'b', cases[i].stop, 'c', 'd'};
        struct engine_request q = test_request_init(prompt, 1, 4);
        struct test_request t = {0};
        test_generate(e, &q, &t);
        ids_are(&t, want, 2);
        text_is(&t, "b");
        ck_assert_int_eq(t.reason, FINISH_STOP);
        test_request_done(&t);
        q.sampling.ignore_eos = true;
        test_generate(e, &q, &t);
        ids_are(&t, want, 4);
        ck_assert_int_eq(t.reason, FINISH_LENGTH);
        text_is(&t, "bcd");
        test_request_done(&t);
        engine_free(e);
    }
}
END_TEST

START_TEST(stop_ids)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(alphabet_model, &cfg);
    const uint32_t prompt[] = {'a'}, stop[] = {'d', 'f'}, want[] = {'b', 'c', 'd'};
    struct engine_request q = test_request_init(prompt, 1, 10);
    q.sampling.stop_ids = stop;
    q.sampling.n_stop_ids = 2;
    struct test_request t = {0};
    test_generate(e, &q, &t);
    ids_are(&t, want, 3);
    text_is(&t, "bc");
    ck_assert(t.reason == FINISH_STOP && t.stop_is_id && t.stop_id == 'd');
    test_request_done(&t);
    q.sampling.include_stop_in_output = true;
    test_generate(e, &q, &t);
    text_is(&t, "bcd");
    test_request_done(&t);
    engine_free(e);
}
END_TEST

START_TEST(stop_strings) /* DEC-01, plain part */
{
    static const struct {
        const char *stop, *text;
        uint32_t n_ids;
        bool include;
    } cases[] = {
        {"de", "bc", 4, false},
        {"bc", "", 2, false},
        {"z", "bcdefghijklmnopqrstuvwxy", 25, false},
        {"de", "bcde", 4, true},
        {"nothing", "bcdefghijklmnopqrstuvwxyz", 26, false},
        {"xyzz", "bcdefghijklmnopqrstuvwxyz", 26, false},
    };
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(alphabet_model, &cfg);
    const uint32_t prompt[] = {'a'};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct stop_string stop = {cases[i].stop, strlen(cases[i].stop)};
        struct engine_request q = test_request_init(prompt, 1, 100);
        q.sampling.stop = &stop;
        q.sampling.n_stop = 1;
        q.sampling.include_stop_in_output = cases[i].include;
        q.sampling.logprobs = 0;
        struct test_request t = {0};
        test_generate(e, &q, &t);
        text_is(&t, cases[i].text);
        ck_assert_uint_eq(t.ids.len, cases[i].n_ids);
        ck_assert_uint_eq(t.n_lp, cases[i].n_ids);
        ck_assert_int_eq(t.reason, FINISH_STOP);
        ck_assert_int_eq(t.stop_is_id, cases[i].n_ids == 26);
        ck_assert_str_eq(t.stop_text, cases[i].n_ids == 26 ? "" : cases[i].stop);
        test_request_done(&t);
        /* The same without wanting text: same ids, no text. */
        q.want_tokens_text = false;
        test_generate(e, &q, &t);
        text_is(&t, "");
        ck_assert_uint_eq(t.ids.len, cases[i].n_ids);
        test_request_done(&t);
    }
    engine_free(e);
}
END_TEST

static float table(const void *arg, uint32_t x, uint32_t y)
{
    const float *l = arg;
    (void)x;
    return l[y];
}

static struct engine *table_engine(float *l)
{
    struct fixture f = fixture_script(table, l);
    struct engine_config cfg = test_engine_config();
    return test_engine(fixture_write(&f), &cfg);
}

static void table_init(float *l)
{
    for (uint32_t i = 0; i < FIXTURE_VOCAB; i++)
        l[i] = -1e4f;
}

START_TEST(min_tokens) /* DEC-03, plain part */
{
    static float l[FIXTURE_VOCAB];
    table_init(l);
    l[EOS] = 5;
    l['x'] = 4;
    struct engine *e = table_engine(l);
    const uint32_t prompt[] = {'p'}, three[] = {'x', 'x', 'x', EOS}, none[] = {EOS};
    struct engine_request q = test_request_init(prompt, 1, 8);
    struct test_request t = {0};
    q.sampling.min_tokens = 3;
    test_generate(e, &q, &t);
    ids_are(&t, three, 4);
    ck_assert_int_eq(t.reason, FINISH_STOP);
    test_request_done(&t);
    q.sampling.min_tokens = 0;
    test_generate(e, &q, &t);
    ids_are(&t, none, 1);
    test_request_done(&t);
    q.sampling.min_tokens = 8;
    test_generate(e, &q, &t);
    ck_assert_uint_eq(t.ids.len, 8);
    text_is(&t, "xxxxxxxx");
    ck_assert_int_eq(t.reason, FINISH_LENGTH);
    test_request_done(&t);
    engine_free(e);
    /* Stop strings are not looked for before. */
    l[EOS] = -1e4f;
    e = table_engine(l);
    struct stop_string stop = {"x", 1};
    q.sampling.stop = &stop;
    q.sampling.n_stop = 1;
    q.sampling.min_tokens = 3;
    test_generate(e, &q, &t);
    ck_assert_uint_eq(t.ids.len, 4);
    text_is(&t, "xxx");
    ck_assert_int_eq(t.reason, FINISH_STOP);
    test_request_done(&t);
    engine_free(e);
}
END_TEST

START_TEST(penalties) /* SMP-03, plain part */
{
    static float l[FIXTURE_VOCAB];
    static const struct {
        float a, b, c, frequency, presence, repetition;
        const char *prompt, *text;
    } cases[] = {
        {2.0f, 1.0f, -1e4f, 0.6f, 0, 1, "p", "AABABABABABA"},
        {2.0f, 1.0f, -1e4f, 0, 1.5f, 1, "p", "ABAAAA"},
        {2.0f, 1.9f, 1.0f, 0, 0, 1.2f, "p", "ABAAAAAA"},
        {2.0f, 1.9f, 1.0f, 0, 0, 1.2f, "AA", "BAAAAAAA"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        table_init(l);
        l['A'] = cases[i].a;
        l['B'] = cases[i].b;
        l['C'] = cases[i].c;
        struct engine *e = table_engine(l);
        uint32_t prompt[2];
        size_t n = strlen(cases[i].prompt);
        for (size_t j = 0; j < n; j++)
            prompt[j] = (uint8_t)cases[i].prompt[j];
        struct engine_request q = test_request_init(prompt, n, (uint32_t)strlen(cases[i].text));
        q.sampling.frequency_penalty = cases[i].frequency;
        q.sampling.presence_penalty = cases[i].presence;
        q.sampling.repetition_penalty = cases[i].repetition;
        struct test_request t = {0};
        test_generate(e, &q, &t);
        text_is(&t, cases[i].text);
        test_request_done(&t);
        engine_free(e);
    }
}
END_TEST

START_TEST(mask_like_token) /* DEC-04, plain part */
{
    struct fixture_chain c;
    fixture_chain_init(&c);
    c.next['a'] = '*';
    c.next['*'] = 'b';
    c.next['b'] = EOS;
    struct engine *e = script(&c);
    const uint32_t prompt[] = {'*', 'a'}, want[] = {'*', 'b', EOS};
    struct engine_request q = test_request_init(prompt, 2, 10);
    struct test_request t = {0};
    test_generate(e, &q, &t);
    ids_are(&t, want, 3);
    text_is(&t, "*b");
    test_request_done(&t);
    engine_free(e);
}
END_TEST

START_TEST(context_end) /* DEC-06, plain part */
{
    struct engine_config cfg = test_engine_config();
    cfg.max_context = 32;
    struct engine *e = test_engine(random_model, &cfg);
    struct error err = {0};
    uint32_t prompt[40];
    test_tokens(1, FIXTURE_VOCAB, prompt, 40);
    static const uint32_t cases[][2] = {{20, 12}, {31, 1}, {1, 31}};
    for (int i = 0; i < 3; i++) {
        struct engine_request q = test_request_init(prompt, cases[i][0], 100);
        q.sampling.ignore_eos = true;
        struct test_request t = {0};
        test_generate(e, &q, &t);
        ck_assert_uint_eq(t.ids.len, cases[i][1]);
        ck_assert_int_eq(t.reason, FINISH_LENGTH);
        test_request_done(&t);
    }
    struct engine_request q = test_request_init(prompt, 32, 100);
    struct test_request t = {0};
    ck_fails(test_submit(e, &q, &t, &err), CONTEXT_FULL, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "32"));
    /* Nothing to generate: no room needed. */
    q.sampling.max_tokens = 0;
    test_generate(e, &q, &t);
    ck_assert_uint_eq(t.ids.len, 0);
    ck_assert_int_eq(t.reason, FINISH_LENGTH);
    test_request_done(&t);
    q = test_request_init(prompt, 33, 0);
    ck_fails(test_submit(e, &q, &t, &err), CONTEXT_FULL, &err);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(cut_characters)
{
    /* E2 82 AC is one character in three tokens; the output ends inside it. */
    struct fixture_chain c;
    fixture_chain_init(&c);
    c.next['x'] = 0xe2;
    c.next[0xe2] = 0x82;
    c.next[0x82] = 0xac;
    c.next[0xac] = EOS;
    struct engine *e = script(&c);
    const uint32_t prompt[] = {'x'};
    static const char *const want[] = {"", "\xef\xbf\xbd", "\xef\xbf\xbd", "\xe2\x82\xac",
                                       "\xe2\x82\xac"};
    for (uint32_t n = 0; n < 5; n++) {
        struct engine_request q = test_request_init(prompt, 1, n);
        struct test_request t = {0};
        test_generate(e, &q, &t);
        text_is(&t, want[n]);
        ck_assert_int_eq(t.reason, n == 4 ? FINISH_STOP : FINISH_LENGTH);
        test_request_done(&t);
    }
    engine_free(e);
}
END_TEST

START_TEST(logprobs)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    const uint32_t prompt[] = {1, 2, 3};
    for (int32_t n = -1; n <= 20; n += 7) {
        struct engine_request q = test_request_init(prompt, 3, 5);
        q.sampling.logprobs = n;
        q.sampling.ignore_eos = true;
        struct test_request t = {0};
        test_generate(e, &q, &t);
        ck_assert_uint_eq(t.n_lp, (uint32_t)(n + 1) * 5);
        ck_assert(n < 0 || (t.last_lp < 0 && t.last_lp > -20));
        /* Greedy: the chosen token is also the best alternative. */
        if (n > 0)
            ck_assert_uint_eq(t.first_lp[0], t.first_lp[1]);
        test_request_done(&t);
    }
    engine_free(e);
}
END_TEST

static float nan_row(const void *arg, uint32_t x, uint32_t y)
{
    (void)x;
    return y == 77 || *(const int *)arg == 2 ? (*(const int *)arg == 1 ? INFINITY : NAN) : 1.0f;
}

START_TEST(nan_logits) /* SMP-04 (a)-(c) */
{
    static int kind;
    for (kind = 0; kind < 3; kind++)
        for (int sampled = 0; sampled < 2; sampled++) {
            struct fixture f = fixture_script(nan_row, &kind);
            struct engine_config cfg = test_engine_config();
            struct engine *e = test_engine(fixture_write(&f), &cfg);
            struct engine *healthy = test_engine(alphabet_model, &cfg);
            uint32_t prompt[40];
            test_tokens(3, FIXTURE_VOCAB, prompt, 40);
            prompt[39] = 'w';
            for (int again = 0; again < 2; again++) {
                struct engine_request q = test_request_init(prompt, 40, 10);
                q.sampling.temperature = (float)sampled;
                struct test_request t = {0}, good = {0};
                test_generate(e, &q, &t);
                ck_assert_int_eq(t.reason, FINISH_ERROR);
                ck_assert_int_eq(t.error, DEDIT_E_NUMERIC);
                ck_assert_uint_eq(t.ids.len, 0);
                text_is(&t, "");
                ck_assert_uint_eq(t.usage.cached_tokens, 0); /* its KV is not used again */
                q.sampling.temperature = 0;
                test_generate(healthy, &q, &good);
                text_is(&good, "xyz");
                test_request_done(&t);
                test_request_done(&good);
            }
            struct engine_stats s;
            engine_get_stats(e, &s);
            ck_assert_uint_eq(s.kv_blocks_cached, 0);
            ck_assert_uint_eq(s.finished[FINISH_ERROR], 2);
            test_engine_idle(e);
            engine_free(e);
            engine_free(healthy);
        }
}
END_TEST

/* Blocks full of NaN go back to the pool; whoever gets them next, and whoever shares a batch with the
 * NaN, computes as if nothing had been. */
START_TEST(poisoned_blocks)
{
    struct fixture f = fixture_random(31);
    f.poison = true;
    const char *path = fixture_write(&f);
    for (int kv = 0; kv < DK_KV_TYPE_COUNT; kv++) {
        struct engine_config cfg = test_engine_config();
        cfg.n_kv_blocks = 8;
        cfg.kv_type = (enum dk_kv_type)kv;
        uint32_t bad[128], prompt[50];
        for (int i = 0; i < 128; i++)
            bad[i] = FIXTURE_POISON;
        for (uint32_t i = 0; i < 50; i++)
            prompt[i] = 100 + test_token(1, i, 400);
        struct test_request want = {0}, beside = {0}, after = {0}, t = {0};
        struct error err = {0};
        struct engine_request q = test_request_init(prompt, 50, 20),
                              p = test_request_init(bad, 127, 1);
        q.sampling.ignore_eos = true;
        q.sampling.logprobs = 0;
        struct engine *e = test_engine(path, &cfg);
        test_generate(e, &q, &want);
        ck_assert_uint_eq(want.ids.len, 20);
        engine_free(e);
        cfg.enable_prefix_caching = false; /* each computes for itself */
        e = test_engine(path, &cfg);
        test_generate(e, &p, &t); /* every position of the pool */
        ck_assert_int_eq(t.error, DEDIT_E_NUMERIC);
        test_request_done(&t);
        test_generate(e, &q, &after);
        test_same_output(&after, &want, "in poisoned blocks");
        t = (struct test_request){0};
        p.n_prompt = 37;
        ck_ok(test_submit(e, &q, &beside, &err), &err);
        ck_ok(test_submit(e, &p, &t, &err), &err);
        test_run(e, NULL, 0);
        ck_assert_int_eq(t.error, DEDIT_E_NUMERIC);
        test_same_output(&beside, &want, "beside a poisoned one");
        test_request_done(&t);
        test_request_done(&want);
        test_request_done(&beside);
        test_request_done(&after);
        engine_free(e);
    }
}
END_TEST

START_TEST(bad_requests) /* SMP-05, what the engine itself looks at */
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(alphabet_model, &cfg);
    struct error err = {0};
    const uint32_t good[] = {'a', 'b'}, bad[] = {'a', 600};
    struct engine_request q = test_request_init(bad, 2, 4);
    struct test_request t = {0};
    ck_fails(test_submit(e, &q, &t, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "prompt"));
    ck_assert_ptr_nonnull(strstr(err.msg, "600"));
    q = test_request_init(good, 0, 4);
    ck_fails(test_submit(e, &q, &t, &err), INVALID, &err);
    q = test_request_init(good, 2, 4);
    q.sampling.top_p = 0;
    ck_fails(test_submit(e, &q, &t, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "top_p"));
    q = test_request_init(good, 2, 4);
    struct request *r = NULL;
    ck_fails(engine_submit(e, &q, &r, &err), INVALID, &err); /* no sink */
    ck_assert_ptr_null(r);
    test_generate(e, &q, &t);
    text_is(&t, "cdef");
    test_request_done(&t);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(seeds)
{
    struct engine_config cfg = test_engine_config();
    struct engine *e = test_engine(random_model, &cfg);
    const uint32_t prompt[] = {5, 6, 7};
    struct test_request t[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        struct engine_request q = test_request_init(prompt, 3, 24);
        q.sampling.temperature = 1;
        q.sampling.ignore_eos = true;
        q.sampling.has_seed = i >= 2;
        q.sampling.seed = i == 2 ? UINT64_MAX : t[0].usage.seed;
        test_generate(e, &q, &t[i]);
    }
    ck_assert(t[0].usage.seed != t[1].usage.seed);
    ck_assert(memcmp(t[0].ids.ids, t[1].ids.ids, 24 * sizeof(uint32_t)) != 0);
    ck_assert(t[2].usage.seed == UINT64_MAX);
    test_same_output(&t[3], &t[0], "the seed that was reported");
    for (int i = 0; i < 4; i++)
        test_request_done(&t[i]);
    engine_free(e);
}
END_TEST

int main(void)
{
    struct fixture f = fixture_random(11);
    random_model = fixture_write(&f);
    alphabet_model = fixture_write_alphabet();

    Suite *s = suite_create("engine-request");
    TCase *t = test_case(s, "ends");
    tcase_add_test(t, eos_and_padded_id);
    tcase_add_test(t, eos_ids_of_all_files);
    tcase_add_test(t, stop_ids);
    tcase_add_test(t, stop_strings);
    tcase_add_test(t, min_tokens);
    tcase_add_test(t, penalties);
    tcase_add_test(t, mask_like_token);
    tcase_add_test(t, context_end);
    tcase_add_test(t, cut_characters);
    tcase_add_test(t, logprobs);
    tcase_add_test(t, nan_logits);
    tcase_add_test(t, poisoned_blocks);
    tcase_add_test(t, bad_requests);
    tcase_add_test(t, seeds);
    return test_main(s);
}
