/* SPDX-License-Identifier: Apache-2.0 */
/* Arena: a list of chunks, filled from the newest.  What does not fit into the newest chunk starts
 * a new one, twice as large as the one before (up to CHUNK_MAX) or as large as the request. */
#include <stdalign.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"

#define CHUNK_MIN 4096u
#define CHUNK_MAX (1u << 20)
#define ALIGN     16u

struct chunk {
    struct chunk *next;
    alignas(ALIGN) unsigned char data[];
};

struct arena {
    struct chunk *chunks; /* newest first */
    size_t free_bytes;    /* left at the end of the newest chunk */
    unsigned char *free_at;
    size_t chunk_bytes; /* payload of the next chunk */
    size_t used, limit; /* bytes handed out, rounded up to ALIGN; 0 = no limit */
    bool out_of_memory;
};

struct arena *arena_new(size_t limit_bytes)
{
    struct arena *a = mem_zalloc(sizeof(*a));
    if (a) {
        a->chunk_bytes = CHUNK_MIN - sizeof(struct chunk);
        a->limit = limit_bytes;
    }
    return a;
}

struct arena *arena_free(struct arena *a)
{
    if (!a)
        return NULL;
    for (struct chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    mem_free(a);
    return NULL;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    size_t need, used;
    if (!size_round_up(bytes ? bytes : 1, ALIGN, &need) || !size_add(a->used, need, &used))
        return NULL;
    if (a->limit && used > a->limit)
        return NULL;
    if (need > a->free_bytes) {
        size_t payload = need > a->chunk_bytes ? need : a->chunk_bytes, total;
        if (!size_add(payload, sizeof(struct chunk), &total))
            return NULL;
        struct chunk *c = mem_alloc(total);
        if (!c) {
            a->out_of_memory = true;
            return NULL;
        }
        c->next = a->chunks;
        a->chunks = c;
        a->free_at = c->data;
        a->free_bytes = payload;
        if (a->chunk_bytes < CHUNK_MAX)
            a->chunk_bytes *= 2;
    }
    void *p = a->free_at;
    a->free_at += need;
    a->free_bytes -= need;
    a->used = used;
    return p;
}

void *arena_zalloc(struct arena *a, size_t bytes)
{
    void *p = arena_alloc(a, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *d = arena_alloc(a, len + 1);
    if (d) {
        memcpy(d, s, len);
        d[len] = '\0';
    }
    return d;
}

size_t arena_used(const struct arena *a)
{
    return a->used;
}

bool arena_out_of_memory(const struct arena *a)
{
    return a->out_of_memory;
}
