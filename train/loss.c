/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frozen head over the draft vocabulary, by chunks of rows: logits, cross-entropy, largest
 * entry and confidence in place, and the gradient back through head and final norm.
 */
#include "train/loss.h"

#include <string.h>

struct head_job {
    struct train_work *w;
    unsigned pass;
    float scale, distill;
    size_t row0;
};

/* Labels beside the hard one: what the target thought of this position. */
static float soft_label(const struct train_work *w, size_t row, float *z, float scale, bool learn)
{
    const struct train_shape *s = &w->m->shape;
    const struct train_block *b = &w->blocks[row / (s->window - 1)];
    const struct train_item *it = &w->batch->items[b->item];
    size_t at = b->anchor + row % (s->window - 1) + 1;
    float mass = 0;
    if (!it->soft || at >= it->n)
        return 0;
    for (uint32_t i = 0; i < w->batch->soft_top; i++) {
        int32_t id = it->soft_ids[at * w->batch->soft_top + i];
        float q = it->soft[at * w->batch->soft_top + i];
        if (id < 0)
            continue;
        mass += q;
        if (learn)
            z[id] -= scale * q;
    }
    return mass;
}

static void cross_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct head_job *j = arg;
    struct train_work *w = j->w;
    const uint32_t n = w->m->shape.draft_vocab;
    (void)tid;
    for (size_t i = a; i < b; i++) {
        struct train_row *row = &w->rows[j->row0 + i];
        float *z = w->logits + i * n, scale = row->weight * j->scale;
        float label = row->draft >= 0 ? z[row->draft] : 0;
        struct dk_ce ce;
        w->par->train->cross_entropy(z, n, scale, &ce);
        row->v[j->pass] = w->m->target_ids[ce.argmax];
        row->ce[j->pass] = row->draft >= 0 ? ce.log_sum - (label - ce.max) : 0;
        row->bad |= ce.bad;
        if (j->pass == 0)
            row->confidence = ce.confidence;
        if (scale > 0) {
            float soft =
                j->distill > 0 && soft_label(w, j->row0 + i, z, 0, false) > 0 ? j->distill : 0;
            if (soft > 0)
                soft_label(w, j->row0 + i, z, scale * soft, true);
            z[row->draft] -= scale * (1 - soft);
        }
    }
}

/* dx of a chunk's rows, and zeros for the anchors'. */
static void norm_rows(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct head_job *j = arg;
    struct train_work *w = j->w;
    const struct train_shape *s = &w->m->shape;
    const uint32_t W = s->window, h = s->hidden;
    (void)tid;
    for (size_t i = a; i < b; i++) {
        size_t block = i / W, k = i % W;
        if (k == 0)
            memset(w->dx + i * h, 0, h * sizeof(float));
        else
            w->par->train->rmsnorm_grad(w->dx + i * h, w->db + (block * (W - 1) + k - 1) * h,
                                        w->x + i * h, train_param(w->m, TR_NORM, 0), w->last_r[i],
                                        h, false);
    }
}

static void gain_columns(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct head_job *j = arg;
    struct train_work *w = j->w;
    const struct train_shape *s = &w->m->shape;
    const uint32_t W = s->window, h = s->hidden;
    float *d = w->grad + w->m->layout.t[TR_NORM].at + a;
    (void)tid;
    for (size_t i = 0; i < (size_t)w->n_blocks * (W - 1); i++) {
        size_t at = i / (W - 1) * W + i % (W - 1) + 1;
        w->par->train->rmsnorm_grad_w(d, w->db + i * h + a, w->x + at * h + a, w->last_r[at],
                                      (uint32_t)(b - a));
    }
}

void train_head(struct train_work *w, unsigned pass, float scale, float distill, float *logits)
{
    const struct train_shape *s = &w->m->shape;
    const size_t rows = (size_t)w->n_blocks * (s->window - 1);
    struct head_job j = {.w = w, .pass = pass, .scale = scale, .distill = distill};
    for (j.row0 = 0; j.row0 < rows; j.row0 += TRAIN_HEAD_ROWS) {
        size_t n = rows - j.row0 < TRAIN_HEAD_ROWS ? rows - j.row0 : TRAIN_HEAD_ROWS;
        par_forward_frozen(w->par, w->logits, w->final + j.row0 * s->hidden, &w->head, n);
        if (logits)
            memcpy(logits + j.row0 * s->draft_vocab, w->logits, n * s->draft_vocab * sizeof(float));
        par_rows(w->par, n, 4, cross_rows, &j);
        if (scale > 0)
            par_grad_x_frozen(w->par, w->db + j.row0 * s->hidden, w->logits, &w->head, n);
    }
    if (scale > 0) {
        par_rows(w->par, (size_t)w->n_blocks * s->window, 32, norm_rows, &j);
        par_rows(w->par, s->hidden, train_columns(w->par, s->hidden), gain_columns, &j);
    }
}

void train_mask_blocks(struct train_work *w)
{
    const struct train_shape *s = &w->m->shape;
    for (size_t i = 0; i < (size_t)w->n_blocks * s->window; i++)
        if (i % s->window)
            w->tokens[i] = s->mask_token;
}

void train_losses(struct train_work *w, const struct train_objective *o, bool learn,
                  struct train_stats *ret)
{
    const size_t rows = (size_t)w->n_blocks * (w->m->shape.window - 1);
    double sum = 0;
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < rows; i++)
        sum += (double)w->rows[i].weight;
    ret->denominator = sum;
    if (!(sum > 0))
        return;
    const float scale = learn ? (float)(1.0 / sum) : 0;
    train_context(w);
    train_mask_blocks(w);
    train_blocks(w, false);
    train_head(w, 0, scale, o->distill, NULL);
    if (learn)
        train_blocks_back(w);
    if (o->edit) {
        train_proposal_mix(w, o->eta, o->mix);
        train_blocks(w, o->causal);
        train_head(w, 1, scale * o->p2_weight, o->distill, NULL);
        if (learn && o->p2_weight > 0)
            train_blocks_back(w);
    }
    if (learn)
        train_context_back(w);
    train_count(w, o->edit ? 2 : 1, ret);
}
