/* SPDX-License-Identifier: Apache-2.0 */
/* Every vector of tests/golden/tokenizer: ids, decoding, streams, bytes of tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/unit/text-fixture.h"
#include "tests/unit/util.h"

static const struct {
    const char *name;
    const struct tokenizer *(*load)(void);
} models[] = {{"smollm2", fixture_smollm2}, {"qwen3", fixture_qwen3}};

static void open_vectors(struct jsonl *j, int model, const char *kind)
{
    char rel[128];
    snprintf(rel, sizeof(rel), "tests/golden/tokenizer/%s.%s.jsonl", models[model].name, kind);
    jsonl_open(j, test_path(rel));
}

static void encode_line(const struct tokenizer *t, const struct jsonl *j, json_t *v,
                        const char *key, unsigned flags)
{
    char what[128];
    json_t *text = jsonl_get(j, v, "text");
    size_t n;
    uint32_t *want = json_ids(jsonl_get(j, v, key), &n);
    snprintf(what, sizeof(what), "%s:%d %s", j->path, j->number, key);
    check_ids(t, json_string_value(text), json_string_length(text), flags, want, n, what);
    free(want);
}

START_TEST(test_encode)
{
    const struct tokenizer *t = models[_i].load();
    struct jsonl j;
    int lines = 0;
    open_vectors(&j, _i, "encode");
    for (json_t *v; (v = jsonl_next(&j)); json_decref(v), lines++) {
        encode_line(t, &j, v, "ids", TOKENIZE_SPECIAL);
        encode_line(t, &j, v, "ids_nospecial", 0);
    }
    jsonl_close(&j);
    ck_assert_int_ge(lines, 900);
}
END_TEST

/* decode(ids) is "decoded" where the file says so, the text itself elsewhere. */
START_TEST(test_decode)
{
    const struct tokenizer *t = models[_i].load();
    struct jsonl j;
    int lines = 0;
    open_vectors(&j, _i, "encode");
    for (json_t *v; (v = jsonl_next(&j)); json_decref(v), lines++) {
        json_t *want = json_object_get(v, "decoded");
        if (!want)
            want = jsonl_get(&j, v, "text");
        size_t n;
        uint32_t *ids = json_ids(jsonl_get(&j, v, "ids"), &n);
        struct detokenizer d = {0};
        _cleanup_strbuf_ struct strbuf out = {0};
        for (size_t i = 0; i < n; i++)
            ck_assert_int_eq(detokenizer_push(&d, t, ids[i], 0, &out), 0);
        ck_assert_int_eq(detokenizer_flush(&d, &out), 0);
        ck_assert_msg(out.len == json_string_length(want) &&
                          !memcmp(out.s ? out.s : "", json_string_value(want), out.len),
                      "%s:%d: decoded to \"%s\"", j.path, j.number, out.s);
        free(ids);
    }
    jsonl_close(&j);
    ck_assert_int_ge(lines, 900);
}
END_TEST

START_TEST(test_stream)
{
    const struct tokenizer *t = models[_i].load();
    struct jsonl j;
    int lines = 0;
    open_vectors(&j, _i, "stream");
    for (json_t *v; (v = jsonl_next(&j)); json_decref(v), lines++) {
        json_t *emitted = jsonl_get(&j, v, "emitted");
        size_t n;
        uint32_t *ids = json_ids(jsonl_get(&j, v, "ids"), &n);
        struct detokenizer d = {0};
        _cleanup_strbuf_ struct strbuf out = {0};
        ck_assert_uint_eq(n, json_array_size(emitted));
        for (size_t i = 0; i <= n; i++) {
            const char *want =
                i < n ? json_string_value(json_array_get(emitted, i)) : jsonl_str(&j, v, "flush");
            strbuf_clear(&out);
            int r = i < n ? detokenizer_push(&d, t, ids[i], 0, &out) : detokenizer_flush(&d, &out);
            ck_assert_int_eq(r, 0);
            ck_assert_msg(out.len == strlen(want) && !memcmp(out.s ? out.s : "", want, out.len),
                          "%s:%d: token %zu gave \"%s\", want \"%s\"", j.path, j.number, i,
                          out.s ? out.s : "", want);
        }
        free(ids);
    }
    jsonl_close(&j);
    ck_assert_int_ge(lines, 60);
}
END_TEST

START_TEST(test_token_bytes)
{
    const struct tokenizer *t = models[_i].load();
    struct jsonl j;
    int lines = 0;
    open_vectors(&j, _i, "token_bytes");
    for (json_t *v; (v = jsonl_next(&j)); json_decref(v), lines++) {
        uint32_t id = (uint32_t)jsonl_int(&j, v, "id");
        const char *want = jsonl_str(&j, v, "hex");
        size_t n;
        const uint8_t *bytes = (const uint8_t *)tokenizer_token_bytes(t, id, &n);
        _cleanup_strbuf_ struct strbuf hex = {0};
        ck_assert_ptr_nonnull(bytes);
        for (size_t i = 0; i < n; i++)
            strbuf_addf(&hex, "%02x", bytes[i]);
        ck_assert_str_eq(hex.s, want);
        ck_assert_int_eq(tokenizer_is_added(t, id), json_is_true(jsonl_get(&j, v, "added")));
        ck_assert_int_eq(tokenizer_is_special(t, id), json_is_true(jsonl_get(&j, v, "special")));
    }
    jsonl_close(&j);
    ck_assert_int_ge(lines, 390);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer-golden");
    TCase *t = test_case(s, "golden");
    int n = (int)ARRAY_LEN(models);
    for (int i = 0; i < n; i++)
        models[i].load();
    tcase_add_loop_test(t, test_encode, 0, n);
    tcase_add_loop_test(t, test_decode, 0, n);
    tcase_add_loop_test(t, test_stream, 0, n);
    tcase_add_loop_test(t, test_token_bytes, 0, n);
    int r = test_main(s);
    fixture_done();
    return r;
}
