/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tile configuration.  It belongs to the thread and is loaded at the start of every product and
 * released at its end: some tens of cycles against microseconds, nothing to keep in step between
 * workers, and nothing for the system to save between products.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

struct dk_tile_config {
    uint8_t palette, start_row, reserved_0[14];
    uint16_t bytes[8]; /* of a row; 0 with rows 0: tile not used */
    uint8_t reserved_1[16];
    uint8_t rows[8];
    uint8_t reserved_2[8];
};
_Static_assert(sizeof(struct dk_tile_config) == 64, "operand of LDTILECFG");

static inline __attribute__((always_inline)) void dk_tile_configure(const struct dk_tile_config *c)
{
    /* gcc 12 believes that the instruction reads 8 bytes only, and drops the stores of the rest. */
    __asm__ volatile("" : : "r"(c) : "memory");
    _tile_loadconfig(c);
}
