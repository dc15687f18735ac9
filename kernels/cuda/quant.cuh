/* SPDX-License-Identifier: Apache-2.0 */
/* Block types as device code: the constants of kernels/cpu/quant/layout.h, and one output's words and
 * scales out of a packed panel. */
#pragma once

#include "kernels/cuda/common.cuh"

enum dcu_qkind { DCU_QK_ZERO, DCU_QK_MIN, DCU_QK_SUB };

template <int T> struct dcu_qtype {
    static constexpr bool big = T == DK_Q4_K || T == DK_Q5_K || T == DK_Q6_K; /* super-blocks */
    static constexpr int kind = T == DK_Q6_K ? DCU_QK_SUB
                                : T == DK_Q4_1 || T == DK_Q5_1 || T == DK_Q4_K || T == DK_Q5_K
                                    ? DCU_QK_MIN
                                    : DCU_QK_ZERO;
    static constexpr unsigned bits = T == DK_Q8_0                                   ? 8
                                     : T == DK_Q6_K                                 ? 6
                                     : T == DK_Q5_0 || T == DK_Q5_1 || T == DK_Q5_K ? 5
                                                                                    : 4;
    static constexpr int zero = kind == DCU_QK_MIN ? 0 : 1 << (bits - 1);
    static constexpr unsigned group = big ? 8 : kind == DCU_QK_ZERO ? 2 : 1;
    static constexpr unsigned scale_bytes = big ? 320 : 64;
    static constexpr unsigned quant_bytes = 64 * bits;
    static constexpr unsigned group_bytes = scale_bytes + group * quant_bytes;

    DCU_FN size_t panel_bytes(uint32_t blocks)
    {
        size_t groups = ((size_t)blocks + group - 1) / group;
        return groups * scale_bytes + (size_t)blocks * quant_bytes;
    }
    DCU_FN size_t group_at(uint32_t b)
    {
        return (size_t)(b / group) * group_bytes;
    }
    DCU_FN size_t quants_at(uint32_t b)
    {
        return group_at(b) + scale_bytes + (size_t)(b % group) * quant_bytes;
    }
};

/* Words of one output in a block: w[g] = inputs 4g .. 4g + 3 as unsigned bytes, g = l and 4 + l for
 * line l.  q: the block's quants + 4 * output.  Q8_0: signed bytes. */
template <int T>
DCU_FN void dcu_qwords(const unsigned char *q, unsigned l, uint32_t *lo, uint32_t *hi)
{
    using G = dcu_qtype<T>;
    if (G::bits == 8) {
        *lo = *(const uint32_t *)(q + 64 * l) ^ 0x80808080u;
        *hi = *(const uint32_t *)(q + 64 * (4 + l)) ^ 0x80808080u;
        return;
    }
    const uint32_t w = *(const uint32_t *)(q + 64 * l);
    *lo = w & 0x0f0f0f0fu;
    *hi = w >> 4 & 0x0f0f0f0fu;
    if (G::bits == 5) {
        const uint32_t p = *(const uint32_t *)(q + 256);
        *lo |= (p >> l & 0x01010101u) << 4;
        *hi |= (p >> (4 + l) & 0x01010101u) << 4;
    } else if (G::bits == 6) {
        *lo |= (*(const uint32_t *)(q + 256) >> 2 * l & 0x03030303u) << 4;
        *hi |= (*(const uint32_t *)(q + 320) >> 2 * l & 0x03030303u) << 4;
    }
}

/* What must be subtracted from dcu_qwords' values, in units of -sum of q. */
template <int T> struct dcu_qzero {
    static constexpr int value = T == DK_Q8_0 ? 0 : dcu_qtype<T>::zero;
};

struct dcu_qscales {
    float dw[2], mw;
};

/* Scales of one output in a block; group: where the block's group begins. */
template <int T>
DCU_FN dcu_qscales dcu_qscale(const unsigned char *group, uint32_t block, uint32_t output)
{
    using G = dcu_qtype<T>;
    dcu_qscales r;
    const uint16_t *h = (const uint16_t *)group;
    if (!G::big) {
        r.dw[0] = r.dw[1] = dcu_f16_to_f32(h[(G::group == 2 ? block % 2 * 16 : 0) + output]);
        r.mw = G::kind == DCU_QK_MIN ? dcu_f16_to_f32(h[16 + output]) : 0.0f;
        return r;
    }
    const unsigned char *sub = group + 64 + 32 * (block % 8) + output;
    const float d = dcu_f16_to_f32(h[output]);
    if (G::kind == DCU_QK_SUB) {
        r.dw[0] = d * (float)(signed char)sub[0];
        r.dw[1] = d * (float)(signed char)sub[16];
        r.mw = 0;
    } else {
        r.dw[0] = r.dw[1] = d * (float)sub[0];
        r.mw = -dcu_f16_to_f32(h[16 + output]) * (float)sub[16];
    }
    return r;
}

/* Calls f<type>(...) and returns its result. */
#define DCU_QTYPE_SWITCH(t, f, ...)                                                                \
    switch (t) {                                                                                   \
    case DK_Q8_0:                                                                                  \
        return f<DK_Q8_0>(__VA_ARGS__);                                                            \
    case DK_Q4_0:                                                                                  \
        return f<DK_Q4_0>(__VA_ARGS__);                                                            \
    case DK_Q4_1:                                                                                  \
        return f<DK_Q4_1>(__VA_ARGS__);                                                            \
    case DK_Q5_0:                                                                                  \
        return f<DK_Q5_0>(__VA_ARGS__);                                                            \
    case DK_Q5_1:                                                                                  \
        return f<DK_Q5_1>(__VA_ARGS__);                                                            \
    case DK_Q4_K:                                                                                  \
        return f<DK_Q4_K>(__VA_ARGS__);                                                            \
    case DK_Q5_K:                                                                                  \
        return f<DK_Q5_K>(__VA_ARGS__);                                                            \
    case DK_Q6_K:                                                                                  \
        return f<DK_Q6_K>(__VA_ARGS__);                                                            \
    case DK_F32:                                                                                   \
    case DK_F16:                                                                                   \
    case DK_BF16:                                                                                  \
    case DK_TYPE_COUNT:                                                                            \
        break;                                                                                     \
    }
