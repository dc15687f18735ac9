/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench: one program, several commands.  A command is a table of options, a function that
 * takes one option's value, and a function that runs it; the table alone makes getopt_long's list
 * and the --help text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"
#include "engine/engine.h"
#include "engine/engine_options.h"

enum { BENCH_OK = 0, BENCH_FAILED = 1, BENCH_USAGE = 2, BENCH_INTERRUPTED = 130 };

struct bench_command {
    const char *name, *args, *summary;
    const struct option_def *const *groups; /* NULL-terminated list of tables, each ended by id 0 */
    option_set_fn set;
    int (*run)(const struct bench_command *c, int argc, char **argv); /* exit status */
};
extern const struct bench_command bench_generate, bench_check, bench_step, bench_tokenize,
    bench_detokenize, bench_eval, bench_controller;

/* Reads the options; *ret_first is the index of the first argument that is none.  Returns 0, or -1
 * when the command is done and *ret_status is its exit status (--help, or a usage error, which has
 * been printed). */
int bench_options(const struct bench_command *c, int argc, char **argv, void *ctx, int *ret_first,
                  int *ret_status);

/* "dedit-bench COMMAND: text" on stderr; returns status. */
int bench_fail(const struct bench_command *c, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
