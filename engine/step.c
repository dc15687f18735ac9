/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_step: a batch is formed and enqueued, waited for, and committed.
 *
 * Without cohorts one after the other.  With two, a step waits for the batch that was enqueued first, commits it, gives
 * the drafter its features, and enqueues that cohort's next round, passes and verification; so the host always waits
 * for the older of two batches, and the device has the other one to go on with.  A batch whose results the
 * host needs in between (logits that it chooses from) is waited for at once.
 */
#include "base/clock.h"
#include "engine/engine_internal.h"

/* ---- what a batch took -------------------------------------------------------------------------------- */

/* One that was on its way has been timed on the device, between its own events; the clock tells of the others. */
struct took {
    bool measured;
    uint64_t ns;
};

static uint64_t took_ns(const struct step *s, const struct took *t)
{
    return t->measured ? t->ns : clock_now_ns() - s->t0;
}

/* Does every row decode?  Then its time is one that the controller can compare. */
static bool only_rounds(const struct step *s)
{
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].n_logits != s->entries[i].n_rows)
            return false;
    return true;
}

/* The batch as the controller counts it. */
static struct cost_load load_of(const struct step *s)
{
    struct cost_load l = {.rows = s->n_rows};
    for (uint32_t i = 0; i < s->n_entries; i++)
        l.entries += s->rows[s->entries[i].row0].path.n_vis;
    for (uint32_t i = 0; i < s->n_rows; i++)
        l.positions += s->rows[i].path.n_vis;
    return l;
}

/* ---- the batch ------------------------------------------------------------------------------------------ */

/* May the host go on without the results of the batch?  Not where it chooses, or has the taps. */
static bool may_fly(const struct engine *e)
{
    const struct step *s = e->at;
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].n_logits && !s->entries[i].drawn)
            return false;
    return e->space.backend->finish && !e->own_taps;
}

static int run_target(struct engine *e, bool later, struct error *err)
{
    const struct step *s = e->at;
    struct fwd_batch b = {.n_rows = s->n_rows,
                          .rows = s->rows,
                          .draws = s->draws,
                          .n_draws = s->n_draws,
                          .lane = s->lane,
                          .later = later,
                          .feed = s->n_begun ? e->feed : NULL,
                          .trees = e->trees,
                          .n_trees = e->n_trees,
                          .tap_layers = e->drafter.tap_layers,
                          .n_taps = e->drafter.n_taps};
    return e->space.backend->forward(e->space.model, &b, err);
}

/* One target batch, with drafts: behind the passes that make them.  overlap: it need not be waited for. */
static int launch(struct engine *e, bool drafts, bool overlap, struct error *err)
{
    struct step *s = e->at;
    uint64_t drafted_ns;
    for (uint32_t i = 0; i < e->n_members; i++)
        drafting_roll_back(e, e->members[i], 0);
    s->t0 = clock_now_ns();
    s->n_entries = s->n_rows = 0;
    s->drafts = drafts;
    int r = drafts ? drafting_start(e, err) : 0;
    if (r < 0)
        return r;
    controller_trim(e);
    r = scheduler_form(e, err);
    if (r < 0)
        return r;
    if (s->n_entries == 0)
        return drafts ? drafting_collect(e, &drafted_ns, err) : 0;
    const bool later = overlap && may_fly(e);
    r = run_target(e, later, err);
    s->flies = r == 0 && later;
    return r;
}

/* ---- the commit ----------------------------------------------------------------------------------------- */

uint32_t step_compact(struct step *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_entries; i++)
        if (s->entries[i].r)
            s->entries[n++] = s->entries[i];
    return s->n_entries = n;
}

/* Rows of plain rounds and prompts are part of their sequences now. */
static void advance(struct engine *e)
{
    const struct step *s = e->at;
    for (uint32_t i = 0; i < s->n_entries; i++) {
        struct batch_entry *b = &s->entries[i];
        if (b->again) {
            e->stats.recontext_tokens += b->n_rows;
            continue;
        }
        if (b->n_nodes)
            continue; /* which rows stay is for the walk to say */
        seq_advance(&b->r->seq, b->n_rows);
        if (e->cfg.enable_prefix_caching)
            seq_publish(&b->r->seq, e->space.pool);
    }
}

