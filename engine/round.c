/* SPDX-License-Identifier: Apache-2.0 */
/* Rows, walk and commit of a round; see round.h. */
#include "engine/round.h"

#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "engine/noise.h"
#include "engine/rejection.h"

/* ---- rows ---------------------------------------------------------------------------------------- */

/* The proposal as a tree that hangs on what has K/V, its first node the anchor. */
static void tree_rows(struct engine *e, struct batch_entry *b, struct fwd_row *rows)
{
    const struct proposal *d = &b->r->drafting->proposal;
    uint32_t tokens[ROUND_MAX_ROWS];
    int32_t parent[ROUND_MAX_ROWS];
    tokens[0] = b->r->seq.tokens[b->r->seq.n_kv];
    parent[0] = -1;
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        tokens[i + 1] = d->tokens[i];
        parent[i + 1] = d->parent[i] + 1;
    }
    seq_tree_rows(&b->r->seq, tokens, parent, b->n_rows, e->tails + e->n_tails, rows);
    e->n_tails += seq_tree_tails(&b->r->seq, parent, b->n_rows);
}

static bool begun_tree(const struct batch_entry *b)
{
    return b->r->drafting->begun && b->r->drafting->round.method == DRAFT_DDTREE;
}

/* A tree that the device still has: no path is longer than the block is deep. */
static void blank_rows(struct engine *e, struct batch_entry *b, struct fwd_row *rows)
{
    const struct drafting_state *d = b->r->drafting;
    const uint32_t depth = d->round.window - 1 < b->n_nodes ? d->round.window - 1 : b->n_nodes;
    seq_blank_rows(&b->r->seq, b->n_rows, depth, e->tails + e->n_tails, rows);
    e->n_tails += seq_blank_tails(&b->r->seq, b->n_rows, depth);
    e->trees[e->n_trees++] =
        (struct fwd_tree){.row0 = b->row0, .n_rows = b->n_rows, .first_node = d->round.first_node};
}

/* Rows of drafts that the device still has. */
static void feed_rows(const struct engine *e, const struct batch_entry *b)
{
    uint32_t *feed = e->feed + b->row0;
    for (uint32_t i = 0; i < b->n_rows; i++)
        feed[i] = UINT32_MAX;
    if (b->n_nodes == 0 || !b->r->drafting->begun || begun_tree(b))
        return;
    for (uint32_t i = 0; i < b->n_nodes; i++)
        feed[i + 1] = b->r->drafting->round.first_pick + i;
}

/* Does rule B look at the distribution of a row with drafts?  Where the draft could be one token only,
 * drawing from p and comparing is rule B: p(d) of acceptance, and p without d else.  Then the draw may as
 * well be the one of plain decoding. */
static bool needs_distribution(const struct batch_entry *b)
{
    const struct drafting_state *d = b->r->drafting;
    return b->n_nodes && d->params.verification == DRAFT_REJECTION && d->ids && d->proposal.q;
}

/* May the backend move K and V of the path it finds?  In a chain there is nothing to move; made-up acceptance
 * is no walk along the target's choices. */
static bool may_move(const struct engine *e, const struct batch_entry *b)
{
    const struct drafting_state *d = b->r->drafting;
    return e->paths && b->n_nodes && !d->params.acceptance && !proposal_is_chain(&d->proposal);
}

/* Asks the backend to choose at the rows of b that have logits; false: the host does. */
static bool ask_backend(struct engine *e, struct batch_entry *b)
{
    const struct request *r = b->r;
    const size_t changes = sampler_n_changed(r->sampler);
    const uint32_t most = e->space.backend->draw_changes;
    if (b->n_logits == 0 || !most || changes > most - e->at->n_draw_changes ||
        needs_distribution(b))
        return false;
    e->at->n_draw_changes += (uint32_t)changes;
    b->path = may_move(e, b) ? &e->paths[e->at->n_draws] : NULL;
    e->at->draws[e->at->n_draws++] =
        (struct fwd_draw){.sampler = r->sampler,
                          .pos = r->seq.n_tokens,
                          .row0 = b->row0 + b->n_rows - b->n_logits,
                          .n_rows = b->n_logits,
                          .parent = b->n_nodes ? r->drafting->proposal.parent : NULL,
                          .ret = e->drawn + b->logit0,
                          .path = b->path};
    return true;
}

