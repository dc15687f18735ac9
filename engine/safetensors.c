/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors: opening and verifying.  The header is parsed as JSON and dropped; names live in one
 * block, tensors in one array (in the file's order) with a sorted table of names beside it.
 */
#include "engine/safetensors.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "engine/json.h"
#include "engine/names.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors are read in place");

#define PREFIX_BYTES     8u
#define MAX_HEADER_BYTES 100000000u
#define MAX_TENSORS      131072u
#define MAX_DIMS         8u

static const struct {
    const char *name;
    size_t bytes;
} dtypes[ST_DTYPE_COUNT] = {
    [ST_F64] = {"F64", 8},   [ST_F32] = {"F32", 4}, [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2},
    [ST_I64] = {"I64", 8},   [ST_I32] = {"I32", 4}, [ST_I16] = {"I16", 2}, [ST_I8] = {"I8", 1},
    [ST_U64] = {"U64", 8},   [ST_U32] = {"U32", 4}, [ST_U16] = {"U16", 2}, [ST_U8] = {"U8", 1},
    [ST_BOOL] = {"BOOL", 1},
};

struct safetensors {
    char *path;
    struct file_map map; /* addr NULL when the memory is the caller's */
    const uint8_t *base;
    size_t size;
    size_t data_at; /* first byte of the data */
    struct st_tensor *tensors;
    struct name_ref *names; /* sorted */
    size_t n;
    char *name_block;
};

const char *st_dtype_name(enum st_dtype t)
{
    return dtypes[t].name;
}

size_t st_dtype_bytes(enum st_dtype t)
{
    return dtypes[t].bytes;
}

/* A non-negative integer of the header. */
static bool get_size(const json_t *v, uint64_t *ret)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(v);
    return true;
}

static int parse_dtype(const struct safetensors *s, const char *name, const json_t *v,
                       enum st_dtype *ret, struct error *err)
{
    if (!json_is_string(v))
        return ERR(err, FORMAT, "%s: tensor \"%.96s\": \"dtype\" must be a string, is %s", s->path,
                   name, js_type_name(v));
    for (int t = 0; t < ST_DTYPE_COUNT; t++) {
        if (!strcmp(dtypes[t].name, json_string_value(v))) {
            *ret = (enum st_dtype)t;
            return 0;
        }
    }
    return ERR(err, UNSUPPORTED,
               "%s: tensor \"%.96s\": dtype \"%.32s\" is not supported (F64 F32 F16 BF16 I64 I32 "
               "I16 I8 U64 U32 U16 U8 BOOL are)",
               s->path, name, json_string_value(v));
}

static int parse_shape(const struct safetensors *s, const char *name, const json_t *v,
                       struct st_tensor *t, uint64_t *ret_bytes, struct error *err)
{
    uint64_t elems = 1;
    if (!json_is_array(v))
        return ERR(err, FORMAT, "%s: tensor \"%.96s\": \"shape\" must be an array, is %s", s->path,
                   name, js_type_name(v));
    if (json_array_size(v) > MAX_DIMS)
        return ERR(err, UNSUPPORTED, "%s: tensor \"%.96s\": %zu dimensions, at most %u are read",
                   s->path, name, json_array_size(v), MAX_DIMS);
    t->n_dims = (uint32_t)json_array_size(v);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!get_size(json_array_get(v, i), &t->dims[i]))
            return ERR(err, FORMAT,
                       "%s: tensor \"%.96s\": shape[%" PRIu32 "] must be an integer >= 0", s->path,
                       name, i);
        if (__builtin_mul_overflow(elems, t->dims[i], &elems))
            return ERR(err, FORMAT, "%s: tensor \"%.96s\": its shape has more than 2^64 elements",
                       s->path, name);
    }
    if (__builtin_mul_overflow(elems, (uint64_t)st_dtype_bytes(t->dtype), ret_bytes))
        return ERR(err, FORMAT, "%s: tensor \"%.96s\": its shape has more than 2^64 bytes", s->path,
                   name);
    return 0;
}

