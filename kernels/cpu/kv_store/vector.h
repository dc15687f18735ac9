/* SPDX-License-Identifier: Apache-2.0 */
/* One position's K and V into their blocks: rounded sixteen at a time; K is then scattered, since
 * its block has the positions innermost. */
#pragma once

#include <string.h>

#include "kernels/cpu/internal.h"
#include "kernels/cpu/v16.h"

V_INLINE void round_bf16(uint16_t *out, v16 x)
{
    v16i b = v_bits(x), lsb = vi_and(vi_srl(b, 16), vi_set1(1));
    v16i r = vi_srl(vi_add(vi_add(b, lsb), vi_set1(0x7fff)), 16);
    v16i nan = vi_or(vi_srl(b, 16), vi_set1(0x40)); /* quiet, and never turned into an infinity */
    vi_store_u16(out, vi_select(v_unordered(x), nan, r));
}

/* n <= 16 values of src to 16 bits. */
V_INLINE void round_16(enum dk_kv_type t, uint16_t out[16], const float *src, uint32_t n)
{
    v16 x = n == 16 ? v_load(src) : v_load_n(src, n);
    if (t == DK_KV_BF16)
        round_bf16(out, x);
    else
        v_store_f16(out, x);
}

V_INLINE void store_16bit(enum dk_kv_type t, uint16_t *k, uint16_t *v, uint32_t at, uint32_t hd,
                          const float *k_row, const float *v_row)
{
    uint16_t tmp[16];
    for (uint32_t d = 0; d < hd; d += 16) {
        uint32_t n = hd - d < 16 ? hd - d : 16;
        round_16(t, tmp, k_row + d, n);
        for (uint32_t i = 0; i < n; i++)
            k[(d + i) * DK_KV_BLOCK + at] = tmp[i];
        round_16(t, tmp, v_row + d, n);
        memcpy(v + at * hd + d, tmp, n * sizeof *tmp);
    }
}

/* x[16] to every second element, from the first one or the second on. */
V_INLINE void every_second(uint16_t *out, uint32_t from, const uint16_t *x)
{
#ifdef __AVX512BW__
    __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)x));
    _mm512_mask_storeu_epi16(out, 0x55555555u << from, _mm512_slli_epi32(h, 16 * from));
#else
    for (uint32_t i = 0; i < 16; i++)
        out[2 * i + from] = x[i];
#endif
}

/* Pairs of dimensions, pairs of positions; hd a multiple of 32. */
V_INLINE void store_paired(uint16_t *k, uint16_t *v, uint32_t at, uint32_t hd, const float *k_row,
                           const float *v_row)
{
    uint16_t tmp[16];
    k += 2 * at;
    v += at / 2 * 32;
    for (uint32_t d = 0; d < hd; d += 16) {
        round_bf16(tmp, v_load(k_row + d));
        for (uint32_t i = 0; i < 16; i += 2)
            memcpy(k + (d + i) * DK_KV_BLOCK, tmp + i, 2 * sizeof *tmp);
        round_bf16(tmp, v_load(v_row + d));
        every_second(v + d * DK_KV_BLOCK, at % 2, tmp);
    }
}

void V_NAME(dk_cpu_kv_store)(const struct dk_kv *kv, uint32_t slot, uint32_t head0, uint32_t head1,
                             const float *k_row, const float *v_row)
{
    uint32_t at = slot % DK_KV_BLOCK, hd = kv->head_dim;
    size_t head = (size_t)hd * DK_KV_BLOCK;
    size_t base = ((size_t)(slot / DK_KV_BLOCK) * kv->n_kv_heads + head0) * head;
    k_row += (size_t)head0 * hd;
    v_row += (size_t)head0 * hd;
    for (uint32_t h = head0; h < head1; h++, base += head, k_row += hd, v_row += hd) {
        if (kv->type == DK_KV_F32) {
            float *k = (float *)kv->k + base;
            for (uint32_t d = 0; d < hd; d++)
                k[d * DK_KV_BLOCK + at] = k_row[d];
            memcpy((float *)kv->v + base + (size_t)at * hd, v_row, hd * sizeof(float));
        } else if (dk_kv_paired(kv)) {
            store_paired((uint16_t *)kv->k + base, (uint16_t *)kv->v + base, at, hd, k_row, v_row);
        } else if (kv->type == DK_KV_BF16) {
            store_16bit(DK_KV_BF16, (uint16_t *)kv->k + base, (uint16_t *)kv->v + base, at, hd,
                        k_row, v_row);
        } else {
            store_16bit(DK_KV_F16, (uint16_t *)kv->k + base, (uint16_t *)kv->v + base, at, hd,
                        k_row, v_row);
        }
    }
}
