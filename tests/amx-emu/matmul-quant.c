/* SPDX-License-Identifier: Apache-2.0 */
/* The tile code of the block-quantised products on the emulated instructions, for any number of
 * rows.  The vector instructions around it are real. */
#include "tests/amx-emu/amx-emu.h"

#define DK_AMX_INT_MIN_ROWS 1u
#define dk_cpu_matmul_quant_amx dk_cpu_matmul_quant_amx_emu
#include "kernels/cpu/matmul-quant/amx.c"
