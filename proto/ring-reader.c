/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of a token ring.  One thread per ring at a time. */
#include "proto/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int ring_reader_init(struct ring_reader *r, int ring_fd, int cursor_fd, int event_fd,
                     struct error *err)
{
    struct ring_reader n = {.ring_fd = ring_fd, .cursor_fd = cursor_fd, .event_fd = event_fd};
    size_t bytes = 0, cursor_bytes = 0;
    void *m;
    int e;

    e = memfd_check(ring_fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
                    RING_HEADER_BYTES + RING_MIN_CAPACITY, &bytes, err);
    if (e < 0)
        goto fail;
    e = memfd_check(cursor_fd, F_SEAL_SHRINK | F_SEAL_GROW, RING_CURSOR_BYTES, &cursor_bytes, err);
    if (e < 0)
        goto fail;
    m = mmap(NULL, bytes, PROT_READ, MAP_SHARED, ring_fd, 0);
    if (m == MAP_FAILED) {
        e = ERR(err, IO, "mapping a ring of %zu bytes: %s", bytes, strerror(errno));
        goto fail;
    }
    n.header = m;
    n.ring_bytes = bytes;
    n.data = (const uint8_t *)m + RING_HEADER_BYTES;
    n.capacity = n.header->capacity;
    if (n.header->magic != RING_MAGIC || n.header->version != RING_VERSION ||
        n.header->header_bytes != RING_HEADER_BYTES || n.capacity < RING_MIN_CAPACITY ||
        (n.capacity & (n.capacity - 1)) != 0 || n.capacity > bytes - RING_HEADER_BYTES) {
        e = ERR(err, PROTOCOL,
                "ring header: magic %#x version %u capacity %u in a file of %zu bytes; version %u "
                "is spoken here",
                n.header->magic, n.header->version, n.capacity, bytes, RING_VERSION);
        goto fail;
    }
    m = mmap(NULL, RING_CURSOR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, cursor_fd, 0);
    if (m == MAP_FAILED) {
        e = ERR(err, IO, "mapping a cursor page: %s", strerror(errno));
        goto fail;
    }
    n.cursor = m;
    *r = n;
    return 0;
fail:
    ring_reader_done(&n);
    return e;
}

void ring_reader_done(struct ring_reader *r)
{
    if (r->header)
        munmap((void *)(uintptr_t)r->header, r->ring_bytes);
    if (r->cursor)
        munmap(r->cursor, RING_CURSOR_BYTES);
    fd_close(r->ring_fd);
    fd_close(r->cursor_fd);
    fd_close(r->event_fd);
    *r = (struct ring_reader){.ring_fd = -1, .cursor_fd = -1, .event_fd = -1};
}

void ring_reader_begin(struct ring_reader *r, uint64_t start_pos)
{
    if (start_pos > r->read_pos)
        r->read_pos = start_pos;
    ring_reader_release(r);
}

int ring_reader_next(struct ring_reader *r, struct ring_view *ret, struct error *err)
{
    for (;;) {
        /* Acquire: the records' bytes after the position. */
        uint64_t w = __atomic_load_n(&r->header->write_pos, __ATOMIC_ACQUIRE);
        uint64_t left = w - r->read_pos;
        if (left == 0)
            return 1;
        if ((w | r->read_pos) % 8 != 0)
            return ERR(err, PROTOCOL, "ring: positions %llu and %llu must be multiples of 8",
                       (unsigned long long)r->read_pos, (unsigned long long)w);
        if (left > r->capacity)
            return ERR(err, PROTOCOL, "ring: %llu bytes unread, the capacity is %u",
                       (unsigned long long)left, r->capacity);
        uint32_t at = (uint32_t)(r->read_pos & (r->capacity - 1));
        uint32_t lap = r->capacity - at;
        int e = ring_validate(r->data + at, left < lap ? (size_t)left : lap, ret, err);
        if (e <= 0)
            return e;
        ring_reader_advance(r, ret->size);
    }
}

void ring_reader_advance(struct ring_reader *r, uint32_t size)
{
    r->read_pos += size;
}

bool ring_reader_release(struct ring_reader *r)
{
    if (r->published_pos != r->read_pos) {
        r->published_pos = r->read_pos;
        /* Release: our loads of the records before the daemon may overwrite them. */
        __atomic_store_n(&r->cursor->read_pos, r->read_pos, __ATOMIC_RELEASE);
        /* Full fence before the load of the flag; its twin is in ring_writer_stall. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    }
    uint32_t stall = __atomic_load_n(&r->header->stalled, __ATOMIC_RELAXED);
    if (stall == 0 || stall == r->stall_told)
        return false;
    uint64_t w = __atomic_load_n(&r->header->write_pos, __ATOMIC_ACQUIRE);
    if (w - r->read_pos > r->capacity / 2)
        return false;
    r->stall_told = stall;
    return true;
}

bool ring_reader_sleep(struct ring_reader *r)
{
    __atomic_store_n(&r->cursor->asleep, 1, __ATOMIC_RELAXED);
    /* Full fence between this store and the load of the position; its twin is in ring_publish. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&r->header->write_pos, __ATOMIC_RELAXED) != r->read_pos) {
        __atomic_store_n(&r->cursor->asleep, 0, __ATOMIC_RELAXED);
        return false;
    }
    return true;
}

void ring_reader_awake(struct ring_reader *r)
{
    uint64_t n;
    __atomic_store_n(&r->cursor->asleep, 0, __ATOMIC_RELAXED);
    while (read(r->event_fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
}
