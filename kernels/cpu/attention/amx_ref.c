/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of the AMX BF16 class, portable: the definition, one row and one head at a time. */
#include "kernels/cpu/amx_ref.h"
#include "kernels/cpu/internal.h"
#include "kernels/math.h"

struct head {
    const struct dk_kv *kv;
    const struct dk_attn_row *row;
    size_t kv_head;
    uint16_t q[DK_MAX_HEAD_DIM];
    float scale;
};

static uint16_t kv_at(const struct dk_kv *kv, const void *p, size_t i)
{
    if (kv->type == DK_KV_F32)
        return dk_f32_to_bf16(((const float *)p)[i]);
    uint16_t h = ((const uint16_t *)p)[i];
    return kv->type == DK_KV_BF16 ? h : dk_f32_to_bf16(dk_f16_to_f32(h));
}

/* The element of position p and dimension d. */
static size_t place(const struct head *h, uint32_t p, uint32_t d, bool k)
{
    const size_t slot = dk_attn_slot(h->row, p), in = slot % DK_KV_BLOCK;
    return (slot / DK_KV_BLOCK * h->kv->n_kv_heads + h->kv_head) * h->kv->head_dim * DK_KV_BLOCK +
           (k ? dk_kv_k_at(h->kv, in, d) : dk_kv_v_at(h->kv, in, d));
}

static float score(const struct head *h, uint32_t p)
{
    const uint32_t hd = h->kv->head_dim;
    float acc = 0;
    for (uint32_t d = 0; d < hd; d += 32) {
        uint16_t x[32] = {0}, k[32] = {0};
        for (uint32_t i = 0; i < 32 && d + i < hd; i++) {
            x[i] = h->q[d + i];
            k[i] = kv_at(h->kv, h->kv->k, place(h, p, d + i, true));
        }
        acc = dk_tdp_element(acc, x, k, 2);
    }
    return acc * h->scale;
}

static void chunk(const struct head *h, uint32_t p0, float *ret_m, float *ret_l, float *a)
{
    const uint32_t hd = h->kv->head_dim, rest = h->row->n_vis - p0,
                   n = rest < DK_ATTN_CHUNK ? rest : DK_ATTN_CHUNK;
    float s[DK_ATTN_CHUNK], lane[16] = {0}, m = -__builtin_inff();
    uint16_t e[DK_ATTN_CHUNK] = {0};
    for (uint32_t i = 0; i < n; i++) {
        s[i] = score(h, p0 + i);
        m = s[i] > m ? s[i] : m;
    }
    for (uint32_t i = 0; i < n; i++) {
        float x = dk_exp_def(s[i] - m);
        lane[i % 16] += x;
        e[i] = dk_f32_to_bf16(x);
    }
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    for (uint32_t d = 0; d < hd; d++) {
        float acc = 0;
        for (uint32_t g = 0; g < n; g += DK_KV_BLOCK) {
            uint16_t v[DK_KV_BLOCK] = {0};
            for (uint32_t i = 0; i < DK_KV_BLOCK && g + i < n; i++)
                v[i] = kv_at(h->kv, h->kv->v, place(h, p0 + g + i, d, false));
            acc = dk_tdp_inputs(acc, e + g, v, 2, DK_KV_BLOCK);
        }
        a[d] = acc + 0.0f; /* -0 of a sum that was flushed: as if zeros followed */
    }
    *ret_m = m;
    *ret_l = lane[0];
}

static void take_head(struct head *h, const float *q, uint32_t group, uint32_t n)
{
    h->kv_head = n / group;
    for (uint32_t d = 0; d < h->kv->head_dim; d++)
        h->q[d] = dk_f32_to_bf16(q[(size_t)n * h->kv->head_dim + d]);
}

DK_DECLARE_ATTENTION_PART(dk_cpu_attention_part_bf16_amx_ref)
{
    const uint32_t hd = kv->head_dim, group = n_heads / kv->n_kv_heads;
    struct head h = {.kv = kv, .scale = scale};
    (void)scratch;
    for (uint32_t r = 0; r < n_rows; r++) {
        h.row = &rows[r];
        for (uint32_t i = head0; i < head1; i++) {
            take_head(&h, q + r * ldq, group, i);
            for (uint32_t c = chunk0; c < chunk1 && c * DK_ATTN_CHUNK < h.row->n_vis; c++) {
                float *o = part + (((size_t)c * n_rows + r) * n_heads + i) * DK_ATTN_PART(hd);
                chunk(&h, c * DK_ATTN_CHUNK, &o[0], &o[1], o + 16);
            }
        }
    }
}

/* In parts, one chunk at a time: chunks of a row and a head are merged as they come. */
DK_DECLARE_ATTENTION(dk_cpu_attention_bf16_amx_ref)
{
    const uint32_t hd = kv->head_dim, group = n_heads / kv->n_kv_heads;
    struct head h = {.kv = kv, .scale = scale};
    (void)scratch;
    for (uint32_t r = 0; r < n_rows; r++) {
        h.row = &rows[r];
        for (uint32_t i = head0; i < head1; i++) {
            struct dk_attn_sum sum = {.a = out + r * ldo + (size_t)i * hd};
            float m, l, a[DK_MAX_HEAD_DIM];
            take_head(&h, q + r * ldq, group, i);
            for (uint32_t p = 0; p < h.row->n_vis; p += DK_ATTN_CHUNK) {
                chunk(&h, p, &m, &l, a);
                dk_attn_merge(&sum, m, l, a, hd, p == 0);
            }
            for (uint32_t d = 0; d < hd; d++)
                sum.a[d] /= sum.l;
        }
    }
}
