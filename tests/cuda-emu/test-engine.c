/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine with the emulated device as its backend: prompts in chunks, every way of drafting, trees,
 * sampling, companions, preemption and prefix hits.  What a request gives is what plain decoding gives
 * alone on that device: ids, text, reason and every bit of the log-probabilities; and where the device
 * is of the CPU's class, what the CPU gives.  Each cell of way and temperature counts what it saw, and
 * batches go on until none lacks anything.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/cuda-emu/emu-util.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/record.h"
#include "tests/unit/util.h"

enum { PROMPTS = 4, MAX_PROMPT = 24, TEMPERATURES = 3, OUT = 30, CROWD = 6, MOST_BATCHES = 24 };
static const float temperatures[TEMPERATURES] = {0, 0.7f, 1.3f};

/* ---- ways of drafting -------------------------------------------------------------------------- */

enum { PLAIN, NGRAM, CHAIN, TREE, DFLASH, DEDIT1, DEDIT2, DEDIT3, CAUSAL2, CAUSAL3, DDTREE, WAYS };
static const struct {
    const char *name;
    enum draft_method method;
    uint32_t passes;
    enum draft_visibility visibility;
} ways[WAYS] = {
    [PLAIN] = {.name = "ar", .method = DRAFT_AR},
    [NGRAM] = {.name = "ngram", .method = DRAFT_NGRAM},
    [CHAIN] = {.name = "scripted chain", .method = DRAFT_SCRIPTED},
    [TREE] = {.name = "scripted tree", .method = DRAFT_SCRIPTED},
    [DFLASH] = {.name = "dflash", .method = DRAFT_DFLASH},
    [DEDIT1] = {.name = "dedit, 1 pass", .method = DRAFT_DEDIT, .passes = 1},
    [DEDIT2] = {.name = "dedit, 2 passes", .method = DRAFT_DEDIT, .passes = 2},
    [DEDIT3] = {.name = "dedit, 3 passes", .method = DRAFT_DEDIT, .passes = 3},
    [CAUSAL2] = {.name = "dedit, 2 passes, causal",
                 .method = DRAFT_DEDIT,
                 .passes = 2,
                 .visibility = DRAFT_CAUSAL},
    [CAUSAL3] = {.name = "dedit, 3 passes, causal",
                 .method = DRAFT_DEDIT,
                 .passes = 3,
                 .visibility = DRAFT_CAUSAL},
    [DDTREE] = {.name = "ddtree", .method = DRAFT_DDTREE, .passes = 2},
};
#define WAY(w) (1u << (w))

/* ---- worlds: a model, how its weights lie, and what is asked of it ------------------------------ */

struct world {
    const char *what, *model, *drafter;
    enum backend_dtype dtype; /* of target and drafter */
    enum dk_kv_type kv;
    bool mma;      /* tensor cores: a class of its own */
    bool tight;    /* also in a pool that has no room for all */
    unsigned ways; /* bits */
    const char *class_name;
};
static const struct world worlds[] = {
    {.what = "F32",
     .model = "tests/golden/drafter/target",
     .drafter = "tests/golden/drafter/fitted",
     .tight = true,
     .ways = WAY(WAYS) - 1,
     .class_name = "exact, kv f32"},
    {.what = "Q8_0, 16-bit keys and values",
     .model = "tests/golden/drafter/target",
     .drafter = "tests/golden/drafter/fitted",
     .dtype = BACKEND_DTYPE_Q8_0,
     .kv = DK_KV_BF16,
     .ways = WAY(DDTREE),
     .class_name = "exact, kv bf16"},
    {.what = "BF16 on the tensor cores",
     .model = "tests/golden/drafter/target",
     .drafter = "tests/golden/drafter/fitted",
     .dtype = BACKEND_DTYPE_BF16,
     .mma = true,
     .ways = WAY(DEDIT2) | WAY(DDTREE),
     .class_name = "cuda-mma, kv f32"},
    {.what = "Q4_K, Q5_K, Q6_K",
     .model = "tests/golden/gguf/k_qwen3.MIX.gguf",
     .ways = WAY(NGRAM) | WAY(TREE),
     .class_name = "exact, kv f32"},
};
static const struct world *world;

enum place { CPU, ROOMY, TIGHT };

