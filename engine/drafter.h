/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block drafter that is loaded beside its target: context features into K/V, passes over blocks of
 * several requests, and what becomes of their logits: drafts, confidences, trees.  Plugs into the
 * scheduler as engine/method.h says.  Nothing here can change a text; but what it drafts is the
 * same bits whatever the batch, the threads and the tier, like everything else.
 *
 * A pass: rows [anchor, MASK...] or, in edit passes, [anchor, the last pass's tokens].  Row k of the
 * block predicts the token at its own position s + k; row 0 predicts nothing.  Block rows see all of the
 * context, and of the block what drafter_config.causal, or an edit pass's wish, says.  Their K/V live
 * in slots of their own and are gone after the pass.
 */
#pragma once

#include "engine/backend.h"
#include "engine/drafter_file.h"
#include "engine/method.h"
#include "engine/seq.h"

struct drafter;

/* Loads the drafter at path for the model `target` of backend b, loaded with options o; all of them
 * outlive it. */
int drafter_new(const char *path, const struct backend *b, struct backend_model *target,
                const struct model_file *target_file, const struct backend_options *o,
                enum backend_dtype dtype, struct drafter **ret, struct error *err);
/* The same with a file that is open; it is taken, also on failure. */
int drafter_new_file(struct model_file *take, const struct backend *b, struct backend_model *target,
                     const struct model_file *target_file, const struct backend_options *o,
                     enum backend_dtype dtype, struct drafter **ret, struct error *err);
struct drafter *drafter_free(struct drafter *d); /* NULL */
DEFINE_CLEANUP(struct drafter *, drafter_free);

const struct drafter_config *drafter_get_config(const struct drafter *d);
const struct model_file *drafter_get_file(const struct drafter *d);
void drafter_memory(const struct drafter *d, struct backend_memory *ret);
/* Bytes that drafter_new would take. */
int drafter_plan(const char *path, const struct backend *b, const struct model_file *target_file,
                 const struct backend_options *o, enum backend_dtype dtype, uint64_t *ret_bytes,
                 struct error *err);
/* What the scheduler sees; valid as long as d. */
struct block_drafter drafter_ops(struct drafter *d);

/* ---- parts (tests, checks) ------------------------------------------------------------------- */

/* One block: n tokens, the anchor at position `start` first; the context, positions 0 .. start - 1, in
 * the slots of `blocks`. */
struct drafter_block {
    const uint32_t *tokens;
    uint32_t n, start;
    const uint32_t *blocks;
    bool causal;      /* an edit pass that sees only earlier rows of the block */
    bool next_causal; /* the passes behind this one are, where several are run at once */
    uint32_t first;   /* first row whose logits are wanted */
    float *logits;    /* [n - first][draft_vocab]; NULL: none */
};
/* One pass over blocks with at most max_rows rows together. */
int drafter_run(struct drafter *d, const struct drafter_block *b, uint32_t n, struct error *err);
/* Context features; see backend.h. */
int drafter_inject(struct drafter *d, const struct ctx_row *rows, uint32_t n, struct error *err);
uint32_t drafter_max_rows(const struct drafter *d);
