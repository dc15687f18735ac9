/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a model into the CPU backend: which weights are packed in which layout, the packing (in
 * parallel, file pages given back layer by layer), the small vectors, the KV region.
 */
#include <sched.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "engine/backend_cpu.h"
#include "engine/rope.h"

#define ALIGN 64u
/* Between matrices, so that panels of two of them never share a page's first lines by chance. */
#define N_MATRICES 7u
#define Q8_0_ELEMS 32u
#define Q8_0_BYTES 34u

static const enum model_tensor_role layer_roles[N_MATRICES] = {MT_Q,    MT_K,  MT_V,   MT_O,
                                                               MT_GATE, MT_UP, MT_DOWN};
static const enum model_tensor_role vector_roles[] = {
    MT_ATTN_NORM, MT_FFN_NORM, MT_Q_BIAS, MT_K_BIAS, MT_V_BIAS, MT_Q_NORM, MT_K_NORM};

static struct dk_weight *layer_weight(struct cpu_layer *l, unsigned i)
{
    struct dk_weight *w[N_MATRICES] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    return w[i];
}

static const float **layer_vector(struct cpu_layer *l, unsigned i)
{
    const float **v[] = {&l->attn_norm, &l->ffn_norm, &l->q_bias, &l->k_bias,
                         &l->v_bias,    &l->q_norm,   &l->k_norm};
    return v[i];
}

/* ---- shapes and sizes ----------------------------------------------------------------------- */

enum dk_type cpu_stored_type(const struct model_tensor *t, const struct backend_options *o)
{
    switch (o->dtype) {
    case BACKEND_DTYPE_BF16:
        return DK_BF16;
    case BACKEND_DTYPE_F32:
        return DK_F32;
    case BACKEND_DTYPE_Q8_0:
        if (!dk_type_info(t->type)->quantised && t->dims[1] % Q8_0_ELEMS == 0)
            return DK_Q8_0;
        break;
    case BACKEND_DTYPE_FILE:
    case BACKEND_DTYPE_AUTO:
        break;
    }
    return t->type;
}

static enum dk_layout stored_layout(enum dk_type type, const struct backend_options *o)
{
    return type == DK_BF16 && o->tier == DK_TIER_AMX && !o->exact ? DK_LAYOUT_AMX_BF16
                                                                  : DK_LAYOUT_PANEL;
}

/* Fills all but the data pointer. */
static int weight_shape(const struct model_file *f, const struct model_tensor *t,
                        const struct backend_options *o, struct dk_weight *w, struct error *err)
{
    w->type = cpu_stored_type(t, o);
    w->layout = stored_layout(w->type, o);
    w->n = (uint32_t)t->dims[0];
    w->k = (uint32_t)t->dims[1];
    w->n_panels = (w->n + 15) / 16;
    size_t panel;
    if (!dk_weight_bytes(w->type, w->layout, w->n, w->k, &w->bytes) ||
        !dk_weight_bytes(w->type, w->layout, 16, w->k, &panel))
        return ERR(err, UNSUPPORTED, "%s: tensor %s: a %s matrix of %u x %u cannot be packed",
                   model_file_path(f), t->name, dk_type_info(w->type)->name, w->n, w->k);
    if (panel * w->n_panels != w->bytes)
        return ERR(err, INTERNAL, "panels of type %s are not equally long",
                   dk_type_info(w->type)->name);
    return 0;
}

static bool add_aligned(size_t *total, size_t bytes)
{
    return size_round_up(bytes, ALIGN, &bytes) && size_add(*total, bytes, total);
}

