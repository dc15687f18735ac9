/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files: made with their space reserved, sealed, and checked when a peer hands one over. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/fd.h"

static int code_of(int error)
{
    return error == ENOMEM || error == ENOSPC   ? DEDIT_E_NOMEM
           : error == EMFILE || error == ENFILE ? DEDIT_E_LIMIT
                                                : DEDIT_E_IO;
}

int memfd_new(const char *name, size_t size, struct error *err)
{
    /* The kernel would go on giving pages until it kills somebody, so refuse what cannot end well. */
    struct sysinfo si;
    if (size > (size_t)INT64_MAX ||
        (sysinfo(&si) == 0 && size / si.mem_unit > si.totalram + si.totalswap))
        return ERR(err, LIMIT, "memory file %s: %zu bytes, more than this machine's memory", name,
                   size);
    _cleanup_fd_ int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_set(err, code_of(errno), __FILE__, __LINE__, "memory file %s: %s", name,
                         strerror(errno));
    while (size && fallocate(fd, 0, 0, (off_t)size) < 0)
        if (errno != EINTR)
            return error_set(err, code_of(errno), __FILE__, __LINE__,
                             "memory file %s: cannot reserve %zu bytes: %s", name, size,
                             strerror(errno));
    return TAKE_FD(fd);
}

int memfd_seal(int fd, int seals, struct error *err)
{
    if (fcntl(fd, F_ADD_SEALS, seals) < 0)
        return error_set(err, errno == EPERM || errno == EBUSY ? DEDIT_E_DENIED : DEDIT_E_IO,
                         __FILE__, __LINE__, "memory file: cannot add seals 0x%x: %s",
                         (unsigned)seals, strerror(errno));
    return 0;
}

int memfd_check(int fd, int seals, size_t min_size, size_t *ret_size, struct error *err)
{
    struct stat st;
    int have = fcntl(fd, F_GET_SEALS);
    if (have < 0)
        return ERR(err, INVALID, "descriptor is not a memory file that can be sealed: %s",
                   strerror(errno));
    if ((have & seals) != seals)
        return ERR(err, INVALID, "memory file: seals 0x%x are missing", (unsigned)(seals & ~have));
    if (fstat(fd, &st) < 0)
        return ERR(err, IO, "memory file: %s", strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < 0)
        return ERR(err, INVALID, "descriptor is not a memory file");
    if ((uint64_t)st.st_size < min_size)
        return ERR(err, INVALID, "memory file: %" PRId64 " bytes, at least %zu are needed",
                   (int64_t)st.st_size, min_size);
    if (ret_size)
        *ret_size = (size_t)st.st_size;
    return 0;
}
