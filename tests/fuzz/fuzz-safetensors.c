/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors from any bytes: what is accepted tiles the data exactly. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "engine/safetensors.h"
#include "tests/fuzz/file.h"

/* By path the result is the same. */
static void check_file(const uint8_t *data, size_t size, int want)
{
    char path[64];
    struct safetensors *s = NULL;
    int fd = fuzz_wants_file(size) ? fuzz_file(data, size, path) : -1;
    if (fd < 0)
        return;
    FUZZ_CHECK(safetensors_open(path, &s, NULL) == want);
    for (size_t i = 0; s && i < safetensors_count(s); i++)
        safetensors_release(s, safetensors_at(s, i)->data, safetensors_at(s, i)->bytes);
    FUZZ_CHECK(!s || safetensors_path(s)[0] == '/');
    safetensors_free(s);
    fd_close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = {0};
    struct safetensors *s = NULL;
    int r = safetensors_parse(data, size, "fuzz", &s, &err);
    FUZZ_CHECK(r == 0 || (r == err.code && err.msg[0]));
    check_file(data, size, r);
    if (r < 0)
        return 0;
    size_t total = 0;
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct st_tensor *t = safetensors_at(s, i);
        uint64_t n = st_dtype_bytes(t->dtype);
        for (uint32_t d = 0; d < t->n_dims; d++)
            n *= t->dims[d];
        FUZZ_CHECK(n == t->bytes);
        const uint8_t *p = t->data;
        FUZZ_CHECK(p >= data && (size_t)(p - data) <= size && size - (size_t)(p - data) >= n);
        FUZZ_CHECK(safetensors_find(s, t->name) == t);
        FUZZ_CHECK(st_dtype_name(t->dtype) != NULL);
        total += t->bytes;
    }
    FUZZ_CHECK(total <= size);
    FUZZ_CHECK(safetensors_at(s, safetensors_count(s)) == NULL);
    safetensors_free(s);
    return 0;
}
