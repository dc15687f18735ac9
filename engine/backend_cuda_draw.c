/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choices on the device: the states of the samplers of a batch, as the kernels of kernels/cuda/sample.cu
 * read them, and what comes back: a token for each row, log-probabilities where somebody wants any.  Every
 * row of a tree is sampled as if its path had been committed, so the walk only reads them: the host does it
 * with all choices after one wait, and the device (kernels/cuda/walk.cu) before that wait, to move K and V of a
 * tree's path.
 */
#include <math.h>
#include <string.h>

#include "engine/backend_cuda.h"
#include "engine/noise.h"
#include "engine/sampler_internal.h"

_Static_assert(FWD_MAX_PATH == DCU_MAX_DEPTH, "paths of a draw");

bool cuda_drawn_row(const struct fwd_batch *b, uint32_t r, uint32_t *k)
{
    while (*k < b->n_draws && r >= b->draws[*k].row0 + b->draws[*k].n_rows)
        ++*k;
    return *k < b->n_draws && r >= b->draws[*k].row0;
}

/* ---- what goes there --------------------------------------------------------------------------------- */

static struct dcu_request request_of(const struct sampler *s, uint64_t pos)
{
    if (!s)
        return (struct dcu_request){.top_p = 1, .z_least = -INFINITY, .n_logprobs = -1};
    struct dcu_request q = {.pos = pos,
                            .top_p = s->top_p,
                            .z_least = s->min_p > 0 ? dk_logf(s->min_p) : -INFINITY,
                            .top_k = s->top_k,
                            .process = sampler_n_changed(s) > 0 || s->penalties,
                            .n_output =
                                s->n_output < UINT32_MAX ? (uint32_t)s->n_output : UINT32_MAX,
                            .min_tokens = (uint32_t)s->min_tokens,
                            .n_logprobs = s->logprobs,
                            .repetition = s->repetition,
                            .frequency = s->frequency,
                            .presence = s->presence};
    if (s->temperature >= SAMPLER_GREEDY_BELOW)
        q.inv_t = (float)(1.0 / (double)s->temperature);
    noise_key(s->seed, q.key);
    return q;
}

static void put_entries(const struct sampler *s, struct dcu_entry *to)
{
    for (size_t i = 0; i < s->n_entries; i++) {
        const struct sampler_entry *e = &s->entries[i];
        to[i] = (struct dcu_entry){.id = e->id,
                                   .count = e->count,
                                   .bias = e->bias,
                                   .flags = (e->in_prompt ? 1u : 0) | (e->ends ? 2u : 0)};
    }
}

static void put_nodes(const struct fwd_batch *b, uint32_t k, struct dcu_node *nodes)
{
    const struct fwd_draw *d = &b->draws[k];
    for (uint32_t i = 0; i < d->n_rows; i++) {
        struct dcu_node n = {.request = k, .token = b->rows[d->row0 + i].token};
        if (i > 0) {
            n.parent = d->parent ? (uint32_t)(d->parent[i - 1] + 1) : i - 1;
            n.depth = nodes[n.parent].depth + 1;
        }
        nodes[i] = n;
    }
}

static unsigned kernels_for(const struct dcu_request *q)
{
    unsigned f = CUDA_DRAWS;
    if (q->process)
        f |= DCU_SAMPLE_PROCESS;
    if (q->n_logprobs >= 0)
        f |= DCU_SAMPLE_LOGPROBS;
    if (q->inv_t != 0 && (q->top_k || q->top_p < 1 || q->z_least > -INFINITY))
        f |= DCU_SAMPLE_CUT;
    return f;
}

