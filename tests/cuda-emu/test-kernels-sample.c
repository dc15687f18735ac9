/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sampling on the device against engine/sampler.h: every row of a tree gets the token that the sampler
 * chooses after the path to it was committed, for all parameters, with ties, and the same bits of log
 * probabilities; the walk and its pairs; the drafter's choices and its next rows; argmax, log-sum-exp, noise.
 */
#include <math.h>
#include <stdio.h>

#include "engine/noise.h"
#include "engine/sampler_internal.h"
#include "tests/cuda-emu/kernels-util.h"

#define MAX_ROWS 24u

/* Logits with ties, both zeros and, now and then, -inf. */
static void make_logits(struct rng *r, float *x, uint32_t n, float scale)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = rng_float(r) * scale;
        if (rng_below(r, 3) == 0)
            x[i] = (float)(int)(x[i] * 2) * 0.5f;
        if (rng_below(r, 40) == 0)
            x[i] = -INFINITY;
        if (rng_below(r, 50) == 0)
            x[i] = -0.0f;
    }
}

/* ---- sums and maxima --------------------------------------------------------------------------------- */

START_TEST(reductions)
{
    static const uint32_t sizes[] = {1, 15, 17, 2049, 5003, 9000};
    struct rng r = {4};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const uint32_t n = sizes[i], rows = 5;
        const size_t ld = n + 3;
        float *x = malloc(rows * ld * 4), lse[5];
        struct dcu_best got[5];
        make_logits(&r, x, (uint32_t)(rows * ld), 5);
        x[0] = 1;
        if (n > 1) {
            x[ld + n - 1] = NAN;
            x[2 * ld + n / 2] = INFINITY;
            x[2 * ld + n - 1] = NAN;
            for (uint32_t j = 0; j < n; j++)
                x[3 * ld + j] = -INFINITY;
        }
        float *d = dev_of(x, rows * ld * 4), *d_lse = dev_new(sizeof(lse));
        struct dcu_best *parts = dev_new(rows * DCU_VOCAB_PARTS * sizeof(*parts));
        struct dcu_best *best = dev_new(sizeof(got));
        dev_ok(dev->argmax(dev_s, d, ld, rows, n, parts, best));
        dev_ok(dev->logsumexp(dev_s, d, ld, rows, n, best, d_lse));
        dev_get(got, best, sizeof(got));
        dev_get(lse, d_lse, sizeof(lse));
        for (uint32_t k = 0; k < rows; k++) {
            float max;
            bool bad;
            uint32_t id = cpu_ops()->argmax(x + k * ld, n, &max, &bad);
            ck_assert_msg((got[k].id == UINT32_MAX ? 0 : got[k].id) == id,
                          "row %u of %u: %u, wanted %u", k, n, got[k].id, id);
            same_floats("max", &got[k].value, &max, 1);
            ck_assert(bad == (got[k].bad_id != UINT32_MAX || got[k].id == UINT32_MAX));
            if (bad)
                continue;
            float want = cpu_ops()->logsumexp(x + k * ld, n, max);
            same_floats("logsumexp", &lse[k], &want, 1);
        }
        if (n > 1)
            ck_assert(got[1].bad_id == n - 1 && got[2].bad_id == n / 2);
        free(x);
    }
}
END_TEST

START_TEST(noise_bits)
{
    static const struct {
        uint32_t v0, n;
    } runs[] = {{0, 1}, {3, 2}, {5, 1027}, {4, 4}, {4294967290u, 5}};
    const uint32_t key[2] = {7, 99}, ctr[3] = {123, 45, 0};
    float want[1100], got[1100];
    for (size_t i = 0; i < sizeof(runs) / sizeof(*runs); i++) {
        float *d = dev_new(runs[i].n * 4);
        dev_ok(dev->gumbel(dev_s, d, key, ctr, runs[i].v0, runs[i].n));
        dev_get(got, d, runs[i].n * 4);
        cpu_ops()->gumbel(want, key, ctr, runs[i].v0, runs[i].n);
        same_floats("gumbel", got, want, runs[i].n);
    }
}
END_TEST

/* ---- sampling ----------------------------------------------------------------------------------------- */

