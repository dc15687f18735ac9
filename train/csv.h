/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of numbers in CSV files, such as metrics.csv: a line of names, then numbers or nothing. */
#pragma once

#include <stddef.h>

#include "base/error.h"

struct csv {
    char *text;   /* the file; names point into it */
    char **names; /* [n_columns] */
    size_t n_columns, n_rows, cap;
    double *values; /* [n_rows][n_columns]; NaN where there is nothing */
};
/* Errors name file, line and column.  A last line without its end is left out: it is being written. */
int csv_read(const char *path, struct csv *ret, struct error *err);
/* A text of mem_alloc's, NUL behind it; it is taken, also on failure. */
int csv_parse(char *take, size_t len, const char *name, struct csv *ret, struct error *err);
void csv_done(struct csv *c);
/* Its number, or -1. */
int csv_column(const struct csv *c, const char *name);
static inline double csv_value(const struct csv *c, size_t row, int column)
{
    return c->values[row * c->n_columns + (size_t)column];
}
