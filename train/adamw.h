/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW with decoupled decay on F32 masters and moments, and clipping by the whole gradient's
 * norm. */
#pragma once

#include "train/ops.h"
#include "train/state.h"

struct train_adamw {
    float lr, norm_lr;                           /* of matrices; of norms' gains */
    float beta1, beta2, eps, weight_decay, clip; /* clip 0: none */
};
/* The norm of all gradients, in a fixed order. */
double adamw_grad_norm(struct train_par *p, const struct train_layout *l, const float *grad);
/* Step t (from 1): scale = min(1, clip / (norm + 1e-6)) first. */
void adamw_step(struct train_par *p, const struct train_layout *l, const struct train_adamw *o,
                uint64_t t, double norm, float *param, float *m, float *v, const float *grad);
/* a += (1 - decay) (p - a). */
void adamw_average(struct train_par *p, const struct train_layout *l, float decay, float *average,
                   const float *param);
