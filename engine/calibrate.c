/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of calls, each made ROUNDS times, in turn, the fastest counting: target batches of every size up
 * to where one costs MOST times a single row; one row and sixteen with a long context; drafter passes of
 * one, two and more blocks, of each window that `auto` uses; context rows.  K/V of the measured rows are
 * what the memory holds: reading them costs the same.
 */
#include "engine/calibrate.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "engine/engine_internal.h"

#define ROUNDS       4
#define SAMPLE_BYTES 64u
#define MOST         12.0 /* times one row: nobody will want more of them for drafts */
#define NEAR         64u
#define FAR          768u
#define FAR_N        16u
#define CALLS        64u
#define BLOCKS       8u           /* of a drafter's pass */
#define TIMEOUT      400000000ull /* ns: a size that takes longer is the last one that is measured */

struct call {
    enum cost_kind kind;
    uint32_t rows;   /* of a pass: of each block */
    uint32_t blocks; /* of a pass */
    uint32_t context;
    uint64_t ns[ROUNDS];
};

struct calibration {
    struct call calls[CALLS];
    uint32_t n, at;
    int round;
    struct draft_round rounds[BLOCKS];
    struct proposal proposals[BLOCKS];
};

struct calibration *calibration_free(struct calibration *c)
{
    mem_free(c);
    return NULL;
}

/* ---- the key ---------------------------------------------------------------------------------------- */

static int add_shape(struct strbuf *b, const struct model_file *f, const struct backend_memory *m)
{
    const struct model_config *c = model_file_config(f);
    return strbuf_addf(b, "%s %ux%u ffn %u heads %u/%u of %u vocabulary %u weights %llu/%llu",
                       model_family_name(c->family), c->n_layers, c->hidden, c->ffn, c->n_heads,
                       c->n_kv_heads, c->head_dim, c->vocab_size,
                       (unsigned long long)m->weight_bytes, (unsigned long long)m->packed_bytes);
}

/* A few bytes out of the middle of every tensor of the first and the last layer, and of those that
 * belong to none. */
static uint64_t sample(const struct model_file *f, uint64_t hash)
{
    const uint32_t last = model_file_config(f)->n_layers - 1;
    for (int role = 0; role < MT_ROLE_COUNT; role++)
        for (int end = 0; end < 2; end++) {
            const struct model_tensor *t =
                model_file_tensor(f, (enum model_tensor_role)role, end ? last : 0);
            if (!t || !t->data)
                continue;
            const size_t n = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;
            hash = hash_bytes((const char *)t->data + (t->bytes - n) / 2, n, hash);
        }
    return hash;
}

uint64_t calibration_models(const struct engine *e)
{
    uint64_t hash = sample(e->file, 0);
    return e->own_drafter ? sample(drafter_get_file(e->own_drafter), hash) : hash;
}

int calibration_key(const struct engine *e, char **ret, struct error *err)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct backend_memory m = {0};
    char cpu[64];
    costs_machine(cpu);
    e->space.backend->describe(e->space.model, &m, NULL, NULL);
    int r = strbuf_addf(&b, "%s, %s; %u threads, %s; %s; ", cpu, e->space.backend->name,
                        e->cfg.n_threads, dk_tier_name(e->ops->tier), e->class_name);
    if (r >= 0 && e->space.backend != &backend_cpu)
        r = strbuf_addf(&b, "%s; ", e->space.backend->name);
    if (r >= 0)
        r = add_shape(&b, e->file, &m);
    if (r >= 0 && e->own_drafter) {
        const struct drafter_config *d = drafter_get_config(e->own_drafter);
        drafter_memory(e->own_drafter, &m);
        r = strbuf_addf(&b, "; drafter, %u taps, draft vocabulary %u, ", d->n_taps, d->draft_vocab);
        if (r >= 0)
            r = add_shape(&b, drafter_get_file(e->own_drafter), &m);
    }
    if (r < 0)
        return ERR_NOMEM(err);
    *ret = TAKE_PTR(b.s);
    return 0;
}

/* ---- the list --------------------------------------------------------------------------------------- */

static void add(struct calibration *c, enum cost_kind kind, uint32_t rows, uint32_t blocks,
                uint32_t context)
{
    if (c->n < CALLS)
        c->calls[c->n++] =
            (struct call){.kind = kind, .rows = rows, .blocks = blocks, .context = context};
}

