/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device functions over a row of logits: the best of it, exact selection by rank or by mass, and sums in
 * the canonical order.  All threads of a block call them together.
 */
#pragma once

#include "kernels/cuda/common.cuh"

#define DCU_MINUS_INF __uint_as_float(0xff800000u)
#define DCU_INF       __uint_as_float(0x7f800000u)
#define DCU_NONE      0xffffffffu

/* Elements of one of the parts that a row is cut into; a multiple of 16. */
DK_FN uint32_t dcu_part_len(uint32_t n)
{
    const uint32_t parts = n / 2048 + 1 < DCU_VOCAB_PARTS ? n / 2048 + 1 : DCU_VOCAB_PARTS;
    return ((n + parts - 1) / parts + 15) / 16 * 16;
}
DK_FN uint32_t dcu_parts(uint32_t n)
{
    return (n + dcu_part_len(n) - 1) / dcu_part_len(n);
}

DCU_FN dcu_best dcu_best_none()
{
    dcu_best b = {DCU_MINUS_INF, DCU_NONE, DCU_NONE, 0};
    return b;
}

DCU_FN void dcu_best_add(dcu_best *b, float v, uint32_t id)
{
    if (v > b->value || (v == b->value && id < b->id && v > DCU_MINUS_INF)) {
        b->value = v;
        b->id = id;
    }
}

DCU_FN void dcu_best_merge(dcu_best *b, const dcu_best &o)
{
    if (o.id != DCU_NONE)
        dcu_best_add(b, o.value, o.id);
    b->bad_id = o.bad_id < b->bad_id ? o.bad_id : b->bad_id;
}

DCU_FN dcu_best dcu_best_warp(dcu_best b)
{
    for (int m = 16; m; m /= 2) {
        dcu_best o;
        o.value = __shfl_xor_sync(DCU_FULL, b.value, m);
        o.id = __shfl_xor_sync(DCU_FULL, b.id, m);
        o.bad_id = __shfl_xor_sync(DCU_FULL, b.bad_id, m);
        dcu_best_merge(&b, o);
    }
    return b;
}

/* Over the block (whole warps); all threads get the result.  space: 33 entries of shared memory. */
DCU_FN dcu_best dcu_best_block(dcu_best b, dcu_best *space)
{
    const uint32_t warps = blockDim.x / 32;
    b = dcu_best_warp(b);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        space[threadIdx.x / 32] = b;
    __syncthreads();
    if (threadIdx.x < 32) {
        b = dcu_best_warp(threadIdx.x < warps ? space[threadIdx.x] : dcu_best_none());
        if (threadIdx.x == 0)
            space[32] = b;
    }
    __syncthreads();
    return space[32];
}

/* Best of x[first, end) with the lowest id of a NaN or +inf; ids count from x. */
DCU_FN dcu_best dcu_best_range(const float *x, uint32_t first, uint32_t end)
{
    dcu_best b = dcu_best_none();
    for (uint32_t i = first + threadIdx.x; i < end; i += blockDim.x) {
        const float v = x[i];
        if (!(v < DCU_INF) && b.bad_id == DCU_NONE)
            b.bad_id = i;
        dcu_best_add(&b, v, i);
    }
    return b;
}

/* A row's parts together; every warp for itself. */
DCU_FN dcu_best dcu_best_of_parts(const dcu_best *parts, uint32_t n)
{
    dcu_best b = dcu_best_none();
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
        dcu_best_merge(&b, parts[i]);
    return dcu_best_warp(b);
}

