/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of well-known shapes with random weights, for measuring: a GGUF file in the temporary
 * folder, removed again.  The weights are reproducible; the tokenizer has 256 bytes and nothing else.
 */
#pragma once

#include "base/error.h"
#include "kernels/kernels.h"

struct random_model {
    char dir[256];
    char path[300];
};
/* shape: "smollm2-135m" or "qwen3-0.6b"; n_layers 0: the shape's own.  UNSUPPORTED when rows do not
 * fit the type's blocks. */
int random_model_new(const char *shape, enum dk_type type, uint32_t n_layers,
                     struct random_model *ret, struct error *err);
void random_model_done(struct random_model *m);
