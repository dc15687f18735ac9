/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct evaluation gives the same bits whatever the chunks, threads, tiers, batch companions, block
 * tables, forks and trees; errors change nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define N 100u /* tokens of the text that most tests feed */

/* Models of every family and kind of weight; the golden ones have odd shapes and quantised types. */
static const char *models[32];
static unsigned n_models;

static void add_fixture(enum fixture_family family, enum fixture_dtype dtype, bool tied)
{
    struct fixture f = fixture_random(n_models);
    f.family = family;
    f.dtype = dtype;
    f.tied = tied;
    models[n_models++] = fixture_write(&f);
}

static void add_golden(const char *name)
{
    static char paths[32][512];
    (void)snprintf(paths[n_models], sizeof(paths[0]), "%s", test_path(name));
    models[n_models] = paths[n_models];
    n_models++;
}

static struct seq *new_seq(struct engine *e)
{
    struct error err = {0};
    struct seq *s = NULL;
    ck_ok(engine_seq_new(e, &s, &err), &err);
    return s;
}

static float *floats(size_t n)
{
    float *p = malloc(n * sizeof(*p));
    ck_assert_ptr_nonnull(p);
    for (size_t i = 0; i < n; i++)
        p[i] = -12345.0f;
    return p;
}

/* Logits of the text, one chunk, 1 thread, best tier. */
struct truth {
    uint32_t vocab, hidden, n_layers;
    uint32_t tokens[N];
    float *logits; /* [N][vocab] */
    float *taps;   /* [N][n_layers][hidden] */
    uint32_t layers[64];
};

static void truth_init(struct truth *t, struct engine *e)
{
    const struct model_config *m = engine_model_config(e);
    *t = (struct truth){.vocab = m->vocab_size, .hidden = m->hidden, .n_layers = m->n_layers};
    test_tokens(7, t->vocab, t->tokens, N);
    for (uint32_t i = 0; i < t->n_layers; i++)
        t->layers[i] = i;
    t->logits = floats((size_t)N * t->vocab);
    t->taps = floats((size_t)N * t->n_layers * t->hidden);
    struct seq *s = new_seq(e);
    test_feed(e, s, t->tokens, N, N, t->logits, t->layers, t->n_layers, t->taps);
    ck_assert_uint_eq(engine_seq_len(s), N);
    engine_seq_free(e, s);
}

static void truth_done(struct truth *t)
{
    free(t->logits);
    free(t->taps);
}

static void check_chunk(struct engine *e, const struct truth *t, size_t chunk, const char *what)
{
    float *logits = floats((size_t)N * t->vocab);
    float *taps = floats((size_t)N * t->n_layers * t->hidden);
    struct seq *s = new_seq(e);
    test_feed(e, s, t->tokens, N, chunk, logits, t->layers, t->n_layers, taps);
    test_floats_equal(what, logits, t->logits, (size_t)N * t->vocab);
    test_floats_equal(what, taps, t->taps, (size_t)N * t->n_layers * t->hidden);
    engine_seq_free(e, s);
    free(logits);
    free(taps);
}

START_TEST(chunks_threads_tiers)
{
    const char *path = models[_i];
    struct engine_config c = test_engine_config();
    c.exact = true; /* the AMX BF16 class is compared with itself below */
    struct engine *e = test_engine(path, &c);
    struct truth t;
    truth_init(&t, e);
    static const size_t chunks[] = {1, 7, 16, 33};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++)
        check_chunk(e, &t, chunks[i], "chunk");
    engine_free(e);
    for (unsigned threads = 2; threads <= 3; threads++) {
        c.n_threads = threads;
        e = test_engine(path, &c);
        check_chunk(e, &t, N, "threads, one chunk");
        check_chunk(e, &t, threads == 3 ? 50 : 9, "threads, chunks");
        engine_free(e);
    }
    c.n_threads = 1;
    for (int tier = 0; tier < DK_TIER_COUNT; tier++) {
        if (!dk_ops((enum dk_tier)tier))
            continue;
        c.tier = (enum dk_tier)tier;
        e = test_engine(path, &c);
        check_chunk(e, &t, N, dk_tier_name(c.tier));
        check_chunk(e, &t, 5, dk_tier_name(c.tier));
        engine_free(e);
    }
    truth_done(&t);
}
END_TEST

