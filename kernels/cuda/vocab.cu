/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Over a row of logits: argmax, log-sum-exp, Gumbel noise.
 *
 *   argmax     lowest id of the largest value; lowest id of a NaN or +inf
 *   logsumexp  log(sum exp(x_i - max)) + max, 16 lanes by i % 16, folded 8-4-2-1
 *   gumbel     g_v of word v % 4 of Philox4x32-10 with counter {v / 4, ctr}, dk_gumbelf
 * Twins: cpu/sampling/c.c, same bits.
 *
 * Launch: argmax (parts of 2,048 ids and more, rows) blocks of 256 threads, then a warp a row; logsumexp a
 * block of 512 threads a row, exponentials by all, sums by 16 threads (the canonical order); gumbel a thread
 * for four ids.  Qwen3-4B (V 151,936), one row: 608 KB: argmax 0.13 us of bytes at 4.8 TB/s, 0.18 at 3.35, two
 * launches' latency in fact; logsumexp 9,496 dependent additions a lane, about 25 us (only where log
 * probabilities are asked for); gumbel 37,984 Philox blocks and 303,872 logarithms, 1.2 us on 132 SMs.
 */
#include "kernels/cuda/vocab.cuh"

__global__ void __launch_bounds__(256)
    dcu_argmax_kernel(const float *x, size_t ldx, uint32_t n, uint32_t len, dcu_best *parts)
{
    DCU_SHARED(dcu_best, space, 33);
    const uint32_t first = blockIdx.x * len;
    dcu_best b = dcu_best_range(x + blockIdx.y * ldx, first, dcu_min(first + len, n));
    b = dcu_best_block(b, space);
    if (threadIdx.x == 0)
        parts[blockIdx.y * DCU_VOCAB_PARTS + blockIdx.x] = b;
}

__global__ void __launch_bounds__(32)
    dcu_argmax_join_kernel(const dcu_best *parts, uint32_t n_parts, dcu_best *ret)
{
    const dcu_best b = dcu_best_of_parts(parts + blockIdx.x * DCU_VOCAB_PARTS, n_parts);
    if (threadIdx.x == 0)
        ret[blockIdx.x] = b;
}

extern "C" int dcu_argmax(dcu_stream s, const float *x, size_t ldx, uint32_t rows, uint32_t n,
                          struct dcu_best *parts, struct dcu_best *ret)
{
    if (rows == 0 || n == 0)
        return 0;
    int r = DCU_LAUNCH(dcu_argmax_kernel, dim3(dcu_parts(n), rows), 256, 0, s, x, ldx, n,
                       dcu_part_len(n), parts);
    if (r)
        return r;
    return DCU_LAUNCH(dcu_argmax_join_kernel, rows, 32, 0, s, parts, dcu_parts(n), ret);
}

__global__ void __launch_bounds__(512)
    dcu_logsumexp_kernel(const float *x, size_t ldx, uint32_t n, const dcu_best *max, float *ret)
{
    DCU_SHARED(float, space, 2 * DCU_SUM_CHUNK + 16);
    const float r = dcu_logsumexp_block(x + blockIdx.x * ldx, n, max[blockIdx.x].value, space);
    if (threadIdx.x == 0)
        ret[blockIdx.x] = r;
}

extern "C" int dcu_logsumexp(dcu_stream s, const float *x, size_t ldx, uint32_t rows, uint32_t n,
                             const struct dcu_best *max, float *ret)
{
    if (rows == 0 || n == 0)
        return 0;
    return DCU_LAUNCH(dcu_logsumexp_kernel, rows, 512, 0, s, x, ldx, n, max, ret);
}

struct noise {
    uint32_t key[2], ctr[3];
};

__global__ void __launch_bounds__(256)
    dcu_gumbel_kernel(float *out, noise n, uint32_t v0, uint32_t count)
{
    const uint32_t block = v0 / 4 + blockIdx.x * 256 + threadIdx.x;
    const uint32_t ctr[4] = {block, n.ctr[0], n.ctr[1], n.ctr[2]};
    uint32_t word[4];
    if (block > (v0 + count - 1) / 4)
        return;
    dk_philox_def(ctr, n.key, word);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t v = block * 4 + i;
        if (v >= v0 && v < v0 + count)
            out[v - v0] = dk_gumbelf(word[i]);
    }
}

extern "C" int dcu_gumbel(dcu_stream s, float *out, const uint32_t key[2], const uint32_t ctr[3],
                          uint32_t v0, uint32_t n)
{
    if (n == 0)
        return 0;
    const noise z = {{key[0], key[1]}, {ctr[0], ctr[1], ctr[2]}};
    return DCU_LAUNCH(dcu_gumbel_kernel, ((v0 + n - 1) / 4 - v0 / 4) / 256 + 1, 256, 0, s, out, z,
                      v0, n);
}
