/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/sdglue.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/server.h"

#define TICK_NS 1000000000u
/* Asked for at each tick of a start that takes long. */
#define EXTEND_US 15000000u

struct sdglue {
    struct server *server;
    struct loop_timer *watchdog, *tick;
    uint64_t watchdog_ns; /* between two signs of life; 0: nobody watches */
    uint64_t last_progress;
    bool ready, failed;
    char status[200];
};

/* The engine thread is alive: idle, or further than at the last look. */
static bool engines_move(struct sdglue *g)
{
    uint64_t now = engine_thread_progress(g->server->engines);
    bool moved = now != g->last_progress || !engine_thread_busy(g->server->engines);
    g->last_progress = now;
    return moved;
}

static void on_watchdog(void *arg)
{
    struct sdglue *g = arg;
    if (engines_move(g))
        sd_notify(0, "WATCHDOG=1");
    else
        log_write(LOG_LEVEL_WARNING, "watchdog", NULL,
                  "the engine thread has not moved for %" PRIu64 " ms", g->watchdog_ns / 1000000u);
    loop_timer_set(g->watchdog, clock_now_ns() + g->watchdog_ns);
}

static void on_tick(void *arg)
{
    struct sdglue *g = arg;
    if (g->ready)
        return;
    sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%u", EXTEND_US);
    sdglue_status(g);
    loop_timer_set(g->tick, clock_now_ns() + TICK_NS);
}

int sdglue_new(struct server *s, struct sdglue **ret, struct error *err)
{
    struct sdglue *g = mem_zalloc(sizeof *g);
    uint64_t us = 0;
    if (!g)
        return ERR_NOMEM(err);
    g->server = s;
    int r = loop_timer_new(s->loop, on_watchdog, g, &g->watchdog, err);
    if (r == 0)
        r = loop_timer_new(s->loop, on_tick, g, &g->tick, err);
    if (r < 0) {
        sdglue_free(g);
        return r;
    }
    if (sd_watchdog_enabled(0, &us) > 0) {
        g->watchdog_ns = us * 1000u / 2;
        on_watchdog(g);
    }
    on_tick(g);
    *ret = g;
    return 0;
}

struct sdglue *sdglue_free(struct sdglue *g)
{
    if (!g)
        return NULL;
    loop_timer_free(g->watchdog);
    loop_timer_free(g->tick);
    mem_free(g);
    return NULL;
}

void sdglue_status(struct sdglue *g)
{
    char text[sizeof g->status];
    const struct server *s = g->server;
    const struct model *loading = NULL;
    unsigned ready = 0;

    for (const struct model *m = s->models; m; m = m->next) {
        ready += m->state == MODEL_READY;
        if (m->state == MODEL_LOADING)
            loading = m;
    }
    if (s->draining)
        snprintf(text, sizeof text, "Draining: %u requests under way", s->n_jobs);
    else if (loading)
        snprintf(text, sizeof text, "Loading %s: %u %%", loading->name,
                 __atomic_load_n(&loading->progress_percent, __ATOMIC_RELAXED));
    else
        snprintf(text, sizeof text, "Serving %u model%s", ready, ready == 1 ? "" : "s");
    if (strcmp(text, g->status) == 0)
        return;
    memcpy(g->status, text, sizeof text);
    sd_notifyf(0, "STATUS=%s", text);
}

void sdglue_ready(struct sdglue *g)
{
    if (g->ready)
        return;
    g->ready = true;
    loop_timer_set(g->tick, 0);
    sd_notify(0, "READY=1");
}

void sdglue_reloading(struct sdglue *g)
{
    (void)g;
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_now_ns() / 1000u);
}

void sdglue_reloaded(struct sdglue *g)
{
    g->status[0] = 0;
    sd_notify(0, "READY=1");
    sdglue_status(g);
}

void sdglue_stopping(struct sdglue *g)
{
    (void)g;
    sd_notify(0, "STOPPING=1");
}

void sdglue_failed(struct sdglue *g, int error)
{
    if (g->failed)
        return;
    g->failed = true;
    sd_notifyf(0, "STOPPING=1\nERRNO=%d", error);
}