/* Forward calls of one, few and many rows. */
START_TEST(small_batches)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(models[_i], &c);
    struct truth t;
    truth_init(&t, e);
    engine_free(e);
    c.max_num_seqs = 1;
    for (uint32_t rows = 1; rows <= 19; rows += 6) {
        c.max_num_batched_tokens = rows;
        e = test_engine(models[_i], &c);
        check_chunk(e, &t, N, "forward calls of few rows");
        engine_free(e);
    }
    truth_done(&t);
}
END_TEST

/* Logits of the text, the same in chunks of seven; frees the engine. */
static float *last_logits(struct engine *e)
{
    struct truth t;
    truth_init(&t, e);
    check_chunk(e, &t, 7, engine_class(e));
    engine_free(e);
    free(t.taps);
    return t.logits;
}

START_TEST(kv_types)
{
    float *by_type[DK_KV_TYPE_COUNT];
    const size_t n = (size_t)N * FIXTURE_VOCAB;
    for (int k = 0; k < DK_KV_TYPE_COUNT; k++) {
        struct engine_config c = test_engine_config();
        c.kv_type = (enum dk_kv_type)k;
        struct engine *e = test_engine(models[0], &c);
        ck_assert_ptr_nonnull(strstr(engine_class(e), dk_kv_type_name(c.kv_type)));
        by_type[k] = last_logits(e);
    }
    /* Rounded K/V: near, and not the same. */
    test_floats_close("f16", by_type[DK_KV_F16], by_type[DK_KV_F32], n, 0.05, 0.05);
    test_floats_close("bf16", by_type[DK_KV_BF16], by_type[DK_KV_F32], n, 0.5, 0.2);
    ck_assert(memcmp(by_type[DK_KV_F16], by_type[DK_KV_F32], n * sizeof(float)) != 0);
    ck_assert(memcmp(by_type[DK_KV_BF16], by_type[DK_KV_F16], n * sizeof(float)) != 0);
    for (int k = 0; k < DK_KV_TYPE_COUNT; k++)
        free(by_type[k]);
}
END_TEST

/* The AMX BF16 class rounds K and V to BF16 whatever they are asked to be kept as, and keeps them so. */
START_TEST(kv_of_amx)
{
    float *by_type[DK_KV_TYPE_COUNT];
    struct backend_memory mem[DK_KV_TYPE_COUNT];
    const size_t n = (size_t)N * FIXTURE_VOCAB;
    if (dk_tier_best() < DK_TIER_AMX)
        TEST_SKIP_HARDWARE("no AMX");
    for (int k = 0; k < DK_KV_TYPE_COUNT; k++) {
        struct engine_config c = test_engine_config();
        c.device = "cpu";
        c.tier = DK_TIER_AMX;
        c.dtype = BACKEND_DTYPE_BF16;
        c.kv_type = (enum dk_kv_type)k;
        c.kv_bytes = 64 << 10;
        struct engine *e = test_engine(models[0], &c);
        ck_assert_str_eq(engine_class(e), "amx-bf16, kv bf16");
        ck_assert_uint_eq(engine_get_config(e)->n_kv_blocks,
                          c.kv_bytes / (2 * 2 * 2 * 32 * 16 * 2));
        engine_memory(e, &mem[k]);
        ck_assert_uint_le(mem[k].kv_bytes, c.kv_bytes);
        by_type[k] = last_logits(e);
    }
    for (int k = 0; k < DK_KV_TYPE_COUNT; k++) {
        ck_assert_uint_eq(mem[k].kv_bytes, mem[DK_KV_BF16].kv_bytes);
        ck_assert(memcmp(by_type[k], by_type[DK_KV_BF16], n * sizeof(float)) == 0);
    }
    for (int k = 0; k < DK_KV_TYPE_COUNT; k++)
        free(by_type[k]);
}
END_TEST

