/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stays on the device, on the emulated one: the target's taps reach the drafter's K/V there, with the
 * bits that they have by way of the host, and nothing of them is copied; and drafts are chosen there, those
 * that the host would choose.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/drafter.h"
#include "engine/engine_internal.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/draftergen.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define N 90u /* positions of a text; more than a graph takes at once */
#define W 8u

static float *floats(size_t n)
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

static size_t row_floats(const struct engine *e)
{
    return (size_t)e->drafter.n_taps * e->model->hidden;
}

/* Where the taps of position pos go: into the host's memory, or into some row of those that stay. */
static float *place(const struct engine *e, float *host, uint32_t pos)
{
    return (host ? host + pos * row_floats(e) : e->taps + (pos * 11 + 5) % N * row_floats(e));
}

/* ---- taps ------------------------------------------------------------------------------------------- */

struct text {
    struct engine *e;
    struct seq *s;
    float *host; /* NULL: taps stay */
};

static struct text new_text_of(const char *device, const char *model, const char *drafter,
                               bool host)
{
    struct error err = {0};
    struct text t = {.e = open_pair(device, model, drafter)};
    ck_ok(engine_seq_new(t.e, &t.s, &err), &err);
    ck_ok(seq_reserve(t.s, &t.e->space, N, &err), &err);
    test_tokens(3, t.e->model->vocab_size, t.s->tokens, N);
    t.host = host ? floats(N * row_floats(t.e)) : NULL;
    return t;
}

static struct text new_text(const char *device, bool host)
{
    return new_text_of(device, test_path("tests/golden/drafter/target"),
                       test_path("tests/golden/drafter/fitted"), host);
}

static void free_text(struct text *t)
{
    engine_seq_free(t->e, t->s);
    engine_free(t->e);
    free(t->host);
}

/* Positions [from, from + n) through the target; logits of the last one, if wanted. */
static int feed(struct text *t, uint32_t from, uint32_t n, float *logits, struct error *err)
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

static int inject(struct text *t, uint32_t from, uint32_t n, struct error *err)
{
    struct engine *e = t->e;
    for (uint32_t i = 0; i < n; i++)
        e->context[i] = (struct draft_context){
            .taps = place(e, t->host, from + i), .pos = from + i, .slot = seq_slot(t->s, from + i)};
    return e->drafter.ops->inject(e->drafter.self, e->context, n, err);
}

/* A block behind the first n positions: its logits say what the drafter knows of them. */
static void run_block(struct text *t, uint32_t n, float *logits)
{
    struct error err = {0};
    uint32_t tokens[W];
    for (uint32_t i = 0; i < W; i++)
        tokens[i] = i + 1;
    struct drafter_block b = {
        .tokens = tokens, .n = W, .start = n, .blocks = t->s->blocks, .first = 0, .logits = logits};
    ck_ok(drafter_run(t->e->own_drafter, &b, 1, &err), &err);
}

static size_t block_floats(const struct text *t)
{
    return W * (size_t)drafter_get_config(t->e->own_drafter)->draft_vocab;
}

static void same_as_host(const size_t *chunks, size_t n_chunks)
{
    struct error err = {0};
    struct text kept = new_text("emu", false), host = new_text("emu", true),
                cpu = new_text("cpu", true);
    ck_assert_ptr_nonnull(kept.e->drafter.taps);
    ck_assert_ptr_null(cpu.e->drafter.taps);
    struct text *all[3] = {&kept, &host, &cpu};
    const size_t vocab = kept.e->model->vocab_size, n = block_floats(&kept);
    float *got[3], *logits = floats(vocab);
    for (int k = 0; k < 3; k++) {
        got[k] = floats(n);
        uint32_t at = 0;
        for (size_t i = 0; at < N; i++) {
            uint32_t rows = (uint32_t)chunks[i % n_chunks];
            rows = rows < N - at ? rows : N - at;
            const struct emu_counts before = emu_counts_now();
            ck_ok(feed(all[k], at, rows, i % 2 ? logits : NULL, &err), &err);
            ck_ok(inject(all[k], at, rows, &err), &err);
            const uint64_t out = emu_counts_now().bytes_out - before.bytes_out;
            const uint64_t taps = rows * row_floats(all[k]->e) * sizeof(float);
            const uint64_t wanted = i % 2 ? vocab * sizeof(float) : 0;
            ck_assert_uint_eq(out, k == 0 ? wanted : k == 1 ? wanted + taps : 0);
            at += rows;
        }
        run_block(all[k], N, got[k]);
    }
    test_floats_equal("taps that stay", got[0], got[1], n);
    test_floats_equal("taps on the device", got[0], got[2], n);
    for (int k = 0; k < 3; k++) {
        free(got[k]);
        free_text(all[k]);
    }
    free(logits);
}

