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

/* What a lane's four results are made of: the four lanes that hold its rows, and for each of its two
 * columns the four lanes that hold it. */
struct operands {
    fragments a[4], b[2][4];
};

operands gather(const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    fragments mine;
    operands x;
    memcpy(mine.a, a, sizeof(mine.a));
    memcpy(mine.b, b, sizeof(mine.b));
    exchange(0xffffffffu, &mine, sizeof(mine), file, line);
    unsigned lane = self->linear & 31, g = lane / 4, t = lane % 4;
    for (unsigned j = 0; j < 4; j++) {
        memcpy(&x.a[j], exchanged(g * 4 + j), sizeof(x.a[j]));
        memcpy(&x.b[0][j], exchanged(t * 8 + j), sizeof(x.b[0][j]));
        memcpy(&x.b[1][j], exchanged(t * 8 + 4 + j), sizeof(x.b[1][j]));
    }
    return x;
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
    const operands x = gather(a, b, file, line);
    for (unsigned i = 0; i < 4; i++) {
        double s = (double)c[i];
        for (unsigned k = 0; k < 16; k++) {
            const fragments &fa = x.a[k % 8 / 2], &fb = x.b[i & 1][k % 8 / 2];
            s += (double)value(fa.a[(i >= 2) + 2 * (k >= 8)], k & 1) *
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
    const operands x = gather(a, b, file, line);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 32; k++) {
            const fragments &fa = x.a[k % 16 / 4], &fb = x.b[i & 1][k % 16 / 4];
            int av = (int8_t)(fa.a[(i >= 2) + 2 * (k >= 16)] >> 8 * (k & 3));
            int bv = (int8_t)(fb.b[k >= 16] >> 8 * (k & 3));
            c[i] = (int)((unsigned)c[i] + (unsigned)(av * bv));
        }
}
} // namespace cuemu
