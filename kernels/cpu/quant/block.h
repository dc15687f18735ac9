/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block of 32 inputs out of a file's row, and out of a packed panel, for one output.  Inline, so
 * that a caller with a constant type gets code for that type alone; block.c has them as functions.
 */
#pragma once

#include <string.h>

#include "kernels/cpu/quant/layout.h"

DK_INLINE uint16_t dk_q_get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

DK_INLINE uint32_t dk_q_get32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

DK_INLINE uint32_t dk_q_word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* 16 bytes: inputs 0-15 in the low halves, 16-31 in the high halves. */
DK_INLINE void dk_q_nibbles(uint8_t u[32], const uint8_t *qs)
{
    for (unsigned i = 0; i < 16; i++) {
        u[i] = qs[i] & 15;
        u[16 + i] = qs[i] >> 4;
    }
}

/* 32 bits, one per input.  The product spreads four bits over four bytes. */
DK_INLINE void dk_q_fifth_bits(uint8_t u[32], uint32_t qh)
{
    for (unsigned g = 0; g < 8; g++) {
        uint32_t w = dk_q_word(u + 4 * g);
        w |= ((qh >> 4 * g & 15) * 0x00204081 & 0x01010101) << 4;
        memcpy(u + 4 * g, &w, sizeof w);
    }
}

/* Eight 6-bit scales and eight 6-bit minimums in 12 bytes: entry j. */
DK_INLINE void dk_q_six_bits(const uint8_t s[12], unsigned j, uint8_t *sc, uint8_t *mn)
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
DK_INLINE void dk_q_half_bytes(uint8_t u[32], const uint8_t *qs, unsigned odd)
{
    for (unsigned i = 0; i < 32; i++)
        u[i] = odd ? qs[i] >> 4 : qs[i] & 15;
}

DK_INLINE void dk_qblock_file(enum dk_type t, const uint8_t *row, uint32_t block,
                              struct dk_qblock *ret)
{
    struct dk_qgeom g = dk_qgeom(t);
    unsigned subs = g.group == 8 ? 8 : 1, j = block % subs; /* sub-blocks of a super-block */
    const uint8_t *p = row + (size_t)(block / subs) * g.file_bytes;
    ret->m = 0;
    ret->sc[0] = ret->sc[1] = 1;
    ret->mn = 0;
    if (g.group == 8 && g.bits == 6) {
        const uint8_t *ql = p + 64 * (j / 4) + 32 * (j & 1), *qh = p + 128 + 32 * (j / 4);
        dk_q_half_bytes(ret->u, ql, j >> 1 & 1);
        for (unsigned i = 0; i < 32; i++)
            ret->u[i] = (uint8_t)(ret->u[i] | (qh[i] >> 2 * (j & 3) & 3) << 4);
        ret->sc[0] = p[192 + 2 * j];
        ret->sc[1] = p[193 + 2 * j];
        ret->d = dk_q_get16(p + 208);
        return;
    }
    ret->d = dk_q_get16(p);
    if (g.group == 8) {
        ret->m = dk_q_get16(p + 2);
        dk_q_six_bits(p + 4, j, &ret->sc[0], &ret->mn);
        ret->sc[1] = ret->sc[0];
        const uint8_t *qh = p + 16, *qs = g.bits == 5 ? p + 48 : p + 16;
        dk_q_half_bytes(ret->u, qs + 32 * (j / 2), j & 1);
        for (unsigned i = 0; g.bits == 5 && i < 32; i++)
            ret->u[i] = (uint8_t)(ret->u[i] | (qh[i] >> j & 1) << 4);
        return;
    }
    p += 2;
    if (g.kind == DK_QK_MIN) {
        ret->m = dk_q_get16(p);
        p += 2;
    }
    if (g.bits == 8) {
        for (unsigned i = 0; i < 32; i++)
            ret->u[i] = p[i] ^ 0x80;
        return;
    }
    dk_q_nibbles(ret->u, g.bits == 5 ? p + 4 : p);
    if (g.bits == 5)
        dk_q_fifth_bits(ret->u, dk_q_get32(p));
}

/* Four inputs at a time; no shift here moves a bit into another byte that is not masked off. */
DK_INLINE void dk_qblock_panel(enum dk_type t, const uint8_t *panel, uint32_t block,
                               uint32_t output, struct dk_qblock *ret)
{
    struct dk_qgeom g = dk_qgeom(t);
    const uint8_t *s = panel + dk_qgroup_at(t, block);
    const uint8_t *q = panel + dk_qquants_at(t, block) + (size_t)4 * output;
    for (unsigned gr = 0; gr < 8; gr++) {
        uint32_t w;
        if (g.bits == 8)
            w = dk_q_word(q + 64 * gr);
        else
            w = dk_q_word(q + 64 * (gr % 4)) >> 4 * (gr / 4) & 0x0f0f0f0f;
        if (g.bits == 5)
            w |= (dk_q_word(q + 256) >> gr & 0x01010101) << 4;
        else if (g.bits == 6)
            w |= (dk_q_word(q + 256 + 64 * (gr / 4)) >> 2 * (gr % 4) & 0x03030303) << 4;
        memcpy(ret->u + 4 * gr, &w, sizeof w);
    }
    ret->m = 0;
    ret->sc[0] = ret->sc[1] = 1;
    ret->mn = 0;
    if (g.group == 8) {
        const uint8_t *sub = s + 64 + (size_t)32 * (block % 8) + output;
        ret->d = dk_q_get16(s + 2 * output);
        ret->sc[0] = ret->sc[1] = sub[0];
        if (g.kind == DK_QK_SUB) {
            ret->sc[1] = sub[16];
        } else {
            ret->m = dk_q_get16(s + 32 + 2 * output);
            ret->mn = sub[16];
        }
    } else if (g.group == 2) {
        ret->d = dk_q_get16(s + 32 * (block % 2) + 2 * output);
    } else {
        ret->d = dk_q_get16(s + 2 * output);
        ret->m = dk_q_get16(s + 32 + 2 * output);
    }
}

/* Calls f(type, ...) with the type as a constant. */
#define DK_QTYPE_SWITCH(t, f, ...)                                                                 \
    switch (t) {                                                                                   \
    case DK_Q8_0:                                                                                  \
        f(DK_Q8_0, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_Q4_0:                                                                                  \
        f(DK_Q4_0, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_Q4_1:                                                                                  \
        f(DK_Q4_1, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_Q5_0:                                                                                  \
        f(DK_Q5_0, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_Q5_1:                                                                                  \
        f(DK_Q5_1, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_Q4_K:                                                                                  \
        f(DK_Q4_K, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_Q5_K:                                                                                  \
        f(DK_Q5_K, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_Q6_K:                                                                                  \
        f(DK_Q6_K, __VA_ARGS__);                                                                   \
        break;                                                                                     \
    case DK_F32:                                                                                   \
    case DK_F16:                                                                                   \
    case DK_BF16:                                                                                  \
    case DK_TYPE_COUNT:                                                                            \
        break;                                                                                     \
    }
