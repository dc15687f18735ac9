/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of fit: a run's objects, and what setting up, the loop and the measuring say to each
 * other. */
#pragma once

#include "train/adamw.h"
#include "train/anchors.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/fit.h"
#include "train/loss.h"
#include "train/metrics.h"
#include "train/taps.h"

struct fit {
    int dir_fd; /* of the run's folder, locked; -1 */
    size_t
        was; /* length of the part of its path that was there before; 0: none, or not looked at */
    struct fit_options o; /* with defaults resolved */
    struct data_set *data;
    uint32_t *train, *held; /* numbers of samples */
    uint32_t n_train, n_held;
    struct model_file *target;
    struct train_par par;
    struct train_model m; /* m.p is state.param */
    struct train_state state;
    struct train_work w;
    struct train_order order;
    struct taps *taps;
    struct metrics metrics;
    json_t *recipe;
    double running;   /* mean of P1's loss, for spikes */
    uint64_t skipped; /* steps without any label */
    /* Of a step, [batch] each. */
    struct taps_want *want;
    struct train_item *items;
    uint8_t **masks;
    uint32_t **anchors;
    float **features;
    float **soft;
    int32_t **soft_ids;
};

/* fit_setup.c: everything up to the first step; resumes when o.out holds a checkpoint. */
int fit_open(struct fit *f, const struct fit_options *o, struct error *err);
void fit_close(struct fit *f);
/* A line on the terminal, unless o.quiet. */
void fit_say(const struct fit *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* fit_memory.c: the target and its features, LIMIT when memory_limit would be passed; buffers of a
 * step; the sizes of the taps. */
int fit_taps(struct fit *f, struct error *err);
/* Of one sequence. */
size_t fit_feature_bytes(const struct fit *f);
int fit_buffers(struct fit *f, struct error *err);
int fit_measure(struct fit *f, struct error *err);
/* fit.c: sample numbers into a batch that w has begun; *ret_tokens: context tokens of it. */
int fit_batch(struct fit *f, const uint32_t *samples, uint32_t n, uint64_t step,
              struct train_batch *ret, uint64_t *ret_tokens, struct error *err);
/* recipe.c: what of the options a checkpoint fixes, and whether two agree (MISMATCH names the
 * field). */
json_t *recipe_of(const struct fit_options *o, uint64_t data_hash);
int recipe_same(const json_t *have, const json_t *want, const char *where, struct error *err);
/* What of a drafter's shape the options name must be what the one from `where` has. */
int recipe_shape(const struct fit_options *o, const struct train_shape *s, const char *where,
                 struct error *err);
