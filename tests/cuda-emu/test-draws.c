/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens that the CUDA backend chooses, on the emulated device: what sampler_choose says of the same logits,
 * for every combination of parameters, and what plain decoding on the CPU gives, whoever else is in the
 * batch; of the logits nothing is copied.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/engine_internal.h"
#include "engine/sampler_internal.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define PREFIX 20u
#define EACH   3u  /* rows of a draw */
#define MANY   24u /* of a batch: 72 rows, more than one piece of logits; one draw in both */
#define FEW    EMU_FEWER(12u, 6u) /* 36 rows: a graph */
#define PARTS  4                  /* in which the combinations are tried */

static const char *model;
static struct engine *open_on(const char *device)
{
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = true;
    return test_engine(model, &c);
}

/* ---- the sampler's parameters ------------------------------------------------------------------------- */

/* Combination i: each parameter off, or at one of some values. */
enum { COMBINATIONS = 2 * 2 * 2 * 2 * 4 * 3 * 3 };
static struct sampling_params combination(uint32_t i, struct logit_bias bias[2])
{
    static const float temperatures[] = {0.8f, 1.3f, 0.02f, 50};
    static const uint32_t stops[] = {40, 300};
    const uint32_t turn = i;
    struct sampling_params p;
    sampling_params_init(&p);
    p.temperature = i % 2 ? temperatures[turn / 2 % 4] : 0;
    i /= 2;
    p.top_k = i % 2 ? (int32_t)(turn % 50) + 1 : 0;
    i /= 2;
    p.top_p = i % 2 ? 0.5f + 0.01f * (float)(turn % 49) : 1;
    i /= 2;
    p.min_p = i % 2 ? 0.01f * (float)(turn % 30 + 1) : 0;
    i /= 2;
    p.repetition_penalty = i % 4 & 1 ? 1.3f : 1;
    p.frequency_penalty = i % 4 & 2 ? 0.5f : 0;
    p.presence_penalty = i % 4 & 2 ? -0.75f : 0;
    i /= 4;
    for (uint32_t k = 0; k < 2; k++)
        bias[k] = (struct logit_bias){test_token(turn, k, FIXTURE_VOCAB), k ? -100 : 3.5f};
    p.logit_bias = bias;
    p.n_logit_bias = i % 3 == 1 && bias[0].token != bias[1].token ? 2 : 0;
    p.min_tokens = i % 3 == 2 ? 5 : 0; /* within the draw's rows: three were committed */
    i /= 3;
    p.logprobs = i == 0 ? -1 : i == 1 ? 0 : (int32_t)(turn % 20) + 1;
    p.stop_ids = stops;
    p.n_stop_ids = 2;
    p.seed = 0x123456789abcull * (turn + 1);
    return p;
}

static struct sampler *sampler_of(uint32_t i)
{
    static const uint32_t eos = FIXTURE_EOS;
    struct logit_bias bias[2];
    struct sampling_params p = combination(i, bias);
    struct error err = {0};
    struct sampler *s = NULL;
    uint32_t seen[30];
    ck_ok(sampler_new(&p, FIXTURE_VOCAB, &eos, 1, &s, &err), &err);
    test_tokens(i, FIXTURE_VOCAB, seen, 30);
    ck_assert_int_eq(sampler_add_prompt(s, seen, 30), 0);
    for (uint32_t k = 0; k < 3; k++)
        ck_assert_int_eq(sampler_commit(s, seen[k * k]), 0);
    return s;
}

/* ---- one batch ----------------------------------------------------------------------------------------- */

/* A text of which every batch feeds rows again. */
struct scene {
    struct engine *e;
    struct seq *s;
    float *logits; /* of all rows of a batch of MANY draws */
    struct fwd_choice *choices;
};

static const int16_t parents[EACH - 1] = {-1, 0};

