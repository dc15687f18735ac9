/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device side of the runner: what a .cu file sees instead of the CUDA headers when g++ compiles it
 * for the CPU.  Every CUDA thread is a fibre; blocks run one after another; a barrier or a warp
 * operation hands over to the next fibre.  One launch runs at a time (shim.cc holds a lock), so the
 * state is plain globals.
 *
 * What is checked: launch limits, shared-memory size, barriers and warp operations that only a part
 * of their threads reaches or that threads reach at different places, lanes that have exited.  Every
 * load and store goes through check.cc as well (see there).  A finding ends the process by abort()
 * after one line that begins with "cuemu:".
 */
#pragma once

#define __CUEMU__ 1
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "vector_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__   static
#define __restrict__ __restrict
#define __forceinline__ inline
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

struct CUstream_st;
extern "C" void emu_region(const void *p, size_t n); /* emu.h */

namespace cuemu
{
/* Code that is part of the runner, not of a kernel. */
#define CUEMU_RUNNER __attribute__((no_sanitize("thread"), noinline))

struct thread {
    uint3 tid;
    unsigned linear;
    unsigned parity; /* which part of its exchange slot was used last */
};
extern thread *self; /* NULL outside kernels */
extern uint3 block_index;
extern dim3 block_dim, grid_dim;

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void block_barrier(const char *file, int line);
int block_barrier_count(int predicate, const char *file, int line);
void warp_barrier(unsigned mask, const char *what, const char *file, int line);
void fence();
/* Leaves value for the other lanes; then, once all lanes of mask have, reads lane's. */
void exchange(unsigned mask, const void *value, size_t size, const char *file, int line);
const void *exchanged(unsigned lane);
unsigned ballot(unsigned mask, bool p, const char *file, int line);
unsigned active_lanes();
void *dynamic_shared();
void *shared_variable(const char *file, int line, const char *name, size_t size, size_t align);
void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line);
void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line);
void mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line);
void cp_async16(void *shared, const void *global);
void cp_async_commit();
void cp_async_wait(int n);
/* Tells check.cc that this access is atomic; data races with other atomics are none. */
void atomic_access(const void *p, size_t size);

/* A kernel and its arguments, copied when it was launched. */
struct closure {
    void (*call)(const void *self);
    void (*destroy)(void *self);
    void *self;
    size_t bytes;
};
/* Appends a launch to a stream (or to the graph that captures it); takes c. */
int enqueue_launch(const char *name, dim3 grid, dim3 block, size_t smem, CUstream_st *stream,
                   closure c);

template <class F, class... A>
int enqueue(const char *name, dim3 grid, dim3 block, size_t smem, CUstream_st *stream, F f, A... a)
{
    struct call {
        F f;
        std::tuple<A...> args;
    };
    return enqueue_launch(name, grid, block, smem, stream,
                          {[](const void *p) {
                               const call *c = static_cast<const call *>(p);
                               std::apply(c->f, c->args);
                           },
                           [](void *p) { delete static_cast<call *>(p); },
                           new call{f, std::tuple<A...>(a...)}, sizeof(call)});
}

template <class T>
T shuffle(unsigned mask, T v, unsigned from, bool valid, const char *file, int line)
{
    T r = v;
    exchange(mask, &v, sizeof(T), file, line);
    if (valid && !(mask >> from & 1))
        fail("%s:%d: lane %u reads lane %u, which is not in the mask %08x", file, line,
             self->linear & 31, from, mask);
    if (valid)
        memcpy(&r, exchanged(from), sizeof(T));
    return r;
}

/* The lanes of a shuffle: sections of `width` lanes. */
template <class T> T shuffle_idx(unsigned m, T v, int lane, int w, const char *f, int l)
{
    unsigned me = self->linear & 31, base = me & ~(unsigned)(w - 1);
    return shuffle(m, v, base + ((unsigned)lane & (unsigned)(w - 1)), true, f, l);
}
template <class T> T shuffle_xor(unsigned m, T v, int x, int w, const char *f, int l)
{
    unsigned me = self->linear & 31, from = me ^ (unsigned)x;
    return shuffle(m, v, from & 31, from / (unsigned)w <= me / (unsigned)w, f, l);
}
template <class T> T shuffle_down(unsigned m, T v, unsigned d, int w, const char *f, int l)
{
    unsigned me = self->linear & 31, from = me + d;
    return shuffle(m, v, from & 31, from / (unsigned)w == me / (unsigned)w, f, l);
}
template <class T> T shuffle_up(unsigned m, T v, unsigned d, int w, const char *f, int l)
{
    unsigned me = self->linear & 31;
    return shuffle(m, v, (me - d) & 31, me % (unsigned)w >= d, f, l);
}
} // namespace cuemu

#define threadIdx              (cuemu::self->tid)
#define blockIdx               (cuemu::block_index)
#define blockDim               (cuemu::block_dim)
#define gridDim                (cuemu::grid_dim)
#define warpSize               32

