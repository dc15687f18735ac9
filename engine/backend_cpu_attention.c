/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a layer between its products: rotation, K/V into the pool, attention, and how the
 * threads divide it.  No division changes bits: kernels/kernels.h fixes each row's order.
 */
#include "engine/backend_cpu_run.h"

static void norm_heads(const struct dk_ops *ops, float *x, uint32_t n_heads, uint32_t hd,
                       const float *w, float eps)
{
    for (uint32_t h = 0; h < n_heads; h++)
        ops->rmsnorm(x + (size_t)h * hd, x + (size_t)h * hd, w, hd, eps);
}

void cpu_store_kv(struct backend_model *m, const struct cpu_layer *l, uint32_t r, uint32_t slot)
{
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
    ops->kv_store(&l->kv, slot, k, v);
}

static void store_kv(const struct fwd *f, const struct cpu_layer *l, uint32_t r)
{
    cpu_store_kv(f->m, l, r, f->b->rows[r].slot);
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

void cpu_rotate_and_store(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l)
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

static void attend(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                   uint32_t layer, const struct cpu_tile *t, uint32_t h0, uint32_t h1)
{
    struct backend_model *m = f->m;
    m->ops->attention(&m->layers[layer].kv, rows->paths + t->row0, t->row1 - t->row0,
                      m->s.q + t->row0 * m->s.ld_q, m->s.ld_q, m->s.att + t->row0 * m->s.ld_q,
                      m->s.ld_q, m->cfg.n_heads, h0, h1, m->scale, m->thread[par->tid].scratch);
}

/* Next of `units` jobs that nobody has; each is claimed once.  The relaxed counter orders nothing,
 * the barriers around this stage do. */
static uint32_t claim(const struct fwd *f, uint32_t layer)
{
    return atomic_fetch_add_explicit(&f->m->s.next_unit[layer], 1, memory_order_relaxed);
}

/* Jobs are (tile, KV head), long ones (the last rows of a prompt) first. */
static void by_tiles(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                     uint32_t layer)
{
    const struct backend_model *m = f->m;
    const uint32_t kv_heads = m->cfg.n_kv_heads, group = m->cfg.n_heads / kv_heads;
    const uint32_t units = rows->n_tiles * kv_heads;
    for (uint32_t u; (u = claim(f, layer)) < units;) {
        u = units - 1 - u;
        uint32_t h = u % kv_heads * group;
        attend(f, par, rows, layer, &rows->tiles[u / kv_heads], h, h + group);
    }
}

/* Few rows with short paths: divide the query heads. */
static void by_heads(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                     uint32_t layer)
{
    const struct backend_model *m = f->m;
    const uint32_t heads = m->cfg.n_heads;
    size_t a, b;
    dk_split(par, (size_t)rows->n_tiles * heads, 1, &a, &b);
    while (a < b) {
        uint32_t h0 = (uint32_t)(a % heads);
        uint32_t h1 = b - a < heads - h0 ? h0 + (uint32_t)(b - a) : heads;
        attend(f, par, rows, layer, &rows->tiles[a / heads], h0, h1);
        a += h1 - h0;
    }
}

/* Few rows with long paths: jobs are (tile, KV head, chunk of the path), merged afterwards. */
static void by_chunks(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                      uint32_t layer)
{
    struct backend_model *m = f->m;
    const struct cpu_layer *l = &m->layers[layer];
    const uint32_t heads = m->cfg.n_heads, kv_heads = m->cfg.n_kv_heads, group = heads / kv_heads;
    const uint32_t chunks = rows->n_chunks, units = rows->n_tiles * kv_heads * chunks;
    size_t a = 0, b = units;
    /* Many jobs: each thread a stretch of them, which reads memory in order.  Few: who is ready. */
    bool stretch = units >= 8 * par->n;
    if (stretch)
        dk_split(par, units, 1, &a, &b);
    for (; a < b; a++) {
        uint32_t u = stretch ? (uint32_t)a : claim(f, layer);
        if (u >= units)
            break;
        const struct cpu_tile *t = &rows->tiles[u / chunks / kv_heads];
        uint32_t c = u % chunks, h = u / chunks % kv_heads * group;
        if (c * DK_ATTN_CHUNK < t->longest)
            m->ops->attention_part(&l->kv, rows->paths + t->row0, t->row1 - t->row0,
                                   m->s.q + t->row0 * m->s.ld_q, m->s.ld_q, m->s.part + t->part,
                                   heads, h, h + group, c, c + 1, m->scale,
                                   m->thread[par->tid].scratch);
    }
    dk_barrier(par);
    dk_split(par, (size_t)rows->n_tiles * heads, 1, &a, &b);
    for (; a < b; a++) {
        const struct cpu_tile *t = &rows->tiles[a / heads];
        uint32_t h = (uint32_t)(a % heads);
        m->ops->attention_merge(rows->paths + t->row0, t->row1 - t->row0, m->s.part + t->part,
                                m->s.att + t->row0 * m->s.ld_q, m->s.ld_q, heads, m->cfg.head_dim,
                                h, h + 1);
    }
}

void cpu_attention(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                   uint32_t layer)
{
    switch (rows->plan) {
    case CPU_BY_TILES:
        by_tiles(f, par, rows, layer);
        break;
    case CPU_BY_HEADS:
        by_heads(f, par, rows, layer);
        break;
    case CPU_BY_CHUNKS:
        by_chunks(f, par, rows, layer);
        break;
    }
}

/* ---- the plan of a call ----------------------------------------------------------------------- */

/* Rows that stand together and look through the same block table belong to one sequence. */
static void make_tiles(struct cpu_rows *rows)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < rows->n; r++) {
        const struct dk_attn_row *path = &rows->paths[r];
        struct cpu_tile *t = &rows->tiles[n ? n - 1 : 0];
        if (n == 0 || t->row1 - t->row0 == CPU_ATTN_TILE ||
            path->blocks != rows->paths[t->row0].blocks) {
            t = &rows->tiles[n++];
            *t = (struct cpu_tile){.row0 = r};
        }
        t->row1 = r + 1;
        if (path->n_vis > t->longest)
            t->longest = path->n_vis;
    }
    rows->n_tiles = n;
}

