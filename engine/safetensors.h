/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One safetensors file: header verified, data mapped.  Also used for reference data and drafters.
 * Dtypes read: F64 F32 F16 BF16 I64 I32 I16 I8 U8 U16 U32 U64 BOOL; others are UNSUPPORTED.
 *
 * Verified when opening: the length prefix (at most 100,000,000 and inside the file), the header's
 * JSON (duplicate names too), for each tensor begin <= end <= data size and end - begin = product
 * of the shape x dtype size, and that the tensors cover the data without overlap, gap or rest.
 * Data is as aligned as the file makes it: a writer need not align anything.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

enum st_dtype { ST_F64, ST_F32, ST_F16, ST_BF16, ST_I64, ST_I32, ST_I16, ST_I8, ST_U64, ST_U32,
                ST_U16, ST_U8, ST_BOOL, ST_DTYPE_COUNT };

struct st_tensor {
    const char *name;
    enum st_dtype dtype;
    uint32_t n_dims; /* 0..8 */
    uint64_t dims[8];
    const void *data;
    size_t bytes;
};
struct safetensors;

int safetensors_open(const char *path, struct safetensors **ret, struct error *err);
int safetensors_parse(const void *data, size_t size, const char *name, struct safetensors **ret,
                      struct error *err);
struct safetensors *safetensors_free(struct safetensors *s);
DEFINE_CLEANUP(struct safetensors *, safetensors_free);
const char *safetensors_path(const struct safetensors *s);
/* Drops the mapped pages of one of its tensors; memory that is not its own is ignored. */
void safetensors_release(struct safetensors *s, const void *data, size_t bytes);
size_t safetensors_count(const struct safetensors *s);
const struct st_tensor *safetensors_at(const struct safetensors *s, size_t i);
const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name);
const char *st_dtype_name(enum st_dtype t);
size_t st_dtype_bytes(enum st_dtype t);
