/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-train: one program, several commands.  A command is a table of options, a function that takes
 * one option's value, and a function that runs it.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/options.h"
#include "engine/engine_options.h"

enum {
    TRAIN_OK = 0,
    TRAIN_FAILED = 1,
    TRAIN_USAGE = 2,
    TRAIN_INTERRUPTED = 130 /* by SIGINT or SIGTERM; what was done is kept, the command resumes */
};

struct train_command {
    const char *name, *args, *summary;
    const struct option_def *const *groups; /* NULL-terminated list of tables, each ended by id 0 */
    option_set_fn set;
    int (*run)(const struct train_command *c, int argc, char **argv); /* exit status */
};
extern const struct train_command train_synth, train_regen, train_fit_command, train_widen_command,
    train_eval, train_export_command, train_inspect, train_plot;

/* Reads the options; *ret_first is the index of the first argument that is none.  Returns 0, or -1
 * when the command is done and *ret_status is its exit status (--help, or a usage error, which has
 * been printed). */
int train_options(const struct train_command *c, int argc, char **argv, void *ctx, int *ret_first,
                  int *ret_status);
/* "dedit-train COMMAND: text" on stderr; returns status. */
int train_fail(const struct train_command *c, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The status that belongs to an error of a command, which is printed. */
int train_error(const struct train_command *c, const struct error *err);

/* Set by SIGINT and SIGTERM once train_catch_signals() was called; a second signal ends the process. */
extern volatile sig_atomic_t train_stop;
void train_catch_signals(void);

/* The model that is named, else the default one. */
int train_model_path(const struct engine_options *e, char *buf, size_t size, struct error *err);