/* log(sum exp(x_i - max)) + max; lanes i % 16, ascending.  space: 2 * DCU_SUM_CHUNK + 16 floats. */
#define DCU_SUM_CHUNK 2048u
DCU_FN float dcu_logsumexp_block(const float *x, uint32_t n, float max, float *space)
{
    float *lane = space + 2 * DCU_SUM_CHUNK, sum = 0;
    for (uint32_t first = 0, buf = 0; first < n; first += DCU_SUM_CHUNK, buf ^= 1) {
        const uint32_t len = dcu_min(n - first, DCU_SUM_CHUNK);
        float *e = space + buf * DCU_SUM_CHUNK;
        for (uint32_t i = threadIdx.x; i < len; i += blockDim.x)
            e[i] = dk_exp_def(x[first + i] - max);
        __syncthreads();
        /* This buffer is written again behind the next barrier. */
        if (threadIdx.x < 16)
            for (uint32_t i = threadIdx.x; i < len; i += 16)
                sum += e[i];
    }
    if (threadIdx.x < 16)
        lane[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        lane[0] = dk_log_def(dcu_fold16(lane)) + max;
    __syncthreads();
    const float r = lane[0];
    __syncthreads();
    return r;
}

/* ---- selection ------------------------------------------------------------------------------------ */

/* Order of values as integers; -0 is 0. */
DCU_FN uint32_t dcu_key(float x)
{
    uint32_t b = __float_as_uint(x);
    b = b == 0x80000000u ? 0 : b;
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* A place in the order (larger key, then lower id): itself and all that are better are kept. */
struct dcu_cut {
    uint32_t key, id; /* key 0: everything above -inf */
};

/* What is selected from: y[n] above -inf, inside of `within`, with z >= z_least. */
struct dcu_items {
    const float *y;
    uint32_t n;
    float max, inv_t, z_least;
    dcu_cut within;
};

DCU_FN float dcu_z(const dcu_items &s, float y)
{
    return (y - s.max) * s.inv_t;
}

DCU_FN bool dcu_kept(const dcu_items &s, uint32_t i, float y)
{
    const uint32_t k = dcu_key(y);
    return y > DCU_MINUS_INF && (k > s.within.key || (k == s.within.key && i <= s.within.id)) &&
           dcu_z(s, y) >= s.z_least;
}

DCU_FN unsigned long long dcu_mass(float z)
{
    return (unsigned long long)((double)dk_exp_def(z) * 4398046511104.0 + 0.5);
}

/* z from 0 down in steps of 1/32. */
#define DCU_BUCKETS 1024u
DCU_FN uint32_t dcu_bucket(float z)
{
    const float down = z * -32.0f;
    return down < (float)(DCU_BUCKETS - 1) ? (uint32_t)down : DCU_BUCKETS - 1;
}

struct dcu_select_space {
    unsigned long long bins[DCU_BUCKETS];
    unsigned long long before;
    uint32_t bin, found;
};

/* The first bin, ascending, with which `before` reaches target; before it, the sum of those left out. */
DCU_FN bool dcu_find_bin(dcu_select_space *sp, uint32_t n, unsigned long long target)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t b = 0;
        while (b < n && sp->before + sp->bins[b] < target)
            sp->before += sp->bins[b++];
        sp->bin = b;
        sp->found = b < n;
    }
    __syncthreads();
    return sp->found;
}

/*
 * The last item, best first, of the shortest prefix whose weights reach target >= 1; MASS: weights
 * dcu_mass(z), else 1 each.  False when all of them do not.  Integers: no order of summation matters.
 * One pass by buckets of z, four by bytes of the key within the bucket, one by id among equals.
 */
