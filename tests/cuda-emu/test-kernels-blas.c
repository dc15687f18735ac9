/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products by cuBLASLt keep the derived bounds, against exact sums and against the strict kernels, repeat
 * their bits, and touch nothing behind the rows that they may; without the library, with another version of
 * it and wherever a call fails there is one clear error and nothing stays.  On the emulated device the
 * library is emulated, too, and refuses what the real one would.
 */
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "kernels/cuda/layout.h"
#include "tests/cuda-emu/emu.h"
#include "tests/cuda-emu/include/cublasLt.h"
#include "tests/cuda-emu/kernels-util.h"

#define MOST 70u /* rows of the plans: sizes 1, 2, 4 ... 64, 70 */

static char emulated[4096]; /* the library; empty: a real device's */

static void open_all(void)
{
    dev_open();
    if (*emulated)
        setenv("DEDIT_CUBLASLT_LIBRARY", emulated, 1);
}

static void *emu_symbol(const char *name)
{
    void *h = dlopen(emulated, RTLD_NOW | RTLD_LOCAL), *p = h ? dlsym(h, name) : NULL;
    ck_assert_msg(p, "%s", name);
    return p;
}
/* A function of the emulated library into a pointer of its type. */
#define EMU_FIND(pointer, name)                                                                    \
    do {                                                                                           \
        void *p_ = emu_symbol(name);                                                               \
        memcpy(&(pointer), &p_, sizeof(pointer));                                                  \
    } while (0)

/* ---- results ---------------------------------------------------------------------------------------- */

struct fast {
    struct dcu_blas *blas;
    struct dcu_act act;
    unsigned form;
};

/* Products with w; rows of results lie n + 5 apart. */
static void fast_new(struct fast *f, const struct test_weight *w)
{
    const struct dcu_weight *g = &w->gpu;
    struct dcu_mm mm = {*g, dev_new((size_t)MOST * (g->n + 5) * 4), g->n + 5, 0};
    f->form = dcu_weight_form(g->type, DCU_LAYOUT_ROWS);
    f->act = act_new(f->form, MOST, g->k);
    dev_ok(dev->blas_open());
    dev_ok(dev->blas_new(&f->blas, dev_new(1 << 20), 1 << 20));
    dev_ok(dev->blas_plan(dev_s, f->blas, &mm, &f->act, MOST));
}

static void put_rows(const struct fast *f, const float *x, uint32_t rows, uint32_t k)
{
    struct dcu_prep prep = {.src = DCU_SRC_PLAIN,
                            .x = dev_of(x, (size_t)rows * k * 4),
                            .ldx = k,
                            .rows = rows,
                            .k = k,
                            .forms = f->form,
                            .act = f->act};
    dev_ok(dev->prepare(dev_s, &prep));
}

/* y[rows][n]; y0: what was there (ADD), or NULL. */
static void product(const struct fast *f, const struct test_weight *w, const float *x,
                    uint32_t rows, const float *y0, float *y)
{
    const uint32_t n = w->gpu.n, room = dcu_blas_rows(rows, MOST);
    const size_t ld = n + 5;
    float *host = malloc(room * ld * 4), *d = dev_new(room * ld * 4);
    ck_assert_ptr_nonnull(host);
    memset(host, 0xff, room * ld * 4); /* NaNs */
    for (uint32_t r = 0; y0 && r < rows; r++)
        memcpy(host + r * ld, y0 + (size_t)r * n, n * 4);
    dev_put(d, host, room * ld * 4);
    put_rows(f, x, rows, w->gpu.k);
    struct dcu_mm mm = {w->gpu, d, ld, 0};
    dev_ok(dev->blas_plan(dev_s, f->blas, &mm, &f->act, MOST)); /* known: y is too short for it */
    mm.flags = y0 ? DK_MM_ADD : 0;
    dev_ok(dev->blas_matmul(dev_s, f->blas, &mm, 1, &f->act, rows));
    dev_get(host, d, room * ld * 4);
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(y + (size_t)r * n, host + r * ld, n * 4);
        for (uint32_t i = n; i < ld; i++) /* between two rows */
            ck_assert(host[r * ld + i] != host[r * ld + i]);
    }
    free(host);
}