/* Many sequences in one call, each at another position, give what each gives alone. */
START_TEST(companions)
{
    enum { SEQS = 11 };
    struct engine_config c = test_engine_config();
    c.n_threads = 1 + (unsigned)_i % 2;
    struct engine *e = test_engine(models[_i], &c);
    const uint32_t vocab = engine_model_config(e)->vocab_size;
    struct seq *s[SEQS];
    uint32_t text[SEQS][80];
    float *alone[SEQS], *together[SEQS];
    size_t before[SEQS], n[SEQS];
    for (uint32_t i = 0; i < SEQS; i++) {
        before[i] = i * 5;
        n[i] = i % 3 ? 1 : 1 + i * 2;
        test_tokens(i, vocab, text[i], 80);
        alone[i] = floats(80 * (size_t)vocab);
        together[i] = floats(80 * (size_t)vocab);
        s[i] = new_seq(e);
        test_feed(e, s[i], text[i], before[i] + n[i], 80, alone[i], NULL, 0, NULL);
        engine_seq_truncate(e, s[i], (uint32_t)before[i]);
        ck_assert_uint_eq(engine_seq_len(s[i]), before[i]);
    }
    struct engine_feed f[SEQS];
    for (uint32_t i = 0; i < SEQS; i++)
        f[i] = (struct engine_feed){.seq = s[i],
                                    .tokens = text[i] + before[i],
                                    .n = n[i],
                                    .logits = together[i],
                                    .n_logits = n[i]};
    struct error err = {0};
    ck_ok(engine_feed(e, f, SEQS, NULL, 0, &err), &err);
    for (uint32_t i = 0; i < SEQS; i++) {
        ck_assert_uint_eq(engine_seq_len(s[i]), before[i] + n[i]);
        test_floats_equal("with companions", together[i], alone[i] + before[i] * vocab,
                          n[i] * vocab);
        engine_seq_free(e, s[i]);
        free(alone[i]);
        free(together[i]);
    }
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(only_some_logits)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(models[0], &c);
    struct truth t;
    truth_init(&t, e);
    float *logits = floats(3 * (size_t)t.vocab + 1);
    struct seq *s = new_seq(e);
    struct engine_feed f = {.seq = s, .tokens = t.tokens, .n = N, .logits = logits, .n_logits = 3};
    struct error err = {0};
    ck_ok(engine_feed(e, &f, 1, NULL, 0, &err), &err);
    test_floats_equal("the last 3", logits, t.logits + (size_t)(N - 3) * t.vocab,
                      3 * (size_t)t.vocab);
    ck_assert(logits[3 * (size_t)t.vocab] < -12344.0f);
    /* No tokens: nothing happens. */
    f = (struct engine_feed){.seq = s};
    ck_ok(engine_feed(e, &f, 1, NULL, 0, &err), &err);
    ck_assert_uint_eq(engine_seq_len(s), N);
    engine_seq_free(e, s);
    truth_done(&t);
    free(logits);
    engine_free(e);
}
END_TEST

/* Taps of chosen layers only; a tap is the residual after its layer. */
START_TEST(chosen_taps)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(test_path("tests/golden/models/d_qwen3"), &c);
    struct truth t;
    truth_init(&t, e);
    const uint32_t some[] = {1, 4};
    float *taps = floats((size_t)N * 2 * t.hidden);
    struct seq *s = new_seq(e);
    test_feed(e, s, t.tokens, N, 9, NULL, some, 2, taps);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < 2; j++)
            test_floats_equal("tap", taps + (i * 2 + j) * t.hidden,
                              t.taps + (i * t.n_layers + some[j]) * t.hidden, t.hidden);
    engine_seq_free(e, s);
    free(taps);
    truth_done(&t);
    engine_free(e);
}
END_TEST

START_TEST(forks_and_truncation)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(models[0], &c);
    struct truth t;
    struct error err = {0};
    truth_init(&t, e);
    float *logits = floats((size_t)N * t.vocab);
    uint32_t other[40];
    test_tokens(99, t.vocab, other, 40);
    for (uint32_t at = 1; at <= 49; at++) {
        struct seq *a = new_seq(e), *b = NULL, *d = NULL;
        test_feed(e, a, t.tokens, at, 64, NULL, NULL, 0, NULL);
        ck_ok(engine_seq_fork(e, a, &b, &err), &err);
        ck_ok(engine_seq_fork(e, b, &d, &err), &err);
        /* The forks go their own ways; the first one is not touched by it. */
        test_feed(e, b, other, 40, 13, NULL, NULL, 0, NULL);
        test_feed(e, d, other + 1, 20, 1, NULL, NULL, 0, NULL);
        test_feed(e, a, t.tokens + at, N - at, 64, logits, NULL, 0, NULL);
        test_floats_equal("forked from", logits, t.logits + (size_t)at * t.vocab,
                          (size_t)(N - at) * t.vocab);
        /* Back to the fork and on with the first text. */
        engine_seq_truncate(e, b, at);
        engine_seq_free(e, a);
        test_feed(e, b, t.tokens + at, N - at, 64, logits, NULL, 0, NULL);
        test_floats_equal("truncated", logits, t.logits + (size_t)at * t.vocab,
                          (size_t)(N - at) * t.vocab);
        ck_assert_uint_eq(engine_seq_len(d), at + 20);
        engine_seq_free(e, b);
        engine_seq_free(e, d);
        test_engine_idle(e);
    }
    free(logits);
    truth_done(&t);
    engine_free(e);
}
END_TEST

