/* SPDX-License-Identifier: Apache-2.0 */
/* What a run tells: a line on the terminal, rows of metrics.csv. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "train/loss.h"

struct metrics {
    FILE *csv;
    bool quiet, terminal;
    double peak; /* FLOP/s of all threads, measured before the steps of a row */
    /* Since the last row. */
    uint64_t steps, tokens, blocks;
    double seconds, flops, lr, norm;
    struct train_stats sum;
    double weight[2]; /* of the losses in sum */
    /* Of the run. */
    double started, run_seconds;
    uint64_t run_steps;
};
/* Opens out/metrics.csv; rows of steps from `step` on are dropped (they will be done again). */
int metrics_open(struct metrics *m, const char *out, uint64_t step, bool quiet, struct error *err);
void metrics_close(struct metrics *m);
/* Adds one step. */
void metrics_add(struct metrics *m, const struct train_stats *s, double lr, double norm,
                 double seconds, double flops, uint64_t tokens);
/* Ends a row: written, shown, emptied. held: of held-out data, or NULL. peak: measured now; the row's
 * share is of the mean of this and the one before: other tenants of a processor change both. */
int metrics_row(struct metrics *m, uint64_t step, uint64_t steps, const struct train_stats *held,
                double peak, struct error *err);
/* Peak of this machine, FLOP/s of all threads at once; takes some 30 ms. */
double metrics_peak(struct train_par *p);
