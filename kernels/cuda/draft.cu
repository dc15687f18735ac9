/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a drafter's logits to drafts, as engine/drafter_pick.c makes them; and from drafts to the rows of the
 * next pass, so that the host is not asked in between.
 *
 *   y = logits, or logits * inv_t + gumbel(target id);  token = argmax y;  confidence = exp(max - lse(y));
 *   the n_top best in order, with y - lse
 *   next: rows of draft k are fed its token
 *   settle: tokens of the first pass p with tokens[p] = tokens[q], q < p, else of the last; verify: into the rows
 *   of the target that check them
 * Twins: engine/drafter_pick.c: the same tokens, the same bits; engine/drafter_pass.c for the rows and
 * for where a round ends.
 *
 * Launch: scores (parts, rows) blocks of 256 threads, a thread for four neighbours (one Philox block where
 * they are neighbours in the target's vocabulary, too); then a block of 512 threads a row.
 *
 * next, verify: a thread a row, some hundred bytes each, the latency of a launch; settle: a warp a round, n_passes^2 / 2
 * comparisons.
 *
 * 16 rows of a 32,768 vocabulary: 2.1 MB read, 2.1 MB written, 0.9 us at 4.8 TB/s, 1.3 at 3.35; noise 0.5 M
 * logarithms a step of 16 rows, about 2 us; log-sum-exp 2,048 dependent additions a lane, 6 us, rows in
 * parallel (V 151,936: 25 us); n_top: one selection, 10 us.
 */
#include "kernels/cuda/vocab.cuh"

typedef struct dcu_draft args; /* the name alone is the launcher */
typedef struct dcu_next next_args;
typedef struct dcu_settle settle_args;
typedef struct dcu_verify verify_args;

__global__ void __launch_bounds__(256)
    dcu_draft_scores_kernel(args p, dcu_row_scratch *scratch, uint32_t len)
{
    DCU_SHARED(dcu_best, space, 33);
    const uint32_t row = blockIdx.y, first = blockIdx.x * len, end = dcu_min(first + len, p.vocab);
    const dcu_pick k = p.picks[row];
    const float *x = p.logits + (size_t)row * p.ldl;
    float *y = p.work + (size_t)row * p.ldl;
    const uint32_t key[2] = {k.key[0], k.key[1]};
    uint32_t ctr[4] = {0, (uint32_t)k.pos, ((uint32_t)(k.pos >> 32) & 0xffffu) | k.stream << 16, 0};
    for (uint32_t i = first + 4 * threadIdx.x; i < end && k.inv_t != 0; i += 4 * blockDim.x) {
        uint32_t word[4] = {0, 0, 0, 0}, have = DCU_NONE;
        for (uint32_t j = i; j < i + 4 && j < end; j++) {
            const uint32_t v = p.target_ids ? p.target_ids[j] : j;
            if (v / 4 != have) {
                have = ctr[0] = v / 4;
                dk_philox_def(ctr, key, word);
            }
            const uint32_t w = v % 4 == 0   ? word[0]
                               : v % 4 == 1 ? word[1]
                               : v % 4 == 2 ? word[2]
                                            : word[3];
            y[j] = x[j] * k.inv_t + dk_gumbelf(w);
        }
    }
    __syncthreads();
    const dcu_best b = dcu_best_block(dcu_best_range(k.inv_t != 0 ? y : x, first, end), space);
    if (threadIdx.x == 0)
        scratch[row].y[blockIdx.x] = b;
}

__global__ void __launch_bounds__(512)
    dcu_draft_pick_kernel(args p, const dcu_row_scratch *scratch, uint32_t n_parts)
{
    DCU_SHARED(dcu_select_space, space, 1);
    DCU_SHARED(float, sums, 2 * DCU_SUM_CHUNK + 16);
    DCU_SHARED(uint32_t, words, 3 * DCU_MAX_TOP + 1);
    DCU_SHARED(float, values, 2 * DCU_MAX_TOP);
    const uint32_t row = blockIdx.x;
    const dcu_pick k = p.picks[row];
    const float *y = (k.inv_t != 0 ? p.work : p.logits) + (size_t)row * p.ldl;
    const dcu_best b = dcu_best_of_parts(scratch[row].y, n_parts);
    const bool bad = b.bad_id != DCU_NONE || b.id == DCU_NONE;
    const uint32_t best = b.id == DCU_NONE ? 0 : b.id;
    dcu_picked r = {p.target_ids ? p.target_ids[best] : best, 0, 0, bad};
    if (!bad) {
        const float lse = dcu_logsumexp_block(y, p.vocab, b.value, sums);
        r.confidence = dk_exp_def(b.value - lse);
        if (k.n_top && p.top) {
            const dcu_items s = {y, p.vocab, b.value, 1.0f, DCU_MINUS_INF, {0, 0}};
            dcu_cut cut = {0, 0};
            (void)dcu_select<false>(s, dcu_min(k.n_top, DCU_MAX_TOP), space, &cut);
            r.n = dcu_collect(s, cut, words, values, words + 2 * DCU_MAX_TOP, words + DCU_MAX_TOP,
                              values + DCU_MAX_TOP);
            for (uint32_t i = threadIdx.x; i < r.n; i += blockDim.x) {
                const uint32_t id = words[DCU_MAX_TOP + i];
                p.top[(size_t)row * DCU_MAX_TOP + i] = {p.target_ids ? p.target_ids[id] : id,
                                                        values[DCU_MAX_TOP + i] - lse};
            }
        }
    }
    if (threadIdx.x == 0)
        p.picked[row] = r;
}

extern "C" int dcu_draft(dcu_stream s, const struct dcu_draft *p)
{
    dcu_row_scratch *scratch = (dcu_row_scratch *)p->scratch;
    if (p->rows == 0 || p->vocab == 0)
        return 0;
    const uint32_t n = dcu_parts(p->vocab), len = dcu_part_len(p->vocab);
    int r = DCU_LAUNCH(dcu_draft_scores_kernel, dim3(n, p->rows), 256, 0, s, *p, scratch, len);
    if (r)
        return r;
    return DCU_LAUNCH(dcu_draft_pick_kernel, p->rows, 512, 0, s, *p, scratch, n);
}

/* Tokens are read of `rows` alone: the others are what attention goes through. */
__global__ void __launch_bounds__(128) dcu_next_kernel(next_args p)
{
    const uint32_t r = blockIdx.x * 128 + threadIdx.x;
    if (r < p.n_rows) {
        const dcu_feed f = p.feeds[r];
        if (f.pick != DCU_NONE)
            p.rows[r].token = p.picked[f.pick].token;
        p.rows[r].n_vis = f.n_vis;
        if (p.window[0])
            p.window[0][r].n_vis = f.window_vis;
    }
    if (r < p.n_live) {
        const dcu_feed f = p.feeds[p.live_index[r]];
        p.live[r].n_vis = f.n_vis;
        if (p.window[1])
            p.window[1][r].n_vis = f.window_vis;
    }
}

extern "C" int dcu_next(dcu_stream s, const struct dcu_next *p)
{
    if (p->n_rows == 0)
        return 0;
    return DCU_LAUNCH(dcu_next_kernel, (p->n_rows + 127) / 128, 128, 0, s, *p);
}

__global__ void __launch_bounds__(32) dcu_settle_kernel(settle_args p)
{
    const dcu_span b = p.spans[blockIdx.x];
    const dcu_picked *h = p.history + b.first;
    uint32_t end = p.n_passes - 1;
    for (uint32_t pass = 1; pass < end; pass++)
        for (uint32_t q = 0; q < pass && end != pass; q++) {
            bool same = true;
            for (uint32_t k = threadIdx.x; k < b.n; k += 32)
                same = same && h[pass * p.ldh + k].token == h[q * p.ldh + k].token;
            if (__all_sync(DCU_FULL, same))
                end = pass; /* ends both loops */
        }
    for (uint32_t k = threadIdx.x; k < b.n; k += 32)
        p.tokens[b.first + k] = h[end * p.ldh + k].token;
    if (threadIdx.x == 0)
        p.ends[blockIdx.x] = end;
}

extern "C" int dcu_settle(dcu_stream s, const struct dcu_settle *p)
{
    if (p->n_spans == 0 || p->n_passes == 0)
        return 0;
    return DCU_LAUNCH(dcu_settle_kernel, p->n_spans, 32, 0, s, *p);
}

__global__ void __launch_bounds__(128) dcu_verify_kernel(verify_args p)
{
    const uint32_t i = blockIdx.x * 128 + threadIdx.x;
    if (i >= p.n)
        return;
    const dcu_feed_to f = p.feeds[i];
    const uint32_t token = p.tokens[f.pick];
    p.rows[f.row].token = token;
    p.nodes[f.node].token = token;
}

extern "C" int dcu_verify(dcu_stream s, const struct dcu_verify *p)
{
    if (p->n == 0)
        return 0;
    return DCU_LAUNCH(dcu_verify_kernel, (p->n + 127) / 128, 128, 0, s, *p);
}
