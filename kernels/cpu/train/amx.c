/* SPDX-License-Identifier: Apache-2.0 */
/* Training kernels, AVX-512 with BF16 products on AMX tiles. */
#include <immintrin.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/train/body.h"

/* Six chains of tile products: enough to hide what one takes. */
static double tile_peak(uint64_t rounds, bool bf16)
{
    struct dk_tile_config c = {.palette = 1};
    if (!bf16)
        return dk_cpu_train_avx512.fma_peak(rounds, false);
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    dk_tile_configure(&c);
    /* Numbers of both signs around 1: tiles of zeros run up to a fifth faster. */
    uint16_t in[2][512];
    uint32_t x = 1;
    for (unsigned i = 0; i < 1024; i++, x = x * 1664525 + 1013904223)
        in[i / 512][i % 512] = (uint16_t)(0x3f00 + (x >> 24) + (x >> 8 & 0x8000));
    __asm__ volatile("" ::: "memory"); /* gcc 12 does not see that tile loads read */
    _tile_loadd(6, in[0], 64);
    _tile_loadd(7, in[1], 64);
    for (uint64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_release();
    return 6.0 * 2 * 16 * 16 * 32 * (double)rounds;
}

const struct dk_train_ops dk_cpu_train_amx = {.tier = DK_TIER_AMX,
                                              .bf16 = true,
                                              .gemm = dk_cpu_gemm_amx,
                                              .pack = dk_cpu_gemm_amx_pack,
                                              .fma_peak = tile_peak,
                                              TRAIN_TABLE};
