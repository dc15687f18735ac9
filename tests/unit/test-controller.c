/* SPDX-License-Identifier: Apache-2.0 */
/* What the method auto decides by: costs and how they are kept, odds and curves of drafts, calibration. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "engine/controller_internal.h"
#include "engine/engine_internal.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

static bool near(float a, float b)
{
    return a - b < 0.01f && b - a < 0.01f;
}

static struct cost_load rows(uint32_t n)
{
    return (struct cost_load){.rows = n};
}

/* ---- costs ------------------------------------------------------------------------------------ */

START_TEST(table)
{
    struct costs c;
    costs_init(&c);
    struct cost_table *t = &c.table[COST_TARGET];
    struct cost_load one = rows(1), sixteen = rows(16), eight = rows(8);
    ck_assert(cost_of_rows(t, 5) == 0);
    ck_assert(cost_of(t, &one) == 0);
    cost_add(&c, COST_TARGET, &one, 1000);
    ck_assert(cost_of_rows(t, 1) == 1000);
    ck_assert(cost_of_rows(t, 11) > 1000 && cost_of_rows(t, 11) < 1500); /* guessed cheap */
    cost_add(&c, COST_TARGET, &sixteen, 4000);
    ck_assert(cost_of_rows(t, 16) == 4000);
    ck_assert(cost_of_rows(t, 8) > 2000 && cost_of_rows(t, 8) < 3000);
    ck_assert(cost_of_rows(t, 32) > 7000 && cost_of_rows(t, 32) < 8000); /* as it grew before */
    for (uint32_t i = 1; i < 600; i++)
        ck_assert(cost_of_rows(t, i) <= cost_of_rows(t, i + 1));
    /* One disturbance is not believed. */
    for (int i = 0; i < 10; i++)
        cost_add(&c, COST_TARGET, &one, 1000);
    cost_add(&c, COST_TARGET, &one, 100000);
    ck_assert(cost_of_rows(t, 1) < 1200);
    /* More rows never cost less, whatever was seen. */
    for (int i = 0; i < 40; i++)
        cost_add(&c, COST_TARGET, &one, 6000);
    ck_assert(cost_of_rows(t, 1) <= cost_of_rows(t, 16));
    t->ns[3] = 2 * t->ns[15];
    cost_level(t);
    ck_assert(cost_of_rows(t, 4) <= cost_of_rows(t, 16));
    costs_init(&c);
    cost_add(&c, COST_TARGET, &eight, 800);
    ck_assert(cost_of_rows(t, 1) > 300 && cost_of_rows(t, 1) < 800);
    ck_assert(cost_of_rows(&c.table[COST_DRAFTER], 8) == 0);
}
END_TEST

/* A machine that is slower for everything: what was not run meanwhile keeps its ratio. */
START_TEST(pace)
{
    struct costs c;
    costs_init(&c);
    cost_fill(&c.table[COST_TARGET], 1000, 0.1);
    cost_fill(&c.table[COST_DRAFTER], 200, 0);
    struct cost_load one = rows(1);
    double before = cost_of_rows(&c.table[COST_TARGET], 6) / cost_of_rows(&c.table[COST_TARGET], 1);
    for (int i = 0; i < 400; i++)
        cost_add(&c, COST_TARGET, &one, 1900);
    double now = cost_of_rows(&c.table[COST_TARGET], 6) / cost_of_rows(&c.table[COST_TARGET], 1);
    double one_ns = cost_of_rows(&c.table[COST_TARGET], 1) * c.pace;
    ck_assert_msg(one_ns > 1850 && one_ns < 1950, "one row: %g", one_ns);
    ck_assert_msg(now > 0.45 * before && c.pace > 1.2, "ratio %g, was %g; pace %g", now, before,
                  c.pace);
    /* What comes back is believed, too. */
    for (int i = 0; i < 400; i++)
        cost_add(&c, COST_TARGET, &one, 1000);
    one_ns = cost_of_rows(&c.table[COST_TARGET], 1) * c.pace;
    ck_assert(one_ns > 970 && one_ns < 1030);
}
END_TEST

