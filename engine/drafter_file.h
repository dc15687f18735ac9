/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drafter on disk: a DFlash checkpoint, as a Hugging Face folder with the authors' fields and names
 * or as a GGUF file of architecture "dflash".  It is a model_file whose configuration has a
 * drafter_config, opened next to the target that it drafts for: sizes, taps and ids are checked
 * against it.  Nothing is guessed that changes what a row of the block means.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/model_file.h"

/* What the name of a drafter ends in that lies beside its model: a GGUF file, and a folder. */
#define DRAFTER_END_FILE   ".drafter.gguf"
#define DRAFTER_END_FOLDER ".drafter"
/* Both, in the order in which they are looked for. */
#define DRAFTER_ENDS            ((const char *const[]){DRAFTER_END_FILE, DRAFTER_END_FOLDER})

#define DRAFTER_HF_ARCHITECTURE "DFlashDraftModel"
#define DRAFTER_ARCH            "dflash" /* of a GGUF file */

#define DRAFTER_MAX_TAPS        64u
#define DRAFTER_MAX_LAYERS      64u
#define DRAFTER_MAX_BLOCK       1024u

/* Which rows of its block a row sees, beside all of the context: by layer (all rows in layers with full
 * attention, those up to itself in layers with a sliding window), or the same in every layer. */
enum drafter_causal { DRAFTER_BY_LAYER, DRAFTER_CAUSAL, DRAFTER_BIDIRECTIONAL };

struct drafter_config {
    uint32_t block_size; /* rows of the block that it was trained with, the anchor included */
    uint32_t mask_token;
    uint32_t n_taps;
    uint32_t
        tap_layers[DRAFTER_MAX_TAPS]; /* the residual stream after these target layers, ascending */
    uint32_t target_hidden;           /* width of a tap */
    uint32_t draft_vocab;             /* rows of its head */
    bool own_embed, own_head;         /* else the target's */
    const uint32_t *target_ids;       /* [draft_vocab]: row of the head -> token; NULL: the same */
    uint32_t window;                  /* positions that layers in `sliding` see; 0: none */
    uint64_t sliding;                 /* bit l: layer l */
    enum drafter_causal causal;
};

/*
 * Opens and checks a drafter for this target.  FORMAT, MISMATCH and UNSUPPORTED name the file, the key
 * or tensor, and the rule.  In the result, roles that the file leaves to the target have no tensor
 * (MT_EMBED, MT_HEAD), and model_file_config(f)->drafter is set.
 */
int drafter_file_open(const char *path, const struct model_config *target, struct model_file **ret,
                      struct error *err);
/* Whether a GGUF file or a folder says that it is a drafter; what else it says is not looked at. */
int drafter_file_is(const char *path, bool *ret, struct error *err);
/*
 * A drafter that lies beside its target: for /m/x.gguf and for the folder /m/x the file /m/x.drafter.gguf
 * or the folder /m/x.drafter.  *ret is NULL when there is none, else the caller's.
 */
int drafter_beside(const char *model_path, char **ret, struct error *err);
/* Part: config.json alone. */
struct js_obj;
int drafter_hf_config(const struct js_obj *o, const struct model_config *target,
                      struct model_config *ret, struct drafter_config *ret_drafter,
                      struct error *err);
/* What holds for both forms once everything is read. */
int drafter_config_check(const struct model_config *c, const struct drafter_config *d,
                         const struct model_config *target, const char *file, struct error *err);
/* The taps of a file that names none: n layers spread evenly, as the authors' program does. */
int drafter_default_taps(struct drafter_config *d, uint32_t n, uint32_t target_layers,
                         const char *file, struct error *err);
/* A folder's config.json and model.safetensors in memory, and a GGUF drafter; the data outlives the
 * object (tests, fuzzing). */
int drafter_parse_hf(const char *config, size_t config_len, const void *data, size_t size,
                     const struct model_config *target, struct model_file **ret, struct error *err);
int drafter_parse_gguf(const void *data, size_t size, const char *name,
                       const struct model_config *target, struct model_file **ret,
                       struct error *err);
