/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of block rows, split into the context (all blocks of a sequence share its rows, each
 * sees those strictly before its anchor) and the own block.  A piece of work is one KV head of one
 * sequence: it walks groups of blocks, whose queries make one matrix against the context up to the
 * last anchor of the group; gradients of the context's K and V are summed in that order.
 * Products of own blocks alone are small: where products are tiles, those of all blocks of a
 * group are one, and what a row does not see has the probability zero in it, too.
 */
#include <string.h>

#include "train/forward.h"

#define GROUP_ROWS 192u /* query rows of a group, at least those of one block */

/* One group in work: queries [rows][hd], row = (query head of the group, block, row of the
 * block). */
struct group {
    struct train_work *w;
    uint32_t layer, item, kv_head;
    uint32_t block0, n_blocks, n_ctx; /* n_ctx: of the last block */
    uint32_t span;                    /* blocks whose own rows are one product */
    uint32_t rows, ld;                /* ld: context, then the own blocks of a span */
    float *q, *p, *dp, *dq, *grad;
    void *scratch;
};

/* Of a row of scores: context and all blocks of the group. */
static size_t row_floats(const struct train_shape *s, uint32_t max_len, uint32_t rows)
{
    return ((size_t)max_len + rows / (s->heads / s->kv_heads) + 15) / 16 * 16;
}

size_t train_attention_floats(const struct train_shape *s, uint32_t max_len, uint32_t *ret_rows)
{
    uint32_t least = s->heads / s->kv_heads * s->window;
    uint32_t rows = least > GROUP_ROWS ? least : GROUP_ROWS / least * least;
    size_t ld = row_floats(s, max_len, rows);
    *ret_rows = rows;
    return (size_t)rows * (3 * (size_t)s->head_dim + 2 * ld) + 64;
}

static void open_group(struct group *g, float *mem)
{
    const struct train_shape *s = &g->w->m->shape;
    const size_t ld = row_floats(s, g->w->max_len, g->w->attn_rows);
    const uint32_t per = s->heads / s->kv_heads * s->window;
    uint32_t left = g->w->item_block0[g->item + 1] - g->block0, most = g->w->attn_rows / per;
    g->n_blocks = left < most ? left : most;
    g->n_ctx = g->w->blocks[g->block0 + g->n_blocks - 1].anchor;
    g->span = g->w->par->gemm_flags ? g->n_blocks : 1;
    g->rows = per * g->n_blocks;
    g->ld = (uint32_t)ld;
    g->p = mem;
    g->dp = g->p + g->w->attn_rows * ld;
    g->q = g->dp + g->w->attn_rows * ld;
    g->dq = g->q + (size_t)g->w->attn_rows * s->head_dim;
    g->grad = g->dq + (size_t)g->w->attn_rows * s->head_dim;
}

/* Where row r of the group lies among all block rows, and its query head. */
static size_t at_row(const struct group *g, uint32_t r, uint32_t *ret_head)
{
    const struct train_shape *s = &g->w->m->shape;
    uint32_t per = g->n_blocks * s->window, in = r / per;
    *ret_head = g->kv_head * (s->heads / s->kv_heads) + in;
    return (size_t)g->block0 * s->window + r % per;
}

static void gather(const struct group *g, float *dst, const float *src)
{
    const struct train_shape *s = &g->w->m->shape;
    for (uint32_t r = 0; r < g->rows; r++) {
        uint32_t head;
        size_t at = at_row(g, r, &head);
        memcpy(dst + (size_t)r * s->head_dim, src + at * train_q_width(s) + head * s->head_dim,
               s->head_dim * sizeof(float));
    }
}

static void scatter(const struct group *g, float *dst, const float *src)
{
    const struct train_shape *s = &g->w->m->shape;
    for (uint32_t r = 0; r < g->rows; r++) {
        uint32_t head;
        size_t at = at_row(g, r, &head);
        memcpy(dst + at * train_q_width(s) + head * s->head_dim, src + (size_t)r * s->head_dim,
               s->head_dim * sizeof(float));
    }
}

static void gemm(const struct group *g, struct dk_gemm p)
{
    p.flags |= g->w->par->gemm_flags;
    g->w->par->train->gemm(&p, g->scratch);
}

/* Rows that see the own rows of one span: those of all query heads when it is the whole group. */
static uint32_t rows_of_span(const struct group *g)
{
    return g->span == g->n_blocks ? g->rows : g->span * g->w->m->shape.window;
}

/* out[rows][context | own] = x[rows][hd] against rows of c (context) and b (blocks): [.][kv
 * width]. */
