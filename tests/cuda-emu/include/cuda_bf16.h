/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16 for the runner: storage and conversions, rounding to nearest even. */
#pragma once

#include "cuemu.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
struct __nv_bfloat16 {
    unsigned short x;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 h)
{
    return __uint_as_float((unsigned)h.x << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    unsigned u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return {0x7fff};
    return {(unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16(float f)
{
    return __float2bfloat16_rn(f);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return {__bfloat162float(v.x), __bfloat162float(v.y)};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.x;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x)
{
    return {x};
}
