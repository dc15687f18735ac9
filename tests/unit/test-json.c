/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON parser: against jansson's own, its bounds and messages, memory running out. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/json.h"
#include "tests/unit/text-fixture.h"
#include "tests/unit/util.h"

/* Both parsers accept the text and make the same value, or both refuse it. */
static void check_same(const char *text, size_t len)
{
    json_error_t e;
    struct error err = {0};
    json_t *a = NULL;
    json_t *b = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    int r = js_parse(text, len, "x", &a, &err);
    ck_assert_msg((r == 0) == (b != NULL), "\"%.*s\": here %s (%s), jansson: %s", (int)len, text,
                  error_name(r), err.msg, b ? "ok" : e.text);
    ck_assert(r == 0 || r == DEDIT_E_FORMAT);
    if (b)
        ck_assert_msg(json_equal(a, b), "\"%.*s\": other value", (int)len, text);
    json_decref(a);
    json_decref(b);
}

static const char *const texts[] = {
    "{}",
    "[]",
    "[[],{}]",
    "{\"a\": [1, -2, 0, -0, 3.5, 1e5, 1E-5, -0.0e+1, 9223372036854775807, -9223372036854775808]}",
    "[9223372036854775808]",
    "[-9223372036854775809]",
    "[1e400]",
    "[-1e400]",
    "[1e-400]",
    "[true, false, null]",
    "\"x\"",
    "7",
    "null",
    " \t\r\n[ 1 , 2 ] \n",
    "[1,]",
    "[,1]",
    "[1 2]",
    "{\"a\" 1}",
    "{\"a\":}",
    "{\"a\":1,}",
    "{a:1}",
    "{\"a\":1 \"b\":2}",
    "{\"a\":1,\"a\":2}",
    "{\"\":1}",
    "[",
    "{",
    "{\"a\"",
    "{\"a\":1",
    "[1",
    "]",
    "}",
    "\"",
    "\"\\",
    "[01]",
    "[-]",
    "[+1]",
    "[.5]",
    "[5.]",
    "[1e]",
    "[1e+]",
    "[0x1]",
    "[1.5.5]",
    "[tru]",
    "[truex]",
    "[nul]",
    "[NaN]",
    "[1] 2",
    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\ud83d\\ude00\"]",
    "[\"\\ud83d\"]",
    "[\"\\ude00\"]",
    "[\"\\ud83d\\u0041\"]",
    "[\"\\ud83dx\"]",
    "[\"\\u12\"]",
    "[\"\\u00zz\"]",
    "[\"\\x41\"]",
    "[\"\\u0000\"]",
    "[\"a\tb\"]",
    "[\"a\nb\"]",
    "[\"\x7f\"]",
    "[\"\xc3\xa9\"]",
    "[\"\xc3\"]",
    "[\"\xc0\x80\"]",
    "[\"\xed\xa0\x80\"]",
    "[\"\xf4\x90\x80\x80\"]",
    "\xef\xbb\xbf[]",
    "'a'",
    "[1]//",
};

START_TEST(test_same_as_jansson)
{
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        check_same(texts[i], strlen(texts[i]));
    /* Every cut of a text, and random bytes changed in it. */
    uint64_t seed = 17;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        size_t len = strlen(texts[i]);
        for (size_t n = 1; n < len; n++)
            check_same(texts[i], n);
        for (int k = 0; k < 300; k++) {
            char *s = mem_strndup(texts[i], len);
            for (uint64_t n = 1 + test_random(&seed) % 3; n > 0; n--) {
                static const char some[] = "[]{}\",:0189.eE+-\\utfn \n\x80\xc3\xe2"
                                           "a";
                s[test_random(&seed) % len] = some[test_random(&seed) % (sizeof(some) - 1)];
            }
            check_same(s, len);
            mem_free(s);
        }
    }
}
END_TEST

static void check_error(const char *text, int code, const char *want)
{
    json_t *v = NULL;
    struct error err = {0};
    int r = js_parse(text, strlen(text), "f.json", &v, &err);
    ck_assert_msg(r == code, "%s: %s", text, error_name(r));
    ck_assert_msg(!strncmp(err.msg, want, strlen(want)), "got \"%s\", want \"%s\"", err.msg, want);
    ck_assert_ptr_null(v);
}