static int parse_tensor(const struct safetensors *s, const char *name, const json_t *v,
                        struct st_tensor *t, struct byte_range *ret_range, struct error *err)
{
    uint64_t bytes = 0, begin, end, data = s->size - s->data_at;
    if (!json_is_object(v))
        return ERR(err, FORMAT, "%s: tensor \"%.96s\": must be an object, is %s", s->path, name,
                   js_type_name(v));
    int r = parse_dtype(s, name, json_object_get(v, "dtype"), &t->dtype, err);
    if (r >= 0)
        r = parse_shape(s, name, json_object_get(v, "shape"), t, &bytes, err);
    if (r < 0)
        return r;
    const json_t *off = json_object_get(v, "data_offsets");
    if (!json_is_array(off) || json_array_size(off) != 2 ||
        !get_size(json_array_get(off, 0), &begin) || !get_size(json_array_get(off, 1), &end))
        return ERR(
            err, FORMAT,
            "%s: tensor \"%.96s\": \"data_offsets\" must be two integers >= 0, begin and end",
            s->path, name);
    if (begin > end)
        return ERR(err, FORMAT,
                   "%s: tensor \"%.96s\": data_offsets begin %" PRIu64 " is after end %" PRIu64,
                   s->path, name, begin, end);
    if (end - begin != bytes)
        return ERR(err, FORMAT,
                   "%s: tensor \"%.96s\": data_offsets hold %" PRIu64
                   " bytes, its shape and dtype need %" PRIu64,
                   s->path, name, end - begin, bytes);
    if (end > data)
        return ERR(
            err, FORMAT, "%s: tensor \"%.96s\": ends at byte %" PRIu64 ", the file has %zu bytes",
            s->path, name, end > UINT64_MAX - s->data_at ? UINT64_MAX : end + s->data_at, s->size);
    t->data = s->base + s->data_at + begin;
    t->bytes = (size_t)bytes;
    *ret_range = (struct byte_range){.begin = begin, .end = end};
    return 0;
}

static int check_metadata(const struct safetensors *s, json_t *v, struct error *err)
{
    const char *key;
    json_t *item;
    if (!json_is_object(v))
        return ERR(err, FORMAT, "%s: \"__metadata__\" must be an object, is %s", s->path,
                   js_type_name(v));
    json_object_foreach(v, key, item)
    {
        if (!json_is_string(item))
            return ERR(err, FORMAT, "%s: \"__metadata__\": \"%.96s\" must be a string, is %s",
                       s->path, key, js_type_name(item));
    }
    return 0;
}

/* The tensors must tile the data. */
static int check_cover(const struct safetensors *s, struct byte_range *ranges, struct error *err)
{
    uint64_t at = 0, data = s->size - s->data_at;
    ranges_sort(ranges, s->n);
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->tensors[ranges[i].index].name;
        if (ranges[i].begin < at)
            return ERR(err, FORMAT, "%s: tensors \"%.96s\" and \"%.96s\" overlap", s->path,
                       s->tensors[ranges[i - 1].index].name, name);
        if (ranges[i].begin > at)
            return ERR(err, FORMAT,
                       "%s: %" PRIu64 " bytes before tensor \"%.96s\" belong to no tensor", s->path,
                       ranges[i].begin - at, name);
        at = ranges[i].end;
    }
    if (at != data)
        return ERR(err, FORMAT,
                   "%s: %" PRIu64 " bytes after the last tensor%s%.96s%s belong to no tensor",
                   s->path, data - at, s->n ? " \"" : "",
                   s->n ? s->tensors[ranges[s->n - 1].index].name : "", s->n ? "\"" : "");
    return 0;
}

/* Names outlive the JSON: they are copied into one block. */
static int copy_names(struct safetensors *s, json_t *header, struct error *err)
{
    const char *key;
    json_t *v;
    size_t total = 0;
    json_object_foreach(header, key, v)
    {
        total += strlen(key) + 1;
        s->n += strcmp(key, "__metadata__") != 0;
    }
    if (s->n > MAX_TENSORS)
        return ERR(err, LIMIT, "%s: %zu tensors, at most %u are read", s->path, s->n, MAX_TENSORS);
    s->name_block = mem_alloc(total);
    s->tensors = mem_calloc(s->n, sizeof(*s->tensors));
    s->names = mem_array(s->n, sizeof(*s->names));
    if (!s->name_block || !s->tensors || !s->names)
        return ERR_NOMEM(err);
    char *at = s->name_block;
    size_t i = 0;
    json_object_foreach(header, key, v)
    {
        if (!strcmp(key, "__metadata__"))
            continue;
        size_t len = strlen(key);
        memcpy(at, key, len + 1);
        s->tensors[i].name = at;
        s->names[i] = (struct name_ref){at, len, (uint32_t)i};
        at += len + 1;
        i++;
    }
    names_sort(s->names, s->n);
    return 0;
}

