/* SPDX-License-Identifier: Apache-2.0 */
/* Sampler: distributions of an independent program, recorded samples, brute force, frequencies. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/noise.h"
#include "engine/sampler.h"
#include "tests/unit/golden.h"
#include "tests/unit/util.h"

static const struct dk_ops *best_ops(void)
{
    const struct dk_ops *o = dk_ops(dk_tier_best());
    ck_assert_ptr_nonnull(o);
    return o;
}

struct buffers {
    float *work;
    uint32_t *work_ids, *ids;
    double *probs;
};

static void buffers_init(struct buffers *b, uint32_t n)
{
    b->work = mem_array(n, sizeof(float));
    b->work_ids = mem_array(n, sizeof(uint32_t));
    b->ids = mem_array(n, sizeof(uint32_t));
    b->probs = mem_array(n, sizeof(double));
}

static void buffers_done(struct buffers *b)
{
    mem_free(b->work);
    mem_free(b->work_ids);
    mem_free(b->ids);
    mem_free(b->probs);
}

/* ---- reference distributions ---- */

static void add_ids(struct sampler *s, json_t *list, bool prompt)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        uint32_t id = (uint32_t)json_integer_value(v);
        ck_assert_int_eq(prompt ? sampler_add_prompt(s, &id, 1) : sampler_commit(s, id), 0);
    }
}

static void read_params(const struct jsonl *j, json_t *o, struct sampling_params *p,
                        struct logit_bias *bias)
{
    const char *key, *id;
    json_t *v, *b;
    sampling_params_init(p);
    p->temperature = 0;
    json_object_foreach(o, key, v)
    {
        float f = (float)json_number_value(v);
        if (!strcmp(key, "temperature"))
            p->temperature = f;
        else if (!strcmp(key, "top_k"))
            p->top_k = (int32_t)json_integer_value(v);
        else if (!strcmp(key, "top_p"))
            p->top_p = f;
        else if (!strcmp(key, "min_p"))
            p->min_p = f;
        else if (!strcmp(key, "repetition_penalty"))
            p->repetition_penalty = f;
        else if (!strcmp(key, "frequency_penalty"))
            p->frequency_penalty = f;
        else if (!strcmp(key, "presence_penalty"))
            p->presence_penalty = f;
        else if (!strcmp(key, "logit_bias"))
            json_object_foreach(v, id, b) bias[p->n_logit_bias++] =
                (struct logit_bias){(uint32_t)strtoul(id, NULL, 10), (float)json_number_value(b)};
        else
            ck_abort_msg("%s:%d: unknown parameter %s", j->path, j->number, key);
    }
    p->logit_bias = bias;
    ck_assert(json_object_get(o, "temperature") != NULL);
}

