/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences: block tables, copy on write, prefix look-up, truncation. */
#include "engine/seq.h"

#include <string.h>

#include "base/alloc.h"

static uint32_t blocks_for(uint64_t positions)
{
    return (uint32_t)((positions + DK_KV_BLOCK - 1) / DK_KV_BLOCK);
}

int seq_init(struct seq *s, uint32_t max_tokens, bool cache, struct error *err)
{
    *s = (struct seq){.max_tokens = max_tokens, .max_blocks = blocks_for(max_tokens)};
    s->tokens = mem_array(max_tokens, sizeof(*s->tokens));
    s->blocks = mem_array(s->max_blocks, sizeof(*s->blocks));
    if (cache)
        s->hashes = mem_array(s->max_blocks, sizeof(*s->hashes));
    if (s->tokens && s->blocks && (s->hashes || !cache))
        return 0;
    mem_free(s->tokens);
    mem_free(s->blocks);
    mem_free(s->hashes);
    *s = (struct seq){0};
    return ERR_NOMEM(err);
}

void seq_done(struct seq *s, struct kv_pool *pool)
{
    seq_release(s, pool);
    mem_free(s->tokens);
    mem_free(s->blocks);
    mem_free(s->hashes);
    *s = (struct seq){0};
}

static void drop_blocks(struct seq *s, struct kv_pool *pool, uint32_t keep)
{
    /* Last first: the cache evicts in this order, and a prefix is of use without its end. */
    while (s->n_blocks > keep)
        kv_block_unref(pool, s->blocks[--s->n_blocks]);
    if (s->n_published > keep)
        s->n_published = keep;
}

void seq_release(struct seq *s, struct kv_pool *pool)
{
    drop_blocks(s, pool, 0);
    s->n_kv = 0;
}

/* Is the block that the next position falls into partly filled and not ours alone? */
static bool must_copy(const struct seq *s, const struct kv_pool *pool)
{
    uint32_t i = s->n_kv / DK_KV_BLOCK;
    return s->n_kv % DK_KV_BLOCK && i < s->n_blocks &&
           (kv_block_refs(pool, s->blocks[i]) > 1 || kv_block_published(pool, s->blocks[i]));
}

uint32_t seq_blocks_needed(const struct seq *s, const struct kv_pool *pool, uint32_t n)
{
    if (n == 0)
        return 0;
    uint32_t want = blocks_for((uint64_t)s->n_kv + n);
    return (want > s->n_blocks ? want - s->n_blocks : 0) + must_copy(s, pool);
}

static int copy_partial(struct seq *s, const struct seq_space *sp, struct error *err)
{
    uint32_t from[DK_KV_BLOCK], to[DK_KV_BLOCK], i = s->n_kv / DK_KV_BLOCK, block;
    uint32_t n = s->n_kv % DK_KV_BLOCK;
    uint16_t drafted = kv_block_drafted(sp->pool, s->blocks[i]) & (uint16_t)((1u << n) - 1);
    int r = kv_block_take(sp->pool, &block);
    if (r < 0)
        return ERR(err, CONTEXT_FULL, "no free KV block");
    for (uint32_t j = 0; j < n; j++) {
        from[j] = s->blocks[i] * DK_KV_BLOCK + j;
        to[j] = block * DK_KV_BLOCK + j;
    }
    r = sp->backend->kv_copy(sp->model, from, to, n, err);
    if (r == 0 && drafted)
        r = sp->drafter->ops->kv_copy(sp->drafter->self, from, to, n, err);
    if (r < 0) {
        kv_block_unref(sp->pool, block);
        return r;
    }
    kv_block_set_drafted(sp->pool, block, drafted);
    kv_block_unref(sp->pool, s->blocks[i]);
    s->blocks[i] = block;
    if (s->n_published > i)
        s->n_published = i;
    return 0;
}

/* What stands behind n_kv in blocks of our own is about to be written anew. */
static void forget_drafted(const struct seq *s, struct kv_pool *pool)
{
    uint32_t i = s->n_kv / DK_KV_BLOCK;
    if (s->n_kv % DK_KV_BLOCK == 0 || i >= s->n_blocks || must_copy(s, pool))
        return;
    uint16_t keep = (uint16_t)((1u << s->n_kv % DK_KV_BLOCK) - 1);
    kv_block_set_drafted(pool, s->blocks[i], kv_block_drafted(pool, s->blocks[i]) & keep);
}

