/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a step, and the forward passes: context features, blocks. */
#include "train/forward.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* One piece for all arrays of floats: the first walk counts, the second hands out. */
static float *take(struct train_work *w, size_t n)
{
    size_t at = w->area.used;
    w->area.used += (n + 15) / 16 * 16;
    return w->area.base ? w->area.base + at : NULL;
}

static void layout(struct train_work *w, const struct train_shape *s, size_t grad, unsigned threads)
{
    const size_t c = w->max_ctx, r = (size_t)w->max_blocks * s->window;
    const size_t h = s->hidden, q = train_q_width(s), kv = train_kv_width(s);
    const size_t wide = h > q ? h : q, f = s->ffn;
    w->area.used = 0;
    w->grad = take(w, grad);
    w->taps = take(w, c * train_tap_width(s));
    w->fused_raw = take(w, c * h);
    w->fused = take(w, c * h);
    w->fused_r = take(w, c);
    w->d_ctx = take(w, c * h);
    for (uint32_t i = 0; i < s->layers; i++) {
        struct train_ctx_layer *x = w->ctx ? &w->ctx[i] : &(struct train_ctx_layer){0};
        x->k_raw = take(w, c * kv);
        x->k = take(w, c * kv);
        x->v = take(w, c * kv);
        x->k_r = take(w, c * s->kv_heads);
        x->dk = take(w, c * kv);
        x->dv = take(w, c * kv);
    }
    for (uint32_t i = 0; i < s->layers; i++) {
        struct train_layer *x = w->layer ? &w->layer[i] : &(struct train_layer){0};
        x->x = take(w, r * h);
        x->norm1 = take(w, r * h);
        x->r1 = take(w, r);
        x->q_raw = take(w, r * q);
        x->k_raw = take(w, r * kv);
        x->q_r = take(w, r * s->heads);
        x->k_r = take(w, r * s->kv_heads);
        x->q = take(w, r * q);
        x->k = take(w, r * kv);
        x->v = take(w, r * kv);
        x->attn = take(w, r * q);
        x->mid = take(w, r * h);
        x->norm2 = take(w, r * h);
        x->r2 = take(w, r);
        x->gate = take(w, r * f);
        x->up = take(w, r * f);
        x->act = take(w, r * f);
    }
    w->x = take(w, r * h);
    w->last_r = take(w, r);
    w->final = take(w, r * h);
    w->dx = take(w, r * h);
    w->da = take(w, r * (wide > f ? wide : f));
    w->db = take(w, r * wide);
    w->dq = take(w, r * q);
    w->dkb = take(w, r * kv);
    w->dv = take(w, r * kv);
    w->gains = take(w, ((c > r ? c : r) / TRAIN_CHUNK + 1) * (h > s->head_dim ? h : s->head_dim));
    w->logits = take(w, (size_t)TRAIN_HEAD_ROWS * s->draft_vocab);
    size_t attn = train_attention_floats(s, w->max_len, &w->attn_rows);
    for (unsigned t = 0; t < threads; t++)
        w->attn_mem[t] = take(w, attn);
}

uint64_t train_work_bytes(const struct train_shape *s, uint32_t max_items, uint32_t max_ctx,
                          uint32_t max_blocks, uint32_t max_len, unsigned threads)
{
    struct train_layout l;
    struct train_work w = {.max_ctx = max_ctx, .max_blocks = max_blocks, .max_len = max_len};
    train_layout_init(&l, s);
    layout(&w, s, l.total, threads);
    return (uint64_t)w.area.used * sizeof(float) +
           2 * (uint64_t)(max_items + 1) * sizeof(uint32_t) + (uint64_t)max_ctx * sizeof(uint32_t) +
           threads * (uint64_t)DK_GEMM_SCRATCH +
           (uint64_t)max_blocks * (sizeof(*w.blocks) + s->window * (sizeof(*w.rows) + 4));
}

