/* SPDX-License-Identifier: Apache-2.0 */
/* Rows TOK-01, TOK-02, TOK-04, TOK-08, TOK-09, TOK-10; properties over random text; threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "config.h"
#include "engine/tokenizer_internal.h"
#include "tests/unit/text-fixture.h"
#include "tests/unit/util.h"

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4

static void check_qwen3(const char *text, const uint32_t *want, size_t n)
{
    check_ids(fixture_qwen3(), text, strlen(text), 0, want, n, text);
}

START_TEST(test_tok_01_split)
{
    check_qwen3("->", IDS(405));
    check_qwen3("(x):\n", IDS(2075, 982));
    check_qwen3("12345", IDS(16, 17, 18, 19, 20));
    check_qwen3("I'm DON'T we'LL 's", IDS(40, 2776, 44273, 17323, 582, 6, 4086, 364, 82));
    check_qwen3("foo_bar(x)->y", IDS(7975, 14388, 2075, 3997, 88));
    check_qwen3("C#/.NET 8.0", IDS(34, 2, 11930, 15373, 220, 23, 13, 15));
    check_qwen3("hello\r\n\r\nworld", IDS(14990, 871, 14615));
    check_qwen3("\u20ac100", IDS(15056, 16, 15, 15));
    check_qwen3("\u65e5\u672c\u8a9e", IDS(101059, 102819));
    check_qwen3("\u0661\u0662", IDS(149, 94, 149, 95));
}
END_TEST

START_TEST(test_tok_02_nfc)
{
    check_qwen3("cafe\u0301", IDS(924, 58858));
    check_qwen3("caf\u00e9", IDS(924, 58858));
    check_qwen3("\u212b", IDS(144044));
    check_qwen3("a\u0300\u0323", IDS(20229, 96549));
    check_qwen3("\u1112\u1161\u11ab\u1100\u1173\u11af", IDS(23573, 83291));
    check_qwen3("\u0344", IDS(136, 230, 53839));
    check_qwen3("\ufb01", IDS(144300));
    /* Added tokens are cut out before: the mark behind one joins nothing. */
    const char *text = "e<|im_end|>\u0301";
    check_ids(fixture_qwen3(), text, strlen(text), TOKENIZE_SPECIAL, IDS(68, 151645, 53839), text);
}
END_TEST

/* ---- TOK-04: long runs */

static char *repeated(const char *s, size_t n)
{
    size_t len = strlen(s);
    char *text = mem_alloc(n * len + 1);
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * len, s, len);
    text[n * len] = '\0';
    return text;
}

struct run {
    const char *s;
    size_t n, n_first;
    uint32_t first, last; /* n_first times first, then last unless it is 0 */
};
static const struct run runs[] = {{"Z", 131072, 65536, 33536, 0},
                                  {"_", 50000, 781, 46932, 7686},
                                  {" ", 65536, 512, 56940, 0},
                                  {".", 65536, 1024, 42269, 0},
                                  {"\n", 65536, 2048, 79083, 0}};

static void *encode_runs(void *arg)
{
    const struct tokenizer *t = fixture_qwen3();
    (void)arg;
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        const struct run *r = &runs[i];
        _cleanup_free_ char *text = repeated(r->s, r->n);
        _cleanup_token_list_ struct token_list l = {0};
        struct error err = {0};
        ck_ok(tokenizer_encode(t, text, r->n, 0, &l, NULL, &err), &err);
        ck_assert_uint_eq(l.len, r->n_first + (r->last ? 1 : 0));
        for (size_t k = 0; k < r->n_first; k++)
            ck_assert_uint_eq(l.ids[k], r->first);
        if (r->last)
            ck_assert_uint_eq(l.ids[r->n_first], r->last);
    }
    return NULL;
}

