/* SPDX-License-Identifier: Apache-2.0 */
/* The reference step of tests/golden/train, ready to run. */
#pragma once

#include "tests/unit/golden.h"
#include "train/loss.h"

struct train_oracle {
    json_t *json;
    struct golden g;
    struct model_file *target;
    struct train_model m;
    struct train_par par;
    struct train_work w;
    struct train_item items[2];
    struct train_batch batch;
    struct train_objective o;
};
void train_oracle_open(struct train_oracle *t, enum dk_tier tier, unsigned threads, bool bf16);
void train_oracle_close(struct train_oracle *t);
const float *train_oracle_get(const struct train_oracle *t, const char *prefix, const char *name,
                              size_t n);
/* The parameters of drafter/fitted. */
void train_oracle_weights(struct train_oracle *t);
