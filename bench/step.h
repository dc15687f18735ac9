/* SPDX-License-Identifier: Apache-2.0 */
/* State of dedit-bench step, and its parts. */
#pragma once

#include <stdio.h>

#include "base/out_file.h"
#include "bench/bench.h"
#include "bench/floors.h"
#include "bench/random_model.h"
#include "bench/stats.h"

#define STEP_MAX_ROWS     32 /* numbers in --rows */
#define STEP_MAX_CONTEXTS 8

struct step {
    struct engine_options engine;
    const char *random, *dtype, *csv_path, *path;
    uint32_t layers, rows[STEP_MAX_ROWS], contexts[STEP_MAX_CONTEXTS], repetitions, prefill;
    enum dk_type type; /* with random */
    size_t n_rows, n_contexts;
    bool load, rest, last; /* last: of the rows, only it has logits */

    struct engine *e;
    struct model_file *file;
    struct floors *floors;
    struct out_file csv; /* csv.f: NULL without --csv */
    /* Of the matrices that a step reads. */
    size_t weight_bytes;
    double float_params, int_params, head_params;
    bool amx_class;
};

/* Cost of a step by number of rows, at every context. */
int step_rows(struct step *s, struct error *err);
/* Prefill of s->prefill tokens. */
int step_prefill(struct step *s, struct error *err);
/* One row at every context: products, and all the rest, against reading the KV once. */
int step_rest(struct step *s, struct error *err);
/* Phases of loading and resident memory. */
int step_load(struct step *s, struct error *err);

/* What this round's machine needs at least for one step of n rows, in seconds. */
struct step_peaks {
    double read_s, fma, dot, amx;
};
void step_measure_peaks(struct step *s, struct step_peaks *p);
/* K/V of so many positions. */
double step_kv_bytes(const struct step *s, uint32_t positions);
/* Reading weights and K/V once each, or the products' arithmetic where that takes longer. */
double step_floor(const struct step *s, const struct step_peaks *p, double rows, double head_rows,
                  double kv_bytes);