/* What the walk of draw k needs beside choices and nodes; without room for its stop ids there is none. */
static void put_walk(struct cuda_model *m, const struct fwd_batch *b, uint32_t k,
                     struct cuda_rows *c)
{
    struct cuda_draws *h = &m->p.draws;
    const struct fwd_draw *d = &b->draws[k];
    struct dcu_request *q = &h->requests[k];
    const size_t n = d->sampler ? d->sampler->n_stop_ids : 0;
    if (!d->path || n > CUDA_DRAW_STOPS - c->n_stops)
        return;
    q->n_rows = d->n_rows;
    q->stops = c->n_stops;
    q->n_stops = (uint32_t)n;
    if (n)
        memcpy(h->stops + c->n_stops, d->sampler->stop_ids, n * sizeof(*h->stops));
    c->n_stops += q->n_stops;
    for (uint32_t i = 0; i < d->n_rows; i++)
        h->slots[q->row0 + i] = b->rows[d->row0 + i].slot;
    c->walks = b->n_draws;
}

int cuda_draws_fill(struct cuda_model *m, const struct fwd_batch *b, struct cuda_rows *c,
                    struct error *err)
{
    struct cuda_draws *h = &m->p.draws;
    uint32_t entries = 0, draw = 0, at = UINT32_MAX;
    if (!h->nodes)
        return ERR(err, INTERNAL, "a drafter does not choose tokens");
    for (uint32_t i = 0; i < c->n_head; i++) {
        const uint32_t row = m->p.batch.live_index[m->p.batch.head_index[i]];
        h->nodes[i].request = UINT32_MAX;
        if (!cuda_drawn_row(b, row, &draw) || draw == at)
            continue;
        at = draw; /* its first row; the others follow */
        const struct sampler *s = b->draws[at].sampler;
        const size_t n = s ? sampler_n_changed(s) : 0;
        if (n > CUDA_DRAW_CHANGES - entries)
            return ERR(err, LIMIT, "the samplers of a batch change more than %u ids",
                       CUDA_DRAW_CHANGES);
        struct dcu_request q = request_of(s, b->draws[at].pos);
        q.row0 = i;
        q.entries = entries;
        q.n_entries = (uint32_t)n;
        if (n)
            put_entries(s, h->entries + entries);
        entries += q.n_entries;
        h->requests[at] = q;
        c->draws |= kernels_for(&q);
    }
    for (uint32_t k = 0; k < b->n_draws; k++) {
        put_nodes(b, k, h->nodes + h->requests[k].row0);
        put_walk(m, b, k, c);
    }
    return 0;
}

int cuda_draws_send(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                    struct error *err)
{
    const struct cuda_draws *h = &m->p.draws;
    const struct dcu_request *last = b->n_draws ? &h->requests[b->n_draws - 1] : NULL;
    const uint32_t entries = last ? last->entries + last->n_entries : 0;
    const char *end = (const char *)(h->requests + b->n_draws);
    if (entries)
        end = (const char *)(h->entries + entries);
    else if (c->n_trees)
        end = (const char *)(h->trees + c->n_trees);
    else if (c->n_fed)
        end = (const char *)(h->feeds + c->n_fed);
    else if (c->walks)
        end = (const char *)(h->stops + c->n_stops);
    CUDA_DO(m, err, "sending draws",
            m->api->copy_in(m->stream, m->s.draws.nodes, h->nodes,
                            (size_t)(end - (const char *)h->nodes)));
    return 0;
}

int cuda_draws_sample(struct cuda_model *m, const struct cuda_rows *c, uint32_t i, uint32_t n,
                      struct error *err)
{
    const struct cuda_scratch *t = &m->s;
    const struct dcu_sample p = {.flags = c->draws & ~CUDA_DRAWS,
                                 .rows = n,
                                 .vocab = m->head.n,
                                 .first = i,
                                 .logits = t->logits,
                                 .ldl = m->head.n,
                                 .requests = t->draws.requests,
                                 .nodes = t->draws.nodes,
                                 .entries = t->draws.entries,
                                 .work = t->work,
                                 .scratch = t->sample,
                                 .choices = t->drawn.choices,
                                 .logprobs = t->drawn.logprobs,
                                 .n_logprobs = t->drawn.n_logprobs};
    CUDA_DO(m, err, "sampling", m->api->sample(m->stream, &p));
    return 0;
}

