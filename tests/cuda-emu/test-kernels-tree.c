/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees on the device against engine/ddtree.h: the same nodes in the same order, whatever ties, ends of lists and
 * depths without candidates there are; and the rows that verify them: what each sees is the path to it.
 */
#include <math.h>

#include "engine/ddtree.h"
#include "tests/cuda-emu/kernels-util.h"

enum { LD = 330, PASSES = 3, NODES = 900 };

/* Candidates of one pick, in descending order: log-probabilities of few values, so that scores are equal. */
static void make_list(struct rng *r, uint32_t n, uint32_t values, struct dcu_picked *picked,
                      struct dcu_logprob *top)
{
    float at = rng_below(r, 4) ? -(float)rng_below(r, values) * 0.25f : 0;
    *picked = (struct dcu_picked){.n = n};
    for (uint32_t i = 0; i < DCU_MAX_TOP; i++) {
        top[i] = (struct dcu_logprob){rng_below(r, 5000), i < n ? at : NAN};
        if (values == 1)
            at -= 0.001f * (float)rng_below(r, 1000);
        else
            at -= 0.25f * (float)rng_below(r, values);
    }
}

/* Drafts, the most nodes, candidates of a depth; a depth has fewer as often as not. */
static const struct shape {
    uint32_t n, budget, candidates, values;
} shapes[] = {
    {1, 1, 1, 2},    {1, 127, 128, 1},  {15, 15, 15, 1}, {15, 31, 31, 2}, {0, 0, 0, 1},
    {7, 127, 40, 2}, {63, 127, 127, 2}, {63, 127, 2, 2}, {3, 60, 3, 2},   {2, 33, 128, 3},
    {15, 0, 15, 1},  {40, 64, 64, 3},   {63, 127, 1, 2},
};
enum { SPANS = sizeof(shapes) / sizeof(*shapes) };

static struct dcu_picked history[PASSES][LD];
static struct dcu_logprob top[PASSES][LD][DCU_MAX_TOP];

