/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's costs: read at load, measured while nobody waits, kept when they are there and at the end. */
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
    r = costs_read(&e->controller.costs, dir, e->costs_key, &e->costs_error);
    if (r == DEDIT_E_NOMEM)
        return ERR_NOMEM(err);
    e->calibrated = r == 0; /* whatever is wrong with it: it is measured again */
    return 0;
}

void engine_costs_keep(struct engine *e)
{
    if (e->costs_dir && e->costs_key && e->calibrated)
        (void)costs_write(&e->controller.costs, e->costs_dir, e->costs_key, &e->costs_error);
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