int train_work_init(struct train_work *w, const struct train_model *m, struct train_par *par,
                    uint32_t max_items, uint32_t max_ctx, uint32_t max_blocks, uint32_t max_len,
                    struct error *err)
{
    const struct train_shape *s = &m->shape;
    memset(w, 0, sizeof(*w));
    w->m = m;
    w->par = par;
    w->max_items = max_items;
    w->max_ctx = max_ctx;
    w->max_blocks = max_blocks;
    w->max_len = max_len;
    w->ctx = mem_calloc(s->layers, sizeof(*w->ctx));
    w->layer = mem_calloc(s->layers, sizeof(*w->layer));
    w->blocks = mem_calloc(max_blocks, sizeof(*w->blocks));
    w->item_ctx0 = mem_calloc((size_t)max_items + 1, sizeof(*w->item_ctx0));
    w->item_block0 = mem_calloc((size_t)max_items + 1, sizeof(*w->item_block0));
    w->ctx_pos = mem_calloc(max_ctx, sizeof(*w->ctx_pos));
    w->tokens = mem_calloc((size_t)max_blocks * s->window, sizeof(*w->tokens));
    w->rows = mem_calloc((size_t)max_blocks * (s->window - 1), sizeof(*w->rows));
    if (w->ctx && w->layer && w->blocks && w->item_ctx0 && w->item_block0 && w->ctx_pos &&
        w->tokens && w->rows) {
        layout(w, s, m->layout.total, par->n);
        w->area.size = w->area.used * sizeof(float);
        w->area.base = mem_map_pages(w->area.size);
    }
    int r = w->area.base ? 0 : ERR_NOMEM(err);
    if (r == 0)
        r = train_frozen_init(&w->head, par, m->head, s->draft_vocab, s->hidden, err);
    if (r < 0) {
        train_work_done(w);
        return r;
    }
    layout(w, s, m->layout.total, par->n);
    return 0;
}

void train_work_done(struct train_work *w)
{
    mem_free(w->ctx);
    mem_free(w->layer);
    mem_free(w->blocks);
    mem_free(w->item_ctx0);
    mem_free(w->item_block0);
    mem_free(w->ctx_pos);
    mem_free(w->tokens);
    mem_free(w->rows);
    if (w->area.base)
        mem_unmap_pages(w->area.base, w->area.size);
    train_frozen_done(&w->head);
    memset(w, 0, sizeof(*w));
}

/* ---- the batch ------------------------------------------------------------------------------- */

static int check_item(const struct train_work *w, const struct train_item *it, uint32_t i,
                      struct error *err)
{
    for (uint32_t a = 0; a < it->n_anchors; a++)
        if (it->anchors[a] >= it->n || (a && it->anchors[a] < it->anchors[a - 1]))
            return ERR(err, INVALID,
                       "sequence %" PRIu32 ": anchor %" PRIu32 " at %" PRIu32
                       ": anchors must ascend and be below the length %" PRIu32,
                       i, a, it->anchors[a], it->n);
    if (it->n > w->max_len)
        return ERR(err, LIMIT,
                   "sequence %" PRIu32 " has %" PRIu32 " tokens, at most %" PRIu32 " fit", i, it->n,
                   w->max_len);
    for (uint32_t k = 0; k < it->n; k++)
        if (it->ids[k] >= w->m->shape.vocab)
            return ERR(err, INVALID,
                       "sequence %" PRIu32 ": token %" PRIu32 " is %" PRIu32
                       ", must be below %" PRIu32,
                       i, k, it->ids[k], w->m->shape.vocab);
    return 0;
}

/* Labels of one block; decay[k]: w_k. */
static void label_block(struct train_work *w, const struct train_item *it, uint32_t block,
                        uint32_t anchor, const float *decay)
{
    const uint32_t W = w->m->shape.window;
    struct train_row *row = w->rows + (size_t)block * (W - 1);
    for (uint32_t k = 1; k < W; k++, row++) {
        uint32_t at = anchor + k;
        memset(row, 0, sizeof(*row));
        row->draft = -1;
        if (at >= it->n)
            continue;
        row->label = it->ids[at];
        row->draft = w->m->draft_ids[row->label];
        row->supervised = it->mask[at] && row->draft >= 0;
        row->weight = row->supervised ? decay[k] : 0.0f;
    }
}