START_TEST(context)
{
    struct cost_table t;
    cost_fill(&t, 1000, 0.1);
    /* One row: 3 a position; 16 rows: 3 + 15 * 0.5 more. */
    cost_context(&t, 3 * 700.0, (3 + 15 * 0.5) * 700.0, 16, 700);
    ck_assert_double_eq_tol(t.row_ns, 0.5, 1e-9);
    ck_assert_double_eq_tol(t.entry_ns, 2.5, 1e-9);
    struct cost_load l = {.rows = 4, .entries = 100, .positions = 400};
    ck_assert_double_eq_tol(cost_of(&t, &l), 1300 + 250 + 200, 1e-6);
    /* What was measured is not the rows' alone. */
    struct costs c;
    costs_init(&c);
    c.table[COST_TARGET] = t;
    for (int i = 0; i < 50; i++)
        cost_add(&c, COST_TARGET, &l, 1750);
    ck_assert_double_eq_tol(cost_of_rows(&c.table[COST_TARGET], 4), 1300, 1);
    cost_context(&t, -5, -9, 16, 700);
    ck_assert(t.row_ns == 0 && t.entry_ns == 0);
}
END_TEST

/* ---- files ------------------------------------------------------------------------------------ */

static struct costs some_costs(void)
{
    struct costs c;
    costs_init(&c);
    cost_fill(&c.table[COST_TARGET], 5e6, 0.04);
    c.table[COST_TARGET].entry_ns = 12.5;
    c.table[COST_TARGET].row_ns = 0.25;
    cost_set(&c.table[COST_DRAFTER], 8, 400000);
    c.table[COST_TARGET].ns[20] = 0;
    c.table[COST_TARGET].seen[20] = 0;
    return c;
}

/* Every number another one. */
static struct survival some_drafts(void)
{
    struct survival s;
    memset(&s, 0, sizeof(s));
    s.of = 0xfedcba9876543210;
    for (int i = 0; i < SURVIVAL_BINS; i++) {
        s.bin[i] = (struct odds){2 + i, 3 + 2 * i};
        for (int p = 0; p < SURVIVAL_PASSES; p++)
            for (int d = 0; d < SURVIVAL_DEPTHS; d++)
                s.cell[p][d][i] = (struct odds){p + 0.125 * i, 4 * p + d + 0.25 * i};
    }
    for (unsigned i = 0; i < SURVIVAL_MATCHES; i++)
        s.match[i] = (struct odds){i, 2.5 * i};
    for (unsigned w = 0; w < SURVIVAL_WINDOWS; w++)
        for (unsigned p = 0; p < DRAFT_MAX_PASSES; p++) {
            s.curve[w][p].n = 5 + 10 * w + p;
            for (unsigned k = 0; k < SURVIVAL_NODES; k++)
                s.curve[w][p].reach[k] = (float)(0.9 / (1 + w + p + k));
        }
    return s;
}

static void check_drafts(const struct survival *want, const struct survival *got)
{
    const struct odds *w = want->bin, *g = got->bin;
    const size_t n = offsetof(struct survival, curve) / sizeof(*w); /* all odds, one array each */
    for (size_t i = 0; i < n; i++) {
        ck_assert_double_eq_tol(g[i].hits, w[i].hits, 0.001);
        ck_assert_double_eq_tol(g[i].n, w[i].n, 0.001);
    }
    for (unsigned i = 0; i < SURVIVAL_WINDOWS * DRAFT_MAX_PASSES; i++) {
        const struct curve *c = &want->curve[0][0] + i, *d = &got->curve[0][0] + i;
        ck_assert_uint_eq(c->n, d->n);
        for (unsigned k = 0; k < SURVIVAL_NODES; k++)
            ck_assert_double_eq_tol((double)c->reach[k], (double)d->reach[k], 1e-6);
    }
}

