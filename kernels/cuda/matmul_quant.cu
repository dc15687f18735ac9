/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with block-quantised weights: exact integers, then the CPU's floats in the CPU's order.
 *
 *   q = 16 (256 hi + mid) + low in three int8 planes;  isum = sum of (u - zero) q, exact modulo 2^32 and
 *   below 2^31 in the end;  blocks ascending:
 *   acc = fma(dw * d, (float)isum, acc)          Q6_K: inputs 0-15, then 16-31
 *   acc = fma(mw, sum, acc)                      types with a minimum
 * Twin: cpu/matmul-quant/c.c, same bits, whichever kernel:
 *
 *   few rows (up to 4): dp4a.  A thread for each (output, block of a stage); its integers and scales go
 *     through shared memory to the 16 threads a row that run the chains.  Launch: a block for each panel, 16
 *     threads for each block of a stage, 32 blocks a stage at most.
 *   more rows: mma.m16n8k32.s8, one for each plane of 8 rows: a block of 32 inputs is exactly one tile, and
 *     the panel's lines are its A fragments as they lie.  A warp for each panel, 2 or 8 panels a launch block,
 *     8 to 32 rows; activations come through a ring in shared memory (cp.async).
 *
 * Qwen3-4B, Q4_K (4.64 bits a weight in the panel, 2.33 GB), one row: 0.49 ms at 4.8 TB/s, 0.70 at 3.35;
 * integers: 24 dp4a for 32 inputs, 3.0 G, 0.2 ms a row on 132 SMs at 1.755 GHz; 32 rows by mma: 0.77 T
 * operations, 0.6 ms at 0.65 of the dense peak, and 5 instructions of floats a (result, block).
 */
#include "kernels/cuda/matmul.cuh"

/* ---- few rows: dp4a ------------------------------------------------------------------------------- */

/* Blocks of a stage: as many as 48 KB of shared memory allow for. */
template <int T, int R> struct stage {
    static constexpr uint32_t blocks = R == 4 && dcu_qtype<T>::kind == DCU_QK_SUB ? 16 : 32;
};

/* Sums of one output over one block of one row: inputs 0-15 and 16-31, or both in [0]. */
template <int T>
DCU_FN void dot_row(const uint32_t lo[4], const uint32_t hi[4], const unsigned char *rec,
                    uint32_t r, uint32_t ret[2])
{
    using G = dcu_qtype<T>;
    int s[2][3] = {{0, 0, 0}, {0, 0, 0}};
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const uint4 *v = (const uint4 *)(rec + 256 * p + 32 * r);
        const uint4 a = v[0], b = v[1];
        s[0][p] = __dp4a((int)lo[0], (int)a.x, s[0][p]);
        s[0][p] = __dp4a((int)lo[1], (int)a.z, s[0][p]);
        s[0][p] = __dp4a((int)lo[2], (int)b.x, s[0][p]);
        s[0][p] = __dp4a((int)lo[3], (int)b.z, s[0][p]);
        s[1][p] = __dp4a((int)hi[0], (int)a.y, s[1][p]);
        s[1][p] = __dp4a((int)hi[1], (int)a.w, s[1][p]);
        s[1][p] = __dp4a((int)hi[2], (int)b.y, s[1][p]);
        s[1][p] = __dp4a((int)hi[3], (int)b.w, s[1][p]);
    }
    const uint32_t *nsum = (const uint32_t *)(rec + 832);
    for (int h = 0; h < 2; h++)
        ret[h] = 16u * (256u * (uint32_t)s[h][0] + (uint32_t)s[h][1]) + (uint32_t)s[h][2] +
                 (uint32_t)dcu_qzero<T>::value * nsum[8 * h + r];
    if (G::kind != DCU_QK_SUB)
        ret[0] += ret[1];
}

/* A chain's operands for one block. */
struct term {
    float scale, isum;
};