struct scene {
    uint32_t vocab, rows;
    size_t ldl;
    float *logits;
    struct dcu_request requests[3];
    struct sampler *samplers[3];
    uint32_t n_requests;
    struct dcu_node nodes[MAX_ROWS];
    struct dcu_entry entries[4096];
    uint32_t n_entries;
    uint32_t words[16], n_words;
    unsigned flags;
};

/* A request with n_rows rows, its sampler in a state as after some rounds. */
static void add_request(struct scene *s, struct rng *r, const struct sampling_params *p,
                        const uint32_t *eos, uint32_t n_rows)
{
    struct error err = {0};
    struct sampler **sm = &s->samplers[s->n_requests];
    ck_ok(sampler_new(p, s->vocab, eos, 1, sm, &err), &err);
    uint32_t some[6];
    for (int i = 0; i < 6; i++)
        some[i] = rng_below(r, s->vocab < 30 ? s->vocab : 30);
    ck_assert_int_eq(sampler_add_prompt(*sm, some, 4), 0);
    ck_assert_int_eq(sampler_commit(*sm, some[4]), 0);
    ck_assert_int_eq(sampler_commit(*sm, some[5]), 0);
    ck_assert_int_eq(sampler_commit(*sm, some[5]), 0);
    const struct sampler *a = *sm;
    struct dcu_request *q = &s->requests[s->n_requests];
    *q = (struct dcu_request){
        .row0 = s->rows,
        .n_rows = n_rows,
        .pos = 0x100000005u + s->n_requests,
        .inv_t = a->temperature < SAMPLER_GREEDY_BELOW ? 0 : (float)(1.0 / (double)a->temperature),
        .top_p = a->top_p,
        .z_least = a->min_p > 0 ? dk_logf(a->min_p) : -INFINITY,
        .top_k = a->top_k,
        .process = a->penalties || a->has_bias || a->n_output < a->min_tokens,
        .n_output = (uint32_t)a->n_output,
        .min_tokens = (uint32_t)a->min_tokens,
        .entries = s->n_entries,
        .n_entries = (uint32_t)a->n_entries,
        .stops = s->n_words,
        .n_stops = (uint32_t)a->n_stop_ids,
        .n_logprobs = a->logprobs,
        .repetition = a->repetition,
        .frequency = a->frequency,
        .presence = a->presence};
    noise_key(a->seed, q->key);
    for (size_t i = 0; i < a->n_entries; i++) {
        const struct sampler_entry *e = &a->entries[i];
        s->entries[s->n_entries++] = (struct dcu_entry){
            e->id, e->count, e->bias, (e->in_prompt ? 1u : 0) | (e->ends ? 2u : 0)};
    }
    for (size_t i = 0; i < a->n_stop_ids; i++)
        s->words[s->n_words++] = a->stop_ids[i];
    for (uint32_t i = 0; i < n_rows; i++) {
        struct dcu_node *n = &s->nodes[s->rows + i];
        *n = (struct dcu_node){.request = s->n_requests};
        if (i == 0)
            continue;
        n->parent = rng_below(r, i);
        n->depth = s->nodes[s->rows + n->parent].depth + 1;
        n->token = rng_below(r, s->vocab < 12 ? s->vocab : 12);
    }
    s->flags |=
        (q->process ? DCU_SAMPLE_PROCESS : 0) | (q->n_logprobs >= 0 ? DCU_SAMPLE_LOGPROBS : 0);
    if (q->top_k || q->top_p < 1 || q->z_least > -INFINITY)
        s->flags |= DCU_SAMPLE_CUT;
    s->rows += n_rows;
    s->n_requests++;
}

struct outputs {
    struct dcu_choice choices[MAX_ROWS];
    struct dcu_logprob lp[MAX_ROWS][20];
    uint32_t n_lp[MAX_ROWS];
    struct dcu_request *d_requests;
    struct dcu_node *d_nodes;
    struct dcu_choice *d_choices;
};