int cpu_check_options(const struct backend_options *o, struct error *err)
{
    if (!dk_ops(o->tier))
        return ERR(err, UNSUPPORTED, "CPU tier %s is not available here", dk_tier_name(o->tier));
    if (o->max_rows == 0 || o->max_context == 0 || o->n_kv_blocks == 0)
        return ERR(err, INVALID, "max_rows, max_context and n_kv_blocks must be positive");
    if (o->n_kv_blocks > UINT32_MAX / DK_KV_BLOCK)
        return ERR(err, LIMIT, "n_kv_blocks %u: more than %u blocks", o->n_kv_blocks,
                   UINT32_MAX / DK_KV_BLOCK);
    if (o->n_threads > CPU_MAX_THREADS)
        return ERR(err, INVALID, "n_threads %u: must be at most %u", o->n_threads, CPU_MAX_THREADS);
    return 0;
}

/* The threads that 0 stands for: CPUs that this process may run on. */
unsigned cpu_resolve_threads(unsigned n)
{
    if (n)
        return n;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 1;
    n = (unsigned)CPU_COUNT(&set);
    return n < 1 ? 1 : n < CPU_MAX_THREADS ? n : CPU_MAX_THREADS;
}

/* Matrices of a layer, or, for layer n_layers, those that belong to none: a drafter's fc, then the head
 * last, which is the first to be read for a look-up. */
static unsigned matrices_of(const struct model_file *f, const struct model_tensor *head,
                            uint32_t layer, const struct model_tensor *ret[N_MATRICES])
{
    unsigned n = 0;
    if (layer < model_file_config(f)->n_layers) {
        for (unsigned i = 0; i < N_MATRICES; i++)
            ret[n++] = model_file_tensor(f, layer_roles[i], layer);
        return n;
    }
    const struct model_tensor *fc = model_file_tensor(f, MT_FC, 0);
    if (fc)
        ret[n++] = fc;
    if (head)
        ret[n++] = head;
    return n;
}

bool cpu_amx_class(const struct model_file *f, const struct model_tensor *head,
                   const struct backend_options *o)
{
    const struct model_tensor *t[N_MATRICES];
    for (uint32_t l = 0; l <= model_file_config(f)->n_layers; l++) {
        unsigned n = matrices_of(f, head, l, t);
        for (unsigned i = 0; i < n; i++)
            if (stored_layout(cpu_stored_type(t[i], o), o) == DK_LAYOUT_AMX_BF16)
                return true;
    }
    return false;
}

static int packed_size(const struct model_file *f, const struct model_tensor *head,
                       const struct backend_options *o, size_t *ret, struct error *err)
{
    const struct model_tensor *t[N_MATRICES];
    struct dk_weight w;
    size_t total = 0;
    bool fits = true;
    for (uint32_t l = 0; l <= model_file_config(f)->n_layers; l++) {
        unsigned n = matrices_of(f, head, l, t);
        for (unsigned i = 0; i < n; i++) {
            int r = weight_shape(f, t[i], o, &w, err);
            if (r < 0)
                return r;
            fits = fits && add_aligned(&total, w.bytes);
        }
    }
    if (!fits)
        return ERR(err, LIMIT, "%s: the weights exceed the address space", model_file_path(f));
    *ret = total;
    return 0;
}

static bool vectors_size(const struct model_file *f, size_t *ret)
{
    const struct model_config *c = model_file_config(f);
    size_t total = 0;
    bool fits = add_aligned(&total, (size_t)c->hidden * sizeof(float)) &&
                add_aligned(&total, (size_t)c->head_dim / 2 * sizeof(float));
    if (c->drafter)
        fits = fits && add_aligned(&total, (size_t)c->hidden * sizeof(float));
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (unsigned i = 0; i < sizeof(vector_roles) / sizeof(*vector_roles); i++) {
            const struct model_tensor *t = model_file_tensor(f, vector_roles[i], l);
            if (t)
                fits = fits && add_aligned(&total, (size_t)t->dims[0] * sizeof(float));
        }
    *ret = total;
    return fits;
}

