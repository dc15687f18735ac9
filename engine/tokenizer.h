/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-level BPE: text to token ids and back.  Made from tokenizer.json or GGUF metadata.
 * Immutable after loading; any number of threads may use one at the same time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/strbuf.h"

struct tokenizer;
struct model_file;
struct gguf;

int tokenizer_load(const struct model_file *f, struct tokenizer **ret, struct error *err);
/* config: tokenizer_config.json or NULL; name is used in messages. */
int tokenizer_from_json(const char *json, size_t len, const char *config, size_t config_len,
                        const char *name, struct tokenizer **ret, struct error *err);
int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **ret, struct error *err);
struct tokenizer *tokenizer_free(struct tokenizer *t);
DEFINE_CLEANUP(struct tokenizer *, tokenizer_free);

/* A growing list of ids.  Zero-initialised is empty. */
struct token_list {
    uint32_t *ids;
    size_t len, cap;
};
int token_list_add(struct token_list *l, uint32_t id); /* 0 or DEDIT_E_NOMEM */
void token_list_done(struct token_list *l);
#define _cleanup_token_list_ _cleanup_(token_list_done)

enum {
    TOKENIZE_SPECIAL = 1, /* added tokens in the text are recognised; default: all text is plain */
    TOKENIZE_BOS = 2,     /* BOS first when the model wants one and the text has none yet */
};
/* Appends to *out.  text must be UTF-8 (DEDIT_E_INVALID names the byte offset otherwise).  Time is
 * linear in len, stack bounded.  Bytes that the vocabulary cannot express are dropped, as the
 * reference programs do; *ret_dropped (may be NULL) counts them. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     struct token_list *out, size_t *ret_dropped, struct error *err);

uint32_t tokenizer_n_tokens(const struct tokenizer *t); /* ids below this may have a token */
/* Raw bytes of a token: NULL and *ret_len 0 for an id without a token. */
const char *tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, size_t *ret_len);
bool tokenizer_is_added(const struct tokenizer *t, uint32_t id);
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id); /* control token */
/* Id of the added token with exactly this text. */
bool tokenizer_find_added(const struct tokenizer *t, const char *text, size_t len, uint32_t *ret);
bool tokenizer_bos(const struct tokenizer *t, uint32_t *ret_id); /* true when BOS is to be added */
bool tokenizer_eos(const struct tokenizer *t, uint32_t *ret_id);

/* Streaming decoder: releases whole UTF-8 only.  Invalid bytes become U+FFFD, one per maximal
 * subpart, as soon as they are known to be invalid. */
struct detokenizer {
    uint8_t pending[4];
    uint8_t n_pending;
};
enum { DETOKENIZE_SKIP_SPECIAL = 1 }; /* control tokens give no text */
int detokenizer_push(struct detokenizer *d, const struct tokenizer *t, uint32_t id, unsigned flags,
                     struct strbuf *out); /* appends */
int detokenizer_flush(struct detokenizer *d, struct strbuf *out);
