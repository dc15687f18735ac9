/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paged KV pool's book-keeping: reference-counted blocks of DK_KV_BLOCK positions, and the
 * prefix cache that finds full blocks again by the hash of everything before them.  Knows ids, not
 * memory.  Owned by the engine thread; nothing is allocated after kv_pool_new.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

struct kv_pool;

int kv_pool_new(uint32_t n_blocks, struct kv_pool **ret, struct error *err);
struct kv_pool *kv_pool_free(struct kv_pool *p);
DEFINE_CLEANUP(struct kv_pool *, kv_pool_free);
uint32_t kv_pool_total(const struct kv_pool *p);
/* Blocks that can be taken now: free ones and cached ones that nobody holds. */
uint32_t kv_pool_available(const struct kv_pool *p);
uint32_t kv_pool_cached(const struct kv_pool *p); /* held by nobody, content still findable */

/* Takes a block (refcount 1), evicting the least recently used cached one if need be.
 * DEDIT_E_CONTEXT_FULL when none is available. */
int kv_block_take(struct kv_pool *p, uint32_t *ret_block);
void kv_block_ref(struct kv_pool *p, uint32_t block);
void kv_block_unref(struct kv_pool *p, uint32_t block); /* at 0: cached if published, else free */
uint32_t kv_block_refs(const struct kv_pool *p, uint32_t block);
/* Findable by others: its content must not change. */
bool kv_block_published(const struct kv_pool *p, uint32_t block);

/* Chain hash of a full block: parent's hash (0 for the first), its 16 tokens, and the namespace
 * (uid or cache salt). */
uint64_t kv_hash(uint64_t parent, const uint32_t tokens[16], uint64_t namespace_id);
/* Publishes a full, committed block; a later look-up compares tokens, parent and namespace. */
void kv_block_publish(struct kv_pool *p, uint32_t block, uint64_t hash, uint64_t parent,
                      const uint32_t tokens[16], uint64_t namespace_id);
/* Withdraws a block's publication (its content turned out to be wrong: NaN request). */
void kv_block_withdraw(struct kv_pool *p, uint32_t block);
/* Finds and references a published block. */
bool kv_find(struct kv_pool *p, uint64_t hash, uint64_t parent, const uint32_t tokens[16],
             uint64_t namespace_id, uint32_t *ret_block);
/* Which of its 16 positions have the drafter's context K/V (bit i: position i).  None when taken. */
void kv_block_set_drafted(struct kv_pool *p, uint32_t block, uint16_t positions);
uint16_t kv_block_drafted(const struct kv_pool *p, uint32_t block);