static int run(struct scene *x, uint32_t n_rows, const struct fwd_draw *draws, uint32_t n_draws,
               struct error *err)
{
    struct engine *e = x->e;
    seq_rows(x->s, PREFIX, n_rows, e->rows);
    for (uint32_t i = 0; i < n_rows && n_draws == 0; i++)
        e->rows[i].logits = x->logits + (size_t)i * FIXTURE_VOCAB;
    struct fwd_batch b = {.n_rows = n_rows, .rows = e->rows, .draws = draws, .n_draws = n_draws};
    return e->space.backend->forward(e->space.model, &b, err);
}

static struct scene new_scene(void)
{
    struct error err = {0};
    struct scene x = {.e = open_on("emu")};
    const uint32_t n = MANY * EACH;
    x.logits = calloc((size_t)n * FIXTURE_VOCAB, sizeof(float));
    x.choices = calloc(n, sizeof(*x.choices));
    ck_assert(x.logits && x.choices);
    ck_ok(engine_seq_new(x.e, &x.s, &err), &err);
    ck_ok(seq_reserve(x.s, &x.e->space, PREFIX + n, &err), &err);
    test_tokens(3, 64, x.s->tokens, PREFIX + n); /* few ids, so that paths repeat them */
    seq_rows(x.s, 0, PREFIX, x.e->rows);
    struct fwd_batch b = {.n_rows = PREFIX, .rows = x.e->rows};
    ck_ok(x.e->space.backend->forward(x.e->space.model, &b, &err), &err);
    ck_ok(run(&x, n, NULL, 0, &err), &err);
    return x;
}

static void free_scene(struct scene *x)
{
    engine_seq_free(x->e, x->s);
    engine_free(x->e);
    free(x->logits);
    free(x->choices);
}

/* Row i of a draw against the sampler, after the path to it. */
static void check_row(const struct scene *x, const struct fwd_draw *d, struct sampler *s,
                      uint32_t i, uint32_t which)
{
    static float work[FIXTURE_VOCAB];
    static uint32_t ids[FIXTURE_VOCAB];
    struct token_logprob lp[1 + SAMPLING_MAX_LOGPROBS];
    const struct fwd_choice *c = &d->ret[i];
    const size_t before = sampler_n_output(s);
    uint32_t path[EACH], depth = 0, token = 0, n_lp = 0;
    struct error err = {0};
    for (uint32_t at = i; at; at = (uint32_t)(parents[at - 1] + 1))
        path[depth++] = x->s->tokens[PREFIX + d->row0 + at];
    for (uint32_t k = depth; k--;)
        ck_assert_int_eq(sampler_commit(s, path[k]), 0);
    ck_ok(sampler_choose(s, x->e->ops, x->logits + (size_t)(d->row0 + i) * FIXTURE_VOCAB,
                         d->pos + depth, work, ids, &token, lp, &n_lp, &err),
          &err);
    sampler_rewind(s, before);
    ck_assert_msg(c->fault == SAMPLER_GOOD && c->token == token,
                  "combination %u, row %u: token %u (fault %d), wanted %u", which, i, c->token,
                  (int)c->fault, token);
    ck_assert_msg(c->n_lp == n_lp && memcmp(c->lp, lp, n_lp * sizeof(*lp)) == 0,
                  "combination %u, row %u: other log-probabilities", which, i);
}

static void check_batch(struct scene *x, uint32_t first, uint32_t n_draws)
{
    struct sampler *s[MANY];
    struct fwd_draw draws[MANY];
    struct error err = {0};
    bool logprobs = false;
    for (uint32_t k = 0; k < n_draws; k++) {
        s[k] = sampler_of(first + k);
        logprobs = logprobs || s[k]->logprobs >= 0;
        draws[k] = (struct fwd_draw){.sampler = s[k],
                                     .pos = 0xfffffffeu + first + k,
                                     .row0 = k * EACH,
                                     .n_rows = EACH,
                                     .parent = parents,
                                     .ret = x->choices + k * EACH};
    }
    const uint32_t rows = n_draws * EACH;
    const uint64_t before = emu_counts_now().bytes_out;
    ck_ok(run(x, rows, draws, n_draws, &err), &err);
    ck_assert_uint_eq(emu_counts_now().bytes_out - before,
                      (uint64_t)rows * (logprobs ? 16 + 4 + 160 : 16));
    for (uint32_t k = 0; k < n_draws; k++) {
        for (uint32_t i = 0; i < EACH; i++)
            check_row(x, &draws[k], s[k], i, first + k);
        sampler_free(s[k]);
    }
}

