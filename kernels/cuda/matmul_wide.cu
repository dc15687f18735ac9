/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with BF16 and F16 weights on the tensor cores for more than eight rows: the sums of
 * matmul_mma.cu in the same order, hence the same bits, with activations shared by eight panels.
 *
 *   segment (16 tiles of 16 inputs): c = mma ascending, part = c_hi + c_lo; group (4 segments): sum of parts
 *   ascending; result: sums of groups ascending; F16: times 2^-e
 *
 * Launch: blocks of eight warps, a panel each, by 16 or 32 rows.  Four tiles of weights a lane are on their
 * way while four are multiplied; activations come through a ring in shared memory (cp.async).  Where the
 * outputs alone would not fill a device, a block takes one group of 1,024 inputs, and the last one of a result's
 * blocks to arrive adds the groups in order: no result depends on which one that is.
 *
 * Qwen3-4B BF16, 32 rows: 8.04 GB of weights, 1.68 ms at 4.8 TB/s, 2.40 ms at 3.35; through L2 also 128 KB of
 * activations for each (8 panels, 1,024 inputs): 4.0 GB, and sums of groups of 0.5 GB.  0.51 TFLOP: 0.8 ms at
 * 0.6 of the dense peak; fragments of activations out of shared memory: 1.1 ms at 128 bytes a cycle.
 */
#include "kernels/cuda/matmul.cuh"

#define WARPS   8u
#define CHUNK   4u /* tiles of a stage */
#define STAGES  3u
#define SEGMENT 16u /* tiles */
#define GROUP   64u /* tiles */

template <int T> DCU_FN void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    if (T == DK_F16)
        dcu_mma_f16(c, a, b);
    else
        dcu_mma_bf16(c, a, b);
}

/* Fragments of tiles [t, t + CHUNK) of `have` tiles of rows; x: tile 0 of the first of them. */
template <int NT>
DCU_FN void load_rows(unsigned char *ring, const unsigned char *x, size_t x_rows, uint32_t t,
                      uint32_t t1, uint32_t have)
{
    constexpr uint32_t pieces = DCU_MMA_TILE / 16;
    const uint32_t each = dcu_min(t1 - t, CHUNK) * pieces;
    for (uint32_t i = threadIdx.x; i < have * each; i += 32 * WARPS) {
        const uint32_t j = i / each, c = i % each;
        dcu_cp_async16(ring + j * CHUNK * DCU_MMA_TILE + c * 16,
                       x + j * x_rows + (size_t)t * DCU_MMA_TILE + c * 16);
    }
}

DCU_FN void load_weights(uint4 a[CHUNK], const unsigned char *w, uint32_t t, uint32_t t1)
{
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++)
        if (t + i < t1)
            a[i] = *(const uint4 *)(w + (size_t)(t + i) * DCU_MMA_WTILE);
}

/* The sums of all groups of this block's results, added by its last block to come. */
template <int T, int NT>
DCU_FN void join_groups(const dcu_mm_group &g, float *sums, uint32_t *arrived, uint32_t groups,
                        uint32_t tile0, uint32_t panel0, uint32_t place, uint32_t places)
{
    DCU_SHARED(uint32_t, last, 1);
    constexpr uint32_t RESULTS = WARPS * 64 * NT;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last[0] = atomicAdd(&arrived[place], 1u) == groups - 1;
        if (last[0])
            arrived[place] = 0; /* for the next product */
    }
    __syncthreads();
    if (!last[0])
        return;
    __threadfence();
    for (uint32_t i = threadIdx.x; i < RESULTS; i += 32 * WARPS) {
        const uint32_t panel = panel0 + i / (64 * NT), row = tile0 * 4 + i / 16 % (4 * NT);
        float total = 0;
        if (panel >= g.panels || row >= g.rows)
            continue;
        for (uint32_t k = 0; k < groups; k++)
            total += __ldcg(&sums[((size_t)k * places + place) * RESULTS + i]);
        dcu_mm_store(dcu_mm_find(g, panel), row, g.rows, i % 16,
                     T == DK_F16 ? total * g.scales[row] : total);
    }
}

