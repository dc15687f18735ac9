/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of models: load, on demand or by order; evict; unload once the last job has ended. */
#include "daemon/models.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mapguard.h"
#include "daemon/peer.h"
#include "daemon/server.h"

/* One load: made by the loop, worked on by the loader, read by the loop. */
struct load_task {
    struct model *model;
    char *path, *drafter;
    struct engine_config config;
    struct engine *engine;
    struct error error;
};

static void task_free(struct load_task *t)
{
    if (!t)
        return;
    mem_free(t->path);
    mem_free(t->drafter);
    mem_free(t);
}

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
    mem_free(m);
}

static int set_config(struct model *m, const struct model_config_entry *e)
{
    char *path = mem_strdup(e->path);
    char *format = e->chat_format ? mem_strdup(e->chat_format) : NULL;
    char *drafter = e->drafter ? mem_strdup(e->drafter) : NULL;
    if (!path || (e->chat_format && !format) || (e->drafter && !drafter)) {
        mem_free(path);
        mem_free(format);
        mem_free(drafter);
        return DEDIT_E_NOMEM;
    }
    mem_free(m->path);
    mem_free(m->config.chat_format);
    mem_free(m->config.drafter);
    m->path = path;
    m->config = *e;
    m->config.name = NULL; /* m->name, m->path are the model's own */
    m->config.path = NULL;
    m->config.chat_format = format;
    m->config.drafter = drafter;
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
        if (!m->configured && !m->served && m->state != MODEL_LOADING && !m->waiting.len) {
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

int models_add(struct server *s, const char *name, const char *path, struct model **ret,
               struct error *err)
{
    if (!name || !*name)
        return ERR(err, INVALID, "name: must be set together with path");
    struct model *m = models_find(s, name);
    if (m && strcmp(m->path, path) != 0)
        return ERR(err, BUSY, "model: %s is known already, with the path %s", name, m->path);
    if (!m) {
        struct model_config_entry e = {.name = (char *)(uintptr_t)name,
                                       .path = (char *)(uintptr_t)path};
        engine_config_init(&e.engine);
        e.engine.n_threads = s->config->threads;
        int r = dk_tier_choose(s->config->cpu_tier, &e.engine.tier, err);
        if (r == 0)
            r = add_model(s, &e, &m, err);
        if (r < 0)
            return r;
        m->config.on_demand = true;
        set_default(s);
    }
    *ret = m;
    return 0;
}

/* ---- loading ----------------------------------------------------------------------------------------------- */

static bool counts(const struct model *m)
{
    return m->served || (m->state == MODEL_LOADING && !m->load_waits);
}

uint32_t models_loaded(const struct server *s)
{
    uint32_t n = 0;
    for (const struct model *m = s->models; m; m = m->next)
        n += counts(m);
    return n;
}

static uint64_t memory_of(const struct model *m)
{
    return m->memory.packed_bytes + m->memory.kv_bytes + m->memory.scratch_bytes;
}

uint64_t models_memory(const struct server *s)
{
    uint64_t n = 0;
    for (const struct model *m = s->models; m; m = m->next)
        if (m->served)
            n += memory_of(m);
    return n;
}

/* Loaded, and nobody uses it: the one whose last use is longest ago. */
static struct model *least_recently_used(struct server *s)
{
    struct model *best = NULL;
    for (struct model *m = s->models; m; m = m->next) {
        bool idle = m->state == MODEL_READY && !m->running && !m->queue.len && !m->preparing;
        if (idle && (!best || m->last_used_ns < best->last_used_ns))
            best = m;
    }
    return best;
}

static bool any_draining(const struct server *s)
{
    for (const struct model *m = s->models; m; m = m->next)
        if (m->state == MODEL_DRAINING)
            return true;
    return false;
}

static void on_progress(void *arg, const char *phase, uint64_t done, uint64_t total)
{
    struct model *m = arg;
    (void)phase;
    if (total)
        __atomic_store_n(&m->progress_percent, (uint32_t)(done * 100 / total), __ATOMIC_RELAXED);
}

/* Loader thread. */
void models_load_task(void *object)
{
    struct load_task *t = object;
    uint64_t faults = map_guard_faults();
    engine_new(t->path, &t->config, on_progress, t->model, &t->engine, &t->error);
    if (map_guard_faults() == faults)
        return;
    t->engine = engine_free(t->engine); /* zeros were read where weights had been */
    ERR(&t->error, IO, "%s: a file became shorter while it was read", t->path);
}

/* Everything is in use: the model that was loaded first takes no more requests. */
static void drain_oldest(struct server *s)
{
    struct model *best = NULL;
    for (struct model *m = s->models; m; m = m->next)
        if (m->state == MODEL_READY && (!best || m->loaded_ns < best->loaded_ns))
            best = m;
    if (!best)
        return; /* all are loading: again when one is ready */
    best->evicted = true;
    models_unload(s, best);
}

/* Room for one more?  0 yes; 1 once an eviction that was begun is over; BUSY never. */
static int make_room(struct server *s, struct model *m, struct error *err)
{
    if (models_loaded(s) - (counts(m) ? 1 : 0) < s->config->max_models)
        return 0;
    struct model *victim = least_recently_used(s);
    if (victim) {
        victim->evicted = true;
        models_unload(s, victim);
        return 1;
    }
    if (any_draining(s))
        return 1;
    return ERR(err, BUSY, "max_models: %u models are loaded and in use, the limit is %u",
               models_loaded(s), s->config->max_models);
}

static bool another_loads(const struct server *s, const struct model *m)
{
    for (const struct model *k = s->models; k; k = k->next)
        if (k != m && k->state == MODEL_LOADING && !k->load_waits)
            return true;
    return false;
}

static int start_load(struct server *s, struct model *m, struct error *err)
{
    /* What is left of the memory is known when the load before it has ended. */
    if (s->config->memory_limit && another_loads(s, m)) {
        m->load_waits = true;
        return 0;
    }
    struct load_task *t = mem_zalloc(sizeof *t);
    if (!t || !(t->path = mem_strdup(m->path)) ||
        (m->config.drafter && !(t->drafter = mem_strdup(m->config.drafter)))) {
        task_free(t);
        return ERR_NOMEM(err);
    }
    t->model = m;
    t->config = m->config.engine;
    t->config.drafter = t->drafter;
    uint64_t used = models_memory(s), limit = s->config->memory_limit;
    if (limit)
        t->config.memory_limit = limit > used ? limit - used : 1;
    if (!worker_give(s->loader, t)) {
        task_free(t);
        return ERR(err, BUSY, "too many models are being loaded");
    }
    m->load_waits = false;
    m->progress_percent = 0;
    return 0;
}

int models_load(struct server *s, struct model *m, bool wait, struct error *err)
{
    int r = make_room(s, m, err);
    if (r < 0 && !wait)
        return r;
    if (r < 0) {
        drain_oldest(s);
        r = 1;
    }
    m->state = MODEL_LOADING;
    m->load_waits = r > 0; /* begun by retry_loads */
    if (r == 0) {
        r = start_load(s, m, err);
        if (r < 0) {
            m->state = MODEL_FAILED;
            m->error = *err;
        }
    }
    return r > 0 ? 0 : r;
}

static void answer_waiters(struct model *m, bool unload, const struct error *e)
{
    struct model_waiter **p = &m->waiters;
    while (*p) {
        struct model_waiter *w = *p;
        if (w->unload != unload) {
            p = &w->next;
            continue;
        }
        *p = w->next;
        if (w->peer && e)
            peer_send_error(w->peer, w->tag, e);
        else if (w->peer)
            peer_send_ok(w->peer, w->tag);
        mem_free(w);
    }
}

static void fail_load(struct server *s, struct model *m, const struct error *e)
{
    m->state = MODEL_FAILED;
    m->load_waits = false;
    m->error = *e;
    answer_waiters(m, false, e);
    server_model_settled(s, m);
}

/* Loads that wait for room. */
static void retry_loads(struct server *s)
{
    for (struct model *k = s->models; k; k = k->next) {
        struct error err = {0};
        if (k->state != MODEL_LOADING || !k->load_waits)
            continue;
        bool preload = k->config.preload && !k->loaded_ns;
        if (!preload && !k->waiting.len && !k->waiters) { /* nobody wants it any more */
            k->state = MODEL_UNLOADED;
            k->load_waits = false;
            continue;
        }
        int r = make_room(s, k, &err);
        if (r < 0)
            drain_oldest(s);
        if (r != 0)
            continue;
        if (start_load(s, k, &err) < 0)
            fail_load(s, k, &err);
    }
}

/* memory_limit: does the eviction of a model that nobody uses help?  Then the load is tried again. */
static bool evict_for_memory(struct server *s, struct model *m, const struct error *e)
{
    struct model *victim = NULL;
    if (e->code != DEDIT_E_LIMIT || !s->config->memory_limit || s->stopping)
        return false;
    victim = least_recently_used(s);
    if (!victim)
        return false;
    m->load_waits = true;
    victim->evicted = true;
    models_unload(s, victim);
    return true;
}

static int serve(struct server *s, struct model *m, struct engine *e, struct error *err)
{
    struct served *v = mem_zalloc(sizeof *v);
    struct error no_format = {0};
    if (!v)
        return ERR_NOMEM(err);
    v->engine = e;
    v->model = m;
    m->tokenizer = engine_tokenizer(e);
    m->vocab = engine_model_config(e)->vocab_size;
    m->max_context = engine_get_config(e)->max_context;
    m->max_running = engine_get_config(e)->max_num_seqs;
    engine_memory(e, &m->memory);
    snprintf(m->numeric_class, sizeof m->numeric_class, "%s", engine_class(e));
    snprintf(m->family, sizeof m->family, "%s", model_family_name(engine_model_config(e)->family));
    if (m->config.chat_format)
        m->has_format = chat_format_parse(m->config.chat_format, &m->format);
    else
        m->has_format = engine_chat_format(e, &m->format, &no_format) == 0;
    if (!engine_thread_order(s->engines, ORDER_ATTACH, v, 0)) {
        mem_free(v);
        return ERR(err, INTERNAL, "the engine's queue is full");
    }
    m->served = v;
    return 0;
}

void models_on_loaded(struct server *s)
{
    struct queue *q = worker_results(s->loader);
    struct message msg;
    queue_awake(q);
    do
        while (queue_pop(q, &msg)) {
            struct load_task *t = msg.object;
            struct model *m = t->model;
            int r = t->engine ? serve(s, m, t->engine, &t->error) : t->error.code;
            bool again = r < 0 && !t->engine && evict_for_memory(s, m, &t->error);
            if (again) {
                log_write(LOG_LEVEL_INFO, "model", NULL, "%s waits for memory: %s", m->name,
                          t->error.msg);
            } else if (r < 0) {
                engine_free(t->engine);
                fail_load(s, m, &t->error);
                log_write(LOG_LEVEL_ERR, "model", NULL, "loading %s failed: %s", m->name,
                          t->error.msg);
            } else {
                m->state = MODEL_READY;
                m->evicted = false;
                m->loaded_ns = m->last_used_ns = clock_now_ns();
                log_write(LOG_LEVEL_INFO, "model", NULL, "%s is ready (%s)", m->name,
                          m->numeric_class);
            }
            task_free(t);
            if (r == 0) {
                answer_waiters(m, false, NULL);
                server_model_settled(s, m);
            }
            models_settle(s, m);
            retry_loads(s);
        }
    while (!queue_sleep(q));
}

/* ---- unloading ----------------------------------------------------------------------------------------------- */

void models_unload(struct server *s, struct model *m)
{
    if (m->state != MODEL_READY)
        return;
    m->state = MODEL_DRAINING;
    models_settle(s, m);
}

void models_settle(struct server *s, struct model *m)
{
    if (m->state != MODEL_DRAINING || !m->served || m->running || m->queue.len || m->preparing)
        return;
    struct served *v = m->served;
    m->served = NULL;
    m->tokenizer = NULL;
    m->detaching = true;
    engine_thread_order(s->engines, ORDER_DETACH, v, 0);
}

void models_on_detached(struct server *s, struct served *v)
{
    struct model *m = v->model;
    m->past.steps += v->steps;
    m->past.prompt_tokens += v->prompt_tokens;
    m->past.generation_tokens += v->generation_tokens;
    m->past.cached_tokens += v->cached_tokens;
    m->past.prefix_queries += v->prefix_queries;
    m->past.preemptions += v->preemptions;
    mem_free(v);
    m->detaching = false;
    m->state = MODEL_UNLOADED;
    m->memory = (struct backend_memory){0};
    log_write(LOG_LEVEL_INFO, "model", NULL, "%s is unloaded", m->name);
    answer_waiters(m, true, NULL);
    retry_loads(s);
    struct error err = {0};
    if (m->waiting.len && m->state == MODEL_UNLOADED && models_load(s, m, true, &err) < 0)
        fail_load(s, m, &err);
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

/* Waits for the loader and the engine thread to give everything back. */
void models_done(struct server *s)
{
    if (s->loader) {
        struct message msg;
        /* Results that are still to come are engines that nobody will use. */
        struct queue *q = worker_drain(s->loader);
        while (queue_pop(q, &msg)) {
            struct load_task *t = msg.object;
            engine_free(t->engine);
            task_free(t);
        }
        s->loader = worker_free(s->loader);
    }
    for (struct model *m = s->models; m; m = m->next) {
        if (m->served) {
            engine_thread_order(s->engines, ORDER_DETACH, m->served, 0);
            m->served = NULL;
            m->detaching = true;
        }
    }
    for (struct model *m = s->models; m; m = m->next) {
        while (m->detaching) {
            struct queue *q = engine_thread_reports(s->engines);
            struct message msg;
            if (queue_pop(q, &msg)) {
                if (msg.type == REPORT_DETACHED) {
                    struct served *v = msg.object;
                    v->model->detaching = false;
                    mem_free(v);
                }
                continue;
            }
            if (queue_sleep(q)) {
                struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
                poll(&p, 1, -1);
                queue_awake(q);
            }
        }
    }
    while (s->models) {
        struct model *next = s->models->next;
        model_free(s->models);
        s->models = next;
    }
}
