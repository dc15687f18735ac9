/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All heap memory of the project goes through here, so that a test can make the n-th allocation
 * fail and count what is live.  Any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

void *mem_alloc(size_t bytes);             /* not zeroed; bytes 0 gives a unique pointer */
void *mem_zalloc(size_t bytes);            /* zeroed */
void *mem_calloc(size_t n, size_t size);   /* zeroed, NULL when n * size overflows */
void *mem_array(size_t n, size_t size);    /* not zeroed, NULL when n * size overflows */
void *mem_realloc(void *p, size_t bytes);  /* NULL leaves p alone */
void *mem_realloc_array(void *p, size_t n, size_t size);
void *mem_aligned(size_t align, size_t bytes); /* align: power of two; free with mem_free */
void mem_free(void *p);                    /* NULL is fine */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
void *mem_memdup(const void *s, size_t n);

/* Anonymous pages (large pools, packed weights): page aligned, zeroed, huge pages advised.
 * Seen by the failure hook too. */
void *mem_map_pages(size_t bytes);
void mem_unmap_pages(void *p, size_t bytes);

/* Test hook: returns true when this allocation must fail.  NULL removes it.  Set before threads. */
typedef bool (*mem_fail_fn)(void *arg, size_t bytes);
void mem_set_fail_hook(mem_fail_fn fn, void *arg);
/* Number of live mem_* allocations (counted always, relaxed): 0 growth is what leak tests check. */
size_t mem_live_count(void);

static inline void mem_freep(void *p)
{
    mem_free(*(void **)p);
}
#define _cleanup_free_ _cleanup_(mem_freep)

/*
 * Arena: allocations that live and die together (one request, one file).  Not thread safe.
 * arena_limit bounds the total; over it allocation returns NULL.
 */
struct arena;
struct arena *arena_new(size_t limit_bytes); /* 0 = no limit; NULL when out of memory */
struct arena *arena_free(struct arena *a);   /* returns NULL; takes NULL */
void *arena_alloc(struct arena *a, size_t bytes); /* 16-byte aligned, not zeroed */
void *arena_zalloc(struct arena *a, size_t bytes);
char *arena_strndup(struct arena *a, const char *s, size_t n);
size_t arena_used(const struct arena *a);
/* True when an allocation failed for want of memory, not for the limit. */
bool arena_out_of_memory(const struct arena *a);
DEFINE_CLEANUP(struct arena *, arena_free);
