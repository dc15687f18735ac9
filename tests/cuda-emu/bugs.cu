/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that are right, and kernels that are wrong in one way each: proof that the runner executes
 * the ones and finds the others.  Run by test-emu.c, each case in a process of its own.
 */
#include "kernels/cuda/platform.cuh"
#include "tests/cuda-emu/emu.h"

#include <string.h>

#define FULL 0xffffffffu

/* ---- right ------------------------------------------------------------------------------------------- */

__global__ void reverse(float *o, int n)
{
    DCU_DYN_SHARED(float, s);
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        s[i] = (float)i;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        o[i] = s[n - 1 - i];
}

__global__ void sums(int *o)
{
    DCU_SHARED(int, part, 4);
    int v = (int)threadIdx.x, lane = v & 31;
    for (int m = 16; m; m /= 2)
        v += __shfl_xor_sync(FULL, v, m);
    int first = __shfl_sync(FULL, (int)threadIdx.x, 0), up = __shfl_up_sync(FULL, lane, 1);
    int down = __shfl_down_sync(FULL, lane, 1, 16), half = __shfl_sync(FULL, lane, 3, 16);
    unsigned odd = __ballot_sync(FULL, lane & 1);
    if (first != (int)threadIdx.x - lane || up != (lane ? lane - 1 : 0) || odd != 0xaaaaaaaau ||
        down != (lane % 16 == 15 ? lane : lane + 1) || half != (lane & 16) + 3)
        v = -1000000;
    if (lane == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0)
        o[blockIdx.x] = part[0] + part[1] + part[2] + part[3];
    atomicAdd(o + gridDim.x, 1);
}

/* Halves of a warp on their own ways, and threads that leave before a barrier. */
__global__ void parts(int *o)
{
    int lane = (int)threadIdx.x & 31, v = lane;
    if (lane < 16)
        for (int m = 8; m; m /= 2)
            v += __shfl_xor_sync(0xffffu, v, m);
    else
        for (int m = 4; m; m /= 2)
            v += __shfl_xor_sync(0xffff0000u, v, m);
    o[threadIdx.x] = v;
    if (threadIdx.x >= 32)
        return;
    __syncthreads();
    o[threadIdx.x] += 1;
}

