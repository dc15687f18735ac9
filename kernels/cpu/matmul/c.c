/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with float weights, portable: the definition.
 *
 * One chain of fused multiply-adds a (row, output), inputs ascending, over the padded length.  A
 * chunk of a panel is widened once and used for all rows; accumulators wait in scratch meanwhile,
 * which changes no bit.
 */
#include "kernels/cpu/act/float.h"
#include "kernels/fma.h"

#define CHUNK_K 256u
#define BLOCK_ROWS 2048u

struct scratch {
    float w[CHUNK_K][DK_PANEL];
    float acc[BLOCK_ROWS][DK_PANEL];
};
_Static_assert(sizeof(struct scratch) <= DK_SCRATCH_BYTES, "scratch");

static void widen(float *out, enum dk_type t, const void *data, size_t at, size_t n)
{
    const uint16_t *h = (const uint16_t *)data + at;
    if (t == DK_F32)
        memcpy(out, (const float *)data + at, n * sizeof *out);
    else if (t == DK_F16)
        for (size_t i = 0; i < n; i++)
            out[i] = dk_f16_to_f32(h[i]);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = dk_bf16_to_f32(h[i]);
}

static void chain(float acc[DK_PANEL], float w[][DK_PANEL], const float *x, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t o = 0; o < DK_PANEL; o++)
            acc[o] = dk_fmaf(w[k][o], x[k], acc[o]);
}

static void store(const struct dk_mm *mm, uint32_t row, uint32_t panel, const float acc[DK_PANEL])
{
    uint32_t o0 = panel * DK_PANEL, n = mm->w->n - o0 < DK_PANEL ? mm->w->n - o0 : DK_PANEL;
    float *y = mm->y + row * mm->ldy + o0;
    for (uint32_t o = 0; o < n; o++)
        y[o] = mm->flags & DK_MM_ADD ? y[o] + acc[o] : acc[o];
}

DK_DECLARE_MATMUL(dk_cpu_matmul_float_c)
{
    struct scratch *s = scratch;
    size_t kp = dk_pad_k(mm->w->k, DK_K_PAD);
    const float *x = dk_act_f32(a);
    for (uint32_t row0 = 0; row0 < a->rows; row0 += BLOCK_ROWS) {
        uint32_t rows = a->rows - row0 < BLOCK_ROWS ? a->rows - row0 : BLOCK_ROWS;
        for (uint32_t p = panel0; p < panel1; p++) {
            memset(s->acc, 0, rows * sizeof s->acc[0]);
            for (uint32_t k0 = 0; k0 < kp; k0 += CHUNK_K) {
                uint32_t kn = (uint32_t)(kp - k0 < CHUNK_K ? kp - k0 : CHUNK_K);
                widen(s->w[0], mm->w->type, mm->w->data, (p * kp + k0) * DK_PANEL,
                      (size_t)kn * DK_PANEL);
                for (uint32_t r = 0; r < rows; r++)
                    chain(s->acc[r], s->w, x + (row0 + r) * kp + k0, kn);
            }
            for (uint32_t r = 0; r < rows; r++)
                store(mm, row0 + r, p, s->acc[r]);
        }
    }
}