/* The strict kernels' product of the same weights. */
static void strict_product(enum dk_type t, const struct test_weight *w, const float *x,
                           uint32_t rows, float *y)
{
    enum dcu_layout l = t == DK_F32 ? DCU_LAYOUT_PANEL : DCU_LAYOUT_MMA;
    struct dcu_weight s = {t, l, w->gpu.n, w->gpu.k, NULL};
    unsigned form = dcu_weight_form(t, l);
    size_t bytes;
    ck_assert(dcu_weight_bytes(t, l, s.n, s.k, &bytes));
    void *packed = malloc(bytes);
    ck_assert_ptr_nonnull(packed);
    dcu_weight_pack(packed, t, l, s.n, s.k, w->file, w->row_bytes, 0, (s.n + 15) / 16);
    s.data = dev_of(packed, bytes);
    struct dcu_prep prep = {.src = DCU_SRC_PLAIN,
                            .x = dev_of(x, (size_t)rows * s.k * 4),
                            .ldx = s.k,
                            .rows = rows,
                            .k = s.k,
                            .forms = form,
                            .act = act_new(form, rows, s.k)};
    dev_ok(dev->prepare(dev_s, &prep));
    float *d = dev_new((size_t)rows * s.n * 4);
    struct dcu_mm mm = {s, d, s.n, 0};
    dev_ok(dev->matmul(dev_s, &mm, 1, &prep.act, rows));
    dev_get(y, d, (size_t)rows * s.n * 4);
    free(packed);
}

/* The bounds of kernels/README.md, in parts: of sum |w x| and what is there, and of sum |w|. */
static double fast_bound(enum dk_type t, uint32_t k)
{
    double rounding = t == DK_F32 ? 0 : t == DK_F16 ? 0x1p-11 : 0x1p-8;
    return rounding + (k + 20) * 0x1p-23 * (1 + rounding);
}
static double fast_rest(enum dk_type t, double top)
{
    return t == DK_F16 ? fmax(0x1p-39 * top, 0x1p-40) : 0;
}
static double strict_bound(enum dk_type t, uint32_t k)
{
    if (t == DK_F32)
        return (k + 16) * 0x1p-24;
    return (t == DK_F16 ? 0x1p-22 : 0x1p-16) + (16 * 17 * 2 + (k + 1023) / 1024 + 9) * 0x1p-24;
}

struct sums { /* of one row and output, in binary64 */
    double exact, size, weights, top;
};
static struct sums sums_of(const float *w, const float *x, uint32_t k)
{
    struct sums s = {0};
    for (uint32_t j = 0; j < k; j++) {
        double a = (double)w[j], b = (double)x[j];
        s.exact += a * b;
        s.size += fabs(a * b);
        s.weights += fabs(a);
        s.top = fmax(s.top, fabs(b));
    }
    return s;
}

static const enum dk_type types[] = {DK_BF16, DK_F16, DK_F32};

