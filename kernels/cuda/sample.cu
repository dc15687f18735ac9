/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From logits to the token of every row of a batch, as engine/sampler_*.c choose it, each row as if the
 * path to it had been committed: the choices of a whole tree stand before anybody walks it.
 *
 *   y = logits after bias, mask of ending tokens, penalties (in double, rounded once); m = max y
 *   greedy: lowest id with y = m
 *   else    z = (y - m) * (1 / T); kept: the top_k best, then z >= log(min_p), then the shortest prefix
 *           whose mass, counted in integers round(exp(z) 2^42), reaches ceil(top_p * total)
 *           token = lowest id with the largest z + gumbel, of the kept ones
 *   log-probabilities: logits - logsumexp(logits), raw
 * Twin: engine/sampler_choose.c, sampler_cut.c, sampler.c: the same tokens, the same bits.
 *
 * Launches, left out when no request needs them: process (parts, rows); stats (parts, rows); cut, a block of
 * 1,024 threads a row; draw (parts, rows); finish, a warp a row; logprobs, a block of 512 threads a row.  No atomic
 * decides anything but integer sums, so nothing depends on the order of threads.
 *
 * Qwen3-4B (V 151,936), one row, 608 KB of logits: stats and draw 1.2 MB, 0.25 us at 4.8 TB/s, 0.36 at 3.35;
 * draw computes 37,984 Philox blocks and two logarithms an id within reach of the noise (about 1 us on 64
 * SMs); cut reads the row 6 to 12 times out of L2 with one SM, 40-70 us, rows in parallel; logprobs about
 * 25 us, see vocab.cu.
 */
#include "kernels/cuda/vocab.cuh"

typedef struct dcu_sample args; /* the name alone is the launcher */

#define GREEDY(r) ((r).inv_t == 0.0f)
/* The largest value has z = 0 and noise above -2.83; noise is below 22.9: what lies further down than this
 * cannot win. */
#define OUT_OF_REACH -27.0f

/* The node of a row of logits. */
DCU_FN const dcu_node &node_of(const args &p, uint32_t row)
{
    return p.nodes[p.first + row];
}

/* The request of a row, or NULL when the row is not sampled. */
DCU_FN const dcu_request *request_of(const args &p, uint32_t row)
{
    const uint32_t i = node_of(p, row).request;
    return i == DCU_NONE ? nullptr : p.requests + i;
}

DCU_FN const float *values_of(const args &p, const dcu_request *r, uint32_t row)
{
    return (r->process ? p.work : p.logits) + (size_t)row * p.ldl;
}

/* ---- bias, mask, penalties ------------------------------------------------------------------------- */

/* engine/sampler.c, adjust(). */
DCU_FN float adjust(const dcu_request *r, uint32_t depth, float x, float bias, uint32_t flags,
                    uint32_t count)
{
    const double most = 3.4028234663852886e38;
    if (x == DCU_MINUS_INF || (flags & 2 && r->n_output + depth < r->min_tokens))
        return DCU_MINUS_INF;
    double y = (double)x + (double)bias;
    if (flags & 1 || count > 0)
        y = y > 0 ? y / r->repetition : y * r->repetition;
    if (count > 0)
        y -= r->frequency * (double)count + r->presence;
    y = y < -most ? -most : y;
    return y > most ? (float)most : (float)y;
}

