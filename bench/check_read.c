/* SPDX-License-Identifier: Apache-2.0 */
/* Reading reference cases: folders, JSON, lines, tensors; comparing floats. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "bench/check.h"
#include "engine/json.h"

#define MAX_CASE_FILE (64u << 20)

const char *check_path(const struct check *k, const char *kind, const char *rest)
{
    static char ring[8][4096];
    static unsigned next;
    char *buf = ring[next++ % ARRAY_LEN(ring)];
    snprintf(buf, sizeof(ring[0]), "%s/%s%s%s", k->dir, kind, *rest ? "/" : "", rest);
    return buf;
}

bool check_exists(const char *path)
{
    return access(path, R_OK) == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void check_names_done(struct check_names *n)
{
    for (size_t i = 0; i < n->n; i++)
        mem_free(n->names[i]);
    mem_free(n->names);
    *n = (struct check_names){NULL, 0};
}

int check_list(const struct check *k, const char *kind, const char *suffix, struct check_names *ret,
               struct error *err)
{
    const char *path = check_path(k, kind, "");
    DIR *d = opendir(path);
    if (!d)
        return ERR(err, IO, "%s: %s", path, strerror(errno));
    struct check_names list = {NULL, 0};
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        size_t n = strlen(e->d_name), s = strlen(suffix);
        if (n <= s || strcmp(e->d_name + n - s, suffix))
            continue;
        char **more = mem_realloc_array(list.names, list.n + 1, sizeof(*more));
        if (more)
            list.names = more;
        char *name = more ? mem_strndup(e->d_name, n - s) : NULL;
        if (name)
            list.names[list.n++] = name;
        else
            r = ERR_NOMEM(err);
    }
    closedir(d);
    if (r < 0) {
        check_names_done(&list);
        return r;
    }
    if (list.n > 0)
        qsort(list.names, list.n, sizeof(*list.names), by_name);
    *ret = list;
    return 0;
}

int check_read_json(const char *path, json_t **ret, struct error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = file_read(path, MAX_CASE_FILE, &text, &len, err);
    return r < 0 ? r : js_parse(text, len, path, ret, err);
}

int check_lines_open(struct check_lines *l, const char *path, struct error *err)
{
    memset(l, 0, sizeof(*l));
    l->path = path;
    return file_read(path, MAX_CASE_FILE, &l->text, &l->len, err);
}

/* Cases may hold NULs in strings, which js_parse refuses. */
int check_lines_next(struct check_lines *l, json_t **ret, struct error *err)
{
    while (l->at < l->len) {
        const char *s = l->text + l->at;
        const char *end = memchr(s, '\n', l->len - l->at);
        size_t n = end ? (size_t)(end - s) : l->len - l->at;
        l->at += n + (end != NULL);
        l->number++;
        if (n == 0)
            continue;
        json_error_t e;
        json_t *o = json_loadb(s, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
        if (!json_is_object(o)) {
            json_decref(o);
            return ERR(err, FORMAT, "%s:%d: %s", l->path, l->number, o ? "not an object" : e.text);
        }
        *ret = o;
        return 1;
    }
    return 0;
}

void check_lines_done(struct check_lines *l)
{
    mem_free(l->text);
    memset(l, 0, sizeof(*l));
}

int check_get_ids(const json_t *o, const char *key, struct check_ids *ret, struct error *err)
{
    const json_t *a = json_object_get(o, key);
    if (!json_is_array(a))
        return ERR(err, FORMAT, "\"%s\" is not a list", key);
    size_t n = json_array_size(a);
    uint32_t *v = mem_array(n + 1, sizeof(*v));
    if (!v)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(a, i);
        json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id > UINT32_MAX) {
            mem_free(v);
            return ERR(err, FORMAT, "\"%s\"[%zu] is not a token id", key, i);
        }
        v[i] = (uint32_t)id;
    }
    *ret = (struct check_ids){v, n};
    return 0;
}

int check_get_str(const json_t *o, const char *key, const char **ret, struct error *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v))
        return ERR(err, FORMAT, "\"%s\" is not a string", key);
    *ret = json_string_value(v);
    return 0;
}

int check_get_num(const json_t *o, const char *key, double *ret, struct error *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v))
        return ERR(err, FORMAT, "\"%s\" is not a number", key);
    *ret = json_number_value(v);
    return 0;
}

int check_tensor(const struct safetensors *s, const char *name, enum st_dtype dtype,
                 uint32_t n_dims, const struct st_tensor **ret, struct error *err)
{
    const struct st_tensor *t = safetensors_find(s, name);
    if (!t)
        return ERR(err, NOT_FOUND, "no tensor %s", name);
    if (t->dtype != dtype || t->n_dims != n_dims)
        return ERR(err, FORMAT, "tensor %s is %s with %u dimensions, wanted %s with %u", name,
                   st_dtype_name(t->dtype), t->n_dims, st_dtype_name(dtype), n_dims);
    *ret = t;
    return 0;
}

double check_tolerance(const struct engine *e)
{
    /* Activations of every product are rounded to BF16, not K and V alone: on the random models, whose
     * next layers multiply a difference, up to twice what BF16 K and V do.  What the class computes is
     * compared bit for bit with its portable twin elsewhere. */
    if (strstr(engine_class(e), "amx"))
        return 1.2;
    switch (engine_get_config(e)->kv_type) {
    case DK_KV_BF16:
        return 0.6;
    case DK_KV_F16:
        return 8e-2;
    case DK_KV_F32:
    case DK_KV_TYPE_COUNT:
        break;
    }
    return 1e-3;
}

double check_excess(const float *a, const float *b, size_t n, double abs_tol, double rel_tol,
                    double *worst_diff)
{
    double worst = 0, diff = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        double x = d / (abs_tol + rel_tol * fabs((double)b[i]));
        if (!(x <= worst))
            worst = x >= 0 ? x : HUGE_VAL; /* a NaN is infinitely far */
        if (!(d <= diff))
            diff = d >= 0 ? d : HUGE_VAL;
    }
    if (worst_diff && diff > *worst_diff)
        *worst_diff = diff;
    return worst;
}

bool check_ids_equal(const uint32_t *a, size_t na, const struct check_ids *b)
{
    return na == b->n && (na == 0 || !memcmp(a, b->v, na * sizeof(*a)));
}
