/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rule B, speculative sampling: a draft d that was drawn from q is accepted with probability
 * min(1, p(d) / q(d)); after a rejection the token is drawn from what p has more than q.  The output
 * has the target's law, but not the tokens of plain decoding (rule A, the default, has both).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Smallest id whose cumulative weight exceeds u times their sum; u in (0, 1).  ids ascend. */
uint32_t rejection_draw(const uint32_t *ids, const double *weight, uint32_t n, double u);

/*
 * One draft.  p: the target's distribution, n ids ascending with their probabilities; q: the
 * drafter's over all ids, or NULL when it could only be `draft`.  True: accepted.  False: *ret_next is
 * the token instead.  weight: room for n.
 */
bool rejection_step(const uint32_t *ids, const double *p, uint32_t n, const float *q,
                    uint32_t draft, double u_accept, double u_next, double *weight,
                    uint32_t *ret_next);