/* What a step begins with: its features side by side, gradients of zero. */
static void taps_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    struct train_work *w = arg;
    const size_t width = train_tap_width(&w->m->shape);
    uint32_t i = 0;
    (void)tid;
    for (size_t r = a; r < b; r++) {
        while (r >= w->item_ctx0[i + 1])
            i++;
        memcpy(w->taps + r * width, w->batch->items[i].taps + (r - w->item_ctx0[i]) * width,
               width * sizeof(float));
    }
}

static void zero_grad(void *arg, size_t a, size_t b, unsigned tid)
{
    struct train_work *w = arg;
    (void)tid;
    memset(w->grad + a, 0, (b - a) * sizeof(float));
}

int train_begin(struct train_work *w, const struct train_batch *b, float gamma, struct error *err)
{
    const struct train_shape *s = &w->m->shape;
    float decay[DRAFTER_MAX_BLOCK];
    for (uint32_t k = 1; k < s->window; k++)
        decay[k] = dk_expf(-(float)(k - 1) / gamma);
    if (b->n_items > w->max_items)
        return ERR(err, LIMIT, "%" PRIu32 " sequences, at most %" PRIu32 " fit", b->n_items,
                   w->max_items);
    w->batch = b;
    w->n_ctx = w->n_blocks = 0;
    for (uint32_t i = 0; i < b->n_items; i++) {
        const struct train_item *it = &b->items[i];
        int r = check_item(w, it, i, err);
        if (r < 0)
            return r;
        uint32_t ctx = it->n_anchors ? it->anchors[it->n_anchors - 1] : 0;
        if (ctx > w->max_ctx - w->n_ctx || it->n_anchors > w->max_blocks - w->n_blocks)
            return ERR(err, LIMIT,
                       "sequence %" PRIu32 ": more than %" PRIu32 " context rows or %" PRIu32
                       " blocks",
                       i, w->max_ctx, w->max_blocks);
        w->item_ctx0[i] = w->n_ctx;
        w->item_block0[i] = w->n_blocks;
        for (uint32_t a = 0; a < it->n_anchors; a++) {
            uint32_t block = w->n_blocks++;
            w->blocks[block] =
                (struct train_block){.item = i, .anchor = it->anchors[a], .ctx0 = w->n_ctx};
            label_block(w, it, block, it->anchors[a], decay);
            w->tokens[(size_t)block * s->window] = it->ids[it->anchors[a]];
        }
        for (uint32_t p = 0; p < ctx; p++)
            w->ctx_pos[w->n_ctx++] = p;
        if (it->n_anchors && it->anchors[it->n_anchors - 1] + s->window > s->max_position)
            return ERR(err, LIMIT, "sequence %" PRIu32 " reaches past position %" PRIu32, i,
                       s->max_position);
    }
    w->item_ctx0[b->n_items] = w->n_ctx;
    w->item_block0[b->n_items] = w->n_blocks;
    par_rows(w->par, w->n_ctx, 32, taps_rows, w);
    par_rows(w->par, w->m->layout.total, 65536, zero_grad, w);
    for (uint32_t l = 0; l < s->layers; l++) {
        memset(w->ctx[l].dk, 0, (size_t)w->n_ctx * train_kv_width(s) * sizeof(float));
        memset(w->ctx[l].dv, 0, (size_t)w->n_ctx * train_kv_width(s) * sizeof(float));
    }
    return 0;
}

/* ---- loops over rows ------------------------------------------------------------------------- */

/* Norms of rows, or of the heads in them, with RoPE behind them when pos is there. */
struct norm_job {
    const struct train_work *w;
    float *y, *r;
    const float *x, *gain;
    uint32_t n, heads;       /* length of a norm; norms in a row */
    const uint32_t *ctx_pos; /* position of each row, or */
    bool rope_blocks;        /* those of block rows */
};