static void against(const struct group *g, float *out, const float *x, const float *c,
                    const float *b)
{
    const struct train_shape *s = &g->w->m->shape;
    const uint32_t hd = s->head_dim, kv = train_kv_width(s), own = g->span * s->window;
    const uint32_t step = rows_of_span(g);
    const uint32_t ctx0 = g->w->item_ctx0[g->item];
    gemm(g, (struct dk_gemm){.m = g->rows,
                             .n = g->n_ctx,
                             .k = hd,
                             .a = x,
                             .a_row = hd,
                             .a_col = 1,
                             .b = c + (size_t)ctx0 * kv + g->kv_head * hd,
                             .b_row = 1,
                             .b_col = kv,
                             .c = out,
                             .ldc = g->ld});
    for (uint32_t r = 0; r < g->rows; r += step) {
        uint32_t head;
        size_t at = at_row(g, r, &head);
        gemm(g, (struct dk_gemm){.m = step,
                                 .n = own,
                                 .k = hd,
                                 .a = x + (size_t)r * hd,
                                 .a_row = hd,
                                 .a_col = 1,
                                 .b = b + at * kv + g->kv_head * hd,
                                 .b_row = 1,
                                 .b_col = kv,
                                 .c = out + (size_t)r * g->ld + g->n_ctx,
                                 .ldc = g->ld});
    }
}

/* out[rows][hd] = p[rows][context | own] times rows of c and b. */
static void times(const struct group *g, float *out, const float *p, const float *c, const float *b)
{
    const struct train_shape *s = &g->w->m->shape;
    const uint32_t hd = s->head_dim, kv = train_kv_width(s), own = g->span * s->window;
    const uint32_t step = rows_of_span(g);
    const uint32_t ctx0 = g->w->item_ctx0[g->item];
    gemm(g, (struct dk_gemm){.m = g->rows,
                             .n = hd,
                             .k = g->n_ctx,
                             .a = p,
                             .a_row = g->ld,
                             .a_col = 1,
                             .b = c + (size_t)ctx0 * kv + g->kv_head * hd,
                             .b_row = kv,
                             .b_col = 1,
                             .c = out,
                             .ldc = hd});
    for (uint32_t r = 0; r < g->rows; r += step) {
        uint32_t head;
        size_t at = at_row(g, r, &head);
        gemm(g, (struct dk_gemm){.m = step,
                                 .n = hd,
                                 .k = own,
                                 .flags = DK_GEMM_ADD,
                                 .a = p + (size_t)r * g->ld + g->n_ctx,
                                 .a_row = g->ld,
                                 .a_col = 1,
                                 .b = b + at * kv + g->kv_head * hd,
                                 .b_row = kv,
                                 .b_col = 1,
                                 .c = out + (size_t)r * hd,
                                 .ldc = hd});
    }
}

/* c and b += transposed p times x: gradients of what `against` and `times` read. */
static void spread(const struct group *g, const float *p, const float *x, float *c, float *b)
{
    const struct train_shape *s = &g->w->m->shape;
    const uint32_t hd = s->head_dim, kv = train_kv_width(s), own = g->span * s->window;
    const uint32_t step = rows_of_span(g);
    const uint32_t ctx0 = g->w->item_ctx0[g->item];
    gemm(g, (struct dk_gemm){.m = g->n_ctx,
                             .n = hd,
                             .k = g->rows,
                             .flags = DK_GEMM_ADD,
                             .a = p,
                             .a_row = 1,
                             .a_col = g->ld,
                             .b = x,
                             .b_row = hd,
                             .b_col = 1,
                             .c = c + (size_t)ctx0 * kv + g->kv_head * hd,
                             .ldc = kv});
    for (uint32_t r = 0; r < g->rows; r += step) {
        uint32_t head;
        size_t at = at_row(g, r, &head);
        gemm(g, (struct dk_gemm){.m = own,
                                 .n = hd,
                                 .k = step,
                                 .flags = DK_GEMM_ADD,
                                 .a = p + (size_t)r * g->ld + g->n_ctx,
                                 .a_row = 1,
                                 .a_col = g->ld,
                                 .b = x + (size_t)r * hd,
                                 .b_row = hd,
                                 .b_col = 1,
                                 .c = b + at * kv + g->kv_head * hd,
                                 .ldc = kv});
    }
}

/* What a row sees: context [0, *ctx), and *own columns from the returned one on. */
static uint32_t sees(const struct group *g, uint32_t r, uint32_t *ctx, uint32_t *own)
{
    const struct train_shape *s = &g->w->m->shape;
    uint32_t head;
    size_t at = at_row(g, r, &head);
    *ctx = g->w->blocks[at / s->window].anchor;
    *own = g->w->causal ? (uint32_t)(at % s->window) + 1 : s->window;
    return g->n_ctx + r / s->window % g->span * s->window;
}

static float scale_of(const struct group *g)
{
    return (float)(1.0 / __builtin_sqrt((double)g->w->m->shape.head_dim));
}

