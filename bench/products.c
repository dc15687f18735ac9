/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/products.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

/* Products that run side by side on one input, then a barrier. */
struct stage {
    unsigned first, n; /* in weights[] */
};

struct products {
    const struct dk_ops *ops;
    struct dk_pool *pool;
    struct dk_weight *weights;
    size_t n_weights;
    struct stage *stages;
    size_t n_stages;
    char *packed;
    size_t packed_bytes;
    float *x, *y; /* [rows][widest] */
    size_t ld;
    struct dk_act *act; /* one a thread */
    char *act_mem;
    size_t act_bytes; /* of one */
    char *scratch;
    uint32_t rows, max_rows;
};

static void run_region(void *arg, const struct dk_par *par)
{
    struct products *p = arg;
    void *scratch = p->scratch + (size_t)par->tid * DK_SCRATCH_BYTES;
    for (size_t s = 0; s < p->n_stages; s++) {
        const struct dk_weight *w = &p->weights[p->stages[s].first];
        struct dk_act *act = &p->act[par->tid];
        unsigned forms = 0;
        size_t total = 0, start = 0;
        for (unsigned i = 0; i < p->stages[s].n; i++) {
            forms |= dk_weight_form(&w[i]);
            total += w[i].bytes;
        }
        act->rows = p->rows;
        act->k = w[0].k;
        p->ops->act_prepare(act, forms, p->x, p->ld, 0, p->rows);
        size_t lo = total * par->tid / par->n, hi = total * (par->tid + 1) / par->n;
        for (unsigned i = 0; i < p->stages[s].n; i++) {
            size_t panel = w[i].bytes / w[i].n_panels, end = start + w[i].bytes;
            size_t a = lo > start ? (lo - start + panel - 1) / panel : 0;
            size_t b = hi > start ? (hi - start + panel - 1) / panel : 0;
            a = a < w[i].n_panels ? a : w[i].n_panels;
            b = b < w[i].n_panels ? b : w[i].n_panels;
            struct dk_mm mm = {.w = &w[i], .y = p->y, .ldy = p->ld};
            if (a < b)
                p->ops->matmul(&mm, act, (uint32_t)a, (uint32_t)b, scratch);
            start = end;
        }
        dk_barrier(par);
    }
}

double products_run(struct products *p, uint32_t rows)
{
    p->rows = rows < p->max_rows ? rows : p->max_rows;
    uint64_t t = clock_now_ns();
    dk_pool_run(p->pool, run_region, p);
    return (double)(clock_now_ns() - t) * 1e-9;
}

/* The matrices in the order of a step; NULL tensors are passed over. */
static int list_weights(struct products *p, const struct model_file *f, bool amx_bf16,
                        const struct model_tensor **sources, struct error *err)
{
    static const enum model_tensor_role roles[] = {MT_Q, MT_K, MT_V, MT_O, MT_GATE, MT_UP, MT_DOWN};
    static const unsigned stage_sizes[] = {3, 1, 2, 1};
    const uint32_t layers = model_file_config(f)->n_layers;
    size_t total = 0;
    for (uint32_t l = 0; l <= layers; l++)
        for (size_t i = 0; i < (l < layers ? ARRAY_LEN(roles) : 1); i++) {
            const struct model_tensor *t =
                model_file_tensor(f, l < layers ? roles[i] : MT_HEAD, l < layers ? l : 0);
            struct dk_weight *w = &p->weights[p->n_weights];
            *w = (struct dk_weight){
                .type = t->type,
                .layout = amx_bf16 && t->type == DK_BF16 ? DK_LAYOUT_AMX_BF16 : DK_LAYOUT_PANEL,
                .n = (uint32_t)t->dims[0],
                .k = (uint32_t)t->dims[1],
                .n_panels = (uint32_t)((t->dims[0] + 15) / 16),
            };
            if (!dk_weight_bytes(w->type, w->layout, w->n, w->k, &w->bytes))
                return ERR(err, UNSUPPORTED, "%s cannot be packed", t->name);
            total += (w->bytes + 63) / 64 * 64;
            sources[p->n_weights++] = t;
        }
    for (uint32_t l = 0, at = 0; l <= layers; l++)
        for (size_t i = 0; i < (l < layers ? ARRAY_LEN(stage_sizes) : 1); i++) {
            unsigned n = l < layers ? stage_sizes[i] : 1;
            p->stages[p->n_stages++] = (struct stage){at, n};
            at += n;
        }
    p->packed_bytes = total;
    return 0;
}

