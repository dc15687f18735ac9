/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proposals without an engine: trees and their walk, look-up of n-grams, scripts, and both rules of
 * verification against reference vectors (200 cases each).
 */
#include <string.h>

#include "engine/method.h"
#include "engine/ngram.h"
#include "engine/rejection.h"
#include "tests/unit/util.h"

/* ---- trees ------------------------------------------------------------------------------------ */

START_TEST(trees)
{
    struct proposal p;
    struct error err = {0};
    proposal_clear(&p);
    ck_assert(proposal_is_chain(&p));
    ck_assert_int_eq(proposal_child(&p, -1, 7), -1);
    ck_assert_int_eq(proposal_add(&p, 7, -1, 0.5f), 0);
    ck_assert_int_eq(proposal_add(&p, 8, 0, 0.5f), 1);
    ck_assert(proposal_is_chain(&p));
    ck_assert_int_eq(proposal_add(&p, 9, -1, 0.5f), 2);
    ck_assert_int_eq(proposal_add(&p, 8, 2, 0.5f), 3);
    ck_assert_int_eq(proposal_add(&p, 8, 2, 0.5f), 4); /* twice the same: the first one counts */
    ck_assert(!proposal_is_chain(&p));
    ck_assert_int_eq(proposal_child(&p, -1, 7), 0);
    ck_assert_int_eq(proposal_child(&p, -1, 9), 2);
    ck_assert_int_eq(proposal_child(&p, -1, 8), -1); /* only a grandchild */
    ck_assert_int_eq(proposal_child(&p, 0, 8), 1);
    ck_assert_int_eq(proposal_child(&p, 2, 8), 3);
    ck_assert_int_eq(proposal_child(&p, 3, 8), -1);
    ck_assert_uint_eq(proposal_depth(&p, 0), 1);
    ck_assert_uint_eq(proposal_depth(&p, 4), 2);
    ck_ok(proposal_check(&p, 10, &err), &err);
    ck_fails(proposal_check(&p, 9, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "node 2 is token 9"));
    ck_assert_int_eq(proposal_add(&p, 1, 5, 0), -1);
    ck_assert_int_eq(proposal_add(&p, 1, -2, 0), -1);
    p.parent[3] = 3;
    ck_fails(proposal_check(&p, 10, &err), INVALID, &err);
    p.parent[3] = -2;
    ck_fails(proposal_check(&p, 10, &err), INVALID, &err);
    p.n = PROPOSAL_MAX_NODES + 1;
    ck_fails(proposal_check(&p, 10, &err), INVALID, &err);
}
END_TEST

START_TEST(limits)
{
    struct proposal p;
    struct error err = {0};
    proposal_clear(&p);
    for (uint32_t i = 0; i < PROPOSAL_MAX_DEPTH; i++)
        ck_assert_int_eq(proposal_add(&p, i, (int)i - 1, 0), (int)i);
    ck_assert_int_eq(proposal_add(&p, 0, (int)PROPOSAL_MAX_DEPTH - 1, 0), -1);
    while (p.n < PROPOSAL_MAX_NODES)
        ck_assert_int_ge(proposal_add(&p, p.n, -1, 0), 0);
    ck_assert_int_eq(proposal_add(&p, 0, -1, 0), -1);
    ck_ok(proposal_check(&p, 200, &err), &err);
    p.parent[PROPOSAL_MAX_DEPTH] = PROPOSAL_MAX_DEPTH - 1;
    ck_fails(proposal_check(&p, 200, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "deep"));
}
END_TEST

/* ---- n-grams ---------------------------------------------------------------------------------- */

