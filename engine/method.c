/* SPDX-License-Identifier: Apache-2.0 */
/* Names of methods, and which wishes go together. */
#include "engine/method.h"

#include <string.h>

#include "engine/engine_internal.h"

#define DEFAULT_WINDOW      8u
#define DEFAULT_TREE_BUDGET 15u

static const char *const names[DRAFT_METHOD_COUNT] = {"auto",      "ar",     "ngram", "scripted",
                                                      "synthetic", "dflash", "dedit", "ddtree"};

const char *draft_method_name(enum draft_method m)
{
    return (unsigned)m < DRAFT_METHOD_COUNT ? names[m] : "unknown";
}

bool draft_method_parse(const char *name, enum draft_method *ret)
{
    for (int m = 0; m < DRAFT_METHOD_COUNT; m++)
        if (strcmp(name, names[m]) == 0) {
            *ret = (enum draft_method)m;
            return true;
        }
    return false;
}

static bool runs_drafter(enum draft_method m)
{
    return m == DRAFT_DFLASH || m == DRAFT_DEDIT || m == DRAFT_DDTREE;
}

/* ---- which fields a method reads ---------------------------------------------------------------- */

static int check_fields(const struct drafting_params *p, struct error *err)
{
    const enum draft_method m = p->method;
    const char *name = draft_method_name(m);
    if (p->window && m == DRAFT_AR)
        return ERR(err, INVALID, "window: ar drafts nothing");
    if (p->passes > 1 && m != DRAFT_AUTO && m != DRAFT_DEDIT && m != DRAFT_DDTREE)
        return ERR(err, INVALID, "passes: %u, %s has no edit passes; dedit and ddtree have",
                   p->passes, name);
    if (p->tree_budget && m != DRAFT_AUTO && m != DRAFT_DDTREE)
        return ERR(err, INVALID, "tree_budget: %s drafts no trees out of a budget, ddtree does",
                   name);
    if (p->visibility == DRAFT_CAUSAL && m == DRAFT_DDTREE && p->passes < 2)
        return ERR(err, INVALID,
                   "edit_visibility: ddtree has edit passes with passes of 2 or more; it is 1");
    if (p->visibility == DRAFT_CAUSAL && m != DRAFT_AUTO && m != DRAFT_DEDIT && m != DRAFT_DDTREE)
        return ERR(err, INVALID, "edit_visibility: %s has no edit passes; dedit and ddtree have",
                   name);
    if (p->verification == DRAFT_REJECTION &&
        (m == DRAFT_AUTO || m == DRAFT_AR || m == DRAFT_DDTREE || m == DRAFT_SYNTHETIC))
        return ERR(err, INVALID,
                   "verification: rejection needs a method that drafts chains (ngram, dflash, "
                   "dedit), not %s",
                   name);
    return 0;
}

static int check_ranges(const struct drafting_params *p, struct error *err)
{
    if ((unsigned)p->method >= DRAFT_METHOD_COUNT)
        return ERR(err, INVALID, "method: %d is unknown", (int)p->method);
    if (p->window && (p->window < 2 || p->window > DRAFT_MAX_WINDOW))
        return ERR(err, INVALID, "window: %u, must be 2 to %u", p->window, DRAFT_MAX_WINDOW);
    if (p->passes > DRAFT_MAX_PASSES)
        return ERR(err, INVALID, "passes: %u, must be 1 to %u", p->passes, DRAFT_MAX_PASSES);
    if (p->tree_budget > PROPOSAL_MAX_NODES)
        return ERR(err, INVALID, "tree_budget: %u, must be 1 to %u", p->tree_budget,
                   PROPOSAL_MAX_NODES);
    if (p->visibility != DRAFT_BIDIRECTIONAL && p->visibility != DRAFT_CAUSAL)
        return ERR(err, INVALID, "edit_visibility: %d is unknown", (int)p->visibility);
    if (p->verification != DRAFT_RULE_A && p->verification != DRAFT_REJECTION)
        return ERR(err, INVALID, "verification: %d is unknown", (int)p->verification);
    return 0;
}

