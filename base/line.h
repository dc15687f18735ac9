/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next line of a stream.  getline() ends in the same way at the end of a file, without memory and after a
 * failed read; who takes all of them for the end loses what follows, so nobody else calls it.
 */
#pragma once

#include <stdio.h>

#include "base/error.h"

/* Its bytes, of which the last is a newline, but for the end of a file that has none; 0: there is no more; negative:
 * it could not be read, name says from where.  *line is the C library's: free() it, after failures too. */
long line_read(FILE *f, const char *name, char **line, size_t *cap, struct error *err);
/* The same, of the next line that has more than blanks. */
long line_read_next(FILE *f, const char *name, char **line, size_t *cap, struct error *err);
