/* SPDX-License-Identifier: Apache-2.0 */
/* A drafter that the engine loads, as a state to train on from or to write in another form. */
#pragma once

#include "train/checkpoint.h"

/* Is it one (.gguf, or a folder with config.json)?  Nothing else of it is looked at. */
int drafter_is(const char *path, bool *ret, struct error *err);
/* Its weights without moments, with an average equal to them when one is wanted.  Taps count 1: the
 * columns of fc hold their sizes.  UNSUPPORTED names what training cannot have.  *ret is zero before
 * and the caller's, also after an error. */
int state_from_drafter(const char *path, const struct model_file *target, bool average,
                       struct train_state *ret, struct error *err);
/* tap_scale was measured: takes it out of the columns of fc. */
void state_unfold_taps(struct train_state *s);
