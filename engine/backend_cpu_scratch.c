/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the activation memory of the CPU backend into its parts; run once to count, once for real. */
#include "base/checked.h"
#include "engine/backend_cpu.h"
#include "engine/drafter_file.h"

struct carver {
    char *base;
    size_t used;
    bool overflow;
};

static void *carve(struct carver *c, size_t n, size_t size)
{
    size_t bytes, at = c->used;
    if (!size_mul(n, size, &bytes) || !size_round_up(bytes, 64, &bytes) ||
        !size_add(c->used, bytes, &c->used)) {
        c->overflow = true;
        return NULL;
    }
    return c->base ? c->base + at : NULL;
}

/* Row stride: whole vectors, and not a multiple of 1 KiB, so that the rows of a tile spread over
 * the cache sets. */
static size_t stride(size_t n)
{
    size_t ld = (n + 15) / 16 * 16;
    return ld % 256 ? ld : ld + 16;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

int cpu_scratch_layout(const struct model_config *cfg, const struct backend_options *o,
                       unsigned n_threads, void *base, struct cpu_scratch *s,
                       struct cpu_thread *threads, size_t *ret_bytes)
{
    struct carver c = {.base = base};
    const size_t rows = o->max_rows;
    const uint32_t nq = cfg->n_heads * cfg->head_dim;
    const struct drafter_config *d = cfg->drafter;
    const uint32_t taps = d ? d->n_taps * d->target_hidden : 0;
    const uint32_t max_k = max_u32(max_u32(max_u32(cfg->hidden, nq), cfg->ffn), taps);

    s->ld_x = stride(cfg->hidden);
    s->ld_q = stride(nq);
    s->ld_kv = stride((size_t)cfg->n_kv_heads * cfg->head_dim);
    s->ld_f = stride(cfg->ffn);
    s->x = carve(&c, rows * s->ld_x, sizeof(float));
    s->h = carve(&c, rows * s->ld_x, sizeof(float));
    s->q = carve(&c, rows * s->ld_q, sizeof(float));
    s->att = carve(&c, rows * s->ld_q, sizeof(float));
    s->k = carve(&c, rows * s->ld_kv, sizeof(float));
    s->v = carve(&c, rows * s->ld_kv, sizeof(float));
    s->g = carve(&c, rows * s->ld_f, sizeof(float));
    s->u = carve(&c, rows * s->ld_f, sizeof(float));
    s->cs = carve(&c, rows * cfg->head_dim, sizeof(float));
    const int kinds = d && d->sliding ? 4 : 2;
    for (int i = 0; i < kinds; i++) {
        s->paths[i] = carve(&c, rows, sizeof(*s->paths[i]));
        s->tiles[i] = carve(&c, rows, sizeof(*s->tiles[i]));
    }
    s->live_rows = carve(&c, rows, sizeof(*s->live_rows));
    s->head_rows = carve(&c, rows, sizeof(*s->head_rows));
    s->head_out = carve(&c, rows, sizeof(float *));
    /* Partial results of attention: a path may be as long as the context. */
    size_t part = ((size_t)o->max_context + DK_ATTN_CHUNK - 1) / DK_ATTN_CHUNK * cfg->n_heads *
                  DK_ATTN_PART(cfg->head_dim);
    size_t fit = CPU_PART_BYTES / sizeof(float) / part;
    fit = fit < 1 ? 1 : fit < CPU_ATTN_TILE ? fit : CPU_ATTN_TILE;
    s->part_rows = (uint32_t)(fit < rows ? fit : rows);
    s->part = carve(&c, s->part_rows * part, sizeof(float));
    s->scores = carve(&c, (size_t)cfg->n_heads * CPU_BLOCKS_POSITIONS, sizeof(float));
    s->next_unit = carve(&c, cfg->n_layers, sizeof(*s->next_unit));
    size_t act_bytes = dk_act_bytes((uint32_t)rows, max_k), each_bytes = 0;
    uint32_t each = 0;
    if (rows >= (size_t)CPU_ROWS_EACH * n_threads) {
        each = (uint32_t)((rows + n_threads - 1) / n_threads + CPU_ROWS_UNIT - 1) / CPU_ROWS_UNIT *
               CPU_ROWS_UNIT;
        each_bytes = dk_act_bytes(each, max_k);
        act_bytes = act_bytes > n_threads * each_bytes ? act_bytes : n_threads * each_bytes;
    }
    char *act_mem = carve(&c, act_bytes, 1);
    size_t small_bytes = dk_act_bytes(CPU_SMALL_ROWS, max_k);
    for (unsigned t = 0; t < n_threads; t++) {
        void *mem = carve(&c, small_bytes, 1);
        threads[t].h = carve(&c, CPU_SMALL_ROWS * s->ld_x, sizeof(float));
        threads[t].scratch = carve(&c, DK_SCRATCH_BYTES, 1);
        if (base) {
            dk_act_init(&threads[t].act, CPU_SMALL_ROWS, max_k, mem);
            dk_act_init(&threads[t].shared, (uint32_t)rows, max_k, act_mem);
            dk_act_init(&threads[t].rows, each, max_k, act_mem + t * each_bytes);
        }
    }
    if (c.overflow)
        return DEDIT_E_LIMIT;
    *ret_bytes = c.used;
    return 0;
}
