/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 activations, AVX-512.  Integer rounding: the instruction that converts would flush denormals. */
#include <immintrin.h>

#include "kernels/cpu/act/float.h"

/* 16 numbers, rounded to nearest even; a NaN keeps its sign and stays one. */
static __m256i round_16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), even);
    __m512i r = _mm512_mask_or_epi32(_mm512_srli_epi32(sum, 16), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                     high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
}

DK_DECLARE_ACT(dk_cpu_act_bf16_avx512)
{
    (void)forms;
    for (uint32_t r = row0; r < row1; r++) {
        size_t step;
        uint16_t *d = dk_act_bf16_row(a, r, &step);
        const float *s = x + r * ldx;
        for (uint32_t k = 0; k < a->k; k += 32, d += step) {
            for (uint32_t i = 0; i < 32; i += 16) {
                uint32_t left = a->k > k + i ? a->k - k - i : 0;
                __mmask16 m = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
                _mm256_storeu_si256((__m256i *)(void *)(d + i),
                                    round_16(_mm512_maskz_loadu_ps(m, s + k + i)));
            }
        }
    }
}
