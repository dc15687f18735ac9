/* SPDX-License-Identifier: Apache-2.0 */
/* Drafters: loading, buffers, blocks as rows of a forward pass. */
#include "engine/drafter.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/drafter_internal.h"

/* Memory for logits of a call, about; one whole block always fits. */
#define LOGITS_BYTES ((size_t)64 << 20)

/* ---- loading ---------------------------------------------------------------------------------- */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static int make_buffers(struct drafter *d, struct error *err)
{
    const uint32_t dv = d->cfg->draft_vocab, rows = d->max_rows, blocks = rows / 2 + 1;
    size_t fit = LOGITS_BYTES / sizeof(float) / dv;
    d->n_logit_rows = fit < DRAFT_MAX_WINDOW ? DRAFT_MAX_WINDOW : (uint32_t)fit;
    d->n_logit_rows = least(d->n_logit_rows, rows);
    /* A tail: what is left of the context's last block; with a window, all that its rows see. */
    d->tails_block = DK_KV_BLOCK + (d->cfg->sliding ? (size_t)d->cfg->window : 0);
    size_t tails;
    if (!size_mul(d->tails_block, blocks, &tails) || !size_add(tails, 2 * (size_t)rows, &tails) ||
        !size_mul((size_t)d->n_logit_rows * sizeof(float), dv, &d->logits_bytes))
        return ERR(err, LIMIT, "a drafter's buffers exceed the address space");
    d->noise_bytes = (size_t)d->n_threads * d->target_vocab * sizeof(float);
    d->scores_bytes = (size_t)d->n_threads * dv * sizeof(float);
    d->rows = mem_calloc(rows, sizeof(*d->rows));
    d->tails = mem_array(tails, sizeof(*d->tails));
    d->context = mem_array(rows, sizeof(*d->context));
    d->blocks = mem_array(blocks, sizeof(*d->blocks));
    d->spans = mem_array(blocks, sizeof(*d->spans));
    d->tokens = mem_array(rows, sizeof(*d->tokens));
    d->picks = mem_array(d->n_logit_rows, sizeof(*d->picks));
    d->n_at_once = d->backend->passes ? DRAFT_MAX_PASSES : 1;
    const size_t chosen = (size_t)d->n_at_once * d->n_logit_rows;
    d->chosen = mem_array(chosen, sizeof(*d->chosen));
    d->top = mem_array(chosen * DRAFTER_MAX_PICK, sizeof(*d->top));
    d->logp = mem_array(chosen * DRAFTER_MAX_PICK, sizeof(*d->logp));
    d->logits = mem_map_pages(d->logits_bytes);
    d->noise = mem_map_pages(d->noise_bytes);
    d->scores = mem_map_pages(d->scores_bytes);
    d->ids = mem_map_pages(d->scores_bytes);
    if (d->cfg->sliding)
        d->window_paths = mem_array(rows, sizeof(*d->window_paths));
    if (d->backend->passes)
        d->next = mem_array(rows, sizeof(*d->next));
    if (d->backend->collect)
        d->nodes = mem_array(rows, sizeof(*d->nodes));
    if (!d->rows || !d->tails || !d->context || !d->blocks || !d->spans || !d->tokens ||
        !d->picks || !d->chosen || !d->top || !d->logp || !d->logits || !d->noise || !d->scores ||
        !d->ids || (d->cfg->sliding && !d->window_paths) || (d->backend->passes && !d->next) ||
        (d->backend->collect && !d->nodes))
        return ERR_NOMEM(err);
    return drafter_make_runs(d, err);
}