static void run_scene(const struct scene *s, struct outputs *o)
{
    o->d_requests = dev_of(s->requests, sizeof(s->requests));
    o->d_nodes = dev_of(s->nodes, s->rows * sizeof(*s->nodes));
    o->d_choices = dev_new(s->rows * sizeof(*o->d_choices));
    struct dcu_sample p = {.flags = s->flags,
                           .rows = s->rows,
                           .vocab = s->vocab,
                           .logits = dev_of(s->logits, s->rows * s->ldl * 4),
                           .ldl = s->ldl,
                           .requests = o->d_requests,
                           .nodes = o->d_nodes,
                           .entries = dev_of(s->entries, (s->n_entries + 1) * sizeof(*s->entries)),
                           .work = dev_new((s->rows + 1) / 2 * s->ldl * 4),
                           .scratch = dev_new(dcu_sample_scratch_bytes((s->rows + 1) / 2)),
                           .choices = o->d_choices,
                           .logprobs = dev_new(s->rows * 20 * sizeof(struct dcu_logprob)),
                           .n_logprobs = dev_new(s->rows * 4)};
    /* In two calls, as more rows than fit at once: paths of the second begin in the first. */
    const uint32_t half = s->rows / 2;
    p.rows = half;
    dev_ok(dev->sample(dev_s, &p));
    p.rows = s->rows - half;
    p.first = half;
    p.logits += half * s->ldl;
    dev_ok(dev->sample(dev_s, &p));
    dev_get(o->choices, p.choices, s->rows * sizeof(*o->choices));
    if (s->flags & DCU_SAMPLE_LOGPROBS) {
        dev_get(o->lp, p.logprobs, s->rows * sizeof(o->lp[0]));
        dev_get(o->n_lp, p.n_logprobs, s->rows * 4);
    }
}

/* What the sampler says about a row, after the path to it. */
static void check_row(const struct scene *s, const struct outputs *o, uint32_t row)
{
    struct sampler *sm = s->samplers[s->nodes[row].request];
    const struct dcu_request *q = &s->requests[s->nodes[row].request];
    uint32_t path[MAX_ROWS], depth = 0, token, n_lp = 0;
    struct token_logprob lp[1 + SAMPLING_MAX_LOGPROBS];
    struct error err = {0};
    for (uint32_t at = row; s->nodes[at].depth; at = q->row0 + s->nodes[at].parent)
        path[depth++] = s->nodes[at].token;
    ck_assert_uint_eq(depth, s->nodes[row].depth);
    const size_t before = sampler_n_output(sm);
    while (depth)
        ck_assert_int_eq(sampler_commit(sm, path[--depth]), 0);
    float *work = malloc(s->vocab * 4 + 4);
    uint32_t *ids = malloc(s->vocab * 4 + 4);
    int r = sampler_choose(sm, cpu_ops(), s->logits + row * s->ldl, q->pos + s->nodes[row].depth,
                           work, ids, &token, lp, &n_lp, &err);
    free(work);
    free(ids);
    sampler_rewind(sm, before);
    if (r < 0) {
        ck_assert_msg(o->choices[row].bad != 0, "row %u: %s", row, err.msg);
        return;
    }
    ck_assert_msg(o->choices[row].bad == 0 && o->choices[row].token == token,
                  "row %u: token %u (bad %u), wanted %u", row, o->choices[row].token,
                  o->choices[row].bad, token);
    if (n_lp == 0)
        return;
    same_floats("logprob", &o->choices[row].logprob, &lp[0].logprob, 1);
    ck_assert_uint_eq(o->n_lp[row], n_lp - 1);
    for (uint32_t i = 1; i < n_lp; i++) {
        ck_assert_uint_eq(o->lp[row][i - 1].token, lp[i].token);
        same_floats("top logprob", &o->lp[row][i - 1].logprob, &lp[i].logprob, 1);
    }
}

static void free_scene(struct scene *s)
{
    for (uint32_t i = 0; i < s->n_requests; i++)
        sampler_free(s->samplers[i]);
    free(s->logits);
}

