/* SPDX-License-Identifier: Apache-2.0 */
/* Trees out of probabilities: the reference's trees and walks, ties, limits, chains. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ddtree.h"
#include "tests/unit/util.h"

#define MAX_V 64u

/* All tokens of a depth by descending logit, as log-probabilities. */
static void make_depth(const json_t *logits, uint32_t limit, uint32_t *tokens, float *logp,
                       struct ddtree_depth *ret)
{
    double x[MAX_V], sum = 0, max = -INFINITY;
    uint32_t n = (uint32_t)json_array_size(logits);
    ck_assert_uint_le(n, MAX_V);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = json_number_value(json_array_get(logits, i));
        max = x[i] > max ? x[i] : max;
    }
    for (uint32_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        for (; j && x[tokens[j - 1]] < x[i]; j--)
            tokens[j] = tokens[j - 1];
        tokens[j] = i;
    }
    for (uint32_t i = 0; i < n; i++)
        logp[i] = (float)(x[tokens[i]] - max - log(sum));
    *ret = (struct ddtree_depth){tokens, logp, n < limit ? n : limit};
}

static void check_walk(const struct jsonl *f, json_t *o, const struct proposal *p)
{
    const json_t *choice = jsonl_get(f, o, "target_choice"),
                 *want = jsonl_get(f, o, "accepted_nodes");
    uint32_t n = 0;
    int at = -1, token;
    for (;;) {
        token = (int)json_integer_value(json_array_get(choice, (size_t)(at + 1)));
        int next = proposal_child(p, at, (uint32_t)token);
        if (next < 0)
            break;
        ck_assert_int_eq(next + 1, json_integer_value(json_array_get(want, n)));
        at = next;
        n++;
    }
    ck_assert_uint_eq(n, json_array_size(want));
    ck_assert_int_eq(jsonl_int(f, o, "accepted"), (int)n);
    ck_assert_int_eq(jsonl_int(f, o, "next"), token);
}

START_TEST(reference_trees)
{
    struct jsonl f;
    json_t *o;
    static uint32_t tokens[64][MAX_V];
    static float logp[64][MAX_V];
    unsigned cases = 0, branches = 0;
    jsonl_open(&f, test_path("tests/golden/verify/ddtree.jsonl"));
    while ((o = jsonl_next(&f))) {
        struct ddtree_depth depths[64];
        struct proposal p;
        json_t *logits = jsonl_get(&f, o, "logits"), *nodes = jsonl_get(&f, o, "nodes");
        uint32_t n = (uint32_t)jsonl_int(&f, o, "depths"),
                 budget = (uint32_t)jsonl_int(&f, o, "budget");
        for (uint32_t i = 0; i < n; i++)
            make_depth(json_array_get(logits, i), budget, tokens[i], logp[i], &depths[i]);
        ck_assert_uint_eq(ddtree_build(depths, n, budget, &p), json_array_size(nodes));
        for (uint32_t i = 0; i < p.n; i++) {
            const json_t *w = json_array_get(nodes, i);
            double lp = json_number_value(json_object_get(w, "logp")), got = 0;
            ck_assert_uint_eq(p.tokens[i], json_integer_value(json_object_get(w, "token")));
            ck_assert_int_eq(p.parent[i] + 1, json_integer_value(json_object_get(w, "parent")));
            ck_assert_uint_eq(proposal_depth(&p, i),
                              json_integer_value(json_object_get(w, "depth")));
            for (int at = (int)i; at >= 0; at = p.parent[at])
                got += log((double)p.confidence[at]);
            ck_assert_double_eq_tol(got, lp, 1e-4);
            branches += p.parent[i] != (int)i - 1;
        }
        check_walk(&f, o, &p);
        json_decref(o);
        cases++;
    }
    jsonl_close(&f);
    ck_assert_uint_eq(cases, 40);
    ck_assert_uint_gt(branches, 100);
}
END_TEST

START_TEST(one_candidate_is_a_chain)
{
    uint32_t tokens[5] = {9, 8, 7, 6, 5};
    float logp[5] = {-0.1f, -2.0f, -0.5f, -1.0f, -3.0f};
    struct ddtree_depth d[5];
    struct proposal p;
    for (int i = 0; i < 5; i++)
        d[i] = (struct ddtree_depth){&tokens[i], &logp[i], 1};
    ck_assert_uint_eq(ddtree_build(d, 5, 5, &p), 5);
    ck_assert(proposal_is_chain(&p));
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(p.tokens[i], tokens[i]);
    ck_assert_uint_eq(ddtree_build(d, 5, 3, &p), 3);
    ck_assert_uint_eq(ddtree_build(d, 5, 100, &p), 5);
    ck_assert_uint_eq(ddtree_build(d, 0, 100, &p), 0);
    ck_assert_uint_eq(ddtree_build(d, 5, 0, &p), 0);
}
END_TEST

/* Equal scores everywhere: the order is that of the paths, a path before what continues it. */
START_TEST(ties_have_a_rule)
{
    uint32_t tokens[3] = {10, 11, 12};
    float logp[3] = {0, 0, 0};
    struct ddtree_depth d[2] = {{tokens, logp, 3}, {tokens, logp, 3}};
    struct proposal p;
    ck_assert_uint_eq(ddtree_build(d, 2, 12, &p), 12);
    static const struct {
        uint32_t token;
        int parent;
    } want[12] = {{10, -1}, {10, 0}, {11, 0},  {12, 0}, {11, -1}, {10, 4},
                  {11, 4},  {12, 4}, {12, -1}, {10, 8}, {11, 8},  {12, 8}};
    for (uint32_t i = 0; i < 12; i++) {
        ck_assert_uint_eq(p.tokens[i], want[i].token);
        ck_assert_int_eq(p.parent[i], want[i].parent);
    }
}
END_TEST

/* Nodes come in descending probability, parents first, and nothing better was left out. */
START_TEST(limits_and_order)
{
    static uint32_t tokens[63][127];
    static float logp[63][127];
    struct ddtree_depth d[63];
    struct proposal p;
    struct error err = {0};
    for (uint32_t i = 0; i < 63; i++) {
        for (uint32_t j = 0; j < 127; j++) {
            tokens[i][j] = j;
            logp[i][j] = -0.01f - 0.02f * (float)j - 0.001f * (float)i;
        }
        d[i] = (struct ddtree_depth){tokens[i], logp[i], 127};
    }
    logp[5][0] = -INFINITY; /* nothing behind this depth is worth a row */
    ck_assert_uint_eq(ddtree_build(d, 63, 1000, &p), PROPOSAL_MAX_NODES);
    ck_ok(proposal_check(&p, 127, &err), &err);
    double last = 0;
    for (uint32_t i = 0; i < p.n; i++) {
        double lp = 0;
        for (int at = (int)i; at >= 0; at = p.parent[at])
            lp += log((double)p.confidence[at]);
        ck_assert(lp <= last + 1e-5);
        last = lp;
        ck_assert_uint_le(proposal_depth(&p, i), 5);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ddtree");
    TCase *c = test_case(s, "ddtree");
    tcase_add_test(c, reference_trees);
    tcase_add_test(c, one_candidate_is_a_chain);
    tcase_add_test(c, ties_have_a_rule);
    tcase_add_test(c, limits_and_order);
    return test_main(s);
}
