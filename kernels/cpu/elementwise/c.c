/* SPDX-License-Identifier: Apache-2.0 */
/* Residual addition and SiLU gate, portable: the definitions. */
#include "kernels/cpu/internal.h"
#include "kernels/math.h"

void dk_cpu_add_c(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

void dk_cpu_silu_mul_c(float *out, const float *g, const float *u, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = g[i] / (1.0f + dk_exp_def(-g[i])) * u[i];
}
