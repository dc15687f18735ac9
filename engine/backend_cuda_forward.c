/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch through a model on the device: one copy in, the kernels of kernels/cuda in the order of
 * backend_cpu_forward.c (launched or replayed, backend_cuda_graph.c), copies of what was asked for, one
 * wait; a drafter's passes that are run at once, one behind another before that wait.  The kernels
 * compute each row from that row alone (cuda_kernels.h), so no division into launches changes bits.
 */
#include <string.h>

#include "engine/backend_cuda.h"
#include "engine/drafter_file.h"

/* ---- products --------------------------------------------------------------------------------------- */

unsigned cuda_form_of(const struct dcu_weight *w)
{
    return dcu_weight_form(w->type, w->layout);
}

int cuda_prepare(struct cuda_model *m, struct dcu_prep p, struct error *err)
{
    p.act = m->s.act;
    CUDA_DO(m, err, "preparing activations", m->api->prepare(m->stream, &p));
    return 0;
}

/* ---- stages of a layer ------------------------------------------------------------------------------ */

/* The rows of a stage and where they lie. */
struct stage {
    uint32_t n;
    float *x, *q;
    const struct dcu_row *rows, *window;
    const uint32_t *tap_index;
};

struct run {
    struct cuda_model *m;
    const struct fwd_batch *b;
    struct cuda_rows c;
    struct stage s; /* where the last layer has left its rows */
    struct error *err;
};

static int qkv(const struct run *f, const struct cuda_layer *l, const struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const struct dcu_weight *w = l->w;
    int r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                                           .x = s->x,
                                           .ldx = t->ld_x,
                                           .w = l->attn_norm,
                                           .eps = m->cfg.rms_eps,
                                           .rows = s->n,
                                           .k = m->cfg.hidden,
                                           .forms = cuda_form_of(&w[CUDA_Q]) |
                                                    cuda_form_of(&w[CUDA_K]) |
                                                    cuda_form_of(&w[CUDA_V])},
                         f->err);
    struct dcu_mm mm[3] = {{.w = w[CUDA_Q], .y = t->q, .ldy = t->ld_q},
                           {.w = w[CUDA_K], .y = t->k, .ldy = t->ld_kv},
                           {.w = w[CUDA_V], .y = t->v, .ldy = t->ld_kv}};
    if (r == 0)
        r = cuda_products(m, mm, 3, s->n, f->err);
    if (r < 0)
        return r;
    struct dcu_qkv p = {.q = t->q,
                        .k = t->k,
                        .v = t->v,
                        .ldq = t->ld_q,
                        .ldk = t->ld_kv,
                        .ldv = t->ld_kv,
                        .q_bias = l->q_bias,
                        .k_bias = l->k_bias,
                        .v_bias = l->v_bias,
                        .q_norm = l->q_norm,
                        .k_norm = l->k_norm,
                        .eps = m->cfg.rms_eps,
                        .n_heads = m->cfg.n_heads,
                        .pairing = m->cfg.rope_pairing,
                        .cs = t->cs,
                        .rows = s->rows,
                        .n_rows = s->n,
                        .kv = l->kv};
    CUDA_DO(m, f->err, "rotation", m->api->qkv_finish(m->stream, &p));
    return 0;
}

/* As many rows at once as the memory for partial results holds. */
static int attend(const struct run *f, const struct cuda_layer *l, const struct stage *s,
                  bool window)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    size_t one = dcu_attention_part_floats(1, m->cfg.n_heads, m->cfg.head_dim, f->c.max_vis);
    uint32_t fit = (uint32_t)(t->part_floats / one);
    for (uint32_t i = 0, n; i < s->n; i += n) {
        n = s->n - i < fit ? s->n - i : fit;
        struct dcu_attn p = {.kv = l->kv,
                             .rows = (window ? s->window : s->rows) + i,
                             .n_rows = n,
                             .max_vis = f->c.max_vis,
                             .words = t->batch.words,
                             .q = s->q + i * t->ld_q,
                             .ldq = t->ld_q,
                             .out = t->att + i * t->ld_q,
                             .ldo = t->ld_q,
                             .n_heads = m->cfg.n_heads,
                             .scale = m->scale,
                             .part = t->part};
        CUDA_DO(m, f->err, "attention", m->api->attention(m->stream, &p));
    }
    return 0;
}