static char *only_file(const char *dir)
{
    static char path[4400];
    char command[4400];
    snprintf(command, sizeof(command), "ls %s/*.json", dir);
    FILE *f = popen(command, "r");
    ck_assert_ptr_nonnull(fgets(path, sizeof(path), f));
    ck_assert_int_eq(pclose(f), 0);
    path[strcspn(path, "\n")] = '\0';
    return path;
}

START_TEST(files)
{
    struct error err = {0};
    char dir[4300];
    snprintf(dir, sizeof(dir), "%s/costs", test_tmpdir());
    struct costs c = some_costs(), got;
    const struct survival some = some_drafts();
    struct survival drafts = {.of = some.of}, others = {.of = some.of + 1};
    costs_init(&got);
    ck_assert_int_eq(costs_read(&got, &drafts, dir, "this machine", &err), 1);
    ck_ok(costs_write(&c, &some, dir, "this machine", &err), &err);
    ck_ok(costs_read(&got, &drafts, dir, "this machine", &err), &err);
    for (int k = 0; k < COST_KINDS; k++) {
        for (int i = 0; i < COST_SIZES; i++)
            ck_assert_double_eq_tol(got.table[k].ns[i], c.table[k].ns[i], 0.01);
        ck_assert_double_eq_tol(got.table[k].entry_ns, c.table[k].entry_ns, 0.01);
        ck_assert_double_eq_tol(got.table[k].row_ns, c.table[k].row_ns, 0.01);
    }
    check_drafts(&some, &drafts);
    /* Another drafter of the same shape has the costs alone. */
    const struct survival none = others;
    ck_ok(costs_read(&got, &others, dir, "this machine", &err), &err);
    ck_assert_int_eq(memcmp(&none, &others, sizeof(none)), 0);
    ck_assert_int_eq(costs_read(&got, &drafts, dir, "another machine", &err), 1);
    /* Torn, foreign, senseless: said with the file's name, and nothing is changed. */
    char *path = only_file(dir);
    _cleanup_free_ char *text = NULL;
    size_t len;
    ck_ok(file_read(path, 1 << 16, &text, &len, &err), &err);
    struct costs same = got;
    const struct survival same_drafts = drafts;
    for (size_t n = 0; n < len - 1; n += 97) {
        ck_ok(file_write_atomic(path, text, n, &err), &err);
        ck_fails(costs_read(&got, &drafts, dir, "this machine", &err), FORMAT, &err);
        ck_assert_ptr_nonnull(strstr(err.msg, path));
    }
    for (size_t n = 0; n < len - 1; n++)
        ck_fails(costs_parse(&got, &drafts, text, n, "x", "this machine", &err), FORMAT, &err);
    ck_assert_int_eq(memcmp(&same, &got, sizeof(got)), 0);
    ck_assert_int_eq(memcmp(&same_drafts, &drafts, sizeof(drafts)), 0);
    static const char *const bad[] = {
        "{\"dedit_costs\": 2}",
        "{\"dedit_costs\": 1}",
        "{\"dedit_costs\": 1, \"key\": \"this machine\"}",
        "{\"dedit_costs\": 1, \"key\": \"this machine\", \"target\": {\"ps\": [1], \"seen\": [1]}}",
        "{\"dedit_costs\": 1, \"key\": \"that machine\"}",
        "[1, 2]"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_assert_int_lt(
            costs_parse(&got, &drafts, bad[i], strlen(bad[i]), "x", "this machine", &err), 0);
    /* A time that cannot be, and one that was never seen. */
    static const char *const swaps[][2] = {{"[5000000000,", "[-5000000000,"},
                                           {"[5000000000,", "[5e9,"},
                                           {"[5000000000,", "[0,"},
                                           {"\"entry_ps\": 12500", "\"entry_ps\": true"},
                                           /* more hits than observations, a curve that rises */
                                           {"\"odds\": [2000, 3000", "\"odds\": [3001, 3000"},
                                           {"\"odds\": [2000, 3000", "\"odds\": [2000"},
                                           {"\"curves\": [5, 900000", "\"curves\": [5, 1000001"},
                                           {"\"curves\": [5, 900000", "\"curves\": [5, 20000"},
                                           {"\"curves\": [5, 900000", "\"curves\": [5, -1"},
                                           {"\"curves\": [5, ", "\"curves\": [4294967296, "},
                                           {"\"of\": \"", "\"of\": 1, \"x\": \""},
                                           {"\"drafts\": {", "\"drafts\": [], \"x\": {"}};
    for (size_t i = 0; i < sizeof(swaps) / sizeof(*swaps); i++) {
        char *at = strstr(text, swaps[i][0]);
        ck_assert_ptr_nonnull(at);
        size_t before = (size_t)(at - text), k = strlen(swaps[i][1]);
        _cleanup_free_ char *changed = mem_alloc(len + k + 1);
        ck_assert_ptr_nonnull(changed);
        memcpy(changed, text, before);
        memcpy(changed + before, swaps[i][1], k);
        strcpy(changed + before + k, at + strlen(swaps[i][0]));
        ck_fails(costs_parse(&got, &drafts, changed, strlen(changed), "x", "this machine", &err),
                 FORMAT, &err);
    }
    ck_assert_int_eq(memcmp(&same, &got, sizeof(got)), 0);
    ck_assert_int_eq(memcmp(&same_drafts, &drafts, sizeof(drafts)), 0);
    /* A file of before drafts stood there: costs alone. */
    char *at = strstr(text, ",\n \"drafts\"");
    ck_assert_ptr_nonnull(at);
    at[0] = '}', at[1] = '\0';
    ck_ok(costs_parse(&got, &drafts, text, strlen(text), "x", "this machine", &err), &err);
    ck_assert_int_eq(memcmp(&same_drafts, &drafts, sizeof(drafts)), 0);
    /* A place that cannot be written. */
    ck_fails(costs_write(&c, &some, "/proc/no/such", "this machine", &err), IO, &err);
    /* None of the folders is there. */
    char deep[4400];
    snprintf(deep, sizeof(deep), "%s/a/b/c/d", dir);
    ck_ok(costs_write(&c, &some, deep, "this machine", &err), &err);
    ck_ok(costs_read(&got, &drafts, deep, "this machine", &err), &err);
    snprintf(deep, sizeof(deep), "rm -r %s/a", dir);
    ck_assert_int_eq(system(deep), 0);
    remove(path);
    remove(dir);
}
END_TEST

/* ---- odds and curves ---------------------------------------------------------------------------- */

static struct proposal chain(uint32_t n, float confidence)
{
    struct proposal p = {.n = 0};
    for (uint32_t i = 0; i < n; i++)
        (void)proposal_add(&p, i, (int)i - 1, confidence);
    return p;
}

START_TEST(odds)
{
    static struct survival s;
    struct proposal p = chain(5, 0.8f);
    float reach[SURVIVAL_NODES];
    memset(&s, 0, sizeof(s));
    ck_assert_uint_eq(survival_reach(&s, 1, &p, reach), 5);
    ck_assert(near(reach[0], 0.8f)); /* its own word, as long as nothing is known */
    for (int i = 1; i < 5; i++)
        ck_assert(reach[i] < reach[i - 1]);
    /* A drafter that is sure and wrong. */
    bool right[5] = {false};
    for (int i = 0; i < 60; i++)
        survival_learn(&s, 1, &p, 5, right);
    survival_reach(&s, 1, &p, reach);
    ck_assert(reach[0] < 0.1f);
    /* Of another pass, a bit is believed; and then what is seen of it. */
    survival_reach(&s, 2, &p, reach);
    ck_assert(reach[0] < 0.2f);
    right[0] = right[1] = true;
    for (int i = 0; i < 200; i++)
        survival_learn(&s, 2, &p, 5, right);
    survival_reach(&s, 2, &p, reach);
    ck_assert(reach[0] > 0.8f && reach[2] < 0.3f);
    /* What is never tried is forgotten. */
    float before = reach[4];
    for (int i = 0; i < 2000; i++)
        survival_forget(&s, 2, &p, 4);
    survival_reach(&s, 2, &p, reach);
    ck_assert(reach[4] > before);
    survival_forget(&s, 2, &p, 5);
    /* n-grams: longer matches are better, until it is seen. */
    ck_assert(survival_match(&s, 2) < survival_match(&s, 4) &&
              survival_match(&s, 4) < survival_match(&s, 20));
    right[1] = right[0] = false;
    for (int i = 0; i < 50; i++)
        survival_learn_match(&s, 20, 5, right);
    ck_assert(survival_match(&s, 20) < 0.15f);
    survival_forget_match(&s, 20);
    /* A node without a confidence. */
    memset(&s, 0, sizeof(s));
    p = chain(2, -1);
    survival_reach(&s, 1, &p, reach);
    ck_assert(reach[1] < reach[0] && reach[0] < 1);
}
END_TEST

START_TEST(curves)
{
    static struct survival s;
    float got[SURVIVAL_NODES], one[SURVIVAL_NODES], two[SURVIVAL_NODES];
    memset(&s, 0, sizeof(s));
    survival_expect(&s, 0, 1, got);
    ck_assert(got[0] > 0.5f && got[1] < got[0]);
    for (uint32_t i = 0; i < SURVIVAL_NODES; i++) {
        one[i] = 0.6f / (float)(i + 1);
        two[i] = 0.8f / (float)(i + 1);
    }
    for (int i = 0; i < 50; i++)
        survival_add(&s, 0, 1, one, 8);
    survival_expect(&s, 0, 1, got);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert(near(got[i], one[i]));
    ck_assert(got[9] <= got[7]);
    /* Unknown ones are like their neighbours: fewer passes, then the own window. */
    survival_expect(&s, 0, 3, got);
    ck_assert(near(got[0], one[0]));
    survival_expect(&s, 2, 1, got);
    ck_assert(near(got[0], one[0]));
    ck_assert(!survival_next(&s, 0, 1, one, 8, got));
    ck_assert(!survival_next(&s, 0, DRAFT_MAX_PASSES, one, 8, got));
    for (int i = 0; i < 50; i++)
        survival_add(&s, 0, 2, two, 8);
    ck_assert(survival_next(&s, 0, 1, one, 8, got));
    ck_assert(near(got[0], 0.8f));
    /* One that was added to for ever still moves, and stays a probability. */
    s.curve[0][1].n = UINT32_MAX;
    survival_add(&s, 0, 2, one, 8);
    ck_assert_uint_eq(s.curve[0][1].n, UINT32_MAX);
    ck_assert(s.curve[0][1].reach[0] < 0.8f && s.curve[0][1].reach[0] > one[0]);
    /* A sure draft has little to win, a hopeless one as well. */
    float sure[2] = {0.99f, 0.01f};
    ck_assert(survival_next(&s, 0, 1, sure, 2, got));
    ck_assert(got[0] > 0.99f && got[0] < 1 && got[1] < 0.05f);
}
END_TEST

/* ---- how many nodes ----------------------------------------------------------------------------- */

enum { KS = 3, NODES = 5 };
static uint64_t state;

static double rnd(double most)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return most * (double)(state >> 40) / (double)(1 << 24);
}