int products_new(const struct model_file *f, enum dk_tier tier, bool exact, unsigned n_threads,
                 uint32_t max_rows, struct products **ret, struct error *err)
{
    const struct model_config *c = model_file_config(f);
    size_t n = (size_t)c->n_layers * 7 + 1;
    _cleanup_(products_freep) struct products *p = mem_zalloc(sizeof(*p));
    _cleanup_free_ const struct model_tensor **sources = mem_calloc(n, sizeof(*sources));
    if (!p || !sources)
        return ERR_NOMEM(err);
    p->ops = dk_ops(tier);
    p->max_rows = max_rows;
    p->weights = mem_calloc(n, sizeof(*p->weights));
    p->stages = mem_calloc(n, sizeof(*p->stages));
    if (!p->weights || !p->stages)
        return ERR_NOMEM(err);
    int r = list_weights(p, f, tier == DK_TIER_AMX && !exact, sources, err);
    if (r < 0 || (r = dk_pool_new(n_threads, &p->pool, err)) < 0)
        return r;
    uint32_t widest = 0, k = 0;
    for (size_t i = 0; i < p->n_weights; i++) {
        widest = p->weights[i].n > widest ? p->weights[i].n : widest;
        k = p->weights[i].k > k ? p->weights[i].k : k;
    }
    p->ld = ((widest > k ? widest : k) + 15) / 16 * 16;
    p->act_bytes = (dk_act_bytes(max_rows, k) + 63) / 64 * 64;
    p->packed = mem_map_pages(p->packed_bytes);
    p->x = mem_aligned(64, p->ld * max_rows * sizeof(float));
    p->y = mem_aligned(64, p->ld * max_rows * sizeof(float));
    p->act = mem_calloc(n_threads, sizeof(*p->act));
    p->act_mem = mem_aligned(64, p->act_bytes * n_threads);
    p->scratch = mem_aligned(64, (size_t)DK_SCRATCH_BYTES * n_threads);
    if (!p->packed || !p->x || !p->y || !p->act || !p->act_mem || !p->scratch)
        return ERR_NOMEM(err);
    for (unsigned t = 0; t < n_threads; t++)
        dk_act_init(&p->act[t], max_rows, k, p->act_mem + t * p->act_bytes);
    for (size_t i = 0; i < p->ld * max_rows; i++)
        p->x[i] = (float)((i * 2654435761u) >> 8 & 0xffff) * 0x1p-15f - 1.0f;
    size_t at = 0;
    for (size_t i = 0; i < p->n_weights; i++) {
        struct dk_weight *w = &p->weights[i];
        w->data = p->packed + at;
        dk_weight_pack(p->packed + at, w->type, w->layout, w->n, w->k, sources[i]->data,
                       sources[i]->bytes / sources[i]->dims[0], 0, w->n_panels);
        at += (w->bytes + 63) / 64 * 64;
    }
    *ret = TAKE_PTR(p);
    return 0;
}

struct products *products_free(struct products *p)
{
    if (!p)
        return NULL;
    dk_pool_free(p->pool);
    mem_free(p->weights);
    mem_free(p->stages);
    if (p->packed)
        mem_unmap_pages(p->packed, p->packed_bytes);
    mem_free(p->x);
    mem_free(p->y);
    mem_free(p->act);
    mem_free(p->act_mem);
    mem_free(p->scratch);
    mem_free(p);
    return NULL;
}
