/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the products q, k, v of a layer to attention's inputs: bias, norm of each head, rotation, and
 * K/V rounded into their slots.
 *
 *   (a, b) -> (a cos - b sin, a sin + b cos), each as fma(-b, sin, a * cos), fma(b, cos, a * sin)
 *   cos, sin of (float)pos * inv_freq[i], dk_sincosf in double
 *
 * Launch: a block of 128 threads for each (row, head of q, k or v); 64 for the angles of a row.
 * Twins: cpu/rope, cpu/rmsnorm, cpu/kv_store, dk_sincosf: same bits.
 *
 * Qwen3-4B (32 + 8 + 8 heads of 128), BF16 cache: a row reads 24 KB, writes 24 KB of q, k and v: 1.6 MB for
 * 32 rows: 0.33 us at 4.8 TB/s, 0.47 us at 3.35; the latency of a launch and of 8 dependent FMAs is more.
 * Angles: 64 times two polynomials in double a row; a step needs them once.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 128u

__global__ void __launch_bounds__(64)
    dcu_angles_kernel(const float *inv_freq, uint32_t half, const dcu_row *rows, float *cs)
{
    float *c = cs + (size_t)blockIdx.x * 2 * half;
    const float pos = (float)rows[blockIdx.x].pos;
    for (uint32_t i = threadIdx.x; i < half; i += 64)
        dk_sincos_def(pos * inv_freq[i], &c[half + i], &c[i]);
}

extern "C" int dcu_angles(dcu_stream s, const float *inv_freq, uint32_t head_dim,
                          const struct dcu_row *rows, uint32_t n_rows, float *cs)
{
    if (n_rows == 0)
        return 0;
    return DCU_LAUNCH(dcu_angles_kernel, n_rows, 64, 0, s, inv_freq, head_dim / 2, rows, cs);
}

/* Rotates v[hd], shared or global; pairs are the threads' own. */
DCU_FN void rotate(float *v, uint32_t hd, const float *cs, dk_rope_pairing pairing)
{
    const uint32_t half = hd / 2, step = pairing == DK_ROPE_HALVES ? 1 : 2;
    const uint32_t apart = pairing == DK_ROPE_HALVES ? half : 1;
    for (uint32_t i = threadIdx.x; i < half; i += THREADS) {
        float a = v[i * step], b = v[i * step + apart], c = cs[i], s = cs[half + i];
        v[i * step] = __fmaf_rn(-b, s, a * c);
        v[i * step + apart] = __fmaf_rn(b, c, a * s);
    }
}

__global__ void __launch_bounds__(128)
    dcu_rope_kernel(float *x, size_t ldx, uint32_t hd, const float *cs, dk_rope_pairing pairing)
{
    rotate(x + blockIdx.x * ldx + blockIdx.y * hd, hd, cs + (size_t)blockIdx.x * hd, pairing);
}

extern "C" int dcu_rope(dcu_stream s, float *x, size_t ldx, uint32_t rows, uint32_t n_heads,
                        uint32_t head_dim, const float *cs, enum dk_rope_pairing pairing)
{
    if (rows == 0 || n_heads == 0)
        return 0;
    return DCU_LAUNCH(dcu_rope_kernel, dim3(rows, n_heads), THREADS, 0, s, x, ldx, head_dim, cs,
                      pairing);
}

DCU_FN void put(dk_kv_type t, void *dst, size_t i, float x)
{
    if (t == DK_KV_F32)
        ((float *)dst)[i] = x;
    else
        ((uint16_t *)dst)[i] = t == DK_KV_BF16 ? dcu_f32_to_bf16(x) : dcu_f32_to_f16(x);
}

