/* SPDX-License-Identifier: Apache-2.0 */
#include "train/tensor_file.h"

#include <inttypes.h>
#include <string.h>
#include <sys/uio.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/strbuf.h"

#define MAX_TENSORS 4096u /* of a file with a checksum */
#define PAGE_ALIGN  64u   /* of the data's begin */

static bool out_bytes(const struct tensor_out *t, size_t *ret)
{
    size_t n = st_dtype_bytes(t->dtype);
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!size_mul(n, t->dims[i], &n))
            return false;
    *ret = n;
    return true;
}

static int add_entry(struct strbuf *b, const struct tensor_out *t, size_t *at)
{
    size_t bytes, end;
    if (!out_bytes(t, &bytes) || !size_add(*at, bytes, &end))
        return DEDIT_E_NOMEM;
    int r = strbuf_addf(b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", b->len > 1 ? "," : "", t->name,
                        st_dtype_name(t->dtype));
    for (uint32_t i = 0; r == 0 && i < t->n_dims; i++)
        r = strbuf_addf(b, "%s%" PRIu64, i ? "," : "", t->dims[i]);
    if (r == 0)
        r = strbuf_addf(b, "],\"data_offsets\":[%zu,%zu]}", *at, end);
    *at = end;
    return r;
}

static int make_header(struct strbuf *b, const struct tensor_out *t, size_t n, bool checksum)
{
    const struct tensor_out sum = {
        .name = TENSOR_CHECKSUM, .dtype = ST_U64, .n_dims = 1, .dims = {1}};
    size_t at = 0;
    int r = strbuf_addc(b, '{');
    /* 8-byte data first, so that no reader needs to copy it. */
    if (r == 0 && checksum)
        r = add_entry(b, &sum, &at);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = add_entry(b, &t[i], &at);
    if (r == 0)
        r = strbuf_addc(b, '}');
    while (r == 0 && (b->len + 8) % PAGE_ALIGN)
        r = strbuf_addc(b, ' ');
    return r;
}

static uint64_t sum_of(const struct tensor_out *t, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        if (out_bytes(&t[i], &bytes))
            h = hash_bytes(t[i].data, bytes, h);
    }
    return h;
}

int tensor_file_write(const char *path, const struct tensor_out *t, size_t n, bool checksum,
                      struct error *err)
{
    _cleanup_strbuf_ struct strbuf header = {0};
    _cleanup_free_ struct iovec *parts = mem_calloc(n + 3, sizeof(*parts));
    if (!parts || make_header(&header, t, n, checksum) < 0)
        return ERR_NOMEM(err);
    uint64_t len = header.len, sum = checksum ? sum_of(t, n) : 0;
    size_t m = 0;
    parts[m++] = (struct iovec){&len, sizeof(len)};
    parts[m++] = (struct iovec){header.s, header.len};
    if (checksum)
        parts[m++] = (struct iovec){&sum, sizeof(sum)};
    for (size_t i = 0; i < n; i++, m++) {
        parts[m].iov_base = (void *)(uintptr_t)t[i].data;
        (void)out_bytes(&t[i], &parts[m].iov_len); /* make_header saw that it can be counted */
    }
    return file_write_parts(path, parts, m, err);
}

int tensor_file_sum(const struct safetensors *s, uint64_t *ret_have, uint64_t *ret_want,
                    struct error *err)
{
    const struct st_tensor *sum = safetensors_find(s, TENSOR_CHECKSUM);
    uint64_t have = 0;
    if (!sum || sum->dtype != ST_U64 || sum->bytes != sizeof(*ret_want))
        return ERR(err, FORMAT, "%s: tensor \"" TENSOR_CHECKSUM "\" is missing",
                   safetensors_path(s));
    memcpy(ret_want, sum->data, sizeof(*ret_want));
    if (safetensors_count(s) > MAX_TENSORS)
        return ERR(err, LIMIT, "%s: %zu tensors, a checkpoint has at most %u", safetensors_path(s),
                   safetensors_count(s), MAX_TENSORS);
    /* In the order of the data, which is the order that they were written in. */
    const char *at = (const char *)sum->data + sizeof(*ret_want);
    for (size_t i = 1; i < safetensors_count(s); i++) {
        const struct st_tensor *next = NULL;
        for (size_t k = 0; k < safetensors_count(s); k++)
            if ((const char *)safetensors_at(s, k)->data == at && safetensors_at(s, k)->bytes)
                next = safetensors_at(s, k);
        if (!next)
            return ERR(err, FORMAT,
                       "%s: tensor \"" TENSOR_CHECKSUM "\" must come first, and none be empty",
                       safetensors_path(s));
        have = hash_bytes(next->data, next->bytes, have);
        at += next->bytes;
    }
    *ret_have = have;
    return 0;
}

int tensor_file_check(const struct safetensors *s, struct error *err)
{
    uint64_t have, want;
    int r = tensor_file_sum(s, &have, &want, err);
    if (r == 0 && have != want)
        r = ERR(err, FORMAT, "%s: the checksum does not fit: the file is damaged",
                safetensors_path(s));
    return r;
}
