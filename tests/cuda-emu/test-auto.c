/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The method `auto` where passes and verification are enqueued together: one wait a round, since all is decided
 * before it.  With costs that are given, an engine on the CPU that decides ahead as well, and runs its passes one by
 * one, makes the same choices: windows, passes, nodes, what it learns of them.  The text is that of plain decoding.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/drafter_internal.h"
#include "engine/engine_internal.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/util.h"

enum { MOST = 4, PROMPT = 13, SHORT = EMU_FEWER(16, 10), OUT = EMU_FEWER(24, 16) };

static char target[512], drafter[512];

/* What is asked, and what it costs; times in those of a row of the target. */
struct scene {
    uint32_t n, out; /* requests, tokens of each */
    uint32_t tile;   /* rows that cost as much as one */
    double pass;
    uint32_t rounds; /* that were begun before: the sixth, and each 96th, is no usual one */
    uint32_t passes; /* allowed to the last request; 0: as to the others */
    bool repeats;    /* look-up has something to find */
    enum draft_method beside; /* what the last request has instead */
    bool whole;               /* all rounds have one wait */
};
static const struct scene scenes[] = {
    {.n = 1, .out = OUT, .tile = 40, .pass = 0.1, .rounds = 4, .whole = true},
    {.n = MOST, .out = OUT, .tile = 6, .pass = 0.1, .whole = true},
    {.n = MOST, .out = OUT, .tile = 48, .pass = 0.05, .rounds = 286, .whole = true},
    {.n = 2, .out = OUT, .tile = 1, .pass = 0.5, .whole = true}, /* drafts do not pay */
    {.n = MOST, .out = OUT, .tile = 24, .pass = 0.1, .repeats = true, .whole = true},
    {.n = 3, .out = SHORT, .tile = 24, .pass = 0.05, .rounds = 4, .passes = 1},
    {.n = 3, .out = SHORT, .tile = 24, .pass = 0.1, .beside = DRAFT_DEDIT},
    {.n = 3, .out = SHORT, .tile = 24, .pass = 0.1, .beside = DRAFT_DFLASH},
};

/* ---- one run ----------------------------------------------------------------------------------------- */

/* A request, and what its rounds were. */
struct one {
    struct test_request t;
    struct engine_sink inner;
    uint32_t prompt[PROMPT];
    uint64_t record;
    uint32_t drafted_rounds, passes, nodes, most_nodes, windows; /* a bit for each */
};
struct run {
    struct one one[MOST];
    struct engine_stats stats;
    struct survival survival;
    uint64_t waits;
};

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    const struct one *o = arg;
    return o->inner.tokens(o->inner.arg, r, t, n);
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    const struct one *o = arg;
    o->inner.finished(o->inner.arg, r, f);
}

static void on_round(void *arg, struct request *r, const struct engine_round *x)
{
    struct one *o = arg;
    const struct proposal *p = x->proposal;
    const uint64_t what[] = {x->method, x->window, x->passes, x->committed, x->accepted, p->n};
    (void)r;
    o->record = hash_bytes(what, sizeof(what), o->record);
    o->record = hash_bytes(p->tokens, p->n * sizeof(*p->tokens), o->record);
    o->record = hash_bytes(p->parent, p->n * sizeof(*p->parent), o->record);
    o->record = hash_bytes(p->edited, p->n * sizeof(*p->edited), o->record);
    o->record = hash_bytes(p->confidence, p->n * sizeof(*p->confidence), o->record);
    for (uint32_t k = 0; k < x->passes; k++)
        o->record = hash_bytes(x->confidence[k], (x->window - 1) * sizeof(float), o->record);
    if (x->passes == 0)
        return;
    o->drafted_rounds++;
    o->passes += x->passes;
    o->nodes += p->n;
    o->most_nodes = p->n > o->most_nodes ? p->n : o->most_nodes;
    o->windows |= 1u << x->window % 32;
}

