/* SPDX-License-Identifier: Apache-2.0 */
/* What tokenizer.json can say: pre-tokenizer steps, added tokens, post-processors; its errors. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "tests/unit/text-fixture.h"
#include "tests/unit/util.h"

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4

/* ---- pieces: every substring of the text is a token, so each piece becomes one */

static void add_json_text(struct strbuf *b, const char *s, size_t n, bool byte_level)
{
    for (size_t i = 0; i < n; i++) {
        char c[5] = {s[i], '\0'};
        if (byte_level)
            fixture_byte_char((unsigned char)s[i], c);
        strbuf_addf(b, "%s%s", c[0] == '"' || c[0] == '\\' ? "\\" : "", c);
    }
}

static char *pieces_json(const char *pre, const char *text, const char *root_more)
{
    struct strbuf vocab = {0}, more = {0};
    size_t n = strlen(text);
    unsigned id = 0;
    strbuf_adds(&vocab, "{");
    for (size_t len = 1; len <= n; len++)
        for (size_t at = 0; at + len <= n; at++) {
            bool seen = false;
            for (size_t k = 0; k < at; k++)
                seen |= !memcmp(text + k, text + at, len);
            if (seen)
                continue;
            strbuf_addf(&vocab, "%s\"", id ? ", " : "");
            add_json_text(&vocab, text + at, len, true);
            strbuf_addf(&vocab, "\": %u", id++);
        }
    strbuf_addf(&vocab, "%s\"<unk>\": %u}", id ? ", " : "", id);
    strbuf_addf(&more, ", \"pre_tokenizer\": %s%s", pre, root_more);
    char *json = fixture_bpe_json(vocab.s, "[]", ", \"ignore_merges\": true", more.s);
    strbuf_done(&vocab);
    strbuf_done(&more);
    return json;
}

/* want: the pieces with '|' between them. */
static void check_pieces(const char *pre, const char *text, const char *want)
{
    _cleanup_free_ char *json = pieces_json(pre, text, "");
    struct tokenizer *t = fixture_from_json(json, NULL);
    _cleanup_token_list_ struct token_list l = {0};
    _cleanup_strbuf_ struct strbuf got = {0};
    struct error err = {0};
    ck_ok(tokenizer_encode(t, text, strlen(text), 0, &l, NULL, &err), &err);
    strbuf_adds(&got, "");
    for (size_t i = 0; i < l.len; i++) {
        size_t n;
        const char *s = tokenizer_token_bytes(t, l.ids[i], &n);
        strbuf_addf(&got, "%s%.*s", i ? "|" : "", (int)n, s);
    }
    ck_assert_msg(!strcmp(got.s, want), "%s: got \"%s\", want \"%s\"", pre, got.s, want);
    tokenizer_free(t);
}

#define BYTES      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SEQ(steps) "{\"type\": \"Sequence\", \"pretokenizers\": [" steps ", " BYTES "]}"
#define SPLIT(pattern, behavior, invert)                                                           \
    SEQ("{\"type\": \"Split\", \"pattern\": {" pattern "}, \"behavior\": \"" behavior "\", "       \
        "\"invert\": " invert "}")

START_TEST(test_split_behaviors)
{
    const char *s = "the-final--countdown";
    check_pieces(SPLIT("\"String\": \"-\"", "Removed", "false"), s, "the|final|countdown");
    check_pieces(SPLIT("\"String\": \"-\"", "Isolated", "false"), s, "the|-|final|-|-|countdown");
    check_pieces(SPLIT("\"String\": \"-\"", "MergedWithPrevious", "false"), s,
                 "the-|final-|-|countdown");
    check_pieces(SPLIT("\"String\": \"-\"", "MergedWithNext", "false"), s,
                 "the|-final|-|-countdown");
    check_pieces(SPLIT("\"String\": \"-\"", "Contiguous", "false"), s, "the|-|final|--|countdown");
    check_pieces(SPLIT("\"Regex\": \"[a-z]+\"", "Removed", "true"), s, "the|final|countdown");
    check_pieces(SPLIT("\"Regex\": \"[a-z]+\"", "Removed", "false"), s, "-|--");
    check_pieces(SPLIT("\"Regex\": \"[a-z]+\"", "Isolated", "true"), s, "the|-|final|--|countdown");
    check_pieces(SPLIT("\"Regex\": \"-\"", "MergedWithPrevious", "false"), "--a-", "-|-|a-");
    check_pieces(SPLIT("\"Regex\": \"-\"", "MergedWithNext", "false"), "a--", "a|-|-");
    check_pieces(SPLIT("\"Regex\": \"-\"", "MergedWithPrevious", "true"), "ab-c-", "ab|-c|-");
    check_pieces(SPLIT("\"Regex\": \"zz\"", "Isolated", "false"), "abc", "abc");
    check_pieces(SPLIT("\"Regex\": \"abc\"", "Removed", "false"), "abc", "");
    /* Matches of nothing cut too. */
    check_pieces(SPLIT("\"Regex\": \"(?=b)\"", "Isolated", "false"), "abcbb", "a|bc|b|b");
    check_pieces(SPLIT("\"Regex\": \"x*\"", "Isolated", "false"), "axxb", "a|xx|b");
    check_pieces(SPLIT("\"Regex\": \"x*\"", "Isolated", "false"), "\u00e9\u00e9", "\u00e9|\u00e9");
    check_pieces(SPLIT("\"String\": \"aa\"", "Isolated", "false"), "aaaaa", "aa|aa|a");
}
END_TEST

