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
#include "engine/engine.h"

enum { BENCH_OK = 0, BENCH_FAILED = 1, BENCH_USAGE = 2, BENCH_INTERRUPTED = 130 };

struct bench_opt {
    int id;           /* above 255 */
    const char *name; /* long name */
    const char *arg;  /* name of its value, or NULL */
    const char *help; /* one or more lines; says the default */
};

struct bench_command {
    const char *name, *args, *summary;
    const struct bench_opt *const *groups; /* NULL-terminated list of tables, each ended by id 0 */
    /* Takes one option; the error's text does not name the option, the caller does. */
    int (*set)(void *ctx, int id, const char *arg, struct error *err);
    int (*run)(const struct bench_command *c, int argc, char **argv); /* exit status */
};
extern const struct bench_command bench_generate, bench_check, bench_step, bench_tokenize,
    bench_detokenize, bench_eval;

/* Reads the options; *ret_first is the index of the first argument that is none.  Returns 0, or -1
 * when the command is done and *ret_status is its exit status (--help, or a usage error, which has
 * been printed). */
int bench_options(const struct bench_command *c, int argc, char **argv, void *ctx, int *ret_first,
                  int *ret_status);

/* "dedit-bench COMMAND: text" on stderr; returns status. */
int bench_fail(const struct bench_command *c, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- values of options ---- */
int bench_u32(const char *arg, uint32_t min, uint32_t max, uint32_t *ret, struct error *err);
int bench_u64(const char *arg, uint64_t *ret, struct error *err);
int bench_i32(const char *arg, int32_t min, int32_t max, int32_t *ret, struct error *err);
int bench_float(const char *arg, float *ret, struct error *err);
/* "1,2,4": at most max numbers, each at least 1. */
int bench_u32_list(const char *arg, uint32_t *ret, size_t max, size_t *ret_n, struct error *err);

/* ---- options that every command with an engine has ---- */
struct bench_engine {
    const char *model; /* NULL: the default model */
    bool tier_given;
    struct engine_config config;
};
enum {
    BENCH_OPT_MODEL = 1000,
    BENCH_OPT_TIER,
    BENCH_OPT_THREADS,
    BENCH_OPT_KV_DTYPE,
    BENCH_OPT_DTYPE,
    BENCH_OPT_EXACT,
    BENCH_OPT_CONTEXT,
    BENCH_OPT_DRAFTER,
    BENCH_OPT_DRAFTER_DTYPE
};
extern const struct bench_opt bench_engine_opts[];
void bench_engine_init(struct bench_engine *e);
/* 1 when id is one of them and was taken, 0 when it is another's, negative on error. */
int bench_engine_set(struct bench_engine *e, int id, const char *arg, struct error *err);
/* After the options: the tier of DEDIT_CPU_TIER unless --tier was given, the number of threads. */
int bench_engine_tier(struct bench_engine *e, struct error *err);
/* Loads the model. */
int bench_engine_open(const struct bench_engine *e, const char *path, struct engine **ret,
                      struct error *err);
/* Path of the default model, where models/fetch puts it: the user's cache, else the system's
 * folder.  NOT_FOUND says how to get it.  buf: PATH_MAX bytes. */
int bench_default_model(char *buf, size_t size, struct error *err);
