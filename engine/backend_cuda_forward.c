/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch through a model on the device: one copy in, the kernels of kernels/cuda in the order of
 * backend_cpu_forward.c (launched or replayed, backend_cuda_graph.c), copies of what was asked for, one
 * wait; a drafter's passes that are run at once, one behind another before that wait.
 */
#include <string.h>

#include "engine/backend_cuda_layer.h"

/* ---- logits ----------------------------------------------------------------------------------------- */

/* Logits of n rows, from the i-th that has any, and what is chosen there. */
static int head(const struct cuda_run *f, uint32_t i, uint32_t n)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    int r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                                           .x = f->s.x,
                                           .ldx = t->ld_x,
                                           .index = t->batch.head_index + i,
                                           .w = m->final_norm,
                                           .eps = m->cfg.rms_eps,
                                           .rows = n,
                                           .k = m->cfg.hidden,
                                           .forms = cuda_form_of(&m->head)},
                         f->err);
    struct dcu_mm mm = {.w = m->head, .y = t->logits, .ldy = m->head.n};
    if (r == 0)
        r = cuda_products(m, &mm, 1, n, f->err);
    if (r == 0 && f->c.draws)
        r = cuda_draws_sample(m, &f->c, i, n, f->err);
    if (r == 0 && f->c.walks && i + n == f->c.n_head)
        r = cuda_draws_walk(m, &f->c, f->err);
    return r == 0 && f->c.picks ? cuda_picks_choose(m, i, n, f->err) : r;
}

static uint32_t head_rows(const struct cuda_run *f, uint32_t i)
{
    uint32_t n = f->c.n_head - i;
    return n < CUDA_LOGIT_ROWS ? n : CUDA_LOGIT_ROWS;
}

/* Where the host wants the i-th row of logits; NULL: nowhere. */
static float *wanted(const struct cuda_run *f, uint32_t i)
{
    const struct cuda_batch *h = &f->m->p.batch;
    return f->b->rows[h->live_index[h->head_index[i]]].logits;
}

static void deliver_logits(const struct cuda_run *f, uint32_t i, uint32_t n)
{
    const struct cuda_model *m = f->m;
    const size_t vocab = m->head.n;
    for (uint32_t j = 0; j < n; j++) {
        float *to = wanted(f, i + j);
        if (to)
            memcpy(to, m->p.logits + j * vocab, vocab * sizeof(float));
    }
}

/* Logits that the host wants, rows next to each other in one copy. */
static int copy_logits(const struct cuda_run *f, uint32_t i, uint32_t n)
{
    struct cuda_model *m = f->m;
    const size_t vocab = m->head.n;
    for (uint32_t j = 0, k; j < n && f->c.n_logits; j = k + 1) {
        for (k = j; k < n && wanted(f, i + k); k++)
            ;
        if (k == j)
            continue;
        CUDA_DO(m, f->err, "logits",
                m->api->copy_out(m->stream, m->p.logits + j * vocab, m->s.logits + j * vocab,
                                 (k - j) * vocab * sizeof(float)));
    }
    return 0;
}

/*
 * What was asked for, to the host: one wait, and where logits come, one for each piece of them, since the next
 * piece takes their place.  Behind a pass that others follow, none.
 */
static int fetch(const struct cuda_run *f, uint32_t pass)
{
    struct cuda_model *m = f->m;
    const uint32_t taps = f->c.n_tap && !f->c.kept ? f->b->n_taps : 0, first = cuda_taps_last(f);
    int r = taps ? cuda_taps_copy(f, taps - first) : 0;
    uint32_t i = 0, n = head_rows(f, 0);
    while (r == 0) {
        const bool end = i + n == f->c.n_head;
        r = copy_logits(f, i, n);
        if (r == 0 && f->c.draws)
            r = cuda_draws_fetch(m, &f->c, i, n, f->err);
        if (r == 0 && f->c.walks && end)
            r = cuda_draws_fetch_paths(m, &f->c, f->err);
        if (r == 0 && f->c.picks)
            r = cuda_picks_fetch(m, pass, i, n, f->err);
        /* Without logits and taps, too: the pinned rows are written again by the next call. */
        if (r == 0 && !f->c.held && (f->c.n_logits || (end && pass + 1 == f->c.n_passes))) {
            r = cuda_wait(m, "a batch", f->err);
            if (r == 0)
                deliver_logits(f, i, n);
        }
        if (r < 0 || end)
            break;
        i += n;
        n = head_rows(f, i);
        r = head(f, i, n);
    }
    if (r == 0 && taps)
        cuda_taps_deliver(f, first, taps);
    return r;
}