void round_rows(struct engine *e, struct batch_entry *b)
{
    struct request *r = b->r;
    struct fwd_row *rows = e->at->rows + b->row0;
    b->n_choices = 0;
    b->n_logits = 0;
    b->logit0 = e->at->n_logits;
    b->error.code = 0;
    b->path = NULL;
    if (b->again) {
        seq_rows(&r->seq, r->again_from, b->n_rows, rows);
    } else if (b->n_nodes) {
        if (begun_tree(b))
            blank_rows(e, b, rows);
        else
            tree_rows(e, b, rows);
        b->n_logits = b->n_rows;
    } else {
        seq_rows(&r->seq, r->seq.n_kv, b->n_rows, rows);
        b->n_logits = r->seq.n_kv + b->n_rows == r->seq.n_tokens;
    }
    if (e->at->n_begun)
        feed_rows(e, b);
    b->drawn = ask_backend(e, b);
    for (uint32_t i = 0; i < b->n_logits && !b->drawn; i++)
        rows[b->n_rows - b->n_logits + i].logits =
            e->logits + (size_t)(b->logit0 + i) * e->model->vocab_size;
    e->at->n_logits += b->n_logits;
    if (r->drafting && r->drafting->context)
        for (uint32_t i = 0; i < b->n_rows; i++)
            rows[i].taps = drafting_take_taps(e);
}

