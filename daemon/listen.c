/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "proto/packet.h"

#define BACKLOG 512

int listener_inherited(char path[LISTENER_PATH], bool keep, struct error *err)
{
    int n = sd_listen_fds(!keep); /* wrong LISTEN_PID: 0 */
    if (n < 0)
        return ERR(err, INVALID, "LISTEN_FDS: %s", strerror(-n));
    if (n == 0)
        return 0;
    if (n != 1)
        return ERR(err, INVALID, "LISTEN_FDS: %d descriptors were passed, must be 1", n);
    int fd = SD_LISTEN_FDS_START;
    if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) <= 0)
        return ERR(err, INVALID,
                   "LISTEN_FDS: descriptor %d is no listening AF_UNIX SOCK_SEQPACKET socket "
                   "(ListenSequentialPacket=)",
                   fd);
    struct sockaddr_un a = {0};
    socklen_t len = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &len) == 0)
        snprintf(path, LISTENER_PATH, "%.*s", (int)sizeof a.sun_path, a.sun_path);
    return 1;
}

int listener_path(const struct config *c, char ret[LISTENER_PATH], struct error *err)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char path[4096];
    int n;

    if (c->socket_path && *c->socket_path)
        n = snprintf(path, sizeof path, "%s", c->socket_path);
    else if (geteuid() != 0 && run && *run)
        n = snprintf(path, sizeof path, "%s/dedit/dedit.sock", run);
    else
        n = snprintf(path, sizeof path, "/run/dedit/dedit.sock");
    if (n < 0 || (size_t)n > WIRE_MAX_PATH)
        return ERR(err, LIMIT, "socket path %.300s: %d bytes, the limit is %u", path, n,
                   WIRE_MAX_PATH);
    memcpy(ret, path, (size_t)n + 1);
    return 0;
}

bool listener_is_at(const char *a, const char *b)
{
    const char *paths[2] = {a, b}, *names[2];
    struct stat in[2];
    if (strcmp(a, b) == 0)
        return true;
    for (int i = 0; i < 2; i++) {
        char dir[PATH_MAX];
        const char *slash = strrchr(paths[i], '/');
        const size_t n = slash ? (size_t)(slash - paths[i]) + 1 : 0;
        if (n >= sizeof dir)
            return false;
        memcpy(dir, paths[i], n);
        dir[n] = 0;
        names[i] = paths[i] + n;
        if (stat(n ? dir : ".", &in[i]) < 0)
            return false;
    }
    return strcmp(names[0], names[1]) == 0 && in[0].st_dev == in[1].st_dev &&
           in[0].st_ino == in[1].st_ino;
}

/* The folder of a standard path is made; a folder that the user named must exist. */
static int make_folder(const struct listener *l, const struct config *c, struct error *err)
{
    char dir[sizeof l->path];
    snprintf(dir, sizeof dir, "%s", l->path);
    char *slash = strrchr(dir, '/');
    if (!slash || slash == dir)
        return 0;
    *slash = 0;
    struct stat st;
    if (stat(dir, &st) < 0) {
        if (errno != ENOENT || (c->socket_path && *c->socket_path) || mkdir(dir, 0755) < 0)
            return ERR(err, IO, "folder of the socket %s: %s", dir, strerror(errno));
        return 0;
    }
    if (!S_ISDIR(st.st_mode))
        return ERR(err, IO, "folder of the socket %s: not a folder", dir);
    if (access(dir, W_OK) < 0)
        return ERR(err, IO, "folder of the socket %s: %s (uid %u)", dir, strerror(errno),
                   (unsigned)geteuid());
    return 0;
}

static int lock_path(const struct listener *l, char *buf, size_t size)
{
    return snprintf(buf, size, "%s.lock", l->path);
}

/* One daemon a path: the lock is held for the daemon's life, and its file is removed before it is let go.  So whoever
 * has locked a file looks whether it still has the name: one that lost it locks nothing, and the next is tried.  Each
 * such file was a daemon's that has just ended; where they do not cease, something else is wrong. */
