/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights, AVX2 + FMA + F16C.  16 registers: at most 12 accumulators (6 rows of
 * one panel, or fewer rows of more panels), two for the weights, one for the activation.
 */
#include <immintrin.h>
#include <stdint.h>

#define vf __m256
#define VF_PER_LINE 2
#define vf_zero _mm256_setzero_ps
#define vf_load _mm256_load_ps
#define vf_loadu _mm256_loadu_ps
#define vf_store _mm256_store_ps
#define vf_storeu _mm256_storeu_ps
#define vf_set1 _mm256_set1_ps
#define vf_add _mm256_add_ps

/* a * b + c.  Written out so that the sum stays in the register of c: with the intrinsic, gcc 12 puts
 * it into that of b, moves all accumulators around and runs out of registers. */
static inline __attribute__((always_inline)) __m256 vf_fma(__m256 a, __m256 b, __m256 c)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}

static inline __attribute__((always_inline)) __m256 vf_load_f16(const char *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

static inline __attribute__((always_inline)) __m256 vf_load_bf16(const char *p)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}

/* Even outputs in one register, odd ones in the other: one load and two operations for a line.  The
 * mask stays in memory, since with 6 rows all registers are taken. */
static const uint32_t odd_mask[8] __attribute__((aligned(32))) = {
    0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
};

static inline __attribute__((always_inline)) void vf_line_bf16(const char *p, __m256 *v)
{
    __m256i h = _mm256_load_si256((const __m256i *)(const void *)p), odd;
    __asm__("vpand %2, %1, %0" : "=x"(odd) : "x"(h), "m"(odd_mask));
    v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
    v[1] = _mm256_castsi256_ps(odd);
}

static inline __attribute__((always_inline)) void vf_order_bf16(__m256 *v)
{
    __m256 lo = _mm256_unpacklo_ps(v[0], v[1]), hi = _mm256_unpackhi_ps(v[0], v[1]);
    v[0] = _mm256_permute2f128_ps(lo, hi, 0x20);
    v[1] = _mm256_permute2f128_ps(lo, hi, 0x31);
}

#define MAX_ROWS 6
#define FOR_EACH_R(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define MAX_PANELS 1
#define FOR_EACH_TILE(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1)

#define FETCH_BYTES 16384u
/* With fewer rows the processor fetches better alone. */
#define FETCH_ROWS(bytes) ((bytes) == 4 ? 3u : 1u)
#define DIRECT_K 192u
#define FEW_GROUPS 16
#define CHUNK_K 256u
#define BLOCK_GROUPS 16u

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
