/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-client: what its commands share.  One table of options per command feeds the parser, --help,
 * the completion and the test that compares them with the manual.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "client/dedit.h"

/* What --seed and a batch's "seed" take, in their messages. */
#define CLI_SEED_RULE "a whole number from 0 to 18446744073709551615"

/* Exit status, documented in dedit-client(1). */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,       /* the request was accepted and failed, or a file could not be used */
    CLI_USAGE = 2,        /* the command line is wrong */
    CLI_NO_DAEMON = 3,    /* no daemon listens, or it went away */
    CLI_REFUSED = 4,      /* the daemon refused: a limit, a value, a missing right */
    CLI_INTERRUPTED = 130 /* or 128 and another signal */
};

struct cli_option {
    const char *name;     /* long name, without dashes */
    char letter;          /* short form, or 0 */
    const char *arg;      /* name of its value in the help, or NULL */
    const char *standard; /* default as the help prints it, or NULL */
    const char *help;
};

struct cli;
struct cli_command {
    const char *name;
    const char *args;    /* "[PROMPT...]" */
    const char *summary; /* one line */
    const struct cli_option
        *options; /* own ones; the common and perhaps the sampling ones follow */
    size_t n_options;
    bool sampling; /* takes the options of cli_sampling */
    int (*run)(struct cli *c);
};
extern const struct cli_command cli_commands[];
extern const size_t cli_n_commands;
extern const struct cli_option cli_common[], cli_sampling[];
extern const size_t cli_n_common, cli_n_sampling;

/* Values of one command line. */
struct cli {
    const struct cli_command *command;
    int argc; /* what is left after the options */
    char **argv;
    /* common */
    const char *socket;
    bool json, quiet, color;
    /* sampling and request; strings belong to argv */
    struct dedit_options o;
    const char *stop[64];
    uint32_t stop_ids[64];
    struct dedit_logit_bias bias[256];
    const char *system;
    bool chat_format_none; /* --raw: the prompt is plain text */
    bool show_ids;
    /* a command's own options that were given: values by index in its table, NULL when not */
    const char *own[32];
};

/* Value of the command's own option, or NULL; "" for one without a value. */
const char *cli_own(const struct cli *c, const char *name);
/* Own option as a number in range; prints and returns false when it is none. */
bool cli_own_u32(const struct cli *c, const char *name, uint32_t min, uint32_t max, uint32_t *ret);

/* Connects, or prints why not and returns NULL (*ret_status is set). */
struct dedit_client *cli_connect(const struct cli *c, int *ret_status);
/* "dedit-client: message" on stderr; in JSON mode an object on stdout. Returns the exit status. */
int cli_fail(const struct cli *c, const struct dedit_error *e);
int cli_fail_text(const struct cli *c, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int cli_status_of(int code);
int cli_usage_error(const struct cli *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* All of a file or of stdin ("-"); NUL-terminated; mem_free() it. NULL: printed why. */
char *cli_read(const struct cli *c, const char *path, size_t *ret_len);
/* What the option writes is not what the command reads; in: its file, "-" for standard input, or NULL.  Prints and
 * returns false when it is. */
bool cli_apart(const struct cli *c, const char *option, const char *out, const char *in);
/* A JSON value as one line, without its end; a member "seed" has no sign. -1: it could not be written. */
int cli_dump_json(const json_t *j, FILE *f);
/* Prints and frees a JSON value as one line. */
void cli_print_json(json_t *j);
json_t *cli_usage_json(const struct dedit_usage *u);
/* One line of text, in which the outermost object's "seed" may have 64 bits: *ret_seed is one that jansson cannot
 * hold, which is 0 in the result and in the line; else 0.  One that has more is -1 there. */
json_t *cli_load_line(char *line, size_t n, uint64_t *ret_seed, json_error_t *ret_error);
const char *cli_s(uint64_t n); /* "s", but for one */
/* "12 prompt tokens, first token after 34 ms, 40 tokens, 56.7 tokens/s, ddtree, drafts in 12 of 15 rounds, acceptance
 * length 2.10, stop" */
void cli_stats_line(FILE *f, const struct dedit_event *end);
/* Its parts: tokens a second after the first one, 0 when there were none; ", ddtree, drafts in 12 of
 * 15 rounds, acceptance length 2.10". */
double cli_speed(const struct dedit_usage *u);
void cli_print_drafting(FILE *f, const struct dedit_usage *u);
/* Options of the request with one user message (or raw text); messages live in m[2]. */
void cli_prompt(struct cli *c, const char *text, size_t len, struct dedit_chat_message m[2]);
const char *cli_sgr(const struct cli *c, const char *code); /* "" without colours */

/* The signal: set by SIGINT while cli_catch_interrupt is in force; by SIGTERM and SIGHUP, too, while cli_catch_end
 * is, for commands that leave nothing half done (a SIGHUP that is ignored stays so). */
extern volatile int cli_interrupted;
void cli_catch_interrupt(bool on);
void cli_catch_end(bool on);

/* The commands. */
int cli_generate(struct cli *c);
int cli_chat(struct cli *c);
int cli_batch(struct cli *c);
int cli_tokenize(struct cli *c);
int cli_detokenize(struct cli *c);
int cli_models(struct cli *c);
int cli_add(struct cli *c);
int cli_rm(struct cli *c);
int cli_load(struct cli *c);
int cli_unload(struct cli *c);
int cli_reload(struct cli *c);
int cli_drain(struct cli *c);
int cli_stats(struct cli *c);
int cli_ping(struct cli *c);
int cli_completion(struct cli *c);
int cli_trace_html(struct cli *c);