static const float *angles_of(const struct train_work *w, const float *table, size_t row,
                              const uint32_t *ctx_pos)
{
    const struct train_shape *s = &w->m->shape;
    uint32_t pos =
        ctx_pos ? ctx_pos[row] : w->blocks[row / s->window].anchor + (uint32_t)(row % s->window);
    return table + (size_t)pos * s->head_dim;
}

static void norm_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct norm_job *j = arg;
    const struct train_work *w = j->w;
    (void)tid;
    for (size_t i = a; i < b; i++) {
        size_t at = i * j->heads * j->n;
        for (uint32_t h = 0; h < j->heads; h++)
            w->par->train->rmsnorm(j->y + at + h * j->n, j->x + at + h * j->n, j->gain, j->n,
                                   w->m->shape.eps, &j->r[i * j->heads + h]);
        if (j->ctx_pos || j->rope_blocks)
            w->par->ops->rope(j->y + at, j->heads, j->n, angles_of(w, w->m->angles, i, j->ctx_pos),
                              DK_ROPE_HALVES);
    }
}

struct rows_job {
    struct train_work *w;
    struct train_layer *l;
    float *x;
};

static void embed_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct rows_job *j = arg;
    (void)tid;
    for (size_t i = a; i < b; i++)
        train_embed(j->w->m, j->w->tokens[i], j->x + i * j->w->m->shape.hidden);
}

static void add_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct rows_job *j = arg;
    const uint32_t h = j->w->m->shape.hidden;
    (void)tid;
    for (size_t i = a; i < b; i++) /* mid += x */
        j->w->par->train->add(j->x + i * h, j->l->x + i * h, h);
}

static void add_mid(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct rows_job *j = arg;
    const uint32_t h = j->w->m->shape.hidden;
    (void)tid;
    for (size_t i = a; i < b; i++)
        j->w->par->train->add(j->x + i * h, j->l->mid + i * h, h);
}

static void act_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct rows_job *j = arg;
    const size_t f = j->w->m->shape.ffn;
    (void)tid;
    for (size_t i = a; i < b; i++)
        j->w->par->train->silu_mul(j->l->act + i * f, j->l->gate + i * f, j->l->up + i * f,
                                   (uint32_t)f);
}

/* ---- passes ---------------------------------------------------------------------------------- */

#define GRAIN 32u

void train_context(struct train_work *w)
{
    const struct train_model *m = w->m;
    const struct train_shape *s = &m->shape;
    const uint32_t h = s->hidden, kv = train_kv_width(s);
    par_forward(w->par, w->fused_raw, w->taps, train_param(m, TR_FC, 0), w->n_ctx, h,
                train_tap_width(s));
    struct norm_job n = {.w = w,
                         .y = w->fused,
                         .r = w->fused_r,
                         .x = w->fused_raw,
                         .gain = train_param(m, TR_HIDDEN_NORM, 0),
                         .n = h,
                         .heads = 1};
    par_rows(w->par, w->n_ctx, GRAIN, norm_rows, &n);
    for (uint32_t l = 0; l < s->layers; l++) {
        struct train_ctx_layer *c = &w->ctx[l];
        par_forward(w->par, c->k_raw, w->fused, train_param(m, TR_K, l), w->n_ctx, kv, h);
        par_forward(w->par, c->v, w->fused, train_param(m, TR_V, l), w->n_ctx, kv, h);
        struct norm_job k = {.w = w,
                             .y = c->k,
                             .r = c->k_r,
                             .x = c->k_raw,
                             .gain = train_param(m, TR_K_NORM, l),
                             .n = s->head_dim,
                             .heads = s->kv_heads,
                             .ctx_pos = w->ctx_pos};
        par_rows(w->par, w->n_ctx, GRAIN, norm_rows, &k);
    }
}

