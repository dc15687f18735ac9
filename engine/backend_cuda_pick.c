/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drafter's choices on the device (kernels/cuda/draft.cu, the twin of drafter_pick.c): for a row of a block
 * a token, its confidence and the best candidates come back, instead of the logits.  Passes that are run at
 * once: what is wanted and what the rows become goes there once, the rows of each further pass are written
 * by a kernel out of the picks of the one before, and each pass's picks come back into a place of their own.
 */
#include <string.h>

#include "engine/backend_cuda.h"
#include "engine/drafter_file.h"
#include "engine/method.h"
#include "engine/noise.h"
#include "engine/proposal.h"

_Static_assert(PROPOSAL_MAX_NODES <= DCU_MAX_TOP, "candidates of a row");

bool cuda_picked_row(const struct fwd_batch *b, uint32_t r, uint32_t *k)
{
    while (*k < b->n_picks && b->picks[*k].row < r)
        ++*k;
    return *k < b->n_picks && b->picks[*k].row == r;
}

static struct dcu_pick pick_of(const struct fwd_pick *p)
{
    struct dcu_pick q = {
        .pos = p->pos, .stream = NOISE_GUMBEL, .inv_t = p->inv_t, .n_top = p->n_top};
    noise_key(p->seed, q.key);
    return q;
}

/* A further pass has nothing of the host's but this. */
static int fill_feeds(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                      struct error *err)
{
    struct dcu_feed *h = m->p.picks.feeds;
    const struct cuda_batch *rows = &m->p.batch;
    if (c->n_passes > DRAFT_MAX_PASSES || c->n_logits || c->n_tap)
        return ERR(err, INTERNAL, "%u passes at once, or rows with logits or taps in them",
                   c->n_passes);
    for (uint32_t r = 0; r < c->n; r++)
        h[r] = (struct dcu_feed){
            .pick = UINT32_MAX, .n_vis = b->next[r].n_vis, .window_vis = b->next[r].window_vis};
    for (uint32_t i = 0; i < c->n_head; i++) /* picks are numbered by row with logits there */
        if (m->p.picks.of[i] != UINT32_MAX) {
            const uint32_t r = rows->live_index[rows->head_index[i]];
            if (b->next[r].pick != UINT32_MAX)
                h[r].pick = i;
        }
    return 0;
}

int cuda_picks_fill(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                    struct error *err)
{
    const struct cuda_batch *rows = &m->p.batch;
    struct cuda_picks *h = &m->p.picks;
    uint32_t k = 0;
    if (!h->picks)
        return ERR(err, INTERNAL, "a target does not draft");
    for (uint32_t i = 0; i < c->n_head; i++) {
        const bool picked = cuda_picked_row(b, rows->live_index[rows->head_index[i]], &k);
        h->of[i] = picked ? k : UINT32_MAX;
        h->picks[i] = picked ? pick_of(&b->picks[k]) : (struct dcu_pick){.inv_t = 0};
    }
    return c->n_passes > 1 ? fill_feeds(m, b, c, err) : 0;
}

int cuda_picks_send(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                    struct error *err)
{
    const struct cuda_picks *h = &m->p.picks;
    const char *end = (const char *)(h->picks + c->n_head);
    if (c->held)
        end = (const char *)(h->spans + b->n_spans);
    else if (c->n_passes > 1)
        end = (const char *)(h->feeds + c->n);
    CUDA_DO(m, err, "sending picks",
            m->api->copy_in(m->stream, m->s.picks.picks, h->picks,
                            (size_t)(end - (const char *)h->picks)));
    return 0;
}

int cuda_picks_choose(struct cuda_model *m, uint32_t i, uint32_t n, struct error *err)
{
    const struct cuda_scratch *t = &m->s;
    const struct dcu_draft p = {.rows = n,
                                .vocab = m->head.n,
                                .logits = t->logits,
                                .ldl = m->head.n,
                                .picks = t->picks.picks + i,
                                .target_ids = t->picks.target_ids,
                                .work = t->work,
                                .scratch = t->sample,
                                .picked = t->picks.picked + i,
                                .top = t->picks.top + (size_t)i * DCU_MAX_TOP};
    CUDA_DO(m, err, "drafts", m->api->draft(m->stream, &p));
    return 0;
}