START_TEST(test_messages)
{
    check_error("", DEDIT_E_FORMAT, "f.json: is empty");
    check_error("[1,\n 2\n x]", DEDIT_E_FORMAT, "f.json:3:2: ',' or ']' is missing");
    check_error("{\"a\": 1,\n\"b\"; 2}", DEDIT_E_FORMAT, "f.json:2:4: ':' is missing");
    check_error("{\"a\": 1, \"a\": 2}", DEDIT_E_FORMAT, "f.json:1:10: duplicate object key");
    json_t *line = NULL;
    struct error e = {0};
    ck_fails(js_parse_line("{\"a\": x}", 8, "f.jsonl", 7, &line, &e), FORMAT, &e);
    ck_assert_str_eq(e.msg, "f.jsonl:7:7: not a value of JSON");
    ck_fails(js_parse("\xef\xbb\xbf{}", 5, "f.json", &line, &e), FORMAT, &e);
    ck_assert_str_eq(
        e.msg, "f.json:1:1: begins with a byte order mark (EF BB BF), which JSON has not");
    ck_fails(js_parse_line("[]", 2, "f.jsonl", 7, &line, &e), FORMAT, &e);
    ck_assert_str_eq(e.msg, "f.jsonl:7: must be a JSON object, is an array");
    ck_fails(js_parse_line("\xfd"
                           "7zXZ\0.",
                           7, "f.xz", 1, &line, &e),
             FORMAT, &e);
    ck_assert_str_eq(e.msg, "f.xz: is compressed; \"xz -dk f.xz\" makes the file that is read");
    check_error("[\"abc", DEDIT_E_FORMAT, "f.json:1:2: the string is not closed");
    check_error("[\"a\\q\"]", DEDIT_E_FORMAT, "f.json:1:4: not an escape");
    check_error("[123456789012345678901]", DEDIT_E_FORMAT, "f.json:1:2: the integer");
    check_error("[1e999]", DEDIT_E_FORMAT, "f.json:1:2: the number is too large");
    check_error("[", DEDIT_E_FORMAT, "f.json:1:2: a value is missing");
    check_error("{} {}", DEDIT_E_FORMAT, "f.json:1:4: something follows");
    json_t *v = NULL;
    struct error err = {0};
    ck_fails(js_parse_object("[]", 2, "f.json", &v, &err), FORMAT, &err);
    ck_assert_str_eq(err.msg, "f.json: must be a JSON object, is an array");
    /* a NUL inside the text */
    ck_fails(js_parse("[1\0]", 4, "f.json", &v, &err), FORMAT, &err);
    ck_fails(js_parse("[\"\0\"]", 5, "f.json", &v, &err), FORMAT, &err);
}
END_TEST

START_TEST(test_bounds)
{
    char deep[2 * JS_MAX_DEPTH + 3];
    json_t *v = NULL;
    struct error err = {0};
    for (int n = JS_MAX_DEPTH; n <= JS_MAX_DEPTH + 1; n++) {
        memset(deep, '[', (size_t)n);
        memset(deep + n, ']', (size_t)n);
        int r = js_parse(deep, 2 * (size_t)n, "f.json", &v, &err);
        ck_assert_int_eq(r, n > JS_MAX_DEPTH ? DEDIT_E_LIMIT : 0);
        json_decref(v);
        v = NULL;
    }
    ck_assert_msg(strstr(err.msg, "f.json:1:65: nested deeper"), "%s", err.msg);
    /* Two megabytes of empty objects would need two hundred. */
    size_t n = 2 << 20;
    char *s = mem_alloc(n);
    s[0] = '[';
    for (size_t i = 1; i + 3 <= n; i += 3)
        memcpy(s + i, "{},", 3);
    ck_fails(js_parse(s, n, "f.json", &v, &err), LIMIT, &err);
    ck_assert_msg(strstr(err.msg, "f.json: so many values"), "%s", err.msg);
    mem_free(s);
}
END_TEST

