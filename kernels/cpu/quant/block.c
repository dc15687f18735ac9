/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block formats, one block of 32 inputs at a time: out of a file's row, out of a packed panel,
 * and its values.  This is the specification that packing, look-up, dequantisation and the portable
 * product share.
 */
#include <string.h>

#include "kernels/cpu/quant/layout.h"

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* 16 bytes: inputs 0-15 in the low halves, 16-31 in the high halves. */
static void nibbles(uint8_t u[32], const uint8_t *qs)
{
    for (unsigned i = 0; i < 16; i++) {
        u[i] = qs[i] & 15;
        u[16 + i] = qs[i] >> 4;
    }
}

/* 32 bits, one per input. */
static void fifth_bits(uint8_t u[32], uint32_t qh)
{
    for (unsigned i = 0; i < 32; i++)
        u[i] = (uint8_t)(u[i] | (qh >> i & 1) << 4);
}

/* Eight 6-bit scales and eight 6-bit minimums in 12 bytes: entry j. */
static void six_bit_pair(const uint8_t s[12], unsigned j, uint8_t *sc, uint8_t *mn)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *mn = s[j + 4] & 63;
    } else {
        *sc = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *mn = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

/* 32 bytes hold two sub-blocks: the even one in the low halves. */
static void half_bytes(uint8_t u[32], const uint8_t *qs, unsigned odd)
{
    for (unsigned i = 0; i < 32; i++)
        u[i] = odd ? qs[i] >> 4 : qs[i] & 15;
}

void dk_qblock_from_file(enum dk_type t, const uint8_t *row, uint32_t block, struct dk_qblock *ret)
{
    struct dk_qgeom g = dk_qgeom(t);
    const struct dk_type_info *info = dk_type_info(t);
    unsigned j = block % (info->block_elems / DK_QBLOCK); /* sub-block of a super-block */
    const uint8_t *p = row + (size_t)(block / (info->block_elems / DK_QBLOCK)) * info->block_bytes;
    ret->m = 0;
    ret->sc[0] = ret->sc[1] = 1;
    ret->mn = 0;
    if (g.group == 8 && g.bits == 6) {
        const uint8_t *ql = p + 64 * (j / 4) + 32 * (j & 1), *qh = p + 128 + 32 * (j / 4);
        half_bytes(ret->u, ql, j >> 1 & 1);
        for (unsigned i = 0; i < 32; i++)
            ret->u[i] = (uint8_t)(ret->u[i] | (qh[i] >> 2 * (j & 3) & 3) << 4);
        ret->sc[0] = p[192 + 2 * j];
        ret->sc[1] = p[193 + 2 * j];
        ret->d = get16(p + 208);
        return;
    }
    ret->d = get16(p);
    if (g.group == 8) {
        ret->m = get16(p + 2);
        six_bit_pair(p + 4, j, &ret->sc[0], &ret->mn);
        ret->sc[1] = ret->sc[0];
        const uint8_t *qh = p + 16, *qs = g.bits == 5 ? p + 48 : p + 16;
        half_bytes(ret->u, qs + 32 * (j / 2), j & 1);
        for (unsigned i = 0; g.bits == 5 && i < 32; i++)
            ret->u[i] = (uint8_t)(ret->u[i] | (qh[i] >> j & 1) << 4);
        return;
    }
    p += 2;
    if (g.kind == DK_QK_MIN) {
        ret->m = get16(p);
        p += 2;
    }
    if (g.bits == 8) {
        for (unsigned i = 0; i < 32; i++)
            ret->u[i] = p[i] ^ 0x80;
        return;
    }
    nibbles(ret->u, g.bits == 5 ? p + 4 : p);
    if (g.bits == 5)
        fifth_bits(ret->u, get32(p));
}

void dk_qblock_from_panel(enum dk_type t, const uint8_t *panel, uint32_t block, uint32_t output,
                          struct dk_qblock *ret)
{
    struct dk_qgeom g = dk_qgeom(t);
    const uint8_t *s = panel + dk_qgroup_at(t, block);
    const uint8_t *q = panel + dk_qquants_at(t, block) + (size_t)4 * output;
    for (unsigned k = 0; k < 32; k++) {
        unsigned gr = k / 4, i = k % 4;
        if (g.bits == 8) {
            ret->u[k] = q[64 * gr + i];
            continue;
        }
        unsigned u = q[64 * (gr % 4) + i] >> 4 * (gr / 4) & 15;
        if (g.bits == 5)
            u |= (q[256 + i] >> gr & 1u) << 4;
        else if (g.bits == 6)
            u |= (q[256 + 64 * (gr / 4) + i] >> 2 * (gr % 4) & 3u) << 4;
        ret->u[k] = (uint8_t)u;
    }
    ret->m = 0;
    ret->sc[0] = ret->sc[1] = 1;
    ret->mn = 0;
    if (g.group == 8) {
        const uint8_t *sub = s + 64 + (size_t)32 * (block % 8) + output;
        ret->d = get16(s + 2 * output);
        ret->sc[0] = ret->sc[1] = sub[0];
        if (g.kind == DK_QK_SUB) {
            ret->sc[1] = sub[16];
        } else {
            ret->m = get16(s + 32 + 2 * output);
            ret->mn = sub[16];
        }
    } else if (g.group == 2) {
        ret->d = get16(s + 32 * (block % 2) + 2 * output);
    } else {
        ret->d = get16(s + 2 * output);
        ret->m = get16(s + 32 + 2 * output);
    }
}

void dk_qblock_scales(enum dk_type t, const struct dk_qblock *b, float dw[2], float *mw)
{
    struct dk_qgeom g = dk_qgeom(t);
    float d = dk_f16_to_f32(b->d), m = dk_f16_to_f32(b->m);
    dw[0] = dw[1] = d;
    *mw = m;
    if (g.group != 8)
        return;
    if (g.kind == DK_QK_SUB) {
        dw[0] = d * (float)(int8_t)b->sc[0];
        dw[1] = d * (float)(int8_t)b->sc[1];
        *mw = 0;
    } else {
        dw[0] = dw[1] = d * (float)b->sc[0];
        *mw = -m * (float)b->mn;
    }
}

void dk_qblock_values(enum dk_type t, const struct dk_qblock *b, float out[32])
{
    struct dk_qgeom g = dk_qgeom(t);
    float dw[2], mw;
    dk_qblock_scales(t, b, dw, &mw);
    int zero = g.kind == DK_QK_MIN ? 0 : 1 << g.zero_shift;
    for (unsigned i = 0; i < 32; i++) {
        float v = dw[i / 16] * (float)(b->u[i] - zero);
        out[i] = g.kind == DK_QK_MIN ? v + mw : v;
    }
}
