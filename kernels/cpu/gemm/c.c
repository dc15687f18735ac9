/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices in memory: the definition. */
#include "kernels/cpu/train/internal.h"
#include "kernels/fma.h"

void dk_cpu_gemm_c(const struct dk_gemm *g, void *scratch)
{
    (void)scratch;
    for (uint32_t i = 0; i < g->m; i++) {
        const float *a = g->a + i * g->a_row;
        float *c = g->c + i * g->ldc;
        for (uint32_t j = 0; j < g->n; j++) {
            const float *b = g->b + j * g->b_col;
            float acc = g->flags & DK_GEMM_ADD ? c[j] : 0.0f;
            for (uint32_t l = 0; l < g->k; l++)
                acc = dk_fmaf(a[l * g->a_col], b[l * g->b_row], acc);
            c[j] = acc;
        }
    }
}