__global__ void __launch_bounds__(256, 2) dcu_sample_process_kernel(args p, uint32_t len)
{
    DCU_SHARED(uint32_t, path, DCU_MAX_DEPTH);
    DCU_SHARED(uint32_t, found, DCU_MAX_DEPTH);
    const uint32_t row = blockIdx.y, first = blockIdx.x * len, end = dcu_min(first + len, p.vocab);
    const dcu_request *r = request_of(p, row);
    if (!r || !r->process)
        return;
    const float *x = p.logits + (size_t)row * p.ldl;
    float *y = p.work + (size_t)row * p.ldl;
    const uint32_t depth = dcu_min(node_of(p, row).depth, DCU_MAX_DEPTH);
    for (uint32_t i = first + threadIdx.x; i < end; i += blockDim.x)
        y[i] = x[i];
    if (threadIdx.x == 0) {
        uint32_t at = p.first + row; /* the path may begin before the first row of logits */
        for (uint32_t d = 0; d < depth; d++) {
            path[d] = p.nodes[at].token;
            at = r->row0 + p.nodes[at].parent;
        }
    }
    if (threadIdx.x < DCU_MAX_DEPTH)
        found[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < r->n_entries; e += blockDim.x) {
        const dcu_entry entry = p.entries[r->entries + e];
        if (entry.id < first || entry.id >= end)
            continue;
        uint32_t count = entry.count;
        for (uint32_t d = 0; d < depth; d++)
            if (path[d] == entry.id) {
                count++;
                found[d] = 1; /* one entry an id: nobody else writes here */
            }
        y[entry.id] = adjust(r, depth, x[entry.id], entry.bias, entry.flags, count);
    }
    __syncthreads();
    /* Tokens of the path that have no entry yet, at their first place. */
    const uint32_t d = threadIdx.x;
    if (d >= depth || found[d] || path[d] < first || path[d] >= end)
        return;
    uint32_t count = 0;
    for (uint32_t i = 0; i < depth; i++) {
        if (path[i] == path[d] && i < d)
            return;
        count += path[i] == path[d];
    }
    y[path[d]] = adjust(r, depth, x[path[d]], 0, 0, count);
}

/* ---- maxima ------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(256)
    dcu_sample_stats_kernel(args p, dcu_row_scratch *scratch, uint32_t len)
{
    DCU_SHARED(dcu_best, space, 33);
    const uint32_t row = blockIdx.y, first = blockIdx.x * len, end = dcu_min(first + len, p.vocab);
    const dcu_request *r = request_of(p, row);
    if (!r)
        return;
    const float *x = p.logits + (size_t)row * p.ldl;
    const dcu_best raw = dcu_best_block(dcu_best_range(x, first, end), space);
    dcu_best y = raw;
    if (r->process)
        y = dcu_best_block(dcu_best_range(values_of(p, r, row), first, end), space);
    if (threadIdx.x)
        return;
    scratch[row].raw[blockIdx.x] = raw;
    scratch[row].y[blockIdx.x] = y;
    if (blockIdx.x == 0)
        scratch[row].cut_key = scratch[row].cut_id = 0;
}

/* ---- the cut ------------------------------------------------------------------------------------------ */

#define PIECE      1024u
#define MAX_PIECES 2048u

/* Mass of all ids over 2^42: pieces of 1,024 ids ascending, exp(logsumexp(z)) each, added in double. */
DCU_FN double total_mass(const dcu_items &s, float *pieces, double *sum)
{
    const uint32_t group = threadIdx.x / 16, lane = threadIdx.x % 16, groups = blockDim.x / 16;
    const uint32_t n = (s.n + PIECE - 1) / PIECE;
    for (uint32_t first = 0; first < n; first += groups) { /* whole warps go round together */
        const uint32_t piece = first + group;
        const uint32_t len = piece < n ? dcu_min(s.n - piece * PIECE, PIECE) : 0;
        float v = 0;
        for (uint32_t i = lane; i < len; i += 16)
            v += dk_exp_def(dcu_z(s, s.y[piece * PIECE + i]) - 0.0f);
        for (int half = 8; half; half /= 2)
            v += __shfl_down_sync(DCU_FULL, v, half, 16);
        if (lane == 0 && piece < n)
            pieces[piece] = dk_exp_def(dk_log_def(v) + 0.0f);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double t = 0;
        for (uint32_t i = 0; i < n; i++)
            t += (double)pieces[i];
        *sum = t;
    }
    __syncthreads();
    return *sum;
}

DCU_FN unsigned long long round_up(double x)
{
    const unsigned long long t = (unsigned long long)x;
    return t + ((double)t < x);
}

