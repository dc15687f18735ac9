/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts of several attention chunks: threads then share few rows by chunks of positions.  The
 * bits are those of one thread and one long prefill, for chains, companions and trees.
 */
#include <stdlib.h>

#include "engine/engine.h"
#include "tests/unit/engine-util.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define N 600u

static uint32_t tokens[N];
static float *truth; /* [N][vocab], one thread, one call */
static const char *model;

static struct engine *engine(unsigned n_threads, enum dk_kv_type kv)
{
    struct engine_config c = test_engine_config();
    c.n_threads = n_threads;
    c.max_context = 640;
    c.max_num_batched_tokens = N;
    c.n_kv_blocks = 6 * 640 / DK_KV_BLOCK;
    c.kv_type = kv;
    return test_engine(model, &c);
}

static struct seq *new_seq(struct engine *e)
{
    struct error err = {0};
    struct seq *s = NULL;
    ck_ok(engine_seq_new(e, &s, &err), &err);
    return s;
}

/* An odd number of KV heads, so that two threads cannot share them evenly. */
static void start(enum dk_kv_type kv)
{
    struct fixture f = fixture_random(3);
    f.n_heads = 6;
    f.n_kv_heads = 3;
    f.max_position = 1024;
    model = fixture_write(&f);
    test_tokens(5, FIXTURE_VOCAB, tokens, N);
    truth = malloc((size_t)N * FIXTURE_VOCAB * sizeof(*truth));
    ck_assert_ptr_nonnull(truth);
    struct engine *e = engine(1, kv);
    struct seq *s = new_seq(e);
    test_feed(e, s, tokens, N, N, truth, NULL, 0, NULL);
    engine_seq_free(e, s);
    engine_free(e);
}

static void check(const char *what, const float *got, size_t from, size_t n)
{
    test_floats_equal(what, got, truth + from * FIXTURE_VOCAB, n * FIXTURE_VOCAB);
}

/* Row by row and in small chunks from position 250 on, past the ends of two chunks. */
START_TEST(rows_alone)
{
    start((enum dk_kv_type)_i);
    float *got = malloc((size_t)N * FIXTURE_VOCAB * sizeof(*got));
    for (unsigned threads = 2; threads <= 3; threads++) {
        struct engine *e = engine(threads, (enum dk_kv_type)_i);
        static const size_t chunks[] = {3, 16, 21, 1};
        for (size_t i = 0; i < (threads == 2 ? 4 : 1); i++) {
            struct seq *s = new_seq(e);
            test_feed(e, s, tokens, 250, 250, got, NULL, 0, NULL);
            check("beginning", got, 0, 250);
            test_feed(e, s, tokens + 250, N - 250, chunks[i], got, NULL, 0, NULL);
            check("few rows", got, 250, N - 250);
            engine_seq_free(e, s);
        }
        engine_free(e);
    }
    free(got);
    free(truth);
}
END_TEST

/* Sequences of different lengths in one call. */
START_TEST(together)
{
    static const uint32_t lengths[] = {255, 256, 257, 599, 100, 512};
    start(DK_KV_F32);
    struct engine *e = engine(4, DK_KV_F32);
    struct seq *s[6];
    float got[6][FIXTURE_VOCAB];
    struct error err = {0};
    for (uint32_t i = 0; i < 6; i++) {
        s[i] = new_seq(e);
        test_feed(e, s[i], tokens, lengths[i], N, NULL, NULL, 0, NULL);
    }
    for (uint32_t n = 1; n <= 6; n++) {
        struct engine_feed f[6];
        for (uint32_t i = 0; i < n; i++)
            f[i] = (struct engine_feed){.seq = s[i],
                                        .tokens = tokens + lengths[i],
                                        .n = 1,
                                        .logits = got[i],
                                        .n_logits = 1};
        ck_ok(engine_feed(e, f, n, NULL, 0, &err), &err);
        for (uint32_t i = 0; i < n; i++) {
            check("together", got[i], lengths[i], 1);
            engine_seq_truncate(e, s[i], lengths[i]);
        }
    }
    for (uint32_t i = 0; i < 6; i++)
        engine_seq_free(e, s[i]);
    engine_free(e);
    free(truth);
}
END_TEST

/* A tree whose every branch is the text itself: nodes of the same depth give the same logits. */
START_TEST(trees)
{
    static const int32_t parent[] = {-1, 0, 1, -1, 3, 2, 4, 5, 0, 8, 6, 7};
    static const uint32_t depth[] = {0, 1, 2, 0, 1, 3, 2, 4, 1, 2, 3, 5};
    static const uint32_t bases[] = {254, 256, 300, 509, 520};
    enum { NODES = sizeof(parent) / sizeof(*parent) };
    start(DK_KV_F32);
    struct engine *e = engine(2, DK_KV_F32);
    struct error err = {0};
    float got[NODES][FIXTURE_VOCAB];
    for (size_t b = 0; b < sizeof(bases) / sizeof(*bases); b++) {
        uint32_t nodes[NODES];
        struct seq *s = new_seq(e);
        test_feed(e, s, tokens, bases[b], N, NULL, NULL, 0, NULL);
        for (uint32_t i = 0; i < NODES; i++)
            nodes[i] = tokens[bases[b] + depth[i]];
        ck_ok(engine_feed_tree(e, s, nodes, parent, NODES, got[0], NULL, 0, NULL, &err), &err);
        for (uint32_t i = 0; i < NODES; i++)
            check("node", got[i], bases[b] + depth[i], 1);
        engine_seq_free(e, s);
    }
    engine_free(e);
    free(truth);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine-long");
    TCase *t = test_case(s, "same-bytes");
    tcase_add_loop_test(t, rows_alone, 0, DK_KV_TYPE_COUNT);
    tcase_add_test(t, together);
    tcase_add_test(t, trees);
    return test_main(s);
}
