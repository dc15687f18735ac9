/* SPDX-License-Identifier: Apache-2.0 */
/* A target and its drafter, on the emulated device or on the CPU, and what the tests of their rounds share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/method.h"
#include "engine/proposal.h"

struct engine;
struct seq;

#define PAIR_N      90u /* positions of a text; more than a graph takes at once */
#define PAIR_W      8u
#define PAIR_ROUNDS 12u

float *pair_floats(size_t n); /* free() them */

struct text {
    struct engine *e;
    struct seq *s;
    float *host; /* taps of all positions; NULL: they stay on the device */
};
struct text pair_text_of(const char *device, const char *model, const char *drafter, bool host);
struct text pair_text(const char *device, bool host); /* the fitted pair */
void pair_free(struct text *t);
size_t pair_row_floats(const struct engine *e); /* of taps */
/* Positions [from, from + n) through the target; logits of the last one, if wanted. */
int pair_feed(struct text *t, uint32_t from, uint32_t n, float *logits, struct error *err);
int pair_inject(struct text *t, uint32_t from, uint32_t n, struct error *err);
/* A block behind the first n positions: its logits say what the drafter knows of them. */
void pair_run_block(struct text *t, uint32_t n, float *logits);
size_t pair_block_floats(const struct text *t);

struct rounds {
    uint32_t n;
    struct proposal proposals[PAIR_ROUNDS];
    struct draft_round r[PAIR_ROUNDS];
};
/* One of each kind, behind the first pos positions. */
struct rounds *pair_rounds(struct text *t, uint32_t pos, const struct draft_round *kinds,
                           uint32_t n);
void pair_rounds_free(struct rounds *a);
/* One call for all of the first n that are not done. */
int pair_pass(struct text *t, struct rounds *a, uint32_t n, struct error *err);
bool pair_rounds_done(const struct rounds *a);
/* All are done, with the same bits. */
void pair_rounds_same(const struct text *t, const struct rounds *a, const struct rounds *b);
/* Waits of the host for the emulated device since *before, which becomes now. */
uint64_t pair_waits_since(uint64_t *before);
