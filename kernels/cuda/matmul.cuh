/* SPDX-License-Identifier: Apache-2.0 */
/* Up to three products of one type and layout that share a launch: panels one after another. */
#pragma once

#include "kernels/cuda/quant.cuh"

#define DCU_MM_MAX 3u

struct dcu_mm_group {
    const unsigned char *w[DCU_MM_MAX];
    float *y[DCU_MM_MAX];
    size_t ldy[DCU_MM_MAX];
    uint32_t n[DCU_MM_MAX];
    uint32_t end[DCU_MM_MAX]; /* panels up to and with member i */
    unsigned flags[DCU_MM_MAX];
    uint32_t k, rows, panels;
    const unsigned char *x; /* the form's area */
    const float *scales;    /* F16: 2^-e */
};

/* One panel of the group. */
struct dcu_mm_panel {
    const unsigned char *w; /* of the member, from its own panel 0 */
    float *y;               /* column 0 of the panel */
    size_t ldy;
    uint32_t panel; /* of the member */
    uint32_t outputs;
    bool add;
};

DCU_FN dcu_mm_panel dcu_mm_find(const dcu_mm_group &g, uint32_t panel)
{
    const uint32_t i = panel < g.end[0] ? 0 : panel < g.end[1] ? 1 : 2;
    const uint32_t p = i ? panel - g.end[i - 1] : panel;
    dcu_mm_panel r;
    r.w = g.w[i];
    r.y = g.y[i] + (size_t)p * DCU_PANEL;
    r.ldy = g.ldy[i];
    r.panel = p;
    r.outputs = dcu_min(g.n[i] - p * DCU_PANEL, DCU_PANEL);
    r.add = g.flags[i] & DK_MM_ADD;
    return r;
}

DCU_FN void dcu_mm_store(const dcu_mm_panel &p, uint32_t row, uint32_t rows, uint32_t o, float v)
{
    if (row >= rows || o >= p.outputs)
        return;
    float *y = p.y + row * p.ldy + o;
    *y = p.add ? *y + v : v;
}

int dcu_matmul_panels(dcu_stream s, enum dk_type t, const dcu_mm_group &g);
int dcu_matmul_mma(dcu_stream s, enum dk_type t, const dcu_mm_group &g);
/* More than eight rows; sums: groups * DCU_SPLIT_PLACES * DCU_SPLIT_SUMS, arrived: zeros. */
int dcu_matmul_wide(dcu_stream s, enum dk_type t, const dcu_mm_group &g, float *sums,
                    uint32_t *arrived);
int dcu_matmul_quant(dcu_stream s, enum dk_type t, const dcu_mm_group &g);