START_TEST(grows)
{
    struct rng r = {50 + (uint64_t)_i};
    struct dcu_span spans[SPANS];
    uint32_t ends[SPANS], picks = 0, nodes = 0;
    struct dcu_grown got[NODES], none;
    memset(&none, 0xa5, sizeof(none));
    for (uint32_t b = 0; b < SPANS; b++) {
        const struct shape *s = &shapes[b];
        spans[b] = (struct dcu_span){picks, s->n, nodes, s->budget};
        ends[b] = rng_below(&r, PASSES);
        for (uint32_t p = 0; p < PASSES; p++)
            for (uint32_t k = 0; k < s->n; k++) {
                uint32_t n = rng_below(&r, 2) ? s->candidates : rng_below(&r, s->candidates + 1);
                if (k == 0 && _i % 3)
                    n = s->candidates;
                make_list(&r, n, s->values, &history[p][picks + k], top[p][picks + k]);
            }
        picks += s->n;
        nodes += s->budget;
    }
    ck_assert(picks <= LD && nodes < NODES);
    struct dcu_grow p = {.n_spans = SPANS,
                         .spans = dev_of(spans, sizeof(spans)),
                         .ends = dev_of(ends, sizeof(ends)),
                         .history = dev_of(history, sizeof(history)),
                         .top = dev_of(top, sizeof(top)),
                         .ldh = LD,
                         .nodes = dev_of(memset(got, 0xa5, sizeof(got)), sizeof(got))};
    dev_ok(dev->grow(dev_s, &p));
    dev_get(got, p.nodes, sizeof(got));
    for (uint32_t b = 0; b < SPANS; b++) {
        struct ddtree_depth depths[PROPOSAL_MAX_DEPTH];
        static uint32_t tokens[PROPOSAL_MAX_DEPTH][DCU_MAX_TOP];
        static float logp[PROPOSAL_MAX_DEPTH][DCU_MAX_TOP];
        struct proposal want;
        for (uint32_t k = 0; k < spans[b].n; k++) {
            const uint32_t at = spans[b].first + k;
            for (uint32_t i = 0; i < DCU_MAX_TOP; i++) {
                tokens[k][i] = top[ends[b]][at][i].token;
                logp[k][i] = top[ends[b]][at][i].logprob;
            }
            depths[k] = (struct ddtree_depth){tokens[k], logp[k], history[ends[b]][at].n};
        }
        ddtree_build(depths, spans[b].n, spans[b].n_nodes, &want);
        for (uint32_t i = 0; i < spans[b].n_nodes; i++) {
            const struct dcu_grown *g = &got[spans[b].first_node + i];
            if (i >= want.n) {
                ck_assert_uint_eq(g->token, UINT32_MAX);
                ck_assert(g->parent == 0 && g->depth == 1);
                continue;
            }
            ck_assert_msg(g->token == want.tokens[i] && (int)g->parent == want.parent[i] + 1 &&
                              g->depth == proposal_depth(&want, i),
                          "tree %u, node %u: %u below %u, want %u below %d", b, i, g->token,
                          g->parent, want.tokens[i], want.parent[i] + 1);
        }
    }
    for (uint32_t i = nodes; i < NODES; i++)
        ck_assert_mem_eq(&got[i], &none, sizeof(none));
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------------------ */

enum { ROWS = 170, LIVE = 160, HEAD = 150, WORDS = ROWS * 90 };

/* Three trees of a batch whose other rows stay as they are; a chain, all children of the anchor, and any, with
 * nodes that are not there behind it. */
START_TEST(plants)
{
    static const struct dcu_planted trees[] = {
        {.first_node = 200, .n_rows = 64, .row = 3, .live = 1, .node = 0, .pos = 37},
        {.first_node = 10, .n_rows = 1, .row = 67, .live = 65, .node = 64, .pos = 48},
        {.first_node = 30, .n_rows = 80, .row = 70, .live = 68, .node = 66, .pos = 16},
    };
    struct rng r = {60 + (uint64_t)_i};
    static struct dcu_row rows[ROWS], live[LIVE], got[ROWS], got_live[LIVE];
    static struct dcu_node nodes[HEAD], got_nodes[HEAD];
    static struct dcu_grown grown[300];
    static uint32_t words[WORDS], got_words[WORDS];
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (struct dcu_row){rng_u32(&r), rng_u32(&r), i * 3 + 1, rng_u32(&r),
                                   0,           i,           i * 90,    rng_u32(&r)};
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = rng_u32(&r);
    for (uint32_t i = 0; i < LIVE; i++)
        live[i] = (struct dcu_row){.token = rng_u32(&r)};
    for (uint32_t i = 0; i < HEAD; i++)
        nodes[i] = (struct dcu_node){.request = rng_u32(&r), .token = rng_u32(&r)};
    for (uint32_t t = 0; t < 3; t++) {
        struct dcu_grown *g = grown + trees[t].first_node;
        for (uint32_t i = 0; i < trees[t].n_rows; i++)
            rows[trees[t].row + i].tail_start = trees[t].pos / DK_KV_BLOCK * DK_KV_BLOCK;
        for (uint32_t i = 0; i + 1 < trees[t].n_rows; i++) {
            const uint32_t parent = _i == 0 ? t ? 0 : i : rng_below(&r, i + 1);
            g[i] = (struct dcu_grown){rng_below(&r, 5000), parent,
                                      parent ? g[parent - 1].depth + 1 : 1};
            if (_i && i > 70)
                g[i] = (struct dcu_grown){UINT32_MAX, 0, 1};
        }
    }
    struct dcu_plant p = {.n_trees = 3,
                          .trees = dev_of(trees, sizeof(trees)),
                          .grown = dev_of(grown, sizeof(grown)),
                          .rows = dev_of(rows, sizeof(rows)),
                          .live = dev_of(live, sizeof(live)),
                          .words = dev_of(words, sizeof(words)),
                          .nodes = dev_of(nodes, sizeof(nodes))};
    dev_ok(dev->plant(dev_s, &p));
    dev_get(got, p.rows, sizeof(got));
    dev_get(got_live, p.live, sizeof(got_live));
    dev_get(got_nodes, p.nodes, sizeof(got_nodes));
    dev_get(got_words, p.words, sizeof(got_words));
    for (uint32_t t = 0; t < 3; t++)
        for (uint32_t i = 0; i < trees[t].n_rows; i++) {
            const struct dcu_grown *g = i ? &grown[trees[t].first_node + i - 1] : NULL;
            struct dcu_row *row = &rows[trees[t].row + i];
            struct dcu_node *node = &nodes[trees[t].node + i];
            const uint32_t depth = g ? g->depth : 0;
            uint32_t *tail = words + row->tail + trees[t].pos % DK_KV_BLOCK;
            row->pos = trees[t].pos + depth;
            row->n_vis = row->pos + 1;
            if (g) {
                row->token = g->token == UINT32_MAX ? 0 : g->token;
                node->parent = g->parent;
                node->depth = g->depth;
                node->token = g->token;
            }
            live[trees[t].live + i] = *row;
            /* The parent's row is written: its path, and the row itself. */
            if (g)
                memcpy(tail,
                       words + rows[trees[t].row + g->parent].tail + trees[t].pos % DK_KV_BLOCK,
                       depth * sizeof(*tail));
            tail[depth] = row->slot;
        }
    ck_assert_mem_eq(got, rows, sizeof(rows));
    ck_assert_mem_eq(got_live, live, sizeof(live));
    ck_assert_mem_eq(got_nodes, nodes, sizeof(nodes));
    ck_assert_mem_eq(got_words, words, sizeof(words));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuda-kernels-tree");
    TCase *c = test_case(s, "trees");
    tcase_add_checked_fixture(c, dev_open, dev_close);
    tcase_add_loop_test(c, grows, 0, 12);
    tcase_add_loop_test(c, plants, 0, 3);
    return test_main(s);
}