static int output(const struct run *f, const struct cuda_layer *l, const struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    int r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_PLAIN,
                                           .x = t->att,
                                           .ldx = t->ld_q,
                                           .rows = s->n,
                                           .k = m->cfg.n_heads * m->cfg.head_dim,
                                           .forms = cuda_form_of(&l->w[CUDA_O])},
                         f->err);
    struct dcu_mm o = {.w = l->w[CUDA_O], .y = s->x, .ldy = t->ld_x, .flags = DK_MM_ADD};
    return r < 0 ? r : cuda_products(m, &o, 1, s->n, f->err);
}

static int feed_forward(const struct run *f, const struct cuda_layer *l, const struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const struct dcu_weight *w = l->w;
    int r = cuda_prepare(
        m,
        (struct dcu_prep){.src = DCU_SRC_RMSNORM,
                          .x = s->x,
                          .ldx = t->ld_x,
                          .w = l->ffn_norm,
                          .eps = m->cfg.rms_eps,
                          .rows = s->n,
                          .k = m->cfg.hidden,
                          .forms = cuda_form_of(&w[CUDA_GATE]) | cuda_form_of(&w[CUDA_UP])},
        f->err);
    struct dcu_mm mm[2] = {{.w = w[CUDA_GATE], .y = t->g, .ldy = t->ld_f},
                           {.w = w[CUDA_UP], .y = t->u, .ldy = t->ld_f}};
    if (r == 0)
        r = cuda_products(m, mm, 2, s->n, f->err);
    if (r == 0)
        r = cuda_prepare(m,
                         (struct dcu_prep){.src = DCU_SRC_SILU_MUL,
                                           .x = t->g,
                                           .ldx = t->ld_f,
                                           .u = t->u,
                                           .ldu = t->ld_f,
                                           .rows = s->n,
                                           .k = m->cfg.ffn,
                                           .forms = cuda_form_of(&w[CUDA_DOWN])},
                         f->err);
    struct dcu_mm down = {.w = w[CUDA_DOWN], .y = s->x, .ldy = t->ld_x, .flags = DK_MM_ADD};
    return r < 0 ? r : cuda_products(m, &down, 1, s->n, f->err);
}

/* Layers whose taps the buffer holds. */
static uint32_t tap_places(const struct cuda_model *m)
{
    size_t n = m->s.tap_floats / m->cfg.hidden;
    return n < CUDA_TAP_LAYERS ? (uint32_t)n : CUDA_TAP_LAYERS;
}

/* Those of taps first .. end - 1, from pinned memory to whom they belong. */
static void deliver_taps(const struct run *f, uint32_t first, uint32_t end)
{
    const struct cuda_model *m = f->m;
    const size_t hidden = m->cfg.hidden;
    const float *from = m->p.taps;
    for (uint32_t t = first; t < end; t++)
        for (uint32_t i = 0; i < f->c.n_tap; i++, from += hidden)
            memcpy(f->b->rows[m->p.batch.tap_index[i]].taps + t * hidden, from,
                   hidden * sizeof(float));
}

static int copy_taps(const struct run *f, uint32_t n)
{
    struct cuda_model *m = f->m;
    size_t bytes = (size_t)n * f->c.n_tap * m->cfg.hidden * sizeof(float);
    CUDA_DO(m, f->err, "taps", m->api->copy_out(m->stream, m->p.taps, m->s.taps, bytes));
    return 0;
}

/* The first of the taps that are in the buffer when the last layer has run. */
static uint32_t last_taps(const struct run *f)
{
    uint32_t n = f->b->n_taps;
    return n ? (n - 1) / tap_places(f->m) * tap_places(f->m) : 0;
}

/* The t-th taps, to where they stay. */
static int keep_tap(const struct run *f, const struct stage *s, uint32_t t)
{
    struct cuda_model *m = f->m;
    const uint32_t hidden = m->cfg.hidden;
    CUDA_DO(m, f->err, "taps",
            m->api->move(m->stream, m->kept.mem + (size_t)t * hidden, m->kept.width,
                         m->s.batch.tap_kept, s->x, m->s.ld_x, s->tap_index, f->c.n_tap, hidden));
    return 0;
}

/* The taps of a layer; for the host, into the buffer: where it is full and more are to come, the host
 * waits for it. */