/* Fixed shapes, which are captured and replayed; a batch that is too large for a graph. */
START_TEST(taps_stay)
{
    static const size_t few[] = {7}, some[] = {1, 5, 64}, many[] = {N};
    uint64_t before = emu_counts_now().replays;
    same_as_host(few, 1);
    ck_assert_uint_gt(emu_counts_now().replays, before);
    same_as_host(some, 3);
    same_as_host(many, 1);
}
END_TEST

/* Both kinds in one call would be read from the wrong memory. */
START_TEST(one_kind_only)
{
    struct error err = {0};
    struct text t = new_text("emu", false);
    float *one = floats(row_floats(t.e));
    struct ctx_row rows[2] = {{.taps = t.e->taps, .pos = 0, .slot = seq_slot(t.s, 0)},
                              {.taps = one, .pos = 1, .slot = seq_slot(t.s, 1)}};
    ck_fails(drafter_inject(t.e->own_drafter, rows, 2, &err), INTERNAL, &err);
    seq_rows(t.s, 0, 2, t.e->rows);
    t.e->rows[0].taps = one;
    t.e->rows[1].taps = t.e->taps;
    struct fwd_batch b = {.n_rows = 2,
                          .rows = t.e->rows,
                          .tap_layers = t.e->drafter.tap_layers,
                          .n_taps = t.e->drafter.n_taps};
    ck_fails(t.e->space.backend->forward(t.e->space.model, &b, &err), INTERNAL, &err);
    free(one);
    free_text(&t);
}
END_TEST

/* Without the drafter the memory is gone, and the target goes on. */
START_TEST(drafter_goes_first)
{
    struct error err = {0};
    struct text t = new_text("emu", true);
    float *logits = floats(t.e->model->vocab_size), *again = floats(t.e->model->vocab_size);
    ck_ok(feed(&t, 0, 9, logits, &err), &err);
    t.e->own_drafter = drafter_free(t.e->own_drafter);
    ck_ok(feed(&t, 0, 9, again, &err), &err);
    test_floats_equal("without a drafter", again, logits, t.e->model->vocab_size);
    free(logits);
    free(again);
    free_text(&t);
}
END_TEST

/* Every call of a batch and of the injection behind it fails once: an error, and then the same bits. */
START_TEST(every_call_fails)
{
    struct error err = {0};
    setenv("DEDIT_CUDA_GRAPHS", "off", 1); /* which would make up for some */
    struct text want = new_text("emu", false), t = new_text("emu", false);
    const size_t n = block_floats(&t);
    float *a = floats(n), *b = floats(n);
    ck_ok(feed(&want, 0, 6, NULL, &err), &err);
    ck_ok(inject(&want, 0, 6, &err), &err);
    run_block(&want, 6, a);
    int r = -1;
    unsetenv("DEDIT_CUDA_GRAPHS");
    for (long i = 0; r < 0; i++) {
        err = (struct error){0};
        emu_fail(i, 999, false);
        r = feed(&t, 0, 6, NULL, &err);
        r = r < 0 ? r : inject(&t, 0, 6, &err);
        emu_fail(-1, 0, false);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", i, err.msg);
        ck_assert_int_lt(i, 500);
    }
    run_block(&t, 6, b);
    test_floats_equal("after failures", b, a, n);
    free(a);
    free(b);
    free_text(&t);
    free_text(&want);
    ck_assert_uint_eq(emu_counts_now().blocks + emu_counts_now().pinned + emu_counts_now().graphs,
                      0);
}
END_TEST

/* ---- drafts ----------------------------------------------------------------------------------------- */

#define ROUNDS 5u

struct rounds {
    struct proposal proposals[ROUNDS];
    struct draft_round r[ROUNDS];
    struct draft_entry entries[ROUNDS];
    float *q;
};

/* One of each kind, behind the first n positions; the last one draws its tokens (rule B). */
static struct rounds *new_rounds(struct text *t, uint32_t n)
{
    static const struct draft_round kinds[ROUNDS] = {
        {.method = DRAFT_DFLASH, .passes = 1},
        {.method = DRAFT_DEDIT, .passes = 3, .noise = true, .temperature = 0.7f},
        {.method = DRAFT_DDTREE, .passes = 2, .tree_budget = 15, .each_pass = true},
        {.method = DRAFT_DDTREE,
         .passes = 1,
         .tree_budget = PROPOSAL_MAX_NODES,
         .noise = true,
         .temperature = 1.3f},
        {.method = DRAFT_DEDIT, .passes = 2, .draw = true, .temperature = 1},
    };
    struct rounds *a = calloc(1, sizeof(*a));
    ck_assert_ptr_nonnull(a);
    t->s->n_kv = n;
    a->q = floats((W - 1) * (size_t)t->e->model->vocab_size);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        a->r[i] = kinds[i];
        a->r[i].window = W - i % 2;
        a->r[i].max_nodes = PROPOSAL_MAX_NODES;
        a->r[i].seed = 17 * i;
        a->r[i].q = kinds[i].draw ? a->q : NULL;
        a->r[i].proposal = &a->proposals[i];
        a->entries[i] = (struct draft_entry){.seq = t->s, .round = &a->r[i]};
    }
    return a;
}

