/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small models for tests, written as Hugging Face folders: random ones, and ones that obey a script.
 *
 * Tokenizer of all: id b is byte b for 0..255, 256 <|endoftext|>, 257 <|im_start|>, 258 <|im_end|>,
 * 259 <|mask|>; ids from 260 on are rows of the model without a token.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FIXTURE_EOS    258u
#define FIXTURE_VOCAB  512u
#define FIXTURE_POISON 77u

enum fixture_family { FIXTURE_LLAMA, FIXTURE_QWEN2, FIXTURE_QWEN3 };
enum fixture_dtype { FIXTURE_F32, FIXTURE_BF16, FIXTURE_F16 };

struct fixture {
    enum fixture_family family;
    enum fixture_dtype dtype;
    uint32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab, max_position;
    bool tied;
    bool poison; /* the embedding of token FIXTURE_POISON is NaN, and with it all that follows */
    uint64_t seed;
    /* Logit of token y after token x, hidden = vocab: a scripted model.  NULL: random weights. */
    float (*logit)(const void *arg, uint32_t x, uint32_t y);
    const void *arg;
    const char *generation_config; /* JSON text, or NULL: eos_token_id FIXTURE_EOS */
};

/* 2 layers, hidden 64, 4 heads, 2 KV heads, head_dim 32, ffn 96, vocab 512, F32, Qwen3. */
struct fixture fixture_random(uint64_t seed);
/* One layer that adds nothing; the head alone decides: logits depend on the last token only. */
struct fixture fixture_script(float (*logit)(const void *arg, uint32_t x, uint32_t y),
                              const void *arg);

/* next[x] is the token after x (10 against 0 for all others); 512 entries. */
struct fixture_chain {
    uint32_t next[FIXTURE_VOCAB];
};
/* Every token is followed by itself until said otherwise. */
void fixture_chain_init(struct fixture_chain *c);
float fixture_chain_logit(const void *chain, uint32_t x, uint32_t y);

/* Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
 * model.safetensors into a new folder, which goes when the process that made it ends.  Returns its
 * path (static). */
const char *fixture_write(const struct fixture *f);
/* The scripted model a -> b -> ... -> z -> FIXTURE_EOS, every other token followed by itself. */
const char *fixture_write_alphabet(void);