/* Bytes of K (= of V) of one layer. */
static bool kv_layer_size(const struct model_config *c, const struct backend_options *o,
                          enum dk_kv_type type, size_t *ret)
{
    size_t n = (size_t)c->n_kv_heads * c->head_dim;
    return size_mul(n, (size_t)DK_KV_BLOCK * dk_kv_elem_bytes(type), &n) &&
           size_mul(n, o->n_kv_blocks, &n) && size_round_up(n, ALIGN, ret);
}

int cpu_measure(const struct model_file *f, const struct model_tensor *head,
                const struct backend_options *o, unsigned n_threads, struct backend_memory *ret,
                struct error *err)
{
    const struct model_config *c = model_file_config(f);
    struct cpu_scratch s;
    struct cpu_thread t[CPU_MAX_THREADS];
    size_t packed = 0, vectors, layer, kv, scratch;
    int r = cpu_check_options(o, err);
    if (r == 0)
        r = packed_size(f, head, o, &packed, err);
    if (r < 0)
        return r;
    /* The AMX BF16 class multiplies K and V rounded to BF16: kept so, they are rounded once, by F16 too,
     * which would take as much memory. */
    const enum dk_kv_type type = cpu_amx_class(f, head, o) ? DK_KV_BF16 : o->kv_type;
    if (!vectors_size(f, &vectors) || !kv_layer_size(c, o, type, &layer) ||
        !size_mul(layer, (size_t)2 * c->n_layers, &kv) ||
        cpu_scratch_layout(c, o, n_threads, NULL, &s, t, &scratch) < 0 ||
        !size_add(packed, vectors, &layer))
        return ERR(err, LIMIT, "%s: the memory needed exceeds the address space",
                   model_file_path(f));
    *ret = (struct backend_memory){.weight_bytes = model_file_weight_bytes(f),
                                   .packed_bytes = packed + vectors,
                                   .kv_bytes = kv,
                                   .scratch_bytes = scratch,
                                   .kv_type = type};
    return 0;
}

int cpu_plan(const struct model_file *f, const struct backend_options *o,
             struct backend_memory *ret, struct error *err)
{
    return cpu_measure(f, model_file_tensor(f, MT_HEAD, 0), o, cpu_resolve_threads(o->n_threads),
                       ret, err);
}

/* ---- packing -------------------------------------------------------------------------------- */

void cpu_file_row(const struct model_tensor *t, uint64_t row, uint32_t k, float *out)
{
    const struct dk_type_info *ti = dk_type_info(t->type);
    size_t row_bytes = (size_t)k / ti->block_elems * ti->block_bytes;
    dk_dequant(t->type, (const char *)t->data + row * row_bytes, k / ti->block_elems, out);
}

struct pack_task {
    const struct model_tensor *t;
    struct dk_weight *w;
};
struct pack_region {
    const struct pack_task *tasks;
    unsigned n_tasks;
    char **staging; /* per thread; NULL when nothing is converted */
    size_t row_bytes_max;
};

/* 32 values as a scale (the largest over 127, rounded to binary16) and the nearest multiples of it. */
static void encode_q8_0(const float *x, char *to)
{
    float max = 0;
    for (uint32_t i = 0; i < Q8_0_ELEMS; i++)
        max = __builtin_fabsf(x[i]) > max ? __builtin_fabsf(x[i]) : max;
    uint16_t h = dk_f32_to_f16(max / 127.0f);
    float d = dk_f16_to_f32(h);
    memcpy(to, &h, sizeof(h));
    for (uint32_t i = 0; i < Q8_0_ELEMS; i++) {
        float q = d > 0 ? x[i] / d : 0;
        q = q > 127 ? 127 : q < -127 ? -127 : q;
        to[2 + i] = (char)(int8_t)(q + (q < 0 ? -0.5f : 0.5f));
    }
}

void cpu_encode_row(enum dk_type type, const float *row, uint32_t k, char *to)
{
    if (type == DK_F32)
        memcpy(to, row, (size_t)k * sizeof(*row));
    for (uint32_t i = 0; type == DK_BF16 && i < k; i++) {
        uint16_t h = dk_f32_to_bf16(row[i]);
        memcpy(to + (size_t)i * 2, &h, 2);
    }
    for (uint32_t i = 0; type == DK_Q8_0 && i < k; i += Q8_0_ELEMS)
        encode_q8_0(row + i, to + (size_t)(i / Q8_0_ELEMS) * Q8_0_BYTES);
}