/* Tokens a nanosecond with n[i] nodes of candidate i. */
static double rate_of(const struct controller *c, const struct candidate *k, const uint32_t n[KS],
                      const struct draft_base *b, double extra)
{
    struct cost_load load = b->load;
    double tokens = b->decoding;
    for (uint32_t i = 0; i < KS; i++)
        for (uint32_t j = 0; j < n[i]; j++) {
            tokens += (double)k[i].reach[j];
            load.rows++;
            load.positions += k[i].context;
        }
    return tokens / (cost_of(&c->costs.table[COST_TARGET], &load) + extra);
}

/* Of any costs and expectations the numbers of nodes that no others exceed, by way of all of them. */
START_TEST(most_tokens_a_second)
{
    static struct controller c;
    uint32_t chosen[NODES + 1] = {0};
    state = 5;
    for (int turn = 0; turn < 2000; turn++) {
        struct candidate k[KS] = {{.n = 0}};
        struct draft_base b = {.decoding = 1 + (uint32_t)rnd(4)};
        const double seen = rnd(900), extra = rnd(3e6), slope = rnd(0.6);
        struct cost_table *t = &c.costs.table[COST_TARGET];
        controller_init(&c);
        cost_fill(t, 1e6, slope);
        for (int i = 1; i < COST_SIZES; i++) /* steps, as tiles of rows make them */
            t->ns[i] = t->ns[i - 1] + rnd(1) * rnd(slope * 2e6);
        t->entry_ns = rnd(300);
        t->row_ns = rnd(100);
        b.load = (struct cost_load){
            .rows = b.decoding, .entries = seen * b.decoding, .positions = seen * b.decoding};
        for (uint32_t i = 0; i < KS; i++) {
            float p = (float)rnd(1);
            k[i].context = seen;
            k[i].most = (uint32_t)rnd(NODES + 1);
            for (uint32_t j = 0; j < k[i].most; j++, p *= (float)rnd(1))
                k[i].reach[j] = p;
        }
        const double got = controller_best(&c, k, KS, &b, extra, 1);
        double best = 0;
        uint32_t n[KS];
        for (n[0] = 0; n[0] <= k[0].most; n[0]++)
            for (n[1] = 0; n[1] <= k[1].most; n[1]++)
                for (n[2] = 0; n[2] <= k[2].most; n[2]++) {
                    const double r = rate_of(&c, k, n, &b, extra);
                    best = r > best ? r : best;
                }
        uint32_t all = 0;
        for (uint32_t i = 0; i < KS; i++)
            all += n[i] = k[i].best_n;
        ck_assert_double_eq_tol(got / best, 1, 1e-12);
        ck_assert_double_eq_tol(rate_of(&c, k, n, &b, extra) / best, 1, 1e-12);
        chosen[all < NODES ? all : NODES]++;
    }
    for (uint32_t i = 0; i <= NODES; i++)
        ck_assert_msg(chosen[i] > 0, "never %u nodes", i);
}
END_TEST

