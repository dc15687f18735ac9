/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "train/tensor_file.h"

void train_state_done(struct train_state *s)
{
    mem_free(s->target_ids);
    mem_free(s->param);
    mem_free(s->m);
    mem_free(s->v);
    mem_free(s->average);
    json_decref(s->recipe);
    memset(s, 0, sizeof(*s));
}

int train_state_alloc(struct train_state *s, bool average, struct error *err)
{
    const size_t n = s->layout.total;
    s->target_ids = mem_calloc(s->shape.draft_vocab, sizeof(*s->target_ids));
    s->param = mem_calloc(n, sizeof(float));
    s->m = mem_calloc(n, sizeof(float));
    s->v = mem_calloc(n, sizeof(float));
    if (average)
        s->average = mem_calloc(n, sizeof(float));
    if (!s->target_ids || !s->param || !s->m || !s->v || (average && !s->average))
        return ERR_NOMEM(err);
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

json_t *train_taps_json(const struct train_shape *s)
{
    json_t *a = json_array();
    for (uint32_t i = 0; a && i < s->n_taps; i++)
        if (json_array_append_new(a, json_integer(s->tap_layers[i])) < 0) {
            json_decref(a);
            a = NULL;
        }
    return a;
}

static json_t *shape_json(const struct train_shape *s)
{
    return json_pack(
        "{sI sI sI sI sI sI so sI sI sI sI sI sI sI sf sf}", "layers", (json_int_t)s->layers,
        "hidden", (json_int_t)s->hidden, "ffn", (json_int_t)s->ffn, "heads", (json_int_t)s->heads,
        "kv_heads", (json_int_t)s->kv_heads, "head_dim", (json_int_t)s->head_dim, "taps",
        train_taps_json(s), "target_hidden", (json_int_t)s->target_hidden, "target_layers",
        (json_int_t)s->target_layers, "window", (json_int_t)s->window, "mask_token",
        (json_int_t)s->mask_token, "vocab", (json_int_t)s->vocab, "draft_vocab",
        (json_int_t)s->draft_vocab, "max_position", (json_int_t)s->max_position, "eps",
        (double)s->eps, "rope_theta", s->rope_theta);
}

/* The library's writer leaves out values when its memory runs out at the wrong place: read back. */
char *train_json_text(json_t *take, size_t flags)
{
    char *text = take ? json_dumps(take, flags) : NULL;
    json_t *again = text ? json_loads(text, 0, NULL) : NULL;
    if (!again || !json_equal(again, take)) {
        mem_free(text);
        text = NULL;
    }
    json_decref(again);
    json_decref(take);
    return text;
}

static char *meta_text(const struct train_state *s)
{
    json_t *o = json_pack("{sI sI sI ss so sO}", "dedit_checkpoint", (json_int_t)1, "step",
                          (json_int_t)s->step, "updates", (json_int_t)s->updates, "target",
                          s->target, "shape", shape_json(&s->shape), "recipe", s->recipe);
    return train_json_text(o, JSON_COMPACT);
}

struct kinds {
    const char *prefix;
    float *data;
};
#define N_KINDS 4
static void kinds_of(const struct train_state *s, struct kinds ret[N_KINDS])
{
    ret[0] = (struct kinds){"param", s->param};
    ret[1] = (struct kinds){"adam_m", s->m};
    ret[2] = (struct kinds){"adam_v", s->v};
    ret[3] = (struct kinds){"average", s->average};
}

int checkpoint_write(const char *path, const struct train_state *s, struct error *err)
{
    const size_t most = 3 + N_KINDS * (size_t)s->layout.n;
    struct kinds kinds[N_KINDS];
    _cleanup_free_ struct tensor_out *t = mem_calloc(most, sizeof(*t));
    _cleanup_free_ char(*names)[80] = mem_calloc(most, sizeof(*names));
    _cleanup_free_ char *meta = meta_text(s);
    size_t n = 0;
    if (!t || !names || !meta)
        return ERR_NOMEM(err);
    kinds_of(s, kinds);
    t[n++] = (struct tensor_out){"target_ids", ST_U32, 1, {s->shape.draft_vocab}, s->target_ids};
    t[n++] = (struct tensor_out){"tap_scale", ST_F32, 1, {s->shape.n_taps}, s->tap_scale};
    for (int k = 0; k < N_KINDS; k++)
        for (uint32_t i = 0; kinds[k].data && i < s->layout.n; i++) {
            const struct train_tensor *x = &s->layout.t[i];
            snprintf(names[n], sizeof(*names), "%s.%s", kinds[k].prefix, x->name);
            t[n] = (struct tensor_out){.name = names[n],
                                       .dtype = ST_F32,
                                       .n_dims = x->norm ? 1 : 2,
                                       .data = kinds[k].data + x->at};
            t[n].dims[0] = x->norm ? x->cols : x->rows;
            t[n].dims[1] = x->cols;
            n++;
        }
    t[n++] = (struct tensor_out){"meta", ST_U8, 1, {strlen(meta)}, meta}; /* odd length: last */
    return tensor_file_write(path, t, n, true, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

static int need(int r, const struct js_obj *o, const char *key, struct error *err)
{
    return r == 1 ? ERR(err, FORMAT, "%s: \"%s%s\" is missing", o->file, o->path, key) : r;
}

static int read_taps(const struct js_obj *o, struct train_shape *s, struct error *err)
{
    json_t *taps = NULL;
    int r = need(js_array(o, "taps", &taps, err), o, "taps", err);
    if (r < 0)
        return r;
    if (json_array_size(taps) == 0 || json_array_size(taps) > DRAFTER_MAX_TAPS)
        return ERR(err, FORMAT, "%s: \"%staps\" must have 1 to %u entries", o->file, o->path,
                   DRAFTER_MAX_TAPS);
    s->n_taps = (uint32_t)json_array_size(taps);
    for (uint32_t i = 0; i < s->n_taps; i++) {
        const json_t *v = json_array_get(taps, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 65535)
            return ERR(err, FORMAT, "%s: \"%staps\"[%" PRIu32 "] must be from 0 to 65535", o->file,
                       o->path, i);
        s->tap_layers[i] = (uint32_t)json_integer_value(v);
    }
    return 0;
}

static int read_shape(const struct js_obj *o, struct train_shape *s, struct error *err)
{
    const struct {
        const char *key;
        uint32_t *to;
    } sizes[] = {{"layers", &s->layers},
                 {"hidden", &s->hidden},
                 {"ffn", &s->ffn},
                 {"heads", &s->heads},
                 {"kv_heads", &s->kv_heads},
                 {"head_dim", &s->head_dim},
                 {"target_hidden", &s->target_hidden},
                 {"target_layers", &s->target_layers},
                 {"window", &s->window},
                 {"mask_token", &s->mask_token},
                 {"vocab", &s->vocab},
                 {"draft_vocab", &s->draft_vocab},
                 {"max_position", &s->max_position}};
    double eps = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(sizes); i++)
        r = need(js_u32(o, sizes[i].key, 0, 1u << 30, sizes[i].to, err), o, sizes[i].key, err);
    if (r == 0)
        r = need(js_f64(o, "eps", &eps, err), o, "eps", err);
    if (r == 0)
        r = need(js_f64(o, "rope_theta", &s->rope_theta, err), o, "rope_theta", err);
    s->eps = (float)eps;
    if (r == 0)
        r = read_taps(o, s, err);
    if (r < 0)
        return r;
    r = train_shape_check(s, err);
    return r < 0 ? error_prefix(err, r, "%s", o->file) : 0;
}

static int read_meta(const struct safetensors *f, struct train_state *s, struct error *err)
{
    const struct st_tensor *t = safetensors_find(f, "meta");
    uint32_t version = 0;
    double step = 0, updates = 0;
    const char *target = "";
    json_t *root = NULL;
    if (!t || t->dtype != ST_U8 || t->bytes > (1u << 20))
        return ERR(err, FORMAT, "%s: tensor \"meta\" of at most 1 MiB is missing: no checkpoint",
                   safetensors_path(f));
    int r = js_parse_object(t->data, t->bytes, safetensors_path(f), &root, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(root, safetensors_path(f)), shape = {0}, recipe = {0};
    shape.file = recipe.file = o.file;
    r = need(js_u32(&o, "dedit_checkpoint", 1, 1, &version, err), &o, "dedit_checkpoint", err);
    if (r == 0)
        r = need(js_f64(&o, "step", &step, err), &o, "step", err);
    if (r == 0)
        r = need(js_f64(&o, "updates", &updates, err), &o, "updates", err);
    if (r == 0 && !(step >= 0 && step < 1e15 && updates >= 0 && updates <= step))
        r = ERR(err, FORMAT, "%s: \"step\" %g and \"updates\" %g are impossible", o.file, step,
                updates);
    if (r == 0)
        r = need(js_str(&o, "target", &target, err), &o, "target", err);
    if (r == 0)
        r = need(js_object(&o, "shape", &shape, err), &o, "shape", err);
    if (r == 0)
        r = read_shape(&shape, &s->shape, err);
    if (r == 0)
        r = need(js_object(&o, "recipe", &recipe, err), &o, "recipe", err);
    if (r == 0) {
        s->step = (uint64_t)step;
        s->updates = (uint64_t)updates;
        s->recipe = json_incref(recipe.o);
        snprintf(s->target, sizeof(s->target), "%s", target);
    }
    json_decref(root);
    return r;
}

static int fetch(const struct safetensors *f, const char *name, enum st_dtype type, void *to,
                 size_t n, struct error *err)
{
    const struct st_tensor *t = safetensors_find(f, name);
    size_t bytes = n * st_dtype_bytes(type);
    if (!t)
        return ERR(err, FORMAT, "%s: tensor \"%s\" is missing", safetensors_path(f), name);
    if (t->dtype != type || t->bytes != bytes)
        return ERR(err, MISMATCH, "%s: tensor \"%s\" must be %zu values of %s", safetensors_path(f),
                   name, n, st_dtype_name(type));
    memcpy(to, t->data, bytes);
    if (type == ST_F32)
        for (size_t i = 0; i < n; i++)
            if (!__builtin_isfinite(((const float *)to)[i]))
                return ERR(err, NUMERIC, "%s: tensor \"%s\"[%zu] is not a finite number",
                           safetensors_path(f), name, i);
    return 0;
}

static int read_tensors(const struct safetensors *f, struct train_state *s, struct error *err)
{
    struct kinds kinds[N_KINDS];
    char name[80];
    int r = fetch(f, "target_ids", ST_U32, s->target_ids, s->shape.draft_vocab, err);
    if (r == 0)
        r = fetch(f, "tap_scale", ST_F32, s->tap_scale, s->shape.n_taps, err);
    for (uint32_t i = 0; r == 0 && i < s->shape.draft_vocab; i++)
        if (s->target_ids[i] >= s->shape.vocab || (i && s->target_ids[i] <= s->target_ids[i - 1]))
            r = ERR(err, FORMAT,
                    "%s: tensor \"target_ids\"[%" PRIu32
                    "]: tokens must ascend and be below %" PRIu32,
                    safetensors_path(f), i, s->shape.vocab);
    kinds_of(s, kinds);
    for (int k = 0; k < N_KINDS; k++)
        for (uint32_t i = 0; r == 0 && kinds[k].data && i < s->layout.n; i++) {
            const struct train_tensor *x = &s->layout.t[i];
            snprintf(name, sizeof(name), "%s.%s", kinds[k].prefix, x->name);
            r = fetch(f, name, ST_F32, kinds[k].data + x->at, (size_t)x->rows * x->cols, err);
        }
    return r;
}

static int read_state(const struct safetensors *f, struct train_state *ret, struct error *err)
{
    struct train_state s = {0};
    int r = tensor_file_check(f, err);
    if (r == 0)
        r = read_meta(f, &s, err);
    if (r == 0) {
        train_layout_init(&s.layout, &s.shape);
        const struct st_tensor *fc = safetensors_find(f, "param.fc.weight");
        /* Before memory for a shape is taken, the file must be large enough to be one. */
        if (!fc ||
            fc->bytes / sizeof(float) != (uint64_t)s.shape.hidden * train_tap_width(&s.shape))
            r = ERR(err, MISMATCH,
                    "%s: tensor \"param.fc.weight\" is not of the shape that \"meta\" tells",
                    safetensors_path(f));
        for (uint32_t i = 0; r == 0 && i < s.layout.n; i++) {
            char name[80];
            snprintf(name, sizeof(name), "param.%s", s.layout.t[i].name);
            const struct st_tensor *t = safetensors_find(f, name);
            if (!t || t->bytes / sizeof(float) != (uint64_t)s.layout.t[i].rows * s.layout.t[i].cols)
                r = ERR(err, MISMATCH, "%s: tensor \"%s\" is missing or of another size",
                        safetensors_path(f), name);
        }
        const struct st_tensor *ids = safetensors_find(f, "target_ids");
        if (r == 0 && (!ids || ids->bytes / 4 != s.shape.draft_vocab))
            r = ERR(err, MISMATCH, "%s: tensor \"target_ids\" is missing or of another size",
                    safetensors_path(f));
    }
    if (r == 0)
        r = train_state_alloc(&s, safetensors_find(f, "average.fc.weight") != NULL, err);
    if (r == 0)
        r = read_tensors(f, &s, err);
    if (r < 0) {
        train_state_done(&s);
        return r;
    }
    *ret = s;
    return 0;
}

int checkpoint_read(const char *path, struct train_state *ret, struct error *err)
{
    struct safetensors *f = NULL;
    int r = safetensors_open(path, &f, err);
    if (r == 0)
        r = read_state(f, ret, err);
    safetensors_free(f);
    return r;
}

int checkpoint_parse(const void *data, size_t size, const char *name, struct train_state *ret,
                     struct error *err)
{
    struct safetensors *f = NULL;
    int r = safetensors_parse(data, size, name, &f, err);
    if (r == 0)
        r = read_state(f, ret, err);
    safetensors_free(f);
    return r;
}
