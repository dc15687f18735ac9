/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "kernels/cuda/open.h"

#define MOST_DEVICES 64u

/* The device of "cuda" or "cuda:N"; -1: it is neither. */
static int device_number(const char *name)
{
    uint32_t n;
    if (strcmp(name, "cuda") == 0)
        return 0;
    if (strncmp(name, "cuda:", 5) != 0 || parse_u32(name + 5, MOST_DEVICES - 1, &n) < 0)
        return -1;
    return (int)n;
}

int device_check(const char *name, struct error *err)
{
    if (!name || strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0 ||
        strcmp(name, "emu") == 0 || device_number(name) >= 0)
        return 0;
    return ERR(err, INVALID, "device \"%s\": must be auto, cpu, cuda or cuda:N (N below %u)", name,
               MOST_DEVICES);
}

static int open_cuda(const char *library, int number, struct backend_options *o, struct error *err)
{
    struct dcu_device d;
    int r = dcu_open(library, &o->cuda, err);
    if (r == 0)
        r = dcu_device_check(o->cuda, number, &d, err);
    if (r < 0)
        o->cuda = NULL;
    o->device = number;
    return r;
}

/* cuBLASLt, where it was asked for.  A device that was named does what the configuration says or nothing;
 * one that `auto` found computes in the strict class instead, and why is noted. */
static int open_blas(struct backend_options *o, bool optional, char *note, size_t note_size,
                     struct error *err)
{
    struct error why = {0};
    if (!o->fast || !o->cuda)
        return 0;
    int r = dcu_error(o->cuda, o->cuda->blas_open(), &why, "exactness = fast");
    if (r == 0)
        return 0;
    if (r == DEDIT_E_DEVICE_LOST)
        return ERR(err, DEVICE_LOST, "%s", why.msg);
    if (!optional)
        return ERR(err, NOT_FOUND, "%s", why.msg);
    snprintf(note, note_size, "is computed with exactness = strict: %s", why.msg);
    o->fast = false;
    return 0;
}

int device_choose(const char *name, struct backend_options *o, const struct backend **ret,
                  bool *ret_optional, char *note, size_t note_size, struct error *err)
{
    struct error why = {0};
    const char *library = NULL;
    int r = device_check(name, err);
    if (r < 0)
        return r;
    note[0] = 0;
    *ret_optional = false;
    o->cuda = NULL;
    if (!name || strcmp(name, "cpu") == 0) {
        *ret = &backend_cpu;
        return 0;
    }
    if (strcmp(name, "auto") == 0) {
        *ret_optional = true;
        r = open_cuda(NULL, 0, o, &why);
        if (r == DEDIT_E_DEVICE_LOST) {
            if (err)
                *err = why;
            return r;
        }
        if (r < 0)
            snprintf(note, note_size, "computes on the CPU: %s", why.msg);
        *ret = o->cuda ? &backend_cuda : &backend_cpu;
        return open_blas(o, true, note, note_size, err);
    }
    if (strcmp(name, "emu") == 0) {
        library = getenv("DEDIT_CUDA_EMU");
        if (!library)
            return ERR(err, INVALID, "device emu is for tests: DEDIT_CUDA_EMU names its library");
    }
    r = open_cuda(library, library ? 0 : device_number(name), o, err);
    if (r == 0)
        r = open_blas(o, false, note, note_size, err);
    if (r == 0)
        *ret = &backend_cuda;
    return r;
}
