/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging: of all neighbours that a merge names, the one of lowest rank joins first, the leftmost
 * of several; until none is left.
 *
 * Short pieces (nearly all words) search the minimum in an array.  Long ones keep a heap of
 * (rank, position), which makes n log n of n squared; both join the same pairs in the same order.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/tokenizer_internal.h"

int bpe_init(struct bpe *b, size_t n_merges)
{
    size_t cap = 16;
    while (cap / 2 < n_merges)
        cap *= 2;
    *b = (struct bpe){.mask = cap - 1, .unk = TOK_NONE};
    memset(b->byte_id, 0xff, sizeof(b->byte_id));
    b->slots = mem_array(cap, sizeof(*b->slots));
    if (!b->slots)
        return DEDIT_E_NOMEM;
    memset(b->slots, 0xff, cap * sizeof(*b->slots));
    return 0;
}

void bpe_done(struct bpe *b)
{
    mem_free(b->slots);
    *b = (struct bpe){0};
}

static struct merge_slot *find_slot(const struct bpe *b, uint32_t left, uint32_t right)
{
    size_t i = (size_t)hash_mix64((uint64_t)left << 32 | right) & b->mask;
    while (b->slots[i].left != TOK_NONE && (b->slots[i].left != left || b->slots[i].right != right))
        i = (i + 1) & b->mask;
    return &b->slots[i];
}

/* Rank of the merge of two symbols, UINT32_MAX when there is none; *ret_id is the result. */
static inline uint32_t find_merge(const struct bpe *b, uint32_t left, uint32_t right,
                                  uint32_t *ret_id)
{
    const struct merge_slot *s = find_slot(b, left, right);
    *ret_id = s->id;
    return s->rank; /* a free slot is all ones */
}

void bpe_add_merge(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    struct merge_slot *s = find_slot(b, left, right);
    if (s->left == TOK_NONE)
        b->n_merges++;
    *s = (struct merge_slot){.left = left, .right = right, .rank = rank, .id = id};
}

#define HALF_MAX 4096 /* bytes of one half of a merge, in the alphabet */

int bpe_add_merge_text(struct bpe *b, const struct vocab *v, const char *left, size_t left_len,
                       const char *right, size_t right_len, uint32_t rank, const char *name,
                       struct error *err)
{
    char buf[2 * HALF_MAX];
    size_t n_left, n_right;
    if (left_len == 0 || right_len == 0)
        return ERR(err, FORMAT, "%s[%u]: one half is empty", name, rank);
    if (left_len > HALF_MAX || right_len > HALF_MAX)
        return ERR(err, LIMIT, "%s[%u]: a half is longer than %d bytes", name, rank, HALF_MAX);
    uint32_t l = TOK_NONE, r = TOK_NONE, id = TOK_NONE;
    if (byte_level_decode(left, left_len, buf, &n_left))
        l = vocab_find(v, buf, n_left);
    if (l == TOK_NONE)
        return ERR(err, FORMAT, "%s[%u]: \"%.*s\" is not in the vocabulary", name, rank,
                   (int)left_len, left);
    if (byte_level_decode(right, right_len, buf + n_left, &n_right))
        r = vocab_find(v, buf + n_left, n_right);
    if (r == TOK_NONE)
        return ERR(err, FORMAT, "%s[%u]: \"%.*s\" is not in the vocabulary", name, rank,
                   (int)right_len, right);
    id = vocab_find(v, buf, n_left + n_right);
    if (id == TOK_NONE)
        return ERR(err, FORMAT, "%s[%u]: \"%.*s%.*s\" is not in the vocabulary", name, rank,
                   (int)left_len, left, (int)right_len, right);
    /* Plain text must never become a control token. */
    if (!(v->flags[id] & TOKEN_SPECIAL))
        bpe_add_merge(b, l, r, rank, id);
    return 0;
}

void bpe_set_bytes(struct bpe *b, const struct vocab *v)
{
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        uint32_t id = vocab_find(v, &c, 1);
        if (id != TOK_NONE && !(v->flags[id] & TOKEN_SPECIAL))
            b->byte_id[i] = id;
    }
}

/* ---- encoding */

#define SHORT_PIECE 48 /* symbols; measured: the heap wins from about 60 on */

