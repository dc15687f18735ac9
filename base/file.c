/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: reading, replacing atomically, mapping. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/fd.h"
#include "base/mapguard.h"

int file_read(const char *path, size_t max, char **ret, size_t *ret_len, struct error *err)
{
    uint64_t size;
    _cleanup_fd_ int fd = fd_open_regular(path, &size, err);
    if (fd < 0)
        return fd;
    if (size > max)
        return ERR(err, LIMIT, "%s: %llu bytes, at most %zu are allowed", path,
                   (unsigned long long)size, max);
    /* The size is a hint: the file may grow while we read, and in /proc it is 0. */
    size_t cap = (size_t)size + 1, len = 0;
    _cleanup_free_ char *buf = mem_alloc(cap);
    if (!buf)
        return ERR(err, NOMEM, "%s: out of memory", path);
    for (;;) {
        if (len == cap - 1) {
            /* One byte more than allowed is enough to see that there is too much. */
            size_t grown;
            if (!size_add(cap, cap / 2 + 4096, &grown) || grown > max + 2)
                grown = max + 2;
            if (grown <= cap)
                return ERR(err, LIMIT, "%s: more than %zu bytes", path, max);
            char *p = mem_realloc(buf, grown);
            if (!p)
                return ERR(err, NOMEM, "%s: out of memory", path);
            buf = p;
            cap = grown;
        }
        ssize_t n = read(fd, buf + len, cap - 1 - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ERR(err, IO, "%s: %s", path, strerror(errno));
        if (n == 0)
            break;
        len += (size_t)n;
        if (len > max)
            return ERR(err, LIMIT, "%s: more than %zu bytes", path, max);
    }
    buf[len] = '\0';
    *ret = TAKE_PTR(buf);
    if (ret_len)
        *ret_len = len;
    return 0;
}

int fd_write_all(int fd, const void *p, size_t len)
{
    const char *data = p;
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Makes the rename last: without it a crash may bring the old file back.  File systems that cannot
 * sync a folder lose nothing but that. */
static void sync_folder_of(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        slash[slash == path] = '\0';
    _cleanup_fd_ int fd = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)fsync(fd);
}

static int write_parts(int fd, const struct iovec *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fd_write_all(fd, parts[i].iov_base, parts[i].iov_len) < 0)
            return -1;
    return fsync(fd);
}

int file_write_atomic(const char *path, const void *data, size_t len, struct error *err)
{
    const struct iovec all = {(void *)(uintptr_t)data, len};
    return file_write_parts(path, &all, 1, err);
}

/* A new file beside path that has no name yet, so that nothing is left of a process that is killed; negative where the
 * file system has none. */
