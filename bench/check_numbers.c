/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of gguf/dequant_blocks.safetensors (formats and conversions, bits) and sampling/. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "bench/check.h"

/* ---- dequantisation ---- */

/* Number of values that differ; -0 equals 0, any NaN equals any NaN. */
static size_t differing(const float *a, const float *b, size_t n)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        bool same = !memcmp(&a[i], &b[i], sizeof(*a)) || (a[i] == 0 && b[i] == 0) ||
                    (isnan(a[i]) && isnan(b[i]));
        bad += !same;
    }
    return bad;
}

static int dequant_type(const struct safetensors *s, enum dk_type t, size_t *ret_n, size_t *ret_bad,
                        struct error *err)
{
    const struct dk_type_info *info = dk_type_info(t);
    char name[32];
    snprintf(name, sizeof(name), "%s.raw", info->name);
    const struct st_tensor *raw = safetensors_find(s, name), *f32;
    if (!raw)
        return 1;
    snprintf(name, sizeof(name), "%s.f32", info->name);
    int r = check_tensor(s, name, ST_F32, info->quantised ? 2 : 1, &f32, err);
    if (r < 0)
        return r;
    size_t blocks = raw->bytes / info->block_bytes, n = blocks * info->block_elems;
    if (f32->bytes != n * sizeof(float))
        return ERR(err, MISMATCH, "%s has %zu bytes, wanted %zu", name, f32->bytes,
                   n * sizeof(float));
    _cleanup_free_ float *out = mem_array(n + 1, sizeof(*out));
    if (!out)
        return ERR_NOMEM(err);
    dk_dequant(t, raw->data, blocks, out);
    *ret_n = n;
    *ret_bad = differing(out, f32->data, n);
    return 0;
}

static int conversion(const struct safetensors *s, bool bf16, size_t *ret_n, size_t *ret_bad,
                      struct error *err)
{
    const struct st_tensor *in, *out;
    int r = check_tensor(s, bf16 ? "f32_to_bf16.in" : "f32_to_f16.in", ST_F32, 1, &in, err);
    if (r == 0)
        r = check_tensor(s, bf16 ? "f32_to_bf16.out" : "f32_to_f16.out", ST_U16, 1, &out, err);
    if (r < 0)
        return r;
    if (in->dims[0] != out->dims[0])
        return ERR(err, MISMATCH, "%s and its .out have different lengths", in->name);
    *ret_n = (size_t)in->dims[0];
    *ret_bad = 0;
    for (size_t i = 0; i < *ret_n; i++) {
        float x = ((const float *)in->data)[i];
        uint16_t want = ((const uint16_t *)out->data)[i];
        uint16_t got = bf16 ? dk_f32_to_bf16(x) : dk_f32_to_f16(x);
        *ret_bad += got != want && !isnan(x);
    }
    return 0;
}

void check_dequant(struct check *k, const char *kind)
{
    struct error err = {0};
    _cleanup_(safetensors_freep) struct safetensors *s = NULL;
    if (safetensors_open(check_path(k, "gguf", "dequant_blocks.safetensors"), &s, &err) < 0) {
        check_result(k, false, kind, "dequant_blocks", "%s", err.msg);
        return;
    }
    for (int t = 0; t < DK_TYPE_COUNT + 2; t++) {
        const char *name = t < DK_TYPE_COUNT    ? dk_type_info((enum dk_type)t)->name
                           : t == DK_TYPE_COUNT ? "f32_to_f16"
                                                : "f32_to_bf16";
        size_t n = 0, bad = 0;
        int r = t < DK_TYPE_COUNT ? dequant_type(s, (enum dk_type)t, &n, &bad, &err)
                                  : conversion(s, t > DK_TYPE_COUNT, &n, &bad, &err);
        if (r < 0)
            check_result(k, false, kind, name, "%s", err.msg);
        else if (r == 0)
            check_result(k, bad == 0, kind, name, "%zu of %zu values differ", bad, n);
    }
}

/* ---- sampling ---- */

