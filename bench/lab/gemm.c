/* SPDX-License-Identifier: Apache-2.0 */
/* Training's products: GFLOP/s and share of the FMA peak, by form, one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/train.h"

static double seconds(void)
{
    return (double)clock_now_ns() * 1e-9;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t rows, out, in;
    } shapes[] = {{"q", 2048, 576, 576},  {"gate", 2048, 1536, 576}, {"down", 2048, 576, 1536},
                  {"kv", 2048, 192, 576}, {"head", 256, 8192, 576},  {"fc", 2400, 576, 2880}};
    enum dk_tier tier = dk_tier_best();
    const struct dk_train_ops *t;
    unsigned flags = argc > 2 && !strcmp(argv[2], "bf16") ? DK_GEMM_BF16 : 0;
    if (argc > 1 && !dk_tier_parse(argv[1], &tier))
        return 2;
    t = dk_train_ops(tier);
    void *scratch = mem_aligned(64, DK_GEMM_SCRATCH);
    const size_t most = (size_t)16 << 20;
    float *x = mem_aligned(64, most * 4), *y = mem_aligned(64, most * 4),
          *w = mem_aligned(64, most * 4);
    if (!t || !scratch || !x || !y || !w)
        return 1;
    for (size_t i = 0; i < most; i++)
        x[i] = y[i] = w[i] = (float)(i % 97) * 0.01f - 0.5f;
    double peak = 0;
    for (int i = 0; i < 5; i++) {
        double t0 = seconds(), n = t->fma_peak(2000000, flags), rate = n / (seconds() - t0);
        peak = rate > peak ? rate : peak;
    }
    printf("%s%s, peak %.1f GFLOP/s\n", dk_tier_name(tier), flags ? " bf16" : "", peak * 1e-9);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const uint32_t r = shapes[i].rows, o = shapes[i].out, n = shapes[i].in;
        struct dk_gemm g[3] = {{.m = r,
                                .n = o,
                                .k = n,
                                .a = x,
                                .a_row = n,
                                .a_col = 1,
                                .b = w,
                                .b_row = 1,
                                .b_col = n,
                                .c = y,
                                .ldc = o},
                               {.m = r,
                                .n = n,
                                .k = o,
                                .a = y,
                                .a_row = o,
                                .a_col = 1,
                                .b = w,
                                .b_row = n,
                                .b_col = 1,
                                .c = x,
                                .ldc = n},
                               {.m = o,
                                .n = n,
                                .k = r,
                                .flags = DK_GEMM_ADD,
                                .a = y,
                                .a_row = 1,
                                .a_col = o,
                                .b = x,
                                .b_row = n,
                                .b_col = 1,
                                .c = w,
                                .ldc = n}};
        printf("%-6s", shapes[i].name);
        for (int f = 0; f < 3; f++) {
            double best = 0;
            g[f].flags |= flags;
            for (int k = 0; k < 5; k++) {
                double t0 = seconds();
                t->gemm(&g[f], scratch);
                double rate = 2.0 * r * o * n / (seconds() - t0);
                best = rate > best ? rate : best;
            }
            printf("  %6.1f (%.2f)", best * 1e-9, best / peak);
        }
        printf("\n");
    }
    return 0;
}