START_TEST(every_combination)
{
    struct scene x = new_scene();
    const uint64_t before = emu_counts_now().replays;
    const uint32_t end = COMBINATIONS / PARTS * ((uint32_t)_i + 1);
    for (uint32_t at = COMBINATIONS / PARTS * (uint32_t)_i, turn = 0, n; at < end;
         at += n + EMU_FEWER(0, 40), turn++) {
        n = turn % 3 || EMU_FEWER(0, _i) ? FEW : MANY;
        n = n < end - at ? n : end - at;
        check_batch(&x, at, n);
    }
    ck_assert_uint_gt(emu_counts_now().replays, before);
    free_scene(&x);
}
END_TEST

/* Rows with logits beside rows with a choice, and one with neither. */
START_TEST(some_rows)
{
    struct error err = {0};
    struct scene x = new_scene();
    struct sampler *s = sampler_of(7);
    static float got[4][FIXTURE_VOCAB];
    const struct fwd_draw d = {
        .sampler = s, .pos = 9, .row0 = 2, .n_rows = EACH, .parent = parents, .ret = x.choices};
    for (int turn = 0; turn < 3; turn++) {
        seq_rows(x.s, PREFIX, 10, x.e->rows);
        for (uint32_t i = 0, k = 0; i < 10; i++)
            if (i == 0 || i == 1 || i == 7 || i == 9)
                x.e->rows[i].logits = got[k++];
        struct fwd_batch b = {.n_rows = 10, .rows = x.e->rows, .draws = &d, .n_draws = 1};
        const uint64_t before = emu_counts_now().bytes_out;
        ck_ok(x.e->space.backend->forward(x.e->space.model, &b, &err), &err);
        ck_assert_uint_ge(emu_counts_now().bytes_out - before, sizeof(got));
        for (uint32_t i = 0; i < EACH; i++)
            check_row(&x, &d, s, i, 7);
        test_floats_equal("row 0", got[0], x.logits, FIXTURE_VOCAB);
        test_floats_equal("row 7", got[2], x.logits + 7 * FIXTURE_VOCAB, FIXTURE_VOCAB);
        test_floats_equal("row 9", got[3], x.logits + 9 * FIXTURE_VOCAB, FIXTURE_VOCAB);
        memset(got, 0, sizeof(got));
    }
    sampler_free(s);
    free_scene(&x);
}
END_TEST

/* Without a sampler: the largest logit. */
START_TEST(largest)
{
    struct error err = {0};
    struct scene x = new_scene();
    const struct fwd_draw d = {.n_rows = 9, .ret = x.choices};
    ck_ok(run(&x, 9, &d, 1, &err), &err);
    for (uint32_t i = 0; i < 9; i++) {
        float max;
        bool bad;
        ck_assert_uint_eq(x.choices[i].token, x.e->ops->argmax(x.logits + (size_t)i * FIXTURE_VOCAB,
                                                               FIXTURE_VOCAB, &max, &bad));
        ck_assert(x.choices[i].fault == SAMPLER_GOOD && x.choices[i].n_lp == 0);
    }
    free_scene(&x);
}
END_TEST

