/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model on disk: a Hugging Face folder or a GGUF file, opened, checked and mapped.  Everything
 * that a file says is verified here; what this header hands out may be trusted, as long as nobody
 * shortens the files while they are mapped.
 * Owner: one thread while opening, read-only afterwards.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "kernels/kernels.h"

enum model_family { MODEL_LLAMA, MODEL_QWEN2, MODEL_QWEN3, MODEL_FAMILY_COUNT };
const char *model_family_name(enum model_family f);

enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_LLAMA3 };

#define MODEL_MAX_STOP_IDS 16
struct drafter_config; /* engine/drafter_file.h */

struct model_config {
    enum model_family family;
    uint32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn;
    uint32_t vocab_size; /* rows of the embedding and the head, padding rows included */
    uint32_t max_position; /* trained context, positions */
    float rms_eps;
    bool tied;       /* head = embedding */
    bool qkv_bias;   /* qwen2 */
    bool qk_norm;    /* qwen3 */
    enum dk_rope_pairing rope_pairing;
    double rope_theta;
    enum rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    uint32_t rope_original_context;
    const float *rope_freq_factors; /* head_dim/2 divisors of the inverse frequencies, or NULL */
    const struct drafter_config *drafter; /* NULL: a model that stands alone */

    /* End of sequence: the union of generation_config, config and tokenizer files. */
    uint32_t eos_ids[MODEL_MAX_STOP_IDS];
    uint32_t n_eos_ids;
    bool has_bos, add_bos;
    uint32_t bos_id;
};

enum model_tensor_role {
    MT_EMBED,      /* [vocab, hidden] */
    MT_FINAL_NORM, /* [hidden] */
    MT_HEAD,       /* [vocab, hidden]; the embedding when tied */
    MT_FC,          /* drafters: [hidden, taps * target's hidden] */
    MT_HIDDEN_NORM, /* drafters: [hidden] */
    MT_ATTN_NORM,  /* per layer from here on; [hidden] */
    MT_Q,          /* [n_heads * head_dim, hidden] */
    MT_K,          /* [n_kv_heads * head_dim, hidden] */
    MT_V,
    MT_O,          /* [hidden, n_heads * head_dim] */
    MT_Q_BIAS,     /* [n_heads * head_dim]; NULL unless qkv_bias */
    MT_K_BIAS,
    MT_V_BIAS,
    MT_Q_NORM,     /* [head_dim]; NULL unless qk_norm */
    MT_K_NORM,
    MT_FFN_NORM,   /* [hidden] */
    MT_GATE,       /* [ffn, hidden] */
    MT_UP,         /* [ffn, hidden] */
    MT_DOWN,       /* [hidden, ffn] */
    MT_ROLE_COUNT
};

struct model_tensor {
    const char *name; /* as in the file */
    enum dk_type type;
    uint32_t n_dims;  /* 1 or 2 */
    uint64_t dims[2]; /* [n] or [out, in] */
    /* Row-major, aligned for its type; row bytes = bytes / dims[0] for 2-D.  Mapped, but for copies:
     * vectors (norms, biases) are always F32, converted where the file has F16 or BF16, and what a
     * file leaves unaligned is copied. */
    const void *data;
    size_t bytes;
};

struct model_file;

/*
 * path: a .gguf file, or a folder with config.json.  Errors name the file, the key or tensor and
 * the rule; UNSUPPORTED says what is supported.  Every tensor of the configuration must be there with
 * its exact shape (MISMATCH names both shapes), and every tensor of the file must have a role: an
 * unknown one means another model.  Exceptions: saved RoPE frequencies, and the head of a tied
 * model, are ignored in Hugging Face form.  The sizes that an index repeats (metadata.total_size) are
 * not compared.  From a sharded GGUF, only merged files are read.
 */
int model_file_open(const char *path, struct model_file **ret, struct error *err);
struct model_file *model_file_free(struct model_file *f); /* NULL */
DEFINE_CLEANUP(struct model_file *, model_file_free);

const char *model_file_path(const struct model_file *f);
const char *model_file_name(const struct model_file *f); /* general.name or the folder's name */
const struct model_config *model_file_config(const struct model_file *f);
/* NULL when the family or file has none. layer is ignored for roles before MT_ATTN_NORM. */
const struct model_tensor *model_file_tensor(const struct model_file *f, enum model_tensor_role r,
                                             uint32_t layer);
uint64_t model_file_weight_bytes(const struct model_file *f); /* of all tensors above, once each */
/* Tells the kernel that the pages of this tensor are not needed any more (a packed copy exists). */
void model_file_release(struct model_file *f, const struct model_tensor *t);

/* What the tokenizer is made of: gguf, or tokenizer_json (NULL when the folder has none). */
struct gguf;
const struct gguf *model_file_gguf(const struct model_file *f);
const char *model_file_tokenizer_json(const struct model_file *f, size_t *ret_len);
const char *model_file_tokenizer_config_json(const struct model_file *f, size_t *ret_len); /* or NULL */
/* Jinja text of the model's chat template (GGUF metadata, tokenizer_config.json,
 * chat_template.jinja), or NULL. */
const char *model_file_chat_template(const struct model_file *f);
