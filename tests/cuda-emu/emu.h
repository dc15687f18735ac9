/* SPDX-License-Identifier: Apache-2.0 */
/* What tests may ask of the emulated device; found by dlsym() in libdedit-cuda-emu.so. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define EMU_EXPORT __attribute__((visibility("default")))

struct emu_counts {
    uint64_t calls; /* of the CUDA runtime, so far */
    /* What is alive: device and pinned blocks, streams, events, graphs. */
    uint64_t blocks, pinned, streams, events, graphs;
    uint64_t bytes;   /* of device memory */
    uint64_t replays; /* launches of graphs, so far */
    /* Copied to the device and to the host, so far; waits of the host for a stream. */
    uint64_t bytes_in, bytes_out, waits;
    uint64_t blas; /* objects of cuBLASLt that are alive */
    /* Waits for an event that had not passed; of all waits that had something to wait for, those behind which no
     * stream had work left, and those behind which another stream had some that waits for nothing: it could
     * have been done meanwhile.  Waits of a stream for an event. */
    uint64_t event_waits, idle_waits, overlaps, orders;
};
/* The n-th call from now (0: the next) fails with this cudaError_t; keep: all after it do, too. */
EMU_EXPORT void emu_fail_at(long n, int error, int keep);
EMU_EXPORT void emu_count(struct emu_counts *ret);
/* A part of an allocation that kernels may touch; with the first one, the rest of it is off limits. */
EMU_EXPORT void emu_region(const void *p, size_t n);
/* Adds the kernels' numbers so far to a file, as CSV; accesses are counted where CUEMU_REPORT is set. */
EMU_EXPORT void emu_report(const char *path);

#ifdef __cplusplus
}
#endif
