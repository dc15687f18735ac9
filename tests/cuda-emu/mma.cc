/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warp matrix instructions, with the fragment layouts of the PTX ISA.  Products of 16-bit floats are
 * exact; their sum is taken in double and rounded once.  Devices round in another way, which is why
 * kernels that use them are compared within bounds, and with themselves.
 */
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"

namespace cuemu
{
namespace
{
struct fragments {
    uint32_t a[4], b[2];
};

fragments of(unsigned lane)
{
    fragments f;
    memcpy(&f, exchanged(lane), sizeof(f));
    return f;
}

float bf16(uint32_t pair, unsigned high)
{
    return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}
float f16(uint32_t pair, unsigned high)
{
    return __half2float({(unsigned short)(high ? pair >> 16 : pair & 0xffff)});
}

void mma_float(float c[4], const uint32_t a[4], const uint32_t b[2],
               float (*value)(uint32_t, unsigned), const char *file, int line)
{
    fragments x;
    memcpy(x.a, a, sizeof(x.a));
    memcpy(x.b, b, sizeof(x.b));
    exchange(0xffffffffu, &x, sizeof(x), file, line);
    unsigned lane = self->linear & 31, g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = g + (i >= 2 ? 8 : 0), col = t * 2 + (i & 1);
        double s = (double)c[i];
        for (unsigned k = 0; k < 16; k++) {
            fragments fa = of(row % 8 * 4 + k % 8 / 2), fb = of(col * 4 + k % 8 / 2);
            s += (double)value(fa.a[(row >= 8) + 2 * (k >= 8)], k & 1) *
                 (double)value(fb.b[k >= 8], k & 1);
        }
        c[i] = (float)s;
    }
}
} // namespace

void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    mma_float(c, a, b, bf16, file, line);
}

void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    mma_float(c, a, b, f16, file, line);
}

void mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    fragments x;
    memcpy(x.a, a, sizeof(x.a));
    memcpy(x.b, b, sizeof(x.b));
    exchange(0xffffffffu, &x, sizeof(x), file, line);
    unsigned lane = self->linear & 31, g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = g + (i >= 2 ? 8 : 0), col = t * 2 + (i & 1);
        for (unsigned k = 0; k < 32; k++) {
            fragments fa = of(row % 8 * 4 + k % 16 / 4), fb = of(col * 4 + k % 16 / 4);
            int av = (int8_t)(fa.a[(row >= 8) + 2 * (k >= 16)] >> 8 * (k & 3));
            int bv = (int8_t)(fb.b[k >= 16] >> 8 * (k & 3));
            c[i] = (int)((unsigned)c[i] + (unsigned)(av * bv));
        }
    }
}
} // namespace cuemu
