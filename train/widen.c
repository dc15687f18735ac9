/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a block of W rows to a longer one: no new parameters, positions are RoPE's.  Weights come
 * from the checkpoint, moments and schedule are fresh; the anchors are halved, so that a step costs
 * the same, and the rate is small.
 */
#include <string.h>

#include "train/fit_internal.h"
#include "train/from_drafter.h"

#define RATE 0.25f /* of fit's default */

static void widen_defaults(struct fit_options *o, const struct train_state *s)
{
    struct fit_options d;
    fit_options_init(&d);
    if (o->window == 0)
        o->window = 2 * s->shape.window < DRAFT_MAX_WINDOW ? 2 * s->shape.window : DRAFT_MAX_WINDOW;
    if (o->anchors == WIDEN_DEFAULT) {
        uint64_t fewer = (uint64_t)d.anchors * s->shape.window / o->window;
        o->anchors = fewer ? (uint32_t)fewer : 1;
    }
    if (o->lr < 0)
        o->lr = RATE * d.lr;
    if (o->steps == WIDEN_DEFAULT)
        o->steps = s->step / 4 > 100 ? s->step / 4 : 100;
    if (o->p1_only == d.p1_only)
        o->p1_only = 0;
}

int train_widen(const struct fit_options *o, struct error *err)
{
    struct fit_options w = *o;
    _cleanup_state_ struct train_state s = {0};
    if (!o->from)
        return ERR(err, INVALID, "widen needs a checkpoint, or a run's folder, to start from");
    bool drafter = false;
    int r = drafter_is(o->from, &drafter, err);
    if (r == 0 && drafter)
        return ERR(err, INVALID,
                   "--from %s: is an exported drafter; widen goes on from a checkpoint or a run's "
                   "folder (fit --from %s --window W starts from a drafter)",
                   o->from, o->from);
    if (r == 0)
        r = checkpoint_open(o->from, &s, err);
    if (r < 0)
        return r;
    widen_defaults(&w, &s);
    if (w.window <= s.shape.window || w.window > DRAFT_MAX_WINDOW)
        return ERR(err, INVALID,
                   "--window %u: must be longer than the %u rows of --from %s, and at most %u",
                   w.window, s.shape.window, o->from, DRAFT_MAX_WINDOW);
    return train_fit(&w, err);
}