/* One head of K ([head_dim][16 positions] in its block) or V ([16 positions][head_dim]). */
DCU_FN void store_head(const dk_kv &kv, uint32_t slot, uint32_t head, bool is_k, const float *v)
{
    const uint32_t hd = kv.head_dim, at = slot % DK_KV_BLOCK;
    const size_t base = ((size_t)(slot / DK_KV_BLOCK) * kv.n_kv_heads + head) * hd * DK_KV_BLOCK;
    for (uint32_t d = threadIdx.x; d < hd; d += THREADS)
        put(kv.type, is_k ? kv.k : kv.v, base + (is_k ? d * DK_KV_BLOCK + at : at * hd + d), v[d]);
}

/* blockIdx.y: heads of q, of k, of v. */
__global__ void __launch_bounds__(128) dcu_qkv_kernel(dcu_qkv p, uint32_t q_heads)
{
    DCU_SHARED(float, v, DK_MAX_HEAD_DIM);
    DCU_SHARED(float, stage, DCU_SQUARES_CHUNK);
    DCU_SHARED(float, lane, 16);
    const uint32_t row = blockIdx.x, hd = p.kv.head_dim, heads = p.kv.n_kv_heads;
    const bool is_q = blockIdx.y < q_heads, is_k = !is_q && blockIdx.y < q_heads + heads;
    const uint32_t h = blockIdx.y - (is_q ? 0 : is_k ? q_heads : q_heads + heads);
    float *x = (is_q ? p.q + row * p.ldq : is_k ? p.k + row * p.ldk : p.v + row * p.ldv) + h * hd;
    const float *bias = is_q ? p.q_bias : is_k ? p.k_bias : p.v_bias;
    const float *norm = is_q ? p.q_norm : is_k ? p.k_norm : nullptr;
    for (uint32_t d = threadIdx.x; d < hd; d += THREADS)
        v[d] = bias ? x[d] + bias[h * hd + d] : x[d];
    __syncthreads();
    if (norm) {
        float ss = dcu_sum_squares(stage, lane, hd, [=](uint32_t i) { return v[i]; });
        float r = 1.0f / sqrtf(ss / (float)hd + p.eps);
        for (uint32_t d = threadIdx.x; d < hd; d += THREADS)
            v[d] = v[d] * r * norm[d];
        __syncthreads();
    }
    if (is_q || is_k)
        rotate(v, hd, p.cs + (size_t)row * hd, p.pairing);
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < hd; d += THREADS)
        x[d] = v[d];
    if (!is_q)
        store_head(p.kv, p.rows[row].slot, h, is_k, v);
}

extern "C" int dcu_qkv_finish(dcu_stream s, const struct dcu_qkv *p)
{
    const uint32_t q_heads = p->q ? p->n_heads : 0;
    if (p->n_rows == 0)
        return 0;
    if (p->kv.head_dim > DK_MAX_HEAD_DIM)
        return (int)cudaErrorInvalidValue;
    return DCU_LAUNCH(dcu_qkv_kernel, dim3(p->n_rows, q_heads + 2 * p->kv.n_kv_heads), THREADS, 0,
                      s, *p, q_heads);
}

__global__ void __launch_bounds__(128)
    dcu_kv_store_kernel(dk_kv kv, const dcu_row *rows, const float *k, size_t ldk, const float *v,
                        size_t ldv)
{
    const uint32_t row = blockIdx.x, head = blockIdx.y, slot = rows[row].slot;
    store_head(kv, slot, head, true, k + row * ldk + head * kv.head_dim);
    store_head(kv, slot, head, false, v + row * ldv + head * kv.head_dim);
}

extern "C" int dcu_kv_store(dcu_stream s, const struct dk_kv *kv, const struct dcu_row *rows,
                            uint32_t n_rows, const float *k, size_t ldk, const float *v, size_t ldv)
{
    if (n_rows == 0)
        return 0;
    return DCU_LAUNCH(dcu_kv_store_kernel, dim3(n_rows, kv->n_kv_heads), THREADS, 0, s, *kv, rows,
                      k, ldk, v, ldv);
}
