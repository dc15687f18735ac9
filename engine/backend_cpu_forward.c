/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch through the target: a single parallel region, the threads meeting at barriers only
 * where one stage reads what another thread wrote.  Threads divide the columns of a product.  Few rows:
 * each prepares all activations for itself.  More: they prepare a part each, and one more barrier is
 * paid.  Many (cpu_by_rows): threads divide the rows instead, of everything but attention.
 *
 * Every row's numbers depend on that row alone (kernels/kernels.h), so how rows, panels and heads
 * are divided here changes no bits.
 */
#include <string.h>

#include "engine/backend_cpu_run.h"
#include "engine/drafter_file.h"

/* ---- products ------------------------------------------------------------------------------- */

/* Part [*a, *b) of the concatenated panels of a group, in bytes of weights: each thread reads the
 * same amount, whatever types the members have. */
static void group_split(const struct dk_par *par, uint64_t total, uint64_t *lo, uint64_t *hi)
{
    *lo = total * par->tid / par->n;
    *hi = total * (par->tid + 1) / par->n;
}

/* First panel of w at or after byte `at` of the group, w starting at byte `start`. */
static uint32_t panel_at(const struct dk_weight *w, uint64_t start, uint64_t at)
{
    uint64_t panel = w->bytes / w->n_panels;
    if (at <= start)
        return 0;
    uint64_t p = (at - start + panel - 1) / panel;
    return p < w->n_panels ? (uint32_t)p : w->n_panels;
}

static const void *panel_data(const struct dk_weight *w, uint32_t panel)
{
    return (const char *)w->data + panel * (w->bytes / w->n_panels);
}

/*
 * What a thread reads in a stage to come.  Memory would rest while threads meet and prepare
 * activations: so a product fetches the beginning of the next one's weights when its own end, and who
 * waits for the others goes on from there.
 */
struct part {
    const char *at; /* NULL: nothing is known */
    size_t bytes;
    size_t fetched; /* by the product before */
};
#define WAIT_FETCH (24u << 10)

/* Only products of block types fetch. */
static size_t fetched_of(const struct dk_weight *w)
{
    return dk_type_info(w->type)->quantised ? DK_FETCHED : 0;
}

/* Where threads divide rows, all read all weights. */
static struct part part_of(const struct dk_par *par, bool by_rows, const struct dk_weight *const *w,
                           unsigned n)
{
    if (by_rows)
        return (struct part){w[0]->data, w[0]->bytes, fetched_of(w[0])};
    uint64_t lo, hi, total = 0, start = 0;
    for (unsigned i = 0; i < n; i++)
        total += w[i]->bytes;
    group_split(par, total, &lo, &hi);
    for (unsigned i = 0; i < n; i++) {
        uint32_t a = panel_at(w[i], start, lo), b = panel_at(w[i], start, hi);
        if (a < b)
            return (struct part){panel_data(w[i], a), hi - lo, fetched_of(w[i])};
        start += w[i]->bytes;
    }
    return (struct part){NULL, 0, 0};
}
static struct part part_of_one(const struct dk_par *par, bool by_rows, const struct dk_weight *w)
{
    return part_of(par, by_rows, &w, 1);
}

static void meet(const struct dk_par *par, struct part next)
{
    size_t n = next.bytes > next.fetched ? next.bytes - next.fetched : 0;
    if (next.at)
        dk_barrier_fetch(par, next.at + next.fetched, n < WAIT_FETCH ? n : WAIT_FETCH);
    else
        dk_barrier(par);
}

void cpu_mm_group(const struct fwd *f, const struct dk_par *par, struct dk_mm *mms, unsigned n,
                  const struct dk_act *act, const void *next)
{
    const struct cpu_thread *t = &f->m->thread[par->tid];
    uint64_t lo = 0, hi, total = 0, start;
    for (unsigned i = 0; i < n; i++)
        total += mms[i].w->bytes;
    hi = total;
    if (act != &t->rows)
        group_split(par, total, &lo, &hi);
    for (unsigned i = 0; i < n && act == &t->rows; i++)
        mms[i].y += t->row0 * mms[i].ldy;
    /* From the last on: each fetches where the thread's part of the one behind it begins. */
    start = total;
    for (unsigned i = n; i-- > 0;) {
        start -= mms[i].w->bytes;
        uint32_t a = panel_at(mms[i].w, start, lo), b = panel_at(mms[i].w, start, hi);
        mms[i].next = next;
        if (a < b)
            next = panel_data(mms[i].w, a);
    }
    for (unsigned i = 0; i < n; i++) {
        uint32_t a = panel_at(mms[i].w, start, lo), b = panel_at(mms[i].w, start, hi);
        if (a < b)
            f->m->ops->matmul(&mms[i], act, a, b, t->scratch);
        start += mms[i].w->bytes;
    }
}

