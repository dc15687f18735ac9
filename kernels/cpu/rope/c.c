/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding, portable: the definition. */
#include "kernels/cpu/internal.h"
#include "kernels/fma.h"

void dk_cpu_rope_c(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs,
                   enum dk_rope_pairing pairing)
{
    uint32_t half = head_dim / 2;
    uint32_t step = pairing == DK_ROPE_HALVES ? 1 : 2, apart = pairing == DK_ROPE_HALVES ? half : 1;
    for (uint32_t h = 0; h < n_heads; h++, x += head_dim)
        for (uint32_t i = 0; i < half; i++) {
            float *a = x + i * step, *b = a + apart, c = cs[i], s = cs[half + i];
            float ra = dk_fmaf(-*b, s, *a * c), rb = dk_fmaf(*b, c, *a * s);
            *a = ra;
            *b = rb;
        }
}
