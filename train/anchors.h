/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step trains on: which sequences, and where in them blocks begin.  Both are functions of
 * the seed and the step alone, so that a resumed run sees what an unbroken one would.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Streams of random words: Philox blocks keyed by the seed. */
enum train_stream { STREAM_ORDER = 1, STREAM_ANCHORS, STREAM_INIT };
uint64_t train_random(uint64_t seed, enum train_stream stream, uint64_t a, uint64_t b);

/* Sequences of all steps: epochs of n, each in an order of its own. */
struct train_order {
    uint64_t seed, n, epoch;
    uint32_t *order; /* of `epoch` */
    bool known;
};
int train_order_init(struct train_order *o, uint64_t seed, uint64_t n, struct error *err);
void train_order_done(struct train_order *o);
/* The i-th sequence of the run, i = step * batch + k. */
uint32_t train_order_at(struct train_order *o, uint64_t i);

/* Places where a block may begin: a supervised token whose successor is supervised: mask[a] and
 * mask[a + 1].  Draws at most `want` of them without putting back, ascending, into ret; returns
 * how many. */
uint32_t train_anchors(const uint8_t *mask, uint32_t n, uint32_t want, uint64_t seed, uint64_t step,
                       uint32_t k, uint32_t *ret);
