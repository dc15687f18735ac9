/* SPDX-License-Identifier: Apache-2.0 */
/* Block-quantised weights: size of the packed form, packing, look-up of a row, dequantisation of
 * file blocks, and the size of prepared activations. */
#include <string.h>

#include "base/checked.h"
#include "kernels/cpu/quant/block.h"

bool dk_weight_bytes_quant(enum dk_type t, uint32_t n, uint32_t k, size_t *ret)
{
    if (n == 0 || k == 0 || k % dk_type_info(t)->block_elems != 0)
        return false;
    return size_mul(dk_qpanel_bytes(t, k / DK_QBLOCK), ((size_t)n + DK_PANEL - 1) / DK_PANEL, ret);
}

/* The quants of one output of one block; q points at the output's first four bytes. */
DK_INLINE void store_quants(unsigned bits, const uint8_t u[32], uint8_t *q)
{
    if (bits == 8) {
        for (unsigned g = 0; g < 8; g++)
            memcpy(q + 64 * g, u + 4 * g, 4);
        return;
    }
    for (unsigned l = 0; l < 4; l++) {
        uint32_t w = (dk_q_word(u + 4 * l) & 0x0f0f0f0f) | (dk_q_word(u + 16 + 4 * l) & 0x0f0f0f0f)
                                                               << 4;
        memcpy(q + 64 * l, &w, sizeof w);
    }
    if (bits == 5) {
        uint32_t w = 0;
        for (unsigned g = 0; g < 8; g++)
            w |= (dk_q_word(u + 4 * g) >> 4 & 0x01010101) << g;
        memcpy(q + 256, &w, sizeof w);
    } else if (bits == 6) {
        for (unsigned h = 0; h < 2; h++) {
            uint32_t w = 0;
            for (unsigned j = 0; j < 4; j++)
                w |= (dk_q_word(u + 16 * h + 4 * j) >> 4 & 0x03030303) << 2 * j;
            memcpy(q + 256 + 64 * h, &w, sizeof w);
        }
    }
}

DK_INLINE void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* s: the scale lines of the block's group. */
DK_INLINE void store_scales(const struct dk_qgeom *g, const struct dk_qblock *b, uint32_t block,
                            uint32_t output, uint8_t *s)
{
    if (g->group == 8) {
        uint8_t *sub = s + 64 + (size_t)32 * (block % 8) + output;
        put16(s + 2 * output, b->d);
        put16(s + 32 + 2 * output, b->m);
        sub[0] = b->sc[0];
        sub[16] = g->kind == DK_QK_SUB ? b->sc[1] : b->mn;
    } else if (g->group == 2) {
        put16(s + 32 * (block % 2) + 2 * output, b->d);
    } else {
        put16(s + 2 * output, b->d);
        put16(s + 32 + 2 * output, b->m);
    }
}

DK_INLINE void pack_panel(enum dk_type t, uint8_t *dst, const uint8_t *src, size_t src_row_bytes,
                          uint32_t rows, uint32_t blocks)
{
    struct dk_qgeom g = dk_qgeom(t);
    if (rows < DK_PANEL || blocks % g.group)
        memset(dst, 0, dk_qpanel_bytes(t, blocks));
    for (uint32_t b = 0; b < blocks; b++) {
        uint8_t *s = dst + dk_qgroup_at(t, b), *q = dst + dk_qquants_at(t, b);
        for (uint32_t o = 0; o < rows; o++) {
            struct dk_qblock blk;
            dk_qblock_file(t, src + o * src_row_bytes, b, &blk);
            store_quants(g.bits, blk.u, q + (size_t)4 * o);
            store_scales(&g, &blk, b, o, s);
        }
    }
}

void dk_weight_pack_quant(void *dst, enum dk_type t, uint32_t n, uint32_t k, const void *src,
                          size_t src_row_bytes, uint32_t panel0, uint32_t panel1)
{
    uint32_t blocks = k / DK_QBLOCK;
    size_t panel_bytes = dk_qpanel_bytes(t, blocks);
    for (uint32_t p = panel0; p < panel1; p++) {
        uint32_t row0 = p * DK_PANEL, rows = n - row0 < DK_PANEL ? n - row0 : DK_PANEL;
        uint8_t *d = (uint8_t *)dst + p * panel_bytes;
        const uint8_t *from = (const uint8_t *)src + row0 * src_row_bytes;
        DK_QTYPE_SWITCH(t, pack_panel, d, from, src_row_bytes, rows, blocks)
    }
}

void dk_weight_row_quant(const struct dk_weight *w, uint32_t row, float *out)
{
    uint32_t blocks = w->k / DK_QBLOCK;
    const uint8_t *panel =
        (const uint8_t *)w->data + row / DK_PANEL * dk_qpanel_bytes(w->type, blocks);
    for (uint32_t b = 0; b < blocks; b++) {
        struct dk_qblock blk;
        dk_qblock_from_panel(w->type, panel, b, row % DK_PANEL, &blk);
        dk_qblock_values(w->type, &blk, out + (size_t)b * DK_QBLOCK);
    }
}

void dk_dequant(enum dk_type t, const void *src, size_t n_blocks, float *out)
{
    const struct dk_type_info *info = dk_type_info(t);
    const uint8_t *p = src;
    if (info->quantised) {
        unsigned subs = info->block_elems / DK_QBLOCK;
        for (size_t i = 0; i < n_blocks; i++, p += info->block_bytes) {
            for (unsigned j = 0; j < subs; j++, out += DK_QBLOCK) {
                struct dk_qblock blk;
                dk_qblock_from_file(t, p, j, &blk);
                dk_qblock_values(t, &blk, out);
            }
        }
        return;
    }
    for (size_t i = 0; i < n_blocks; i++, p += info->block_bytes) {
        if (t == DK_F32) {
            memcpy(out + i, p, sizeof *out);
        } else {
            uint16_t h = (uint16_t)(p[0] | p[1] << 8);
            out[i] = t == DK_F16 ? dk_f16_to_f32(h) : dk_bf16_to_f32(h);
        }
    }
}

size_t dk_act_bytes_int(uint32_t max_rows, uint32_t max_k)
{
    size_t rows = max_rows < DK_QTILE ? max_rows : dk_pad_k(max_rows, DK_QTILE);
    size_t blocks = ((size_t)max_k + DK_QBLOCK - 1) / DK_QBLOCK;
    return rows * blocks * sizeof(struct dk_qact_avx2); /* the largest form */
}
