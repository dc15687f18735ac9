/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLASLt as blas.cu sees it, without a device: products in plain loops, put into streams like launches.
 * What the library would refuse is refused with its status: objects that are gone, attributes of a wrong
 * size, matrices whose shapes do not meet, columns closer than they are long, types without a product, an
 * algorithm that was found for another product, less workspace than that algorithm takes.  What a device
 * would fault on ends the process, as in kernels: memory that is not the device's, and pointers with less
 * alignment than was promised when the algorithm was asked for.
 *
 * Sums are as arbitrary as the library's: up to eight columns in one chain of additions, more in two halves
 * that meet in the workspace, so that a row's bits depend on the number of rows.
 */
#include "include/cublasLt.h"
#include "include/cuemu.h"

#include <cstring>
#include <set>

#include "emu.h"
#include "runner.h"

using namespace cuemu;

struct cublasLtContext {
    int unused;
};
struct emu_blas_desc {
    cublasOperation_t a, b;
    cudaDataType_t scale;
};
struct emu_blas_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct emu_blas_preference {
    uint64_t workspace;
    uint32_t reduction, align_c, align_d;
};

namespace
{
/* What is alive, of all kinds. */
std::set<const void *> objects;

template <class T> cublasStatus_t create(T **ret, T value)
{
    if (fails())
        return CUBLAS_STATUS_ALLOC_FAILED;
    *ret = new T(value);
    objects.insert(*ret);
    return CUBLAS_STATUS_SUCCESS;
}

/* What is destroyed is gone also where the call fails. */
template <class T> cublasStatus_t destroy(T *x)
{
    bool failed = fails();
    if (!objects.erase(x))
        return CUBLAS_STATUS_INVALID_VALUE;
    delete x;
    return failed ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

template <class T> bool set_value(T *to, const void *value, size_t n)
{
    if (!value || n != sizeof(*to))
        return false;
    memcpy(to, value, n);
    return true;
}

size_t size_of(cudaDataType_t t)
{
    return t == CUDA_R_32F ? 4 : 2;
}

bool is_matrix(const emu_blas_layout *l)
{
    return objects.count(l) && l->rows && l->cols && l->ld >= (int64_t)l->rows;
}

/* m x n outputs over k inputs. */
struct shape {
    emu_blas_layout a, b, c, d;
    cublasOperation_t op_a, op_b;
    uint64_t m, n, k;
};

cublasStatus_t shape_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d, shape *s)
{
    if (!objects.count(desc) || !is_matrix(a) || !is_matrix(b) || !is_matrix(c) || !is_matrix(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    *s = {*a, *b, *c, *d, desc->a, desc->b, 0, 0, 0};
    const bool ta = desc->a == CUBLAS_OP_T, tb = desc->b == CUBLAS_OP_T;
    s->m = ta ? a->cols : a->rows;
    s->k = ta ? a->rows : a->cols;
    s->n = tb ? b->rows : b->cols;
    if ((tb ? b->cols : b->rows) != s->k || c->rows != s->m || c->cols != s->n ||
        d->rows != s->m || d->cols != s->n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || c->type != CUDA_R_32F || d->type != CUDA_R_32F ||
        desc->scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    /* The tensor cores' kernels, which a layout with odd columns is shut out from, are wanted. */
    if (a->ld * size_of(a->type) % 16 || b->ld * size_of(b->type) % 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* What an algorithm was found for: eight words, all of which count. */
cublasLtMatmulAlgo_t algorithm(const shape &s, uint64_t workspace, uint32_t align_c,
                               uint32_t align_d)
{
    return {{s.m, s.n, s.k << 8 | (uint64_t)s.a.type << 4 | (uint64_t)s.op_a << 1 | s.op_b,
             (uint64_t)s.a.ld << 32 | (uint32_t)s.b.ld, (uint64_t)s.c.ld << 32 | (uint32_t)s.d.ld,
             workspace, (uint64_t)align_c << 32 | align_d, 0x756d65636c62u}};
}

float element(const void *p, cudaDataType_t t, size_t i)
{
    if (t == CUDA_R_32F)
        return static_cast<const float *>(p)[i];
    const uint16_t h = static_cast<const uint16_t *>(p)[i];
    if (t == CUDA_R_16F) {
        _Float16 f;
        memcpy(&f, &h, sizeof(f));
        return (float)f;
    }
    return __uint_as_float((unsigned)h << 16);
}

struct product {
    shape s;
    float alpha, beta;
    const void *a, *b;
    const float *c;
    float *d, *workspace; /* NULL: one chain */
};

size_t at(const emu_blas_layout &l, cublasOperation_t op, uint64_t row, uint64_t col)
{
    return op == CUBLAS_OP_T ? row * (size_t)l.ld + col : col * (size_t)l.ld + row;
}

float chain(const product &p, uint64_t m, uint64_t n, uint64_t k0, uint64_t k1)
{
    float sum = 0;
    for (uint64_t k = k0; k < k1; k++)
        sum += element(p.a, p.s.a.type, at(p.s.a, p.s.op_a, m, k)) *
               element(p.b, p.s.b.type, at(p.s.b, p.s.op_b, k, n));
    return sum;
}

void multiply(const product &p)
{
    const uint64_t half = p.workspace ? p.s.k / 2 : p.s.k;
    for (uint64_t n = 0; n < p.s.n; n++)
        for (uint64_t m = 0; m < p.s.m; m++) {
            float sum = chain(p, m, n, 0, half);
            if (p.workspace) {
                p.workspace[n * p.s.m + m] = chain(p, m, n, half, p.s.k);
                sum += p.workspace[n * p.s.m + m];
            }
            sum *= p.alpha;
            if (p.beta != 0)
                sum += p.beta * p.c[n * (size_t)p.s.c.ld + m];
            p.d[n * (size_t)p.s.d.ld + m] = sum;
        }
}

size_t extent(const emu_blas_layout &l)
{
    return ((l.cols - 1) * (size_t)l.ld + l.rows) * size_of(l.type);
}

void must_be(const char *what, const void *p, size_t n, size_t align)
{
    if (!check_is_device(p, n))
        fail("cublasLtMatmul: %s: %zu bytes at %p outside of device memory", what, n, p);
    if ((uintptr_t)p % align)
        fail("cublasLtMatmul: %s: misaligned pointer %p, %zu bytes were promised", what, p, align);
}
} // namespace

size_t cuemu::blas_objects()
{
    return objects.size();
}

extern "C" {
EMU_EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    held_runtime held;
    return create(h, cublasLtContext{0});
}

EMU_EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    held_runtime held;
    return destroy(h);
}

EMU_EXPORT size_t cublasLtGetVersion(void)
{
    const char *v = getenv("CUEMU_CUBLAS_VERSION");
    return v ? (size_t)atoi(v) : CUBLAS_VERSION;
}

EMU_EXPORT const char *cublasLtGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS (emulated)";
}

EMU_EXPORT const char *cublasLtGetStatusString(cublasStatus_t)
{
    return "emulated failure";
}

EMU_EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d,
                                                   cublasComputeType_t compute,
                                                   cudaDataType_t scale)
{
    held_runtime held;
    if (compute != CUBLAS_COMPUTE_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return create(d, emu_blas_desc{CUBLAS_OP_N, CUBLAS_OP_N, scale});
}

EMU_EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    held_runtime held;
    return destroy(d);
}

EMU_EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                                         cublasLtMatmulDescAttributes_t what,
                                                         const void *value, size_t n)
{
    held_runtime held;
    if (fails())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!objects.count(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    bool ok = set_value(what == CUBLASLT_MATMUL_DESC_TRANSA ? &d->a : &d->b, value, n);
    return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

EMU_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l,
                                                     cudaDataType_t type, uint64_t rows,
                                                     uint64_t cols, int64_t ld)
{
    held_runtime held;
    return create(l, emu_blas_layout{type, rows, cols, ld});
}

EMU_EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    held_runtime held;
    return destroy(l);
}

EMU_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    held_runtime held;
    return create(p, emu_blas_preference{0, 7, 256, 256});
}

