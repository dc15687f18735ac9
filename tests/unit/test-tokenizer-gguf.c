/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer in GGUF metadata: pre-tokenizers, token types, BOS and EOS, errors; and that the two
 * forms of one model tokenise alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/gguf.h"
#include "engine/model_file.h"
#include "tests/unit/text-fixture.h"
#include "tests/unit/util.h"

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4

/* ---- a GGUF file of metadata alone */

static void put_u32(struct strbuf *b, uint32_t v)
{
    strbuf_add(b, &v, sizeof(v));
}

static void put_u64(struct strbuf *b, uint64_t v)
{
    strbuf_add(b, &v, sizeof(v));
}

static void put_str(struct strbuf *b, const char *s)
{
    put_u64(b, strlen(s));
    strbuf_adds(b, s);
}

/* What a file says; NULL or negative: the key is left out. */
struct spec {
    const char *model, *pre;
    const char *const *tokens; /* NULL-terminated */
    const int *types;
    int n_types; /* 0 = as many as tokens */
    const char *const *merges;
    int eos, bos, add_bos;
};

static size_t count(const char *const *list)
{
    size_t n = 0;
    while (list[n])
        n++;
    return n;
}

static void put_key(struct strbuf *b, const char *key, uint32_t type, uint64_t *n_keys)
{
    char full[64];
    snprintf(full, sizeof(full), "tokenizer.ggml.%s", key);
    put_str(b, full);
    put_u32(b, type);
    ++*n_keys;
}

static void put_strings(struct strbuf *b, const char *key, const char *const *list,
                        uint64_t *n_keys)
{
    put_key(b, key, GGUF_ARRAY, n_keys);
    put_u32(b, GGUF_STRING);
    put_u64(b, count(list));
    for (; *list; list++)
        put_str(b, *list);
}

static void build(const struct spec *s, struct strbuf *out)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    uint64_t n = 0;
    if (s->model) {
        put_key(&b, "model", GGUF_STRING, &n);
        put_str(&b, s->model);
    }
    if (s->pre) {
        put_key(&b, "pre", GGUF_STRING, &n);
        put_str(&b, s->pre);
    }
    if (s->tokens)
        put_strings(&b, "tokens", s->tokens, &n);
    if (s->types) {
        size_t n_types = s->n_types ? (size_t)s->n_types : count(s->tokens);
        put_key(&b, "token_type", GGUF_ARRAY, &n);
        put_u32(&b, GGUF_I32);
        put_u64(&b, n_types);
        strbuf_add(&b, s->types, n_types * sizeof(int));
    }
    if (s->merges)
        put_strings(&b, "merges", s->merges, &n);
    if (s->eos >= 0) {
        put_key(&b, "eos_token_id", GGUF_U32, &n);
        put_u32(&b, (uint32_t)s->eos);
    }
    if (s->bos >= 0) {
        put_key(&b, "bos_token_id", GGUF_U32, &n);
        put_u32(&b, (uint32_t)s->bos);
    }
    if (s->add_bos >= 0) {
        put_key(&b, "add_bos_token", GGUF_BOOL, &n);
        strbuf_addc(&b, (char)s->add_bos);
    }
    strbuf_adds(out, "GGUF");
    put_u32(out, 3);
    put_u64(out, 0);
    put_u64(out, n);
    if (b.len)
        strbuf_add(out, b.s, b.len);
}

static int load(const struct spec *s, struct tokenizer **ret, struct error *err)
{
    _cleanup_strbuf_ struct strbuf file = {0};
    struct gguf *g = NULL;
    build(s, &file);
    ck_ok(gguf_parse(file.s, file.len, "model.gguf", &g, err), err);
    int r = tokenizer_from_gguf(g, ret, err);
    gguf_free(g);
    return r;
}

/* Letters, digits and blanks; "ab", " a", "abc" (no merge gives it); controls at the end. */
static const char *const tokens[] = {"a",       "b",      "c",          "1",
                                     "2",       "\u0120", "\u010a",     "ab",
                                     "\u0120a", "abc",    "<|im_end|>", "<|im_start|>",
                                     "<u>",     "\u00c3", "\u00a9",     "[PAD]",
                                     "'",       "s",      NULL};
static const int types[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 4, 1, 1, 5, 1, 1};
static const char *const merges[] = {"a b", "\u0120 a", NULL};
enum {
    A,
    B,
    C,
    ONE,
    TWO,
    BLANK,
    NEWLINE,
    AB,
    BLANK_A,
    ABC,
    END,
    START,
    USER,
    C3,
    A9,
    PAD,
    QUOTE,
    S
};