static int open_unnamed(const char *path)
{
    _cleanup_free_ char *folder = mem_strdup(path);
    if (!folder)
        return -1;
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    return open(slash ? folder : ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

/* Gives it one, which must be free. */
static int name_file(int fd, const char *path)
{
    char proc[40];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* The next name for a file that is to replace path.  One that exists is left over from a process with our number that
 * died here. */
static void next_name(char *tmp, size_t cap, const char *path)
{
    static atomic_uint serial;
    snprintf(tmp, cap, "%s.tmp-%ld-%u", path, (long)getpid(), atomic_fetch_add(&serial, 1));
}
enum { NAMES = 100 }; /* that are tried */

/* Not mkstemp: the new file gets the mode that the umask says. */
static int open_named(char *tmp, size_t cap, const char *path)
{
    int fd = -1;
    for (unsigned i = 0; fd < 0 && i < NAMES; i++) {
        next_name(tmp, cap, path);
        fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    return fd;
}

/* Who replaces a file does not open it to others. */
static void keep_mode(int fd, const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode))
        (void)fchmod(fd, st.st_mode & 0777);
}

/* As write_new(), of a file that is written. */
static int name_unnamed(int fd, char *tmp, size_t cap, const char *path)
{
    struct stat st;
    int r = -1;
    if (lstat(path, &st) < 0 && errno == ENOENT && name_file(fd, path) == 0)
        return 0;
    for (unsigned i = 0; r < 0 && i < NAMES; i++) {
        next_name(tmp, cap, path);
        r = name_file(fd, tmp);
        if (r < 0 && errno != EEXIST)
            break;
    }
    return r < 0 ? 2 : 1;
}

/* Writes a new file, which has a name from the start, or from its end on.  0: path is that file.  1: it has the name
 * tmp, to be renamed.  2: there is no such file without a name, or it cannot be given one: without /proc, in a sandbox,
 * on some file systems; what stands against any name is told by the other way. */
static int write_new(bool named, char *tmp, size_t cap, const char *path, const struct iovec *parts,
                     size_t n, struct error *err)
{
    _cleanup_fd_ int fd = named ? open_named(tmp, cap, path) : open_unnamed(path);
    if (fd < 0)
        return named ? ERR(err, IO, "%s: cannot write: no file can be made beside it: %s", path,
                           strerror(errno))
                     : 2;
    keep_mode(fd, path);
    if (write_parts(fd, parts, n) == 0)
        return named ? 1 : name_unnamed(fd, tmp, cap, path);
    ERR(err, IO, "%s: cannot write: %s", path, strerror(errno));
    if (named)
        (void)unlink(tmp);
    return DEDIT_E_IO;
}

int file_write_parts(const char *path, const struct iovec *parts, size_t n, struct error *err)
{
    size_t cap;
    if (!*path)
        return ERR(err, INVALID, "an empty file name was given");
    if (!size_add(strlen(path), 48, &cap))
        return ERR_NOMEM(err);
    _cleanup_free_ char *tmp = mem_alloc(cap);
    if (!tmp)
        return ERR_NOMEM(err);
    int r = write_new(false, tmp, cap, path, parts, n, err);
    if (r == 2)
        r = write_new(true, tmp, cap, path, parts, n, err);
    if (r == 1 && rename(tmp, path) < 0) {
        r = ERR(err, IO, "%s: cannot write: %s", path, strerror(errno));
        (void)unlink(tmp);
    }
    if (r < 0)
        return r;
    snprintf(tmp, cap, "%s", path);
    sync_folder_of(tmp);
    return 0;
}

int file_map_open(const char *path, struct file_map *ret, struct error *err)
{
    uint64_t size;
    _cleanup_fd_ int fd = fd_open_regular(path, &size, err);
    if (fd < 0)
        return fd;
    if (size > SIZE_MAX / 2)
        return ERR(err, LIMIT, "%s: too large to map", path);
    if (size == 0) {
        *ret = (struct file_map){0};
        return 0;
    }
    void *addr = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (addr == MAP_FAILED)
        return error_set(err, errno == ENOMEM ? DEDIT_E_NOMEM : DEDIT_E_IO, __FILE__, __LINE__,
                         "%s: cannot map: %s", path, strerror(errno));
    map_guard_add(addr, (size_t)size);
    *ret = (struct file_map){.addr = addr, .size = (size_t)size};
    return 0;
}

void file_map_release(struct file_map *m, size_t off, size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!m->addr || off >= m->size)
        return;
    if (len > m->size - off)
        len = m->size - off;
    /* Whole pages inside the range only: the edges may belong to a neighbour.  The end of the file
     * is the end of its last page. */
    size_t first = (off + page - 1) / page * page;
    size_t last = off + len == m->size ? m->size : (off + len) / page * page;
    if (first < last)
        (void)madvise((char *)m->addr + first, last - first, MADV_DONTNEED);
}

void file_map_done(struct file_map *m)
{
    if (m->addr) {
        map_guard_remove(m->addr);
        munmap(m->addr, m->size);
    }
    *m = (struct file_map){0};
}

int folders_make(const char *path, unsigned mode, struct error *err)
{
    _cleanup_free_ char *part = mem_strdup(path);
    if (!part)
        return ERR_NOMEM(err);
    if (!part[0])
        return ERR(err, INVALID, "an empty path is no folder");
    for (char *s = part + 1;; s++) {
        struct stat st;
        const char was = *s;
        if (was && was != '/')
            continue;
        *s = '\0';
        const int cause = mkdir(part, mode) < 0 ? errno : 0;
        if (cause &&
            (stat(part, &st) < 0 || !S_ISDIR(st.st_mode))) /* the part that is in the way */
            return ERR(err, IO, "%s: cannot create: %s", part,
                       cause == EEXIST ? "there is a file of that name" : strerror(cause));
        *s = was;
        if (!was)
            return 0;
    }
}

int folder_lock(const char *path, const char *who, struct error *err)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ERR(err, IO, "%s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? ERR(err, BUSY, "%s: %s is writing there", path, who)
                                    : ERR(err, IO, "%s: cannot lock: %s", path, strerror(errno));
    /* Who had it may have removed it, and somebody may have made another one. */
    if (!fd_is_named(fd, path, 0))
        return ERR(err, BUSY, "%s: %s is writing there", path, who);
    int ret = fd;
    fd = -1;
    return ret;
}