template <int T, int R>
__global__ void __launch_bounds__(512) dcu_matmul_dp4a_kernel(dcu_mm_group g)
{
    using G = dcu_qtype<T>;
    constexpr int SUBS = G::kind == DCU_QK_SUB ? 2 : 1;
    constexpr uint32_t STAGE_BLOCKS = stage<T, R>::blocks;
    constexpr uint32_t PLACE = 16 * R * SUBS; /* terms of a block */
    DCU_SHARED(term, terms, 2 * STAGE_BLOCKS * PLACE);
    DCU_SHARED(float, mins, 2 * STAGE_BLOCKS * 16);
    const uint32_t o = threadIdx.x & 15, phase = threadIdx.x >> 4, phases = blockDim.x >> 4;
    const uint32_t blocks = g.k / 32;
    const dcu_mm_panel p = dcu_mm_find(g, blockIdx.x);
    const unsigned char *panel = p.w + p.panel * G::panel_bytes(blocks);
    float acc = 0;

    for (uint32_t b0 = 0, buf = 0; b0 < blocks; b0 += phases, buf ^= 1) {
        const uint32_t b = b0 + phase;
        term *t = terms + buf * STAGE_BLOCKS * PLACE;
        float *mw = mins + buf * STAGE_BLOCKS * 16;
        if (b < blocks) {
            const unsigned char *rec = g.x + (size_t)b * DCU_QRECORD;
            const unsigned char *q = panel + G::quants_at(b) + 4 * o;
            uint32_t lo[4], hi[4];
#pragma unroll
            for (unsigned l = 0; l < 4; l++)
                dcu_qwords<T>(q, l, &lo[l], &hi[l]);
            const dcu_qscales s = dcu_qscale<T>(panel + G::group_at(b), b, o);
#pragma unroll
            for (uint32_t r = 0; r < R; r++) {
                uint32_t isum[2];
                dot_row<T>(lo, hi, rec, r, isum);
                const float d = ((const float *)(rec + 768))[r];
#pragma unroll
                for (int h = 0; h < SUBS; h++) {
                    term *at = t + phase * PLACE + (h * R + r) * 16 + o;
                    at->scale = s.dw[h] * d;
                    at->isum = (float)(int)isum[h];
                }
            }
            if (G::kind == DCU_QK_MIN)
                mw[phase * 16 + o] = s.mw;
        }
        __syncthreads();
        /* The next stage writes the other buffer; the one after it, this one, is behind a barrier
         * that these threads reach when they are done. */
        if (phase < R) {
            const uint32_t n = dcu_min(blocks - b0, phases);
            for (uint32_t j = 0; j < n; j++) {
#pragma unroll
                for (int h = 0; h < SUBS; h++) {
                    const term e = t[j * PLACE + (h * R + phase) * 16 + o];
                    acc = __fmaf_rn(e.scale, e.isum, acc);
                }
                if (G::kind == DCU_QK_MIN) {
                    const float *sum = (const float *)(g.x + (size_t)(b0 + j) * DCU_QRECORD + 800);
                    acc = __fmaf_rn(mw[j * 16 + o], sum[phase], acc);
                }
            }
        }
    }
    if (phase < R)
        dcu_mm_store(p, phase, g.rows, o, acc);
}

/* ---- more rows: mma ------------------------------------------------------------------------------- */

#define RING_BLOCKS 2u /* blocks of a stage */
#define RING_STAGES 3u

/* A fragment of a block: outputs g8 and g8 + 8, line t. */
template <int T>
DCU_FN void fragment(const unsigned char *quants, uint32_t g8, uint32_t t, uint32_t a[4])
{
    dcu_qwords<T>(quants + 4 * g8, t, &a[0], &a[2]);
    dcu_qwords<T>(quants + 4 * (g8 + 8), t, &a[1], &a[3]);
}

