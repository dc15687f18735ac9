/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths that the emulated device finds through trees, and the K and V that it moves by them: those of the
 * host, and then the text is that of plain decoding; without a wait of their own, however many requests have
 * trees.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/record.h"
#include "tests/unit/util.h"

enum { OUT = 20, PROMPT = 9, CROWD = 20, DEPTH = 6, SIBLINGS = 6 };
#define MOST_STOPS 1024u /* ids that have room on the device: CUDA_DRAW_STOPS */

static const char *model;

static struct engine *open_engine(const char *device)
{
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = true;
    c.max_num_seqs = CROWD;
    c.n_kv_blocks = 8 * CROWD;
    return test_engine(model, &c);
}

/* ---- one batch ---------------------------------------------------------------------------------------- */

/* Two sequences with so many positions, whose next token has no K and V. */
static const uint32_t before[2] = {20, 37};

static struct seq *new_seq(struct engine *e, int which)
{
    struct error err = {0};
    struct seq *s = NULL;
    ck_ok(engine_seq_new(e, &s, &err), &err);
    ck_ok(seq_reserve(s, &e->space, before[which], &err), &err);
    test_tokens(7 + (uint64_t)which, e->model->vocab_size, s->tokens, before[which] + 1);
    seq_rows(s, 0, before[which], e->rows);
    struct fwd_batch b = {.n_rows = before[which], .rows = e->rows};
    ck_ok(e->space.backend->forward(e->space.model, &b, &err), &err);
    s->n_kv = before[which];
    s->n_tokens = before[which] + 1;
    return s;
}

/* Appends the likeliest token behind the last one. */
static void decode(struct engine *e, struct seq *s)
{
    struct error err = {0};
    struct fwd_choice choice;
    ck_ok(seq_reserve(s, &e->space, 1, &err), &err);
    seq_rows(s, s->n_kv, 1, e->rows);
    const struct fwd_draw d = {.pos = s->n_tokens, .n_rows = 1, .ret = &choice};
    struct fwd_batch b = {.n_rows = 1, .rows = e->rows, .draws = &d, .n_draws = 1};
    ck_ok(e->space.backend->forward(e->space.model, &b, &err), &err);
    ck_assert_int_eq(choice.fault, SAMPLER_GOOD);
    s->n_kv++;
    s->tokens[s->n_tokens++] = choice.token;
}

static void last_logits(struct engine *e, struct seq *s, float *ret)
{
    struct error err = {0};
    ck_ok(seq_reserve(s, &e->space, 1, &err), &err);
    seq_rows(s, s->n_kv, 1, e->rows);
    e->rows[0].logits = ret;
    struct fwd_batch b = {.n_rows = 1, .rows = e->rows};
    ck_ok(e->space.backend->forward(e->space.model, &b, &err), &err);
}

/* At each depth wrong siblings, one of them with children of its own, and the right token behind them; less
 * of them at the second sequence. */
static uint32_t grow(const struct seq *plain, uint32_t anchor, uint32_t vocab, int which,
                     uint32_t *tokens, int32_t *parent, uint32_t *right)
{
    uint32_t n = 1;
    tokens[0] = plain->tokens[anchor];
    parent[0] = -1;
    right[0] = 0;
    for (uint32_t d = 0; d < DEPTH; d++) {
        const uint32_t at = right[d], token = plain->tokens[anchor + 1 + d];
        for (uint32_t k = 0; k < SIBLINGS; k++, n++) {
            const bool last = k == SIBLINGS - 1;
            tokens[n] = last ? token : (token + 1 + k) % vocab;
            parent[n] = (int32_t)(k == 1 + (uint32_t)which ? n - 1 : at);
            if (last)
                right[d + 1] = n;
        }
    }
    return n;
}

