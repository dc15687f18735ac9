/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON side of a Hugging Face folder, from texts (so that tests and the fuzzer need no folder):
 * config.json gives the architecture; generation_config.json, tokenizer_config.json and
 * tokenizer.json add stop ids, BOS and the chat template.  What would change the numbers and is not
 * implemented is refused by name; a key is never guessed.
 */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "engine/json.h"
#include "engine/model_file.h"

/* One file's text; text NULL = there is no such file.  name is used in messages. */
struct hf_text {
    const char *text;
    size_t len;
    const char *name;
};
struct hf_texts {
    struct hf_text config; /* required */
    struct hf_text generation, tokenizer_config, tokenizer;
};

/* Fills *ret; rope_freq_factors stays NULL.  FORMAT, UNSUPPORTED, MISMATCH, LIMIT or NOMEM. */
int hf_config_parse(const struct hf_texts *t, struct model_config *ret, struct error *err);
/* The template of tokenizer_config.json: a string, or the entry "default" of a list.  A new string
 * (mem_free), or NULL when there is none. */
int hf_chat_template(const struct hf_text *tokenizer_config, char **ret, struct error *err);

/* Part, for models and drafters: sizes, RoPE and what is refused, once c->family is known; not the
 * layers' kinds of attention. */
int hf_architecture(const struct js_obj *o, struct model_config *c, struct error *err);
/* Parts: the stop ids and BOS of all files (c->vocab_size is set). */
int hf_token_ids(const struct hf_texts *t, const struct js_obj *config, struct model_config *c,
                 struct error *err);
/* Adds a stop id unless it is there; id must be below vocab_size. */
int model_config_add_eos(struct model_config *c, uint32_t id, const char *file, const char *key,
                         struct error *err);
/* Rules that both forms of model share, once all numbers are read (heads, RoPE, eps). */
int model_config_check(const struct model_config *c, const char *file, struct error *err);
/* "llama" ...; false when the name is none of a supported family. */
bool model_family_parse(const char *name, size_t len, enum model_family *ret);
/* What a refused architecture probably is: " (a mixture-of-experts model)" and the like, or "". */
const char *model_name_hint(const char *architecture);
#define MODEL_SUPPORTED_TEXT "supported: dense llama, qwen2, qwen3"
