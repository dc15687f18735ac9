/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: batches that are on their way while the host goes on, and what comes before what on the device.
 *
 * Without lanes everything is on one stream, and so in order.  With them a drafter has a stream of its own.  Each
 * model's activations, results and K/V are touched by its own stream alone, which is why one set of them does for
 * all lanes, why graphs are shared, and why a block of K/V may go to another sequence at any time.  What the
 * host writes and reads (pinned), and what a drafter leaves for its target, is there once a lane.  Between the
 * streams:
 *
 *   passes of a lane       -> the target's batch that is fed with them        (lane's event `end` of the drafter)
 *   features, injected     -> a target's batch that writes taps, maybe there  (event `injected`)
 *   a target's batch       -> features out of its taps                        (the host has waited: finish())
 *   a target's batch       -> the next passes of the lane, in its tokens      (the same)
 *
 * The host waits for a lane's `end` of the target, which its own batch's passes come before; never for a stream on which
 * another lane's batch is, but where a call has results at once (logits on the host, bare sequences), or fails.
 */
#include <string.h>

#include "engine/backend_cuda.h"

/* ---- streams and events ------------------------------------------------------------------------------ */

static bool two_streams(const struct cuda_model *m)
{
    return m->n_lanes > 1;
}

int cuda_lanes_new(struct cuda_model *m, struct error *err)
{
    const struct dcu_api *a = m->api;
    if (m->opt.lanes >= CUDA_LANES)
        return ERR(err, INTERNAL, "%u lanes: at most %u", m->opt.lanes, CUDA_LANES - 1);
    m->n_lanes = 1 + m->opt.lanes;
    m->n_later = two_streams(m) ? CUDA_LATERS : 1;
    if (m->target && !two_streams(m))
        m->stream = m->target->stream; /* one behind the other, without waiting */
    else
        CUDA_DO(m, err, "a stream", a->stream_new(&m->stream));
    for (uint32_t i = 0; i < m->n_lanes; i++) {
        if (!m->target && i == 0)
            continue; /* a target's batches of lane 0 are waited for */
        CUDA_DO(m, err, "an event", a->event_new(&m->lanes[i].begin, 1));
        CUDA_DO(m, err, "an event", a->event_new(&m->lanes[i].end, 1));
    }
    for (uint32_t i = 0; i < m->n_later && two_streams(m); i++)
        CUDA_DO(m, err, "an event", a->event_new(&m->later[i].sent, 0));
    if (m->target && two_streams(m))
        CUDA_DO(m, err, "an event", a->event_new(&m->injected, 0));
    return 0;
}

void cuda_lanes_free(struct cuda_model *m)
{
    const struct dcu_api *a = m->api;
    const dcu_event one[] = {m->injected, m->later[0].sent, m->later[1].sent};
    if (m->stream && cuda_owner(m) == m)
        (void)a->stream_free(m->stream);
    for (uint32_t i = 0; i < CUDA_LANES; i++) {
        if (m->lanes[i].begin)
            (void)a->event_free(m->lanes[i].begin);
        if (m->lanes[i].end)
            (void)a->event_free(m->lanes[i].end);
    }
    for (size_t i = 0; i < sizeof(one) / sizeof(*one); i++)
        if (one[i])
            (void)a->event_free(one[i]);
}

struct cuda_model *cuda_owner(struct cuda_model *m)
{
    return m->target && m->target->stream == m->stream ? m->target : m;
}

int cuda_wait(struct cuda_model *m, const char *what, struct error *err)
{
    CUDA_DO(m, err, what, m->api->stream_wait(m->stream));
    cuda_owner(m)->waits++;
    return 0;
}

void cuda_wait_all(struct cuda_model *m)
{
    struct error ignored = {0};
    struct cuda_model *t = m->target ? m->target : m;
    if (t->stream)
        (void)cuda_wait(t, "a batch", &ignored);
    if (m->target && m->stream && m->stream != t->stream)
        (void)cuda_wait(m, "a batch", &ignored);
    if (!m->target && m->drafter && m->drafter->stream != m->stream)
        (void)cuda_wait(m->drafter, "a batch", &ignored);
}

/* ---- what the host writes ---------------------------------------------------------------------------- */

int cuda_lane_use(struct cuda_model *m, uint32_t lane, struct error *err)
{
    if (lane >= m->n_lanes)
        return ERR(err, INTERNAL, "lane %u of %u", lane, m->n_lanes);
    const struct cuda_area *a = &m->p.lanes[lane];
    m->lane = lane;
    m->p.batch = a->batch;
    m->p.draws = a->draws;
    m->p.drawn = a->drawn;
    m->p.picks = a->picks;
    m->s.picks.tokens = a->tokens;
    m->s.picks.grown = a->grown;
    return 0;
}