/* The launches of a batch: those that a graph holds. */
static int enqueue_forward(void *arg, struct error *err)
{
    struct cuda_run *f = arg;
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    f->err = err;
    f->s = (struct cuda_stage){.n = f->c.n,
                               .x = t->x,
                               .q = t->q,
                               .rows = t->batch.rows,
                               .window = t->batch.window[0],
                               .tap_index = t->batch.tap_index};
    CUDA_DO(m, err, "the embedding",
            m->api->embed(m->stream, &m->embed, t->batch.rows, f->c.n, t->x, t->ld_x));
    CUDA_DO(m, err, "rotation",
            m->api->angles(m->stream, m->inv_freq, m->cfg.head_dim, t->batch.rows, f->c.n, t->cs));
    int r = 0;
    for (uint32_t l = 0; r == 0 && l < m->cfg.n_layers; l++)
        r = cuda_layer_run(f, l, &f->s);
    return r == 0 && f->c.n_head ? head(f, 0, head_rows(f, 0)) : r;
}

/* false: a batch that waits for the host between its launches, or has too many taps for a shape. */
static bool shape_of(const struct cuda_run *f, struct cuda_shape *ret)
{
    uint32_t n_taps = f->c.n_tap ? f->b->n_taps : 0;
    if (n_taps > (f->c.kept ? CUDA_TAP_LAYERS : cuda_tap_places(f->m)))
        return false;
    *ret = (struct cuda_shape){.kind = CUDA_FORWARD,
                               .rows = f->c.n,
                               .live = f->c.n_live,
                               .head = f->c.n_head,
                               .tapped = f->c.n_tap,
                               .windowed = f->c.windowed,
                               .max_vis = f->c.max_vis,
                               .kept = f->c.kept,
                               .draws = f->c.draws,
                               .walks = f->c.walks,
                               .picks = f->c.picks,
                               .n_taps = n_taps};
    for (uint32_t t = 0; t < n_taps; t++)
        ret->tap_layers[t] = f->b->tap_layers[t];
    return true;
}

/* Rows and wishes of a batch, into the device's arrays. */
static int send(struct cuda_run *f, struct error *err)
{
    struct cuda_model *m = f->m;
    int r = cuda_batch_fill(m, f->b, &f->c, err);
    if (r == 0 && f->b->later && (f->c.n_logits || (f->c.n_tap && !f->c.kept)))
        return ERR(err, INTERNAL, "results that wait are choices");
    if (r == 0)
        r = cuda_batch_send(m, &m->p.batch, f->c.n_words, err);
    if (r == 0 && (f->c.draws || f->c.n_fed || f->c.n_trees))
        r = cuda_draws_send(m, f->b, &f->c, err);
    if (r == 0 && !m->target)
        r = cuda_lane_order(m, &f->c, err);
    if (r == 0 && f->c.held)
        r = cuda_lane_begin(m, err);
    if (r == 0)
        r = cuda_feeds_take(m, &f->c, err);
    return r == 0 && f->c.picks ? cuda_picks_send(m, f->b, &f->c, err) : r;
}

/* One pass and what comes back of it. */
static int run_pass(struct cuda_run *f, const struct cuda_shape *shape, uint32_t pass,
                    struct error *err)
{
    struct cuda_model *m = f->m;
    int r = pass ? cuda_picks_next(m, &f->c, err) : 0;
    if (r == 0)
        r = cuda_graph_run(m, shape, enqueue_forward, f, err);
    f->err = err;
    if (r == 0)
        r = fetch(f, pass);
    return r == 0 && f->b->spans ? cuda_feeds_keep(m, &f->c, pass, err) : r;
}

int cuda_forward(struct backend_model *model, const struct fwd_batch *b, struct error *err)
{
    struct cuda_model *m = cuda_of(model);
    struct cuda_run f = {.m = m, .b = b};
    struct cuda_shape shape;
    if (b->n_rows == 0)
        return 0;
    if (b->n_rows > m->opt.max_rows)
        return ERR(err, LIMIT, "a batch of %u rows: at most %u fit", b->n_rows, m->opt.max_rows);
    CUDA_DO(m, err, "the device", m->api->device_use(m->opt.device));
    int r = cuda_lane_use(m, b->lane, err);
    if (r == 0 && b->later && (m->target || !m->lanes[b->lane].end))
        return ERR(err, INTERNAL, "a batch that is waited for later has a lane");
    if (r == 0)
        r = cuda_lane_empty(m, err);
    if (r == 0)
        r = send(&f, err);
    if (b->n_rows <= CUDA_GRAPH_ROWS)
        f.c.max_vis = cuda_graph_bucket(f.c.max_vis, m->opt.max_context);
    const struct cuda_shape *same = shape_of(&f, &shape) ? &shape : NULL;
    for (uint32_t pass = 0; pass < f.c.n_passes && r == 0; pass++)
        r = run_pass(&f, same, pass, err);
    if (r == 0 && b->spans)
        r = cuda_feeds_settle(m, b, &f.c, err);
    if (r == 0 && f.c.held)
        r = cuda_lane_hold(m, b, &f.c, err);
    if (r < 0) { /* what was enqueued reads the pinned rows that the next call writes */
        cuda_wait_all(m);
        return r;
    }
    if (f.c.draws && !f.c.held)
        cuda_draws_deliver(m, b, &f.c);
    if (f.c.picks && !f.c.held)
        cuda_picks_deliver(m, b, &f.c);
    return 0;
}
