/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors and the JSON helpers below it (known faults LOD-03, LOD-04). */
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "engine/json.h"
#include "engine/safetensors.h"
#include "tests/unit/modelgen.h"
#include "tests/unit/util.h"

#define FORMAT      DEDIT_E_FORMAT
#define UNSUPPORTED DEDIT_E_UNSUPPORTED
#define LIMIT       DEDIT_E_LIMIT

/* Most that a bad file may cost.  The thread sanitizer has four shadow bytes for each of ours. */
#ifdef __SANITIZE_THREAD__
#define MOST_KIB (5 * 64 * 1024)
#else
#define MOST_KIB (64 * 1024)
#endif

static long peak_kib(void)
{
    struct rusage u;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_maxrss;
}

static void bad_bytes(const void *p, size_t n, int code, const char *word1, const char *word2)
{
    struct error err = {0};
    struct safetensors *s = NULL;
    void *exact = mem_memdup(p, n);
    long before = peak_kib();
    int r = safetensors_parse(exact, n, "bad.safetensors", &s, &err);
    ck_assert_msg(r == code, "%s (%s), wanted %s", error_name(r), err.msg, error_name(code));
    ck_assert_ptr_null(s);
    ck_assert_int_lt(peak_kib() - before, MOST_KIB);
    ck_assert_msg(strstr(err.msg, "bad.safetensors"), "no file name: %s", err.msg);
    ck_assert_msg(strstr(err.msg, word1), "no \"%s\": %s", word1, err.msg);
    ck_assert_msg(!word2 || strstr(err.msg, word2), "no \"%s\": %s", word2, err.msg);
    mem_free(exact);
}

static void bad(const char *header, size_t n_data, int code, const char *word1, const char *word2)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    st_file(&b, header, n_data);
    bad_bytes(b.s, b.len, code, word1, word2);
}

static struct safetensors *good(struct strbuf *b, const char *header, size_t n_data)
{
    struct error err = {0};
    struct safetensors *s = NULL;
    st_file(b, header, n_data);
    ck_ok(safetensors_parse(b->s, b->len, "good.safetensors", &s, &err), &err);
    return s;
}

/* ---- LOD-04 ------------------------------------------------------------------------------------ */

START_TEST(offsets_and_shapes)
{
    bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[32,8],\"data_offsets\":[0,65536]}}", 65536, FORMAT,
        "\"t\"", "hold 65536 bytes, its shape and dtype need 1024");
    bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4, FORMAT,
        "\"t\"", "need 4000000");
    bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", 16, FORMAT, "\"t\"",
        "data_offsets");
    bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", 16, FORMAT, "\"t\"",
        "begin 16 is after end 0");
    bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
        FORMAT, "\"t\"", "2^64 elements");
    bad("{\"t\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
        FORMAT, "\"t\"", "2^64 bytes");
    bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 15, FORMAT, "\"t\"",
        "ends at byte");
    bad("{\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[9223372036854775807,"
        "9223372036854775807]}}",
        0, FORMAT, "\"t\"", "ends at byte");
}
END_TEST

START_TEST(cover)
{
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}",
        24, FORMAT, "\"a\" and \"b\"", "overlap");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[20,36]}}",
        36, FORMAT, "\"b\"", "4 bytes before");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 17, FORMAT, "\"a\"",
        "1 bytes after");
    bad("{}", 1, FORMAT, "1 bytes after", NULL);
}
END_TEST

START_TEST(prefixes)
{
    uint8_t b[16] = {0};
    uint64_t v = UINT64_MAX;
    memcpy(b, &v, sizeof(v));
    bad_bytes(b, sizeof(b), FORMAT, "18446744073709551615", "at most 100000000");
    v = 100000001;
    memcpy(b, &v, sizeof(v));
    bad_bytes(b, sizeof(b), FORMAT, "100000001", "at most 100000000");
    v = 100000000;
    memcpy(b, &v, sizeof(v));
    bad_bytes(b, sizeof(b), FORMAT, "100000000", "the file has 16 bytes");
    bad_bytes(b, 7, FORMAT, "7 bytes are too few", NULL);
    bad_bytes(b, 0, FORMAT, "0 bytes are too few", NULL);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    bad_bytes(pointer, sizeof(pointer) - 1, FORMAT, "Git LFS pointer", NULL);
    v = 0;
    memcpy(b, &v, sizeof(v));
    bad_bytes(b, 8, FORMAT, "empty", NULL);
}
END_TEST

