/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client batch: what a line asks for, and the file that results go to. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "client/cli.h"

/* ---- one line in ------------------------------------------------------------------------------- */

#define BATCH_MAX_STOP 64
#define BATCH_DIGEST   17 /* 16 hexadecimal digits, and the NUL */

/* What one line asks for.  Strings are the line's and the command line's. */
struct batch_request {
    struct dedit_options o;
    const char *stop[BATCH_MAX_STOP];
    struct dedit_chat_message one[2], *many;
};
/* The line's own values over those of the command line; seed: what `in` cannot hold, or 0.  False and *why when one is
 * not what it must be.  Afterwards batch_request_done(), in either case. */
bool batch_request_read(const struct cli *c, const json_t *in, uint64_t seed,
                        struct batch_request *ret, const char **why);
void batch_request_done(struct batch_request *q);

/* By what a result knows its line: 16 digits, the first ones of the SHA-256 of what stands between the blanks
 * around it. */
void batch_digest(const char *line, size_t n, char ret[BATCH_DIGEST]);

/* ---- results ----------------------------------------------------------------------------------- */

/* Standard output, or the file of --output with what an earlier run has left in it.  All zero is a valid start. */
struct batch_output {
    const char *path; /* NULL: standard output */
    FILE *f;
    char (*digests)[BATCH_DIGEST]; /* of the results that are there; "": a result without one */
    size_t done, room;             /* results that are there */
    size_t failed;                 /* of them */
    long good;                     /* bytes of them */
    bool regular;
};
/* Opens, locks and reads it; prints what is wrong, as all of these. */
int batch_output_open(const struct cli *c, const char *path, struct batch_output *ret);
/* Reads as many lines of the input as there are results, which must answer them; then a torn last line is cut off.  in_path
 * is how messages call it. */
int batch_output_resume(const struct cli *c, struct batch_output *o, FILE *in, const char *in_path);
int batch_output_close(const struct cli *c, struct batch_output *o, int status);
