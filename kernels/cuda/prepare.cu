/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of rows on their way to a product: taken as they are, normalised (RMSNorm) or gated (SiLU),
 * and written as floats and in the forms that products read.
 *
 *   v = x | (x * r) * w, r = 1 / sqrt(ss / k + eps) | (x / (1 + exp(-x))) * u
 *
 * Launch: a block of 256 threads for each row (and piece of 2,048 inputs, where nothing needs the whole
 * row); a warp for each 32 inputs, which are one block of the INT form.  ss is the one serial part: k / 16
 * FMAs a lane, 16 lanes.
 * Twins: cpu/rmsnorm, cpu/elementwise, cpu/act-quant: same bits.
 *
 * Qwen3-4B, one row: RMSNorm of 2,560 with INT or BF16 reads 20 KB and writes 6-10 KB: a launch's latency
 * (2-3 us) and 160 dependent FMAs (0.4 us) are its time at 4.8 and at 3.35 TB/s alike.  64 rows of
 * SiLU(9,728): 5.0 MB in, 1.7 MB (INT) out: 1.4 us, 2.0 us.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 256u
#define PIECE   2048u

/* One block of 32 inputs, a warp's: kernels/cpu/act-quant/c.c. */
DCU_FN void write_int(unsigned char *area, uint32_t row, uint32_t block, uint32_t blocks, float v)
{
    const uint32_t lane = threadIdx.x & 31u, r = row % DCU_QROWS;
    unsigned char *rec = area + ((size_t)(row / DCU_QROWS) * blocks + block) * DCU_QRECORD;
    uint32_t top = dcu_warp_max(__float_as_uint(v) & 0x7fffffffu);
    float d = 0, amax = __uint_as_float(top);
    int q = 0;
    const bool bad = top >= 0x7f800000u;
    if (!bad && amax >= 0x1p-96f) {
        float id = 522231.0f / amax, shifted = v * id + 12582912.0f;
        q = (int)(shifted - 12582912.0f);
        d = amax / 522231.0f;
    }
    int w = (q + 8) >> 4, low = q - 16 * w, mid = (int)(signed char)(w & 255), hi = (w - mid) >> 8;
    int part = dcu_half_warp_sum(q), other = __shfl_xor_sync(DCU_FULL, part, 16);
    const uint32_t word = lane / 4, place = word < 4 ? 2 * word : 2 * word - 7;
    unsigned char *p = rec + r * 32 + place * 4 + lane % 4;
    p[0] = (unsigned char)hi;
    p[256] = (unsigned char)mid;
    p[512] = (unsigned char)low;
    if (lane == 0) {
        float *scale = (float *)(rec + 768);
        int *nsum = (int *)(rec + 832);
        const float nan = __uint_as_float(0x7fc00000u);
        scale[r] = bad ? nan : d;
        scale[8 + r] = bad ? nan : d * (float)(part + other);
        nsum[r] = -part;
        nsum[8 + r] = -other;
    }
}

/* hi and lo of one input as B fragments. */
DCU_FN void write_pair(unsigned char *area, uint32_t row, uint32_t i, uint32_t ktiles, uint16_t hi,
                       uint16_t lo)
{
    const uint32_t kk = i % 16, t = kk % 8 / 2, reg = kk / 8, col = 2 * (row % 4);
    uint16_t *p = (uint16_t *)(area + ((size_t)(row / 4) * ktiles + i / 16) * DCU_MMA_TILE);
    p += ((col * 4 + t) * 2 + reg) * 2 + kk % 2;
    p[0] = hi;
    p[16] = lo;
}

/* 2^e such that amax * 2^e lies in [2^14, 2^15), as far as both 2^e and 2^-e are normal numbers. */
DCU_FN int f16_exponent(uint32_t top)
{
    int e = 14 + 127 - (int)(top >> 23);
    if (top == 0 || top >= 0x7f800000u)
        return 0;
    return e > 126 ? 126 : e;
}

DCU_FN float power_of_two(int e)
{
    return __uint_as_float((uint32_t)(e + 127) << 23);
}

