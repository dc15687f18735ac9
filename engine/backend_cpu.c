/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's table of functions and its small members. */
#include <string.h>

#include "engine/backend_cpu.h"

static int cpu_kv_copy(struct backend_model *m, const uint32_t *from, const uint32_t *to, size_t n,
                       struct error *err)
{
    (void)err;
    const size_t e = dk_kv_elem_bytes(m->mem.kv_type), hd = m->cfg.head_dim;
    const size_t heads = m->cfg.n_kv_heads, block = heads * hd * DK_KV_BLOCK * e;
    for (uint32_t l = 0; l < m->cfg.n_layers; l++) {
        char *k = m->layers[l].kv.k, *v = m->layers[l].kv.v;
        for (size_t i = 0; i < n; i++) {
            if (from[i] == to[i])
                continue;
            size_t fb = from[i] / DK_KV_BLOCK * block, fi = from[i] % DK_KV_BLOCK;
            size_t tb = to[i] / DK_KV_BLOCK * block, ti = to[i] % DK_KV_BLOCK;
            for (size_t h = 0; h < heads; h++) {
                /* K: [head_dim][16 positions], V: [16 positions][head_dim]. */
                size_t head = h * hd * DK_KV_BLOCK * e;
                for (size_t d = 0; d < hd; d++)
                    memcpy(k + tb + head + (d * DK_KV_BLOCK + ti) * e,
                           k + fb + head + (d * DK_KV_BLOCK + fi) * e, e);
                memcpy(v + tb + head + ti * hd * e, v + fb + head + fi * hd * e, hd * e);
            }
        }
    }
    return 0;
}

static void cpu_describe(const struct backend_model *m, struct backend_memory *mem,
                         struct backend_timing *timing, const char **ret_class)
{
    if (mem)
        *mem = m->mem;
    if (timing)
        *timing = m->timing;
    if (ret_class)
        *ret_class = m->amx_class ? "amx-bf16" : "exact";
}

static const struct dk_ops *cpu_ops(const struct backend_model *m)
{
    return m->ops;
}

static unsigned cpu_threads(const struct backend_model *m)
{
    return m->n_threads;
}

static void cpu_parallel(struct backend_model *m, void (*fn)(void *arg, const struct dk_par *par),
                         void *arg)
{
    dk_pool_run(m->pool, fn, arg);
}

const struct backend backend_cpu = {
    .name = "cpu",
    .plan = cpu_plan,
    .load = cpu_load,
    .free = cpu_free,
    .forward = cpu_forward,
    .load_drafter = cpu_load_drafter,
    .plan_drafter = cpu_plan_drafter,
    .inject = cpu_inject,
    .kv_copy = cpu_kv_copy,
    .describe = cpu_describe,
    .ops = cpu_ops,
    .threads = cpu_threads,
    .parallel = cpu_parallel,
};
