/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls cost here, measured while nobody waits: one call of the target or the drafter at a time, so
 * that a request that comes has to wait for one of them at most.  Nothing is kept between two calls.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/backend.h"
#include "engine/cost.h"

struct engine;
struct calibration; /* one that is under way */

/* What the costs of this engine belong to: machine, threads, tier, sizes and types of the weights. */
int calibration_key(const struct engine *e, char **ret, struct error *err);
/* Tells the target and the drafter from others of the same shapes: how far drafts come is theirs alone. */
uint64_t calibration_models(const struct engine *e);
/* One more measurement.  1: there are more; 0: that was the last one, or there is no room now. */
int calibration_step(struct engine *e, struct error *err);
/* One call outside of the list; 0: there is no room for it. */
int calibration_call(struct engine *e, enum cost_kind kind, uint32_t rows, uint32_t context,
                     uint64_t *ret_ns, struct error *err);
struct calibration *calibration_free(struct calibration *c);
