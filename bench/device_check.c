/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What scripts/device-check runs on a machine with a GPU: the CUDA backend against the CPU's, bit for bit,
 * for every weight type, and cuBLASLt near it; then times at the shape of Qwen3-4B with random weights.  It uses the backends
 * directly, so that it needs neither the engine's libraries nor a model.  With --tiny, the same program
 * runs on the emulated device, in the tests.
 *
 *   device-check LIBRARY FOLDER [--tiny] [--bytes-per-second N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/parse.h"
#include "bench/random_model.h"
#include "engine/backend.h"
#include "engine/drafter_file.h"
#include "kernels/cuda/open.h"

#define BLOCKS 40u /* of the small models: 640 positions */

struct check {
    const struct dcu_api *api;
    struct dcu_device device;
    bool tiny, blas; /* blas: cuBLASLt is there */
    double peak;     /* bytes per second; 0: unknown */
    FILE *matrix, *steps;
    unsigned n_failed, n_done;
};

static struct backend_options options(const struct check *k, bool cuda, bool exact)
{
    return (struct backend_options){.tier = dk_tier_best(),
                                    .exact = exact,
                                    .n_kv_blocks = BLOCKS,
                                    .max_rows = 64,
                                    .max_context = BLOCKS * DK_KV_BLOCK,
                                    .cuda = cuda ? k->api : NULL};
}

/* ---- the same bytes --------------------------------------------------------------------------------- */

/* Logits of `n` tokens of one sequence, fed in chunks. */
static int feed(const struct backend *b, struct backend_model *m, uint32_t vocab, uint32_t n,
                uint32_t chunk, float *logits, struct error *err)
{
    static uint32_t blocks[BLOCKS];
    struct fwd_row rows[64];
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = (i * 7 + 3) % BLOCKS;
    for (uint32_t i = 0, k; i < n; i += k) {
        k = n - i < chunk ? n - i : chunk;
        for (uint32_t j = 0; j < k; j++) {
            uint32_t pos = i + j;
            rows[j] = (struct fwd_row){
                .token = pos * 131 % vocab,
                .pos = pos,
                .slot = blocks[pos / DK_KV_BLOCK] * DK_KV_BLOCK + pos % DK_KV_BLOCK,
                .path = {.n_vis = pos + 1, .tail_start = UINT32_MAX / 32 * 16, .blocks = blocks},
                .logits = logits + (size_t)pos * vocab};
        }
        struct fwd_batch batch = {.n_rows = k, .rows = rows};
        int r = b->forward(m, &batch, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static void verdict(struct check *k, enum dk_type type, const char *class, const char *what,
                    bool same, double largest)
{
    k->n_done++;
    k->n_failed += !same;
    (void)fprintf(k->matrix, "%s,%s,%s,%s,%g\n", dk_type_info(type)->name, class, what,
                  same ? "same" : "DIFFERENT", largest);
    if (!same)
        (void)printf("%s, %s, %s: DIFFERENT, by %g at most\n", dk_type_info(type)->name, class,
                     what, largest);
}

static double difference(const float *a, const float *b, size_t n)
{
    double d = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)a[i] - (double)b[i];
        if (!(x <= d && -x <= d))
            d = x < 0 ? -x : x;
    }
    return d;
}

/* A random model on either side, and room for its logits. */
struct pair {
    uint32_t n, vocab; /* positions */
    size_t size;
    /* Two of the same bytes: a random model's are gone once they were packed. */
    struct model_file *f, *g;
    struct backend_model *cpu, *gpu;
    float *want, *got;
};

static void pair_close(struct pair *p)
{
    backend_cuda.free(p->gpu);
    backend_cpu.free(p->cpu);
    model_file_free(p->f);
    model_file_free(p->g);
    mem_free(p->want);
    mem_free(p->got);
}

/* p->want are the CPU's logits.  To be closed, whatever comes back. */
static int pair_open(const struct check *k, enum dk_type type, const struct backend_options *og,
                     struct pair *p, struct error *err)
{
    struct backend_options oc = options(k, false, true);
    *p = (struct pair){.n = k->tiny ? 20 : 300, .vocab = 512};
    p->size = (size_t)p->n * p->vocab;
    p->want = mem_array(p->size, sizeof(*p->want));
    p->got = mem_array(p->size, sizeof(*p->got));
    int r = p->want && p->got ? random_model_new("tiny", type, 0, &p->f, err) : ERR_NOMEM(err);
    if (r == 0)
        r = random_model_new("tiny", type, 0, &p->g, err);
    if (r == 0)
        r = backend_cpu.load(p->f, &oc, NULL, NULL, &p->cpu, err);
    if (r == 0)
        r = backend_cuda.load(p->g, og, NULL, NULL, &p->gpu, err);
    return r < 0 ? r : feed(&backend_cpu, p->cpu, p->vocab, p->n, 64, p->want, err);
}

/* One type in one class: the device's chunks against each other, and, in the CPU's class, against it. */
static int one_type(struct check *k, enum dk_type type, bool exact, struct error *err)
{
    static const uint32_t chunks[] = {64, 7, 1};
    const struct backend_options og = options(k, true, exact);
    const char *class = "";
    struct pair p;
    int r = pair_open(k, type, &og, &p, err);
    if (r == 0)
        backend_cuda.describe(p.gpu, NULL, NULL, &class);
    for (size_t i = 0; r == 0 && i < sizeof(chunks) / sizeof(*chunks); i++) {
        char what[64];
        r = feed(&backend_cuda, p.gpu, p.vocab, p.n, chunks[i], p.got, err);
        if (r < 0)
            break;
        double d = difference(p.got, p.want, p.size);
        (void)snprintf(what, sizeof(what), "%s, %u rows",
                       exact ? "as the CPU"
                       : i   ? "as 64 rows"
                             : "near the CPU",
                       chunks[i]);
        if (!exact && i == 0) {
            verdict(k, type, class, what, d < 0.01, d);
            memcpy(p.want, p.got, p.size * sizeof(*p.want));
        } else {
            verdict(k, type, class, what, memcmp(p.got, p.want, p.size * sizeof(*p.want)) == 0, d);
        }
    }
    pair_close(&p);
    return r;
}

/* Float weights by cuBLASLt: near the CPU, and the same bits again. */
static int one_fast(struct check *k, enum dk_type type, struct error *err)
{
    struct backend_options og = options(k, true, false);
    struct pair p;
    og.fast = true;
    int r = pair_open(k, type, &og, &p, err);
    for (unsigned i = 0; i < 2 && r == 0; i++) {
        r = feed(&backend_cuda, p.gpu, p.vocab, p.n, 64, p.got, err);
        if (r < 0)
            break;
        double d = difference(p.got, p.want, p.size);
        bool ok = i ? memcmp(p.got, p.want, p.size * sizeof(*p.want)) == 0 : d < 0.1;
        verdict(k, type, "cuda-fast", i ? "again, 64 rows" : "near the CPU, 64 rows", ok, d);
        memcpy(p.want, p.got, p.size * sizeof(*p.want));
    }
    pair_close(&p);
    return r;
}

static int same_bytes(struct check *k, struct error *err)
{
    int r = 0;
    (void)fprintf(k->matrix, "type,class,what,verdict,largest_difference\n");
    for (int t = 0; t < DK_TYPE_COUNT && r == 0; t++) {
        r = one_type(k, (enum dk_type)t, true, err);
        if (r == 0 && (t == DK_F16 || t == DK_BF16))
            r = one_type(k, (enum dk_type)t, false, err);
        if (r == 0 && k->blas && (t == DK_F32 || t == DK_F16 || t == DK_BF16))
            r = one_fast(k, (enum dk_type)t, err);
    }
    return r;
}

/* ---- times ------------------------------------------------------------------------------------------ */

struct timed {
    const struct backend *b;
    struct backend_model *m;
    uint32_t vocab, context;
    float *logits;
    uint32_t *blocks;
};

/* Seconds of one batch: n rows behind `context` positions, all with logits; the median of some. */
static int step(const struct timed *t, uint32_t n, unsigned times, double *ret, struct error *err)
{
    struct fwd_row rows[64];
    double all[32];
    for (uint32_t j = 0; j < n; j++) {
        uint32_t pos = t->context + j;
        rows[j] = (struct fwd_row){
            .token = pos * 131 % t->vocab,
            .pos = pos,
            .slot = t->blocks[pos / DK_KV_BLOCK] * DK_KV_BLOCK + pos % DK_KV_BLOCK,
            .path = {.n_vis = pos + 1, .tail_start = UINT32_MAX / 32 * 16, .blocks = t->blocks},
            .logits = t->logits + (size_t)j * t->vocab};
    }
    struct fwd_batch batch = {.n_rows = n, .rows = rows};
    for (unsigned i = 0; i < times; i++) {
        uint64_t t0 = clock_now_ns();
        int r = t->b->forward(t->m, &batch, err);
        if (r < 0)
            return r;
        all[i] = (double)(clock_now_ns() - t0) * 1e-9;
        for (unsigned j = i; j > 0 && all[j] < all[j - 1]; j--) {
            double x = all[j];
            all[j] = all[j - 1];
            all[j - 1] = x;
        }
    }
    *ret = all[times / 2];
    return 0;
}

static int curve(struct check *k, const char *name, const struct timed *t, uint64_t bytes,
                 double first, double *ret, struct error *err)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64};
    const unsigned times = k->tiny ? 1 : 21;
    int r = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows) && r == 0; i++) {
        double s;
        r = step(t, rows[i], times, &s, err);
        if (r < 0)
            break;
        ret[i] = s;
        double base = first > 0 ? first : ret[0];
        (void)fprintf(k->steps, "%s,%u,%u,%.6f,%.3f,%.3f\n", name, rows[i], t->context, s * 1e3,
                      s / base, k->peak > 0 ? (double)bytes / s / k->peak : 0);
        (void)printf("%-14s %2u rows behind %u: %9.3f ms, %.3f of an AR step\n", name, rows[i],
                     t->context, s * 1e3, s / base);
    }
    return r;
}

