/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of fit: batch, features, losses and gradients, one update; rows of metrics, checkpoints
 * by time and at the end.  A step is a function of the state, the options and its number, so a
 * resumed run repeats an unbroken one bit for bit.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "train/fit_internal.h"
#include "train/schedule.h"

#define HELD_EVERY 200u /* steps between looks at the held-out data */
#define HELD_STEPS 6u   /* batches of a look */

int fit_batch(struct fit *f, const uint32_t *samples, uint32_t n, uint64_t step,
              struct train_batch *ret, uint64_t *ret_tokens, struct error *err)
{
    uint32_t used = 0;
    *ret_tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct data_sample s;
        data_set_sample(f->data, samples[i], &s);
        data_sample_mask(&s, f->masks[used]);
        uint32_t k =
            train_anchors(f->masks[used], s.n, f->o.anchors, f->o.seed, step, i, f->anchors[used]);
        if (k == 0)
            continue;
        f->want[used] = (struct taps_want){.index = samples[i],
                                           .s = s,
                                           .out = f->features[used],
                                           .soft_ids = f->soft_ids[used],
                                           .soft = f->soft[used]};
        f->items[used] = (struct train_item){.ids = s.ids,
                                             .mask = f->masks[used],
                                             .taps = f->features[used],
                                             .anchors = f->anchors[used],
                                             .n = s.n,
                                             .n_anchors = k,
                                             .soft_ids = f->soft_ids[used],
                                             .soft = f->soft[used]};
        *ret_tokens += s.n;
        used++;
    }
    int r = taps_get(f->taps, &f->par, f->want, used, f->state.tap_scale, err);
    *ret = (struct train_batch){
        .items = f->items, .n_items = used, .soft_top = f->o.distill > 0 ? f->o.distill_top : 0};
    return r < 0 ? r : train_begin(&f->w, ret, f->o.gamma, err);
}

static struct train_objective objective(const struct fit *f, bool edit)
{
    return (struct train_objective){.edit = edit,
                                    .mix = f->o.mix == FIT_PROPOSAL_MIX,
                                    .causal = f->o.visibility == FIT_CAUSAL,
                                    .eta = f->o.eta,
                                    .gamma = f->o.gamma,
                                    .p2_weight = f->o.p2_weight,
                                    .distill = f->o.distill};
}

static bool edits(const struct fit *f, uint64_t step)
{
    return f->o.objective == FIT_DEDIT && step >= f->o.p1_only;
}

/* ---- held-out data --------------------------------------------------------------------------- */

static void add(struct train_stats *sum, const struct train_stats *s)
{
    for (int p = 0; p < 2; p++) {
        sum->loss[p] += s->loss[p] * s->denominator;
        sum->committed[p] += s->committed[p];
    }
    sum->denominator += s->denominator;
    sum->n_supervised += s->n_supervised;
    sum->n_right += s->n_right;
    sum->n_blocks += s->n_blocks;
}

/* The averaged weights, where there are any, on the same blocks each time. */
static int look(struct fit *f, struct train_stats *ret, struct error *err)
{
    const struct train_objective o = objective(f, edits(f, f->state.step));
    int r = 0;
    memset(ret, 0, sizeof(*ret));
    if (f->state.average)
        f->m.p = f->state.average;
    for (uint32_t i = 0; r == 0 && i < HELD_STEPS * f->o.batch && i < f->n_held; i += f->o.batch) {
        struct train_batch b;
        struct train_stats s;
        uint64_t tokens;
        uint32_t n = f->n_held - i < f->o.batch ? f->n_held - i : f->o.batch;
        r = fit_batch(f, f->held + i, n, UINT64_MAX - i, &b, &tokens, err);
        if (r < 0)
            break;
        train_losses(&f->w, &o, false, &s);
        add(ret, &s);
    }
    f->m.p = f->state.param;
    for (int p = 0; p < 2; p++)
        ret->loss[p] = ret->denominator > 0 ? ret->loss[p] / ret->denominator : 0;
    return r;
}

/* ---- one step -------------------------------------------------------------------------------- */

static int check(struct fit *f, const struct train_stats *s, double norm, struct error *err)
{
    const uint64_t step = f->state.step;
    if (s->bad || !isfinite(s->loss[0]) || !isfinite(s->loss[1]) || !isfinite(norm))
        return ERR(err, NUMERIC,
                   "step %" PRIu64
                   ": a loss or a gradient is not a number; nothing was updated, the "
                   "last checkpoint is kept",
                   step);
    if (step > 50 && f->running > 0 && s->loss[0] > 2 * f->running + 2)
        return ERR(err, NUMERIC,
                   "step %" PRIu64
                   ": the loss jumped from %.3g to %.3g; nothing was updated, the last "
                   "checkpoint is kept: a smaller learning rate may help",
                   step, f->running, s->loss[0]);
    f->running = f->running > 0 ? 0.98 * f->running + 0.02 * s->loss[0] : s->loss[0];
    return 0;
}

