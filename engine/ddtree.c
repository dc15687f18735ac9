/* SPDX-License-Identifier: Apache-2.0 */
/* Best-first search over prefixes with a heap: each node taken offers its next sibling and its first
 * child, so that the heap never holds more than budget + 1 entries. */
#include "engine/ddtree.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

/* A node that may be taken: `rank` among the tokens of its depth, under node `parent`. */
struct offer {
    double score; /* sum of log-probabilities along its path */
    int parent;   /* node, or -1 */
    uint32_t depth, rank;
};

struct search {
    const struct ddtree_depth *depths;
    uint32_t n_depths;
    struct offer heap[PROPOSAL_MAX_NODES + 2];
    uint32_t n;
    uint8_t rank[PROPOSAL_MAX_NODES]; /* of the nodes taken; the budget bounds it */
    uint8_t depth[PROPOSAL_MAX_NODES];
    const struct proposal *p;
};

/* Ranks from the root to the offer; returns their number. */
static uint32_t path_of(const struct search *s, const struct offer *o,
                        uint8_t ret[PROPOSAL_MAX_DEPTH + 1])
{
    uint32_t n = o->depth;
    ret[n - 1] = (uint8_t)o->rank;
    for (int at = o->parent; at >= 0; at = s->p->parent[at])
        ret[s->depth[at] - 1] = s->rank[at];
    return n;
}

static bool before(const struct search *s, const struct offer *a, const struct offer *b)
{
    uint8_t pa[PROPOSAL_MAX_DEPTH + 1], pb[PROPOSAL_MAX_DEPTH + 1];
    if (a->score != b->score)
        return a->score > b->score;
    uint32_t na = path_of(s, a, pa), nb = path_of(s, b, pb);
    int order = memcmp(pa, pb, na < nb ? na : nb);
    return order ? order < 0 : na < nb;
}

static void swap(struct offer *a, struct offer *b)
{
    struct offer t = *a;
    *a = *b;
    *b = t;
}

static void push(struct search *s, struct offer o)
{
    /* No path with probability 0: it would only take a row of the target's batch. */
    if (!(o.score > (double)-INFINITY))
        return;
    uint32_t i = s->n++;
    s->heap[i] = o;
    for (; i && before(s, &s->heap[i], &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&s->heap[i], &s->heap[(i - 1) / 2]);
}

static struct offer pop(struct search *s)
{
    struct offer top = s->heap[0];
    s->heap[0] = s->heap[--s->n];
    for (uint32_t i = 0;;) {
        uint32_t best = i, l = 2 * i + 1;
        for (uint32_t c = l; c <= l + 1 && c < s->n; c++)
            if (before(s, &s->heap[c], &s->heap[best]))
                best = c;
        if (best == i)
            return top;
        swap(&s->heap[i], &s->heap[best]);
        i = best;
    }
}

uint32_t ddtree_build(const struct ddtree_depth *depths, uint32_t n_depths, uint32_t budget,
                      struct proposal *p)
{
    struct search s = {.depths = depths, .n_depths = n_depths, .p = p};
    proposal_clear(p);
    if (budget > PROPOSAL_MAX_NODES)
        budget = PROPOSAL_MAX_NODES;
    if (n_depths > PROPOSAL_MAX_DEPTH)
        s.n_depths = PROPOSAL_MAX_DEPTH;
    if (n_depths && depths[0].n && budget)
        push(&s, (struct offer){.score = (double)depths[0].logp[0], .parent = -1, .depth = 1});
    while (s.n && p->n < budget) {
        struct offer o = pop(&s);
        const struct ddtree_depth *d = &depths[o.depth - 1];
        int node = proposal_add(p, d->tokens[o.rank], o.parent, dk_expf(d->logp[o.rank]));
        if (node < 0)
            break;
        s.rank[node] = (uint8_t)o.rank;
        s.depth[node] = (uint8_t)o.depth;
        if (o.rank + 1 < d->n)
            push(&s, (struct offer){.score = o.score - (double)d->logp[o.rank] +
                                             (double)d->logp[o.rank + 1],
                                    .parent = o.parent,
                                    .depth = o.depth,
                                    .rank = o.rank + 1});
        if (o.depth < s.n_depths && depths[o.depth].n)
            push(&s, (struct offer){.score = o.score + (double)depths[o.depth].logp[0],
                                    .parent = node,
                                    .depth = o.depth + 1});
    }
    return p->n;
}
