/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-train plot: how a run went, from its metrics.csv.  plot.c reads, plot_svg.c and plot_text.c
 * draw.
 */
#pragma once

#include <stdio.h>

#include "train/cli.h"
#include "train/csv.h"

#define PLOT_MAX_RUNS   8u
#define PLOT_MAX_SERIES 4u
#define PLOT_PANELS     4u

struct plot_run {
    char name[64];
    struct csv csv;
};
/* One diagram: columns of every run against one column. */
struct plot_panel {
    const char *title;
    const char *columns[PLOT_MAX_SERIES + 1], *labels[PLOT_MAX_SERIES];
};
extern const struct plot_panel plot_panels[PLOT_PANELS];

struct plot {
    struct plot_run runs[PLOT_MAX_RUNS];
    unsigned n_runs;
    const char *x; /* "step" or "seconds" */
    const char *svg;
    uint32_t width, height; /* of a diagram in the terminal */
};

/* Extent of a panel; false when nothing of it was measured. */
struct plot_range {
    double x0, x1, y0, y1;
};
bool plot_extent(const struct plot *p, const struct plot_panel *panel, struct plot_range *ret);
/* Point `row` of a series; false when there is none. */
bool plot_point(const struct plot *p, const struct plot_run *run, const char *column, size_t row,
                double *x, double *y);
/* A step of 1, 2 or 5 times a power of ten that gives at most n ticks. */
double plot_tick(double range, unsigned n);
void plot_text(const struct plot *p, FILE *f);
int plot_svg(const struct plot *p, struct error *err);