struct sampling_case {
    const char *name;
    uint32_t vocab;
    double cut_distance; /* 1 when there is no cut */
    struct sampling_params params;
    struct logit_bias bias[SAMPLING_MAX_LOGIT_BIAS];
    struct check_ids prompt, output;
    const struct st_tensor *logits, *ids, *probs;
};

static int read_params(struct sampling_case *c, const json_t *o, struct error *err)
{
    static const char *const names[] = {
        "temperature",      "top_p", "min_p", "repetition_penalty", "frequency_penalty",
        "presence_penalty",
    };
    float *const values[] = {
        &c->params.temperature,
        &c->params.top_p,
        &c->params.min_p,
        &c->params.repetition_penalty,
        &c->params.frequency_penalty,
        &c->params.presence_penalty,
    };
    sampling_params_init(&c->params);
    const json_t *p = json_object_get(o, "params"), *v, *b;
    const char *key, *id;
    json_object_foreach((json_t *)(uintptr_t)p, key, v)
    {
        size_t i = 0;
        while (i < ARRAY_LEN(names) && strcmp(names[i], key))
            i++;
        if (i < ARRAY_LEN(names)) {
            *values[i] = (float)json_number_value(v);
        } else if (!strcmp(key, "top_k")) {
            c->params.top_k = (int32_t)json_integer_value(v);
        } else if (!strcmp(key, "logit_bias")) {
            json_object_foreach((json_t *)(uintptr_t)v, id, b)
            {
                struct logit_bias *x = &c->bias[c->params.n_logit_bias++];
                if (c->params.n_logit_bias > SAMPLING_MAX_LOGIT_BIAS ||
                    parse_u32(id, UINT32_MAX, &x->token) < 0)
                    return ERR(err, FORMAT, "logit_bias: bad key \"%s\"", id);
                x->bias = (float)json_number_value(b);
            }
            c->params.logit_bias = c->bias;
        } else {
            return ERR(err, UNSUPPORTED, "unknown parameter \"%s\"", key);
        }
    }
    return 0;
}

static int read_sampling(struct sampling_case *c, const json_t *o, const struct safetensors *s,
                         struct error *err)
{
    const char *logits;
    char name[128];
    double vocab = 0;
    int r = check_get_str(o, "case", &c->name, err);
    if (r == 0)
        r = check_get_num(o, "vocab", &vocab, err);
    if (r == 0)
        r = check_get_str(o, "logits", &logits, err);
    if (r == 0)
        r = read_params(c, o, err);
    if (r == 0)
        r = check_get_ids(o, "prompt_ids", &c->prompt, err);
    if (r == 0)
        r = check_get_ids(o, "output_ids", &c->output, err);
    if (r == 0)
        r = check_tensor(s, logits, ST_F32, 1, &c->logits, err);
    if (r < 0)
        return r;
    snprintf(name, sizeof(name), "ids.%s", c->name);
    if ((r = check_tensor(s, name, ST_I32, 1, &c->ids, err)) < 0)
        return r;
    snprintf(name, sizeof(name), "probs.%s", c->name);
    if ((r = check_tensor(s, name, ST_F64, 1, &c->probs, err)) < 0)
        return r;
    c->vocab = (uint32_t)vocab;
    c->cut_distance = 1;
    const json_t *cut = json_object_get(o, "cut_distance");
    if (json_is_number(cut))
        c->cut_distance = json_number_value(cut);
    if (c->logits->dims[0] != c->vocab || c->ids->dims[0] != c->probs->dims[0])
        return ERR(err, MISMATCH, "sizes of logits, ids and probs");
    for (size_t i = 0; i < c->prompt.n + c->output.n; i++)
        if ((i < c->prompt.n ? c->prompt.v[i] : c->output.v[i - c->prompt.n]) >= c->vocab)
            return ERR(err, FORMAT, "an id is outside the vocabulary");
    return 0;
}

