/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of export. */
#pragma once

#include "train/checkpoint.h"
#include "train/fit.h"

/* export_gguf.c: architecture "dflash"; matrices in o->dtype, norms F32.  p: weights, fc folded;
 * d2t: offsets, written when the draft vocabulary is reduced. */
int export_gguf(const struct train_state *s, const float *p, const int32_t *d2t,
                const struct model_config *c, const struct export_options *o, struct error *err);
