/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of weights in rows (DCU_LAYOUT_ROWS) by cuBLASLt.  Its library is opened when a model first
 * asks for it and never linked: a process without such a model does not load it.  Functions return 0, a
 * cudaError_t, DCU_BLAS_STATUS + a cublasStatus_t, or one of the codes below.
 *
 *   y[r][o] (+)= sum over k of W[o][k] x[r][k], accumulated as F32 in an order that cuBLASLt chooses; x as
 *   the form of the weights has it: F32, or rounded to BF16 or F16.   Error: kernels/README.md.
 *
 * The same weights, number of rows and place in the batch give the same bits in every run on one kind of
 * device and version of cuBLASLt; another number of rows may give others.
 */
#pragma once

#include "kernels/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Plain numbers above every cudaError_t. */
enum {
    DCU_BLAS_STATUS = 0x10000,  /* + cublasStatus_t */
    DCU_BLAS_LIBRARY = 0x20000, /* the library cannot be opened, or is another version */
    DCU_BLAS_BUILD,             /* this build has no cuBLASLt */
    DCU_BLAS_HOST_MEMORY,
    DCU_BLAS_UNPLANNED /* a product that dcu_blas_plan() was not told about */
};

/* Memory that sums of parts of a product go through; one product at a time. */
#define DCU_BLAS_WORKSPACE ((size_t)32 << 20)

struct dcu_blas; /* of one model, used by one thread at a time */

/* Opens the library, once: DEDIT_CUBLASLT_LIBRARY, else libcublasLt of the version that was built with,
 * where the system finds it or in the toolkit's folder.  Any thread. */
int dcu_blas_open(void);
/* workspace: device memory, 256-byte aligned, kept by the caller. */
int dcu_blas_new(struct dcu_blas **ret, void *workspace, size_t bytes);
int dcu_blas_free(struct dcu_blas *b); /* NULL: nothing */
/*
 * Settles the algorithms of products of mm's shape (type, n, k, ldy) for each of the sizes that up to
 * `most` rows are computed in (dcu_blas_rows), and enqueues each once, so that nothing is asked, loaded or
 * refused later: y gets numbers without meaning.  A shape that is known already costs nothing.
 */
int dcu_blas_plan(dcu_stream s, struct dcu_blas *b, const struct dcu_mm *mm,
                  const struct dcu_act *act, uint32_t most);
/*
 * Products that read the same act, one launch or more each; can be captured.  y has room for
 * dcu_blas_rows(rows, most) rows, of which those behind `rows` get numbers without meaning.
 */
int dcu_blas_matmul(dcu_stream s, struct dcu_blas *b, const struct dcu_mm *mm, unsigned n_mm,
                    const struct dcu_act *act, uint32_t rows);

/* Of codes from DCU_BLAS_STATUS on. */
const char *dcu_blas_error_name(int code);
const char *dcu_blas_error_text(int code);

#ifdef __cplusplus
}
#endif