int seq_reserve(struct seq *s, const struct seq_space *sp, uint32_t n, struct error *err)
{
    uint32_t need = seq_blocks_needed(s, sp->pool, n);
    if ((uint64_t)s->n_kv + n > s->max_tokens)
        return ERR(err, CONTEXT_FULL, "%u + %u positions: the sequence holds at most %u", s->n_kv,
                   n, s->max_tokens);
    if (need > kv_pool_available(sp->pool))
        return ERR(err, CONTEXT_FULL, "%u KV blocks needed, %u free", need,
                   kv_pool_available(sp->pool));
    forget_drafted(s, sp->pool);
    if (need == 0)
        return 0;
    if (must_copy(s, sp->pool)) {
        int r = copy_partial(s, sp, err);
        if (r < 0)
            return r;
        need--;
    }
    for (; need; need--) {
        int r = kv_block_take(sp->pool, &s->blocks[s->n_blocks]);
        if (r < 0)
            return ERR(err, INTERNAL, "the KV pool lost blocks");
        s->n_blocks++;
    }
    return 0;
}

uint32_t seq_slot(const struct seq *s, uint32_t pos)
{
    return s->blocks[pos / DK_KV_BLOCK] * DK_KV_BLOCK + pos % DK_KV_BLOCK;
}

static struct dk_attn_row plain_path(const struct seq *s, uint32_t pos)
{
    return (struct dk_attn_row){.n_vis = pos + 1,
                                .tail_start = blocks_for((uint64_t)pos + 1) * DK_KV_BLOCK,
                                .blocks = s->blocks};
}

void seq_rows(const struct seq *s, uint32_t first, uint32_t n, struct fwd_row *rows)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = first + i;
        rows[i] = (struct fwd_row){.token = s->tokens[pos],
                                   .pos = pos,
                                   .slot = seq_slot(s, pos),
                                   .path = plain_path(s, pos)};
    }
}

void seq_advance(struct seq *s, uint32_t n)
{
    s->n_kv += n;
}

void seq_set_drafted(const struct seq *s, struct kv_pool *pool, uint32_t pos)
{
    uint32_t block = s->blocks[pos / DK_KV_BLOCK];
    uint16_t bit = (uint16_t)(1u << pos % DK_KV_BLOCK);
    kv_block_set_drafted(pool, block, kv_block_drafted(pool, block) | bit);
}

void seq_clear_drafted(const struct seq *s, struct kv_pool *pool, uint32_t pos)
{
    uint32_t block = s->blocks[pos / DK_KV_BLOCK];
    uint16_t bit = (uint16_t)(1u << pos % DK_KV_BLOCK);
    kv_block_set_drafted(pool, block, (uint16_t)(kv_block_drafted(pool, block) & ~bit));
}

bool seq_drafted(const struct seq *s, const struct kv_pool *pool, uint32_t pos)
{
    return kv_block_drafted(pool, s->blocks[pos / DK_KV_BLOCK]) >> pos % DK_KV_BLOCK & 1;
}

static void hash_blocks(struct seq *s, uint32_t n)
{
    for (; s->n_hashes < n; s->n_hashes++) {
        uint32_t i = s->n_hashes;
        s->hashes[i] =
            kv_hash(i ? s->hashes[i - 1] : 0, s->tokens + (size_t)i * DK_KV_BLOCK, s->namespace_id);
    }
}

void seq_publish(struct seq *s, struct kv_pool *pool)
{
    uint32_t full = s->n_kv / DK_KV_BLOCK;
    if (!s->hashes)
        return;
    hash_blocks(s, full);
    for (; s->n_published < full; s->n_published++) {
        uint32_t i = s->n_published;
        kv_block_publish(pool, s->blocks[i], s->hashes[i], i ? s->hashes[i - 1] : 0,
                         s->tokens + (size_t)i * DK_KV_BLOCK, s->namespace_id);
    }
}

void seq_withdraw(struct seq *s, struct kv_pool *pool)
{
    for (uint32_t i = 0; i < s->n_blocks; i++)
        kv_block_withdraw(pool, s->blocks[i]);
    s->n_published = 0;
}

uint32_t seq_find_prefix(struct seq *s, struct kv_pool *pool)
{
    if (!s->hashes || s->n_blocks || s->n_tokens == 0)
        return 0;
    uint32_t full = (s->n_tokens - 1) / DK_KV_BLOCK;
    hash_blocks(s, full);
    for (uint32_t i = 0; i < full; i++) {
        uint32_t block;
        if (!kv_find(pool, s->hashes[i], i ? s->hashes[i - 1] : 0,
                     s->tokens + (size_t)i * DK_KV_BLOCK, s->namespace_id, &block))
            break;
        s->blocks[s->n_blocks++] = block;
    }
    s->n_published = s->n_blocks;
    s->n_kv = s->n_blocks * DK_KV_BLOCK;
    return s->n_kv;
}

void seq_truncate(struct seq *s, struct kv_pool *pool, uint32_t n)
{
    if (n < s->n_tokens)
        s->n_tokens = n;
    if (n < s->n_kv)
        s->n_kv = n;
    drop_blocks(s, pool, blocks_for(s->n_kv));
    if (s->n_hashes > s->n_tokens / DK_KV_BLOCK)
        s->n_hashes = s->n_tokens / DK_KV_BLOCK;
    /* A block that was full and published stays findable; writing into it again copies it. */
    if (s->n_published > s->n_kv / DK_KV_BLOCK)
        s->n_published = s->n_kv / DK_KV_BLOCK;
}

