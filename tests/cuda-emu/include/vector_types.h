/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's small vectors, with its alignments: a misaligned access is one here too. */
#pragma once

#define CUEMU_VECTORS(T, name, a2, a4)                                                             \
    struct name##1                                                                                 \
    {                                                                                              \
        T x;                                                                                       \
    };                                                                                             \
    struct alignas(a2) name##2                                                                     \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    struct name##3                                                                                 \
    {                                                                                              \
        T x, y, z;                                                                                 \
    };                                                                                             \
    struct alignas(a4) name##4                                                                     \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline name##2 make_##name##2(T x, T y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline name##3 make_##name##3(T x, T y, T z)                                            \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }                                                                                              \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                       \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
CUEMU_VECTORS(signed char, char, 2, 4)
CUEMU_VECTORS(unsigned char, uchar, 2, 4)
CUEMU_VECTORS(short, short, 4, 8)
CUEMU_VECTORS(unsigned short, ushort, 4, 8)
CUEMU_VECTORS(int, int, 8, 16)
CUEMU_VECTORS(unsigned, uint, 8, 16)
CUEMU_VECTORS(float, float, 8, 16)
CUEMU_VECTORS(double, double, 16, 16)
CUEMU_VECTORS(long long, longlong, 16, 16)
CUEMU_VECTORS(unsigned long long, ulonglong, 16, 16)
#undef CUEMU_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
};
