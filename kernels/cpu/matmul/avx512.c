/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights, AVX-512.  32 registers: at most 24 accumulators (12 rows of two
 * panels, or fewer rows of four), the rest for weights and activations.
 */
#include <immintrin.h>

#define vf __m512
#define VF_PER_LINE 1
#define vf_zero _mm512_setzero_ps
#define vf_load _mm512_load_ps
#define vf_loadu _mm512_loadu_ps
#define vf_store _mm512_store_ps
#define vf_storeu _mm512_storeu_ps
#define vf_set1 _mm512_set1_ps
#define vf_add _mm512_add_ps
#define vf_fma _mm512_fmadd_ps

static inline __attribute__((always_inline)) __m512 vf_load_f16(const char *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

static inline __attribute__((always_inline)) __m512 vf_load_bf16(const char *p)
{
    __m512i h = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}

static inline __attribute__((always_inline)) void vf_line_bf16(const char *p, __m512 *v)
{
    *v = vf_load_bf16(p);
}

static inline __attribute__((always_inline)) void vf_order_bf16(__m512 *v)
{
    (void)v;
}

#define MAX_ROWS 12
#define FOR_EACH_R(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define MAX_PANELS 2
#define FOR_EACH_P(R, X) X(R, 1) X(R, 2)
#define FOR_EACH_TILE(X)                                                                           \
    FOR_EACH_P(1, X) FOR_EACH_P(2, X) FOR_EACH_P(3, X) FOR_EACH_P(4, X) FOR_EACH_P(5, X)           \
    FOR_EACH_P(6, X) FOR_EACH_P(7, X) FOR_EACH_P(8, X) FOR_EACH_P(9, X) FOR_EACH_P(10, X)          \
    FOR_EACH_P(11, X) FOR_EACH_P(12, X)

#define FETCH_BYTES 16384u
/* With fewer rows the processor fetches better alone. */
#define FETCH_ROWS(bytes) ((bytes) == 4 ? 3u : 1u)
#define DIRECT_K 192u
#define FEW_GROUPS 3
#define CHUNK_K 192u
#define BLOCK_GROUPS 128u

#include "kernels/cpu/matmul/tile.h"

DK_DECLARE_ACT(dk_cpu_act_float_avx512)
{
    if (forms & DK_FORM_F32)
        dk_act_fill_f32(a, x, ldx, row0, row1, MAX_ROWS);
    if (forms & DK_FORM_BF16)
        dk_cpu_act_float_c(a, DK_FORM_BF16, x, ldx, row0, row1);
}

DK_DECLARE_MATMUL(dk_cpu_matmul_float_avx512)
{
    matmul_float(mm, a, panel0, panel1, scratch);
}
