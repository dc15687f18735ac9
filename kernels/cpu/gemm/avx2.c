/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices in memory, AVX2: 6 rows by two registers, 12 accumulators. */
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR              6u
#define NR              16u
#define TILE_NAME(name) name##_avx2

#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

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

#include "kernels/cpu/gemm/tile.h"
