/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the controller share: requests that may have nodes, and how many are best. */
#pragma once

#include "engine/controller.h"

#define CONTROLLER_WORTH 1.02 /* expected speed above which drafts are verified, and made */

struct candidate {
    struct drafting_state *d;
    double context; /* positions that each of its nodes sees */
    uint32_t most;  /* nodes it may have */
    float reach[SURVIVAL_NODES];
    uint32_t n, best_n; /* nodes taken so far; at the best rate */
};

/* Does this request leave its drafting to the controller? */
bool controller_has(const struct request *r);
struct draft_base controller_base(const struct engine *e);
/* Takes nodes in order of worth and keeps the number with the highest rate: tokens a nanosecond, with
 * `extra` nanoseconds of drafting whatever their number.  margin: by how much drafts have to be better than
 * none. */
double controller_best(const struct controller *c, struct candidate *k, uint32_t n,
                       const struct draft_base *b, double extra, double margin);