START_TEST(within_the_bounds)
{
    static const uint32_t shapes[][2] = {{21, 72}, {16, 1328}, {37, 16}};
    static const uint32_t counts[] = {1, 3, 8, 9, 33, 66, 70};
    const enum dk_type t = types[_i % 3];
    const uint32_t n = shapes[_i / 3][0], k = shapes[_i / 3][1];
    struct rng r = {(uint64_t)t << 32 | n << 16 | k};
    struct test_weight w;
    struct fast f;
    float *x = floats_new(&r, (size_t)MOST * k, 3), *y0 = floats_new(&r, (size_t)MOST * n, 1);
    float *got = malloc((size_t)MOST * n * 4), *again = malloc((size_t)MOST * n * 4);
    float *strict = malloc((size_t)MOST * n * 4), *row = malloc(k * 4);
    ck_assert(got && again && strict && row);
    for (uint32_t i = 0; i < k; i++) {
        x[i] *= 0x1p-30f;        /* a row of small, */
        x[2 * k + i] *= 0x1p30f; /* one of large numbers, */
        x[7 * k + i] = 0;        /* and one of none */
    }
    weight_new(&w, &r, t, DCU_LAYOUT_ROWS, n, k);
    fast_new(&f, &w);
    strict_product(t, &w, x, MOST, strict);
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++)
        for (int add = 0; add < 2; add++) {
            product(&f, &w, x, counts[c], add ? y0 : NULL, got);
            product(&f, &w, x, counts[c], add ? y0 : NULL, again);
            same_floats("again", again, got, (size_t)counts[c] * n);
            for (uint32_t o = 0; o < n; o++) {
                dk_weight_row(&w.cpu, o, row);
                for (uint32_t i = 0; i < counts[c]; i++) {
                    struct sums s = sums_of(row, x + (size_t)i * k, k);
                    double there = add ? (double)y0[i * n + o] : 0;
                    double y = (double)got[i * n + o];
                    double most =
                        fast_bound(t, k) * (s.size + fabs(there)) + fast_rest(t, s.top) * s.weights;
                    ck_assert_msg(fabs(y - s.exact - there) <= most,
                                  "%u rows, row %u, output %u: off by %g, bound %g", counts[c], i,
                                  o, y - s.exact - there, most);
                    most += strict_bound(t, k) * s.size +
                            (t == DK_F16 ? 0x1p-39 * s.top * s.weights : 0);
                    ck_assert_msg(add || fabs(y - (double)strict[i * n + o]) <= most,
                                  "%u rows, row %u, output %u: %g, strict %g", counts[c], i, o, y,
                                  (double)strict[i * n + o]);
                }
            }
        }
    dev_ok(dev->blas_free(f.blas));
    weight_done(&w);
    free(x);
    free(y0);
    free(got);
    free(again);
    free(strict);
    free(row);
}
END_TEST

/* Sizes: few, none below the rows, at most a quarter more above 512, and never more than there is room for. */
START_TEST(sizes)
{
    uint32_t n_sizes = 0, last = 0;
    for (uint32_t n = 1; n <= 65536; n++) {
        uint32_t up = dcu_blas_rows(n, 65536);
        ck_assert_uint_ge(up, n);
        ck_assert(n <= 64 ? up < 2 * n : up - n < (n <= 512 ? 64 : n / 4));
        ck_assert_uint_eq(dcu_blas_rows(up, 65536), up);
        n_sizes += up != last;
        last = up;
    }
    ck_assert_uint_le(n_sizes, 64);
    ck_assert_uint_eq(dcu_blas_rows(65, 70), 70);
    ck_assert_uint_eq(dcu_blas_rows(33, 40), 40);
}
END_TEST

/* A captured product and its F16 scaling, replayed over new rows. */
START_TEST(replayed)
{
    const uint32_t n = 21, k = 72, rows = 5;
    const enum dk_type t = types[_i];
    struct rng r = {9};
    struct test_weight w;
    struct fast f;
    dcu_graph g;
    float *x = floats_new(&r, (size_t)2 * rows * k, 1), want[5 * 21], got[8 * 26];
    weight_new(&w, &r, t, DCU_LAYOUT_ROWS, n, k);
    fast_new(&f, &w);
    float *d = dev_new(sizeof(got));
    struct dcu_mm mm = {w.gpu, d, n + 5, 0};
    dev_ok(dev->stream_wait(dev_s));
    dev_ok(dev->capture_begin(dev_s));
    dev_ok(dev->blas_matmul(dev_s, f.blas, &mm, 1, &f.act, rows));
    dev_ok(dev->capture_end(dev_s, &g));
    for (uint32_t i = 0; i < 2; i++) {
        product(&f, &w, x + i * rows * k, rows, NULL, want);
        put_rows(&f, x + i * rows * k, rows, k);
        dev_ok(dev->graph_launch(g, dev_s));
        dev_get(got, d, sizeof(got));
        for (uint32_t o = 0; o < rows; o++)
            same_floats("replayed", got + o * (n + 5), want + o * n, n);
    }
    dev_ok(dev->graph_free(g));
    dev_ok(dev->blas_free(f.blas));
    weight_done(&w);
    free(x);
}
END_TEST

