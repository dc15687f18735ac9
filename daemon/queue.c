/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/queue.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

struct queue {
    struct message *m;
    size_t mask;
    int fd;
    _Alignas(64) uint64_t head; /* written by the writer: release after the message */
    _Alignas(64) uint64_t tail; /* written by the reader: release after taking it */
    _Alignas(64) uint32_t asleep;
};

int queue_new(size_t capacity, struct queue **ret, struct error *err)
{
    size_t n = 16;
    while (n < capacity)
        n *= 2;
    struct queue *q = mem_aligned(64, sizeof *q);
    if (!q)
        return ERR_NOMEM(err);
    memset(q, 0, sizeof *q);
    q->mask = n - 1;
    q->m = mem_calloc(n, sizeof *q->m);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!q->m || q->fd < 0) {
        int e = errno;
        bool nomem = !q->m;
        queue_free(q);
        return nomem ? ERR_NOMEM(err) : ERR(err, IO, "eventfd: %s", strerror(e));
    }
    *ret = q;
    return 0;
}

struct queue *queue_free(struct queue *q)
{
    if (!q)
        return NULL;
    fd_close(q->fd);
    mem_free(q->m);
    mem_free(q);
    return NULL;
}

int queue_fd(const struct queue *q)
{
    return q->fd;
}

bool queue_push(struct queue *q, struct message m)
{
    uint64_t head = q->head;
    if (head - __atomic_load_n(&q->tail, __ATOMIC_ACQUIRE) > q->mask)
        return false;
    q->m[head & q->mask] = m;
    __atomic_store_n(&q->head, head + 1, __ATOMIC_RELEASE);
    /* Full fence between the message and the flag; its twin is in queue_sleep. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&q->asleep, __ATOMIC_RELAXED)) {
        uint64_t one = 1;
        if (write(q->fd, &one, sizeof one) < 0)
            return true; /* the counter is full: the reader is woken all the same */
    }
    return true;
}

bool queue_pop(struct queue *q, struct message *ret)
{
    uint64_t tail = q->tail;
    if (__atomic_load_n(&q->head, __ATOMIC_ACQUIRE) == tail)
        return false;
    *ret = q->m[tail & q->mask];
    __atomic_store_n(&q->tail, tail + 1, __ATOMIC_RELEASE);
    return true;
}

bool queue_sleep(struct queue *q)
{
    __atomic_store_n(&q->asleep, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&q->head, __ATOMIC_RELAXED) != q->tail) {
        __atomic_store_n(&q->asleep, 0, __ATOMIC_RELAXED);
        return false;
    }
    return true;
}

void queue_awake(struct queue *q)
{
    uint64_t n;
    __atomic_store_n(&q->asleep, 0, __ATOMIC_RELAXED);
    while (read(q->fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
}