static int check_drafter(const struct engine *e, const struct drafting_params *p, struct error *err)
{
    const struct block_drafter *d = &e->drafter;
    if (runs_drafter(p->method) && !d->ops)
        return ERR(err, UNSUPPORTED, "method: %s needs a drafter, and %s was loaded without one",
                   draft_method_name(p->method), engine_model_name(e));
    if (!d->ops || (!runs_drafter(p->method) && p->method != DRAFT_AUTO))
        return 0;
    if (p->window > d->max_window)
        return ERR(err, INVALID, "window: %u, the drafter has at most %u", p->window,
                   d->max_window);
    if (p->passes > d->max_passes)
        return ERR(err, INVALID, "passes: %u, the drafter has at most %u", p->passes,
                   d->max_passes);
    return 0;
}

static int check_script(const struct engine *e, const struct drafting_params *p, struct error *err)
{
    const struct draft_script *s = p->script;
    if (!s || p->method != DRAFT_SCRIPTED) {
        if (p->method == DRAFT_SCRIPTED || s)
            return ERR(err, INVALID, "script: the method scripted needs one, others have none");
        return 0;
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct draft_script_round *t = &s->rounds[i];
        if (i && t->at <= s->rounds[i - 1].at)
            return ERR(err, INVALID, "script: \"at\" must ascend, %u follows %u", t->at,
                       s->rounds[i - 1].at);
        int r = proposal_check(&t->proposal, e->model->vocab_size, err);
        if (r < 0)
            return error_prefix(err, r, "script, at %u", t->at);
        if (p->verification == DRAFT_REJECTION && !proposal_is_chain(&t->proposal))
            return ERR(err, INVALID,
                       "verification: rejection verifies chains, the script has a "
                       "tree at %u",
                       t->at);
    }
    return 0;
}

static int check_acceptance(const struct engine *e, const struct drafting_params *p,
                            struct error *err)
{
    if (!p->acceptance) {
        if (p->method == DRAFT_SYNTHETIC)
            return ERR(err, INVALID, "acceptance: the method synthetic needs a profile");
        return 0;
    }
    if (!e->cfg.synthetic)
        return ERR(err, INVALID, "acceptance: made-up acceptance is for benchmarks only");
    if (p->verification == DRAFT_REJECTION || p->method == DRAFT_DDTREE ||
        p->method == DRAFT_AUTO || p->method == DRAFT_AR)
        return ERR(err, INVALID, "acceptance: %s with this verification has no chain to accept",
                   draft_method_name(p->method));
    if (p->window == 0)
        return ERR(err, INVALID, "acceptance: needs a window");
    for (uint32_t i = 0; i + 1 < p->window; i++)
        if (!(p->acceptance[i] >= 0 && p->acceptance[i] <= 1))
            return ERR(err, INVALID, "acceptance: entry %u is not in 0..1", i);
    return 0;
}

int engine_check_drafting(const struct engine *e, const struct drafting_params *p,
                          struct error *err)
{
    int r = check_ranges(p, err);
    if (r == 0)
        r = check_fields(p, err);
    if (r == 0)
        r = check_drafter(e, p, err);
    if (r == 0)
        r = check_script(e, p, err);
    return r < 0 ? r : check_acceptance(e, p, err);
}

void drafting_resolve(const struct engine *e, struct drafting_params *p)
{
    const struct block_drafter *d = &e->drafter;
    if (p->tree_budget == 0)
        p->tree_budget = p->method == DRAFT_AUTO ? SURVIVAL_NODES : DEFAULT_TREE_BUDGET;
    if (p->method == DRAFT_AUTO)
        return; /* window and passes: 0 is the controller's choice */
    if (p->window == 0)
        p->window = runs_drafter(p->method) ? d->window : DEFAULT_WINDOW;
    if (p->passes == 0)
        p->passes = p->method == DRAFT_DEDIT ? 2 : 1;
    if (runs_drafter(p->method) && p->passes > d->max_passes)
        p->passes = d->max_passes;
}