START_TEST(headers)
{
    bad("[]", 0, FORMAT, "must be a JSON object, is an array", NULL);
    bad("{\"a\":", 0, FORMAT, ":1:", NULL);
    bad("{\"a\":{},\"a\":{}}", 0, FORMAT, "duplicate", "a");
    bad("{\"a\":1}", 0, FORMAT, "\"a\"", "object");
    bad("{\"a\":{\"shape\":[1]}}", 0, FORMAT, "\"a\"", "dtype");
    bad("{\"a\":{\"dtype\":1}}", 0, FORMAT, "\"a\"", "dtype");
    bad("{\"a\":{\"dtype\":\"F32\"}}", 0, FORMAT, "\"a\"", "shape");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0, FORMAT, "\"a\"",
        "shape[0]");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,0]}}", 0, FORMAT, "\"a\"",
        "shape[0]");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
        UNSUPPORTED, "\"a\"", "9 dimensions");
    bad("{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, UNSUPPORTED,
        "\"a\"", "F8_E4M3");
    bad("{\"__metadata__\":[]}", 0, FORMAT, "__metadata__", NULL);
    bad("{\"__metadata__\":{\"k\":1}}", 0, FORMAT, "\"k\"", "string");
    bad("{\"\xff\":1}", 0, FORMAT, ":1:3: ", "UTF-8");
}
END_TEST

START_TEST(must_load)
{
    _cleanup_strbuf_ struct strbuf b1 = {0}, b2 = {0}, b3 = {0}, b4 = {0};
    struct safetensors *s =
        good(&b1, "{\"t\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4);
    ck_assert_uint_eq(safetensors_at(s, 0)->n_dims, 0);
    ck_assert_uint_eq(safetensors_at(s, 0)->bytes, 4);
    safetensors_free(s);
    s = good(&b2, "{\"t\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]}}", 0);
    ck_assert_uint_eq(safetensors_at(s, 0)->bytes, 0);
    safetensors_free(s);
    s = good(&b3, "{\"t\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}      ", 4);
    ck_assert_uint_eq(*(const uint8_t *)safetensors_at(s, 0)->data, 0);
    safetensors_free(s);
    s = good(&b4, "{\"__metadata__\":{\"format\":\"pt\"}}", 0);
    ck_assert_uint_eq(safetensors_count(s), 0);
    ck_assert_str_eq(safetensors_path(s), "good.safetensors");
    safetensors_free(s);
}
END_TEST

START_TEST(look_up)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    /* The file's order is not the data's order. */
    struct safetensors *s =
        good(&b,
             "{\"z\":{\"dtype\":\"I64\",\"shape\":[2,1],\"data_offsets\":[2,18]},"
             "\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
             18);
    const struct st_tensor *z = safetensors_find(s, "z"), *a = safetensors_find(s, "a");
    ck_assert_ptr_eq(z, safetensors_at(s, 0));
    ck_assert_ptr_eq(a, safetensors_at(s, 1));
    ck_assert_ptr_null(safetensors_at(s, 2));
    ck_assert_ptr_null(safetensors_find(s, "b"));
    ck_assert_int_eq(z->dtype, ST_I64);
    ck_assert_uint_eq(z->n_dims, 2);
    ck_assert_uint_eq(z->dims[0], 2);
    ck_assert_uint_eq(*(const uint8_t *)z->data, 2);
    ck_assert_uint_eq(*(const uint8_t *)a->data, 0);
    safetensors_free(s);
    ck_assert_ptr_null(safetensors_free(NULL));
}
END_TEST

START_TEST(dtypes)
{
    static const struct {
        const char *name;
        size_t bytes;
    } all[ST_DTYPE_COUNT] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                             {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U64", 8},  {"U32", 4},
                             {"U16", 2}, {"U8", 1},  {"BOOL", 1}};
    for (int i = 0; i < ST_DTYPE_COUNT; i++) {
        _cleanup_strbuf_ struct strbuf b = {0};
        char header[128];
        snprintf(header, sizeof(header),
                 "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}", all[i].name,
                 3 * all[i].bytes);
        struct safetensors *s = good(&b, header, 3 * all[i].bytes);
        ck_assert_int_eq(safetensors_at(s, 0)->dtype, i);
        ck_assert_str_eq(st_dtype_name((enum st_dtype)i), all[i].name);
        ck_assert_uint_eq(st_dtype_bytes((enum st_dtype)i), all[i].bytes);
        safetensors_free(s);
    }
}
END_TEST

START_TEST(every_prefix_and_bit)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct error err = {0};
    struct safetensors *s = NULL;
    st_file(&b,
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
            "\"b\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[16,22]}}",
            22);
    for (size_t n = 0; n < b.len; n++) {
        void *exact = mem_memdup(b.s, n);
        ck_fails(safetensors_parse(exact, n, "cut", &s, &err), FORMAT, &err);
        mem_free(exact);
    }
    for (size_t bit = 0; bit < b.len * 8; bit++) {
        b.s[bit / 8] = (char)(b.s[bit / 8] ^ (1 << bit % 8));
        int r = safetensors_parse(b.s, b.len, "flip", &s, &err);
        ck_assert(r == 0 || r == err.code);
        if (r == 0)
            safetensors_free(s);
        b.s[bit / 8] = (char)(b.s[bit / 8] ^ (1 << bit % 8));
    }
}
END_TEST