/* ---- errors ----------------------------------------------------------------------------------------- */

static void no_library(const char *named, const char *text)
{
    struct error err = {0};
    struct dcu_blas *b = NULL;
    setenv("DEDIT_CUBLASLT_LIBRARY", named, 1);
    ck_assert_int_eq(dev->blas_open(), DCU_BLAS_LIBRARY);
    int r = dcu_error(dev, dev->blas_new(&b, NULL, 0), &err, "exactness = fast");
    ck_assert_int_eq(r, DEDIT_E_NOT_FOUND);
    ck_assert_ptr_null(b);
    ck_assert_msg(strstr(err.msg, "exactness = fast: ") == err.msg && strstr(err.msg, text) &&
                      !strchr(err.msg, '\n'),
                  "%s", err.msg);
}

START_TEST(without_the_library)
{
    no_library("/nonexistent/libcublasLt.so.13", "/nonexistent/libcublasLt.so.13");
    no_library("libm.so.6", "libcublasLt has no cublasLt");
    setenv("CUEMU_CUBLAS_VERSION", "120803", 1);
    no_library(emulated, "version 12.8, 13 is needed");
    unsetenv("CUEMU_CUBLAS_VERSION");
    dev_ok(dev->blas_open()); /* and when it is there at last */
}
END_TEST

START_TEST(every_call_fails)
{
    struct rng r = {3};
    struct test_weight w;
    struct emu_counts c;
    struct fast f = {0};
    void (*fail_at)(long, int, int);
    void (*count)(struct emu_counts *);
    EMU_FIND(fail_at, "emu_fail_at");
    EMU_FIND(count, "emu_count");
    weight_new(&w, &r, DK_F16, DCU_LAYOUT_ROWS, 16, 16);
    f.form = dcu_weight_form(DK_F16, DCU_LAYOUT_ROWS);
    f.act = act_new(f.form, MOST, 16);
    float *d = dev_new((size_t)MOST * 16 * 4);
    dev_ok(dev->blas_open());
    void *workspace = dev_new(1 << 16);
    int e = 1;
    long n = 0;
    for (; e; n++) {
        struct error err = {0};
        struct emu_counts before;
        struct dcu_mm mm = {w.gpu, d, w.gpu.n, 0};
        f.blas = NULL;
        fail_at(n, 999, 0);
        e = dev->blas_new(&f.blas, workspace, 1 << 16);
        if (!e)
            e = dev->blas_plan(dev_s, f.blas, &mm, &f.act, MOST);
        mm.flags = DK_MM_ADD;
        if (!e)
            e = dev->blas_matmul(dev_s, f.blas, &mm, 1, &f.act, 3);
        fail_at(-1, 0, 0);
        if (e) {
            ck_assert_int_lt(dcu_error(dev, e, &err, "a product"), 0);
            ck_assert_msg(strstr(err.msg, "CUBLAS_STATUS") || strstr(err.msg, "cudaError"), "%s",
                          err.msg);
        }
        count(&before);
        ck_assert(e || before.blas);
        /* Freeing goes on where its calls fail, too. */
        fail_at(n % 3, 999, 0);
        int last = dev->blas_free(f.blas);
        fail_at(-1, 0, 0);
        ck_assert(!f.blas || last);
        count(&c);
        ck_assert_uint_eq(c.blas, 0);
        dev_ok(dev->stream_wait(dev_s));
        ck_assert_int_lt(n, 200);
    }
    ck_assert_int_gt(n, 40);
    weight_done(&w);
}
END_TEST

