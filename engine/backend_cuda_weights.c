/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights onto the device, once: panels are packed by all threads of the host into one half of a
 * pinned buffer while the other half is being copied.  Norms, biases and the frequencies of the
 * rotation go the same way, as floats.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/backend_cpu.h"
#include "engine/backend_cuda.h"
#include "engine/rope.h"

#define PANEL 16u

static const enum model_tensor_role matrix_roles[CUDA_MATRICES] = {MT_Q,    MT_K,  MT_V,   MT_O,
                                                                   MT_GATE, MT_UP, MT_DOWN};
static const enum model_tensor_role vector_roles[] = {
    MT_ATTN_NORM, MT_FFN_NORM, MT_Q_BIAS, MT_K_BIAS, MT_V_BIAS, MT_Q_NORM, MT_K_NORM};

static const float **layer_vector(struct cuda_layer *l, unsigned i)
{
    const float **v[] = {&l->attn_norm, &l->ffn_norm, &l->q_bias, &l->k_bias,
                         &l->v_bias,    &l->q_norm,   &l->k_norm};
    return v[i];
}

/* The tensor cores take 16-bit floats, unless the CPU's bits are wanted, and cuBLASLt all floats. */
enum dcu_layout cuda_layout(enum dk_type stored, const struct backend_options *o)
{
    bool half = stored == DK_BF16 || stored == DK_F16;
    if (o->fast && (half || stored == DK_F32))
        return DCU_LAYOUT_ROWS;
    return half && !o->exact ? DCU_LAYOUT_MMA : DCU_LAYOUT_PANEL;
}

/* An embedding that only serves look-ups stays in panels. */
static int weight_shape(const struct model_file *f, const struct model_tensor *t, bool products,
                        const struct backend_options *o, struct dcu_weight *w, size_t *ret,
                        struct error *err)
{
    enum dk_type type = cpu_stored_type(t, o);
    /* A look-up reads rows as they are filed; only rounding to BF16 changes their values. */
    if (!products && o->dtype != BACKEND_DTYPE_BF16)
        type = t->type;
    *w = (struct dcu_weight){.type = type,
                             .layout = products ? cuda_layout(type, o) : DCU_LAYOUT_PANEL,
                             .n = (uint32_t)t->dims[0],
                             .k = (uint32_t)t->dims[1]};
    if (!dcu_weight_bytes(w->type, w->layout, w->n, w->k, ret))
        return ERR(err, UNSUPPORTED, "%s: tensor %s: a %s matrix of %u x %u cannot be packed",
                   model_file_path(f), t->name, dk_type_info(w->type)->name, w->n, w->k);
    return 0;
}

/* ---- everything that is uploaded, in order ---------------------------------------------------------- */

/* What a walk over the weights does with one: counts it, or places and copies it. */
struct walk {
    const struct model_file *f;
    const struct backend_options *o;
    struct cuda_model *m; /* NULL: only counting */
    size_t used;
    unsigned forms;
    unsigned half; /* of the staging, next */
    bool busy[2];
    void (*progress)(void *, uint64_t, uint64_t);
    void *arg;
    struct error *err;
};

static int place(struct walk *w, size_t bytes, char **ret)
{
    size_t at = w->used;
    if (!size_round_up(bytes, CUDA_ALIGN, &bytes) || !size_add(w->used, bytes, &w->used))
        return ERR(w->err, LIMIT, "%s: the weights exceed the address space",
                   model_file_path(w->f));
    *ret = w->m ? (char *)w->m->weights + at : NULL;
    return 0;
}

/* A half of the staging that the device has read. */
static int next_half(struct walk *w, char **ret)
{
    struct cuda_model *m = w->m;
    if (w->busy[w->half])
        CUDA_DO(m, w->err, "uploading weights", m->api->event_wait(m->staged[w->half]));
    *ret = m->p.staging[w->half];
    return 0;
}

static int send_half(struct walk *w, void *to, size_t bytes)
{
    struct cuda_model *m = w->m;
    CUDA_DO(m, w->err, "uploading weights",
            m->api->copy_in(m->stream, to, m->p.staging[w->half], bytes));
    CUDA_DO(m, w->err, "uploading weights", m->api->event_record(m->staged[w->half], m->stream));
    w->busy[w->half] = true;
    w->half ^= 1;
    return 0;
}

/* ---- matrices --------------------------------------------------------------------------------------- */

struct pack {
    const struct model_tensor *t;
    const struct dcu_weight *w;
    char *out; /* of panel0 */
    char *
        rows; /* per thread: one row of floats and a panel's rows in the stored type; NULL: as filed */
    size_t rows_bytes;
    uint32_t panel0, panel1;
};

