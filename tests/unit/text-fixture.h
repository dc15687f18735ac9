/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers that the tests of text share. */
#pragma once

#include <jansson.h>

#include "engine/tokenizer.h"

/* The published tokenizers in tests/golden, loaded once a process: call before test_main(), so that
 * the forked tests share it.  Fail by exit(1) with a message. */
const struct tokenizer *fixture_qwen3(void);
const struct tokenizer *fixture_smollm2(void);
void fixture_done(void);
/* Whole file below $top_builddir (packed data is unpacked there). */
char *fixture_read_built(const char *rel, size_t *ret_len);

/*
 * F-BYTE: id b = byte b for 0..255, no merges, 256 <|endoftext|>, 257 <|im_start|>, 258 <|im_end|>,
 * 259 <|mask|>.  more_added: further members of "added_tokens" (", {...}") or "";
 * more: further members of the root (", \"post_processor\": ...") or "".
 */
char *fixture_byte_json(const char *more_added, const char *more);
/* The same as a tokenizer; config: tokenizer_config.json or NULL. */
struct tokenizer *fixture_byte(const char *more_added, const char *more, const char *config);

struct tokenizer *fixture_from_json(const char *json, const char *config);
/* A BPE over single letters: vocab and merges as JSON text, pre_tokenizer ByteLevel without regex. */
char *fixture_bpe_json(const char *vocab, const char *merges, const char *model_more,
                       const char *root_more);

/* The vocabulary's code point for a byte, as UTF-8 (NUL-terminated). */
void fixture_byte_char(unsigned byte, char out[5]);

/* Encodes and compares; the message shows both lists. */
void check_ids(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
               const uint32_t *want, size_t n, const char *what);
void compare_ids(const uint32_t *got, size_t n_got, const uint32_t *want, size_t n_want,
                 const char *what);
uint32_t *json_ids(json_t *array, size_t *ret_n); /* free with free() */
/* Whole text of ids: push each, flush. */
char *decode_all(const struct tokenizer *t, const uint32_t *ids, size_t n, unsigned flags);

/* xorshift64*, seeded: the same values everywhere. */
uint64_t test_random(uint64_t *state);
/* n random code points (all planes, ASCII and marks over-represented) as UTF-8. */
char *random_text(uint64_t *state, size_t n, size_t *ret_len);
