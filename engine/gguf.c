/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF: opening and verifying.  The header is walked once with a cursor that can not leave the
 * file; whatever is kept points into the mapping.  Memory: the two directories and an eighth of a
 * byte per byte of string arrays, so it is bounded by the file's size.
 */
#include "engine/gguf.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/parse.h"
#include "engine/gguf_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place");

#define MAX_KV            65536u
#define MAX_TENSORS       131072u
#define MAX_KEY_BYTES     65535u
#define MAX_NAME_BYTES    255u
#define MAX_ALIGNMENT     (1u << 20)
#define DEFAULT_ALIGNMENT 32u
/* Smallest possible entry: what a count is checked against before memory is taken for it. */
#define MIN_KV_BYTES     (8u + 1u + 4u + 1u)
#define MIN_TENSOR_BYTES (8u + 1u + 4u + 8u + 4u + 8u)

/* Tensor types of the format; the number is the position.  A hole is a number that was withdrawn or
 * never given.  Sizes are needed for all of them, or bounds and overlaps could not be checked. */
static const struct tensor_type {
    const char *name;
    uint16_t elems, bytes; /* of a block */
    enum dk_type dk;
} tensor_types[] = {
    [0] = {"F32", 1, 4, DK_F32},
    [1] = {"F16", 1, 2, DK_F16},
    [2] = {"Q4_0", 32, 18, DK_Q4_0},
    [3] = {"Q4_1", 32, 20, DK_Q4_1},
    [6] = {"Q5_0", 32, 22, DK_Q5_0},
    [7] = {"Q5_1", 32, 24, DK_Q5_1},
    [8] = {"Q8_0", 32, 34, DK_Q8_0},
    [9] = {"Q8_1", 32, 36, DK_TYPE_COUNT},
    [10] = {"Q2_K", 256, 84, DK_TYPE_COUNT},
    [11] = {"Q3_K", 256, 110, DK_TYPE_COUNT},
    [12] = {"Q4_K", 256, 144, DK_Q4_K},
    [13] = {"Q5_K", 256, 176, DK_Q5_K},
    [14] = {"Q6_K", 256, 210, DK_Q6_K},
    [15] = {"Q8_K", 256, 292, DK_TYPE_COUNT},
    [16] = {"IQ2_XXS", 256, 66, DK_TYPE_COUNT},
    [17] = {"IQ2_XS", 256, 74, DK_TYPE_COUNT},
    [18] = {"IQ3_XXS", 256, 98, DK_TYPE_COUNT},
    [19] = {"IQ1_S", 256, 50, DK_TYPE_COUNT},
    [20] = {"IQ4_NL", 32, 18, DK_TYPE_COUNT},
    [21] = {"IQ3_S", 256, 110, DK_TYPE_COUNT},
    [22] = {"IQ2_S", 256, 82, DK_TYPE_COUNT},
    [23] = {"IQ4_XS", 256, 136, DK_TYPE_COUNT},
    [24] = {"I8", 1, 1, DK_TYPE_COUNT},
    [25] = {"I16", 1, 2, DK_TYPE_COUNT},
    [26] = {"I32", 1, 4, DK_TYPE_COUNT},
    [27] = {"I64", 1, 8, DK_TYPE_COUNT},
    [28] = {"F64", 1, 8, DK_TYPE_COUNT},
    [29] = {"IQ1_M", 256, 56, DK_TYPE_COUNT},
    [30] = {"BF16", 1, 2, DK_BF16},
    [34] = {"TQ1_0", 256, 54, DK_TYPE_COUNT},
    [35] = {"TQ2_0", 256, 66, DK_TYPE_COUNT},
    [39] = {"MXFP4", 32, 17, DK_TYPE_COUNT},
};

struct cursor {
    struct gguf *g;
    size_t pos;
    struct error *err;
};

static size_t left(const struct cursor *c)
{
    return c->g->size - c->pos;
}

static int cut(const struct cursor *c, const char *what)
{
    return ERR(c->err, FORMAT, "%s: ends at byte %zu, inside %s", c->g->path, c->g->size, what);
}

static int read_u32(struct cursor *c, const char *what, uint32_t *ret)
{
    if (left(c) < sizeof(*ret))
        return cut(c, what);
    memcpy(ret, c->g->base + c->pos, sizeof(*ret));
    c->pos += sizeof(*ret);
    return 0;
}