START_TEST(open_file)
{
    struct error err = {0};
    struct safetensors *s = NULL;
    const char *path = test_path("tests/golden/gguf/dequant_blocks.safetensors");
    ck_ok(safetensors_open(path, &s, &err), &err);
    const struct st_tensor *t = safetensors_find(s, "Q6_K.raw");
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_eq(t->dims[0], 64);
    ck_assert_uint_eq(t->dims[1], 210);
    uint8_t last = ((const uint8_t *)t->data)[t->bytes - 1];
    safetensors_release(s, t->data, t->bytes);
    safetensors_release(s, &last, 1);
    ck_assert_uint_eq(((const uint8_t *)t->data)[t->bytes - 1], last);
    safetensors_free(s);
    ck_fails(safetensors_open(test_path("nothing"), &s, &err), NOT_FOUND, &err);
}
END_TEST

START_TEST(allocation_failures)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct test_oom oom = {0};
    size_t runs = 0;
    st_file(&b, "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    while (test_oom_next(&oom)) {
        struct error err = {0};
        struct safetensors *s = NULL;
        int r = safetensors_parse(b.s, b.len, "oom", &s, &err);
        ck_assert_msg(r == (oom.failed ? DEDIT_E_NOMEM : 0), "%zu: %s (%s)", runs, error_name(r),
                      err.msg);
        safetensors_free(s);
        runs++;
    }
    ck_assert_uint_gt(runs, 20);
}
END_TEST

/* ---- JSON helpers ------------------------------------------------------------------------------ */

static void bad_json(const char *text, size_t n, int code, const char *word)
{
    struct error err = {0};
    json_t *v = NULL;
    int r = js_parse(text, n, "x.json", &v, &err);
    ck_assert_msg(r == code, "%s (%s), wanted %s", error_name(r), err.msg, error_name(code));
    ck_assert_ptr_null(v);
    ck_assert_msg(strstr(err.msg, word), "no \"%s\": %s", word, err.msg);
}

START_TEST(json_bounds)
{
    bad_json("", 0, FORMAT, "empty");
    bad_json("{\"a\": 1,\n \"a\": 2}", 17, FORMAT, "x.json:2:");
    bad_json("{\"a\": \"\\u0000\"}", 15, FORMAT, "x.json:1:");
    bad_json("[1e999]", 7, FORMAT, "x.json:1:");
    bad_json("[9223372036854775808]", 21, FORMAT, "x.json:1:");
    bad_json("[\"\xc3\x28\"]", 6, FORMAT, "x.json:1:");
    bad_json("[1] 2", 5, FORMAT, "x.json:1:");
    char deep[200];
    memset(deep, '[', 100);
    bad_json(deep, 100, LIMIT, "x.json:1:65: nested deeper than 64");
    memset(deep + 100, ']', 100);
    bad_json(deep, 200, LIMIT, "nested deeper");
    struct error err = {0};
    json_t *v = NULL;
    ck_ok(js_parse(deep + 36, 128, "x.json", &v, &err), &err);
    json_decref(v);
    /* Brackets in strings are not nesting. */
    memset(deep, '[', sizeof(deep));
    deep[0] = '"';
    deep[1] = '\\';
    deep[2] = '"';
    deep[199] = '"';
    ck_ok(js_parse(deep, 200, "x.json", &v, &err), &err);
    json_decref(v);
}
END_TEST

/* An empty object costs a hundred times its text: a small file may not take much memory. */
START_TEST(json_memory)
{
    size_t n = 3 * 300000 + 2, at = 0;
    char *text = mem_alloc(n);
    struct error err = {0};
    json_t *v = NULL;
    text[at++] = '[';
    while (at + 4 <= n) {
        memcpy(text + at, "{},", 3);
        at += 3;
    }
    text[at - 1] = ']';
    long before = peak_kib();
    int r = js_parse(text, at, "x.json", &v, &err);
    ck_assert_msg(r == LIMIT, "%s: %s", error_name(r), err.msg);
    ck_assert_ptr_nonnull(strstr(err.msg, "MiB"));
    ck_assert_int_lt(peak_kib() - before, MOST_KIB);
    mem_free(text);
}
END_TEST

