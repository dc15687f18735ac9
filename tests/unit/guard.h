/* SPDX-License-Identifier: Apache-2.0 */
/* Memory between two pages that may not be touched: its end is (rounded up to `align`) the end of a
 * page, so that a kernel that reads or writes a line too far dies at once. */
#pragma once

#include <check.h>
#include <string.h>
#include <sys/mman.h>

#define GUARD_PAGE 4096u

static inline void *guard_new(size_t bytes, size_t align)
{
    size_t inside = (bytes + align - 1) / align * align;
    size_t pages = (inside + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE;
    /* guard | size of the mapping and filling ... data | guard */
    char *m = mmap(NULL, pages + 3 * GUARD_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(m, MAP_FAILED);
    size_t total = pages + 3 * GUARD_PAGE;
    memcpy(m, &total, sizeof total);
    ck_assert_int_eq(mprotect(m + GUARD_PAGE, GUARD_PAGE, PROT_NONE), 0);
    ck_assert_int_eq(mprotect(m + 2 * GUARD_PAGE + pages, GUARD_PAGE, PROT_NONE), 0);
    char *data = m + 2 * GUARD_PAGE + pages - inside;
    memset(data, 0xff, inside);
    return data;
}

static inline void guard_free(void *p, size_t bytes, size_t align)
{
    size_t inside = (bytes + align - 1) / align * align;
    size_t pages = (inside + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE, total;
    char *m = (char *)p + inside - pages - 2 * GUARD_PAGE;
    memcpy(&total, m, sizeof total);
    ck_assert_uint_eq(total, pages + 3 * GUARD_PAGE);
    munmap(m, total);
}