static int read_u64(struct cursor *c, const char *what, uint64_t *ret)
{
    if (left(c) < sizeof(*ret))
        return cut(c, what);
    memcpy(ret, c->g->base + c->pos, sizeof(*ret));
    c->pos += sizeof(*ret);
    return 0;
}

/* A key or tensor name, number i of its list. */
static int read_name(struct cursor *c, const char *what, uint64_t i, uint64_t max,
                     struct gguf_str *ret)
{
    uint64_t len;
    int r = read_u64(c, what, &len);
    if (r < 0)
        return r;
    if (len == 0)
        return ERR(c->err, FORMAT, "%s: %s %" PRIu64 ": its name is empty", c->g->path, what, i);
    if (len > max)
        return ERR(c->err, FORMAT,
                   "%s: %s %" PRIu64 ": a name of %" PRIu64 " bytes, at most %" PRIu64
                   " are allowed",
                   c->g->path, what, i, len, max);
    if (len > left(c))
        return cut(c, what);
    ret->s = (const char *)c->g->base + c->pos;
    ret->len = (size_t)len;
    if (memchr(ret->s, '\0', ret->len) || !utf8_valid(ret->s, ret->len))
        return ERR(c->err, FORMAT, "%s: %s %" PRIu64 ": its name is not UTF-8 text", c->g->path,
                   what, i);
    c->pos += ret->len;
    return 0;
}

/* "%.*s" of a name in a message: long ones are shortened. */
#define NAME_ARG(str) (int)((str).len < 96 ? (str).len : 96), (str).s

static int value_error(const struct cursor *c, const struct gguf_kv *kv, const char *rule)
{
    return ERR(c->err, FORMAT, "%s: key \"%.*s\": %s", c->g->path, NAME_ARG(kv->key), rule);
}

/* Walks kv->n strings and checks that they end inside the file; fills the index of an array. */
static int read_strings(struct cursor *c, struct gguf_kv *kv)
{
    for (uint64_t i = 0; i < kv->n; i++) {
        uint64_t len;
        if (kv->index && i % GGUF_INDEX_STRIDE == 0)
            kv->index[i / GGUF_INDEX_STRIDE] = (uint64_t)(c->g->base + c->pos - kv->value);
        if (left(c) < sizeof(len))
            return value_error(c, kv, "the file ends inside its strings");
        memcpy(&len, c->g->base + c->pos, sizeof(len));
        c->pos += sizeof(len);
        if (len > left(c))
            return value_error(c, kv, "a string is longer than the rest of the file");
        c->pos += (size_t)len;
    }
    return 0;
}

static int read_elements(struct cursor *c, struct gguf_kv *kv, enum gguf_type type)
{
    kv->value = c->g->base + c->pos;
    if (type == GGUF_STRING) {
        int r = read_strings(c, kv);
        if (r < 0)
            return r;
    } else {
        uint64_t bytes;
        if (__builtin_mul_overflow(kv->n, (uint64_t)gguf_type_bytes(type), &bytes) ||
            bytes > left(c))
            return value_error(c, kv, "its value is longer than the rest of the file");
        if (type == GGUF_BOOL)
            for (uint64_t i = 0; i < bytes; i++)
                if (kv->value[i] > 1)
                    return value_error(c, kv, "a boolean must be 0 or 1");
        c->pos += (size_t)bytes;
    }
    kv->bytes = (size_t)(c->g->base + c->pos - kv->value);
    return 0;
}

static int read_array(struct cursor *c, struct gguf_kv *kv)
{
    uint32_t elem;
    int r = read_u32(c, "an array's header", &elem);
    if (r >= 0)
        r = read_u64(c, "an array's header", &kv->n);
    if (r < 0)
        return r;
    if (elem == GGUF_ARRAY)
        return ERR(c->err, UNSUPPORTED, "%s: key \"%.*s\": arrays of arrays are not supported",
                   c->g->path, NAME_ARG(kv->key));
    if (elem > GGUF_F64)
        return value_error(c, kv, "its element type is not one of GGUF's");
    kv->elem = (enum gguf_type)elem;
    if (elem == GGUF_STRING) {
        if (kv->n > left(c) / sizeof(uint64_t))
            return value_error(c, kv, "it has more strings than fit into the file");
        kv->index = mem_array((size_t)(kv->n / GGUF_INDEX_STRIDE) + 1, sizeof(*kv->index));
        if (!kv->index)
            return ERR_NOMEM(c->err);
    }
    return read_elements(c, kv, kv->elem);
}

