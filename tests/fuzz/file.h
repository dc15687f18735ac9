/* SPDX-License-Identifier: Apache-2.0 */
/* An input as a file, for targets that also open by path. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"

/* One input in 16: a file costs more than a parse. */
static inline int fuzz_wants_file(size_t size)
{
    return size % 16 == 0;
}

/* A memory file with the input; path is how to open it.  -1 when there is none to be had. */
static inline int fuzz_file(const uint8_t *data, size_t size, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, data, size) != (ssize_t)size)
        fd = fd_close(fd);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