START_TEST(unplanned)
{
    struct rng r = {4};
    struct test_weight w;
    struct fast f;
    weight_new(&w, &r, DK_BF16, DCU_LAYOUT_ROWS, 16, 32);
    fast_new(&f, &w);
    struct dcu_mm mm = {w.gpu, dev_new((size_t)MOST * 16 * 4), 16, 0};
    ck_assert_int_eq(dev->blas_matmul(dev_s, f.blas, &mm, 1, &f.act, 1), DCU_BLAS_UNPLANNED);
    dev_ok(dev->blas_plan(dev_s, f.blas, &mm, &f.act, 8));
    dev_ok(dev->blas_matmul(dev_s, f.blas, &mm, 1, &f.act, 8));
    ck_assert_int_eq(dev->blas_matmul(dev_s, f.blas, &mm, 1, &f.act, 9), DCU_BLAS_UNPLANNED);
    ck_assert_int_ne(dev->matmul(dev_s, &mm, 1, &f.act, 1), 0); /* not the kernels' layout */
    dev_ok(dev->stream_wait(dev_s));
    dev_ok(dev->blas_free(f.blas));
    weight_done(&w);
}
END_TEST

/* ---- the emulated library --------------------------------------------------------------------------- */

/* A product of 16 x 4 over 32 inputs that is right, and one thing wrong with it at a time. */
struct call {
    cublasLtMatrixLayout_t a, b, c;
    void *x, *y, *w, *workspace;
    size_t bytes;
    cublasLtMatmulAlgo_t algo;
};

static __typeof__(&cublasLtMatmul) lt_matmul;
static __typeof__(&cublasLtMatrixLayoutCreate) lt_layout;
static __typeof__(&cublasLtMatmulAlgoGetHeuristic) lt_find;
static cublasLtHandle_t handle;
static cublasLtMatmulDesc_t desc;
static cublasLtMatmulPreference_t pref;

static cublasLtMatrixLayout_t layouts[16];
static size_t n_layouts;

static cublasLtMatrixLayout_t layout(cudaDataType_t t, uint64_t rows, uint64_t cols, int64_t ld)
{
    cublasLtMatrixLayout_t *l = &layouts[n_layouts++];
    ck_assert_uint_le(n_layouts, sizeof(layouts) / sizeof(*layouts));
    ck_assert_int_eq(lt_layout(l, t, rows, cols, ld), CUBLAS_STATUS_SUCCESS);
    return *l;
}

static void layouts_done(void)
{
    __typeof__(&cublasLtMatrixLayoutDestroy) destroy;
    EMU_FIND(destroy, "cublasLtMatrixLayoutDestroy");
    while (n_layouts > 0)
        ck_assert_int_eq(destroy(layouts[--n_layouts]), CUBLAS_STATUS_SUCCESS);
}

static cublasStatus_t find(struct call *c)
{
    cublasLtMatmulHeuristicResult_t found;
    int n;
    cublasStatus_t s = lt_find(handle, desc, c->a, c->b, c->c, c->c, pref, 1, &found, &n);
    if (s == CUBLAS_STATUS_SUCCESS)
        c->algo = found.algo;
    return s;
}

static cublasStatus_t call(const struct call *c)
{
    const float one = 1, zero = 0;
    return lt_matmul(handle, desc, &one, c->w, c->a, c->x, c->b, &zero, c->y, c->c, c->y, c->c,
                     &c->algo, c->workspace, c->bytes, dev_s);
}