START_TEST(test_steps)
{
    check_pieces(SEQ("{\"type\": \"Digits\", \"individual_digits\": true}"), "a12 3\u0664\u2167b",
                 "a|1|2| |3|\u0664|\u2167|b");
    check_pieces(SEQ("{\"type\": \"Digits\", \"individual_digits\": false}"), "a12 3", "a|12| |3");
    check_pieces(SEQ("{\"type\": \"Digits\"}"), "12ab", "12|ab");
    check_pieces("{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "it's  a1!",
                 "it|'s| | a|1|!");
    check_pieces(BYTES, "it's  a1!", "it's  a1!");
    /* A Sequence in a Sequence; each step sees the pieces of the one before. */
    check_pieces("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Sequence\", "
                 "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"String\": \"-\"}, "
                 "\"behavior\": \"Removed\"}, {\"type\": \"Split\", \"pattern\": {\"Regex\": "
                 "\"^.\"}, \"behavior\": \"Isolated\"}]}, " BYTES "]}",
                 "ab-cd", "a|b|c|d");
}
END_TEST

/* add_prefix_space puts a blank before each piece that has none; the token must be in the
 * vocabulary, so the text holds it. */
START_TEST(test_prefix_space)
{
    _cleanup_free_ char *json =
        pieces_json("{\"type\": \"ByteLevel\", \"use_regex\": false}", " a", "");
    struct tokenizer *t = fixture_from_json(json, NULL);
    /* substrings of " a": " " 0, "a" 1, " a" 2 */
    check_ids(t, "a", 1, 0, IDS(2), "no blank");
    check_ids(t, " a", 2, 0, IDS(2), "a blank");
    check_ids(t, "", 0, 0, NULL, 0, "empty");
    tokenizer_free(t);
}
END_TEST

START_TEST(test_regex_syntax)
{
#define RE(p) SPLIT("\"Regex\": \"" p "\"", "Isolated", "false")
    /* U+180E is no white space, U+0085 and U+3000 are; the same in brackets and negated. */
    check_pieces(RE("\\\\s+"), "a\u180e \xc2\x85\u3000b", "a\u180e| \xc2\x85\u3000|b");
    check_pieces(RE("[\\\\s]+"), "a\u180e \xc2\x85\u3000b", "a\u180e| \xc2\x85\u3000|b");
    check_pieces(RE("\\\\S+"), "a\u180e b", "a\u180e| |b");
    check_pieces(RE("[^\\\\S]+"), "a\u180e b", "a\u180e| |b");
    check_pieces(RE("[\\\\Sx]+"), "a\u180e\u2003b", "a\u180e|\u2003|b");
    check_pieces(RE("\\\\w+"), "\u00e9_1\u0301-\u2167", "\u00e9_1\u0301|-|\u2167");
    /* the reference's engine takes Latin-1's numerals for words outside brackets alone */
    check_pieces(RE("\\\\w+"), "a\u00b2\u24b6", "a\u00b2\u24b6");
    check_pieces(RE("[\\\\w]+"), "a\u00b2\u24b6", "a|\u00b2|\u24b6");
    check_pieces(RE("\\\\W+"), "a--b", "a|--|b");
    check_pieces(RE("[\\\\w-]+"), "a-b!", "a-b|!");
    check_pieces(RE("\\\\h+"), "xfFg", "x|fF|g");
    check_pieces(RE("\\\\H+"), "fxg", "f|xg");
    check_pieces(RE("[\\\\H]+"), "fxg", "f|xg");
    check_pieces(RE("\\\\d+|\\\\D"), "a12", "a|12");
    check_pieces(RE("\\\\u0061+"), "baab", "b|aa|b");
    check_pieces(RE("\\\\x61|\\\\x{e9}+"), "a\u00e9\u00e9b", "a|\u00e9\u00e9|b");
    check_pieces(RE("\\\\v"), "a\vb\nc", "a|\v|b\nc");
    check_pieces(RE("\\\\p{Lu}\\\\P{L}*"), "aB1c", "a|B1|c");
    check_pieces(RE("^a"), "a\na", "a|\n|a");
    check_pieces(RE("a$"), "a\na", "a|\n|a");
    check_pieces(RE("a."), "a\nab", "a\n|ab");
    check_pieces(RE("(?m:a.)"), "a\nb", "a\n|b");
    check_pieces(RE("(?i:S)+"), "sS\u017fx", "sS\u017f|x");
    check_pieces(RE("(?i)x|y"), "aXY", "a|X|Y");
    check_pieces(RE("(a)(?=b)|(?<=b)c|(?<!b)d|(?!x)e|(?>f)|(?:g)|(?#h)i"), "abcdefgi",
                 "a|b|c|d|e|f|g|i");
    check_pieces(RE("[\\\\]\\\\[\\\\-^]+"), "a]^-b", "a|]^-|b");
    check_pieces(RE("a{2}"), "aaab", "aa|ab");
}
END_TEST

/* ---- added tokens and their flags */

static struct tokenizer *with_added(const char *more_added, const char *more)
{
    return fixture_byte(more_added, more, NULL);
}

#define ADDED(flags) ", {\"id\": 300, \"content\": \"<x>\", " flags "}"

