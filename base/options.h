/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of command-line programs: one table makes getopt_long's list, the text of --help and the
 * hint for a mistyped name.  Nothing is printed here.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/strbuf.h"

struct option_def {
    int id;           /* above 299 */
    const char *name; /* long name */
    const char *arg;  /* name of its value, or NULL */
    const char *help; /* one or more lines; says the default */
};
#define OPTIONS_MAX 128

/* Takes one option; the error's text does not name the option, the caller does. */
typedef int (*option_set_fn)(void *ctx, int id, const char *arg, struct error *err);

/* groups: NULL-terminated list of tables, each ended by id 0.  --help and -h are always there.  0:
 * *ret_first is the index of the first argument that is no option (they may stand before options,
 * argv is put in order).  1: help is asked for.  Negative: a line that names the option, for the user. */
int options_read(const struct option_def *const *groups, int argc, char **argv, option_set_fn set,
                 void *ctx, int *ret_first, struct error *err);
/* What getopt_long() has just refused as unknown: "-x", or the word as it was given ("--thred=1").  letters: those that are
 * known, as getopt_long() got them.  In buf, or of argv. */
const char *option_refused(char **argv, const char *letters, char buf[4]);
/* The tables as --help shows them, each after an empty line. */
int options_help(const struct option_def *const *groups, struct strbuf *out);

/* Single edits that make b of a (letters put in, left out, changed); 100 for long names. */
unsigned name_distance(const char *a, const char *b);
#define NAME_NEAR 3 /* at most this far, a name is worth a hint */

/* ---- values: INVALID, with the value and the rule ---- */
int option_u32(const char *arg, uint32_t min, uint32_t max, uint32_t *ret, struct error *err);
int option_u64(const char *arg, uint64_t *ret, struct error *err);
int option_i32(const char *arg, int32_t min, int32_t max, int32_t *ret, struct error *err);
int option_float(const char *arg, float *ret, struct error *err);
int option_float_in(const char *arg, double min, double max, float *ret, struct error *err);
int option_size(const char *arg, uint64_t *ret, struct error *err); /* bytes; K M G T */
/* "1,2,4": at most max numbers, each at least min. */
int option_u32_list(const char *arg, uint32_t min, uint32_t *ret, size_t max, size_t *ret_n,
                    struct error *err);
