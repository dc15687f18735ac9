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

/* Of one row, KV heads [h0, h1). */
static void store_heads(struct backend_model *m, const struct cpu_layer *l, uint32_t r,
                        uint32_t slot, uint32_t h0, uint32_t h1)
{
    const struct dk_ops *ops = m->ops;
    const uint32_t hd = m->cfg.head_dim, n = h1 - h0;
    const size_t at = (size_t)h0 * hd;
    float *k = m->s.k + r * m->s.ld_kv, *v = m->s.v + r * m->s.ld_kv;
    if (l->k_bias)
        ops->add(k + at, l->k_bias + at, n * hd);
    if (l->v_bias)
        ops->add(v + at, l->v_bias + at, n * hd);
    if (l->k_norm)
        norm_heads(ops, k + at, n, hd, l->k_norm, m->cfg.rms_eps);
    ops->rope(k + at, n, hd, m->s.cs + (size_t)r * hd, m->cfg.rope_pairing);
    ops->kv_store(&l->kv, slot, h0, h1, k, v);
}

void cpu_store_kv(struct backend_model *m, const struct cpu_layer *l, uint32_t r, uint32_t slot)
{
    store_heads(m, l, r, slot, 0, m->cfg.n_kv_heads);
}

/* Of one row, query heads [h0, h1). */
static void rotate_heads(const struct fwd *f, const struct cpu_layer *l, uint32_t r, uint32_t h0,
                         uint32_t h1)
{
    struct backend_model *m = f->m;
    const struct dk_ops *ops = m->ops;
    const uint32_t hd = m->cfg.head_dim, n = h1 - h0;
    const size_t at = (size_t)h0 * hd;
    float *q = m->s.q + r * m->s.ld_q + at;
    if (l->q_bias)
        ops->add(q, l->q_bias + at, n * hd);
    if (l->q_norm)
        norm_heads(ops, q, n, hd, l->q_norm, m->cfg.rms_eps);
    ops->rope(q, n, hd, m->s.cs + (size_t)r * hd, m->cfg.rope_pairing);
}

/* Heads that begin below a unit: `first` is the first one's, each has units_each. */
static uint32_t heads_below(size_t unit, uint32_t first, uint32_t units_each, uint32_t heads)
{
    size_t h = unit <= first ? 0 : (unit - first + units_each - 1) / units_each;
    return h < heads ? (uint32_t)h : heads;
}

/*
 * Many rows: whole KV blocks to one thread.  Few: they may all be in one block, and K of a position
 * goes into a line of every dimension that the others write, too; so the threads divide the heads.
 */
void cpu_rotate_and_store(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l)
{
    const uint32_t n = f->b->n_rows, kv_heads = f->m->cfg.n_kv_heads, heads = f->m->cfg.n_heads;
    uint32_t k0 = 0, k1 = kv_heads, q0 = 0, q1 = heads;
    size_t a, b;
    if (cpu_by_rows(f->m, n)) {
        cpu_split_rows(f->m, par, n, &a, &b);
    } else if (n >= DK_KV_BLOCK * par->n) {
        dk_split(par, n, DK_KV_BLOCK, &a, &b);
    } else {
        dk_split(par, 2 * (size_t)kv_heads + heads, 1, &a, &b); /* a KV head is two units */
        k0 = heads_below(a, 0, 2, kv_heads);
        k1 = heads_below(b, 0, 2, kv_heads);
        q0 = heads_below(a, 2 * kv_heads, 1, heads);
        q1 = heads_below(b, 2 * kv_heads, 1, heads);
        a = 0;
        b = n;
    }
    for (size_t r = a; r < b; r++) {
        if (k0 < k1)
            store_heads(f->m, l, (uint32_t)r, f->b->rows[r].slot, k0, k1);
        if (q0 < q1)
            rotate_heads(f, l, (uint32_t)r, q0, q1);
    }
}

/* ---- what is going to be read ------------------------------------------------------------------- */

/* Hints for one row, whose K and V come from memory with little arithmetic to hide it behind. */
static const char *kv_block(const struct dk_kv *kv, const void *base, uint32_t block, uint32_t head)
{
    size_t elems = (size_t)kv->head_dim * DK_KV_BLOCK;
    return (const char *)base +
           ((size_t)block * kv->n_kv_heads + head) * elems * dk_kv_elem_bytes(kv->type);
}

#define FETCH_BLOCKS 4u

/* K of the position goes into a line of every dimension, which are fetched for writing. */
void cpu_fetch_slot(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l)
{
    const struct dk_kv *kv = &l->kv;
    if (f->b->n_rows != 1 || par->tid != 0)
        return;
    uint32_t block = f->b->rows[0].slot / DK_KV_BLOCK;
    const char *k = kv_block(kv, kv->k, block, 0), *end = kv_block(kv, kv->k, block + 1, 0);
    for (; k < end; k += 64)
        __builtin_prefetch(k, 1, 2);
}

