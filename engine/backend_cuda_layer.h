/* SPDX-License-Identifier: Apache-2.0 */
/* Between backend_cuda_forward.c, which runs batches, and backend_cuda_layer.c, which runs their layers. */
#pragma once

#include "engine/backend_cuda.h"

/* The rows of a stage of a forward pass, and where they lie. */
struct cuda_stage {
    uint32_t n;
    float *x, *q;
    const struct dcu_row *rows, *window;
    const uint32_t *tap_index;
};
/* A batch that runs. */
struct cuda_run {
    struct cuda_model *m;
    const struct fwd_batch *b;
    struct cuda_rows c;
    struct cuda_stage s; /* where the last layer has left its rows */
    struct error *err;
};

/* Launches of one layer; *s: the rows that go on behind it. */
int cuda_layer_run(const struct cuda_run *f, uint32_t layer, struct cuda_stage *s);
/* Layers whose taps the buffer holds. */
uint32_t cuda_tap_places(const struct cuda_model *m);
/* Of taps that go to the host: the first of those in the buffer when the last layer has run, the copy of n of
 * them, and, once it is there, those of taps first .. end - 1 to whom they belong. */
uint32_t cuda_taps_last(const struct cuda_run *f);
int cuda_taps_copy(const struct cuda_run *f, uint32_t n);
void cuda_taps_deliver(const struct cuda_run *f, uint32_t first, uint32_t end);