/* ---- trees ------------------------------------------------------------------------------------ */

/* Every node's logits and taps equal those of its path fed plainly; then one path is kept and the
 * text goes on. */
static void check_tree(struct engine *e, uint32_t base, const int32_t *parent, uint32_t n,
                       uint64_t seed)
{
    const struct model_config *m = engine_model_config(e);
    const size_t vocab = m->vocab_size, hidden = m->hidden;
    const uint32_t layers[2] = {0, m->n_layers - 1}, n_taps = m->n_layers > 1 ? 2 : 1;
    struct error err = {0};
    uint32_t text[600], nodes[64], path[64];
    test_tokens(seed, m->vocab_size, text, 600);
    test_tokens(seed + 1, m->vocab_size, nodes, n);
    float *logits = floats(n * vocab), *taps = floats(n * 2 * hidden);
    float *one = floats(65 * vocab), *tap = floats(65 * 2 * hidden), *rest = floats(40 * vocab);
    struct seq *s = new_seq(e), *plain = NULL;
    test_feed(e, s, text, base, 600, NULL, NULL, 0, NULL);
    for (uint32_t leaf = 0; leaf < n; leaf++) {
        /* Again for each leaf: a tree that was not kept leaves no trace. */
        ck_ok(engine_feed_tree(e, s, nodes, parent, n, logits, layers, n_taps, taps, &err), &err);
        ck_assert_uint_eq(engine_seq_len(s), base);
        uint32_t depth = 0;
        for (int32_t i = (int32_t)leaf; i >= 0; i = parent[i])
            depth++;
        uint32_t d = depth;
        for (int32_t i = (int32_t)leaf; i >= 0; i = parent[i])
            path[--d] = (uint32_t)i;
        uint32_t ids[64];
        for (uint32_t i = 0; i < depth; i++)
            ids[i] = nodes[path[i]];
        ck_ok(engine_seq_fork(e, s, &plain, &err), &err);
        test_feed(e, plain, ids, depth, 64, one, layers, n_taps, tap);
        test_floats_equal("leaf", logits + leaf * vocab, one + (depth - 1) * vocab, vocab);
        test_floats_equal("tap of leaf", taps + leaf * n_taps * hidden,
                          tap + (depth - 1) * n_taps * hidden, n_taps * hidden);
        test_feed(e, plain, text + 100, 32, 32, rest, NULL, 0, NULL);
        struct seq *kept = NULL;
        if (leaf + 1 == n) {
            kept = s;
        } else {
            /* On a copy, made before the tree. */
            ck_ok(engine_seq_fork(e, s, &kept, &err), &err);
            ck_ok(engine_feed_tree(e, kept, nodes, parent, n, NULL, NULL, 0, NULL, &err), &err);
        }
        ck_ok(engine_keep(e, kept, path, depth, &err), &err);
        ck_assert_uint_eq(engine_seq_len(kept), base + depth);
        test_feed(e, kept, text + 100, 32, 7, one, NULL, 0, NULL);
        test_floats_equal("after keeping", one, rest, 32 * vocab);
        if (kept != s)
            engine_seq_free(e, kept);
        plain = engine_seq_free(e, plain);
    }
    engine_seq_free(e, s);
    free(logits);
    free(taps);
    free(one);
    free(tap);
    free(rest);
    test_engine_idle(e);
}

START_TEST(trees)
{
    static const int32_t dec08[] = {-1, -1, 1, 1}; /* c1, c2, c2a, c2b */
    static const int32_t chain[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const int32_t flat[] = {-1, -1, -1, -1, -1};
    static const int32_t late[] = {-1, 0, 1, 0, 3, 2, 5, 3, 6, -1, 9};
    struct engine_config c = test_engine_config();
    for (unsigned i = 0; i < n_models; i += 3) {
        struct engine *e = test_engine(models[i], &c);
        for (uint32_t base = 13; base <= 18; base++) {
            check_tree(e, base, dec08, 4, base);
            check_tree(e, base, late, 11, base);
        }
        check_tree(e, 1, flat, 5, 3);
        check_tree(e, 30, chain, 18, 4);
        check_tree(e, 16, chain, 1, 5);
        engine_free(e);
    }
}
END_TEST

START_TEST(random_trees)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(models[1], &c);
    for (uint32_t round = 0; round < 12; round++) {
        int32_t parent[24];
        uint32_t n = 2 + test_token(round, 1000, 22);
        for (uint32_t i = 0; i < n; i++)
            parent[i] = (int32_t)test_token(round, i, i + 1) - 1;
        check_tree(e, 1 + test_token(round, 2000, 60), parent, n, round);
    }
    engine_free(e);
}
END_TEST

