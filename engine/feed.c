/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct evaluation: bare sequences, fed by hand.  Everything is checked before anything changes;
 * what the rows compute is the same as for requests, since the rows are made by the same code.
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/engine_internal.h"

int engine_seq_new(struct engine *e, struct seq **ret, struct error *err)
{
    _cleanup_free_ struct seq *s = mem_zalloc(sizeof(*s));
    if (!s)
        return ERR_NOMEM(err);
    int r = seq_init(s, e->limit, false, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(s);
    return 0;
}

int engine_seq_fork(struct engine *e, const struct seq *s, struct seq **ret, struct error *err)
{
    struct seq *copy;
    int r = engine_seq_new(e, &copy, err);
    if (r < 0)
        return r;
    seq_share(s, e->space.pool, copy);
    seq_truncate(copy, e->space.pool, copy->n_kv); /* a tree that waits to be kept stays with s */
    *ret = copy;
    return 0;
}

struct seq *engine_seq_free(struct engine *e, struct seq *s)
{
    if (s) {
        seq_done(s, e->space.pool);
        mem_free(s);
    }
    return NULL;
}

uint32_t engine_seq_len(const struct seq *s)
{
    return s->n_kv;
}

void engine_seq_truncate(struct engine *e, struct seq *s, uint32_t n)
{
    seq_truncate(s, e->space.pool, n < s->n_kv ? n : s->n_kv);
}

static int check_tokens(const struct engine *e, const uint32_t *tokens, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++)
        if (tokens[i] >= e->model->vocab_size)
            return ERR(err, INVALID, "token %zu is %u: the vocabulary has %u", i, tokens[i],
                       e->model->vocab_size);
    return 0;
}

static int check_taps(const struct engine *e, const uint32_t *layers, uint32_t n, struct error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (layers[i] >= e->model->n_layers)
            return ERR(err, INVALID, "tap layer %u: the model has %u layers", layers[i],
                       e->model->n_layers);
        if (i && layers[i] <= layers[i - 1])
            return ERR(err, INVALID, "tap layers must ascend: %u after %u", layers[i],
                       layers[i - 1]);
    }
    return 0;
}

static int check_feeds(const struct engine *e, const struct engine_feed *f, size_t n_feeds,
                       struct error *err)
{
    uint64_t blocks = 0;
    for (size_t i = 0; i < n_feeds; i++) {
        const struct seq *s = f[i].seq;
        int r = check_tokens(e, f[i].tokens, f[i].n, err);
        if (r < 0)
            return r;
        if (f[i].n_logits > f[i].n)
            return ERR(err, INVALID, "n_logits %zu of %zu tokens", f[i].n_logits, f[i].n);
        for (size_t j = 0; j < i; j++)
            if (f[j].seq == s)
                return ERR(err, INVALID, "one sequence twice in a batch");
        if (f[i].n > s->max_tokens - s->n_kv)
            return ERR(err, CONTEXT_FULL,
                       "%u tokens there and %zu more: a sequence holds at most %u", s->n_kv, f[i].n,
                       s->max_tokens);
        blocks += seq_blocks_needed(s, e->space.pool, (uint32_t)f[i].n);
    }
    if (blocks > kv_pool_available(e->space.pool))
        return ERR(err, CONTEXT_FULL, "%llu KV blocks needed, %u free", (unsigned long long)blocks,
                   kv_pool_available(e->space.pool));
    return 0;
}

/* What of a feed goes into the next forward call. */
struct cursor {
    size_t feed, at; /* next token */
};

/* Rows of one forward call; staged: logits go through the engine's own array, so that rows of
 * several feeds make one product of the head. */
struct feed_call {
    uint32_t n_rows, n_staged;
};

static void copy_staged(const struct engine *e, float **to, uint32_t n)
{
    const size_t vocab = e->model->vocab_size;
    for (uint32_t i = 0; i < n; i++)
        memcpy(to[i], e->logits + i * vocab, vocab * sizeof(float));
}

/* Fills e->rows from *c on; to[i] is where staged row i belongs (NULL: no staging). */
static struct feed_call fill_call(const struct engine *e, const struct engine_feed *f,
                                  size_t n_feeds, uint32_t n_taps, struct cursor *c, float **to)
{
    const size_t vocab = e->model->vocab_size, hidden = e->model->hidden;
    struct feed_call call = {0};
    while (c->feed < n_feeds && call.n_rows < e->cfg.max_num_batched_tokens) {
        const struct engine_feed *g = &f[c->feed];
        size_t n = g->n - c->at, room = e->cfg.max_num_batched_tokens - call.n_rows;
        if (n > room)
            n = room;
        struct fwd_row *rows = e->rows + call.n_rows;
        uint32_t first = g->seq->n_kv + (uint32_t)c->at;
        seq_rows(g->seq, first, (uint32_t)n, rows);
        for (size_t i = 0; i < n; i++) {
            size_t t = c->at + i;
            if (g->taps)
                rows[i].taps = g->taps + t * n_taps * hidden;
            if (!g->logits || t + g->n_logits < g->n)
                continue;
            float *out = g->logits + (t + g->n_logits - g->n) * vocab;
            if (to && call.n_staged == e->n_logits_rows) {
                n = i; /* the staging array is full: the rest goes into the next call */
                break;
            }
            if (to) {
                to[call.n_staged] = out;
                out = e->logits + call.n_staged++ * vocab;
            }
            rows[i].logits = out;
        }
        call.n_rows += (uint32_t)n;
        c->at += n;
        if (c->at < g->n)
            break;
        c->feed++;
        c->at = 0;
    }
    return call;
}