int cuda_picks_next(struct cuda_model *m, const struct cuda_rows *c, struct error *err)
{
    const struct cuda_batch *t = &m->s.batch;
    const struct dcu_next p = {
        .n_rows = c->n,
        .n_live = c->n_live,
        .feeds = m->s.picks.feeds,
        .picked = m->s.picks.picked,
        .rows = t->rows,
        .live = t->live,
        .window = {c->windowed ? t->window[0] : NULL, c->windowed ? t->window[1] : NULL},
        .live_index = t->live_index};
    CUDA_DO(m, err, "the next pass", m->api->next(m->stream, &p));
    return 0;
}

bool cuda_picks_with_top(const struct cuda_model *m, uint32_t *first, uint32_t *end)
{
    const struct dcu_pick *h = m->p.picks.picks;
    while (*first < *end && h[*first].n_top == 0)
        ++*first;
    while (*first < *end && h[*end - 1].n_top == 0)
        --*end;
    return *first < *end;
}

/* Where the results of a pass are pinned. */
static size_t place(const struct cuda_model *m, uint32_t pass, uint32_t i)
{
    return (size_t)pass * m->opt.max_rows + i;
}

int cuda_picks_fetch(struct cuda_model *m, uint32_t pass, uint32_t i, uint32_t n, struct error *err)
{
    const struct cuda_picks *d = &m->s.picks, *h = &m->p.picks;
    CUDA_DO(m, err, "drafts",
            m->api->copy_out(m->stream, h->picked + place(m, pass, i), d->picked + i,
                             n * sizeof(*h->picked)));
    uint32_t first = i, end = i + n;
    if (cuda_picks_with_top(m, &first, &end))
        CUDA_DO(m, err, "candidates",
                m->api->copy_out(m->stream, h->top + place(m, pass, first) * DCU_MAX_TOP,
                                 d->top + (size_t)first * DCU_MAX_TOP,
                                 (size_t)(end - first) * DCU_MAX_TOP * sizeof(*h->top)));
    return 0;
}

static void deliver(const struct dcu_picked *d, const struct dcu_logprob *top, struct fwd_pick *p)
{
    p->token = d->token;
    p->confidence = d->confidence; /* 0 of bad logits, which have no candidates either */
    p->n = d->n;
    for (uint32_t j = 0; j < d->n; j++) {
        p->top[j] = top[j].token;
        p->logp[j] = top[j].logprob;
    }
}

void cuda_picks_deliver(const struct cuda_model *m, const struct fwd_batch *b,
                        const struct cuda_rows *c)
{
    const struct cuda_picks *h = &m->p.picks;
    for (uint32_t pass = 0; pass < c->n_passes; pass++)
        for (uint32_t i = 0; i < c->n_head; i++)
            if (h->of[i] != UINT32_MAX)
                deliver(&h->picked[place(m, pass, i)], h->top + place(m, pass, i) * DCU_MAX_TOP,
                        &b->picks[(size_t)pass * b->n_picks + h->of[i]]);
}

int cuda_picks_upload(struct cuda_model *m, struct error *err)
{
    const struct drafter_config *d = m->cfg.drafter;
    const size_t piece = m->p.staging_bytes / sizeof(*d->target_ids);
    for (size_t i = 0, n; d->target_ids && i < d->draft_vocab; i += n) {
        n = d->draft_vocab - i < piece ? d->draft_vocab - i : piece;
        memcpy(m->p.staging[0], d->target_ids + i, n * sizeof(*d->target_ids));
        CUDA_DO(m, err, "a drafter's ids",
                m->api->copy_in(m->stream, m->s.picks.target_ids + i, m->p.staging[0],
                                n * sizeof(*d->target_ids)));
        int r = cuda_wait(m, "a drafter's ids", err);
        if (r < 0)
            return r;
    }
    return 0;
}
