/* SPDX-License-Identifier: Apache-2.0 */
/* Sampler: rules of the parameters, penalties token by token, masks, bad logits, logprobs. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sampler.h"
#include "tests/unit/util.h"

#define V 512

static const struct dk_ops *ops(void)
{
    const struct dk_ops *o = dk_ops(dk_tier_best());
    ck_assert_ptr_nonnull(o);
    return o;
}

static uint32_t choose(const struct sampler *s, uint32_t vocab, const float *logits, uint64_t pos)
{
    float *work = mem_array(vocab, sizeof(*work));
    uint32_t *ids = mem_array(vocab, sizeof(*ids)), token = UINT32_MAX;
    struct error err = {0};
    ck_ok(sampler_choose(s, ops(), logits, pos, work, ids, &token, NULL, NULL, &err), &err);
    mem_free(work);
    mem_free(ids);
    return token;
}

static struct sampler *make(const struct sampling_params *p, uint32_t vocab, uint32_t eos)
{
    struct sampler *s = NULL;
    struct error err = {0};
    ck_ok(sampler_new(p, vocab, &eos, 1, &s, &err), &err);
    return s;
}

/* ---- parameters ---- */

static void refuse(const struct sampling_params *p, const char *field)
{
    struct error err = {0};
    ck_fails(sampling_params_check(p, V, &err), INVALID, &err);
    ck_assert_msg(!strncmp(err.msg, field, strlen(field)), "\"%s\" does not name %s", err.msg,
                  field);
    struct sampler *s = NULL;
    ck_fails(sampler_new(p, V, NULL, 0, &s, &err), INVALID, &err);
    ck_assert_ptr_null(s);
    /* The next good one works. */
    struct sampling_params good;
    sampling_params_init(&good);
    ck_ok(sampler_new(&good, V, NULL, 0, &s, &err), &err);
    sampler_free(s);
}

#define REFUSE(field, name, ...)                                                                   \
    do {                                                                                           \
        const __typeof__(((struct sampling_params *)0)->field) bad_[] = {__VA_ARGS__};             \
        for (size_t i_ = 0; i_ < ARRAY_LEN(bad_); i_++) {                                          \
            struct sampling_params p_;                                                             \
            sampling_params_init(&p_);                                                             \
            p_.max_tokens = 100;                                                                   \
            p_.field = bad_[i_];                                                                   \
            refuse(&p_, name);                                                                     \
        }                                                                                          \
    } while (0)
#define ACCEPT(field, ...)                                                                         \
    do {                                                                                           \
        const __typeof__(((struct sampling_params *)0)->field) good_[] = {__VA_ARGS__};            \
        for (size_t i_ = 0; i_ < ARRAY_LEN(good_); i_++) {                                         \
            struct sampling_params p_;                                                             \
            struct error err_ = {0};                                                               \
            sampling_params_init(&p_);                                                             \
            p_.max_tokens = 100;                                                                   \
            p_.field = good_[i_];                                                                  \
            ck_ok(sampling_params_check(&p_, V, &err_), &err_);                                    \
        }                                                                                          \
    } while (0)

/* SMP-05 */
START_TEST(parameter_rules)
{
    REFUSE(temperature, "temperature", -1, -1e-9F, NAN, INFINITY, 100.5F);
    ACCEPT(temperature, 0, 1e-9F, 1e-5F, 100);
    REFUSE(top_p, "top_p", 0, -0.1F, 1.1F, NAN, INFINITY);
    ACCEPT(top_p, 1, 0.5F, FLT_TRUE_MIN);
    REFUSE(min_p, "min_p", -0.1F, 1.1F, NAN);
    ACCEPT(min_p, 0, 1, 0.05F);
    REFUSE(repetition_penalty, "repetition_penalty", 0, -1, NAN, INFINITY, 101);
    ACCEPT(repetition_penalty, 1e-3F, 1, 100);
    REFUSE(frequency_penalty, "frequency_penalty", -2.5F, 2.5F, NAN);
    REFUSE(presence_penalty, "presence_penalty", -2.5F, 2.5F, NAN);
    ACCEPT(presence_penalty, -2, 2);
    REFUSE(top_k, "top_k", -2, INT32_MIN);
    ACCEPT(top_k, -1, 0, 1, 10000, INT32_MAX);
    REFUSE(logprobs, "logprobs", -2, 21);
    ACCEPT(logprobs, -1, 0, 20);
    REFUSE(max_tokens, "max_tokens", UINT32_MAX);
    ACCEPT(max_tokens, 0, 1);
    REFUSE(min_tokens, "min_tokens", 101);
    ACCEPT(min_tokens, 0, 100);
    ACCEPT(seed, 0, UINT64_MAX, (1ULL << 53) + 1);
}
END_TEST

