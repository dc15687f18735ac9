/* SPDX-License-Identifier: Apache-2.0 */
/* binary16 for the runner: storage and conversions, rounding to nearest even. */
#pragma once

#include "cuemu.h"

struct __half_raw {
    unsigned short x;
};
struct __half {
    unsigned short x;
};
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half h)
{
    unsigned sign = (unsigned)(h.x & 0x8000) << 16, e = h.x >> 10 & 31, m = h.x & 1023;
    if (e == 31)
        return __uint_as_float(sign | 0x7f800000u | m << 13);
    if (e)
        return __uint_as_float(sign | (e + 112) << 23 | m << 13);
    float f = (float)m * 0x1p-24f;
    return sign ? -f : f;
}
static inline __half __float2half_rn(float f)
{
    unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return {0x7fff};
    if (a >= 0x477ff000u) /* 65520 and more */
        return {(unsigned short)(sign | 0x7c00)};
    if (a < 0x38800000u) { /* below 2^-14: units of 2^-24 */
        float units = __builtin_rintf(__uint_as_float(a) * 0x1p24f);
        return {(unsigned short)(sign | (unsigned)units)};
    }
    a += 0xfff + (a >> 13 & 1);
    return {(unsigned short)(sign | ((a >> 13) - (112u << 10)))};
}
static inline __half __float2half(float f)
{
    return __float2half_rn(f);
}
static inline __half2 __floats2half2_rn(float a, float b)
{
    return {__float2half_rn(a), __float2half_rn(b)};
}
static inline float2 __half22float2(__half2 v)
{
    return {__half2float(v.x), __half2float(v.y)};
}
static inline unsigned short __half_as_ushort(__half h)
{
    return h.x;
}
static inline __half __ushort_as_half(unsigned short x)
{
    return {x};
}