/* Whether cutting the paths into chunks ends before dividing the query heads does, by the positions
 * that the busiest thread goes through: 3 KV heads and one whole chunk are 2 to 1 for two threads,
 * their 9 query heads 5 to 4. */
static bool chunks_are_faster(const struct backend_model *m, const struct cpu_rows *rows,
                              uint32_t longest)
{
    const uint64_t heads = (uint64_t)rows->n_tiles * m->cfg.n_heads, threads = m->n_threads;
    const uint64_t kv_heads = (uint64_t)rows->n_tiles * m->cfg.n_kv_heads;
    uint64_t by_heads = (heads + threads - 1) / threads * longest;
    uint64_t whole = kv_heads * (longest / DK_ATTN_CHUNK); /* the last chunks fill the gaps */
    uint64_t by_chunks = (whole + threads - 1) / threads * DK_ATTN_CHUNK * (heads / kv_heads);
    uint64_t even = heads * longest / threads;
    return (by_chunks > even ? by_chunks : even) < by_heads;
}

void cpu_plan_attention(const struct backend_model *m, struct cpu_rows *rows)
{
    make_tiles(rows);
    uint32_t units = rows->n_tiles * m->cfg.n_kv_heads, longest = 0;
    size_t part = 0;
    for (uint32_t i = 0; i < rows->n_tiles; i++)
        if (rows->tiles[i].longest > longest)
            longest = rows->tiles[i].longest;
    rows->n_chunks = (longest + DK_ATTN_CHUNK - 1) / DK_ATTN_CHUNK;
    if (units >= 4 * m->n_threads || (units % m->n_threads == 0 && rows->n_tiles == 1))
        rows->plan = CPU_BY_TILES;
    else if (rows->n <= m->s.part_rows && rows->n_chunks > 1 && chunks_are_faster(m, rows, longest))
        rows->plan = CPU_BY_CHUNKS;
    else
        rows->plan = CPU_BY_HEADS;
    for (uint32_t i = 0; rows->plan == CPU_BY_CHUNKS && i < rows->n_tiles; i++) {
        struct cpu_tile *t = &rows->tiles[i];
        t->part = part;
        part += (size_t)rows->n_chunks * (t->row1 - t->row0) * m->cfg.n_heads *
                DK_ATTN_PART(m->cfg.head_dim);
    }
}
