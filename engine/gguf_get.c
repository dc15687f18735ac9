/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF: look-ups in a file that gguf.c has verified.  Values are unaligned in the mapping. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/parse.h"
#include "engine/gguf_internal.h"

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},          [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},        [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},        [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"an array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type t)
{
    return types[t].name;
}

size_t gguf_type_bytes(enum gguf_type t)
{
    return types[t].bytes;
}

const struct gguf_kv *gguf_find_kv(const struct gguf *g, const char *key)
{
    const struct name_ref *ref = names_find(g->kv_names, g->n_kv, key, strlen(key));
    return ref ? &g->kv[ref->index] : NULL;
}

static int wrong_type(const struct gguf *g, const char *key, const char *rule,
                      const struct gguf_kv *kv, struct error *err)
{
    return ERR(err, FORMAT, "%s: key \"%s\" must be %s, is %s", g->path, key, rule,
               gguf_type_name(kv->type));
}

/* An integer value of any width, as its magnitude and sign; false for another type. */
static bool read_integer(const struct gguf_kv *kv, bool *ret_negative, uint64_t *ret)
{
    int64_t i = 0;
    uint64_t u = 0;
    switch (kv->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        memcpy(&u, kv->value, gguf_type_bytes(kv->type));
        break;
    case GGUF_I8:
        i = (int8_t)kv->value[0];
        break;
    case GGUF_I16: {
        int16_t v;
        memcpy(&v, kv->value, sizeof(v));
        i = v;
        break;
    }
    case GGUF_I32: {
        int32_t v;
        memcpy(&v, kv->value, sizeof(v));
        i = v;
        break;
    }
    case GGUF_I64:
        memcpy(&i, kv->value, sizeof(i));
        break;
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_BOOL:
    case GGUF_STRING:
    case GGUF_ARRAY:
        return false;
    }
    *ret_negative = i < 0;
    *ret = i < 0 ? 0 - (uint64_t)i : i > 0 ? (uint64_t)i : u;
    return true;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct error *err)
{
    const struct gguf_kv *kv = gguf_find_kv(g, key);
    bool negative;
    uint64_t v;
    if (!kv)
        return 1;
    if (!read_integer(kv, &negative, &v))
        return wrong_type(g, key, "an integer", kv, err);
    if (negative || v > UINT32_MAX)
        return ERR(err, FORMAT, "%s: key \"%s\" must be from 0 to 4294967295, is %s%" PRIu64,
                   g->path, key, negative ? "-" : "", v);
    *ret = (uint32_t)v;
    return 0;
}

int gguf_get_f64(const struct gguf *g, const char *key, double *ret, struct error *err)
{
    const struct gguf_kv *kv = gguf_find_kv(g, key);
    bool negative;
    uint64_t u;
    double v;
    if (!kv)
        return 1;
    if (kv->type == GGUF_F32) {
        float f;
        memcpy(&f, kv->value, sizeof(f));
        v = (double)f;
    } else if (kv->type == GGUF_F64) {
        memcpy(&v, kv->value, sizeof(v));
    } else if (read_integer(kv, &negative, &u)) {
        v = negative ? -(double)u : (double)u;
    } else {
        return wrong_type(g, key, "a number", kv, err);
    }
    if (!isfinite(v))
        return ERR(err, FORMAT, "%s: key \"%s\" is not a finite number", g->path, key);
    *ret = v;
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *ret, struct error *err)
{
    const struct gguf_kv *kv = gguf_find_kv(g, key);
    if (!kv)
        return 1;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, key, "a bool", kv, err);
    *ret = kv->value[0] != 0;
    return 0;
}

/* The string whose length prefix is at p (verified when the file was opened). */
static struct gguf_str string_at(const uint8_t *p)
{
    uint64_t len;
    memcpy(&len, p, sizeof(len));
    return (struct gguf_str){(const char *)p + sizeof(len), (size_t)len};
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct error *err)
{
    const struct gguf_kv *kv = gguf_find_kv(g, key);
    if (!kv)
        return 1;
    if (kv->type != GGUF_STRING)
        return wrong_type(g, key, "a string", kv, err);
    struct gguf_str s = string_at(kv->value);
    if (memchr(s.s, '\0', s.len) || !utf8_valid(s.s, s.len))
        return ERR(err, FORMAT, "%s: key \"%s\": its text is not UTF-8", g->path, key);
    *ret = s;
    return 0;
}

static int get_array(const struct gguf *g, const char *key, enum gguf_type elem,
                     const struct gguf_kv **ret, struct error *err)
{
    const struct gguf_kv *kv = gguf_find_kv(g, key);
    if (!kv)
        return 1;
    if (kv->type != GGUF_ARRAY)
        return ERR(err, FORMAT, "%s: key \"%s\" must be an array of %s, is %s", g->path, key,
                   gguf_type_name(elem), gguf_type_name(kv->type));
    if (kv->elem != elem)
        return ERR(err, FORMAT, "%s: key \"%s\" must be an array of %s, is an array of %s", g->path,
                   key, gguf_type_name(elem), gguf_type_name(kv->elem));
    *ret = kv;
    return 0;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type elem, uint64_t *ret_n,
                   struct error *err)
{
    const struct gguf_kv *kv;
    int r = get_array(g, key, elem, &kv, err);
    if (r == 0)
        *ret_n = kv->n;
    return r;
}

static const struct gguf_kv *find_array(const struct gguf *g, const char *key, enum gguf_type elem)
{
    const struct gguf_kv *kv = gguf_find_kv(g, key);
    return kv && kv->type == GGUF_ARRAY && kv->elem == elem ? kv : NULL;
}

struct gguf_str gguf_array_str(const struct gguf *g, const char *key, uint64_t i)
{
    const struct gguf_kv *kv = find_array(g, key, GGUF_STRING);
    if (!kv || i >= kv->n)
        return (struct gguf_str){NULL, 0};
    struct gguf_str s = string_at(kv->value + kv->index[i / GGUF_INDEX_STRIDE]);
    for (uint64_t skip = i % GGUF_INDEX_STRIDE; skip > 0; skip--)
        s = string_at((const uint8_t *)s.s + s.len);
    return s;
}

int gguf_iter_strings(const struct gguf *g, const char *key, struct gguf_str_iter *ret,
                      struct error *err)
{
    const struct gguf_kv *kv;
    int r = get_array(g, key, GGUF_STRING, &kv, err);
    if (r == 0)
        *ret = (struct gguf_str_iter){.p = kv->value, .end = kv->value + kv->bytes, .left = kv->n};
    return r;
}

bool gguf_iter_next(struct gguf_str_iter *it, struct gguf_str *ret)
{
    if (it->left == 0)
        return false;
    *ret = string_at(it->p);
    it->p = (const uint8_t *)ret->s + ret->len;
    it->left--;
    return true;
}

const void *gguf_array_data(const struct gguf *g, const char *key, enum gguf_type elem,
                            uint64_t *ret_n)
{
    const struct gguf_kv *kv = find_array(g, key, elem);
    if (!kv || elem == GGUF_STRING)
        return NULL;
    *ret_n = kv->n;
    return kv->value;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    const struct name_ref *ref = names_find(g->tensor_names, g->n_tensors, name, strlen(name));
    return ref ? &g->tensors[ref->index] : NULL;
}
