/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with block-quantised weights, the specification.  Per output and row, blocks of 32
 * inputs ascending, u, dw, mw of the weight's block and q, d, sum of the activation's:
 *   isum = sum of (u - zero) * q                                an exact integer
 *   acc  = fma(dw * d, (float)isum, acc)                        Q6_K: inputs 0-15, then 16-31
 *   acc  = fma(mw, sum, acc)                                    types with a minimum
 * |isum| <= 32 * 128 * 522231 < 2^31, and so is every partial sum; its conversion to float rounds to
 * nearest even.
 */
#include "kernels/cpu/quant/layout.h"
#include "kernels/fma.h"

struct unpacked {
    int16_t w[DK_PANEL][32];
    float dw[DK_PANEL][2], mw[DK_PANEL];
};

static void unpack(enum dk_type t, const uint8_t *panel, uint32_t block, struct unpacked *ret)
{
    struct dk_qgeom g = dk_qgeom(t);
    int zero = g.kind == DK_QK_MIN ? 0 : 1 << g.zero_shift;
    for (unsigned o = 0; o < DK_PANEL; o++) {
        struct dk_qblock b;
        dk_qblock_from_panel(t, panel, block, o, &b);
        dk_qblock_scales(t, &b, ret->dw[o], &ret->mw[o]);
        for (unsigned i = 0; i < 32; i++)
            ret->w[o][i] = (int16_t)(b.u[i] - zero);
    }
}

static int32_t dot16(const int16_t *w, const int16_t *q, const int8_t *low)
{
    int32_t s = 0, t = 0;
    for (unsigned i = 0; i < 16; i++) {
        s += w[i] * q[i];
        t += w[i] * low[i];
    }
    return 16 * s + t;
}

/* One block of one row into 16 accumulators. */
static void step(enum dk_qkind kind, const struct unpacked *u, const struct dk_qact *q, float *acc)
{
    for (unsigned o = 0; o < DK_PANEL; o++) {
        int32_t s0 = dot16(u->w[o], q->words.w, q->words.low);
        int32_t s1 = dot16(u->w[o] + 16, q->words.w + 16, q->words.low + 16);
        float a = acc[o];
        if (kind == DK_QK_SUB) {
            a = dk_fmaf(u->dw[o][0] * q->d, (float)s0, a);
            a = dk_fmaf(u->dw[o][1] * q->d, (float)s1, a);
        } else {
            a = dk_fmaf(u->dw[o][0] * q->d, (float)(s0 + s1), a);
            if (kind == DK_QK_MIN)
                a = dk_fmaf(u->mw[o], q->sum, a);
        }
        acc[o] = a;
    }
}

#define ROWS_AT_ONCE (DK_SCRATCH_BYTES / (DK_PANEL * sizeof(float)))

DK_DECLARE_MATMUL(dk_cpu_matmul_quant_c)
{
    const struct dk_weight *w = mm->w;
    enum dk_type t = w->type;
    enum dk_qkind kind = dk_qgeom(t).kind;
    uint32_t blocks = w->k / DK_QBLOCK;
    const struct dk_qact *q = dk_act_int(a);
    float(*acc)[DK_PANEL] = scratch;
    for (uint32_t r0 = 0; r0 < a->rows; r0 += ROWS_AT_ONCE) {
        uint32_t rn = a->rows - r0 < ROWS_AT_ONCE ? a->rows - r0 : (uint32_t)ROWS_AT_ONCE;
        for (uint32_t p = panel0; p < panel1; p++) {
            const uint8_t *panel = (const uint8_t *)w->data + p * dk_qpanel_bytes(t, blocks);
            for (uint32_t r = 0; r < rn; r++)
                for (unsigned o = 0; o < DK_PANEL; o++)
                    acc[r][o] = 0;
            for (uint32_t b = 0; b < blocks; b++) {
                struct unpacked u;
                unpack(t, panel, b, &u);
                for (uint32_t r = 0; r < rn; r++)
                    step(kind, &u, q + dk_qact_at(a->rows, blocks, r0 + r, b), acc[r]);
            }
            uint32_t outs = w->n - p * DK_PANEL < DK_PANEL ? w->n - p * DK_PANEL : DK_PANEL;
            for (uint32_t r = 0; r < rn; r++) {
                float *y = mm->y + (r0 + r) * mm->ldy + (size_t)p * DK_PANEL;
                for (uint32_t o = 0; o < outs; o++)
                    y[o] = mm->flags & DK_MM_ADD ? y[o] + acc[r][o] : acc[r][o];
            }
        }
    }
}
