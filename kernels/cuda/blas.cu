/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products by cuBLASLt (blas.h).  In its words, column by column: D = A^T B (+ C in place), A the weights
 * as k x n, B the activations as k x rows, D the results as n x rows; k is padded to 16 with zeros on
 * both sides, so that every column begins on a multiple of 32 bytes.
 *
 * Rows are rounded up to few sizes (dcu_blas_rows), and the heuristics are asked once for each: the same
 * product is always the same kernel on the same shape.  Parts of k may be summed apart, in workspace and
 * in order; sums in the results' own memory are not allowed, since their order is that of arrival.
 *
 * F16: the results stand for y * 2^e of each row.  What is there is scaled up before an addition and all of
 * it down afterwards, both exact; blocks of rows with e = 0 exit at once.
 *
 *   scale    y[r][o] *= s[r], or /= s[r]; blocks of 256 threads, (row, piece of 1,024); bytes of y twice
 *
 * The one lock is around opening the library; a struct dcu_blas belongs to its model's thread.
 */
#include "kernels/cuda/blas.h"
#include "kernels/cuda/common.cuh"

#define THREADS 256u
#define PIECE   1024u

#if !__has_include(<cublasLt.h>) && !defined(DCU_NO_CUBLASLT)
#define DCU_NO_CUBLASLT
#endif

#ifndef DCU_NO_CUBLASLT

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF(x) TEXT_AS_IS(x)
#define TEXT_AS_IS(x) #x
#define LIBRARY    "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)
#define MAX_SIZES  64u
#define MAX_PLANS  16u /* shapes of a model */

/* The numbers that the emulated library of the tests answers to are the real ones. */
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLAS_OP_T == 1 && CUBLAS_COMPUTE_32F == 68,
              "cublasLt.h: operations");
static_assert(CUDA_R_32F == 0 && CUDA_R_16F == 2 && CUDA_R_16BF == 14, "cublasLt.h: types");
static_assert(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1 &&
                  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK == 3 &&
                  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == 7 &&
                  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == 8 &&
                  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == 2,
              "cublasLt.h: preferences");
static_assert(sizeof(cublasLtMatmulAlgo_t) == 64 && sizeof(cublasLtMatmulHeuristicResult_t) == 96,
              "cublasLt.h: results");
static_assert(CUBLAS_STATUS_SUCCESS == 0 && CUBLAS_STATUS_NOT_SUPPORTED == 15,
              "cublasLt.h: statuses");

#define CALLS(X)                                                                                   \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetVersion)                                                                                  \
    X(GetStatusName)                                                                               \
    X(GetStatusString)                                                                             \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(Matmul)

/* The functions of the library; all of them or none. */
#define CALL_MEMBER(name) decltype(&cublasLt##name) name;
static struct {
    CALLS(CALL_MEMBER)
} lt;
#undef CALL_MEMBER
static bool opened;
static char problem[512]; /* why it is not */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int status_of(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS ? 0 : DCU_BLAS_STATUS + (int)s;
}

#define LT_DO(call)                                                                                \
    do {                                                                                           \
        int lt_r_ = status_of(lt.call);                                                            \
        if (lt_r_)                                                                                 \
            return lt_r_;                                                                          \
    } while (0)

/* ---- the library ------------------------------------------------------------------------------------ */

static void *find_library()
{
    const char *named = getenv("DEDIT_CUBLASLT_LIBRARY");
    void *h = dlopen(named && *named ? named : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!h)
        snprintf(problem, sizeof(problem), "%s", dlerror());
#ifdef DCU_CUBLASLT_DIR
    if (!h && !(named && *named))
        h = dlopen(DCU_CUBLASLT_DIR "/" LIBRARY, RTLD_NOW | RTLD_LOCAL);
#endif
    return h;
}

