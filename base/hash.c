/* SPDX-License-Identifier: Apache-2.0 */
/* u64 -> u64 table: linear probing, power-of-two capacity, at most 3/4 of it used or deleted. */
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

enum { SLOT_FREE = 0, SLOT_USED = 1, SLOT_DELETED = 2 };

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed)
{
    return XXH64(p, n, seed);
}

static int table_new(struct u64map *m, size_t cap)
{
    _cleanup_free_ uint64_t *keys = mem_array(cap, sizeof(*keys));
    _cleanup_free_ uint64_t *vals = mem_array(cap, sizeof(*vals));
    _cleanup_free_ uint8_t *used = mem_calloc(cap, sizeof(*used));
    if (!keys || !vals || !used)
        return DEDIT_E_NOMEM;
    *m = (struct u64map){
        .keys = TAKE_PTR(keys), .vals = TAKE_PTR(vals), .used = TAKE_PTR(used), .cap = cap};
    return 0;
}

int u64map_init(struct u64map *m, size_t expected)
{
    size_t cap = 16, want;
    *m = (struct u64map){0};
    if (!size_add(expected, expected / 3, &want) || !size_add(want, 1, &want))
        return DEDIT_E_NOMEM;
    while (cap < want)
        if (!size_mul(cap, 2, &cap))
            return DEDIT_E_NOMEM;
    return table_new(m, cap);
}

void u64map_done(struct u64map *m)
{
    mem_free(m->keys);
    mem_free(m->vals);
    mem_free(m->used);
    *m = (struct u64map){0};
}

/* The slot that holds key, or cap. */
static size_t find(const struct u64map *m, uint64_t key)
{
    size_t mask = m->cap - 1;
    if (m->cap)
        for (size_t i = (size_t)hash_mix64(key) & mask; m->used[i] != SLOT_FREE; i = (i + 1) & mask)
            if (m->used[i] == SLOT_USED && m->keys[i] == key)
                return i;
    return m->cap;
}

/* Puts a key that is not there into the first slot that takes it. */
static void insert(struct u64map *m, uint64_t key, uint64_t val)
{
    size_t mask = m->cap - 1, i = (size_t)hash_mix64(key) & mask;
    while (m->used[i] == SLOT_USED)
        i = (i + 1) & mask;
    if (m->used[i] == SLOT_DELETED)
        m->tombs--;
    m->used[i] = SLOT_USED;
    m->keys[i] = key;
    m->vals[i] = val;
    m->len++;
}

int u64map_put(struct u64map *m, uint64_t key, uint64_t val)
{
    size_t at = find(m, key);
    if (at < m->cap) {
        m->vals[at] = val;
        return 0;
    }
    if (m->len + m->tombs + 1 > m->cap / 4 * 3) {
        /* Twice as large when it is full of live keys, the same size when deleted ones fill it. */
        struct u64map bigger;
        size_t cap = m->cap ? m->cap : 16;
        if (m->len + 1 > cap / 2 && !size_mul(cap, 2, &cap))
            return DEDIT_E_NOMEM;
        int r = table_new(&bigger, cap);
        if (r < 0)
            return r;
        for (size_t i = 0; i < m->cap; i++)
            if (m->used[i] == SLOT_USED)
                insert(&bigger, m->keys[i], m->vals[i]);
        u64map_done(m);
        *m = bigger;
    }
    insert(m, key, val);
    return 0;
}

bool u64map_get(const struct u64map *m, uint64_t key, uint64_t *ret)
{
    size_t at = find(m, key);
    if (at == m->cap)
        return false;
    *ret = m->vals[at];
    return true;
}

bool u64map_del(struct u64map *m, uint64_t key)
{
    size_t at = find(m, key);
    if (at == m->cap)
        return false;
    m->used[at] = SLOT_DELETED;
    m->tombs++;
    m->len--;
    return true;
}
