/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF: look-ups, and every kind of bad file (known faults LOD-01, LOD-02, LOD-03). */
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/gguf.h"
#include "tests/unit/modelgen.h"
#include "tests/unit/util.h"

#define MIB (1L << 20)

static long peak_kib(void)
{
    struct rusage u;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_maxrss;
}

/* Seconds of processor time of this thread: what else the machine does is no part of it. */
static double worked(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* b must be refused: soon, in little memory, with every one of the words in the message. */
static void refused(const struct strbuf *b, size_t want_size, int code, const char *word1,
                    const char *word2)
{
    struct error err = {0};
    struct gguf *g = NULL;
    if (want_size)
        ck_assert_uint_eq(b->len, want_size);
    void *exact = mem_memdup(b->s, b->len);
    long before = peak_kib();
    double start = worked();
    int r = gguf_parse(exact, b->len, "bad.gguf", &g, &err);
    ck_assert_msg(r == code, "%s (%s), wanted %s", error_name(r), err.msg, error_name(code));
    ck_assert_ptr_null(g);
    ck_assert_double_lt(worked() - start, 1.0);
    ck_assert_int_lt(peak_kib() - before, 64 * MIB / 1024);
    ck_assert_msg(strstr(err.msg, "bad.gguf"), "no file name: %s", err.msg);
    ck_assert_msg(strstr(err.msg, word1), "no \"%s\": %s", word1, err.msg);
    ck_assert_msg(!word2 || strstr(err.msg, word2), "no \"%s\": %s", word2, err.msg);
    mem_free(exact);
}
#define FORMAT      DEDIT_E_FORMAT
#define UNSUPPORTED DEDIT_E_UNSUPPORTED

static void accepted(const struct strbuf *b)
{
    struct error err = {0};
    struct gguf *g = NULL;
    ck_ok(gguf_parse(b->s, b->len, "good.gguf", &g, &err), &err);
    gguf_free(g);
}

/* One tensor "t" behind an empty metadata section. */
static void one_tensor(struct strbuf *b, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                       uint64_t offset)
{
    strbuf_clear(b);
    gg_header(b, 3, 1, 0);
    gg_tensor(b, "t", n_dims, dims, type, offset);
}

/* ---- LOD-01: bad scalars ----------------------------------------------------------------------- */

START_TEST(bad_alignment)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    static const uint32_t bad[] = {0, 24, 1, 4, 1u << 21, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        strbuf_clear(&b);
        gg_header(&b, 3, 0, 1);
        gg_kv_u32(&b, "general.alignment", bad[i]);
        refused(&b, 57, FORMAT, "general.alignment", "power of two");
    }
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_kv_i32(&b, "general.alignment", 32);
    refused(&b, 57, FORMAT, "general.alignment", "must be a u32, is i32");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_kv_str(&b, "general.alignment", "32");
    refused(&b, 63, FORMAT, "general.alignment", "is string");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_kv_u32(&b, "general.alignment", 64);
    accepted(&b);
}
END_TEST

START_TEST(bad_shapes)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    one_tensor(&b, 2, (uint64_t[]){1, 0}, 0, 0);
    refused(&b, 65, FORMAT, "\"t\"", "dimension 1 is 0");
    one_tensor(&b, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 0);
    refused(&b, 89, FORMAT, "\"t\"", "1 to 4 dimensions, has 5");
    one_tensor(&b, 0, NULL, 0, 0);
    put_zeros(&b, 8);
    refused(&b, 0, FORMAT, "\"t\"", "has 0");
    one_tensor(&b, 1, (uint64_t[]){UINT64_MAX}, 0, 0);
    refused(&b, 57, FORMAT, "\"t\"", "63 bits");
    one_tensor(&b, 1, (uint64_t[]){33}, 8, 0);
    refused(&b, 57, FORMAT, "\"t\"", "blocks of 32 (Q8_0)");
}
END_TEST

START_TEST(bad_tensor_types)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    static const uint32_t unknown[] = {0xffff, 4, 5, 31, 36, 40, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
        one_tensor(&b, 1, (uint64_t[]){1}, unknown[i], 0);
        refused(&b, 57, UNSUPPORTED, "\"t\"", "supported: F32");
    }
}
END_TEST