EMU_EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    held_runtime held;
    return destroy(p);
}

EMU_EXPORT cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                     cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                     size_t n)
{
    held_runtime held;
    bool ok = false;
    if (fails())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!objects.count(p))
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        ok = set_value(&p->workspace, value, n);
        break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        ok = set_value(&p->reduction, value, n);
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        ok = set_value(&p->align_c, value, n);
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        ok = set_value(&p->align_d, value, n);
        break;
    }
    return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

EMU_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t p, int wanted, cublasLtMatmulHeuristicResult_t *results, int *found)
{
    held_runtime held;
    shape s;
    *found = 0;
    if (fails())
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!objects.count(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!objects.count(p) || wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t r = shape_of(desc, a, b, c, d, &s);
    if (r != CUBLAS_STATUS_SUCCESS)
        return r;
    /* Sums apart, where that is allowed and there is room for them. */
    const uint64_t parts = s.m * s.n * sizeof(float);
    const bool apart = s.n > 8 && p->reduction & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE &&
                       parts <= p->workspace;
    results[0] = {};
    results[0].algo = algorithm(s, apart ? parts : 0, p->align_c, p->align_d);
    results[0].workspaceSize = apart ? parts : 0;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

EMU_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc,
                                         const void *alpha, const void *A,
                                         cublasLtMatrixLayout_t a, const void *B,
                                         cublasLtMatrixLayout_t b, const void *beta, const void *C,
                                         cublasLtMatrixLayout_t c, void *D,
                                         cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                         void *workspace, size_t n, cudaStream_t stream)
{
    held_runtime held;
    product p = {};
    if (fails())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!objects.count(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!alpha || !beta || !algo)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t r = shape_of(desc, a, b, c, d, &p.s);
    if (r != CUBLAS_STATUS_SUCCESS)
        return r;
    const uint64_t parts = algo->data[5];
    const uint32_t align_c = (uint32_t)(algo->data[6] >> 32), align_d = (uint32_t)algo->data[6];
    const cublasLtMatmulAlgo_t want = algorithm(p.s, parts, align_c, align_d);
    if (memcmp(&want, algo, sizeof(want)) || n < parts || (parts && (uintptr_t)workspace % 256) ||
        (C == D && c->ld != d->ld))
        return CUBLAS_STATUS_INVALID_VALUE;
    must_be("A", A, extent(*a), 256);
    must_be("B", B, extent(*b), 256);
    must_be("C", C, extent(*c), align_c);
    must_be("D", D, extent(*d), align_d);
    if (parts)
        must_be("workspace", workspace, parts, 256);
    memcpy(&p.alpha, alpha, sizeof(p.alpha));
    memcpy(&p.beta, beta, sizeof(p.beta));
    p.a = A;
    p.b = B;
    p.c = static_cast<const float *>(C);
    p.d = static_cast<float *>(D);
    p.workspace = parts ? static_cast<float *>(workspace) : nullptr;
    return enqueue_host(stream, [p] { multiply(p); }) ? CUBLAS_STATUS_EXECUTION_FAILED
                                                      : CUBLAS_STATUS_SUCCESS;
}
}