static struct call good_call(void)
{
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtMatmulDescCreate) new_desc;
    __typeof__(&cublasLtMatmulDescSetAttribute) set;
    __typeof__(&cublasLtMatmulPreferenceCreate) new_pref;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) prefer;
    const cublasOperation_t t = CUBLAS_OP_T;
    const uint64_t workspace = 4096;
    EMU_FIND(create, "cublasLtCreate");
    EMU_FIND(new_desc, "cublasLtMatmulDescCreate");
    EMU_FIND(set, "cublasLtMatmulDescSetAttribute");
    EMU_FIND(new_pref, "cublasLtMatmulPreferenceCreate");
    EMU_FIND(prefer, "cublasLtMatmulPreferenceSetAttribute");
    EMU_FIND(lt_matmul, "cublasLtMatmul");
    EMU_FIND(lt_layout, "cublasLtMatrixLayoutCreate");
    EMU_FIND(lt_find, "cublasLtMatmulAlgoGetHeuristic");
    ck_assert_int_eq(create(&handle), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(new_desc(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, 3), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof(t)), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(new_pref(&pref), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(
        prefer(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)),
        CUBLAS_STATUS_SUCCESS);
    struct call c = {.a = layout(CUDA_R_16BF, 32, 16, 32),
                     .b = layout(CUDA_R_16BF, 32, 12, 32),
                     .c = layout(CUDA_R_32F, 16, 12, 16),
                     .w = dev_new(16 * 32 * 2),
                     .x = dev_new(12 * 32 * 2),
                     .y = dev_new(12 * 16 * 4 + 16),
                     .workspace = dev_new(workspace),
                     .bytes = workspace};
    ck_assert_int_eq(find(&c), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(call(&c), CUBLAS_STATUS_SUCCESS);
    return c;
}

START_TEST(refuses)
{
    const struct call good = good_call();
    struct call c = good;
    c.bytes = 16; /* less workspace than the algorithm takes */
    ck_assert_int_eq(call(&c), CUBLAS_STATUS_INVALID_VALUE);
    c = good;
    c.algo.data[1]++; /* another shape's algorithm */
    ck_assert_int_eq(call(&c), CUBLAS_STATUS_INVALID_VALUE);
    c = good;
    c.b = layout(CUDA_R_16BF, 32, 11, 32); /* another number of rows */
    ck_assert_int_eq(call(&c), CUBLAS_STATUS_INVALID_VALUE);
    c = good;
    c.a = layout(CUDA_R_16BF, 32, 16, 24); /* columns that overlap */
    ck_assert_int_eq(find(&c), CUBLAS_STATUS_INVALID_VALUE);
    c = good;
    c.a = layout(CUDA_R_16BF, 16, 16, 32); /* other inputs than the activations' */
    ck_assert_int_eq(find(&c), CUBLAS_STATUS_INVALID_VALUE);
    c = good;
    c.a = layout(CUDA_R_16BF, 32, 16, 33); /* columns at odd addresses */
    ck_assert_int_eq(find(&c), CUBLAS_STATUS_NOT_SUPPORTED);
    c = good;
    c.b = layout(CUDA_R_16F, 32, 12, 32); /* two types */
    ck_assert_int_eq(find(&c), CUBLAS_STATUS_NOT_SUPPORTED);
    c = good;
    c.c = layout(CUDA_R_16BF, 16, 12, 16); /* no F32 results */
    ck_assert_int_eq(find(&c), CUBLAS_STATUS_NOT_SUPPORTED);
    dev_ok(dev->stream_wait(dev_s));
    layouts_done();
}
END_TEST

/* What a device would fault on ends the process. */
START_TEST(faults)
{
    struct call c = good_call();
    switch (_i) {
    case 0:
        c.y = (char *)c.y + 4; /* misaligned */
        break;
    case 1:
        c.x = (char *)c.x + 256; /* behind the end */
        break;
    case 2:
        c.workspace = (char *)c.workspace + 3840; /* the same of the workspace */
        break;
    case 3: {
        void *host = aligned_alloc(256, 1024);
        c.w = host;
        break;
    }
    }
    (void)call(&c);
}
END_TEST

int main(void)
{
    const char *dir = getenv("top_builddir");
    if (!getenv("DEDIT_CUDA_LIBRARY"))
        (void)snprintf(emulated, sizeof(emulated), "%s/libdedit-cuda-emu.so", dir ? dir : ".");
    Suite *s = suite_create("cuda-kernels-blas");
    TCase *t = test_case(s, "products");
    tcase_add_checked_fixture(t, open_all, dev_close);
    tcase_add_loop_test(t, within_the_bounds, 0, 9);
    tcase_add_test(t, sizes);
    tcase_add_loop_test(t, replayed, 0, 3);
    tcase_add_test(t, unplanned);
    if (*emulated) {
        t = test_case(s, "errors");
        tcase_add_checked_fixture(t, open_all, dev_close);
        tcase_add_test(t, without_the_library);
        tcase_add_test(t, every_call_fails);
        tcase_add_test(t, refuses);
        t = test_case(s, "faults");
        tcase_add_checked_fixture(t, open_all, NULL);
        tcase_add_loop_test_raise_signal(t, faults, SIGABRT, 0, 4);
    }
    return test_main(s);
}
