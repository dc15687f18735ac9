/* SPDX-License-Identifier: Apache-2.0 */
/* Opening libdedit-cuda.so and its device; CUDA's error codes become ours here and nowhere else. */
#pragma once

#include "base/error.h"
#include "kernels/cuda/cuda_api.h"

/*
 * The library at path, NULL: where DEDIT_CUDA_LIBRARY says, else beside the installed libraries.  It
 * stays open until the process ends: a CUDA context does not survive its library.  Errors:
 * NOT_FOUND without the library, MISMATCH when it is another build's.
 */
int dcu_open(const char *path, const struct dcu_api **ret, struct error *err);
/* Checks that device n is there and new enough, and tells what it is.  One clear line otherwise. */
int dcu_device_check(const struct dcu_api *a, int n, struct dcu_device *ret, struct error *err);
/* Error object of a cudaError_t; 0 stays 0.  what: what was being done.  DEVICE_LOST: no call of this
 * process will succeed any more ("sticky" errors: illegal accesses, failed launches, broken memory). */
int dcu_error(const struct dcu_api *a, int code, struct error *err, const char *what);