START_TEST(test_added_flags)
{
    struct tokenizer *t = with_added(ADDED("\"single_word\": true"), "");
    check_ids(t, "a<x>", 4, TOKENIZE_SPECIAL, IDS('a', '<', 'x', '>'), "word before");
    check_ids(t, "<x>\u00e9", 5, TOKENIZE_SPECIAL, IDS('<', 'x', '>', 0xc3, 0xa9), "word behind");
    check_ids(t, " <x>.", 5, TOKENIZE_SPECIAL, IDS(' ', 300, '.'), "alone");
    check_ids(t, "<x>", 3, TOKENIZE_SPECIAL, IDS(300), "whole");
    check_ids(t, "_<x>", 4, TOKENIZE_SPECIAL, IDS('_', '<', 'x', '>'), "underscore");
    tokenizer_free(t);

    t = with_added(ADDED("\"lstrip\": true"), "");
    check_ids(t, "a \t\u2003<x> b", 11, TOKENIZE_SPECIAL, IDS('a', 300, ' ', 'b'), "lstrip");
    check_ids(t, "<x> <x>", 7, TOKENIZE_SPECIAL, IDS(300, 300), "lstrip twice");
    tokenizer_free(t);

    t = with_added(ADDED("\"rstrip\": true"), "");
    check_ids(t, "a <x> \nb", 8, TOKENIZE_SPECIAL, IDS('a', ' ', 300, 'b'), "rstrip");
    check_ids(t, "<x>  ", 5, TOKENIZE_SPECIAL, IDS(300), "rstrip at the end");
    tokenizer_free(t);

    /* The leftmost, then the longest; not special ones are recognised too. */
    t = with_added(", {\"id\": 300, \"content\": \"<x>\"}, {\"id\": 301, \"content\": \"<x><y>\"}",
                   "");
    check_ids(t, "<x><y><x><x", 11, TOKENIZE_SPECIAL, IDS(301, 300, '<', 'x'), "longest");
    ck_assert(tokenizer_is_added(t, 300) && !tokenizer_is_special(t, 300));
    ck_assert(tokenizer_is_special(t, 256));
    uint32_t id;
    ck_assert(tokenizer_find_added(t, "<x><y>", 6, &id) && id == 301);
    ck_assert(!tokenizer_find_added(t, "<x><", 4, &id));
    tokenizer_free(t);
}
END_TEST

/* normalized: searched for in the normalised text, and in NFC itself. */
START_TEST(test_added_normalized)
{
    struct tokenizer *t =
        with_added(", {\"id\": 300, \"content\": \"e\\u0301!\", \"normalized\": true}"
                   ", {\"id\": 301, \"content\": \"e\\u0301?\"}",
                   "");
    check_ids(t, "\u00e9!", 3, TOKENIZE_SPECIAL, IDS(0xc3, 0xa9, '!'), "no normaliser");
    check_ids(t, "e\u0301!", 4, TOKENIZE_SPECIAL, IDS(300), "no normaliser, same text");
    tokenizer_free(t);
    _cleanup_free_ char *json =
        fixture_byte_json(", {\"id\": 300, \"content\": \"e\\u0301!\", \"normalized\": true}"
                          ", {\"id\": 301, \"content\": \"e\\u0301?\"}",
                          "");
    char *p = strstr(json, "\"normalizer\": null");
    _cleanup_strbuf_ struct strbuf nfc = {0};
    strbuf_add(&nfc, json, (size_t)(p - json));
    strbuf_adds(&nfc,
                "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}");
    strbuf_adds(&nfc, p + strlen("\"normalizer\": null"));
    t = fixture_from_json(nfc.s, NULL);
    check_ids(t, "\u00e9!", 3, TOKENIZE_SPECIAL, IDS(300), "composed");
    check_ids(t, "e\u0301!x", 5, TOKENIZE_SPECIAL, IDS(300, 'x'), "decomposed");
    check_ids(t, "e\u0301?\u00e9?", 7, TOKENIZE_SPECIAL, IDS(301, 0xc3, 0xa9, '?'), "raw");
    check_ids(t, "e\u0301!", 4, 0, IDS(0xc3, 0xa9, '!'), "not asked for");
    tokenizer_free(t);
}
END_TEST

/* A merge or a whole piece must not make a control token out of plain text. */
START_TEST(test_control_tokens_do_not_merge)
{
    _cleanup_free_ char *json = fixture_bpe_json(
        "{\"<\": 0, \"s\": 1, \">\": 2, \"<s\": 3, \"<s>\": 4, \"x\": 5}", "[\"< s\", \"<s >\"]",
        ", \"ignore_merges\": true",
        ", \"added_tokens\": [{\"id\": 4, \"content\": \"<s>\", \"special\": true}, "
        "{\"id\": 5, \"content\": \"x\", \"special\": true}]");
    struct tokenizer *t = fixture_from_json(json, NULL);
    size_t dropped = 0;
    _cleanup_token_list_ struct token_list l = {0};
    struct error err = {0};
    ck_ok(tokenizer_encode(t, "<s>x", 4, 0, &l, &dropped, &err), &err);
    compare_ids(l.ids, l.len, IDS(3, 2), "plain");
    ck_assert_uint_eq(dropped, 1);
    check_ids(t, "<s>x", 4, TOKENIZE_SPECIAL, IDS(4, 5), "special");
    tokenizer_free(t);
    /* The same for an eos_token that is an ordinary entry of the vocabulary. */
    _cleanup_free_ char *plain = fixture_bpe_json(
        "{\"<\": 0, \"s\": 1, \">\": 2, \"<s\": 3, \"<s>\": 4}", "[\"< s\", \"<s >\"]", "", "");
    t = fixture_from_json(plain, "{\"eos_token\": {\"content\": \"<s>\"}}");
    check_ids(t, "<s>", 3, 0, IDS(3, 2), "plain eos");
    check_ids(t, "<s>", 3, TOKENIZE_SPECIAL, IDS(4), "special eos");
    uint32_t eos;
    ck_assert(tokenizer_eos(t, &eos) && eos == 4 && tokenizer_is_special(t, 4));
    tokenizer_free(t);
}
END_TEST

