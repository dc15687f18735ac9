/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree out of one block's probabilities (DDTree, arXiv 2604.12989): the N prefixes that are most
 * probable when the depths are taken as independent.  A pure function of its input.
 */
#pragma once

#include <stdint.h>

#include "engine/proposal.h"

/* The best tokens of one depth, in descending order; ties as the caller has them. */
struct ddtree_depth {
    const uint32_t *tokens;
    const float *logp; /* natural log of the probability over the whole vocabulary */
    uint32_t n;        /* as many as the budget, or all there are; fewer: a list that ends has no more
                        * siblings */
};

/*
 * Fills p (cleared first) with at most `budget` nodes, best first, so that every parent comes before
 * its children.  Equal scores: the path of ranks that is smaller in lexicographic order, a path before
 * those that continue it.  Returns the number of nodes.
 */
uint32_t ddtree_build(const struct ddtree_depth *depths, uint32_t n_depths, uint32_t budget,
                      struct proposal *p);