struct setting {
    float temperature, top_p, min_p, repetition, frequency, presence;
    int32_t top_k, logprobs;
    uint32_t min_tokens;
    bool bias;
};
static const struct setting settings[] = {
    {0, 1, 0, 1, 0, 0, 0, -1, 0, false},
    {1, 1, 0, 1, 0, 0, 0, 0, 0, false},
    {0.7f, 1, 0, 1, 0, 0, 5, 3, 0, false},
    {1.3f, 0.8f, 0, 1, 0, 0, 0, -1, 0, false},
    {0.9f, 1, 0.1f, 1, 0, 0, 0, -1, 0, false},
    {0.8f, 0.9f, 0.02f, 1, 0, 0, 40, 20, 0, false},
    {1, 1, 0, 1.3f, 0, 0, 0, -1, 0, false},
    {0, 1, 0, 0.6f, 0.5f, 0.25f, 0, 1, 0, true},
    {1, 0.95f, 0, 1.1f, -0.5f, 1, 100000, -1, 5, true},
    {2, 0.5f, 0.05f, 1, 0, 0, 0, -1, 4, false},
    {0.02f, 0.3f, 0, 1, 0, 0, 0, 2, 0, false},
    {50, 0.999f, 0, 1, 0, 0, 0, -1, 0, false},
    {1, 1, 1, 1, 0, 0, 0, -1, 0, false},
    {1, 1e-6f, 0, 1, 0, 0, 1, -1, 0, false},
};
#define N_SETTINGS ((int)(sizeof(settings) / sizeof(*settings)))

static struct sampling_params params_of(const struct setting *t, uint32_t vocab, struct rng *r,
                                        struct logit_bias bias[3], const uint32_t *stop)
{
    struct sampling_params p;
    sampling_params_init(&p);
    p.temperature = t->temperature;
    p.top_p = t->top_p;
    p.min_p = t->min_p;
    p.repetition_penalty = t->repetition;
    p.frequency_penalty = t->frequency;
    p.presence_penalty = t->presence;
    p.top_k = t->top_k;
    p.logprobs = t->logprobs;
    p.min_tokens = t->min_tokens;
    p.seed = (uint64_t)rng_u32(r) << 32 | rng_u32(r);
    for (uint32_t i = 0; i < 3; i++)
        bias[i] = (struct logit_bias){(i * 2 + 1) % vocab, i == 1 ? -100 : 4};
    p.logit_bias = bias;
    p.n_logit_bias = t->bias ? 3 : 0;
    p.stop_ids = stop;
    p.n_stop_ids = 1;
    return p;
}

static void check_setting(const struct setting *t, uint32_t vocab, uint32_t n_rows, float scale,
                          uint64_t seed)
{
    struct rng r = {seed};
    struct logit_bias bias[3];
    const uint32_t stop = 5 % vocab, eos = 3 % vocab;
    struct scene s = {.vocab = vocab, .ldl = vocab + 5};
    struct outputs *o = calloc(1, sizeof(*o));
    ck_assert_ptr_nonnull(o);
    struct sampling_params p = params_of(t, vocab, &r, bias, &stop);
    add_request(&s, &r, &p, &eos, n_rows);
    s.logits = malloc(n_rows * s.ldl * 4);
    make_logits(&r, s.logits, (uint32_t)(n_rows * s.ldl), scale);
    run_scene(&s, o);
    for (uint32_t i = 0; i < s.rows; i++)
        check_row(&s, o, i);
    free(o);
    free_scene(&s);
}

START_TEST(settings_of_the_sampler)
{
    const struct setting *t = &settings[_i];
    check_setting(t, 5003, 3, 4, 11);
    check_setting(t, 2100, 9, 8, 12);
    check_setting(t, 33, 12, 2, 13);
    check_setting(t, 7, 2, 0, 14); /* all equal */
}
END_TEST

