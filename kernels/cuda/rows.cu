/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that move: look-up of embeddings, residual addition, gather and move (live rows, taps).
 *
 *   embed    x[r] = W[token of r], exactly; W in any layout                  twin: dk_weight_row
 *   add      x[r] += y[r]                                                    twin: cpu/elementwise
 *   gather   dst[r] = src[index[r]]      move: dst[to[r]] = src[from[r]]
 *
 * Launch: blocks of 256 threads, (row, piece of 1,024 elements).  All of them move bytes only.  Qwen3-4B,
 * 32 rows of 2,560: embed reads 16 outputs' sectors of a panel (5.2 MB of sectors for BF16, 32 bytes for
 * each 2 wanted): 1.1 us at 4.8 TB/s, 1.6 us at 3.35; add 1.0 MB, gather 0.7 MB: below a launch's latency.
 */
#include "kernels/cuda/quant.cuh"

#define THREADS 256u
#define PIECE   1024u

/* Element i of row `token`; blocks of 32 inputs for block types. */
template <int T>
DCU_FN float quant_at(const unsigned char *data, uint32_t k, uint32_t row, uint32_t i)
{
    using G = dcu_qtype<T>;
    const uint32_t blocks = k / 32, b = i / 32, o = row % 16;
    const unsigned char *panel = data + row / 16 * G::panel_bytes(blocks);
    uint32_t lo, hi;
    dcu_qwords<T>(panel + G::quants_at(b) + 4 * o, i % 16 / 4, &lo, &hi);
    const uint32_t byte = (i % 32 < 16 ? lo : hi) >> 8 * (i % 4) & 255u;
    int u = T == DK_Q8_0 ? (int)(signed char)byte : (int)byte - G::zero;
    dcu_qscales s = dcu_qscale<T>(panel + G::group_at(b), b, o);
    float v = s.dw[i % 32 / 16] * (float)u;
    return G::kind == DCU_QK_MIN ? v + s.mw : v;
}

DCU_FN float quant_any(int t, const unsigned char *data, uint32_t k, uint32_t row, uint32_t i)
{
    DCU_QTYPE_SWITCH(t, quant_at, data, k, row, i)
    return 0;
}

DCU_FN float weight_at(const dcu_weight &w, uint32_t row, uint32_t i)
{
    const size_t kp = (w.k + 15) / 16 * 16;
    size_t at = (row / 16 * kp + i) * 16 + row % 16;
    if (w.type != DK_F32 && w.type != DK_F16 && w.type != DK_BF16)
        return quant_any(w.type, (const unsigned char *)w.data, w.k, row, i);
    if (w.layout == DCU_LAYOUT_ROWS)
        at = row * kp + i;
    if (w.type == DK_F32)
        return ((const float *)w.data)[at];
    if (w.layout == DCU_LAYOUT_MMA) {
        const uint32_t o = row % 16, j = i % 16;
        at = (row / 16 * kp + i / 16 * 16) * 16 + (o % 8 * 4 + j % 8 / 2) * 8 +
             (o / 8 + 2 * (j / 8)) * 2 + j % 2;
    }
    const uint16_t h = ((const uint16_t *)w.data)[at];
    return w.type == DK_F16 ? dcu_f16_to_f32(h) : dcu_bf16_to_f32(h);
}

__global__ void __launch_bounds__(256)
    dcu_embed_kernel(dcu_weight w, const dcu_row *rows, float *x, size_t ldx)
{
    const uint32_t token = rows[blockIdx.x].token;
    const uint32_t end = dcu_min((blockIdx.y + 1) * PIECE, w.k);
    for (uint32_t i = blockIdx.y * PIECE + threadIdx.x; i < end; i += THREADS)
        x[blockIdx.x * ldx + i] = weight_at(w, token, i);
}

extern "C" int dcu_embed(dcu_stream s, const struct dcu_weight *w, const struct dcu_row *rows,
                         uint32_t n_rows, float *x, size_t ldx)
{
    if (n_rows == 0)
        return 0;
    return DCU_LAUNCH(dcu_embed_kernel, dim3(n_rows, (w->k + PIECE - 1) / PIECE), THREADS, 0, s, *w,
                      rows, x, ldx);
}

__global__ void __launch_bounds__(256)
    dcu_add_kernel(float *x, size_t ldx, const float *y, size_t ldy, uint32_t n)
{
    const uint32_t end = dcu_min((blockIdx.y + 1) * PIECE, n);
    for (uint32_t i = blockIdx.y * PIECE + threadIdx.x; i < end; i += THREADS)
        x[blockIdx.x * ldx + i] += y[blockIdx.x * ldy + i];
}

extern "C" int dcu_add(dcu_stream s, float *x, size_t ldx, const float *y, size_t ldy,
                       uint32_t rows, uint32_t n)
{
    if (rows == 0 || n == 0)
        return 0;
    return DCU_LAUNCH(dcu_add_kernel, dim3(rows, (n + PIECE - 1) / PIECE), THREADS, 0, s, x, ldx, y,
                      ldy, n);
}

__global__ void __launch_bounds__(256)
    dcu_move_kernel(float *dst, size_t ldd, const uint32_t *to, const float *src, size_t lds,
                    const uint32_t *from, uint32_t n)
{
    const uint32_t at = to ? to[blockIdx.x] : blockIdx.x;
    const uint32_t of = from ? from[blockIdx.x] : blockIdx.x;
    if (at == UINT32_MAX || of == UINT32_MAX)
        return;
    float *d = dst + (size_t)at * ldd;
    const float *s = src + (size_t)of * lds;
    const uint32_t end = dcu_min((blockIdx.y + 1) * PIECE, n);
    for (uint32_t i = blockIdx.y * PIECE + threadIdx.x; i < end; i += THREADS)
        d[i] = s[i];
}

extern "C" int dcu_gather(dcu_stream s, float *dst, size_t ldd, const float *src, size_t lds,
                          const uint32_t *index, uint32_t rows, uint32_t n)
{
    return dcu_move(s, dst, ldd, nullptr, src, lds, index, rows, n);
}

extern "C" int dcu_move(dcu_stream s, float *dst, size_t ldd, const uint32_t *to, const float *src,
                        size_t lds, const uint32_t *from, uint32_t rows, uint32_t n)
{
    if (rows == 0 || n == 0)
        return 0;
    return DCU_LAUNCH(dcu_move_kernel, dim3(rows, (n + PIECE - 1) / PIECE), THREADS, 0, s, dst, ldd,
                      to, src, lds, from, n);
}
