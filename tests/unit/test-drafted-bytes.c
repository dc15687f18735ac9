/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Same bytes: requests with every way of drafting, window, number of passes, temperature and set of
 * sampling parameters, in batches with random companions, chunks, batch sizes, prefix hits, preemptions, parking and
 * threads, on every weight type; each equal to plain decoding alone: ids, text, reason, and every bit of
 * the log-probabilities.  Seeded; what each cell saw is counted, so that none is equal for lack of work.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/fake-drafter.h"
#include "tests/unit/fixture.h"
#include "tests/unit/record.h"
#include "tests/unit/util.h"

enum {
    PROMPTS = 6,
    SETS = 11,
    TEMPERATURES = 3,
    OUT = 36,
    BATCH = 14,
    WORLDS = 24,
    MAX_PROMPT = 80
};
static const float temperatures[TEMPERATURES] = {0, 0.7f, 1.3f};

enum way { PLAIN, NGRAM, CHAIN, TREE, DFLASH, DEDIT, CAUSAL, DDTREE, AUTO, WAYS };
static const char *const way_names[WAYS] = {"ar",    "ngram",        "chain",  "tree", "dflash",
                                            "dedit", "dedit-causal", "ddtree", "auto"};

/* ---- models ------------------------------------------------------------------------------------ */

struct weights {
    const char *path;
    const char *drafter; /* a real one; NULL: the fake */
    bool fixture;
    enum fixture_family family;
    enum fixture_dtype dtype;
    enum backend_dtype converted; /* at load */
};
static const struct weights weights[] = {
    {.fixture = true, .family = FIXTURE_QWEN3, .dtype = FIXTURE_F32},
    {.fixture = true, .family = FIXTURE_LLAMA, .dtype = FIXTURE_BF16},
    {.fixture = true, .family = FIXTURE_QWEN2, .dtype = FIXTURE_F16},
    {.path = "tests/golden/gguf/a_llama_tied.Q8_0.gguf"},
    {.path = "tests/golden/gguf/a_llama_tied.Q4_0.gguf"},
    {.path = "tests/golden/gguf/a_llama_tied.Q4_1.gguf"},
    {.path = "tests/golden/gguf/a_llama_tied.Q5_0.gguf"},
    {.path = "tests/golden/gguf/a_llama_tied.Q5_1.gguf"},
    {.path = "tests/golden/gguf/k_qwen3.MIX.gguf"},
    {.path = "tests/golden/drafter/target", .drafter = "tests/golden/drafter/fitted"},
    {.path = "tests/golden/drafter/target",
     .drafter = "tests/golden/drafter/fitted",
     .converted = BACKEND_DTYPE_Q8_0},
};
enum { MODELS = sizeof(weights) / sizeof(*weights) };

static const char *model_path(const struct weights *m)
{
    if (!m->fixture)
        return test_path(m->path);
    struct fixture f = fixture_random(11);
    f.family = m->family;
    f.dtype = m->dtype;
    return fixture_write(&f);
}

/* ---- prompts and parameters ---------------------------------------------------------------------- */

struct matrix {
    const struct weights *m;
    const char *path;
    uint32_t vocab;
    uint64_t seed, state; /* of the entry; of what is drawn next */
    uint32_t prompt[PROMPTS][MAX_PROMPT], n_prompt[PROMPTS];
    struct test_record want[PROMPTS][SETS][TEMPERATURES];
    struct fake_text text[PROMPTS][SETS][TEMPERATURES];
    struct logit_bias bias[2];
    uint32_t stop_ids[2];
    struct stop_string stop[2];
    /* What was seen, by way and temperature. */
    struct {
        uint64_t requests, accepted, rejected, branches;
    } cell[WAYS][TEMPERATURES];
    uint64_t preempted[WAYS], hits[WAYS], parked;
};
static struct matrix x;

static uint32_t rnd(uint32_t below)
{
    x.state = x.state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(x.state >> 33) % below;
}

/* Prompts of the toy language that the fitted pair speaks. */
static void make_fitted_prompts(void)
{
    json_error_t je;
    json_t *d = json_load_file(test_path("tests/golden/drafter/fitted.generate.json"), 0, &je);
    json_t *cases = json_object_get(d, "cases");
    ck_assert_uint_ge(json_array_size(cases), 3);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        json_t *c = json_array_get(cases, i / 2);
        json_t *parts[2] = {json_object_get(c, "prompt"), json_object_get(c, "greedy")};
        for (int k = 0; k < 2; k++)
            for (size_t j = 0; j < json_array_size(parts[k]) && x.n_prompt[i] < 34 + i % 2 * 7; j++)
                x.prompt[i][x.n_prompt[i]++] =
                    (uint32_t)json_integer_value(json_array_get(parts[k], j));
    }
    json_decref(d);
}