/* The row asks for "ulimit -s 256"; a thread's stack is what such a limit would give. */
START_TEST(test_tok_04_long_runs)
{
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
#ifdef DEDIT_SANITIZED
    size_t stack = 2 << 20;
#else
    size_t stack = 256 << 10;
#endif
    ck_assert_int_eq(pthread_attr_setstacksize(&attr, stack), 0);
    ck_assert_int_eq(pthread_create(&thread, &attr, encode_runs, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}
END_TEST

/*
 * Time grows with the length, not with its square. What tells them apart is the size, not a clock: 2 MiB of one
 * character take half a second, and would take many minutes if each merge walked the text; the test's time limit sees it.
 */
START_TEST(test_tok_04_linear)
{
    static const char *const chars[] = {"_", "Z", " ", "\u0301\u0323", "\u00e9"};
    const struct tokenizer *t = _i ? fixture_smollm2() : fixture_qwen3();
#ifdef DEDIT_SANITIZED
    enum { N = 1 << 20 };
#else
    enum { N = 1 << 21 };
#endif
    for (size_t i = 0; i < ARRAY_LEN(chars); i++) {
        size_t len = strlen(chars[i]), n = N / len * len;
        _cleanup_free_ char *text = repeated(chars[i], N / len);
        _cleanup_token_list_ struct token_list l = {0};
        struct error err = {0};
        ck_ok(tokenizer_encode(t, text, n, 0, &l, NULL, &err), &err);
        ck_assert_uint_gt(l.len, 0);
    }
}
END_TEST

/* ---- TOK-08, TOK-09: decoding */

static void check_stream(const uint32_t *ids, size_t n, const char *const *want, const char *flush)
{
    struct detokenizer d = {0};
    for (size_t i = 0; i <= n; i++) {
        _cleanup_strbuf_ struct strbuf out = {0};
        int r = i < n ? detokenizer_push(&d, fixture_qwen3(), ids[i], 0, &out)
                      : detokenizer_flush(&d, &out);
        ck_assert_int_eq(r, 0);
        ck_assert_str_eq(out.s ? out.s : "", i < n ? want[i] : flush);
    }
}

START_TEST(test_tok_08_stream)
{
    check_stream(IDS(145367, 378, 235, 145233),
                 (const char *[]){"\U0001F468", "", "\u200d", "\U0001F469"}, "");
    check_stream(IDS(636, 235), (const char *[]){" ", "\u200d"}, "");
    check_stream(IDS(1196, 872), (const char *[]){" user", "user"}, "");
    check_stream(IDS(9707, 172, 253), (const char *[]){"Hello", "", ""}, "\ufffd");
    /* (e) half a character given to the encoder is an error that names the byte */
    struct token_list l = {0};
    struct error err = {0};
    ck_fails(tokenizer_encode(fixture_qwen3(), "ok\xe6\xad", 4, 0, &l, NULL, &err), INVALID, &err);
    ck_assert_msg(strstr(err.msg, "not UTF-8") && strstr(err.msg, "offset 2"), "%s", err.msg);
    ck_assert_uint_eq(l.len, 0);
}
END_TEST

START_TEST(test_tok_09_unknown_ids)
{
    char *s = decode_all(fixture_qwen3(), IDS(9707, 151700), 0);
    ck_assert_str_eq(s, "Hello");
    mem_free(s);
    struct tokenizer *t = fixture_byte("", "", NULL);
    s = decode_all(t, IDS(97, 300, 98, 260, UINT32_MAX), 0);
    ck_assert_str_eq(s, "ab");
    mem_free(s);
    s = decode_all(t, IDS(97, 256, 98, 258), DETOKENIZE_SKIP_SPECIAL);
    ck_assert_str_eq(s, "ab");
    mem_free(s);
    s = decode_all(t, IDS(97, 256, 98), 0);
    ck_assert_str_eq(s, "a<|endoftext|>b");
    mem_free(s);
    size_t n = 7;
    ck_assert_ptr_null(tokenizer_token_bytes(t, 260, &n));
    ck_assert_uint_eq(n, 0);
    ck_assert(!tokenizer_is_added(t, 300) && !tokenizer_is_special(t, 300));
    ck_assert_uint_eq(tokenizer_n_tokens(t), 260);
    tokenizer_free(t);
}
END_TEST

/* ---- TOK-10 */

static void check_ignore_merges(const char *flag, const uint32_t *want, size_t n)
{
    char more[64];
    snprintf(more, sizeof(more), ", \"ignore_merges\": %s", flag);
    _cleanup_free_ char *json = fixture_bpe_json(
        "{\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4}", "[\"a b\"]", more, "");
    struct tokenizer *t = fixture_from_json(json, NULL);
    check_ids(t, "abc", 3, 0, want, n, flag);
    tokenizer_free(t);
}

START_TEST(test_tok_10_ignore_merges)
{
    check_ignore_merges("true", IDS(4));
    check_ignore_merges("false", IDS(3, 2));
}
END_TEST

/* ---- properties */

/* NFC by utf8proc's own one-call interface; memory from malloc. */
static char *nfc(const char *s)
{
    utf8proc_uint8_t *n = utf8proc_NFC((const utf8proc_uint8_t *)s);
    ck_assert_ptr_nonnull(n);
    return (char *)n;
}

static bool has_trouble(const char *s, size_t n)
{
    /* U+11A7: utf8proc_NFC itself loses it (tests/golden has the vector). */
    return memmem(s, n, "\u11a7", 3) != NULL;
}

START_TEST(test_round_trip)
{
    const struct tokenizer *qwen3 = fixture_qwen3(), *smollm2 = fixture_smollm2();
    struct tokenizer *bytes = fixture_byte("", "", NULL);
    uint64_t seed = 11;
    for (int i = 0; i < 3000; i++) {
        size_t n;
        char *text = random_text(&seed, test_random(&seed) % 60, &n);
        struct token_list l[3] = {0};
        struct error err = {0};
        size_t dropped = 0, none = 0;
        ck_ok(tokenizer_encode(qwen3, text, n, 0, &l[0], &none, &err), &err);
        ck_assert_uint_eq(none, 0);
        ck_ok(tokenizer_encode(smollm2, text, n, 0, &l[1], &dropped, &err), &err);
        ck_ok(tokenizer_encode(bytes, text, n, 0, &l[2], &none, &err), &err);
        ck_assert_uint_eq(none, 0);
        char *back = decode_all(qwen3, l[0].ids, l[0].len, 0);
        char *want = nfc(text);
        if (!has_trouble(text, n))
            ck_assert_str_eq(back, want);
        free(want);
        mem_free(back);
        if (dropped == 0) {
            back = decode_all(smollm2, l[1].ids, l[1].len, 0);
            ck_assert_str_eq(back, text);
            mem_free(back);
        }
        back = decode_all(bytes, l[2].ids, l[2].len, 0);
        ck_assert_str_eq(back, text);
        ck_assert_uint_eq(l[2].len, n);
        mem_free(back);
        for (int k = 0; k < 3; k++)
            token_list_done(&l[k]);
        mem_free(text);
    }
    tokenizer_free(bytes);
}
END_TEST

/* A text with control tokens typed in gives no added token unless asked for; pieces joined at a
 * control token give the pieces' ids. */
START_TEST(test_added_tokens_are_cuts)
{
    const struct tokenizer *t = _i ? fixture_smollm2() : fixture_qwen3();
    uint32_t cut;
    ck_assert(tokenizer_find_added(t, "<|im_end|>", 10, &cut));
    uint64_t seed = 5;
    for (int i = 0; i < 500; i++) {
        _cleanup_strbuf_ struct strbuf all = {0};
        _cleanup_token_list_ struct token_list want = {0}, got = {0}, plain = {0};
        struct error err = {0};
        size_t pieces = 1 + test_random(&seed) % 4;
        for (size_t k = 0; k < pieces; k++) {
            size_t n;
            char *text = random_text(&seed, test_random(&seed) % 20, &n);
            strbuf_add(&all, text, n);
            strbuf_adds(&all, "<|im_end|>");
            ck_ok(tokenizer_encode(t, text, n, TOKENIZE_SPECIAL, &want, NULL, &err), &err);
            ck_assert_int_eq(token_list_add(&want, cut), 0);
            mem_free(text);
        }
        ck_ok(tokenizer_encode(t, all.s, all.len, TOKENIZE_SPECIAL, &got, NULL, &err), &err);
        compare_ids(got.ids, got.len, want.ids, want.len, "joined");
        ck_ok(tokenizer_encode(t, all.s, all.len, 0, &plain, NULL, &err), &err);
        for (size_t k = 0; k < plain.len; k++)
            ck_assert(!tokenizer_is_added(t, plain.ids[k]));
    }
}
END_TEST

/* The reference definition: all symbols, each time the leftmost of the lowest rank. */
static size_t slow_bpe(const struct tokenizer *t, const char *s, size_t n, uint32_t *ids)
{
    const struct bpe *b = &t->bpe;
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(uint8_t)s[i]] != TOK_NONE)
            ids[len++] = b->byte_id[(uint8_t)s[i]];
    for (;;) {
        uint32_t best = UINT32_MAX, id = 0;
        size_t at = 0;
        for (size_t i = 0; i + 1 < len; i++)
            for (size_t k = 0; k <= b->mask; k++) {
                const struct merge_slot *m = &b->slots[k];
                if (m->left == ids[i] && m->right == ids[i + 1] && m->rank < best) {
                    best = m->rank;
                    id = m->id;
                    at = i;
                }
            }
        if (best == UINT32_MAX)
            return len;
        ids[at] = id;
        memmove(ids + at + 1, ids + at + 2, (len - at - 2) * sizeof(*ids));
        len--;
    }
}