/* g->p = probabilities, zero where a row does not see; g->q gathered. */
static void probabilities(struct group *g)
{
    struct train_work *w = g->w;
    const struct dk_train_ops *t = w->par->train;
    const uint32_t end = g->n_ctx + g->span * w->m->shape.window;
    const struct train_layer *l = &w->layer[g->layer];
    const float scale = scale_of(g);
    gather(g, g->q, l->q);
    against(g, g->p, g->q, w->ctx[g->layer].k, l->k);
    for (uint32_t r = 0; r < g->rows; r++) {
        uint32_t ctx, own;
        float *p = g->p + (size_t)r * g->ld, *o = p + sees(g, r, &ctx, &own);
        t->scale(p, ctx, scale);
        t->scale(o, own, scale);
        float a = t->max(p, ctx), b = t->max(o, own), max = a > b ? a : b;
        float sum = t->exp_sum(p, ctx, max) + t->exp_sum(o, own, max);
        t->scale(p, ctx, 1.0f / sum);
        t->scale(o, own, 1.0f / sum);
        memset(p + ctx, 0, (size_t)(o - p - ctx) * sizeof(*p));
        memset(o + own, 0, (size_t)(p + end - o - own) * sizeof(*o));
    }
}

struct attn_job {
    struct train_work *w;
    uint32_t layer;
    void (*run)(struct group *g);
};

static void group_forward(struct group *g)
{
    struct train_layer *l = &g->w->layer[g->layer];
    probabilities(g);
    times(g, g->dq, g->p, g->w->ctx[g->layer].v, l->v);
    scatter(g, l->attn, g->dq);
}

static void piece(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct attn_job *j = arg;
    const uint32_t heads = j->w->m->shape.kv_heads;
    for (size_t i = a; i < b; i++) {
        struct group g = {.w = j->w,
                          .layer = j->layer,
                          .item = (uint32_t)(i / heads),
                          .kv_head = (uint32_t)(i % heads),
                          .scratch = j->w->par->scratch[tid]};
        g.block0 = j->w->item_block0[g.item];
        for (; g.block0 < j->w->item_block0[g.item + 1]; g.block0 += g.n_blocks) {
            open_group(&g, j->w->attn_mem[tid]);
            j->run(&g);
        }
    }
}

/* Operations of `products` matrix products over all groups, masked ones included. */
static double operations(const struct train_work *w, double products)
{
    const struct train_shape *s = &w->m->shape;
    const uint32_t per = s->heads / s->kv_heads * s->window, most = w->attn_rows / per;
    double sum = 0;
    for (uint32_t i = 0; i < w->batch->n_items; i++)
        for (uint32_t b = w->item_block0[i], n; b < w->item_block0[i + 1]; b += n) {
            n = w->item_block0[i + 1] - b < most ? w->item_block0[i + 1] - b : most;
            sum += (double)n * (w->blocks[b + n - 1].anchor + s->window);
        }
    return 2 * products * sum * per * s->kv_heads * s->head_dim;
}

void train_attention(struct train_work *w, uint32_t layer)
{
    struct attn_job j = {.w = w, .layer = layer, .run = group_forward};
    w->par->flops += operations(w, 2);
    par_rows(w->par, (size_t)w->batch->n_items * w->m->shape.kv_heads, 1, piece, &j);
}

static void group_back(struct group *g)
{
    struct train_work *w = g->w;
    const struct dk_train_ops *t = w->par->train;
    const struct train_layer *l = &w->layer[g->layer];
    struct train_ctx_layer *c = &w->ctx[g->layer];
    const uint32_t W = w->m->shape.window;
    const float scale = scale_of(g);
    probabilities(g);
    gather(g, g->grad, w->da);
    against(g, g->dp, g->grad, c->v, l->v);
    spread(g, g->p, g->grad, c->dv, w->dv);
    for (uint32_t r = 0; r < g->rows; r++) {
        uint32_t ctx, own;
        float *p = g->p + (size_t)r * g->ld;
        const float *d = g->dp + (size_t)r * g->ld;
        const uint32_t o = sees(g, r, &ctx, &own);
        float sum = t->dot(p, d, ctx) + t->dot(p + o, d + o, W);
        t->softmax_grad(p, d, ctx, sum, scale);
        t->softmax_grad(p + o, d + o, W, sum, scale);
    }
    times(g, g->dq, g->p, c->k, l->k);
    scatter(g, w->dq, g->dq);
    spread(g, g->p, g->q, c->dk, w->dkb);
}

void train_attention_back(struct train_work *w, uint32_t layer)
{
    struct attn_job j = {.w = w, .layer = layer, .run = group_back};
    size_t kv = (size_t)w->n_blocks * w->m->shape.window * train_kv_width(&w->m->shape);
    memset(w->dkb, 0, kv * sizeof(float));
    memset(w->dv, 0, kv * sizeof(float));
    w->par->flops += operations(w, 5);
    par_rows(w->par, (size_t)w->batch->n_items * w->m->shape.kv_heads, 1, piece, &j);
}