/* ids of the single bytes; returns how many. */
static size_t first_symbols(struct encoder *e, const char *piece, size_t len, uint32_t *ids)
{
    const struct bpe *b = &e->t->bpe;
    size_t n = 0;
    bool after_unk = false;
    for (size_t i = 0; i < len; i++) {
        uint32_t id = b->byte_id[(uint8_t)piece[i]];
        if (id != TOK_NONE) {
            ids[n++] = id;
            after_unk = false;
        } else if (b->unk == TOK_NONE) {
            e->dropped++;
        } else {
            if (!after_unk || !b->fuse_unk)
                ids[n++] = b->unk;
            after_unk = true;
        }
    }
    return n;
}

static size_t merge_short(const struct bpe *b, uint32_t *ids, size_t n)
{
    uint32_t ranks[SHORT_PIECE], news[SHORT_PIECE]; /* of the merge of symbols i and i + 1 */
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = find_merge(b, ids[i], ids[i + 1], &news[i]);
    while (n > 1) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[at])
                at = i;
        if (ranks[at] == UINT32_MAX)
            break;
        ids[at] = news[at];
        n--;
        for (size_t i = at + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            ranks[i - 1] = ranks[i];
            news[i - 1] = news[i];
        }
        if (at > 0)
            ranks[at - 1] = find_merge(b, ids[at - 1], ids[at], &news[at - 1]);
        if (at + 1 < n)
            ranks[at] = find_merge(b, ids[at], ids[at + 1], &news[at]);
    }
    return n;
}

/* Heap of rank << 32 | position, four children a node: fewer levels, children share a line. */
static void sift_down(uint64_t *h, size_t n, size_t at)
{
    uint64_t v = h[at];
    for (;;) {
        size_t child = at * 4 + 1, least = child, end = child + 4 < n ? child + 4 : n;
        if (child >= n)
            break;
        for (size_t i = child + 1; i < end; i++)
            if (h[i] < h[least])
                least = i;
        if (h[least] >= v)
            break;
        h[at] = h[least];
        at = least;
    }
    h[at] = v;
}

