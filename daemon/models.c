/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of models: which there are, and which is the default. */
#include "daemon/models.h"

#include <string.h>

#include "base/alloc.h"
#include "daemon/peer.h"
#include "daemon/server.h"

const char *model_state_name(enum model_state s)
{
    static const char *const names[] = {
        [MODEL_UNLOADED] = "unloaded", [MODEL_LOADING] = "loading", [MODEL_READY] = "ready",
        [MODEL_DRAINING] = "draining", [MODEL_FAILED] = "failed",
    };
    return names[s];
}

/* ---- the list -------------------------------------------------------------------------------------------- */

static void model_free(struct model *m)
{
    for (struct model_waiter *w = m->waiters, *next; w; w = next) {
        next = w->next;
        mem_free(w);
    }
    mem_free(m->name);
    mem_free(m->path);
    mem_free(m->config.chat_format);
    mem_free(m->config.drafter);
    mem_free(m->config.device);
    mem_free(m);
}

static int set_config(struct model *m, const struct model_config_entry *e)
{
    char *path = mem_strdup(e->path);
    char *format = e->chat_format ? mem_strdup(e->chat_format) : NULL;
    char *drafter = e->drafter ? mem_strdup(e->drafter) : NULL;
    char *device = mem_strdup(e->device ? e->device : "auto");
    if (!path || (e->chat_format && !format) || (e->drafter && !drafter) || !device) {
        mem_free(path);
        mem_free(format);
        mem_free(drafter);
        mem_free(device);
        return DEDIT_E_NOMEM;
    }
    mem_free(m->path);
    mem_free(m->config.chat_format);
    mem_free(m->config.drafter);
    mem_free(m->config.device);
    m->path = path;
    m->config = *e;
    m->config.name = NULL; /* m->name, m->path are the model's own */
    m->config.path = NULL;
    m->config.place = (struct config_place){0};
    m->config.origins = NULL;
    m->config.chat_format = format;
    m->config.drafter = drafter;
    m->config.device = device;
    return 0;
}

static int add_model(struct server *s, const struct model_config_entry *e, struct model **ret,
                     struct error *err)
{
    struct model *m = mem_zalloc(sizeof *m);
    if (m)
        m->name = mem_strdup(e->name);
    if (!m || !m->name || set_config(m, e) < 0) {
        if (m)
            model_free(m);
        return ERR_NOMEM(err);
    }
    struct model **p = &s->models;
    while (*p)
        p = &(*p)->next;
    *p = m;
    *ret = m;
    return 0;
}

struct model *models_find(struct server *s, const char *name)
{
    bool any = !name || !*name;
    for (struct model *m = s->models; m; m = m->next)
        if (any ? m->is_default : strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

static void set_default(struct server *s)
{
    const char *want = s->config->default_model;
    bool found = false;
    for (struct model *m = s->models; m; m = m->next) {
        m->is_default = !found && m->configured && (!want || strcmp(m->name, want) == 0);
        found |= m->is_default;
    }
    if (!found && s->models)
        s->models->is_default = true;
}

int models_apply(struct server *s, struct error *err)
{
    const struct config *c = s->config;
    for (struct model *m = s->models; m; m = m->next)
        m->configured = false;
    for (size_t i = 0; i < c->n_models; i++) {
        struct model *m = models_find(s, c->models[i].name);
        /* A loaded model keeps what it was loaded with until it is loaded again. */
        int r = m ? set_config(m, &c->models[i]) : add_model(s, &c->models[i], &m, err);
        if (r < 0)
            return ERR_NOMEM(err);
        m->configured = true;
    }
    /* What the new configuration does not name any more goes when nobody uses it. */
    for (struct model **p = &s->models; *p;) {
        struct model *m = *p;
        /* The loader's task or the engine thread's report may still name it. */
        bool named = m->served || m->detaching || m->state == MODEL_LOADING;
        if (!m->configured && !named && !m->waiting.len) {
            *p = m->next;
            model_free(m);
            continue;
        }
        if (!m->configured && m->state == MODEL_READY)
            models_unload(s, m);
        p = &m->next;
    }
    set_default(s);
    return 0;
}

int models_init(struct server *s, struct error *err)
{
    int r = models_apply(s, err);
    for (struct model *m = s->models; m && r == 0; m = m->next)
        if (m->config.preload)
            r = models_load(s, m, false, err);
    return r;
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

int models_add(struct server *s, const char *name, const char *path, const char *drafter,
               struct model **ret, struct error *err)
{
    drafter = drafter && *drafter ? drafter : NULL;
    if (!name || !*name)
        return ERR(err, INVALID, "name: must be set together with path");
    struct model *m = models_find(s, name);
    if (m && strcmp(m->path, path) != 0)
        return ERR(err, BUSY, "model: %s is known already, with the path %s", name, m->path);
    if (m && drafter && !same_text(m->config.drafter, drafter))
        return ERR(err, BUSY, "model: %s is known already, with the drafter %s", name,
                   m->config.drafter ? m->config.drafter : "that lies beside it, if there is one");
    if (!m) {
        struct model_config_entry e = {.name = (char *)(uintptr_t)name,
                                       .path = (char *)(uintptr_t)path,
                                       .drafter = (char *)(uintptr_t)drafter};
        engine_config_init(&e.engine);
        e.engine.n_threads = s->config->threads;
        e.engine.tier = s->config->tier;
        e.engine.exact = s->config->exact;
        int r = add_model(s, &e, &m, err);
        if (r < 0)
            return r;
        m->config.on_demand = true;
        set_default(s);
    }
    *ret = m;
    return 0;
}

int model_add_waiter(struct model *m, struct peer *p, uint64_t tag, bool unload, struct error *err)
{
    struct model_waiter *w = mem_zalloc(sizeof *w);
    if (!w)
        return ERR_NOMEM(err);
    w->peer = p;
    w->tag = tag;
    w->unload = unload;
    w->next = m->waiters;
    m->waiters = w;
    return 0;
}

void models_forget_peer(struct server *s, struct peer *p)
{
    for (struct model *m = s->models; m; m = m->next)
        for (struct model_waiter *w = m->waiters; w; w = w->next)
            if (w->peer == p)
                w->peer = NULL;
}

void models_done(struct server *s)
{
    models_stop(s);
    while (s->models) {
        struct model *next = s->models->next;
        model_free(s->models);
        s->models = next;
    }
}