static struct calibration *make_list(const struct engine *e)
{
    struct calibration *c = mem_zalloc(sizeof(*c));
    const struct block_drafter *d = &e->drafter;
    if (!c)
        return NULL;
    for (int i = 0; i < COST_SIZES && cost_sizes[i] <= e->n_logits_rows &&
                    cost_sizes[i] <= e->limit / 2 && cost_sizes[i] <= 128;
         i++)
        add(c, COST_TARGET, cost_sizes[i], 1, NEAR);
    add(c, COST_TARGET, 1, 1, FAR);
    if (FAR_N <= e->n_logits_rows)
        add(c, COST_TARGET, FAR_N, 1, FAR);
    for (uint32_t w = SURVIVAL_WINDOWS; d->ops && w--;)
        for (uint32_t blocks = 1; blocks <= BLOCKS; blocks *= 2) {
            uint32_t rows = controller_window(d->window, w);
            if (rows * blocks <= d->max_rows && (w == 0 || blocks == 1))
                add(c, COST_DRAFTER, rows, blocks, NEAR);
        }
    if (d->ops) {
        add(c, COST_DRAFTER, d->window, 1, FAR);
        for (uint32_t n = 1; n <= 16 && n <= d->max_rows && n <= e->cfg.max_num_batched_tokens;
             n *= 2)
            add(c, COST_INJECT, n, 1, NEAR);
    }
    return c;
}

/* ---- one call --------------------------------------------------------------------------------------- */

static int run_target(struct engine *e, struct seq *s, uint32_t n, struct error *err)
{
    float max;
    bool bad;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        s->tokens[s->n_kv + i] = (i * 7919u + 11u) % e->model->vocab_size;
    seq_rows(s, s->n_kv, n, e->rows);
    const struct fwd_draw draw = {.n_rows = n, .ret = e->drawn}; /* as rounds have tokens chosen */
    for (uint32_t i = 0; i < n; i++) {
        if (!e->drawn)
            e->rows[i].logits = e->logits + (size_t)i * e->model->vocab_size;
        if (e->taps)
            e->rows[i].taps = drafting_taps(e, &at);
    }
    struct fwd_batch b = {.n_rows = n,
                          .rows = e->rows,
                          .draws = &draw,
                          .n_draws = e->drawn != NULL,
                          .tap_layers = e->drafter.tap_layers,
                          .n_taps = e->drafter.n_taps};
    int r = e->space.backend->forward(e->space.model, &b, err);
    /* As the host's choice of a token reads them. */
    for (uint32_t i = 0; i < n && r == 0 && !e->drawn; i++)
        (void)e->ops->argmax(e->rows[i].logits, e->model->vocab_size, &max, &bad);
    return r;
}

static int run_pass(struct engine *e, struct calibration *c, const struct seq *s, uint32_t rows,
                    uint32_t blocks, struct error *err)
{
    struct draft_entry entries[BLOCKS];
    for (uint32_t i = 0; i < blocks; i++) {
        c->rounds[i] = (struct draft_round){.method = DRAFT_DDTREE,
                                            .window = rows,
                                            .passes = 1,
                                            .tree_budget = SURVIVAL_NODES,
                                            .max_nodes = SURVIVAL_NODES,
                                            .proposal = &c->proposals[i]};
        proposal_clear(&c->proposals[i]);
        entries[i] = (struct draft_entry){.seq = s, .round = &c->rounds[i]};
    }
    return e->drafter.ops->pass(e->drafter.self, entries, blocks, err);
}

static int run_inject(struct engine *e, const struct seq *s, uint32_t n, struct error *err)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        e->context[i] =
            (struct draft_context){.taps = drafting_taps(e, &at), .pos = i, .slot = seq_slot(s, i)};
    return e->drafter.ops->inject(e->drafter.self, e->context, n, err);
}

/* Blocks that nobody can find again: the prefix cache keeps what it has. */
static uint32_t free_positions(const struct engine *e)
{
    uint32_t n = kv_pool_available(e->space.pool) - kv_pool_cached(e->space.pool);
    n = n < e->limit / DK_KV_BLOCK ? n : e->limit / DK_KV_BLOCK;
    return n * DK_KV_BLOCK;
}

/* 1: it was run; 0: there is no room for it. */
static int run_call(struct engine *e, struct calibration *c, struct call *t, uint64_t *ret_ns,
                    struct error *err)
{
    struct seq s;
    uint32_t rows = t->kind == COST_TARGET ? t->rows : DRAFT_MAX_WINDOW;
    uint64_t before = 0;
    if (t->context + rows > free_positions(e))
        return 0;
    int r = seq_init(&s, e->limit, false, err);
    if (r < 0)
        return r;
    r = seq_reserve(&s, &e->space, t->context, err);
    if (r == 0) {
        memset(s.tokens, 0, t->context * sizeof(*s.tokens));
        seq_advance(&s, t->context);
        s.n_tokens = s.n_kv;
        s.tokens[s.n_kv] = 0;
        r = seq_reserve(&s, &e->space, rows, err);
    }
    if (r == 0) {
        before = clock_now_ns();
        r = t->kind == COST_TARGET    ? run_target(e, &s, t->rows, err)
            : t->kind == COST_DRAFTER ? run_pass(e, c, &s, t->rows, t->blocks, err)
                                      : run_inject(e, &s, t->rows, err);
        *ret_ns = clock_now_ns() - before;
    }
    seq_done(&s, e->space.pool);
    return r < 0 ? r : 1;
}

