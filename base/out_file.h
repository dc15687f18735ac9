/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text that a command leaves in a file when it is whole.  It is gathered in memory and appears under
 * its name at once, so a reader, a full disk or a signal never leaves half of it, and what was there
 * before stays when it cannot be written.
 */
#pragma once

#include <stdio.h>

#include "base/error.h"

struct out_file {
    FILE *f; /* print there; NULL before out_file_open() */
    const char *path;
    char *text;
    size_t len;
};

/* path must stay; one that could not be written is an error already here. */
int out_file_open(struct out_file *o, const char *path, struct error *err);
/* Frees all, and writes what was printed; a path that is there and no regular file (a terminal, a pipe)
 * gets it as it is. */
int out_file_close(struct out_file *o, struct error *err);
/* Frees all, whatever was printed. */
void out_file_drop(struct out_file *o);
