/* SPDX-License-Identifier: Apache-2.0 */
/* One position's K and V into their blocks, portable: the definition. */
#include "kernels/cpu/internal.h"

static void put(enum dk_kv_type t, void *dst, size_t i, float x)
{
    switch (t) {
    case DK_KV_F32:
        ((float *)dst)[i] = x;
        return;
    case DK_KV_BF16:
        ((uint16_t *)dst)[i] = dk_f32_to_bf16(x);
        return;
    case DK_KV_F16:
        ((uint16_t *)dst)[i] = dk_f32_to_f16(x);
        return;
    case DK_KV_TYPE_COUNT:
        return;
    }
}

void dk_cpu_kv_store_c(const struct dk_kv *kv, uint32_t slot, uint32_t head0, uint32_t head1,
                       const float *k_row, const float *v_row)
{
    size_t block = slot / DK_KV_BLOCK, at = slot % DK_KV_BLOCK, hd = kv->head_dim;
    for (size_t h = head0; h < head1; h++) {
        size_t base = (block * kv->n_kv_heads + h) * hd * DK_KV_BLOCK;
        for (size_t d = 0; d < hd; d++) {
            put(kv->type, kv->k, base + dk_kv_k_at(kv, at, d), k_row[h * hd + d]);
            put(kv->type, kv->v, base + dk_kv_v_at(kv, at, d), v_row[h * hd + d]);
        }
    }
}
