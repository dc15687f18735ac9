/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that are drafted by real drafters give what plain decoding alone gives: a seeded matrix of
 * method x window x passes x visibility x temperature x sampling parameters x companions x chunk x prefix
 * hits x preemption x threads x weight type, with counters that prove that every kind of thing happened.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/drafter_file.h"
#include "tests/unit/draftergen.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define MAX_OUT  40u
#define MAX_SLOT 6u
#define VOCAB    272u /* of the fitted pair; its toy language has 96 tokens */
#define LANGUAGE 96u

/* ---- recording ---------------------------------------------------------------------------------- */

struct rec {
    struct request *r;
    uint32_t ids[MAX_OUT], n, flags[MAX_OUT];
    float lp[MAX_OUT];
    char text[1024];
    size_t text_len;
    bool finished;
    enum finish_reason reason;
    struct engine_usage usage;
    /* Of the round whose tokens come next. */
    struct proposal proposal;
    bool has_round;
    uint64_t branches; /* nodes taken that are not the first child of their parent */
    uint64_t rounds;
};

static void on_round(void *arg, struct request *r, const struct engine_round *t)
{
    struct rec *q = arg;
    (void)r;
    q->proposal = *t->proposal;
    q->has_round = true;
    q->rounds++;
    ck_fast(t->passes <= DRAFT_MAX_PASSES && t->accepted <= t->proposal->n);
    ck_fast(t->committed <= t->accepted + 1 && t->committed >= 1);
    for (uint32_t p = 0; p < t->passes; p++)
        ck_fast(t->accepted_after[p] < t->window);
}

/* Follows the tokens of a commit through the proposal that they were verified with. */
static void follow(struct rec *q, const struct engine_token *t, size_t n)
{
    int at = -1;
    for (size_t i = 0; i < n && q->has_round; i++) {
        int first = -1;
        for (uint32_t k = 0; k < q->proposal.n && first < 0; k++)
            if (q->proposal.parent[k] == at)
                first = (int)k;
        int next = proposal_child(&q->proposal, at, t[i].id);
        ck_fast((next >= 0) == ((t[i].flags & ENGINE_TOKEN_DRAFTED) != 0));
        if (next < 0)
            break;
        q->branches += next != first;
        at = next;
    }
    q->has_round = false;
}

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct rec *q = arg;
    (void)r;
    follow(q, t, n);
    for (size_t i = 0; i < n; i++) {
        ck_fast(q->n < MAX_OUT && q->text_len + t[i].text_len < sizeof(q->text));
        q->ids[q->n] = t[i].id;
        q->lp[q->n++] = t[i].n_logprobs ? t[i].logprobs[0].logprob : 0;
        memcpy(q->text + q->text_len, t[i].text, t[i].text_len);
        q->text_len += t[i].text_len;
    }
    return 0;
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct rec *q = arg;
    (void)r;
    ck_assert_msg(!f->error, "%s", f->error ? f->error->msg : "");
    q->finished = true;
    q->reason = f->reason;
    q->usage = f->usage;
    ck_fast(q->text_len + f->text_len < sizeof(q->text));
    memcpy(q->text + q->text_len, f->text, f->text_len);
    q->text_len += f->text_len;
}

static void submit(struct engine *e, struct engine_request *q, struct rec *t)
{
    struct error err = {0};
    memset(t, 0, sizeof(*t));
    q->sink = (struct engine_sink){
        .tokens = on_tokens, .finished = on_finished, .round = on_round, .arg = t};
    ck_ok(engine_submit(e, q, &t->r, &err), &err);
}

static void run_all(struct engine *e)
{
    struct error err = {0};
    int r;
    while ((r = engine_step(e, &err)) > 0)
        ;
    ck_assert_msg(r == 0, "%s", err.msg);
}

static void same(const struct rec *a, const struct rec *b, const char *what, unsigned number)
{
    ck_assert_msg(a->n == b->n, "%s, combination %u: %u tokens against %u", what, number, a->n,
                  b->n);
    for (uint32_t i = 0; i < a->n; i++)
        ck_assert_msg(a->ids[i] == b->ids[i], "%s, combination %u: token %u is %u against %u", what,
                      number, i, a->ids[i], b->ids[i]);
    ck_assert_msg(memcmp(a->lp, b->lp, a->n * sizeof(float)) == 0,
                  "%s, combination %u: log-probabilities differ", what, number);
    ck_assert_msg(a->text_len == b->text_len && !memcmp(a->text, b->text, a->text_len),
                  "%s, combination %u: texts differ", what, number);
    ck_assert_int_eq(a->reason, b->reason);
}

