/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GGUF v2/v3 file: metadata and tensor directory, verified and mapped.  Read-only after opening.
 *
 * Verified when opening: every count, length, type and offset against the file's size; keys are
 * UTF-8 and unique; booleans are 0 or 1; general.alignment is a u32 power of two from 8 to 1 MiB;
 * tensors have unique names, 1-4 dimensions, none of them 0, whole blocks in a row, aligned offsets,
 * and lie inside the file without overlap.  Nested arrays and type numbers that are not known
 * (their size is not known either) are UNSUPPORTED.  Known formats without a kernel (Q2_K, IQ4_NL,
 * I32, ...) are listed with type DK_TYPE_COUNT: whoever uses such a tensor refuses it by name.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/fd.h"
#include "kernels/kernels.h"

enum gguf_type { GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL,
                 GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64 };

struct gguf_str {
    const char *s; /* not NUL-terminated; in the mapping */
    size_t len;
};
struct gguf_tensor {
    struct gguf_str name;
    enum dk_type type;     /* DK_TYPE_COUNT: a known format that no kernel reads (see type_name) */
    const char *type_name; /* as GGUF spells it */
    uint32_t n_dims;
    uint64_t dims[4]; /* GGUF order: dims[0] is the input (fastest) dimension */
    const void *data;
    size_t bytes;
};
struct gguf;

int gguf_open(const char *path, struct gguf **ret, struct error *err);
/* The same from memory that outlives the object (tests, fuzzing); name is used in messages. */
int gguf_parse(const void *data, size_t size, const char *name, struct gguf **ret,
               struct error *err);
struct gguf *gguf_free(struct gguf *g);
const char *gguf_path(const struct gguf *g);
/* Drops mapped pages; memory that is not the file's own is ignored. */
void gguf_release(struct gguf *g, const void *data, size_t bytes);

/* Look-ups: 0 found, 1 absent (the default is left in *ret), negative: present with another type
 * or out of range (FORMAT).  Integers of any width are accepted where they fit. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct error *err);
int gguf_get_f64(const struct gguf *g, const char *key, double *ret, struct error *err);
int gguf_get_bool(const struct gguf *g, const char *key, bool *ret, struct error *err);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct error *err);
/* Arrays: number of elements; then element i (strings are found in O(1) through an index). */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type elem, uint64_t *ret_n,
                   struct error *err);
struct gguf_str gguf_array_str(const struct gguf *g, const char *key, uint64_t i);
/* Sequential walk over a string array, for big ones; returns false at the end. */
struct gguf_str_iter {
    const uint8_t *p, *end;
    uint64_t left;
};
int gguf_iter_strings(const struct gguf *g, const char *key, struct gguf_str_iter *ret,
                      struct error *err);
bool gguf_iter_next(struct gguf_str_iter *it, struct gguf_str *ret);
/* Pointer to the elements of a numeric array of exactly this type (unaligned). */
const void *gguf_array_data(const struct gguf *g, const char *key, enum gguf_type elem,
                            uint64_t *ret_n);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
