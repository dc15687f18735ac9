/* SPDX-License-Identifier: Apache-2.0 */
#include "train/schedule.h"

#include <math.h>

double schedule_factor(uint64_t s, uint64_t steps, uint64_t warmup)
{
    if (s < warmup)
        return (double)s / (double)warmup;
    if (s >= steps)
        return 0;
    return 0.5 *
           (1 + cos(3.14159265358979323846 * (double)(s - warmup) / (double)(steps - warmup)));
}