static int run_feeds(struct engine *e, const struct engine_feed *f, size_t n_feeds,
                     const uint32_t *tap_layers, uint32_t n_taps, float **to, struct error *err)
{
    struct cursor c = {0};
    while (c.feed < n_feeds) {
        struct feed_call call = fill_call(e, f, n_feeds, n_taps, &c, to);
        struct fwd_batch b = {
            .n_rows = call.n_rows, .rows = e->rows, .tap_layers = tap_layers, .n_taps = n_taps};
        int r = e->space.backend->forward(e->space.model, &b, err);
        if (r < 0)
            return r;
        if (to)
            copy_staged(e, to, call.n_staged);
    }
    return 0;
}

int engine_feed(struct engine *e, struct engine_feed *f, size_t n_feeds, const uint32_t *tap_layers,
                uint32_t n_taps, struct error *err)
{
    dk_thread_init();
    int r = check_taps(e, tap_layers, n_taps, err);
    if (r == 0)
        r = check_feeds(e, f, n_feeds, err);
    if (r < 0)
        return r;
    size_t with_logits = 0;
    for (size_t i = 0; i < n_feeds; i++)
        with_logits += f[i].logits && f[i].n_logits;
    _cleanup_free_ float **to = NULL;
    if (with_logits > 1) {
        to = mem_calloc(e->n_logits_rows, sizeof(float *));
        if (!to)
            return ERR_NOMEM(err);
    }
    for (size_t i = 0; i < n_feeds; i++) {
        struct seq *s = f[i].seq;
        r = seq_reserve(s, &e->space, (uint32_t)f[i].n, err);
        if (r < 0)
            break;
        if (f[i].n)
            memcpy(s->tokens + s->n_kv, f[i].tokens, f[i].n * sizeof(*s->tokens));
    }
    if (r == 0)
        r = run_feeds(e, f, n_feeds, tap_layers, n_taps, to, err);
    for (size_t i = 0; i < n_feeds; i++) {
        struct seq *s = f[i].seq;
        if (r == 0) {
            seq_advance(s, (uint32_t)f[i].n);
            s->n_tokens = s->n_kv;
        } else {
            seq_truncate(s, e->space.pool, s->n_kv); /* gives reserved blocks back */
        }
    }
    return r;
}

/* ---- trees ---------------------------------------------------------------------------------- */

static int check_tree(const struct engine *e, const struct seq *s, const uint32_t *tokens,
                      const int32_t *parent, uint32_t n, struct error *err)
{
    int r = check_tokens(e, tokens, n, err);
    if (r < 0)
        return r;
    if (s->n_kv == 0)
        return ERR(err, INVALID, "a tree hangs on the last token of a sequence: this one is empty");
    if (n > e->cfg.max_num_batched_tokens)
        return ERR(err, LIMIT, "a tree of %u nodes: max_num_batched_tokens is %u", n,
                   e->cfg.max_num_batched_tokens);
    for (uint32_t i = 0; i < n; i++)
        if (parent[i] < -1 || parent[i] >= (int32_t)i)
            return ERR(err, INVALID, "node %u has parent %d: must be -1..%d", i, parent[i],
                       (int)i - 1);
    if (n > s->max_tokens - s->n_kv)
        return ERR(err, CONTEXT_FULL,
                   "%u tokens there and a tree of %u: a sequence holds at most %u", s->n_kv, n,
                   s->max_tokens);
    return 0;
}

int engine_feed_tree(struct engine *e, struct seq *s, const uint32_t *tokens, const int32_t *parent,
                     uint32_t n, float *logits, const uint32_t *tap_layers, uint32_t n_taps,
                     float *taps, struct error *err)
{
    dk_thread_init();
    int r = check_taps(e, tap_layers, n_taps, err);
    if (r == 0)
        r = check_tree(e, s, tokens, parent, n, err);
    if (r < 0)
        return r;
    _cleanup_free_ uint32_t *tails = mem_array(seq_tree_tails(s, parent, n), sizeof(*tails));
    if (!tails)
        return ERR_NOMEM(err);
    /* A tree that was fed before and not kept: its blocks are here already, and serve again. */
    r = seq_reserve(s, &e->space, n, err);
    if (r < 0)
        return r;
    seq_tree_rows(s, tokens, parent, n, tails, e->rows);
    for (uint32_t i = 0; i < n; i++) {
        s->tokens[s->n_kv + i] = tokens[i];
        e->rows[i].logits = logits ? logits + (size_t)i * e->model->vocab_size : NULL;
        e->rows[i].taps = taps ? taps + (size_t)i * n_taps * e->model->hidden : NULL;
    }
    struct fwd_batch b = {.n_rows = n, .rows = e->rows, .tap_layers = tap_layers, .n_taps = n_taps};
    r = e->space.backend->forward(e->space.model, &b, err);
    s->n_tokens = s->n_kv + n; /* the nodes, until they are kept or dropped */
    if (r < 0)
        seq_truncate(s, e->space.pool, s->n_kv);
    return r;
}

int engine_keep(struct engine *e, struct seq *s, const uint32_t *nodes, uint32_t n_nodes,
                struct error *err)
{
    uint32_t n_tree = s->n_tokens - s->n_kv;
    for (uint32_t i = 0; i < n_nodes; i++) {
        if (nodes[i] >= n_tree)
            return ERR(err, INVALID, "node %u: the tree has %u", nodes[i], n_tree);
        if (i && nodes[i] <= nodes[i - 1])
            return ERR(err, INVALID, "nodes of a path ascend: %u after %u", nodes[i], nodes[i - 1]);
    }
    const uint32_t base = s->n_kv;
    int r = seq_keep(s, &e->space, nodes, n_nodes, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < n_nodes; i++)
        s->tokens[base + i] = s->tokens[base + nodes[i]];
    s->n_tokens = s->n_kv;
    return 0;
}