/* A batch of unlike requests, one row of nobody, one with bad logits. */
START_TEST(mixed_requests)
{
    struct rng r = {21};
    struct logit_bias bias[3];
    const uint32_t stop = 5, eos = 3, vocab = 700;
    struct scene s = {.vocab = vocab, .ldl = vocab};
    static struct outputs o;
    static const int which[3] = {5, 0, 8};
    for (int i = 0; i < 3; i++) {
        struct sampling_params p = params_of(&settings[which[i]], vocab, &r, bias, &stop);
        add_request(&s, &r, &p, &eos, 4);
    }
    s.logits = malloc(s.rows * s.ldl * 4);
    make_logits(&r, s.logits, (uint32_t)(s.rows * s.ldl), 4);
    s.nodes[11].request = UINT32_MAX;
    s.logits[2 * s.ldl + 50] = NAN;
    s.logits[5 * s.ldl + 60] = INFINITY;
    for (uint32_t v = 0; v < vocab; v++)
        s.logits[6 * s.ldl + v] = -INFINITY;
    run_scene(&s, &o);
    for (uint32_t i = 0; i < 11; i++)
        check_row(&s, &o, i);
    ck_assert(o.choices[2].bad == 1 && o.choices[2].bad_id == 50);
    ck_assert(o.choices[5].bad == 2 && o.choices[5].bad_id == 60);
    ck_assert(o.choices[6].bad == 3);
    free_scene(&s);
}
END_TEST

/* ---- the walk ------------------------------------------------------------------------------------------- */

START_TEST(walks)
{
    /* Two requests: a tree of 6 rows, and a plain one. tokens: what was fed. */
    struct dcu_request q[2] = {{.row0 = 0, .n_rows = 6, .stops = 0, .n_stops = 1},
                               {.row0 = 6, .n_rows = 1, .stops = 1, .n_stops = 0}};
    struct dcu_node nodes[7] = {{0, 0, 0, 1},  {0, 0, 1, 10}, {0, 0, 1, 11}, {0, 2, 2, 12},
                                {0, 2, 2, 13}, {0, 4, 3, 14}, {1, 0, 0, 2}};
    static const struct {
        uint32_t tokens[6], bad; /* chosen at each row; bad: row + 1 */
        uint32_t n, row[4], n_pairs;
    } cases[] = {
        {{11, 0, 13, 0, 14, 9}, 0, 4, {0, 2, 4, 5}, 3}, /* all the way */
        {{10, 77, 13, 0, 14, 9}, 0, 2, {0, 1}, 0},      /* in place */
        {{55, 0, 0, 0, 0, 0}, 0, 1, {0}, 0},            /* nothing accepted */
        {{11, 0, 12, 42, 0, 0}, 0, 3, {0, 2, 3}, 2},    /* ends at a leaf */
        {{11, 0, 13, 0, 14, 9}, 3, 2, {0, 2}, 1},       /* bad logits at row 2: none chosen there */
        {{99, 0, 0, 0, 0, 0}, 0, 1, {0}, 0},            /* a stop id */
        {{10, 11, 13, 0, 14, 9}, 0, 2, {0, 1}, 0},      /* another node's child */
    };
    static const uint32_t words[2] = {99, 0}, slots[7] = {20, 21, 22, 23, 24, 25, 90};
    nodes[1].token = 10;
    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        struct dcu_choice choices[7] = {{0}};
        struct dcu_path paths[2];
        uint32_t from[7], to[7], n_pairs;
        for (uint32_t i = 0; i < 6; i++)
            choices[i].token = cases[c].tokens[i];
        if (cases[c].bad)
            choices[cases[c].bad - 1].bad = 1;
        struct dcu_walk p = {.n_requests = 2,
                             .requests = dev_of(q, sizeof(q)),
                             .nodes = dev_of(nodes, sizeof(nodes)),
                             .choices = dev_of(choices, sizeof(choices)),
                             .words = dev_of(words, sizeof(words)),
                             .slots = dev_of(slots, sizeof(slots)),
                             .paths = dev_new(sizeof(paths)),
                             .from = dev_new(sizeof(from)),
                             .to = dev_new(sizeof(to)),
                             .n_pairs = dev_new(4)};
        dev_ok(dev->walk(dev_s, &p));
        dev_get(paths, p.paths, sizeof(paths));
        dev_get(from, p.from, sizeof(from));
        dev_get(to, p.to, sizeof(to));
        dev_get(&n_pairs, p.n_pairs, 4);
        const uint32_t n = cases[c].bad ? cases[c].n - 1 : cases[c].n;
        ck_assert_msg(paths[0].n_choices == n, "case %zu: %u choices", c, paths[0].n_choices);
        for (uint32_t i = 0; i < n; i++)
            ck_assert_uint_eq(paths[0].row[i], cases[c].row[i]);
        ck_assert_uint_eq(paths[1].n_choices, 1);
        uint32_t pairs = 0;
        for (uint32_t i = 0; i < n; i++)
            if (cases[c].row[i] != i) {
                ck_assert_uint_eq(from[pairs], slots[cases[c].row[i]]);
                ck_assert_uint_eq(to[pairs++], slots[i]);
            }
        ck_assert_uint_eq(n_pairs, pairs);
    }
    /* A stop id that is also a child: chosen, not walked into. */
    nodes[2].token = 99;
    struct dcu_choice choices[7] = {{.token = 99}};
    struct dcu_path paths[2];
    struct dcu_walk p = {.n_requests = 1,
                         .requests = dev_of(q, sizeof(q)),
                         .nodes = dev_of(nodes, sizeof(nodes)),
                         .choices = dev_of(choices, sizeof(choices)),
                         .words = dev_of(words, sizeof(words)),
                         .slots = dev_of(slots, sizeof(slots)),
                         .paths = dev_new(sizeof(paths)),
                         .from = dev_new(28),
                         .to = dev_new(28),
                         .n_pairs = dev_new(4)};
    dev_ok(dev->walk(dev_s, &p));
    dev_get(paths, p.paths, sizeof(paths[0]));
    ck_assert_uint_eq(paths[0].n_choices, 1);
}
END_TEST

