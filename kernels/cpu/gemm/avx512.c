/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices in memory, AVX-512: 14 rows by two registers, 28 accumulators. */
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR              14u
#define NR              32u
#define TILE_NAME(name) name##_avx512

#define ROWS(X)         X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

static void tile(const float *a, const float *b, uint32_t k, float *c, size_t ldc, bool fresh)
{
#define ZERO(i) __m512 x##i = _mm512_setzero_ps(), y##i = x##i;
#define LOAD(i) x##i = _mm512_loadu_ps(c + i * ldc), y##i = _mm512_loadu_ps(c + i * ldc + 16);
#define STEP(i)                                                                                    \
    {                                                                                              \
        __m512 v = _mm512_set1_ps(a[i]);                                                           \
        x##i = _mm512_fmadd_ps(v, p, x##i);                                                        \
        y##i = _mm512_fmadd_ps(v, q, y##i);                                                        \
    }
#define STORE(i)                                                                                   \
    _mm512_storeu_ps(c + i * ldc, x##i);                                                           \
    _mm512_storeu_ps(c + i * ldc + 16, y##i);
    ROWS(ZERO)
    if (!fresh) {
        ROWS(LOAD)
    }
    for (; k > 0; k--, a += MR, b += NR) {
        __m512 p = _mm512_load_ps(b), q = _mm512_load_ps(b + 16);
        ROWS(STEP)
    }
    ROWS(STORE)
}

#include "kernels/cpu/gemm/transpose16.h"

/* UNIT rows of src, k inputs next to each other, into dst[k][UNIT]; rows from n on are zero. */
static void pack_rows(float *dst, const float *src, size_t row, uint32_t n, uint32_t k,
                      uint32_t unit)
{
    for (uint32_t i0 = 0; i0 < unit; i0 += 16) {
        const uint32_t rows = n > i0 ? n - i0 : 0, wide = unit - i0;
        const __mmask16 store = (__mmask16)(wide >= 16 ? 0xffff : (1u << wide) - 1);
        for (uint32_t l = 0; l < k; l += 16) {
            const uint32_t left = k - l < 16 ? k - l : 16;
            const __mmask16 load = (__mmask16)((1u << left) - 1);
            __m512i r[16];
#pragma GCC unroll 16
            for (uint32_t i = 0; i < 16; i++)
                r[i] = i < rows ? _mm512_maskz_loadu_epi32(load, src + (i0 + i) * row + l)
                                : _mm512_setzero_si512();
            transpose16(r);
            for (uint32_t i = 0; i < left; i++)
                _mm512_mask_storeu_epi32(dst + (size_t)(l + i) * unit + i0, store, r[i]);
        }
    }
}
#define PACK_INPUTS pack_rows

#include "kernels/cpu/gemm/tile.h"