/* ---- calibration -------------------------------------------------------------------------------- */

static struct engine *kept_engine(const char *model, const char *dir)
{
    struct engine_config c = test_engine_config();
    c.costs_dir = dir;
    c.drafter = test_path("tests/golden/drafter/fitted");
    return test_engine(model, &c);
}

static uint32_t calibrate(struct engine *e)
{
    struct error err = {0};
    uint32_t calls = 0;
    int r;
    while ((r = engine_calibrate(e, &err)) > 0)
        ck_assert_uint_lt(++calls, 1000);
    ck_ok(r, &err);
    return calls;
}

START_TEST(measured_and_kept)
{
    char dir[4300], model[4300];
    struct error err = {0};
    snprintf(dir, sizeof(dir), "%s/costs", test_tmpdir());
    snprintf(model, sizeof(model), "%s", test_path("tests/golden/drafter/target"));
    struct engine *e = kept_engine(model, dir);
    ck_assert(cost_of_rows(&e->controller.costs.table[COST_TARGET], 1) == 0);
    /* Not while somebody waits. */
    const uint32_t prompt[] = {1, 2, 3};
    struct engine_request q = test_request_init(prompt, 3, 8);
    struct test_request t = {0};
    ck_ok(test_submit(e, &q, &t, &err), &err);
    ck_assert_int_eq(engine_calibrate(e, &err), 0);
    test_run(e, NULL, 0);
    test_request_done(&t);
    ck_assert_uint_gt(calibrate(e), 60);
    for (int k = 0; k < COST_KINDS; k++)
        ck_assert(cost_of_rows(&e->controller.costs.table[k], 1) > 0);
    ck_assert_int_eq(engine_calibrate(e, &err), 0); /* once is enough */
    ck_assert_ptr_null(engine_costs_problem(e, &err));
    test_engine_idle(e);
    /* Drafts were seen, too. */
    struct test_request drafted = {0};
    q.sampling.max_tokens = 24;
    ck_ok(test_submit(e, &q, &drafted, &err), &err);
    test_run(e, NULL, 0);
    test_request_done(&drafted);
    const struct costs want = e->controller.costs;
    const struct survival drafts = e->controller.survival;
    ck_assert_uint_gt(drafts.curve[0][0].n, 0);
    engine_free(e);
    /* The next one knows. */
    e = kept_engine(model, dir);
    ck_assert_ptr_null(engine_costs_problem(e, &err));
    ck_assert_int_eq(engine_calibrate(e, &err), 0);
    for (int k = 0; k < COST_KINDS; k++)
        ck_assert_double_eq_tol(cost_of_rows(&e->controller.costs.table[k], 3),
                                cost_of_rows(&want.table[k], 3), 0.02);
    check_drafts(&drafts, &e->controller.survival);
    engine_free(e);
    /* A torn file is told once, and measured again. */
    char *path = only_file(dir);
    ck_ok(file_write_atomic(path, "{\"dedit_costs\"", 14, &err), &err);
    e = kept_engine(model, dir);
    ck_assert_ptr_nonnull(strstr(engine_costs_problem(e, &err), path));
    ck_assert_ptr_null(engine_costs_problem(e, &err));
    ck_assert_uint_gt(calibrate(e), 60);
    engine_free(e);
    e = kept_engine(model, dir);
    ck_assert_int_eq(engine_calibrate(e, &err), 0);
    engine_free(e);
    remove(path);
    remove(dir);
}
END_TEST