START_TEST(list_rules)
{
    struct sampling_params p;
    struct error err = {0};
    sampling_params_init(&p);
    const struct logit_bias outside = {600, 1}, large = {1, 101}, nan = {1, NAN};
    const struct logit_bias twice[] = {{1, 1}, {2, 1}, {1, 2}};
    p.n_logit_bias = 1;
    p.logit_bias = &outside;
    refuse(&p, "logit_bias names token 600");
    p.logit_bias = &large;
    refuse(&p, "logit_bias is 101");
    p.logit_bias = &nan;
    refuse(&p, "logit_bias is NaN");
    p.logit_bias = twice;
    p.n_logit_bias = 3;
    refuse(&p, "logit_bias names token 1 twice");
    p.n_logit_bias = SAMPLING_MAX_LOGIT_BIAS + 1;
    refuse(&p, "logit_bias has 1025");

    sampling_params_init(&p);
    const uint32_t stop_id = 600;
    p.stop_ids = &stop_id;
    p.n_stop_ids = 1;
    refuse(&p, "stop_token_ids names token 600");
    p.n_stop_ids = 65;
    refuse(&p, "stop_token_ids has 65");

    sampling_params_init(&p);
    static char text[SAMPLING_MAX_STOP_BYTES + 1];
    memset(text, 'x', sizeof(text));
    const struct stop_string empty = {"", 0}, null = {NULL, 0}, cut = {"\xc3", 1};
    const struct stop_string longest = {text, sizeof(text) - 1}, longer = {text, sizeof(text)};
    p.n_stop = 1;
    p.stop = &empty;
    refuse(&p, "stop[0] is empty");
    p.stop = &null;
    refuse(&p, "stop[0] is empty");
    p.stop = &cut;
    refuse(&p, "stop[0] is not valid UTF-8");
    p.stop = &longer;
    refuse(&p, "stop[0] has 257 bytes");
    p.stop = &longest;
    ck_ok(sampling_params_check(&p, V, &err), &err);
    p.n_stop = 1000;
    refuse(&p, "stop has 1000 strings");
    p.stop = NULL;
    p.n_stop = 0;
    ck_ok(sampling_params_check(&p, V, &err), &err);
}
END_TEST

START_TEST(finish_names)
{
    ck_assert_str_eq(finish_reason_name(FINISH_STOP), "stop");
    ck_assert_str_eq(finish_reason_name(FINISH_LENGTH), "length");
    ck_assert_str_eq(finish_reason_name(FINISH_CANCELLED), "cancelled");
    ck_assert_str_eq(finish_reason_name(FINISH_ERROR), "error");
    ck_assert_str_eq(finish_reason_name(FINISH_NONE), "none");
}
END_TEST

/* ---- penalties ---- */

static void table(float *x, float a, float b, float c)
{
    for (int i = 0; i < V; i++)
        x[i] = -1e4F;
    x['A'] = a;
    x['B'] = b;
    x['C'] = c;
}

static void sequence(struct sampler *s, const float *x, int n, char *out)
{
    for (int i = 0; i < n; i++) {
        uint32_t t = choose(s, V, x, (uint64_t)i);
        ck_assert_int_eq(sampler_commit(s, t), 0);
        out[i] = (char)t;
    }
    out[n] = '\0';
}