/* ---- drafts --------------------------------------------------------------------------------------------- */

START_TEST(drafts)
{
    struct rng r = {31};
    const uint32_t vocab = _i ? 2500 : 600, target = 5000, rows = 5;
    const size_t ld = vocab + 2;
    float *x = malloc(rows * ld * 4), *y = malloc(vocab * 4), *g = malloc(target * 4);
    uint32_t *map = malloc(vocab * 4), *ids = malloc(vocab * 4);
    make_logits(&r, x, (uint32_t)(rows * ld), 4);
    for (uint32_t i = 0; i < vocab; i++)
        map[i] = _i ? i * 2 + i % 2 : i;
    x[3 * ld + 17] = NAN;
    struct dcu_pick picks[5];
    for (uint32_t i = 0; i < rows; i++) {
        picks[i] = (struct dcu_pick){.pos = 0x200000001u + i,
                                     .stream = i == 2 ? NOISE_DRAFT : NOISE_GUMBEL,
                                     .inv_t = i == 1 ? 0 : 1.25f,
                                     .n_top = i == 4 ? 128 : i * 7};
        noise_key(77, picks[i].key);
    }
    struct dcu_draft p = {.rows = rows,
                          .vocab = vocab,
                          .logits = dev_of(x, rows * ld * 4),
                          .ldl = ld,
                          .picks = dev_of(picks, sizeof(picks)),
                          .target_ids = _i ? dev_of(map, vocab * 4) : NULL,
                          .work = dev_new(rows * ld * 4),
                          .scratch = dev_new(dcu_sample_scratch_bytes(rows)),
                          .picked = dev_new(rows * sizeof(struct dcu_picked)),
                          .top = dev_new(rows * DCU_MAX_TOP * sizeof(struct dcu_logprob))};
    dev_ok(dev->draft(dev_s, &p));
    struct dcu_picked got[5];
    static struct dcu_logprob top[5][DCU_MAX_TOP];
    dev_get(got, p.picked, sizeof(got));
    dev_get(top, p.top, sizeof(top));
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t ctr[3];
        noise_counter(picks[i].pos, (enum noise_stream)picks[i].stream, ctr);
        cpu_ops()->gumbel(g, picks[i].key, ctr, 0, target);
        for (uint32_t v = 0; v < vocab; v++)
            y[v] = i == 1 ? x[i * ld + v] : x[i * ld + v] * picks[i].inv_t + g[map[v]];
        float max;
        bool bad;
        uint32_t best = cpu_ops()->argmax(y, vocab, &max, &bad);
        ck_assert_uint_eq(got[i].token, map[best]);
        ck_assert_uint_eq(got[i].bad, bad);
        if (bad) {
            ck_assert(got[i].n == 0 && got[i].confidence == 0);
            continue;
        }
        float lse = cpu_ops()->logsumexp(y, vocab, max), want = dk_expf(max - lse);
        same_floats("confidence", &got[i].confidence, &want, 1);
        uint32_t n = picks[i].n_top ? sampler_top(cpu_ops(), y, vocab, picks[i].n_top, ids) : 0;
        ck_assert_uint_eq(got[i].n, n);
        for (uint32_t k = 0; k < n; k++) { /* place k is the best of those that are left */
            uint32_t at = k;
            for (uint32_t j = k + 1; j < n; j++)
                if (sampler_better(y[ids[j]], ids[j], y[ids[at]], ids[at]))
                    at = j;
            uint32_t id = ids[at];
            ids[at] = ids[k];
            want = y[id] - lse;
            ck_assert_uint_eq(top[i][k].token, map[id]);
            same_floats("top", &top[i][k].logprob, &want, 1);
        }
    }
    free(x);
    free(y);
    free(g);
    free(map);
    free(ids);
}
END_TEST

