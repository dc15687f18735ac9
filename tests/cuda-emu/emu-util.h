/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the backend on the emulated device share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "tests/cuda-emu/emu.h"

/* Under the thread sanitizer emulated kernels are many times slower: of what there is a lot of, less there, and no kind
 * of it none. */
#ifdef __SANITIZE_THREAD__
#define EMU_FEWER(all, few) (few)
#else
#define EMU_FEWER(all, few) (all)
#endif

/* Opens libdedit-cuda-emu.so of the build and lets "emu" name it, which holds cuBLASLt, too; ends the program where it cannot. */
void emu_open_library(void);
/* emu_fail_at() and emu_count() of the library; n -1: no call fails any more. */
void emu_fail(long n, int error, bool keep);
struct emu_counts emu_counts_now(void);
uint64_t emu_replays(void); /* of graphs, so far */
/* Fails the test where the backend has kept a block, a stream, an event, a graph or something of cuBLASLt. */
void emu_nothing_left(const char *what, long n);

/* A model on the device, with graphs or without. */
struct engine *emu_open(const char *path, bool graphs, uint32_t max_context);
struct seq *emu_new_seq(struct engine *e);
/* n floats that no result has; free() them. */
float *emu_floats(size_t n);
/* Logits of the last of n tokens that are fed at once, behind `prefix` others. */
void emu_step(struct engine *e, uint32_t prefix, uint32_t n, float *ret);
