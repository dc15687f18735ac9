/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence: its tokens, how many of them have K/V, and the table of blocks that hold it.
 *
 * Positions [0, n_kv) have K/V in blocks[p / 16]; tokens [n_kv, n_tokens) wait to be fed.  A block
 * may be shared with other sequences and with the prefix cache; before anything is written, the one
 * block that is partly ours and shared is copied (seq_reserve).  Owned by the engine thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/kv.h"
#include "engine/method.h"

struct seq {
    uint32_t *tokens;
    uint32_t n_tokens, n_kv, max_tokens;
    uint32_t *blocks;
    uint32_t n_blocks, max_blocks;
    /* Prefix cache: chain hashes of the first full blocks, and how many of those blocks this
     * sequence has offered to the pool since it got them. */
    uint64_t *hashes; /* [max_blocks] or NULL */
    uint32_t n_hashes, n_published;
    uint64_t namespace_id;
};

/* The memory that sequences live in. */
struct seq_space {
    struct kv_pool *pool;
    const struct backend *backend;
    struct backend_model *model;
    const struct block_drafter
        *drafter; /* its context K/V move with the target's; ops may be NULL */
};

/* Room for max_tokens tokens; cache: with hashes. */
int seq_init(struct seq *s, uint32_t max_tokens, bool cache, struct error *err);
/* Gives everything back. */
void seq_done(struct seq *s, struct kv_pool *pool);
/* Gives the blocks back, tokens stay (preemption). */
void seq_release(struct seq *s, struct kv_pool *pool);

/* Blocks that must be taken before positions [n_kv, n_kv + n) can be written. */
uint32_t seq_blocks_needed(const struct seq *s, const struct kv_pool *pool, uint32_t n);
/* Makes positions [n_kv, n_kv + n) writable.  CONTEXT_FULL: nothing changed. */
int seq_reserve(struct seq *s, const struct seq_space *sp, uint32_t n, struct error *err);
uint32_t seq_slot(const struct seq *s, uint32_t pos);
/* Rows of tokens [first, first + n), all at or after n_kv and reserved: plain decoding. */
void seq_rows(const struct seq *s, uint32_t first, uint32_t n, struct fwd_row *rows);
/* K/V of the next n tokens are there now. */
void seq_advance(struct seq *s, uint32_t n);
/* Position pos, which has K/V, has the drafter's context too; or has it? */
void seq_set_drafted(const struct seq *s, struct kv_pool *pool, uint32_t pos);
void seq_clear_drafted(const struct seq *s, struct kv_pool *pool, uint32_t pos);
bool seq_drafted(const struct seq *s, const struct kv_pool *pool, uint32_t pos);
/* Offers full blocks to the prefix cache. */
void seq_publish(struct seq *s, struct kv_pool *pool);
/* Withdraws all its blocks from the cache (the request's numbers cannot be trusted). */
void seq_withdraw(struct seq *s, struct kv_pool *pool);
/* Takes cached blocks for the longest known prefix, at most to leave one token to feed; only for a
 * sequence without blocks.  Returns the number of tokens found. */
uint32_t seq_find_prefix(struct seq *s, struct kv_pool *pool);
/* Keeps the first n tokens; blocks after them go back. */
void seq_truncate(struct seq *s, struct kv_pool *pool, uint32_t n);
/* *ret (initialised, empty, at least as large) becomes a copy that shares the blocks. */
void seq_share(const struct seq *s, struct kv_pool *pool, struct seq *ret);

/*
 * Rows of a tree that hangs on position n_kv - 1: node i has token tokens[i] and parent[i] < i, or -1
 * for that position.  Node i is stored at position n_kv + i (reserved), whatever its depth, which is
 * what its RoPE position is made of.  tails: room for seq_tree_tails(...) slots.
 */
size_t seq_tree_tails(const struct seq *s, const int32_t *parent, uint32_t n);
void seq_tree_rows(const struct seq *s, const uint32_t *tokens, const int32_t *parent, uint32_t n,
                   uint32_t *tails, struct fwd_row *rows);
/* The anchor's row and those of n - 1 nodes whose tokens and parents a backend will find (fwd_tree): places and
 * room for paths of depth `depth`, no more.  tails: room for seq_blank_tails(...) slots. */
size_t seq_blank_tails(const struct seq *s, uint32_t n, uint32_t depth);
void seq_blank_rows(const struct seq *s, uint32_t n, uint32_t depth, uint32_t *tails,
                    struct fwd_row *rows);
/* The nodes of one path (ascending) become part of the sequence: their K/V moves to where plain
 * decoding would have put it; nodes NULL: it was moved there, n nodes' of them.  The other nodes and
 * their blocks are dropped.  Tokens are the caller's to write. */
int seq_keep(struct seq *s, const struct seq_space *sp, const uint32_t *nodes, uint32_t n,
             struct error *err);
