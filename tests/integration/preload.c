/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Put before the C library by tests: a wall clock that jumps, and files that are slow to read.
 *   FAKE_CLOCK=1       CLOCK_REALTIME goes an hour back or forth at each look
 *   FAKE_SLOW=SECONDS  mapping a file whose name ends in .safetensors takes so long
 *   FAKE_AFTER=1       ... after the mapping was made, not before
 *   FAKE_KILL=N        SIGKILL before the N-th call that changes files: writes, names, folders, locks
 *   FAKE_CLOSE=FD      says on stderr that this descriptor is closed, and leaves it open
 *   FAKE_LINE=N        there is no memory for the N-th line that is read
 *   FAKE_KEPT=NAME     files of this name cannot be removed: EPERM
 *   FAKE_CALLS=FILE    gets a line a call that makes names last or changes them
 *   FAKE_LINK=ERRNO    no file gets another name, or its first one
 *   FAKE_SOCKET=TYPE   there is no descriptor for a socket of this type
 *   FAKE_LOST=1        what has been locked loses its name
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int is_model(int fd)
{
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path - 1);
    static const char end[] = ".safetensors";
    return n > (ssize_t)sizeof end && !strncmp(path + n - (sizeof end - 1), end, sizeof end - 1);
}

static void pause_for(const char *s)
{
    double seconds = atof(s);
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

void *mmap(void *addr, size_t size, int prot, int flags, int fd, off_t off)
{
    static void *(*real)(void *, size_t, int, int, int, off_t);
    const char *slow = getenv("FAKE_SLOW");
    int now = slow && fd >= 0 && is_model(fd), after = getenv("FAKE_AFTER") != NULL;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "mmap");
    if (now && !after)
        pause_for(slow);
    void *p = real(addr, size, prot, flags, fd, off);
    if (now && after)
        pause_for(slow);
    return p;
}

static long jump(void)
{
    static unsigned looks;
    return getenv("FAKE_CLOCK") ? (looks++ & 1 ? 3600 : -7200) : 0;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, t);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
        t->tv_sec += jump();
    return r;
}

int gettimeofday(struct timeval *t, void *zone)
{
    struct timespec s;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &s);
    t->tv_sec = s.tv_sec;
    t->tv_usec = s.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *ret)
{
    struct timespec s;
    clock_gettime(CLOCK_REALTIME, &s);
    if (ret)
        *ret = s.tv_sec;
    return s.tv_sec;
}

static void count(void)
{
    static int calls;
    const char *at = getenv("FAKE_KILL");
    if (at && ++calls == atoi(at))
        kill(getpid(), SIGKILL);
}

#define COUNTED(type, name, arguments, ...)                                                        \
    type name arguments                                                                            \
    {                                                                                              \
        static type(*real) arguments;                                                              \
        if (!real)                                                                                 \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                             \
        count();                                                                                   \
        return real(__VA_ARGS__);                                                                  \
    }
COUNTED(ssize_t, write, (int fd, const void *p, size_t n), fd, p, n)
COUNTED(int, mkdir, (const char *path, mode_t mode), path, mode)
COUNTED(int, rmdir, (const char *path), path)

/* Of the form "fsync PATH" or "rename FROM TO". */
static void tell(const char *call, const char *path, const char *to)
{
    const char *file = getenv("FAKE_CALLS");
    FILE *f = file ? fopen(file, "a") : NULL;
    count();
    if (!f)
        return;
    fprintf(f, "%s %s%s%s\n", call, path, *to ? " " : "", to);
    fclose(f);
}

static const char *path_of(int fd, char *path, size_t size)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, size - 1);
    path[n > 0 ? n : 0] = 0;
    return path;
}

static int is_kept(const char *path)
{
    const char *kept = getenv("FAKE_KEPT"), *slash = strrchr(path, '/');
    return kept && strcmp(slash ? slash + 1 : path, kept) == 0;
}

#define REAL(type, name, ...)                                                                      \
    static type (*real)(__VA_ARGS__);                                                              \
    if (!real)                                                                                     \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

int fsync(int fd)
{
    char path[4096];
    REAL(int, fsync, int);
    tell("fsync", path_of(fd, path, sizeof path), "");
    return real(fd);
}

int unlinkat(int dir, const char *path, int flags)
{
    REAL(int, unlinkat, int, const char *, int);
    tell("remove", path, "");
    if (is_kept(path)) {
        errno = EPERM;
        return -1;
    }
    return real(dir, path, flags);
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int linkat(int d, const char *from, int e, const char *to, int flags)
{
    const char *why = getenv("FAKE_LINK");
    REAL(int, linkat, int, const char *, int, const char *, int);
    if (why) {
        errno = atoi(why);
        return -1;
    }
    return real(d, from, e, to, flags);
}

int rename(const char *from, const char *to)
{
    REAL(int, rename, const char *, const char *);
    tell("rename", from, to);
    return real(from, to);
}

int renameat2(int d, const char *from, int e, const char *to, unsigned flags)
{
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    tell("rename", from, to);
    return real(d, from, e, to, flags);
}

int flock(int fd, int how)
{
    char path[4096];
    REAL(int, flock, int, int);
    count();
    int r = real(fd, how);
    if (r == 0 && getenv("FAKE_LOST"))
        remove(path_of(fd, path, sizeof path));
    return r;
}

int socket(int family, int type, int protocol)
{
    const char *none = getenv("FAKE_SOCKET");
    REAL(int, socket, int, int, int);
    if (none && atoi(none) == (type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK))) {
        errno = EMFILE;
        return -1;
    }
    return real(family, type, protocol);
}

int close(int fd)
{
    const char *told = getenv("FAKE_CLOSE");
    REAL(int, close, int);
    if (!told || atoi(told) != fd)
        return real(fd);
    dprintf(2, "descriptor %d is closed\n", fd);
    return 0;
}

/* getline() is an inline call of it in the C library's header. */
ssize_t __getdelim(char **line, size_t *cap, int end, FILE *f)
{
    static int lines;
    const char *at = getenv("FAKE_LINE");
    REAL(ssize_t, __getdelim, char **, size_t *, int, FILE *);
    if (at && ++lines == atoi(at)) {
        errno = ENOMEM;
        return -1;
    }
    return real(line, cap, end, f);
}

ssize_t getline(char **line, size_t *cap, FILE *f)
{
    return __getdelim(line, cap, '\n', f);
}