START_TEST(test_unknown_bytes)
{
    static const struct {
        const char *more;
        uint32_t ids[6];
        size_t n, dropped;
    } cases[] = {
        {"", {0, 1}, 2, 4},
        {", \"unk_token\": \"?\"", {0, 2, 2, 1, 2, 2}, 6, 0},
        {", \"unk_token\": \"?\", \"fuse_unk\": true", {0, 2, 1, 2}, 4, 0},
        /* a control token never stands for a byte of the text */
        {", \"unk_token\": \"<u>\"", {0, 1}, 2, 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_free_ char *json =
            fixture_bpe_json("{\"a\": 0, \"b\": 1, \"?\": 2}", "[]", cases[i].more,
                             ", \"added_tokens\": [{\"id\": 3, \"content\": \"<u>\", \"special\": "
                             "true}]");
        struct tokenizer *t = fixture_from_json(json, NULL);
        _cleanup_token_list_ struct token_list l = {0};
        struct error err = {0};
        size_t dropped = 99;
        ck_ok(tokenizer_encode(t, "a\u00e9b\u00e9", 6, 0, &l, &dropped, &err), &err);
        compare_ids(l.ids, l.len, cases[i].ids, cases[i].n, cases[i].more);
        ck_assert_uint_eq(dropped, cases[i].dropped);
        tokenizer_free(t);
    }
}
END_TEST

/* ---- BOS and EOS */

#define TEMPLATE(before, after)                                                                    \
    "{\"type\": \"TemplateProcessing\", \"single\": [" before                                      \
    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}" after "], \"special_tokens\": "              \
    "{\"B\": {\"id\": \"B\", \"ids\": [256], \"tokens\": [\"<|endoftext|>\"]}, "                   \
    "\"two\": {\"id\": \"two\", \"ids\": [1, 2]}, \"far\": {\"id\": \"far\", \"ids\": [999]}}}"
#define TOKEN_B "{\"SpecialToken\": {\"id\": \"B\", \"type_id\": 0}}"
#define POST(p) ", \"post_processor\": " p
#define LEVEL   "{\"type\": \"ByteLevel\", \"trim_offsets\": true}"

START_TEST(test_bos)
{
    static const struct {
        const char *more, *config;
        bool bos;
    } cases[] = {
        {"", NULL, false},
        {POST(LEVEL), NULL, false},
        {POST(TEMPLATE("", "")), NULL, false},
        {POST(TEMPLATE(TOKEN_B ", ", "")), NULL, true},
        {POST("{\"type\": \"Sequence\", \"processors\": [" LEVEL
              ", " TEMPLATE(TOKEN_B ", ", "") "]}"),
         NULL, true},
        {POST(TEMPLATE(TOKEN_B ", ", "")), "{\"add_bos_token\": false}", false},
        {POST(TEMPLATE(TOKEN_B ", ", "")), "{\"add_bos_token\": true}", true},
        {"", "{\"add_bos_token\": true, \"bos_token\": \"<|endoftext|>\"}", true},
        {"", "{\"add_bos_token\": false, \"bos_token\": \"nowhere\"}", false},
        {"", "{\"bos_token\": null, \"eos_token\": null}", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t = fixture_byte("", cases[i].more, cases[i].config);
        uint32_t id = 0;
        ck_assert_msg(tokenizer_bos(t, &id) == cases[i].bos, "case %zu", i);
        if (cases[i].bos) {
            ck_assert_uint_eq(id, 256);
            check_ids(t, "x", 1, TOKENIZE_BOS, IDS(256, 'x'), "bos");
        }
        check_ids(t, "x", 1, 0, IDS('x'), "no bos");
        ck_assert(!tokenizer_eos(t, &id));
        tokenizer_free(t);
    }
}
END_TEST

/* tokenizer_config.json may bring added tokens of its own. */
START_TEST(test_added_decoder)
{
    struct tokenizer *t = fixture_byte(
        "", "",
        "{\"added_tokens_decoder\": {\"256\": {\"content\": \"<|endoftext|>\", \"special\": true}, "
        "\"270\": {\"content\": \"<new>\", \"special\": false}}, \"eos_token\": \"<|im_end|>\"}");
    uint32_t eos = 0;
    check_ids(t, "<new>", 5, TOKENIZE_SPECIAL, IDS(270), "new");
    ck_assert_uint_eq(tokenizer_n_tokens(t), 271);
    ck_assert(tokenizer_eos(t, &eos) && eos == 258);
    tokenizer_free(t);
}
END_TEST

/* ---- errors: each names the file, the key and the rule */

static void check_error(const char *json, const char *config, int code, const char *const *parts)
{
    struct tokenizer *t = NULL;
    struct error err = {0};
    int r = tokenizer_from_json(json, strlen(json), config, config ? strlen(config) : 0,
                                "dir/tokenizer.json", &t, &err);
    ck_assert_msg(r == code, "%.200s: %s: %s", json, error_name(r), err.msg);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(err.msg, "dir/tokenizer.json") != NULL, "no file: %s", err.msg);
    for (; *parts; parts++)
        ck_assert_msg(strstr(err.msg, *parts) != NULL, "\"%s\" is not in \"%s\"", *parts, err.msg);
}

#define PARTS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define PRE        ", \"pre_tokenizer\": " BYTES
#define MODEL(m)   "{\"model\": {\"type\": \"BPE\", " m "}" PRE "}"
#define AB         "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}"
#define ROOT(more) "{\"model\": {\"type\": \"BPE\", " AB ", \"merges\": []}" more "}"

struct bad {
    const char *json, *config;
    int code;
    const char *parts[4];
};

