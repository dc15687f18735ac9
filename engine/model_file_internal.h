/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a model file.  model_hf.c and model_gguf.c open their form and list its tensors as
 * src_tensors; model_bind.c gives each role its tensor, checks shapes and types, and refuses
 * tensors that no role takes; model_file.c is the public face.
 */
#pragma once

#include "base/alloc.h"
#include "base/fd.h"
#include "engine/drafter_file.h"
#include "engine/gguf.h"
#include "engine/model_file.h"
#include "engine/names.h"
#include "engine/safetensors.h"

#define MODEL_LAYER_ROLES (MT_ROLE_COUNT - MT_ATTN_NORM)

struct model_file {
    char *path, *name;
    struct model_config cfg;
    struct drafter_config drafter; /* cfg.drafter points here when it is one */
    struct arena *arena; /* names, tensors, converted vectors, aligned copies */
    struct gguf *gguf;   /* or shards */
    struct safetensors **shards;
    size_t n_shards;
    struct model_tensor *tensors; /* MT_ATTN_NORM global ones, then MODEL_LAYER_ROLES a layer;
                                     data NULL where there is none */
    uint64_t weight_bytes;
    struct file_map tokenizer; /* tokenizer.json; addr NULL when there is none */
    char *tokenizer_config;    /* NULL when there is none */
    size_t tokenizer_config_len;
    char *chat_template;
    void *pages; /* a random model's weights, else NULL */
    size_t pages_bytes;
};

/* A tensor as its file has it, dimensions outermost first. */
struct src_tensor {
    const char *name; /* not NUL-terminated */
    size_t name_len;
    const char *file; /* path, for messages */
    const char *type_name;
    enum dk_type type; /* DK_TYPE_COUNT: nothing that can be computed with */
    uint32_t n_dims;
    uint64_t dims[8];
    const void *data;
    size_t bytes;
    bool used;
};
struct src_table {
    struct src_tensor *t;
    struct name_ref *names; /* sorted */
    size_t n;
    bool hf;             /* Hugging Face names, else GGUF's */
    const char *missing; /* file named when a tensor is missing */
};
struct src_tensor *src_find(const struct src_table *s, const char *name);

int model_file_new(const char *path, struct model_file **ret, struct error *err);
/* Rows and columns of a role's tensor (columns 0: a vector); false when the model has none. */
bool model_role_shape(const struct model_config *c, enum model_tensor_role r, uint64_t *ret_out,
                      uint64_t *ret_in);
int model_open_hf(struct model_file *f, struct error *err);
int model_from_gguf(struct model_file *f, struct error *err); /* f->gguf is open */
/* Parts of these that drafters share.  Weights: *ret_named is the file that messages name. */
int hf_read_config(const struct model_file *f, char **ret_path, char **ret_text, size_t *ret_len,
                   struct error *err);
int hf_open_weights(struct model_file *f, char **ret_named, struct error *err);
int hf_list_tensors(struct model_file *f, const char *named, struct error *err);
int hf_take_name(struct model_file *f, struct error *err);
int gguf_architecture(const struct gguf *g, const char *arch, struct model_config *c,
                      struct error *err);
int gguf_list_tensors(struct model_file *f, struct error *err);
int gguf_take_name(struct model_file *f, struct error *err);
/* A GGUF model in memory that outlives the object (tests, fuzzing); name stands for the path. */
int model_parse_gguf(const void *data, size_t size, const char *name, struct model_file **ret,
                     struct error *err);
/* Fills f->tensors, f->weight_bytes and, from GGUF, rope_freq_factors. */
int model_bind(struct model_file *f, const struct src_table *s, struct error *err);
/* drafter_gguf.c; c->drafter is set. */
int drafter_gguf_config(const struct gguf *g, const struct model_config *target,
                        struct model_config *c, struct drafter_config *d, struct error *err);
/* drafter_bind.c.  Before the roles are bound: which optional tensors there are, and the size of the
 * head; afterwards: the table of target ids, and what fc's width says about the taps. */
int drafter_look(struct model_file *f, const struct src_table *s, struct error *err);
int drafter_bind(struct model_file *f, const struct src_table *s, struct error *err);
/* Drafters' names with or without "model." before them. */
struct src_tensor *src_find_drafter(const struct src_table *s, const char *name);
/* "%.*s" of a name that may be long. */
#define SRC_NAME(t) (int)((t)->name_len < 96 ? (t)->name_len : 96), (t)->name