int calibration_call(struct engine *e, enum cost_kind kind, uint32_t rows, uint32_t context,
                     uint64_t *ret_ns, struct error *err)
{
    struct call t = {.kind = kind, .rows = rows, .blocks = 1, .context = context};
    struct calibration *c = mem_zalloc(sizeof(*c));
    if (!c)
        return ERR_NOMEM(err);
    int r = run_call(e, c, &t, ret_ns, err);
    calibration_free(c);
    return r;
}

/* ---- what it comes to ------------------------------------------------------------------------------- */

/* The fastest: whatever disturbs a call makes it slower. */
static double fastest(const struct call *t)
{
    uint64_t best = t->ns[0];
    for (int i = 1; i < ROUNDS; i++)
        best = t->ns[i] < best ? t->ns[i] : best;
    return (double)best;
}

/* Of what was measured in all rounds; 0: it was not. */
static double time_of(const struct calibration *c, enum cost_kind kind, uint32_t rows,
                      uint32_t context)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const struct call *t = &c->calls[i];
        if (t->kind == kind && t->rows == rows && t->blocks == 1 && t->context == context)
            return fastest(t); /* 0: not in every round */
    }
    return 0;
}

/* What a long context adds to a call of that many rows; not more than the call itself, as far as a
 * disturbed machine may say so. */
static double longer(const struct calibration *c, enum cost_kind kind, uint32_t rows)
{
    double near = time_of(c, kind, rows, NEAR), more = time_of(c, kind, rows, FAR) - near;
    return more < 0 ? 0 : more > near ? near : more;
}

static void conclude(const struct calibration *c, const struct engine *e, struct costs *to)
{
    struct costs got;
    costs_init(&got);
    struct cost_table *target = &got.table[COST_TARGET], *drafter = &got.table[COST_DRAFTER];
    double one = longer(c, COST_TARGET, 1), many = longer(c, COST_TARGET, FAR_N);
    cost_context(target, one, many > one ? many : one, FAR_N, FAR - NEAR);
    one = longer(c, COST_DRAFTER, e->drafter.window);
    cost_context(drafter, one, one, 1, FAR - NEAR);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct call *t = &c->calls[i];
        struct cost_table *table = &got.table[t->kind];
        double ns = fastest(t), context = table->entry_ns * t->blocks * NEAR +
                                          table->row_ns * t->rows * t->blocks * NEAR;
        if (t->context == NEAR && ns > 0)
            cost_set(table, t->rows * t->blocks, ns > 2 * context ? ns - context : ns / 2);
    }
    for (int k = 0; k < COST_KINDS; k++)
        cost_level(&got.table[k]);
    /* Where nothing could be measured, what was seen in use stays. */
    for (int k = 0; k < COST_KINDS; k++)
        for (int i = 0; i < COST_SIZES; i++)
            if (got.table[k].ns[i] > 0) {
                to->table[k] = got.table[k];
                break;
            }
    to->pace = 1;
}

/* Bigger batches than one that is far too dear are left out. */
static void cut_list(struct calibration *c)
{
    const struct call *t = &c->calls[c->at];
    const uint64_t one = c->calls[0].ns[0];
    if (c->round || t->kind != COST_TARGET || t->context != NEAR ||
        (t->ns[0] < TIMEOUT && (double)t->ns[0] < MOST * (double)one))
        return;
    uint32_t to = c->at + 1;
    for (uint32_t i = to; i < c->n; i++)
        if (c->calls[i].kind != COST_TARGET || c->calls[i].context != NEAR)
            c->calls[to++] = c->calls[i];
    c->n = to;
}

int calibration_step(struct engine *e, struct error *err)
{
    struct calibration *c = e->calibration;
    if (!c)
        c = e->calibration = make_list(e);
    if (!c)
        return ERR_NOMEM(err);
    struct call *t = &c->calls[c->at];
    uint64_t ns = 0;
    int r = run_call(e, c, t, &ns, err);
    if (r < 0)
        return r;
    if (r == 0 && t->context == NEAR)
        return 0; /* when there is room */
    t->ns[c->round] = r ? (ns ? ns : 1) : 0;
    if (r)
        cut_list(c);
    if (++c->at < c->n)
        return 1;
    c->at = 0;
    if (++c->round < ROUNDS)
        return 1;
    conclude(c, e, &e->controller.costs);
    e->calibration = calibration_free(c);
    e->calibrated = true;
    return 0;
}
