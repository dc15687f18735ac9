/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a text go round in circles?  It loops with period p when its last max(24, 2p + 8) tokens repeat
 * every p, for some p up to 80.  Each token costs a comparison a period.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LOOP_MAX_PERIOD 80u

struct loop_watch {
    uint32_t run[LOOP_MAX_PERIOD + 1]; /* tokens up to the last that are those p before them */
};

static inline void loop_reset(struct loop_watch *w)
{
    memset(w, 0, sizeof(*w));
}

/* ids[n - 1] is new.  The period, or 0. */
static inline uint32_t loop_push(struct loop_watch *w, const uint32_t *ids, size_t n)
{
    uint32_t found = 0;
    for (uint32_t p = 1; p <= LOOP_MAX_PERIOD && p < n; p++) {
        const uint32_t length = 2 * p + 8 > 24 ? 2 * p + 8 : 24;
        w->run[p] = ids[n - 1] == ids[n - 1 - p] ? w->run[p] + 1 : 0;
        if (!found && w->run[p] + p >= length)
            found = p;
    }
    return found;
}