/* 2^e of the ROW_F16 form.  Not so large that a sum which is scaled by it could overflow. */
DCU_FN int row_f16_exponent(uint32_t top)
{
    const int e = f16_exponent(top);
    return e > 15 ? 15 : e;
}

struct values {
    const float *x, *u, *w;
    float r;
    uint32_t k;
};

template <int SRC> DCU_FN float value(const values &s, uint32_t i)
{
    if (i >= s.k)
        return 0;
    float x = s.x[i];
    if (SRC == DCU_SRC_RMSNORM)
        return x * s.r * s.w[i];
    if (SRC == DCU_SRC_SILU_MUL)
        return x / (1.0f + dk_exp_def(-x)) * s.u[i];
    return x;
}

template <int SRC>
__global__ void __launch_bounds__(256) dcu_prepare_kernel(dcu_prep p, uint32_t pieces)
{
    DCU_SHARED(float, stage, DCU_SQUARES_CHUNK);
    DCU_SHARED(float, lane, 16);
    DCU_SHARED(uint32_t, tops, THREADS / 32);
    const uint32_t row = blockIdx.x, warp = threadIdx.x / 32;
    unsigned char *mem = (unsigned char *)p.act.mem;
    const bool there = row < p.rows;
    const uint32_t from = there && p.index ? p.index[row] : row;
    float *xr = p.x + (size_t)from * p.ldx;
    values s = {xr, p.u + (size_t)from * p.ldu, p.w, 0, there ? p.k : 0};

    if (p.add && there) {
        const float *a = p.add + (size_t)row * p.ldadd;
        for (uint32_t i = threadIdx.x; i < p.k; i += THREADS)
            xr[i] += a[i];
    }
    /* No block of the products to come has arrived (matmul_wide.cu). */
    if (row == 0 && blockIdx.y == 0 && dcu_split_bytes(p.act.forms, p.act.max_k) &&
        p.forms & (DCU_FORM_BF16 | DCU_FORM_F16)) {
        uint32_t *arrived = (uint32_t *)(mem + dcu_form_at(&p.act, DCU_FORM_END));
        if (threadIdx.x < DCU_SPLIT_PLACES)
            arrived[threadIdx.x] = 0;
    }
    __syncthreads();
    if (SRC == DCU_SRC_RMSNORM && there) {
        float ss = dcu_sum_squares(stage, lane, p.k, [=](uint32_t i) { return xr[i]; });
        s.r = 1.0f / sqrtf(ss / (float)p.k + p.eps);
    }
    int e = 0, row_e = 0;
    /* The padding of the MMA forms ends sooner than that of INT. */
    const unsigned forms = row < dcu_up(p.rows, DCU_MMA_ROWS) ? p.forms : p.forms & DCU_FORM_INT;
    /* The forms in rows have none. */
    const unsigned row_forms = there ? p.forms & (DCU_FORM_ROW_BF16 | DCU_FORM_ROW_F16) : 0;
    if ((forms & DCU_FORM_F16) || (row_forms & DCU_FORM_ROW_F16)) {
        uint32_t top = 0;
        for (uint32_t i = threadIdx.x; i < s.k; i += THREADS) {
            uint32_t b = __float_as_uint(value<SRC>(s, i)) & 0x7fffffffu;
            top = b > top ? b : top;
        }
        top = dcu_warp_max(top);
        if (threadIdx.x % 32 == 0)
            tops[warp] = top;
        __syncthreads();
        for (uint32_t i = 0; i < THREADS / 32; i++)
            top = tops[i] > top ? tops[i] : top;
        e = f16_exponent(top);
        row_e = row_f16_exponent(top);
        if (threadIdx.x == 0 && (row_forms & DCU_FORM_ROW_F16))
            ((float *)(mem + dcu_row_f16_scales_at(&p.act)))[row] = power_of_two(-row_e);
        if (threadIdx.x == 0 && (forms & DCU_FORM_F16))
            ((float *)(mem + dcu_f16_scales_at(&p.act)))[row] = power_of_two(-e);
    }
    const float up = power_of_two(e), row_up = power_of_two(row_e);
    const size_t at_int = dcu_form_at(&p.act, DCU_FORM_INT);
    const size_t at_bf16 = dcu_form_at(&p.act, DCU_FORM_BF16);
    const size_t at_f16 = dcu_form_at(&p.act, DCU_FORM_F16);
    const uint32_t blocks = (p.k + 31) / 32, ktiles = (p.k + 15) / 16;
    float *y = p.y && there ? p.y + (size_t)row * p.ldy : nullptr;
    float *f32 =
        p.forms & DCU_FORM_F32 && there
            ? (float *)(mem + dcu_form_at(&p.act, DCU_FORM_F32)) + (size_t)row * ktiles * 16
            : nullptr;
    uint16_t *row_bf16 =
        (uint16_t *)(mem + dcu_form_at(&p.act, DCU_FORM_ROW_BF16)) + (size_t)row * ktiles * 16;
    uint16_t *row_f16 =
        (uint16_t *)(mem + dcu_form_at(&p.act, DCU_FORM_ROW_F16)) + (size_t)row * ktiles * 16;
    for (uint32_t b = blockIdx.y * (THREADS / 32) + warp; b < blocks;
         b += pieces * (THREADS / 32)) {
        uint32_t i = b * 32 + threadIdx.x % 32;
        float v = value<SRC>(s, i);
        if (y && i < p.k)
            y[i] = v;
        if (f32 && i < ktiles * 16)
            f32[i] = v;
        if (forms & DCU_FORM_INT)
            write_int(mem + at_int, row, b, blocks, v);
        if (i >= ktiles * 16)
            continue;
        if (forms & DCU_FORM_BF16) {
            uint16_t hi = dcu_f32_to_bf16(v);
            write_pair(mem + at_bf16, row, i, ktiles, hi, dcu_f32_to_bf16(v - dcu_bf16_to_f32(hi)));
        }
        if (forms & DCU_FORM_F16) {
            float z = v * up;
            uint16_t hi = dcu_f32_to_f16(z);
            write_pair(mem + at_f16, row, i, ktiles, hi, dcu_f32_to_f16(z - dcu_f16_to_f32(hi)));
        }
        if (row_forms & DCU_FORM_ROW_BF16)
            row_bf16[i] = dcu_f32_to_bf16(v);
        if (row_forms & DCU_FORM_ROW_F16)
            row_f16[i] = dcu_f32_to_f16(v * row_up);
    }
}

