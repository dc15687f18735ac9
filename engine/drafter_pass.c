/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes of several requests as one batch of the drafter, and what becomes of them.
 *
 * A backend that picks tokens may run the passes of a batch one behind another, each fed with what the one
 * before has picked, so that the host waits once for all of them.  So many passes are run at once that no
 * request is run beyond its last one; a request whose tokens repeat themselves on the way ends there, as it
 * would pass by pass, and what the rest of the batch computed for it is dropped.  Rounds that the scheduler
 * may end after each pass leave it at one.
 */
#include <string.h>

#include "engine/drafter_internal.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The block of a request's next pass; its tokens go to `tokens`. */
static struct drafter_block next_block(const struct drafter *d, const struct draft_entry *e,
                                       uint32_t *tokens, float *logits)
{
    const struct draft_round *r = e->round;
    const struct seq *s = e->seq;
    tokens[0] = s->tokens[s->n_kv];
    for (uint32_t k = 1; k < r->window; k++)
        tokens[k] = r->pass ? r->tokens[r->pass - 1][k - 1] : d->cfg->mask_token;
    return (struct drafter_block){.tokens = tokens,
                                  .n = r->window,
                                  .start = s->n_kv,
                                  .blocks = s->blocks,
                                  .causal = r->pass && r->visibility == DRAFT_CAUSAL,
                                  .next_causal = r->visibility == DRAFT_CAUSAL,
                                  .first = 1,
                                  .logits = logits};
}

/* Logits to drafts of the round's pass; the last one makes the proposal. */
static void finish_pass(struct draft_round *r, const struct pick *picks)
{
    for (uint32_t k = 0; k + 1 < r->window; k++) {
        r->tokens[r->pass][k] = picks[k].token;
        r->confidence[r->pass][k] = picks[k].confidence;
    }
    r->pass++;
    r->done = r->pass == r->passes || drafter_settled(r);
    if (r->done || r->each_pass || r->passed)
        drafter_propose(r, picks);
    if (r->passed)
        r->passed(r->arg, r);
}

/* What the backend is to choose, and what it has chosen. */
static void ask(const struct pick *p, uint32_t row, struct fwd_pick *ret)
{
    *ret = (struct fwd_pick){.row = row,
                             .seed = p->round->seed,
                             .pos = p->pos,
                             .inv_t = drafter_pick_inv_t(p),
                             .n_top = p->n_top,
                             .top = p->top,
                             .logp = p->logp};
}

/* Those of one pass, which stand in the order of the picks that asked for them. */
static void take_chosen(struct drafter *d, const struct fwd_pick *c, uint32_t n_picks)
{
    for (uint32_t i = 0; i < n_picks; i++) {
        struct pick *p = &d->picks[i];
        if (!p->device)
            continue;
        p->token = c->token;
        p->confidence = c->confidence;
        p->n = c->n;
        p->top = c->top;
        p->logp = c->logp;
        c++;
    }
}

/* Room for the results of picks [from, end) of all passes. */
static void make_room(struct drafter *d, uint32_t from, uint32_t end)
{
    for (uint32_t i = from; i < end; i++)
        d->chosen[i] = (struct fwd_pick){.top = d->top + (size_t)i * DRAFTER_MAX_PICK,
                                         .logp = d->logp + (size_t)i * DRAFTER_MAX_PICK};
}

/* How many picks there are, how many of them the backend makes, and the most nodes of their trees. */
struct wanted {
    uint32_t picks, chosen, nodes;
};

/* Nodes of the tree of a round, at most; 0: it ends in a chain. */
static uint32_t tree_nodes(const struct draft_round *r)
{
    return r->method == DRAFT_DDTREE ? least(least(r->tree_budget, r->max_nodes), DRAFTER_MAX_PICK)
                                     : 0;
}

/* Those of them that the device builds for the target: the first ones of the tree, in order of worth. */
static uint32_t fed_nodes(const struct draft_round *r)
{
    const uint32_t n = tree_nodes(r);
    return r->verify ? least(r->verify, n) : n;
}

/* The blocks of entries [0, n), whose rows and logits fit, and what is wanted of them. */
static struct wanted prepare(struct drafter *d, struct draft_entry *entries, uint32_t n,
                             uint32_t n_passes)
{
    uint32_t rows = 0;
    struct wanted w = {0};
    const size_t dv = d->cfg->draft_vocab;
    for (uint32_t i = 0; i < n; i++) {
        const struct draft_round *r = entries[i].round;
        const bool draws = r->draw && r->pass + 1 == r->passes;
        const bool device = d->backend->picks && !draws;
        d->blocks[i] =
            next_block(d, &entries[i], d->tokens + rows, device ? NULL : d->logits + w.picks * dv);
        const uint32_t n_top = tree_nodes(r), n_fed = fed_nodes(r);
        entries[i].window = r->window;
        d->spans[i] = (struct fwd_span){
            .first = w.picks, .n = r->window - 1, .first_node = w.nodes, .n_nodes = n_fed};
        w.nodes += n_fed;
        for (uint32_t k = 1; k < r->window; k++, w.picks++) {
            struct pick *p = &d->picks[w.picks];
            *p = (struct pick){.round = r,
                               .logits = d->logits + w.picks * dv,
                               .pos = (uint64_t)entries[i].seq->n_kv + k,
                               .n_top = n_top,
                               .q = draws ? r->q + (size_t)(k - 1) * d->target_vocab : NULL,
                               .device = device,
                               .top = d->top + (size_t)w.picks * DRAFTER_MAX_PICK,
                               .logp = d->logp + (size_t)w.picks * DRAFTER_MAX_PICK};
            if (device)
                ask(p, rows + k, &d->chosen[w.chosen++]);
        }
        rows += r->window;
    }
    make_room(d, w.chosen, w.chosen * n_passes); /* the first asks for its own */
    return w;
}