/* Few rows whose paths are long: threads share a path by chunks, by heads or by KV heads. */
START_TEST(long_paths)
{
    enum { LONG = 640, FROM = 500 };
    static const size_t chunks[] = {1, 2, 5, 17, 40};
    struct fixture f = fixture_random(3);
    f.n_heads = _i ? 5 : 9; /* 9: as SmolLM2, a group of 3 for each of 3 KV heads */
    f.n_kv_heads = _i ? 1 : 3;
    f.head_dim = 16;
    f.n_layers = 1;
    const char *path = _i < 2 ? fixture_write(&f) : models[_i];
    struct engine_config c = test_engine_config();
    c.max_context = 1024;
    c.exact = true;
    struct engine *e = test_engine(path, &c);
    const uint32_t vocab = engine_model_config(e)->vocab_size;
    static uint32_t text[LONG];
    test_tokens(17, vocab, text, LONG);
    float *want = floats((size_t)LONG * vocab), *got = floats((size_t)LONG * vocab);
    struct seq *s = new_seq(e);
    test_feed(e, s, text, LONG, LONG, want, NULL, 0, NULL);
    engine_seq_free(e, s);
    engine_free(e);
    for (unsigned threads = 2; threads <= 3; threads++) {
        c.n_threads = threads;
        e = test_engine(path, &c);
        s = new_seq(e);
        test_feed(e, s, text, FROM, 512, NULL, NULL, 0, NULL);
        for (size_t i = threads == 3; i < sizeof(chunks) / sizeof(*chunks); i++) {
            engine_seq_truncate(e, s, FROM);
            test_feed(e, s, text + FROM, LONG - FROM, chunks[i], got, NULL, 0, NULL);
            test_floats_equal("long path", got, want + (size_t)FROM * vocab,
                              (size_t)(LONG - FROM) * vocab);
        }
        engine_seq_free(e, s);
        static const int32_t parent[] = {-1, -1, 1, 1, 0, 3, 5, 2};
        check_tree(e, 507, parent, 8, 1);
        check_tree(e, 250, parent, 8, 1);
        engine_free(e);
    }
    free(want);
    free(got);
}
END_TEST

/* So many rows that threads divide them instead of columns, with logits and taps of all: those of small
 * chunks; F32, and BF16 in the AMX class where there is AMX. */
START_TEST(many_rows)
{
    enum { MANY = 400, SMALL = 16 };
    const bool bf16 = _i % 2;
    struct engine_config c = test_engine_config();
    c.max_context = 512;
    c.dtype = bf16 ? BACKEND_DTYPE_BF16 : c.dtype;
    struct engine *e = test_engine(models[_i / 2], &c);
    const struct model_config *m = engine_model_config(e);
    const size_t n_logits = (size_t)MANY * m->vocab_size;
    const uint32_t n_taps = m->n_layers, layers[] = {0, 1, 2, 3};
    const size_t n_tapped = (size_t)MANY * n_taps * m->hidden;
    ck_assert_uint_le(n_taps, 4);
    static uint32_t text[MANY];
    test_tokens(23, m->vocab_size, text, MANY);
    float *want = floats(n_logits), *want_taps = floats(n_tapped);
    struct seq *s = new_seq(e);
    test_feed(e, s, text, MANY, SMALL, want, layers, n_taps, want_taps);
    engine_seq_free(e, s);
    engine_free(e);
    for (c.n_threads = 1; c.n_threads <= 3; c.n_threads++) {
        float *got = floats(n_logits), *got_taps = floats(n_tapped);
        e = test_engine(models[_i / 2], &c);
        s = new_seq(e);
        test_feed(e, s, text, MANY, MANY, got, layers, n_taps, got_taps);
        engine_seq_free(e, s);
        engine_free(e);
        test_floats_equal("logits", got, want, n_logits);
        test_floats_equal("taps", got_taps, want_taps, n_tapped);
        free(got);
        free(got_taps);
    }
    free(want);
    free(want_taps);
}
END_TEST

