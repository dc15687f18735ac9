/* SPDX-License-Identifier: Apache-2.0 */
/* The tile code of training's BF16 products on the emulated instructions.  The vector instructions
 * around it are real, AVX-512 BF16 among them. */
#include "tests/amx-emu/amx-emu.h"

#define dk_cpu_gemm_amx dk_cpu_gemm_amx_emu
#define dk_cpu_gemm_amx_pack dk_cpu_gemm_amx_pack_emu
#include "kernels/cpu/gemm/amx.c"