/* SMP-03: every token counts at once.  The prompt counts for repetition only. */
START_TEST(smp_03)
{
    static const struct {
        float a, b, c, frequency, presence, repetition;
        bool prompt;
        const char *want;
    } cases[] = {
        {2, 1, -1e4F, 0.6F, 0, 1, false, "AABABABABABA"},
        {2, 1, -1e4F, 0.6F, 0, 1, true, "AABABABABABA"},
        {2, 1, -1e4F, 0, 1.5F, 1, false, "ABAAAA"},
        {2, 1.9F, 1, 0, 0, 1.2F, false, "ABAAAAAA"},
        {2, 1.9F, 1, 0, 0, 1.2F, true, "BAAAAAAA"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct sampling_params p;
        sampling_params_init(&p);
        p.temperature = 0;
        p.frequency_penalty = cases[i].frequency;
        p.presence_penalty = cases[i].presence;
        p.repetition_penalty = cases[i].repetition;
        float x[V];
        char got[16];
        table(x, cases[i].a, cases[i].b, cases[i].c);
        _cleanup_(sampler_freep) struct sampler *s = make(&p, V, 258);
        const uint32_t aa[] = {'A', 'A'};
        if (cases[i].prompt)
            ck_assert_int_eq(sampler_add_prompt(s, aa, 2), 0);
        sequence(s, x, (int)strlen(cases[i].want), got);
        ck_assert_str_eq(got, cases[i].want);
        /* A rejected draft never counts: walk on, come back, walk again. */
        sampler_rewind(s, 2);
        ck_assert_uint_eq(sampler_n_output(s), 2);
        for (int k = 0; k < 5; k++)
            ck_assert_int_eq(sampler_commit(s, 'A' + (uint32_t)k % 3), 0);
        sampler_rewind(s, 2);
        sequence(s, x, (int)strlen(cases[i].want) - 2, got);
        ck_assert_str_eq(got, cases[i].want + 2);
        sampler_rewind(s, 0);
        sequence(s, x, (int)strlen(cases[i].want), got);
        ck_assert_str_eq(got, cases[i].want);
    }
}
END_TEST

/* DEC-03: EOS and stop ids are out of reach until min_tokens; counted in tokens. */
START_TEST(min_tokens)
{
    float x[V];
    table(x, 4, -1e4F, -1e4F);
    x[258] = 5;
    x[300] = 4.5F;
    const uint32_t stop_id = 300;
    for (int ignore = 0; ignore < 2; ignore++) {
        struct sampling_params p;
        sampling_params_init(&p);
        p.temperature = 0;
        p.min_tokens = 3;
        p.max_tokens = 8;
        p.ignore_eos = ignore;
        p.stop_ids = &stop_id;
        p.n_stop_ids = 1;
        _cleanup_(sampler_freep) struct sampler *s = make(&p, V, 258);
        for (int i = 0; i < 3; i++) {
            uint32_t t = choose(s, V, x, 0);
            ck_assert_uint_eq(t, 'A');
            ck_assert(!sampler_is_stop_id(s, t));
            ck_assert_int_eq(sampler_commit(s, t), 0);
        }
        ck_assert_uint_eq(choose(s, V, x, 0), 258);
        ck_assert(sampler_is_stop_id(s, 258) == !ignore);
        ck_assert(sampler_is_stop_id(s, 300));
        sampler_rewind(s, 1);
        ck_assert_uint_eq(choose(s, V, x, 0), 'A');
    }
    /* An EOS id without a row in the model does no harm. */
    struct sampling_params p;
    sampling_params_init(&p);
    p.min_tokens = 2;
    _cleanup_(sampler_freep) struct sampler *s = make(&p, V, 100000);
    ck_assert_uint_lt(choose(s, V, x, 0), V);
}
END_TEST

/* ---- logits that are not numbers ---- */

START_TEST(bad_logits)
{
    static const float bad[] = {NAN, -NAN, INFINITY};
    const float temperatures[] = {0, 1};
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < ARRAY_LEN(bad) + 2; i++) {
            float x[V], work[V];
            uint32_t ids[V], token = 12345, n_lp = 77, n;
            double probs[V];
            table(x, 1, 1, 1);
            const char *text = "token 65";
            if (i < ARRAY_LEN(bad)) {
                x['A'] = bad[i];
            } else {
                for (int v = 0; v < V; v++)
                    x[v] = i == ARRAY_LEN(bad) ? NAN : -INFINITY;
                text = i == ARRAY_LEN(bad) ? "token 0 is NaN" : "every logit is -inf";
            }
            struct sampling_params p;
            sampling_params_init(&p);
            p.temperature = temperatures[t];
            p.top_k = 3;
            _cleanup_(sampler_freep) struct sampler *s = make(&p, V, 258);
            struct error err = {0};
            ck_fails(sampler_choose(s, ops(), x, 0, work, ids, &token, NULL, &n_lp, &err), NUMERIC,
                     &err);
            ck_assert_msg(strstr(err.msg, text) != NULL, "%s", err.msg);
            ck_assert_uint_eq(token, 12345);
            ck_assert_uint_eq(n_lp, 77);
            ck_fails(sampler_probs(s, ops(), x, ids, probs, &n, &err), NUMERIC, &err);
        }
    /* Everything that is not -inf is masked. */
    float x[V], work[V];
    uint32_t ids[V], token;
    for (int v = 0; v < V; v++)
        x[v] = -INFINITY;
    x[258] = 1;
    struct sampling_params p;
    sampling_params_init(&p);
    p.min_tokens = 1;
    _cleanup_(sampler_freep) struct sampler *s = make(&p, V, 258);
    struct error err = {0};
    ck_fails(sampler_choose(s, ops(), x, 0, work, ids, &token, NULL, NULL, &err), NUMERIC, &err);
    ck_assert_int_eq(sampler_commit(s, 1), 0);
    ck_ok(sampler_choose(s, ops(), x, 0, work, ids, &token, NULL, NULL, &err), &err);
    ck_assert_uint_eq(token, 258);
}
END_TEST

