/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens that a drafter proposes from, and the one that stands for "not drafted yet". */
#pragma once

#include "train/data.h"
#include "train/state.h"

/* The `want` tokens that are supervised most often (0: every token), the lower id first among
 * equals; ascending in *ret_ids, which is NULL for every token.  *ret_coverage: their share of
 * the supervised tokens. */
int vocabulary_choose(const struct data_set *d, uint32_t vocab, uint32_t want, uint32_t **ret_ids,
                      uint32_t *ret_n, double *ret_coverage, struct error *err);
/* The lowest id above 2 that no sequence has and that ends nothing; NOT_FOUND asks for the
 * option. */
int vocabulary_mask(const struct data_set *d, const struct model_config *c, uint32_t *ret,
                    struct error *err);
