/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a tokenizer, shared by engine/tokenizer_*.c only.
 *
 * Text runs through: added tokens cut out (tokenizer_added.c) -> NFC (tokenizer_nfc.c) -> the steps
 * of the pre-tokenizer (tokenizer_split.c) -> byte-level BPE of each piece (tokenizer_bpe.c).
 * All of a struct tokenizer is read-only once loaded; what one call needs is in struct encoder.
 */
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "engine/tokenizer.h"

#define TOK_NONE UINT32_MAX

/* ---- vocabulary (tokenizer_vocab.c) */

enum {
    TOKEN_PRESENT = 1, /* the id has a token */
    TOKEN_ADDED = 2,
    TOKEN_SPECIAL = 4, /* control token */
    TOKEN_PLAIN = 8,   /* can come out of BPE: its text is in the byte-level alphabet */
};

struct vocab {
    struct strbuf bytes; /* texts of all tokens, one behind the other */
    uint32_t *off, *len; /* [n] into bytes */
    uint8_t *flags;      /* [n] TOKEN_* */
    uint32_t n;          /* ids are below this */
    uint32_t *slots;     /* ids of plain tokens by hash of their bytes, TOK_NONE = free */
    size_t mask;         /* slots - 1 */
};

/* Room for ids below n_ids, of which at most n_plain are plain. */
int vocab_init(struct vocab *v, uint32_t n_ids, size_t n_plain);
void vocab_done(struct vocab *v);

enum vocab_add_result { VOCAB_ADDED = 0, VOCAB_SAME_ID = 1, VOCAB_SAME_TEXT = 2 };
/* A token written in the byte-level alphabet (one code point a byte).  Text with a code point
 * outside that alphabet is kept as it is and never comes out of BPE.  When the id or the text is
 * taken: VOCAB_SAME_*, and *ret_other is the id that has it. */
int vocab_add_byte_level(struct vocab *v, uint32_t id, const char *text, size_t len,
                         uint32_t *ret_other);
/* A token whose text stands for itself, with flags TOKEN_ADDED, TOKEN_SPECIAL. */
int vocab_add_raw(struct vocab *v, uint32_t id, const char *text, size_t len, unsigned flags);
/* Lets merges name a raw token.  Nothing happens when the alphabet writes its text otherwise or
 * another plain token has the same text. */
void vocab_make_plain(struct vocab *v, uint32_t id);
/* Id of the plain token with these bytes, or TOK_NONE. */
uint32_t vocab_find(const struct vocab *v, const char *bytes, size_t len);
/* text in the byte-level alphabet to bytes; false (out unspecified) when a code point is outside
 * it.  out holds len bytes. */
bool byte_level_decode(const char *text, size_t len, char *out, size_t *ret_len);

/* ---- merges and BPE (tokenizer_bpe.c) */

struct merge_slot {
    uint32_t left, right; /* left TOK_NONE = free */
    uint32_t rank, id;
};

struct bpe {
    struct merge_slot *slots;
    size_t mask;
    uint32_t n_merges;
    uint32_t byte_id[256]; /* token of the single byte, or TOK_NONE */
    uint32_t unk;          /* for bytes without a token, or TOK_NONE: they are dropped */
    bool fuse_unk;
    bool ignore_merges; /* a whole piece that is a token is that token */
};

