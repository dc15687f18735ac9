/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inverse frequencies in double arithmetic of our own, rounded to binary32 once, so that they are
 * the same bits on every machine.
 */
#include "engine/rope.h"

#include <stdint.h>
#include <string.h>

#define LN2_HI 6.93147180369123816490e-01 /* 33 bits */
#define LN2_LO 1.90821492927058770002e-10

/* ln(x) for a normal x > 0: x = m 2^e with m in [sqrt 1/2, sqrt 2), ln m = 2 atanh((m-1)/(m+1)). */
static double log_own(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof(u));
    int e = (int)(u >> 52 & 0x7ff) - 1023;
    u = (u & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &u, sizeof(m));
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
    for (int i = 25; i >= 1; i -= 2)
        sum = sum * s2 + 1.0 / i;
    return e * LN2_HI + (e * LN2_LO + 2.0 * s * sum);
}

/* e^x for |x| < 700: 2^n e^r, |r| <= ln 2 / 2, Taylor to r^15. */
static double exp_own(double x)
{
    int n = (int)(x / (LN2_HI + LN2_LO) + (x < 0 ? -0.5 : 0.5));
    double r = x - n * LN2_HI - n * LN2_LO, sum = 1.0;
    for (int i = 15; i >= 1; i--)
        sum = 1.0 + r / i * sum;
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double scale;
    memcpy(&scale, &u, sizeof(scale));
    return sum * scale;
}

/* Llama 3: long wavelengths are stretched by the factor, short ones kept, with a ramp between. */
static double scale_llama3(const struct model_config *c, double f)
{
    const double two_pi = 6.283185307179586477;
    double old = c->rope_original_context, wave = two_pi / f;
    if (wave < old / c->rope_high_freq_factor)
        return f;
    if (wave > old / c->rope_low_freq_factor)
        return f / c->rope_factor;
    double s = (old / wave - c->rope_low_freq_factor) /
               (c->rope_high_freq_factor - c->rope_low_freq_factor);
    return (1.0 - s) * f / c->rope_factor + s * f;
}

void rope_inv_freq(const struct model_config *c, float *ret)
{
    double ln_theta = log_own(c->rope_theta);
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        double f = exp_own(-(2.0 * i / c->head_dim) * ln_theta);
        if (c->rope_scaling == ROPE_SCALING_LINEAR)
            f /= c->rope_factor;
        else if (c->rope_scaling == ROPE_SCALING_LLAMA3)
            f = scale_llama3(c, f);
        if (c->rope_freq_factors)
            f /= (double)c->rope_freq_factors[i];
        ret[i] = (float)f;
    }
}
