/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate: linear warm-up, then half a cosine down to 0.  A function of the step
 * alone. */
#pragma once

#include <stdint.h>

/* Factor of the base rate at step s = 0 .. steps - 1: s / warmup during the warm-up, then
 * (1 + cos(pi (s - warmup) / (steps - warmup))) / 2. */
double schedule_factor(uint64_t s, uint64_t steps, uint64_t warmup);