/*
 * Brings rows into the forms that the weights read; norm NULL takes them as they are.  rows: which
 * rows of x (NULL: 0..n-1).  Returns the activations that this thread may use.
 */
const struct dk_act *cpu_prepare(const struct fwd *f, const struct dk_par *par, unsigned forms,
                                 const float *x, size_t ldx, uint32_t k, const float *norm,
                                 const uint32_t *rows, uint32_t n)
{
    struct backend_model *m = f->m;
    struct cpu_thread *t = &m->thread[par->tid];
    const bool own = n <= CPU_SMALL_ROWS, by_rows = cpu_by_rows(m, n);
    /* All threads fill one memory, each through a header of its own. */
    struct dk_act *act = own ? &t->act : by_rows ? &t->rows : &t->shared;
    float *h = own ? t->h : m->s.h;
    size_t a = 0, b = n;
    if (!own)
        cpu_split_rows(m, par, n, &a, &b);
    t->row0 = a;
    act->rows = by_rows ? (uint32_t)(b - a) : n;
    act->k = k;
    if (norm) {
        for (size_t r = a; r < b; r++)
            m->ops->rmsnorm(h + r * m->s.ld_x, x + (rows ? rows[r] : r) * ldx, norm, k,
                            m->cfg.rms_eps);
        x = h;
        ldx = m->s.ld_x;
    }
    if (by_rows)
        m->ops->act_prepare(act, forms, x + a * ldx, ldx, 0, act->rows);
    else if (a < b)
        m->ops->act_prepare(act, forms, x, ldx, (uint32_t)a, (uint32_t)b);
    if (!own && !by_rows)
        dk_barrier(par);
    return act;
}

/* ---- stages of a layer ---------------------------------------------------------------------- */

void cpu_angles(const struct backend_model *m, uint32_t pos, float *cs)
{
    const uint32_t half = m->cfg.head_dim / 2;
    for (uint32_t i = 0; i < half; i++)
        dk_sincosf((float)pos * m->inv_freq[i], &cs[half + i], &cs[i]);
}

static void embed_row(const struct backend_model *m, uint32_t token, float *x)
{
    if (!m->embed) {
        dk_weight_row(&m->head, token, x);
        return;
    }
    cpu_file_row(m->embed, token, m->cfg.hidden, x);
    if (m->opt.dtype == BACKEND_DTYPE_BF16)
        for (uint32_t i = 0; i < m->cfg.hidden; i++)
            x[i] = dk_bf16_to_f32(dk_f32_to_bf16(x[i]));
}

static void embed_rows(const struct fwd *f, const struct dk_par *par)
{
    struct backend_model *m = f->m;
    size_t a, b;
    dk_split(par, f->b->n_rows, 1, &a, &b);
    for (size_t r = a; r < b; r++) {
        const struct fwd_row *row = &f->b->rows[r];
        float *x = m->s.x + r * m->s.ld_x;
        embed_row(m->target && !m->embed ? m->target : m, row->token, x);
        cpu_angles(m, row->pos, m->s.cs + r * m->cfg.head_dim);
    }
}

static void copy_taps(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                      uint32_t layer)
{
    const struct backend_model *m = f->m;
    for (uint32_t t = 0; t < f->b->n_taps; t++) {
        if (f->b->tap_layers[t] != layer)
            continue;
        size_t a, b;
        cpu_split_rows(m, par, rows->n, &a, &b);
        for (size_t r = a; r < b; r++) {
            float *taps = f->b->rows[rows->index ? rows->index[r] : r].taps;
            if (taps)
                memcpy(taps + (size_t)t * m->cfg.hidden, m->s.x + r * m->s.ld_x,
                       m->cfg.hidden * sizeof(float));
        }
    }
}

static struct part part_of_gate(const struct dk_par *par, bool by_rows, const struct cpu_layer *l)
{
    size_t a, b;
    if (by_rows)
        return part_of_one(par, true, &l->gate);
    dk_split(par, l->gate.n_panels, 1, &a, &b);
    if (a == b)
        return (struct part){NULL, 0, 0};
    return (struct part){panel_data(&l->gate, (uint32_t)a),
                         (b - a) * (l->gate.bytes / l->gate.n_panels), fetched_of(&l->gate)};
}

/*
 * Gate, up and SiLU on this thread's own columns.  Of many rows a few columns at a time, so that what
 * SiLU reads is still in the second-level cache.
 */