static void make_prompts(const struct engine *e)
{
    x.vocab = e->model->vocab_size;
    if (x.m->drafter) {
        make_fitted_prompts();
    } else {
        for (uint32_t i = 0; i < PROMPTS; i++) { /* pairs share their beginning */
            x.n_prompt[i] = 17 + 9 * i;
            test_tokens(i / 2, 255, x.prompt[i], MAX_PROMPT);
        }
    }
}

static void set_params(struct sampling_params *p, uint32_t set, uint32_t t)
{
    sampling_params_init(p);
    p->temperature = temperatures[t];
    p->max_tokens = OUT - set % 3;
    p->seed = 40 + set;
    p->has_seed = true;
    p->ignore_eos = true;
    p->logprobs = set % 4 == 0 ? 3 : -1;
    switch (set) {
    case 1:
        p->top_k = 8;
        p->top_p = 0.9f;
        break;
    case 2:
        p->min_p = 0.05f;
        break;
    case 3: /* repeats itself: look-up finds something */
        p->repetition_penalty = 0.75f;
        break;
    case 4:
        p->repetition_penalty = 1.3f;
        p->frequency_penalty = 0.4f;
        p->presence_penalty = 0.2f;
        break;
    case 5:
        p->logit_bias = x.bias;
        p->n_logit_bias = 2;
        break;
    case 6:
        p->stop_ids = x.stop_ids;
        p->n_stop_ids = 2;
        p->min_tokens = 9;
        break;
    case 7:
        p->stop = x.stop;
        p->n_stop = 2;
        break;
    case 8:
        p->ignore_eos = false;
        break;
    case 9:
        p->frequency_penalty = -1.5f; /* into a loop */
        break;
    case 10:
        p->repetition_penalty = 0.3f;
        p->logprobs = 20;
        break;
    default:
        break;
    }
}

static struct engine_request request_of(uint32_t p, uint32_t set, uint32_t t, struct test_record *o)
{
    struct engine_request q = {.prompt = x.prompt[p],
                               .n_prompt = x.n_prompt[p],
                               .skip_special = set % 2,
                               .want_tokens_text = true};
    set_params(&q.sampling, set, t);
    *o = (struct test_record){.most = OUT, .park_every = o->park_every};
    q.sink = test_record_sink(o);
    return q;
}

static void run_alone(struct engine *e, struct engine_request *q, const struct test_record *o)
{
    struct error err = {0};
    struct request *r = NULL;
    q->drafting.method = DRAFT_AR;
    ck_ok(engine_submit(e, q, &r, &err), &err);
    while (!o->finished)
        ck_assert_int_ge(engine_step(e, &err), 0);
    request_free(r);
}

