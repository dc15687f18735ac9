/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with BF16 and F16 weights on the tensor cores, at every row count by the same instruction and in
 * the same order: here up to eight rows, more of them in matmul_wide.cu.
 *
 *   x = hi + lo (16 or 22 bits: see layout.h), columns 2j and 2j + 1 of an m16n8k16 tile are hi and lo
 *   of row j, so that four rows fill it and one row costs no more.
 *   segment (256 inputs):  c = 0; c = mma(W, hi | lo, c) tiles of 16 inputs ascending; part = c_hi + c_lo
 *   group (4 segments):    sum = 0; sum = sum + part ascending
 *   result:                acc = 0; acc = acc + sum ascending;  F16: acc * 2^-e
 * The order knows nothing of rows, warps or blocks.  Error against exact arithmetic: kernels/README.md.
 *
 * Launch: a block for each panel of 16 outputs and 4 NT rows; its warps take segments in turn, 8 loads of
 * 16 bytes a lane in flight; partial sums meet in shared memory.
 *
 * Qwen3-4B BF16, 8.04 GB of weights: 1.68 ms at 4.8 TB/s, 2.40 ms at 3.35 for up to 8 rows; activations are
 * read again by each panel, through L1 and L2: 1/8 (one row) to 1 (8 rows) of the weights' bytes.  FLOPs are
 * 2 * 2 * 4.02 G * rows, of a tile of four rows at least: 64 G, 0.11 ms at 0.6 of the dense peak.
 */
#include "kernels/cuda/matmul.cuh"

#define SEGMENT 16u /* tiles of 16 inputs */
#define GROUP   4u  /* segments */

template <int T> DCU_FN void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    if (T == DK_F16)
        dcu_mma_f16(c, a, b);
    else
        dcu_mma_bf16(c, a, b);
}

/* Tiles [t0, t1) of a panel into c. w, x: this lane's bytes of tile 0; x_rows: bytes between row tiles;
 * live: this lane's column belongs to a row that is there (the others are not read). */
template <int T, int NT>
DCU_FN void segment(float c[NT][4], const unsigned char *w, const unsigned char *x, size_t x_rows,
                    uint32_t t0, uint32_t t1, bool live)
{
    constexpr uint32_t AHEAD = 8;
    for (uint32_t t = t0; t < t1; t += AHEAD) {
        uint4 a[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (t + i < t1)
                a[i] = *(const uint4 *)(w + (size_t)(t + i) * DCU_MMA_WTILE);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (t + i >= t1)
                break;
            const uint32_t af[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
#pragma unroll
            for (int j = 0; j < NT; j++) {
                uint2 v = {0, 0};
                if (live)
                    v = *(const uint2 *)(x + j * x_rows + (size_t)(t + i) * DCU_MMA_TILE);
                const uint32_t b[2] = {v.x, v.y};
                mma<T>(c[j], af, b);
            }
        }
    }
}

template <int T, int NT, int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
    dcu_matmul_mma_kernel(dcu_mm_group g, uint32_t row_groups)
{
    constexpr uint32_t RESULTS = 64 * NT, THREADS = 32 * WARPS;
    constexpr uint32_t EACH = (RESULTS + THREADS - 1) / THREADS;
    DCU_SHARED(float, part, WARPS *RESULTS);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ktiles = (g.k + 15) / 16, segments = (ktiles + SEGMENT - 1) / SEGMENT;
    const uint32_t tile0 = blockIdx.x % row_groups * NT, tiles = (g.rows + 3) / 4;
    const dcu_mm_panel p = dcu_mm_find(g, blockIdx.x / row_groups);
    const unsigned char *w = p.w + (size_t)p.panel * ktiles * DCU_MMA_WTILE + lane * 16;
    const size_t x_rows = (size_t)ktiles * DCU_MMA_TILE;
    /* Tiles behind the last row are read as the last one: their results are not stored. */
    const uint32_t have = dcu_min(tiles - tile0, NT);
    const unsigned char *x = g.x + tile0 * x_rows + lane * 8;
    float total[EACH] = {0}, sum[EACH] = {0};

    for (uint32_t s0 = 0; s0 < segments; s0 += WARPS) {
        const uint32_t s = s0 + warp;
        if (s < segments) {
            float c[NT][4] = {};
            const uint32_t t0 = s * SEGMENT, t1 = dcu_min(t0 + SEGMENT, ktiles);
            if (have == NT)
                segment<T, NT>(c, w, x, x_rows, t0, t1, NT > 1 || lane / 8 < g.rows);
            else
                for (uint32_t j = 0; j < have; j++)
                    segment<T, 1>(&c[j], w, x + j * x_rows, x_rows, t0, t1, true);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float *out = part + warp * RESULTS + (j * 4 + lane % 4) * 16 + lane / 4;
                out[0] = c[j][0] + c[j][1];
                out[8] = c[j][2] + c[j][3];
            }
        }
        __syncthreads();
        const uint32_t n = dcu_min(segments - s0, WARPS);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t at = threadIdx.x + i * THREADS;
            for (uint32_t j = 0; j < n && at < RESULTS; j++) {
                sum[i] += part[j * RESULTS + at];
                if ((s0 + j) % GROUP == GROUP - 1 || s0 + j == segments - 1) {
                    total[i] += sum[i];
                    sum[i] = 0;
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t at = threadIdx.x + i * THREADS, row = tile0 * 4 + at / 16;
        if (at < RESULTS && row < g.rows)
            dcu_mm_store(p, row, g.rows, at % 16,
                         T == DK_F16 ? total[i] * g.scales[row] : total[i]);
    }
}

template <int T, int NT, int WARPS> static int launch(dcu_stream s, const dcu_mm_group &g)
{
    const uint32_t groups = (g.rows + 4 * NT - 1) / (4 * NT);
    return DCU_LAUNCH((dcu_matmul_mma_kernel<T, NT, WARPS>), g.panels * groups, 32 * WARPS, 0, s, g,
                      groups);
}

template <int T> static int by_rows(dcu_stream s, const dcu_mm_group &g)
{
    return g.rows <= 4 ? launch<T, 1, 16>(s, g) : launch<T, 2, 16>(s, g);
}

int dcu_matmul_mma(dcu_stream s, enum dk_type t, const dcu_mm_group &g)
{
    return t == DK_F16 ? by_rows<DK_F16>(s, g) : by_rows<DK_BF16>(s, g);
}
