/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of verify/: cases.jsonl has both rules of verification, ddtree.jsonl trees out of a block's
 * logits and walks along the target's choices.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/check.h"
#include "engine/ddtree.h"
#include "engine/rejection.h"

#define MAX_DEPTH PROPOSAL_MAX_DEPTH

/* The walk along the target's choices: choice[0] after the anchor, choice[i + 1] after node i. */
static bool walk(const struct proposal *p, const struct check_ids *choice, uint32_t *nodes,
                 uint32_t *ret_n, uint32_t *ret_next)
{
    int at = -1;
    for (*ret_n = 0;;) {
        if ((size_t)(at + 1) >= choice->n)
            return false;
        *ret_next = choice->v[at + 1];
        int next = proposal_child(p, at, *ret_next);
        if (next < 0)
            return true;
        nodes[(*ret_n)++] = (uint32_t)next + 1;
        at = next;
    }
}

static bool is_number(const json_t *o, const char *key, double want)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) && json_number_value(v) == want;
}

static int rule_a(const json_t *o, bool *ret_ok, struct error *err)
{
    struct check_ids drafts = {0}, choice = {0};
    struct proposal p;
    uint32_t nodes[PROPOSAL_MAX_NODES], n = 0, next = 0;
    int r = check_get_ids(o, "drafts", &drafts, err);
    if (r == 0)
        r = check_get_ids(o, "target_choice", &choice, err);
    proposal_clear(&p);
    for (size_t i = 0; i < drafts.n && r == 0; i++)
        if (proposal_add(&p, drafts.v[i], (int)i - 1, -1) < 0)
            r = ERR(err, LIMIT, "%zu drafts are too many", drafts.n);
    if (r == 0)
        *ret_ok = walk(&p, &choice, nodes, &n, &next) && is_number(o, "accepted", n) &&
                  is_number(o, "next", next);
    mem_free(drafts.v);
    mem_free(choice.v);
    return r;
}

static double *doubles(const json_t *a, size_t n)
{
    double *v = mem_array(n + 1, sizeof(*v));
    for (size_t i = 0; v && i < n; i++)
        v[i] = json_number_value(json_array_get(a, i));
    return v;
}

static int rule_b(const json_t *o, bool *ret_ok, struct error *err)
{
    struct check_ids drafts = {0};
    double vocab_size, u_next;
    const json_t *p = json_object_get(o, "p"), *q = json_object_get(o, "q");
    const json_t *u = json_object_get(o, "u_accept");
    int r = check_get_ids(o, "drafts", &drafts, err);
    if (r == 0)
        r = check_get_num(o, "vocab", &vocab_size, err);
    if (r == 0)
        r = check_get_num(o, "u_next", &u_next, err);
    if (r < 0 || vocab_size < 1 || vocab_size > 1e6) {
        mem_free(drafts.v);
        return r < 0 ? r : ERR(err, FORMAT, "\"vocab\" is %g", vocab_size);
    }
    uint32_t n = (uint32_t)vocab_size, i = 0, next = 0;
    _cleanup_free_ uint32_t *ids = mem_array(n, sizeof(*ids));
    _cleanup_free_ double *weight = mem_array(n, sizeof(*weight));
    _cleanup_free_ float *qf = mem_array(n, sizeof(*qf));
    for (uint32_t v = 0; ids && v < n; v++)
        ids[v] = v;
    for (; ids && weight && qf && i < drafts.n && r == 0; i++) {
        _cleanup_free_ double *pd = doubles(json_array_get(p, i), n);
        if (!pd) {
            r = ERR_NOMEM(err);
            break;
        }
        for (uint32_t v = 0; v < n; v++)
            qf[v] = (float)json_number_value(json_array_get(json_array_get(q, i), v));
        if (!rejection_step(ids, pd, n, qf, drafts.v[i], json_number_value(json_array_get(u, i)),
                            u_next, weight, &next))
            break;
    }
    if (r == 0 && i == drafts.n && ids) {
        _cleanup_free_ double *pd = doubles(json_array_get(p, i), n);
        next = pd ? rejection_draw(ids, pd, n, u_next) : 0;
    }
    if (r == 0)
        *ret_ok = ids && weight && qf && is_number(o, "accepted", i) && is_number(o, "next", next);
    mem_free(drafts.v);
    return r;
}

/* ---- trees -------------------------------------------------------------------------------------- */

struct depth_memory {
    uint32_t *tokens;
    float *logp;
};

/* All tokens by descending logit, ties by id. */
static int sort_depth(const json_t *logits, uint32_t limit, struct depth_memory *m,
                      struct ddtree_depth *ret, struct error *err)
{
    size_t n = json_array_size(logits);
    _cleanup_free_ double *x = doubles(logits, n);
    m->tokens = mem_array(n + 1, sizeof(*m->tokens));
    m->logp = mem_array(n + 1, sizeof(*m->logp));
    if (!x || !m->tokens || !m->logp)
        return ERR_NOMEM(err);
    double max = -HUGE_VAL, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) {
        size_t j = i;
        sum += exp(x[i] - max);
        for (; j && x[m->tokens[j - 1]] < x[i]; j--)
            m->tokens[j] = m->tokens[j - 1];
        m->tokens[j] = (uint32_t)i;
    }
    for (size_t i = 0; i < n; i++)
        m->logp[i] = (float)(x[m->tokens[i]] - max - log(sum));
    *ret = (struct ddtree_depth){m->tokens, m->logp, n < limit ? (uint32_t)n : limit};
    return 0;
}