/* Passes of the drafter and a verification against plain steps, by measured times. */
static void rounds(struct check *k, const double *target, const double *draft, const char *head)
{
    double ar = target[0], dflash = draft[4] + target[4], dedit = 3 * draft[5] + target[5];
    (void)fprintf(k->steps, "round dflash W16 %s,16,0,%.6f,%.3f,0\n", head, dflash * 1e3,
                  dflash / ar);
    (void)fprintf(k->steps, "round dedit W32 K3 %s,32,0,%.6f,%.3f,0\n", head, dedit * 1e3,
                  dedit / ar);
    (void)printf("rounds, %s: DFlash W 16 %.3f, DEdit W 32 K 3 %.3f of an AR step\n", head,
                 dflash / ar, dedit / ar);
}

static int times_of(struct check *k, enum dk_type type, bool fast, struct error *err)
{
    const char *shape = k->tiny ? "tiny" : "qwen3-4b";
    const uint32_t context = k->tiny ? 40 : 1024, n_blocks = k->tiny ? BLOCKS : 128;
    static uint32_t blocks[128];
    double target[7] = {0}, draft[7] = {0};
    struct model_file *f = NULL, *df = NULL;
    struct timed t = {.b = &backend_cuda, .context = context, .blocks = blocks};
    struct backend_model *d = NULL;
    struct backend_options o = options(k, true, false);
    struct backend_memory mem = {0};
    char name[64];
    o.fast = fast;
    o.n_kv_blocks = n_blocks;
    o.max_context = n_blocks * DK_KV_BLOCK;
    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = i;
    int r = random_model_new(shape, type, 0, &f, err);
    if (r == 0)
        r = backend_cuda.load(f, &o, NULL, NULL, &t.m, err);
    if (r == 0) {
        t.vocab = model_file_config(f)->vocab_size;
        t.logits = mem_array((size_t)64 * t.vocab, sizeof(float));
        r = t.logits ? 0 : ERR_NOMEM(err);
    }
    if (r == 0) {
        backend_cuda.describe(t.m, &mem, NULL, NULL);
        (void)snprintf(name, sizeof(name), "%s %s%s", shape, dk_type_info(type)->name,
                       fast ? " fast" : "");
        r = curve(k, name, &t, mem.packed_bytes, 0, target, err);
    }
    for (unsigned small = 0; small < 2 && r == 0; small++) {
        struct timed x = t;
        r = random_drafter_new(model_file_config(f), type, k->tiny ? 1 : 5,
                               small ? (k->tiny ? 100 : 32768) : 0, &df, err);
        if (r == 0)
            r = backend_cuda.load_drafter(t.m, df, BACKEND_DTYPE_FILE, &d, err);
        if (r == 0) {
            x.m = d;
            x.vocab = model_file_config(df)->drafter->draft_vocab;
            backend_cuda.describe(d, &mem, NULL, NULL);
            (void)snprintf(name, sizeof(name), "drafter %s%s", small ? "32k" : "full",
                           fast ? " fast" : "");
            r = curve(k, name, &x, mem.packed_bytes, target[0], draft, err);
        }
        if (r == 0)
            rounds(k, target, draft,
                   fast    ? small ? "32k head, fast" : "full head, fast"
                   : small ? "32k head"
                           : "full head");
        backend_cuda.free(d);
        model_file_free(df);
        d = NULL;
        df = NULL;
    }
    backend_cuda.free(t.m);
    model_file_free(f);
    mem_free(t.logits);
    return r;
}