/* Interrupted by requests, with little room, without memory: answers stay what they are. */
START_TEST(interrupted)
{
    struct engine_config c = test_engine_config();
    struct error err = {0};
    c.drafter = test_path("tests/golden/drafter/fitted");
    c.n_kv_blocks = 12;
    struct engine *e = test_engine(test_path("tests/golden/drafter/target"), &c);
    const uint32_t prompt[] = {5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9};
    static struct test_request plain, t;
    struct engine_request q = test_request_init(prompt, 20, 40);
    q.sampling.ignore_eos = true;
    q.drafting.method = DRAFT_AR;
    test_generate(e, &q, &plain);
    q.drafting.method = DRAFT_AUTO;
    int more = 1;
    for (uint32_t i = 0; more > 0; i++) {
        more = engine_calibrate(e, &err);
        ck_assert_int_ge(more, 0);
        if (i % 8)
            continue;
        memset(&t, 0, sizeof(t));
        test_generate(e, &q, &t);
        test_same_output(&t, &plain, "between measurements");
        test_request_done(&t);
    }
    ck_assert(cost_of_rows(&e->controller.costs.table[COST_TARGET], 1) > 0);
    test_request_done(&plain);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(without_memory)
{
    struct test_oom o = {0};
    struct engine_config c = test_engine_config();
    c.drafter = test_path("tests/golden/drafter/fitted");
    struct engine *e = test_engine(test_path("tests/golden/drafter/target"), &c);
    while (test_oom_next(&o)) {
        struct error err = {0};
        int r;
        e->calibrated = false;
        for (int i = 0; i < 3 && (r = engine_calibrate(e, &err)) > 0; i++)
            ;
        ck_assert(r == 1 || r == DEDIT_E_NOMEM);
        e->calibration = calibration_free(e->calibration);
    }
    engine_free(e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("controller");
    TCase *t = test_case(s, "costs");
    tcase_add_test(t, table);
    tcase_add_test(t, pace);
    tcase_add_test(t, context);
    tcase_add_test(t, files);
    t = test_case(s, "survival");
    tcase_add_test(t, odds);
    tcase_add_test(t, curves);
    t = test_case(s, "nodes");
    tcase_add_test(t, most_tokens_a_second);
    t = test_case(s, "calibration");
    tcase_add_test(t, measured_and_kept);
    tcase_add_test(t, interrupted);
    tcase_add_test(t, without_memory);
    return test_main(s);
}