START_TEST(bad_versions)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    static const uint32_t bad[] = {0, 1, 4, 99};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char word[32];
        strbuf_clear(&b);
        gg_header(&b, bad[i], 0, 0);
        snprintf(word, sizeof(word), "version %u", bad[i]);
        refused(&b, 24, UNSUPPORTED, word, "2 and 3 are supported");
    }
    strbuf_clear(&b);
    gg_header(&b, 3u << 24, 0, 0);
    refused(&b, 24, UNSUPPORTED, "big-endian", NULL);
    strbuf_clear(&b);
    put_bytes(&b, "GGML", 4);
    put_zeros(&b, 20);
    refused(&b, 24, FORMAT, "not a GGUF file", NULL);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    strbuf_clear(&b);
    put_bytes(&b, pointer, sizeof(pointer) - 1);
    refused(&b, 0, FORMAT, "Git LFS pointer", "git lfs pull");
    for (uint32_t v = 2; v <= 3; v++) {
        strbuf_clear(&b);
        gg_header(&b, v, 0, 0);
        accepted(&b);
    }
}
END_TEST

START_TEST(bad_keys)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    gg_header(&b, 3, 0, 1);
    gg_kv_u32(&b, "", 1);
    refused(&b, 0, FORMAT, "metadata key 0", "empty");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_kv_bool(&b, "flag", 2);
    refused(&b, 0, FORMAT, "\"flag\"", "0 or 1");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_kv_u32(&b, "\xff\xfe", 1);
    refused(&b, 0, FORMAT, "metadata key 0", "UTF-8");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    put_u64(&b, 3);
    put_bytes(&b, "a\0b", 3);
    put_u32(&b, GGUF_U32);
    put_u32(&b, 0);
    refused(&b, 0, FORMAT, "metadata key 0", "UTF-8");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 2);
    gg_kv_u32(&b, "same", 1);
    gg_kv_u32(&b, "same", 1);
    refused(&b, 0, FORMAT, "\"same\"", "twice");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_key(&b, "k", 13);
    put_zeros(&b, 8);
    refused(&b, 0, FORMAT, "\"k\"", "value type");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_key(&b, "k", GGUF_ARRAY);
    put_u32(&b, 13);
    put_u64(&b, 0);
    refused(&b, 0, FORMAT, "\"k\"", "element type");
}
END_TEST

START_TEST(bad_tensor_names)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    uint64_t one = 1, eight = 8;
    gg_header(&b, 3, 1, 0);
    gg_tensor(&b, "", 1, &one, 0, 0);
    put_zeros(&b, 1);
    refused(&b, 0, FORMAT, "tensor 0", "empty");
    char longest[300];
    memset(longest, 'n', sizeof(longest));
    longest[256] = '\0';
    strbuf_clear(&b);
    gg_header(&b, 3, 1, 0);
    gg_tensor(&b, longest, 1, &one, 0, 0);
    refused(&b, 0, FORMAT, "tensor 0", "at most 255");
    strbuf_clear(&b);
    gg_header(&b, 3, 2, 0);
    gg_tensor(&b, "twin", 1, &eight, 0, 0);
    gg_tensor(&b, "twin", 1, &eight, 0, 32);
    put_pad(&b, 32);
    put_zeros(&b, 64);
    refused(&b, 0, FORMAT, "\"twin\"", "twice");
}
END_TEST

/* ---- LOD-02: sizes and counts that wrap -------------------------------------------------------- */

START_TEST(wrapping_counts)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    gg_header(&b, 3, 1ull << 61, 0);
    refused(&b, 24, FORMAT, "2305843009213693952 tensors", NULL);
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1ull << 63);
    refused(&b, 24, FORMAT, "9223372036854775808 metadata keys", NULL);
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    put_u64(&b, 1ull << 63);
    put_bytes(&b, "x", 1);
    /* 33 bytes can not hold the smallest key; with room for one, its length is the fault. */
    refused(&b, 33, FORMAT, "metadata keys", NULL);
    put_zeros(&b, 8);
    refused(&b, 41, FORMAT, "metadata key 0", "9223372036854775808 bytes");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_key(&b, "k", GGUF_ARRAY);
    put_u32(&b, GGUF_U32);
    put_u64(&b, 1ull << 63);
    refused(&b, 49, FORMAT, "\"k\"", "longer than the rest");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_key(&b, "k", GGUF_ARRAY);
    put_u32(&b, GGUF_ARRAY);
    put_u64(&b, 1);
    refused(&b, 49, UNSUPPORTED, "\"k\"", "arrays of arrays");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_key(&b, "k", GGUF_ARRAY);
    put_u32(&b, GGUF_STRING);
    put_u64(&b, 1ull << 60);
    refused(&b, 49, FORMAT, "\"k\"", "more strings than fit");
    strbuf_clear(&b);
    gg_header(&b, 3, 0, 1);
    gg_key(&b, "k", GGUF_ARRAY);
    put_u32(&b, GGUF_STRING);
    put_u64(&b, 1);
    put_u64(&b, UINT64_MAX);
    refused(&b, 57, FORMAT, "\"k\"", "longer than the rest");
}
END_TEST

