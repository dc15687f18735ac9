/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cohorts: with two of them, half of the requests is drafted for while the target verifies the other half.
 *
 * A request belongs to one cohort while it runs, and changes it only when none of its rows is on its way: from the
 * cohort whose turn it is, which has just come back, to the other one, or to it from one that is not on its way.
 * There are two while as many requests as the configuration says have a drafter; else all go with one, after one
 * turn at most.  Nothing here changes a text: who shares a batch with whom never does.
 */
#include "engine/engine_internal.h"

static bool drafted(const struct request *r)
{
    return r->drafting && r->drafting->context;
}

/* Are there enough of them for two? */
static bool wanted(const struct engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++)
        n += drafted(e->running[i]);
    return e->n_cohorts > 1 && n >= e->cfg.cohort_seqs;
}

static uint32_t count(const struct engine *e, uint32_t cohort, bool with_drafts)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++)
        n += e->running[i]->cohort == cohort && drafted(e->running[i]) == with_drafts;
    return n;
}

void cohorts_join(struct engine *e, struct request *r)
{
    const uint32_t other = (e->turn + 1) % e->n_cohorts;
    r->cohort = e->turn;
    if (!wanted(e))
        return;
    r->cohort = ENGINE_COHORTS; /* counts nowhere */
    r->cohort = count(e, other, drafted(r)) < count(e, e->turn, drafted(r)) ? other : e->turn;
}

/* Half of each kind, the better ranks first; who drafts and who does not cost the target different times. */
static void balance(struct engine *e, uint32_t from, uint32_t to)
{
    for (int kind = 0; kind < 2; kind++) {
        uint32_t n = count(e, from, kind), m = count(e, to, kind);
        for (uint32_t i = e->n_running; i-- && n > m + 1;) {
            struct request *r = e->running[i];
            if (r->cohort != from || drafted(r) != (kind == 1))
                continue;
            r->cohort = to;
            n--;
            m++;
        }
    }
}

uint32_t cohorts_gather(struct engine *e)
{
    const uint32_t other = (e->turn + 1) % e->n_cohorts;
    e->n_members = 0;
    /* Who is in the middle of its passes stays. */
    if (e->n_cohorts > 1 && e->at->draft_steps == 0 && wanted(e))
        balance(e, e->turn, other);
    else if (e->n_cohorts > 1 && e->at->draft_steps == 0)
        for (uint32_t i = 0; i < e->n_running; i++)
            e->running[i]->cohort = e->steps[other].flies ? other : e->turn;
    for (uint32_t i = 0; i < e->n_running; i++)
        if (e->running[i]->cohort == e->turn)
            e->members[e->n_members++] = e->running[i];
    if (e->n_members == 0)
        e->at->draft_steps = 0;
    return e->n_members;
}

bool cohorts_alone(const struct engine *e)
{
    for (uint32_t c = 0; c < e->n_cohorts; c++)
        if (e->steps[c].flies)
            return false;
    return true;
}

bool cohorts_overlap(const struct engine *e)
{
    if (e->n_cohorts == 1)
        return false;
    if (e->steps[1 - e->turn].flies)
        return true;
    return e->n_members < e->n_running;
}

void cohorts_drop(struct engine *e, struct request *r)
{
    for (uint32_t c = 0; c < e->n_cohorts; c++) {
        struct step *s = &e->steps[c];
        if (!s->flies)
            continue;
        for (uint32_t i = 0; i < s->n_entries; i++)
            if (s->entries[i].r == r)
                s->entries[i].r = NULL;
        for (uint32_t i = 0; i < s->n_begun; i++)
            if (s->begun[i] == r) {
                s->begun[i] = NULL;
                s->draft_entries[i].round = NULL;
                r->drafting->begun = false;
            }
    }
}
