/* SPDX-License-Identifier: Apache-2.0 */
/* The table of libdedit-cuda.so (cuda_api.h): the CUDA runtime under its names, and the launchers. */
#include "kernels/cuda/cuda_api.h"
#include "kernels/cuda/platform.cuh"

#ifdef __CUEMU__
#define BUILT "emu"
#else
#ifndef DCU_BUILT
#define DCU_BUILT "nvcc"
#endif
#define BUILT DCU_BUILT
#endif

#include <string.h>

/* A failure stays the thread's last error until somebody asks: the next launch (platform.cuh), which is
 * told its own that way, would report it as its own. */
static int done(cudaError_t e)
{
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    return (int)e;
}

static int device_count(int *ret)
{
    return done(cudaGetDeviceCount(ret));
}

static int device_info(int device, struct dcu_device *ret)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess)
        return done(e);
    memset(ret, 0, sizeof(*ret));
    memcpy(ret->name, p.name, sizeof(ret->name) - 1);
    ret->memory = p.totalGlobalMem;
    ret->major = p.major;
    ret->minor = p.minor;
    ret->processors = (uint32_t)p.multiProcessorCount;
    return 0;
}

static int device_use(int device)
{
    return done(cudaSetDevice(device));
}

static int memory_free(size_t *ret)
{
    size_t total;
    return done(cudaMemGetInfo(ret, &total));
}

static void region(const void *p, size_t n)
{
#ifdef __CUEMU__
    emu_region(p, n);
#else
    (void)p;
    (void)n;
#endif
}

static int alloc(void **ret, size_t n)
{
    return done(cudaMalloc(ret, n));
}

static int release(void *p)
{
    return done(cudaFree(p));
}

static int host_alloc(void **ret, size_t n)
{
    return done(cudaHostAlloc(ret, n, cudaHostAllocDefault));
}

static int host_free(void *p)
{
    return done(cudaFreeHost(p));
}

static int copy_in(dcu_stream s, void *device, const void *host, size_t n)
{
    return n ? done(cudaMemcpyAsync(device, host, n, cudaMemcpyHostToDevice, s)) : 0;
}

static int copy_out(dcu_stream s, void *host, const void *device, size_t n)
{
    return n ? done(cudaMemcpyAsync(host, device, n, cudaMemcpyDeviceToHost, s)) : 0;
}

static int copy(dcu_stream s, void *to, const void *from, size_t n)
{
    return n ? done(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, s)) : 0;
}

static int fill(dcu_stream s, void *device, int byte, size_t n)
{
    return n ? done(cudaMemsetAsync(device, byte, n, s)) : 0;
}

static int stream_new(dcu_stream *ret)
{
    return done(cudaStreamCreateWithFlags(ret, cudaStreamNonBlocking));
}

static int stream_free(dcu_stream s)
{
    return done(cudaStreamDestroy(s));
}

static int stream_wait(dcu_stream s)
{
    return done(cudaStreamSynchronize(s));
}

static int event_new(dcu_event *ret, int timed)
{
    return done(cudaEventCreateWithFlags(ret, timed ? 0u : cudaEventDisableTiming));
}

static int event_free(dcu_event e)
{
    return done(cudaEventDestroy(e));
}

static int event_record(dcu_event e, dcu_stream s)
{
    return done(cudaEventRecord(e, s));
}

static int event_wait(dcu_event e)
{
    return done(cudaEventSynchronize(e));
}

static int event_order(dcu_stream s, dcu_event e)
{
    return done(cudaStreamWaitEvent(s, e, 0));
}

static int event_ms(dcu_event from, dcu_event to, float *ret)
{
    return done(cudaEventElapsedTime(ret, from, to));
}

static int capture_begin(dcu_stream s)
{
    return done(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
}

static int capture_end(dcu_stream s, dcu_graph *ret)
{
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;
    cudaError_t e = cudaStreamEndCapture(s, &g);
    if (e != cudaSuccess)
        return done(e);
    e = cudaGraphInstantiate(&x, g, 0);
    cudaError_t e2 = cudaGraphDestroy(g);
    if (e == cudaSuccess && e2 != cudaSuccess) {
        (void)cudaGraphExecDestroy(x);
        return done(e2);
    }
    if (e == cudaSuccess)
        *ret = x;
    return done(e);
}

static int graph_launch(dcu_graph g, dcu_stream s)
{
    return done(cudaGraphLaunch(g, s));
}

static int graph_free(dcu_graph g)
{
    return done(cudaGraphExecDestroy(g));
}

static const char *name_of(int code)
{
    if (code >= DCU_BLAS_STATUS)
        return dcu_blas_error_name(code);
    return cudaGetErrorName((cudaError_t)code);
}

static const char *text_of(int code)
{
    if (code >= DCU_BLAS_STATUS)
        return dcu_blas_error_text(code);
    return cudaGetErrorString((cudaError_t)code);
}

/* A launcher that a build leaves out is NULL in the table. */
#define DCU_WEAK(name, types) extern "C" int dcu_##name types __attribute__((weak));
DCU_LAUNCHERS(DCU_WEAK)
#undef DCU_WEAK

extern "C" __attribute__((visibility("default"))) const struct dcu_api *dedit_cuda_api(void)
{
    static struct dcu_api api;
    api.version = DCU_API_VERSION;
    api.bytes = (uint32_t)sizeof(api);
    api.built = BUILT;
    api.device_count = device_count;
    api.device_info = device_info;
    api.device_use = device_use;
    api.memory_free = memory_free;
    api.region = region;
    api.alloc = alloc;
    api.free = release;
    api.host_alloc = host_alloc;
    api.host_free = host_free;
    api.copy_in = copy_in;
    api.copy_out = copy_out;
    api.copy = copy;
    api.fill = fill;
    api.stream_new = stream_new;
    api.stream_free = stream_free;
    api.stream_wait = stream_wait;
    api.event_new = event_new;
    api.event_free = event_free;
    api.event_record = event_record;
    api.event_wait = event_wait;
    api.event_order = event_order;
    api.event_ms = event_ms;
    api.capture_begin = capture_begin;
    api.capture_end = capture_end;
    api.graph_launch = graph_launch;
    api.graph_free = graph_free;
    api.blas_open = dcu_blas_open;
    api.blas_new = dcu_blas_new;
    api.blas_free = dcu_blas_free;
    api.blas_plan = dcu_blas_plan;
    api.blas_matmul = dcu_blas_matmul;
    api.error_name = name_of;
    api.error_text = text_of;
#define DCU_FILL(name, types) api.name = dcu_##name;
    DCU_LAUNCHERS(DCU_FILL)
#undef DCU_FILL
    return &api;
}