static int read_kv(struct cursor *c, uint64_t i, struct gguf_kv *kv)
{
    uint32_t type;
    int r = read_name(c, "metadata key", i, MAX_KEY_BYTES, &kv->key);
    if (r >= 0)
        r = read_u32(c, "a metadata value", &type);
    if (r < 0)
        return r;
    if (type > GGUF_F64)
        return value_error(c, kv, "its value type is not one of GGUF's");
    kv->type = (enum gguf_type)type;
    if (kv->type == GGUF_ARRAY)
        return read_array(c, kv);
    kv->n = 1;
    return read_elements(c, kv, kv->type);
}

static int read_metadata(struct cursor *c)
{
    struct gguf *g = c->g;
    for (size_t i = 0; i < g->n_kv; i++) {
        int r = read_kv(c, i, &g->kv[i]);
        if (r < 0)
            return r;
        g->kv_names[i] = (struct name_ref){g->kv[i].key.s, g->kv[i].key.len, (uint32_t)i};
    }
    names_sort(g->kv_names, g->n_kv);
    const struct name_ref *twice = names_duplicate(g->kv_names, g->n_kv);
    if (twice)
        return value_error(c, &g->kv[twice->index], "it occurs twice");
    return 0;
}

static int read_alignment(struct cursor *c, uint32_t *ret)
{
    const struct gguf_kv *kv = gguf_find_kv(c->g, "general.alignment");
    *ret = DEFAULT_ALIGNMENT;
    if (!kv)
        return 0;
    if (kv->type != GGUF_U32)
        return ERR(c->err, FORMAT, "%s: key \"general.alignment\" must be a u32, is %s", c->g->path,
                   gguf_type_name(kv->type));
    memcpy(ret, kv->value, sizeof(*ret));
    if (*ret < 8 || *ret > MAX_ALIGNMENT || (*ret & (*ret - 1)))
        return ERR(c->err, FORMAT,
                   "%s: key \"general.alignment\" must be a power of two from 8 to %u, is %" PRIu32,
                   c->g->path, MAX_ALIGNMENT, *ret);
    return 0;
}

/* Dimensions and type of t: sets its fields and byte count. */
static int read_shape(struct cursor *c, struct gguf_tensor *t)
{
    uint32_t type;
    uint64_t elems = 1;
    int r = read_u32(c, "a tensor's shape", &t->n_dims);
    if (r < 0)
        return r;
    if (t->n_dims < 1 || t->n_dims > 4)
        return ERR(c->err, FORMAT, "%s: tensor \"%.*s\": must have 1 to 4 dimensions, has %" PRIu32,
                   c->g->path, NAME_ARG(t->name), t->n_dims);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        r = read_u64(c, "a tensor's shape", &t->dims[i]);
        if (r < 0)
            return r;
        if (t->dims[i] == 0)
            return ERR(c->err, FORMAT, "%s: tensor \"%.*s\": dimension %" PRIu32 " is 0",
                       c->g->path, NAME_ARG(t->name), i);
        if (__builtin_mul_overflow(elems, t->dims[i], &elems) || elems > INT64_MAX)
            return ERR(c->err, FORMAT, "%s: tensor \"%.*s\": too many elements for 63 bits",
                       c->g->path, NAME_ARG(t->name));
    }
    r = read_u32(c, "a tensor's type", &type);
    if (r < 0)
        return r;
    if (type >= ARRAY_LEN(tensor_types) || !tensor_types[type].name)
        return ERR(c->err, UNSUPPORTED,
                   "%s: tensor \"%.*s\": type number %" PRIu32
                   " is not known (supported: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K "
                   "Q6_K)",
                   c->g->path, NAME_ARG(t->name), type);
    const struct tensor_type *tt = &tensor_types[type];
    uint64_t bytes;
    if (t->dims[0] % tt->elems)
        return ERR(c->err, FORMAT,
                   "%s: tensor \"%.*s\": rows of %" PRIu64
                   " elements are not whole blocks of %u (%s)",
                   c->g->path, NAME_ARG(t->name), t->dims[0], (unsigned)tt->elems, tt->name);
    if (__builtin_mul_overflow(elems / tt->elems, (uint64_t)tt->bytes, &bytes) ||
        bytes > INT64_MAX || bytes > SIZE_MAX)
        return ERR(c->err, FORMAT, "%s: tensor \"%.*s\": too many bytes for 63 bits", c->g->path,
                   NAME_ARG(t->name));
    t->type = tt->dk;
    t->type_name = tt->name;
    t->bytes = (size_t)bytes;
    return 0;
}

