/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model with random weights in memory: for benchmarks of shapes whose files are not at hand, and
 * for tests.  It behaves like an opened file without a tokenizer.
 */
#pragma once

#include <stdint.h>

#include "engine/model_file.h"

/* name is what model_file_name() says; c gives the shape; its stop ids and BOS are taken over.  Matrices get the type, small values and
 * finite logits; norms are 1, biases 0.  The same arguments give the same bytes.  UNSUPPORTED when
 * a row is not whole blocks of the type, INVALID for an impossible configuration.  With c->drafter
 * it is a drafter; that structure is copied.  It needs a head of its own when it has a table of
 * ids: a random target keeps no file to make one of. */
int model_file_random(const char *name, const struct model_config *c, enum dk_type type, uint64_t seed,
                      struct model_file **ret, struct error *err);
