/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training state on disk: one safetensors file with a checksum,
 *   meta        U8: JSON text {"dedit_checkpoint": 1, "step": ..., "shape": {...}, "recipe": {...}}
 *   target_ids  U32 [draft_vocab], ascending
 *   tap_scale   F32 [taps]
 *   param.NAME, adam_m.NAME, adam_v.NAME, average.NAME (unless averaging is off)   F32
 * Nothing that a file says is trusted: names, shapes and finite values are checked.
 */
#pragma once

#include "engine/json.h"
#include "train/state.h"

struct train_state {
    struct train_shape shape;
    struct train_layout layout;
    uint32_t *target_ids;
    float tap_scale[DRAFTER_MAX_TAPS]; /* factor of each tap before fc */
    float *param, *m, *v, *average;    /* average: NULL when there is none */
    uint64_t step;                     /* steps done */
    uint64_t updates;                  /* of the optimiser: steps less those without any label */
    json_t *recipe;                    /* the options that made it */
    char target[128];                  /* name of the model */
};
void train_state_done(struct train_state *s);
#define _cleanup_state_ _cleanup_(train_state_done)
/* Arrays of the shape's sizes, zero. */
int train_state_alloc(struct train_state *s, bool average, struct error *err);

int checkpoint_write(const char *path, const struct train_state *s, struct error *err);
int checkpoint_read(const char *path, struct train_state *ret, struct error *err);
/* From memory (fuzzing). */
int checkpoint_parse(const void *data, size_t size, const char *name, struct train_state *ret,
                     struct error *err);

/* The tap layers as an array; NULL when memory ran out. */
json_t *train_taps_json(const struct train_shape *s);
/* The text of a value, which is taken (NULL too); NULL when memory ran out. */
char *train_json_text(json_t *take, size_t flags);

/* Folder: "step-000001234.safetensors".  The newest one that reads; those that do not are passed
 * over and named through `skipped`.  NOT_FOUND when there is none. */
int checkpoint_newest(const char *folder, struct train_state *ret, char **ret_path,
                      void (*skipped)(void *arg, const char *why), void *arg, struct error *err);
int checkpoint_write_in(const char *folder, const struct train_state *s, uint32_t keep,
                        struct error *err);
/* A checkpoint's file, or a folder's newest. */
int checkpoint_open(const char *path, struct train_state *ret, struct error *err);
