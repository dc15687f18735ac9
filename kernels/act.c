/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of prepared activations: one area a form, each for the whole capacity. */
#include "kernels/cpu/internal.h"

/* Areas start on lines of cache. */
static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t dk_act_bytes_f32(uint32_t max_rows, uint32_t max_k)
{
    return lines((size_t)max_rows * dk_pad_k(max_k, DK_K_PAD) * sizeof(float));
}

size_t dk_act_bytes_bf16(uint32_t max_rows, uint32_t max_k)
{
    return lines((size_t)max_rows * dk_pad_k(max_k, 32) * sizeof(uint16_t));
}

size_t dk_act_bytes(uint32_t max_rows, uint32_t max_k)
{
    return dk_act_bytes_f32(max_rows, max_k) + dk_act_bytes_bf16(max_rows, max_k) +
           dk_act_bytes_int(max_rows, max_k);
}

void *dk_act_f32(const struct dk_act *a)
{
    return a->mem;
}

void *dk_act_bf16(const struct dk_act *a)
{
    return (char *)a->mem + dk_act_bytes_f32(a->max_rows, a->max_k);
}

void *dk_act_int(const struct dk_act *a)
{
    return (char *)dk_act_bf16(a) + dk_act_bytes_bf16(a->max_rows, a->max_k);
}

void dk_act_init(struct dk_act *a, uint32_t max_rows, uint32_t max_k, void *mem)
{
    *a = (struct dk_act){
        .max_rows = max_rows,
        .max_k = max_k,
        .mem = mem,
        .bytes = dk_act_bytes(max_rows, max_k),
    };
}
