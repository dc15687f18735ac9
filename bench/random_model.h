/* SPDX-License-Identifier: Apache-2.0 */
/* Well-known shapes with random weights, for measuring models whose files are not at hand. */
#pragma once

#include "engine/model_file.h"

/* shape: "smollm2-135m", "qwen3-0.6b", "qwen3-4b" or "tiny"; n_layers 0: the shape's own.  INVALID for another shape,
 * UNSUPPORTED when rows do not fit the type's blocks. */
int random_model_new(const char *shape, enum dk_type type, uint32_t n_layers,
                     struct model_file **ret, struct error *err);
/* A drafter for a target of this configuration, with layers like the target's and a head of its own
 * over draft_vocab tokens spread over the vocabulary (0: all of it). */
int random_drafter_new(const struct model_config *target, enum dk_type type, uint32_t n_layers,
                       uint32_t draft_vocab, struct model_file **ret, struct error *err);
