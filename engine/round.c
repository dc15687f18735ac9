/* SPDX-License-Identifier: Apache-2.0 */
/* Rows, walk and commit of a round; see round.h. */
#include "engine/round.h"

#include "base/clock.h"
#include "engine/engine_internal.h"

void round_trim(struct request *r, uint32_t room)
{
    /* The anchor stands at n_kv; K/V is never written at or after the longest length. */
    uint32_t positions = r->max_total - r->seq.n_kv - 1;
    uint32_t most = positions < room ? positions : room;
    if (r->draft.n > most)
        r->draft.n = most;
}

/* The proposal as a tree that hangs on what has K/V, its first node the anchor. */
static void tree_rows(struct engine *e, struct batch_entry *b, struct fwd_row *rows)
{
    const struct proposal *d = &b->r->draft;
    uint32_t tokens[ROUND_MAX_ROWS];
    int32_t parent[ROUND_MAX_ROWS];
    tokens[0] = b->r->seq.tokens[b->r->seq.n_kv];
    parent[0] = -1;
    for (uint32_t i = 0; i < d->n; i++) {
        tokens[i + 1] = d->tokens[i];
        parent[i + 1] = d->parent[i] + 1;
    }
    seq_tree_rows(&b->r->seq, tokens, parent, d->n + 1, e->tails + e->n_tails, rows);
    e->n_tails += seq_tree_tails(&b->r->seq, parent, d->n + 1);
}

void round_rows(struct engine *e, struct batch_entry *b)
{
    struct request *r = b->r;
    struct fwd_row *rows = e->rows + b->row0;
    b->n_choices = 0;
    b->n_logits = 0;
    b->logit0 = e->n_logits;
    b->error.code = 0;
    if (r->draft.n) {
        tree_rows(e, b, rows);
        b->n_logits = b->n_rows;
    } else {
        seq_rows(&r->seq, r->seq.n_kv, b->n_rows, rows);
        b->n_logits = r->seq.n_kv + b->n_rows == r->seq.n_tokens;
    }
    for (uint32_t i = 0; i < b->n_logits; i++)
        rows[b->n_rows - b->n_logits + i].logits =
            e->logits + (size_t)e->n_logits++ * e->model->vocab_size;
}

/* ---- the walk --------------------------------------------------------------------------------- */

/* The sampler sees each token of the path before it chooses the next one, and forgets them again:
 * committing is round_finish's. */
static void walk(struct engine *e, struct batch_entry *b, float *work, uint32_t *work_ids)
{
    struct request *r = b->r;
    const size_t before = sampler_n_output(r->sampler);
    uint32_t row = 0;
    for (;;) {
        struct choice *c = &e->choices[b->logit0 + b->n_choices];
        const float *logits = e->logits + (size_t)(b->logit0 + row) * e->model->vocab_size;
        c->row = row;
        c->n_lp = 0;
        int n = sampler_choose(r->sampler, e->ops, logits, r->seq.n_tokens + b->n_choices, work,
                               work_ids, &c->token, r->n_logprobs >= 0 ? c->lp : NULL, &c->n_lp,
                               &b->error);
        if (n < 0)
            break;
        b->n_choices++;
        row = (uint32_t)(proposal_child(&r->draft, (int)row - 1, c->token) + 1);
        if (row == 0 || sampler_is_stop_id(r->sampler, c->token))
            break;
        n = sampler_commit(r->sampler, c->token);
        if (n < 0) {
            (void)ERR_NOMEM(&b->error);
            break;
        }
    }
    sampler_rewind(r->sampler, before);
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
        if (e->entries[i].n_logits)
            walk(e, &e->entries[i], e->work + par->tid * vocab, e->work_ids + par->tid * vocab);
}

void round_choose(struct engine *e, uint32_t n_entries)
{
    struct choosing w = {e, n_entries};
    struct dk_par alone = {.n = 1};
    if (e->n_logits > 1 && n_entries > 1)
        e->space.backend->parallel(e->space.model, choose_some, &w);
    else
        choose_some(&w, &alone);
}

/* ---- the commit ------------------------------------------------------------------------------- */

/* K/V of the rows where the committed tokens were chosen; the last token is the next anchor. */
static int keep_path(struct engine *e, struct batch_entry *b, uint32_t n_committed,
                     struct error *err)
{
    uint32_t nodes[ROUND_MAX_ROWS];
    for (uint32_t i = 0; i < n_committed; i++)
        nodes[i] = e->choices[b->logit0 + i].row;
    return seq_keep(&b->r->seq, &e->space, nodes, n_committed, err);
}

void round_finish(struct engine *e, struct batch_entry *b)
{
    struct request *r = b->r;
    const struct choice *c = &e->choices[b->logit0];
    bool drafted = r->draft.n > 0;
    uint32_t n = 0;
    int end = 0;
    if (r->usage.completion_tokens == 0)
        r->usage.prefill_ns = clock_now_ns() - r->t_submit;
    commit_begin(e);
    while (n < b->n_choices && end == 0) {
        bool bonus = n + 1 == b->n_choices;
        uint32_t flags = !drafted ? 0 : bonus ? ENGINE_TOKEN_BONUS : ENGINE_TOKEN_DRAFTED;
        end = commit_token(r, c[n].token, flags, c[n].lp, c[n].n_lp);
        n += end >= 0;
    }
    if (end < 0)
        (void)ERR_NOMEM(&b->error);
    if (end == 0 && b->error.code == DEDIT_E_NUMERIC)
        seq_withdraw(&r->seq, e->space.pool);
    if (drafted && end == 0 && b->error.code == 0) {
        (void)keep_path(e, b, n, &b->error);
        if (e->cfg.enable_prefix_caching)
            seq_publish(&r->seq, e->space.pool);
    }
    /* What ended on the way never sees an error of a row behind its end. */
    commit_end(r, b->error.code && end <= 0 ? &b->error : NULL);
}
