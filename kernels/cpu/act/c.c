/* SPDX-License-Identifier: Apache-2.0 */
/* Float activations, portable. */
#include "kernels/cpu/act/float.h"

DK_DECLARE_ACT(dk_cpu_act_float_c)
{
    if (forms & DK_FORM_F32)
        dk_act_fill_f32(a, x, ldx, row0, row1, 1);
    if (forms & DK_FORM_BF16) {
        for (uint32_t r = row0; r < row1; r++) {
            size_t step;
            uint16_t *d = dk_act_bf16_row(a, r, &step);
            for (uint32_t k = 0; k < a->k; k += 32, d += step)
                for (uint32_t i = 0; i < 32; i++)
                    d[i] = k + i < a->k ? dk_f32_to_bf16(x[r * ldx + k + i]) : 0;
        }
    }
}
