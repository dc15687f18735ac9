/* SPDX-License-Identifier: Apache-2.0 */
/* Well-known shapes with random weights, for measuring models whose files are not at hand. */
#pragma once

#include "engine/model_file.h"

/* shape: "smollm2-135m" or "qwen3-0.6b"; n_layers 0: the shape's own.  INVALID for another shape,
 * UNSUPPORTED when rows do not fit the type's blocks. */
int random_model_new(const char *shape, enum dk_type type, uint32_t n_layers,
                     struct model_file **ret, struct error *err);