START_TEST(wrapping_tensors)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    one_tensor(&b, 2, (uint64_t[]){1ull << 32, 1ull << 31}, 0, 0);
    refused(&b, 65, FORMAT, "\"t\"", "63 bits");
    one_tensor(&b, 1, (uint64_t[]){(1ull << 62) - 1}, 0, 0);
    refused(&b, 57, FORMAT, "\"t\"", "63 bits");
    one_tensor(&b, 1, (uint64_t[]){8}, 0, UINT64_MAX - 31);
    put_zeros(&b, 64);
    refused(&b, 0, FORMAT, "\"t\"", "64 bits");
    uint64_t big = (1ull << 61) - 16;
    strbuf_clear(&b);
    gg_header(&b, 3, 2, 0);
    gg_tensor(&b, "a", 1, &big, 0, 0);
    gg_tensor(&b, "b", 1, &big, 0, (1ull << 63) - 64);
    put_zeros(&b, 96 - b.len);
    refused(&b, 96, FORMAT, "\"a\"", "the file has 96 bytes");
}
END_TEST

/* ---- LOD-03: cut files, and places ------------------------------------------------------------- */

START_TEST(cut_tensor)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    one_tensor(&b, 1, (uint64_t[]){32}, 0, 0);
    put_pad(&b, 32);
    put_zeros(&b, 127);
    refused(&b, 191, FORMAT, "\"t\"", "ends at byte 192, the file has 191 bytes");
    put_zeros(&b, 1);
    accepted(&b);
}
END_TEST

START_TEST(bad_offsets)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    uint64_t n = 32;
    one_tensor(&b, 1, (uint64_t[]){8}, 0, 4);
    put_zeros(&b, 96);
    refused(&b, 0, FORMAT, "\"t\"", "not a multiple of the alignment 32");
    strbuf_clear(&b);
    gg_header(&b, 3, 2, 0);
    gg_tensor(&b, "first", 1, &n, 0, 0);
    gg_tensor(&b, "second", 1, &n, 0, 96);
    put_pad(&b, 32);
    put_zeros(&b, 96 + 128);
    refused(&b, 0, FORMAT, "\"first\" and \"second\"", "overlap");
}
END_TEST

/* Every prefix of a good file is refused: the file ends with its last tensor. */
START_TEST(every_prefix)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct tiny t = tiny_new("qwen3");
    t.layers = 1;
    t.hidden = t.ffn = 8;
    t.head_dim = 2;
    t.vocab = 4;
    tiny_gguf(&t, &b);
    accepted(&b);
    for (size_t n = 0; n < b.len; n++) {
        struct error err = {0};
        struct gguf *g = NULL;
        void *exact = mem_memdup(b.s, n); /* so that a sanitizer sees the first byte too far */
        int r = gguf_parse(exact, n, "cut.gguf", &g, &err);
        ck_assert_msg(r == FORMAT, "%zu of %zu bytes: %s", n, b.len, error_name(r));
        ck_assert_msg(strstr(err.msg, "cut.gguf"), "%s", err.msg);
        mem_free(exact);
    }
}
END_TEST