static const struct spec base = {.model = "gpt2",
                                 .pre = "smollm",
                                 .tokens = tokens,
                                 .types = types,
                                 .merges = merges,
                                 .eos = END,
                                 .bos = START,
                                 .add_bos = -1};

START_TEST(test_pre_tokenizers)
{
    static const struct {
        const char *pre, *text;
        uint32_t ids[12];
        size_t n;
    } cases[] = {
        {"smollm", "ab12 a", {AB, ONE, TWO, BLANK_A}, 4},
        {"gpt-2", "ab12 a", {AB, ONE, TWO, BLANK_A}, 4},
        {"smollm", "abc", {AB, C}, 2},
        {"llama-bpe", "abc", {ABC}, 1}, /* ignore_merges */
        {"qwen2", "abc", {AB, C}, 2},
        {"smollm", " 1 a", {BLANK, ONE, BLANK_A}, 3},
        /* NFC for qwen2 alone: e9 is not in the vocabulary, c3 a9 are its bytes */
        {"qwen2", "\u00e9", {C3, A9}, 2},
        {"smollm", "\u00e9", {C3, A9}, 2},
        {"qwen2", "'S", {QUOTE}, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct spec s = base;
        struct tokenizer *t = NULL;
        struct error err = {0};
        s.pre = cases[i].pre;
        ck_ok(load(&s, &t, &err), &err);
        check_ids(t, cases[i].text, strlen(cases[i].text), 0, cases[i].ids, cases[i].n,
                  cases[i].text);
        tokenizer_free(t);
    }
}
END_TEST

START_TEST(test_token_types)
{
    struct tokenizer *t = NULL;
    struct error err = {0};
    ck_ok(load(&base, &t, &err), &err);
    size_t n;
    ck_assert(tokenizer_is_special(t, END) && tokenizer_is_added(t, END));
    ck_assert(!tokenizer_is_special(t, USER) && tokenizer_is_added(t, USER));
    ck_assert(!tokenizer_is_added(t, A));
    ck_assert_ptr_null(tokenizer_token_bytes(t, PAD, &n));
    ck_assert_uint_eq(tokenizer_n_tokens(t), 18);
    check_ids(t, "a<u><|im_end|>", 14, TOKENIZE_SPECIAL, IDS(A, USER, END), "special");
    check_ids(t, "a[PAD]", 6, TOKENIZE_SPECIAL, IDS(A), "unused is no token");
    uint32_t id;
    ck_assert(tokenizer_eos(t, &id) && id == END);
    ck_assert(!tokenizer_bos(t, &id));
    tokenizer_free(t);
    /* EOS is a control token whatever its type; without types the ids say enough. */
    struct spec s = base;
    s.types = NULL;
    ck_ok(load(&s, &t, &err), &err);
    check_ids(t, "a<|im_end|>", 11, TOKENIZE_SPECIAL, IDS(A, END), "no types");
    tokenizer_free(t);
    s = base;
    s.eos = AB;
    ck_ok(load(&s, &t, &err), &err);
    check_ids(t, "ab", 2, 0, IDS(A, B), "an eos that a merge would give");
    tokenizer_free(t);
    s.eos = USER;
    ck_ok(load(&s, &t, &err), &err);
    ck_assert(tokenizer_is_special(t, USER));
    tokenizer_free(t);
}
END_TEST

START_TEST(test_bos)
{
    static const struct {
        const char *pre;
        int bos, add_bos;
        bool want;
    } cases[] = {
        {"smollm", START, -1, false},   {"smollm", START, 1, true},
        {"smollm", START, 0, false},    {"smollm", -1, 0, false},
        {"llama-bpe", START, -1, true}, {"llama-bpe", START, 0, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct spec s = base;
        struct tokenizer *t = NULL;
        struct error err = {0};
        uint32_t id = 0;
        s.pre = cases[i].pre;
        s.bos = cases[i].bos;
        s.add_bos = cases[i].add_bos;
        ck_ok(load(&s, &t, &err), &err);
        ck_assert_int_eq(tokenizer_bos(t, &id), cases[i].want);
        if (cases[i].want)
            check_ids(t, "a", 1, TOKENIZE_BOS, IDS(START, A), "bos");
        tokenizer_free(t);
    }
}
END_TEST

static void check_error(const struct spec *s, int code, const char *a, const char *b)
{
    struct tokenizer *t = NULL;
    struct error err = {0};
    int r = load(s, &t, &err);
    ck_assert_msg(r == code, "%s: %s", error_name(r), err.msg);
    ck_assert_msg(strstr(err.msg, "model.gguf") && strstr(err.msg, a) && strstr(err.msg, b),
                  "\"%s\" lacks \"%s\" or \"%s\"", err.msg, a, b);
}

static struct spec with_tokens(const char *const *list)
{
    struct spec s = base;
    s.tokens = list;
    s.types = NULL;
    s.eos = s.bos = -1;
    return s;
}

static struct spec with_merges(const char *const *list)
{
    struct spec s = base;
    s.merges = list;
    return s;
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(test_errors)
{
    struct spec s = base;
    s.model = "llama";
    check_error(&s, DEDIT_E_UNSUPPORTED, "\"llama\"", "gpt2");
    s.model = NULL;
    check_error(&s, DEDIT_E_FORMAT, "tokenizer.ggml.model", "missing");
    s = base;
    s.pre = "deepseek-llm";
    check_error(&s, DEDIT_E_UNSUPPORTED, "\"deepseek-llm\"", "smollm, gpt-2, llama-bpe, qwen2");
    s.pre = NULL;
    check_error(&s, DEDIT_E_UNSUPPORTED, "tokenizer.ggml.pre", "missing");
    s = base;
    s.tokens = NULL;
    s.types = NULL;
    check_error(&s, DEDIT_E_FORMAT, "tokenizer.ggml.tokens", "missing");
    s = with_tokens((const char *const[]){NULL});
    check_error(&s, DEDIT_E_FORMAT, "tokenizer.ggml.tokens", "0 tokens");
    s = with_tokens(LIST("a", "b", "a"));
    check_error(&s, DEDIT_E_FORMAT, "tokens[0] and [2]", "\"a\"");
    s = with_tokens(LIST("a", "\xff"));
    check_error(&s, DEDIT_E_FORMAT, "tokenizer.ggml.tokens[1]", "UTF-8");
    s = base;
    s.n_types = 3;
    check_error(&s, DEDIT_E_FORMAT, "token_type\" has 3", "18 tokens");
    int bad[18];
    memcpy(bad, types, sizeof(types));
    bad[4] = 6;
    s = base;
    s.types = bad;
    check_error(&s, DEDIT_E_FORMAT, "token_type[4]", "is 6");
    s = base;
    s.merges = NULL;
    check_error(&s, DEDIT_E_FORMAT, "tokenizer.ggml.merges", "missing");
    s = with_merges(LIST("a b", "ab"));
    check_error(&s, DEDIT_E_FORMAT, "merges[1]", "one space");
    s = with_merges(LIST("a b c"));
    check_error(&s, DEDIT_E_FORMAT, "merges[0]", "one space");
    s = with_merges(LIST("a z"));
    check_error(&s, DEDIT_E_FORMAT, "merges[0]", "\"z\"");
    s = with_merges(LIST("b a"));
    check_error(&s, DEDIT_E_FORMAT, "merges[0]", "\"ba\"");
    s = with_merges(LIST(""));
    check_error(&s, DEDIT_E_FORMAT, "merges[0]", "one space");
    s = base;
    s.eos = 18;
    check_error(&s, DEDIT_E_FORMAT, "eos_token_id\" is 18", "18 tokens");
    s.eos = PAD;
    check_error(&s, DEDIT_E_FORMAT, "eos_token_id", "15");
    s = base;
    s.add_bos = 1;
    s.bos = 99;
    check_error(&s, DEDIT_E_FORMAT, "bos_token_id", "99");
    s.bos = -1;
    check_error(&s, DEDIT_E_FORMAT, "bos_token_id", "missing");
    char *huge = mem_zalloc(2000);
    memset(huge, 'x', 1999);
    static const int control[] = {3};
    s = with_tokens(LIST(huge));
    s.types = control;
    check_error(&s, DEDIT_E_LIMIT, "tokens[0]", "1999 bytes");
    mem_free(huge);
}
END_TEST

/* A user-defined token that a merge names, and one whose text a plain token has too. */
START_TEST(test_user_defined_in_merges)
{
    static const char *const list[] = {"a", "b", "ab", "\u0120", " ", "aba", NULL};
    static const int kinds[] = {1, 1, 4, 1, 4, 4};
    static const char *const uses[] = {"a b", "ab a", NULL};
    struct spec s = with_tokens(list);
    struct tokenizer *t = NULL;
    struct error err = {0};
    s.types = kinds;
    s.merges = uses;
    ck_ok(load(&s, &t, &err), &err);
    check_ids(t, "aba", 3, 0, IDS(5), "merged");
    check_ids(t, " ab", 3, TOKENIZE_SPECIAL, IDS(4, 2), "cut out");
    check_ids(t, " b", 2, 0, IDS(3, 1), "plain blank");
    tokenizer_free(t);
}
END_TEST

START_TEST(test_out_of_memory)
{
    _cleanup_strbuf_ struct strbuf file = {0};
    struct gguf *g = NULL;
    struct error err = {0};
    struct spec s = base;
    s.eos = A; /* one more control token */
    build(&s, &file);
    ck_ok(gguf_parse(file.s, file.len, "model.gguf", &g, &err), &err);
    for (struct test_oom o = {0}; test_oom_next(&o);) {
        struct tokenizer *t = NULL;
        int r = tokenizer_from_gguf(g, &t, &err);
        ck_assert_msg(r == (o.failed ? DEDIT_E_NOMEM : 0), "%zu: %s: %s", o.nth, error_name(r),
                      err.msg);
        tokenizer_free(t);
    }
    gguf_free(g);
}
END_TEST

/* ---- models on disk */

static struct tokenizer *open_model(const char *path, struct model_file **ret_file)
{
    struct error err = {0};
    struct tokenizer *t = NULL;
    ck_ok(model_file_open(path, ret_file, &err), &err);
    ck_ok(tokenizer_load(*ret_file, &t, &err), &err);
    return t;
}

START_TEST(test_two_forms)
{
    static const char *const models[][2] = {
        {"a_llama_tied", "a_llama_tied.F32"},
        {"b_llama_rope3", "b_llama_rope3.Q8_0"},
        {"c_qwen2", "c_qwen2.Q8_0"},
        {"d_qwen3", "d_qwen3.Q8_0"},
    };
    char hf_path[256], gguf_path_[256];
    snprintf(hf_path, sizeof(hf_path), "tests/golden/models/%s", models[_i][0]);
    snprintf(gguf_path_, sizeof(gguf_path_), "tests/golden/gguf/%s.gguf", models[_i][1]);
    struct model_file *hf = NULL, *gg = NULL;
    struct tokenizer *a = open_model(test_path(hf_path), &hf);
    struct tokenizer *b = open_model(test_path(gguf_path_), &gg);
    uint64_t seed = 77;
    for (int i = 0; i < 300; i++) {
        size_t n;
        char *text = random_text(&seed, test_random(&seed) % 50, &n);
        _cleanup_token_list_ struct token_list l = {0};
        struct error err = {0};
        ck_ok(tokenizer_encode(a, text, n, 0, &l, NULL, &err), &err);
        check_ids(b, text, n, 0, l.ids, l.len, models[_i][1]);
        mem_free(text);
    }
    const char *special = "x<|im_start|>y<|im_end|>";
    _cleanup_token_list_ struct token_list l = {0};
    struct error err = {0};
    ck_ok(tokenizer_encode(a, special, strlen(special), TOKENIZE_SPECIAL, &l, NULL, &err), &err);
    ck_assert_uint_eq(l.len, 4);
    check_ids(b, special, strlen(special), TOKENIZE_SPECIAL, l.ids, l.len, special);
    tokenizer_free(a);
    tokenizer_free(b);
    model_file_free(hf);
    model_file_free(gg);
}
END_TEST

/* The packed copy in the tree is what the default model has. */
START_TEST(test_default_model_is_the_same)
{
    const char *path = test_default_model();
    struct model_file *f = NULL;
    struct tokenizer *t = open_model(path, &f);
    const struct tokenizer *u = fixture_smollm2();
    ck_assert_uint_eq(tokenizer_n_tokens(t), tokenizer_n_tokens(u));
    for (uint32_t id = 0; id < tokenizer_n_tokens(u); id++) {
        size_t n, m;
        const char *a = tokenizer_token_bytes(t, id, &n), *b = tokenizer_token_bytes(u, id, &m);
        ck_assert_msg(n == m && (n == 0 || !memcmp(a, b, n)), "token %u", id);
    }
    uint64_t seed = 1;
    for (int i = 0; i < 200; i++) {
        size_t n;
        char *text = random_text(&seed, 40, &n);
        _cleanup_token_list_ struct token_list l = {0};
        struct error err = {0};
        ck_ok(tokenizer_encode(u, text, n, 0, &l, NULL, &err), &err);
        check_ids(t, text, n, 0, l.ids, l.len, "default model");
        mem_free(text);
    }
    tokenizer_free(t);
    model_file_free(f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer-gguf");
    fixture_smollm2();
    TCase *t = test_case(s, "gguf");
    tcase_add_test(t, test_pre_tokenizers);
    tcase_add_test(t, test_token_types);
    tcase_add_test(t, test_bos);
    tcase_add_test(t, test_errors);
    tcase_add_test(t, test_user_defined_in_merges);
    tcase_add_test(t, test_out_of_memory);
    t = test_case(s, "models");
    tcase_add_loop_test(t, test_two_forms, 0, 4);
    tcase_add_test(t, test_default_model_is_the_same);
    int r = test_main(s);
    fixture_done();
    return r;
}
