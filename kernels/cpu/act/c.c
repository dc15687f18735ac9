/* SPDX-License-Identifier: Apache-2.0 */
/* Float activations, portable. */
#include "kernels/cpu/act/float.h"

DK_DECLARE_ACT(dk_cpu_act_float_c)
{
    if (forms & DK_FORM_F32)
        dk_act_fill_f32(a, x, ldx, row0, row1, 1);
    if (forms & DK_FORM_BF16) {
        uint32_t kp = dk_pad_k(a->k, 32);
        for (uint32_t r = row0; r < row1; r++) {
            uint16_t *d = (uint16_t *)dk_act_bf16(a) + (size_t)r * kp;
            for (uint32_t k = 0; k < a->k; k++)
                d[k] = dk_f32_to_bf16(x[r * ldx + k]);
            memset(d + a->k, 0, (kp - a->k) * sizeof *d);
        }
    }
}