static struct engine *open_engine(enum place place)
{
    static char paths[2][512]; /* test_path's own buffers come round again */
    struct engine_config c = test_engine_config();
    c.device = place == CPU ? "cpu" : "emu";
    c.exact = place == CPU || !world->mma;
    c.dtype = c.drafter_dtype = world->dtype;
    c.kv_type = world->kv;
    c.max_context = 96;
    c.n_kv_blocks = place == TIGHT ? 4 : 60; /* tight: two requests may begin, one can end */
    c.prefill_chunk = place == TIGHT ? 5 : 16;
    c.max_num_batched_tokens = place == TIGHT ? 24 : 96;
    c.max_num_seqs = 8;
    c.enable_prefix_caching = place != CPU;
    (void)snprintf(paths[0], sizeof(paths[0]), "%s", test_path(world->model));
    if (world->drafter && place != CPU) {
        (void)snprintf(paths[1], sizeof(paths[1]), "%s", test_path(world->drafter));
        c.drafter = paths[1];
    }
    struct engine *e = test_engine(paths[0], &c);
    ck_assert_str_eq(engine_device(e), place == CPU ? "cpu" : "cuda");
    if (place != CPU)
        ck_assert_str_eq(engine_class(e), world->class_name);
    return e;
}

/* ---- prompts and parameters ---------------------------------------------------------------------- */

/* Two short prompts, for the tight pool, and two that share their first block. */
static const uint32_t n_prompt[PROMPTS] = {13, 15, 20, 23};
static const uint32_t n_out[PROMPTS] = {EMU_FEWER(30, 24), EMU_FEWER(30, 24), EMU_FEWER(16, 10),
                                        16};
static uint32_t prompts[PROMPTS][MAX_PROMPT], vocab;
static struct test_record want[PROMPTS][TEMPERATURES];
static uint64_t state;

static uint32_t rnd(uint32_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % below;
}

/* For the fitted pair, the beginnings of texts that it knows. */
static void make_prompts(void)
{
    json_error_t je;
    json_t *d = json_load_file(test_path("tests/golden/drafter/fitted.generate.json"), 0, &je);
    json_t *cases = json_object_get(d, "cases");
    for (uint32_t i = 0; i < PROMPTS; i++) {
        json_t *c = json_array_get(cases, (size_t[]){5, 2, 3, 3}[i]);
        json_t *text = json_object_get(c, "prompt");
        ck_assert_uint_ge(json_array_size(text), n_prompt[i]);
        if (!world->drafter)
            test_tokens(i < 2 ? i : 2, 255, prompts[i], n_prompt[i]);
        for (uint32_t j = 0; world->drafter && j < n_prompt[i]; j++)
            prompts[i][j] = (uint32_t)json_integer_value(json_array_get(text, j));
    }
    json_decref(d);
}

static struct engine_request request_of(uint32_t p, uint32_t t, struct test_record *o)
{
    struct engine_request q = {
        .prompt = prompts[p], .n_prompt = n_prompt[p], .want_tokens_text = true};
    struct sampling_params *s = &q.sampling;
    sampling_params_init(s);
    s->temperature = temperatures[t];
    s->max_tokens = n_out[p];
    s->seed = 40 + p;
    s->has_seed = true;
    s->ignore_eos = true;
    s->logprobs = p % 2 ? -1 : 3;
    switch (p) {
    case 0:
        s->repetition_penalty = 1.3f;
        s->frequency_penalty = 0.4f;
        s->presence_penalty = 0.2f;
        break;
    case 1:
        s->top_k = 12;
        s->top_p = 0.9f;
        break;
    case 3:
        s->repetition_penalty = 0.4f; /* into a loop: look-up finds something */
        break;
    default:
        break;
    }
    *o = (struct test_record){.most = OUT};
    q.sink = test_record_sink(o);
    return q;
}

static void run_alone(struct engine *e, uint32_t p, uint32_t t, struct test_record *o)
{
    struct error err = {0};
    struct request *r = NULL;
    struct engine_request q = request_of(p, t, o);
    q.drafting.method = DRAFT_AR;
    ck_ok(engine_submit(e, &q, &r, &err), &err);
    while (!o->finished)
        ck_assert_int_ge(engine_step(e, &err), 0);
    request_free(r);
}

/* ---- the device against the CPU ------------------------------------------------------------------- */

/*
 * The logits of a text.  Two products follow each other in each half of a layer, and a product is off by at most
 * 5e-5 of its terms' sum (kernels/README.md): 20 of them and the head.
 */
static void logits_close(struct engine *emu, struct engine *cpu, uint32_t p, uint32_t t)
{
    const uint32_t n = n_prompt[p] + n_out[p];
    const size_t size = (size_t)n * vocab;
    uint32_t tokens[MAX_PROMPT + OUT];
    struct error err = {0};
    float *got = malloc(2 * size * sizeof(*got)), *near = got + size;
    ck_assert_ptr_nonnull(got);
    memcpy(tokens, prompts[p], n_prompt[p] * sizeof(*tokens));
    memcpy(tokens + n_prompt[p], want[p][t].ids, n_out[p] * sizeof(*tokens));
    for (int i = 0; i < 2; i++) {
        struct seq *s = NULL;
        ck_ok(engine_seq_new(i ? cpu : emu, &s, &err), &err);
        test_feed(i ? cpu : emu, s, tokens, n, 32, i ? near : got, NULL, 0, NULL);
        engine_seq_free(i ? cpu : emu, s);
    }
    test_floats_close(world->what, got, near, size, 1e-3, 1e-3);
    free(got);
}

