/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block formats, one block of 32 inputs at a time, and its values.  This is the specification
 * that packing, look-up, dequantisation and the portable product share.
 */
#include "kernels/cpu/quant/block.h"

void dk_qblock_from_file(enum dk_type t, const uint8_t *row, uint32_t block, struct dk_qblock *ret)
{
    DK_QTYPE_SWITCH(t, dk_qblock_file, row, block, ret)
}

void dk_qblock_from_panel(enum dk_type t, const uint8_t *panel, uint32_t block, uint32_t output,
                          struct dk_qblock *ret)
{
    DK_QTYPE_SWITCH(t, dk_qblock_panel, panel, block, output, ret)
}

void dk_qblock_scales(enum dk_type t, const struct dk_qblock *b, float dw[2], float *mw)
{
    struct dk_qgeom g = dk_qgeom(t);
    float d = dk_f16_to_f32(b->d), m = dk_f16_to_f32(b->m);
    dw[0] = dw[1] = d;
    *mw = m;
    if (g.group != 8)
        return;
    if (g.kind == DK_QK_SUB) {
        dw[0] = d * (float)(int8_t)b->sc[0];
        dw[1] = d * (float)(int8_t)b->sc[1];
        *mw = 0;
    } else {
        dw[0] = dw[1] = d * (float)b->sc[0];
        *mw = -m * (float)b->mn;
    }
}

DK_INLINE void values(enum dk_type t, const struct dk_qblock *b, float out[32])
{
    struct dk_qgeom g = dk_qgeom(t);
    float dw[2], mw;
    dk_qblock_scales(t, b, dw, &mw);
    int zero = g.kind == DK_QK_MIN ? 0 : 1 << g.zero_shift;
    for (unsigned h = 0; h < 2; h++) {
        for (unsigned i = 16 * h; i < 16 * h + 16; i++) {
            float v = dw[h] * (float)(b->u[i] - zero);
            out[i] = g.kind == DK_QK_MIN ? v + mw : v;
        }
    }
}

void dk_qblock_values(enum dk_type t, const struct dk_qblock *b, float out[32])
{
    DK_QTYPE_SWITCH(t, values, b, out)
}