static void layer_forward(struct train_work *w, uint32_t i, float *out)
{
    const struct train_model *m = w->m;
    const struct train_shape *s = &m->shape;
    struct train_layer *l = &w->layer[i];
    const size_t rows = (size_t)w->n_blocks * s->window;
    const uint32_t h = s->hidden, q = train_q_width(s), kv = train_kv_width(s);
    struct rows_job j = {.w = w, .l = l};
    struct norm_job n1 = {.w = w,
                          .y = l->norm1,
                          .r = l->r1,
                          .x = l->x,
                          .gain = train_param(m, TR_ATTN_NORM, i),
                          .n = h,
                          .heads = 1};
    par_rows(w->par, rows, GRAIN, norm_rows, &n1);
    par_forward(w->par, l->q_raw, l->norm1, train_param(m, TR_Q, i), rows, q, h);
    par_forward(w->par, l->k_raw, l->norm1, train_param(m, TR_K, i), rows, kv, h);
    par_forward(w->par, l->v, l->norm1, train_param(m, TR_V, i), rows, kv, h);
    struct norm_job nq = {.w = w,
                          .y = l->q,
                          .r = l->q_r,
                          .x = l->q_raw,
                          .gain = train_param(m, TR_Q_NORM, i),
                          .n = s->head_dim,
                          .heads = s->heads,
                          .rope_blocks = true};
    par_rows(w->par, rows, GRAIN, norm_rows, &nq);
    struct norm_job nk = {.w = w,
                          .y = l->k,
                          .r = l->k_r,
                          .x = l->k_raw,
                          .gain = train_param(m, TR_K_NORM, i),
                          .n = s->head_dim,
                          .heads = s->kv_heads,
                          .rope_blocks = true};
    par_rows(w->par, rows, GRAIN, norm_rows, &nk);
    train_attention(w, i);
    par_forward(w->par, l->mid, l->attn, train_param(m, TR_O, i), rows, h, q);
    j.x = l->mid;
    par_rows(w->par, rows, GRAIN, add_rows, &j);
    struct norm_job n2 = {.w = w,
                          .y = l->norm2,
                          .r = l->r2,
                          .x = l->mid,
                          .gain = train_param(m, TR_FFN_NORM, i),
                          .n = h,
                          .heads = 1};
    par_rows(w->par, rows, GRAIN, norm_rows, &n2);
    par_forward(w->par, l->gate, l->norm2, train_param(m, TR_GATE, i), rows, s->ffn, h);
    par_forward(w->par, l->up, l->norm2, train_param(m, TR_UP, i), rows, s->ffn, h);
    par_rows(w->par, rows, GRAIN, act_rows, &j);
    par_forward(w->par, out, l->act, train_param(m, TR_DOWN, i), rows, h, s->ffn);
    j.x = out;
    par_rows(w->par, rows, GRAIN, add_mid, &j);
}

/* Rows 1.. of each block, normed, without gaps. */
static void final_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct rows_job *j = arg;
    const struct train_work *w = j->w;
    const struct train_shape *s = &w->m->shape;
    (void)tid;
    for (size_t i = a; i < b; i++) {
        size_t block = i / s->window, k = i % s->window;
        if (k > 0)
            w->par->train->rmsnorm(w->final + (block * (s->window - 1) + k - 1) * s->hidden,
                                   w->x + i * s->hidden, train_param(w->m, TR_NORM, 0), s->hidden,
                                   s->eps, &w->last_r[i]);
    }
}

void train_blocks(struct train_work *w, bool causal)
{
    const struct train_shape *s = &w->m->shape;
    const size_t rows = (size_t)w->n_blocks * s->window;
    struct rows_job j = {.w = w, .x = w->layer[0].x};
    w->causal = causal;
    par_rows(w->par, rows, GRAIN, embed_rows, &j);
    for (uint32_t l = 0; l < s->layers; l++)
        layer_forward(w, l, l + 1 < s->layers ? w->layer[l + 1].x : w->x);
    par_rows(w->par, rows, GRAIN, final_rows, &j);
}