START_TEST(test_getters)
{
    json_t *v = NULL, *list = NULL;
    struct error err = {0};
    const char *text = "{\"n\": 5, \"big\": 5000000000, \"f\": 0.5, \"t\": true, \"s\": \"x\", "
                       "\"null\": null, \"a\": [1], \"o\": {\"p\": {\"q\": 1}}}";
    ck_ok(js_parse_object(text, strlen(text), "f", &v, &err), &err);
    struct js_obj o = js_root(v, "f"), sub, subsub;
    uint32_t n = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    ck_assert_int_eq(js_u32(&o, "n", 0, 9, &n, &err), 0);
    ck_assert_uint_eq(n, 5);
    ck_assert_int_eq(js_u32(&o, "none", 0, 9, &n, &err), 1);
    ck_assert_int_eq(js_u32(&o, "null", 0, 9, &n, &err), 1);
    ck_fails(js_u32(&o, "n", 6, 9, &n, &err), FORMAT, &err);
    ck_assert_str_eq(err.msg, "f: \"n\" must be from 6 to 9, is 5");
    ck_fails(js_u32(&o, "big", 0, UINT32_MAX, &n, &err), FORMAT, &err);
    ck_fails(js_u32(&o, "f", 0, 9, &n, &err), FORMAT, &err);
    ck_assert_int_eq(js_f64(&o, "f", &d, &err), 0);
    ck_assert(d > 0.4 && d < 0.6);
    ck_assert_int_eq(js_f64(&o, "n", &d, &err), 0);
    ck_fails(js_f64(&o, "s", &d, &err), FORMAT, &err);
    ck_assert(js_bool(&o, "t", &b, &err) == 0 && b);
    ck_fails(js_bool(&o, "n", &b, &err), FORMAT, &err);
    ck_assert(js_str(&o, "s", &s, &err) == 0 && !strcmp(s, "x"));
    ck_fails(js_str(&o, "a", &s, &err), FORMAT, &err);
    ck_assert_str_eq(err.msg, "f: \"a\" must be a string, is an array");
    ck_assert(js_array(&o, "a", &list, &err) == 0 && json_array_size(list) == 1);
    ck_fails(js_array(&o, "o", &list, &err), FORMAT, &err);
    ck_assert_int_eq(js_object(&o, "o", &sub, &err), 0);
    ck_assert_int_eq(js_object(&sub, "p", &subsub, &err), 0);
    ck_fails(js_str(&subsub, "q", &s, &err), FORMAT, &err);
    ck_assert_str_eq(err.msg, "f: \"o.p.q\" must be a string, is an integer");
    ck_fails(js_object(&o, "a", &sub, &err), FORMAT, &err);
    struct js_obj none = js_root(NULL, "f");
    ck_assert_int_eq(js_str(&none, "s", &s, &err), 1);
    json_decref(v);
}
END_TEST

START_TEST(test_locale)
{
    ck_assert_int_eq(setenv("LOCPATH", test_path("tests/data/locale"), 1), 0);
    ck_assert_ptr_nonnull(setlocale(LC_NUMERIC, "comma"));
    json_t *v = NULL;
    struct error err = {0};
    ck_ok(js_parse("[0.7,2]", 7, "f", &v, &err), &err);
    ck_assert_uint_eq(json_array_size(v), 2);
    double d = json_real_value(json_array_get(v, 0));
    ck_assert(d > 0.699 && d < 0.701);
    json_decref(v);
}
END_TEST

START_TEST(test_out_of_memory)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    strbuf_adds(&text, "{\"list\": [1, 2.5, \"a fairly long string with \\u00e9 \\n in it\", [");
    for (int i = 0; i < 40; i++)
        strbuf_addf(&text, "%s%d", i ? "," : "", i);
    strbuf_adds(&text, "]], \"");
    for (int i = 0; i < 200; i++)
        strbuf_addc(&text, 'k');
    strbuf_adds(&text, "\": {\"a\": null}");
    for (int i = 0; i < 40; i++)
        strbuf_addf(&text, ", \"key %d\": {}", i);
    strbuf_adds(&text, "}");
    for (struct test_oom o = {0}; test_oom_next(&o);) {
        json_t *v = NULL;
        struct error err = {0};
        int r = js_parse(text.s, text.len, "f", &v, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        json_decref(v);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json");
    TCase *t = test_case(s, "json");
    tcase_add_test(t, test_same_as_jansson);
    tcase_add_test(t, test_messages);
    tcase_add_test(t, test_bounds);
    tcase_add_test(t, test_getters);
    tcase_add_test(t, test_locale);
    tcase_add_test(t, test_out_of_memory);
    return test_main(s);
}