START_TEST(test_errors_of_model)
{
    static const struct bad cases[] = {
        {"", NULL, DEDIT_E_FORMAT, {"empty"}},
        {"[]", NULL, DEDIT_E_FORMAT, {"object"}},
        {"{", NULL, DEDIT_E_FORMAT, {":1:"}},
        {"{}", NULL, DEDIT_E_FORMAT, {"\"model\" is missing"}},
        {"{\"model\": 1}", NULL, DEDIT_E_FORMAT, {"model", "an object"}},
        {"{\"model\": {\"type\": \"Unigram\"}}", NULL, DEDIT_E_UNSUPPORTED, {"Unigram", "BPE"}},
        {MODEL("\"merges\": []"), NULL, DEDIT_E_FORMAT, {"\"model.vocab\" is missing"}},
        {MODEL("\"vocab\": [], \"merges\": []"), NULL, DEDIT_E_FORMAT, {"model.vocab"}},
        {MODEL("\"vocab\": {}, \"merges\": []"), NULL, DEDIT_E_FORMAT, {"model.vocab", "empty"}},
        {MODEL(AB), NULL, DEDIT_E_FORMAT, {"\"model.merges\" is missing"}},
        {MODEL("\"vocab\": {\"a\": -1}, \"merges\": []"),
         NULL,
         DEDIT_E_FORMAT,
         {"\"a\"", "integer"}},
        {MODEL("\"vocab\": {\"a\": 0.5}, \"merges\": []"), NULL, DEDIT_E_FORMAT, {"\"a\""}},
        {MODEL("\"vocab\": {\"a\": \"0\"}, \"merges\": []"), NULL, DEDIT_E_FORMAT, {"\"a\""}},
        {MODEL("\"vocab\": {\"a\": 2147483648}, \"merges\": []"),
         NULL,
         DEDIT_E_FORMAT,
         {"model.vocab", "\"a\"", "2147483647"}},
        {MODEL("\"vocab\": {\"a\": 2147483647}, \"merges\": []"),
         NULL,
         DEDIT_E_FORMAT,
         {"model.vocab", "2147483647", "far beyond"}},
        {MODEL("\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []"),
         NULL,
         DEDIT_E_FORMAT,
         {"\"b\"", "another token"}},
        {MODEL(AB ", \"merges\": {}"), NULL, DEDIT_E_FORMAT, {"model.merges"}},
        {MODEL(AB ", \"merges\": [\"ab\"]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]", "space"}},
        {MODEL(AB ", \"merges\": [\"a b\", \"a b c\"]"), NULL, DEDIT_E_FORMAT, {"model.merges[1]"}},
        {MODEL(AB ", \"merges\": [\" b\"]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]", "empty"}},
        {MODEL(AB ", \"merges\": [\"a x\"]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]", "\"x\""}},
        {MODEL(AB ", \"merges\": [\"x a\"]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]", "\"x\""}},
        {MODEL(AB ", \"merges\": [\"b a\"]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]", "\"ba\""}},
        {MODEL(AB ", \"merges\": [[\"a\"]]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]"}},
        {MODEL(AB ", \"merges\": [[\"a\", 1]]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]"}},
        {MODEL(AB ", \"merges\": [7]"), NULL, DEDIT_E_FORMAT, {"model.merges[0]"}},
        {MODEL(AB ", \"merges\": [], \"byte_fallback\": true"),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"byte_fallback"}},
        {MODEL(AB ", \"merges\": [], \"dropout\": 0.1"), NULL, DEDIT_E_UNSUPPORTED, {"dropout"}},
        {MODEL(AB ", \"merges\": [], \"dropout\": \"x\""), NULL, DEDIT_E_FORMAT, {"dropout"}},
        {MODEL(AB ", \"merges\": [], \"unk_token\": \"zz\""),
         NULL,
         DEDIT_E_FORMAT,
         {"unk_token", "zz"}},
        {MODEL(AB ", \"merges\": [], \"end_of_word_suffix\": \"</w>\""),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"end_of_word_suffix"}},
        {MODEL(AB ", \"merges\": [], \"continuing_subword_prefix\": \"##\""),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"continuing_subword_prefix"}},
        {MODEL(AB ", \"merges\": [], \"ignore_merges\": 1"),
         NULL,
         DEDIT_E_FORMAT,
         {"ignore_merges"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_error(cases[i].json, cases[i].config, cases[i].code, cases[i].parts);
}
END_TEST

#define TYPE(t) "{\"type\": \"" t "\"}"

START_TEST(test_errors_of_pipeline)
{
    static const struct bad cases[] = {
        {ROOT(""), NULL, DEDIT_E_UNSUPPORTED, {"pre_tokenizer", "ByteLevel"}},
        {ROOT(", \"pre_tokenizer\": " TYPE("Digits")), NULL, DEDIT_E_UNSUPPORTED, {"ByteLevel"}},
        {ROOT(", \"pre_tokenizer\": " TYPE("Metaspace")),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"Metaspace", "Split, Digits, ByteLevel"}},
        {ROOT(", \"pre_tokenizer\": {}"), NULL, DEDIT_E_FORMAT, {"pre_tokenizer.type"}},
        {ROOT(", \"pre_tokenizer\": 3"), NULL, DEDIT_E_FORMAT, {"pre_tokenizer"}},
        {ROOT(", \"pre_tokenizer\": {\"type\": \"Sequence\"}"),
         NULL,
         DEDIT_E_FORMAT,
         {"pre_tokenizer.pretokenizers"}},
        {ROOT(", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [1]}"),
         NULL,
         DEDIT_E_FORMAT,
         {"pre_tokenizer"}},
        {ROOT(", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" BYTES
              ", " TYPE("Digits") "]}"),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"Digits", "behind ByteLevel"}},
        {ROOT(", \"pre_tokenizer\": " SEQ("{\"type\": \"Split\", \"behavior\": \"Isolated\"}")),
         NULL,
         DEDIT_E_FORMAT,
         {"pretokenizers[0].pattern"}},
        {ROOT(", \"pre_tokenizer\": " SEQ(
             "{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}}")),
         NULL,
         DEDIT_E_FORMAT,
         {"pretokenizers[0].behavior"}},
        {ROOT(", \"pre_tokenizer\": " SPLIT("\"String\": \"a\"", "Odd", "false")),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"\"Odd\"", "MergedWithNext"}},
        {ROOT(", \"pre_tokenizer\": " SPLIT("\"String\": \"\"", "Removed", "false")),
         NULL,
         DEDIT_E_FORMAT,
         {"pretokenizers[0]", "empty"}},
        {ROOT(", \"pre_tokenizer\": " SPLIT("\"Regex\": 1", "Removed", "false")),
         NULL,
         DEDIT_E_FORMAT,
         {"pattern.Regex"}},
        {ROOT(", \"pre_tokenizer\": " SPLIT("\"Regex\": \"a(\"", "Removed", "false")),
         NULL,
         DEDIT_E_FORMAT,
         {"pretokenizers[0]", "broken regular expression"}},
        {ROOT(", \"pre_tokenizer\": " SPLIT("\"Regex\": \"a\"", "Removed", "1")),
         NULL,
         DEDIT_E_FORMAT,
         {"invert"}},
        {ROOT(PRE ", \"normalizer\": " TYPE("NFKC")),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"normalizer", "NFKC", "NFC"}},
        {ROOT(PRE ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [" TYPE(
             "NFC") ", " TYPE("Lowercase") "]}"),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"Lowercase"}},
        {ROOT(PRE POST(TYPE("RobertaProcessing"))),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"post_processor", "RobertaProcessing"}},
        {ROOT(PRE POST(TYPE("TemplateProcessing"))),
         NULL,
         DEDIT_E_FORMAT,
         {"post_processor.single"}},
        {ROOT(PRE ", \"decoder\": " TYPE("WordPiece")),
         NULL,
         DEDIT_E_UNSUPPORTED,
         {"decoder", "WordPiece"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_error(cases[i].json, cases[i].config, cases[i].code, cases[i].parts);

    static const struct {
        const char *post;
        int code;
        const char *part;
    } posts[] = {
        {TEMPLATE("", ", " TOKEN_B), DEDIT_E_UNSUPPORTED, "behind the text"},
        {TEMPLATE(TOKEN_B ", " TOKEN_B ", ", ""), DEDIT_E_UNSUPPORTED, "more before the text"},
        {TEMPLATE("{\"SpecialToken\": {\"id\": \"none\"}}, ", ""), DEDIT_E_FORMAT,
         "special_tokens"},
        {TEMPLATE("{\"SpecialToken\": {\"id\": \"two\"}}, ", ""), DEDIT_E_FORMAT, "one id"},
        {TEMPLATE("{\"SpecialToken\": {\"id\": \"far\"}}, ", ""), DEDIT_E_FORMAT, "999"},
        {TEMPLATE("{\"SpecialToken\": 1}, ", ""), DEDIT_E_FORMAT, "special_tokens"},
    };
    for (size_t i = 0; i < ARRAY_LEN(posts); i++) {
        char more[1024];
        snprintf(more, sizeof(more), POST("%s"), posts[i].post);
        _cleanup_free_ char *json = fixture_byte_json("", more);
        check_error(json, NULL, posts[i].code, PARTS(posts[i].part));
    }
}
END_TEST

/* Nested too deep, too many steps. */
START_TEST(test_errors_of_size)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    strbuf_adds(&b, "{\"model\": {" AB ", \"merges\": []}, \"pre_tokenizer\": ");
    for (int i = 0; i < 6; i++)
        strbuf_adds(&b, "{\"type\": \"Sequence\", \"pretokenizers\": [");
    strbuf_adds(&b, BYTES "]}]}]}]}]}]}}");
    check_error(b.s, NULL, DEDIT_E_LIMIT, PARTS("pre_tokenizer", "nested"));
    strbuf_clear(&b);
    strbuf_adds(&b,
                "{\"model\": {" AB ", \"merges\": []}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
                "\"pretokenizers\": [");
    for (int i = 0; i < 20; i++)
        strbuf_adds(&b, TYPE("Digits") ", ");
    strbuf_adds(&b, BYTES "]}}");
    check_error(b.s, NULL, DEDIT_E_LIMIT, PARTS("pretokenizers[16]", "16 steps"));
    strbuf_clear(&b);
    strbuf_adds(&b, "{\"added_tokens\": [{\"id\": 9, \"content\": \"");
    for (int i = 0; i < 1100; i++)
        strbuf_addc(&b, 'x');
    strbuf_adds(&b, "\"}], \"model\": {" AB ", \"merges\": []}" PRE "}");
    check_error(b.s, NULL, DEDIT_E_LIMIT, PARTS("added_tokens[0].content", "1100 bytes"));
    strbuf_clear(&b);
    strbuf_adds(&b, "{\"model\": {" AB ", \"merges\": [\"a ");
    for (int i = 0; i < 5000; i++)
        strbuf_addc(&b, 'x');
    strbuf_adds(&b, "\"]}" PRE "}");
    check_error(b.s, NULL, DEDIT_E_LIMIT, PARTS("model.merges[0]", "4096"));
    strbuf_clear(&b);
    strbuf_adds(&b,
                "{\"model\": {" AB ", \"merges\": []}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
                "\"pretokenizers\": [{\"type\": \"Split\", \"behavior\": \"Removed\", "
                "\"pattern\": {\"Regex\": \"");
    for (int i = 0; i < 17000; i++)
        strbuf_addc(&b, 'x');
    strbuf_adds(&b, "\"}}, " BYTES "]}}");
    check_error(b.s, NULL, DEDIT_E_LIMIT, PARTS("pretokenizers[0]", "17000 bytes"));
}
END_TEST