int bpe_init(struct bpe *b, size_t n_merges);
void bpe_done(struct bpe *b);
/* left + right gives id with this rank; a later merge of the same pair replaces an earlier one. */
void bpe_add_merge(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* Adds merge number rank, named by the texts of its halves in the byte-level alphabet.  Returns 0,
 * or FORMAT when a half or the result is no token. name is "file: key" for messages. */
int bpe_add_merge_text(struct bpe *b, const struct vocab *v, const char *left, size_t left_len,
                       const char *right, size_t right_len, uint32_t rank, const char *name,
                       struct error *err);
void bpe_set_bytes(struct bpe *b, const struct vocab *v);

/* ---- pre-tokenizer (tokenizer_split.c, tokenizer_regex.c) */

enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum split_kind {
    STEP_REGEX,
    STEP_STRING,
    STEP_DIGITS,
    STEP_PREFIX_SPACE, /* ByteLevel's add_prefix_space */
};

struct split_step {
    enum split_kind kind;
    enum split_behavior behavior;
    bool invert;
    pcre2_code *re; /* STEP_REGEX */
    bool jit;
    char *str; /* STEP_STRING */
    size_t str_len;
};

#define SPLIT_MAX_STEPS 16

struct split {
    struct split_step steps[SPLIT_MAX_STEPS];
    size_t n;
    bool byte_level; /* a ByteLevel step was read; nothing may follow it */
};
void split_done(struct split *s);
/* Each adds one step; name is "file: key" for messages. */
int split_add_regex(struct split *s, const char *pattern, size_t len, enum split_behavior behavior,
                    bool invert, const char *name, struct error *err);
int split_add_string(struct split *s, const char *str, size_t len, enum split_behavior behavior,
                     bool invert, const char *name, struct error *err);
int split_add_digits(struct split *s, bool individual, const char *name, struct error *err);
int split_add_prefix_space(struct split *s, const char *name, struct error *err);

/* The split of GPT-2, which is also what ByteLevel with use_regex does. */
extern const char split_gpt2_pattern[];

/* Oniguruma's syntax, as tokenizer.json has it, to PCRE2's.  FORMAT / UNSUPPORTED say why not. */
int regex_translate(const char *pattern, size_t len, struct strbuf *out, const char *name,
                    struct error *err);
int regex_compile(const char *pattern, size_t len, pcre2_code **ret, bool *ret_jit,
                  const char *name, struct error *err);
pcre2_match_data *regex_match_data(void);           /* NULL when out of memory */
pcre2_match_context *regex_match_context(size_t n); /* with limits for a text of n bytes */

/* ---- added tokens (tokenizer_added.c) */

struct added_token {
    uint32_t id;
    char *text;
    size_t len;
    char *nfc; /* what is searched for instead: in NFC when normalized and the model normalises */
    size_t nfc_len;
    bool single_word, lstrip, rstrip, normalized, special;
};

/* Texts as a tree: child = first of the nodes one byte longer, sibling = next with another byte. */
struct trie_node {
    uint32_t child, sibling; /* 0 = none */
    uint32_t token;          /* index + 1, 0 = none ends here */
    uint8_t byte;
};
struct trie {
    struct trie_node *nodes;
    uint32_t n, cap;
    uint8_t first[256]; /* bytes that a text can begin with */
};

#define ADDED_MAX_BYTES 1024

struct added {
    struct added_token *tokens;
    size_t n, cap;
    struct u64map by_id, by_text; /* to index; text by hash */
    struct trie raw, normalized;  /* searched before and after NFC */
    bool any_normalized;
};
void added_done(struct added *a);
/* Copies *t and its text.  An empty text is kept out of the search, as the reference does. */
int added_add(struct added *a, const struct added_token *t, const char *text, size_t len);
/* NULL when there is none. */
struct added_token *added_find_id(const struct added *a, uint32_t id);
struct added_token *added_find_text(const struct added *a, const char *text, size_t len);
int added_build(struct added *a, bool nfc); /* once all are there */

/* May added tokens be recognised at a byte of the text? */
enum { ALLOW_NONE = 0, ALLOW_NOT_SPECIAL = 1, ALLOW_ALL = 2 };

struct added_match {
    size_t start, end; /* bytes that the token takes, stripped white space included */
    uint32_t id;
};
/* Next match at or after byte at, none of it before floor.  allow: per byte, NULL = everywhere. */
bool added_next(const struct added *a, const struct trie *t, const char *text, size_t len,
                const uint8_t *allow, size_t floor, size_t at, struct added_match *ret);

/* ---- NFC (tokenizer_nfc.c) */

/* True when text is in NFC for certain without looking at compositions (ASCII and most scripts). */
bool nfc_plain(const char *text, size_t len);
/* Appends text in NFC; allow (may be NULL) is carried over to *out_allow: bytes of a changed
 * stretch get the least of what stood there.  text must be valid UTF-8. */
int nfc_append(const char *text, size_t len, const uint8_t *allow, struct strbuf *out,
               struct strbuf *out_allow);

/* ---- the whole */

struct tokenizer {
    char *name; /* file, for messages */
    struct vocab vocab;
    struct bpe bpe;
    struct split split;
    struct added added;
    bool nfc;
    bool add_bos;
    uint32_t bos, eos; /* TOK_NONE = none */
};

/* Makes a token a control token whatever the file says of its kind; before added_build() and before
 * merges are read. */
int tokenizer_make_special(struct tokenizer *t, uint32_t id);

/* State of one encode call. */
struct bpe_cache_entry;
struct encoder {
    const struct tokenizer *t;
    struct token_list *out;
    size_t dropped;
    struct error *err;
    const char *text; /* what the caller gave, for messages */
    pcre2_match_data *md;
    pcre2_match_context *mctx;
    /* One long piece: arrays of cap symbols in one block. */
    uint32_t *work;
    size_t work_cap;
    struct bpe_cache_entry *cache; /* NULL for short texts */
};
/* Appends the tokens of one piece. */
int bpe_encode(struct encoder *e, const char *piece, size_t len);
#define BPE_CACHE_BYTES_MIN 2048 /* texts from here on get a cache */
int bpe_cache_new(struct encoder *e);
/* Runs a piece through steps [step, n) and BPE. */
int split_run(struct encoder *e, size_t step, const char *piece, size_t len);

/*
 * tokenizer_encode with a choice per byte of where added tokens are recognised (chat.c): a token is
 * recognised only where all its bytes allow it.  allow has len entries; flags: TOKENIZE_BOS.
 */
int tokenizer_encode_allow(const struct tokenizer *t, const char *text, size_t len,
                           const uint8_t *allow, unsigned flags, struct token_list *out,
                           size_t *ret_dropped, struct error *err);
