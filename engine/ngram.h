/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafting without a drafter: the last tokens have been seen before, so what followed them then may
 * follow now.  Looks at prompt and output alike.
 */
#pragma once

#include "engine/proposal.h"

/* Appends a chain of at most `most` nodes that may follow tokens[n]; nothing when the last two
 * tokens never stood together before. */
void ngram_propose(const uint32_t *tokens, uint32_t n, uint32_t most, struct proposal *p);