static void give_costs(struct engine *e, const struct scene *s)
{
    struct costs *c = &e->controller.costs;
    cost_fill(&c->table[COST_TARGET], 1e6, 0);
    cost_fill(&c->table[COST_DRAFTER], s->pass * 1e6, 0);
    cost_fill(&c->table[COST_INJECT], 1e4, 0);
    for (int k = 0; k < COST_SIZES; k++)
        c->table[COST_TARGET].ns[k] = 1e6 * (double)((cost_sizes[k] + s->tile - 1) / s->tile);
    c->pace = 1;
}

/* Something is known of the drafter, so that it is not tried by one request alone. */
static void give_drafts(struct engine *e)
{
    float one[SURVIVAL_NODES], two[SURVIVAL_NODES];
    float reach = 0.7f;
    for (uint32_t i = 0; i < SURVIVAL_NODES; i++, reach *= 0.8f) {
        one[i] = reach;
        two[i] = 1.1f * reach;
    }
    for (int i = 0; i < 9; i++) {
        survival_add(&e->controller.survival, 0, 1, one, SURVIVAL_NODES);
        survival_add(&e->controller.survival, 0, 2, two, SURVIVAL_NODES);
    }
}

static void submit(struct engine *e, const struct scene *s, uint32_t i, bool plain, struct one *o)
{
    struct error err = {0};
    memset(o, 0, sizeof(*o));
    for (uint32_t j = 0; j < PROMPT; j++) /* words of the fitted pair */
        o->prompt[j] = s->repeats ? (i + j % 4 * 11) % 96 : (i / 2 + j * 11) % 96;
    struct engine_request q = test_request_init(o->prompt, PROMPT, s->out);
    q.sampling.ignore_eos = true;
    q.sampling.temperature = i % 2 ? 0.8f : 0;
    q.sampling.seed = i;
    q.sampling.has_seed = true;
    q.drafting.method = plain ? DRAFT_AR : DRAFT_AUTO;
    if (!plain && i + 1 == s->n) {
        q.drafting.passes = s->passes;
        q.drafting.method = s->beside;
        if (s->beside == DRAFT_DEDIT)
            q.drafting.passes = 3;
    }
    ck_ok(test_submit(e, &q, &o->t, &err), &err);
    o->inner = o->t.r->sink;
    o->t.r->sink = (struct engine_sink){
        .tokens = on_tokens, .finished = on_finished, .round = on_round, .arg = o};
    o->t.r->want_rounds = true;
}

static void run(const char *device, const struct scene *s, bool plain, struct run *ret)
{
    struct error err = {0};
    struct engine_config c = test_engine_config();
    c.device = device;
    c.exact = true;
    c.drafter = drafter;
    struct engine *e = test_engine(target, &c);
    ck_assert_int_eq(e->controller.ahead, strcmp(device, "emu") == 0);
    e->controller.ahead = true;
    e->controller.rounds = s->rounds;
    give_drafts(e);
    const uint64_t before = emu_counts_now().waits;
    for (uint32_t i = 0; i < s->n; i++)
        submit(e, s, i, plain, &ret->one[i]);
    for (int more = 1; more > 0;) {
        give_costs(e, s);
        more = engine_step(e, &err);
        ck_assert_msg(more >= 0, "%s", err.msg);
    }
    ret->waits = emu_counts_now().waits - before;
    ret->survival = e->controller.survival;
    engine_get_stats(e, &ret->stats);
    test_engine_idle(e);
    for (uint32_t i = 0; i < s->n; i++)
        ck_assert(ret->one[i].t.finished);
    engine_free(e);
}

/* ---- choices ------------------------------------------------------------------------------------------ */

static struct run plain, cpu, emu;