int drafter_new_file(struct model_file *take, const struct backend *b, struct backend_model *target,
                     const struct model_file *target_file, const struct backend_options *o,
                     enum backend_dtype dtype, struct drafter **ret, struct error *err)
{
    _cleanup_(drafter_freep) struct drafter *d = mem_zalloc(sizeof(*d));
    if (!d) {
        model_file_free(take);
        return ERR_NOMEM(err);
    }
    d->file = take;
    d->backend = b;
    d->target = target;
    d->cfg = model_file_config(d->file)->drafter;
    d->ops = b->ops(target);
    d->target_vocab = model_file_config(target_file)->vocab_size;
    d->max_rows = o->max_rows;
    d->max_context = o->max_context;
    d->first_slot = o->n_kv_blocks * DK_KV_BLOCK;
    d->n_threads = b->threads(target);
    int r = drafter_config_check(model_file_config(d->file), d->cfg, model_file_config(target_file),
                                 model_file_path(d->file), err);
    if (r == 0)
        r = b->load_drafter(target, d->file, dtype, &d->model, err);
    if (r == 0)
        r = make_buffers(d, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(d);
    return 0;
}

int drafter_new(const char *path, const struct backend *b, struct backend_model *target,
                const struct model_file *target_file, const struct backend_options *o,
                enum backend_dtype dtype, struct drafter **ret, struct error *err)
{
    struct model_file *f = NULL;
    int r = drafter_file_open(path, model_file_config(target_file), &f, err);
    return r < 0 ? r : drafter_new_file(f, b, target, target_file, o, dtype, ret, err);
}

struct drafter *drafter_free(struct drafter *d)
{
    if (!d)
        return NULL;
    if (d->model)
        d->backend->free(d->model);
    mem_free(d->rows);
    mem_free(d->window_paths);
    mem_free(d->next);
    mem_free(d->tails);
    mem_free(d->context);
    mem_free(d->blocks);
    mem_free(d->spans);
    mem_free(d->nodes);
    mem_free(d->tokens);
    mem_free(d->picks);
    mem_free(d->chosen);
    mem_free(d->top);
    mem_free(d->logp);
    mem_free(d->runs);
    mem_unmap_pages(d->logits, d->logits_bytes);
    mem_unmap_pages(d->noise, d->noise_bytes);
    mem_unmap_pages(d->scores, d->scores_bytes);
    mem_unmap_pages(d->ids, d->scores_bytes);
    model_file_free(d->file);
    mem_free(d);
    return NULL;
}

const struct drafter_config *drafter_get_config(const struct drafter *d)
{
    return d->cfg;
}

const struct model_file *drafter_get_file(const struct drafter *d)
{
    return d->file;
}

void drafter_memory(const struct drafter *d, struct backend_memory *ret)
{
    d->backend->describe(d->model, ret, NULL, NULL);
    ret->scratch_bytes += d->logits_bytes + d->noise_bytes + 2 * d->scores_bytes;
}

int drafter_plan(const char *path, const struct backend *b, const struct model_file *target_file,
                 const struct backend_options *o, enum backend_dtype dtype, uint64_t *ret_bytes,
                 struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    struct backend_memory m;
    int r = drafter_file_open(path, model_file_config(target_file), &f, err);
    if (r == 0)
        r = b->plan_drafter(target_file, f, o, dtype, &m, err);
    if (r < 0)
        return r;
    *ret_bytes = m.packed_bytes + m.kv_bytes + m.scratch_bytes + LOGITS_BYTES;
    return 0;
}

/* ---- blocks ----------------------------------------------------------------------------------- */

static uint32_t slot_of(const struct drafter_block *b, uint32_t pos)
{
    return b->blocks[pos / DK_KV_BLOCK] * DK_KV_BLOCK + pos % DK_KV_BLOCK;
}

static bool is_causal(const struct drafter *d, bool edit, bool windowed)
{
    if (edit || d->cfg->causal == DRAFTER_CAUSAL)
        return true;
    return windowed && d->cfg->causal == DRAFTER_BY_LAYER;
}

/* Slots that end a block's paths: context from position `from` on, then the block's rows. */
static uint32_t *write_tail(const struct drafter_block *b, uint32_t from, uint32_t slot0,
                            uint32_t *out)
{
    for (uint32_t p = from; p < b->start; p++)
        *out++ = slot_of(b, p);
    for (uint32_t k = 0; k < b->n; k++)
        *out++ = slot0 + k;
    return out;
}

/* Positions up to the last one that row k sees. */
static uint32_t seen(const struct drafter_block *b, uint32_t k, bool causal)
{
    return b->start + (causal ? k + 1 : b->n);
}

/* The first one, in layers with a window. */
static uint32_t window_start(const struct drafter *d, const struct drafter_block *b, uint32_t k)
{
    return b->start + k < d->cfg->window - 1 ? 0 : b->start + k - (d->cfg->window - 1);
}

/* Rows of block b from row r0 of the batch on; returns the tails' end. */
static uint32_t *block_rows(struct drafter *d, const struct drafter_block *b, uint32_t r0,
                            uint32_t *tails)
{
    const uint32_t slot0 = d->first_slot + r0, whole = b->start / DK_KV_BLOCK * DK_KV_BLOCK;
    const uint32_t dv = d->cfg->draft_vocab, *tail = tails;
    bool causal = is_causal(d, b->causal, false);
    tails = write_tail(b, whole, slot0, tails);
    for (uint32_t k = 0; k < b->n; k++)
        d->rows[r0 + k] = (struct fwd_row){
            .token = b->tokens[k],
            .pos = b->start + k,
            .slot = slot0 + k,
            .path = {.n_vis = seen(b, k, causal),
                     .tail_start = whole,
                     .blocks = b->blocks,
                     .tail = tail},
            .logits = k < b->first || !b->logits ? NULL : b->logits + (size_t)(k - b->first) * dv};
    if (!d->window_paths)
        return tails;
    /* Row k sees positions from s + k - (window - 1) on: a list of its own that begins with the first
     * of them. */
    const uint32_t from = window_start(d, b, 0);
    tail = tails;
    causal = is_causal(d, b->causal, true);
    tails = write_tail(b, from, slot0, tails);
    for (uint32_t k = 0; k < b->n; k++) {
        const uint32_t first = window_start(d, b, k);
        d->window_paths[r0 + k] = (struct dk_attn_row){.n_vis = seen(b, k, causal) - first,
                                                       .blocks = b->blocks,
                                                       .tail = tail + (first - from)};
    }
    return tails;
}

/* The same rows in the passes behind the first: row k is fed pick `pick` + k - b->first. */
static void next_rows(struct drafter *d, const struct drafter_block *b, uint32_t r0, uint32_t pick)
{
    const bool causal = is_causal(d, b->next_causal, false);
    const bool windowed = is_causal(d, b->next_causal, true);
    for (uint32_t k = 0; k < b->n; k++)
        d->next[r0 + k] = (struct fwd_next){
            .pick = k < b->first ? UINT32_MAX : pick + k - b->first,
            .n_vis = seen(b, k, causal),
            .window_vis = d->window_paths ? seen(b, k, windowed) - window_start(d, b, k) : 0};
}

/* lane NULL: it is waited for. */
static int run_blocks(struct drafter *d, const uint32_t *lane, const struct drafter_block *b,
                      uint32_t n, uint32_t n_chosen, uint32_t n_passes, struct error *err)
{
    uint32_t rows = 0, picks = 0, *tails = d->tails;
    for (uint32_t i = 0; i < n; i++) {
        if (b[i].n < 1 || b[i].n > d->max_rows - rows)
            return ERR(err, LIMIT, "a drafter's batch of more than %u rows", d->max_rows);
        if (d->cfg->sliding && b[i].n > d->cfg->window)
            return ERR(err, INVALID, "a block of %u rows: the drafter's window has %u positions",
                       b[i].n, d->cfg->window);
        tails = block_rows(d, &b[i], rows, tails);
        if (n_passes > 1)
            next_rows(d, &b[i], rows, picks);
        rows += b[i].n;
        picks += b[i].n - b[i].first;
    }
    struct fwd_batch batch = {.n_rows = rows,
                              .rows = d->rows,
                              .picks = d->chosen,
                              .n_picks = n_chosen,
                              .n_passes = n_passes,
                              .next = n_passes > 1 ? d->next : NULL,
                              .lane = lane ? *lane : 0,
                              .spans = lane ? d->spans : NULL,
                              .n_spans = lane ? n : 0,
                              .window_paths = d->window_paths};
    return d->backend->forward(d->model, &batch, err);
}

int drafter_run_blocks(struct drafter *d, const struct drafter_block *b, uint32_t n,
                       uint32_t n_chosen, uint32_t n_passes, struct error *err)
{
    return run_blocks(d, NULL, b, n, n_chosen, n_passes, err);
}

int drafter_start_blocks(struct drafter *d, uint32_t lane, const struct drafter_block *b,
                         uint32_t n, uint32_t n_chosen, uint32_t n_passes, struct error *err)
{
    return run_blocks(d, &lane, b, n, n_chosen, n_passes, err);
}

int drafter_run(struct drafter *d, const struct drafter_block *b, uint32_t n, struct error *err)
{
    return drafter_run_blocks(d, b, n, 0, 1, err);
}

int drafter_inject(struct drafter *d, const struct ctx_row *rows, uint32_t n, struct error *err)
{
    return d->backend->inject(d->model, rows, n, err);
}

uint32_t drafter_max_rows(const struct drafter *d)
{
    return d->max_rows;
}

/* ---- what the scheduler calls ------------------------------------------------------------------- */

static int op_inject(void *self, const struct draft_context *rows, uint32_t n, struct error *err)
{
    struct drafter *d = self;
    while (n) {
        uint32_t m = least(n, d->max_rows);
        for (uint32_t i = 0; i < m; i++)
            d->context[i] =
                (struct ctx_row){.taps = rows[i].taps, .pos = rows[i].pos, .slot = rows[i].slot};
        int r = drafter_inject(d, d->context, m, err);
        if (r < 0)
            return r;
        rows += m;
        n -= m;
    }
    return 0;
}

static int op_kv_copy(void *self, const uint32_t *from, const uint32_t *to, size_t n,
                      struct error *err)
{
    struct drafter *d = self;
    return d->backend->kv_copy(d->model, from, to, n, err);
}

struct block_drafter drafter_ops(struct drafter *d)
{
    static const struct block_drafter_ops ops = {.inject = op_inject,
                                                 .pass = drafter_pass,
                                                 .at_once = drafter_at_once,
                                                 .may_begin = drafter_may_begin,
                                                 .begin = drafter_begin,
                                                 .end = drafter_end,
                                                 .kv_copy = op_kv_copy};
    uint32_t most = least(DRAFT_MAX_WINDOW, d->max_rows);
    if (d->cfg->sliding)
        most = least(most, d->cfg->window);
    return (struct block_drafter){.ops = &ops,
                                  .self = d,
                                  .tap_layers = d->cfg->tap_layers,
                                  .n_taps = d->cfg->n_taps,
                                  .window = least(d->cfg->block_size, most),
                                  .max_window = most,
                                  .max_rows = d->max_rows,
                                  /* Rows of a block may lie behind the end of the context. */
                                  .max_context = d->max_context + most,
                                  .max_passes = DRAFT_MAX_PASSES,
                                  .taps = d->backend->taps ? d->backend->taps(d->model) : NULL};
}
