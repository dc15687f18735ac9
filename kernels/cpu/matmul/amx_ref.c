/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AMX BF16 class, portable: the loop that follows TDPBF16PS bit for bit.
 *
 * The instruction, for each 32 inputs: two sums from zero, one of the even and one of the odd inputs,
 * by fused multiply-adds in ascending order; their sum; and that added to the accumulator.  Round to
 * nearest even throughout, denormal operands read as zero and tiny results flushed to a zero of the
 * same sign, whatever MXCSR says.
 */
#include "kernels/cpu/act/float.h"
#include "kernels/fma.h"

/* Results below this, had the exponent no lower end, would round to less than 2^-126. */
#define TINY (0x1p-126 - 0x1p-151)

/* Rounds the value that s stands for (exact, or rounded to odd) to binary32, flushing. */
static float flush(double s)
{
    if (s > -TINY && s < TINY)
        return s < 0 || (s == 0 && __builtin_signbit(s)) ? -0.0f : 0.0f;
    return (float)s;
}

/* A BF16 operand with denormals read as zero. */
static float operand(uint16_t h)
{
    return dk_bf16_to_f32(h & 0x7f80 ? h : h & 0x8000);
}

static float add(float a, float b)
{
    return flush(dk_fma_odd(a, 1.0f, b));
}

DK_DECLARE_MATMUL(dk_cpu_matmul_bf16_amx_ref)
{
    (void)scratch;
    uint32_t kp = dk_pad_k(mm->w->k, 32);
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint16_t *w = (const uint16_t *)mm->w->data + (size_t)p * kp * DK_PANEL;
        uint32_t o0 = p * DK_PANEL, n = mm->w->n - o0 < DK_PANEL ? mm->w->n - o0 : DK_PANEL;
        for (uint32_t r = 0; r < a->rows; r++) {
            size_t step;
            const uint16_t *x0 = dk_act_bf16_row(a, r, &step);
            float *y = mm->y + r * mm->ldy + o0;
            for (uint32_t o = 0; o < n; o++) {
                const uint16_t *x = x0;
                float acc = 0;
                for (uint32_t k = 0; k < kp; k += 32, x += step) {
                    float even = 0, odd = 0;
                    for (uint32_t i = 0; i < 32; i += 2) {
                        const uint16_t *pair = w + (size_t)(k + i) * DK_PANEL + 2 * o;
                        even = flush(dk_fma_odd(operand(x[i]), operand(pair[0]), even));
                        odd = flush(dk_fma_odd(operand(x[i + 1]), operand(pair[1]), odd));
                    }
                    acc = add(acc, add(even, odd));
                }
                y[o] = mm->flags & DK_MM_ADD ? y[o] + acc : acc;
            }
        }
    }
}