/* ---- errors ----------------------------------------------------------------------------------- */

START_TEST(context_full)
{
    struct engine_config c = test_engine_config();
    c.n_kv_blocks = 4;
    struct engine *e = test_engine(models[0], &c);
    struct error err = {0};
    uint32_t tokens[80];
    test_tokens(1, FIXTURE_VOCAB, tokens, 80);
    struct seq *a = new_seq(e), *b = new_seq(e);
    struct engine_feed f[2] = {{.seq = a, .tokens = tokens, .n = 65}, {.seq = b}};
    ck_fails(engine_feed(e, f, 1, NULL, 0, &err), CONTEXT_FULL, &err);
    ck_assert_uint_eq(engine_seq_len(a), 0);
    f[0].n = 40;
    ck_ok(engine_feed(e, f, 1, NULL, 0, &err), &err);
    /* Each alone fits, both together do not: neither changes. */
    f[0].n = 8;
    f[1] = (struct engine_feed){.seq = b, .tokens = tokens, .n = 17};
    ck_fails(engine_feed(e, f, 2, NULL, 0, &err), CONTEXT_FULL, &err);
    ck_assert_uint_eq(engine_seq_len(a), 40);
    ck_assert_uint_eq(engine_seq_len(b), 0);
    f[1].n = 16;
    ck_ok(engine_feed(e, f, 2, NULL, 0, &err), &err);
    ck_assert_uint_eq(engine_seq_len(a), 48);
    ck_assert_uint_eq(engine_seq_len(b), 16);
    const int32_t parent[2] = {-1, -1};
    ck_fails(engine_feed_tree(e, a, tokens, parent, 2, NULL, NULL, 0, NULL, &err), CONTEXT_FULL,
             &err);
    engine_seq_free(e, b);
    ck_ok(engine_feed_tree(e, a, tokens, parent, 2, NULL, NULL, 0, NULL, &err), &err);
    f[0].n = 17;
    ck_fails(engine_feed(e, f, 1, NULL, 0, &err), CONTEXT_FULL, &err);
    f[0].n = 16;
    ck_ok(engine_feed(e, f, 1, NULL, 0, &err), &err);
    ck_assert_uint_eq(engine_seq_len(a), 64);
    engine_seq_free(e, a);
    test_engine_idle(e);
    engine_free(e);
}
END_TEST

START_TEST(bad_arguments)
{
    struct engine_config c = test_engine_config();
    struct engine *e = test_engine(models[0], &c);
    struct error err = {0};
    struct seq *s = new_seq(e);
    uint32_t tokens[4] = {1, 2, FIXTURE_VOCAB, 3}, node[2] = {0, 0};
    int32_t parent[2] = {-1, 1};
    float x[1];
    struct engine_feed f[2] = {{.seq = s, .tokens = tokens, .n = 4},
                               {.seq = s, .tokens = tokens, .n = 1}};
    ck_fails(engine_feed(e, f, 1, NULL, 0, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "512"));
    f[0].n = 1;
    ck_fails(engine_feed(e, f, 2, NULL, 0, &err), INVALID, &err);
    f[0].n_logits = 2;
    f[0].logits = x;
    ck_fails(engine_feed(e, f, 1, NULL, 0, &err), INVALID, &err);
    f[0].logits = NULL;
    f[0].n_logits = 0;
    const uint32_t beyond[] = {2}, back[] = {1, 0}, twice[] = {1, 1};
    ck_fails(engine_feed(e, f, 1, beyond, 1, &err), INVALID, &err);
    ck_fails(engine_feed(e, f, 1, back, 2, &err), INVALID, &err);
    ck_fails(engine_feed(e, f, 1, twice, 2, &err), INVALID, &err);
    ck_assert_uint_eq(engine_seq_len(s), 0);
    /* A tree needs something to hang on, parents before children, nodes that are there. */
    parent[1] = 0;
    ck_fails(engine_feed_tree(e, s, tokens, parent, 2, NULL, NULL, 0, NULL, &err), INVALID, &err);
    ck_ok(engine_feed(e, f, 1, NULL, 0, &err), &err);
    parent[1] = 1;
    ck_fails(engine_feed_tree(e, s, tokens, parent, 2, NULL, NULL, 0, NULL, &err), INVALID, &err);
    parent[1] = -2;
    ck_fails(engine_feed_tree(e, s, tokens, parent, 2, NULL, NULL, 0, NULL, &err), INVALID, &err);
    parent[1] = 0;
    ck_fails(engine_feed_tree(e, s, tokens + 1, parent, 2, NULL, NULL, 0, NULL, &err), INVALID,
             &err);
    ck_ok(engine_feed_tree(e, s, tokens, parent, 2, NULL, NULL, 0, NULL, &err), &err);
    node[0] = 2;
    ck_fails(engine_keep(e, s, node, 1, &err), INVALID, &err);
    node[0] = 0;
    ck_fails(engine_keep(e, s, node, 2, &err), INVALID, &err);
    ck_ok(engine_keep(e, s, node, 1, &err), &err);
    ck_assert_uint_eq(engine_seq_len(s), 2);
    ck_fails(engine_keep(e, s, node, 1, &err), INVALID, &err);
    engine_seq_free(e, s);
    engine_free(e);
}
END_TEST

