/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/text-fixture.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/parse.h"
#include "engine/gguf.h"
#include "tests/unit/util.h"

static struct tokenizer *qwen3, *smollm2;
static struct gguf *smollm2_file;

static const char *built_path(const char *rel)
{
    static char path[512];
    const char *top = getenv("top_builddir");
    snprintf(path, sizeof(path), "%s/%s", top ? top : ".", rel);
    return path;
}

char *fixture_read_built(const char *rel, size_t *ret_len)
{
    struct error err = {0};
    char *s = NULL;
    if (file_read(built_path(rel), 64 << 20, &s, ret_len, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    return s;
}

static char *read_source(const char *rel, size_t *ret_len)
{
    struct error err = {0};
    char *s = NULL;
    if (file_read(test_path(rel), 64 << 20, &s, ret_len, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    return s;
}

const struct tokenizer *fixture_qwen3(void)
{
    if (!qwen3) {
        struct error err = {0};
        size_t n, n_config;
        char *json = fixture_read_built("tests/golden/qwen3-tokenizer/tokenizer.json", &n);
        char *config = read_source("tests/golden/qwen3-tokenizer/tokenizer_config.json", &n_config);
        if (tokenizer_from_json(json, n, config, n_config, "qwen3/tokenizer.json", &qwen3, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            exit(1);
        }
        mem_free(json);
        mem_free(config);
    }
    return qwen3;
}

const struct tokenizer *fixture_smollm2(void)
{
    if (!smollm2) {
        struct error err = {0};
        if (gguf_open(built_path("tests/golden/smollm2-tokenizer/tokenizer.gguf"), &smollm2_file,
                      &err) ||
            tokenizer_from_gguf(smollm2_file, &smollm2, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            exit(1);
        }
    }
    return smollm2;
}

void fixture_done(void)
{
    qwen3 = tokenizer_free(qwen3);
    smollm2 = tokenizer_free(smollm2);
    smollm2_file = gguf_free(smollm2_file);
}

void fixture_byte_char(unsigned byte, char out[5])
{
    unsigned n = 0;
    bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
    for (unsigned i = 0; i < byte; i++)
        n += !((i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i != 0xad));
    out[utf8_encode(printable ? byte : 0x100 + n, out)] = '\0';
}

char *fixture_byte_json(const char *more_added, const char *more)
{
    struct strbuf b = {0};
    static const char *const added[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"};
    strbuf_adds(&b, "{\"added_tokens\": [");
    for (unsigned i = 0; i < 4; i++)
        strbuf_addf(&b, "%s{\"id\": %u, \"content\": \"%s\", \"special\": true}", i ? ", " : "",
                    256 + i, added[i]);
    strbuf_addf(&b,
                "%s], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                "\"add_prefix_space\": false, \"use_regex\": true}%s, \"model\": "
                "{\"type\": \"BPE\", \"merges\": [], \"vocab\": {",
                more_added, more);
    for (unsigned i = 0; i < 256; i++) {
        char c[5];
        fixture_byte_char(i, c);
        strbuf_addf(&b, "%s\"%s%s\": %u", i ? ", " : "", c[0] == '"' || c[0] == '\\' ? "\\" : "", c,
                    i);
    }
    strbuf_adds(&b, "}}}");
    return b.s;
}

struct tokenizer *fixture_from_json(const char *json, const char *config)
{
    struct tokenizer *t = NULL;
    struct error err = {0};
    ck_ok(tokenizer_from_json(json, strlen(json), config, config ? strlen(config) : 0,
                              "tokenizer.json", &t, &err),
          &err);
    return t;
}

struct tokenizer *fixture_byte(const char *more_added, const char *more, const char *config)
{
    _cleanup_free_ char *json = fixture_byte_json(more_added, more);
    return fixture_from_json(json, config);
}

char *fixture_bpe_json(const char *vocab, const char *merges, const char *model_more,
                       const char *root_more)
{
    struct strbuf b = {0};
    bool has_pre = strstr(root_more, "\"pre_tokenizer\"") != NULL;
    strbuf_addf(&b, "{\"model\": {\"type\": \"BPE\", \"vocab\": %s, \"merges\": %s%s}%s%s}", vocab,
                merges, model_more,
                has_pre ? ""
                        : ", \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                          "\"add_prefix_space\": false, \"use_regex\": false}",
                root_more);
    return b.s;
}

static void ids_text(struct strbuf *b, const uint32_t *ids, size_t n)
{
    strbuf_addc(b, '[');
    for (size_t i = 0; i < n && i < 60; i++)
        strbuf_addf(b, "%s%u", i ? "," : "", ids[i]);
    strbuf_addf(b, "%s] (%zu)", n > 60 ? ",..." : "", n);
}

void compare_ids(const uint32_t *got, size_t n_got, const uint32_t *want, size_t n_want,
                 const char *what)
{
    if (n_got == n_want && (n_got == 0 || !memcmp(got, want, n_got * sizeof(*got))))
        return;
    struct strbuf a = {0}, b = {0};
    ids_text(&a, got, n_got);
    ids_text(&b, want, n_want);
    ck_abort_msg("%s: got %s, want %s", what, a.s, b.s);
}

void check_ids(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
               const uint32_t *want, size_t n, const char *what)
{
    _cleanup_token_list_ struct token_list l = {0};
    struct error err = {0};
    ck_ok(tokenizer_encode(t, text, len, flags, &l, NULL, &err), &err);
    compare_ids(l.ids, l.len, want, n, what);
}

uint32_t *json_ids(json_t *array, size_t *ret_n)
{
    *ret_n = json_array_size(array);
    uint32_t *ids = calloc(*ret_n + 1, sizeof(*ids));
    for (size_t i = 0; i < *ret_n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

char *decode_all(const struct tokenizer *t, const uint32_t *ids, size_t n, unsigned flags)
{
    struct detokenizer d = {0};
    struct strbuf b = {0};
    ck_assert_int_eq(strbuf_adds(&b, ""), 0);
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(detokenizer_push(&d, t, ids[i], flags, &b), 0);
    ck_assert_int_eq(detokenizer_flush(&d, &b), 0);
    return b.s;
}

uint64_t test_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

static uint32_t random_cp(uint64_t *state)
{
    static const uint32_t ranges[][2] = {
        {0x01, 0x7f},       {0x20, 0x7e},        {0x20, 0x7e},       {0x09, 0x0d},
        {0x30, 0x39},       {0x80, 0x24f},       {0x300, 0x36f},     {0x370, 0x52f},
        {0x5d0, 0x6ff},     {0x900, 0xdff},      {0x1100, 0x11ff},   {0x1e00, 0x1fff},
        {0x2000, 0x206f},   {0x2190, 0x23ff},    {0x3000, 0x30ff},   {0x4e00, 0x9fff},
        {0xac00, 0xd7a3},   {0xe000, 0xffff},    {0x10000, 0x1ffff}, {0x1f300, 0x1faff},
        {0x20000, 0x3ffff}, {0xe0000, 0x10ffff},
    };
    uint64_t r = test_random(state);
    const uint32_t *range = ranges[r % ARRAY_LEN(ranges)];
    return range[0] + (uint32_t)((r >> 32) % (range[1] - range[0] + 1));
}

char *random_text(uint64_t *state, size_t n, size_t *ret_len)
{
    struct strbuf b = {0};
    char c[4];
    ck_assert_int_eq(strbuf_adds(&b, ""), 0);
    for (size_t i = 0; i < n; i++) {
        uint32_t cp = random_cp(state);
        size_t repeat = test_random(state) % 16 ? 1 : 1 + test_random(state) % 40;
        for (size_t k = 0; k < repeat; k++)
            ck_assert_int_eq(strbuf_add(&b, c, utf8_encode(cp, c)), 0);
    }
    *ret_len = b.len;
    return b.s;
}
