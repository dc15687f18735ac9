/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of models/ and gguf/: logits of every prompt position, the residual stream, greedy tokens.
 *
 * Greedy tokens are compared up to the first step whose margin could be overturned by twice the
 * tolerance.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/check.h"

#define MAX_TAPS 128u

struct model_case {
    struct check *k;
    const char *kind, *model; /* "gguf", "a_llama_tied.Q4_0" */
    struct engine *e;
    struct model_file *file;
    struct safetensors *tensors;
    json_t *oracle;
    double tolerance;
    uint32_t vocab, hidden, n_layers;
};

/* Feeds a prompt, all logits wanted, in pieces when --chunk says so. */
static int feed(struct model_case *m, struct seq *s, const struct check_ids *prompt, float *logits,
                const uint32_t *layers, uint32_t n_taps, float *taps, struct error *err)
{
    size_t step = m->k->chunk ? m->k->chunk : prompt->n;
    for (size_t at = 0; at < prompt->n; at += step) {
        size_t n = prompt->n - at < step ? prompt->n - at : step;
        struct engine_feed f = {
            .seq = s,
            .tokens = prompt->v + at,
            .n = n,
            .logits = logits + at * m->vocab,
            .n_logits = n,
            .taps = taps ? taps + at * n_taps * m->hidden : NULL,
        };
        int r = engine_feed(m->e, &f, 1, layers, n_taps, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Compares logits with the rows that the file has: all, or those listed in rows.i. */
static int compare_logits(struct model_case *m, size_t i, const float *got, size_t n,
                          double *ret_excess, double *ret_diff, struct error *err)
{
    char name[64];
    const struct st_tensor *t, *rows = NULL;
    snprintf(name, sizeof(name), "logits.%zu", i);
    int r = check_tensor(m->tensors, name, ST_F32, 2, &t, err);
    if (r < 0)
        return r;
    snprintf(name, sizeof(name), "rows.%zu", i);
    if (safetensors_find(m->tensors, name) &&
        (r = check_tensor(m->tensors, name, ST_I32, 1, &rows, err)) < 0)
        return r;
    if (t->dims[1] != m->vocab || t->dims[0] != (rows ? rows->dims[0] : n))
        return ERR(err, MISMATCH, "logits.%zu is [%llu, %llu], wanted [%zu, %u]", i,
                   (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], n, m->vocab);
    for (size_t j = 0; j < t->dims[0]; j++) {
        int32_t row = (int32_t)j;
        if (rows)
            memcpy(&row, (const char *)rows->data + j * sizeof(row), sizeof(row));
        if (row < 0 || (size_t)row >= n)
            return ERR(err, FORMAT, "rows.%zu names row %d of %zu", i, row, n);
        double x = check_excess(got + (size_t)row * m->vocab, (const float *)t->data + j * m->vocab,
                                m->vocab, m->tolerance, m->tolerance, ret_diff);
        *ret_excess = x > *ret_excess ? x : *ret_excess;
    }
    return 0;
}

/* Embedding rows of a prompt, from the file. */
static int embed_rows(struct model_case *m, const struct check_ids *prompt, float *out,
                      struct error *err)
{
    const struct model_tensor *t = model_file_tensor(m->file, MT_EMBED, 0);
    const struct dk_type_info *info = dk_type_info(t->type);
    size_t row_bytes = t->bytes / t->dims[0], blocks = m->hidden / info->block_elems;
    for (size_t i = 0; i < prompt->n; i++) {
        if (prompt->v[i] >= t->dims[0])
            return ERR(err, FORMAT, "token %u is outside the vocabulary", prompt->v[i]);
        dk_dequant(t->type, (const char *)t->data + prompt->v[i] * row_bytes, blocks,
                   out + i * m->hidden);
    }
    return 0;
}

static int compare_hidden_one(struct model_case *m, const char *what, const float *got,
                              size_t stride, size_t n, double *ret_excess, double *ret_diff,
                              struct error *err)
{
    char name[64];
    const struct st_tensor *t;
    snprintf(name, sizeof(name), "hidden.%s", what);
    int r = check_tensor(m->tensors, name, ST_F32, 2, &t, err);
    if (r < 0)
        return r;
    if (t->dims[0] != n || t->dims[1] != m->hidden)
        return ERR(err, MISMATCH, "%s has another shape than the prompt", name);
    for (size_t i = 0; i < n; i++) {
        double x = check_excess(got + i * stride, (const float *)t->data + i * m->hidden, m->hidden,
                                m->tolerance, m->tolerance, ret_diff);
        *ret_excess = x > *ret_excess ? x : *ret_excess;
    }
    return 0;
}

/* taps: [n][n_layers][hidden].  work: n * hidden floats. */
static int compare_hidden(struct model_case *m, const struct check_ids *prompt, const float *taps,
                          float *work, double *ret_excess, double *ret_diff, struct error *err)
{
    size_t n = prompt->n, stride = (size_t)m->n_layers * m->hidden;
    int r = embed_rows(m, prompt, work, err);
    if (r == 0)
        r = compare_hidden_one(m, "embed", work, m->hidden, n, ret_excess, ret_diff, err);
    for (uint32_t l = 0; l < m->n_layers && r == 0; l++) {
        char name[32];
        snprintf(name, sizeof(name), "layer%u", l);
        r = compare_hidden_one(m, name, taps + (size_t)l * m->hidden, stride, n, ret_excess,
                               ret_diff, err);
    }
    if (r < 0)
        return r;
    const struct model_tensor *norm = model_file_tensor(m->file, MT_FINAL_NORM, 0);
    float *w = mem_array(m->hidden, sizeof(*w));
    if (!w)
        return ERR_NOMEM(err);
    dk_dequant(norm->type, norm->data, m->hidden, w);
    for (size_t i = 0; i < n; i++)
        engine_ops(m->e)->rmsnorm(work + i * m->hidden, taps + i * stride + stride - m->hidden, w,
                                  m->hidden, model_file_config(m->file)->rms_eps);
    mem_free(w);
    return compare_hidden_one(m, "final_norm", work, m->hidden, n, ret_excess, ret_diff, err);
}

/* Goes on greedily from the last row of logits (vocab floats, overwritten). */
static int compare_greedy(struct model_case *m, struct seq *s, const json_t *p, float *logits,
                          size_t *ret_same, size_t *ret_n, bool *ret_ok, struct error *err)
{
    struct check_ids want;
    int r = check_get_ids(p, "greedy", &want, err);
    if (r < 0)
        return r;
    const json_t *margins = json_object_get(p, "margin");
    *ret_n = want.n;
    *ret_ok = true;
    size_t i = 0;
    for (; i < want.n && r == 0; i++) {
        float top;
        bool bad;
        uint32_t id = engine_ops(m->e)->argmax(logits, m->vocab, &top, &bad);
        double margin = json_number_value(json_array_get(margins, i));
        if (bad || margin < 2 * m->tolerance * (1 + fabs((double)top))) {
            *ret_ok = !bad;
            break; /* too close to call: what follows would test luck */
        }
        if (id != want.v[i]) {
            *ret_ok = false;
            break;
        }
        if (i + 1 == want.n)
            continue;
        struct engine_feed f = {.seq = s, .tokens = &id, .n = 1, .logits = logits, .n_logits = 1};
        r = engine_feed(m->e, &f, 1, NULL, 0, err);
    }
    *ret_same = i;
    mem_free(want.v);
    return r;
}

/* One prompt: a line of its own. */
static int check_prompt(struct model_case *m, size_t i, const json_t *p, struct error *err)
{
    char name[256], text[128] = "";
    struct check_ids prompt = {NULL, 0};
    struct seq *s = NULL;
    uint32_t layers[MAX_TAPS];
    bool hidden = i == 2 && safetensors_find(m->tensors, "hidden.embed") && m->n_layers <= MAX_TAPS;
    uint32_t n_taps = hidden ? m->n_layers : 0;
    double excess = 0, diff = 0, h_excess = 0, h_diff = 0;
    size_t same = 0, n_greedy = 0;
    bool greedy_ok = false;
    int r = check_get_ids(p, "prompt", &prompt, err);
    if (r < 0)
        return r;
    for (uint32_t l = 0; l < n_taps; l++)
        layers[l] = l;
    float *logits = mem_array(prompt.n * m->vocab + 1, sizeof(float));
    float *taps = hidden ? mem_array(prompt.n * n_taps * m->hidden + 1, sizeof(float)) : NULL;
    float *work = hidden ? mem_array(prompt.n * m->hidden + 1, sizeof(float)) : NULL;
    if (!logits || (hidden && (!taps || !work)))
        r = ERR_NOMEM(err);
    else if (prompt.n == 0)
        r = ERR(err, FORMAT, "prompt %zu is empty", i);
    if (r == 0)
        r = engine_seq_new(m->e, &s, err);
    if (r == 0)
        r = feed(m, s, &prompt, logits, hidden ? layers : NULL, n_taps, taps, err);
    if (r == 0)
        r = compare_logits(m, i, logits, prompt.n, &excess, &diff, err);
    if (r == 0 && hidden) {
        r = compare_hidden(m, &prompt, taps, work, &h_excess, &h_diff, err);
        snprintf(text, sizeof(text), ", hidden %.1e", h_diff);
    }
    if (r == 0)
        r = compare_greedy(m, s, p, logits + (prompt.n - 1) * m->vocab, &same, &n_greedy,
                           &greedy_ok, err);
    snprintf(name, sizeof(name), "%s/%zu", m->model, i);
    if (r == 0)
        check_result(m->k, excess <= 1 && h_excess <= 1 && greedy_ok, m->kind, name,
                     "logits differ by at most %.1e (%.2g of the tolerance)%s; greedy %zu of %zu",
                     diff, excess, text, same, n_greedy);
    if (s)
        engine_seq_free(m->e, s);
    mem_free(logits);
    mem_free(taps);
    mem_free(work);
    mem_free(prompt.v);
    return r;
}

static int model_case_open(struct model_case *m, struct error *err)
{
    char rest[300];
    const char *tensors, *gguf = NULL;
    snprintf(rest, sizeof(rest), "%s.oracle.json", m->model);
    int r = check_read_json(check_path(m->k, m->kind, rest), &m->oracle, err);
    if (r < 0 || (r = check_get_str(m->oracle, "tensors", &tensors, err)) < 0)
        return r;
    if (json_object_get(m->oracle, "gguf") &&
        (r = check_get_str(m->oracle, "gguf", &gguf, err)) < 0)
        return r;
    const char *path = check_path(m->k, m->kind, gguf ? gguf : m->model);
    if ((r = safetensors_open(check_path(m->k, m->kind, tensors), &m->tensors, err)) < 0 ||
        (r = model_file_open(path, &m->file, err)) < 0 ||
        (r = engine_options_open(&m->k->engine, path, &m->e, err)) < 0)
        return r;
    const struct model_config *c = engine_model_config(m->e);
    m->vocab = c->vocab_size;
    m->hidden = c->hidden;
    m->n_layers = c->n_layers;
    m->tolerance = check_tolerance(m->e);
    return 0;
}

static void check_model(struct check *k, const char *kind, const char *model)
{
    struct model_case m = {.k = k, .kind = kind, .model = model};
    struct error err = {0};
    int r = model_case_open(&m, &err);
    const json_t *prompts = json_object_get(m.oracle, "prompts"), *p;
    size_t i;
    if (r == 0 && !json_is_array(prompts))
        r = ERR(&err, FORMAT, "\"prompts\" is not a list");
    if (r < 0) {
        check_result(k, false, kind, model, "%s", err.msg);
    } else {
        json_array_foreach(prompts, i, p)
        {
            char name[256];
            snprintf(name, sizeof(name), "%s/%zu", model, i);
            if (check_prompt(&m, i, p, &err) < 0)
                check_result(k, false, kind, name, "%s", err.msg);
        }
    }
    json_decref(m.oracle);
    engine_free(m.e);
    model_file_free(m.file);
    safetensors_free(m.tensors);
}

void check_models(struct check *k, const char *kind)
{
    struct check_names list = {NULL, 0};
    struct error err = {0};
    if (check_list(k, kind, ".oracle.json", &list, &err) < 0) {
        check_result(k, false, kind, "", "%s", err.msg);
        return;
    }
    for (size_t i = 0; i < list.n; i++)
        check_model(k, kind, list.names[i]);
    check_names_done(&list);
}
