/* SPDX-License-Identifier: Apache-2.0 */
/* Medians with intervals, and tables of them. */
#pragma once

#include <stddef.h>

/* Median and a 95 % interval of it from order statistics: no assumption about the distribution. */
struct stats {
    double median, lo, hi;
};
/* Sorts x[n], n >= 1.  Below 6 values the interval is the whole range. */
struct stats stats_of(double *x, size_t n);
/* Median of x[i] / y[i], the pairs being of one round each.  work: n doubles. */
struct stats stats_ratio(const double *x, const double *y, size_t n, double *work);
/* Mean, in `median`'s place, and its 95 % interval by a bootstrap that is the same every time; n >= 1. */
struct stats stats_mean(const double *x, size_t n);
/* Mean of the middle half; sorts x. */
double stats_middle(double *x, size_t n);