/* Each single bit of the header turned over: an error or a file, never a crash. */
START_TEST(every_bit)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct tiny t = tiny_new("llama");
    t.layers = 1;
    t.hidden = t.ffn = 8;
    t.head_dim = 2;
    t.vocab = 4;
    tiny_gguf(&t, &b);
    size_t header = b.len - 8 * 4; /* all but the last tensor: the data hardly matters */
    size_t good = 0, bad = 0;
    for (size_t bit = 0; bit < header * 8; bit++) {
        struct error err = {0};
        struct gguf *g = NULL;
        b.s[bit / 8] = (char)(b.s[bit / 8] ^ (1 << bit % 8));
        int r = gguf_parse(b.s, b.len, "flip.gguf", &g, &err);
        ck_assert_msg(r == 0 || (r == err.code && strstr(err.msg, "flip.gguf")), "bit %zu: %s", bit,
                      err.msg);
        good += r == 0;
        bad += r != 0;
        gguf_free(g);
        b.s[bit / 8] = (char)(b.s[bit / 8] ^ (1 << bit % 8));
    }
    ck_assert_uint_gt(bad, 1000);
    ck_assert_uint_gt(good, 1000);
}
END_TEST

/* ---- look-ups ---------------------------------------------------------------------------------- */

static void all_types(struct strbuf *b)
{
    gg_header(b, 3, 0, 15);
    gg_key(b, "u8", GGUF_U8);
    put_bytes(b, "\xfe", 1);
    gg_key(b, "i8", GGUF_I8);
    put_bytes(b, "\xfe", 1);
    gg_key(b, "u16", GGUF_U16);
    put_bytes(b, "\xff\xff", 2);
    gg_key(b, "i16", GGUF_I16);
    put_bytes(b, "\x05\x00", 2);
    gg_kv_u32(b, "u32", UINT32_MAX);
    gg_kv_i32(b, "i32", -5);
    gg_kv_f32(b, "f32", 0.5f);
    gg_kv_bool(b, "bool", 1);
    gg_kv_str(b, "str", "h\xc3\xa9");
    gg_key(b, "u64", GGUF_U64);
    put_u64(b, 1ull << 32);
    gg_key(b, "i64", GGUF_I64);
    put_u64(b, 77);
    gg_key(b, "f64", GGUF_F64);
    double d = -2.25;
    put_bytes(b, &d, sizeof(d));
    gg_key(b, "strs", GGUF_ARRAY);
    put_u32(b, GGUF_STRING);
    put_u64(b, 50);
    for (int i = 0; i < 50; i++) {
        char s[8];
        snprintf(s, sizeof(s), "%.*s", i % 5, "abcde");
        gg_str(b, s);
    }
    gg_key(b, "ints", GGUF_ARRAY);
    put_u32(b, GGUF_I32);
    put_u64(b, 3);
    put_zeros(b, 12);
    gg_kv_f32(b, "nan", (float)NAN);
}

START_TEST(numbers)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct error err = {0};
    struct gguf *g = NULL;
    uint32_t u = 9;
    double d = 9;
    bool flag = false;
    all_types(&b);
    ck_ok(gguf_parse(b.s, b.len, "types.gguf", &g, &err), &err);
    static const struct {
        const char *key;
        uint32_t v;
    } good[] = {{"u8", 254}, {"u16", 65535}, {"i16", 5}, {"u32", UINT32_MAX}, {"i64", 77}};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ck_ok(gguf_get_u32(g, good[i].key, &u, &err), &err);
        ck_assert_uint_eq(u, good[i].v);
    }
    static const char *const bad[] = {"i8", "i32", "u64", "f32", "bool", "str", "strs"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_fails(gguf_get_u32(g, bad[i], &u, &err), FORMAT, &err);
        ck_assert_ptr_nonnull(strstr(err.msg, bad[i]));
    }
    ck_fails(gguf_get_u32(g, "i8", &u, &err), FORMAT, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "is -2"));
    u = 9;
    ck_assert_int_eq(gguf_get_u32(g, "none", &u, &err), 1);
    ck_assert_uint_eq(u, 9);
    ck_ok(gguf_get_f64(g, "f32", &d, &err), &err);
    ck_assert_double_eq(d, 0.5);
    ck_ok(gguf_get_f64(g, "f64", &d, &err), &err);
    ck_assert_double_eq(d, -2.25);
    ck_ok(gguf_get_f64(g, "i32", &d, &err), &err);
    ck_assert_double_eq(d, -5);
    ck_ok(gguf_get_f64(g, "u64", &d, &err), &err);
    ck_assert_double_eq(d, 4294967296.0);
    ck_fails(gguf_get_f64(g, "nan", &d, &err), FORMAT, &err);
    ck_fails(gguf_get_f64(g, "bool", &d, &err), FORMAT, &err);
    ck_assert_int_eq(gguf_get_f64(g, "none", &d, &err), 1);
    ck_ok(gguf_get_bool(g, "bool", &flag, &err), &err);
    ck_assert(flag);
    ck_fails(gguf_get_bool(g, "u8", &flag, &err), FORMAT, &err);
    ck_assert_int_eq(gguf_get_bool(g, "none", &flag, &err), 1);
    gguf_free(g);
}
END_TEST

