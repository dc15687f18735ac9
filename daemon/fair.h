/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who runs next: first fair between users (the one that was served the fewest tokens, start-time fair
 * queueing), then by priority (lower first), then by arrival.  Loop thread.
 */
#pragma once

#include "daemon/job.h"

struct fair_queue {
    struct job *first, *last; /* in order of arrival */
    size_t len;
    uint64_t clock; /* virtual time: service of the user that was chosen last */
};
void fair_push(struct fair_queue *q, struct job *j);
void fair_remove(struct fair_queue *q, struct job *j);
/* The job to run next among those for which may_run is true, taken out; NULL when there is none.
 * Its user is charged for the tokens that it asks for; fair_refund gives back what it did not use. */
struct job *fair_pop(struct fair_queue *q, bool (*may_run)(void *arg, struct job *j), void *arg);
uint64_t fair_cost(const struct job *j); /* tokens: prompt and the most that may be generated */
void fair_refund(struct job *j);         /* after its end */
