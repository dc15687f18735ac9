/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DDTree on the device: from a drafter's candidates to the nodes of a tree, and from those to the rows that
 * verify it, so that the host sees neither before the batch is enqueued.
 *
 *   grow: the offer with the largest sum of log-probabilities is taken, the path of ranks that is smaller in
 *   lexicographic order among equals; it offers its next sibling, score - lp[depth][rank] + lp[depth][rank + 1], and
 *   its first child, score + lp[depth + 1][0]; sums in double
 *   plant: token, position and path of each node's row; a node that is not there gets a row that nobody reads
 * Twins: engine/ddtree.c: the order of offers is total, so the smallest of all is the top of its heap, and nodes,
 * parents and ties are the same; engine/seq.c (seq_tree_rows) for the rows.
 *
 * Launch: grow: a warp a round, offers in shared memory, up to four a lane; plant: a block a tree, a thread a row.
 * Bytes: 8 a candidate that is looked at, 12 a node; 32 + 4 (depth + 1) a row, written twice.  grow is bound by
 * latency: a node costs two dependent loads and five shuffles, about 0.5 us, 15 nodes 8 us; plant the latency of
 * a launch.
 */
#include "kernels/cuda/common.cuh"

typedef struct dcu_grow grow_args; /* the names alone are the launchers */
typedef struct dcu_plant plant_args;

#define NONE 0xffffffffu

/* A node that may be taken, or was: `rank` among the candidates of its depth, under node `parent`. */
struct offer {
    double score;
    uint32_t parent; /* NONE: the anchor */
    uint16_t depth, rank;
};

/* Is a's path of ranks before b's?  Walked from the ends, to where they part. */
DCU_FN bool path_before(const offer *taken, offer a, offer b)
{
    const bool shorter = a.depth < b.depth;
    while (a.depth > b.depth)
        a = taken[a.parent];
    while (b.depth > a.depth)
        b = taken[b.parent];
    while (a.parent != b.parent) {
        a = taken[a.parent];
        b = taken[b.parent];
    }
    return a.rank != b.rank ? a.rank < b.rank : shorter;
}

DCU_FN bool before(const offer *taken, const offer &a, const offer &b)
{
    return a.score != b.score ? a.score > b.score : path_before(taken, a, b);
}

/* The best of n > 0 offers; all lanes get it. */
DCU_FN uint32_t best_of(const offer *open, uint32_t n, const offer *taken)
{
    uint32_t best = threadIdx.x < n ? threadIdx.x : NONE;
    for (uint32_t i = threadIdx.x + 32; i < n; i += 32)
        if (before(taken, open[i], open[best]))
            best = i;
    for (int m = 16; m; m /= 2) {
        const uint32_t other = __shfl_xor_sync(DCU_FULL, best, m);
        if (other != NONE && (best == NONE || before(taken, open[other], open[best])))
            best = other;
    }
    return best;
}

/* Candidates of a round's last pass, by depth from 1 on. */
struct candidates {
    const dcu_picked *picked;
    const dcu_logprob *top;
    uint32_t n_depths;
};

DCU_FN uint32_t count_at(const candidates &c, uint32_t depth)
{
    return depth <= c.n_depths ? dcu_min(c.picked[depth - 1].n, DCU_MAX_TOP) : 0;
}
DCU_FN const dcu_logprob *list_at(const candidates &c, uint32_t depth)
{
    return c.top + (size_t)(depth - 1) * DCU_MAX_TOP;
}

/* No path with probability 0, as ddtree.c; a NaN neither. */
DCU_FN bool worth(double score)
{
    return score > (double)__uint_as_float(0xff800000u);
}

