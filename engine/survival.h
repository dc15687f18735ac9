/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far drafts come, as far as that is known before they are verified: the drafter's confidence in a
 * path against how often such paths were right (by the pass that drafted them, and by depth), and, for
 * what is not drafted yet, how often the first, second, ... best node of a tree was expected to be right,
 * by window and pass.  Old observations fade.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/method.h"
#include "engine/proposal.h"

struct js_obj;
struct strbuf;

#define SURVIVAL_NODES   31u /* of a tree, in order of worth */
#define SURVIVAL_WINDOWS 3u  /* the drafter's own, about 3/4, about half */
#define SURVIVAL_MATCHES 4u  /* lengths of an n-gram match */
#define SURVIVAL_BINS    14  /* of confidence */
#define SURVIVAL_DEPTHS  3   /* 1, 2, deeper */
#define SURVIVAL_PASSES  3   /* 1, 2, later */

struct odds {
    double hits, n;
};
struct curve {
    float reach[SURVIVAL_NODES]; /* falling */
    uint32_t n;                  /* proposals that it was made of */
};
struct survival {
    struct odds bin[SURVIVAL_BINS];
    struct odds cell[SURVIVAL_PASSES][SURVIVAL_DEPTHS][SURVIVAL_BINS];
    struct odds match[SURVIVAL_MATCHES];
    struct curve curve[SURVIVAL_WINDOWS][DRAFT_MAX_PASSES];
    uint64_t of; /* which target and drafter all this is of, see calibration_models() */
};

/* Probability of each token of an n-gram's continuation after a match of that length, given those
 * before it. */
float survival_match(const struct survival *s, uint32_t match);
/* Writes how probably the walk comes to each of the first nodes (at most SURVIVAL_NODES) of a drafter's
 * proposal after so many passes; never rising.  Returns their number. */
uint32_t survival_reach(const struct survival *s, uint32_t passes, const struct proposal *p,
                        float *reach);
/* What verification found: right[i] of the first n nodes; node `unused` (if it is one) was cut off, and
 * what was known of the likes of it fades, so that it is tried again one day. */
void survival_learn(struct survival *s, uint32_t passes, const struct proposal *p, uint32_t n,
                    const bool *right);
void survival_learn_match(struct survival *s, uint32_t match, uint32_t n, const bool *right);
void survival_forget(struct survival *s, uint32_t passes, const struct proposal *p,
                     uint32_t unused);
void survival_forget_match(struct survival *s, uint32_t match);

/* A proposal of window class w after `passes` passes was expected to reach so far. */
void survival_add(struct survival *s, uint32_t w, uint32_t passes, const float *reach, uint32_t n);
/* What a proposal may be expected to reach; unknown ones are guessed from their neighbours. */
void survival_expect(const struct survival *s, uint32_t w, uint32_t passes, float *reach);
/* reach after one pass more, of a proposal that has had `passes`; false: it is not known what that
 * does. */
bool survival_next(const struct survival *s, uint32_t w, uint32_t passes, const float *reach,
                   uint32_t n, float *ret);

/* ---- on disk (survival_file.c) -------------------------------------------------------------------- */

/* One JSON object, on the end of b. */
int survival_write(const struct survival *s, struct strbuf *b);
/* Of such an object, when it is of the models that ret->of names; else *ret stays as it is.  An error
 * names the file and the entry, and leaves *ret alone. */
int survival_read(const struct js_obj *o, struct survival *ret, struct error *err);
