/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine can do, measured with the same number of threads as the engine: reading a buffer
 * as large as the weights (the best of several read loops), binary32 FMAs and integer dot products
 * from registers.  Measured again in every round of a benchmark, between the steps.
 */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "kernels/kernels.h"

struct floors;
int floors_new(unsigned n_threads, enum dk_tier tier, size_t bytes, struct floors **ret,
               struct error *err);
struct floors *floors_free(struct floors *f);
DEFINE_CLEANUP(struct floors *, floors_free);

double floors_read(struct floors *f); /* seconds to read the buffer once, best loop of this round */
double floors_fma(struct floors *f);  /* binary32 FLOP/s (two per FMA) */
double floors_int(struct floors *f);  /* int8 multiply-accumulates/s: VNNI, or what the tier has */
double floors_amx(struct floors *f);  /* BF16 FLOP/s of the AMX tiles; 0 without them */
size_t floors_bytes(const struct floors *f);