START_TEST(json_members)
{
    static const char text[] =
        "{\"u\": 7, \"neg\": -1, \"f\": 0.5, \"s\": \"x\", \"b\": true, \"nil\": null,"
        " \"arr\": [1], \"o\": {\"in\": {\"k\": \"v\"}}}";
    struct error err = {0};
    json_t *root = NULL, *arr;
    uint32_t u = 9;
    double d = 9;
    bool b = false;
    const char *s = NULL;
    struct js_obj o, sub, inner;
    ck_ok(js_parse_object(text, sizeof(text) - 1, "x.json", &root, &err), &err);
    o = js_root(root, "x.json");
    ck_ok(js_u32(&o, "u", 0, 10, &u, &err), &err);
    ck_assert_uint_eq(u, 7);
    ck_fails(js_u32(&o, "u", 8, 10, &u, &err), FORMAT, &err);
    ck_assert_str_eq(err.msg, "x.json: \"u\" must be from 8 to 10, is 7");
    ck_fails(js_u32(&o, "neg", 0, UINT32_MAX, &u, &err), FORMAT, &err);
    ck_fails(js_u32(&o, "f", 0, 9, &u, &err), FORMAT, &err);
    ck_assert_str_eq(err.msg, "x.json: \"f\" must be an integer, is a real number");
    ck_assert_int_eq(js_u32(&o, "nil", 0, 9, &u, &err), 1);
    ck_assert_int_eq(js_u32(&o, "none", 0, 9, &u, &err), 1);
    ck_assert_uint_eq(u, 7);
    ck_ok(js_f64(&o, "u", &d, &err), &err);
    ck_assert_double_eq(d, 7);
    ck_fails(js_f64(&o, "s", &d, &err), FORMAT, &err);
    ck_ok(js_bool(&o, "b", &b, &err), &err);
    ck_assert(b);
    ck_fails(js_bool(&o, "u", &b, &err), FORMAT, &err);
    ck_ok(js_str(&o, "s", &s, &err), &err);
    ck_fails(js_str(&o, "b", &s, &err), FORMAT, &err);
    ck_ok(js_array(&o, "arr", &arr, &err), &err);
    ck_fails(js_array(&o, "o", &arr, &err), FORMAT, &err);
    ck_fails(js_object(&o, "arr", &sub, &err), FORMAT, &err);
    ck_ok(js_object(&o, "o", &sub, &err), &err);
    ck_ok(js_object(&sub, "in", &inner, &err), &err);
    ck_fails(js_u32(&inner, "k", 0, 9, &u, &err), FORMAT, &err);
    ck_assert_str_eq(err.msg, "x.json: \"o.in.k\" must be an integer, is a string");
    json_decref(root);
    ck_fails(js_parse_object("[]", 2, "x.json", &root, &err), FORMAT, &err);
}
END_TEST

START_TEST(json_member_text)
{
    static const char text[] =
        " { \"a\" : [1, \"]}\\\"\"] ,\"bc\":{\"a\":0},\n\"c\": \"x,y\" , \"d\":4}";
    size_t at, len;
    static const struct {
        const char *key, *value;
    } cases[] = {{"a", "[1, \"]}\\\"\"] "}, {"bc", "{\"a\":0}"}, {"c", "\"x,y\" "}, {"d", "4"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ck_assert(js_member_text(text, sizeof(text) - 1, cases[i].key, &at, &len));
        ck_assert_uint_eq(len, strlen(cases[i].value));
        ck_assert(!memcmp(text + at, cases[i].value, len));
    }
    static const char *const none[] = {"b", "abc", "0", ""};
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        ck_assert(!js_member_text(text, sizeof(text) - 1, none[i], &at, &len));
    /* Broken texts end the search, wherever they are cut. */
    for (size_t n = 0; n < sizeof(text) - 1; n++)
        (void)js_member_text(text, n, "zz", &at, &len);
    static const char *const broken[] = {"", "[]", "{", "{\"a\"", "{\"a\":", "{\"a\" 1}", "{a:1}"};
    for (size_t i = 0; i < ARRAY_LEN(broken); i++)
        ck_assert(!js_member_text(broken[i], strlen(broken[i]), "b", &at, &len));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("safetensors");
    TCase *t = test_case(s, "bad");
    tcase_add_test(t, offsets_and_shapes);
    tcase_add_test(t, cover);
    tcase_add_test(t, prefixes);
    tcase_add_test(t, headers);
    tcase_add_test(t, every_prefix_and_bit);
    t = test_case(s, "good");
    tcase_add_test(t, must_load);
    tcase_add_test(t, look_up);
    tcase_add_test(t, dtypes);
    tcase_add_test(t, open_file);
    tcase_add_test(t, allocation_failures);
    t = test_case(s, "json");
    tcase_add_test(t, json_bounds);
    tcase_add_test(t, json_memory);
    tcase_add_test(t, json_members);
    tcase_add_test(t, json_member_text);
    return test_main(s);
}
