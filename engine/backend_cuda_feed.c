/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a drafter leaves on the device for its target: a batch of passes that nobody waits for keeps the picks of
 * all passes there, finds what each round ends with and builds its tree; the target's batch behind it has
 * rows without tokens, and, of trees, without positions and paths, which are filled in where they lie.  The results
 * come to the host with the target's, which makes the same of them by itself (engine/drafter_pass.c).
 */
#include <string.h>

#include "engine/backend_cuda.h"
#include "engine/method.h"
#include "engine/proposal.h"

_Static_assert(PROPOSAL_MAX_NODES == DCU_MAX_NODES, "nodes of a tree");
_Static_assert(sizeof(struct fwd_node) == sizeof(struct dcu_grown), "nodes as they come");

/* ---- the drafter's side ------------------------------------------------------------------------------ */

int cuda_feeds_spans(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *c,
                     struct error *err)
{
    struct dcu_span *to = m->p.picks.spans;
    if (c->n_head != b->n_picks || b->n_spans > m->opt.max_rows)
        return ERR(err, INTERNAL, "results that wait are picks");
    for (uint32_t i = 0; i < b->n_spans; i++) {
        const struct fwd_span *s = &b->spans[i];
        if (s->n_nodes > DCU_MAX_NODES || s->n_nodes > m->opt.max_rows - c->n_grown)
            return ERR(err, INTERNAL, "trees of more than %u nodes", m->opt.max_rows);
        to[i] = (struct dcu_span){s->first, s->n, c->n_grown, s->n_nodes};
        if (s->n_nodes && s->first_node != c->n_grown)
            return ERR(err, INTERNAL, "the nodes of trees follow each other");
        c->n_grown += s->n_nodes;
    }
    return 0;
}

int cuda_feeds_keep(struct cuda_model *m, const struct cuda_rows *c, uint32_t pass,
                    struct error *err)
{
    const struct cuda_picks *d = &m->s.picks;
    const size_t at = (size_t)pass * m->opt.max_rows;
    uint32_t first = 0, end = c->n_head;
    CUDA_DO(m, err, "drafts",
            m->api->copy(m->stream, d->history + at, d->picked, c->n_head * sizeof(*d->picked)));
    if (c->n_grown && cuda_picks_with_top(m, &first, &end))
        CUDA_DO(m, err, "candidates",
                m->api->copy(m->stream, d->top_history + (at + first) * DCU_MAX_TOP,
                             d->top + (size_t)first * DCU_MAX_TOP,
                             (size_t)(end - first) * DCU_MAX_TOP * sizeof(*d->top)));
    return 0;
}

/* What rounds end with. */
static int settle(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                  struct error *err)
{
    const struct cuda_picks *d = &m->s.picks;
    const struct dcu_settle p = {.n_spans = b->n_spans,
                                 .n_passes = c->n_passes,
                                 .spans = d->spans,
                                 .history = d->history,
                                 .ldh = m->opt.max_rows,
                                 .tokens = d->tokens,
                                 .ends = d->ends};
    CUDA_DO(m, err, "what rounds end with", m->api->settle(m->stream, &p));
    CUDA_DO(
        m, err, "what rounds end with",
        m->api->copy_out(m->stream, m->p.picks.tokens, d->tokens, c->n_head * sizeof(*d->tokens)));
    return 0;
}

static int grow(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                struct error *err)
{
    const struct cuda_picks *d = &m->s.picks;
    const struct dcu_grow p = {.n_spans = b->n_spans,
                               .spans = d->spans,
                               .ends = d->ends,
                               .history = d->history,
                               .top = d->top_history,
                               .ldh = m->opt.max_rows,
                               .nodes = d->grown};
    CUDA_DO(m, err, "trees", m->api->grow(m->stream, &p));
    CUDA_DO(
        m, err, "trees",
        m->api->copy_out(m->stream, m->p.picks.grown, d->grown, c->n_grown * sizeof(*d->grown)));
    return 0;
}

int cuda_feeds_settle(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                      struct error *err)
{
    int r = settle(m, b, c, err);
    return r == 0 && c->n_grown ? grow(m, b, c, err) : r;
}

/* ---- the target's side ------------------------------------------------------------------------------- */

/* The tree whose anchor is row r, the i-th of those with logits: its rows all have some. */
static int put_tree(struct cuda_model *m, const struct fwd_tree *t, uint32_t i, struct cuda_rows *c,
                    struct error *err)
{
    const struct cuda_batch *h = &m->p.batch;
    const uint32_t last = i + t->n_rows - 1;
    if (t->n_rows > 1 + DCU_MAX_NODES || last >= c->n_head ||
        h->live_index[h->head_index[last]] != t->row0 + t->n_rows - 1 ||
        t->first_node + t->n_rows - 1 > m->opt.max_rows)
        return ERR(err, INTERNAL, "a tree's row where no token is chosen");
    m->p.draws.trees[c->n_trees++] = (struct dcu_planted){.first_node = t->first_node,
                                                          .n_rows = t->n_rows,
                                                          .row = t->row0,
                                                          .live = h->head_index[i],
                                                          .node = i,
                                                          .pos = h->rows[t->row0].pos};
    return 0;
}

/* Rows that nobody samples have nodes as well, which nobody reads. */
int cuda_feeds_fill(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *c,
                    struct error *err)
{
    const struct cuda_batch *rows = &m->p.batch;
    uint32_t fed = 0;
    if (!m->drafter)
        return ERR(err, INTERNAL, "rows of drafts without a drafter");
    for (uint32_t i = 0; i < c->n_head; i++) {
        const uint32_t r = rows->live_index[rows->head_index[i]];
        if (b->feed[r] != UINT32_MAX)
            m->p.draws.feeds[c->n_fed++] = (struct dcu_feed_to){b->feed[r], r, i};
        if (c->n_trees == b->n_trees || b->trees[c->n_trees].row0 != r)
            continue;
        int k = put_tree(m, &b->trees[c->n_trees], i, c, err);
        if (k < 0)
            return k;
    }
    for (uint32_t r = 0; r < c->n; r++)
        fed += b->feed[r] != UINT32_MAX;
    return fed == c->n_fed && c->n_trees == b->n_trees
               ? 0
               : ERR(err, INTERNAL, "a draft's row where no token is chosen");
}

int cuda_feeds_take(struct cuda_model *m, const struct cuda_rows *c, struct error *err)
{
    const struct cuda_scratch *t = &m->s;
    const struct cuda_area *from = m->drafter ? &m->drafter->p.lanes[m->lane] : NULL;
    if (!from) /* nothing is fed */
        return 0;
    if (c->n_fed) {
        const struct dcu_verify p = {.n = c->n_fed,
                                     .feeds = t->draws.feeds,
                                     .tokens = from->tokens,
                                     .rows = t->batch.rows,
                                     .nodes = t->draws.nodes};
        CUDA_DO(m, err, "drafts to verify", m->api->verify(m->stream, &p));
    }
    if (c->n_trees) {
        const struct dcu_plant p = {.n_trees = c->n_trees,
                                    .trees = t->draws.trees,
                                    .grown = from->grown,
                                    .rows = t->batch.rows,
                                    .live = t->batch.live,
                                    .words = t->batch.words,
                                    .nodes = t->draws.nodes};
        CUDA_DO(m, err, "trees to verify", m->api->plant(m->stream, &p));
    }
    return 0;
}