template <bool MASS>
DCU_FN bool dcu_select(const dcu_items &s, unsigned long long target, dcu_select_space *sp,
                       dcu_cut *ret)
{
    const uint32_t tid = threadIdx.x, threads = blockDim.x;
    for (uint32_t i = tid; i < DCU_BUCKETS; i += threads)
        sp->bins[i] = 0;
    if (tid == 0)
        sp->before = 0;
    __syncthreads();
    for (uint32_t i = tid; i < s.n; i += threads) {
        const float y = s.y[i], z = dcu_z(s, y);
        if (dcu_kept(s, i, y))
            atomicAdd(&sp->bins[dcu_bucket(z)], MASS ? dcu_mass(z) : 1ull);
    }
    if (!dcu_find_bin(sp, DCU_BUCKETS, target))
        return false;
    const uint32_t bucket = sp->bin;
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (uint32_t i = tid; i < 256; i += threads)
            sp->bins[i] = 0;
        __syncthreads();
        for (uint32_t i = tid; i < s.n; i += threads) {
            const float y = s.y[i], z = dcu_z(s, y);
            const uint32_t k = dcu_key(y);
            if (dcu_kept(s, i, y) && dcu_bucket(z) == bucket &&
                (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8)))
                atomicAdd(&sp->bins[255 - (k >> shift & 255)], MASS ? dcu_mass(z) : 1ull);
        }
        (void)dcu_find_bin(sp, 256, target);
        prefix |= (255 - sp->bin) << shift;
    }
    /* Equals, by id: each thread has a stretch of ids; those before it are counted first. */
    const uint32_t stretch = (s.n + threads - 1) / threads, first = tid * stretch;
    const uint32_t end = dcu_min(first + stretch, s.n);
    unsigned long long mine = 0;
    for (uint32_t i = first; i < end; i++)
        if (dcu_key(s.y[i]) == prefix && dcu_kept(s, i, s.y[i]))
            mine += MASS ? dcu_mass(dcu_z(s, s.y[i])) : 1ull;
    __syncthreads();
    sp->bins[tid] = mine;
    (void)dcu_find_bin(sp, threads, target);
    if (tid == sp->bin) {
        unsigned long long sum = sp->before;
        uint32_t i = first;
        for (;; i++) {
            if (dcu_key(s.y[i]) != prefix || !dcu_kept(s, i, s.y[i]))
                continue;
            sum += MASS ? dcu_mass(dcu_z(s, s.y[i])) : 1ull;
            if (sum >= target)
                break;
        }
        sp->bins[0] = i;
    }
    __syncthreads();
    ret->key = prefix;
    ret->id = (uint32_t)sp->bins[0];
    __syncthreads();
    return true;
}

/* Sum of weights of all items. */
template <bool MASS> DCU_FN unsigned long long dcu_total(const dcu_items &s, dcu_select_space *sp)
{
    unsigned long long sum = 0;
    for (uint32_t i = threadIdx.x; i < s.n; i += blockDim.x) {
        const float y = s.y[i];
        if (dcu_kept(s, i, y))
            sum += MASS ? dcu_mass(dcu_z(s, y)) : 1ull;
    }
    for (int m = 16; m; m /= 2)
        sum += __shfl_xor_sync(DCU_FULL, sum, m);
    __syncthreads();
    if (threadIdx.x == 0)
        sp->before = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        atomicAdd(&sp->before, sum);
    __syncthreads();
    sum = sp->before;
    __syncthreads();
    return sum;
}

/* Items at or above cut (at most DCU_MAX_TOP), best first, to id[] and value[]; returns their number.
 * ids, values: DCU_MAX_TOP of shared memory; count: one word of it. */
DCU_FN uint32_t dcu_collect(const dcu_items &s, dcu_cut cut, uint32_t *ids, float *values,
                            uint32_t *count, uint32_t *id, float *value)
{
    __syncthreads();
    if (threadIdx.x == 0)
        *count = 0;
    __syncthreads();
    dcu_items kept = s;
    kept.within = cut;
    for (uint32_t i = threadIdx.x; i < s.n; i += blockDim.x) {
        const float y = s.y[i];
        if (!dcu_kept(kept, i, y))
            continue;
        const uint32_t at = atomicAdd(count, 1u);
        if (at < DCU_MAX_TOP) {
            ids[at] = i;
            values[at] = y;
        }
    }
    __syncthreads();
    const uint32_t n = dcu_min(*count, DCU_MAX_TOP);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t rank = 0;
        for (uint32_t j = 0; j < n; j++)
            rank += values[j] > values[i] || (values[j] == values[i] && ids[j] < ids[i]);
        id[rank] = ids[i];
        value[rank] = values[i];
    }
    __syncthreads();
    return n;
}