static int tap(const struct run *f, const struct stage *s, uint32_t layer)
{
    struct cuda_model *m = f->m;
    const uint32_t hidden = m->cfg.hidden, places = tap_places(m);
    for (uint32_t t = 0; f->c.n_tap && t < f->b->n_taps; t++) {
        if (f->b->tap_layers[t] != layer)
            continue;
        if (f->c.kept) {
            int r = keep_tap(f, s, t);
            if (r < 0)
                return r;
            continue;
        }
        CUDA_DO(m, f->err, "taps",
                m->api->gather(m->stream, m->s.taps + (size_t)(t % places) * f->c.n_tap * hidden,
                               hidden, s->x, m->s.ld_x, s->tap_index, f->c.n_tap, hidden));
        if ((t + 1) % places || t + 1 == f->b->n_taps)
            continue;
        int r = copy_taps(f, places);
        if (r < 0)
            return r;
        r = cuda_wait(m, "taps", f->err);
        if (r < 0)
            return r;
        deliver_taps(f, t + 1 - places, t + 1);
    }
    return 0;
}

/* Nothing reads the last layer's output of rows without logits and taps: they stop at their K/V, and
 * the others move together. */
static int keep_live(const struct run *f, struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    const uint32_t n = f->c.n_live, nq = m->cfg.n_heads * m->cfg.head_dim;
    CUDA_DO(m, f->err, "the live rows",
            m->api->gather(m->stream, t->x2, t->ld_x, s->x, t->ld_x, t->batch.live_index, n,
                           m->cfg.hidden));
    CUDA_DO(m, f->err, "the live rows",
            m->api->gather(m->stream, t->q2, t->ld_q, s->q, t->ld_q, t->batch.live_index, n, nq));
    *s = (struct stage){.n = n,
                        .x = t->x2,
                        .q = t->q2,
                        .rows = t->batch.live,
                        .window = t->batch.window[1],
                        .tap_index = t->batch.tap_live};
    return 0;
}

static int run_layer(const struct run *f, uint32_t layer, struct stage *s)
{
    struct cuda_model *m = f->m;
    const struct cuda_layer *l = &m->layers[layer];
    bool window = f->c.windowed && (m->cfg.drafter->sliding >> layer & 1);
    int r = qkv(f, l, s);
    if (r == 0 && layer + 1 == m->cfg.n_layers && f->c.n_live < s->n) {
        if (f->c.n_live == 0)
            return 0;
        r = keep_live(f, s);
    }
    if (r == 0)
        r = attend(f, l, s, window);
    if (r == 0)
        r = output(f, l, s);
    if (r == 0)
        r = feed_forward(f, l, s);
    return r < 0 ? r : tap(f, s, layer);
}

/* ---- logits ----------------------------------------------------------------------------------------- */

/* Logits of n rows, from the i-th that has any, and what is chosen there. */
static int head(const struct run *f, uint32_t i, uint32_t n)
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

static uint32_t head_rows(const struct run *f, uint32_t i)
{
    uint32_t n = f->c.n_head - i;
    return n < CUDA_LOGIT_ROWS ? n : CUDA_LOGIT_ROWS;
}

/* Where the host wants the i-th row of logits; NULL: nowhere. */
static float *wanted(const struct run *f, uint32_t i)
{
    const struct cuda_batch *h = &f->m->p.batch;
    return f->b->rows[h->live_index[h->head_index[i]]].logits;
}

static void deliver_logits(const struct run *f, uint32_t i, uint32_t n)
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
static int copy_logits(const struct run *f, uint32_t i, uint32_t n)
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
static int fetch(const struct run *f, uint32_t pass)
{
    struct cuda_model *m = f->m;
    const uint32_t taps = f->c.n_tap && !f->c.kept ? f->b->n_taps : 0, first = last_taps(f);
    int r = taps ? copy_taps(f, taps - first) : 0;
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
        deliver_taps(f, first, taps);
    return r;
}