static int run_sampling(struct check *k, const char *kind, const struct sampling_case *c,
                        const struct dk_ops *ops, struct error *err)
{
    _cleanup_(sampler_freep) struct sampler *s = NULL;
    _cleanup_free_ uint32_t *ids = mem_array(c->vocab, sizeof(*ids));
    _cleanup_free_ double *probs = mem_array(c->vocab, sizeof(*probs));
    if (!ids || !probs)
        return ERR_NOMEM(err);
    int r = sampler_new(&c->params, c->vocab, NULL, 0, &s, err);
    if (r == 0)
        r = sampler_add_prompt(s, c->prompt.v, c->prompt.n);
    for (size_t i = 0; i < c->output.n && r == 0; i++)
        r = sampler_commit(s, c->output.v[i]);
    uint32_t n = 0;
    if (r == 0)
        r = sampler_probs(s, ops, c->logits->data, ids, probs, &n, err);
    if (r < 0)
        return r;
    const int32_t *want_ids = c->ids->data;
    const double *want = c->probs->data;
    size_t n_want = (size_t)c->ids->dims[0];
    bool same = n == n_want;
    double worst = 0;
    for (size_t i = 0; i < n && same; i++) {
        same = ids[i] == (uint32_t)want_ids[i];
        double d = fabs(probs[i] - want[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    bool at_cut = !same && c->cut_distance < 1e-6;
    check_result(k, at_cut || (same && worst <= 1e-6), kind, c->name, "%s, at most %.1e apart",
                 same     ? "same ids"
                 : at_cut ? "another id at a cut closer than 1e-6"
                          : "other ids",
                 worst);
    return 0;
}

static void check_philox(struct check *k, const char *kind)
{
    struct error err = {0};
    json_t *all = NULL, *o;
    size_t i, n = 0, bad = 0;
    const char *path = check_path(k, kind, "philox4x32_10.json");
    if (!check_exists(path))
        return;
    if (check_read_json(path, &all, &err) < 0) {
        check_result(k, false, kind, "philox4x32_10", "%s", err.msg);
        return;
    }
    json_array_foreach(all, i, o)
    {
        static const char *const keys[] = {"counter", "key", "out"};
        uint32_t w[3][4] = {{0}}, got[4];
        for (size_t a = 0; a < 3; a++)
            for (size_t j = 0; j < (a == 1 ? 2u : 4u); j++) {
                const char *hex = json_string_value(json_array_get(json_object_get(o, keys[a]), j));
                for (; hex && *hex; hex++) {
                    static const char digits[] = "0123456789abcdef";
                    const char *d = strchr(digits, *hex);
                    w[a][j] = w[a][j] << 4 | (uint32_t)(d ? d - digits : 0);
                }
            }
        dk_philox4x32_10(w[0], w[1], got);
        n++;
        bad += memcmp(got, w[2], sizeof(got)) != 0;
    }
    json_decref(all);
    check_result(k, bad == 0 && n > 0, kind, "philox4x32_10", "%zu of %zu blocks differ", bad, n);
}

void check_sampling(struct check *k, const char *kind)
{
    struct error err = {0};
    struct check_lines l = {0};
    _cleanup_(safetensors_freep) struct safetensors *s = NULL;
    const struct dk_ops *ops = dk_ops(k->engine.config.tier);
    json_t *o = NULL;
    check_philox(k, kind);
    if (safetensors_open(check_path(k, kind, "vectors.safetensors"), &s, &err) < 0 ||
        check_lines_open(&l, check_path(k, kind, "cases.jsonl"), &err) < 0) {
        check_result(k, false, kind, "cases", "%s", err.msg);
        return;
    }
    int r;
    while ((r = check_lines_next(&l, &o, &err)) > 0) {
        struct sampling_case c;
        memset(&c, 0, sizeof(c));
        r = read_sampling(&c, o, s, &err);
        if (r == 0)
            r = run_sampling(k, kind, &c, ops, &err);
        if (r < 0) {
            char name[128];
            snprintf(name, sizeof(name), "line %d", l.number);
            check_result(k, false, kind, c.name ? c.name : name, "%s",
                         r == DEDIT_E_NOMEM ? "out of memory" : err.msg);
        }
        mem_free(c.prompt.v);
        mem_free(c.output.v);
        json_decref(o);
    }
    if (r < 0)
        check_result(k, false, kind, "cases", "%s", err.msg);
    check_lines_done(&l);
}
