/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda-emu/kernels-util.h"

#include <dlfcn.h>
#include <stdio.h>

#define GUARD      256u
#define PATTERN    0xa5
#define MAX_BLOCKS 256u

const struct dcu_api *dev;
dcu_stream dev_s;
static struct {
    unsigned char *base;
    size_t n;
} blocks[MAX_BLOCKS];
static unsigned n_blocks;

static char path[4096]; /* of the emulated device */

/* CUEMU_REPORT: a file for the accesses that the runner counted (with CK_FORK=no, of all tests). */
static void report(void)
{
    const char *to = getenv("CUEMU_REPORT");
    void *h = to ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *p = h ? dlsym(h, "emu_report") : NULL;
    void (*write)(const char *);
    memcpy(&write, &p, sizeof(write));
    if (write)
        write(to);
}

void dev_open(void)
{
    struct error err = {0};
    const char *dir = getenv("top_builddir");
    snprintf(path, sizeof(path), "%s/libdedit-cuda-emu.so", dir ? dir : ".");
    ck_ok(dcu_open(getenv("DEDIT_CUDA_LIBRARY") ? NULL : path, &dev, &err), &err);
    dev_ok(dev->device_use(0));
    dev_ok(dev->stream_new(&dev_s));
    n_blocks = 0;
}

void *dev_new(size_t n)
{
    void *p;
    ck_assert_uint_lt(n_blocks, MAX_BLOCKS);
    size_t up = (n + GUARD - 1) / GUARD * GUARD;
    dev_ok(dev->alloc(&p, up + 2 * GUARD));
    dev_ok(dev->fill(dev_s, p, PATTERN, up + 2 * GUARD));
    dev_ok(dev->stream_wait(dev_s));
    blocks[n_blocks].base = p;
    blocks[n_blocks++].n = n;
    unsigned char *user = (unsigned char *)p + GUARD;
    dev->region(user, n);
    return user;
}

void dev_put(void *device, const void *host, size_t n)
{
    void *pinned;
    if (!n)
        return;
    dev_ok(dev->host_alloc(&pinned, n));
    memcpy(pinned, host, n);
    dev_ok(dev->copy_in(dev_s, device, pinned, n));
    dev_ok(dev->stream_wait(dev_s));
    dev_ok(dev->host_free(pinned));
}

void *dev_of(const void *host, size_t n)
{
    void *p = dev_new(n);
    dev_put(p, host, n);
    return p;
}

void dev_get(void *host, const void *device, size_t n)
{
    void *pinned;
    dev_ok(dev->host_alloc(&pinned, n ? n : 1));
    dev_ok(dev->copy_out(dev_s, pinned, device, n));
    dev_ok(dev->stream_wait(dev_s));
    memcpy(host, pinned, n);
    dev_ok(dev->host_free(pinned));
}

void dev_done(void)
{
    dev_ok(dev->stream_wait(dev_s));
    for (unsigned i = 0; i < n_blocks; i++) {
        unsigned char guard[GUARD * 2];
        size_t n = blocks[i].n, up = (n + GUARD - 1) / GUARD * GUARD;
        dev_get(guard, blocks[i].base, GUARD);
        for (unsigned j = 0; j < GUARD; j++)
            ck_assert_msg(guard[j] == PATTERN, "byte %u before block %u was written", GUARD - j, i);
        size_t after = up - n + GUARD;
        dev_get(guard, blocks[i].base + GUARD + n, after);
        for (size_t j = 0; j < after; j++)
            ck_assert_msg(guard[j] == PATTERN, "byte %zu behind block %u was written", j, i);
    }
}

void dev_close(void)
{
    dev_done();
    report();
    while (n_blocks)
        dev_ok(dev->free(blocks[--n_blocks].base));
    dev_ok(dev->stream_free(dev_s));
}

uint32_t rng_u32(struct rng *r)
{
    uint64_t z = r->s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)((uint64_t)rng_u32(r) * n >> 32);
}

float rng_float(struct rng *r)
{
    float s = 0;
    for (int i = 0; i < 4; i++)
        s += (float)(int32_t)rng_u32(r) * 0x1p-31f;
    return s;
}

float *floats_new(struct rng *r, size_t n, float scale)
{
    float *x = malloc(n * sizeof(*x) + 1);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(r) * scale;
    return x;
}

static void put_f16(unsigned char *p, float x)
{
    uint16_t h = dk_f32_to_f16(x);
    memcpy(p, &h, sizeof(h));
}