START_TEST(oracle)
{
    struct jsonl j;
    struct golden g;
    jsonl_open(&j, test_path("tests/golden/sampling/cases.jsonl"));
    golden_open(&g, test_path("tests/golden/sampling/vectors.safetensors"));
    int n_cases = 0, n_cut = 0;
    double worst = 0;
    for (json_t *o; (o = jsonl_next(&j)); json_decref(o), n_cases++) {
        uint32_t vocab = (uint32_t)jsonl_int(&j, o, "vocab");
        const char *name = jsonl_str(&j, o, "case");
        struct sampling_params p;
        struct logit_bias bias[64];
        read_params(&j, jsonl_get(&j, o, "params"), &p, bias);
        struct sampler *s = NULL;
        struct error err = {0};
        ck_ok(sampler_new(&p, vocab, NULL, 0, &s, &err), &err);
        add_ids(s, jsonl_get(&j, o, "prompt_ids"), true);
        add_ids(s, jsonl_get(&j, o, "output_ids"), false);

        char key[64];
        size_t bytes, n_bytes, p_bytes;
        const float *logits = golden_get(&g, jsonl_str(&j, o, "logits"), "F32", &bytes);
        ck_assert_uint_eq(bytes, vocab * sizeof(float));
        snprintf(key, sizeof(key), "ids.%s", name);
        const int32_t *want_ids = golden_get(&g, key, "I32", &n_bytes);
        snprintf(key, sizeof(key), "probs.%s", name);
        const double *want = golden_get(&g, key, "F64", &p_bytes);
        size_t n_want = n_bytes / sizeof(int32_t);
        ck_assert_uint_eq(p_bytes, n_want * sizeof(double));

        struct buffers b;
        buffers_init(&b, vocab);
        uint32_t n = 0;
        ck_ok(sampler_probs(s, best_ops(), logits, b.ids, b.probs, &n, &err), &err);
        double cut = json_is_number(json_object_get(o, "cut_distance"))
                         ? jsonl_num(&j, o, "cut_distance")
                         : 1;
        bool same = n == n_want;
        for (size_t i = 0; i < n && same; i++)
            same = b.ids[i] == (uint32_t)want_ids[i];
        if (!same && cut < 1e-6) {
            n_cut++;
        } else {
            ck_assert_msg(n == n_want, "%s: %u ids, wanted %zu", name, n, n_want);
            for (size_t i = 0; i < n; i++) {
                ck_assert_msg(b.ids[i] == (uint32_t)want_ids[i], "%s: [%zu] id %u, wanted %d", name,
                              i, b.ids[i], want_ids[i]);
                double d = fabs(b.probs[i] - want[i]);
                worst = d > worst ? d : worst;
                ck_assert_msg(d <= 1e-6, "%s: p(%u) is %.9g, wanted %.9g", name, b.ids[i],
                              b.probs[i], want[i]);
            }
        }
        /* What is chosen has a probability; greedy is the whole of it. */
        for (uint64_t pos = 0; pos < 4; pos++) {
            uint32_t token = UINT32_MAX, at = 0;
            ck_ok(sampler_choose(s, best_ops(), logits, pos, b.work, b.work_ids, &token, NULL, NULL,
                                 &err),
                  &err);
            while (at < n && b.ids[at] != token)
                at++;
            ck_assert_msg(at < n, "%s: token %u has no probability", name, token);
        }
        buffers_done(&b);
        sampler_free(s);
    }
    printf("# %d cases, largest difference %.2g, %d at the cut\n", n_cases, worst, n_cut);
    ck_assert_int_eq(n_cases, 401);
    ck_assert_int_le(n_cut, 6);
    golden_close(&g);
    jsonl_close(&j);
}
END_TEST

/* ---- samples recorded with another program (Python, double precision) ---- */

START_TEST(recorded)
{
    static const struct {
        uint64_t seed, pos;
        float temperature;
        uint32_t want[16];
    } cases[] = {
        {42,
         0,
         1,
         {336, 198, 149, 791, 865, 741, 321, 136, 323, 926, 496, 309, 361, 149, 113, 918}},
        {42,
         0,
         0.5F,
         {198, 198, 149, 791, 865, 741, 321, 136, 445, 926, 272, 309, 99, 149, 113, 889}},
        {UINT64_MAX,
         (1ULL << 32) - 2,
         1,
         {794, 114, 75, 435, 51, 746, 963, 25, 856, 433, 642, 608, 199, 941, 605, 338}},
        {0x123456789abcdef0,
         12345,
         2,
         {669, 568, 943, 342, 129, 112, 729, 335, 556, 574, 581, 805, 898, 941, 736, 797}},
    };
    float logits[1000];
    for (uint32_t v = 0; v < 1000; v++)
        logits[v] = (float)(v * 7919 % 1000) / 125 - 4;
    struct buffers b;
    buffers_init(&b, 1000);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (uint32_t k = 0; k < 16; k++) {
            struct sampling_params p;
            struct error err = {0};
            struct sampler *s = NULL;
            sampling_params_init(&p);
            p.temperature = cases[i].temperature;
            p.seed = cases[i].seed;
            ck_ok(sampler_new(&p, 1000, NULL, 0, &s, &err), &err);
            uint32_t token = 0;
            ck_ok(sampler_choose(s, best_ops(), logits, cases[i].pos + k, b.work, b.work_ids,
                                 &token, NULL, NULL, &err),
                  &err);
            ck_assert_uint_eq(token, cases[i].want[k]);
            sampler_free(s);
        }
    buffers_done(&b);
}
END_TEST

