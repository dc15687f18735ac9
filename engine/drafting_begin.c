/* SPDX-License-Identifier: Apache-2.0 */
/* Who begins a round, and with what: proposals that are there at once, or a round of the drafter's passes. */
#include "engine/drafting.h"

#include "engine/engine_internal.h"
#include "engine/ngram.h"

#define AUTO_LONGEST 24u /* n-gram */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Only after the first token, so that rounds do not depend on how the prompt was cut. */
static bool decodes(const struct request *r)
{
    return r->seq.n_tokens - r->seq.n_kv == 1 && r->seq.n_tokens > r->n_prompt;
}

static void begin_scripted(struct request *r, uint32_t nodes)
{
    struct drafting_state *d = r->drafting;
    const struct draft_script *s = d->params.script;
    while (d->script_at < s->n && s->rounds[d->script_at].at < r->usage.completion_tokens)
        d->script_at++;
    if (d->script_at == s->n || s->rounds[d->script_at].at != r->usage.completion_tokens)
        return;
    const struct draft_script_round *t = &s->rounds[d->script_at];
    d->proposal = t->proposal;
    d->proposal.n = least(d->proposal.n, nodes);
    d->wait = t->passes;
    if (d->wait && d->proposal.n)
        d->phase = DRAFTING_PASSES;
}

static void begin_synthetic(const struct engine *e, struct request *r, uint32_t nodes)
{
    struct proposal *p = &r->drafting->proposal;
    uint32_t n = least(nodes, r->drafting->params.window - 1);
    uint32_t token = r->seq.tokens[r->seq.n_kv];
    for (uint32_t i = 0; i < n; i++)
        (void)proposal_add(p, (token + i) % e->model->vocab_size, (int)i - 1, -1);
}

/* The plan's window, and as many passes as it has, or may come to. */
static void automatic_round(struct engine *e, struct drafting_state *d)
{
    const uint32_t w = e->controller.plan.w;
    d->automatic.w = d->params.window ? 0 : w;
    if (!d->params.window)
        d->round.window = controller_window(e->drafter.window, w);
    d->round.method = DRAFT_DDTREE;
    d->round.passes = controller_passes(e, d);
    d->round.each_pass = !e->controller.ahead;
    if (e->controller.ahead)
        controller_round(e, d);
}

/* depth: tokens that this round may commit. */
static void begin_passes(struct engine *e, struct request *r, uint32_t nodes, uint32_t depth)
{
    struct drafting_state *d = r->drafting;
    const uint32_t pos = r->seq.n_kv;
    const uint32_t most = d->params.window ? d->params.window : DRAFT_MAX_WINDOW;
    if (nodes == 0 || (uint64_t)pos + most > e->drafter.max_context)
        return;
    if (drafting_cursor(e, r) < pos)
        return; /* drafting waits for its context, decoding does not */
    /* The block stays whole where less of it can be used: its rows see each other, so a shorter one
     * drafts other tokens, and worse. */
    struct draft_round *t = &d->round;
    if (d->params.method != DRAFT_DDTREE && d->params.method != DRAFT_AUTO)
        nodes = least(nodes, depth - 1);
    t->method = d->params.method;
    t->window = d->params.window;
    t->passes = d->params.passes;
    t->each_pass = false;
    t->passed = NULL;
    t->arg = NULL;
    t->verify = 0;
    if (d->params.method == DRAFT_AUTO)
        automatic_round(e, d);
    t->visibility = d->params.visibility;
    t->tree_budget = least(d->params.tree_budget, nodes);
    t->max_nodes = nodes;
    t->noise = !d->params.no_noise && d->params.verification == DRAFT_RULE_A;
    t->draw = d->q != NULL;
    t->q = d->q;
    t->temperature = d->temperature;
    t->seed = d->seed;
    t->pass = 0;
    t->done = false;
    t->proposal = &d->proposal;
    d->phase = DRAFTING_PASSES;
}

static void begin_auto(struct engine *e, struct request *r, uint32_t nodes, uint32_t depth)
{
    struct drafting_state *d = r->drafting;
    struct auto_state *a = &d->automatic;
    const uint32_t *tokens = r->seq.tokens, n = r->seq.n_tokens;
    const uint32_t chain = least(least(nodes, depth - 1), AUTO_LONGEST);
    a->match = ngram_match(tokens, n);
    float confidence = survival_match(&e->controller.survival, a->match);
    if (d->context && a->wants && !(a->match && controller_prefers_match(e, d, confidence, chain)))
        begin_passes(e, r, nodes, depth);
    a->drafter = d->phase == DRAFTING_PASSES;
    if (a->drafter)
        return;
    ngram_propose(tokens, n, chain, &d->proposal);
    a->n_reach = d->proposal.n;
    float reach = 1;
    for (uint32_t i = 0; i < d->proposal.n; i++) {
        d->proposal.confidence[i] = confidence;
        a->reach[i] = reach *= confidence;
    }
}

static void begin(struct engine *e, struct request *r, uint32_t nodes)
{
    struct drafting_state *d = r->drafting;
    uint32_t depth = r->max_total - r->seq.n_tokens;
    proposal_clear(&d->proposal);
    d->phase = DRAFTING_READY;
    d->automatic.drafter = false;
    d->round.pass = 0;
    d->round_ns = 0;
    if (depth < 2)
        return; /* one token is left: a draft has nothing to win */
    /* Nodes are stored one a position behind the anchor, until they are kept or dropped. */
    nodes = least(nodes, r->max_total - r->seq.n_kv - 1);
    uint32_t chain = least(nodes, depth - 1);
    switch (d->params.method) {
    case DRAFT_NGRAM:
        ngram_propose(r->seq.tokens, r->seq.n_tokens, least(chain, d->params.window - 1),
                      &d->proposal);
        break;
    case DRAFT_SCRIPTED:
        begin_scripted(r, nodes);
        break;
    case DRAFT_SYNTHETIC:
        begin_synthetic(e, r, chain);
        break;
    case DRAFT_DFLASH:
    case DRAFT_DEDIT:
    case DRAFT_DDTREE:
        begin_passes(e, r, nodes, depth);
        break;
    case DRAFT_AUTO:
        begin_auto(e, r, nodes, depth);
        break;
    case DRAFT_AR:
    case DRAFT_METHOD_COUNT:
        break;
    }
}

static bool may_begin(const struct request *r)
{
    return r->drafting && r->drafting->phase == DRAFTING_IDLE && decodes(r);
}

void drafting_begin(struct engine *e, uint32_t nodes)
{
    uint32_t waiting = 0;
    controller_plan(e);
    for (uint32_t i = 0; i < e->n_members; i++)
        waiting += may_begin(e->members[i]);
    for (uint32_t i = 0; i < e->n_members && waiting; i++) {
        struct request *r = e->members[i];
        if (!may_begin(r))
            continue;
        uint32_t share = least(nodes / waiting--, PROPOSAL_MAX_NODES);
        begin(e, r, share);
        const struct drafting_state *d = r->drafting;
        nodes -= d->phase == DRAFTING_PASSES && drafting_has_passes(d) ? share : d->proposal.n;
    }
}
