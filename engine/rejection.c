/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/rejection.h"

#define SMALLEST_Q    1e-8
#define SMALLEST_MASS 1e-8

uint32_t rejection_draw(const uint32_t *ids, const double *weight, uint32_t n, double u)
{
    double total = 0, sum = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++)
        total += weight[i];
    for (uint32_t i = 0; i < n; i++) {
        sum += weight[i];
        if (weight[i] > 0)
            last = i;
        if (sum > u * total)
            return ids[i];
    }
    return ids[last]; /* rounding only */
}

static double q_of(const float *q, uint32_t draft, uint32_t id)
{
    return q ? (double)q[id] : (double)(id == draft);
}

bool rejection_step(const uint32_t *ids, const double *p, uint32_t n, const float *q,
                    uint32_t draft, double u_accept, double u_next, double *weight,
                    uint32_t *ret_next)
{
    double p_draft = 0, q_draft = q_of(q, draft, draft), mass = 0;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == draft)
            p_draft = p[i];
    if (q_draft < SMALLEST_Q)
        q_draft = SMALLEST_Q;
    if (u_accept < p_draft / q_draft)
        return true;
    for (uint32_t i = 0; i < n; i++) {
        double more = p[i] - q_of(q, draft, ids[i]);
        weight[i] = more > 0 ? more : 0;
        mass += weight[i];
    }
    *ret_next = rejection_draw(ids, mass > SMALLEST_MASS ? weight : p, n, u_next);
    return false;
}