START_TEST(strings_and_arrays)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct error err = {0};
    struct gguf *g = NULL;
    struct gguf_str s;
    struct gguf_str_iter it;
    uint64_t n = 0, i = 0;
    all_types(&b);
    ck_ok(gguf_parse(b.s, b.len, "types.gguf", &g, &err), &err);
    ck_assert_str_eq(gguf_path(g), "types.gguf");
    ck_ok(gguf_get_str(g, "str", &s, &err), &err);
    ck_assert_uint_eq(s.len, 3);
    ck_fails(gguf_get_str(g, "u8", &s, &err), FORMAT, &err);
    ck_assert_int_eq(gguf_get_str(g, "none", &s, &err), 1);
    ck_ok(gguf_get_array(g, "strs", GGUF_STRING, &n, &err), &err);
    ck_assert_uint_eq(n, 50);
    ck_fails(gguf_get_array(g, "strs", GGUF_I32, &n, &err), FORMAT, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "array of i32, is an array of string"));
    ck_fails(gguf_get_array(g, "u8", GGUF_I32, &n, &err), FORMAT, &err);
    ck_assert_int_eq(gguf_get_array(g, "none", GGUF_I32, &n, &err), 1);
    ck_ok(gguf_iter_strings(g, "strs", &it, &err), &err);
    while (gguf_iter_next(&it, &s)) {
        struct gguf_str same = gguf_array_str(g, "strs", i);
        ck_assert_uint_eq(s.len, i % 5);
        ck_assert(!memcmp(s.s, "abcde", s.len));
        ck_assert(same.s == s.s && same.len == s.len);
        i++;
    }
    ck_assert_uint_eq(i, 50);
    ck_assert_ptr_null(gguf_array_str(g, "strs", 50).s);
    ck_assert_ptr_null(gguf_array_str(g, "ints", 0).s);
    ck_assert_int_eq(gguf_iter_strings(g, "none", &it, &err), 1);
    ck_fails(gguf_iter_strings(g, "ints", &it, &err), FORMAT, &err);
    ck_assert_ptr_nonnull(gguf_array_data(g, "ints", GGUF_I32, &n));
    ck_assert_uint_eq(n, 3);
    ck_assert_ptr_null(gguf_array_data(g, "ints", GGUF_U32, &n));
    ck_assert_ptr_null(gguf_array_data(g, "strs", GGUF_STRING, &n));
    ck_assert_ptr_null(gguf_array_data(g, "u8", GGUF_U8, &n));
    gguf_free(g);
}
END_TEST

START_TEST(bad_text)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct error err = {0};
    struct gguf *g = NULL;
    struct gguf_str s;
    gg_header(&b, 3, 0, 1);
    gg_kv_str(&b, "general.name", "\xff");
    ck_ok(gguf_parse(b.s, b.len, "text.gguf", &g, &err), &err);
    ck_fails(gguf_get_str(g, "general.name", &s, &err), FORMAT, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "UTF-8"));
    gguf_free(g);
}
END_TEST