static void convert_panel(const struct pack *p, uint32_t panel, char *memory, char *out)
{
    const struct dcu_weight *w = p->w;
    const struct dk_type_info *ti = dk_type_info(w->type);
    size_t row_bytes = (size_t)w->k / ti->block_elems * ti->block_bytes;
    uint32_t row0 = panel * PANEL, n = w->n - row0 < PANEL ? w->n - row0 : PANEL;
    float *row = (void *)memory;
    char *rows = memory + (size_t)w->k * sizeof(float);
    for (uint32_t r = 0; r < n; r++) {
        cpu_file_row(p->t, row0 + r, w->k, row);
        cpu_encode_row(w->type, row, w->k, rows + r * row_bytes);
    }
    dcu_weight_pack(out, w->type, w->layout, n, w->k, rows, row_bytes, 0, 1);
}

static void pack_region(void *arg, const struct dk_par *par)
{
    const struct pack *p = arg;
    const struct dcu_weight *w = p->w;
    size_t a, b, panel_bytes = dcu_panel_bytes(w->type, w->layout, w->k);
    dk_split(par, p->panel1 - p->panel0, 1, &a, &b);
    if (!p->rows && a < b)
        dcu_weight_pack(p->out + a * panel_bytes, w->type, w->layout, w->n, w->k, p->t->data,
                        p->t->bytes / p->t->dims[0], p->panel0 + (uint32_t)a,
                        p->panel0 + (uint32_t)b);
    for (; p->rows && a < b; a++)
        convert_panel(p, p->panel0 + (uint32_t)a, p->rows + par->tid * p->rows_bytes,
                      p->out + a * panel_bytes);
}

/* Panels longer than the staging do not happen: it is made as long as the longest. */
static int upload_matrix(struct walk *w, const struct model_tensor *t, const struct dcu_weight *x)
{
    struct cuda_model *m = w->m;
    size_t panel_bytes = dcu_panel_bytes(x->type, x->layout, x->k);
    uint32_t panels = (x->n + PANEL - 1) / PANEL,
             fit = (uint32_t)(m->p.staging_bytes / panel_bytes);
    struct pack p = {.t = t, .w = x};
    _cleanup_free_ char *rows = NULL;
    if (fit == 0)
        return ERR(w->err, LIMIT, "%s: tensor %s: its rows are too long", model_file_path(w->f),
                   t->name);
    if (x->type != t->type) {
        p.rows_bytes = (size_t)x->k * sizeof(float) * 17;
        rows = mem_array(m->n_threads, p.rows_bytes);
        if (!rows)
            return ERR_NOMEM(w->err);
        p.rows = rows;
    }
    for (uint32_t i = 0; i < panels; i = p.panel1) {
        int r = next_half(w, &p.out);
        if (r < 0)
            return r;
        p.panel0 = i;
        p.panel1 = panels - i < fit ? panels : i + fit;
        dk_pool_run(m->pool, pack_region, &p);
        /* The device's memory is ours; dcu_weight holds it as const for everyone else. */
        r = send_half(w, (char *)(uintptr_t)x->data + i * panel_bytes,
                      (p.panel1 - i) * panel_bytes);
        if (r < 0)
            return r;
    }
    return 0;
}

static int matrix(struct walk *w, const struct model_tensor *t, bool products,
                  struct dcu_weight *ret)
{
    struct dcu_weight x;
    size_t bytes;
    char *at;
    int r = weight_shape(w->f, t, products, w->o, &x, &bytes, w->err);
    if (r == 0)
        r = place(w, bytes, &at);
    if (r < 0)
        return r;
    if (products)
        w->forms |= dcu_weight_form(x.type, x.layout);
    if (!w->m)
        return 0;
    x.data = at;
    w->m->mma = w->m->mma || x.layout == DCU_LAYOUT_MMA;
    w->m->rows = w->m->rows || x.layout == DCU_LAYOUT_ROWS;
    w->m->api->region(at, bytes);
    r = upload_matrix(w, t, &x);
    if (r < 0)
        return r;
    *ret = x;
    model_file_release(w->m->file, t);
    if (w->progress)
        w->progress(w->arg, w->used, w->m->weights_bytes);
    return 0;
}

/* ---- vectors ---------------------------------------------------------------------------------------- */

static int upload_floats(struct walk *w, char *to, const float *from, size_t n)
{
    const size_t most = w->m->p.staging_bytes / sizeof(float);
    w->m->api->region(to, n * sizeof(float));
    for (size_t i = 0, k; i < n; i += k) {
        char *half;
        k = n - i < most ? n - i : most;
        int r = next_half(w, &half);
        if (r < 0)
            return r;
        memcpy(half, from + i, k * sizeof(float));
        r = send_half(w, to + i * sizeof(float), k * sizeof(float));
        if (r < 0)
            return r;
    }
    return 0;
}

