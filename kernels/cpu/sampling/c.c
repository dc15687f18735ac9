/* SPDX-License-Identifier: Apache-2.0 */
/* Argmax, log-sum-exp and Gumbel noise, portable: the definitions. */
#include "kernels/cpu/internal.h"
#include "kernels/math.h"

uint32_t dk_cpu_argmax_c(const float *x, uint32_t n, float *ret_max, bool *ret_bad)
{
    const float inf = __builtin_inff();
    float best = -inf;
    uint32_t id = 0;
    bool bad = false;
    for (uint32_t i = 0; i < n; i++) {
        bad |= !(x[i] < inf);
        if (x[i] > best) {
            best = x[i];
            id = i;
        }
    }
    *ret_max = best;
    *ret_bad = bad || best == -inf;
    return id;
}

float dk_cpu_logsumexp_c(const float *x, uint32_t n, float max)
{
    float lane[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lane[i % 16] += dk_exp_def(x[i] - max);
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return dk_log_def(lane[0]) + max;
}

void dk_cpu_gumbel_c(float *out, const uint32_t key[2], const uint32_t ctr[3], uint32_t v0,
                     uint32_t n)
{
    uint32_t word[4];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = v0 + i;
        if (i == 0 || v % 4 == 0)
            dk_philox4x32_10((const uint32_t[4]){v / 4, ctr[0], ctr[1], ctr[2]}, key, word);
        out[i] = dk_gumbelf(word[v % 4]);
    }
}