int cuda_lane_empty(struct cuda_model *m, struct error *err)
{
    struct cuda_lane *l = &m->lanes[m->lane];
    if (!l->any)
        return 0;
    l->any = false;
    return cuda_wait(m, "what nobody took", err);
}

int cuda_later_take(struct cuda_model *m, struct cuda_batch **ret, struct error *err)
{
    struct cuda_model *o = cuda_owner(m);
    m->later_at = (m->later_at + 1) % m->n_later;
    struct cuda_later *l = &m->later[m->later_at];
    if (o->waits < l->free_at && l->sent)
        CUDA_DO(m, err, "earlier work", m->api->event_wait(l->sent));
    else if (o->waits < l->free_at) {
        int r = cuda_wait(m, "earlier work", err);
        if (r < 0)
            return r;
    }
    l->free_at = o->waits + 1;
    *ret = &m->p.later[m->later_at];
    return 0;
}

int cuda_later_sent(struct cuda_model *m, struct error *err)
{
    const struct cuda_later *l = &m->later[m->later_at];
    int r = 0;
    if (l->sent)
        r = dcu_error(m->api, m->api->event_record(l->sent, m->stream), err, "earlier work");
    if (r < 0)
        cuda_wait_all(m);
    return r;
}

/* ---- batches on their way ---------------------------------------------------------------------------- */

int cuda_lane_order(struct cuda_model *m, const struct cuda_rows *c, struct error *err)
{
    const struct cuda_model *d = m->drafter;
    if (!d || d->stream == m->stream)
        return 0;
    if (c->n_fed || c->n_trees)
        CUDA_DO(m, err, "drafts to verify", m->api->event_order(m->stream, d->lanes[m->lane].end));
    if (c->kept && d->any_injected)
        CUDA_DO(m, err, "features", m->api->event_order(m->stream, d->injected));
    return 0;
}

int cuda_lane_begin(struct cuda_model *m, struct error *err)
{
    CUDA_DO(m, err, "a batch's time", m->api->event_record(m->lanes[m->lane].begin, m->stream));
    return 0;
}

int cuda_lane_hold(struct cuda_model *m, const struct fwd_batch *b, const struct cuda_rows *c,
                   struct error *err)
{
    struct cuda_lane *l = &m->lanes[m->lane];
    CUDA_DO(m, err, "a batch's time", m->api->event_record(l->end, m->stream));
    l->any = true;
    l->b = *b;
    l->c = *c;
    l->waits = cuda_owner(m)->waits;
    return 0;
}

/* Lane `lane` of m is there, and so is the time that it took.  On one stream everybody's wait will do. */
static int take(struct cuda_model *m, uint32_t lane, const char *what, uint64_t *ret_ns,
                struct error *err)
{
    float ms = 0;
    int r = cuda_lane_use(m, lane, err);
    if (r < 0)
        return r;
    struct cuda_lane *l = &m->lanes[lane];
    if (!l->any)
        return ERR(err, INTERNAL, "no %s waits", what);
    l->any = false;
    CUDA_DO(m, err, "the device", m->api->device_use(m->opt.device));
    if (two_streams(m))
        CUDA_DO(m, err, what, m->api->event_wait(l->end));
    else if (cuda_owner(m)->waits == l->waits && (r = cuda_wait(m, what, err)) < 0)
        return r;
    CUDA_DO(m, err, "a batch's time", m->api->event_ms(l->begin, l->end, &ms));
    *ret_ns = (uint64_t)((double)ms * 1e6);
    return 0;
}

int cuda_finish(struct backend_model *model, uint32_t lane, uint64_t *ret_ns, struct error *err)
{
    struct cuda_model *m = cuda_of(model);
    int r = take(m, lane, "batch", ret_ns, err);
    if (r < 0) {
        cuda_wait_all(m);
        return r;
    }
    if (m->lanes[lane].c.draws)
        cuda_draws_deliver(m, &m->lanes[lane].b, &m->lanes[lane].c);
    return 0;
}

int cuda_collect(struct backend_model *drafter, uint32_t lane, uint32_t *ret_tokens,
                 struct fwd_node *ret_nodes, uint64_t *ret_ns, struct error *err)
{
    struct cuda_model *m = cuda_of(drafter);
    int r = take(m, lane, "drafts", ret_ns, err);
    if (r < 0) {
        cuda_wait_all(m);
        return r;
    }
    const struct cuda_lane *l = &m->lanes[lane];
    cuda_picks_deliver(m, &l->b, &l->c);
    memcpy(ret_tokens, m->p.picks.tokens, l->c.n_head * sizeof(*ret_tokens));
    if (l->c.n_grown)
        memcpy(ret_nodes, m->p.picks.grown, l->c.n_grown * sizeof(*ret_nodes));
    return 0;
}