static void looks_up(const uint32_t *tokens, uint32_t n, uint32_t most, const uint32_t *want,
                     uint32_t n_want)
{
    struct proposal p;
    proposal_clear(&p);
    ngram_propose(tokens, n, most, &p);
    ck_assert_uint_eq(p.n, n_want);
    ck_assert(proposal_is_chain(&p));
    for (uint32_t i = 0; i < n_want; i++)
        ck_assert_uint_eq(p.tokens[i], want[i]);
}
#define LOOKS_UP(tokens, most, ...)                                                                \
    looks_up(tokens, sizeof(tokens) / sizeof(*(tokens)), most, (uint32_t[]){__VA_ARGS__},          \
             sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

START_TEST(ngrams)
{
    static const uint32_t none[] = {1, 2, 3, 4}, one[] = {1, 9, 5, 1},
                          two[] = {1, 2, 3, 4, 5, 6, 1, 2}, later[] = {1, 2, 3, 1, 2, 4, 1, 2},
                          longer[] = {7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2}, run[] = {3, 5, 5, 5},
                          period[] = {1, 2, 3, 1, 2, 3, 1}, all[] = {4, 4, 4, 4, 4, 4, 4, 4, 4};
    looks_up(none, 4, 8, NULL, 0);
    looks_up(one, 4, 8, NULL, 0); /* one token is no n-gram */
    looks_up(two, 0, 8, NULL, 0);
    looks_up(two, 1, 8, NULL, 0);
    looks_up(two, 2, 8, NULL, 0);
    looks_up(two, 8, 0, NULL, 0);
    LOOKS_UP(two, 8, 3, 4, 5, 6); /* twice as much as was equal */
    LOOKS_UP(two, 3, 3, 4, 5);
    LOOKS_UP(later, 8, 4, 1, 2, 4); /* the latest of equal ones; goes on in itself */
    LOOKS_UP(longer, 2, 3, 8);      /* the longest first */
    LOOKS_UP(run, 3, 5, 5, 5);
    LOOKS_UP(period, 7, 2, 3, 1, 2, 3, 1, 2);
    LOOKS_UP(all, 4, 4, 4, 4, 4);
}
END_TEST

/* ---- scripts ---------------------------------------------------------------------------------- */

static const char *write_lines(const char *text)
{
    static char path[4200];
    (void)snprintf(path, sizeof(path), "%s/script", test_tmpdir());
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

START_TEST(scripts)
{
    struct draft_script s = {0};
    struct error err = {0};
    ck_ok(
        draft_script_read(write_lines("{\"at\": 0, \"tokens\": [5, 6]}\n"
                                      "{\"at\": 3, \"tokens\": [7, 8, 9], \"parents\": [-1, -1, 1],"
                                      " \"confidence\": [1, 0.25, 0.5], \"passes\": 2}\n"
                                      "{\"at\": 4, \"tokens\": []}"),
                          &s, &err),
        &err);
    ck_assert_uint_eq(s.n, 3);
    ck_assert_uint_eq(s.rounds[0].proposal.n, 2);
    ck_assert(proposal_is_chain(&s.rounds[0].proposal));
    ck_assert(s.rounds[0].proposal.confidence[0] < 0);
    ck_assert_uint_eq(s.rounds[1].at, 3);
    ck_assert_uint_eq(s.rounds[1].passes, 2);
    ck_assert_int_eq(s.rounds[1].proposal.parent[2], 1);
    ck_assert(s.rounds[1].proposal.confidence[1] == 0.25f);
    ck_assert_uint_eq(s.rounds[2].proposal.n, 0);
    draft_script_done(&s);
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"{\"tokens\": [1]}", "script:1: at: is missing"},
        {"{\"at\": 1}", "script:1: tokens: is missing"},
        {"{\"at\": 1, \"tokens\": [1]}\n{\"at\": 1, \"tokens\": [1]}", "script:2: at: must ascend"},
        {"{\"at\": 1, \"tokens\": [-1]}", "tokens[0]"},
        {"{\"at\": 1, \"tokens\": [1.5]}", "tokens[0]"},
        {"{\"at\": 1, \"tokens\": [1, 2], \"parents\": [-1]}", "1 entries for 2 tokens"},
        {"{\"at\": 1, \"tokens\": [1], \"parents\": [0]}", "parents[0]"},
        {"{\"at\": 1, \"tokens\": [1], \"confidence\": [1.5]}", "confidence[0]"},
        {"{\"at\": 1, \"tokens\": [1], \"passes\": 9}", "passes"},
        {"[]", "script:1"},
        {"{\"at\": 1, \"tokens\": [1]", "script:1:"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        int r = draft_script_read(write_lines(bad[i].text), &s, &err);
        ck_assert_msg(r < 0 && strstr(err.msg, bad[i].says), "%s: %s", bad[i].text, err.msg);
    }
    ck_fails(draft_script_read("/nowhere/script", &s, &err), IO, &err);
    /* Too many nodes. */
    char text[2000] = "{\"at\": 0, \"tokens\": [0";
    for (int i = 0; i < 64; i++)
        strcat(text, ", 1");
    strcat(text, "]}");
    ck_fails(draft_script_read(write_lines(text), &s, &err), LIMIT, &err);
}
END_TEST

START_TEST(scripts_without_memory)
{
    const char *path =
        write_lines("{\"at\": 0, \"tokens\": [5, 6]}\n{\"at\": 1, \"tokens\": [5]}\n");
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct draft_script s = {0};
        struct error err = {0};
        int r = draft_script_read(path, &s, &err);
        if (o.failed)
            ck_fails(r, NOMEM, &err);
        else
            ck_ok(r, &err);
        draft_script_done(&s);
    }
}
END_TEST

/* ---- methods' names --------------------------------------------------------------------------- */

START_TEST(names)
{
    enum draft_method m;
    for (int i = 0; i < DRAFT_METHOD_COUNT; i++) {
        ck_assert(draft_method_parse(draft_method_name((enum draft_method)i), &m));
        ck_assert_int_eq(m, i);
    }
    ck_assert(!draft_method_parse("", &m));
    ck_assert(!draft_method_parse("magic", &m));
    ck_assert_str_eq(draft_method_name((enum draft_method)99), "unknown");
}
END_TEST

/* ---- the rules -------------------------------------------------------------------------------- */

