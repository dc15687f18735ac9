/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text that a command leaves in a file when it is whole.  It is gathered in memory and appears under
 * its name at once, so a reader, a full disk or a signal never leaves half of it, and what was there
 * before stays when it cannot be written.  A file that is replaced keeps its mode.
 *
 * What cannot be replaced gets the text as it is: a terminal or a pipe, the file behind a link, a file
 * in a folder that cannot be written.  A link to what is not there makes the file that it leads to, where
 * there is a folder for it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

struct out_file {
    FILE *f; /* print there; NULL before out_file_open() */
    const char *path;
    bool through; /* written as it is */
    char *text;
    size_t len;
};

/* Whether two paths are one regular file or folder, by whatever names; of two that are not there yet, whether they
 * will be one file. */
bool file_is_same(const char *a, const char *b);

/* What a command writes, and the option that says so. */
struct out_use {
    const char *option, *path; /* "--csv"; NULL: not given */
};
/* To be asked before anything is read or written: INVALID where a command would write over what it reads (a file, or
 * one that is part of a folder), or to one file twice.  NULLs among the inputs are passed over. */
int out_files_check(const struct out_use *outs, size_t n_outs, const char *const *ins, size_t n_ins,
                    struct error *err);

/* path must stay; one that could not be written is an error already here, as far as that can be told. */
int out_file_open(struct out_file *o, const char *path, struct error *err);
/* Frees all, and writes what was printed. */
int out_file_close(struct out_file *o, struct error *err);
/* Frees all, whatever was printed. */
void out_file_drop(struct out_file *o);