/* More entries than there is memory for: an error, and no row is written behind its end. */
START_TEST(too_many_changes)
{
    struct error err = {0};
    struct scene x = new_scene();
    struct sampler *s = sampler_of(1 << 4); /* repetition penalty */
    uint32_t all[FIXTURE_VOCAB];
    static struct fwd_draw draws[200];
    for (uint32_t i = 0; i < FIXTURE_VOCAB; i++)
        all[i] = i;
    ck_assert_int_eq(sampler_add_prompt(s, all, FIXTURE_VOCAB), 0);
    ck_assert_uint_eq(sampler_n_changed(s), FIXTURE_VOCAB);
    const uint32_t n = x.e->space.backend->draw_changes / FIXTURE_VOCAB;
    ck_assert_uint_lt(n + 1, 200);
    for (uint32_t i = 0; i <= n; i++)
        draws[i] =
            (struct fwd_draw){.sampler = s, .row0 = i, .n_rows = 1, .ret = x.choices + i % 9};
    ck_ok(seq_reserve(x.s, &x.e->space, PREFIX + n, &err), &err);
    test_tokens(3, 64, x.s->tokens, PREFIX + n + 1);
    ck_fails(run(&x, n + 1, draws, n + 1, &err), LIMIT, &err);
    ck_ok(run(&x, n, draws, n, &err), &err);
    sampler_free(s);
    free_scene(&x);
}
END_TEST

/* NaN in a row's logits: the host's error, in that row alone. */
START_TEST(bad_logits)
{
    struct error err = {0}, want = {0};
    struct scene x = new_scene();
    struct sampler *s = sampler_of(1);
    static float work[FIXTURE_VOCAB];
    static uint32_t ids[FIXTURE_VOCAB];
    uint32_t token, n_lp;
    const struct fwd_draw d = {.sampler = s, .n_rows = 4, .ret = x.choices};
    x.s->tokens[PREFIX + 3] = FIXTURE_POISON;
    ck_ok(run(&x, 4, NULL, 0, &err), &err);
    ck_ok(run(&x, 4, &d, 1, &err), &err);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(x.choices[i].fault, SAMPLER_GOOD);
    ck_fails(sampler_choose(s, x.e->ops, x.logits + 3 * FIXTURE_VOCAB, 3, work, ids, &token, NULL,
                            &n_lp, &want),
             NUMERIC, &want);
    ck_fails(sampler_refuse(x.choices[3].fault, x.choices[3].fault_id, &err), NUMERIC, &err);
    ck_assert_str_eq(err.msg, want.msg);
    sampler_free(s);
    free_scene(&x);
}
END_TEST

/* Every call of a batch with choices fails once: an error, and then the same choices. */
START_TEST(every_call_fails)
{
    struct error err = {0};
    setenv("DEDIT_CUDA_GRAPHS", "off", 1); /* which would make up for some */
    struct scene x = new_scene();
    unsetenv("DEDIT_CUDA_GRAPHS");
    struct sampler *s = sampler_of(COMBINATIONS - 1); /* everything is on */
    const struct fwd_draw d = {.sampler = s, .n_rows = EACH, .parent = parents, .ret = x.choices};
    int r = -1;
    for (long i = 0; r < 0; i++) {
        err = (struct error){0};
        emu_fail(i, 999, false);
        r = run(&x, EACH, &d, 1, &err);
        emu_fail(-1, 0, false);
        ck_assert_msg(r == 0 || strstr(err.msg, "cudaError"), "call %ld: %s", i, err.msg);
        ck_assert_int_lt(i, 500);
    }
    for (uint32_t i = 0; i < EACH; i++)
        check_row(&x, &d, s, i, COMBINATIONS - 1);
    sampler_free(s);
    free_scene(&x);
}
END_TEST

/* ---- requests ------------------------------------------------------------------------------------------ */

static const enum draft_method methods[] = {DRAFT_AR,    DRAFT_DFLASH, DRAFT_NGRAM, DRAFT_DDTREE,
                                            DRAFT_DEDIT, DRAFT_AUTO,   DRAFT_DDTREE};
#define METHODS (sizeof(methods) / sizeof(*methods))