static uint32_t numbers(json_t *a, uint32_t *ret)
{
    for (size_t i = 0; i < json_array_size(a); i++)
        ret[i] = (uint32_t)json_integer_value(json_array_get(a, i));
    return (uint32_t)json_array_size(a);
}

/* The walk over the target's choices, as a round takes it. */
static void rule_a(const struct jsonl *j, json_t *c)
{
    uint32_t drafts[64], choice[64], n = numbers(jsonl_get(j, c, "drafts"), drafts);
    struct proposal p;
    int at = -1, next;
    uint32_t accepted = 0;
    ck_assert_uint_eq(numbers(jsonl_get(j, c, "target_choice"), choice), n + 1);
    proposal_clear(&p);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(proposal_add(&p, drafts[i], (int)i - 1, -1), (int)i);
    for (; (next = proposal_child(&p, at, choice[at + 1])) >= 0; at = next)
        accepted++;
    ck_assert_int_eq(accepted, jsonl_int(j, c, "accepted"));
    ck_assert_int_eq(choice[at + 1], jsonl_int(j, c, "next"));
}

static uint32_t row(json_t *a, uint32_t i, uint32_t *ids, double *x)
{
    json_t *r = json_array_get(a, i);
    for (size_t k = 0; k < json_array_size(r); k++) {
        ids[k] = (uint32_t)k;
        x[k] = json_number_value(json_array_get(r, k));
    }
    return (uint32_t)json_array_size(r);
}

static void rule_b(const struct jsonl *j, json_t *c)
{
    uint32_t drafts[64], ids[64], n = numbers(jsonl_get(j, c, "drafts"), drafts);
    json_t *ps = jsonl_get(j, c, "p"), *qs = jsonl_get(j, c, "q");
    double p[64], q[64], w[64], u_next = jsonl_num(j, c, "u_next");
    float qf[64];
    uint32_t next = 0, i = 0;
    for (; i < n; i++) {
        uint32_t v = row(ps, i, ids, p);
        ck_assert_uint_eq(row(qs, i, ids, q), v);
        for (uint32_t k = 0; k < v; k++)
            qf[k] = (float)q[k];
        double u = json_number_value(json_array_get(jsonl_get(j, c, "u_accept"), i));
        if (!rejection_step(ids, p, v, qf, drafts[i], u, u_next, w, &next))
            break;
    }
    if (i == n)
        next = rejection_draw(ids, p, row(ps, n, ids, p), u_next);
    ck_assert_int_eq(i, jsonl_int(j, c, "accepted"));
    ck_assert_int_eq(next, jsonl_int(j, c, "next"));
}

START_TEST(rules)
{
    struct jsonl j;
    uint32_t n_a = 0, n_b = 0;
    jsonl_open(&j, test_path("tests/golden/verify/cases.jsonl"));
    for (json_t *c; (c = jsonl_next(&j)); json_decref(c)) {
        bool a = strcmp(jsonl_str(&j, c, "rule"), "A") == 0;
        n_a += a;
        n_b += !a;
        if (a)
            rule_a(&j, c);
        else
            rule_b(&j, c);
    }
    jsonl_close(&j);
    ck_assert_uint_eq(n_a, 200);
    ck_assert_uint_eq(n_b, 200);
}
END_TEST

/* A draft that could only be one token: accepted with p(d), else p without it. */
START_TEST(one_hot)
{
    static const uint32_t ids[] = {2, 5, 9};
    static const double p[] = {0.25, 0.5, 0.25};
    double w[3];
    uint32_t next = 0;
    ck_assert(rejection_step(ids, p, 3, NULL, 5, 0.49, 0.5, w, &next));
    ck_assert(!rejection_step(ids, p, 3, NULL, 5, 0.51, 0.49, w, &next));
    ck_assert_uint_eq(next, 2);
    ck_assert(!rejection_step(ids, p, 3, NULL, 5, 0.51, 0.51, w, &next));
    ck_assert_uint_eq(next, 9);
    /* A token that the target cannot choose. */
    ck_assert(!rejection_step(ids, p, 3, NULL, 7, 1e-12, 0.3, w, &next));
    ck_assert_uint_eq(next, 5);
    /* Nothing but the draft, in a way that rounding rejects: p decides. */
    static const double sure[] = {0, 1, 0};
    ck_assert(!rejection_step(ids, sure, 3, NULL, 5, 1, 0.7, w, &next));
    ck_assert_uint_eq(next, 5);
    ck_assert_uint_eq(rejection_draw(ids, sure, 3, 1), 5);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("proposal");
    TCase *t = test_case(s, "proposals");
    tcase_add_test(t, trees);
    tcase_add_test(t, limits);
    tcase_add_test(t, ngrams);
    tcase_add_test(t, scripts);
    tcase_add_test(t, scripts_without_memory);
    tcase_add_test(t, names);
    t = test_case(s, "rules");
    tcase_add_test(t, rules);
    tcase_add_test(t, one_hot);
    return test_main(s);
}