/* Short and long pieces (array and heap) against that, over a small random vocabulary. */
START_TEST(test_merge_order)
{
    uint64_t seed = 3;
    for (int round = 0; round < 40; round++) {
        _cleanup_strbuf_ struct strbuf vocab = {0}, merges = {0};
        char words[64][16] = {"a", "b", "c"};
        size_t n_words = 3;
        strbuf_adds(&vocab, "{\"a\": 0, \"b\": 1, \"c\": 2");
        strbuf_adds(&merges, "[");
        while (n_words < 24) {
            char w[32];
            const char *x = words[test_random(&seed) % n_words],
                       *y = words[test_random(&seed) % n_words];
            snprintf(w, sizeof(w), "%s%s", x, y);
            bool known = strlen(w) > 12;
            for (size_t i = 0; i < n_words; i++)
                known |= !strcmp(w, words[i]);
            if (known)
                continue;
            strbuf_addf(&vocab, ", \"%s\": %zu", w, n_words);
            strbuf_addf(&merges, "%s\"%s %s\"", n_words > 3 ? ", " : "", x, y);
            memcpy(words[n_words++], w, 16);
        }
        strbuf_adds(&vocab, "}");
        strbuf_adds(&merges, "]");
        _cleanup_free_ char *json = fixture_bpe_json(vocab.s, merges.s, "", "");
        struct tokenizer *t = fixture_from_json(json, NULL);
        for (int i = 0; i < 30; i++) {
            char text[200];
            uint32_t want[200];
            size_t n = 1 + test_random(&seed) % (i % 2 ? 199 : 60);
            for (size_t k = 0; k < n; k++)
                text[k] =
                    "abcd"[test_random(&seed) % (i % 3 ? 2 : 4)]; /* d: not in the vocabulary */
            size_t n_want = slow_bpe(t, text, n, want);
            check_ids(t, text, n, 0, want, n_want, "merge order");
        }
        tokenizer_free(t);
    }
}
END_TEST

