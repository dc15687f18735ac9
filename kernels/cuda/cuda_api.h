/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one symbol of libdedit-cuda.so: a table of the device's calls and of the kernels' launchers.  The
 * library knows nothing of the engine and the engine nothing of CUDA's headers.  It is opened when a
 * configuration names a device, so that a machine without a driver runs the same program.
 *
 * All functions return 0 or a cudaError_t (blas_...: or a code of blas.h); dcu_error() makes an error object
 * of it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUevent_st *dcu_event;
typedef struct CUgraphExec_st *dcu_graph;

struct dcu_device {
    char name[64];
    uint64_t memory; /* bytes */
    int major, minor;
    uint32_t processors;
};

#define DCU_API_VERSION 4u
struct dcu_api {
    uint32_t version;
    uint32_t bytes;    /* of this struct: a check of the builds */
    const char *built; /* "sm_80 ...", or "emu" */

    int (*device_count)(int *ret);
    int (*device_info)(int device, struct dcu_device *ret);
    int (*device_use)(int device); /* for the calling thread */
    int (*memory_free)(size_t *ret);
    /* Names a part of an allocation, for the checks of the emulated device; else nothing. */
    void (*region)(const void *p, size_t n);

    int (*alloc)(void **ret, size_t n);
    int (*free)(void *p);
    int (*host_alloc)(void **ret, size_t n); /* pinned */
    int (*host_free)(void *p);
    /* In the order of the stream; host memory is pinned and stays as it is until the copy is done. */
    int (*copy_in)(dcu_stream s, void *device, const void *host, size_t n);
    int (*copy_out)(dcu_stream s, void *host, const void *device, size_t n);
    int (*copy)(dcu_stream s, void *to, const void *from, size_t n);
    int (*fill)(dcu_stream s, void *device, int byte, size_t n);

    int (*stream_new)(dcu_stream *ret);
    int (*stream_free)(dcu_stream s);
    int (*stream_wait)(dcu_stream s); /* the host waits for all of it */
    int (*event_new)(dcu_event *ret, int timed);
    int (*event_free)(dcu_event e);
    int (*event_record)(dcu_event e, dcu_stream s);
    int (*event_wait)(dcu_event e);                /* the host waits */
    int (*event_order)(dcu_stream s, dcu_event e); /* the stream waits */
    int (*event_ms)(dcu_event from, dcu_event to, float *ret);

    /* Between the two, what goes to s is recorded and not run. */
    int (*capture_begin)(dcu_stream s);
    int (*capture_end)(dcu_stream s, dcu_graph *ret);
    int (*graph_launch)(dcu_graph g, dcu_stream s);
    int (*graph_free)(dcu_graph g);

    /* Products of weights in rows: dcu_blas_... of blas.h. */
    int (*blas_open)(void);
    int (*blas_new)(struct dcu_blas **ret, void *workspace, size_t bytes);
    int (*blas_free)(struct dcu_blas *b);
    int (*blas_plan)(dcu_stream s, struct dcu_blas *b, const struct dcu_mm *mm,
                     const struct dcu_act *act, uint32_t most);
    int (*blas_matmul)(dcu_stream s, struct dcu_blas *b, const struct dcu_mm *mm, unsigned n_mm,
                       const struct dcu_act *act, uint32_t rows);

    const char *(*error_name)(int code);
    const char *(*error_text)(int code);

#define DCU_MEMBER(name, types) int(*name) types;
    DCU_LAUNCHERS(DCU_MEMBER)
#undef DCU_MEMBER
};

/* What the library exports. */
#define DCU_ENTRY "dedit_cuda_api"
typedef const struct dcu_api *(*dcu_api_entry)(void);

#ifdef __cplusplus
}
#endif
