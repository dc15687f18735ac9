/* SPDX-License-Identifier: Apache-2.0 */
/* The AMX BF16 class, portable: the loop that follows TDPBF16PS bit for bit. */
#include "kernels/cpu/amx_ref.h"
#include "kernels/cpu/act/float.h"

DK_DECLARE_MATMUL(dk_cpu_matmul_bf16_amx_ref)
{
    (void)scratch;
    uint32_t kp = dk_pad_k(mm->w->k, 32);
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint16_t *w = (const uint16_t *)mm->w->data + (size_t)p * kp * DK_PANEL;
        uint32_t o0 = p * DK_PANEL, n = mm->w->n - o0 < DK_PANEL ? mm->w->n - o0 : DK_PANEL;
        for (uint32_t r = 0; r < a->rows; r++) {
            size_t step;
            const uint16_t *x0 = dk_act_bf16_row(a, r, &step);
            float *y = mm->y + r * mm->ldy + o0;
            for (uint32_t o = 0; o < n; o++) {
                const uint16_t *x = x0;
                float acc = 0;
                for (uint32_t k = 0; k < kp; k += 32, x += step)
                    acc = dk_tdp_element(acc, x, w + (size_t)k * DK_PANEL + 2 * o, 2 * DK_PANEL);
                y[o] = mm->flags & DK_MM_ADD ? y[o] + acc : acc;
            }
        }
    }
}