/* Penalties on huge values: nothing becomes NaN, -inf stays out, order is kept. */
START_TEST(huge_logits)
{
    float x[V];
    table(x, 3e38F, 2e38F, -3e38F);
    x['D'] = -INFINITY;
    const struct logit_bias bias[] = {{'A', 100}, {'D', 100}, {'C', -100}};
    for (int t = 0; t < 3; t++) {
        struct sampling_params p;
        sampling_params_init(&p);
        p.temperature = t == 0 ? 0 : t == 1 ? 1 : 0.01F;
        p.repetition_penalty = 0.5F;
        p.frequency_penalty = -2;
        p.logit_bias = bias;
        p.n_logit_bias = 3;
        p.top_p = 0.9F;
        _cleanup_(sampler_freep) struct sampler *s = make(&p, V, 258);
        ck_assert_int_eq(sampler_commit(s, 'B'), 0);
        ck_assert_int_eq(sampler_commit(s, 'D'), 0);
        ck_assert_uint_eq(choose(s, V, x, 5), 'B'); /* 4e38 before the clamp */
    }
}
END_TEST

/* ---- logprobs ---- */

START_TEST(logprobs)
{
    float x[V], work[V];
    uint32_t ids[V];
    srand(3);
    for (int i = 0; i < V; i++)
        x[i] = (float)(rand() % 41) / 4 - 5; /* many ties */
    double sum = 0;
    for (int i = 0; i < V; i++)
        sum += exp((double)x[i]);
    for (int n = 0; n <= SAMPLING_MAX_LOGPROBS; n++) {
        struct sampling_params p;
        sampling_params_init(&p);
        p.temperature = 0.7F; /* logprobs are of the raw logits all the same */
        p.repetition_penalty = 2;
        p.top_k = 5;
        p.logprobs = n;
        _cleanup_(sampler_freep) struct sampler *s = make(&p, V, 258);
        ck_assert_int_eq(sampler_commit(s, 7), 0);
        struct token_logprob lp[SAMPLING_MAX_LOGPROBS + 2];
        lp[n + 1].token = 4242;
        uint32_t token, n_lp;
        struct error err = {0};
        ck_ok(sampler_choose(s, ops(), x, 9, work, ids, &token, lp, &n_lp, &err), &err);
        ck_assert_uint_eq(n_lp, (uint32_t)n + 1);
        ck_assert_uint_eq(lp[n + 1].token, 4242);
        ck_assert_uint_eq(lp[0].token, token);
        for (uint32_t i = 0; i < n_lp; i++)
            ck_assert_double_le(fabs((double)lp[i].logprob - ((double)x[lp[i].token] - log(sum))),
                                1e-5);
        for (uint32_t i = 1; i < n_lp; i++) {
            uint32_t better = 0;
            for (uint32_t v = 0; v < V; v++)
                better += x[v] > x[lp[i].token] || (x[v] == x[lp[i].token] && v < lp[i].token);
            ck_assert_uint_eq(better, i - 1);
        }
    }
    /* Fewer finite logits than alternatives. */
    float small[3] = {-INFINITY, 1, 2}, w[3];
    uint32_t wi[3], token, n_lp;
    struct token_logprob lp[21];
    struct error err = {0};
    struct sampling_params p;
    sampling_params_init(&p);
    p.temperature = 0;
    p.logprobs = 20;
    _cleanup_(sampler_freep) struct sampler *s = make(&p, 3, 0);
    ck_ok(sampler_choose(s, ops(), small, 9, w, wi, &token, lp, &n_lp, &err), &err);
    ck_assert_uint_eq(n_lp, 3);
    ck_assert_uint_eq(lp[1].token, 2);
    ck_assert_uint_eq(lp[2].token, 1);
}
END_TEST

