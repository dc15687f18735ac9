/* SPDX-License-Identifier: Apache-2.0 */
/* The heap: every allocation passes the failure hook and is counted. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

/* A statistic only: nothing is ordered by it. */
static atomic_size_t live;
/* Set before threads start. */
static mem_fail_fn fail_fn;
static void *fail_arg;

static bool must_fail(size_t bytes)
{
    return fail_fn && fail_fn(fail_arg, bytes);
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return p;
}

void mem_set_fail_hook(mem_fail_fn fn, void *arg)
{
    fail_fn = fn;
    fail_arg = arg;
}

size_t mem_live_count(void)
{
    return atomic_load_explicit(&live, memory_order_relaxed);
}

void *mem_alloc(size_t bytes)
{
    if (must_fail(bytes))
        return NULL;
    return counted(malloc(bytes ? bytes : 1));
}

void *mem_zalloc(size_t bytes)
{
    if (must_fail(bytes))
        return NULL;
    return counted(calloc(1, bytes ? bytes : 1));
}

void *mem_calloc(size_t n, size_t size)
{
    size_t bytes;
    return size_mul(n, size, &bytes) ? mem_zalloc(bytes) : NULL;
}

void *mem_array(size_t n, size_t size)
{
    size_t bytes;
    return size_mul(n, size, &bytes) ? mem_alloc(bytes) : NULL;
}

void *mem_realloc(void *p, size_t bytes)
{
    if (!p)
        return mem_alloc(bytes);
    if (must_fail(bytes))
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *mem_realloc_array(void *p, size_t n, size_t size)
{
    size_t bytes;
    return size_mul(n, size, &bytes) ? mem_realloc(p, bytes) : NULL;
}

void *mem_aligned(size_t align, size_t bytes)
{
    void *p;
    if (align < sizeof(void *))
        align = sizeof(void *);
    if (must_fail(bytes) || posix_memalign(&p, align, bytes ? bytes : 1))
        return NULL;
    return counted(p);
}

void mem_free(void *p)
{
    if (p)
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free(p);
}

char *mem_strdup(const char *s)
{
    return mem_memdup(s, strlen(s) + 1);
}

char *mem_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *d = mem_alloc(len + 1);
    if (d) {
        memcpy(d, s, len);
        d[len] = '\0';
    }
    return d;
}

void *mem_memdup(const void *s, size_t n)
{
    void *d = mem_alloc(n);
    if (d && n)
        memcpy(d, s, n);
    return d;
}

void *mem_map_pages(size_t bytes)
{
    if (must_fail(bytes))
        return NULL;
    void *p =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    /* Advice: a kernel without huge pages refuses it, and nothing is lost. */
    (void)madvise(p, bytes ? bytes : 1, MADV_HUGEPAGE);
    return counted(p);
}

void mem_unmap_pages(void *p, size_t bytes)
{
    if (!p)
        return;
    munmap(p, bytes ? bytes : 1);
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
}
