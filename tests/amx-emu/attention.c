/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's tile code on the emulated instructions; the vector instructions around it are real. */
#include "tests/amx-emu/amx-emu.h"

#define dk_cpu_attention_bf16_amx      dk_cpu_attention_bf16_amx_emu
#define dk_cpu_attention_part_bf16_amx dk_cpu_attention_part_bf16_amx_emu
#include "kernels/cpu/attention/amx.c"