static void sift_up(uint64_t *h, size_t at)
{
    uint64_t v = h[at];
    while (at > 0 && h[(at - 1) / 4] > v) {
        h[at] = h[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    h[at] = v;
}

/* Symbols of a long piece as a doubly linked list in arrays. */
struct long_piece {
    uint32_t *ids, *next, *prev, *ranks, *news;
    uint64_t *heap;
};
#define LONG_WORDS                                                                                 \
    9 /* 32-bit words per symbol: five arrays, and a heap of 64-bit entries that
                        holds at most two live entries a symbol */

static size_t merge_long(const struct bpe *b, const struct long_piece *p, size_t n)
{
    const uint32_t end = TOK_NONE;
    size_t heap_len = 0;
    for (size_t i = 0; i < n; i++) {
        p->next[i] = i + 1 < n ? (uint32_t)(i + 1) : end;
        p->prev[i] = i > 0 ? (uint32_t)(i - 1) : end;
        p->ranks[i] = UINT32_MAX;
        if (i + 1 < n)
            p->ranks[i] = find_merge(b, p->ids[i], p->ids[i + 1], &p->news[i]);
        if (p->ranks[i] != UINT32_MAX)
            p->heap[heap_len++] = (uint64_t)p->ranks[i] << 32 | i;
    }
    for (size_t i = heap_len / 4 + 1; i-- > 0;)
        if (i < heap_len)
            sift_down(p->heap, heap_len, i);
    while (heap_len > 0) {
        uint64_t top = p->heap[0];
        uint32_t at = (uint32_t)top;
        p->heap[0] = p->heap[--heap_len];
        if (heap_len)
            sift_down(p->heap, heap_len, 0);
        if (p->ranks[at] != (uint32_t)(top >> 32))
            continue; /* this pair is gone */
        uint32_t gone = p->next[at], after = p->next[gone], before = p->prev[at];
        p->ids[at] = p->news[at];
        p->ranks[gone] = UINT32_MAX;
        p->ids[gone] = TOK_NONE;
        p->next[at] = after;
        p->ranks[at] = UINT32_MAX;
        if (after != end) {
            p->prev[after] = at;
            p->ranks[at] = find_merge(b, p->ids[at], p->ids[after], &p->news[at]);
        }
        if (before != end)
            p->ranks[before] = find_merge(b, p->ids[before], p->ids[at], &p->news[before]);
        /* At most two entries for one that went: the heap never outgrows twice the symbols. */
        uint32_t pair[2] = {before, at};
        for (int i = 0; i < 2; i++) {
            if (pair[i] == end || p->ranks[pair[i]] == UINT32_MAX)
                continue;
            p->heap[heap_len] = (uint64_t)p->ranks[pair[i]] << 32 | pair[i];
            sift_up(p->heap, heap_len++);
        }
    }
    size_t out = 0;
    for (uint32_t i = 0; i != end; i = p->next[i])
        p->ids[out++] = p->ids[i];
    return out;
}

static int add_ids(struct token_list *l, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int r = token_list_add(l, ids[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

static int encode_long(struct encoder *e, const char *piece, size_t len)
{
    if (len > UINT32_MAX / 2)
        return ERR(e->err, LIMIT, "one word of %zu bytes is too long", len);
    if (len > e->work_cap) {
        mem_free(e->work);
        e->work_cap = 0;
        e->work = mem_array(len, LONG_WORDS * sizeof(*e->work));
        if (!e->work)
            return ERR_NOMEM(e->err);
        e->work_cap = len;
    }
    /* The heap comes first: it needs the alignment. */
    size_t cap = e->work_cap;
    struct long_piece p = {.heap = (uint64_t *)(void *)e->work};
    p.ids = e->work + 4 * cap;
    p.next = p.ids + cap;
    p.prev = p.next + cap;
    p.ranks = p.prev + cap;
    p.news = p.ranks + cap;
    size_t n = first_symbols(e, piece, len, p.ids);
    if (n > 1)
        n = merge_long(&e->t->bpe, &p, n);
    if (add_ids(e->out, p.ids, n) < 0)
        return ERR_NOMEM(e->err);
    return 0;
}

/* ---- words seen before in this call: direct-mapped, so that a text costs no more than its size */

#define CACHE_TEXT 23
#define CACHE_IDS  9

struct bpe_cache_entry {
    uint8_t len; /* 0 = free */
    char text[CACHE_TEXT];
    uint32_t n;
    uint32_t ids[CACHE_IDS];
};
#define CACHE_ENTRIES 4096

int bpe_cache_new(struct encoder *e)
{
    e->cache = mem_calloc(CACHE_ENTRIES, sizeof(*e->cache));
    return e->cache ? 0 : DEDIT_E_NOMEM;
}

int bpe_encode(struct encoder *e, const char *piece, size_t len)
{
    const struct bpe *b = &e->t->bpe;
    if (b->ignore_merges) {
        uint32_t id = vocab_find(&e->t->vocab, piece, len);
        if (id != TOK_NONE && !(e->t->vocab.flags[id] & TOKEN_SPECIAL))
            return token_list_add(e->out, id) < 0 ? ERR_NOMEM(e->err) : 0;
    }
    if (len > SHORT_PIECE)
        return encode_long(e, piece, len);
    struct bpe_cache_entry *c = NULL;
    if (e->cache && len >= 2 && len <= CACHE_TEXT) {
        c = &e->cache[XXH3_64bits(piece, len) % CACHE_ENTRIES];
        if (c->len == len && !memcmp(c->text, piece, len))
            return add_ids(e->out, c->ids, c->n) < 0 ? ERR_NOMEM(e->err) : 0;
    }
    uint32_t ids[SHORT_PIECE];
    size_t dropped = e->dropped;
    size_t n = merge_short(b, ids, first_symbols(e, piece, len, ids));
    /* A word with bytes that cannot be expressed must count them each time. */
    if (c && n <= CACHE_IDS && e->dropped == dropped) {
        c->len = (uint8_t)len;
        memcpy(c->text, piece, len);
        c->n = (uint32_t)n;
        memcpy(c->ids, ids, n * sizeof(*ids));
    }
    return add_ids(e->out, ids, n) < 0 ? ERR_NOMEM(e->err) : 0;
}