__global__ void __launch_bounds__(1024)
    dcu_sample_cut_kernel(args p, dcu_row_scratch *scratch, uint32_t n_parts)
{
    DCU_SHARED(dcu_select_space, space, 1);
    DCU_SHARED(float, pieces, MAX_PIECES);
    DCU_SHARED(double, sum, 1);
    const uint32_t row = blockIdx.x;
    const dcu_request *r = request_of(p, row);
    if (!r || GREEDY(*r) || (!r->top_k && r->z_least == DCU_MINUS_INF && r->top_p >= 1))
        return;
    const dcu_best best = dcu_best_of_parts(scratch[row].y, n_parts);
    const dcu_best raw = dcu_best_of_parts(scratch[row].raw, n_parts);
    if (best.id == DCU_NONE || raw.bad_id != DCU_NONE)
        return;
    dcu_items s = {values_of(p, r, row), p.vocab, best.value, r->inv_t, DCU_MINUS_INF, {0, 0}};
    dcu_cut cut = {0, 0};
    if (!r->top_k && r->z_least == DCU_MINUS_INF) {
        const double total = total_mass(s, pieces, sum);
        if (!dcu_select<true>(s, round_up((double)r->top_p * total * 0x1p42), space, &cut))
            cut = {0, 0};
    } else {
        if (r->top_k && dcu_select<false>(s, r->top_k, space, &cut))
            s.within = cut;
        s.z_least = r->z_least;
        if (r->top_p < 1) {
            const double target = (double)r->top_p * (double)dcu_total<true>(s, space);
            (void)dcu_select<true>(s, round_up(target), space, &cut);
        } else if (r->z_least > DCU_MINUS_INF) {
            const unsigned long long n = dcu_total<false>(s, space);
            (void)dcu_select<false>(s, n, space, &cut);
        }
    }
    if (threadIdx.x == 0) {
        scratch[row].cut_key = cut.key;
        scratch[row].cut_id = cut.id;
    }
}

/* ---- the draw ------------------------------------------------------------------------------------------ */

__global__ void __launch_bounds__(256)
    dcu_sample_draw_kernel(args p, dcu_row_scratch *scratch, uint32_t n_parts, uint32_t len)
{
    DCU_SHARED(dcu_best, space, 33);
    const uint32_t row = blockIdx.y, first = blockIdx.x * len, end = dcu_min(first + len, p.vocab);
    const dcu_request *r = request_of(p, row);
    if (!r || GREEDY(*r))
        return;
    const dcu_best top = dcu_best_of_parts(scratch[row].y, n_parts);
    const dcu_items s = {values_of(p, r, row),
                         p.vocab,
                         top.value,
                         r->inv_t,
                         DCU_MINUS_INF,
                         {scratch[row].cut_key, scratch[row].cut_id}};
    const unsigned long long pos = r->pos + node_of(p, row).depth;
    const uint32_t key[2] = {r->key[0], r->key[1]};
    dcu_best best = dcu_best_none();
    for (uint32_t v = first + 4 * threadIdx.x; v < end; v += 4 * blockDim.x) {
        float z[4];
        bool any = false;
        for (uint32_t i = 0; i < 4; i++) {
            const bool in = v + i < end && (s.within.key == 0 || dcu_kept(s, v + i, s.y[v + i]));
            z[i] = in ? dcu_z(s, s.y[v + i]) : DCU_MINUS_INF;
            any = any || z[i] >= OUT_OF_REACH;
        }
        if (!any)
            continue;
        /* engine/noise.h: { token / 4, position low, position high 16 | stream << 16, 0 }, stream 0 */
        const uint32_t ctr[4] = {v / 4, (uint32_t)pos, (uint32_t)(pos >> 32) & 0xffffu, 0};
        uint32_t word[4];
        dk_philox_def(ctr, key, word);
        for (uint32_t i = 0; i < 4; i++)
            if (z[i] >= OUT_OF_REACH)
                dcu_best_add(&best, z[i] + dk_gumbelf(word[i]), v + i);
    }
    best = dcu_best_block(best, space);
    if (threadIdx.x == 0)
        scratch[row].draw[blockIdx.x] = best;
}