static void free_rounds(struct rounds *a)
{
    free(a->q);
    free(a);
}

/* One pass of all that are not done; the first `n` rounds only. */
static int pass(struct text *t, struct rounds *a, uint32_t n, struct error *err)
{
    struct draft_entry some[ROUNDS];
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!a->r[i].done)
            some[k++] = a->entries[i];
    return k ? t->e->drafter.ops->pass(t->e->drafter.self, some, k, err) : 0;
}

static void same_rounds(const struct text *t, const struct rounds *a, const struct rounds *b)
{
    const size_t vocab = t->e->model->vocab_size;
    for (uint32_t i = 0; i < ROUNDS; i++) {
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
    }
    test_floats_equal("q", a->q, b->q, (W - 1) * vocab);
}

/* Takes both. */
static void drafted(struct text dev, struct text cpu)
{
    struct error err = {0};
    struct text *both[2] = {&dev, &cpu};
    struct rounds *got[2];
    for (int k = 0; k < 2; k++) {
        ck_ok(feed(both[k], 0, 40, NULL, &err), &err);
        ck_ok(inject(both[k], 0, 40, &err), &err);
        got[k] = new_rounds(both[k], 40);
        for (int i = 0; i < 3; i++)
            ck_ok(pass(both[k], got[k], ROUNDS, &err), &err);
    }
    same_rounds(&dev, got[0], got[1]);
    /* The tree of 127 nodes has other candidates than the one of 15, and more than one. */
    ck_assert_uint_eq(got[0]->proposals[2].n, 15);
    ck_assert_uint_gt(got[0]->proposals[3].n, 15);
    for (int k = 0; k < 2; k++) {
        free_rounds(got[k]);
        free_text(both[k]);
    }
}

/* A real drafter, and one that drafts 200 of its target's tokens, by ids of its own. */
START_TEST(drafts_are_the_same)
{
    drafted(new_text("emu", true), new_text("cpu", true));
    struct fixture f = fixture_random(21);
    struct gen_drafter g = gen_drafter_new(7);
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    f.n_layers = 6;
    g.d2t = "I64";
    g.draft_vocab = 200;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(&g, dir);
    const char *model = fixture_write(&f);
    drafted(new_text_of("emu", model, dir, true), new_text_of("cpu", model, dir, true));
    gen_drafter_remove(&g, dir);
}
END_TEST

/* 16 bytes a row, and candidates for rows of trees alone; where a round draws, its logits. */
START_TEST(logits_stay)
{
    struct error err = {0};
    struct text t = new_text("emu", true);
    const size_t row = drafter_get_config(t.e->own_drafter)->draft_vocab * sizeof(float);
    ck_ok(feed(&t, 0, 40, NULL, &err), &err);
    ck_ok(inject(&t, 0, 40, &err), &err);
    for (int again = 0; again < 3; again++) { /* as launches, captured, replayed */
        struct rounds *a = new_rounds(&t, 40);
        const uint64_t before = emu_counts_now().bytes_out;
        ck_ok(pass(&t, a, 2, &err), &err);
        ck_assert_uint_eq(emu_counts_now().bytes_out - before, (7 + 6) * 16);
        a->r[4].pass = 1; /* its last, which draws */
        const uint64_t half = emu_counts_now().bytes_out;
        ck_ok(pass(&t, a, ROUNDS, &err), &err);
        /* Rows of the second to the last round: 6, 7 and 6 of trees, 7 that draw. */
        ck_assert_uint_eq(emu_counts_now().bytes_out - half,
                          (6 + 7 + 6 + 7) * 16 + (7 + 6) * DCU_MAX_TOP * 8 + 7 * row);
        free_rounds(a);
    }
    ck_assert_uint_gt(emu_counts_now().replays, 0);
    free_text(&t);
}
END_TEST

