/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped-query attention of each row over its own path, in the CPU's order; and copies of K/V.
 *
 *   per row, head and chunk of 256 positions (aligned to position 0):
 *     s_p = (sum over d ascending of fma(q_d, K_pd)) * scale;  m = max;  e_p = exp(s_p - m)
 *     l = 16 lanes (p % 16) of sums, folded 8-4-2-1;  a_d = sum over p ascending of fma(e_p, V_pd)
 *   chunks merged in order; out = a / l
 * Twin: cpu/attention/c.c, same bits.
 *
 * Launch of the first kernel: (chunk, tile of rows, KV head) blocks of 256 threads.  A thread has one
 * position for the scores, and one dimension for the sums over V.  Queries of a block: the heads of the
 * group, of one row, or of as many rows as fit in 16 queries; where all of these rows see the same slot at
 * a position, K and V are loaded once for all.  Chunks beyond a row's path exit at once: a captured launch
 * covers a bound of the context.  Second kernel: a block for each (row, head).
 *
 * Qwen3-4B (32 / 8 heads of 128, BF16 cache), all 36 layers: 147 KB of K/V a position and sequence; one row
 * at 1,024 positions 151 MB: 31 us at 4.8 TB/s, 45 us at 3.35; at 8,192 0.25 and 0.36 ms.  FMAs: 0.30 M a
 * row and position: 32 rows at 1,024 positions 9.7 G, 0.29 ms at 33.5 TFMA/s; 16 queries share a load, so the
 * 32 rows read 8 times the bytes of one, out of L2.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 256u
#define CHUNK   DK_ATTN_CHUNK

template <int KV> DCU_FN float kv_at(const void *p, size_t i)
{
    if (KV == DK_KV_F32)
        return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return KV == DK_KV_BF16 ? dcu_bf16_to_f32(h) : dcu_f16_to_f32(h);
}

DCU_FN uint32_t slot_of(const dcu_row &r, const uint32_t *words, uint32_t p)
{
    if (p >= r.tail_start)
        return words[r.tail + p - r.tail_start];
    return words[r.blocks + p / DK_KV_BLOCK] * DK_KV_BLOCK + p % DK_KV_BLOCK;
}

/* First element of a slot of this head in K (step DK_KV_BLOCK) and in V (step 1). */
DCU_FN size_t k_at(const dk_kv &kv, uint32_t slot, uint32_t head)
{
    return ((size_t)(slot / DK_KV_BLOCK) * kv.n_kv_heads + head) * kv.head_dim * DK_KV_BLOCK +
           slot % DK_KV_BLOCK;
}
DCU_FN size_t v_at(const dk_kv &kv, uint32_t slot, uint32_t head)
{
    return ((size_t)(slot / DK_KV_BLOCK) * kv.n_kv_heads + head) * kv.head_dim * DK_KV_BLOCK +
           (size_t)(slot % DK_KV_BLOCK) * kv.head_dim;
}

/* How queries are divided: `heads` heads of one KV head's group at once, `rows` rows; NQ at most. */
struct tiling {
    uint32_t rows, heads, head_tiles;
};

/* Shared memory: slots [rows][CHUNK], queries [nq][hd], weights [nq][CHUNK], lanes [nq][16]. */
static size_t shared_bytes(const tiling &t, uint32_t hd)
{
    const size_t nq = t.rows * t.heads;
    return 4 * (t.rows * CHUNK + nq * hd + nq * CHUNK + nq * 16);
}