template <int T, int NT>
__global__ void __launch_bounds__(256, 2)
    dcu_matmul_wide_kernel(dcu_mm_group g, uint32_t row_groups, uint32_t split, float *sums,
                           uint32_t *arrived)
{
    constexpr uint32_t STAGE = NT * CHUNK * DCU_MMA_TILE;
    DCU_SHARED(uint4, ring16, STAGES * STAGE / 16);
    unsigned char *ring = (unsigned char *)ring16;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ktiles = (g.k + 15) / 16, groups = (ktiles + GROUP - 1) / GROUP;
    const uint32_t group = blockIdx.x % split, place = blockIdx.x / split;
    const uint32_t tile0 = place % row_groups * NT, panel0 = place / row_groups * WARPS;
    const uint32_t panel = panel0 + warp;
    const bool mine = panel < g.panels;
    const dcu_mm_panel p = dcu_mm_find(g, mine ? panel : g.panels - 1);
    const uint32_t have = dcu_min((g.rows + 3) / 4 - tile0, NT);
    const uint32_t t0 = split > 1 ? group * GROUP : 0;
    const uint32_t t1 = split > 1 ? dcu_min(t0 + GROUP, ktiles) : ktiles;
    const unsigned char *w = p.w + (size_t)p.panel * ktiles * DCU_MMA_WTILE + lane * 16;
    const size_t x_rows = (size_t)ktiles * DCU_MMA_TILE;
    const unsigned char *x = g.x + tile0 * x_rows;
    float c[NT][4] = {}, sum[NT][2] = {}, total[NT][2] = {};
    uint4 a[CHUNK] = {};

    for (uint32_t s = 0; s < STAGES - 1; s++) {
        const uint32_t t = t0 + s * CHUNK;
        if (t < t1)
            load_rows<NT>(ring + s * STAGE, x, x_rows, t, t1, have);
        dcu_cp_async_commit();
    }
    load_weights(a, w, t0, t1);
    for (uint32_t t = t0, s = 0; t < t1; t += CHUNK, s++) {
        uint4 next[CHUNK] = {};
        dcu_cp_async_wait<STAGES - 2>();
        __syncthreads();
        const uint32_t ahead = t + (STAGES - 1) * CHUNK;
        if (ahead < t1)
            load_rows<NT>(ring + (s + STAGES - 1) % STAGES * STAGE, x, x_rows, ahead, t1, have);
        dcu_cp_async_commit();
        load_weights(next, w, t + CHUNK, t1);
        const unsigned char *r = ring + s % STAGES * STAGE + lane * 8;
#pragma unroll
        for (uint32_t i = 0; i < CHUNK; i++) {
            if (t + i >= t1 || !mine)
                break;
            const uint32_t af[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
#pragma unroll
            for (uint32_t j = 0; j < NT; j++) {
                if (j >= have)
                    break;
                const uint2 v = *(const uint2 *)(r + (j * CHUNK + i) * DCU_MMA_TILE);
                const uint32_t b[2] = {v.x, v.y};
                mma<T>(c[j], af, b);
            }
        }
        const uint32_t end = t + CHUNK;
        if (end % SEGMENT == 0 || end >= t1) {
#pragma unroll
            for (int j = 0; j < NT; j++) {
                sum[j][0] += c[j][0] + c[j][1];
                sum[j][1] += c[j][2] + c[j][3];
                c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
            }
        }
        if (split == 1 && (end % GROUP == 0 || end >= t1)) {
#pragma unroll
            for (int j = 0; j < NT; j++) {
                total[j][0] += sum[j][0];
                total[j][1] += sum[j][1];
                sum[j][0] = sum[j][1] = 0;
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < CHUNK; i++)
            a[i] = next[i];
    }
    if (split == 1) {
        if (!mine)
            return;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const uint32_t row = (tile0 + j) * 4 + lane % 4;
            const float up = T == DK_F16 && row < g.rows ? g.scales[row] : 1.0f;
            dcu_mm_store(p, row, g.rows, lane / 4, T == DK_F16 ? total[j][0] * up : total[j][0]);
            dcu_mm_store(p, row, g.rows, lane / 4 + 8,
                         T == DK_F16 ? total[j][1] * up : total[j][1]);
        }
        return;
    }
    const uint32_t places = gridDim.x / split;
    float *out = sums + ((size_t)group * places + place) * WARPS * 64 * NT + warp * 64 * NT;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        out[(j * 4 + lane % 4) * 16 + lane / 4] = sum[j][0];
        out[(j * 4 + lane % 4) * 16 + lane / 4 + 8] = sum[j][1];
    }
    join_groups<T, NT>(g, sums, arrived, groups, tile0, panel0, place, places);
}

template <int T, int NT>
static int launch(dcu_stream s, const dcu_mm_group &g, float *sums, uint32_t *arrived)
{
    const uint32_t row_groups = (g.rows + 4 * NT - 1) / (4 * NT);
    const uint32_t places = (g.panels + WARPS - 1) / WARPS * row_groups;
    const uint32_t groups = ((g.k + 15) / 16 + GROUP - 1) / GROUP;
    const uint32_t split = groups > 1 && places <= DCU_SPLIT_PLACES ? groups : 1;
    return DCU_LAUNCH((dcu_matmul_wide_kernel<T, NT>), places * split, 32 * WARPS, 0, s, g,
                      row_groups, split, sums, arrived);
}

int dcu_matmul_wide(dcu_stream s, enum dk_type t, const dcu_mm_group &g, float *sums,
                    uint32_t *arrived)
{
    if (t == DK_F16)
        return g.rows <= 16 ? launch<DK_F16, 4>(s, g, sums, arrived)
                            : launch<DK_F16, 8>(s, g, sums, arrived);
    return g.rows <= 16 ? launch<DK_BF16, 4>(s, g, sums, arrived)
                        : launch<DK_BF16, 8>(s, g, sums, arrived);
}
