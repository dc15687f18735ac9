/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a safetensors file so that either the old file or the whole new one is there: a new file
 * beside it, synced, renamed, the folder synced.  Nothing is kept in memory but the header.
 */
#pragma once

#include <stdbool.h>

#include "engine/safetensors.h"

struct tensor_out {
    const char *name;
    enum st_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[2];
    const void *data;
};
#define TENSOR_CHECKSUM "checksum"
/* With `checksum` a U64 of that name is added: xxHash64 of the data of all others, one after the
 * other. */
int tensor_file_write(const char *path, const struct tensor_out *t, size_t n, bool checksum,
                      struct error *err);
/* Is the sum in this file right?  FORMAT names the file when it is absent or wrong. */
int tensor_file_check(const struct safetensors *s, struct error *err);
/* The sum of its data, and the one that it tells (fuzzing). */
int tensor_file_sum(const struct safetensors *s, uint64_t *ret_have, uint64_t *ret_want,
                    struct error *err);
