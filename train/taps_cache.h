/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of features: a header, then records in the order in which sequences first came, each with
 * a checksum.  A record that was torn, or is another sequence's, is computed anew.  The file is
 * read once when opened, to find the records; it grows to its limit and then stays.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"

struct taps_cache {
    int fd; /* -1: there is none */
    uint64_t key, end, limit;
    uint32_t stride;
    struct u64map at; /* hash of a sequence -> offset of its record */
};
/* A file with another key is begun anew. */
int taps_cache_open(struct taps_cache *c, const char *path, uint64_t limit, uint64_t key,
                    uint32_t stride, struct error *err);
void taps_cache_close(struct taps_cache *c);
/* True when the values [n] of this sequence were found and are whole. */
bool taps_cache_get(struct taps_cache *c, uint64_t index, uint64_t hash, uint16_t *ret, size_t n);
/* Appends, when there is room.  A full disk ends the cache, not the run. */
int taps_cache_put(struct taps_cache *c, uint64_t index, uint64_t hash, const uint16_t *v, size_t n,
                   struct error *err);
