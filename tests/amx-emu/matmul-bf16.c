/* SPDX-License-Identifier: Apache-2.0 */
/* The tile code of the BF16 products on the emulated instructions. */
#include "tests/amx-emu/amx-emu.h"

#define dk_cpu_matmul_bf16_amx dk_cpu_matmul_bf16_amx_emu
#include "kernels/cpu/matmul/amx.c"
