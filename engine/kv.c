/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block book-keeping: a free list, a least-recently-used list of cached blocks (published, held by
 * nobody), and a hash table of published blocks chained through the blocks themselves.
 *
 * A block is in exactly one of three states: held (refs > 0), cached (refs 0, published), free.
 */
#include "engine/kv.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

#define NONE UINT32_MAX

struct kv_block {
    uint32_t refs;
    uint32_t next, prev; /* free list (next only) or LRU list */
    uint32_t hash_next;  /* chain of the bucket, when published */
    bool published;
    uint16_t drafted;
    uint64_t hash, parent, namespace_id;
    uint32_t tokens[16];
};

struct kv_pool {
    uint32_t n, n_free, n_cached;
    uint32_t free_head;
    uint32_t lru_head, lru_tail; /* head: least recently used */
    uint32_t mask;               /* buckets - 1 */
    uint32_t *buckets;
    struct kv_block *blocks;
};

int kv_pool_new(uint32_t n_blocks, struct kv_pool **ret, struct error *err)
{
    if (n_blocks == 0 || n_blocks > UINT32_MAX / 16)
        return ERR(err, INVALID, "KV pool of %u blocks: must be 1..%u", n_blocks, UINT32_MAX / 16);
    _cleanup_(kv_pool_freep) struct kv_pool *p = mem_zalloc(sizeof(*p));
    if (!p)
        return ERR_NOMEM(err);
    uint32_t n_buckets = 16;
    while (n_buckets < n_blocks)
        n_buckets *= 2;
    p->n = p->n_free = n_blocks;
    p->mask = n_buckets - 1;
    p->buckets = mem_array(n_buckets, sizeof(*p->buckets));
    p->blocks = mem_calloc(n_blocks, sizeof(*p->blocks));
    if (!p->buckets || !p->blocks)
        return ERR_NOMEM(err);
    memset(p->buckets, 0xff, (size_t)n_buckets * sizeof(*p->buckets));
    for (uint32_t b = 0; b < n_blocks; b++)
        p->blocks[b].next = b + 1 < n_blocks ? b + 1 : NONE;
    p->lru_head = p->lru_tail = NONE;
    *ret = TAKE_PTR(p);
    return 0;
}

struct kv_pool *kv_pool_free(struct kv_pool *p)
{
    if (!p)
        return NULL;
    mem_free(p->buckets);
    mem_free(p->blocks);
    mem_free(p);
    return NULL;
}

uint32_t kv_pool_total(const struct kv_pool *p)
{
    return p->n;
}

uint32_t kv_pool_available(const struct kv_pool *p)
{
    return p->n_free + p->n_cached;
}

uint32_t kv_pool_cached(const struct kv_pool *p)
{
    return p->n_cached;
}

static void lru_remove(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    if (b->prev == NONE)
        p->lru_head = b->next;
    else
        p->blocks[b->prev].next = b->next;
    if (b->next == NONE)
        p->lru_tail = b->prev;
    else
        p->blocks[b->next].prev = b->prev;
    p->n_cached--;
}

static void lru_append(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    b->next = NONE;
    b->prev = p->lru_tail;
    if (p->lru_tail == NONE)
        p->lru_head = block;
    else
        p->blocks[p->lru_tail].next = block;
    p->lru_tail = block;
    p->n_cached++;
}

static void free_push(struct kv_pool *p, uint32_t block)
{
    p->blocks[block].next = p->free_head;
    p->free_head = block;
    p->n_free++;
}

/* Takes the block out of the hash table. */
static void unpublish(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    uint32_t *link = &p->buckets[b->hash & p->mask];
    while (*link != block)
        link = &p->blocks[*link].hash_next;
    *link = b->hash_next;
    b->published = false;
}

int kv_block_take(struct kv_pool *p, uint32_t *ret_block)
{
    uint32_t block = p->free_head;
    if (p->n_free) {
        p->free_head = p->blocks[block].next;
        p->n_free--;
    } else if (p->lru_head != NONE) {
        block = p->lru_head;
        lru_remove(p, block);
        unpublish(p, block);
    } else {
        return DEDIT_E_CONTEXT_FULL;
    }
    p->blocks[block].refs = 1;
    p->blocks[block].drafted = 0;
    *ret_block = block;
    return 0;
}

void kv_block_ref(struct kv_pool *p, uint32_t block)
{
    if (p->blocks[block].refs++ == 0)
        lru_remove(p, block);
}

void kv_block_unref(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    if (--b->refs)
        return;
    if (b->published)
        lru_append(p, block);
    else
        free_push(p, block);
}

uint32_t kv_block_refs(const struct kv_pool *p, uint32_t block)
{
    return p->blocks[block].refs;
}

bool kv_block_published(const struct kv_pool *p, uint32_t block)
{
    return p->blocks[block].published;
}

uint64_t kv_hash(uint64_t parent, const uint32_t tokens[16], uint64_t namespace_id)
{
    uint64_t key[10] = {parent, namespace_id};
    memcpy(key + 2, tokens, 16 * sizeof(*tokens));
    return hash_bytes(key, sizeof(key), 0);
}

static uint32_t lookup(const struct kv_pool *p, uint64_t hash, uint64_t parent,
                       const uint32_t tokens[16], uint64_t namespace_id)
{
    uint32_t block = p->buckets[hash & p->mask];
    for (; block != NONE; block = p->blocks[block].hash_next) {
        const struct kv_block *b = &p->blocks[block];
        if (b->hash == hash && b->parent == parent && b->namespace_id == namespace_id &&
            memcmp(b->tokens, tokens, sizeof(b->tokens)) == 0)
            break;
    }
    return block;
}

void kv_block_publish(struct kv_pool *p, uint32_t block, uint64_t hash, uint64_t parent,
                      const uint32_t tokens[16], uint64_t namespace_id)
{
    struct kv_block *b = &p->blocks[block];
    /* The same content computed twice: the first one stays the findable one. */
    if (b->published || lookup(p, hash, parent, tokens, namespace_id) != NONE)
        return;
    b->published = true;
    b->hash = hash;
    b->parent = parent;
    b->namespace_id = namespace_id;
    memcpy(b->tokens, tokens, sizeof(b->tokens));
    b->hash_next = p->buckets[hash & p->mask];
    p->buckets[hash & p->mask] = block;
}

void kv_block_withdraw(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    if (!b->published)
        return;
    unpublish(p, block);
    if (b->refs == 0) {
        lru_remove(p, block);
        free_push(p, block);
    }
}

bool kv_find(struct kv_pool *p, uint64_t hash, uint64_t parent, const uint32_t tokens[16],
             uint64_t namespace_id, uint32_t *ret_block)
{
    uint32_t block = lookup(p, hash, parent, tokens, namespace_id);
    if (block == NONE)
        return false;
    kv_block_ref(p, block);
    *ret_block = block;
    return true;
}

void kv_block_set_drafted(struct kv_pool *p, uint32_t block, uint16_t positions)
{
    p->blocks[block].drafted = positions;
}

uint16_t kv_block_drafted(const struct kv_pool *p, uint32_t block)
{
    return p->blocks[block].drafted;
}
