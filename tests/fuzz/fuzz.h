/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzz target defines, and how it says that a property does not hold. */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* A target that keeps something from one input to the next frees it here, before leaks are counted. */
void fuzz_done(void) __attribute__((weak));

/* Unlike assert() it is never compiled out. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            __builtin_trap();                                                                      \
    } while (0)
