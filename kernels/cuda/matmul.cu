/* SPDX-License-Identifier: Apache-2.0 */
/* Products: neighbours of one type and layout go into one launch; the kernels are in matmul_*.cu. */
#include "kernels/cuda/matmul.cuh"

static bool quantised(enum dk_type t)
{
    return t != DK_F32 && t != DK_F16 && t != DK_BF16;
}

static int launch(dcu_stream s, const struct dcu_weight *w, dcu_mm_group *g,
                  const struct dcu_act *a)
{
    const unsigned char *mem = (const unsigned char *)a->mem;
    if (w->layout == DCU_LAYOUT_ROWS)
        return (int)cudaErrorInvalidValue;
    if (quantised(w->type)) {
        g->x = mem + dcu_form_at(a, DCU_FORM_INT);
        return dcu_matmul_quant(s, w->type, *g);
    }
    if (w->layout == DCU_LAYOUT_PANEL) {
        g->x = mem + dcu_form_at(a, DCU_FORM_F32);
        return dcu_matmul_panels(s, w->type, *g);
    }
    g->x = mem + dcu_form_at(a, w->type == DK_F16 ? DCU_FORM_F16 : DCU_FORM_BF16);
    g->scales = w->type == DK_F16 ? (const float *)(mem + dcu_f16_scales_at(a)) : nullptr;
    if (g->rows <= 8)
        return dcu_matmul_mma(s, w->type, *g);
    unsigned char *split = (unsigned char *)a->mem + dcu_form_at(a, DCU_FORM_END);
    return dcu_matmul_wide(s, w->type, *g,
                           (float *)(split + dcu_up(DCU_SPLIT_PLACES * 4, DCU_ACT_ALIGN)),
                           (uint32_t *)split);
}

extern "C" int dcu_matmul(dcu_stream s, const struct dcu_mm *mm, unsigned n_mm,
                          const struct dcu_act *act, uint32_t rows)
{
    if (rows == 0)
        return 0;
    for (unsigned i = 0, j; i < n_mm; i = j) {
        dcu_mm_group g = {};
        g.k = mm[i].w.k;
        g.rows = rows;
        for (j = i; j < n_mm && j - i < DCU_MM_MAX; j++) {
            const struct dcu_weight *w = &mm[j].w;
            if (w->type != mm[i].w.type || w->layout != mm[i].w.layout || w->k != g.k)
                break;
            g.panels += (w->n + DCU_PANEL - 1) / DCU_PANEL;
            g.w[j - i] = (const unsigned char *)w->data;
            g.y[j - i] = mm[j].y;
            g.ldy[j - i] = mm[j].ldy;
            g.n[j - i] = w->n;
            g.end[j - i] = g.panels;
            g.flags[j - i] = mm[j].flags;
        }
        for (unsigned m = j - i; m < DCU_MM_MAX; m++)
            g.end[m] = g.panels;
        int r = launch(s, &mm[i].w, &g, act);
        if (r)
            return r;
    }
    return 0;
}
