/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/fair.h"

void fair_push(struct fair_queue *q, struct job *j)
{
    j->queue_prev = q->last;
    j->queue_next = NULL;
    if (q->last)
        q->last->queue_next = j;
    else
        q->first = j;
    q->last = j;
    q->len++;
}

void fair_remove(struct fair_queue *q, struct job *j)
{
    if (j->queue_prev)
        j->queue_prev->queue_next = j->queue_next;
    else
        q->first = j->queue_next;
    if (j->queue_next)
        j->queue_next->queue_prev = j->queue_prev;
    else
        q->last = j->queue_prev;
    j->queue_prev = j->queue_next = NULL;
    q->len--;
}

uint64_t fair_cost(const struct job *j)
{
    return j->n_ids + j->sampling.max_tokens;
}

/* A user who was away does not come back with credit for that time. */
static uint64_t service(const struct fair_queue *q, const struct job *j)
{
    return j->account->served > q->clock ? j->account->served : q->clock;
}

struct job *fair_pop(struct fair_queue *q, bool (*may_run)(void *arg, struct job *j), void *arg)
{
    struct job *best = NULL;
    for (struct job *j = q->first; j; j = j->queue_next) {
        if (best) {
            uint64_t mine = service(q, j), theirs = service(q, best);
            if (mine > theirs || (mine == theirs && j->account != best->account))
                continue; /* equal users: who came first */
            if (mine == theirs && j->priority >= best->priority)
                continue;
        }
        if (may_run(arg, j))
            best = j;
    }
    if (!best)
        return NULL;
    fair_remove(q, best);
    q->clock = service(q, best);
    best->served_charged = fair_cost(best);
    best->account->served = q->clock + best->served_charged;
    return best;
}

void fair_refund(struct job *j)
{
    uint64_t used =
        (uint64_t)j->usage.prompt_tokens - j->usage.cached_tokens + j->usage.completion_tokens;
    uint64_t cost = j->served_charged;
    j->served_charged = 0; /* a job that never ran was never charged */
    if (j->account && used < cost)
        j->account->served -= cost - used < j->account->served ? cost - used : j->account->served;
}
