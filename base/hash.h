/* SPDX-License-Identifier: Apache-2.0 */
/* Open-addressing table u64 -> u64 for hot look-ups (merges, prefix blocks) and a mixing hash.
 * Objects with string keys use uthash instead. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The finaliser of SplitMix64: a bijection, so distinct keys never collapse before masking. */
static inline uint64_t hash_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed); /* xxHash64 */

struct u64map {
    uint64_t *keys, *vals;
    uint8_t *used; /* 0 free, 1 used, 2 deleted */
    size_t cap, len, tombs;
};
int u64map_init(struct u64map *m, size_t expected); /* 0 or DEDIT_E_NOMEM */
void u64map_done(struct u64map *m);
int u64map_put(struct u64map *m, uint64_t key, uint64_t val); /* replaces; may grow: NOMEM */
bool u64map_get(const struct u64map *m, uint64_t key, uint64_t *ret);
bool u64map_del(struct u64map *m, uint64_t key);