static struct engine_request request_of(uint32_t i, const uint32_t prompt[21], enum draft_method m)
{
    struct engine_request q = test_request_init(prompt, 21, EMU_FEWER(8, 5));
    q.sampling.ignore_eos = true;
    q.drafting.method = m;
    q.drafting.tree_budget = m == DRAFT_DDTREE ? 31 : 0;
    q.sampling.temperature = i % 3 ? 0.8f : 0;
    q.sampling.seed = i + 5;
    q.sampling.top_p = i % 2 ? 0.9f : 1;
    q.sampling.top_k = i == 4 ? 20 : 0;
    q.sampling.repetition_penalty = i > 2 ? 1.1f : 1;
    q.sampling.logprobs = (int32_t)i - 1;
    return q;
}

/* What each gives alone on the CPU, undrafted; then all of them at once on the device. */
static uint64_t all_at_once(struct engine *emu)
{
    static struct test_request want[METHODS], got[METHODS];
    struct engine_config c = test_engine_config();
    struct error err = {0};
    uint32_t prompt[21];
    for (uint32_t i = 0; i < 21; i++)
        prompt[i] = i * 11 % 96; /* the words of the fitted pair */
    c.device = "cpu";
    struct engine *cpu = test_engine(test_path("tests/golden/drafter/target"), &c);
    const uint64_t before = emu_counts_now().bytes_out;
    for (uint32_t i = 0; i < METHODS; i++) {
        struct engine_request q = request_of(i, prompt, DRAFT_AR);
        test_generate(cpu, &q, &want[i]);
        q = request_of(i, prompt, methods[i]);
        got[i] = (struct test_request){0};
        ck_ok(test_submit(emu, &q, &got[i], &err), &err);
    }
    test_run(emu, NULL, 0);
    for (uint32_t i = 0; i < METHODS; i++) {
        test_same_output(&got[i], &want[i], draft_method_name(methods[i]));
        test_request_done(&want[i]);
        test_request_done(&got[i]);
    }
    test_engine_idle(emu);
    engine_free(cpu);
    return emu_counts_now().bytes_out - before;
}

static struct engine *open_pair(void)
{
    struct engine_config c = test_engine_config();
    c.device = "emu";
    c.exact = true;
    c.drafter = test_path("tests/golden/drafter/fitted");
    return test_engine(test_path("tests/golden/drafter/target"), &c);
}

/* Little room for what samplers change: some rows are chosen at on the host, with the same tokens. */
START_TEST(requests)
{
    struct engine *e = open_pair();
    struct backend tight = *e->space.backend;
    uint64_t all = all_at_once(e);
    tight.draw_changes = 30;
    e->space.backend = &tight;
    ck_assert_uint_gt(all_at_once(e), all);
    e->space.backend = &backend_cuda;
    engine_free(e);
}
END_TEST

/* Plain decoding: sixteen bytes a token come back. */
START_TEST(sixteen_bytes)
{
    struct engine *e = open_on("emu");
    static struct test_request t;
    uint32_t prompt[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct engine_request q = test_request_init(prompt, 9, 12);
    q.sampling.temperature = 1;
    q.sampling.ignore_eos = true;
    q.drafting.method = DRAFT_AR;
    const struct emu_counts before = emu_counts_now();
    test_generate(e, &q, &t);
    ck_assert_uint_eq(emu_counts_now().bytes_out - before.bytes_out, 12 * 16);
    ck_assert_uint_eq(emu_counts_now().waits - before.waits, 12);
    test_request_done(&t);
    engine_free(e);
}
END_TEST

int main(void)
{
    emu_open_library();
    struct fixture f = fixture_random(17);
    f.poison = true;
    model = fixture_write(&f);

    Suite *s = suite_create("cuda-draws");
    TCase *t = test_case(s, "rows");
    tcase_add_loop_test(t, every_combination, 0, PARTS);
    tcase_add_test(t, some_rows);
    tcase_add_test(t, largest);
    tcase_add_test(t, too_many_changes);
    tcase_add_test(t, bad_logits);
    tcase_add_test(t, every_call_fails);
    t = test_case(s, "requests");
    tcase_add_test(t, requests);
    tcase_add_test(t, sixteen_bytes);
    return test_main(s);
}