static int open_library()
{
    if (opened)
        return 0;
    void *h = find_library();
    if (!h)
        return DCU_BLAS_LIBRARY;
    const char *missing = nullptr;
#define CALL_FIND(name)                                                                            \
    lt.name = (decltype(lt.name))dlsym(h, "cublasLt" #name);                                       \
    if (!lt.name)                                                                                  \
        missing = "cublasLt" #name;
    CALLS(CALL_FIND)
#undef CALL_FIND
    if (missing)
        snprintf(problem, sizeof(problem), "libcublasLt has no %s", missing);
    else if (lt.GetVersion() / 10000 != CUBLAS_VER_MAJOR)
        snprintf(problem, sizeof(problem), "libcublasLt is version %zu.%zu, %d is needed",
                 lt.GetVersion() / 10000, lt.GetVersion() / 100 % 100, CUBLAS_VER_MAJOR);
    else
        opened = true;
    if (!opened)
        dlclose(h);
    return opened ? 0 : DCU_BLAS_LIBRARY;
}

extern "C" int dcu_blas_open(void)
{
    pthread_mutex_lock(&opening);
    int r = open_library();
    pthread_mutex_unlock(&opening);
    return r;
}

extern "C" const char *dcu_blas_error_name(int code)
{
    if (code < DCU_BLAS_LIBRARY)
        return lt.GetStatusName((cublasStatus_t)(code - DCU_BLAS_STATUS));
    return "cuBLASLt";
}

extern "C" const char *dcu_blas_error_text(int code)
{
    switch (code) {
    case DCU_BLAS_LIBRARY:
        return problem;
    case DCU_BLAS_HOST_MEMORY:
        return "out of memory";
    case DCU_BLAS_UNPLANNED:
        return "a product of a shape that was not planned";
    default:
        return lt.GetStatusString((cublasStatus_t)(code - DCU_BLAS_STATUS));
    }
}

/* ---- plans ------------------------------------------------------------------------------------------ */

/* A shape for so many rows. */
struct blas_size {
    uint32_t rows;
    cublasLtMatrixLayout_t b, d;
    cublasLtMatmulAlgo_t algo;
};
struct blas_plan {
    enum dk_type type;
    uint32_t n, k;
    size_t ldy;
    cublasLtMatrixLayout_t a;
    struct blas_size sizes[MAX_SIZES]; /* rows ascending */
    unsigned n_sizes;
};
struct dcu_blas {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t pref;
    void *workspace;
    size_t bytes;
    struct blas_plan *plans[MAX_PLANS];
    unsigned n_plans;
};

static cudaDataType_t type_of(enum dk_type t)
{
    return t == DK_F32 ? CUDA_R_32F : t == DK_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

template <class T> static int prefer(dcu_blas *b, cublasLtMatmulPreferenceAttributes_t what, T value)
{
    return status_of(lt.MatmulPreferenceSetAttribute(b->pref, what, &value, sizeof(value)));
}

static int make(dcu_blas *b)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    LT_DO(Create(&b->handle));
    LT_DO(MatmulDescCreate(&b->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_DO(MatmulDescSetAttribute(b->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                 sizeof(transposed)));
    LT_DO(MatmulPreferenceCreate(&b->pref));
    int r = prefer<uint64_t>(b, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, b->bytes);
    if (!r)
        r = prefer<uint32_t>(b, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                             CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    /* Weights and activations begin on 256 bytes, which is assumed; results may be any caller's. */
    if (!r)
        r = prefer<uint32_t>(b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 16);
    if (!r)
        r = prefer<uint32_t>(b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 16);
    return r;
}

static void keep_first(int *r, cublasStatus_t s)
{
    if (!*r)
        *r = status_of(s);
}

static void free_plan(struct blas_plan *p, int *r)
{
    for (unsigned i = 0; i < p->n_sizes; i++) {
        if (p->sizes[i].b)
            keep_first(r, lt.MatrixLayoutDestroy(p->sizes[i].b));
        if (p->sizes[i].d)
            keep_first(r, lt.MatrixLayoutDestroy(p->sizes[i].d));
    }
    if (p->a)
        keep_first(r, lt.MatrixLayoutDestroy(p->a));
    free(p);
}

/* All of it goes, whatever fails; the first failure is told. */
extern "C" int dcu_blas_free(struct dcu_blas *b)
{
    int r = 0;
    if (!b)
        return 0;
    while (b->n_plans)
        free_plan(b->plans[--b->n_plans], &r);
    if (b->pref)
        keep_first(&r, lt.MatmulPreferenceDestroy(b->pref));
    if (b->desc)
        keep_first(&r, lt.MatmulDescDestroy(b->desc));
    if (b->handle)
        keep_first(&r, lt.Destroy(b->handle));
    free(b);
    return r;
}

extern "C" int dcu_blas_new(struct dcu_blas **ret, void *workspace, size_t bytes)
{
    int r = dcu_blas_open();
    if (r)
        return r;
    dcu_blas *b = (dcu_blas *)calloc(1, sizeof(*b));
    if (!b)
        return DCU_BLAS_HOST_MEMORY;
    b->workspace = workspace;
    b->bytes = bytes;
    r = make(b);
    if (r) {
        (void)dcu_blas_free(b);
        return r;
    }
    *ret = b;
    return 0;
}

static struct blas_plan *find(const dcu_blas *b, const struct dcu_mm *mm)
{
    for (unsigned i = 0; i < b->n_plans; i++) {
        struct blas_plan *p = b->plans[i];
        if (p->type == mm->w.type && p->n == mm->w.n && p->k == mm->w.k && p->ldy == mm->ldy)
            return p;
    }
    return nullptr;
}

/* One more size of p, and its algorithm. */
static int add_size(dcu_blas *b, struct blas_plan *p, uint32_t rows)
{
    const size_t kp = dcu_up(p->k, 16);
    struct blas_size *z = &p->sizes[p->n_sizes++];
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    z->rows = rows;
    LT_DO(MatrixLayoutCreate(&z->b, type_of(p->type), kp, rows, (int64_t)kp));
    LT_DO(MatrixLayoutCreate(&z->d, CUDA_R_32F, p->n, rows, (int64_t)p->ldy));
    LT_DO(MatmulAlgoGetHeuristic(b->handle, b->desc, p->a, z->b, z->d, z->d, b->pref, 1, &found,
                                 &n));
    if (n < 1)
        return DCU_BLAS_STATUS + CUBLAS_STATUS_NOT_SUPPORTED;
    z->algo = found.algo;
    return status_of(found.state);
}

static int run(dcu_stream s, dcu_blas *b, const struct blas_plan *p, const struct dcu_mm *mm,
               const struct dcu_act *act, uint32_t rows);

static int fill_plan(dcu_stream s, dcu_blas *b, struct blas_plan *p, const struct dcu_mm *mm,
                     const struct dcu_act *act, uint32_t most)
{
    const size_t kp = dcu_up(p->k, 16);
    LT_DO(MatrixLayoutCreate(&p->a, type_of(p->type), kp, p->n, (int64_t)kp));
    for (uint32_t rows = 1; rows <= most; rows++) {
        rows = dcu_blas_rows(rows, most);
        int r = p->n_sizes < MAX_SIZES ? add_size(b, p, rows) : DCU_BLAS_UNPLANNED;
        if (!r)
            r = run(s, b, p, mm, act, rows);
        if (r)
            return r;
    }
    return 0;
}

extern "C" int dcu_blas_plan(dcu_stream s, struct dcu_blas *b, const struct dcu_mm *mm,
                             const struct dcu_act *act, uint32_t most)
{
    if (find(b, mm))
        return 0;
    if (b->n_plans == MAX_PLANS)
        return DCU_BLAS_UNPLANNED;
    struct blas_plan *p = (struct blas_plan *)calloc(1, sizeof(*p));
    if (!p)
        return DCU_BLAS_HOST_MEMORY;
    p->type = mm->w.type;
    p->n = mm->w.n;
    p->k = mm->w.k;
    p->ldy = mm->ldy;
    int r = fill_plan(s, b, p, mm, act, most), ignored = 0;
    if (r)
        free_plan(p, &ignored);
    else
        b->plans[b->n_plans++] = p;
    return r;
}
#endif /* cuBLASLt */

/* ---- running ---------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(256)
    dcu_scale_kernel(float *y, size_t ldy, uint32_t n, const float *scales, bool invert)
{
    const uint32_t end = dcu_min((blockIdx.y + 1) * PIECE, n);
    const float s = scales[blockIdx.x];
    if (s == 1.0f)
        return;
    const float by = invert ? 1.0f / s : s;
    for (uint32_t i = blockIdx.y * PIECE + threadIdx.x; i < end; i += THREADS)
        y[blockIdx.x * ldy + i] *= by;
}

#ifndef DCU_NO_CUBLASLT
static int scale(dcu_stream s, const struct dcu_mm *mm, const float *scales, uint32_t rows,
                 bool invert)
{
    return DCU_LAUNCH(dcu_scale_kernel, dim3(rows, (mm->w.n + PIECE - 1) / PIECE), THREADS, 0, s,
                      mm->y, mm->ldy, mm->w.n, scales, invert);
}

static int run(dcu_stream s, dcu_blas *b, const struct blas_plan *p, const struct dcu_mm *mm,
               const struct dcu_act *act, uint32_t rows)
{
    const unsigned char *mem = (const unsigned char *)act->mem;
    const unsigned form = p->type == DK_F32   ? DCU_FORM_F32
                          : p->type == DK_F16 ? DCU_FORM_ROW_F16
                                              : DCU_FORM_ROW_BF16;
    const void *x = mem + dcu_form_at(act, form);
    const bool scaled = p->type == DK_F16, add = mm->flags & DK_MM_ADD;
    const float *scales = (const float *)(mem + (scaled ? dcu_row_f16_scales_at(act) : 0));
    const float one = 1, zero = 0;
    const struct blas_size *z = p->sizes;
    const struct blas_size *end = z + p->n_sizes;
    while (z < end && z->rows < rows)
        z++;
    if (z == end)
        return DCU_BLAS_UNPLANNED;
    int r = scaled && add ? scale(s, mm, scales, rows, true) : 0;
    if (r)
        return r;
    LT_DO(Matmul(b->handle, b->desc, &one, mm->w.data, p->a, x, z->b, add ? &one : &zero, mm->y,
                 z->d, mm->y, z->d, &z->algo, b->workspace, b->bytes, s));
    return scaled ? scale(s, mm, scales, rows, false) : 0;
}

extern "C" int dcu_blas_matmul(dcu_stream s, struct dcu_blas *b, const struct dcu_mm *mm,
                               unsigned n_mm, const struct dcu_act *act, uint32_t rows)
{
    int r = 0;
    for (unsigned i = 0; i < n_mm && rows && !r; i++) {
        const struct blas_plan *p = find(b, &mm[i]);
        r = p ? run(s, b, p, &mm[i], act, rows) : DCU_BLAS_UNPLANNED;
    }
    return r;
}

#else /* the toolkit has no cublasLt.h */

extern "C" int dcu_blas_open(void)
{
    return DCU_BLAS_BUILD;
}

extern "C" int dcu_blas_new(struct dcu_blas **, void *, size_t)
{
    return DCU_BLAS_BUILD;
}

extern "C" int dcu_blas_free(struct dcu_blas *)
{
    return 0;
}

extern "C" int dcu_blas_plan(dcu_stream, struct dcu_blas *, const struct dcu_mm *,
                             const struct dcu_act *, uint32_t)
{
    return DCU_BLAS_BUILD;
}

extern "C" int dcu_blas_matmul(dcu_stream, struct dcu_blas *, const struct dcu_mm *, unsigned,
                               const struct dcu_act *, uint32_t)
{
    return DCU_BLAS_BUILD;
}

extern "C" const char *dcu_blas_error_name(int)
{
    return "cuBLASLt";
}

extern "C" const char *dcu_blas_error_text(int)
{
    return "libdedit-cuda.so was built without cuBLASLt";
}
#endif