/* ---- brute force ---- */

static const float *sort_y;
static int by_rank(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sort_y[x] < sort_y[y] || sort_y[x] > sort_y[y])
        return sort_y[x] > sort_y[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Full sort of everything, straight from the definition.  Returns the number kept, best first. */
static uint32_t brute_keep(const struct sampling_params *p, const float *y, uint32_t n,
                           uint32_t *order)
{
    float inv_t = (float)(1.0 / (double)p->temperature);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    sort_y = y;
    qsort(order, n, sizeof(*order), by_rank);
    float max = y[order[0]];
    uint32_t kept = n;
    while (isinf(y[order[kept - 1]]))
        kept--;
    if (p->top_k > 0 && (uint32_t)p->top_k < kept)
        kept = (uint32_t)p->top_k;
    while (p->min_p > 0 && (y[order[kept - 1]] - max) * inv_t < dk_logf(p->min_p))
        kept--;
    if (p->top_p < 1) {
        double total = 0, target;
        for (uint32_t i = 0; i < kept; i++)
            total += exp((double)((y[order[i]] - max) * inv_t));
        target = (double)p->top_p * total;
        double sum = 0;
        for (uint32_t i = 0; i < kept; i++) {
            sum += exp((double)((y[order[i]] - max) * inv_t));
            if (sum >= target) {
                double last = sum - exp((double)((y[order[i]] - max) * inv_t));
                /* Too close to call in binary32: say so. */
                if (sum - target < 2e-6 * total || target - last < 2e-6 * total)
                    return 0;
                return i + 1;
            }
        }
    }
    return kept;
}

START_TEST(brute_force)
{
    srand(11);
    int close = 0, runs = 0;
    static const uint32_t sizes[] = {1, 2, 15, 16, 17, 127, 128, 129, 1000, 5000, 49152};
    for (int round = 0; round < 600; round++) {
        uint32_t n = sizes[(size_t)rand() % (ARRAY_LEN(sizes) - (round % 16 != 0))];
        float *y = mem_array(n, sizeof(*y)), *noise = mem_array(n, sizeof(*noise));
        uint32_t *order = mem_array(n, sizeof(*order));
        struct buffers b;
        buffers_init(&b, n);
        float grid = rand() % 3 ? 1e-4F : 0.25F, spread = (float)(1 + rand() % 12);
        for (uint32_t i = 0; i < n; i++) {
            float sum = 0;
            for (int k = 0; k < 4; k++)
                sum += (float)rand() / (float)RAND_MAX - 0.5F;
            y[i] = floorf(sum * spread / grid) * grid;
            if (n > 4 && rand() % 50 == 0)
                y[i] = -INFINITY;
        }
        y[(uint32_t)rand() % n] = spread;
        struct sampling_params p;
        sampling_params_init(&p);
        p.temperature = (float)(1 + rand() % 20) / 10;
        p.top_k = rand() % 2 ? 0 : 1 + rand() % (rand() % 2 ? 50 : 6000);
        p.top_p = rand() % 2 ? 1 : (float)(1 + rand() % 99) / 100;
        p.min_p = rand() % 3 ? 0 : (float)(rand() % 100) / 200;
        p.seed = (uint64_t)rand();
        uint64_t pos = (uint64_t)rand();
        struct error err = {0};
        struct sampler *s = NULL;
        ck_ok(sampler_new(&p, n, NULL, 0, &s, &err), &err);

        uint32_t kept = brute_keep(&p, y, n, order), got = 0;
        ck_ok(sampler_probs(s, best_ops(), y, b.ids, b.probs, &got, &err), &err);
        if (!kept) {
            close++;
        } else {
            uint32_t nonzero = 0;
            float inv_t = (float)(1.0 / (double)p.temperature);
            for (uint32_t i = 0; i < kept; i++)
                nonzero += exp((double)((y[order[i]] - y[order[0]]) * inv_t)) > 0;
            ck_assert_uint_eq(got, nonzero);
            uint32_t want = UINT32_MAX;
            float best = -INFINITY;
            uint32_t key[2], ctr[3];
            noise_key(p.seed, key);
            noise_counter(pos, NOISE_GUMBEL, ctr);
            best_ops()->gumbel(noise, key, ctr, 0, n);
            for (uint32_t i = 0; i < kept; i++) {
                uint32_t v = order[i];
                float score = (y[v] - y[order[0]]) * inv_t + noise[v];
                if (score > best || (!(score < best) && v < want)) {
                    best = score;
                    want = v;
                }
            }
            runs++;
            /* Every tier that this machine has. */
            for (int t = 0; t < DK_TIER_COUNT; t++) {
                const struct dk_ops *o = dk_ops((enum dk_tier)t);
                uint32_t token = UINT32_MAX;
                if (!o)
                    continue;
                ck_ok(sampler_choose(s, o, y, pos, b.work, b.work_ids, &token, NULL, NULL, &err),
                      &err);
                ck_assert_msg(token == want, "tier %s: n %u T %g k %d p %g min %g: %u, wanted %u",
                              dk_tier_name((enum dk_tier)t), n, (double)p.temperature, p.top_k,
                              (double)p.top_p, (double)p.min_p, token, want);
            }
        }
        sampler_free(s);
        buffers_done(&b);
        mem_free(y);
        mem_free(noise);
        mem_free(order);
    }
    printf("# %d compared, %d too close to a cut\n", runs, close);
    ck_assert_int_gt(runs, 500);
}
END_TEST

/* ---- frequencies ---- */

/* SMP-02, second part: requests of one token, seeds 0..19999. */
START_TEST(frequencies)
{
    static const float logits[4] = {2, 1.5F, 1, 0.5F};
    static const struct {
        float temperature;
        int32_t top_k;
        double want[4];
    } cases[] = {
        {1, 0, {0.4551, 0.2760, 0.1674, 0.1015}},
        {0.5F, 0, {0.6439, 0.2369, 0.0871, 0.0321}},
        {1, 2, {0.6225, 0.3775, 0, 0}},
    };
    struct buffers b;
    buffers_init(&b, 4);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int by_position = 0; by_position < 2; by_position++) {
            int count[4] = {0};
            const int n = 20000;
            for (int k = 0; k < n; k++) {
                struct sampling_params p;
                struct error err = {0};
                struct sampler *s = NULL;
                sampling_params_init(&p);
                p.temperature = cases[i].temperature;
                p.top_k = cases[i].top_k;
                p.seed = by_position ? 1 : (uint64_t)k;
                ck_ok(sampler_new(&p, 4, NULL, 0, &s, &err), &err);
                uint32_t token = 9;
                ck_ok(sampler_choose(s, best_ops(), logits, by_position ? (uint64_t)k : 3, b.work,
                                     b.work_ids, &token, NULL, NULL, &err),
                      &err);
                count[token]++;
                sampler_free(s);
            }
            for (int v = 0; v < 4; v++) {
                double p = cases[i].want[v], sigma = sqrt(p * (1 - p) / n);
                ck_assert_msg(fabs(count[v] / (double)n - p) <= 5 * sigma + 5e-5,
                              "case %zu: token %d came %d times", i, v, count[v]);
            }
        }
    buffers_done(&b);
}
END_TEST

