/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training data: conversations as token ids, in files of JSON lines ("shards").
 *
 * A line is one conversation:
 *   {"ids": [1, 9690, ...], "response_spans": [[39, 106], ...], "kind": "math", "temperature": 0.7,
 *    "end": "eos", "seed": 7, "n": 12, "messages": [{"role": "user", "content": "..."}, ...]}
 * ids and response_spans are needed.  A span [begin, end) is what the target wrote, its end-of-turn
 * token included: only such tokens are trained on.  Everything else tells where the line comes from.
 * The first line of a file may be a header, told by "dedit_data": 1 (data_header).
 *
 * Whatever a file says is checked here; errors name file, line and rule.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/tokenizer.h"

#define DATA_FORMAT     1
#define DATA_MAX_TOKENS (1u << 20)         /* of one conversation */
#define DATA_MAX_SPANS  1024u              /* of one conversation */
#define DATA_MAX_LINE   ((size_t)64 << 20) /* bytes */
#define DATA_MAX_KINDS  64u                /* of one set; more are all "other" */
#define DATA_MAX_NAME   64u

struct data_span {
    uint32_t begin, end;
};

/* Why an answer ended. */
enum data_end { DATA_END_UNKNOWN, DATA_END_EOS, DATA_END_MAX, DATA_END_LOOP, DATA_END_COUNT };
const char *data_end_name(enum data_end e); /* "unknown", "eos", "max", "loop" */

struct data_options {
    uint32_t vocab_size; /* ids must be below; 0: any */
    uint32_t max_len;    /* longer conversations are cut to this many tokens; 0: none */
    bool keep_duplicates;
    /* Conversations without any supervised token are errors by default; this passes over them.  Those
     * that have none left after cutting are passed over always.  Both are counted. */
    bool skip_unsupervised;
};

/* ---- one line ------------------------------------------------------------------------------------ */

struct data_record {
    struct token_list ids;
    struct data_span *spans; /* ascending, disjoint, none empty, inside ids */
    uint32_t n_spans, spans_cap;
    uint32_t n_supervised; /* tokens in spans */
    char kind[DATA_MAX_NAME];
    enum data_end end;
    double temperature; /* of the answers; -1: not said */
    bool has_seed, has_number;
    uint64_t seed, number; /* "seed", "n" */
};
void data_record_done(struct data_record *r);
/* Tokens [begin, end) are the model's own.  NOMEM. */
int data_record_add_span(struct data_record *r, struct data_span s, struct error *err);
#define _cleanup_record_ _cleanup_(data_record_done)

/* What a file's first line says about all of it. */
struct data_header {
    bool present;
    char target[DATA_MAX_NAME]; /* name of the model that wrote it */
    uint32_t vocab_size;        /* its; 0: not said */
    char made_by[DATA_MAX_NAME];
    uint64_t seed;
    /* Of the file, whether it has a header or not: data_read_file() counts them. */
    uint64_t n_blank, first_blank; /* empty lines; number of the first one, 0: none */
};

/* Reads one line into *ret, which is emptied first and keeps its memory from line to line.  0, or 1
 * when the line is a header (into *header, may be NULL), or 2 when it is blank.  Cutting and what
 * lacks supervision are not looked at. */
int data_parse_line(const char *text, size_t len, const char *file, uint64_t line,
                    uint32_t vocab_size, struct data_record *ret, struct data_header *header,
                    struct error *err);
/* Appends the line that data_parse_line reads back, newline included.  messages: JSON text of a list,
 * or NULL. */
struct strbuf;
int data_format_line(const struct data_record *r, const char *messages, struct strbuf *out);

/* Calls take() for each conversation of the file, in order; ids must be below vocab_size, or, when that is 0, below that
 * of the header; a negative result of it ends reading and is
 * passed up.  header may be NULL. */
int data_read_file(const char *path, uint32_t vocab_size, struct data_header *header,
                   int (*take)(void *arg, const struct data_record *r, uint64_t line,
                               struct error *err),
                   void *arg, struct error *err);

/* ---- all of it ----------------------------------------------------------------------------------- */

/* Everything in memory: 4 bytes a token, and a little more for each conversation. */
struct data_set;

struct data_sample {
    const uint32_t *ids;
    uint32_t n;
    const struct data_span *spans;
    uint32_t n_spans, n_supervised;
    uint64_t hash; /* of ids and spans: the same in every run, whatever stands around it */
    uint32_t kind; /* data_set_kind() */
    enum data_end end;
    const char *file;
    uint64_t line;
};

struct data_set_info {
    uint64_t n, n_tokens, n_supervised, n_duplicates, n_cut;
    uint64_t n_unsupervised;  /* passed over */
    const char *skipped_file; /* the first of these, or NULL */
    uint64_t skipped_line;
    uint64_t n_blank;       /* empty lines */
    const char *blank_file; /* the first of these, or NULL */
    uint64_t blank_line;
    uint64_t bytes;   /* memory held */
    uint64_t hash;    /* of all samples, in order */
    uint32_t max_len; /* of the longest */
    uint32_t n_kinds;
    char target[DATA_MAX_NAME]; /* of the first header, or "" */
};

/* paths: files, or folders, whose *.jsonl are read in the order of their names.  Nothing at all to train
 * on is an error. */
int data_set_open(const char *const *paths, size_t n_paths, const struct data_options *o,
                  struct data_set **ret, struct error *err);
struct data_set *data_set_free(struct data_set *d); /* NULL */
DEFINE_CLEANUP(struct data_set *, data_set_free);

void data_set_get_info(const struct data_set *d, struct data_set_info *ret);
uint64_t data_set_size(const struct data_set *d); /* samples */
void data_set_sample(const struct data_set *d, uint64_t i, struct data_sample *ret);
const char *data_set_kind(const struct data_set *d, uint32_t kind);

/* mask[i] = 1 where token i is supervised; s->n bytes. */
void data_sample_mask(const struct data_sample *s, uint8_t *mask);
/* Is the sample kept back for measuring?  `share` (0 to 1) of all are; by its hash, so that more data
 * does not move any from one side to the other. */
bool data_sample_held_out(const struct data_sample *s, double share);
/* Adds to counts[vocab_size] how often each id stands among the supervised tokens. */
void data_set_count(const struct data_set *d, uint64_t *counts, uint32_t vocab_size);