START_TEST(allocation_failure)
{
    float x[V], work[V];
    uint32_t ids[V];
    table(x, 3, 2, 1);
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct error err = {0};
        struct sampling_params p;
        sampling_params_init(&p);
        const struct logit_bias bias[] = {{5, 1}, {6, -1}};
        const uint32_t stop_id = 9, eos = 258, prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
        p.logit_bias = bias;
        p.n_logit_bias = 2;
        p.stop_ids = &stop_id;
        p.n_stop_ids = 1;
        p.min_tokens = 2;
        p.repetition_penalty = 1.1F;
        struct sampler *s = NULL;
        int r = sampler_new(&p, V, &eos, 1, &s, &err);
        if (r == 0)
            r = sampler_add_prompt(s, prompt, ARRAY_LEN(prompt));
        for (uint32_t i = 0; i < 100 && r == 0; i++) {
            size_t before = sampler_n_output(s);
            r = sampler_commit(s, i * 3);
            ck_assert_uint_eq(sampler_n_output(s), before + (r == 0));
        }
        uint32_t token, n;
        if (r == 0)
            r = sampler_choose(s, ops(), x, 9, work, ids, &token, NULL, NULL, &err);
        double probs[V];
        if (r == 0)
            r = sampler_probs(s, ops(), x, ids, probs, &n, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        sampler_free(s);
    }
    ck_assert_uint_ge(o.nth, 8);
}
END_TEST

int main(void)
{
    dk_thread_init();
    Suite *s = suite_create("sampler");
    TCase *t = test_case(s, "params");
    tcase_add_test(t, parameter_rules);
    tcase_add_test(t, list_rules);
    tcase_add_test(t, finish_names);
    t = test_case(s, "state");
    tcase_add_test(t, smp_03);
    tcase_add_test(t, min_tokens);
    t = test_case(s, "numbers");
    tcase_add_test(t, bad_logits);
    tcase_add_test(t, huge_logits);
    tcase_add_test(t, logprobs);
    tcase_add_test(t, allocation_failure);
    return test_main(s);
}
