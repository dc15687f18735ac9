/* SPDX-License-Identifier: Apache-2.0 */
/* Options that every program with an engine in its process has, and where the default model lies. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/options.h"
#include "engine/chat.h"
#include "engine/engine.h"

struct engine_options {
    const char *model;                                /* NULL: the default model */
    bool tier_given, drafter_dtype_given, no_drafter; /* no_drafter: "none" was given */
    struct engine_config config;
    char beside[4096]; /* drafter that nobody named: config.drafter then */
};
enum {
    ENGINE_OPT_MODEL = 1000,
    ENGINE_OPT_TIER,
    ENGINE_OPT_THREADS,
    ENGINE_OPT_KV_DTYPE,
    ENGINE_OPT_DTYPE,
    ENGINE_OPT_EXACT,
    ENGINE_OPT_CONTEXT,
    ENGINE_OPT_DRAFTER,
    ENGINE_OPT_DRAFTER_DTYPE
};
/* Every such program's; then --drafter, of commands that call engine_options_beside() and of others. */
extern const struct option_def engine_option_defs[], engine_drafter_beside_defs[],
    engine_drafter_defs[];
void engine_options_init(struct engine_options *e);
/* 1 when id is one of them and was taken, 0 when it is another's, negative on error. */
int engine_options_set(struct engine_options *e, int id, const char *arg, struct error *err);
/* The value of a program's own --chat-format; *given tells that there was one. */
int engine_option_chat_format(const char *arg, enum chat_format *ret, bool *given,
                              struct error *err);
/* Takes a drafter that lies beside the model, unless one was named, or "none"; before engine_options_tier(). */
int engine_options_beside(struct engine_options *e, const char *model, struct error *err);
/* After the options: what has to stand together; the tier of DEDIT_CPU_TIER unless --tier was given, the
 * number of threads. */
int engine_options_tier(struct engine_options *e, struct error *err);
/* Loads the model. */
int engine_options_open(const struct engine_options *e, const char *path, struct engine **ret,
                        struct error *err);
/* Path of the default model, where models/fetch puts it: the user's cache, else the system's
 * folder.  NOT_FOUND says how to get it.  buf: PATH_MAX bytes. */
int engine_default_model(char *buf, size_t size, struct error *err);
