/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels need of their platform, in one spelling for nvcc and for the runner that executes the
 * same sources on the CPU (tests/cuda-emu): launches, dynamic shared memory, and the instructions
 * that have no intrinsic.  No other file here contains <<<>>> or inline PTX.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUEMU__

/* All arguments are evaluated now, as by a real launch; the kernel runs when its stream gets there. */
#define DCU_LAUNCH(kernel, grid, block, smem, stream, ...)                                         \
    cuemu::enqueue(                                                                                \
        #kernel, dim3(grid), dim3(block), (smem), (stream),                                        \
        [](auto... cuemu_args) { (kernel)(cuemu_args...); }, __VA_ARGS__)
#define DCU_DYN_SHARED(T, name) T *const name = static_cast<T *>(cuemu::dynamic_shared())
/* n elements of T that the block shares: checked for use before initialisation, unlike __shared__. */
#define DCU_SHARED(T, name, n)                                                                     \
    T *const name = static_cast<T *>(                                                              \
        cuemu::shared_variable(__FILE__, __LINE__, #name, sizeof(T) * (n), alignof(T)))

static inline void dcu_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    cuemu::mma_bf16(c, a, b, __FILE__, __LINE__);
}

static inline void dcu_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    cuemu::mma_f16(c, a, b, __FILE__, __LINE__);
}

static inline void dcu_mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    cuemu::mma_s8(c, a, b, __FILE__, __LINE__);
}

static inline void dcu_cp_async16(void *shared, const void *global)
{
    cuemu::cp_async16(shared, global);
}

static inline void dcu_cp_async_commit()
{
    cuemu::cp_async_commit();
}

template <int N> static inline void dcu_cp_async_wait()
{
    cuemu::cp_async_wait(N);
}

#else /* nvcc */

/* More than this many bytes of dynamic shared memory must be asked for, once per kernel. */
#define DCU_SMEM_PLAIN (48u << 10)

template <class K> static inline int dcu_allow_smem(K *kernel, size_t smem)
{
    if (smem <= DCU_SMEM_PLAIN)
        return 0;
    int r = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)smem);
    if (r)
        (void)cudaGetLastError(); /* told now, not by the next launch */
    return r;
}

template <class... P, class... A>
static inline int dcu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                             cudaStream_t stream, A... args)
{
    int r = dcu_allow_smem(kernel, smem);
    if (r)
        return r;
    kernel<<<grid, block, smem, stream>>>((P)args...);
    return (int)cudaGetLastError();
}

#define DCU_LAUNCH(kernel, grid, block, smem, stream, ...)                                         \
    dcu_launch(kernel, dim3(grid), dim3(block), (smem), (stream), __VA_ARGS__)
#define DCU_DYN_SHARED(T, name)                                                                    \
    extern __shared__ __align__(16) unsigned char dcu_dynamic_shared[];                            \
    T *const name = reinterpret_cast<T *>(dcu_dynamic_shared)
#define DCU_SHARED(T, name, n) __shared__ T name[n]

/* c += a * b, 16 x 8 x 16: fragments as the PTX ISA lays them out for mma.m16n8k16. */
static __device__ __forceinline__ void dcu_mma_bf16(float c[4], const uint32_t a[4],
                                                    const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void dcu_mma_f16(float c[4], const uint32_t a[4],
                                                   const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* c += a * b, 16 x 8 x 32, signed bytes, exact. */
static __device__ __forceinline__ void dcu_mma_s8(int c[4], const uint32_t a[4],
                                                  const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void dcu_cp_async16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}

static __device__ __forceinline__ void dcu_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void dcu_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