static void update(struct fit *f, double norm, double *ret_lr)
{
    const struct fit_options *o = &f->o;
    struct train_state *s = &f->state;
    uint64_t warmup = (uint64_t)((double)o->warmup * (double)o->steps);
    double factor = schedule_factor(s->step, o->steps, warmup);
    const struct train_adamw a = {.lr = (float)((double)o->lr * factor),
                                  .norm_lr = (float)((double)o->norm_lr * factor),
                                  .beta1 = o->beta1,
                                  .beta2 = o->beta2,
                                  .eps = 1e-8f,
                                  .weight_decay = o->weight_decay,
                                  .clip = o->clip};
    *ret_lr = (double)a.lr;
    adamw_step(&f->par, &s->layout, &a, ++s->updates, norm, s->param, s->m, s->v, f->w.grad);
    if (s->average) {
        double early = (double)(s->updates) / (double)(s->updates + 10);
        adamw_average(&f->par, &s->layout, early < (double)o->average ? (float)early : o->average,
                      s->average, s->param);
    }
}

static int one_step(struct fit *f, struct error *err)
{
    const struct train_objective o = objective(f, edits(f, f->state.step));
    const double before = f->par.flops;
    const uint64_t t0 = clock_now_ns();
    uint32_t samples[64];
    struct train_batch b;
    struct train_stats s;
    uint64_t tokens;
    double norm = 0, lr = 0;
    for (uint32_t i = 0; i < f->o.batch; i++)
        samples[i] = f->train[train_order_at(&f->order, f->state.step * f->o.batch + i)];
    int r = fit_batch(f, samples, f->o.batch, f->state.step, &b, &tokens, err);
    if (r < 0)
        return r;
    train_losses(&f->w, &o, true, &s);
    if (s.denominator > 0) {
        norm = adamw_grad_norm(&f->par, &f->m.layout, f->w.grad);
        r = check(f, &s, norm, err);
        if (r < 0)
            return r;
        update(f, norm, &lr);
    } else {
        f->skipped++; /* no label in the draft vocabulary: weights and moments stay as they are */
    }
    f->state.step++;
    metrics_add(&f->metrics, &s, lr, norm, (double)(clock_now_ns() - t0) * 1e-9,
                f->par.flops - before, tokens);
    return 0;
}

static int loop(struct fit *f, struct error *err)
{
    const uint64_t first = f->state.step, every = f->o.checkpoint_every * UINT64_C(1000000000);
    uint64_t saved = f->state.step, saved_at = clock_now_ns();
    bool stopped = false;
    int r = 0;
    while (r == 0 && f->state.step < f->o.steps) {
        stopped = (f->o.stop && *f->o.stop) ||
                  (f->o.stop_after && f->state.step - first >= f->o.stop_after);
        if (stopped)
            break;
        r = one_step(f, err);
        if (r < 0)
            return r;
        const uint64_t step = f->state.step;
        const bool last = step == f->o.steps, held = step % HELD_EVERY == 0 || last;
        if (step % f->o.report_every == 0 || held) {
            struct train_stats h;
            if (held && f->n_held)
                r = look(f, &h, err);
            if (r == 0)
                r = metrics_row(&f->metrics, step, f->o.steps, held && f->n_held ? &h : NULL,
                                metrics_peak(&f->par), err);
        }
        if (r == 0 && clock_now_ns() - saved_at >= every) {
            r = checkpoint_write_in(f->o.out, &f->state, f->o.keep, err);
            saved = step;
            saved_at = clock_now_ns();
        }
    }
    if (r == 0 && saved != f->state.step)
        r = checkpoint_write_in(f->o.out, &f->state, f->o.keep, err);
    if (r == 0 && f->skipped && !f->o.quiet)
        fprintf(stderr, "%" PRIu64 " steps had no label in the draft vocabulary\n", f->skipped);
    return r < 0 ? r : stopped;
}

int train_fit(const struct fit_options *o, struct error *err)
{
    struct fit f;
    int r = fit_open(&f, o, err);
    if (r < 0)
        return r;
    r = loop(&f, err);
    fit_close(&f);
    return r;
}