/* ---- combinations ------------------------------------------------------------------------------- */

static uint64_t rng;
static uint32_t rnd(uint32_t below)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % below;
}

/* Everything that a request points to. */
struct combination {
    struct engine_request q;
    uint32_t prompt[64];
    uint32_t stop_id;
    struct stop_string stop;
    struct logit_bias bias;
    uint32_t temperature; /* index */
};

static void make_prompt(struct combination *c)
{
    /* Few beginnings, so that prefixes meet again, and few words, so that the text is of the kind
     * that the drafter knows. */
    uint32_t start = rnd(4), n = 3 + rnd(45), shared = rnd(3) ? 32 : 5;
    for (uint32_t i = 0; i < n; i++)
        c->prompt[i] = i < shared ? (start * 17 + i * 11) % LANGUAGE : rnd(LANGUAGE);
    c->q.prompt = c->prompt;
    c->q.n_prompt = n;
}

static void make_sampling(struct combination *c, uint32_t temperature)
{
    static const float temperatures[] = {0, 0.7f, 1.3f};
    struct sampling_params *p = &c->q.sampling;
    sampling_params_init(p);
    p->temperature = temperatures[temperature];
    p->seed = rng;
    p->has_seed = true;
    p->max_tokens = 1 + rnd(MAX_OUT);
    p->ignore_eos = rnd(2);
    p->logprobs = rnd(3) ? -1 : (int32_t)rnd(5);
    switch (rnd(8)) {
    case 0:
        p->top_k = 1 + (int32_t)rnd(20);
        break;
    case 1:
        p->top_p = 0.5f;
        p->min_p = 0.02f;
        break;
    case 2:
        p->repetition_penalty = 1.3f;
        p->presence_penalty = 0.4f;
        break;
    case 3:
        p->frequency_penalty = 0.7f;
        p->min_tokens = rnd(p->max_tokens + 1);
        break;
    case 4:
        c->stop_id = rnd(LANGUAGE);
        p->stop_ids = &c->stop_id;
        p->n_stop_ids = 1;
        p->min_tokens = rnd(p->max_tokens < 4 ? p->max_tokens : 4);
        break;
    case 5:
        c->stop = (struct stop_string){rnd(2) ? "J" : "5", 1};
        p->stop = &c->stop;
        p->n_stop = 1;
        p->include_stop_in_output = rnd(2);
        break;
    case 6:
        c->bias = (struct logit_bias){rnd(LANGUAGE), 3.0f};
        p->logit_bias = &c->bias;
        p->n_logit_bias = 1;
        break;
    default:
        break;
    }
}

static void make_drafting(struct combination *c, enum draft_method m)
{
    struct drafting_params *d = &c->q.drafting;
    *d = (struct drafting_params){.method = m, .want_rounds = true};
    d->window = rnd(3) ? 8 : 2 + rnd(15);
    if (m == DRAFT_DEDIT)
        d->passes = 2 + rnd(3);
    else if (m == DRAFT_DDTREE)
        d->passes = 1 + rnd(3);
    if (m == DRAFT_DDTREE)
        d->tree_budget = 1 + rnd(rnd(4) ? 31 : 127);
    if (d->passes > 1 && rnd(3) == 0)
        d->visibility = DRAFT_CAUSAL;
    d->no_noise = rnd(5) == 0;
}

static void make_combination(struct combination *c, enum draft_method m, uint32_t temperature,
                             bool grows)
{
    memset(c, 0, sizeof(*c));
    c->q.skip_special = c->q.want_tokens_text = true;
    c->temperature = temperature;
    make_prompt(c);
    make_sampling(c, temperature);
    make_drafting(c, m);
    if (!grows)
        return;
    /* Short prompts and long answers: all begin, and not all have room to end. */
    if (c->q.n_prompt > 12)
        c->q.n_prompt = 3 + rnd(10);
    c->q.sampling.max_tokens = MAX_OUT - rnd(8);
    c->q.sampling.ignore_eos = true;
}

/* ---- the matrix --------------------------------------------------------------------------------- */

/* What happened in a cell: method x temperature. */
struct cell {
    uint64_t requests, accepted, rejected, edits, branches, preempted, cached;
};
static struct cell cells[3][3];
static uint64_t recontext, batches_of_several;

static const enum draft_method methods[] = {DRAFT_DFLASH, DRAFT_DEDIT, DRAFT_DDTREE};