/* The launches of a batch: those that a graph holds. */
static int enqueue_forward(void *arg, struct error *err)
{
    struct run *f = arg;
    struct cuda_model *m = f->m;
    const struct cuda_scratch *t = &m->s;
    f->err = err;
    f->s = (struct stage){.n = f->c.n,
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
        r = run_layer(f, l, &f->s);
    return r == 0 && f->c.n_head ? head(f, 0, head_rows(f, 0)) : r;
}

/* false: a batch that waits for the host between its launches, or has too many taps for a shape. */
static bool shape_of(const struct run *f, struct cuda_shape *ret)
{
    uint32_t n_taps = f->c.n_tap ? f->b->n_taps : 0;
    if (n_taps > (f->c.kept ? CUDA_TAP_LAYERS : tap_places(f->m)))
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
static int send(struct run *f, struct error *err)
{
    struct cuda_model *m = f->m;
    int r = cuda_batch_fill(m, f->b, &f->c, err);
    if (r == 0)
        r = cuda_batch_send(m, &m->p.batch, f->c.n_words, err);
    if (r == 0 && (f->c.draws || f->c.n_fed))
        r = cuda_draws_send(m, f->b, &f->c, err);
    if (r == 0 && f->c.n_fed)
        r = cuda_feeds_take(m, &f->c, err);
    return r == 0 && f->c.picks ? cuda_picks_send(m, f->b, &f->c, err) : r;
}

/* One pass and what comes back of it. */
static int run_pass(struct run *f, const struct cuda_shape *shape, uint32_t pass, struct error *err)
{
    struct cuda_model *m = f->m;
    int r = pass ? cuda_picks_next(m, &f->c, err) : 0;
    if (r == 0)
        r = cuda_graph_run(m, shape, enqueue_forward, f, err);
    f->err = err;
    if (r == 0)
        r = fetch(f, pass);
    return r == 0 && f->c.held ? cuda_picks_keep(m, &f->c, pass, err) : r;
}

/* Passes that nobody waits for: their results come with the target's. */
static int hold(struct run *f, struct error *err)
{
    struct cuda_model *m = f->m;
    int r = cuda_picks_settle(m, f->b, &f->c, err);
    if (r < 0)
        return r;
    CUDA_DO(m, err, "a drafter's time", m->api->event_record(m->passes[1], m->stream));
    m->held = (struct cuda_held){.any = true, .b = *f->b, .c = f->c, .waits = cuda_owner(m)->waits};
    return 0;
}

int cuda_forward(struct backend_model *model, const struct fwd_batch *b, struct error *err)
{
    struct cuda_model *m = cuda_of(model);
    struct run f = {.m = m, .b = b};
    struct cuda_shape shape;
    if (b->n_rows == 0)
        return 0;
    if (b->n_rows > m->opt.max_rows)
        return ERR(err, LIMIT, "a batch of %u rows: at most %u fit", b->n_rows, m->opt.max_rows);
    CUDA_DO(m, err, "the device", m->api->device_use(m->opt.device));
    int r = m->held.any ? cuda_wait(m, "drafts that nobody took", err) : 0;
    m->held.any = false;
    if (r == 0)
        r = send(&f, err);
    if (b->n_rows <= CUDA_GRAPH_ROWS)
        f.c.max_vis = cuda_graph_bucket(f.c.max_vis, m->opt.max_context);
    const struct cuda_shape *same = shape_of(&f, &shape) ? &shape : NULL;
    if (r == 0 && f.c.held)
        r = dcu_error(m->api, m->api->event_record(m->passes[0], m->stream), err,
                      "a drafter's time");
    for (uint32_t pass = 0; pass < f.c.n_passes && r == 0; pass++)
        r = run_pass(&f, same, pass, err);
    if (r == 0 && f.c.held)
        r = hold(&f, err);
    if (r < 0) { /* what was enqueued reads the pinned rows that the next call writes */
        struct error same_cause = {0};
        (void)cuda_wait(m, "a batch", &same_cause);
        return r;
    }
    if (f.c.draws)
        cuda_draws_deliver(m, b, &f.c);
    if (f.c.picks && !f.c.held)
        cuda_picks_deliver(m, b, &f.c);
    return 0;
}

int cuda_collect(struct backend_model *drafter, uint32_t *ret_tokens, uint64_t *ret_ns,
                 struct error *err)
{
    struct cuda_model *m = cuda_of(drafter);
    float ms = 0;
    if (!m->held.any)
        return ERR(err, INTERNAL, "no drafts wait");
    m->held.any = false;
    int r = cuda_owner(m)->waits == m->held.waits ? cuda_wait(m, "a batch", err) : 0;
    if (r < 0)
        return r;
    CUDA_DO(m, err, "a drafter's time", m->api->event_ms(m->passes[0], m->passes[1], &ms));
    cuda_picks_deliver(m, &m->held.b, &m->held.c);
    memcpy(ret_tokens, m->p.picks.tokens, m->held.c.n_head * sizeof(*ret_tokens));
    *ret_ns = (uint64_t)((double)ms * 1e6);
    return 0;
}
