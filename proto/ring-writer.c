/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of a token ring.  Run by the thread that owns the request (engine thread);
 * creation and teardown by the loop thread while no request uses the slot. */
#include "proto/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int ring_writer_init(struct ring_writer *w, uint32_t capacity, struct error *err)
{
    struct ring_writer n = {.ring_fd = -1, .cursor_fd = -1, .event_fd = -1};
    void *m;
    int r;

    if (capacity < RING_MIN_CAPACITY || capacity > RING_MAX_CAPACITY ||
        (capacity & (capacity - 1)) != 0)
        return ERR(err, INVALID, "ring capacity %u: must be a power of two in %u..%u", capacity,
                   RING_MIN_CAPACITY, RING_MAX_CAPACITY);
    n.capacity = capacity;
    size_t bytes = RING_HEADER_BYTES + (size_t)capacity;

    n.ring_fd = r = memfd_new("dedit-ring", bytes, err);
    if (r < 0)
        goto fail;
    n.cursor_fd = r = memfd_new("dedit-cursor", RING_CURSOR_BYTES, err);
    if (r < 0)
        goto fail;
    n.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n.event_fd < 0) {
        r = ERR(err, IO, "eventfd: %s", strerror(errno));
        goto fail;
    }
    m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, n.ring_fd, 0);
    if (m == MAP_FAILED) {
        r = ERR(err, IO, "mapping a ring of %zu bytes: %s", bytes, strerror(errno));
        goto fail;
    }
    n.header = m;
    n.data = (uint8_t *)m + RING_HEADER_BYTES;
    m = mmap(NULL, RING_CURSOR_BYTES, PROT_READ, MAP_SHARED, n.cursor_fd, 0);
    if (m == MAP_FAILED) {
        r = ERR(err, IO, "mapping a cursor page: %s", strerror(errno));
        goto fail;
    }
    n.cursor = m;
    n.header->magic = RING_MAGIC;
    n.header->version = RING_VERSION;
    n.header->header_bytes = RING_HEADER_BYTES;
    n.header->capacity = capacity;
    r = memfd_seal(n.ring_fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, err);
    if (r < 0)
        goto fail;
    r = memfd_seal(n.cursor_fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, err);
    if (r < 0)
        goto fail;
    *w = n;
    return 0;
fail:
    ring_writer_done(&n);
    return r;
}

void ring_writer_done(struct ring_writer *w)
{
    if (w->header)
        munmap(w->header, RING_HEADER_BYTES + (size_t)w->capacity);
    if (w->cursor)
        munmap((void *)(uintptr_t)w->cursor, RING_CURSOR_BYTES);
    fd_close(w->ring_fd);
    fd_close(w->cursor_fd);
    fd_close(w->event_fd);
    *w = (struct ring_writer){.ring_fd = -1, .cursor_fd = -1, .event_fd = -1};
}

uint64_t ring_writer_begin(struct ring_writer *w, uint64_t request_id)
{
    w->header->request_id = request_id;
    w->header->start_pos = w->write_pos;
    __atomic_store_n(&w->header->state, RING_ACTIVE, __ATOMIC_RELEASE);
    return w->write_pos;
}

void ring_writer_end(struct ring_writer *w)
{
    __atomic_store_n(&w->header->state, RING_ENDED, __ATOMIC_RELEASE);
}

/*
 * The client's read position, one load.  It may lie anywhere in memory of the peer, so it must be
 * between the last accepted one and what was published.  Acquire: the reader's loads of the bytes
 * that we are about to overwrite happened before its store.
 */
static int read_position(struct ring_writer *w, uint64_t *ret, struct error *err)
{
    uint64_t p = __atomic_load_n(&w->cursor->read_pos, __ATOMIC_ACQUIRE);
    if (p < w->last_read || p > w->write_pos || p % 8 != 0)
        return ERR(err, PROTOCOL,
                   "ring cursor: read position %llu must be a multiple of 8 in %llu..%llu",
                   (unsigned long long)p, (unsigned long long)w->last_read,
                   (unsigned long long)w->write_pos);
    w->last_read = p;
    *ret = p;
    return 0;
}

int ring_writer_drained(struct ring_writer *w, bool *ret, struct error *err)
{
    uint64_t p = 0;
    int r = read_position(w, &p, err);
    if (r < 0)
        return r;
    *ret = p == w->write_pos;
    return 0;
}

int ring_reserve(struct ring_writer *w, uint32_t size, void **ret, struct error *err)
{
    uint64_t head = w->write_pos + w->pending, read = 0;

    if (size < sizeof(struct ring_record) || size % 8 != 0 || size > RING_MAX_RECORD)
        return ERR(err, INTERNAL, "ring record of %u bytes", size);
    uint32_t at = (uint32_t)(head & (w->capacity - 1));
    uint32_t rest = w->capacity - at; /* multiple of 8: always room for a PAD header */
    uint32_t pad = rest < size ? rest : 0;
    int r = read_position(w, &read, err);
    if (r < 0)
        return r;
    if (head - read + pad + size > w->capacity)
        return 1;
    if (pad) {
        struct ring_record *p = (void *)(w->data + at);
        *p = (struct ring_record){.size = pad, .type = RING_PAD};
        w->pending += pad;
        at = 0;
    }
    w->pending += size;
    struct ring_record *rec = (void *)(w->data + at);
    *rec = (struct ring_record){.size = size};
    *ret = rec;
    return 0;
}

void ring_publish(struct ring_writer *w)
{
    if (w->pending == 0)
        return;
    w->write_pos += w->pending;
    w->pending = 0;
    /* Release: the records' bytes before the position. */
    __atomic_store_n(&w->header->write_pos, w->write_pos, __ATOMIC_RELEASE);
    /* Full fence between this store and the load of the flag; its twin is in ring_reader_sleep. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&w->cursor->asleep, __ATOMIC_RELAXED) == 0)
        return;
    uint64_t one = 1;
    __atomic_fetch_add(&w->header->futex, 1, __ATOMIC_RELEASE);
    w->wakes++;
    /* A full counter (the peer wrote to it) still wakes; nothing to do on failure. */
    if (write(w->event_fd, &one, sizeof one) < 0)
        return;
}

void ring_discard(struct ring_writer *w)
{
    w->pending = 0;
}

/* Half of the ring is free? 1 when not. */
static int check_room(struct ring_writer *w, struct error *err)
{
    uint64_t read = 0;
    int r = read_position(w, &read, err);
    if (r < 0)
        return r;
    if (w->write_pos + w->pending - read > w->capacity / 2)
        return 1;
    __atomic_store_n(&w->header->stalled, 0, __ATOMIC_RELAXED);
    return 0;
}

int ring_writer_stall(struct ring_writer *w, struct error *err)
{
    if (++w->stalls == 0)
        w->stalls = 1; /* 0 means "not stalled" */
    __atomic_store_n(&w->header->stalled, w->stalls, __ATOMIC_RELAXED);
    /* Full fence before the load of the cursor; its twin is in ring_reader_release. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return check_room(w, err);
}

int ring_writer_stalled(struct ring_writer *w, struct error *err)
{
    return check_room(w, err);
}
