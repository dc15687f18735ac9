/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights in panels, in the CPU's order.
 *
 *   y[r][o]: acc = 0; for k ascending over the length padded to 16: acc = fma(w[o][k], x[r][k], acc)
 *
 * Twin: cpu/matmul/c.c, same bits.  A result is one chain of K dependent FMAs of 4 cycles, so memory is
 * read by all threads into a ring in shared memory (cp.async), and 16 lanes a row run the chains.
 *
 * Launch: blocks of 128 threads, a panel of 16 outputs by 8, 16 or 32 rows (1, 2 or 4 chains a thread).
 *
 * Qwen3-4B (4.02 G weights, 8.04 GB BF16, 16.1 GB F32), one row: bytes 1.68 ms at 4.8 TB/s, 2.40 ms at 3.35
 * (BF16), F32 twice that; the chains are 5.8 us for K = 2,560, 9.3 for 4,096, 22 for 9,728, which is 1.6 ms
 * for the 36 layers at 1.755 GHz: for BF16 the two are about equal and overlap only in part.  R rows: 8.04 R
 * GFLOP, FMA bound from about 14 rows on (67 TFLOP/s: 3.8 ms for 32).  The tensor cores (matmul_mma.cu) are
 * the way for BF16 and F16 unless the CPU's bits are asked for.
 */
#include "kernels/cuda/matmul.cuh"

#define THREADS 128u
#define CHUNK   64u          /* inputs of a stage */
#define XSTRIDE (CHUNK + 4u) /* floats; rows begin in different banks */

struct float_shape {
    uint32_t w_bytes, x_floats; /* of a stage */
};

template <int T> DCU_FN float widen(const unsigned char *w, uint32_t at)
{
    if (T == DK_F32)
        return ((const float *)w)[at];
    const uint16_t h = ((const uint16_t *)w)[at];
    return T == DK_F16 ? dcu_f16_to_f32(h) : dcu_bf16_to_f32(h);
}

/* A stage: 16-byte pieces of the panel's chunk, and of the rows' same inputs. */
template <int T, int NR>
DCU_FN void load_stage(unsigned char *ws, float *xs, const unsigned char *panel, const float *x,
                       uint32_t kp, uint32_t k0, uint32_t rows)
{
    const uint32_t elem = T == DK_F32 ? 4 : 2, kn = dcu_min(kp - k0, CHUNK);
    const unsigned char *from = panel + (size_t)k0 * DCU_PANEL * elem;
    for (uint32_t i = threadIdx.x; i < kn * elem; i += THREADS)
        dcu_cp_async16(ws + i * 16, from + i * 16);
    const uint32_t lines = kn / 4, have = dcu_min(rows, 8 * NR);
    for (uint32_t i = threadIdx.x; i < have * lines; i += THREADS) {
        const uint32_t r = i / lines, c = i % lines;
        dcu_cp_async16(xs + r * XSTRIDE + c * 4, x + (size_t)r * kp + k0 + c * 4);
    }
}

template <int T, int NR, int STAGES>
__global__ void __launch_bounds__(128) dcu_matmul_float_kernel(dcu_mm_group g, uint32_t row_tiles)
{
    constexpr uint32_t w_bytes = CHUNK * DCU_PANEL * (T == DK_F32 ? 4 : 2);
    constexpr uint32_t x_floats = 8 * NR * XSTRIDE;
    DCU_DYN_SHARED(unsigned char, shared);
    float *xs = (float *)(shared + STAGES * w_bytes);
    const dcu_mm_panel p = dcu_mm_find(g, blockIdx.x / row_tiles);
    const uint32_t kp = (g.k + 15) / 16 * 16, row0 = blockIdx.x % row_tiles * 8 * NR;
    const uint32_t o = threadIdx.x & 15, rr = threadIdx.x >> 4, rows = g.rows - row0;
    const unsigned char *panel = p.w + (size_t)p.panel * kp * DCU_PANEL * (T == DK_F32 ? 4 : 2);
    const float *x = (const float *)g.x + (size_t)row0 * kp;
    const uint32_t chunks = (kp + CHUNK - 1) / CHUNK;
    float acc[NR] = {0};

    for (uint32_t c = 0; c < STAGES - 1; c++) {
        if (c < chunks)
            load_stage<T, NR>(shared + c * w_bytes, xs + c * x_floats, panel, x, kp, c * CHUNK,
                              rows);
        dcu_cp_async_commit();
    }
    for (uint32_t c = 0; c < chunks; c++) {
        dcu_cp_async_wait<STAGES - 2>();
        __syncthreads();
        const uint32_t ahead = c + STAGES - 1;
        if (ahead < chunks)
            load_stage<T, NR>(shared + ahead % STAGES * w_bytes, xs + ahead % STAGES * x_floats,
                              panel, x, kp, ahead * CHUNK, rows);
        dcu_cp_async_commit();
        if (rr >= rows)
            continue;
        const unsigned char *w = shared + c % STAGES * w_bytes;
        const float *xr = xs + c % STAGES * x_floats + rr * XSTRIDE;
        const uint32_t kn = dcu_min(kp - c * CHUNK, CHUNK);
#pragma unroll 4
        for (uint32_t k = 0; k < kn; k += 4) {
            float wk[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                wk[i] = widen<T>(w, (k + i) * DCU_PANEL + o);
#pragma unroll
            for (int j = 0; j < NR; j++) {
                if (rr + 8 * j >= rows)
                    continue;
                const float4 v = *(const float4 *)(xr + j * 8 * XSTRIDE + k);
                acc[j] = __fmaf_rn(wk[0], v.x, acc[j]);
                acc[j] = __fmaf_rn(wk[1], v.y, acc[j]);
                acc[j] = __fmaf_rn(wk[2], v.z, acc[j]);
                acc[j] = __fmaf_rn(wk[3], v.w, acc[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < NR; j++)
        dcu_mm_store(p, rr + 8 * j + row0, g.rows, o, acc[j]);
}

template <int T, int NR, int STAGES> static int launch(dcu_stream s, const dcu_mm_group &g)
{
    const uint32_t tiles = (g.rows + 8 * NR - 1) / (8 * NR);
    const size_t smem =
        STAGES * (size_t)(CHUNK * DCU_PANEL * (T == DK_F32 ? 4 : 2) + 8 * NR * XSTRIDE * 4);
    return DCU_LAUNCH((dcu_matmul_float_kernel<T, NR, STAGES>), g.panels * tiles, THREADS, smem, s,
                      g, tiles);
}

template <int T> static int by_rows(dcu_stream s, const dcu_mm_group &g)
{
    if (g.rows <= 8)
        return launch<T, 1, 6>(s, g);
    if (g.rows <= 16)
        return launch<T, 2, 4>(s, g);
    return launch<T, 4, 3>(s, g);
}

int dcu_matmul_panels(dcu_stream s, enum dk_type t, const dcu_mm_group &g)
{
    if (t == DK_F32)
        return by_rows<DK_F32>(s, g);
    return t == DK_F16 ? by_rows<DK_F16>(s, g) : by_rows<DK_BF16>(s, g);
}