static void count(const struct combination *c, const struct rec *t, unsigned method)
{
    struct cell *k = &cells[method][c->temperature];
    const struct engine_drafting *d = &t->usage.drafting;
    ck_assert_int_eq(d->method, c->q.drafting.method);
    ck_assert_uint_eq(d->committed + d->plain_rounds + d->prefill_tokens, t->n);
    k->requests++;
    k->accepted += d->accepted;
    k->rejected += d->drafted - d->accepted;
    k->edits += d->edits_helpful + d->edits_harmful;
    k->branches += t->branches;
    k->preempted += t->usage.preemptions;
    k->cached += t->usage.cached_tokens;
}

struct variant {
    const char *what;
    unsigned threads;
    enum backend_dtype dtype;
    enum dk_kv_type kv;
    uint32_t chunk, rows, blocks;
    bool no_cache;
};
static const struct variant variants[] = {
    {"plain", 2, BACKEND_DTYPE_FILE, DK_KV_F32, 256, 512, 0, false},
    {"one thread, small chunks", 1, BACKEND_DTYPE_FILE, DK_KV_F32, 5, 24, 0, false},
    {"three threads, bf16 weights", 3, BACKEND_DTYPE_BF16, DK_KV_F32, 16, 256, 0, false},
    {"tight pool", 2, BACKEND_DTYPE_FILE, DK_KV_F32, 32, 128, 6, false},
    {"tight pool without cache", 2, BACKEND_DTYPE_BF16, DK_KV_F32, 32, 200, 6, true},
    {"16-bit keys and values", 2, BACKEND_DTYPE_FILE, DK_KV_BF16, 64, 512, 14, false},
};

/* Fewer combinations where every thread of every kernel is executed one after another; the truth is
 * still the CPU's. */
static bool emulated(void)
{
    return getenv("DEDIT_TEST_DEVICE") != NULL;
}
static unsigned share(unsigned n)
{
    return emulated() ? (n + 14) / 15 : n;
}

static struct engine *open_engine(const struct variant *v, const char *model, const char *drafter)
{
    struct engine_config c = test_engine_config();
    c.exact = emulated();
    if (!drafter)
        c.device = NULL;
    c.n_threads = v->threads;
    c.dtype = v->dtype;
    c.kv_type = v->kv;
    c.prefill_chunk = v->chunk;
    c.max_num_batched_tokens = v->rows;
    c.n_kv_blocks = v->blocks;
    c.enable_prefix_caching = !v->no_cache;
    c.max_num_seqs = MAX_SLOT;
    c.max_context = 256;
    c.drafter = drafter;
    return test_engine(model, &c);
}

static struct engine *open_plain(const struct variant *v, const char *model)
{
    struct variant alone = {
        .threads = 1, .dtype = v->dtype, .kv = v->kv, .chunk = 256, .rows = 256};
    return open_engine(&alone, model, NULL);
}

/* Several requests at once on e, each alone and plain on `truth`. */
static void one_batch(struct engine *e, struct engine *truth, const struct variant *v,
                      unsigned number)
{
    static struct combination c[MAX_SLOT];
    static struct rec got[MAX_SLOT], want;
    uint32_t n = 1 + rnd(MAX_SLOT), plain_one = rnd(4);
    unsigned method[MAX_SLOT];
    for (uint32_t i = 0; i < n; i++) {
        method[i] = rnd(3);
        make_combination(&c[i], methods[method[i]], rnd(3), v->blocks && number % 2);
        if (i == plain_one) /* a companion that leaves blocks without a drafter's context */
            c[i].q.drafting = (struct drafting_params){.method = DRAFT_AR};
        submit(e, &c[i].q, &got[i]);
        if (rnd(2))
            for (uint32_t k = rnd(6); k; k--) { /* the others are at other phases */
                struct error err = {0};
                ck_assert_int_ge(engine_step(e, &err), 0);
            }
    }
    run_all(e);
    batches_of_several += n > 1;
    for (uint32_t i = 0; i < n; i++) {
        struct engine_request q = c[i].q;
        q.drafting = (struct drafting_params){.method = DRAFT_AR};
        submit(truth, &q, &want);
        run_all(truth);
        ck_assert(got[i].finished && want.finished);
        same(&got[i], &want, v->what, number * 100 + i);
        if (c[i].q.drafting.method != DRAFT_AR)
            count(&c[i], &got[i], method[i]);
        request_free(got[i].r);
        request_free(want.r);
    }
    test_engine_idle(e);
}