/* Chi-square over a vocabulary of a few blocks: every id gets its share, across block borders. */
START_TEST(chi_square)
{
    enum { N = 400, DRAWS = 200000 };
    float logits[N];
    for (int v = 0; v < N; v++)
        logits[v] = (float)(v * 37 % 101) / 50;
    struct buffers b;
    buffers_init(&b, N);
    struct sampling_params p;
    struct error err = {0};
    _cleanup_(sampler_freep) struct sampler *s = NULL;
    sampling_params_init(&p);
    p.seed = 99;
    ck_ok(sampler_new(&p, N, NULL, 0, &s, &err), &err);
    uint32_t n, count[N] = {0};
    ck_ok(sampler_probs(s, best_ops(), logits, b.ids, b.probs, &n, &err), &err);
    ck_assert_uint_eq(n, N);
    for (uint64_t pos = 0; pos < DRAWS; pos++) {
        uint32_t token = 0;
        ck_ok(sampler_choose(s, best_ops(), logits, pos, b.work, b.work_ids, &token, NULL, NULL,
                             &err),
              &err);
        count[token]++;
    }
    double chi = 0;
    for (int v = 0; v < N; v++) {
        double want = b.probs[v] * DRAWS, d = count[v] - want;
        chi += d * d / want;
    }
    /* 399 degrees of freedom: mean 399, sigma 28. */
    printf("# chi-square %.1f with %d degrees of freedom\n", chi, N - 1);
    ck_assert_double_lt(chi, 399 + 5 * 28.3);
    ck_assert_double_gt(chi, 399 - 5 * 28.3);
    buffers_done(&b);
}
END_TEST

