/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/open.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY   "libdedit-cuda.so"
#define MIN_MAJOR 8 /* sm_80: bf16 mma, cp.async */

/* cudaError_t, as far as they mean something to a caller. */
enum {
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_INSUFFICIENT_DRIVER = 35,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_NO_IMAGE = 209
};

/* After these every call of the process fails: driver_types.h says so of each but the first two (memory or
 * a link that broke beyond correction) and 709 (the context is gone). */
static bool is_lost(int code)
{
    static const short codes[] = {214, 220, 226, 700, 702, 709, 710, 714,
                                  715, 716, 717, 718, 719, 721, 911};
    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++)
        if (codes[i] == code)
            return true;
    return false;
}

int dcu_error(const struct dcu_api *a, int code, struct error *err, const char *what)
{
    if (code == 0)
        return 0;
    const char *name = a->error_name(code), *text = a->error_text(code);
    if (is_lost(code))
        return ERR(err, DEVICE_LOST, "%s: the device is lost: %s (%s)", what, text, name);
    switch (code) {
    case CUDA_OUT_OF_MEMORY:
        return ERR(err, NOMEM, "%s: the device is out of memory (%s)", what, name);
    case CUDA_INSUFFICIENT_DRIVER:
        return ERR(err, UNSUPPORTED, "%s: the NVIDIA driver is missing or too old (%s)", what,
                   name);
    case CUDA_NO_DEVICE:
        return ERR(err, NOT_FOUND, "%s: there is no CUDA device (%s)", what, name);
    case CUDA_INVALID_DEVICE:
        return ERR(err, NOT_FOUND, "%s: there is no such CUDA device (%s)", what, name);
    case DCU_BLAS_LIBRARY:
    case DCU_BLAS_BUILD:
        return ERR(err, NOT_FOUND, "%s: %s", what, text);
    case DCU_BLAS_HOST_MEMORY:
        return ERR_NOMEM(err);
    case CUDA_NO_IMAGE:
        return ERR(err, UNSUPPORTED, "%s: the library was not built for this device (%s)", what,
                   name);
    default:
        return ERR(err, IO, "%s: %s (%s)", what, text, name);
    }
}

/* One handle a path; programs use one, tests two. */
static int open_library(const char *path, const struct dcu_api **ret, struct error *err)
{
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!h)
        return ERR(err, NOT_FOUND, "CUDA: %s", dlerror());
    dcu_api_entry entry;
    void *symbol = dlsym(h, DCU_ENTRY);
    memcpy(&entry, &symbol, sizeof(entry));
    if (!entry)
        return ERR(err, MISMATCH, "CUDA: %s has no %s", path, DCU_ENTRY);
    const struct dcu_api *a = entry();
    if (a->version != DCU_API_VERSION || a->bytes != sizeof(*a))
        return ERR(err, MISMATCH, "CUDA: %s belongs to another version of dedit", path);
    *ret = a;
    return 0;
}

int dcu_open(const char *path, const struct dcu_api **ret, struct error *err)
{
    const char *named = path ? path : getenv("DEDIT_CUDA_LIBRARY");
    if (named && *named)
        return open_library(named, ret, err);
#ifdef DEDIT_CUDA_LIBDIR
    struct error first = {0};
    if (open_library(DEDIT_CUDA_LIBDIR "/" LIBRARY, ret, &first) == 0)
        return 0;
#endif
    return open_library(LIBRARY, ret, err);
}

int dcu_device_check(const struct dcu_api *a, int n, struct dcu_device *ret, struct error *err)
{
    int count = 0;
    int r = dcu_error(a, a->device_count(&count), err, "CUDA");
    if (r < 0)
        return r;
    if (n >= count)
        return ERR(err, NOT_FOUND, "cuda:%d: there %s %d CUDA device%s", n,
                   count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
    struct dcu_device d;
    r = dcu_error(a, a->device_info(n, &d), err, "CUDA");
    if (r < 0)
        return r;
    if (d.major < MIN_MAJOR)
        return ERR(err, UNSUPPORTED,
                   "cuda:%d: %s has compute capability %d.%d, at least %d.0 is needed", n, d.name,
                   d.major, d.minor, MIN_MAJOR);
    r = dcu_error(a, a->device_use(n), err, "CUDA");
    if (r < 0)
        return r;
    *ret = d;
    return 0;
}