/* More rows of logits than are computed together, after which the walk comes. */
START_TEST(paths)
{
    struct error err = {0};
    struct engine *e = open_engine("emu");
    const uint32_t vocab = e->model->vocab_size, most = 1 + DEPTH * SIBLINGS;
    float *logits = emu_floats(vocab), *want = emu_floats(vocab);
    uint32_t *tails = calloc(2 * (size_t)most * (DK_KV_BLOCK + most), sizeof(*tails));
    struct fwd_choice *choices = calloc(2 * (size_t)most, sizeof(*choices));
    ck_assert(tails && choices);
    for (int again = 0; again < 3; again++) {
        struct seq *plain[2], *s[2];
        struct fwd_path path[2];
        struct fwd_draw draws[2];
        uint32_t right[2][DEPTH + 1], n_rows = 0;
        int16_t parents[2][128];
        uint32_t *tail = tails;
        const uint32_t used = again == 2 ? 1 : 2; /* few rows: in one graph */
        for (int i = 0; i < 2; i++) {
            plain[i] = new_seq(e, i);
            s[i] = new_seq(e, i);
            for (uint32_t k = 0; k < DEPTH + 1; k++)
                decode(e, plain[i]);
        }
        for (uint32_t i = 0; i < used; i++) {
            uint32_t tokens[128];
            int32_t parent[128];
            const uint32_t n = grow(plain[i], before[i], vocab, (int)i, tokens, parent, right[i]);
            ck_ok(seq_reserve(s[i], &e->space, n, &err), &err);
            seq_tree_rows(s[i], tokens, parent, n, tail, e->rows + n_rows);
            tail += seq_tree_tails(s[i], parent, n);
            for (uint32_t k = 1; k < n; k++)
                parents[i][k - 1] = (int16_t)(parent[k] - 1);
            draws[i] = (struct fwd_draw){.pos = s[i]->n_tokens,
                                         .row0 = n_rows,
                                         .n_rows = n,
                                         .parent = parents[i],
                                         .ret = choices + n_rows,
                                         .path = &path[i]};
            n_rows += n;
        }
        ck_assert(used == 1 || n_rows > 64);
        struct fwd_batch b = {.n_rows = n_rows, .rows = e->rows, .draws = draws, .n_draws = used};
        const uint64_t waits = emu_counts_now().waits;
        ck_ok(e->space.backend->forward(e->space.model, &b, &err), &err);
        ck_assert_uint_eq(emu_counts_now().waits - waits, 1);
        for (uint32_t i = 0; i < used; i++) {
            ck_assert_uint_eq(path[i].n, DEPTH + 1);
            for (uint32_t k = 0; k <= DEPTH; k++) {
                ck_assert_uint_eq(path[i].row[k], right[i][k]);
                s[i]->tokens[s[i]->n_tokens++] = draws[i].ret[right[i][k]].token;
            }
            ck_ok(seq_keep(s[i], &e->space, NULL, DEPTH + 1, &err), &err);
            ck_assert_uint_eq(s[i]->n_tokens, plain[i]->n_tokens);
            ck_assert_mem_eq(s[i]->tokens, plain[i]->tokens,
                             s[i]->n_tokens * sizeof(*s[i]->tokens));
            last_logits(e, s[i], logits);
            last_logits(e, plain[i], want);
            test_floats_equal("behind a path", logits, want, vocab);
        }
        for (int i = 0; i < 2; i++) {
            engine_seq_free(e, plain[i]);
            engine_seq_free(e, s[i]);
        }
    }
    free(logits);
    free(want);
    free(tails);
    free(choices);
    engine_free(e);
}
END_TEST

/* ---- requests ------------------------------------------------------------------------------------------- */

struct one {
    struct request *r;
    struct test_record out, want;
    uint32_t prompt[PROMPT], stops[SAMPLING_MAX_STOP_IDS];
    struct draft_script script;
    struct draft_script_round rounds[OUT];
};
static struct one crowd[CROWD];

/* Every third ends at a token of its text, in the middle of a tree. */
static struct engine_request request_of(struct one *o, uint32_t i, uint32_t n_stops,
                                        struct test_record *out)
{
    struct engine_request q = {.prompt = o->prompt, .n_prompt = PROMPT};
    sampling_params_init(&q.sampling);
    q.sampling.temperature = i % 2 ? 0.9f : 0;
    q.sampling.max_tokens = OUT;
    q.sampling.seed = i;
    q.sampling.has_seed = true;
    q.sampling.ignore_eos = true;
    q.sampling.logprobs = i % 4 ? -1 : 2;
    q.sampling.presence_penalty = i % 5 ? 0 : 0.5f;
    q.sampling.stop_ids = o->stops;
    q.sampling.n_stop_ids = n_stops;
    *out = (struct test_record){.most = OUT};
    q.sink = test_record_sink(out);
    q.drafting.method = DRAFT_AR;
    return q;
}

static void plain_text(struct engine *cpu, struct one *o, uint32_t i, uint32_t n_stops)
{
    struct error err = {0};
    const uint32_t vocab = cpu->model->vocab_size;
    struct engine_request q = request_of(o, i, 0, &o->want);
    for (int again = 0; again < 2; again++) {
        ck_ok(engine_submit(cpu, &q, &o->r, &err), &err);
        while (!o->want.finished)
            ck_assert_int_ge(engine_step(cpu, &err), 0);
        o->r = request_free(o->r);
        if (again || n_stops == 0)
            return;
        /* Ids that do not occur, and one that does. */
        for (uint32_t k = 0, id = 0; k < n_stops; id++) {
            bool occurs = false;
            for (uint32_t j = 0; j < o->want.n; j++)
                occurs = occurs || o->want.ids[j] == id % vocab;
            if (!occurs)
                o->stops[k++] = id % vocab;
        }
        if (i % 3 == 0)
            o->stops[n_stops / 2] = o->want.ids[7 + i % 5];
        q = request_of(o, i, n_stops, &o->want);
    }
}