/* hi, mid and low of one tile to the integers of the four results of this lane. */
DCU_FN void mma_planes(const uint32_t a[4], const unsigned char *rec, uint32_t lane,
                       uint32_t ret[4])
{
    int c[3][4] = {};
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const uint2 v = *(const uint2 *)(rec + 256 * p + 8 * lane);
        const uint32_t b[2] = {v.x, v.y};
        dcu_mma_s8(c[p], a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        ret[i] = 16u * (256u * (uint32_t)c[0][i] + (uint32_t)c[1][i]) + (uint32_t)c[2][i];
}

/* One block of NT tiles of 8 rows. */
template <int T, int NT>
DCU_FN void block_step(float acc[NT][4], const unsigned char *panel, uint32_t b,
                       const unsigned char *x, uint32_t lane)
{
    using G = dcu_qtype<T>;
    const uint32_t g8 = lane / 4, t = lane % 4;
    uint32_t a[4];
    fragment<T>(panel + G::quants_at(b), g8, t, a);
    const dcu_qscales s0 = dcu_qscale<T>(panel + G::group_at(b), b, g8);
    const dcu_qscales s1 = dcu_qscale<T>(panel + G::group_at(b), b, g8 + 8);
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const unsigned char *rec = x + j * RING_BLOCKS * DCU_QRECORD;
        const float2 d = *(const float2 *)(rec + 768 + 8 * t);
        const uint2 n0 = *(const uint2 *)(rec + 832 + 8 * t);
        const uint2 n1 = *(const uint2 *)(rec + 864 + 8 * t);
        constexpr uint32_t z = (uint32_t)dcu_qzero<T>::value;
        uint32_t v[4];
        if (G::kind == DCU_QK_SUB) {
            const uint32_t first[4] = {a[0], a[1], 0, 0}, second[4] = {0, 0, a[2], a[3]};
            mma_planes(first, rec, lane, v);
            acc[j][0] = __fmaf_rn(s0.dw[0] * d.x, (float)(int)(v[0] + z * n0.x), acc[j][0]);
            acc[j][1] = __fmaf_rn(s0.dw[0] * d.y, (float)(int)(v[1] + z * n0.y), acc[j][1]);
            acc[j][2] = __fmaf_rn(s1.dw[0] * d.x, (float)(int)(v[2] + z * n0.x), acc[j][2]);
            acc[j][3] = __fmaf_rn(s1.dw[0] * d.y, (float)(int)(v[3] + z * n0.y), acc[j][3]);
            mma_planes(second, rec, lane, v);
            acc[j][0] = __fmaf_rn(s0.dw[1] * d.x, (float)(int)(v[0] + z * n1.x), acc[j][0]);
            acc[j][1] = __fmaf_rn(s0.dw[1] * d.y, (float)(int)(v[1] + z * n1.y), acc[j][1]);
            acc[j][2] = __fmaf_rn(s1.dw[1] * d.x, (float)(int)(v[2] + z * n1.x), acc[j][2]);
            acc[j][3] = __fmaf_rn(s1.dw[1] * d.y, (float)(int)(v[3] + z * n1.y), acc[j][3]);
            continue;
        }
        const uint32_t zx = z * (n0.x + n1.x), zy = z * (n0.y + n1.y);
        mma_planes(a, rec, lane, v);
        acc[j][0] = __fmaf_rn(s0.dw[0] * d.x, (float)(int)(v[0] + zx), acc[j][0]);
        acc[j][1] = __fmaf_rn(s0.dw[0] * d.y, (float)(int)(v[1] + zy), acc[j][1]);
        acc[j][2] = __fmaf_rn(s1.dw[0] * d.x, (float)(int)(v[2] + zx), acc[j][2]);
        acc[j][3] = __fmaf_rn(s1.dw[0] * d.y, (float)(int)(v[3] + zy), acc[j][3]);
        if (G::kind == DCU_QK_MIN) {
            const float2 sum = *(const float2 *)(rec + 800 + 8 * t);
            acc[j][0] = __fmaf_rn(s0.mw, sum.x, acc[j][0]);
            acc[j][1] = __fmaf_rn(s0.mw, sum.y, acc[j][1]);
            acc[j][2] = __fmaf_rn(s1.mw, sum.x, acc[j][2]);
            acc[j][3] = __fmaf_rn(s1.mw, sum.y, acc[j][3]);
        }
    }
}

/* Records of blocks [b0, b0 + RING_BLOCKS) of `tiles` tiles of rows. */
DCU_FN void load_records(unsigned char *ring, const unsigned char *x, uint32_t blocks, uint32_t b0,
                         uint32_t tiles)
{
    constexpr uint32_t pieces = DCU_QRECORD / 16;
    const uint32_t each = dcu_min(blocks - b0, RING_BLOCKS) * pieces;
    for (uint32_t i = threadIdx.x; i < tiles * each; i += blockDim.x) {
        const uint32_t j = i / each, c = i % each;
        dcu_cp_async16(ring + j * RING_BLOCKS * DCU_QRECORD + c * 16,
                       x + ((size_t)j * blocks + b0) * DCU_QRECORD + c * 16);
    }
}

