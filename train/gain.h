/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an edit pass gains, by how sure the drafter was of what the pass was given.  A round's confidence
 * is the mean over its drafts; its gain is how many more of them agree with the text after the pass.
 */
#pragma once

#include <stdint.h>

#include "engine/method.h"

#define GAIN_BINS 10u /* of confidence, equally wide */

/* Rounds by bin and by gain + DRAFT_MAX_WINDOW. */
struct gain_bins {
    uint32_t n[GAIN_BINS][2 * DRAFT_MAX_WINDOW + 1];
};

/* low, high: percentiles 2.5 and 97.5 of a bootstrap over the bin's rounds, the same at every call. */
struct gain_mean {
    uint64_t rounds;
    double mean, low, high; /* drafts a round */
};

/* confidence: [n] of the drafts before the pass; |gain| is at most DRAFT_MAX_WINDOW. */
void gain_add(struct gain_bins *g, const float *confidence, uint32_t n, int gain);
struct gain_mean gain_of_bin(const struct gain_bins *g, unsigned bin);