#define FFN_GROUP      8u /* panels */
#define FFN_WHOLE_ROWS 32u
static void gate_up(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l,
                    const struct dk_act *act, struct part next)
{
    struct backend_model *m = f->m;
    const struct cpu_thread *t = &m->thread[par->tid];
    const size_t row0 = act == &t->rows ? t->row0 : 0;
    struct dk_mm g = {.w = &l->gate, .y = m->s.g + row0 * m->s.ld_f, .ldy = m->s.ld_f};
    struct dk_mm u = {.w = &l->up, .y = m->s.u + row0 * m->s.ld_f, .ldy = m->s.ld_f};
    size_t a = 0, b, end = l->gate.n_panels;
    if (act != &t->rows)
        dk_split(par, l->gate.n_panels, 1, &a, &end);
    for (; a < end; a = b) {
        b = act->rows <= FFN_WHOLE_ROWS || end - a < 2 * FFN_GROUP ? end : a + FFN_GROUP;
        g.next = panel_data(&l->up, (uint32_t)a);
        u.next = b < end ? panel_data(&l->gate, (uint32_t)b) : next.at;
        m->ops->matmul(&g, act, (uint32_t)a, (uint32_t)b, t->scratch);
        m->ops->matmul(&u, act, (uint32_t)a, (uint32_t)b, t->scratch);
        size_t c0 = a * 16, c1 = b * 16 < m->cfg.ffn ? b * 16 : m->cfg.ffn;
        for (uint32_t r = 0; r < act->rows; r++) {
            float *gr = g.y + r * m->s.ld_f + c0;
            m->ops->silu_mul(gr, gr, u.y + r * m->s.ld_f + c0, (uint32_t)(c1 - c0));
        }
    }
}

/* Nothing reads the last layer's output of rows without logits and taps: they stop at their K/V, and
 * the others move together. */
static void keep_live(const struct fwd *f, const struct dk_par *par)
{
    const struct cpu_scratch *s = &f->m->s;
    const struct cpu_rows *live = &f->live;
    for (uint32_t i = 0; par->tid == 0 && i < live->n; i++) {
        if (live->index[i] == i)
            continue;
        memcpy(s->x + i * s->ld_x, s->x + live->index[i] * s->ld_x, s->ld_x * sizeof(float));
        memcpy(s->q + i * s->ld_q, s->q + live->index[i] * s->ld_q, s->ld_q * sizeof(float));
    }
    dk_barrier(par);
}

/* Behind a layer: the next one's first matrices, or the head. */
static struct part part_after(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    const struct backend_model *m = f->m;
    const struct cpu_layer *l = &m->layers[layer + 1];
    if (layer + 1 < m->cfg.n_layers)
        return part_of(par, cpu_by_rows(m, f->all.n),
                       (const struct dk_weight *const[]){&l->q, &l->k, &l->v}, 3);
    return f->n_head ? part_of_one(par, cpu_by_rows(m, f->n_head), &m->head)
                     : (struct part){NULL, 0, 0};
}

static void run_layer(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    struct backend_model *m = f->m;
    bool window = f->windowed && (m->cfg.drafter->sliding >> layer & 1);
    const struct cpu_rows *rows = window ? &f->window[0] : &f->all;
    const struct cpu_layer *l = &m->layers[layer];
    const uint32_t nq = m->cfg.n_heads * m->cfg.head_dim;
    uint32_t n = rows->n;
    bool by_rows = cpu_by_rows(m, n);
    const struct dk_act *act;

    cpu_fetch_slot(f, par, l);
    act = cpu_prepare(f, par, dk_weight_form(&l->q) | dk_weight_form(&l->k) | dk_weight_form(&l->v),
                      m->s.x, m->s.ld_x, m->cfg.hidden, l->attn_norm, NULL, n);
    struct dk_mm qkv[3] = {{.w = &l->q, .y = m->s.q, .ldy = m->s.ld_q},
                           {.w = &l->k, .y = m->s.k, .ldy = m->s.ld_kv},
                           {.w = &l->v, .y = m->s.v, .ldy = m->s.ld_kv}};
    struct part next = part_of_one(par, by_rows, &l->o);
    cpu_mm_group(f, par, qkv, 3, act, next.at);
    if (!by_rows)
        dk_barrier(par);
    cpu_rotate_and_store(f, par, l);
    cpu_fetch_path(f, par, rows, l);
    dk_barrier(par);
    if (layer + 1 == m->cfg.n_layers && f->live.n < n) {
        rows = window ? &f->window[1] : &f->live;
        n = rows->n;
        by_rows = cpu_by_rows(m, n);
        if (n == 0)
            return;
        keep_live(f, par);
    }
    cpu_attention(f, par, rows, layer);
    meet(par, next);

    act = cpu_prepare(f, par, dk_weight_form(&l->o), m->s.att, m->s.ld_q, nq, NULL, NULL, n);
    struct dk_mm o = {.w = &l->o, .y = m->s.x, .ldy = m->s.ld_x, .flags = DK_MM_ADD};
    next = part_of_gate(par, by_rows, l);
    cpu_mm_group(f, par, &o, 1, act, next.at);
    if (!by_rows)
        meet(par, next);

    act = cpu_prepare(f, par, dk_weight_form(&l->gate) | dk_weight_form(&l->up), m->s.x, m->s.ld_x,
                      m->cfg.hidden, l->ffn_norm, NULL, n);
    next = part_of_one(par, by_rows, &l->down);
    gate_up(f, par, l, act, next);
    if (!by_rows)
        meet(par, next);

    act =
        cpu_prepare(f, par, dk_weight_form(&l->down), m->s.g, m->s.ld_f, m->cfg.ffn, NULL, NULL, n);
    struct dk_mm down = {.w = &l->down, .y = m->s.x, .ldy = m->s.ld_x, .flags = DK_MM_ADD};
    next = part_after(f, par, layer);
    cpu_mm_group(f, par, &down, 1, act, next.at);
    if (!by_rows || layer + 1 == m->cfg.n_layers)
        meet(par, next);
    copy_taps(f, par, rows, layer);
}

