/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of factors as AMX tiles of BF16, for 32 inputs each: A's [16 rows][32 inputs], B's [16 pairs of
 * inputs][16 columns][2].  A panel is 32 rows of A or columns of B, for each 32 inputs two tiles, or one
 * where no more than 16 are left.  What lies behind the last input, row or column is zero.
 * "Rows": their inputs are next to each other in memory; "lanes": the rows (or columns) of an input.
 */
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/gemm/transpose16.h"

#define TILE  512u /* elements of a tile: 1 KiB */
#define PANEL 32u
#define BF16  __attribute__((target("avx512bf16")))

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline __mmask16 first(uint32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
}

/* Sixteen floats and the sixteen of the next input: pairs, lane by lane. */
BF16 static inline __m512i pairs(__m512 even, __m512 odd)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* 32 inputs of a row, as they lie. */
BF16 static inline __m512i inputs(const float *s, uint32_t left)
{
    if (left >= 32)
        return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(s + 16), _mm512_loadu_ps(s));
    return (__m512i)_mm512_cvtne2ps_pbh(
        _mm512_maskz_loadu_ps(left > 16 ? first(left - 16) : 0, left > 16 ? s + 16 : s),
        _mm512_maskz_loadu_ps(first(left), s));
}

/* n rows, their inputs next to each other, as tiles of A: rows of 32 inputs. */
BF16 static void rows_as_rows(uint16_t *dst, const float *src, size_t row, uint32_t n, uint32_t k,
                              uint32_t tiles)
{
    const size_t step = (size_t)tiles * TILE;
    for (uint32_t i = 0; i < 16 * tiles; i++) {
        uint16_t *d = dst + (size_t)(i / 16) * TILE + i % 16 * 32;
        const float *s = src + (size_t)i * row;
        if (i < n)
            for (uint32_t l = 0; l < k; l += 32, d += step)
                _mm512_store_si512(d, inputs(s + l, k - l));
        else
            for (uint32_t l = 0; l < k; l += 32, d += step)
                _mm512_store_si512(d, _mm512_setzero_si512());
    }
}

/* The same as tiles of B: pairs of inputs by 16. */
BF16 static void rows_as_pairs(uint16_t *dst, const float *src, size_t row, uint32_t n, uint32_t k,
                               uint32_t tiles)
{
    for (uint32_t l = 0; l < k; l += 32)
        for (uint32_t t = 0; t < tiles; t++, dst += TILE) {
            const uint32_t have = n > 16 * t ? n - 16 * t : 0;
            const float *s = src + (size_t)16 * t * row + l;
            __m512i r[16];
            if (have >= 16 && k - l >= 32) {
#pragma GCC unroll 16
                for (uint32_t i = 0; i < 16; i++)
                    r[i] = inputs(s + i * row, 32);
            } else {
                for (uint32_t i = 0; i < 16; i++)
                    r[i] = i < have ? inputs(s + i * row, k - l) : _mm512_setzero_si512();
            }
            transpose16(r);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++)
                _mm512_store_si512(dst + 32 * i, r[i]);
        }
}

/* Pair p of the inputs from src on, 16 of n rows (or columns) that are next to each other. */
BF16 static inline __m512i pair_at(const float *src, size_t col, uint32_t p, uint32_t k,
                                   __mmask16 m)
{
    const float *s = src + 2 * (size_t)p * col;
    if (2 * p + 1 < k)
        return pairs(_mm512_maskz_loadu_ps(m, s), _mm512_maskz_loadu_ps(m, s + col));
    return 2 * p < k ? pairs(_mm512_maskz_loadu_ps(m, s), _mm512_setzero_ps())
                     : _mm512_setzero_si512();
}

/* n columns next to each other, as tiles of B in panels that are `apart` elements from each other.
 * Two panels at once, so that lines are read in a row and what is written stays near; the inputs that
 * follow are fetched meanwhile, which makes it half as long again without. */
BF16 static void lanes_as_pairs(uint16_t *dst, const float *src, size_t col, uint32_t n, uint32_t k,
                                size_t apart)
{
    const uint32_t steps = (k + 31) / 32, wide = 2 * PANEL;
    for (uint32_t j0 = 0; j0 < n; j0 += wide)
        for (uint32_t l = 0; l < steps; l++) {
            const float *s = src + (size_t)l * 32 * col + j0;
            const uint32_t left = k - l * 32, columns = least(n - j0, wide);
            for (uint32_t p = 0; p < 16; p++) {
                const float *then = s + (size_t)(32 + 2 * p) * col;
                for (uint32_t j = 0; j < columns; j += 16) {
                    __builtin_prefetch(then + j, 0, 3);
                    __builtin_prefetch(then + col + j, 0, 3);
                }
                for (uint32_t j = 0; j < columns; j += 16) {
                    const uint32_t panel = j / PANEL, tiles = columns - panel * PANEL > 16 ? 2 : 1;
                    uint16_t *d = dst + (j0 / PANEL + panel) * apart +
                                  ((size_t)l * tiles + j / 16 % 2) * TILE + 32 * p;
                    _mm512_store_si512(d, pair_at(s + j, col, p, left, first(columns - j)));
                }
            }
        }
}

/* n rows next to each other, as tiles of A. */
BF16 static void lanes_as_rows(uint16_t *dst, const float *src, size_t col, uint32_t n, uint32_t k)
{
    const uint32_t steps = (k + 31) / 32;
    for (uint32_t l = 0; l < steps; l++, src += 32 * col, k -= least(k, 32))
        for (uint32_t i0 = 0; i0 < n; i0 += 16) {
            const uint32_t panel = i0 / PANEL * PANEL, tiles = n - panel > 16 ? 2 : 1;
            uint16_t *d =
                dst + (size_t)panel * steps * 32 + ((size_t)l * tiles + (i0 - panel) / 16) * TILE;
            const __mmask16 m = first(n - i0);
            __m512i r[16];
#pragma GCC unroll 16
            for (uint32_t p = 0; p < 16; p++)
                r[p] = pair_at(src + i0, col, p, k, m);
            transpose16(r);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++)
                _mm512_store_si512(d + 32 * i, r[i]);
        }
}
