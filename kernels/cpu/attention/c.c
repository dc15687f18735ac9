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

static uint32_t slot_of(const struct dk_attn_row *r, uint32_t p)
{
    if (p >= r->tail_start)
        return r->tail[p - r->tail_start];
    return r->blocks[p / DK_KV_BLOCK] * DK_KV_BLOCK + p % DK_KV_BLOCK;
}

/* One chunk: its maximum, sum of exponentials and weighted sum of V. */
static void chunk(const struct dk_kv *kv, const struct dk_attn_row *row, uint32_t p0, uint32_t n,
                  size_t kv_head, const float *q, float scale, float *s, float *ret_m, float *ret_l,
                  float *a)
{
    size_t hd = kv->head_dim, head = hd * DK_KV_BLOCK, stride = head * kv->n_kv_heads;
    float m = -__builtin_inff(), lane[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = slot_of(row, p0 + i);
        size_t k0 = slot / DK_KV_BLOCK * stride + kv_head * head + slot % DK_KV_BLOCK;
        float acc = 0;
        for (size_t d = 0; d < hd; d++)
            acc = dk_fmaf(q[d], kv_at(kv->type, kv->k, k0 + d * DK_KV_BLOCK), acc);
        s[i] = acc * scale;
        m = s[i] > m ? s[i] : m;
    }
    for (size_t d = 0; d < hd; d++)
        a[d] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = slot_of(row, p0 + i);
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

void dk_cpu_attention_c(const struct dk_kv *kv, const struct dk_attn_row *rows, uint32_t n_rows,
                        const float *q, size_t ldq, float *out, size_t ldo, uint32_t n_heads,
                        uint32_t head0, uint32_t head1, float scale, void *scratch)
{
    size_t hd = kv->head_dim, group = n_heads / kv->n_kv_heads;
    float *s = scratch, *a = s + DK_ATTN_CHUNK;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = head0; h < head1; h++) {
            float *o = out + r * ldo + h * hd, m = 0, l = 0;
            for (uint32_t p = 0; p < rows[r].n_vis; p += DK_ATTN_CHUNK) {
                uint32_t rest = rows[r].n_vis - p, n = rest < DK_ATTN_CHUNK ? rest : DK_ATTN_CHUNK;
                float m1, l1;
                chunk(kv, &rows[r], p, n, h / group, q + r * ldq + h * hd, scale, s, &m1, &l1,
                      p ? a : o);
                if (p == 0) {
                    m = m1;
                    l = l1;
                    continue;
                }
                float mm = m1 > m ? m1 : m, c0 = dk_exp_def(m - mm), c1 = dk_exp_def(m1 - mm);
                l = dk_fmaf(l1, c1, l * c0);
                for (size_t d = 0; d < hd; d++)
                    o[d] = dk_fmaf(a[d], c1, o[d] * c0);
                m = mm;
            }
            for (size_t d = 0; d < hd; d++)
                o[d] /= l;
        }
}
