/* SPDX-License-Identifier: Apache-2.0 */
/* See pair-util.h. */
#include "tests/cuda-emu/pair-util.h"

#include <check.h>
#include <stdlib.h>

#include "engine/engine_internal.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/util.h"

float *pair_floats(size_t n)
{
    float *p = calloc(n, sizeof(*p));
    ck_assert_ptr_nonnull(p);
    return p;
}

static struct engine *open_pair(const char *device, const char *model, const char *drafter)
{
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = true;
    c.drafter = drafter;
    return test_engine(model, &c);
}

size_t pair_row_floats(const struct engine *e)
{
    return (size_t)e->drafter.n_taps * e->model->hidden;
}

/* Into the host's memory, or into some row of those that stay. */
static float *place(const struct engine *e, float *host, uint32_t pos)
{
    return (host ? host + pos * pair_row_floats(e)
                 : e->taps + (pos * 11 + 5) % PAIR_N * pair_row_floats(e));
}

struct text pair_text_of(const char *device, const char *model, const char *drafter, bool host)
{
    struct error err = {0};
    struct text t = {.e = open_pair(device, model, drafter)};
    ck_ok(engine_seq_new(t.e, &t.s, &err), &err);
    ck_ok(seq_reserve(t.s, &t.e->space, PAIR_N, &err), &err);
    test_tokens(3, t.e->model->vocab_size, t.s->tokens, PAIR_N);
    t.host = host ? pair_floats(PAIR_N * pair_row_floats(t.e)) : NULL;
    return t;
}

struct text pair_text(const char *device, bool host)
{
    return pair_text_of(device, test_path("tests/golden/drafter/target"),
                        test_path("tests/golden/drafter/fitted"), host);
}

void pair_free(struct text *t)
{
    engine_seq_free(t->e, t->s);
    engine_free(t->e);
    free(t->host);
}

int pair_feed(struct text *t, uint32_t from, uint32_t n, float *logits, struct error *err)
{
    struct engine *e = t->e;
    seq_rows(t->s, from, n, e->rows);
    for (uint32_t i = 0; i < n; i++)
        e->rows[i].taps = place(e, t->host, from + i);
    e->rows[n - 1].logits = logits;
    struct fwd_batch b = {.n_rows = n,
                          .rows = e->rows,
                          .tap_layers = e->drafter.tap_layers,
                          .n_taps = e->drafter.n_taps};
    return e->space.backend->forward(e->space.model, &b, err);
}

int pair_inject(struct text *t, uint32_t from, uint32_t n, struct error *err)
{
    struct engine *e = t->e;
    for (uint32_t i = 0; i < n; i++)
        e->context[i] = (struct draft_context){
            .taps = place(e, t->host, from + i), .pos = from + i, .slot = seq_slot(t->s, from + i)};
    return e->drafter.ops->inject(e->drafter.self, e->context, n, err);
}

void pair_run_block(struct text *t, uint32_t n, float *logits)
{
    struct error err = {0};
    uint32_t tokens[PAIR_W];
    for (uint32_t i = 0; i < PAIR_W; i++)
        tokens[i] = i + 1;
    struct drafter_block b = {.tokens = tokens,
                              .n = PAIR_W,
                              .start = n,
                              .blocks = t->s->blocks,
                              .first = 0,
                              .logits = logits};
    ck_ok(drafter_run(t->e->own_drafter, &b, 1, &err), &err);
}

size_t pair_block_floats(const struct text *t)
{
    return PAIR_W * (size_t)drafter_get_config(t->e->own_drafter)->draft_vocab;
}

/* ---- rounds ------------------------------------------------------------------------------------------ */

struct rounds *pair_rounds(struct text *t, uint32_t pos, const struct draft_round *kinds,
                           uint32_t n)
{
    const size_t vocab = t->e->model->vocab_size;
    struct rounds *a = calloc(1, sizeof(*a));
    ck_assert_ptr_nonnull(a);
    ck_assert_uint_le(n, PAIR_ROUNDS);
    t->s->n_kv = pos;
    a->n = n;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_round *r = &a->r[i];
        *r = kinds[i];
        r->window = PAIR_W - i % 2;
        r->max_nodes = PROPOSAL_MAX_NODES;
        r->seed = 17 * i;
        r->q = kinds[i].draw ? pair_floats((PAIR_W - 1) * vocab) : NULL;
        r->proposal = &a->proposals[i];
    }
    return a;
}

void pair_rounds_free(struct rounds *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        free(a->r[i].q);
    free(a);
}

int pair_pass(struct text *t, struct rounds *a, uint32_t n, struct error *err)
{
    struct draft_entry some[PAIR_ROUNDS];
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!a->r[i].done)
            some[k++] = (struct draft_entry){.seq = t->s, .round = &a->r[i]};
    return k ? t->e->drafter.ops->pass(t->e->drafter.self, some, k, err) : 0;
}

bool pair_rounds_done(const struct rounds *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (!a->r[i].done)
            return false;
    return true;
}

void pair_rounds_same(const struct text *t, const struct rounds *a, const struct rounds *b)
{
    const size_t vocab = t->e->model->vocab_size;
    ck_assert_uint_eq(a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct draft_round *x = &a->r[i], *y = &b->r[i];
        const struct proposal *p = x->proposal, *o = y->proposal;
        ck_assert(x->done && y->done);
        ck_assert_uint_eq(x->pass, y->pass);
        for (uint32_t k = 0; k < x->pass; k++) {
            ck_assert_mem_eq(x->tokens[k], y->tokens[k], (x->window - 1) * sizeof(uint32_t));
            test_floats_equal("confidence", x->confidence[k], y->confidence[k], x->window - 1);
        }
        ck_assert_uint_gt(p->n, 0);
        ck_assert_uint_eq(p->n, o->n);
        ck_assert_mem_eq(p->tokens, o->tokens, p->n * sizeof(*p->tokens));
        ck_assert_mem_eq(p->parent, o->parent, p->n * sizeof(*p->parent));
        test_floats_equal("a proposal's confidence", p->confidence, o->confidence, p->n);
        if (x->q)
            test_floats_equal("q", x->q, y->q, (x->window - 1) * vocab);
    }
}

uint64_t pair_waits_since(uint64_t *before)
{
    const uint64_t n = emu_counts_now().waits - *before;
    *before += n;
    return n;
}