void round_drafted(struct engine *e, struct batch_entry *b)
{
    const struct proposal *p = b->n_nodes ? &b->r->drafting->proposal : NULL;
    struct fwd_row *rows = e->at->rows + b->row0;
    if (!p)
        return;
    if (p->n < b->n_nodes) { /* rows without a node, at the end */
        b->n_nodes = p->n;
        b->n_rows = b->n_logits = 1 + p->n;
    }
    for (uint32_t i = 0; i < b->n_rows; i++)
        rows[i].path.n_vis = rows[0].pos + 1 + (i ? proposal_depth(p, i - 1) : 0);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

/* One uniform number in (0, 1) of the position's own. */
static double uniform(const struct drafting_state *d, uint64_t pos, enum noise_stream stream)
{
    uint32_t key[2], ctr[4] = {0}, out[4];
    noise_key(d->seed, key);
    noise_counter(pos, stream, ctr + 1);
    dk_philox4x32_10(ctr, key, out);
    return ((double)out[0] + 0.5) * 0x1p-32;
}

/* Rule B at a row whose draft is `node`: the draft itself, or another token. */
static int choose_rejection(struct engine *e, struct request *r, const float *logits, uint64_t pos,
                            int node, uint32_t *work_ids, struct choice *c, struct error *err)
{
    struct drafting_state *d = r->drafting;
    const struct proposal *p = &d->proposal;
    const float *q = p->q + (size_t)node * e->model->vocab_size;
    const uint32_t draft = p->tokens[node];
    uint32_t n = 0, next = 0;
    int k = sampler_probs(r->sampler, e->ops, logits, d->ids, d->probs, &n, err);
    if (k < 0)
        return k;
    c->token = rejection_step(d->ids, d->probs, n, q, draft, uniform(d, pos, NOISE_ACCEPT),
                              uniform(d, pos, NOISE_RESIDUAL), d->weights, &next)
                   ? draft
                   : next;
    if (r->n_logprobs >= 0)
        sampler_logprobs(r->sampler, e->ops, logits, c->token, work_ids, c->lp, &c->n_lp);
    return 0;
}

/* Benchmarks: the draft is the text as often as the profile says. */
static bool made_up(const struct request *r, uint64_t pos, int node)
{
    const struct drafting_state *d = r->drafting;
    uint32_t i = proposal_depth(&d->proposal, (uint32_t)node) - 1;
    return uniform(d, pos, NOISE_DATA) < (double)d->params.acceptance[i];
}

/* The child of row `row` that is the first one, or -1. */
static int first_child(const struct batch_entry *b, uint32_t row)
{
    for (uint32_t i = row; i < b->n_nodes; i++)
        if (b->r->drafting->proposal.parent[i] + 1 == (int)row)
            return (int)i;
    return -1;
}

static int take_drawn(const struct fwd_choice *f, struct choice *c, struct error *err)
{
    if (f->fault != SAMPLER_GOOD)
        return sampler_refuse(f->fault, f->fault_id, err);
    c->token = f->token;
    c->n_lp = f->n_lp;
    memcpy(c->lp, f->lp, f->n_lp * sizeof(*c->lp));
    return 0;
}

static int choose(struct engine *e, struct batch_entry *b, struct choice *c, float *work,
                  uint32_t *work_ids)
{
    struct request *r = b->r;
    const struct drafting_state *d = r->drafting;
    const float *logits = e->logits + (size_t)(b->logit0 + c->row) * e->model->vocab_size;
    const uint64_t pos = r->seq.n_tokens + b->n_choices;
    const int draft = b->n_nodes ? first_child(b, c->row) : -1;
    c->n_lp = 0;
    c->node = -1;
    int n = 0;
    if (b->drawn)
        n = take_drawn(&e->drawn[b->logit0 + c->row], c, &b->error);
    else if (draft >= 0 && needs_distribution(b))
        n = choose_rejection(e, r, logits, pos, draft, work_ids, c, &b->error);
    else
        n = sampler_choose(r->sampler, e->ops, logits, pos, work, work_ids, &c->token,
                           r->n_logprobs >= 0 ? c->lp : NULL, &c->n_lp, &b->error);
    if (n < 0 || draft < 0)
        return n;
    if (d->params.acceptance) {
        if (made_up(r, pos, draft)) {
            c->token = d->proposal.tokens[draft];
            c->node = draft;
        }
        return 0;
    }
    c->node = proposal_child(&d->proposal, (int)c->row - 1, c->token);
    if (c->node >= (int)b->n_nodes)
        c->node = -1; /* cut off */
    return 0;
}

/* The backend has walked, too, and moved K and V by it: what is committed has to be the same path. */
static void check_path(const struct engine *e, struct batch_entry *b)
{
    const struct fwd_path *p = b->path;
    const struct choice *c = &e->choices[b->logit0];
    bool same = !p || p->n == 0 || p->n == b->n_choices;
    for (uint32_t i = 0; same && p && i < p->n; i++)
        same = p->row[i] == c[i].row;
    if (!same && b->error.code == 0)
        (void)ERR(&b->error, INTERNAL, "the device took another path through a proposal");
}

/* The sampler sees each token of the path before it chooses the next one, and forgets them again:
 * committing is round_finish's. */
static void walk(struct engine *e, struct batch_entry *b, float *work, uint32_t *work_ids)
{
    struct request *r = b->r;
    const size_t before = sampler_n_output(r->sampler);
    for (uint32_t row = 0;;) {
        struct choice *c = &e->choices[b->logit0 + b->n_choices];
        c->row = row;
        if (choose(e, b, c, work, work_ids) < 0)
            break;
        b->n_choices++;
        if (c->node < 0 || sampler_is_stop_id(r->sampler, c->token))
            break;
        row = (uint32_t)c->node + 1;
        if (sampler_commit(r->sampler, c->token) < 0) {
            (void)ERR_NOMEM(&b->error);
            break;
        }
    }
    sampler_rewind(r->sampler, before);
    check_path(e, b);
}

struct choosing {
    struct engine *e;
    uint32_t n;
};

/* Every n-th entry: choices are functions of their own request alone. */
static void choose_some(void *arg, const struct dk_par *par)
{
    const struct choosing *w = arg;
    struct engine *e = w->e;
    const size_t vocab = e->model->vocab_size;
    unsigned step = par->n < e->n_samplers ? par->n : e->n_samplers;
    for (uint32_t i = par->tid; par->tid < step && i < w->n; i += step)
        if (e->at->entries[i].n_logits)
            walk(e, &e->at->entries[i], e->work + par->tid * vocab, e->work_ids + par->tid * vocab);
}

void round_choose(struct engine *e, uint32_t n_entries)
{
    struct choosing w = {e, n_entries};
    struct dk_par alone = {.n = 1};
    if (e->at->n_logits > 1 && n_entries > 1 && e->at->n_draws < n_entries)
        e->space.backend->parallel(e->space.model, choose_some, &w);
    else
        choose_some(&w, &alone);
}

/* ---- statistics ----------------------------------------------------------------------------------- */

/* Passes of the block drafter in this round; 0: something else drafted, or nothing. */
static uint32_t passes_of(const struct batch_entry *b)
{
    return b->n_nodes && b->r->drafting->context ? b->r->drafting->round.pass : 0;
}

/* What each pass had right, against the n tokens that were committed. */
static void count_passes(const struct batch_entry *b, const struct choice *c, uint32_t n,
                         uint32_t *accepted)
{
    const struct draft_round *t = &b->r->drafting->round;
    struct engine_drafting *s = &b->r->usage.drafting;
    const uint32_t passes = passes_of(b), width = t->window - 1;
    for (uint32_t j = 0; j < passes; j++) {
        for (accepted[j] = 0; accepted[j] < n && accepted[j] < width; accepted[j]++)
            if (t->tokens[j][accepted[j]] != c[accepted[j]].token)
                break;
        s->accepted_after[j] += accepted[j];
    }
    for (uint32_t k = 0; passes > 1 && k < n && k < width; k++) {
        bool first = t->tokens[0][k] == c[k].token, last = t->tokens[passes - 1][k] == c[k].token;
        s->edits_helpful += !first && last;
        s->edits_harmful += first && !last;
    }
}

/* Which of the verified nodes were on the path. */
static void teach(struct engine *e, const struct batch_entry *b, uint32_t n_committed)
{
    const struct drafting_state *d = b->r->drafting;
    bool right[PROPOSAL_MAX_NODES] = {false};
    if (b->n_nodes == 0 || d->params.method != DRAFT_AUTO)
        return;
    for (uint32_t i = 0; i < n_committed; i++)
        if (e->choices[b->logit0 + i].node >= 0)
            right[e->choices[b->logit0 + i].node] = true;
    controller_learn(&e->controller, d, b->n_nodes, right);
}

enum draft_method engine_main_method(const struct engine_drafting *d)
{
    enum draft_method best = DRAFT_AR;
    uint64_t most = d->plain_rounds;
    for (enum draft_method m = DRAFT_AUTO; m < DRAFT_METHOD_COUNT; m++)
        if (d->committed_by[m] > most) {
            most = d->committed_by[m];
            best = m;
        }
    return best;
}

struct tally {
    uint32_t committed, accepted;
    uint32_t accepted_after[DRAFT_MAX_PASSES];
};

static void count_round(struct engine *e, struct batch_entry *b, struct tally *t, bool prefill,
                        uint64_t verify_ns)
{
    struct engine_drafting *s = &b->r->usage.drafting;
    if (b->n_nodes == 0) {
        s->prefill_tokens += prefill ? t->committed : 0;
        s->plain_rounds += prefill ? 0 : t->committed;
        return;
    }
    if (t->committed == 0)
        return;
    s->rounds++;
    s->committed_by[drafting_method(b->r->drafting)] += t->committed;
    s->drafted += b->n_nodes;
    s->accepted += t->accepted;
    s->committed += t->committed;
    s->draft_ns += b->r->drafting->round_ns;
    s->verify_ns += verify_ns;
    for (uint32_t i = 0; i < t->accepted; i++)
        s->accepted_at[i]++;
    count_passes(b, &e->choices[b->logit0], t->committed, t->accepted_after);
    e->stats.draft_rounds++;
    e->stats.drafted_tokens += b->n_nodes;
    e->stats.accepted_tokens += t->accepted;
}

static void tell_round(struct batch_entry *b, const struct tally *t, uint64_t verify_ns)
{
    struct request *r = b->r;
    static const struct proposal nothing;
    struct drafting_state *d = r->drafting;
    const uint32_t passes = passes_of(b);
    if (d && b->n_nodes)
        d->proposal.n = b->n_nodes;
    struct engine_round info = {.round = r->n_rounds,
                                .method = b->n_nodes ? drafting_method(d) : DRAFT_AR,
                                .window = passes ? d->round.window : 0,
                                .passes = passes,
                                .committed = t->committed,
                                .accepted = t->accepted,
                                .proposal = d && b->n_nodes ? &d->proposal : &nothing,
                                .tokens = passes ? d->round.tokens : NULL,
                                .accepted_after = passes ? t->accepted_after : NULL,
                                .confidence = passes ? d->round.confidence : NULL,
                                .draft_ns = d && b->n_nodes ? d->round_ns : 0,
                                .verify_ns = verify_ns};
    r->sink.round(r->sink.arg, r, &info);
}

/* ---- the commit ------------------------------------------------------------------------------------ */

/* K/V of the rows where the committed tokens were chosen; the last token is the next anchor. */
static int keep_path(struct engine *e, struct batch_entry *b, uint32_t n_committed,
                     struct error *err)
{
    uint32_t nodes[ROUND_MAX_ROWS];
    if (b->path && b->path->n)
        return seq_keep(&b->r->seq, &e->space, NULL, n_committed, err);
    for (uint32_t i = 0; i < n_committed; i++)
        nodes[i] = e->choices[b->logit0 + i].row;
    return seq_keep(&b->r->seq, &e->space, nodes, n_committed, err);
}

static uint32_t token_flags(const struct batch_entry *b, const struct choice *c)
{
    if (b->n_nodes == 0)
        return 0;
    if (c->node < 0)
        return ENGINE_TOKEN_BONUS;
    return ENGINE_TOKEN_DRAFTED |
           (b->r->drafting->proposal.edited[c->node] ? ENGINE_TOKEN_EDITED : 0);
}

/* Token by token; 1: the request ended on the way, negative: it ended with an error. */
static int commit_choices(struct engine *e, struct batch_entry *b, struct tally *t)
{
    const struct choice *c = &e->choices[b->logit0];
    int end = 0;
    commit_begin(e);
    while (t->committed < b->n_choices && end == 0) {
        const struct choice *at = &c[t->committed];
        end = commit_token(b->r, at->token, token_flags(b, at), at->lp, at->n_lp);
        if (end < 0)
            break;
        t->committed++;
        t->accepted += at->node >= 0;
    }
    return end;
}

void round_finish(struct engine *e, struct batch_entry *b, uint64_t verify_ns)
{
    struct request *r = b->r;
    struct tally t = {0};
    bool prefill = b->n_rows > 1 || r->usage.completion_tokens == 0;
    if (r->usage.completion_tokens == 0)
        r->usage.prefill_ns = clock_now_ns() - r->t_submit;
    int end = commit_choices(e, b, &t);
    if (end < 0)
        (void)ERR_NOMEM(&b->error);
    if (end == 0 && b->error.code == DEDIT_E_NUMERIC)
        seq_withdraw(&r->seq, e->space.pool);
    if (b->n_nodes && end == 0 && b->error.code == 0) {
        (void)keep_path(e, b, t.committed, &b->error);
        if (e->cfg.enable_prefix_caching)
            seq_publish(&r->seq, e->space.pool);
    }
    count_round(e, b, &t, prefill, verify_ns);
    if (b->error.code == 0)
        teach(e, b, b->n_choices);
    if (r->want_rounds && t.committed)
        tell_round(b, &t, verify_ns);
    r->n_rounds++;
    drafting_reset(r->drafting);
    if (r->state == REQUEST_DONE)
        return; /* cancelled by its own callback */
    /* What ended on the way never sees an error of a row behind its end. */
    commit_end(r, b->error.code && end <= 0 ? &b->error : NULL);
}