/* Plain decoding alone on the device.  In the CPU's class the CPU says what must come, and the device
 * shows it for each prompt; the matrix has it for each temperature. */
static void make_wanted(struct engine *emu)
{
    static struct test_record alone;
    struct engine *cpu = open_engine(CPU);
    vocab = cpu->model->vocab_size;
    make_prompts();
    for (uint32_t p = world->tight ? 0 : 2; p < PROMPTS; p++)
        for (uint32_t t = 0; t < TEMPERATURES && (p == 2 || !world->mma); t++) {
            run_alone(world->mma ? emu : cpu, p, t, &want[p][t]);
            ck_assert_uint_eq(want[p][t].n, n_out[p]);
            if (world->mma) {
                logits_close(emu, cpu, p, t);
            } else if (t == p % TEMPERATURES) {
                run_alone(emu, p, t, &alone);
                test_records_equal(&alone, &want[p][t], "alone on the device");
            }
        }
    engine_free(cpu);
}

/* ---- drafts ------------------------------------------------------------------------------------- */

struct slot {
    struct request *r;
    struct test_record out;
    uint32_t p, t, way;
    struct draft_script script;
    struct draft_script_round rounds[OUT];
};
static struct slot slots[CROWD];

static uint32_t truth(const struct slot *s, uint32_t i)
{
    return i < n_out[s->p] ? want[s->p][s->t].ids[i] : i;
}

/* The right path, wrong from somewhere on; in a tree among wrong siblings, before it and behind it. */
static void write_script(struct slot *s)
{
    s->script = (struct draft_script){s->rounds, OUT};
    memset(s->rounds, 0, sizeof(s->rounds));
    for (uint32_t at = 0; at < OUT; at++) {
        struct proposal *p = &s->rounds[at].proposal;
        const uint32_t right = 1 + rnd(5);
        int path = -1;
        s->rounds[at].at = at;
        for (uint32_t depth = 0; depth < right + 1; depth++) {
            const int parent = path;
            const uint32_t token = truth(s, at + depth);
            for (uint32_t k = s->way == TREE ? rnd(3) : 0; k; k--)
                (void)proposal_add(p, (token + 1 + k) % vocab, parent, 0.1f);
            path = proposal_add(p, (token + (depth == right)) % vocab, parent, 0.6f);
            if (s->way == TREE && rnd(2))
                (void)proposal_add(p, rnd(vocab), (int)rnd(p->n + 1) - 1, 0.1f);
        }
    }
}

static void submit(struct engine *e, struct slot *s)
{
    struct error err = {0};
    struct engine_request q = request_of(s->p, s->t, &s->out);
    struct drafting_params *d = &q.drafting;
    d->method = ways[s->way].method;
    d->passes = ways[s->way].passes;
    d->visibility = ways[s->way].visibility;
    d->want_rounds = true;
    d->no_noise = s->way >= DFLASH && rnd(4) == 0;
    if (s->way >= DFLASH || s->way == NGRAM)
        d->window = 5 + rnd(4);
    if (s->way == DDTREE)
        d->tree_budget = 8 + rnd(8);
    if (d->method == DRAFT_SCRIPTED) {
        write_script(s);
        d->script = &s->script;
    }
    ck_ok(engine_submit(e, &q, &s->r, &err), &err);
}

/* ---- the matrix --------------------------------------------------------------------------------- */

static struct cell {
    uint64_t requests, accepted, rejected, branches, preempted, hits;
} cells[WAYS][TEMPERATURES];

static bool asked(uint32_t way)
{
    return world->ways >> way & 1;
}

/* A drafter's trees leave the first child seldom: at some temperature, scripted ones at each. */
static bool branched(uint32_t way, uint32_t t)
{
    uint64_t n = cells[way][t].branches;
    for (uint32_t i = 0; way == DDTREE && i < TEMPERATURES; i++)
        n += cells[way][i].branches;
    return n || (way != TREE && way != DDTREE);
}

static bool lacks(uint32_t way, uint32_t t)
{
    const struct cell *c = &cells[way][t];
    const bool checked = way == PLAIN || (c->accepted && c->rejected && branched(way, t));
    /* Each way, and each temperature. */
    const bool some = EMU_FEWER(true, (way + t) % TEMPERATURES == 0);
    return asked(way) && some && !(checked && c->preempted && c->hits);
}

static uint32_t n_lacking(void)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < WAYS; w++)
        for (uint32_t t = 0; t < TEMPERATURES; t++)
            n += lacks(w, t);
    return n;
}

