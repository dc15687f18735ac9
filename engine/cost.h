/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls cost on this machine, by their rows and the context that the rows see: measured at some
 * sizes (engine/calibrate.h, and every call that is made), guessed between and beyond them.
 *
 * All times of an engine share a pace: what the machine is slower now than when it was measured.  A
 * neighbour that takes half of it makes every size dearer alike, those too that are not run meanwhile.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* One call: rows, context of each request added up, context of each row added up. */
struct cost_load {
    uint32_t rows;
    double entries, positions;
};

#define COST_SIZES 32
extern const uint16_t cost_sizes[COST_SIZES];

struct cost_table {
    double ns[COST_SIZES];     /* without context; 0: never seen */
    uint32_t seen[COST_SIZES]; /* how often */
    double entry_ns, row_ns; /* by one position of context: for its request, for each of its rows */
};

enum cost_kind {
    COST_TARGET,  /* a batch of the target, its tokens chosen */
    COST_DRAFTER, /* a pass */
    COST_INJECT,  /* context rows of the drafter */
    COST_KINDS
};
struct costs {
    struct cost_table table[COST_KINDS];
    double pace;
};
void costs_init(struct costs *c);

/* A call took so long. */
void cost_add(struct costs *c, enum cost_kind kind, const struct cost_load *l, uint64_t ns);
/* A size was measured with care, at the machine's own pace. */
void cost_set(struct cost_table *t, uint32_t rows, double ns);
/* After all were set: none costs more than a larger one, disturbances only ever add time. */
void cost_level(struct cost_table *t);
/* All sizes at once (tests): ns for one row, and slope times as much for each more. */
void cost_fill(struct cost_table *t, double ns, double slope);
/* 0 when nothing is known.  In time at the machine's own pace: comparable, whatever the pace is now. */
double cost_of(const struct cost_table *t, const struct cost_load *l);
/* The same without context. */
double cost_of_rows(const struct cost_table *t, uint32_t rows);
/* From 1 row and n rows, near and far (by `positions`): what context costs. */
void cost_context(struct cost_table *t, double one_ns, double n_ns, uint32_t n, double positions);

/* ---- on disk (cost_file.c) ------------------------------------------------------------------------- */

struct survival;

/* The file in folder dir that belongs to key: 0 read, 1 there is none; an error names the file and what
 * is wrong with it (torn, another key, foreign), and leaves *c and *s alone.  *s stays as it is also
 * when the file says nothing of drafts. */
int costs_read(struct costs *c, struct survival *s, const char *dir, const char *key,
               struct error *err);
/* Whole or not at all; the folder and its parent are made. */
int costs_write(const struct costs *c, const struct survival *s, const char *dir, const char *key,
                struct error *err);
/* The text of a file (tests, fuzzing). */
int costs_parse(struct costs *c, struct survival *s, const char *text, size_t len, const char *name,
                const char *key, struct error *err);
/* Name of this machine's CPU, as it says itself. */
void costs_machine(char buf[64]);