/* The cache of a long text changes nothing: each line alone gives what it gives inside. */
START_TEST(test_cache)
{
    const struct tokenizer *t = fixture_smollm2();
    _cleanup_strbuf_ struct strbuf all = {0};
    _cleanup_token_list_ struct token_list want = {0}, got = {0};
    uint64_t seed = 9;
    struct error err = {0};
    size_t dropped = 0, whole_dropped = 0;
    for (int i = 0; i < 600; i++) {
        char line[64];
        size_t n = 0, d = 0;
        while (n < 40) {
            static const char *const words[] = {"the ",       "x\x06y ",
                                                "Straße ",    "under_score ",
                                                "3.14 ",      "aaaaaaaaaaaaaaaaaaaaaaaa ",
                                                "\U000f0000 "};
            const char *w = words[test_random(&seed) % ARRAY_LEN(words)];
            memcpy(line + n, w, strlen(w));
            n += strlen(w);
            if (n > 60 - 26)
                break;
        }
        line[n - 1] = '.';
        line[n++] = '7';
        ck_ok(tokenizer_encode(t, line, n, 0, &want, &d, &err), &err);
        dropped += d;
        strbuf_add(&all, line, n);
    }
    ck_assert_uint_ge(all.len, BPE_CACHE_BYTES_MIN);
    ck_ok(tokenizer_encode(t, all.s, all.len, 0, &got, &whole_dropped, &err), &err);
    compare_ids(got.ids, got.len, want.ids, want.len, "whole text");
    ck_assert_uint_eq(whole_dropped, dropped);
    ck_assert_uint_gt(dropped, 0);
}
END_TEST