#define __syncthreads()        cuemu::block_barrier(__FILE__, __LINE__)
#define __syncthreads_count(p) cuemu::block_barrier_count((p), __FILE__, __LINE__)
#define __syncthreads_or(p)    (cuemu::block_barrier_count((p), __FILE__, __LINE__) != 0)
#define __syncwarp(...)                                                                            \
    cuemu::warp_barrier(CUEMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 0xffffffffu), "__syncwarp",         \
                        __FILE__, __LINE__)
#define CUEMU_FIRST(m, ...) (m)
#define __shfl_sync(m, v, s, ...)                                                                  \
    cuemu::shuffle_idx((m), (v), (s), CUEMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 32), __FILE__,        \
                       __LINE__)
#define __shfl_xor_sync(m, v, s, ...)                                                              \
    cuemu::shuffle_xor((m), (v), (s), CUEMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 32), __FILE__,        \
                       __LINE__)
#define __shfl_down_sync(m, v, s, ...)                                                             \
    cuemu::shuffle_down((m), (v), (s), CUEMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 32), __FILE__,       \
                        __LINE__)
#define __shfl_up_sync(m, v, s, ...)                                                               \
    cuemu::shuffle_up((m), (v), (s), CUEMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 32), __FILE__, __LINE__)
#define __ballot_sync(m, p) cuemu::ballot((m), (p) != 0, __FILE__, __LINE__)
#define __any_sync(m, p)    (cuemu::ballot((m), (p) != 0, __FILE__, __LINE__) != 0)
#define __all_sync(m, p)    (cuemu::ballot((m), (p) == 0, __FILE__, __LINE__) == 0)
#define __activemask()      cuemu::active_lanes()

static inline void __threadfence()
{
    cuemu::fence();
}
static inline void __threadfence_block()
{
    cuemu::fence();
}

/* ---- arithmetic: IEEE binary32, one rounding each; compiled with -ffp-contract=off ----------------- */

static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
static inline float __fsqrt_rn(float a)
{
    return __builtin_sqrtf(a);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
#define __expf cuemu_expf
#define __logf cuemu_logf
static inline float cuemu_expf(float a)
{
    return expf(a);
}
static inline float cuemu_logf(float a)
{
    return logf(a);
}
static inline float rsqrtf(float a)
{
    return 1.0f / __builtin_sqrtf(a);
}
static inline double __fma_rn(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}
static inline int __float_as_int(float f)
{
    int i;
    memcpy(&i, &f, 4);
    return i;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned i;
    memcpy(&i, &f, 4);
    return i;
}
static inline float __int_as_float(int i)
{
    float f;
    memcpy(&f, &i, 4);
    return f;
}
static inline float __uint_as_float(unsigned i)
{
    float f;
    memcpy(&f, &i, 4);
    return f;
}
static inline long long __double_as_longlong(double d)
{
    long long i;
    memcpy(&i, &d, 8);
    return i;
}
static inline double __longlong_as_double(long long i)
{
    double d;
    memcpy(&d, &i, 8);
    return d;
}
static inline int __float2int_rn(float f)
{
    return (int)__builtin_rintf(f);
}
static inline int __float2int_rz(float f)
{
    return (int)f;
}
static inline float __int2float_rn(int i)
{
    return (float)i;
}
static inline float __uint2float_rn(unsigned i)
{
    return (float)i;
}
static inline float __ll2float_rn(long long i)
{
    return (float)i;
}
static inline float __double2float_rn(double d)
{
    return (float)d;
}
static inline int __double2int_rn(double d)
{
    return (int)__builtin_rint(d);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    uint64_t v = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(v >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (n & 31));
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c = (int)((unsigned)c + (unsigned)((int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i)));
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 4; i++)
        c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return c;
}

#define CUEMU_MINMAX(T)                                                                            \
    static inline T min(T a, T b)                                                                  \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static inline T max(T a, T b)                                                                  \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
CUEMU_MINMAX(int)
CUEMU_MINMAX(unsigned)
CUEMU_MINMAX(long)
CUEMU_MINMAX(unsigned long)
CUEMU_MINMAX(long long)
CUEMU_MINMAX(unsigned long long)
#undef CUEMU_MINMAX

/* ---- memory -------------------------------------------------------------------------------------- */

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stcg(T *p, T v)
{
    *p = v;
}

#define CUEMU_ATOMIC(name, next)                                                                   \
    template <class T, class U> CUEMU_RUNNER T name(T *p, U operand)                               \
    {                                                                                              \
        T old = *p, v = (T)operand;                                                                \
        cuemu::atomic_access(p, sizeof(T));                                                        \
        *p = (T)(next);                                                                            \
        return old;                                                                                \
    }
CUEMU_ATOMIC(atomicAdd, old + v)
CUEMU_ATOMIC(atomicSub, old - v)
CUEMU_ATOMIC(atomicMax, old < v ? v : old)
CUEMU_ATOMIC(atomicMin, v < old ? v : old)
CUEMU_ATOMIC(atomicOr, old | v)
CUEMU_ATOMIC(atomicAnd, old &v)
CUEMU_ATOMIC(atomicExch, v)
CUEMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
#undef CUEMU_ATOMIC
template <class T> CUEMU_RUNNER T atomicCAS(T *p, T compare, T v)
{
    T old = *p;
    cuemu::atomic_access(p, sizeof(T));
    if (old == compare)
        *p = v;
    return old;
}