/* What the passes have brought. */
static void finish(struct drafter *d, struct draft_entry *entries, uint32_t n, uint32_t n_passes,
                   struct wanted w)
{
    for (uint32_t j = 0; j < n_passes; j++) {
        take_chosen(d, d->chosen + (size_t)j * w.chosen, w.picks);
        drafter_pick(d, w.picks);
        uint32_t at = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct draft_round *t = entries[i].round;
            if (t && !t->done)
                finish_pass(t, d->picks + at);
            at += entries[i].window - 1;
        }
    }
}

static int pass_some(struct drafter *d, struct draft_entry *entries, uint32_t n, uint32_t n_passes,
                     struct error *err)
{
    const struct wanted w = prepare(d, entries, n, n_passes);
    int r = drafter_run_blocks(d, d->blocks, n, w.chosen, n_passes, err);
    if (r == 0)
        finish(d, entries, n, n_passes, w);
    return r;
}

/* Passes left before one that is the host's: it draws, or decides whether there is another one. */
static uint32_t passes_left(const struct draft_round *r)
{
    const uint32_t left = r->passes - r->pass;
    if (r->each_pass)
        return 1;
    return r->draw && left > 1 ? left - 1 : left;
}

uint32_t drafter_at_once(void *self, const struct draft_entry *entries, uint32_t n)
{
    const struct drafter *d = self;
    uint32_t most = d->n_at_once;
    for (uint32_t i = 0; i < n; i++)
        most = least(most, passes_left(entries[i].round));
    return most;
}

int drafter_pass(void *self, struct draft_entry *entries, uint32_t n, struct error *err)
{
    struct drafter *d = self;
    const uint32_t n_passes = drafter_at_once(self, entries, n);
    for (uint32_t at = 0, m; at < n; at += m) {
        uint32_t rows = 0;
        for (m = 0; at + m < n; m++) {
            uint32_t w = entries[at + m].round->window;
            if (w < 2 || w > DRAFT_MAX_WINDOW)
                return ERR(err, INTERNAL, "a block of %u rows", w);
            if (m && (rows + w > d->max_rows || rows + w - (m + 1) > d->n_logit_rows))
                break;
            rows += w;
        }
        int r = pass_some(d, entries + at, m, n_passes, err);
        if (r < 0)
            return r;
    }
    return 0;
}

bool drafter_may_begin(void *self, const struct draft_entry *entries, uint32_t n)
{
    const struct drafter *d = self;
    uint32_t rows = 0, picks = 0, nodes = 0;
    if (!d->backend->collect || n == 0)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct draft_round *r = entries[i].round;
        if (r->pass || r->each_pass || r->draw || r->window < 2 || r->window > DRAFT_MAX_WINDOW ||
            r->passes != entries[0].round->passes || r->passes > d->n_at_once)
            return false;
        rows += r->window;
        picks += r->window - 1;
        nodes += fed_nodes(r);
    }
    return rows <= d->max_rows && picks <= d->n_logit_rows && nodes <= d->max_rows;
}

int drafter_begin(void *self, uint32_t lane, struct draft_entry *entries, uint32_t n,
                  struct error *err)
{
    struct drafter *d = self;
    const uint32_t passes = entries[0].round->passes;
    const struct wanted w = prepare(d, entries, n, passes);
    for (uint32_t i = 0; i < n; i++) {
        const struct fwd_span *s = &d->spans[i];
        entries[i].passes = passes;
        entries[i].n_nodes = s->n_nodes;
        entries[i].round->first_pick = entries[i].first_pick = s->first;
        entries[i].round->first_node = entries[i].first_node = s->first_node;
    }
    return drafter_start_blocks(d, lane, d->blocks, n, w.chosen, passes, err);
}

/* Has the device built the tree of entry e, too? */
static bool same_tree(const struct draft_entry *e, const struct fwd_node *nodes)
{
    const struct proposal *p = e->round->proposal;
    bool same = true;
    for (uint32_t i = 0; i < e->n_nodes && same; i++)
        same = i < p->n
                   ? nodes[i].token == p->tokens[i] && (int)nodes[i].parent == p->parent[i] + 1 &&
                         nodes[i].depth == proposal_depth(p, i)
                   : nodes[i].token == UINT32_MAX;
    return same;
}

/* The target has verified what the device found to be the drafts; the host knows them by itself. */
static int check_fed(const struct drafter *d, const struct draft_entry *entries, uint32_t n,
                     struct error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct draft_entry *e = &entries[i];
        const struct draft_round *r = e->round;
        if (r && (memcmp(r->tokens[r->pass - 1], d->tokens + e->first_pick,
                         (e->window - 1) * sizeof(*d->tokens)) != 0 ||
                  !same_tree(e, d->nodes + e->first_node)))
            return ERR(err, INTERNAL, "the device verified other drafts");
    }
    return 0;
}

int drafter_end(void *self, uint32_t lane, struct draft_entry *entries, uint32_t n,
                uint64_t *ret_ns, struct error *err)
{
    struct drafter *d = self;
    struct wanted w = {0};
    /* Another lane's blocks may have been here meanwhile. */
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 1; k < entries[i].window; k++)
            d->picks[w.picks++] = (struct pick){.round = entries[i].round, .device = true};
    w.chosen = w.picks;
    make_room(d, 0, w.chosen * entries[0].passes);
    int r = d->backend->collect(d->model, lane, d->tokens, d->nodes, ret_ns, err);
    if (r < 0)
        return r;
    finish(d, entries, n, entries[0].passes, w);
    return check_fed(d, entries, n, err);
}