/* Converts the rows of one panel to the stored type, then packs them as a matrix of its own. */
static void pack_converted(const struct pack_task *task, char *staging, uint32_t panel)
{
    const struct dk_weight *w = task->w;
    uint32_t row0 = panel * 16, n = w->n - row0 < 16 ? w->n - row0 : 16;
    const struct dk_type_info *ti = dk_type_info(w->type);
    size_t row_bytes = (size_t)w->k / ti->block_elems * ti->block_bytes;
    float *row = (void *)staging; /* the allocator aligned it */
    char *rows = staging + (size_t)w->k * sizeof(float);
    for (uint32_t r = 0; r < n; r++) {
        cpu_file_row(task->t, row0 + r, w->k, row);
        cpu_encode_row(w->type, row, w->k, rows + r * row_bytes);
    }
    size_t panel_bytes = w->bytes / w->n_panels;
    /* The packed memory is ours; dk_weight holds it as const for everyone else. */
    char *dst = (char *)(uintptr_t)w->data + panel * panel_bytes;
    dk_weight_pack(dst, w->type, w->layout, n, w->k, rows, row_bytes, 0, 1);
}

static void pack_region(void *arg, const struct dk_par *par)
{
    const struct pack_region *p = arg;
    for (unsigned i = 0; i < p->n_tasks; i++) {
        const struct pack_task *task = &p->tasks[i];
        const struct dk_weight *w = task->w;
        size_t a, b;
        dk_split(par, w->n_panels, 1, &a, &b);
        if (a == b)
            continue;
        if (w->type == task->t->type) {
            dk_weight_pack((void *)(uintptr_t)w->data, w->type, w->layout, w->n, w->k,
                           task->t->data, task->t->bytes / task->t->dims[0], (uint32_t)a,
                           (uint32_t)b);
            continue;
        }
        for (size_t panel = a; panel < b; panel++)
            pack_converted(task, p->staging[par->tid], (uint32_t)panel);
    }
}

static int take_vector(const struct model_file *f, const struct model_tensor *t, char **at,
                       const float **ret)
{
    (void)f;
    *ret = NULL;
    if (!t)
        return 0;
    float *v = (void *)*at; /* whole lines */
    size_t bytes = (size_t)t->dims[0] * sizeof(float), padded;
    cpu_file_row(t, 0, (uint32_t)t->dims[0], v);
    if (!size_round_up(bytes, ALIGN, &padded))
        return DEDIT_E_LIMIT;
    *at += padded;
    *ret = v;
    return 0;
}

