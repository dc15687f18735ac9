/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's table of functions and its small members. */
#include "engine/backend_cuda.h"

static int cuda_kv_copy(struct backend_model *model, const uint32_t *from, const uint32_t *to,
                        size_t n, struct error *err)
{
    struct cuda_model *m = cuda_of(model);
    struct cuda_batch *h, *d = &m->s.batch;
    CUDA_DO(m, err, "the device", m->api->device_use(m->opt.device));
    for (size_t i = 0; i < n;) {
        uint32_t k = 0;
        if (from[i] == to[i]) {
            i++;
            continue;
        }
        int r = cuda_later_take(m, &h, err);
        if (r < 0)
            return r;
        for (; i < n && k < m->opt.max_rows; i++)
            if (from[i] != to[i]) {
                h->from[k] = from[i];
                h->to[k++] = to[i];
            }
        *h->n_pairs = k;
        r = cuda_batch_send(m, h, 0, err);
        if (r == 0)
            r = cuda_later_sent(m, err);
        if (r < 0)
            return r;
        CUDA_DO(m, err, "moving K and V",
                m->api->kv_copy(m->stream, m->device_layers, m->cfg.n_layers, m->cfg.n_kv_heads,
                                m->opt.kv_type, d->from, d->to, d->n_pairs, k));
    }
    return 0;
}

static float *cuda_taps(struct backend_model *drafter)
{
    return cuda_of(drafter)->kept.mem;
}

static void cuda_describe(const struct backend_model *model, struct backend_memory *mem,
                          struct backend_timing *timing, const char **ret_class)
{
    const struct cuda_model *m = cuda_const(model);
    if (mem)
        *mem = m->mem;
    if (timing)
        *timing = m->timing;
    if (ret_class)
        *ret_class = m->rows ? "cuda-fast" : m->mma ? "cuda-mma" : "exact";
}

static const struct dk_ops *cuda_ops(const struct backend_model *m)
{
    return cuda_const(m)->ops;
}

static unsigned cuda_threads(const struct backend_model *m)
{
    return cuda_const(m)->n_threads;
}

static void cuda_parallel(struct backend_model *m, void (*fn)(void *arg, const struct dk_par *par),
                          void *arg)
{
    dk_pool_run(cuda_of(m)->pool, fn, arg);
}

const struct backend backend_cuda = {
    .name = "cuda",
    .draw_changes = CUDA_DRAW_CHANGES,
    .walks = true,
    .picks = true,
    .passes = true,
    .plan = cuda_plan,
    .load = cuda_load,
    .free = cuda_free,
    .forward = cuda_forward,
    .load_drafter = cuda_load_drafter,
    .plan_drafter = cuda_plan_drafter,
    .finish = cuda_finish,
    .collect = cuda_collect,
    .taps = cuda_taps,
    .inject = cuda_inject,
    .kv_copy = cuda_kv_copy,
    .describe = cuda_describe,
    .ops = cuda_ops,
    .threads = cuda_threads,
    .parallel = cuda_parallel,
};
