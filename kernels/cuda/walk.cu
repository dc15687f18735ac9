/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk along the target's choices through each request's tree, and the pairs of slots that bring the
 * accepted nodes' K/V together (dcu_kv_copy executes them).
 *
 *   row = 0; loop: choice at row; the first child of row that fed this token is the next row; the walk ends
 *   without child, at a stop id, or at bad logits
 * Twins: engine/round.c (walk), engine/seq.c (seq_keep).  The host walks, too, once it has the choices, and
 * commits nothing by a path that is not its own.
 *
 * Launch: one block, a thread for each request; then one thread numbers the pairs.  Bytes: some hundred a
 * request; its time is the latency of a launch and of one dependent load a step (about 10 us for 16 steps),
 * which the host's round trip would exceed.  Behind the last rows of logits of a batch, in its graph.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 128u

typedef struct dcu_walk args; /* the name alone is the launcher */

DCU_FN uint32_t child(const args &p, const dcu_request &r, uint32_t row, uint32_t token)
{
    for (uint32_t i = row + 1; i < r.n_rows; i++)
        if (p.nodes[r.row0 + i].parent == row && p.nodes[r.row0 + i].token == token)
            return i;
    return 0;
}

DCU_FN bool is_stop(const args &p, const dcu_request &r, uint32_t token)
{
    for (uint32_t i = 0; i < r.n_stops; i++)
        if (p.words[r.stops + i] == token)
            return true;
    return false;
}

__global__ void __launch_bounds__(128) dcu_walk_kernel(args p)
{
    for (uint32_t q = threadIdx.x; q < p.n_requests; q += THREADS) {
        const dcu_request r = p.requests[q];
        dcu_path *path = p.paths + q;
        uint32_t n = 0;
        for (uint32_t row = 0; n < DCU_MAX_DEPTH && r.n_rows;) {
            const dcu_choice c = p.choices[r.row0 + row];
            if (c.bad)
                break;
            path->row[n++] = row;
            row = child(p, r, row, c.token);
            if (row == 0 || is_stop(p, r, c.token))
                break;
        }
        path->n_choices = n;
    }
    __syncthreads();
    if (threadIdx.x)
        return;
    uint32_t pairs = 0;
    for (uint32_t q = 0; q < p.n_requests; q++) {
        const uint32_t row0 = p.requests[q].row0;
        const dcu_path *path = p.paths + q;
        for (uint32_t i = 0; i < path->n_choices; i++)
            if (path->row[i] != i) {
                p.from[pairs] = p.slots[row0 + path->row[i]];
                p.to[pairs++] = p.slots[row0 + i];
            }
    }
    *p.n_pairs = pairs;
}

extern "C" int dcu_walk(dcu_stream s, const struct dcu_walk *p)
{
    if (p->n_requests == 0)
        return 0;
    return DCU_LAUNCH(dcu_walk_kernel, 1, THREADS, 0, s, *p);
}
