/* SPDX-License-Identifier: Apache-2.0 */
/* Sorted name tables: heap sort and binary search. */
#include "engine/names.h"

#include <string.h>

static int compare_bytes(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t n = a_len < b_len ? a_len : b_len;
    int c = n ? memcmp(a, b, n) : 0;
    return c ? c : (a_len > b_len) - (a_len < b_len);
}

static bool name_before(const struct name_ref *a, const struct name_ref *b)
{
    int c = compare_bytes(a->s, a->len, b->s, b->len);
    return c ? c < 0 : a->index < b->index;
}

static bool range_before(const struct byte_range *a, const struct byte_range *b)
{
    if (a->begin != b->begin)
        return a->begin < b->begin;
    return a->end != b->end ? a->end < b->end : a->index < b->index;
}

/* Heap sort of an array of T: the largest of the heap [0, end) goes to its end, over and over. */
#define DEFINE_HEAP_SORT(NAME, T, before)                                                          \
    static void NAME##_sift(T *a, size_t at, size_t end)                                           \
    {                                                                                              \
        T v = a[at];                                                                               \
        for (size_t child; (child = 2 * at + 1) < end; at = child) {                               \
            if (child + 1 < end && before(&a[child], &a[child + 1]))                               \
                child++;                                                                           \
            if (!before(&v, &a[child]))                                                            \
                break;                                                                             \
            a[at] = a[child];                                                                      \
        }                                                                                          \
        a[at] = v;                                                                                 \
    }                                                                                              \
    void NAME(T *a, size_t n)                                                                      \
    {                                                                                              \
        for (size_t i = n / 2; i-- > 0;)                                                           \
            NAME##_sift(a, i, n);                                                                  \
        for (size_t end = n; end > 1;) {                                                           \
            T last = a[--end];                                                                     \
            a[end] = a[0];                                                                         \
            a[0] = last;                                                                           \
            NAME##_sift(a, 0, end);                                                                \
        }                                                                                          \
    }

DEFINE_HEAP_SORT(names_sort, struct name_ref, name_before)
DEFINE_HEAP_SORT(ranges_sort, struct byte_range, range_before)

const struct name_ref *names_duplicate(const struct name_ref *refs, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (!compare_bytes(refs[i - 1].s, refs[i - 1].len, refs[i].s, refs[i].len))
            return &refs[i - 1];
    return NULL;
}

const struct name_ref *names_find(const struct name_ref *refs, size_t n, const char *s, size_t len)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = compare_bytes(refs[mid].s, refs[mid].len, s, len);
        if (c == 0)
            return &refs[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

bool data_is_lfs_pointer(const void *data, size_t size)
{
    static const char start[] = "version https://git-lfs";
    return size >= sizeof(start) - 1 && !memcmp(data, start, sizeof(start) - 1);
}
