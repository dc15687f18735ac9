/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sizes of the KV types. */
#include "kernels/kernels.h"

static const struct {
    const char *name;
    uint32_t bytes;
} kv_types[DK_KV_TYPE_COUNT] = {
    [DK_KV_F32] = {"f32", 4},
    [DK_KV_BF16] = {"bf16", 2},
    [DK_KV_F16] = {"f16", 2},
};

const char *dk_kv_type_name(enum dk_kv_type t)
{
    return kv_types[t].name;
}

uint32_t dk_kv_elem_bytes(enum dk_kv_type t)
{
    return kv_types[t].bytes;
}
