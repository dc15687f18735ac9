/* SPDX-License-Identifier: Apache-2.0 */
/* Models come and go: load, on demand or by order; evict; unload once the last job has ended. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mapguard.h"
#include "base/parse.h"
#include "daemon/models.h"
#include "daemon/peer.h"
#include "daemon/server.h"
#include "engine/drafter_file.h"

/* One load: made by the loop, worked on by the loader, read by the loop. */
struct load_task {
    struct model *model;
    char *path, *drafter, *device, *costs_dir;
    struct engine_config config;
    struct engine *engine;
    struct error error;
    struct error beside; /* why the drafter that lies beside the model is not used */
};

static void task_free(struct load_task *t)
{
    if (!t)
        return;
    mem_free(t->path);
    mem_free(t->drafter);
    mem_free(t->device);
    mem_free(t->costs_dir);
    mem_free(t);
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

/* Nobody asked for a drafter that only lies there: what is wrong with it does not stop the model. */
static void load_engine(struct load_task *t)
{
    bool asked = t->drafter != NULL;
    if (!asked && drafter_beside(t->path, &t->drafter, &t->error) < 0)
        return;
    bool beside = !asked && t->drafter;
    t->config.drafter = t->drafter && strcmp(t->drafter, "none") != 0 ? t->drafter : NULL;
    int r = engine_new(t->path, &t->config, on_progress, t->model, &t->engine, &t->error);
    if (r == 0 || !beside || r == DEDIT_E_DEVICE_LOST)
        return;
    t->config.drafter = NULL;
    t->beside = t->error;
    t->error = (struct error){0};
    engine_new(t->path, &t->config, on_progress, t->model, &t->engine, &t->error);
}

/* Loader thread. */
void models_load_task(void *object)
{
    struct load_task *t = object;
    uint64_t faults = map_guard_faults();
    load_engine(t);
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

static bool keeps_costs(const struct config *c)
{
    return c->costs_dir && strcmp(c->costs_dir, "none") != 0;
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
        (m->config.drafter && !(t->drafter = mem_strdup(m->config.drafter))) ||
        !(t->device = mem_strdup(m->config.device)) ||
        (keeps_costs(s->config) && !(t->costs_dir = mem_strdup(s->config->costs_dir)))) {
        task_free(t);
        return ERR_NOMEM(err);
    }
    t->model = m;
    t->config = m->config.engine;
    t->config.device = t->device;
    t->config.costs_dir = t->costs_dir;
    uint64_t used = models_memory(s), limit = s->config->memory_limit;
    if (limit)
        t->config.memory_limit = limit > used ? limit - used : 1;
    /* From here on the loader may report its progress. */
    __atomic_store_n(&m->progress_percent, 0, __ATOMIC_RELAXED);
    if (!worker_give(s->loader, t)) {
        task_free(t);
        return ERR(err, BUSY, "too many models are being loaded");
    }
    m->load_waits = false;
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
    m->failed_ns = clock_now_ns();
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
    const char *drafter = engine_drafter_name(e);
    snprintf(m->drafter, sizeof m->drafter, "%s", drafter ? drafter : "");
    for (size_t n = strlen(m->drafter); n && !utf8_valid(m->drafter, n);)
        m->drafter[--n] = 0; /* a cut character, or what a file says */
    snprintf(m->numeric_class, sizeof m->numeric_class, "%s", engine_class(e));
    const char *note = engine_device_note(e);
    snprintf(m->device_note, sizeof m->device_note, "%s", note ? note : "");
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
                if (r == DEDIT_E_DEVICE_LOST)
                    server_lose_device(s, &t->error);
                fail_load(s, m, &t->error);
                log_write(LOG_LEVEL_ERR, "model", NULL, "loading %s failed: %s", m->name,
                          t->error.msg);
            } else {
                m->state = MODEL_READY;
                m->evicted = false;
                m->loaded_ns = m->last_used_ns = clock_now_ns();
                if (t->beside.code)
                    log_write(LOG_LEVEL_WARNING, "model", NULL,
                              "%s runs without the drafter beside it: %s", m->name, t->beside.msg);
                if (*m->device_note)
                    log_write(LOG_LEVEL_INFO, "model", NULL, "%s %s", m->name, m->device_note);
                log_write(LOG_LEVEL_INFO, "model", NULL, "%s is ready (%s%s%s)", m->name,
                          m->numeric_class, *m->drafter ? ", drafter " : "", m->drafter);
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

/* ---- the end ------------------------------------------------------------------------------------------------- */

void models_stop(struct server *s)
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
}