static void write_script(struct one *o, uint32_t vocab)
{
    o->script = (struct draft_script){o->rounds, OUT};
    memset(o->rounds, 0, sizeof(o->rounds));
    for (uint32_t at = 0; at < OUT; at++) {
        struct proposal *p = &o->rounds[at].proposal;
        int path = -1;
        o->rounds[at].at = at;
        for (uint32_t d = 0; d < 3 + at % 3; d++) {
            const uint32_t i = at + d;
            const uint32_t token = i < o->want.n ? o->want.ids[i] : i;
            const int parent = path;
            (void)proposal_add(p, (token + 1) % vocab, parent, 0.1f);
            path = proposal_add(p, token, parent, 0.6f);
            (void)proposal_add(p, (token + 2) % vocab, parent, 0.1f);
        }
    }
}

/* Many trees at once; with so many ids that end outputs that not all have room, the host moves some. */
static void crowded(uint32_t n, uint32_t n_stops)
{
    struct error err = {0};
    struct engine *cpu = open_engine("cpu"), *e = open_engine("emu");
    const uint32_t vocab = e->model->vocab_size;
    struct engine_stats stats;
    uint32_t branches = 0, stopped = 0;
    for (uint32_t i = 0; i < n; i++) {
        test_tokens(i, vocab, crowd[i].prompt, PROMPT);
        plain_text(cpu, &crowd[i], i, n_stops);
        write_script(&crowd[i], vocab);
    }
    const uint64_t waits = emu_counts_now().waits;
    for (uint32_t i = 0; i < n; i++) {
        struct engine_request q = request_of(&crowd[i], i, n_stops, &crowd[i].out);
        q.drafting.method = DRAFT_SCRIPTED;
        q.drafting.script = &crowd[i].script;
        q.drafting.want_rounds = true;
        ck_ok(engine_submit(e, &q, &crowd[i].r, &err), &err);
    }
    int r;
    while ((r = engine_step(e, &err)) > 0)
        ;
    ck_ok(r, &err);
    engine_get_stats(e, &stats);
    for (uint32_t i = 0; i < n; i++) {
        test_records_equal(&crowd[i].out, &crowd[i].want, "a tree in a crowd");
        branches += crowd[i].out.branches;
        stopped += crowd[i].out.reason == FINISH_STOP;
        crowd[i].r = request_free(crowd[i].r);
    }
    ck_assert_uint_gt(branches, n);
    ck_assert(stopped > 0 || n_stops == 0);
    const uint64_t waited = emu_counts_now().waits - waits;
    if (n * n_stops > MOST_STOPS)
        ck_assert_uint_gt(waited, stats.steps);
    else
        ck_assert_uint_eq(waited, stats.steps);
    engine_free(cpu);
    engine_free(e);
}

START_TEST(crowds)
{
    crowded(1, 0);
    crowded(7, 3);
}
END_TEST

START_TEST(many_stop_ids)
{
    crowded(CROWD, SAMPLING_MAX_STOP_IDS);
}
END_TEST

/* A path that is not the host's ends the request; nobody commits it. */
static struct backend liar;

static int lie(struct backend_model *m, const struct fwd_batch *b, struct error *err)
{
    int r = backend_cuda.forward(m, b, err);
    for (uint32_t i = 0; i < b->n_draws && r == 0; i++)
        if (b->draws[i].path && b->draws[i].path->n > 1)
            b->draws[i].path->row[1]++;
    return r;
}

START_TEST(another_path)
{
    struct error err = {0};
    static struct test_request got;
    struct engine *cpu = open_engine("cpu"), *e = open_engine("emu");
    struct one *o = &crowd[0];
    test_tokens(0, e->model->vocab_size, o->prompt, PROMPT);
    plain_text(cpu, o, 0, 0);
    write_script(o, e->model->vocab_size);
    liar = backend_cuda;
    liar.forward = lie;
    e->space.backend = &liar;
    struct engine_request q = test_request_init(o->prompt, PROMPT, OUT);
    q.sampling.ignore_eos = true;
    q.sampling.presence_penalty = 0.5f;
    q.drafting.method = DRAFT_SCRIPTED;
    q.drafting.script = &o->script;
    ck_ok(test_submit(e, &q, &got, &err), &err);
    while (!got.finished)
        ck_assert_int_ge(engine_step(e, &err), 0);
    ck_assert_int_eq(got.error, DEDIT_E_INTERNAL);
    ck_assert_uint_lt(got.ids.len, OUT);
    test_request_done(&got);
    e->space.backend = &backend_cuda;
    test_engine_idle(e);
    engine_free(cpu);
    engine_free(e);
}
END_TEST

int main(void)
{
    emu_open_library();
    setenv("CUEMU_CHECK", "20", 0); /* other tests look at all accesses of the same kernels */
    struct fixture f = fixture_random(5);
    model = fixture_write(&f);

    Suite *s = suite_create("cuda-walk");
    TCase *t = test_case(s, "walk");
    tcase_add_test(t, paths);
    tcase_add_test(t, crowds);
    tcase_add_test(t, many_stop_ids);
    tcase_add_test(t, another_path);
    return test_main(s);
}