START_TEST(bad_configuration)
{
    struct error err = {0};
    struct engine *e = NULL;
    struct engine_config c = test_engine_config();
    c.max_context = 4097;
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "max_context"));
    c = test_engine_config();
    c.max_num_seqs = 600;
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "max_num_seqs"));
    c = test_engine_config();
    c.n_threads = 65;
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), INVALID, &err);
    c = test_engine_config();
    c.memory_limit = 1 << 20;
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), LIMIT, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "memory_limit"));
    c = test_engine_config();
    c.kv_bytes = 100;
    ck_fails(engine_new(models[0], &c, NULL, NULL, &e, &err), LIMIT, &err);
    ck_fails(engine_new("/nowhere/model", &c, NULL, NULL, &e, &err), NOT_FOUND, &err);
    ck_assert_ptr_null(e);
    /* kv_bytes: whole blocks. */
    c = test_engine_config();
    c.kv_bytes = 5 * 2 * 2 * 2 * 32 * 16 * 4 + 100;
    e = test_engine(models[0], &c);
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.kv_blocks, 5);
    ck_assert_ptr_null(engine_free(e));
    ck_assert_ptr_null(engine_free(NULL));
}
END_TEST

/* Weights converted at load: F32 from BF16 is exact, BF16 from F32 is another model. */
START_TEST(converted_weights)
{
    struct engine_config c = test_engine_config();
    struct fixture f = fixture_random(77);
    f.dtype = FIXTURE_BF16;
    const char *rounded = fixture_write(&f);
    c.exact = true;
    struct engine *e = test_engine(rounded, &c);
    struct truth t, u;
    truth_init(&t, e);
    engine_free(e);
    c.dtype = BACKEND_DTYPE_F32;
    e = test_engine(rounded, &c);
    check_chunk(e, &t, N, "F32 from BF16");
    engine_free(e);
    /* Q8_0 as F32: near its integer route. */
    c.dtype = BACKEND_DTYPE_FILE;
    e = test_engine(test_path("tests/golden/gguf/k_qwen3.MIX.gguf"), &c);
    truth_init(&u, e);
    engine_free(e);
    c.dtype = BACKEND_DTYPE_F32;
    e = test_engine(test_path("tests/golden/gguf/k_qwen3.MIX.gguf"), &c);
    struct truth v;
    truth_init(&v, e);
    engine_free(e);
    test_floats_close("F32 from MIX", v.logits, u.logits, (size_t)N * u.vocab, 0.01, 0.01);
    c.dtype = BACKEND_DTYPE_BF16;
    for (int i = 0; i < 2; i++) {
        c.exact = i == 0;
        e = test_engine(models[0], &c);
        struct truth w;
        truth_init(&w, e);
        check_chunk(e, &w, 7, "BF16 from F32");
        truth_done(&w);
        engine_free(e);
    }
    truth_done(&t);
    truth_done(&u);
    truth_done(&v);
}
END_TEST

static void count_progress(void *arg, const char *phase, uint64_t done, uint64_t total)
{
    unsigned *n = arg;
    ck_assert_uint_le(done, total);
    n[0]++;
    n[1] += strcmp(phase, "pack") == 0;
}

