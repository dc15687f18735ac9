/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused multiply-add for scalar code, correctly rounded on every machine and without libm.
 *
 * Where the compilation target has the instruction, it is used.  Elsewhere: the product of two
 * binary32 numbers is exact in binary64; its sum with the third is rounded to odd there (53 bits,
 * more than 24 + 2), so that the final rounding to binary32, denormals included, is the only one
 * that counts.
 */
#pragma once

#include <stdint.h>

/* The functions here and in math.h are device functions, too, where nvcc compiles them. */
#ifdef __CUDACC__
#define DK_FN static __host__ __device__ __forceinline__
#else
#define DK_FN static inline
#endif

/* a * b + c in binary64, rounded to odd: an inexact result gets an odd last bit. */
DK_FN double dk_fma_odd(float a, float b, float c)
{
    double p = (double)a * (double)b, d = (double)c;
    double s = p + d;
    /* Knuth's two-sum: the exact rest.  NaN when s is infinite or NaN; both tests below then fail. */
    double bb = s - p;
    double rest = (p - (s - bb)) + (d - bb);
    union {
        double f;
        int64_t i;
    } u;
    u.f = s;
    /* One step towards the exact value when s is even; |s| grows when rest and s agree in sign. */
    int64_t inexact = (rest > 0) | (rest < 0);
    int64_t up = ((rest > 0) == (s > 0)) ? 1 : -1;
    u.i += inexact & ~u.i & 1 ? up : 0;
    return u.f;
}

DK_FN float dk_fmaf(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return (float)dk_fma_odd(a, b, c);
#endif
}
