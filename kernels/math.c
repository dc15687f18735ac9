/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalar functions of kernels.h: exp, log, sine and cosine, one Philox block.
 *
 * Sine and cosine: double arithmetic without FMA, so that every compiler and CPU rounds alike.
 * n = nearest integer to 2a / pi, below 2^24 for |a| <= 2^24; pi/2 is cut into pieces of 28 bits,
 * whose products with n are exact.  The polynomials' errors (2^-58, 2^-64) vanish beside the final
 * rounding to binary32.
 */
#include "config.h"

#include "kernels/cpu/internal.h"
#include "kernels/math.h"

/* The FMA instruction where there is one: the same bits, several times faster. */
float dk_expf(float x)
{
#ifdef DEDIT_TIER_AVX2
    if (dk_cpu()->avx2)
        return dk_cpu_expf_avx2(x);
#endif
    return dk_exp_def(x);
}

float dk_logf(float x)
{
#ifdef DEDIT_TIER_AVX2
    if (dk_cpu()->avx2)
        return dk_cpu_logf_avx2(x);
#endif
    return dk_log_def(x);
}

/* pi/2 = P0 + P1 + P2 + rest below 2^-85 */
#define PIO2_0      0x1.921fb54000000p+0
#define PIO2_1      0x1.10b4610000000p-30
#define PIO2_2      0x1.a62633145c06ep-58
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define ROUND_MAGIC 0x1.8p52

/* Minimax on |r| <= pi/4 for (sin r - r) / r^3 and (cos r - 1 + r^2/2) / r^4 in r^2. */
static double sin_poly(double r)
{
    double z = r * r;
    double p = 1.5896794677218798e-10;
    p = p * z + -2.50507580967342e-08;
    p = p * z + 2.7557313691784897e-06;
    p = p * z + -0.00019841269829807363;
    p = p * z + 0.008333333333322413;
    p = p * z + -0.16666666666666632;
    return r + r * z * p;
}

static double cos_poly(double r)
{
    double z = r * r;
    double p = -1.1359647813562016e-11;
    p = p * z + 2.0875723273452675e-09;
    p = p * z + -2.755731435233497e-07;
    p = p * z + 2.4801587289482194e-05;
    p = p * z + -0.0013888888888874125;
    p = p * z + 0.0416666666666666;
    return 1.0 - 0.5 * z + z * z * p;
}

void dk_sincosf(float a, float *ret_sin, float *ret_cos)
{
    double x = (double)a;
    if (!(x >= -0x1p24 && x <= 0x1p24)) { /* NaN, infinities and angles beyond the promise */
        *ret_sin = *ret_cos = dk_f32_from_bits(0x7fc00000u);
        return;
    }
    double n = x * TWO_OVER_PI + ROUND_MAGIC - ROUND_MAGIC;
    double r = ((x - n * PIO2_0) - n * PIO2_1) - n * PIO2_2;
    double s = sin_poly(r), c = cos_poly(r);
    switch ((int32_t)n & 3) {
    case 0:
        break;
    case 1: {
        double t = s;
        s = c;
        c = -t;
        break;
    }
    case 2:
        s = -s;
        c = -c;
        break;
    default: {
        double t = s;
        s = -c;
        c = t;
        break;
    }
    }
    *ret_sin = x == 0 ? a : (float)s; /* keeps the sign of a zero */
    *ret_cos = (float)c;
}

void dk_philox4x32_10(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {ctr[0], ctr[1], ctr[2], ctr[3]}, k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c[0] * 0xd2511f53u, p1 = (uint64_t)c[2] * 0xcd9e8d57u;
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}
