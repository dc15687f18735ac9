/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices in memory, AVX2: 6 rows by two registers, 12 accumulators. */
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR              6u
#define NR              16u
#define TILE_NAME(name) name##_avx2

#define ROWS(X)         X(0) X(1) X(2) X(3) X(4) X(5)

static void tile(const float *a, const float *b, uint32_t k, float *c, size_t ldc, bool fresh)
{
#define ZERO(i) __m256 x##i = _mm256_setzero_ps(), y##i = x##i;
#define LOAD(i) x##i = _mm256_loadu_ps(c + i * ldc), y##i = _mm256_loadu_ps(c + i * ldc + 8);
#define STEP(i)                                                                                    \
    {                                                                                              \
        __m256 v = _mm256_broadcast_ss(a + i);                                                     \
        x##i = _mm256_fmadd_ps(v, p, x##i);                                                        \
        y##i = _mm256_fmadd_ps(v, q, y##i);                                                        \
    }
#define STORE(i)                                                                                   \
    _mm256_storeu_ps(c + i * ldc, x##i);                                                           \
    _mm256_storeu_ps(c + i * ldc + 8, y##i);
    ROWS(ZERO)
    if (!fresh) {
        ROWS(LOAD)
    }
    for (; k > 0; k--, a += MR, b += NR) {
        __m256 p = _mm256_load_ps(b), q = _mm256_load_ps(b + 8);
        ROWS(STEP)
    }
    ROWS(STORE)
}

/* Eight rows of eight values turned into columns. */
static inline __attribute__((always_inline)) void transpose8(__m256 r[8])
{
    __m256 t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

/* The first n lanes, n = 0..8. */
static inline __m256i first_lanes(uint32_t n)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lanes);
}

/* UNIT rows of src, k inputs next to each other, into dst[k][UNIT]; rows from n on are zero.
 * Whole vectors are stored, since masked stores are slow: with six rows the two values behind
 * them are what the next store, or the next unit, writes over. */
static inline __attribute__((always_inline)) void
pack_rows(float *dst, const float *src, size_t row, uint32_t n, uint32_t k, const uint32_t unit)
{
    for (uint32_t i0 = 0; i0 < unit; i0 += 8) {
        const uint32_t rows = n > i0 ? n - i0 : 0;
        for (uint32_t l = 0; l < k; l += 8) {
            const uint32_t left = k - l < 8 ? k - l : 8;
            const __m256i load = first_lanes(left);
            __m256 r[8];
#pragma GCC unroll 8
            for (uint32_t i = 0; i < 8; i++)
                r[i] = i < rows ? _mm256_maskload_ps(src + (i0 + i) * row + l, load)
                                : _mm256_setzero_ps();
            transpose8(r);
            for (uint32_t i = 0; i < left; i++)
                _mm256_storeu_ps(dst + (size_t)(l + i) * unit + i0, r[i]);
        }
    }
}
#define PACK_INPUTS pack_rows

#include "kernels/cpu/gemm/tile.h"