static void same(const struct scene *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct one *p = &plain.one[i], *a = &cpu.one[i], *b = &emu.one[i];
        test_same_output(&a->t, &p->t, "decided ahead, on the CPU");
        test_same_output(&b->t, &p->t, "decided ahead");
        ck_assert_uint_eq(a->drafted_rounds, b->drafted_rounds);
        ck_assert_uint_eq(a->passes, b->passes);
        ck_assert_uint_eq(a->nodes, b->nodes);
        ck_assert_msg(a->record == b->record, "request %u has other rounds", i);
        test_request_done(&p->t);
        test_request_done(&a->t);
        test_request_done(&b->t);
    }
    ck_assert_uint_eq(cpu.stats.steps, emu.stats.steps);
    ck_assert_uint_eq(cpu.stats.draft_rounds, emu.stats.draft_rounds);
    ck_assert_uint_eq(cpu.stats.accepted_tokens, emu.stats.accepted_tokens);
    ck_assert_msg(memcmp(&cpu.survival, &emu.survival, sizeof(emu.survival)) == 0,
                  "other things were learned");
}

/* Proposals after so many passes. */
static uint32_t learned(uint32_t passes)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < SURVIVAL_WINDOWS; w++)
        n += emu.survival.curve[w][passes - 1].n;
    return n;
}

START_TEST(choices)
{
    const struct scene *s = &scenes[_i];
    uint32_t rounds = 0, most = 0, passes = 0, windows = 0;
    run("cpu", s, true, &plain);
    run("cpu", s, false, &cpu);
    run("emu", s, false, &emu);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct one *o = &emu.one[i];
        const bool ours = i + 1 < s->n || !s->beside;
        rounds += ours ? o->drafted_rounds : 0;
        passes += ours ? o->passes : 0;
        windows |= ours ? o->windows : 0;
        most = ours && o->most_nodes > most ? o->most_nodes : most;
    }
    same(s);
    ck_assert_uint_gt(rounds, 0);
    if (s->whole)
        ck_assert_uint_eq(emu.waits, emu.stats.steps);
    else
        ck_assert_uint_ge(emu.waits, emu.stats.steps);
    if (s->rounds) { /* a look at what more passes do, and what each of them was good for */
        ck_assert_uint_gt(passes, rounds);
        ck_assert_uint_gt(learned(3), 0);
        ck_assert_uint_ge(learned(1), 9 + rounds);
    }
    if (s->rounds > 6)
        ck_assert_uint_ne(windows & (windows - 1), 0); /* ... and at another window */
    ck_assert(s->tile < 6 ? most == 1 : most > 1);
    ck_assert(s->tile < 6 || emu.stats.accepted_tokens > 0);
}
END_TEST

/* ---- what the device says ---------------------------------------------------------------------------- */

static struct backend liar;

static int lie(struct backend_model *m, uint32_t lane, uint32_t *ret_tokens,
               struct fwd_node *ret_nodes, uint64_t *ret_ns, struct error *err)
{
    int r = backend_cuda.collect(m, lane, ret_tokens, ret_nodes, ret_ns, err);
    ret_nodes[0].token ^= 1;
    return r;
}

/* Another tree than the host makes of the same passes ends the step. */
START_TEST(other_nodes)
{
    struct error err = {0};
    struct engine_config c = test_engine_config();
    static struct one o;
    c.device = "emu";
    c.exact = true;
    c.drafter = drafter;
    struct engine *e = test_engine(target, &c);
    liar = backend_cuda;
    liar.collect = lie;
    e->own_drafter->backend = &liar;
    give_drafts(e);
    submit(e, &scenes[0], 0, false, &o);
    while (!o.t.finished) {
        give_costs(e, &scenes[0]);
        (void)engine_step(e, &err);
    }
    ck_assert_int_eq(o.t.error, DEDIT_E_INTERNAL);
    ck_assert_uint_lt(o.t.ids.len, OUT);
    test_request_done(&o.t);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

int main(void)
{
    emu_open_library();
    setenv("CUEMU_CHECK", "200", 0); /* other tests look at all accesses of the same kernels */
    (void)snprintf(target, sizeof(target), "%s", test_path("tests/golden/drafter/target"));
    (void)snprintf(drafter, sizeof(drafter), "%s", test_path("tests/golden/drafter/fitted"));

    Suite *s = suite_create("cuda-auto");
    TCase *t = test_case(s, "ahead");
    tcase_add_loop_test(t, choices, 0, sizeof(scenes) / sizeof(*scenes));
    tcase_add_test(t, other_nodes);
    return test_main(s);
}