/* Cheap bounds on time would be noise here; that no path sorts the vocabulary shows in this: */
START_TEST(large_vocabulary)
{
    const uint32_t n = 151936;
    float *y = mem_array(n, sizeof(*y));
    struct buffers b;
    buffers_init(&b, n);
    for (uint32_t i = 0; i < n; i++)
        y[i] = 0; /* all equal: the worst case for thresholds */
    static const struct {
        int32_t top_k;
        float top_p, min_p;
        uint32_t want;
    } cases[] = {{0, 1, 0, 151936},     {50, 1, 0, 50},    {50, 0.5F, 0, 25},
                 {0, 0.5F, 0, 75968},   {0, 1, 1, 151936}, {5000, 1, 0.5F, 5000},
                 {151936, 1, 0, 151936}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct sampling_params p;
        struct error err = {0};
        struct sampler *s = NULL;
        sampling_params_init(&p);
        p.top_k = cases[i].top_k;
        p.top_p = cases[i].top_p;
        p.min_p = cases[i].min_p;
        ck_ok(sampler_new(&p, n, NULL, 0, &s, &err), &err);
        uint32_t got, token;
        ck_ok(sampler_probs(s, best_ops(), y, b.ids, b.probs, &got, &err), &err);
        ck_assert_uint_eq(got, cases[i].want);
        ck_assert_uint_eq(b.ids[got - 1], got - 1); /* the lowest ids of the tie */
        ck_ok(sampler_choose(s, best_ops(), y, 1, b.work, b.work_ids, &token, NULL, NULL, &err),
              &err);
        ck_assert_uint_lt(token, got);
        sampler_free(s);
    }
    buffers_done(&b);
    mem_free(y);
}
END_TEST

int main(void)
{
    dk_thread_init();
    Suite *s = suite_create("sampler-dist");
    TCase *t = test_case(s, "golden");
    tcase_add_test(t, oracle);
    tcase_add_test(t, recorded);
    t = test_case(s, "brute");
    tcase_add_test(t, brute_force);
    tcase_add_test(t, large_vocabulary);
    t = test_case(s, "frequencies");
    tcase_add_test(t, frequencies);
    tcase_add_test(t, chi_square);
    return test_main(s);
}