/* Logits of the rows that want them.  Runs of rows whose results lie at a constant stride make one
 * product, so callers do well to keep them in one array. */
static void run_head(const struct fwd *f, const struct dk_par *par)
{
    struct backend_model *m = f->m;
    float *const *out = m->s.head_out;
    for (uint32_t i = 0, j; i < f->n_head; i = j) {
        ptrdiff_t ld = m->head.n;
        if (i + 1 < f->n_head && out[i + 1] - out[i] > ld)
            ld = out[i + 1] - out[i];
        for (j = i + 1; j < f->n_head; j++)
            if (out[j] - out[j - 1] != ld)
                break;
        const struct dk_act *act =
            cpu_prepare(f, par, dk_weight_form(&m->head), m->s.x, m->s.ld_x, m->cfg.hidden,
                        m->final_norm, m->s.head_rows + i, j - i);
        struct dk_mm mm = {.w = &m->head, .y = out[i], .ldy = (size_t)ld};
        cpu_mm_group(f, par, &mm, 1, act, NULL);
        if (j < f->n_head)
            dk_barrier(par); /* before the activations are prepared anew */
    }
}

static void forward_region(void *arg, const struct dk_par *par)
{
    const struct fwd *f = arg;
    embed_rows(f, par);
    dk_barrier(par);
    for (uint32_t l = 0; l < f->m->cfg.n_layers; l++)
        run_layer(f, par, l);
    run_head(f, par);
}

int cpu_forward(struct backend_model *m, const struct fwd_batch *b, struct error *err)
{
    if (b->n_rows == 0)
        return 0;
    if (b->n_rows > m->opt.max_rows)
        return ERR(err, LIMIT, "a batch of %u rows: at most %u fit", b->n_rows, m->opt.max_rows);
    struct fwd f = {.m = m, .b = b};
    struct cpu_scratch *s = &m->s;
    f.all = (struct cpu_rows){.n = b->n_rows, .paths = s->paths[0], .tiles = s->tiles[0]};
    f.live = (struct cpu_rows){.index = s->live_rows, .paths = s->paths[1], .tiles = s->tiles[1]};
    f.windowed = b->window_paths != NULL;
    for (int i = 0; i < 2 && f.windowed; i++)
        f.window[i] = (struct cpu_rows){
            .index = i ? s->live_rows : NULL, .paths = s->paths[2 + i], .tiles = s->tiles[2 + i]};
    bool last_tapped = b->n_taps && b->tap_layers[b->n_taps - 1] + 1 == m->cfg.n_layers;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const struct fwd_row *row = &b->rows[r];
        s->paths[0][r] = row->path;
        if (f.windowed)
            s->paths[2][r] = b->window_paths[r];
        if (!row->logits && !(row->taps && last_tapped))
            continue;
        if (row->logits) {
            s->head_rows[f.n_head] = f.live.n;
            s->head_out[f.n_head++] = row->logits;
        }
        if (f.windowed)
            s->paths[3][f.live.n] = b->window_paths[r];
        s->live_rows[f.live.n] = r;
        s->paths[1][f.live.n++] = row->path;
    }
    for (uint32_t l = 0; l < m->cfg.n_layers; l++)
        atomic_store_explicit(&s->next_unit[l], 0, memory_order_relaxed);
    cpu_plan_attention(m, &f.all);
    cpu_plan_attention(m, &f.live);
    for (int i = 0; i < 2 && f.windowed; i++) {
        f.window[i].n = i ? f.live.n : b->n_rows;
        cpu_plan_attention(m, &f.window[i]);
    }
    dk_pool_run(m->pool, forward_region, &f);
    return 0;
}