static FILE *table(const char *folder, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return fopen(path, "w");
}

int main(int argc, char **argv)
{
    struct error err = {0};
    struct check k = {0};
    bool bad = argc < 3;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0)
            k.tiny = true;
        else if (strcmp(argv[i], "--bytes-per-second") == 0 && i + 1 < argc)
            bad = bad || parse_double(argv[++i], &k.peak) < 0;
        else
            bad = true;
    }
    if (bad) {
        (void)fprintf(stderr,
                      "usage: device-check LIBRARY FOLDER [--tiny] [--bytes-per-second N]\n");
        return 2;
    }
    dk_thread_init();
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    k.matrix = table(argv[2], "same-bytes.csv");
    k.steps = table(argv[2], "steps.csv");
    int r = k.matrix && k.steps ? 0 : ERR(&err, IO, "%s: cannot be written", argv[2]);
    if (r == 0)
        r = dcu_open(argv[1], &k.api, &err);
    if (r == 0)
        r = dcu_device_check(k.api, 0, &k.device, &err);
    if (r == 0) {
        (void)printf("%s, compute capability %d.%d, %.1f GiB; library built for %s\n",
                     k.device.name, k.device.major, k.device.minor,
                     (double)k.device.memory / (1 << 30), k.api->built);
        struct error why = {0};
        k.blas = dcu_error(k.api, k.api->blas_open(), &why, "without cuBLASLt") == 0;
        if (!k.blas)
            (void)printf("%s\n", why.msg);
        r = same_bytes(&k, &err);
    }
    if (r == 0) {
        (void)printf("same bytes: %u of %u\n", k.n_done - k.n_failed, k.n_done);
        (void)fprintf(k.steps, "what,rows,context,ms,of_ar_step,share_of_peak\n");
        r = times_of(&k, DK_BF16, false, &err);
    }
    if (r == 0 && k.blas)
        r = times_of(&k, DK_BF16, true, &err);
    if (r == 0)
        r = times_of(&k, DK_Q4_K, false, &err);
    if (k.matrix)
        (void)fclose(k.matrix);
    if (k.steps)
        (void)fclose(k.steps);
    if (r < 0)
        (void)fprintf(stderr, "device-check: %s\n", err.msg);
    return r < 0 || k.n_failed ? 1 : 0;
}
