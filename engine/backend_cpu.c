/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's table of functions and its small members. */
#include <string.h>

#include "engine/backend_cpu.h"

/*
 * Position `from` of a block and head to `to`, of a block and head, all in elements.  Of K one element a
 * dimension, or one pair of elements; of V a row, or every second element.
 */
static void copy_pairs(const struct dk_kv *kv, size_t from_head, size_t from, size_t to_head,
                       size_t to)
{
    uint32_t *k = kv->k;
    uint16_t *v = kv->v;
    for (size_t d = 0; d < kv->head_dim; d += 2)
        k[(to_head + dk_kv_k_at(kv, to, d)) / 2] = k[(from_head + dk_kv_k_at(kv, from, d)) / 2];
    for (size_t d = 0; d < kv->head_dim; d++)
        v[to_head + dk_kv_v_at(kv, to, d)] = v[from_head + dk_kv_v_at(kv, from, d)];
}
static void copy_position(const struct dk_kv *kv, size_t from_head, size_t from, size_t to_head,
                          size_t to, size_t e)
{
    const size_t hd = kv->head_dim, kf = from_head + from, kt = to_head + to;
    uint32_t *k4 = kv->k;
    uint16_t *k2 = kv->k;
    char *v = kv->v;
    for (size_t d = 0; d < hd && e == 4; d++)
        k4[kt + d * DK_KV_BLOCK] = k4[kf + d * DK_KV_BLOCK];
    for (size_t d = 0; d < hd && e == 2; d++)
        k2[kt + d * DK_KV_BLOCK] = k2[kf + d * DK_KV_BLOCK];
    memcpy(v + (to_head + to * hd) * e, v + (from_head + from * hd) * e, hd * e);
}

static int cpu_kv_copy(struct backend_model *m, const uint32_t *from, const uint32_t *to, size_t n,
                       struct error *err)
{
    (void)err;
    const size_t e = dk_kv_elem_bytes(m->mem.kv_type), head = m->cfg.head_dim * DK_KV_BLOCK;
    const size_t heads = m->cfg.n_kv_heads;
    for (uint32_t l = 0; l < m->cfg.n_layers; l++)
        for (size_t i = 0; i < n; i++)
            for (size_t h = 0; h < heads && from[i] != to[i]; h++) {
                const struct dk_kv *kv = &m->layers[l].kv;
                size_t fh = (from[i] / DK_KV_BLOCK * heads + h) * head, fi = from[i] % DK_KV_BLOCK;
                size_t th = (to[i] / DK_KV_BLOCK * heads + h) * head, ti = to[i] % DK_KV_BLOCK;
                if (dk_kv_paired(kv))
                    copy_pairs(kv, fh, fi, th, ti);
                else
                    copy_position(kv, fh, fi, th, ti, e);
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