START_TEST(same_bytes)
{
    memset(cells, 0, sizeof(cells));
    recontext = batches_of_several = 0;
    for (size_t i = 0; i < sizeof(variants) / sizeof(*variants); i++) {
        const struct variant *v = &variants[i];
        struct engine *e = open_engine(v, test_path("tests/golden/drafter/target"),
                                       test_path("tests/golden/drafter/fitted"));
        struct engine *truth = open_plain(v, test_path("tests/golden/drafter/target"));
        struct engine_stats s;
        rng = 77 + i;
        for (unsigned k = 0; k < share(v->blocks ? 70 : 30); k++)
            one_batch(e, truth, v, k);
        engine_get_stats(e, &s);
        recontext += s.recontext_tokens;
        ck_assert_uint_gt(s.draft_steps, 0);
        engine_free(e);
        engine_free(truth);
    }
    uint64_t total = 0, preempted = 0;
    for (unsigned m = 0; m < 3 && !emulated(); m++)
        for (unsigned t = 0; t < 3; t++) {
            const struct cell *k = &cells[m][t];
            ck_assert_msg(k->requests && k->accepted && k->rejected && k->cached && k->preempted,
                          "%s, temperature %u: %llu requests, %llu accepted, %llu rejected, %llu "
                          "cached, %llu preempted",
                          draft_method_name(methods[m]), t, (unsigned long long)k->requests,
                          (unsigned long long)k->accepted, (unsigned long long)k->rejected,
                          (unsigned long long)k->cached, (unsigned long long)k->preempted);
            ck_assert(methods[m] != DRAFT_DEDIT || k->edits > 0);
            ck_assert(methods[m] != DRAFT_DDTREE || k->branches > 0);
            total += k->requests;
            preempted += k->preempted;
        }
    if (emulated())
        return;
    ck_assert_uint_gt(total, 600);
    ck_assert_uint_gt(recontext, 0);
    ck_assert_uint_gt(batches_of_several, 100);
    ck_assert_uint_gt(preempted, 20);
}
END_TEST

/* Quantised targets, and a drafter that knows nothing. */
START_TEST(useless_drafters)
{
    static const char *const models[] = {"tests/golden/gguf/d_qwen3.Q8_0.gguf",
                                         "tests/golden/gguf/d_qwen3.F16.gguf",
                                         "tests/golden/models/d_qwen3"};
    const struct variant *v = &variants[0];
    unsigned n = 0;
    for (size_t i = 0; i < 3; i++) {
        if (i < 2 && access(test_path(models[i]), R_OK) != 0)
            continue; /* the selection of files may lack one */
        struct engine *e =
            open_engine(v, test_path(models[i]), test_path("tests/golden/drafter/random"));
        struct engine *truth = open_plain(v, test_path(models[i]));
        rng = 5 + i;
        for (unsigned k = 0; k < share(10); k++)
            one_batch(e, truth, v, k);
        engine_free(e);
        engine_free(truth);
        n++;
    }
    ck_assert_uint_ge(n, 2);
}
END_TEST

/* Reduced vocabularies and windows, drafters with everything their own. */
START_TEST(kinds_of_drafters)
{
    struct fixture f = fixture_random(21);
    f.n_layers = 6;
    const char *model = fixture_write(&f);
    for (int i = 0; i < 4; i++) {
        struct gen_drafter g = gen_drafter_new(7);
        char dir[] = "/tmp/dedit-drafter-XXXXXX";
        if (i & 1) {
            g.d2t = "I64";
            g.draft_vocab = 200;
        }
        if (i & 2) {
            g.sliding = 2;
            g.window = 20;
            g.own_head = true;
        }
        ck_assert_ptr_nonnull(mkdtemp(dir));
        gen_drafter_write(&g, dir);
        struct engine *e = open_engine(&variants[0], model, dir);
        struct engine *truth = open_plain(&variants[0], model);
        gen_drafter_remove(&g, dir);
        rng = 50 + (uint64_t)i;
        for (unsigned k = 0; k < share(8); k++)
            one_batch(e, truth, &variants[0], k);
        engine_free(e);
        engine_free(truth);
    }
}
END_TEST

/* ---- rule B ------------------------------------------------------------------------------------- */