/* More rows than a block has threads; rows of no pick, and some that the last layer does without. */
START_TEST(next_rows)
{
    enum { ROWS = 150, PICKS = 60 };
    struct rng r = {41};
    const uint32_t n_live = 90;
    struct dcu_row rows[4][ROWS], got[4][ROWS];
    struct dcu_feed feeds[ROWS];
    struct dcu_picked picked[PICKS];
    uint32_t live_index[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        for (int k = 0; k < 4; k++)
            rows[k][i] = (struct dcu_row){rng_u32(&r), rng_u32(&r), rng_u32(&r), rng_u32(&r),
                                          rng_u32(&r), rng_u32(&r), rng_u32(&r), rng_u32(&r)};
        feeds[i] = (struct dcu_feed){.pick = i % 3 ? rng_below(&r, PICKS) : UINT32_MAX,
                                     .n_vis = rng_u32(&r),
                                     .window_vis = rng_u32(&r)};
        live_index[i] = i < n_live ? i + rng_below(&r, ROWS - n_live) : UINT32_MAX;
    }
    for (uint32_t i = 0; i < PICKS; i++)
        picked[i] = (struct dcu_picked){.token = rng_u32(&r)};
    struct dcu_row *dev_rows[4];
    for (int k = 0; k < 4; k++) /* rows, live, and both with a window */
        dev_rows[k] = dev_of(rows[k], sizeof(rows[k]));
    struct dcu_next p = {.n_rows = ROWS,
                         .n_live = n_live,
                         .feeds = dev_of(feeds, sizeof(feeds)),
                         .picked = dev_of(picked, sizeof(picked)),
                         .rows = dev_rows[0],
                         .live = dev_rows[1],
                         .window = {_i ? dev_rows[2] : NULL, _i ? dev_rows[3] : NULL},
                         .live_index = dev_of(live_index, sizeof(live_index))};
    dev_ok(dev->next(dev_s, &p));
    for (int k = 0; k < 4; k++)
        dev_get(got[k], dev_rows[k], sizeof(got[k]));
    for (uint32_t i = 0; i < ROWS; i++) {
        const uint32_t of = i < n_live ? live_index[i] : 0;
        if (feeds[i].pick != UINT32_MAX)
            rows[0][i].token = picked[feeds[i].pick].token;
        rows[0][i].n_vis = feeds[i].n_vis;
        if (_i)
            rows[2][i].n_vis = feeds[i].window_vis;
        if (i < n_live)
            rows[1][i].n_vis = feeds[of].n_vis;
        if (i < n_live && _i)
            rows[3][i].n_vis = feeds[of].window_vis;
    }
    ck_assert_mem_eq(got, rows, sizeof(rows));
}
END_TEST

