/* SPDX-License-Identifier: Apache-2.0 */
/* What it costs to reach the engine through dedit-d: measured in pairs with the bare mechanism. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bench/stats.h"

struct measure {
    const char *socket; /* NULL: the standard place */
    const char *model;  /* NULL: the daemon's default */
    uint32_t repetitions, count, clients, tokens, rounds, seconds;
};
/* Each returns main's exit status. */
int measure_handover(const struct measure *m);
int measure_ping(const struct measure *m);
int measure_idle(const struct measure *m);
int measure_load(const struct measure *m);

/* "name  median unit [lo, hi]" */
void measure_print(const char *name, struct stats s, double scale, const char *unit);
/* Sorted in place. */
double measure_median(double *x, uint32_t n);
/* This process on one of the CPUs that it may use: the n-th, round robin. */
void measure_pin(unsigned n);