/* The nodes of a tree, to out[0 .. budget): how many there are. */
DCU_FN uint32_t grow(const candidates &c, uint32_t budget, offer *open, offer *taken,
                     dcu_grown *out)
{
    uint32_t n = 0, n_open = 0;
    if (count_at(c, 1)) {
        const offer first = {(double)list_at(c, 1)[0].logprob, NONE, 1, 0};
        n_open = worth(first.score);
        if (threadIdx.x == 0)
            open[0] = first;
    }
    __syncwarp();
    for (; n < budget && n_open; n++) {
        const uint32_t at = best_of(open, n_open, taken);
        const offer o = open[at], last = open[n_open - 1];
        const dcu_logprob *list = list_at(c, o.depth);
        offer sibling = o, child = {0, n, (uint16_t)(o.depth + 1), 0};
        bool beside = o.rank + 1u < count_at(c, o.depth), below = count_at(c, child.depth) > 0;
        if (beside) {
            sibling.rank++;
            sibling.score =
                o.score - (double)list[o.rank].logprob + (double)list[o.rank + 1].logprob;
            beside = worth(sibling.score);
        }
        if (below) {
            child.score = o.score + (double)list_at(c, child.depth)[0].logprob;
            below = worth(child.score);
        }
        __syncwarp(); /* all have read */
        if (threadIdx.x == 0) {
            taken[n] = o;
            out[n] = {list[o.rank].token, o.parent == NONE ? 0 : o.parent + 1, o.depth};
            open[at] = beside ? sibling : last;
            if (below)
                open[beside ? n_open : n_open - 1] = child;
        }
        n_open += beside + below - 1u;
        __syncwarp();
    }
    return n;
}

__global__ void __launch_bounds__(32) dcu_grow_kernel(grow_args p)
{
    DCU_SHARED(offer, open, DCU_MAX_NODES + 1);
    DCU_SHARED(offer, taken, DCU_MAX_NODES);
    const dcu_span b = p.spans[blockIdx.x];
    const uint32_t budget = dcu_min(b.n_nodes, DCU_MAX_NODES);
    if (budget == 0)
        return;
    const size_t at = p.ends[blockIdx.x] * p.ldh + b.first;
    const candidates c = {p.history + at, p.top + at * DCU_MAX_TOP,
                          dcu_min(b.n, DCU_MAX_DEPTH - 1)};
    dcu_grown *out = p.nodes + b.first_node;
    const uint32_t n = grow(c, budget, open, taken, out);
    for (uint32_t i = n + threadIdx.x; i < budget; i += 32)
        out[i] = {NONE, 0, 1};
}

extern "C" int dcu_grow(dcu_stream s, const struct dcu_grow *p)
{
    if (p->n_spans == 0)
        return 0;
    return DCU_LAUNCH(dcu_grow_kernel, p->n_spans, 32, 0, s, *p);
}

__global__ void __launch_bounds__(128) dcu_plant_kernel(plant_args p)
{
    DCU_SHARED(uint32_t, parent, DCU_MAX_NODES + 1);
    DCU_SHARED(uint32_t, slot, DCU_MAX_NODES + 1);
    const dcu_planted t = p.trees[blockIdx.x];
    const uint32_t i = threadIdx.x;
    const bool has = i < t.n_rows;
    dcu_grown g = {NONE, 0, 0};
    dcu_row r = {};
    if (has) {
        r = p.rows[t.row + i];
        if (i)
            g = p.grown[t.first_node + i - 1];
        parent[i] = g.parent;
        slot[i] = r.slot;
    }
    __syncthreads();
    if (!has)
        return;
    r.pos = t.pos + g.depth;
    r.n_vis = r.pos + 1;
    if (i)
        r.token = g.token == NONE ? 0 : g.token; /* any token will do where there is no node */
    uint32_t *tail = p.words + r.tail + (t.pos - r.tail_start);
    for (uint32_t at = i, d = g.depth;; at = parent[at], d--) {
        tail[d] = slot[at];
        if (d == 0)
            break;
    }
    p.rows[t.row + i] = r;
    p.live[t.live + i] = r;
    if (i) {
        dcu_node *node = p.nodes + t.node + i;
        node->parent = g.parent;
        node->depth = g.depth;
        node->token = g.token; /* NONE is no choice of the target's */
    }
}

extern "C" int dcu_plant(dcu_stream s, const struct dcu_plant *p)
{
    if (p->n_trees == 0)
        return 0;
    return DCU_LAUNCH(dcu_plant_kernel, p->n_trees, DCU_MAX_NODES + 1, 0, s, *p);
}
