/* SPDX-License-Identifier: Apache-2.0 */
/* Overflow-safe arithmetic: each returns true on success and sets *r only then. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool size_add(size_t a, size_t b, size_t *r)
{
    size_t t;
    if (__builtin_add_overflow(a, b, &t))
        return false;
    *r = t;
    return true;
}

static inline bool size_mul(size_t a, size_t b, size_t *r)
{
    size_t t;
    if (__builtin_mul_overflow(a, b, &t))
        return false;
    *r = t;
    return true;
}

/* Rounds up to a multiple of align (any positive number). */
static inline bool size_round_up(size_t a, size_t align, size_t *r)
{
    size_t rest = a % align;
    return size_add(a, rest ? align - rest : 0, r);
}
