/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights, AVX2 + FMA + F16C.  16 registers: at most 12 accumulators (6 rows of
 * one panel, or fewer rows of more panels), two for the weights, one for the activation.
 */
#include <immintrin.h>

#define vf __m256
#define VF_PER_LINE 2
#define vf_zero _mm256_setzero_ps
#define vf_load _mm256_load_ps
#define vf_loadu _mm256_loadu_ps
#define vf_store _mm256_store_ps
#define vf_storeu _mm256_storeu_ps
#define vf_set1 _mm256_set1_ps
#define vf_add _mm256_add_ps
#define vf_fma _mm256_fmadd_ps

static inline __attribute__((always_inline)) __m256 vf_load_f16(const char *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

static inline __attribute__((always_inline)) __m256 vf_load_bf16(const char *p)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}

#define MAX_ROWS 6
#define MAX_PANELS 4
static const unsigned char PANELS[MAX_ROWS + 1] = {0, 4, 2, 2, 1, 1, 1};
#define FOR_EACH_TILE(X)                                                                           \
    X(1, 1) X(1, 2) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)

#define FETCH_BYTES 2048u
#define CHUNK_K 256u
#define BLOCK_ROWS 1536u

#include "kernels/cpu/matmul/tile.h"

DK_DECLARE_ACT(dk_cpu_act_float_avx2)
{
    if (forms & DK_FORM_F32)
        dk_act_fill_f32(a, x, ldx, row0, row1, MAX_ROWS);
    if (forms & DK_FORM_BF16)
        dk_cpu_act_float_c(a, DK_FORM_BF16, x, ldx, row0, row1);
}

DK_DECLARE_MATMUL(dk_cpu_matmul_float_avx2)
{
    matmul_float(mm, a, panel0, panel1, scratch);
}
