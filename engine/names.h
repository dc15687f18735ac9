/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorted name tables of model files: look-up, duplicates, and overlap of byte ranges.  Sorting is
 * in place, without recursion and n log n whatever the input, since the input is hostile.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name_ref {
    const char *s; /* borrowed, not NUL-terminated */
    size_t len;
    uint32_t index; /* the caller's */
};
/* Sorts by bytes, then by index. */
void names_sort(struct name_ref *refs, size_t n);
/* First entry of a sorted table whose successor has the same name, or NULL. */
const struct name_ref *names_duplicate(const struct name_ref *refs, size_t n);
const struct name_ref *names_find(const struct name_ref *refs, size_t n, const char *s, size_t len);

struct byte_range {
    uint64_t begin, end;
    uint32_t index;
};
/* Sorts by begin, then end, then index. */
void ranges_sort(struct byte_range *r, size_t n);

/* A frequent mishap: a checkout without Git LFS has small text files in place of the big ones. */
bool data_is_lfs_pointer(const void *data, size_t size);
#define LFS_POINTER_TEXT                                                                           \
    "a Git LFS pointer, not the file itself (run \"git lfs pull\" in its checkout)"