static int read_tensors(struct cursor *c, uint32_t alignment, struct byte_range *ranges)
{
    struct gguf *g = c->g;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t offset;
        int r = read_name(c, "tensor", i, MAX_NAME_BYTES, &t->name);
        if (r >= 0)
            r = read_shape(c, t);
        if (r >= 0)
            r = read_u64(c, "a tensor's offset", &offset);
        if (r < 0)
            return r;
        if (offset % alignment)
            return ERR(c->err, FORMAT,
                       "%s: tensor \"%.*s\": offset %" PRIu64
                       " is not a multiple of the alignment %" PRIu32,
                       g->path, NAME_ARG(t->name), offset, alignment);
        g->tensor_names[i] = (struct name_ref){t->name.s, t->name.len, (uint32_t)i};
        ranges[i] = (struct byte_range){.begin = offset, .index = (uint32_t)i};
    }
    names_sort(g->tensor_names, g->n_tensors);
    const struct name_ref *twice = names_duplicate(g->tensor_names, g->n_tensors);
    if (twice)
        return ERR(c->err, FORMAT, "%s: tensor \"%.*s\": occurs twice", g->path,
                   NAME_ARG(g->tensors[twice->index].name));
    return 0;
}

/* Bounds and overlap, once it is known where the data starts. */
static int place_tensors(struct cursor *c, uint32_t alignment, struct byte_range *ranges)
{
    struct gguf *g = c->g;
    size_t start;
    if (g->n_tensors == 0)
        return 0;
    if (!size_round_up(c->pos, alignment, &start))
        return cut(c, "the header");
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t begin, end;
        bool wraps = __builtin_add_overflow(ranges[i].begin, (uint64_t)start, &begin) ||
                     __builtin_add_overflow(begin, (uint64_t)t->bytes, &end);
        if (wraps)
            return ERR(c->err, FORMAT,
                       "%s: tensor \"%.*s\": its end does not fit into 64 bits (offset %" PRIu64
                       ", %zu bytes)",
                       g->path, NAME_ARG(t->name), ranges[i].begin, t->bytes);
        if (end > g->size)
            return ERR(c->err, FORMAT,
                       "%s: tensor \"%.*s\": ends at byte %" PRIu64 ", the file has %zu bytes",
                       g->path, NAME_ARG(t->name), end, g->size);
        t->data = g->base + begin;
        ranges[i].begin = begin;
        ranges[i].end = end;
    }
    ranges_sort(ranges, g->n_tensors);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (ranges[i].begin < ranges[i - 1].end)
            return ERR(c->err, FORMAT, "%s: tensors \"%.*s\" and \"%.*s\" overlap", g->path,
                       NAME_ARG(g->tensors[ranges[i - 1].index].name),
                       NAME_ARG(g->tensors[ranges[i].index].name));
    return 0;
}

static int check_version(struct cursor *c, uint32_t version)
{
    if (version == 2 || version == 3)
        return 0;
    if (__builtin_bswap32(version) >= 1 && __builtin_bswap32(version) <= 3)
        return ERR(c->err, UNSUPPORTED, "%s: a big-endian GGUF file; only little-endian is read",
                   c->g->path);
    return ERR(c->err, UNSUPPORTED, "%s: GGUF version %" PRIu32 "; versions 2 and 3 are supported",
               c->g->path, version);
}