/* Every call of a pass fails once: an error, and then the same drafts. */
START_TEST(every_call_of_a_pass_fails)
{
    struct error err = {0};
    struct text t = new_text("emu", true);
    ck_ok(feed(&t, 0, 40, NULL, &err), &err);
    ck_ok(inject(&t, 0, 40, &err), &err);
    struct rounds *want = new_rounds(&t, 40), *a = new_rounds(&t, 40);
    for (int i = 0; i < 3; i++)
        ck_ok(pass(&t, want, ROUNDS, &err), &err);
    setenv("DEDIT_CUDA_GRAPHS", "off", 1);
    int r = -1;
    for (long i = 0; r < 0; i++) {
        err = (struct error){0};
        emu_fail(i, 999, false);
        r = pass(&t, a, ROUNDS, &err);
        emu_fail(-1, 0, false);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", i, err.msg);
        ck_assert_int_lt(i, 500);
    }
    unsetenv("DEDIT_CUDA_GRAPHS");
    for (int i = 0; i < 2; i++)
        ck_ok(pass(&t, a, ROUNDS, &err), &err);
    same_rounds(&t, a, want);
    free_rounds(a);
    free_rounds(want);
    free_text(&t);
}
END_TEST

static uint64_t waits_since(uint64_t *before)
{
    const uint64_t n = emu_counts_now().waits - *before;
    *before += n;
    return n;
}

/* A round waits for each pass and for its verification; features and moves wait for nobody, unless two of
 * them come one behind the other. */
START_TEST(waits_of_a_round)
{
    struct error err = {0};
    struct text t = new_text("emu", false), want = new_text("emu", true);
    struct engine *e = t.e;
    const struct backend *b = e->space.backend;
    const size_t vocab = e->model->vocab_size;
    float *logits = floats(vocab), *same = floats(vocab);
    uint64_t at = emu_counts_now().waits;
    for (int again = 0; again < 3; again++) { /* as launches, captured, replayed */
        const uint32_t from = 12 * (uint32_t)again, to = from + 1;
        ck_ok(feed(&t, from, 12, logits, &err), &err);
        ck_assert_uint_eq(waits_since(&at), 1);
        ck_ok(inject(&t, from, 12, &err), &err);
        ck_ok(b->kv_copy(e->space.model, &to, &from, 1, &err), &err);
        ck_assert_uint_eq(waits_since(&at), 0);
        ck_ok(b->kv_copy(e->space.model, &from, &to, 1, &err), &err);
        ck_assert_uint_eq(waits_since(&at), 1);
        struct rounds *a = new_rounds(&t, from + 12), *o = new_rounds(&want, from + 12);
        ck_ok(pass(&t, a, 1, &err), &err);
        ck_assert_uint_eq(waits_since(&at), 1);
        ck_ok(inject(&t, from, 6, &err), &err);
        ck_ok(inject(&t, from + 6, 6, &err), &err);
        ck_assert_uint_eq(waits_since(&at), 1);
        /* The same by way of the host, where all is waited for. */
        ck_ok(feed(&want, from, 12, same, &err), &err);
        ck_ok(inject(&want, from, 12, &err), &err);
        ck_ok(want.e->space.backend->kv_copy(want.e->space.model, &to, &from, 1, &err), &err);
        ck_ok(want.e->space.backend->kv_copy(want.e->space.model, &from, &to, 1, &err), &err);
        ck_ok(pass(&want, o, 1, &err), &err);
        ck_assert_mem_eq(a->r[0].tokens[0], o->r[0].tokens[0], (W - 1) * sizeof(uint32_t));
        test_floats_equal("confidence", a->r[0].confidence[0], o->r[0].confidence[0], W - 1);
        test_floats_equal("logits", logits, same, vocab);
        free_rounds(a);
        free_rounds(o);
        at = emu_counts_now().waits;
    }
    free(logits);
    free(same);
    free_text(&t);
    free_text(&want);
}
END_TEST

/* A target drafts nothing. */
START_TEST(picks_of_a_target)
{
    struct error err = {0};
    struct text t = new_text("emu", true);
    struct fwd_pick pick = {.row = 0};
    seq_rows(t.s, 0, 1, t.e->rows);
    struct fwd_batch b = {.n_rows = 1, .rows = t.e->rows, .picks = &pick, .n_picks = 1};
    ck_fails(t.e->space.backend->forward(t.e->space.model, &b, &err), INTERNAL, &err);
    free_text(&t);
}
END_TEST

int main(void)
{
    emu_open_library();

    Suite *s = suite_create("cuda-resident");
    TCase *t = test_case(s, "taps");
    tcase_add_test(t, taps_stay);
    tcase_add_test(t, one_kind_only);
    tcase_add_test(t, drafter_goes_first);
    tcase_add_test(t, every_call_fails);
    tcase_add_test(t, drafts_are_the_same);
    tcase_add_test(t, logits_stay);
    tcase_add_test(t, every_call_of_a_pass_fails);
    tcase_add_test(t, waits_of_a_round);
    tcase_add_test(t, picks_of_a_target);
    return test_main(s);
}