static bool same_nodes(const json_t *nodes, const struct proposal *p)
{
    if (json_array_size(nodes) != p->n)
        return false;
    for (uint32_t i = 0; i < p->n; i++) {
        const json_t *w = json_array_get(nodes, i);
        if (!is_number(w, "token", p->tokens[i]) || !is_number(w, "parent", p->parent[i] + 1) ||
            !is_number(w, "depth", proposal_depth(p, i)))
            return false;
    }
    return true;
}

static bool same_walk(const json_t *o, const struct proposal *p, const struct check_ids *choice,
                      const struct check_ids *want)
{
    uint32_t nodes[PROPOSAL_MAX_NODES], n = 0, next = 0;
    return walk(p, choice, nodes, &n, &next) && check_ids_equal(nodes, n, want) &&
           is_number(o, "accepted", n) && is_number(o, "next", next);
}

static int tree(const json_t *o, bool *ret_ok, struct error *err)
{
    struct ddtree_depth depths[MAX_DEPTH];
    struct depth_memory mem[MAX_DEPTH] = {{NULL, NULL}};
    struct check_ids choice = {0}, want = {0};
    struct proposal p;
    const json_t *logits = json_object_get(o, "logits");
    size_t n = json_array_size(logits);
    double budget = 0;
    int r = check_get_num(o, "budget", &budget, err);
    if (r == 0)
        r = check_get_ids(o, "target_choice", &choice, err);
    if (r == 0)
        r = check_get_ids(o, "accepted_nodes", &want, err);
    if (r == 0 && (n == 0 || n > MAX_DEPTH || budget < 1 || budget > PROPOSAL_MAX_NODES))
        r = ERR(err, FORMAT, "%zu depths, a budget of %g", n, budget);
    for (size_t i = 0; i < n && r == 0; i++)
        r = sort_depth(json_array_get(logits, i), (uint32_t)budget, &mem[i], &depths[i], err);
    if (r == 0) {
        ddtree_build(depths, (uint32_t)n, (uint32_t)budget, &p);
        *ret_ok = same_nodes(json_object_get(o, "nodes"), &p) && same_walk(o, &p, &choice, &want);
    }
    for (size_t i = 0; i < n && i < MAX_DEPTH; i++) {
        mem_free(mem[i].tokens);
        mem_free(mem[i].logp);
    }
    mem_free(choice.v);
    mem_free(want.v);
    return r;
}

/* ---- files -------------------------------------------------------------------------------------- */

static const char *rule_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "rule"));
    return s ? s : "tree";
}

/* Each kind of case of the file: one line. */
static void check_file(struct check *k, const char *file)
{
    static const char *const rules[] = {"A", "B", "tree"};
    unsigned n[3] = {0}, bad[3] = {0};
    int first[3] = {0};
    struct check_lines l;
    struct error err = {0};
    json_t *o = NULL;
    int r = check_lines_open(&l, check_path(k, "verify", file), &err);
    if (r < 0) {
        check_result(k, false, "verify", file, "%s", err.msg);
        return;
    }
    while ((r = check_lines_next(&l, &o, &err)) > 0) {
        bool ok = false;
        unsigned i = 0;
        while (i < 3 && strcmp(rules[i], rule_of(o)) != 0)
            i++;
        int k2 = i == 0   ? rule_a(o, &ok, &err)
                 : i == 1 ? rule_b(o, &ok, &err)
                 : i == 2 ? tree(o, &ok, &err)
                          : ERR(&err, FORMAT, "rule \"%s\" is unknown", rule_of(o));
        json_decref(o);
        if (k2 < 0) {
            r = k2;
            break;
        }
        n[i]++;
        if (!ok && bad[i]++ == 0)
            first[i] = l.number;
    }
    for (unsigned i = 0; i < 3; i++) {
        char name[300];
        snprintf(name, sizeof(name), "%s/%s", file, rules[i]);
        if (bad[i])
            check_result(k, false, "verify", name, "%u of %u differ, the first on line %d", bad[i],
                         n[i], first[i]);
        else if (n[i])
            check_result(k, true, "verify", name, "%u equal", n[i]);
    }
    if (r < 0)
        check_result(k, false, "verify", file, "line %d: %s", l.number, err.msg);
    check_lines_done(&l);
}

void check_verify(struct check *k, const char *kind)
{
    static const char *const files[] = {"cases.jsonl", "ddtree.jsonl"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (check_exists(check_path(k, kind, files[i])))
            check_file(k, files[i]);
}