void seq_share(const struct seq *s, struct kv_pool *pool, struct seq *ret)
{
    memcpy(ret->tokens, s->tokens, s->n_tokens * sizeof(*s->tokens));
    ret->n_tokens = s->n_tokens;
    ret->n_kv = s->n_kv;
    ret->n_blocks = blocks_for(s->n_kv);
    ret->namespace_id = s->namespace_id;
    for (uint32_t i = 0; i < ret->n_blocks; i++) {
        ret->blocks[i] = s->blocks[i];
        kv_block_ref(pool, s->blocks[i]);
    }
}

/* ---- trees ---------------------------------------------------------------------------------- */

static bool is_chain(const int32_t *parent, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (parent[i] != (int32_t)i - 1)
            return false;
    return true;
}

/* Number of path slots after tail_start that come from the sequence itself. */
static uint32_t tail_prefix(const struct seq *s)
{
    return s->n_kv % DK_KV_BLOCK;
}

size_t seq_tree_tails(const struct seq *s, const int32_t *parent, uint32_t n)
{
    if (is_chain(parent, n))
        return 0;
    /* At most: every node its own whole tail. */
    return (size_t)n * (tail_prefix(s) + n);
}

void seq_tree_rows(const struct seq *s, const uint32_t *tokens, const int32_t *parent, uint32_t n,
                   uint32_t *tails, struct fwd_row *rows)
{
    const uint32_t base = s->n_kv, before = tail_prefix(s);
    bool chain = is_chain(parent, n);
    size_t used = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = seq_slot(s, base + i);
        if (chain) {
            rows[i] = (struct fwd_row){
                .token = tokens[i], .pos = base + i, .slot = slot, .path = plain_path(s, base + i)};
            continue;
        }
        const struct fwd_row *p = parent[i] < 0 ? NULL : &rows[parent[i]];
        uint32_t pos = p ? p->pos + 1 : base, len = before + (pos - base);
        uint32_t *tail = tails + used;
        if (p && p->path.tail + len == tail) {
            /* The parent's tail ends where free room begins: go on in it. */
            tail -= len;
            tails[used++] = slot;
        } else {
            if (p)
                memcpy(tail, p->path.tail, len * sizeof(*tail));
            else
                for (uint32_t j = 0; j < before; j++)
                    tail[j] = seq_slot(s, base - before + j);
            tail[len] = slot;
            used += len + 1;
        }
        rows[i] = (struct fwd_row){
            .token = tokens[i],
            .pos = pos,
            .slot = slot,
            .path = {
                .n_vis = pos + 1, .tail_start = base - before, .blocks = s->blocks, .tail = tail}};
    }
}

size_t seq_blank_tails(const struct seq *s, uint32_t n, uint32_t depth)
{
    return (size_t)n * (tail_prefix(s) + depth + 1);
}

void seq_blank_rows(const struct seq *s, uint32_t n, uint32_t depth, uint32_t *tails,
                    struct fwd_row *rows)
{
    const uint32_t base = s->n_kv, before = tail_prefix(s);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *tail = tails + i * (before + depth + 1), slot = seq_slot(s, base + i);
        for (uint32_t j = 0; j < before; j++)
            tail[j] = seq_slot(s, base - before + j);
        for (uint32_t d = 0; d <= depth; d++)
            tail[before + d] = slot;
        rows[i] = (struct fwd_row){.token = s->tokens[base],
                                   .pos = base,
                                   .slot = slot,
                                   .path = {.n_vis = base + depth + 1,
                                            .tail_start = base - before,
                                            .blocks = s->blocks,
                                            .tail = tail}};
    }
}

int seq_keep(struct seq *s, const struct seq_space *sp, const uint32_t *nodes, uint32_t n,
             struct error *err)
{
    const uint32_t base = s->n_kv;
    /* In pieces, since the path may be as long as a batch.  Ascending nodes never land after the
     * place they come from, so copying in order destroys nothing that is still needed. */
    uint32_t done = nodes ? 0 : n;
    while (done < n && nodes[done] == done) /* there already: all of a chain */
        done++;
    while (done < n) {
        uint32_t from[DK_KV_BLOCK], to[DK_KV_BLOCK], m = 0;
        for (; m < DK_KV_BLOCK && done < n; m++, done++) {
            from[m] = seq_slot(s, base + nodes[done]);
            to[m] = seq_slot(s, base + done);
        }
        int r = sp->backend->kv_copy(sp->model, from, to, m, err);
        if (r < 0)
            return r;
    }
    s->n_kv = base + n;
    drop_blocks(s, sp->pool, blocks_for(s->n_kv));
    return 0;
}