static int vector(struct walk *w, const struct model_tensor *t, const float **ret)
{
    char *at;
    if (!t)
        return 0; /* the model is zero where it has none */
    uint32_t n = (uint32_t)t->dims[0];
    int r = place(w, (size_t)n * sizeof(float), &at);
    if (r < 0 || !w->m)
        return r;
    _cleanup_free_ float *x = mem_array(n, sizeof(*x));
    if (!x)
        return ERR_NOMEM(w->err);
    cpu_file_row(t, 0, n, x);
    r = upload_floats(w, at, x, n);
    *ret = (const float *)(void *)at;
    return r;
}

static int frequencies(struct walk *w, uint32_t head_dim)
{
    char *at;
    int r = place(w, head_dim / 2 * sizeof(float), &at);
    if (r < 0 || !w->m)
        return r;
    _cleanup_free_ float *x = mem_array(head_dim / 2, sizeof(*x));
    if (!x)
        return ERR_NOMEM(w->err);
    rope_inv_freq(&w->m->cfg, x);
    r = upload_floats(w, at, x, head_dim / 2);
    w->m->inv_freq = (const float *)(void *)at;
    return r;
}

/* ---- the walk --------------------------------------------------------------------------------------- */

static int layer(struct walk *w, uint32_t l)
{
    struct cuda_layer unused = {0}, *x = w->m ? &w->m->layers[l] : &unused;
    int r = 0;
    for (unsigned i = 0; r == 0 && i < CUDA_MATRICES; i++)
        r = matrix(w, model_file_tensor(w->f, matrix_roles[i], l), true, &x->w[i]);
    for (unsigned i = 0; r == 0 && i < ARRAY_LEN(vector_roles); i++)
        r = vector(w, model_file_tensor(w->f, vector_roles[i], l), layer_vector(x, i));
    return r;
}

static int all_weights(struct walk *w, const struct model_tensor *head)
{
    const struct model_config *c = model_file_config(w->f);
    const struct model_tensor *fc = model_file_tensor(w->f, MT_FC, 0);
    const struct model_tensor *embed = c->tied ? NULL : model_file_tensor(w->f, MT_EMBED, 0);
    struct dcu_weight unused;
    const float *none;
    struct cuda_model *m = w->m;
    int r = frequencies(w, c->head_dim);
    for (uint32_t l = 0; r == 0 && l < c->n_layers; l++)
        r = layer(w, l);
    if (r == 0)
        r = vector(w, model_file_tensor(w->f, MT_FINAL_NORM, 0), m ? &m->final_norm : &none);
    if (r == 0)
        r = vector(w, model_file_tensor(w->f, MT_HIDDEN_NORM, 0), m ? &m->hidden_norm : &none);
    if (r == 0 && fc)
        r = matrix(w, fc, true, m ? &m->fc : &unused);
    if (r == 0 && embed)
        r = matrix(w, embed, false, m ? &m->embed : &unused);
    if (r == 0 && head)
        r = matrix(w, head, true, m ? &m->head : &unused);
    /* Headers of the layers' K/V, for copies between slots. */
    char *at = NULL;
    if (r == 0)
        r = place(w, c->n_layers * sizeof(struct dk_kv), &at);
    if (r == 0 && m)
        m->device_layers = (void *)at;
    return r;
}

int cuda_weights_size(const struct model_file *f, const struct model_tensor *head,
                      const struct backend_options *o, size_t *ret, unsigned *ret_forms,
                      struct error *err)
{
    struct walk w = {.f = f, .o = o, .err = err};
    int r = all_weights(&w, head);
    *ret = w.used;
    *ret_forms = w.forms;
    return r;
}

int cuda_weights_upload(struct cuda_model *m, const struct model_tensor *head,
                        void (*progress)(void *, uint64_t, uint64_t), void *arg, struct error *err)
{
    struct walk w = {
        .f = m->file, .o = &m->opt, .m = m, .progress = progress, .arg = arg, .err = err};
    int r = all_weights(&w, head);
    size_t bytes = m->cfg.n_layers * sizeof(struct dk_kv);
    char *half;
    if (r == 0)
        r = next_half(&w, &half);
    if (r < 0)
        return r;
    if (bytes > m->p.staging_bytes)
        return ERR(err, LIMIT, "%s: too many layers", model_file_path(m->file));
    m->api->region(m->device_layers, bytes);
    struct dk_kv *kv = (void *)half;
    for (uint32_t l = 0; l < m->cfg.n_layers; l++)
        kv[l] = m->layers[l].kv;
    r = send_half(&w, m->device_layers, bytes);
    if (r < 0)
        return r;
    CUDA_DO(m, err, "uploading weights", m->api->stream_wait(m->stream));
    return 0;
}