__global__ void __launch_bounds__(32)
    dcu_sample_finish_kernel(args p, const dcu_row_scratch *scratch, uint32_t n_parts)
{
    const uint32_t row = blockIdx.x;
    const dcu_request *r = request_of(p, row);
    if (!r)
        return;
    const dcu_best raw = dcu_best_of_parts(scratch[row].raw, n_parts);
    const dcu_best y = dcu_best_of_parts(scratch[row].y, n_parts);
    const dcu_best drawn = GREEDY(*r) ? y : dcu_best_of_parts(scratch[row].draw, n_parts);
    if (threadIdx.x)
        return;
    dcu_choice c = {drawn.id, 0, DCU_NONE, 0};
    if (raw.bad_id != DCU_NONE) {
        const float x = p.logits[(size_t)row * p.ldl + raw.bad_id];
        c.bad = x != x ? 1 : 2;
        c.bad_id = raw.bad_id;
    } else if (y.id == DCU_NONE) {
        c.bad = 3;
    }
    p.choices[p.first + row] = c;
}

/* ---- log-probabilities --------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(512)
    dcu_sample_logprobs_kernel(args p, const dcu_row_scratch *scratch, uint32_t n_parts)
{
    DCU_SHARED(dcu_select_space, space, 1);
    DCU_SHARED(float, sums, 2 * DCU_SUM_CHUNK + 16);
    DCU_SHARED(uint32_t, words, 3 * DCU_MAX_TOP + 1);
    DCU_SHARED(float, values, 2 * DCU_MAX_TOP);
    const uint32_t row = blockIdx.x;
    const dcu_request *r = request_of(p, row);
    dcu_choice *choice = p.choices + p.first + row;
    if (!r || r->n_logprobs < 0 || choice->bad)
        return;
    const float *x = p.logits + (size_t)row * p.ldl;
    const dcu_best raw = dcu_best_of_parts(scratch[row].raw, n_parts);
    const float lse = dcu_logsumexp_block(x, p.vocab, raw.value, sums);
    uint32_t n = 0;
    if (r->n_logprobs > 0) {
        const dcu_items s = {x, p.vocab, raw.value, 1.0f, DCU_MINUS_INF, {0, 0}};
        dcu_cut cut = {0, 0};
        (void)dcu_select<false>(s, (unsigned long long)r->n_logprobs, space, &cut);
        n = dcu_collect(s, cut, words, values, words + 2 * DCU_MAX_TOP, words + DCU_MAX_TOP,
                        values + DCU_MAX_TOP);
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        p.logprobs[(p.first + row) * 20 + i] = {words[DCU_MAX_TOP + i],
                                                values[DCU_MAX_TOP + i] - lse};
    if (threadIdx.x == 0) {
        p.n_logprobs[p.first + row] = n;
        choice->logprob = x[choice->token] - lse;
    }
}

extern "C" int dcu_sample(dcu_stream s, const struct dcu_sample *p)
{
    dcu_row_scratch *scratch = (dcu_row_scratch *)p->scratch;
    if (p->rows == 0 || p->vocab == 0)
        return 0;
    const uint32_t n = dcu_parts(p->vocab), len = dcu_part_len(p->vocab);
    const dim3 grid(n, p->rows);
    int r = 0;
    if (p->flags & DCU_SAMPLE_PROCESS)
        r = DCU_LAUNCH(dcu_sample_process_kernel, grid, 256, 0, s, *p, len);
    if (r == 0)
        r = DCU_LAUNCH(dcu_sample_stats_kernel, grid, 256, 0, s, *p, scratch, len);
    if (r == 0 && p->flags & DCU_SAMPLE_CUT)
        r = DCU_LAUNCH(dcu_sample_cut_kernel, p->rows, 1024, 0, s, *p, scratch, n);
    if (r == 0)
        r = DCU_LAUNCH(dcu_sample_draw_kernel, grid, 256, 0, s, *p, scratch, n, len);
    if (r == 0)
        r = DCU_LAUNCH(dcu_sample_finish_kernel, p->rows, 32, 0, s, *p, scratch, n);
    if (r == 0 && p->flags & DCU_SAMPLE_LOGPROBS)
        r = DCU_LAUNCH(dcu_sample_logprobs_kernel, p->rows, 512, 0, s, *p, scratch, n);
    return r;
}
