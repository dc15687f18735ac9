/* SPDX-License-Identifier: Apache-2.0 */
/* What gguf.c (parsing) and gguf_get.c (look-ups) share. */
#pragma once

#include "engine/gguf.h"
#include "engine/names.h"

/* A string array's index holds the position of every STRIDEth string. */
#define GGUF_INDEX_STRIDE 16u

struct gguf_kv {
    struct gguf_str key;
    enum gguf_type type;
    enum gguf_type elem;  /* of an array; never an array itself */
    uint64_t n;           /* elements of an array, else 1 */
    const uint8_t *value; /* scalar, or first element (a string: its length prefix); unaligned */
    size_t bytes;         /* of all elements */
    uint64_t *index;      /* string arrays: where strings 0, 16, 32, ... start, from value */
};

struct gguf {
    char *path;
    struct file_map map; /* addr NULL when the memory is the caller's */
    const uint8_t *base;
    size_t size;
    struct gguf_kv *kv;
    struct name_ref *kv_names; /* sorted */
    size_t n_kv;
    struct gguf_tensor *tensors;
    struct name_ref *tensor_names; /* sorted */
    size_t n_tensors;
};

const struct gguf_kv *gguf_find_kv(const struct gguf *g, const char *key);
const char *gguf_type_name(enum gguf_type t);
size_t gguf_type_bytes(enum gguf_type t); /* 0 for strings and arrays */
