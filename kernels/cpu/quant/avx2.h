/* SPDX-License-Identifier: Apache-2.0 */
/* One packed block of 16 outputs x 32 inputs in AVX2 registers, a group of 4 inputs and a half of
 * 8 outputs at a time; the scales as floats; results into y. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/quant/layout.h"

DK_INLINE __m256i dk_q256_line(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* Words left by n bits, or right by -n.  The instruction wants a literal. */
DK_INLINE __m256i dk_q256_shift(__m256i v, int n)
{
    return n == 4    ? _mm256_slli_epi16(v, 4)
           : n == 3  ? _mm256_slli_epi16(v, 3)
           : n == 2  ? _mm256_slli_epi16(v, 2)
           : n == 1  ? _mm256_slli_epi16(v, 1)
           : n == -1 ? _mm256_srli_epi16(v, 1)
           : n == -2 ? _mm256_srli_epi16(v, 2)
           : n == -3 ? _mm256_srli_epi16(v, 3)
                     : v;
}

/* Bytes [8 outputs][4 inputs] of group 4 * sub + l, sub 0 or 1, l 0 .. 3, which is a literal where
 * `literal` says so; q: quants of the block; half: 0 or 1. */
DK_INLINE __m256i dk_q256_bytes(unsigned bits, bool literal, const uint8_t *q, unsigned l,
                                unsigned sub, unsigned half)
{
    q += 32 * half;
    if (bits == 8)
        return dk_q256_line(q + 256 * sub + 64 * l);
    __m256i v = dk_q256_line(q + 64 * l);
    v = _mm256_and_si256(sub ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
    if (bits == 4)
        return v;
    /* Shifts of words: what comes over from the next byte ends up in bits that are masked off. */
    __m256i h = dk_q256_line(q + 256 + (bits == 6 ? 64 * sub : 0));
    if (literal) {
        h = dk_q256_shift(h, bits == 5 ? 4 - 4 * (int)sub - (int)l : 4 - 2 * (int)l);
    } else {
        h = _mm256_srl_epi16(h, _mm_cvtsi32_si128((int)(bits == 5 ? l : 2 * l)));
        if (bits == 6 || sub == 0)
            h = _mm256_slli_epi16(h, 4);
    }
    return _mm256_or_si256(v, _mm256_and_si256(h, _mm256_set1_epi8(bits == 5 ? 0x10 : 0x30)));
}

/* Inputs 0 and 2, and 1 and 3, of a group as 16-bit numbers. */
DK_INLINE __m256i dk_q256_even(__m256i bytes)
{
    return _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
}
DK_INLINE __m256i dk_q256_odd(__m256i bytes)
{
    return _mm256_srli_epi16(bytes, 8);
}

DK_INLINE __m256 dk_q256_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}
DK_INLINE __m256 dk_q256_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
DK_INLINE __m256 dk_q256_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* What eight blocks of a K type share: d and -dmin (Q6_K: none), halves of 8 outputs. */
struct dk_q256_super {
    __m256 d[2], m[2];
};
DK_INLINE void dk_q256_load_super(enum dk_type t, const uint8_t *s, struct dk_q256_super *ret)
{
    const bool min = dk_qgeom(t).kind == DK_QK_MIN;
#pragma GCC unroll 2
    for (unsigned h = 0; h < 2; h++) {
        ret->d[h] = dk_q256_f16(s + 16 * h);
        ret->m[h] = min ? _mm256_xor_ps(dk_q256_f16(s + 32 + 16 * h), _mm256_set1_ps(-0.0f))
                        : _mm256_setzero_ps();
    }
}

/* s: the scale lines of the block's group; i: the block's place in it; super: of K types.  sub:
 * which 16 inputs. */
DK_INLINE __m256 dk_q256_dw(enum dk_type t, const uint8_t *s, const struct dk_q256_super *super,
                            unsigned i, unsigned half, unsigned sub)
{
    const struct dk_qgeom g = dk_qgeom(t);
    if (g.group == 8) {
        const uint8_t *f = s + 64 + 32 * i + 8 * half;
        return _mm256_mul_ps(super->d[half],
                             g.kind == DK_QK_SUB ? dk_q256_i8(f + 16 * sub) : dk_q256_u8(f));
    }
    return dk_q256_f16(s + (g.group == 2 ? 32 * i : 0) + 16 * half);
}
DK_INLINE __m256 dk_q256_mw(enum dk_type t, const uint8_t *s, const struct dk_q256_super *super,
                            unsigned i, unsigned half)
{
    if (dk_qgeom(t).group != 8)
        return dk_q256_f16(s + 32 + 16 * half);
    return _mm256_mul_ps(super->m[half], dk_q256_u8(s + 64 + 32 * i + 16 + 8 * half));
}

/* acc (16 floats) into row `row` of y. */
DK_INLINE void dk_q256_store(const struct dk_mm *mm, uint32_t row, uint32_t panel,
                             const float acc[DK_PANEL])
{
    float *y = mm->y + row * mm->ldy + (size_t)panel * DK_PANEL;
    uint32_t left = mm->w->n - panel * DK_PANEL;
    if (left >= DK_PANEL) {
        __m256 a = _mm256_load_ps(acc), b = _mm256_load_ps(acc + 8);
        if (mm->flags & DK_MM_ADD) {
            a = _mm256_add_ps(_mm256_loadu_ps(y), a);
            b = _mm256_add_ps(_mm256_loadu_ps(y + 8), b);
        }
        _mm256_storeu_ps(y, a);
        _mm256_storeu_ps(y + 8, b);
        return;
    }
    for (uint32_t o = 0; o < left; o++)
        y[o] = mm->flags & DK_MM_ADD ? y[o] + acc[o] : acc[o];
}