static int lock(struct listener *l, struct error *err)
{
    enum { TRIES = 100 };
    char path[sizeof l->path + 8];
    lock_path(l, path, sizeof path);
    for (int i = 0; i < TRIES; i++) {
        _cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return ERR(err, IO, "%s: %s", path, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) < 0)
            return errno == EWOULDBLOCK
                       ? ERR(err, BUSY, "%s: another dedit-d serves this socket", l->path)
                       : ERR(err, IO, "%s: %s", path, strerror(errno));
        if (!fd_is_named(fd, path, AT_SYMLINK_NOFOLLOW))
            continue;
        l->lock_fd = TAKE_FD(fd);
        return 0;
    }
    return ERR(err, BUSY, "%s: removed by others while it was locked, %d times in turn", path,
               TRIES);
}

static void unlock(struct listener *l)
{
    char path[sizeof l->path + 8];
    lock_path(l, path, sizeof path);
    if (l->lock_fd >= 0 && fd_is_named(l->lock_fd, path, AT_SYMLINK_NOFOLLOW))
        (void)unlink(path);
    l->lock_fd = fd_close(l->lock_fd);
}

bool listener_in_use(const struct sockaddr_un *a, int type)
{
    for (int i = 0; i < 40; i++) {
        _cleanup_fd_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) < 0 &&
            errno == ECONNREFUSED)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 25000000}, NULL);
    }
    return true;
}

/* A file at the path that is not a socket, or a socket that somebody listens on, stays. */
static int clear_stale(const struct listener *l, const struct sockaddr_un *a, struct error *err)
{
    struct stat st;
    if (lstat(l->path, &st) < 0)
        return errno == ENOENT ? 0 : ERR(err, IO, "%s: %s", l->path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return ERR(err, BUSY, "%s: exists and is no socket", l->path);
    if (listener_in_use(a, SOCK_SEQPACKET))
        return ERR(err, BUSY, "%s: another program listens there", l->path);
    if (unlink(l->path) < 0)
        return ERR(err, IO, "removing the stale socket %s: %s", l->path, strerror(errno));
    return 0;
}

static int set_access(const struct listener *l, const struct config *c, struct error *err)
{
    if (c->socket_group && *c->socket_group) {
        const struct group *g = getgrnam(c->socket_group);
        if (!g)
            return ERR(err, NOT_FOUND, "socket_group: there is no group %s", c->socket_group);
        if (chown(l->path, (uid_t)-1, g->gr_gid) < 0)
            return ERR(err, IO, "socket_group: %s: %s", l->path, strerror(errno));
    }
    if (chmod(l->path, c->socket_mode) < 0)
        return ERR(err, IO, "socket_mode: %s: %s", l->path, strerror(errno));
    return 0;
}

int listener_open(struct listener *l, const struct config *c, int *ret_fd, struct error *err)
{
    struct sockaddr_un a;
    *l = LISTENER_NONE;
    int r = listener_inherited(l->path, false, err);
    if (r > 0) {
        const int fd = SD_LISTEN_FDS_START;
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        *ret_fd = fd;
    }
    if (r != 0)
        return r < 0 ? r : 0;
    r = listener_path(c, l->path, err);
    if (r == 0)
        r = wire_address(l->path, &a, err);
    if (r == 0)
        r = make_folder(l, c, err);
    if (r == 0)
        r = lock(l, err);
    if (r == 0)
        r = clear_stale(l, &a, err);
    if (r < 0)
        return r;
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return ERR(err, IO, "socket: %s", strerror(errno));
    /* Nobody may connect before the mode is as configured. */
    mode_t old = umask(0177);
    int e = bind(fd, (const struct sockaddr *)&a, sizeof a);
    int why = errno;
    umask(old);
    if (e < 0)
        return ERR(err, IO, "%s: %s", l->path, strerror(why));
    l->own = true;
    r = set_access(l, c, err);
    if (r < 0)
        return r;
    if (listen(fd, BACKLOG) < 0)
        return ERR(err, IO, "%s: %s", l->path, strerror(errno));
    *ret_fd = TAKE_FD(fd);
    return 0;
}

void listener_close(struct listener *l)
{
    if (l->own)
        unlink(l->path);
    l->own = false;
    unlock(l);
}