static int parse(struct safetensors *s, struct error *err)
{
    uint64_t prefix;
    if (s->size < PREFIX_BYTES)
        return ERR(err, FORMAT, "%s: %zu bytes are too few for a safetensors file", s->path,
                   s->size);
    if (data_is_lfs_pointer(s->base, s->size))
        return ERR(err, FORMAT, "%s: " LFS_POINTER_TEXT, s->path);
    memcpy(&prefix, s->base, sizeof(prefix));
    if (prefix > MAX_HEADER_BYTES)
        return ERR(err, FORMAT,
                   "%s: not a safetensors file (header of %" PRIu64
                   " bytes, at most %u are allowed)",
                   s->path, prefix, MAX_HEADER_BYTES);
    if (prefix > s->size - PREFIX_BYTES)
        return ERR(err, FORMAT, "%s: header of %" PRIu64 " bytes, the file has %zu bytes", s->path,
                   prefix, s->size);
    s->data_at = PREFIX_BYTES + (size_t)prefix;
    json_auto_t *header = NULL;
    int r = js_parse_object((const char *)s->base + PREFIX_BYTES, (size_t)prefix, s->path, &header,
                            err);
    if (r >= 0)
        r = copy_names(s, header, err);
    if (r < 0)
        return r;
    json_t *meta = json_object_get(header, "__metadata__");
    if (meta) {
        r = check_metadata(s, meta, err);
        if (r < 0)
            return r;
    }
    _cleanup_free_ struct byte_range *ranges = mem_array(s->n, sizeof(*ranges));
    if (!ranges)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->tensors[i].name;
        r = parse_tensor(s, name, json_object_get(header, name), &s->tensors[i], &ranges[i], err);
        if (r < 0)
            return r;
        ranges[i].index = (uint32_t)i;
    }
    return check_cover(s, ranges, err);
}

static int new_file(const char *name, struct safetensors **ret, struct error *err)
{
    struct safetensors *s = mem_zalloc(sizeof(*s));
    if (s)
        s->path = mem_strdup(name);
    if (!s || !s->path) {
        safetensors_free(s);
        return ERR_NOMEM(err);
    }
    *ret = s;
    return 0;
}

int safetensors_parse(const void *data, size_t size, const char *name, struct safetensors **ret,
                      struct error *err)
{
    _cleanup_(safetensors_freep) struct safetensors *s = NULL;
    int r = new_file(name, &s, err);
    if (r < 0)
        return r;
    s->base = data;
    s->size = size;
    r = parse(s, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(s);
    return 0;
}

int safetensors_open(const char *path, struct safetensors **ret, struct error *err)
{
    _cleanup_(safetensors_freep) struct safetensors *s = NULL;
    int r = new_file(path, &s, err);
    if (r >= 0)
        r = file_map_open(path, &s->map, err);
    if (r < 0)
        return r;
    s->base = s->map.addr;
    s->size = s->map.size;
    r = parse(s, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(s);
    return 0;
}

struct safetensors *safetensors_free(struct safetensors *s)
{
    if (!s)
        return NULL;
    mem_free(s->tensors);
    mem_free(s->names);
    mem_free(s->name_block);
    file_map_done(&s->map);
    mem_free(s->path);
    mem_free(s);
    return NULL;
}

void safetensors_release(struct safetensors *s, const void *data, size_t bytes)
{
    uintptr_t at = (uintptr_t)data, base = (uintptr_t)s->map.addr;
    if (base && at >= base && at - base < s->map.size)
        file_map_release(&s->map, at - base, bytes);
}

const char *safetensors_path(const struct safetensors *s)
{
    return s->path;
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->n;
}

const struct st_tensor *safetensors_at(const struct safetensors *s, size_t i)
{
    return i < s->n ? &s->tensors[i] : NULL;
}

const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    const struct name_ref *ref = names_find(s->names, s->n, name, strlen(name));
    return ref ? &s->tensors[ref->index] : NULL;
}
