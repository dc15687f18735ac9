/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, portable: the definition, one row and one head at a time. */
#include "kernels/cpu/internal.h"
#include "kernels/math.h"

static float kv_at(enum dk_kv_type t, const void *p, size_t i)
{
    switch (t) {
    case DK_KV_F32:
        return ((const float *)p)[i];
    case DK_KV_BF16:
        return dk_bf16_to_f32(((const uint16_t *)p)[i]);
    case DK_KV_F16:
        return dk_f16_to_f32(((const uint16_t *)p)[i]);
    case DK_KV_TYPE_COUNT:
        break;
    }
    return 0;
}

static uint32_t chunk_length(const struct dk_attn_row *row, uint32_t p0)
{
    uint32_t rest = row->n_vis - p0;
    return rest < DK_ATTN_CHUNK ? rest : DK_ATTN_CHUNK;
}

/* Scores of positions [p0, p0 + n). */
static void score(const struct dk_kv *kv, const struct dk_attn_row *row, uint32_t p0, uint32_t n,
                  size_t kv_head, const float *q, float scale, float *s)
{
    size_t hd = kv->head_dim, head = hd * DK_KV_BLOCK, stride = head * kv->n_kv_heads;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = dk_attn_slot(row, p0 + i);
        size_t k0 = slot / DK_KV_BLOCK * stride + kv_head * head + slot % DK_KV_BLOCK;
        float acc = 0;
        for (size_t d = 0; d < hd; d++)
            acc = dk_fmaf(q[d], kv_at(kv->type, kv->k, k0 + d * DK_KV_BLOCK), acc);
        s[i] = acc * scale;
    }
}

/* The chunk at p0 with scores s: its maximum, sum of exponentials and weighted sum of V. */
static void weigh(const struct dk_kv *kv, const struct dk_attn_row *row, uint32_t p0,
                  size_t kv_head, const float *s, float *ret_m, float *ret_l, float *a)
{
    size_t hd = kv->head_dim, head = hd * DK_KV_BLOCK, stride = head * kv->n_kv_heads;
    uint32_t n = chunk_length(row, p0);
    float m = -__builtin_inff(), lane[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        m = s[i] > m ? s[i] : m;
    for (size_t d = 0; d < hd; d++)
        a[d] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = dk_attn_slot(row, p0 + i);
        size_t v0 = slot / DK_KV_BLOCK * stride + kv_head * head + slot % DK_KV_BLOCK * hd;
        float e = dk_exp_def(s[i] - m);
        lane[i % 16] += e;
        for (size_t d = 0; d < hd; d++)
            a[d] = dk_fmaf(e, kv_at(kv->type, kv->v, v0 + d), a[d]);
    }
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    *ret_m = m;
    *ret_l = lane[0];
}

static void chunk(const struct dk_kv *kv, const struct dk_attn_row *row, uint32_t p0,
                  size_t kv_head, const float *q, float scale, float *s, float *ret_m, float *ret_l,
                  float *a)
{
    score(kv, row, p0, chunk_length(row, p0), kv_head, q, scale, s);
    weigh(kv, row, p0, kv_head, s, ret_m, ret_l, a);
}

void dk_attn_merge(struct dk_attn_sum *s, float m1, float l1, const float *a1, size_t hd,
                   bool first)
{
    if (first) {
        s->m = m1;
        s->l = l1;
        for (size_t d = 0; d < hd; d++)
            s->a[d] = a1[d];
        return;
    }
    float m = m1 > s->m ? m1 : s->m, c0 = dk_exp_def(s->m - m), c1 = dk_exp_def(m1 - m);
    s->l = dk_fmaf(l1, c1, s->l * c0);
    for (size_t d = 0; d < hd; d++)
        s->a[d] = dk_fmaf(a1[d], c1, s->a[d] * c0);
    s->m = m;
}

