/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/stats.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct stats stats_of(double *x, size_t n)
{
    qsort(x, n, sizeof(*x), ascending);
    /* Ranks of the interval: binomial(n, 1/2), normal approximation. */
    double half = 0.98 * sqrt((double)n);
    double lo = floor((double)n / 2 - half), hi = ceil((double)n / 2 + half);
    size_t l = lo > 0 ? (size_t)lo : 0, h = hi < (double)n ? (size_t)hi : n;
    return (struct stats){
        .median = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2,
        .lo = x[l],
        .hi = x[h > 0 ? h - 1 : 0],
    };
}

double stats_middle(double *x, size_t n)
{
    double sum = 0;
    qsort(x, n, sizeof(*x), ascending);
    for (size_t i = n / 4; i < n - n / 4; i++)
        sum += x[i];
    return sum / (double)(n - 2 * (n / 4));
}

#define RESAMPLES 2000u

struct stats stats_mean(const double *x, size_t n)
{
    double means[RESAMPLES], sum = 0;
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    for (unsigned k = 0; k < RESAMPLES; k++) {
        means[k] = 0;
        for (size_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            means[k] += x[(size_t)((state >> 33) % n)];
        }
        means[k] /= (double)n;
    }
    qsort(means, RESAMPLES, sizeof(*means), ascending);
    return (struct stats){.median = sum / (double)n,
                          .lo = means[RESAMPLES / 40],
                          .hi = means[RESAMPLES - 1 - RESAMPLES / 40]};
}

struct stats stats_ratio(const double *x, const double *y, size_t n, double *work)
{
    for (size_t i = 0; i < n; i++)
        work[i] = x[i] / y[i];
    return stats_of(work, n);
}