/* The batch is there: drafts, choices, tokens, and the drafter's features of what stays. */
static int commit(struct engine *e, struct took took, struct error *err)
{
    struct step *s = e->at;
    uint64_t drafted_ns = 0;
    int r = s->drafts ? drafting_collect(e, &drafted_ns, err) : 0;
    if (r < 0)
        return r;
    const uint64_t so_far = clock_now_ns() - s->t0;
    s->t0 += drafted_ns < so_far ? drafted_ns : so_far; /* two clocks */
    const uint32_t formed = s->n_entries;
    const bool whole = step_compact(s) == formed;
    for (uint32_t i = 0; i < s->n_entries && s->drafts; i++)
        round_drafted(e, &s->entries[i]);
    e->stats.steps++;
    advance(e);
    round_choose(e, s->n_entries);
    if (whole && only_rounds(s) && (took.measured || cohorts_alone(e))) {
        struct cost_load l = load_of(s);
        cost_add(&e->controller.costs, COST_TARGET, &l, took_ns(s, &took));
    }
    r = drafting_inject(e, s->n_entries, err);
    if (r < 0)
        return r;
    drafting_give_taps(e, s);
    s->n_rows = 0;
    took.ns = took_ns(s, &took);
    for (uint32_t i = 0; i < s->n_entries;
         i++) /* a callback may have ended any of those still to come */
        if (s->entries[i].n_logits && s->entries[i].r->state == REQUEST_RUNNING)
            round_finish(e, &s->entries[i], took.ns);
    return 0;
}

/* The batch of e->at that is on its way. */
static int land(struct engine *e, struct error *err)
{
    struct step *s = e->at;
    struct took took = {.measured = true};
    s->flies = false;
    int r = e->space.backend->finish(e->space.model, s->lane, &took.ns, err);
    return r < 0 ? r : commit(e, took, err);
}

/* ---- the step ------------------------------------------------------------------------------------------- */

/* Passes, or a batch, of e->members. */
static int take_turn(struct engine *e, struct error *err)
{
    struct step *s = e->at;
    if (s->draft_steps == 0)
        drafting_begin(e, scheduler_draft_room(e));
    const bool due = drafting_due(e);
    if (due && !drafting_may_start(e))
        return drafting_step(e, err);
    s->draft_steps = 0;
    const bool overlap = cohorts_overlap(e);
    int r = launch(e, due, overlap, err);
    if (r == 0 && s->n_entries && !s->flies)
        r = commit(e, (struct took){.measured = false}, err);
    if (r == 0 && overlap)
        e->turn = 1 - e->turn;
    return r;
}

/* The cohort's requests end with the error; what is on its way for another one stays so. */
static int fail(struct engine *e, int r, const struct error *err)
{
    struct step *s = e->at;
    drafting_drop(e);
    drafting_give_taps(e, s);
    s->n_rows = s->n_entries = 0;
    s->draft_steps = 0;
    s->flies = false;
    for (uint32_t i = 0; i < e->n_running;)
        if (e->running[i]->cohort == e->turn)
            request_finish(e->running[i], FINISH_ERROR, err);
        else
            i++;
    return r;
}

int engine_step(struct engine *e, struct error *err)
{
    struct error local = {0};
    bool ran = false;
    int r = 0;
    if (!err)
        err = &local;
    dk_thread_init();
    for (uint32_t i = 0; i < e->n_cohorts; i++) {
        struct step *s = e->at = &e->steps[e->turn];
        if (s->flies) {
            ran = true;
            r = land(e, err);
        }
        if (r < 0)
            return fail(e, r, err);
        scheduler_admit(e);
        if (cohorts_gather(e)) {
            r = take_turn(e, err);
            ran |= s->n_entries > 0 || s->draft_steps > 0;
            break;
        }
        e->turn = (e->turn + 1) % e->n_cohorts;
    }
    if (r < 0)
        return fail(e, r, err);
    /* Without cohorts, whoever cannot run now has to wait for something from outside. */
    return ran ? e->n_running || e->n_waiting : e->n_cohorts > 1 && e->n_running;
}