/* The first blocks of K that the thread scores, which are read side by side. */
void cpu_fetch_path(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                    const struct cpu_layer *l)
{
    const struct dk_kv *kv = &l->kv;
    const struct dk_attn_row *path = rows->paths;
    const char *k[FETCH_BLOCKS];
    uint32_t n_blocks = (path->n_vis + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    size_t a, b;
    (void)f;
    if (rows->plan != CPU_BY_BLOCKS)
        return;
    dk_split(par, (size_t)kv->n_kv_heads * n_blocks, 1, &a, &b);
    if (b - a < FETCH_BLOCKS)
        return;
    for (size_t i = 0; i < FETCH_BLOCKS; i++)
        k[i] =
            kv_block(kv, kv->k, path->blocks[(a + i) % n_blocks], (uint32_t)((a + i) / n_blocks));
    size_t bytes = (size_t)kv->head_dim * DK_KV_BLOCK * dk_kv_elem_bytes(kv->type);
    for (size_t at = 0; at < bytes; at += 64)
        for (uint32_t i = 0; i < FETCH_BLOCKS; i++)
            __builtin_prefetch(k[i] + at, 0, 2);
}

/* The first blocks of V, dimensions from the lo-th sixteen of all KV heads to the hi-th. */
static void fetch_v(const struct dk_kv *kv, const struct dk_attn_row *path, size_t lo, size_t hi)
{
    const uint32_t sixteens = (kv->head_dim + 15) / 16;
    const size_t e = dk_kv_elem_bytes(kv->type), row = kv->head_dim * e;
    const uint32_t n_blocks = (path->n_vis + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    size_t first = lo % sixteens, n = hi - lo < sixteens - first ? hi - lo : sixteens - first;
    for (uint32_t b = 0; b < FETCH_BLOCKS && b < n_blocks && n; b++) {
        const char *v = kv_block(kv, kv->v, path->blocks[b], (uint32_t)(lo / sixteens));
        for (uint32_t p = 0; p < DK_KV_BLOCK; p++)
            for (size_t at = first * 16 * e; at < (first + n) * 16 * e; at += 64)
                __builtin_prefetch(v + p * row + at, 0, 2);
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
        uint32_t c = u / kv_heads % chunks, h = u % kv_heads * group;
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

/* [*a, *b) of KV head h in this thread's part [lo, hi) of all heads' n items. */
static void items_of(uint32_t h, uint32_t n, size_t lo, size_t hi, uint32_t *a, uint32_t *b)
{
    size_t start = (size_t)h * n, end = start + n;
    lo = lo < start ? start : lo > end ? end : lo;
    hi = hi < start ? start : hi > end ? end : hi;
    *a = (uint32_t)(lo - start);
    *b = (uint32_t)(hi - start);
}

/* One row with a short path: every thread scores as many blocks and sums up as many dimensions. */
static void by_blocks(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                      uint32_t layer)
{
    struct backend_model *m = f->m;
    const struct dk_kv *kv = &m->layers[layer].kv;
    const uint32_t heads = m->cfg.n_heads, kv_heads = m->cfg.n_kv_heads, hd = m->cfg.head_dim;
    const uint32_t n_blocks = (rows->paths->n_vis + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    const uint32_t sixteens = (hd + 15) / 16;
    void *scratch = m->thread[par->tid].scratch;
    size_t lo, hi;
    uint32_t a, b;
    dk_split(par, (size_t)kv_heads * n_blocks, 1, &lo, &hi);
    for (uint32_t h = 0; h < kv_heads; h++) {
        items_of(h, n_blocks, lo, hi, &a, &b);
        if (a < b)
            m->ops->attention_scores(kv, rows->paths, m->s.q, m->s.scores, CPU_BLOCKS_POSITIONS,
                                     heads, h, a, b, m->scale, scratch);
    }
    dk_split(par, (size_t)kv_heads * sixteens, 1, &lo, &hi);
    fetch_v(kv, rows->paths, lo, hi);
    dk_barrier(par);
    for (uint32_t h = 0; h < kv_heads; h++) {
        items_of(h, sixteens, lo, hi, &a, &b);
        if (a < b)
            m->ops->attention_values(kv, rows->paths, m->s.scores, CPU_BLOCKS_POSITIONS, m->s.att,
                                     heads, h, 16 * a, 16 * b < hd ? 16 * b : hd, scratch);
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
    case CPU_BY_BLOCKS:
        by_blocks(f, par, rows, layer);
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
    else if (rows->n == 1 && !m->amx_class && longest <= CPU_BLOCKS_POSITIONS &&
             rows->paths->tail_start >= longest)
        rows->plan = CPU_BY_BLOCKS;
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