/* Random bytes in random pieces: the stream is the whole, and is UTF-8 after every token. */
START_TEST(test_stream_is_whole)
{
    struct tokenizer *t = fixture_byte("", "", NULL);
    uint64_t seed = 21;
    for (int i = 0; i < 3000; i++) {
        uint32_t ids[64];
        size_t n = test_random(&seed) % 64;
        struct detokenizer d = {0};
        _cleanup_strbuf_ struct strbuf joined = {0};
        for (size_t k = 0; k < n; k++) {
            uint64_t r = test_random(&seed);
            ids[k] = r % 3 ? 0x80 + (uint32_t)(r >> 8) % 128 : (uint32_t)(r >> 8) % 262;
            _cleanup_strbuf_ struct strbuf out = {0};
            ck_assert_int_eq(detokenizer_push(&d, t, ids[k], 0, &out), 0);
            ck_assert(utf8_valid(out.s ? out.s : "", out.len));
            strbuf_add(&joined, out.s ? out.s : "", out.len);
        }
        ck_assert_int_eq(detokenizer_flush(&d, &joined), 0);
        char *whole = decode_all(t, ids, n, 0);
        ck_assert_str_eq(joined.s ? joined.s : "", whole);
        mem_free(whole);
    }
    tokenizer_free(t);
}
END_TEST

/* ---- threads */

struct worker {
    pthread_t thread;
    const char *text;
    size_t n;
    struct token_list ids;
    int result;
};

static void *encode_many(void *arg)
{
    struct worker *w = arg;
    struct error err = {0};
    for (int i = 0; i < 20 && w->result == 0; i++) {
        w->ids.len = 0;
        w->result = tokenizer_encode(fixture_qwen3(), w->text, w->n, 0, &w->ids, NULL, &err);
    }
    return NULL;
}

START_TEST(test_threads)
{
    uint64_t seed = 33;
    size_t n;
    char *text = random_text(&seed, 4000, &n);
    struct worker w[4] = {0};
    for (size_t i = 0; i < 4; i++) {
        w[i].text = text;
        w[i].n = n;
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, encode_many, &w[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(w[i].thread, NULL);
        ck_assert_int_eq(w[i].result, 0);
        compare_ids(w[i].ids.ids, w[i].ids.len, w[0].ids.ids, w[0].ids.len, "threads");
    }
    for (size_t i = 0; i < 4; i++)
        token_list_done(&w[i].ids);
    mem_free(text);
}
END_TEST

START_TEST(test_out_of_memory)
{
    const struct tokenizer *t = fixture_qwen3();
    _cleanup_strbuf_ struct strbuf text = {0};
    /* The cache, the heap for a long word, NFC with reordering, added tokens. */
    for (int i = 0; i < 120; i++)
        strbuf_adds(&text, "some words, and more <|im_end|> ");
    for (int i = 0; i < 100; i++)
        strbuf_adds(&text, "Z");
    strbuf_adds(&text, "a\u0301\u0323");
    for (struct test_oom o = {0}; test_oom_next(&o);) {
        struct token_list l = {0};
        struct error err = {0};
        int r = tokenizer_encode(t, text.s, text.len, TOKENIZE_SPECIAL, &l, NULL, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        ck_assert(r == 0 || l.len == 0);
        token_list_done(&l);
    }
    for (struct test_oom o = {0}; test_oom_next(&o);) {
        struct detokenizer d = {0};
        struct strbuf out = {0};
        int r = detokenizer_push(&d, t, 9707, 0, &out);
        if (r == 0)
            r = detokenizer_push(&d, t, 172, 0, &out);
        if (r == 0)
            r = detokenizer_flush(&d, &out);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        strbuf_done(&out);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer");
    fixture_qwen3();
    fixture_smollm2();
    TCase *t = test_case(s, "faults");
    tcase_add_test(t, test_tok_01_split);
    tcase_add_test(t, test_tok_02_nfc);
    tcase_add_test(t, test_tok_04_long_runs);
    tcase_add_loop_test(t, test_tok_04_linear, 0, 2);
    tcase_add_test(t, test_tok_08_stream);
    tcase_add_test(t, test_tok_09_unknown_ids);
    tcase_add_test(t, test_tok_10_ignore_merges);
    t = test_case(s, "properties");
    tcase_add_test(t, test_round_trip);
    tcase_add_loop_test(t, test_added_tokens_are_cuts, 0, 2);
    tcase_add_test(t, test_merge_order);
    tcase_add_test(t, test_cache);
    tcase_add_test(t, test_stream_is_whole);
    tcase_add_test(t, test_threads);
    t = test_case(s, "memory");
    tcase_add_test(t, test_out_of_memory);
    int r = test_main(s);
    fixture_done();
    return r;
}