START_TEST(test_errors_of_regex)
{
    static const struct {
        const char *re;
        int code;
        const char *part;
    } cases[] = {
        {"[a[b]]", DEDIT_E_UNSUPPORTED, "a class in a class"},
        {"[[:alpha:]]", DEDIT_E_UNSUPPORTED, "POSIX"},
        {"[a&&b]", DEDIT_E_UNSUPPORTED, "&&"},
        {"[]a]", DEDIT_E_UNSUPPORTED, "]"},
        {"[^]a]", DEDIT_E_UNSUPPORTED, "]"},
        {"(*UTF)a", DEDIT_E_UNSUPPORTED, "(*"},
        {"a{1,2}+", DEDIT_E_UNSUPPORTED, "count"},
        {"(?<n>a)", DEDIT_E_UNSUPPORTED, "named"},
        {"(?P<n>a)", DEDIT_E_UNSUPPORTED, "group"},
        {"(?s)a", DEDIT_E_UNSUPPORTED, "group"},
        {"(?", DEDIT_E_UNSUPPORTED, "group"},
        {"(?<", DEDIT_E_UNSUPPORTED, "named"},
        {"a\\\\1", DEDIT_E_UNSUPPORTED, "\\1"},
        {"\\\\K", DEDIT_E_UNSUPPORTED, "\\K"},
        {"\\\\C", DEDIT_E_UNSUPPORTED, "\\C"},
        {"\\\\b", DEDIT_E_UNSUPPORTED, "\\b"},
        {"[\\\\W]", DEDIT_E_UNSUPPORTED, "\\W"},
        {"\\\\pL", DEDIT_E_UNSUPPORTED, "braces"},
        {"\\\\p{L", DEDIT_E_FORMAT, "not closed"},
        {"\\\\p{Nonsense}", DEDIT_E_FORMAT, "broken"},
        {"\\\\u12", DEDIT_E_FORMAT, "four"},
        {"a\\\\", DEDIT_E_FORMAT, "backslash"},
        {"[a", DEDIT_E_FORMAT, "broken"},
        {"(((((a){99}){99}){99}){99}){99}", DEDIT_E_FORMAT, "broken"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char json[512];
        snprintf(json, sizeof(json),
                 ROOT(", \"pre_tokenizer\": " SPLIT("\"Regex\": \"%s\"", "Removed", "false")),
                 cases[i].re);
        check_error(json, NULL, cases[i].code, PARTS("pretokenizers[0]", cases[i].part));
    }
}
END_TEST

START_TEST(test_errors_of_added)
{
#define ADD(list) "{\"added_tokens\": " list ", \"model\": {" AB ", \"merges\": []}" PRE "}"
    static const struct bad cases[] = {
        {ADD("{}"), NULL, DEDIT_E_FORMAT, {"added_tokens"}},
        {ADD("[1]"), NULL, DEDIT_E_FORMAT, {"added_tokens[0]"}},
        {ADD("[{\"content\": \"x\"}]"), NULL, DEDIT_E_FORMAT, {"added_tokens[0].id", "missing"}},
        {ADD("[{\"id\": -1, \"content\": \"x\"}]"), NULL, DEDIT_E_FORMAT, {"added_tokens[0].id"}},
        {ADD("[{\"id\": 2147483648, \"content\": \"x\"}]"),
         NULL,
         DEDIT_E_FORMAT,
         {"added_tokens[0].id"}},
        {ADD("[{\"id\": 2147483647, \"content\": \"x\"}]"), NULL, DEDIT_E_FORMAT, {"far beyond"}},
        {ADD("[{\"id\": 9}]"), NULL, DEDIT_E_FORMAT, {"added_tokens[0].content", "missing"}},
        {ADD("[{\"id\": 9, \"content\": \"x\", \"special\": 1}]"),
         NULL,
         DEDIT_E_FORMAT,
         {"added_tokens[0].special"}},
        {ADD("[{\"id\": 9, \"content\": \"x\"}, {\"id\": 9, \"content\": \"y\"}]"),
         NULL,
         DEDIT_E_FORMAT,
         {"added_tokens[1]", "\"x\"", "\"y\""}},
        {ADD("[{\"id\": 9, \"content\": \"x\"}, {\"id\": 8, \"content\": \"x\"}]"),
         NULL,
         DEDIT_E_FORMAT,
         {"added_tokens[1]", "8", "9"}},
        {ADD("[{\"id\": 1, \"content\": \"x\"}]"), NULL, DEDIT_E_FORMAT, {"\"b\"", "\"x\""}},
        {ADD("[{\"id\": 9, \"content\": \"ab\"}]"), NULL, DEDIT_E_FORMAT, {"\"ab\"", "9"}},
        {ROOT(PRE),
         "{\"added_tokens_decoder\": {\"x\": {}}}",
         DEDIT_E_FORMAT,
         {"tokenizer_config.json", "\"x\""}},
        {ROOT(PRE),
         "{\"added_tokens_decoder\": {\"5\": 1}}",
         DEDIT_E_FORMAT,
         {"tokenizer_config.json", "added_tokens_decoder.5"}},
        {ROOT(PRE),
         "{\"added_tokens_decoder\": {\"5\": {}}}",
         DEDIT_E_FORMAT,
         {"added_tokens_decoder.5.content"}},
        {ROOT(PRE), "{\"added_tokens_decoder\": []}", DEDIT_E_FORMAT, {"added_tokens_decoder"}},
        {ROOT(PRE), "[]", DEDIT_E_FORMAT, {"tokenizer_config.json"}},
        {ROOT(PRE), "{\"eos_token\": 5}", DEDIT_E_FORMAT, {"tokenizer_config.json", "eos_token"}},
        {ROOT(PRE), "{\"eos_token\": \"zz\"}", DEDIT_E_FORMAT, {"eos_token", "\"zz\""}},
        {ROOT(PRE), "{\"add_bos_token\": true}", DEDIT_E_FORMAT, {"add_bos_token", "bos_token"}},
        {ROOT(PRE),
         "{\"add_bos_token\": true, \"bos_token\": \"zz\"}",
         DEDIT_E_FORMAT,
         {"bos_token", "\"zz\""}},
        {ROOT(PRE), "{\"add_bos_token\": \"yes\"}", DEDIT_E_FORMAT, {"add_bos_token"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_error(cases[i].json, cases[i].config, cases[i].code, cases[i].parts);
}
END_TEST

/* Texts outside the alphabet stay what they are and never come out of text. */
START_TEST(test_odd_vocabulary)
{
    _cleanup_free_ char *json =
        fixture_bpe_json("{\"a\": 0, \"\\u00e9\": 1, \"b c\": 2, \"\": 3, \"z\": 9}", "[]", "", "");
    struct tokenizer *t = fixture_from_json(json, NULL);
    size_t n;
    ck_assert_uint_eq(tokenizer_n_tokens(t), 10);
    ck_assert_ptr_nonnull(tokenizer_token_bytes(t, 3, &n));
    ck_assert_uint_eq(n, 0);
    ck_assert_ptr_null(tokenizer_token_bytes(t, 4, &n));
    char *s = decode_all(t, IDS(0, 2, 3, 4, 9), 0);
    ck_assert_str_eq(s, "ab cz");
    mem_free(s);
    /* U+00E9 stands for the byte e9 there, which begins a character */
    s = decode_all(t, IDS(0, 1), 0);
    ck_assert_str_eq(s, "a\ufffd");
    mem_free(s);
    check_ids(t, "ab c", 4, 0, IDS(0), "only a");
    tokenizer_free(t);
}
END_TEST

/* Row DMN-05: numbers of a file mean the same under a locale with a decimal comma. */
START_TEST(test_locale)
{
    ck_assert_int_eq(setenv("LOCPATH", test_path("tests/data/locale"), 1), 0);
    ck_assert_ptr_nonnull(setlocale(LC_NUMERIC, "comma"));
    struct tokenizer *t =
        fixture_from_json(MODEL(AB ", \"merges\": [\"a b\"], \"dropout\": 0.0"), NULL);
    check_ids(t, "ab", 2, 0, IDS(2), "locale");
    tokenizer_free(t);
    check_error(MODEL(AB ", \"merges\": [], \"dropout\": 0.7"), NULL, DEDIT_E_UNSUPPORTED,
                PARTS("dropout"));
}
END_TEST

/* A pattern that explodes gives up with an error, soon. */
START_TEST(test_exploding_regex)
{
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabc";
    struct tokenizer *t = fixture_from_json(
        ROOT(", \"pre_tokenizer\": " SPLIT("\"Regex\": \"(?:a+)+c\"", "Removed", "false")), NULL);
    struct token_list l = {0};
    struct error err = {0};
    ck_fails(tokenizer_encode(t, text, strlen(text), 0, &l, NULL, &err), LIMIT, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "gave up"));
    tokenizer_free(t);
}
END_TEST

START_TEST(test_out_of_memory)
{
    static const char json[] =
        "{\"added_tokens\": [{\"id\": 9, \"content\": \"<\\u00e9\\u0301>\", \"normalized\": true}], "
        "\"normalizer\": {\"type\": \"NFC\"}, \"model\": {" AB ", \"merges\": [\"a b\"], "
        "\"unk_token\": \"a\"}, \"pre_tokenizer\": " SPLIT(
            "\"Regex\": \"\\\\s+[a-z]\"", "Isolated",
            "false") ", \"decoder\": " TYPE("ByteLevel") "}";
    static const char config[] =
        "{\"eos_token\": \"ab\", \"add_bos_token\": true, \"bos_token\": \"b\"}";
    for (struct test_oom o = {0}; test_oom_next(&o);) {
        struct tokenizer *t = NULL;
        struct error err = {0};
        int r = tokenizer_from_json(json, strlen(json), config, strlen(config), "t", &t, &err);
        ck_assert_msg(r == (o.failed ? DEDIT_E_NOMEM : 0), "%zu: %s: %s", o.nth, error_name(r),
                      err.msg);
        tokenizer_free(t);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer-load");
    TCase *t = test_case(s, "pipeline");
    tcase_add_test(t, test_split_behaviors);
    tcase_add_test(t, test_steps);
    tcase_add_test(t, test_prefix_space);
    tcase_add_test(t, test_regex_syntax);
    tcase_add_test(t, test_added_flags);
    tcase_add_test(t, test_added_normalized);
    tcase_add_test(t, test_control_tokens_do_not_merge);
    tcase_add_test(t, test_unknown_bytes);
    tcase_add_test(t, test_bos);
    tcase_add_test(t, test_added_decoder);
    tcase_add_test(t, test_odd_vocabulary);
    tcase_add_test(t, test_locale);
    tcase_add_test(t, test_exploding_regex);
    t = test_case(s, "errors");
    tcase_add_test(t, test_errors_of_model);
    tcase_add_test(t, test_errors_of_pipeline);
    tcase_add_test(t, test_errors_of_size);
    tcase_add_test(t, test_errors_of_regex);
    tcase_add_test(t, test_errors_of_added);
    t = test_case(s, "memory");
    tcase_add_test(t, test_out_of_memory);
    return test_main(s);
}
