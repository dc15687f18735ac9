/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the CUDA kernels: device memory with guards, weights of every type, the CPU's portable ops
 * as the oracle.  The library is libdedit-cuda-emu.so of the build, or what DEDIT_CUDA_LIBRARY names: the
 * same tests run on a device.
 */
#pragma once

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "kernels/cuda/open.h"
#include "tests/unit/util.h"

extern const struct dcu_api *dev; /* opened by dev_open() */
extern dcu_stream dev_s;
void dev_open(void);  /* a fixture; a checked one where the library is a real device's */
void dev_close(void); /* frees all memory, checks all guards */

/* n bytes of device memory between guards, filled with a pattern that is no sensible number. */
void *dev_new(size_t n);
void *dev_of(const void *host, size_t n); /* with a copy of host */
void dev_put(void *device, const void *host, size_t n);
void dev_get(void *host, const void *device, size_t n); /* after all that was launched */
void dev_done(void);                                    /* waits and checks guards */
#define dev_ok(call)                                                                               \
    do {                                                                                           \
        int dev_r_ = (call);                                                                       \
        ck_assert_msg(dev_r_ == 0, "%s: %s", #call, dev->error_text(dev_r_));                      \
    } while (0)

/* Seeded numbers: the same ones in each run. */
struct rng {
    uint64_t s;
};
uint32_t rng_u32(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n);
float rng_float(struct rng *r);                          /* about normal */
float *floats_new(struct rng *r, size_t n, float scale); /* free() */

/* A weight matrix: file rows, the CPU's packed form, and the device's. */
struct test_weight {
    struct dk_weight cpu;
    struct dcu_weight gpu;
    unsigned char *file;
    void *packed;
    size_t row_bytes;
};
void weight_new(struct test_weight *w, struct rng *r, enum dk_type t, enum dcu_layout l, uint32_t n,
                uint32_t k);
void weight_done(struct test_weight *w);

/* Rows through the CPU's portable product: y[rows][n]. */
void cpu_matmul(const struct dk_weight *w, const float *x, size_t ldx, uint32_t rows, float *y,
                unsigned flags);
const struct dk_ops *cpu_ops(void);

/* Equal bits, NaN equal to NaN; says where. */
void same_floats(const char *what, const float *got, const float *want, size_t n);
/* Device activations for rows of k inputs. */
struct dcu_act act_new(unsigned forms, uint32_t rows, uint32_t k);
