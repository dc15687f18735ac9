/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafting without a drafter: the last tokens have been seen before, so what followed them then may
 * follow now.  Looks at prompt and output alike.
 */
#pragma once

#include "engine/proposal.h"

/* Appends a chain of at most `most` nodes that may follow tokens[n]; nothing when the last two
 * tokens never stood together before.  Their confidence is unknown. */
void ngram_propose(const uint32_t *tokens, uint32_t n, uint32_t most, struct proposal *p);
/* How many of the last tokens stood together before: 0, or 2 to 16. */
uint32_t ngram_match(const uint32_t *tokens, uint32_t n);
