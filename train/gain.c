/* SPDX-License-Identifier: Apache-2.0 */
/* Equal rounds are interchangeable, so a count for every gain is all that a bootstrap needs. */
#include "train/gain.h"

#include <stdlib.h>

#include "kernels/kernels.h"

#define GAIN_RESAMPLES 1000u

void gain_add(struct gain_bins *g, const float *confidence, uint32_t n, int gain)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)confidence[i];
    const double mean = n ? sum / n : 0;
    unsigned bin = 0;
    while (bin + 1 < GAIN_BINS && mean * GAIN_BINS >= bin + 1)
        bin++;
    g->n[bin][gain + (int)DRAFT_MAX_WINDOW]++;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct gain_mean gain_of_bin(const struct gain_bins *g, unsigned bin)
{
    struct gain_mean m = {0};
    int64_t sum = 0;
    uint64_t
        end[2 * DRAFT_MAX_WINDOW + 1]; /* of the rounds with this gain or less, in a row of all */
    for (unsigned i = 0; i <= 2 * DRAFT_MAX_WINDOW; i++) {
        m.rounds += g->n[bin][i];
        end[i] = m.rounds;
        sum += (int64_t)g->n[bin][i] * ((int)i - (int)DRAFT_MAX_WINDOW);
    }
    if (!m.rounds)
        return m;
    m.mean = (double)sum / (double)m.rounds;
    double means[GAIN_RESAMPLES];
    for (uint32_t b = 0; b < GAIN_RESAMPLES; b++) {
        const uint32_t key[2] = {0x6761696eu, bin};
        int64_t s = 0;
        for (uint64_t i = 0; i < m.rounds; i += 4) {
            const uint32_t at[4] = {(uint32_t)(i / 4), b, 0, 0};
            uint32_t word[4];
            dk_philox4x32_10(at, key, word);
            for (unsigned k = 0; k < 4 && i + k < m.rounds; k++) {
                const uint64_t which = word[k] * m.rounds >> 32;
                unsigned v = 0;
                while (end[v] <= which)
                    v++;
                s += (int)v - (int)DRAFT_MAX_WINDOW;
            }
        }
        means[b] = (double)s / (double)m.rounds;
    }
    qsort(means, GAIN_RESAMPLES, sizeof(*means), by_value);
    m.low = means[GAIN_RESAMPLES * 25 / 1000];
    m.high = means[GAIN_RESAMPLES * 975 / 1000 - 1];
    return m;
}
