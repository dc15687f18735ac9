/* SPDX-License-Identifier: Apache-2.0 */
#include "train/taps_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

struct file_head {
    char magic[8];
    uint64_t key, stride;
};
struct record_head {
    uint64_t hash, n, sum; /* of the sequence; values; xxHash64 of them */
};
static const char magic[8] = {'d', 'e', 'd', 'i', 't', 't', 'p', '1'};

static bool read_at(int fd, void *p, size_t n, uint64_t at)
{
    char *to = p;
    while (n) {
        ssize_t got = pread(fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return true;
}

static bool write_at(int fd, const void *p, size_t n, uint64_t at)
{
    const char *from = p;
    while (n) {
        ssize_t put = pwrite(fd, from, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        from += put;
        at += (uint64_t)put;
        n -= (size_t)put;
    }
    return true;
}

/* Finds the records; what follows the last whole one is cut off. */
static int scan(struct taps_cache *c, uint64_t size, struct error *err)
{
    struct record_head h;
    while (c->end + sizeof(h) <= size && read_at(c->fd, &h, sizeof(h), c->end)) {
        if (h.n == 0 || h.n % c->stride || h.n > (size - c->end - sizeof(h)) / sizeof(uint16_t))
            break;
        if (u64map_put(&c->at, h.hash, c->end) < 0)
            return ERR_NOMEM(err);
        c->end += sizeof(h) + h.n * sizeof(uint16_t);
    }
    return 0;
}

int taps_cache_open(struct taps_cache *c, const char *path, uint64_t limit, uint64_t key,
                    uint32_t stride, struct error *err)
{
    struct file_head h = {.key = key, .stride = stride}, have;
    struct stat st;
    memcpy(h.magic, magic, sizeof(magic));
    *c = (struct taps_cache){.fd = -1, .key = key, .limit = limit, .stride = stride};
    if (u64map_init(&c->at, 1024) < 0)
        return ERR_NOMEM(err);
    c->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (c->fd < 0 || fstat(c->fd, &st) < 0)
        return ERR(err, IO, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ERR(err, INVALID, "%s: not a regular file", path);
    c->end = sizeof(h);
    if ((uint64_t)st.st_size >= sizeof(h) && read_at(c->fd, &have, sizeof(have), 0) &&
        memcmp(&have, &h, sizeof(h)) == 0)
        return scan(c, (uint64_t)st.st_size, err);
    if (st.st_size > 0 &&
        ((uint64_t)st.st_size < sizeof(h) || !read_at(c->fd, &have, sizeof(have), 0) ||
         memcmp(have.magic, magic, sizeof(magic)) != 0))
        return ERR(err, FORMAT, "%s: not a cache of features; it is left alone", path);
    if (ftruncate(c->fd, 0) < 0 || !write_at(c->fd, &h, sizeof(h), 0))
        return ERR(err, IO, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

void taps_cache_close(struct taps_cache *c)
{
    c->fd = fd_close(c->fd);
    u64map_done(&c->at);
}

bool taps_cache_get(struct taps_cache *c, uint64_t index, uint64_t hash, uint16_t *ret, size_t n)
{
    struct record_head h;
    uint64_t at;
    (void)index;
    return c->fd >= 0 && u64map_get(&c->at, hash, &at) && read_at(c->fd, &h, sizeof(h), at) &&
           h.hash == hash && h.n == n && read_at(c->fd, ret, n * sizeof(*ret), at + sizeof(h)) &&
           hash_bytes(ret, n * sizeof(*ret), c->key) == h.sum;
}

int taps_cache_put(struct taps_cache *c, uint64_t index, uint64_t hash, const uint16_t *v, size_t n,
                   struct error *err)
{
    struct record_head h = {.hash = hash, .n = n, .sum = hash_bytes(v, n * sizeof(*v), c->key)};
    uint64_t more = sizeof(h) + n * sizeof(*v), old;
    (void)index;
    if (c->fd < 0 || (c->limit && more > c->limit - (c->end < c->limit ? c->end : c->limit)))
        return 0;
    if (u64map_get(&c->at, hash, &old)) { /* damaged: in its place */
        struct record_head was;
        if (read_at(c->fd, &was, sizeof(was), old) && was.n == n &&
            write_at(c->fd, v, n * sizeof(*v), old + sizeof(h)))
            (void)write_at(c->fd, &h, sizeof(h), old);
        return 0;
    }
    if (!write_at(c->fd, v, n * sizeof(*v), c->end + sizeof(h)) ||
        !write_at(c->fd, &h, sizeof(h), c->end)) {
        /* What was written of it is cut off, or found to be no record. */
        c->limit = ftruncate(c->fd, (off_t)c->end) < 0 ? 1 : c->end;
        return 0;
    }
    if (u64map_put(&c->at, hash, c->end) < 0)
        return ERR_NOMEM(err);
    c->end += more;
    return 0;
}
