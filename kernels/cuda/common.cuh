/* SPDX-License-Identifier: Apache-2.0 */
/* Small device functions that several kernels share. */
#pragma once

#include "kernels/cuda/platform.cuh"

#include "kernels/cuda/layout.h"
#include "kernels/math.h"

#define DCU_FN   static __device__ __forceinline__
#define DCU_FULL 0xffffffffu

DCU_FN float dcu_bf16_to_f32(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

/* Round to nearest even, as dk_f32_to_bf16. */
DCU_FN uint16_t dcu_f32_to_bf16(float x)
{
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

DCU_FN float dcu_f16_to_f32(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

DCU_FN uint16_t dcu_f32_to_f16(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

/* lane[0] of 16 sums, folded 8-4-2-1: the canonical end of every reduction over lanes.  One thread. */
DCU_FN float dcu_fold16(float *lane)
{
    for (unsigned half = 8; half; half /= 2)
        for (unsigned l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

DCU_FN uint32_t dcu_warp_max(uint32_t x)
{
    for (int m = 16; m; m /= 2) {
        uint32_t other = __shfl_xor_sync(DCU_FULL, x, m);
        x = other > x ? other : x;
    }
    return x;
}

/* Sum over the 16 lanes of this half of the warp. */
DCU_FN int dcu_half_warp_sum(int x)
{
    for (int m = 8; m; m /= 2)
        x += __shfl_xor_sync(DCU_FULL, x, m);
    return x;
}

/*
 * Sum of squares of a row in 16 lanes, lane l taking i = l, l + 16, ..., folded; the same value for all
 * threads of the block, all of which must call it.  stage: DCU_SQUARES_CHUNK floats, lane: 16, both
 * shared.  at(i): the row's value i.
 */
#define DCU_SQUARES_CHUNK 2048u
template <class F> DCU_FN float dcu_sum_squares(float *stage, float *lane, uint32_t n, const F &at)
{
    const uint32_t tid = threadIdx.x, threads = blockDim.x;
    float sum = 0;
    for (uint32_t first = 0; first < n; first += DCU_SQUARES_CHUNK) {
        uint32_t len = n - first < DCU_SQUARES_CHUNK ? n - first : DCU_SQUARES_CHUNK;
        for (uint32_t i = tid; i < len; i += threads)
            stage[i] = at(first + i);
        __syncthreads();
        if (tid < 16)
            for (uint32_t i = tid; i < len; i += 16)
                sum = __fmaf_rn(stage[i], stage[i], sum);
        __syncthreads();
    }
    if (tid < 16)
        lane[tid] = sum;
    __syncthreads();
    if (tid == 0)
        (void)dcu_fold16(lane);
    __syncthreads();
    return lane[0];
}

/* Blocks that fill `parts` with one `unit` each. */
DCU_FN uint32_t dcu_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
