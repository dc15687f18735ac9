/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's costs: read at load, measured while nobody waits, kept when they are there and at the end. */
#include <stdlib.h>

#include "base/alloc.h"
#include "engine/engine_internal.h"

int engine_costs_read(struct engine *e, struct error *err)
{
    const char *dir = e->cfg.costs_dir;
    e->cfg.costs_dir = NULL; /* the caller's string */
    if (!dir)
        return 0;
    int r = calibration_key(e, &e->costs_key, err);
    if (r < 0)
        return r;
    e->costs_dir = mem_strdup(dir);
    if (!e->costs_dir)
        return ERR_NOMEM(err);
    struct controller *c = &e->controller;
    c->survival.of = calibration_models(e);
    r = costs_read(&c->costs, &c->survival, dir, e->costs_key, &e->costs_error);
    if (r == DEDIT_E_NOMEM)
        return ERR_NOMEM(err);
    e->calibrated = r == 0; /* whatever is wrong with it: it is measured again */
    return 0;
}

void engine_costs_keep(struct engine *e)
{
    const struct controller *c = &e->controller;
    if (e->costs_dir && e->costs_key && e->calibrated)
        (void)costs_write(&c->costs, &c->survival, e->costs_dir, e->costs_key, &e->costs_error);
}

int engine_calibrate(struct engine *e, struct error *err)
{
    struct error local = {0};
    if (e->calibrated || e->n_running || e->n_waiting)
        return 0;
    dk_thread_init();
    int r = calibration_step(e, err ? err : &local);
    if (e->calibrated)
        engine_costs_keep(e);
    return r;
}

const char *engine_costs_problem(struct engine *e, struct error *buf)
{
    if (!e->costs_error.code)
        return NULL;
    *buf = e->costs_error;
    e->costs_error.code = 0;
    return buf->msg;
}

/* ---- one call, for benchmarks ----------------------------------------------------------------------- */

#define MOST_TIMES 31u

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* What a call of this kind may have. */
static uint32_t most_rows(const struct engine *e, enum engine_call call)
{
    switch (call) {
    case ENGINE_CALL_TARGET:
        return e->n_logits_rows;
    case ENGINE_CALL_DRAFTER:
        return e->drafter.ops ? e->drafter.max_window : 0;
    case ENGINE_CALL_INJECT:
        return e->drafter.ops ? e->drafter.max_rows : 0;
    }
    return 0;
}

int engine_time_call(struct engine *e, enum engine_call call, uint32_t rows, uint32_t context,
                     uint32_t times, uint64_t *ret_ns, struct error *err)
{
    static const enum cost_kind kinds[] = {COST_TARGET, COST_DRAFTER, COST_INJECT};
    uint64_t ns[MOST_TIMES];
    const uint32_t least = call == ENGINE_CALL_DRAFTER ? 2 : 1;
    if (rows < least || rows > most_rows(e, call))
        return ERR(err, INVALID, "rows: %u, must be %u to %u", rows, least, most_rows(e, call));
    if (times < 1 || times > MOST_TIMES)
        return ERR(err, INVALID, "times: %u, must be 1 to %u", times, MOST_TIMES);
    if (call == ENGINE_CALL_INJECT && context < rows)
        return ERR(err, INVALID, "context: %u, must be %u rows at least", context, rows);
    dk_thread_init();
    for (uint32_t i = 0; i < times; i++) {
        int r = calibration_call(e, kinds[call], rows, context, &ns[i], err);
        if (r < 0)
            return r;
        if (r == 0)
            return ERR(err, INVALID, "context: %u and %u rows have no room in the KV pool", context,
                       rows);
    }
    qsort(ns, times, sizeof(*ns), ascending);
    *ret_ns = ns[times / 2];
    return 0;
}