/* Random bits are legal quants of every block type; only the f16 scales need care. */
static void random_block(struct rng *r, enum dk_type t, unsigned char *p)
{
    const struct dk_type_info *info = dk_type_info(t);
    for (uint32_t i = 0; i < info->block_bytes; i++)
        p[i] = (unsigned char)rng_u32(r);
    if (t == DK_Q6_K) {
        put_f16(p + 208, rng_float(r) * 0.01f);
        return;
    }
    put_f16(p, rng_float(r) * 0.05f);
    if (t == DK_Q4_1 || t == DK_Q5_1 || t == DK_Q4_K || t == DK_Q5_K)
        put_f16(p + 2, rng_float(r) * 0.02f);
}

void weight_new(struct test_weight *w, struct rng *r, enum dk_type t, enum dcu_layout l, uint32_t n,
                uint32_t k)
{
    const struct dk_type_info *info = dk_type_info(t);
    size_t bytes, gpu_bytes;
    w->row_bytes = (size_t)k / info->block_elems * info->block_bytes;
    w->file = malloc(w->row_bytes * n);
    ck_assert_ptr_nonnull(w->file);
    for (uint32_t o = 0; o < n; o++)
        for (uint32_t b = 0; b < k / info->block_elems; b++) {
            unsigned char *p = w->file + o * w->row_bytes + (size_t)b * info->block_bytes;
            float x = rng_float(r) * 0.2f;
            uint16_t h = t == DK_F16 ? dk_f32_to_f16(x) : dk_f32_to_bf16(x);
            if (info->quantised)
                random_block(r, t, p);
            else if (t == DK_F32)
                memcpy(p, &x, sizeof(x));
            else
                memcpy(p, &h, sizeof(h));
        }
    ck_assert(dk_weight_bytes(t, DK_LAYOUT_PANEL, n, k, &bytes));
    w->packed = aligned_alloc(64, (bytes + 63) / 64 * 64);
    ck_assert_ptr_nonnull(w->packed);
    dk_weight_pack(w->packed, t, DK_LAYOUT_PANEL, n, k, w->file, w->row_bytes, 0, (n + 15) / 16);
    w->cpu = (struct dk_weight){t, DK_LAYOUT_PANEL, n, k, (n + 15) / 16, w->packed, bytes};
    ck_assert(dcu_weight_bytes(t, l, n, k, &gpu_bytes));
    void *staged = malloc(gpu_bytes);
    ck_assert_ptr_nonnull(staged);
    /* In two pieces, as a loader does it. */
    uint32_t panels = (n + 15) / 16, cut = panels / 2;
    dcu_weight_pack(staged, t, l, n, k, w->file, w->row_bytes, 0, cut);
    dcu_weight_pack((char *)staged + cut * dcu_panel_bytes(t, l, k), t, l, n, k, w->file,
                    w->row_bytes, cut, panels);
    w->gpu = (struct dcu_weight){t, l, n, k, dev_of(staged, gpu_bytes)};
    free(staged);
}

void weight_done(struct test_weight *w)
{
    free(w->file);
    free(w->packed);
}

const struct dk_ops *cpu_ops(void)
{
    return dk_ops(DK_TIER_C);
}

void cpu_matmul(const struct dk_weight *w, const float *x, size_t ldx, uint32_t rows, float *y,
                unsigned flags)
{
    struct dk_act a;
    void *mem = aligned_alloc(64, (dk_act_bytes(rows, w->k) + 63) / 64 * 64);
    void *scratch = aligned_alloc(64, DK_SCRATCH_BYTES);
    ck_assert(mem && scratch);
    dk_act_init(&a, rows, w->k, mem);
    a.rows = rows;
    a.k = w->k;
    cpu_ops()->act_prepare(&a, dk_weight_form(w), x, ldx, 0, rows);
    struct dk_mm mm = {.w = w, .y = y, .ldy = w->n, .flags = flags};
    cpu_ops()->matmul(&mm, &a, 0, w->n_panels, scratch);
    free(mem);
    free(scratch);
}

void same_floats(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a, b;
        memcpy(&a, got + i, 4);
        memcpy(&b, want + i, 4);
        if (a != b && !(got[i] != got[i] && want[i] != want[i]))
            ck_abort_msg("%s: [%zu] is %.9g (%08x), wanted %.9g (%08x)", what, i, (double)got[i], a,
                         (double)want[i], b);
    }
}

struct dcu_act act_new(unsigned forms, uint32_t rows, uint32_t k)
{
    return (struct dcu_act){dev_new(dcu_act_bytes(forms, rows, k)), forms, rows, k};
}