template <int KV, int NQ>
__global__ void __launch_bounds__(256, 2) dcu_attention_kernel(dcu_attn p, tiling t)
{
    [[maybe_unused]] constexpr int UNROLL =
        NQ > 4 ? 2 : 8; /* loads in flight, as far as registers go */
    DCU_DYN_SHARED(uint32_t, slots);
    const uint32_t hd = p.kv.head_dim, group = p.n_heads / p.kv.n_kv_heads;
    const uint32_t row0 = blockIdx.y * t.rows, p0 = blockIdx.x * CHUNK, tid = threadIdx.x;
    const uint32_t n_rows = dcu_min(p.n_rows - row0, t.rows);
    const uint32_t kv_head = blockIdx.z / t.head_tiles;
    const uint32_t h_in = blockIdx.z % t.head_tiles * t.heads; /* first head, in the group */
    const uint32_t n_heads = dcu_min(group - h_in, t.heads), head0 = kv_head * group + h_in;
    const uint32_t nq = n_rows * n_heads;
    float *qs = (float *)(slots + t.rows * CHUNK);
    float *es = qs + t.rows * t.heads * hd, *lanes = es + t.rows * t.heads * CHUNK;

    /* Positions of the chunk that each row sees; the longest of them. */
    uint32_t longest = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t n_vis = p.rows[row0 + r].n_vis;
        longest = n_vis > longest ? n_vis : longest;
    }
    if (longest <= p0)
        return;
    longest = dcu_min(longest - p0, CHUNK);
    bool same = true; /* all rows that see this position have it in one slot, and all see it */
    uint32_t slot0 = 0;
    if (tid < longest)
        for (uint32_t r = 0; r < n_rows; r++) {
            const dcu_row row = p.rows[row0 + r];
            const uint32_t s = p0 + tid < row.n_vis ? slot_of(row, p.words, p0 + tid) : UINT32_MAX;
            slots[r * CHUNK + tid] = s;
            slot0 = r ? slot0 : s;
            same = same && s == slot0;
        }
    for (uint32_t i = tid; i < nq * hd; i += THREADS) {
        const uint32_t q = i / hd, r = row0 + q / n_heads, h = head0 + q % n_heads;
        qs[i] = p.q[r * p.ldq + (size_t)h * hd + i % hd];
    }
    __syncthreads();

    /* Scores: this thread's position, all queries. */
    if (tid < longest && same) {
        float acc[NQ] = {0};
        const size_t k0 = k_at(p.kv, slot0, kv_head);
#pragma unroll UNROLL
        for (uint32_t d = 0; d < hd; d++) {
            const float k = kv_at<KV>(p.kv.k, k0 + (size_t)d * DK_KV_BLOCK);
#pragma unroll
            for (uint32_t i = 0; i < NQ; i++)
                if (i < nq)
                    acc[i] = __fmaf_rn(qs[i * hd + d], k, acc[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < NQ; i++)
            if (i < nq)
                es[i * CHUNK + tid] = acc[i] * p.scale;
    } else if (tid < longest) {
        for (uint32_t i = 0; i < nq; i++) {
            const uint32_t s = slots[i / n_heads * CHUNK + tid];
            if (s == UINT32_MAX)
                continue;
            const size_t k0 = k_at(p.kv, s, kv_head);
            float acc = 0;
            for (uint32_t d = 0; d < hd; d++)
                acc =
                    __fmaf_rn(qs[i * hd + d], kv_at<KV>(p.kv.k, k0 + (size_t)d * DK_KV_BLOCK), acc);
            es[i * CHUNK + tid] = acc * p.scale;
        }
    }
    __syncthreads();

    /* A warp for each query: maximum, exponentials, lanes of their sums. */
    for (uint32_t i = tid / 32; i < nq; i += THREADS / 32) {
        const uint32_t lane = tid % 32, r = row0 + i / n_heads, h = head0 + i % n_heads;
        const uint32_t n_vis = p.rows[r].n_vis, n = n_vis > p0 ? dcu_min(n_vis - p0, CHUNK) : 0;
        float *e = es + i * CHUNK, m = __uint_as_float(0xff800000u);
        for (uint32_t j = lane; j < n; j += 32)
            m = e[j] > m ? e[j] : m;
        for (int s = 16; s; s /= 2) {
            const float other = __shfl_xor_sync(DCU_FULL, m, s);
            m = other > m ? other : m;
        }
        for (uint32_t j = lane; j < n; j += 32)
            e[j] = dk_exp_def(e[j] - m);
        __syncwarp();
        if (lane < 16) {
            float sum = 0;
            for (uint32_t j = lane; j < n; j += 16)
                sum += e[j];
            lanes[i * 16 + lane] = sum;
        }
        __syncwarp();
        if (lane == 0 && n) {
            float *o =
                p.part + (((size_t)blockIdx.x * p.n_rows + r) * p.n_heads + h) * DK_ATTN_PART(hd);
            o[0] = m;
            o[1] = dcu_fold16(lanes + i * 16);
        }
    }
    /* Whether the whole chunk is shared; the barrier also ends the weights. */
    same = !__syncthreads_or(!same);

    /* Sums over V: threads take (dimension, every `sets`-th query). */
    const uint32_t width = hd < THREADS ? hd : THREADS, sets = THREADS / width;
    const uint32_t set = tid / width;
    if (set >= sets)
        return;
    float *out = p.part + (size_t)blockIdx.x * p.n_rows * p.n_heads * DK_ATTN_PART(hd) + 16;
    for (uint32_t d = tid % width; same && d < hd; d += width) {
        float acc[NQ] = {0};
#pragma unroll UNROLL
        for (uint32_t j = 0; j < longest; j++) {
            const float v = kv_at<KV>(p.kv.v, v_at(p.kv, slots[j], kv_head) + d);
#pragma unroll
            for (uint32_t i = 0; i < NQ; i++)
                if (i * sets + set < nq)
                    acc[i] = __fmaf_rn(es[(i * sets + set) * CHUNK + j], v, acc[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < NQ; i++) {
            const uint32_t q = i * sets + set, r = row0 + q / n_heads, h = head0 + q % n_heads;
            if (q < nq)
                out[((size_t)r * p.n_heads + h) * DK_ATTN_PART(hd) + d] = acc[i];
        }
    }
    /* Some row's path differs here, or ends: each row by itself. */
    for (uint32_t q = set; !same && q < nq; q += sets) {
        const uint32_t r = row0 + q / n_heads, h = head0 + q % n_heads, n_vis = p.rows[r].n_vis;
        const uint32_t n = n_vis > p0 ? dcu_min(n_vis - p0, CHUNK) : 0;
        const uint32_t *slot = slots + q / n_heads * CHUNK;
        for (uint32_t d = tid % width; n && d < hd; d += width) {
            float acc = 0;
            for (uint32_t j = 0; j < n; j++)
                acc = __fmaf_rn(es[q * CHUNK + j],
                                kv_at<KV>(p.kv.v, v_at(p.kv, slot[j], kv_head) + d), acc);
            out[((size_t)r * p.n_heads + h) * DK_ATTN_PART(hd) + d] = acc;
        }
    }
}

__global__ void __launch_bounds__(128) dcu_attention_merge_kernel(dcu_attn p)
{
    const uint32_t r = blockIdx.x, h = blockIdx.y, hd = p.kv.head_dim, n_vis = p.rows[r].n_vis;
    const size_t step = (size_t)p.n_rows * p.n_heads * DK_ATTN_PART(hd);
    const float *o = p.part + ((size_t)r * p.n_heads + h) * DK_ATTN_PART(hd);
    if (n_vis == 0)
        return;
    for (uint32_t d = threadIdx.x; d < hd; d += 128) {
        float m = o[0], l = o[1], a = o[16 + d];
        for (uint32_t c = 1; c * CHUNK < n_vis; c++) {
            const float *x = o + c * step;
            const float m1 = x[0], top = m1 > m ? m1 : m;
            const float c0 = dk_exp_def(m - top), c1 = dk_exp_def(m1 - top);
            l = __fmaf_rn(x[1], c1, l * c0);
            a = __fmaf_rn(x[16 + d], c1, a * c0);
            m = top;
        }
        p.out[r * p.ldo + (size_t)h * hd + d] = a / l;
    }
}

template <int KV, int NQ> static int launch(dcu_stream s, const dcu_attn &p)
{
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    tiling t;
    t.heads = group < NQ ? group : NQ;
    t.head_tiles = (group + t.heads - 1) / t.heads;
    t.rows = NQ / t.heads < p.n_rows ? NQ / t.heads : p.n_rows;
    const dim3 grid((p.max_vis + CHUNK - 1) / CHUNK, (p.n_rows + t.rows - 1) / t.rows,
                    p.kv.n_kv_heads * t.head_tiles);
    return DCU_LAUNCH((dcu_attention_kernel<KV, NQ>), grid, THREADS, shared_bytes(t, p.kv.head_dim),
                      s, p, t);
}

template <int KV> static int by_queries(dcu_stream s, const dcu_attn &p)
{
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    return (size_t)group * p.n_rows <= 4 ? launch<KV, 4>(s, p) : launch<KV, 16>(s, p);
}

extern "C" int dcu_attention(dcu_stream s, const struct dcu_attn *p)
{
    if (p->n_rows == 0 || p->max_vis == 0)
        return 0;
    if (p->kv.head_dim > DK_MAX_HEAD_DIM || p->n_heads % p->kv.n_kv_heads)
        return (int)cudaErrorInvalidValue;
    int r = p->kv.type == DK_KV_F32    ? by_queries<DK_KV_F32>(s, *p)
            : p->kv.type == DK_KV_BF16 ? by_queries<DK_KV_BF16>(s, *p)
                                       : by_queries<DK_KV_F16>(s, *p);
    if (r)
        return r;
    return DCU_LAUNCH(dcu_attention_merge_kernel, dim3(p->n_rows, p->n_heads), 128, 0, s, *p);
}

/* ---- copies ------------------------------------------------------------------------------------------ */

/* A block for each (layer, KV head); a thread keeps to its own elements and takes the pairs in order, so
 * that a slot may be read by one pair and written by a later one. */
template <class E>
__global__ void __launch_bounds__(128)
    dcu_kv_copy_kernel(const dk_kv *layers, const uint32_t *from, const uint32_t *to,
                       const uint32_t *n, uint32_t max_n)
{
    const dk_kv kv = layers[blockIdx.x];
    const uint32_t head = blockIdx.y, pairs = dcu_min(*n, max_n);
    E *k = (E *)kv.k, *v = (E *)kv.v;
    for (uint32_t d = threadIdx.x; d < kv.head_dim; d += 128)
        for (uint32_t i = 0; i < pairs; i++) {
            k[k_at(kv, to[i], head) + d * DK_KV_BLOCK] =
                k[k_at(kv, from[i], head) + d * DK_KV_BLOCK];
            v[v_at(kv, to[i], head) + d] = v[v_at(kv, from[i], head) + d];
        }
}

extern "C" int dcu_kv_copy(dcu_stream s, const struct dk_kv *layers, uint32_t n_layers,
                           uint32_t n_kv_heads, enum dk_kv_type type, const uint32_t *from,
                           const uint32_t *to, const uint32_t *n, uint32_t max_n)
{
    if (n_layers == 0 || max_n == 0)
        return 0;
    if (type == DK_KV_F32)
        return DCU_LAUNCH(dcu_kv_copy_kernel<uint32_t>, dim3(n_layers, n_kv_heads), 128, 0, s,
                          layers, from, to, n, max_n);
    return DCU_LAUNCH(dcu_kv_copy_kernel<uint16_t>, dim3(n_layers, n_kv_heads), 128, 0, s, layers,
                      from, to, n, max_n);
}
