/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One packed block of 16 outputs x 32 inputs in AVX-512 registers: the eight groups of quants as
 * bytes, [output][4 inputs], and the scales as floats.  Shared by the VNNI and the AMX product.
 */
#pragma once

#include <immintrin.h>

#include "kernels/cpu/quant/layout.h"

struct dk_q512 {
    __m512i q[8];
    __m512 dw[2], mw; /* dw[1]: only Q6_K;  mw: only types with a minimum; else 0 */
};

DK_INLINE __m512i dk_q512_line(const uint8_t *p)
{
    return _mm512_load_si512((const void *)p);
}

DK_INLINE __m512 dk_q512_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

/* Left by n bits, or right by -n.  The instruction wants a literal. */
DK_INLINE __m512i dk_q512_shift(__m512i v, int n)
{
    return n == 4    ? _mm512_slli_epi16(v, 4)
           : n == 3  ? _mm512_slli_epi16(v, 3)
           : n == 2  ? _mm512_slli_epi16(v, 2)
           : n == 1  ? _mm512_slli_epi16(v, 1)
           : n == -1 ? _mm512_srli_epi16(v, 1)
           : n == -2 ? _mm512_srli_epi16(v, 2)
           : n == -3 ? _mm512_srli_epi16(v, 3)
                     : v;
}

/* a | (b & c) */
#define DK_OR_AND(a, b, c) _mm512_ternarylogic_epi64(a, b, c, 0xf8)

DK_INLINE void dk_q512_quants(unsigned bits, const uint8_t *p, __m512i q[8])
{
    if (bits == 8) {
#pragma GCC unroll 8
        for (unsigned g = 0; g < 8; g++)
            q[g] = dk_q512_line(p + 64 * g);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (unsigned l = 0; l < 4; l++) {
        __m512i v = dk_q512_line(p + 64 * l);
        q[l] = _mm512_and_si512(v, low);
        q[4 + l] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    if (bits == 5) {
        const __m512i bit4 = _mm512_set1_epi8(16);
        __m512i h = dk_q512_line(p + 256);
#pragma GCC unroll 8
        for (unsigned g = 0; g < 8; g++) {
            q[g] = DK_OR_AND(q[g], dk_q512_shift(h, 4 - (int)g), bit4);
        }
    } else if (bits == 6) {
        const __m512i bits45 = _mm512_set1_epi8(0x30);
#pragma GCC unroll 8
        for (unsigned g = 0; g < 8; g++) {
            __m512i h = dk_q512_line(p + 256 + 64 * (g / 4));
            q[g] = DK_OR_AND(q[g], dk_q512_shift(h, 4 - 2 * (int)(g % 4)), bits45);
        }
    }
}

DK_INLINE __m512 dk_q512_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p)));
}

DK_INLINE __m512 dk_q512_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(const void *)p)));
}

/* What eight blocks of a K type share: d and -dmin (Q6_K: none). */
struct dk_q512_super {
    __m512 d, m;
};

DK_INLINE void dk_q512_shared(const uint8_t *s, struct dk_q512_super *super)
{
    super->d = dk_q512_f16(s);
    super->m = _mm512_xor_ps(dk_q512_f16(s + 32), _mm512_set1_ps(-0.0f));
}

/* s: the scale lines of the block's group; i: the block's place in the group.  super: kept from the
 * first block of a group to the last. */
DK_INLINE void dk_q512_scales(enum dk_type t, const uint8_t *s, unsigned i,
                              struct dk_q512_super *super, struct dk_q512 *r)
{
    const struct dk_qgeom g = dk_qgeom(t);
    r->dw[1] = r->mw = _mm512_setzero_ps();
    if (g.group == 8) {
        const uint8_t *sub = s + 64 + 32 * i;
        if (i == 0)
            dk_q512_shared(s, super);
        if (g.kind == DK_QK_SUB) {
            r->dw[0] = _mm512_mul_ps(super->d, dk_q512_i8(sub));
            r->dw[1] = _mm512_mul_ps(super->d, dk_q512_i8(sub + 16));
        } else {
            r->dw[0] = _mm512_mul_ps(super->d, dk_q512_u8(sub));
            r->mw = _mm512_mul_ps(super->m, dk_q512_u8(sub + 16));
        }
    } else if (g.group == 2) {
        r->dw[0] = dk_q512_f16(s + 32 * i);
    } else {
        r->dw[0] = dk_q512_f16(s);
        r->mw = dk_q512_f16(s + 32);
    }
}

/* Blocks in ascending order, the first of them the first of a group. */
DK_INLINE void dk_q512_unpack(enum dk_type t, const uint8_t *panel, uint32_t block,
                              struct dk_q512_super *super, struct dk_q512 *r)
{
    const struct dk_qgeom g = dk_qgeom(t);
    dk_q512_quants(g.bits, panel + dk_qquants_at(t, block), r->q);
    dk_q512_scales(t, panel + dk_qgroup_at(t, block), block % g.group, super, r);
}

/* acc += the block's part for one row, as cpu/matmul-quant/c.c defines it. */
DK_INLINE __m512 dk_q512_float(enum dk_qkind kind, const struct dk_q512 *w, const struct dk_qact *x,
                               __m512i i0, __m512i i1, __m512 acc)
{
    __m512 d = _mm512_set1_ps(x->d);
    acc = _mm512_fmadd_ps(_mm512_mul_ps(w->dw[0], d), _mm512_cvtepi32_ps(i0), acc);
    if (kind == DK_QK_SUB)
        acc = _mm512_fmadd_ps(_mm512_mul_ps(w->dw[1], d), _mm512_cvtepi32_ps(i1), acc);
    if (kind == DK_QK_MIN)
        acc = _mm512_fmadd_ps(w->mw, _mm512_set1_ps(x->sum), acc);
    return acc;
}

/* Writes 16 results (n - 16 * panel, if fewer). */
DK_INLINE void dk_q512_store(const struct dk_mm *mm, uint32_t row, uint32_t panel, __m512 acc)
{
    float *y = mm->y + row * mm->ldy + (size_t)panel * DK_PANEL;
    uint32_t left = mm->w->n - panel * DK_PANEL;
    __mmask16 k = left >= DK_PANEL ? 0xffff : (__mmask16)((1u << left) - 1);
    if (mm->flags & DK_MM_ADD)
        acc = _mm512_add_ps(_mm512_maskz_loadu_ps(k, y), acc);
    _mm512_mask_storeu_ps(y, k, acc);
}