int cuda_draws_walk(struct cuda_model *m, const struct cuda_rows *c, struct error *err)
{
    const struct cuda_scratch *t = &m->s;
    const struct cuda_batch *d = &t->batch;
    const struct dcu_walk p = {.n_requests = c->walks,
                               .requests = t->draws.requests,
                               .nodes = t->draws.nodes,
                               .choices = t->drawn.choices,
                               .words = t->draws.stops,
                               .slots = t->draws.slots,
                               .paths = t->drawn.paths,
                               .from = d->from,
                               .to = d->to,
                               .n_pairs = d->n_pairs};
    CUDA_DO(m, err, "the walk", m->api->walk(m->stream, &p));
    CUDA_DO(m, err, "moving K and V",
            m->api->kv_copy(m->stream, m->device_layers, m->cfg.n_layers, m->cfg.n_kv_heads,
                            m->opt.kv_type, d->from, d->to, d->n_pairs, c->n_head));
    return 0;
}

/* ---- what comes back --------------------------------------------------------------------------------- */

int cuda_draws_fetch(struct cuda_model *m, const struct cuda_rows *c, uint32_t i, uint32_t n,
                     struct error *err)
{
    const struct cuda_drawn *d = &m->s.drawn, *h = &m->p.drawn;
    const uint32_t top = SAMPLING_MAX_LOGPROBS;
    CUDA_DO(m, err, "choices",
            m->api->copy_out(m->stream, h->choices + i, d->choices + i, n * sizeof(*h->choices)));
    if (!(c->draws & DCU_SAMPLE_LOGPROBS))
        return 0;
    CUDA_DO(m, err, "log-probabilities",
            m->api->copy_out(m->stream, h->n_logprobs + i, d->n_logprobs + i,
                             n * sizeof(*h->n_logprobs)));
    CUDA_DO(m, err, "log-probabilities",
            m->api->copy_out(m->stream, h->logprobs + (size_t)i * top,
                             d->logprobs + (size_t)i * top,
                             (size_t)n * top * sizeof(*h->logprobs)));
    return 0;
}

int cuda_draws_fetch_paths(struct cuda_model *m, const struct cuda_rows *c, struct error *err)
{
    CUDA_DO(m, err, "paths",
            m->api->copy_out(m->stream, m->p.drawn.paths, m->s.drawn.paths,
                             c->walks * sizeof(*m->p.drawn.paths)));
    return 0;
}

static struct fwd_choice choice_of(const struct cuda_drawn *h, uint32_t i, bool logprobs)
{
    const struct dcu_choice *d = &h->choices[i];
    struct fwd_choice c = {
        .fault = (enum sampler_fault)d->bad, .fault_id = d->bad_id, .token = d->token};
    if (c.fault != SAMPLER_GOOD || !logprobs)
        return c;
    c.lp[c.n_lp++] = (struct token_logprob){d->token, d->logprob};
    for (uint32_t j = 0; j < h->n_logprobs[i]; j++) {
        const struct dcu_logprob *p = &h->logprobs[(size_t)i * SAMPLING_MAX_LOGPROBS + j];
        c.lp[c.n_lp++] = (struct token_logprob){p->token, p->logprob};
    }
    return c;
}

void cuda_draws_deliver(const struct cuda_model *m, const struct fwd_batch *b,
                        const struct cuda_rows *c)
{
    for (uint32_t i = 0; i < c->n_head; i++) {
        const uint32_t k = m->p.draws.nodes[i].request;
        if (k == UINT32_MAX)
            continue;
        const struct dcu_request *q = &m->p.draws.requests[k];
        b->draws[k].ret[i - q->row0] = choice_of(&m->p.drawn, i, q->n_logprobs >= 0);
    }
    for (uint32_t k = 0; k < b->n_draws; k++) {
        struct fwd_path *to = b->draws[k].path;
        const struct dcu_path *from = &m->p.drawn.paths[k];
        if (!to)
            continue;
        to->n = c->walks ? from->n_choices : 0;
        if (to->n > FWD_MAX_PATH) /* no device says so; it would be no path of the host's */
            to->n = FWD_MAX_PATH;
        memcpy(to->row, from->row, to->n * sizeof(*to->row));
    }
}
