/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weight products of one model step and nothing else: the same packed matrices, the same split
 * over threads, a barrier where the next product needs the last one's result.  A step's time minus
 * this is what everything else costs.
 */
#pragma once

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/model_file.h"
#include "kernels/kernels.h"

struct products;
/* Packs the matrices of f once more.  exact: as engine_config.exact. */
int products_new(const struct model_file *f, enum dk_tier tier, bool exact, unsigned n_threads,
                 uint32_t max_rows, struct products **ret, struct error *err);
struct products *products_free(struct products *p);
DEFINE_CLEANUP(struct products *, products_free);
double products_run(struct products *p, uint32_t rows); /* seconds */
