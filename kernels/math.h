/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The project's own exp, log, sine, cosine, Philox block and Gumbel transform.  These scalar functions
 * are the definition; the vector forms in cpu/vmath.h follow them operation by operation, and CUDA
 * compiles them, so that every tier gives the same bits.  Error bounds: kernels/README.md.
 *
 * Coefficients: minimax (Remez) for the relative error on the reduced range, rounded to binary32.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/fma.h"

DK_FN uint32_t dk_f32_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

DK_FN float dk_f32_from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

/* exp: x = n ln2 + r, |r| <= ln2 / 2, exp(r) = 1 + r + r^2 (C2 + C3 r + ... + C6 r^4). */
#define DK_EXP_HI      89.0f   /* gives inf */
#define DK_EXP_LO      -104.0f /* gives 0 */
#define DK_LOG2E       0x1.715476p+0f
#define DK_ROUND_MAGIC 0x1.8p23f /* adding it leaves the nearest integer in the low bits */
#define DK_LN2_HI      0x1.62e43p-1f
#define DK_LN2_LO      -0x1.05c61p-29f
#define DK_EXP_C2      0x1.fffffcp-2f
#define DK_EXP_C3      0x1.555492p-3f
#define DK_EXP_C4      0x1.5558f2p-5f
#define DK_EXP_C5      0x1.123a2p-7f
#define DK_EXP_C6      0x1.6a23dp-10f

DK_FN float dk_exp_def(float x)
{
    x = DK_EXP_HI < x ? DK_EXP_HI : x; /* a NaN passes both */
    x = DK_EXP_LO > x ? DK_EXP_LO : x;
    float t = dk_fmaf(x, DK_LOG2E, DK_ROUND_MAGIC), n = t - DK_ROUND_MAGIC;
    float r = dk_fmaf(n, -DK_LN2_LO, dk_fmaf(n, -DK_LN2_HI, x));
    float p = dk_fmaf(DK_EXP_C6, r, DK_EXP_C5);
    p = dk_fmaf(p, r, DK_EXP_C4);
    p = dk_fmaf(p, r, DK_EXP_C3);
    p = dk_fmaf(p, r, DK_EXP_C2);
    p = dk_fmaf(p, r, 1.0f);
    p = dk_fmaf(p, r, 1.0f);
    /* p * 2^n in two factors, each a normal number: only the second product can round. */
    uint32_t k = dk_f32_bits(t) - dk_f32_bits(DK_ROUND_MAGIC);
    uint32_t k1 = (uint32_t)((int32_t)k >> 1), k2 = k - k1;
    return p * dk_f32_from_bits((k1 + 127) << 23) * dk_f32_from_bits((k2 + 127) << 23);
}

/* log: x = 2^k m, m in [2/3, 4/3), f = m - 1: k ln2 + f + f^2 (C0 + C1 f + ... + C8 f^8). */
#define DK_LOG_TWO_THIRDS 0x3f2aaaabu
#define DK_LOG_C0         -0.5000000120752892f
#define DK_LOG_C1         0.3333320843697142f
#define DK_LOG_C2         -0.24999717475973673f
#define DK_LOG_C3         0.2001074643914506f
#define DK_LOG_C4         -0.16682304767858064f
#define DK_LOG_C5         0.1400117928380226f
#define DK_LOG_C6         -0.12167170102243727f
#define DK_LOG_C7         0.14004669708164974f
#define DK_LOG_C8         -0.1294888788585452f

DK_FN float dk_log_core(float f, float k)
{
    float p = dk_fmaf(DK_LOG_C8, f, DK_LOG_C7);
    p = dk_fmaf(p, f, DK_LOG_C6);
    p = dk_fmaf(p, f, DK_LOG_C5);
    p = dk_fmaf(p, f, DK_LOG_C4);
    p = dk_fmaf(p, f, DK_LOG_C3);
    p = dk_fmaf(p, f, DK_LOG_C2);
    p = dk_fmaf(p, f, DK_LOG_C1);
    p = dk_fmaf(p, f, DK_LOG_C0);
    return dk_fmaf(k, DK_LN2_HI, dk_fmaf(p, f * f, f));
}

/* Splits a positive normal number into *ret_m and the exponent. */
DK_FN float dk_log_split(float x, float *ret_m)
{
    uint32_t ix = dk_f32_bits(x) - DK_LOG_TWO_THIRDS;
    *ret_m = dk_f32_from_bits((ix & 0x7fffffu) + DK_LOG_TWO_THIRDS);
    return (float)((int32_t)ix >> 23);
}

DK_FN float dk_log_def(float x)
{
    if (!(x > 0))
        return x < 0 ? dk_f32_from_bits(0x7fc00000u) : x == 0 ? -__builtin_inff() : x;
    if (x == __builtin_inff())
        return x;
    float k0 = 0, m;
    if (x < 0x1p-126f) {
        x *= 0x1p23f;
        k0 = -23;
    }
    float k = dk_log_split(x, &m) + k0;
    return dk_log_core(m - 1.0f, k);
}

/* Standard Gumbel variable of one random word; see dk_ops.gumbel. */
DK_FN float dk_gumbelf(uint32_t word)
{
    float lo = ((float)(word & 0xffffu) + 0.5f) * 0x1p-32f, m;
    float w = dk_fmaf((float)(word >> 16), 0x1p-16f, lo);
    w = 0x1.fffffep-1f < w ? 0x1.fffffep-1f : w;
    float k = dk_log_split(1.0f - w, &m);
    float e = -dk_log_core(k == 0 ? -w : m - 1.0f, k); /* 2^-33 .. 16.7 */
    k = dk_log_split(e, &m);
    return -dk_log_core(m - 1.0f, k);
}

/*
 * Sine and cosine: double arithmetic without FMA, so that every compiler and CPU rounds alike.
 * n = nearest integer to 2a / pi, below 2^24 for |a| <= 2^24; pi/2 is cut into pieces of 28 bits,
 * whose products with n are exact.  The polynomials' errors (2^-58, 2^-64) vanish beside the final
 * rounding to binary32.
 */
/* pi/2 = P0 + P1 + P2 + rest below 2^-85 */
#define DK_PIO2_0        0x1.921fb54000000p+0
#define DK_PIO2_1        0x1.10b4610000000p-30
#define DK_PIO2_2        0x1.a62633145c06ep-58
#define DK_TWO_OVER_PI   0x1.45f306dc9c883p-1
#define DK_ROUND_MAGIC_D 0x1.8p52

/* Minimax on |r| <= pi/4 for (sin r - r) / r^3 and (cos r - 1 + r^2/2) / r^4 in r^2. */
DK_FN double dk_sin_poly(double r)
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

DK_FN double dk_cos_poly(double r)
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

DK_FN void dk_sincos_def(float a, float *ret_sin, float *ret_cos)
{
    double x = (double)a;
    if (!(x >= -0x1p24 && x <= 0x1p24)) { /* NaN, infinities and angles beyond the promise */
        *ret_sin = *ret_cos = dk_f32_from_bits(0x7fc00000u);
        return;
    }
    double n = x * DK_TWO_OVER_PI + DK_ROUND_MAGIC_D - DK_ROUND_MAGIC_D;
    double r = ((x - n * DK_PIO2_0) - n * DK_PIO2_1) - n * DK_PIO2_2;
    double s = dk_sin_poly(r), c = dk_cos_poly(r);
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

/* One Philox4x32-10 block (Salmon et al., SC 2011). */
DK_FN void dk_philox_def(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
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
