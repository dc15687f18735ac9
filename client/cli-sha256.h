/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) of what goes into the model store. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
};
void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t n);
void sha256_hex(struct sha256 *s, char hex[65]); /* ends it */
