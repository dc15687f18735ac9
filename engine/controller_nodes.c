/* SPDX-License-Identifier: Apache-2.0 */
/* How many nodes of which proposals are verified, and what verification tells of the likes of them. */
#include "base/alloc.h"
#include "engine/controller_internal.h"
#include "engine/engine_internal.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- how many nodes -------------------------------------------------------------------------------- */

int controller_new_candidates(uint32_t n, struct candidate **ret, struct error *err)
{
    *ret = mem_calloc(n, sizeof(**ret));
    return *ret ? 0 : ERR_NOMEM(err);
}

static struct candidate *most_worth(struct candidate *k, uint32_t n)
{
    struct candidate *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (k[i].n < k[i].most && (!best || k[i].reach[k[i].n] > best->reach[best->n]))
            best = &k[i];
    return best;
}

double controller_best(const struct controller *c, struct candidate *k, uint32_t n,
                       const struct draft_base *b, double extra, double margin)
{
    const struct cost_table *t = &c->costs.table[COST_TARGET];
    struct cost_load load = b->load;
    double cost = cost_of(t, &load), expected = b->decoding, all = expected, best;
    for (uint32_t i = 0; i < n; i++) {
        k[i].n = k[i].best_n = 0;
        for (uint32_t j = 0; j < k[i].most; j++)
            all += (double)k[i].reach[j];
    }
    if (!(cost > 0))
        return 0; /* nothing is known: a plain round tells */
    best = expected / (cost + extra) * margin;
    for (struct candidate *next; (next = most_worth(k, n)) != NULL;) {
        expected += (double)next->reach[next->n++];
        load.rows++;
        load.positions += next->context;
        cost = cost_of(t, &load) + extra;
        if (all / cost <= best)
            break; /* more nodes only cost more */
        if (expected / cost <= best)
            continue;
        best = expected / cost;
        for (uint32_t i = 0; i < n; i++)
            k[i].best_n = k[i].n;
    }
    return best;
}

/* ---- what the batch is without drafts --------------------------------------------------------------- */

bool controller_has(const struct request *r)
{
    return r->drafting && r->drafting->params.method == DRAFT_AUTO;
}

/* Was its round decided ahead? */
static bool settled(const struct drafting_state *d)
{
    return d->phase != DRAFTING_IDLE && d->automatic.drafter && d->round.verify;
}

/* Nodes that stay, whatever becomes of the others. */
static uint32_t settled_nodes(const struct request *r)
{
    if (!controller_has(r))
        return drafting_nodes(r);
    return settled(r->drafting) ? r->drafting->round.verify : 0;
}

struct draft_base controller_base(const struct engine *e)
{
    struct draft_base b = {.decoding = 0};
    for (uint32_t i = 0; i < e->n_members; i++) {
        const struct request *r = e->members[i];
        uint32_t feed = r->seq.n_tokens - r->seq.n_kv;
        uint32_t rows = least(feed, e->cfg.prefill_chunk) + settled_nodes(r);
        b.decoding += feed == 1;
        b.load.rows += rows;
        b.load.entries += r->seq.n_kv;
        b.load.positions += (double)rows * r->seq.n_kv;
    }
    b.load.rows = least(b.load.rows, e->cfg.max_num_batched_tokens);
    return b;
}

/* ---- before verification ---------------------------------------------------------------------------- */

static void forget_unused(struct survival *s, const struct drafting_state *d, uint32_t n)
{
    if (n == d->proposal.n)
        return;
    if (d->automatic.drafter)
        survival_forget(s, d->round.pass, &d->proposal, n);
    else
        survival_forget_match(s, d->automatic.match);
}

void controller_cut(struct controller *c, struct drafting_state *d)
{
    if (!settled(d))
        return;
    const uint32_t n = least(d->round.verify, d->proposal.n);
    forget_unused(&c->survival, d, n);
    d->proposal.n = n;
}

void controller_trim(struct engine *e)
{
    struct controller *c = &e->controller;
    struct candidate *k = e->candidates;
    double extra = 0; /* what was spent: a longer round asks for more tokens */
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_members; i++) {
        struct request *r = e->members[i];
        struct drafting_state *d = r->drafting;
        if (!controller_has(r) || d->phase != DRAFTING_READY || d->proposal.n == 0)
            continue;
        if (d->automatic.drafter)
            extra = c->plan.spent_ns;
        if (settled(d)) {
            if (!d->begun)
                controller_cut(c, d);
            continue;
        }
        k[n].d = d;
        k[n].context = r->seq.n_kv;
        k[n].most = least(d->automatic.n_reach, d->proposal.n);
        for (uint32_t j = 0; j < k[n].most; j++)
            k[n].reach[j] = d->automatic.reach[j];
        n++;
    }
    if (n == 0)
        return;
    struct draft_base base = controller_base(e);
    (void)controller_best(c, k, n, &base, extra, CONTROLLER_WORTH);
    for (uint32_t i = 0; i < n; i++) {
        forget_unused(&c->survival, k[i].d, k[i].best_n);
        k[i].d->proposal.n = k[i].best_n;
    }
}

void controller_learn(struct controller *c, const struct drafting_state *d, uint32_t n,
                      const bool *right)
{
    if (d->automatic.drafter)
        survival_learn(&c->survival, d->round.pass, &d->proposal, n, right);
    else
        survival_learn_match(&c->survival, d->automatic.match, n, right);
}
