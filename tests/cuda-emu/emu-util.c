/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda-emu/emu-util.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/engine-util.h"
#include "tests/unit/util.h"

static void (*fail_at)(long, int, int);
static void (*count)(struct emu_counts *);

/* ---- the library ---------------------------------------------------------------------------------- */

static void *symbol(void *h, const char *name)
{
    void *p = dlsym(h, name);
    if (!p) {
        (void)fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
    return p;
}

void emu_open_library(void)
{
    static char library[4096];
    const char *dir = getenv("top_builddir");
    (void)snprintf(library, sizeof(library), "%s/libdedit-cuda-emu.so", dir ? dir : ".");
    setenv("DEDIT_CUDA_EMU", library, 1);
    setenv("DEDIT_CUBLASLT_LIBRARY", library, 1);
    void *h = dlopen(library, RTLD_NOW | RTLD_LOCAL), *p;
    if (!h) {
        (void)fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
    p = symbol(h, "emu_fail_at");
    memcpy(&fail_at, &p, sizeof(fail_at));
    p = symbol(h, "emu_count");
    memcpy(&count, &p, sizeof(count));
}

void emu_fail(long n, int error, bool keep)
{
    fail_at(n, error, keep);
}

struct emu_counts emu_counts_now(void)
{
    struct emu_counts c;
    count(&c);
    return c;
}

uint64_t emu_replays(void)
{
    return emu_counts_now().replays;
}

void emu_nothing_left(const char *what, long n)
{
    const struct emu_counts c = emu_counts_now();
    ck_assert_msg(c.blocks + c.pinned + c.streams + c.events + c.graphs + c.blas == 0,
                  "%s, call %ld: %lu blocks, %lu pinned, %lu streams, %lu events, %lu graphs, %lu "
                  "objects of cuBLASLt stay",
                  what, n, (unsigned long)c.blocks, (unsigned long)c.pinned,
                  (unsigned long)c.streams, (unsigned long)c.events, (unsigned long)c.graphs,
                  (unsigned long)c.blas);
}

/* ---- models --------------------------------------------------------------------------------------- */

struct engine *emu_open(const char *path, bool graphs, uint32_t max_context)
{
    setenv("DEDIT_CUDA_GRAPHS", graphs ? "on" : "off", 1);
    struct engine_config c = test_engine_config();
    c.device = "emu";
    c.max_context = max_context;
    return test_engine(path, &c);
}

struct seq *emu_new_seq(struct engine *e)
{
    struct error err = {0};
    struct seq *s = NULL;
    ck_ok(engine_seq_new(e, &s, &err), &err);
    return s;
}

float *emu_floats(size_t n)
{
    float *p = malloc(n * sizeof(*p));
    ck_assert_ptr_nonnull(p);
    for (size_t i = 0; i < n; i++)
        p[i] = -12345.0f;
    return p;
}

void emu_step(struct engine *e, uint32_t prefix, uint32_t n, float *ret)
{
    const struct model_config *m = engine_model_config(e);
    struct error err = {0};
    uint32_t tokens[600];
    test_tokens(9, m->vocab_size, tokens, 600);
    struct seq *s = emu_new_seq(e);
    for (uint32_t i = 0; i < prefix; i += 100)
        test_feed(e, s, tokens + i, prefix - i < 100 ? prefix - i : 100, 100, NULL, NULL, 0, NULL);
    struct engine_feed f = {
        .seq = s, .tokens = tokens + prefix, .n = n, .logits = ret, .n_logits = 1};
    ck_ok(engine_feed(e, &f, 1, NULL, 0, &err), &err);
    engine_seq_free(e, s);
}