/* The one that look-up finds its way in; drafters do so seldom. */
static uint32_t choose_prompt(uint32_t way)
{
    if (world->mma || (way >= DFLASH && rnd(4)))
        return 2;
    return way == NGRAM ? 3 : 2 + rnd(2);
}

/* Cells that lack something, in turn. */
static void choose_cell(struct slot *s)
{
    static uint32_t turn;
    do
        turn++;
    while (!lacks(turn % WAYS, turn / WAYS % TEMPERATURES));
    s->way = turn % WAYS;
    s->t = turn / WAYS % TEMPERATURES;
    s->p = choose_prompt(s->way);
}

static void check(struct slot *s, const char *where)
{
    char what[160];
    const struct engine_drafting *d = &s->out.usage.drafting;
    struct cell *c = &cells[s->way][s->t];
    (void)snprintf(what, sizeof(what), "%s, %s: %s, prompt %u, temperature %d/10", world->what,
                   where, ways[s->way].name, s->p, (int)(temperatures[s->t] * 10 + 0.5f));
    test_records_equal(&s->out, &want[s->p][s->t], what);
    ck_assert_uint_eq(d->committed + d->plain_rounds + d->prefill_tokens, n_out[s->p]);
    c->requests++;
    c->accepted += d->accepted;
    c->rejected += d->drafted - d->accepted;
    c->branches += s->out.branches;
    c->preempted += s->out.usage.preemptions;
    c->hits += s->out.usage.cached_tokens > 0;
    s->r = request_free(s->r);
}

/* A request in the middle of its text gives its K/V away. */
static void preempt_one(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        for (uint32_t k = 0; k < CROWD; k++)
            if (slots[k].r == r && slots[k].out.n > 0 && r->usage.preemptions == 0 &&
                !cells[slots[k].way][slots[k].t].preempted) {
                request_preempt(r);
                return;
            }
    }
}

/* Requests come one after another, while the first ones run; all at once where there is no room. */
static void one_batch(struct engine *e, bool tight, uint32_t crowd)
{
    static const uint32_t crowded[] = {TREE, DEDIT2, DDTREE};
    struct error err = {0};
    uint32_t n = 0;
    crowd = crowd < 3 ? 3 : crowd < CROWD ? crowd : CROWD;
    for (int step = 0, more = 1; more || n < crowd; step++) {
        while (n < crowd && (tight || 2 * (int)n <= step)) {
            struct slot *s = &slots[n];
            if (tight)
                *s = (struct slot){.way = crowded[n % 3], .t = n % TEMPERATURES, .p = n % 2};
            else
                choose_cell(s);
            submit(e, &slots[n++]);
        }
        more = engine_step(e, &err);
        ck_assert_msg(more >= 0, "%s", err.msg);
        ck_assert_int_lt(step, 10000);
        if (!tight)
            preempt_one(e);
    }
    for (uint32_t i = 0; i < n; i++)
        check(&slots[i], tight ? "tight" : "roomy");
    test_engine_idle(e);
}

START_TEST(matrix)
{
    struct engine_stats s;
    world = &worlds[_i];
    state = 5 + (uint64_t)_i;
    struct engine *e = open_engine(ROOMY);
    make_wanted(e);
    for (int batches = 0; n_lacking(); batches++) {
        for (uint32_t w = 0; w < WAYS && batches == MOST_BATCHES; w++)
            for (uint32_t t = 0; t < TEMPERATURES; t++)
                ck_assert_msg(
                    !lacks(w, t),
                    "%s, %s, temperature %u: %u requests, %u accepted, %u rejected, %u branches, "
                    "%u preempted, %u prefix hits",
                    world->what, ways[w].name, t, (unsigned)cells[w][t].requests,
                    (unsigned)cells[w][t].accepted, (unsigned)cells[w][t].rejected,
                    (unsigned)cells[w][t].branches, (unsigned)cells[w][t].preempted,
                    (unsigned)cells[w][t].hits);
        one_batch(e, false, n_lacking());
    }
    engine_free(e);
    if (!world->tight)
        return;
    e = open_engine(TIGHT);
    one_batch(e, true, 3);
    engine_get_stats(e, &s);
    ck_assert_uint_gt(s.preemptions, 0);
    ck_assert_uint_gt(s.draft_steps, 0);
    engine_free(e);
}
END_TEST

int main(void)
{
    /* The kernels' own tests look at every access; here, at one launch in so many of each kernel. */
    setenv("CUEMU_CHECK", "50", 0);
    if (!test_emulated_device())
        return 99;
    Suite *s = suite_create("cuda-engine");
    TCase *t = test_case(s, "matrix");
    tcase_set_timeout(t, 1800);
    tcase_add_loop_test(t, matrix, 0, sizeof(worlds) / sizeof(*worlds));
    return test_main(s);
}