/* Plain decoding, alone; then stop rules that do happen, out of what it gave. */
static void make_wanted(void)
{
    struct engine_config c = test_engine_config();
    c.enable_prefix_caching = false;
    c.dtype = x.m->converted;
    struct engine *e = test_engine(x.path, &c);
    make_prompts(e);
    struct test_record first = {0};
    struct engine_request q = request_of(0, 0, 1, &first);
    run_alone(e, &q, &first);
    x.bias[0] = (struct logit_bias){first.ids[3], -100};
    x.bias[1] = (struct logit_bias){first.ids[5], 2.5f};
    x.stop_ids[0] = first.ids[12];
    x.stop_ids[1] = first.ids[20];
    x.stop[0] = (struct stop_string){"e", 1};
    x.stop[1] = (struct stop_string){"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 9};
    for (uint32_t p = 0; p < PROMPTS; p++)
        for (uint32_t s = 0; s < SETS; s++)
            for (uint32_t t = 0; t < TEMPERATURES; t++) {
                struct test_record *o = &x.want[p][s][t];
                q = request_of(p, s, t, o);
                run_alone(e, &q, o);
                struct test_request plain = {.ids.len = o->n};
                memcpy(plain.ids.ids, o->ids, sizeof(o->ids));
                if (!x.m->drafter)
                    fake_text_init(&x.text[p][s][t], e, x.prompt[p], x.n_prompt[p], &plain);
            }
    engine_free(e);
}

/* ---- drafts ------------------------------------------------------------------------------------- */

static uint32_t truth(const struct test_record *o, uint32_t i)
{
    return i < o->n ? o->ids[i] : i % 200;
}

/* A path of the right tokens, wrong from somewhere on. */
static void write_chain(const struct test_record *o, uint32_t at, uint32_t w, struct proposal *p)
{
    uint32_t bad = rnd(3) ? rnd(w + 1) : w;
    for (uint32_t i = 0; i < w; i++)
        (void)proposal_add(p, (truth(o, at + i) + (i == bad)) % x.vocab, (int)i - 1, 0.5f);
}

/* The right path among wrong siblings, before it and behind it. */
static void write_tree(const struct test_record *o, uint32_t at, uint32_t w, struct proposal *p)
{
    int path = -1;
    for (uint32_t depth = 0; p->n < w; depth++) {
        int parent = path;
        for (uint32_t k = rnd(3); k && p->n < w; k--)
            (void)proposal_add(p, (truth(o, at + depth) + 1 + k) % x.vocab, parent, 0.1f);
        if (p->n < w && rnd(8))
            path = proposal_add(p, truth(o, at + depth), parent, 0.6f);
        if (p->n < w && rnd(2))
            (void)proposal_add(p, rnd(x.vocab), (int)rnd(p->n + 1) - 1, 0.1f);
    }
}

struct slot {
    struct request *r;
    struct test_record out;
    uint32_t p, set, t;
    enum way way;
    struct draft_script script;
    struct draft_script_round rounds[OUT];
    struct fake_text text;
};
static struct slot slots[BATCH];

static void draft(struct slot *s, struct drafting_params *d)
{
    const struct test_record *o = &x.want[s->p][s->set][s->t];
    const uint32_t w = 1 + rnd(rnd(4) ? 9 : 60);
    d->want_rounds = true;
    switch (s->way) {
    case PLAIN:
        d->method = DRAFT_AR;
        break;
    case NGRAM:
        d->method = DRAFT_NGRAM;
        d->window = 2 + rnd(12);
        break;
    case CHAIN:
    case TREE:
        memset(s->rounds, 0, sizeof(s->rounds));
        s->script = (struct draft_script){s->rounds, OUT};
        d->method = DRAFT_SCRIPTED;
        d->script = &s->script;
        for (uint32_t at = 0; at < OUT; at++) {
            s->rounds[at].at = at;
            s->rounds[at].passes = rnd(4);
            (s->way == CHAIN ? write_chain : write_tree)(o, at, w, &s->rounds[at].proposal);
        }
        break;
    case DFLASH:
        d->method = DRAFT_DFLASH;
        d->window = 2 + rnd(7);
        break;
    case DEDIT:
    case CAUSAL:
        d->method = DRAFT_DEDIT;
        d->window = 2 + rnd(7);
        d->passes = 1 + rnd(4);
        d->visibility = s->way == CAUSAL ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL;
        break;
    case DDTREE:
        d->method = DRAFT_DDTREE;
        d->window = 2 + rnd(7);
        d->passes = 1 + rnd(2);
        d->tree_budget = 1 + rnd(30);
        break;
    case AUTO: /* what it makes of the costs */
    case WAYS:
        break;
    }
    d->no_noise = rnd(4) == 0;
}

/* ---- one batch ------------------------------------------------------------------------------------ */

static void submit(struct engine *e, struct slot *s)
{
    struct error err = {0};
    s->p = rnd(PROMPTS);
    s->set = rnd(SETS);
    s->t = rnd(TEMPERATURES);
    s->way = rnd(16) == 0 ? PLAIN : (enum way)(1 + rnd(WAYS - 1));
    if (s->way == NGRAM && rnd(3)) /* sets that repeat themselves */
        s->set = (uint32_t[]){3, 9, 10, 10}[rnd(4)];
    s->out.park_every = rnd(4) == 0 ? 1 + rnd(4) : 0;
    struct engine_request q = request_of(s->p, s->set, s->t, &s->out);
    q.priority = (int32_t)rnd(3);
    draft(s, &q.drafting);
    ck_ok(engine_submit(e, &q, &s->r, &err), &err);
    s->text = x.text[s->p][s->set][s->t];
    s->text.r = s->r;
}

static void check(struct slot *s, uint32_t world)
{
    char what[160];
    (void)snprintf(what, sizeof(what), "%s, world %u: %s, prompt %u, set %u, temperature %d/10",
                   x.path, world, way_names[s->way], s->p, s->set,
                   (int)(temperatures[s->t] * 10 + 0.5f));
    ck_assert_msg(s->out.finished, "%s: not finished", what);
    test_records_equal(&s->out, &x.want[s->p][s->set][s->t], what);
    const struct engine_drafting *d = &s->out.usage.drafting;
    ck_assert_uint_eq(d->committed + d->plain_rounds + d->prefill_tokens, s->out.n);
    x.cell[s->way][s->t].requests++;
    x.cell[s->way][s->t].accepted += d->accepted;
    x.cell[s->way][s->t].rejected += d->drafted - d->accepted;
    x.cell[s->way][s->t].branches += s->out.branches;
    x.preempted[s->way] += s->out.usage.preemptions;
    x.hits[s->way] += s->out.usage.cached_tokens > 0;
    x.parked += s->out.park_every > 0;
    s->r = request_free(s->r);
    s->text.r = NULL;
}

static struct engine_config random_config(void)
{
    struct engine_config c = test_engine_config();
    static const uint32_t chunks[] = {1, 5, 16, 64, 256}, rows[] = {24, 90, 512};
    c.max_context = 160;
    c.prefill_chunk = chunks[rnd(5)];
    c.max_num_batched_tokens = rows[rnd(3)];
    c.max_num_seqs = 2 + rnd(14);
    c.n_kv_blocks = rnd(2) ? 10 + rnd(10) : 200; /* the small ones preempt */
    c.n_threads = rnd(5) == 0 ? 2 + rnd(2) : 1;
    c.enable_prefix_caching = rnd(4) != 0;
    if (x.m->drafter) {
        static const enum backend_dtype dtypes[] = {BACKEND_DTYPE_FILE, BACKEND_DTYPE_BF16,
                                                    BACKEND_DTYPE_Q8_0};
        c.drafter = test_path(x.m->drafter);
        c.drafter_dtype = dtypes[rnd(3)];
    }
    c.dtype = x.m->converted;
    return c;
}

static void one_world(uint32_t world)
{
    const uint64_t first = x.state = (x.seed + world) * 0x9e3779b97f4a7c15ull;
    struct engine_config c = random_config();
    struct engine *e = test_engine(x.path, &c);
    struct fake_drafter f = {0};
    struct fake_text *texts = NULL;
    struct error err = {0};
    if (!x.m->drafter) {
        fake_drafter_init(&f, e, 8);
        f.wrong = 2 + rnd(4);
        f.fixed_point = rnd(2);
    }
    uint32_t n = 0;
    const double slope = 0.01 * (double)(1 + rnd(40));
    for (int step = 0, more = 1; more || n < BATCH; step++) {
        if (n < BATCH && (n < 4 || rnd(3) == 0)) {
            /* What is asked for must not depend on how many steps there were before. */
            const uint64_t state = x.state;
            x.state = first * 31 + n;
            submit(e, &slots[n++]);
            x.state = state;
            /* The fake looks its requests up in one array. */
            texts = realloc(texts, n * sizeof(*texts));
            ck_assert_ptr_nonnull(texts);
            for (uint32_t i = 0; i < n; i++)
                texts[i] = slots[i].text;
            f.texts = texts;
            f.n_texts = n;
        }
        /* Costs that are given: what `auto` does is a matter of the seed, too. */
        struct costs *costs = &e->controller.costs;
        cost_fill(&costs->table[COST_TARGET], 1e6, slope);
        cost_fill(&costs->table[COST_DRAFTER], 1e5, 0.1);
        costs->pace = 1;
        more = engine_step(e, &err);
        ck_assert_msg(more >= 0, "%s", err.msg);
        ck_assert_int_lt(step, 100000);
        for (uint32_t i = 0; i < n; i++)
            if (!slots[i].out.finished && slots[i].r->state == REQUEST_PARKED) {
                engine_resume(e, slots[i].r);
                more = 1;
            }
        if (rnd(16) == 0 && e->n_running > 1)
            request_preempt(e->running[rnd(e->n_running)]);
    }
    for (uint32_t i = 0; i < BATCH; i++)
        check(&slots[i], world);
    test_engine_idle(e);
    engine_free(e);
    if (f.e)
        fake_drafter_done(&f);
    free(texts);
}

START_TEST(matrix)
{
    x.m = &weights[_i];
    static char path[4200]; /* test_path's own buffers come round again */
    (void)snprintf(path, sizeof(path), "%s", model_path(x.m));
    x.path = path;
    x.state = x.seed = 77 + 1000 * (uint64_t)_i;
    make_wanted();
    for (uint32_t world = 0; world < WORLDS; world++)
        one_world(world);
    uint64_t requests = 0;
    for (int w = 0; w < WAYS; w++) {
        for (int t = 0; t < TEMPERATURES; t++) {
            requests += x.cell[w][t].requests;
            if (w == PLAIN || w == AUTO)
                continue;
            ck_assert_msg(x.cell[w][t].accepted && x.cell[w][t].rejected,
                          "%s, temperature %d: %u requests, %u accepted, %u rejected", way_names[w],
                          t, (unsigned)x.cell[w][t].requests, (unsigned)x.cell[w][t].accepted,
                          (unsigned)x.cell[w][t].rejected);
            if (w == TREE || w == DDTREE)
                ck_assert_msg(x.cell[w][t].branches, "%s, temperature %d: no branch", way_names[w],
                              t);
        }
        if (w == PLAIN)
            continue;
        ck_assert_msg(x.preempted[w] && x.hits[w], "%s: %u preemptions, %u prefix hits",
                      way_names[w], (unsigned)x.preempted[w], (unsigned)x.hits[w]);
    }
    ck_assert_uint_eq(requests, WORLDS * BATCH);
    ck_assert_uint_gt(x.parked, 0);
}
END_TEST

/* The default model: text that people would read. */
START_TEST(default_model)
{
    enum { TEXTS = 3 };
    static const char *const texts[TEXTS] = {
        "<|im_start|>user\nWrite the numbers from one to five, twice.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nWhat is a rainbow?<|im_end|>\n<|im_start|>assistant\n",
        "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n"};
    static const enum way ways[] = {NGRAM, TREE, AUTO, CHAIN};
    static char path[4200];
    struct engine_config c = test_engine_config();
    struct error err = {0};
    uint64_t accepted = 0, rejected = 0, branches = 0;
    (void)snprintf(path, sizeof(path), "%s", test_default_model());
    c.n_threads = 2;
    x.state = 5;
    struct engine *e = test_engine(path, &c);
    x.vocab = e->model->vocab_size;
    for (uint32_t p = 0; p < TEXTS; p++) {
        _cleanup_token_list_ struct token_list ids = {0};
        ck_ok(tokenizer_encode(engine_tokenizer(e), texts[p], strlen(texts[p]), TOKENIZE_SPECIAL,
                               &ids, NULL, &err),
              &err);
        x.n_prompt[p] = (uint32_t)ids.len;
        ck_assert_uint_le(ids.len, MAX_PROMPT);
        memcpy(x.prompt[p], ids.ids, ids.len * sizeof(*ids.ids));
        for (uint32_t t = 0; t < 2; t++) {
            struct engine_request q = request_of(p, 0, t, &x.want[p][0][t]);
            run_alone(e, &q, &x.want[p][0][t]);
        }
    }
    /* All at once. */
    uint32_t n = 0;
    for (uint32_t p = 0; p < TEXTS; p++)
        for (uint32_t w = 0; w < 4; w++) {
            struct slot *s = &slots[n++];
            *s = (struct slot){.p = p, .t = w % 2 ^ p % 2, .way = ways[w]};
            struct engine_request q = request_of(p, 0, s->t, &s->out);
            draft(s, &q.drafting);
            ck_ok(engine_submit(e, &q, &s->r, &err), &err);
        }
    while (engine_step(e, &err) > 0)
        ;
    for (uint32_t i = 0; i < n; i++) {
        struct slot *s = &slots[i];
        test_records_equal(&s->out, &x.want[s->p][0][s->t], way_names[s->way]);
        accepted += s->out.usage.drafting.accepted;
        rejected += s->out.usage.drafting.drafted - s->out.usage.drafting.accepted;
        branches += s->out.branches;
        request_free(s->r);
    }
    ck_assert(accepted && rejected && branches);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drafted-bytes");
    TCase *t = test_case(s, "matrix");
    tcase_add_loop_test(t, matrix, 0, MODELS);
    tcase_add_test(t, default_model);
    return test_main(s);
}
