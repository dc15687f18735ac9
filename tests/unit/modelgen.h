/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model files made byte by byte, good and bad, for the tests of the loaders.  All functions append
 * to a strbuf and fail the test when memory runs out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

void put_bytes(struct strbuf *b, const void *p, size_t n);
void put_u32(struct strbuf *b, uint32_t v);
void put_u64(struct strbuf *b, uint64_t v);
void put_pad(struct strbuf *b, size_t align); /* zeros up to a multiple */
void put_zeros(struct strbuf *b, size_t n);

/* GGUF.  Types of values as in gguf.h. */
void gg_header(struct strbuf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv);
void gg_str(struct strbuf *b, const char *s); /* u64 length, bytes */
void gg_key(struct strbuf *b, const char *key, uint32_t type);
void gg_kv_u32(struct strbuf *b, const char *key, uint32_t v);
void gg_kv_i32(struct strbuf *b, const char *key, int32_t v);
void gg_kv_f32(struct strbuf *b, const char *key, float v);
void gg_kv_bool(struct strbuf *b, const char *key, uint8_t v);
void gg_kv_str(struct strbuf *b, const char *key, const char *v);
void gg_tensor(struct strbuf *b, const char *name, uint32_t n_dims, const uint64_t *dims,
               uint32_t type, uint64_t offset);

/* Safetensors: length prefix, header text, then n_data bytes 0, 1, 2, ... */
void st_file(struct strbuf *b, const char *header, size_t n_data);

/* A tiny model with the same values in both forms: element i of a tensor depends on its HF name. */
struct tiny {
    const char *family; /* "llama", "qwen2", "qwen3" */
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;
    const char *dtype;       /* HF: "F32", "F16" (zeros), "BF16" (zeros) */
    const char *skip;        /* name of a tensor that is left out, in either form */
    const char *extra;       /* name of a vector [hidden] that is added */
    unsigned blanks;         /* HF: behind the header, so that data is not aligned */
    const char *config_more; /* HF: members put into config.json: ", \"k\": v" */
    const char *config_less; /* HF: a member that config.json lacks, or GGUF: a key */
    struct strbuf kv_more;   /* GGUF: metadata added, kv_more_n keys */
    unsigned kv_more_n;
    uint32_t config_head_dim; /* what the configuration says; 0: head_dim */
};
struct tiny
tiny_new(const char *family); /* 2 layers, hidden 64, 4/2 heads of 32, ffn 48, vocab 40 */
void tiny_config(const struct tiny *t, struct strbuf *b);
void tiny_safetensors(const struct tiny *t, struct strbuf *b);
void tiny_gguf(const struct tiny *t, struct strbuf *b);
/* Writes config.json and model.safetensors into the folder. */
void tiny_write_hf(const struct tiny *t, const char *dir);
void write_file(const char *dir, const char *name, const void *p, size_t n);
