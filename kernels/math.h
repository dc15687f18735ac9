/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The project's own exp, log and Gumbel transform.  These scalar functions are the definition; the
 * vector forms in cpu/vmath.h follow them operation by operation, so that every tier gives the same
 * bits.  Error bounds: kernels/README.md.
 *
 * Coefficients: minimax (Remez) for the relative error on the reduced range, rounded to binary32.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/fma.h"

static inline uint32_t dk_f32_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline float dk_f32_from_bits(uint32_t b)
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

static inline float dk_exp_def(float x)
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

static inline float dk_log_core(float f, float k)
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
static inline float dk_log_split(float x, float *ret_m)
{
    uint32_t ix = dk_f32_bits(x) - DK_LOG_TWO_THIRDS;
    *ret_m = dk_f32_from_bits((ix & 0x7fffffu) + DK_LOG_TWO_THIRDS);
    return (float)((int32_t)ix >> 23);
}

static inline float dk_log_def(float x)
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
static inline float dk_gumbelf(uint32_t word)
{
    float lo = ((float)(word & 0xffffu) + 0.5f) * 0x1p-32f, m;
    float w = dk_fmaf((float)(word >> 16), 0x1p-16f, lo);
    w = 0x1.fffffep-1f < w ? 0x1.fffffep-1f : w;
    float k = dk_log_split(1.0f - w, &m);
    float e = -dk_log_core(k == 0 ? -w : m - 1.0f, k); /* 2^-33 .. 16.7 */
    k = dk_log_split(e, &m);
    return -dk_log_core(m - 1.0f, k);
}
