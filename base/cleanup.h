/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-bound release of memory, descriptors and objects (GCC and clang cleanup attribute). */
#pragma once

#define _cleanup_(f) __attribute__((cleanup(f)))

/* Defines f##p(T *p), to be used as _cleanup_(f##p) T x = NULL; f must take NULL. */
#define DEFINE_CLEANUP(T, f)                                                                       \
    static inline void f##p(T *p)                                                                  \
    {                                                                                              \
        if (*p)                                                                                    \
            f(*p);                                                                                 \
    }                                                                                              \
    struct dedit_swallow_semicolon

/* Hands a pointer or descriptor over to somebody else: yields it and leaves NULL / -1 behind. */
#define TAKE_PTR(p)                                                                                \
    ({                                                                                             \
        __typeof__(p) *take_pp_ = &(p);                                                            \
        __typeof__(p) take_p_ = *take_pp_;                                                         \
        *take_pp_ = NULL;                                                                          \
        take_p_;                                                                                   \
    })
#define TAKE_FD(fd)                                                                                \
    ({                                                                                             \
        int *take_fdp_ = &(fd);                                                                    \
        int take_fd_ = *take_fdp_;                                                                 \
        *take_fdp_ = -1;                                                                           \
        take_fd_;                                                                                  \
    })

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
