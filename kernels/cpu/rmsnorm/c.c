/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm, portable: the definition. */
#include "kernels/cpu/internal.h"
#include "kernels/fma.h"

void dk_cpu_rmsnorm_c(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    float lane[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lane[i % 16] = dk_fmaf(x[i], x[i], lane[i % 16]);
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    float r = 1.0f / __builtin_sqrtf(lane[0] / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * r * w[i];
}