START_TEST(reports)
{
    struct engine_config c = test_engine_config();
    struct error err = {0};
    struct engine *e = NULL;
    unsigned n[2] = {0};
    ck_ok(engine_new(models[0], &c, count_progress, n, &e, &err), &err);
    ck_assert_uint_ge(n[0], 5);
    ck_assert_uint_ge(n[1], 2);
    struct backend_memory mem;
    engine_memory(e, &mem);
    ck_assert_uint_gt(mem.packed_bytes, 0);
    ck_assert_uint_eq(mem.kv_bytes, 32ull * 16 * 2 * 2 * 2 * 32 * 4);
    struct engine_load_timing t;
    engine_timing(e, &t);
    ck_assert(t.open > 0 && t.pack > 0 && t.first_prefill > 0);
    ck_assert_str_eq(engine_class(e), "exact, kv f32");
    ck_assert_ptr_nonnull(engine_tokenizer(e));
    ck_assert_ptr_nonnull(engine_ops(e));
    ck_assert_uint_eq(engine_get_config(e)->n_kv_blocks, 32);
    enum chat_format cf;
    ck_assert_int_eq(engine_chat_format(e, &cf, &err), DEDIT_E_UNSUPPORTED);
    engine_free(e);
}
END_TEST

/* The n-th allocation fails, for every n: a clean error, nothing left behind. */
START_TEST(without_memory)
{
    struct engine_config c = test_engine_config();
    c.n_threads = 1;
    c.max_num_seqs = 2;
    c.max_num_batched_tokens = 16;
    c.max_context = 64;
    struct fixture f = fixture_random(5);
    f.vocab = 320;
    const char *path = fixture_write(&f);
    struct test_oom o = {0};
    unsigned runs = 0;
    while (test_oom_next(&o)) {
        struct error err = {0};
        struct engine *e = NULL;
        struct seq *s = NULL;
        uint32_t tokens[20];
        test_tokens(1, 320, tokens, 20);
        int r = engine_new(path, &c, NULL, NULL, &e, &err);
        if (r == 0)
            r = engine_seq_new(e, &s, &err);
        if (r == 0) {
            struct engine_feed g = {.seq = s, .tokens = tokens, .n = 20};
            r = engine_feed(e, &g, 1, NULL, 0, &err);
        }
        if (s)
            engine_seq_free(e, s);
        engine_free(e);
        ck_assert_msg(r == (o.failed ? DEDIT_E_NOMEM : 0), "run %u: %s (%s)", runs, error_name(r),
                      err.msg);
        ck_assert(r == 0 || err.msg[0]);
        runs++;
    }
    ck_assert_uint_gt(runs, 20);
}
END_TEST

int main(void)
{
    add_fixture(FIXTURE_QWEN3, FIXTURE_F32, false);
    add_fixture(FIXTURE_LLAMA, FIXTURE_BF16, true);
    add_fixture(FIXTURE_QWEN2, FIXTURE_F16, false);
    add_golden("tests/golden/models/b_llama_rope3");
    add_golden("tests/golden/models/e_odd");
    add_golden("tests/golden/gguf/a_llama_tied.Q4_0.gguf");
    add_golden("tests/golden/gguf/a_llama_tied.Q5_1.gguf");
    add_golden("tests/golden/gguf/c_qwen2.Q8_0.gguf");
    add_golden("tests/golden/gguf/d_qwen3.Q4_1.gguf");
    add_golden("tests/golden/gguf/k_qwen3.MIX.gguf");

    Suite *s = suite_create("engine-feed");
    TCase *t = test_case(s, "same-bytes");
    tcase_add_loop_test(t, chunks_threads_tiers, 0, (int)n_models);
    tcase_add_loop_test(t, small_batches, 0, 3);
    tcase_add_loop_test(t, companions, 0, (int)n_models);
    tcase_add_test(t, kv_types);
    tcase_add_test(t, kv_of_amx);
    tcase_add_test(t, only_some_logits);
    tcase_add_test(t, chosen_taps);
    tcase_add_test(t, forks_and_truncation);
    tcase_add_test(t, converted_weights);
    t = test_case(s, "trees");
    tcase_add_test(t, trees);
    tcase_add_test(t, random_trees);
    tcase_add_loop_test(t, long_paths, 0, 3);
    tcase_add_loop_test(t, many_rows, 0, 4);
    t = test_case(s, "errors");
    tcase_add_test(t, context_full);
    tcase_add_test(t, bad_arguments);
    tcase_add_test(t, bad_configuration);
    tcase_add_test(t, reports);
    tcase_add_test(t, without_memory);
    return test_main(s);
}