/* Rounds of 1 to 63 drafts that repeat the pass before, one long before, or none; and where they are verified. */
START_TEST(settles)
{
    enum { LD = 200, PASSES = 8, SPANS = 6 };
    static const struct dcu_span spans[SPANS] = {{0, 7, 0, 0},   {7, 63, 0, 9},   {70, 1, 0, 0},
                                                 {71, 33, 0, 0}, {104, 32, 0, 1}, {136, 5, 0, 0}};
    static const uint32_t repeats[SPANS][2] = {{1, 0}, {5, 2}, {7, 6}, {0, 0}, {7, 0}, {3, 2}};
    static struct dcu_picked history[PASSES][LD];
    struct rng r = {43};
    uint32_t want[LD], got[LD], ends[SPANS];
    memset(want, 0xa5, sizeof(want));
    for (uint32_t p = 0; p < PASSES; p++)
        for (uint32_t k = 0; k < LD; k++)
            history[p][k] = (struct dcu_picked){.token = p * 1000 + rng_below(&r, 1000)};
    const uint32_t n_passes = _i ? PASSES : 1;
    for (uint32_t b = 0; b < SPANS; b++) {
        const struct dcu_span s = spans[b];
        const uint32_t p = repeats[b][0], q = repeats[b][1];
        for (uint32_t k = 0; k < s.n; k++) {
            history[p][s.first + k].token = history[q][s.first + k].token;
            if (p >
                q + 2) /* all but the last draft of another pass: no repetition, and none for most lanes */
                history[p - 1][s.first + k].token =
                    history[q + 1][s.first + k].token + (k + 1 == s.n);
        }
        for (uint32_t k = 0; k < s.n; k++)
            want[s.first + k] = history[_i == 0 ? 0 : p ? p : PASSES - 1][s.first + k].token;
    }
    struct dcu_settle p = {.n_spans = SPANS,
                           .n_passes = n_passes,
                           .spans = dev_of(spans, sizeof(spans)),
                           .history = dev_of(history, sizeof(history)),
                           .ldh = LD,
                           .tokens = dev_of(want, sizeof(want)),
                           .ends = dev_new(sizeof(ends))};
    dev_put(p.tokens, memset(got, 0xa5, sizeof(got)), sizeof(got));
    dev_ok(dev->settle(dev_s, &p));
    dev_get(got, p.tokens, sizeof(got));
    dev_get(ends, p.ends, sizeof(ends));
    ck_assert_mem_eq(got, want, sizeof(got));
    for (uint32_t b = 0; b < SPANS; b++)
        ck_assert_uint_eq(ends[b], _i == 0 ? 0 : repeats[b][0] ? repeats[b][0] : PASSES - 1);

    struct dcu_feed_to feeds[140];
    struct dcu_row rows[150] = {{0}}, rows_got[150];
    struct dcu_node nodes[145] = {{0}}, nodes_got[145];
    for (uint32_t i = 0; i < 140; i++)
        feeds[i] = (struct dcu_feed_to){.pick = i * 53 % 141, .row = 149 - i, .node = i + 3};
    struct dcu_verify v = {.n = 140,
                           .feeds = dev_of(feeds, sizeof(feeds)),
                           .tokens = p.tokens,
                           .rows = dev_of(rows, sizeof(rows)),
                           .nodes = dev_of(nodes, sizeof(nodes))};
    dev_ok(dev->verify(dev_s, &v));
    dev_get(rows_got, v.rows, sizeof(rows_got));
    dev_get(nodes_got, v.nodes, sizeof(nodes_got));
    for (uint32_t i = 0; i < 140; i++)
        rows[149 - i].token = nodes[i + 3].token = want[i * 53 % 141];
    ck_assert_mem_eq(rows_got, rows, sizeof(rows));
    ck_assert_mem_eq(nodes_got, nodes, sizeof(nodes));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuda-kernels-sample");
    TCase *c = test_case(s, "sampling");
    tcase_add_checked_fixture(c, dev_open, dev_close);
    tcase_add_test(c, reductions);
    tcase_add_test(c, noise_bits);
    tcase_add_loop_test(c, settings_of_the_sampler, 0, N_SETTINGS);
    tcase_add_test(c, mixed_requests);
    tcase_add_test(c, walks);
    tcase_add_loop_test(c, drafts, 0, 2);
    tcase_add_loop_test(c, next_rows, 0, 2);
    tcase_add_loop_test(c, settles, 0, 2);
    return test_main(s);
}