extern "C" int dcu_prepare(dcu_stream s, const struct dcu_prep *p)
{
    uint32_t rows = p->rows, pieces = (p->k + PIECE - 1) / PIECE;
    if (rows == 0 || p->k == 0)
        return 0;
    if (p->forms & DCU_FORM_INT)
        rows = (uint32_t)dcu_up(rows, DCU_QROWS);
    else if (p->forms & (DCU_FORM_BF16 | DCU_FORM_F16))
        rows = (uint32_t)dcu_up(rows, DCU_MMA_ROWS);
    if (p->src == DCU_SRC_RMSNORM || p->add || p->forms & (DCU_FORM_F16 | DCU_FORM_ROW_F16))
        pieces = 1;
    const dim3 grid(rows, pieces), block(THREADS);
    switch (p->src) {
    case DCU_SRC_PLAIN:
        return DCU_LAUNCH(dcu_prepare_kernel<DCU_SRC_PLAIN>, grid, block, 0, s, *p, pieces);
    case DCU_SRC_RMSNORM:
        return DCU_LAUNCH(dcu_prepare_kernel<DCU_SRC_RMSNORM>, grid, block, 0, s, *p, pieces);
    case DCU_SRC_SILU_MUL:
        return DCU_LAUNCH(dcu_prepare_kernel<DCU_SRC_SILU_MUL>, grid, block, 0, s, *p, pieces);
    }
    return (int)cudaErrorInvalidValue;
}
