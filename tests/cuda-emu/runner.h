/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the runner: runner.cc executes launches, check.cc looks at every access, shim.cc is the host. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "include/cuemu.h"

namespace cuemu
{
constexpr unsigned max_threads = 1024;
/* The least of the architectures that are built for: sm_80 gives a block 163 KiB, and all give 1 KiB
 * of static shared memory more only by taking it from there. */
constexpr size_t max_shared = 163 * 1024;
constexpr size_t max_static_shared = 48 * 1024;
constexpr size_t stack_size = 64 * 1024;

/* A kernel's numbers, over all its launches. */
struct kernel_stats {
    uint64_t launches, blocks, threads;
    uint64_t barriers;
    uint64_t static_shared, dynamic_shared;                 /* largest, bytes */
    uint64_t global_requests, global_sectors, global_ideal; /* by warps; sectors of 32 bytes */
    uint64_t shared_requests, shared_wavefronts; /* more wavefronts than requests: conflicts */
};
kernel_stats &stats_of(const std::string &kernel);
void report(FILE *f);

struct launch {
    const char *name;
    dim3 grid, block;
    size_t smem;
    const closure *kernel;
};
void run(const launch &l);
/* Why a launch is refused, or NULL. */
const char *launch_error(dim3 grid, dim3 block, size_t smem);

/* ---- what blas.cc needs of shim.cc ------------------------------------------------------------------ */

/* The lock around the runtime, while it lives. */
struct held_runtime {
    held_runtime();
    ~held_runtime();
};
/* Counts a call; whether a test wants it to fail. */
bool fails();
/* Puts f into a stream (or into the graph that captures it). */
int enqueue_host(CUstream_st *stream, std::function<void()> f);
/* Objects of cuBLASLt that are alive. */
size_t blas_objects();

/* ---- order.cc: streams ------------------------------------------------------------------------------- */

/* By stream, how much of its work is done before. */
using when = std::vector<uint32_t>;
bool order_checked();
uint32_t order_new_stream();
void order_join(when &to, const when &from);
/* The next piece of work of a stream, which the host gave it after `host`, until order_end(). */
void order_begin(uint32_t stream, when &clock, const when &host);
void order_end();
/* It goes on, after that of another stream. */
void order_work(uint32_t stream, const when &clock);
/* That work touches n bytes. */
void order_access(const void *p, size_t n, bool write);

/* ---- what check.cc needs to know ------------------------------------------------------------------- */

extern const char *kernel_name; /* NULL between launches */
extern char *shared_base;
extern size_t shared_used;
extern char *stack_base;
extern size_t stack_bytes;
extern uint32_t block_epoch;                  /* barriers passed by the block */
extern uint32_t warp_epoch[max_threads / 32]; /* __syncwarp and the like passed by the warp */

void check_begin_launch(const launch &l);
void check_end_launch();
void check_begin_block();
void check_end_block();
void check_shared_variable(size_t at, size_t size);
/* Device memory, as the shim hands it out. */
void check_add_memory(const void *p, size_t n);
void check_remove_memory(const void *p);
bool check_is_device(const void *p, size_t n);
/* Bytes of shared memory that were written by other means than a store. */
void check_mark_written(const void *p, size_t n);
/* Of an allocation, only the regions that were named are valid from the first such call on. */
void check_add_region(const void *p, size_t n);
} // namespace cuemu
