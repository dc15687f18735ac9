/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train inspect: inspect.c tells what a path is, inspect_data.c and inspect_drafter.c show it. */
#pragma once

#include <stdio.h>

#include "train/cli.h"

struct inspect {
    struct engine_options engine;
    uint32_t line; /* 0: none */
};

/* Counts, lengths, endings, kinds, how much of the answers the most frequent tokens cover. */
int inspect_data(const struct inspect *s, const char *path, struct error *err);
/* One conversation as text. */
int inspect_line(const struct inspect *s, const char *path, struct error *err);
int inspect_checkpoint(const char *path, struct error *err);
int inspect_drafter(const struct inspect *s, const char *path, struct error *err);
