/* SPDX-License-Identifier: Apache-2.0 */
/* Drafter files made byte by byte, good and bad: DFlash as a Hugging Face folder or as GGUF, with
 * random weights of a sensible size, F32. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

struct gen_drafter {
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    uint32_t block, mask, n_taps, taps[8];
    uint32_t target_layers, target_hidden;
    uint32_t draft_vocab; /* rows of the head: vocab when there is no d2t */
    const char *d2t;      /* "I32", "I64", or NULL; row i is token i * vocab / draft_vocab */
    int32_t d2t_shift;    /* added to the last offset (bad tables) */
    bool own_embed, own_head;
    uint64_t sliding; /* bit l: layer l */
    uint32_t window;
    const char *prefix;       /* before every tensor's name: "" or "model." */
    const char *more;         /* config.json: members added, ", \"k\": v" */
    const char *less, *less2; /* config.json or GGUF: keys that are left out, at any depth */
    const char *skip;         /* a tensor that is left out */
    const char *extra;        /* a vector [hidden] that is added */
    uint32_t fc_width;        /* 0: what the taps give */
    unsigned shards;          /* HF: 0: model.safetensors, else an index and so many files */
    uint64_t seed;
};

/* For a target of 6 layers, hidden 64, vocabulary 512: 2 layers, 4/2 heads of 32, ffn 96, W 8, taps 1, 2
 * and 4, mask 259. */
struct gen_drafter gen_drafter_new(uint64_t seed);
void gen_drafter_config(const struct gen_drafter *g, struct strbuf *b);
/* Writes config.json and the weights into the folder. */
void gen_drafter_write(const struct gen_drafter *g, const char *dir);
void gen_drafter_safetensors(const struct gen_drafter *g, struct strbuf *b); /* one file of all */
void gen_drafter_gguf(const struct gen_drafter *g, struct strbuf *b);
/* Folders do not go with the process; removes what gen_drafter_write made, and the folder. */
void gen_drafter_remove(const struct gen_drafter *g, const char *dir);