/* The first drafted token's law is the target's: frequencies against plain decoding's. */
START_TEST(rejection_keeps_the_law)
{
    enum { N = 3000 };
    if (emulated())
        return; /* the law is the host's doing */
    struct engine *e = open_engine(&variants[0], test_path("tests/golden/drafter/target"),
                                   test_path("tests/golden/drafter/fitted"));
    static struct rec t;
    static double seen[2][VOCAB];
    uint32_t prompt[24];
    uint64_t accepted = 0, rejected = 0;
    for (uint32_t i = 0; i < 24; i++)
        prompt[i] = (i * 11) % LANGUAGE;
    memset(seen, 0, sizeof(seen));
    for (uint32_t i = 0; i < 2 * N; i++) {
        struct engine_request q = {.prompt = prompt, .n_prompt = 24};
        sampling_params_init(&q.sampling);
        q.sampling.temperature = 1.0f;
        q.sampling.seed = i;
        q.sampling.has_seed = true;
        q.sampling.max_tokens = 3;
        q.sampling.ignore_eos = true;
        q.drafting.method = i < N ? DRAFT_AR : DRAFT_DEDIT;
        q.drafting.verification = i < N ? DRAFT_RULE_A : DRAFT_REJECTION;
        submit(e, &q, &t);
        run_all(e);
        ck_assert_uint_eq(t.n, 3);
        seen[i >= N][t.ids[1]]++;
        accepted += t.usage.drafting.accepted;
        rejected += t.usage.drafting.drafted - t.usage.drafting.accepted;
        request_free(t.r);
    }
    ck_assert_uint_gt(accepted, 100);
    ck_assert_uint_gt(rejected, 100);
    /* Two samples of the same size: sum (a - b)^2 / (a + b) is chi-square with the number of classes
     * less one; rare tokens make one class. */
    double x = 0, rare[2] = {0};
    unsigned classes = 0;
    for (uint32_t v = 0; v < VOCAB; v++) {
        double a = seen[0][v], b = seen[1][v];
        if (a + b < 20) {
            rare[0] += a;
            rare[1] += b;
        } else {
            x += (a - b) * (a - b) / (a + b);
            classes++;
        }
    }
    if (rare[0] + rare[1] > 0) {
        x += (rare[0] - rare[1]) * (rare[0] - rare[1]) / (rare[0] + rare[1]);
        classes++;
    }
    ck_assert_uint_gt(classes, 5);
    /* Mean classes - 1, variance twice that; 5 deviations. */
    double df = classes - 1;
    ck_assert_msg(x < df + 5 * sqrt(2 * df), "chi-square %g with %g degrees of freedom", x, df);
    engine_free(e);
}
END_TEST

/* What needs a drafter is refused without one, by name; what the drafter cannot do too. */
START_TEST(wrong_wishes)
{
    struct engine *e = open_engine(&variants[0], test_path("tests/golden/drafter/target"),
                                   test_path("tests/golden/drafter/fitted"));
    struct engine *bare = open_plain(&variants[0], test_path("tests/golden/drafter/target"));
    struct drafting_params d = {.method = DRAFT_DEDIT, .window = 64, .passes = 8};
    struct error err = {0};
    ck_ok(engine_check_drafting(e, &d, &err), &err);
    ck_fails(engine_check_drafting(bare, &d, &err), UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "dedit"));
    ck_assert_ptr_nonnull(strstr(err.msg, "drafter"));
    ck_assert_uint_eq(engine_drafter_config(e)->block_size, 8);
    ck_assert_str_eq(engine_drafter_name(e), "fitted");
    ck_assert_ptr_null(engine_drafter_config(bare));
    struct backend_memory with, without;
    engine_memory(e, &with);
    engine_memory(bare, &without);
    ck_assert_uint_gt(with.packed_bytes, without.packed_bytes);
    ck_assert_uint_gt(with.kv_bytes, without.kv_bytes);
    engine_free(e);
    engine_free(bare);
    /* A drafter of another model, and one that is not there. */
    struct engine_config c = test_engine_config();
    struct engine *none = NULL;
    c.drafter = test_path("tests/golden/drafter/random");
    ck_fails(engine_new(test_path("tests/golden/drafter/target"), &c, NULL, NULL, &none, &err),
             MISMATCH, &err);
    c.drafter = "/nowhere";
    ck_assert_int_lt(
        engine_new(test_path("tests/golden/drafter/target"), &c, NULL, NULL, &none, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "/nowhere"));
    c.drafter = test_path("tests/golden/drafter/fitted");
    c.memory_limit = 1 << 20;
    ck_fails(engine_new(test_path("tests/golden/drafter/target"), &c, NULL, NULL, &none, &err),
             LIMIT, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "drafter"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine-drafter");
    TCase *c = test_case(s, "same");
    tcase_add_test(c, same_bytes);
    tcase_add_test(c, useless_drafters);
    tcase_add_test(c, kinds_of_drafters);
    c = test_case(s, "other");
    tcase_add_test(c, rejection_keeps_the_law);
    tcase_add_test(c, wrong_wishes);
    return test_main(s);
}
