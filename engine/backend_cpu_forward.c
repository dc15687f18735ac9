/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch through the target: a single parallel region, the threads meeting at barriers only
 * where one stage reads what another thread wrote.  Few rows: each thread prepares all activations
 * for itself.  Many rows: the rows are divided, and one more barrier is paid.
 *
 * Every row's numbers depend on that row alone (kernels/kernels.h), so how rows, panels and heads
 * are divided here changes no bits.
 */
#include <string.h>

#include "engine/backend_cpu.h"

enum attention_plan { BY_TILES, BY_HEADS, BY_CHUNKS };

struct fwd {
    struct backend_model *m;
    const struct fwd_batch *b;
    uint32_t n_tiles, n_chunks;
    enum attention_plan attention;
    uint32_t n_head_rows;
};

/* ---- products ------------------------------------------------------------------------------- */

/* Part [*a, *b) of the concatenated panels of a group, in bytes of weights: each thread reads the
 * same amount, whatever types the members have. */
static void group_split(const struct dk_par *par, const struct dk_mm *mms, unsigned n, uint64_t *lo,
                        uint64_t *hi)
{
    uint64_t total = 0;
    for (unsigned i = 0; i < n; i++)
        total += mms[i].w->bytes;
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

static void mm_group(const struct fwd *f, const struct dk_par *par, const struct dk_mm *mms,
                     unsigned n, const struct dk_act *act)
{
    uint64_t lo, hi, start = 0;
    group_split(par, mms, n, &lo, &hi);
    for (unsigned i = 0; i < n; i++) {
        uint32_t a = panel_at(mms[i].w, start, lo), b = panel_at(mms[i].w, start, hi);
        if (a < b)
            f->m->ops->matmul(&mms[i], act, a, b, f->m->thread[par->tid].scratch);
        start += mms[i].w->bytes;
    }
}

/*
 * Brings rows into the forms that the weights read; norm NULL takes them as they are.  rows: which
 * rows of x (NULL: 0..n-1).  Returns the activations that this thread may use.
 */
static const struct dk_act *prepare(const struct fwd *f, const struct dk_par *par, unsigned forms,
                                    const float *x, size_t ldx, uint32_t k, const float *norm,
                                    const uint32_t *rows, uint32_t n)
{
    struct backend_model *m = f->m;
    bool own = n <= CPU_SMALL_ROWS;
    /* All threads fill one memory, each through a header of its own. */
    struct dk_act *act = own ? &m->thread[par->tid].act : &m->thread[par->tid].shared;
    float *h = own ? m->thread[par->tid].h : m->s.h;
    size_t a = 0, b = n;
    if (!own)
        dk_split(par, n, 1, &a, &b);
    act->rows = n;
    act->k = k;
    if (norm) {
        for (size_t r = a; r < b; r++)
            m->ops->rmsnorm(h + r * m->s.ld_x, x + (rows ? rows[r] : r) * ldx, norm, k,
                            m->cfg.rms_eps);
        x = h;
        ldx = m->s.ld_x;
    }
    if (a < b)
        m->ops->act_prepare(act, forms, x, ldx, (uint32_t)a, (uint32_t)b);
    if (!own)
        dk_barrier(par);
    return act;
}

/* ---- stages of a layer ---------------------------------------------------------------------- */

static void embed_rows(const struct fwd *f, const struct dk_par *par)
{
    struct backend_model *m = f->m;
    size_t a, b;
    dk_split(par, f->b->n_rows, 1, &a, &b);
    for (size_t r = a; r < b; r++) {
        const struct fwd_row *row = &f->b->rows[r];
        float *x = m->s.x + r * m->s.ld_x;
        if (!m->embed) {
            dk_weight_row(&m->head, row->token, x);
        } else {
            cpu_file_row(m->embed, row->token, m->cfg.hidden, x);
            if (m->opt.dtype == BACKEND_DTYPE_BF16)
                for (uint32_t i = 0; i < m->cfg.hidden; i++)
                    x[i] = dk_bf16_to_f32(dk_f32_to_bf16(x[i]));
        }
        const uint32_t half = m->cfg.head_dim / 2;
        float *cs = m->s.cs + r * m->cfg.head_dim;
        for (uint32_t i = 0; i < half; i++)
            dk_sincosf((float)row->pos * m->inv_freq[i], &cs[half + i], &cs[i]);
    }
}

static void copy_taps(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    struct backend_model *m = f->m;
    for (uint32_t t = 0; t < f->b->n_taps; t++) {
        if (f->b->tap_layers[t] != layer)
            continue;
        size_t a, b;
        dk_split(par, f->b->n_rows, 1, &a, &b);
        for (size_t r = a; r < b; r++)
            if (f->b->rows[r].taps)
                memcpy(f->b->rows[r].taps + (size_t)t * m->cfg.hidden, m->s.x + r * m->s.ld_x,
                       m->cfg.hidden * sizeof(float));
    }
}

static void norm_heads(const struct dk_ops *ops, float *x, uint32_t n_heads, uint32_t hd,
                       const float *w, float eps)
{
    for (uint32_t h = 0; h < n_heads; h++)
        ops->rmsnorm(x + (size_t)h * hd, x + (size_t)h * hd, w, hd, eps);
}

static void store_kv(const struct fwd *f, const struct cpu_layer *l, uint32_t r)
{
    struct backend_model *m = f->m;
    const struct dk_ops *ops = m->ops;
    const uint32_t hd = m->cfg.head_dim, heads = m->cfg.n_kv_heads;
    float *k = m->s.k + r * m->s.ld_kv, *v = m->s.v + r * m->s.ld_kv;
    if (l->k_bias)
        ops->add(k, l->k_bias, heads * hd);
    if (l->v_bias)
        ops->add(v, l->v_bias, heads * hd);
    if (l->k_norm)
        norm_heads(ops, k, heads, hd, l->k_norm, m->cfg.rms_eps);
    ops->rope(k, heads, hd, m->s.cs + (size_t)r * hd, m->cfg.rope_pairing);
    ops->kv_store(&l->kv, f->b->rows[r].slot, k, v);
}

static void rotate_q(const struct fwd *f, const struct cpu_layer *l, uint32_t r)
{
    struct backend_model *m = f->m;
    const struct dk_ops *ops = m->ops;
    const uint32_t hd = m->cfg.head_dim, heads = m->cfg.n_heads;
    float *q = m->s.q + r * m->s.ld_q;
    if (l->q_bias)
        ops->add(q, l->q_bias, heads * hd);
    if (l->q_norm)
        norm_heads(ops, q, heads, hd, l->q_norm, m->cfg.rms_eps);
    ops->rope(q, heads, hd, m->s.cs + (size_t)r * hd, m->cfg.rope_pairing);
}

/* Biases, norms, rotations, and K/V into the pool. */
static void rotate_and_store(const struct fwd *f, const struct dk_par *par,
                             const struct cpu_layer *l)
{
    uint32_t n = f->b->n_rows;
    size_t a, b;
    if (n < par->n) { /* K/V of a row and its queries are two jobs */
        dk_split(par, 2 * (size_t)n, 1, &a, &b);
        for (size_t i = a; i < b; i++)
            if (i % 2)
                rotate_q(f, l, (uint32_t)i / 2);
            else
                store_kv(f, l, (uint32_t)i / 2);
        return;
    }
    /* Whole KV blocks to one thread where there are many rows. */
    dk_split(par, n, n >= 16 * par->n ? 16 : 1, &a, &b);
    for (size_t r = a; r < b; r++) {
        store_kv(f, l, (uint32_t)r);
        rotate_q(f, l, (uint32_t)r);
    }
}

/* ---- attention ------------------------------------------------------------------------------ */

static void attend(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l,
                   const struct cpu_tile *t, uint32_t h0, uint32_t h1)
{
    struct backend_model *m = f->m;
    m->ops->attention(&l->kv, m->s.paths + t->row0, t->row1 - t->row0, m->s.q + t->row0 * m->s.ld_q,
                      m->s.ld_q, m->s.att + t->row0 * m->s.ld_q, m->s.ld_q, m->cfg.n_heads, h0, h1,
                      m->scale, m->thread[par->tid].scratch);
}

/* Next of `units` jobs that nobody has; each is claimed once.  The relaxed counter orders nothing,
 * the barriers around this stage do. */
static uint32_t claim(const struct fwd *f, uint32_t layer)
{
    return atomic_fetch_add_explicit(&f->m->s.next_unit[layer], 1, memory_order_relaxed);
}

/* Jobs are (tile, KV head), long ones (the last rows of a prompt) first. */
static void attention_by_tiles(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    const struct backend_model *m = f->m;
    const uint32_t kv_heads = m->cfg.n_kv_heads, group = m->cfg.n_heads / kv_heads;
    const uint32_t units = f->n_tiles * kv_heads;
    for (uint32_t u; (u = claim(f, layer)) < units;) {
        u = units - 1 - u;
        uint32_t h = u % kv_heads * group;
        attend(f, par, &m->layers[layer], &m->s.tiles[u / kv_heads], h, h + group);
    }
}

/* Few rows with short paths: divide the query heads. */
static void attention_by_heads(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    const struct backend_model *m = f->m;
    const uint32_t heads = m->cfg.n_heads;
    size_t a, b;
    dk_split(par, (size_t)f->n_tiles * heads, 1, &a, &b);
    while (a < b) {
        uint32_t h0 = (uint32_t)(a % heads);
        uint32_t h1 = b - a < heads - h0 ? h0 + (uint32_t)(b - a) : heads;
        attend(f, par, &m->layers[layer], &m->s.tiles[a / heads], h0, h1);
        a += h1 - h0;
    }
}

/* Few rows with long paths: jobs are (tile, KV head, chunk of the path), merged afterwards. */
static void attention_by_chunks(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    struct backend_model *m = f->m;
    const struct cpu_layer *l = &m->layers[layer];
    const uint32_t heads = m->cfg.n_heads, kv_heads = m->cfg.n_kv_heads, group = heads / kv_heads;
    const uint32_t chunks = f->n_chunks, units = f->n_tiles * kv_heads * chunks;
    size_t a = 0, b = units;
    /* Many jobs: each thread a stretch of them, which reads memory in order.  Few: who is ready. */
    bool stretch = units >= 8 * par->n;
    if (stretch)
        dk_split(par, units, 1, &a, &b);
    for (; a < b; a++) {
        uint32_t u = stretch ? (uint32_t)a : claim(f, layer);
        if (u >= units)
            break;
        const struct cpu_tile *t = &m->s.tiles[u / chunks / kv_heads];
        uint32_t c = u % chunks, h = u / chunks % kv_heads * group;
        if (c * DK_ATTN_CHUNK < t->longest)
            m->ops->attention_part(&l->kv, m->s.paths + t->row0, t->row1 - t->row0,
                                   m->s.q + t->row0 * m->s.ld_q, m->s.ld_q, m->s.part + t->part,
                                   heads, h, h + group, c, c + 1, m->scale,
                                   m->thread[par->tid].scratch);
    }
    dk_barrier(par);
    dk_split(par, (size_t)f->n_tiles * heads, 1, &a, &b);
    for (; a < b; a++) {
        const struct cpu_tile *t = &m->s.tiles[a / heads];
        uint32_t h = (uint32_t)(a % heads);
        m->ops->attention_merge(m->s.paths + t->row0, t->row1 - t->row0, m->s.part + t->part,
                                m->s.att + t->row0 * m->s.ld_q, m->s.ld_q, heads, m->cfg.head_dim,
                                h, h + 1);
    }
}

static void attention(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    switch (f->attention) {
    case BY_TILES:
        attention_by_tiles(f, par, layer);
        break;
    case BY_HEADS:
        attention_by_heads(f, par, layer);
        break;
    case BY_CHUNKS:
        attention_by_chunks(f, par, layer);
        break;
    }
}

/* ---- a layer -------------------------------------------------------------------------------- */

/* Gate, up and SiLU on this thread's own columns. */
static void gate_up(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l,
                    const struct dk_act *act)
{
    struct backend_model *m = f->m;
    void *scratch = m->thread[par->tid].scratch;
    struct dk_mm g = {.w = &l->gate, .y = m->s.g, .ldy = m->s.ld_f};
    struct dk_mm u = {.w = &l->up, .y = m->s.u, .ldy = m->s.ld_f};
    size_t a, b;
    dk_split(par, l->gate.n_panels, 1, &a, &b);
    if (a == b)
        return;
    m->ops->matmul(&g, act, (uint32_t)a, (uint32_t)b, scratch);
    m->ops->matmul(&u, act, (uint32_t)a, (uint32_t)b, scratch);
    size_t c0 = a * 16, c1 = b * 16 < m->cfg.ffn ? b * 16 : m->cfg.ffn;
    for (uint32_t r = 0; r < f->b->n_rows; r++) {
        float *gr = m->s.g + r * m->s.ld_f + c0;
        m->ops->silu_mul(gr, gr, m->s.u + r * m->s.ld_f + c0, (uint32_t)(c1 - c0));
    }
}

static void run_layer(const struct fwd *f, const struct dk_par *par, uint32_t layer)
{
    struct backend_model *m = f->m;
    const struct cpu_layer *l = &m->layers[layer];
    const uint32_t n = f->b->n_rows, nq = m->cfg.n_heads * m->cfg.head_dim;
    const struct dk_act *act;

    act = prepare(f, par, dk_weight_form(&l->q) | dk_weight_form(&l->k) | dk_weight_form(&l->v),
                  m->s.x, m->s.ld_x, m->cfg.hidden, l->attn_norm, NULL, n);
    struct dk_mm qkv[3] = {{.w = &l->q, .y = m->s.q, .ldy = m->s.ld_q},
                           {.w = &l->k, .y = m->s.k, .ldy = m->s.ld_kv},
                           {.w = &l->v, .y = m->s.v, .ldy = m->s.ld_kv}};
    mm_group(f, par, qkv, 3, act);
    dk_barrier(par);
    rotate_and_store(f, par, l);
    dk_barrier(par);
    attention(f, par, layer);
    dk_barrier(par);

    act = prepare(f, par, dk_weight_form(&l->o), m->s.att, m->s.ld_q, nq, NULL, NULL, n);
    struct dk_mm o = {.w = &l->o, .y = m->s.x, .ldy = m->s.ld_x, .flags = DK_MM_ADD};
    mm_group(f, par, &o, 1, act);
    dk_barrier(par);

    act = prepare(f, par, dk_weight_form(&l->gate) | dk_weight_form(&l->up), m->s.x, m->s.ld_x,
                  m->cfg.hidden, l->ffn_norm, NULL, n);
    gate_up(f, par, l, act);
    dk_barrier(par);

    act = prepare(f, par, dk_weight_form(&l->down), m->s.g, m->s.ld_f, m->cfg.ffn, NULL, NULL, n);
    struct dk_mm down = {.w = &l->down, .y = m->s.x, .ldy = m->s.ld_x, .flags = DK_MM_ADD};
    mm_group(f, par, &down, 1, act);
    dk_barrier(par);
    copy_taps(f, par, layer);
}

/* Logits of the rows that want them.  Runs of rows whose results lie at a constant stride make one
 * product, so callers do well to keep them in one array. */
static void run_head(const struct fwd *f, const struct dk_par *par)
{
    struct backend_model *m = f->m;
    const struct fwd_row *rows = f->b->rows;
    const uint32_t *idx = m->s.head_rows;
    for (uint32_t i = 0, j; i < f->n_head_rows; i = j) {
        float *first = rows[idx[i]].logits;
        ptrdiff_t ld = m->cfg.vocab_size;
        if (i + 1 < f->n_head_rows)
            ld = rows[idx[i + 1]].logits - first;
        if (ld < (ptrdiff_t)m->cfg.vocab_size)
            ld = m->cfg.vocab_size;
        for (j = i + 1; j < f->n_head_rows; j++)
            if (rows[idx[j]].logits != first + (ptrdiff_t)(j - i) * ld)
                break;
        const struct dk_act *act = prepare(f, par, dk_weight_form(&m->head), m->s.x, m->s.ld_x,
                                           m->cfg.hidden, m->final_norm, idx + i, j - i);
        struct dk_mm mm = {.w = &m->head, .y = first, .ldy = (size_t)ld};
        mm_group(f, par, &mm, 1, act);
        if (j < f->n_head_rows)
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

/* ---- the call ------------------------------------------------------------------------------- */

/* Rows that stand together and look through the same block table belong to one sequence. */
static void make_tiles(struct fwd *f)
{
    struct backend_model *m = f->m;
    uint32_t n = 0;
    for (uint32_t r = 0; r < f->b->n_rows; r++) {
        const struct dk_attn_row *path = &m->s.paths[r];
        struct cpu_tile *t = &m->s.tiles[n ? n - 1 : 0];
        if (n == 0 || t->row1 - t->row0 == CPU_ATTN_TILE ||
            path->blocks != m->s.paths[t->row0].blocks) {
            t = &m->s.tiles[n++];
            *t = (struct cpu_tile){.row0 = r};
        }
        t->row1 = r + 1;
        if (path->n_vis > t->longest)
            t->longest = path->n_vis;
    }
    f->n_tiles = n;
}

static void plan_attention(struct fwd *f)
{
    struct backend_model *m = f->m;
    uint32_t units = f->n_tiles * m->cfg.n_kv_heads, longest = 0;
    size_t part = 0;
    for (uint32_t i = 0; i < f->n_tiles; i++)
        if (m->s.tiles[i].longest > longest)
            longest = m->s.tiles[i].longest;
    f->n_chunks = (longest + DK_ATTN_CHUNK - 1) / DK_ATTN_CHUNK;
    if (units >= 4 * m->n_threads || (units % m->n_threads == 0 && f->n_tiles == 1))
        f->attention = BY_TILES;
    else if (f->b->n_rows <= m->s.part_rows && f->n_chunks > 1)
        f->attention = BY_CHUNKS;
    else
        f->attention = BY_HEADS;
    for (uint32_t i = 0; f->attention == BY_CHUNKS && i < f->n_tiles; i++) {
        struct cpu_tile *t = &m->s.tiles[i];
        t->part = part;
        part += (size_t)f->n_chunks * (t->row1 - t->row0) * m->cfg.n_heads *
                DK_ATTN_PART(m->cfg.head_dim);
    }
}

int cpu_forward(struct backend_model *m, const struct fwd_batch *b, struct error *err)
{
    if (b->n_rows == 0)
        return 0;
    if (b->n_rows > m->opt.max_rows)
        return ERR(err, LIMIT, "a batch of %u rows: at most %u fit", b->n_rows, m->opt.max_rows);
    struct fwd f = {.m = m, .b = b};
    for (uint32_t r = 0; r < b->n_rows; r++) {
        m->s.paths[r] = b->rows[r].path;
        if (b->rows[r].logits)
            m->s.head_rows[f.n_head_rows++] = r;
    }
    for (uint32_t l = 0; l < m->cfg.n_layers; l++)
        atomic_store_explicit(&m->s.next_unit[l], 0, memory_order_relaxed);
    make_tiles(&f);
    plan_attention(&f);
    dk_pool_run(m->pool, forward_region, &f);
    return 0;
}