/* C[16][8] = A[16][16] B[16][8]; the same in bytes with K = 32. */
__global__ void tile(const uint16_t *a, const uint16_t *b, float *c, const int8_t *a8,
                     const int8_t *b8, int *c8)
{
    unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
    uint32_t fa[4], fb[2];
    float acc[4] = {0, 0, 0, 0};
    int sum[4] = {1, 1, 1, 1};
    for (unsigned i = 0; i < 4; i++)
        memcpy(&fa[i], a + (g + 8 * (i & 1)) * 16 + 2 * t + 8 * (i >> 1), 4);
    for (unsigned i = 0; i < 2; i++)
        fb[i] = b[(2 * t + 8 * i) * 8 + g] | (uint32_t)b[(2 * t + 8 * i + 1) * 8 + g] << 16;
    dcu_mma_bf16(acc, fa, fb);
    for (unsigned i = 0; i < 4; i++)
        memcpy(&fa[i], a8 + (g + 8 * (i & 1)) * 32 + 4 * t + 16 * (i >> 1), 4);
    for (unsigned i = 0; i < 2; i++) {
        fb[i] = 0;
        for (unsigned k = 0; k < 4; k++)
            fb[i] |= (uint32_t)(uint8_t)b8[(4 * t + 16 * i + k) * 8 + g] << 8 * k;
    }
    dcu_mma_s8(sum, fa, fb);
    for (unsigned i = 0; i < 4; i++) {
        c[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = acc[i];
        c8[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = sum[i];
    }
}

__global__ void copy_async(const float4 *in, float4 *out)
{
    DCU_SHARED(float4, s, 64);
    dcu_cp_async16(&s[threadIdx.x], &in[threadIdx.x]);
    dcu_cp_async_commit();
    dcu_cp_async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = s[63 - threadIdx.x];
}

/* ---- wrong ------------------------------------------------------------------------------------------- */

__global__ void race(float *o)
{
    DCU_SHARED(float, s, 64);
    s[threadIdx.x] = (float)threadIdx.x; /* no barrier */
    __syncwarp();
    o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void race_in_warp(float *o)
{
    DCU_SHARED(float, s, 32);
    s[threadIdx.x] = 1;
    float v = __shfl_sync(FULL, 1.0f, 0); /* meets, but orders no memory */
    o[threadIdx.x] = s[31 - threadIdx.x] + v;
}
__global__ void race_again(float *o)
{
    DCU_SHARED(float, s, 64);
    for (int i = 0; i < 2; i++) {
        s[threadIdx.x] = (float)i;
        __syncthreads();
        o[threadIdx.x] = s[63 - threadIdx.x]; /* no barrier before the next store */
    }
}
__global__ void uninitialised(float *o)
{
    DCU_SHARED(float, s, 64);
    if (threadIdx.x < 63)
        s[threadIdx.x] = 1;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x];
}
__global__ void past_shared(float *o)
{
    DCU_SHARED(float, s, 64);
    s[threadIdx.x] = 1;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x + 1];
}
__global__ void past_global(float *o)
{
    o[threadIdx.x + 1] = 1;
}
__global__ void host_memory(const float *host, float *o)
{
    o[threadIdx.x] = host[threadIdx.x];
}
__global__ void divergent_barrier(float *o)
{
    if (threadIdx.x & 1)
        __syncthreads();
    else
        o[threadIdx.x] = 0;
    o[threadIdx.x] = 1;
    __syncthreads();
}
__global__ void divergent_shuffle(float *o)
{
    float v = 1;
    if (threadIdx.x & 1)
        v = __shfl_xor_sync(FULL, v, 2);
    else
        v = __shfl_xor_sync(FULL, v, 4);
    o[threadIdx.x] = v;
}
__global__ void exited_lane(float *o)
{
    if (threadIdx.x == 5)
        return;
    o[threadIdx.x] = __shfl_xor_sync(FULL, 1.0f, 1);
}
__global__ void outside_mask(float *o)
{
    if (threadIdx.x < 16)
        o[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
__global__ void misaligned(const float *in, float4 *out)
{
    out[threadIdx.x] = *reinterpret_cast<const float4 *>(in + threadIdx.x + 1);
}
__global__ void ones(float *o)
{
    o[threadIdx.x] = 1;
}
__global__ void more(const float *in, float *out)
{
    out[threadIdx.x] = in[threadIdx.x] + 1;
}
__global__ void idle(float *o)
{
    if (o == nullptr)
        return;
}

/* ---- host -------------------------------------------------------------------------------------------- */

static cudaStream_t stream;

template <class T> static T *device(size_t n)
{
    void *p = nullptr;
    cudaMalloc(&p, n * sizeof(T));
    return static_cast<T *>(p);
}
static void put(void *d, const void *h, size_t n)
{
    cudaMemcpyAsync(d, h, n, cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
}
static void get(void *h, const void *d, size_t n)
{
    cudaMemcpyAsync(h, d, n, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
}

static int run_reverse()
{
    const int n = 300;
    float h[n], *o = device<float>(n);
    if (DCU_LAUNCH(reverse, 1, 96, n * sizeof(float), stream, o, n))
        return 1;
    get(h, o, sizeof(h));
    for (int i = 0; i < n; i++)
        if (h[i] != (float)(n - 1 - i))
            return 2;
    return 0;
}

static int run_sums()
{
    int h[4] = {0, 0, 0, 0}, *o = device<int>(4);
    put(o, h, sizeof(h));
    if (DCU_LAUNCH(sums, 3, 128, 0, stream, o))
        return 1;
    get(h, o, sizeof(h));
    return h[0] == 127 * 64 && h[2] == h[0] && h[3] == 3 * 128 ? 0 : 2;
}

static int run_parts()
{
    int h[64], *o = device<int>(64);
    if (DCU_LAUNCH(parts, 1, 64, 0, stream, o))
        return 1;
    get(h, o, sizeof(h));
    return h[3] == 121 && h[16] == 16 + 17 + 18 + 19 + 20 + 21 + 22 + 23 + 1 && h[32] == 120 ? 0
                                                                                             : 2;
}

static int run_tile()
{
    uint16_t a[256], b[128];
    int8_t a8[512], b8[256];
    float c[128];
    int c8[128];
    for (int i = 0; i < 256; i++)
        a[i] = __float2bfloat16_rn((float)(i * 37 % 64 - 31) * 0.125f).x;
    for (int i = 0; i < 128; i++)
        b[i] = __float2bfloat16_rn((float)(i * 29 % 32 - 15) * 0.25f).x;
    for (int i = 0; i < 512; i++)
        a8[i] = (int8_t)(i * 73 % 256 - 128);
    for (int i = 0; i < 256; i++)
        b8[i] = (int8_t)(i * 91 % 256 - 128);
    uint16_t *da = device<uint16_t>(256), *db = device<uint16_t>(128);
    int8_t *da8 = device<int8_t>(512), *db8 = device<int8_t>(256);
    float *dc = device<float>(128);
    int *dc8 = device<int>(128);
    put(da, a, sizeof(a));
    put(db, b, sizeof(b));
    put(da8, a8, sizeof(a8));
    put(db8, b8, sizeof(b8));
    if (DCU_LAUNCH(tile, 1, 32, 0, stream, da, db, dc, da8, db8, dc8))
        return 1;
    get(c, dc, sizeof(c));
    get(c8, dc8, sizeof(c8));
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++) {
            float s = 0; /* exact: small multiples of 1 / 32 */
            int s8 = 1;
            for (int k = 0; k < 16; k++)
                s += __bfloat162float({a[m * 16 + k]}) * __bfloat162float({b[k * 8 + n]});
            for (int k = 0; k < 32; k++)
                s8 += a8[m * 32 + k] * b8[k * 8 + n];
            if (c[m * 8 + n] != s)
                return 2;
            if (c8[m * 8 + n] != s8)
                return 3;
        }
    return 0;
}

static int run_copy_async()
{
    float h[256], r[256];
    for (int i = 0; i < 256; i++)
        h[i] = (float)i;
    float4 *in = device<float4>(64), *out = device<float4>(64);
    put(in, h, sizeof(h));
    if (DCU_LAUNCH(copy_async, 1, 64, 0, stream, in, out))
        return 1;
    get(r, out, sizeof(r));
    for (int i = 0; i < 64; i++)
        if (r[4 * i + 1] != h[4 * (63 - i) + 1])
            return 2;
    return 0;
}

/* Two streams at the same memory, in order: by events, by waits of the host, by a graph between them. */
static int run_streams()
{
    float h[64], *o = device<float>(64), *p = device<float>(64), *q = device<float>(64);
    cudaStream_t t;
    cudaEvent_t e, f;
    cudaGraph_t g;
    cudaGraphExec_t x;
    cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, 0);
    cudaEventCreateWithFlags(&f, 0);
    cudaStreamBeginCapture(t, cudaStreamCaptureModeThreadLocal);
    if (DCU_LAUNCH(more, 1, 64, 0, t, o, p) || cudaStreamEndCapture(t, &g) != cudaSuccess ||
        cudaGraphInstantiate(&x, g, 0) != cudaSuccess)
        return 1;
    for (int i = 0; i < 2; i++) {
        if (DCU_LAUNCH(ones, 1, 64, 0, stream, o))
            return 2;
        cudaEventRecord(e, stream);
        cudaStreamWaitEvent(t, e, 0);
        cudaGraphLaunch(x, t);
        if (DCU_LAUNCH(more, 1, 64, 0, stream, o, q)) /* both read */
            return 3;
        if (i == 0) { /* by an event, then by the host */
            cudaEventRecord(f, t);
            cudaStreamWaitEvent(stream, f, 0);
        } else {
            cudaStreamSynchronize(t);
        }
        cudaMemsetAsync(o, 0, 64 * sizeof(float), stream);
        cudaEventRecord(f, stream);
        cudaEventSynchronize(f);
        cudaMemsetAsync(o, 0, 64 * sizeof(float), t);
        cudaStreamSynchronize(t);
    }
    get(h, p, sizeof(h));
    cudaGraphExecDestroy(x);
    cudaGraphDestroy(g);
    return h[5] == 2 ? 0 : 4;
}

/* ... and out of it: without an event, with one from before, with a wait from before. */
enum bug { NO_EVENT, OLD_EVENT, OLD_WAIT, KERNELS, READERS };
static int run_race(enum bug bug)
{
    float h[64], half[32], *o = device<float>(64), *p = device<float>(64);
    cudaStream_t t, u;
    cudaEvent_t e;
    cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&u, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, 0);
    if (bug == OLD_EVENT)
        cudaEventRecord(e, stream);
    if (bug == OLD_WAIT)
        cudaStreamSynchronize(stream);
    if (bug == KERNELS && DCU_LAUNCH(ones, 1, 64, 0, stream, o))
        return 1;
    if (bug != KERNELS)
        cudaMemsetAsync(o, 0, 64 * sizeof(float), stream);
    if (bug == OLD_EVENT)
        cudaStreamWaitEvent(t, e, 0);
    if (bug == READERS) { /* a third stream waits for one of two that read */
        cudaStreamSynchronize(stream);
        cudaMemcpyAsync(h, o, sizeof(h), cudaMemcpyDeviceToHost, stream);
        cudaMemcpyAsync(half, o, sizeof(half), cudaMemcpyDeviceToHost, t); /* not h: two stores */
        cudaEventRecord(e, stream);
        cudaStreamWaitEvent(u, e, 0);
        cudaMemsetAsync(o, 0, 64 * sizeof(float), u);
        cudaStreamSynchronize(t);
        return cudaStreamSynchronize(u) != cudaSuccess;
    }
    if (bug == KERNELS && DCU_LAUNCH(more, 1, 64, 0, t, o, p))
        return 2;
    if (bug != KERNELS)
        cudaMemcpyAsync(p, o, sizeof(h), cudaMemcpyDeviceToDevice, t);
    cudaStreamSynchronize(t);
    cudaStreamSynchronize(stream);
    return 0;
}

/* A launch that a device refuses: 0 when it was, and when the stream still works. */
static int refused(dim3 grid, dim3 block, size_t smem)
{
    float *o = device<float>(1);
    if (DCU_LAUNCH(idle, grid, block, smem, stream, o) == 0)
        return 1;
    return DCU_LAUNCH(idle, 1, 32, 0, stream, o) || cudaStreamSynchronize(stream) != cudaSuccess;
}

extern "C" __attribute__((visibility("default"))) int emu_case(const char *name)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    float *o = device<float>(64);
    float *host = static_cast<float *>(malloc(64 * sizeof(float)));
#define CASE(n, ...)                                                                               \
    if (strcmp(name, #n) == 0)                                                                     \
        return __VA_ARGS__;
#define BUG(kernel, threads, ...)                                                                  \
    CASE(kernel, DCU_LAUNCH(kernel, 1, threads, 0, stream, __VA_ARGS__) ||                         \
                     cudaStreamSynchronize(stream) != cudaSuccess)
    CASE(reverse, run_reverse())
    CASE(sums, run_sums())
    CASE(parts, run_parts())
    CASE(tile, run_tile())
    CASE(copy_async, run_copy_async())
    CASE(streams, run_streams())
    CASE(no_event, run_race(NO_EVENT))
    CASE(old_event, run_race(OLD_EVENT))
    CASE(old_wait, run_race(OLD_WAIT))
    CASE(kernels_without_event, run_race(KERNELS))
    CASE(one_of_two_readers, run_race(READERS))
    CASE(many_threads, refused(dim3(1), dim3(1025), 0))
    CASE(many_shared, refused(dim3(1), dim3(32), 164 << 10))
    CASE(wide_grid, refused(dim3(1, 65536), dim3(32), 0))
    CASE(empty_grid, refused(dim3(0), dim3(32), 0))
    BUG(race, 64, o)
    BUG(race_in_warp, 32, o)
    BUG(race_again, 64, o)
    BUG(uninitialised, 64, o)
    BUG(past_shared, 64, o)
    BUG(past_global, 64, o)
    BUG(host_memory, 64, host, o)
    BUG(divergent_barrier, 64, o)
    BUG(divergent_shuffle, 32, o)
    BUG(exited_lane, 32, o)
    BUG(outside_mask, 32, o)
    BUG(misaligned, 8, o, reinterpret_cast<float4 *>(device<float4>(8)))
    return 99;
}
