/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF from any bytes: the file, every look-up in it, and the model it may be. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/gguf.h"
#include "engine/model_file_internal.h"
#include "tests/fuzz/file.h"

/* Reads the ends of a range; a sanitizer tells when they are outside. */
static void touch(const void *p, size_t n)
{
    const volatile uint8_t *b = p;
    if (n)
        (void)(b[0] + b[n - 1]);
}

static void look_up(const struct gguf *g, const char *key)
{
    uint32_t u;
    double d;
    bool b;
    uint64_t n, count = 0;
    struct gguf_str s, same;
    struct gguf_str_iter it;
    (void)gguf_get_u32(g, key, &u, NULL);
    if (gguf_get_f64(g, key, &d, NULL) == 0)
        FUZZ_CHECK(d - d == 0);
    (void)gguf_get_bool(g, key, &b, NULL);
    if (gguf_get_str(g, key, &s, NULL) == 0)
        FUZZ_CHECK(utf8_valid(s.s, s.len));
    if (gguf_iter_strings(g, key, &it, NULL) == 0) {
        FUZZ_CHECK(gguf_get_array(g, key, GGUF_STRING, &n, NULL) == 0);
        while (gguf_iter_next(&it, &s)) {
            same = gguf_array_str(g, key, count++);
            FUZZ_CHECK(same.s == s.s && same.len == s.len);
            touch(s.s, s.len);
        }
        FUZZ_CHECK(count == n && it.p == it.end);
        FUZZ_CHECK(gguf_array_str(g, key, n).s == NULL);
    }
    static const size_t sizes[] = {[GGUF_U8] = 1,  [GGUF_U16] = 2, [GGUF_U32] = 4,
                                   [GGUF_F32] = 4, [GGUF_U64] = 8, [GGUF_BOOL] = 1};
    for (size_t t = 0; t < sizeof(sizes) / sizeof(sizes[0]); t++) {
        const void *p = gguf_array_data(g, key, (enum gguf_type)t, &n);
        if (p && sizes[t])
            touch(p, (size_t)n * sizes[t]);
    }
}

static void check_model(const uint8_t *data, size_t size)
{
    struct error err = {0};
    struct model_file *f = NULL;
    int r = model_parse_gguf(data, size, "fuzz", &f, &err);
    FUZZ_CHECK(r == 0 || (r == err.code && err.msg[0]));
    if (r < 0)
        return;
    const struct model_config *c = model_file_config(f);
    FUZZ_CHECK(c->n_heads % c->n_kv_heads == 0 && c->head_dim % 2 == 0);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        for (int role = 0; role < MT_ROLE_COUNT; role++) {
            const struct model_tensor *t = model_file_tensor(f, (enum model_tensor_role)role, l);
            if (t)
                touch(t->data, t->bytes);
        }
    }
    model_file_free(f);
}

/* By path the results are the same. */
static void check_file(const uint8_t *data, size_t size, int want)
{
    char path[64];
    struct gguf *g = NULL;
    struct model_file *f = NULL, *same = NULL;
    int fd = fuzz_wants_file(size) ? fuzz_file(data, size, path) : -1;
    if (fd < 0)
        return;
    FUZZ_CHECK(gguf_open(path, &g, NULL) == want);
    gguf_free(g);
    int r = model_file_open(path, &f, NULL);
    FUZZ_CHECK(r == model_parse_gguf(data, size, "fuzz", &same, NULL));
    model_file_free(f);
    model_file_free(same);
    fd_close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"general.architecture",
                                       "general.name",
                                       "general.alignment",
                                       "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.scores",
                                       "tokenizer.ggml.token_type",
                                       "a",
                                       "absent"};
    struct error err = {0};
    struct gguf *g = NULL;
    int r = gguf_parse(data, size, "fuzz", &g, &err);
    FUZZ_CHECK(r == 0 || (r == err.code && err.msg[0]));
    check_file(data, size, r);
    if (r < 0)
        return 0;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        look_up(g, keys[i]);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        touch(t->data, t->bytes);
        char *name = mem_strndup(t->name.s, t->name.len);
        FUZZ_CHECK(!name || gguf_tensor_find(g, name) == t);
        mem_free(name);
    }
    gguf_free(g);
    check_model(data, size);
    return 0;
}