static int load_vectors(struct backend_model *m)
{
    const struct model_file *f = m->file;
    char *at = m->vectors;
    m->inv_freq = m->vectors;
    rope_inv_freq(&m->cfg, m->inv_freq);
    at += ((size_t)m->cfg.head_dim / 2 * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
    int r = take_vector(f, model_file_tensor(f, MT_FINAL_NORM, 0), &at, &m->final_norm);
    if (r == 0)
        r = take_vector(f, model_file_tensor(f, MT_HIDDEN_NORM, 0), &at, &m->hidden_norm);
    for (uint32_t l = 0; r == 0 && l < m->cfg.n_layers; l++)
        for (unsigned i = 0; r == 0 && i < sizeof(vector_roles) / sizeof(*vector_roles); i++)
            r = take_vector(f, model_file_tensor(f, vector_roles[i], l), &at,
                            layer_vector(&m->layers[l], i));
    return r;
}

static int place_weight(struct backend_model *m, const struct model_tensor *t, struct dk_weight *w,
                        size_t *at, struct error *err)
{
    int r = weight_shape(m->file, t, &m->opt, w, err);
    if (r < 0)
        return r;
    w->data = (char *)m->packed + *at;
    if (!add_aligned(at, w->bytes))
        return ERR(err, INTERNAL, "packed size changed while loading");
    return 0;
}

/* Largest row among tensors that are converted, 0 without any. */
static uint32_t converted_k(const struct backend_model *m, const struct model_tensor *head)
{
    const struct model_tensor *t[N_MATRICES];
    uint32_t k = 0;
    for (uint32_t l = 0; l <= m->cfg.n_layers; l++) {
        unsigned n = matrices_of(m->file, head, l, t);
        for (unsigned i = 0; i < n; i++)
            if (cpu_stored_type(t[i], &m->opt) != t[i]->type && t[i]->dims[1] > k)
                k = (uint32_t)t[i]->dims[1];
    }
    return k;
}

/* Where the matrices of matrices_of() go. */
static struct dk_weight *weight_of(struct backend_model *m, uint32_t layer, unsigned i)
{
    if (layer < m->cfg.n_layers)
        return layer_weight(&m->layers[layer], i);
    return m->cfg.drafter && i == 0 ? &m->fc : &m->head;
}

static int pack_all(struct backend_model *m, const struct model_tensor *head,
                    void (*progress)(void *, uint64_t, uint64_t), void *arg, struct error *err)
{
    struct model_file *f = m->file;
    struct pack_task tasks[N_MATRICES];
    const struct model_tensor *t[N_MATRICES];
    char *staging[CPU_MAX_THREADS] = {NULL};
    uint32_t k = converted_k(m, head);
    /* One row as floats and a panel's 16 rows in the stored type. */
    size_t per_thread = (size_t)k * sizeof(float) * 17, at = 0, done = 0;
    _cleanup_free_ char *mem = NULL;
    if (k) {
        mem = mem_array(m->n_threads, per_thread);
        if (!mem)
            return ERR_NOMEM(err);
        for (unsigned i = 0; i < m->n_threads; i++)
            staging[i] = mem + i * per_thread;
    }
    struct pack_region region = {.tasks = tasks, .staging = staging};
    for (uint32_t l = 0; l <= m->cfg.n_layers; l++) {
        unsigned n = matrices_of(f, head, l, t);
        for (unsigned i = 0; i < n; i++) {
            tasks[i] = (struct pack_task){t[i], weight_of(m, l, i)};
            int r = place_weight(m, tasks[i].t, tasks[i].w, &at, err);
            if (r < 0)
                return r;
        }
        region.n_tasks = n;
        dk_pool_run(m->pool, pack_region, &region);
        for (unsigned i = 0; i < n; i++) {
            model_file_release(f, tasks[i].t);
            done += tasks[i].w->bytes;
        }
        if (progress)
            progress(arg, done, m->packed_bytes);
    }
    return 0;
}

/* Each thread touches its share of the activation memory first. */
static void touch_region(void *arg, const struct dk_par *par)
{
    struct backend_model *m = arg;
    size_t a, b;
    dk_split(par, m->scratch_bytes, 4096, &a, &b);
    memset((char *)m->scratch + a, 0, b - a);
}

static void *map_region(size_t bytes, void **ret, struct error *err, const char *what)
{
    *ret = mem_map_pages(bytes);
    if (!*ret)
        (void)ERR(err, NOMEM, "out of memory: %zu bytes for %s", bytes, what);
    return *ret;
}

int cpu_load_into(struct backend_model *m, const struct model_tensor *head,
                  void (*progress)(void *, uint64_t, uint64_t), void *arg, struct error *err)
{
    uint64_t t0 = clock_now_ns();
    int r = cpu_measure(m->file, head, &m->opt, m->n_threads, &m->mem, err);
    if (r < 0)
        return r;
    if (!vectors_size(m->file, &m->vectors_bytes))
        return ERR(err, INTERNAL, "vector sizes changed while loading");
    m->amx_class = cpu_amx_class(m->file, head, &m->opt);
    m->packed_bytes = m->mem.packed_bytes - m->vectors_bytes;
    m->kv_bytes = m->mem.kv_bytes;
    m->scratch_bytes = m->mem.scratch_bytes;
    m->layers = mem_calloc(m->cfg.n_layers, sizeof(*m->layers));
    if (!m->layers)
        return ERR_NOMEM(err);
    if (!map_region(m->packed_bytes, &m->packed, err, "packed weights") ||
        !map_region(m->vectors_bytes, &m->vectors, err, "norms and biases") ||
        !map_region(m->kv_bytes, &m->kv, err, "the KV pool") ||
        !map_region(m->scratch_bytes, &m->scratch, err, "activations"))
        return DEDIT_E_NOMEM;
    if (m->target)
        m->pool = m->target->pool;
    else if ((r = dk_pool_new(m->n_threads, &m->pool, err)) < 0)
        return r;
    uint64_t t1 = clock_now_ns();
    if (load_vectors(m) < 0)
        return ERR(err, INTERNAL, "vector sizes changed while loading");
    r = pack_all(m, head, progress, arg, err);
    if (r < 0)
        return r;
    uint64_t t2 = clock_now_ns();
    size_t layer;
    if (!kv_layer_size(&m->cfg, &m->opt, m->mem.kv_type, &layer))
        return ERR(err, INTERNAL, "KV size changed while loading");
    for (uint32_t l = 0; l < m->cfg.n_layers; l++) {
        char *k = (char *)m->kv + (size_t)2 * l * layer;
        m->layers[l].kv = (struct dk_kv){.type = m->mem.kv_type,
                                         .n_kv_heads = m->cfg.n_kv_heads,
                                         .head_dim = m->cfg.head_dim,
                                         .k = k,
                                         .v = k + layer,
                                         .amx = m->amx_class};
    }
    dk_pool_run(m->pool, touch_region, m);
    size_t bytes;
    if (cpu_scratch_layout(&m->cfg, &m->opt, m->n_threads, m->scratch, &m->s, m->thread, &bytes) <
        0)
        return ERR(err, INTERNAL, "activation size changed while loading");
    uint64_t t3 = clock_now_ns();
    m->timing = (struct backend_timing){.map = (double)(t1 - t0) * 1e-9,
                                        .pack = (double)(t2 - t1) * 1e-9,
                                        .warm = (double)(t3 - t2) * 1e-9};
    return 0;
}

int cpu_load(struct model_file *f, const struct backend_options *o,
             void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
             struct backend_model **ret, struct error *err)
{
    int r = cpu_check_options(o, err);
    if (r < 0)
        return r;
    struct backend_model *m = mem_zalloc(sizeof(*m));
    if (!m)
        return ERR_NOMEM(err);
    m->cfg = *model_file_config(f);
    m->opt = *o;
    m->file = f;
    m->ops = dk_ops(o->tier);
    m->n_threads = cpu_resolve_threads(o->n_threads);
    m->embed = m->cfg.tied ? NULL : model_file_tensor(f, MT_EMBED, 0);
    m->scale = (float)(1.0 / __builtin_sqrt((double)m->cfg.head_dim));
    r = cpu_load_into(m, model_file_tensor(f, MT_HEAD, 0), progress, arg, err);
    if (r < 0) {
        cpu_free(m);
        return r;
    }
    *ret = m;
    return 0;
}

void cpu_free(struct backend_model *m)
{
    if (!m)
        return;
    if (!m->target)
        dk_pool_free(m->pool);
    mem_unmap_pages(m->packed, m->packed_bytes);
    mem_unmap_pages(m->vectors, m->vectors_bytes);
    mem_unmap_pages(m->kv, m->kv_bytes);
    mem_unmap_pages(m->scratch, m->scratch_bytes);
    mem_free(m->layers);
    mem_free(m);
}