template <int T, int NT>
__global__ void __launch_bounds__(256, 1)
    dcu_matmul_imma_kernel(dcu_mm_group g, uint32_t row_groups)
{
    using G = dcu_qtype<T>;
    constexpr uint32_t STAGE = NT * RING_BLOCKS * DCU_QRECORD;
    DCU_SHARED(uint4, ring16, RING_STAGES * STAGE / 16);
    unsigned char *ring = (unsigned char *)ring16;
    const uint32_t lane = threadIdx.x % 32, blocks = g.k / 32;
    const uint32_t tile0 = blockIdx.x % row_groups * NT;
    const uint32_t at = blockIdx.x / row_groups * (blockDim.x / 32) + threadIdx.x / 32;
    const bool mine = at < g.panels;
    const dcu_mm_panel p = dcu_mm_find(g, mine ? at : g.panels - 1);
    const unsigned char *panel = p.w + p.panel * G::panel_bytes(blocks);
    const unsigned char *x = g.x + (size_t)tile0 * blocks * DCU_QRECORD;
    const uint32_t tiles = dcu_min((g.rows + 7) / 8 - tile0, NT);
    const uint32_t stages = (blocks + RING_BLOCKS - 1) / RING_BLOCKS;
    float acc[NT][4] = {};

    for (uint32_t s = 0; s < RING_STAGES - 1; s++) {
        if (s < stages)
            load_records(ring + s * STAGE, x, blocks, s * RING_BLOCKS, tiles);
        dcu_cp_async_commit();
    }
    for (uint32_t s = 0; s < stages; s++) {
        dcu_cp_async_wait<RING_STAGES - 2>();
        __syncthreads();
        const uint32_t ahead = s + RING_STAGES - 1;
        if (ahead < stages)
            load_records(ring + ahead % RING_STAGES * STAGE, x, blocks, ahead * RING_BLOCKS, tiles);
        dcu_cp_async_commit();
        if (!mine)
            continue;
        const unsigned char *r = ring + s % RING_STAGES * STAGE;
        const uint32_t n = dcu_min(blocks - s * RING_BLOCKS, RING_BLOCKS);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t b = s * RING_BLOCKS + i;
            if (tiles == NT)
                block_step<T, NT>(acc, panel, b, r + i * DCU_QRECORD, lane);
            else
#pragma unroll
                for (int j = 0; j < NT - 1; j++)
                    if ((uint32_t)j < tiles)
                        block_step<T, 1>(&acc[j], panel, b, r + (j * RING_BLOCKS + i) * DCU_QRECORD,
                                         lane);
        }
    }
    if (!mine)
        return;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const uint32_t row = (tile0 + j) * 8 + lane % 4 * 2, o = lane / 4;
        dcu_mm_store(p, row, g.rows, o, acc[j][0]);
        dcu_mm_store(p, row + 1, g.rows, o, acc[j][1]);
        dcu_mm_store(p, row, g.rows, o + 8, acc[j][2]);
        dcu_mm_store(p, row + 1, g.rows, o + 8, acc[j][3]);
    }
}

/* ---- which ---------------------------------------------------------------------------------------- */

template <int T, int R> static int few(dcu_stream s, const dcu_mm_group &g)
{
    const uint32_t most = stage<T, R>::blocks, blocks = g.k / 32;
    const uint32_t phases = blocks < most ? (blocks + 1) / 2 * 2 : most;
    const uint32_t threads = 16 * (phases < R ? R : phases);
    return DCU_LAUNCH((dcu_matmul_dp4a_kernel<T, R>), g.panels, threads, 0, s, g);
}

/* Panels of a launch block: many where there are enough to fill the device twice. */
#define MANY_PANELS 2048u

template <int T, int NT> static int more(dcu_stream s, const dcu_mm_group &g)
{
    const uint32_t groups = (g.rows + 8 * NT - 1) / (8 * NT),
                   warps = g.panels >= MANY_PANELS ? 8 : 2;
    return DCU_LAUNCH((dcu_matmul_imma_kernel<T, NT>), (g.panels + warps - 1) / warps * groups,
                      32 * warps, 0, s, g, groups);
}

template <int T> static int by_rows(dcu_stream s, const dcu_mm_group &g)
{
    if (g.rows == 1)
        return few<T, 1>(s, g);
    if (g.rows == 2)
        return few<T, 2>(s, g);
    if (g.rows <= 4)
        return few<T, 4>(s, g);
    if (g.rows <= 8)
        return more<T, 1>(s, g);
    return g.rows <= 16 ? more<T, 2>(s, g) : more<T, 4>(s, g);
}

int dcu_matmul_quant(dcu_stream s, enum dk_type t, const dcu_mm_group &g)
{
    DCU_QTYPE_SWITCH(t, by_rows, s, g)
    return (int)cudaErrorInvalidValue;
}