/* Sizes of the formats that kernels read are the kernels' own. */
START_TEST(type_sizes)
{
    static const uint32_t ids[] = {0, 1, 30, 8, 2, 3, 6, 7, 12, 13, 14};
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        _cleanup_strbuf_ struct strbuf b = {0};
        struct error err = {0};
        struct gguf *g = NULL;
        one_tensor(&b, 2, (uint64_t[]){512, 3}, ids[i], 0);
        put_pad(&b, 32);
        put_zeros(&b, 512 * 3 * 4);
        ck_ok(gguf_parse(b.s, b.len, "types.gguf", &g, &err), &err);
        const struct gguf_tensor *t = gguf_tensor_at(g, 0);
        const struct dk_type_info *info = dk_type_info(t->type);
        ck_assert_str_eq(t->type_name, info->name);
        ck_assert_uint_eq(t->bytes, (size_t)512 * 3 / info->block_elems * info->block_bytes);
        ck_assert_uint_eq(t->dims[0], 512);
        ck_assert_uint_eq(t->dims[1], 3);
        ck_assert_ptr_eq(gguf_tensor_find(g, "t"), t);
        ck_assert_ptr_null(gguf_tensor_find(g, "u"));
        ck_assert_ptr_null(gguf_tensor_at(g, 1));
        gguf_free(g);
    }
    /* Known, but nothing can compute with it: listed, not refused. */
    _cleanup_strbuf_ struct strbuf b = {0};
    struct error err = {0};
    struct gguf *g = NULL;
    one_tensor(&b, 1, (uint64_t[]){256}, 10, 0);
    put_pad(&b, 32);
    put_zeros(&b, 84);
    ck_ok(gguf_parse(b.s, b.len, "types.gguf", &g, &err), &err);
    ck_assert_int_eq(gguf_tensor_at(g, 0)->type, DK_TYPE_COUNT);
    ck_assert_str_eq(gguf_tensor_at(g, 0)->type_name, "Q2_K");
    gguf_free(g);
}
END_TEST

START_TEST(open_file)
{
    struct error err = {0};
    struct gguf *g = NULL;
    ck_ok(gguf_open(test_path("tests/golden/gguf/a_llama_tied.Q5_1.gguf"), &g, &err), &err);
    const struct gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    ck_assert_ptr_nonnull(t);
    uint8_t first = *(const uint8_t *)t->data;
    gguf_release(g, t->data, t->bytes);
    ck_assert_uint_eq(*(const uint8_t *)t->data, first); /* read again from the file */
    gguf_release(g, &first, 1);                          /* not the file's: ignored */
    gguf_free(g);
    ck_fails(gguf_open(test_path("no-such.gguf"), &g, &err), NOT_FOUND, &err);
    write_file(test_tmpdir(), "empty.gguf", "", 0);
    char path[256];
    snprintf(path, sizeof(path), "%s/empty.gguf", test_tmpdir());
    ck_fails(gguf_open(path, &g, &err), FORMAT, &err);
    ck_assert_ptr_null(gguf_free(NULL));
}
END_TEST

START_TEST(allocation_failures)
{
    struct test_oom oom = {0};
    _cleanup_strbuf_ struct strbuf b = {0};
    struct tiny t = tiny_new("llama");
    gg_key(&t.kv_more, "words", GGUF_ARRAY);
    put_u32(&t.kv_more, GGUF_STRING);
    put_u64(&t.kv_more, 1);
    gg_str(&t.kv_more, "w");
    t.kv_more_n = 1;
    tiny_gguf(&t, &b);
    size_t runs = 0;
    while (test_oom_next(&oom)) {
        struct error err = {0};
        struct gguf *g = NULL;
        int r = gguf_parse(b.s, b.len, "oom.gguf", &g, &err);
        ck_assert_int_eq(r, oom.failed ? DEDIT_E_NOMEM : 0);
        gguf_free(g);
        runs++;
    }
    ck_assert_uint_gt(runs, 7);
    strbuf_done(&t.kv_more);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = test_case(s, "scalars");
    tcase_add_test(t, bad_alignment);
    tcase_add_test(t, bad_shapes);
    tcase_add_test(t, bad_tensor_types);
    tcase_add_test(t, bad_versions);
    tcase_add_test(t, bad_keys);
    tcase_add_test(t, bad_tensor_names);
    t = test_case(s, "wrapping");
    tcase_add_test(t, wrapping_counts);
    tcase_add_test(t, wrapping_tensors);
    t = test_case(s, "cut");
    tcase_add_test(t, cut_tensor);
    tcase_add_test(t, bad_offsets);
    tcase_add_test(t, every_prefix);
    tcase_add_test(t, every_bit);
    t = test_case(s, "look-ups");
    tcase_add_test(t, numbers);
    tcase_add_test(t, strings_and_arrays);
    tcase_add_test(t, bad_text);
    tcase_add_test(t, type_sizes);
    tcase_add_test(t, open_file);
    tcase_add_test(t, allocation_failures);
    return test_main(s);
}