void dk_cpu_attention_c(const struct dk_kv *kv, const struct dk_attn_row *rows, uint32_t n_rows,
                        const float *q, size_t ldq, float *out, size_t ldo, uint32_t n_heads,
                        uint32_t head0, uint32_t head1, float scale, void *scratch)
{
    size_t hd = kv->head_dim, group = n_heads / kv->n_kv_heads;
    float *s = scratch, *a = s + DK_ATTN_CHUNK;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = head0; h < head1; h++) {
            struct dk_attn_sum st = {.a = out + r * ldo + h * hd};
            for (uint32_t p = 0; p < rows[r].n_vis; p += DK_ATTN_CHUNK) {
                float m, l;
                chunk(kv, &rows[r], p, h / group, q + r * ldq + h * hd, scale, s, &m, &l, a);
                dk_attn_merge(&st, m, l, a, hd, p == 0);
            }
            for (size_t d = 0; d < hd; d++)
                st.a[d] /= st.l;
        }
}

void dk_cpu_attention_part_c(const struct dk_kv *kv, const struct dk_attn_row *rows,
                             uint32_t n_rows, const float *q, size_t ldq, float *part,
                             uint32_t n_heads, uint32_t head0, uint32_t head1, uint32_t chunk0,
                             uint32_t chunk1, float scale, void *scratch)
{
    size_t hd = kv->head_dim, group = n_heads / kv->n_kv_heads;
    for (uint32_t c = chunk0; c < chunk1; c++)
        for (uint32_t r = 0; r < n_rows; r++)
            for (uint32_t h = head0; h < head1 && c * DK_ATTN_CHUNK < rows[r].n_vis; h++) {
                float *o = part + (((size_t)c * n_rows + r) * n_heads + h) * DK_ATTN_PART(hd);
                chunk(kv, &rows[r], c * DK_ATTN_CHUNK, h / group, q + r * ldq + h * hd, scale,
                      scratch, &o[0], &o[1], o + 16);
            }
}

void dk_cpu_attention_merge_c(const struct dk_attn_row *rows, uint32_t n_rows, const float *part,
                              float *out, size_t ldo, uint32_t n_heads, uint32_t head_dim,
                              uint32_t head0, uint32_t head1)
{
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = head0; h < head1; h++) {
            struct dk_attn_sum st = {.a = out + r * ldo + (size_t)h * head_dim};
            for (uint32_t c = 0; c * DK_ATTN_CHUNK < rows[r].n_vis; c++) {
                const float *o =
                    part + (((size_t)c * n_rows + r) * n_heads + h) * DK_ATTN_PART(head_dim);
                dk_attn_merge(&st, o[0], o[1], o + 16, head_dim, c == 0);
            }
            for (size_t d = 0; d < head_dim; d++)
                st.a[d] /= st.l;
        }
}

void dk_cpu_attention_scores_c(const struct dk_kv *kv, const struct dk_attn_row *row,
                               const float *q, float *s, size_t lds, uint32_t n_heads,
                               uint32_t kv_head, uint32_t block0, uint32_t block1, float scale,
                               void *scratch)
{
    const uint32_t group = n_heads / kv->n_kv_heads;
    (void)scratch;
    for (size_t h = (size_t)kv_head * group; h < (size_t)(kv_head + 1) * group; h++)
        score(kv, row, block0 * DK_KV_BLOCK, (block1 - block0) * DK_KV_BLOCK, kv_head,
              q + h * kv->head_dim, scale, s + h * lds + (size_t)block0 * DK_KV_BLOCK);
}

void dk_cpu_attention_values_c(const struct dk_kv *kv, const struct dk_attn_row *row,
                               const float *s, size_t lds, float *out, uint32_t n_heads,
                               uint32_t kv_head, uint32_t dim0, uint32_t dim1, void *scratch)
{
    const size_t group = n_heads / kv->n_kv_heads, hd = kv->head_dim;
    float *a = scratch, *sum = a + DK_MAX_HEAD_DIM;
    for (size_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        struct dk_attn_sum st = {.a = sum};
        for (uint32_t p = 0; p < row->n_vis; p += DK_ATTN_CHUNK) {
            float m, l;
            weigh(kv, row, p, kv_head, s + h * lds + p, &m, &l, a);
            dk_attn_merge(&st, m, l, a, hd, p == 0);
        }
        for (size_t d = dim0; d < dim1; d++)
            out[h * hd + d] = sum[d] / st.l;
    }
}