/* A count may not promise more entries than the file has room for. */
static int check_count(struct cursor *c, const char *what, uint64_t n, uint64_t min_bytes,
                       uint64_t max)
{
    if (n > left(c) / min_bytes)
        return ERR(c->err, FORMAT,
                   "%s: the header promises %" PRIu64 " %s, more than %zu bytes can hold",
                   c->g->path, n, what, c->g->size);
    if (n > max)
        return ERR(c->err, LIMIT, "%s: %" PRIu64 " %s, at most %" PRIu64 " are read", c->g->path, n,
                   what, max);
    return 0;
}

static int parse(struct gguf *g, struct error *err)
{
    struct cursor c = {.g = g, .err = err};
    uint32_t version, alignment;
    uint64_t n_tensors, n_kv;
    if (data_is_lfs_pointer(g->base, g->size))
        return ERR(err, FORMAT, "%s: " LFS_POINTER_TEXT, g->path);
    if (g->size < 4 || memcmp(g->base, "GGUF", 4))
        return ERR(err, FORMAT, "%s: not a GGUF file (it does not start with \"GGUF\")", g->path);
    c.pos = 4;
    int r = read_u32(&c, "the header", &version);
    if (r >= 0)
        r = check_version(&c, version);
    if (r >= 0)
        r = read_u64(&c, "the header", &n_tensors);
    if (r >= 0)
        r = read_u64(&c, "the header", &n_kv);
    if (r >= 0)
        r = check_count(&c, "tensors", n_tensors, MIN_TENSOR_BYTES, MAX_TENSORS);
    if (r >= 0)
        r = check_count(&c, "metadata keys", n_kv, MIN_KV_BYTES, MAX_KV);
    if (r < 0)
        return r;
    g->kv = mem_calloc((size_t)n_kv, sizeof(*g->kv));
    g->kv_names = mem_array((size_t)n_kv, sizeof(*g->kv_names));
    g->tensors = mem_calloc((size_t)n_tensors, sizeof(*g->tensors));
    g->tensor_names = mem_array((size_t)n_tensors, sizeof(*g->tensor_names));
    _cleanup_free_ struct byte_range *ranges = mem_array((size_t)n_tensors, sizeof(*ranges));
    if (!g->kv || !g->kv_names || !g->tensors || !g->tensor_names || !ranges)
        return ERR_NOMEM(err);
    g->n_kv = (size_t)n_kv;
    g->n_tensors = (size_t)n_tensors;
    r = read_metadata(&c);
    if (r >= 0)
        r = read_alignment(&c, &alignment);
    if (r >= 0)
        r = read_tensors(&c, alignment, ranges);
    if (r >= 0)
        r = place_tensors(&c, alignment, ranges);
    return r;
}

static void gguf_freep(struct gguf **g)
{
    gguf_free(*g);
}

static int new_gguf(const char *name, struct gguf **ret, struct error *err)
{
    struct gguf *g = mem_zalloc(sizeof(*g));
    if (g)
        g->path = mem_strdup(name);
    if (!g || !g->path) {
        gguf_free(g);
        return ERR_NOMEM(err);
    }
    *ret = g;
    return 0;
}

int gguf_parse(const void *data, size_t size, const char *name, struct gguf **ret,
               struct error *err)
{
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    int r = new_gguf(name, &g, err);
    if (r < 0)
        return r;
    g->base = data;
    g->size = size;
    r = parse(g, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(g);
    return 0;
}

int gguf_open(const char *path, struct gguf **ret, struct error *err)
{
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    int r = new_gguf(path, &g, err);
    if (r >= 0)
        r = file_map_open(path, &g->map, err);
    if (r < 0)
        return r;
    g->base = g->map.addr;
    g->size = g->map.size;
    r = parse(g, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(g);
    return 0;
}

struct gguf *gguf_free(struct gguf *g)
{
    if (!g)
        return NULL;
    for (size_t i = 0; i < g->n_kv; i++)
        mem_free(g->kv[i].index);
    mem_free(g->kv);
    mem_free(g->kv_names);
    mem_free(g->tensors);
    mem_free(g->tensor_names);
    file_map_done(&g->map);
    mem_free(g->path);
    mem_free(g);
    return NULL;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

void gguf_release(struct gguf *g, const void *data, size_t bytes)
{
    uintptr_t at = (uintptr_t)data, base = (uintptr_t)g->map.addr;
    if (base && at >= base && at - base < g->map.size)
        file_map_release(&g->map, at - base, bytes);
}
