/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors: closing, counting, and opening regular files with a message that names what failed. */
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

int fd_close(int fd)
{
    if (fd >= 0) {
        int saved = errno;
        /* Linux frees the descriptor even when close() fails, so there is nothing to retry. */
        (void)close(fd);
        errno = saved;
    }
    return -1;
}

int fd_count(void)
{
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return -1;
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 3; /* ".", ".." and the directory itself */
}

bool fd_is_named(int fd, const char *path, int flags)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && fstatat(AT_FDCWD, path, &there, flags) == 0 &&
           mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/* Explains errno for path: the first component of it that cannot be looked up, if that is why. */
static int open_error(const char *path, int error, struct error *err)
{
    int saved = error;
    int code = error == ENOENT || error == ENOTDIR ? DEDIT_E_NOT_FOUND
               : error == EACCES || error == EPERM ? DEDIT_E_DENIED
               : error == ENOMEM                   ? DEDIT_E_NOMEM
                                                   : DEDIT_E_IO;
    if (error == ENOENT || error == ENOTDIR || error == EACCES) {
        _cleanup_free_ char *part = mem_strdup(path);
        if (!part)
            return ERR_NOMEM(err);
        for (char *p = part + 1; *part && *p; p++) {
            if (*p != '/')
                continue;
            struct stat st;
            *p = '\0';
            if (stat(part, &st) < 0)
                return error_set(err, code, __FILE__, __LINE__, "%s: %s: %s", path, part,
                                 strerror(errno));
            if (!S_ISDIR(st.st_mode))
                return error_set(err, code, __FILE__, __LINE__, "%s: %s is not a directory", path,
                                 part);
            if (faccessat(AT_FDCWD, part, X_OK, AT_EACCESS) < 0)
                return error_set(err, code, __FILE__, __LINE__,
                                 "%s: %s may not be searched: %s (user %u)", path, part,
                                 strerror(errno), (unsigned)geteuid());
            *p = '/';
        }
    }
    if (code == DEDIT_E_DENIED)
        return error_set(err, code, __FILE__, __LINE__, "%s: %s (user %u)", path, strerror(saved),
                         (unsigned)geteuid());
    return error_set(err, code, __FILE__, __LINE__, "%s: %s", path, strerror(saved));
}

int fd_open_regular(const char *path, uint64_t *ret_size, struct error *err)
{
    struct stat st;
    if (!*path)
        return ERR(err, INVALID, "an empty file name was given");
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return open_error(path, errno, err);
    if (fstat(fd, &st) < 0)
        return ERR(err, IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return ERR(err, INVALID, "%s: is a directory, not a file", path);
    if (!S_ISREG(st.st_mode))
        return ERR(err, INVALID, "%s: is not a regular file", path);
    if (ret_size)
        *ret_size = (uint64_t)st.st_size;
    return TAKE_FD(fd);
}
