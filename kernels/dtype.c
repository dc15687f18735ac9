/* SPDX-License-Identifier: Apache-2.0 */
/* Weight types: names, block sizes, and the scalar conversions between binary32 and the two 16-bit
 * formats.  Integer arithmetic only: nothing here depends on the floating-point environment. */
#include <string.h>

#include "kernels/kernels.h"

static const struct dk_type_info infos[DK_TYPE_COUNT] = {
    [DK_F32] = {"F32", 1, 4, false},       [DK_F16] = {"F16", 1, 2, false},
    [DK_BF16] = {"BF16", 1, 2, false},     [DK_Q8_0] = {"Q8_0", 32, 34, true},
    [DK_Q4_0] = {"Q4_0", 32, 18, true},    [DK_Q4_1] = {"Q4_1", 32, 20, true},
    [DK_Q5_0] = {"Q5_0", 32, 22, true},    [DK_Q5_1] = {"Q5_1", 32, 24, true},
    [DK_Q4_K] = {"Q4_K", 256, 144, true},  [DK_Q5_K] = {"Q5_K", 256, 176, true},
    [DK_Q6_K] = {"Q6_K", 256, 210, true},
};

const struct dk_type_info *dk_type_info(enum dk_type t)
{
    return &infos[t];
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t dk_f32_to_bf16(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* quiet, and never turned into an infinity */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float dk_bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

uint16_t dk_f32_to_f16(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* 65520: halfway between the largest number and the next power of two */
        return (uint16_t)(sign | 0x7c00);
    if (a >= 0x38800000) { /* 2^-14: a normal result */
        uint32_t r = a - 0x38000000;
        return (uint16_t)(sign | (r + 0xfff + (r >> 13 & 1)) >> 13);
    }
    if (a <= 0x33000000) /* 2^-25: halfway to the smallest denormal, ties to even */
        return (uint16_t)sign;
    /* value = m * 2^(e - 150) = q * 2^-24, so q = m >> (126 - e), rounded to even */
    uint32_t e = a >> 23, m = (a & 0x7fffff) | 0x800000, shift = 126 - e;
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    return (uint16_t)(sign | q);
}

float dk_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 31) /* a NaN comes out quiet, as the conversion instruction makes it */
        return float_of(sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0));
    if (e)
        return float_of(sign | (e + 112) << 23 | m << 13);
    if (!m)
        return float_of(sign);
    uint32_t lead = 31 - (uint32_t)__builtin_clz(m); /* m * 2^-24 = 1.x * 2^(lead - 24) */
    return float_of(sign | (lead + 103) << 23 | (m << (23 - lead) & 0x7fffff));
}
