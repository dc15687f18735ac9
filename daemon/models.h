/* SPDX-License-Identifier: Apache-2.0 */
/* The models that the daemon knows, loaded or not.  Loop thread; loading happens on the loader's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/config.h"
#include "daemon/engine-thread.h"
#include "daemon/fair.h"

struct server;
struct peer;

enum model_state { MODEL_UNLOADED, MODEL_LOADING, MODEL_READY, MODEL_DRAINING, MODEL_FAILED };
const char *model_state_name(enum model_state s);

/* A peer's LoadModel or UnloadModel that is answered when the model has settled. */
struct model_waiter {
    struct model_waiter *next;
    struct peer *peer; /* NULL once it is gone */
    uint64_t tag;
    bool unload;
};

struct model {
    struct model *next;
    char *name, *path;
    struct model_config_entry config; /* own copies of the strings */
    bool configured;                  /* in the configuration; else made by LoadModel */
    bool is_default;
    enum model_state state;
    struct served *served;            /* READY, DRAINING */
    const struct tokenizer *tokenizer; /* of the served engine, immutable */
    enum chat_format format;
    bool has_format;
    uint32_t vocab, max_context, max_running;
    struct backend_memory memory;
    char device_note[256]; /* engine_device_note(), or "" */
    char numeric_class[64], family[16], drafter[128]; /* "" without a drafter */
    struct error error;               /* of the last load */
    uint32_t progress_percent;        /* relaxed atomic, written by the loader */
    struct fair_queue waiting;        /* WAITING for the load */
    struct fair_queue queue;          /* QUEUED */
    uint32_t running;                 /* jobs that the engine thread has */
    uint32_t preparing;               /* jobs whose worker uses the tokenizer */
    uint64_t last_used_ns;
    struct { /* counters of engines that are gone, so that totals never go back */
        uint64_t steps, prompt_tokens, generation_tokens, cached_tokens, prefix_queries, preemptions;
    } past;
    struct model_waiter *waiters;
    bool load_waits;                  /* LOADING, but an eviction must end first */
    bool evicted;                     /* DRAINING to make room: requests wait, and load it again */
    uint64_t loaded_ns;               /* when it became READY */
    uint64_t failed_ns;               /* when its last load failed */
    bool detaching;                   /* the engine thread is freeing the engine */
};

int models_init(struct server *s, struct error *err);  /* from the configuration; preloads */
int models_apply(struct server *s, struct error *err); /* a new configuration */
void models_load_task(void *task);                     /* the loader's work */
void models_done(struct server *s);
/* Waits for the loader and the engine thread to give everything back (part of models_done). */
void models_stop(struct server *s);
/* name NULL or "": the default model.  NULL: no such model. */
struct model *models_find(struct server *s, const char *name);
uint32_t models_loaded(const struct server *s); /* loading ones included */
uint64_t models_memory(const struct server *s);
/* Starts loading; evicts idle models where max_models or memory_limit ask for it.  When every loaded
 * model is in use: BUSY, or with `wait` the one that was loaded first takes no more requests and goes
 * when its last one has ended.  A load that fails later changes nothing else. */
int models_load(struct server *s, struct model *m, bool wait, struct error *err);
/* A model for LoadModel{name, path}: known by name, or new. */
int models_add(struct server *s, const char *name, const char *path, const char *drafter,
               struct model **ret,
               struct error *err);
/* No new jobs; unloads when the last one has ended. */
void models_unload(struct server *s, struct model *m);
/* Continues an unload (called whenever a job of the model ends). */
void models_settle(struct server *s, struct model *m);
int model_add_waiter(struct model *m, struct peer *p, uint64_t tag, bool unload, struct error *err);
void models_forget_peer(struct server *s, struct peer *p);
/* Readers of the loader's and the engine thread's reports. */
void models_on_loaded(struct server *s);
void models_on_detached(struct server *s, struct served *served);
