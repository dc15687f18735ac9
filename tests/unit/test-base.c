/* SPDX-License-Identifier: Apache-2.0 */
/* base: errors, allocation, arenas, strings, hash, clock, log. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "tests/unit/util.h"

START_TEST(error_names)
{
    ck_assert_str_eq(error_name(DEDIT_E_FORMAT), "bad-format");
    ck_assert_str_eq(error_text(DEDIT_E_NOMEM), "memory could not be allocated");
    ck_assert_str_eq(error_name(0), "ok");
    ck_assert_str_eq(error_name(-1), "unknown");
    ck_assert_str_eq(error_name(1), "unknown");
    ck_assert_str_eq(error_name(-DEDIT_E_BASE), "unknown");
    ck_assert_str_eq(error_name(INT32_MIN), "unknown");
    ck_assert_str_eq(error_name(INT32_MAX), "unknown");
    int n = 0;
#define X(NAME, number, name, text)                                                                \
    n++;                                                                                           \
    ck_assert_int_eq(DEDIT_E_##NAME, -(DEDIT_E_BASE + (number)));                                  \
    ck_assert_str_eq(error_name(DEDIT_E_##NAME), name);                                            \
    ck_assert_str_eq(error_text(DEDIT_E_##NAME), text);
    DEDIT_ERRORS(X)
#undef X
    ck_assert_str_ne(error_name(-DEDIT_E_BASE - n), "unknown");
    ck_assert_str_eq(error_name(-DEDIT_E_BASE - n - 1), "unknown");
}
END_TEST

START_TEST(error_message)
{
    struct error e = {0};
    int line = __LINE__ + 1;
    ck_assert_int_eq(ERR(&e, FORMAT, "%s: key %d", "a.gguf", 7), DEDIT_E_FORMAT);
    ck_assert_int_eq(e.code, DEDIT_E_FORMAT);
    ck_assert_int_eq(e.line, line);
    ck_assert_msg(strstr(e.file, "test-base.c") != NULL, "%s", e.file);
    ck_assert_str_eq(e.msg, "a.gguf: key 7");
    ck_assert_int_eq(error_prefix(&e, DEDIT_E_IO, "model %s", "x"), DEDIT_E_FORMAT);
    ck_assert_str_eq(e.msg, "model x: a.gguf: key 7");
    ck_assert_int_eq(e.line, line);
    ck_assert_int_eq(ERR(NULL, LIMIT, "%d", 1), DEDIT_E_LIMIT);
    ck_assert_int_eq(error_prefix(NULL, DEDIT_E_IO, "p"), DEDIT_E_IO);
    /* An argument may be the old message. */
    ck_assert_int_eq(ERR(&e, IO, "again: %s", e.msg), DEDIT_E_IO);
    ck_assert_str_eq(e.msg, "again: model x: a.gguf: key 7");
}
END_TEST

START_TEST(error_one_clean_line)
{
    struct error e = {0};
    ERR(&e, FORMAT, "a\nb\x1b[31mc\x7f\td");
    ck_assert_str_eq(e.msg, "a?b?[31mc??d");
    ERR(&e, FORMAT, "\xff\xc3(\xc3\xa9\xed\xa0\x80|\xc2\x9b|\xe2\x82");
    ck_assert_str_eq(e.msg, "?\?(\xc3\xa9?\?\?|?\?|?\?");
}
END_TEST

/* Text of every length around the end of the buffer: always whole UTF-8, never longer. */
START_TEST(error_cut)
{
    for (size_t pad = 0; pad < 8; pad++) {
        struct error e = {0};
        char text[2048] = "";
        memset(text, 'x', 500 + pad);
        for (int i = 0; i < 100; i++)
            strcat(text, i % 2 ? "\xf0\x9f\x98\x80" : "\xe2\x82\xac");
        ERR(&e, FORMAT, "%s", text);
        size_t len = strlen(e.msg);
        ck_assert_uint_ge(len, sizeof(e.msg) - 4);
        ck_assert_uint_lt(len, sizeof(e.msg));
        ck_assert(utf8_valid(e.msg, len));
        ck_assert_msg(!strchr(e.msg, '?'), "%s", e.msg);
        ck_assert(!memcmp(e.msg, text, len));
        error_prefix(&e, 0, "%s", text);
        ck_assert(utf8_valid(e.msg, strlen(e.msg)));
    }
}
END_TEST

static bool refuse_all(void *arg, size_t bytes)
{
    *(size_t *)arg = bytes;
    return true;
}

START_TEST(alloc_counts)
{
    size_t before = mem_live_count();
    void *p = mem_alloc(0), *q = mem_zalloc(0), *r = mem_realloc(NULL, 0), *s = mem_aligned(1, 0);
    ck_assert(p && q && r && s);
    ck_assert(p != q && q != r && r != s);
    ck_assert_uint_eq(mem_live_count(), before + 4);
    r = mem_realloc(r, 1000);
    ck_assert_uint_eq(mem_live_count(), before + 4);
    unsigned char *pages = mem_map_pages(10000);
    ck_assert_ptr_nonnull(pages);
    ck_assert_uint_eq((uintptr_t)pages % 4096, 0);
    for (int i = 0; i < 10000; i++)
        ck_assert_uint_eq(pages[i], 0);
    ck_assert_uint_eq(mem_live_count(), before + 5);
    mem_unmap_pages(pages, 10000);
    mem_unmap_pages(NULL, 10000);
    mem_free(p);
    mem_free(q);
    mem_free(r);
    mem_free(s);
    mem_free(NULL);
    ck_assert_uint_eq(mem_live_count(), before);
}
END_TEST

START_TEST(alloc_aligned)
{
    for (size_t align = 1; align <= 4096; align *= 2) {
        _cleanup_free_ void *p = mem_aligned(align, 3);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % align, 0);
    }
}
END_TEST

START_TEST(alloc_overflow)
{
    ck_assert_ptr_null(mem_array(SIZE_MAX / 2 + 1, 2));
    ck_assert_ptr_null(mem_calloc(SIZE_MAX / 2 + 1, 2));
    char *p = mem_strdup("keep");
    ck_assert_ptr_null(mem_realloc_array(p, SIZE_MAX / 2 + 1, 2));
    ck_assert_str_eq(p, "keep");
    mem_free(p);
    size_t r = 5;
    ck_assert(!size_add(SIZE_MAX, 1, &r) && !size_mul(SIZE_MAX, 2, &r));
    ck_assert(!size_round_up(SIZE_MAX - 1, 16, &r));
    ck_assert_uint_eq(r, 5);
    ck_assert(size_round_up(33, 32, &r) && r == 64);
    ck_assert(size_round_up(64, 32, &r) && r == 64);
}
END_TEST

START_TEST(alloc_hook)
{
    size_t asked = 0, before = mem_live_count();
    char *keep = mem_strdup("keep");
    mem_set_fail_hook(refuse_all, &asked);
    ck_assert_ptr_null(mem_alloc(1));
    ck_assert_uint_eq(asked, 1);
    ck_assert_ptr_null(mem_zalloc(2));
    ck_assert_ptr_null(mem_calloc(2, 2));
    ck_assert_uint_eq(asked, 4);
    ck_assert_ptr_null(mem_array(2, 3));
    ck_assert_ptr_null(mem_realloc(keep, 7));
    ck_assert_uint_eq(asked, 7);
    ck_assert_ptr_null(mem_realloc_array(keep, 2, 4));
    ck_assert_ptr_null(mem_aligned(64, 9));
    ck_assert_ptr_null(mem_map_pages(10));
    ck_assert_uint_eq(asked, 10);
    ck_assert_ptr_null(mem_strdup("abc"));
    ck_assert_ptr_null(mem_strndup("abc", 1));
    ck_assert_uint_eq(asked, 2);
    ck_assert_ptr_null(mem_memdup("abc", 3));
    ck_assert_ptr_null(arena_new(0));
    mem_set_fail_hook(NULL, NULL);
    ck_assert_str_eq(keep, "keep");
    mem_free(keep);
    ck_assert_uint_eq(mem_live_count(), before);
}
END_TEST

START_TEST(alloc_copies)
{
    _cleanup_free_ char *a = mem_strndup("abcdef", 3), *b = mem_strndup("ab", 10);
    _cleanup_free_ char *c = mem_memdup("x\0y", 4);
    ck_assert_str_eq(a, "abc");
    ck_assert_str_eq(b, "ab");
    ck_assert(!memcmp(c, "x\0y", 4));
    int *z = mem_calloc(100, sizeof(*z));
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(z[i], 0);
    char *taken = TAKE_PTR(a);
    ck_assert_ptr_null(a);
    mem_free(taken);
    mem_free(z);
}
END_TEST

START_TEST(arena_basics)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(0);
    unsigned char *p[600];
    ck_assert_ptr_nonnull(a);
    size_t used = 0;
    for (size_t i = 0; i < 600; i++) {
        size_t n = i * 37 % 5000;
        p[i] = i % 2 ? arena_alloc(a, n) : arena_zalloc(a, n);
        ck_assert_ptr_nonnull(p[i]);
        ck_fast((uintptr_t)p[i] % 16 == 0);
        for (size_t k = 0; k < n && i % 2 == 0; k++)
            ck_fast(p[i][k] == 0);
        memset(p[i], (int)(i & 0xff), n);
        used += (n ? n + 15 : 16) / 16 * 16;
    }
    for (size_t i = 0; i < 600; i++)
        for (size_t k = 0; k < i * 37 % 5000; k++)
            ck_fast(p[i][k] == (i & 0xff));
    ck_fast(arena_used(a) == used);
    ck_assert_ptr_nonnull(arena_alloc(a, 5 << 20));
    ck_assert_str_eq(arena_strndup(a, "hello", 4), "hell");
    ck_assert_ptr_null(arena_alloc(a, SIZE_MAX));
    ck_assert_ptr_null(arena_alloc(a, SIZE_MAX - 40));
    ck_assert_ptr_null(arena_zalloc(a, SIZE_MAX / 2));
    ck_assert_ptr_null(arena_free(NULL));
}
END_TEST

START_TEST(arena_limit)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(64);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(arena_alloc(a, 50));
    ck_assert_ptr_null(arena_alloc(a, 1));
    ck_assert_uint_eq(arena_used(a), 64);
    ck_assert_ptr_null(arena_strndup(a, "abc", 3));
}
END_TEST

START_TEST(arena_oom)
{
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        _cleanup_(arena_freep) struct arena *a = arena_new(0);
        bool ok = a != NULL;
        for (int i = 0; ok && i < 20; i++)
            ok = arena_alloc(a, 3000) != NULL;
        ck_assert_int_eq(ok, !o.failed);
    }
    ck_assert_uint_gt(o.nth, 3);
}
END_TEST

START_TEST(strbuf_basics)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    ck_assert_ptr_null(b.s);
    ck_assert_int_eq(strbuf_adds(&b, ""), 0);
    ck_assert_str_eq(b.s, "");
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(strbuf_addf(&b, "%d,", i), 0);
        ck_assert_int_eq(strbuf_addc(&b, i % 2 ? '\0' : 'z'), 0);
        ck_assert_int_eq(b.s[b.len], '\0');
    }
    ck_assert(!memcmp(b.s, "0,z1,\0002,z3,", 12));
    ck_assert_int_eq(strbuf_add(&b, NULL, 0), 0);
    size_t cap = b.cap;
    strbuf_clear(&b);
    ck_assert_uint_eq(b.len, 0);
    ck_assert_uint_eq(b.cap, cap);
    ck_assert_str_eq(b.s, "");
    ck_assert_int_eq(strbuf_reserve(&b, SIZE_MAX - 1), DEDIT_E_NOMEM);
    ck_assert_int_eq(strbuf_adds(&b, "x"), 0);
    ck_assert_int_eq(strbuf_reserve(&b, SIZE_MAX - 1), DEDIT_E_NOMEM);
    ck_assert_str_eq(b.s, "x");
    strbuf_done(&b);
    ck_assert(!b.s && !b.len && !b.cap);
    strbuf_clear(&b);
}
END_TEST

START_TEST(strbuf_oom)
{
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        _cleanup_strbuf_ struct strbuf b = {0};
        int r = 0;
        for (int i = 0; r == 0 && i < 200; i++) {
            size_t len = b.len;
            r = i % 3 == 0   ? strbuf_adds(&b, "hello")
                : i % 3 == 1 ? strbuf_addc(&b, 'c')
                             : strbuf_addf(&b, "%d", i);
            if (r < 0) {
                ck_assert_int_eq(r, DEDIT_E_NOMEM);
                ck_assert_uint_eq(b.len, len);
                ck_assert(!b.s || b.s[b.len] == '\0');
            }
        }
        ck_assert_int_eq(r < 0, o.failed);
    }
    ck_assert_uint_gt(o.nth, 3);
}
END_TEST

/* Random puts and deletions against a plain array. */
START_TEST(map_model)
{
    enum { KEYS = 700 };
    struct u64map m;
    uint64_t want[KEYS], got, seed = 1;
    bool there[KEYS] = {false};
    size_t live = 0;
    ck_fast(u64map_init(&m, 0) == 0);
    for (int step = 0; step < 200000; step++) {
        seed = hash_mix64(seed + 0x9e3779b97f4a7c15u);
        size_t k = (size_t)(seed >> 8) % KEYS;
        /* Neighbours and far values, 0 and the largest. */
        uint64_t key = k < 10 ? UINT64_MAX - k : k % 2 ? k - 10 : (uint64_t)k << 40;
        if (seed % 5 < 2) {
            ck_fast(u64map_del(&m, key) == there[k]);
            live -= there[k];
            there[k] = false;
        } else {
            ck_fast(u64map_put(&m, key, seed) == 0);
            live += !there[k];
            there[k] = true;
            want[k] = seed;
        }
        ck_fast(m.len == live);
        if (step % 1000 == 0)
            for (size_t i = 0; i < KEYS; i++) {
                key = i < 10 ? UINT64_MAX - i : i % 2 ? i - 10 : (uint64_t)i << 40;
                ck_fast(u64map_get(&m, key, &got) == there[i]);
                ck_fast(!there[i] || got == want[i]);
            }
    }
    /* Deleted slots are reused, so steady use does not grow the table. */
    ck_assert_uint_le(m.cap, 2048);
    u64map_done(&m);
    ck_fast(!u64map_get(&m, 1, &got) && !u64map_del(&m, 1));
    ck_fast(u64map_put(&m, 1, 2) == 0);
    ck_fast(u64map_get(&m, 1, &got) && got == 2);
    u64map_done(&m);
}
END_TEST

START_TEST(map_sized)
{
    struct u64map m;
    for (size_t n = 0; n < 400; n++) {
        ck_fast(u64map_init(&m, n) == 0);
        size_t cap = m.cap;
        for (size_t i = 0; i < n; i++)
            ck_fast(u64map_put(&m, i, i) == 0);
        ck_fast(m.cap == cap);
        u64map_done(&m);
    }
    ck_fast(u64map_init(&m, SIZE_MAX) == DEDIT_E_NOMEM);
    ck_fast(u64map_init(&m, SIZE_MAX / 2) == DEDIT_E_NOMEM);
    u64map_done(&m);
}
END_TEST

START_TEST(map_oom)
{
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct u64map m;
        uint64_t v;
        size_t n = 0;
        int r = u64map_init(&m, 4);
        for (; r == 0 && n < 100; n++)
            r = u64map_put(&m, n, n * 3);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        for (size_t i = 0; i + o.failed < n; i++)
            ck_assert(u64map_get(&m, i, &v) && v == i * 3);
        u64map_done(&m);
    }
    ck_assert_uint_ge(o.nth, 6);
}
END_TEST

START_TEST(hash_values)
{
    /* The published test vectors of XXH64 for the empty input and for "a", "abc". */
    ck_assert_uint_eq(hash_bytes("", 0, 0), 0xef46db3751d8e999u);
    ck_assert_uint_eq(hash_bytes("a", 1, 0), 0xd24ec4f1a98c6e5bu);
    ck_assert_uint_eq(hash_bytes("abc", 3, 0), 0x44bc2cf5ad770999u);
    ck_assert_uint_ne(hash_bytes("abc", 3, 1), hash_bytes("abc", 3, 0));
    ck_assert_uint_eq(hash_mix64(0), 0);
    /* First output of SplitMix64 seeded with 0. */
    ck_assert_uint_eq(hash_mix64(0x9e3779b97f4a7c15u), 0xe220a8397b1dcdafu);
}
END_TEST

START_TEST(clock_runs)
{
    uint64_t a = clock_now_ns(), r = clock_realtime_ns();
    usleep(2000);
    uint64_t b = clock_now_ns();
    ck_assert_uint_ge(b - a, 2000000);
    ck_assert_uint_lt(b - a, 60000000000u);
    /* After 2020, before 2200. */
    ck_assert_uint_gt(r, 1577836800000000000u);
    ck_assert_uint_lt(r, 7258118400000000000u);
}
END_TEST

struct seen {
    int lines;
    enum log_level level;
    char topic[32], msg[2048], field[64];
};

static void sink(void *arg, enum log_level level, const char *topic, const char *msg,
                 const char *fields)
{
    struct seen *s = arg;
    s->lines++;
    s->level = level;
    snprintf(s->topic, sizeof(s->topic), "%s", topic);
    snprintf(s->msg, sizeof(s->msg), "%s", msg);
    snprintf(s->field, sizeof(s->field), "%s", fields ? fields : "");
}

START_TEST(log_to_sink)
{
    struct seen s = {0};
    log_set_sink(sink, &s);
    log_write(LOG_LEVEL_WARNING, "peer", "UID=7\0", "hello %d\nFORGED", 3);
    ck_assert_int_eq(s.lines, 1);
    ck_assert_int_eq(s.level, LOG_LEVEL_WARNING);
    ck_assert_str_eq(s.topic, "peer");
    ck_assert_str_eq(s.msg, "hello 3 FORGED");
    ck_assert_str_eq(s.field, "UID=7");
    log_debug("peer", "not wanted");
    ck_assert_int_eq(s.lines, 1);
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("peer", "wanted");
    ck_assert_int_eq(s.lines, 2);
    log_set_level(LOG_LEVEL_ERR);
    errno = EXDEV;
    log_write(LOG_LEVEL_WARNING, "peer", NULL, "no");
    log_write(LOG_LEVEL_ERR, "peer", NULL, "%*s", 5000, "");
    ck_assert_int_eq(errno, EXDEV);
    ck_assert_int_eq(s.lines, 3);
    ck_assert_uint_eq(strlen(s.msg), 1023);
    log_set_sink(NULL, NULL);
    log_set_level(LOG_LEVEL_INFO);
}
END_TEST

START_TEST(log_to_stderr)
{
    int p[2], saved = dup(2);
    char out[8192] = "";
    ck_assert_int_eq(pipe(p), 0);
    ck_assert_int_eq(dup2(p[1], 2), 2);
    log_write(LOG_LEVEL_NOTICE, "main", "A=1\0B=x\ny\0", "started");
    char big[5000] = "BIG=";
    memset(big + 4, 'x', sizeof(big) - 6);
    log_write(LOG_LEVEL_ERR, "main", big, "%*s", 3000, "");
    ck_assert_int_eq(dup2(saved, 2), 2);
    close(saved);
    close(p[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(p[0], out + len, sizeof(out) - 1 - len)) > 0;)
        len += (size_t)n;
    close(p[0]);
    const char *first = "<5>main: started A=1 B=x y\n";
    ck_assert_msg(!strncmp(out, first, strlen(first)), "%s", out);
    const char *second = out + strlen(first);
    ck_assert(!strncmp(second, "<3>main:  ", 10));
    ck_assert_ptr_eq(strchr(second, '\n'), out + len - 1);
    ck_assert_ptr_null(strstr(second, "BIG"));
}
END_TEST

static void *log_many(void *arg)
{
    (void)arg;
    for (int i = 0; i < 2000; i++)
        log_write(LOG_LEVEL_INFO, "t", NULL, "%d", i);
    return NULL;
}

START_TEST(log_threads)
{
    struct seen s = {0};
    pthread_t t[4];
    log_set_sink(sink, &s);
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, log_many, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    log_set_sink(NULL, NULL);
    ck_assert_int_eq(s.lines, 8000);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base");
    TCase *t = test_case(s, "error");
    tcase_add_test(t, error_names);
    tcase_add_test(t, error_message);
    tcase_add_test(t, error_one_clean_line);
    tcase_add_test(t, error_cut);
    t = test_case(s, "alloc");
    tcase_add_test(t, alloc_counts);
    tcase_add_test(t, alloc_aligned);
    tcase_add_test(t, alloc_overflow);
    tcase_add_test(t, alloc_hook);
    tcase_add_test(t, alloc_copies);
    t = test_case(s, "arena");
    tcase_add_test(t, arena_basics);
    tcase_add_test(t, arena_limit);
    tcase_add_test(t, arena_oom);
    t = test_case(s, "strbuf");
    tcase_add_test(t, strbuf_basics);
    tcase_add_test(t, strbuf_oom);
    t = test_case(s, "hash");
    tcase_add_test(t, map_model);
    tcase_add_test(t, map_sized);
    tcase_add_test(t, map_oom);
    tcase_add_test(t, hash_values);
    t = test_case(s, "clock");
    tcase_add_test(t, clock_runs);
    t = test_case(s, "log");
    tcase_add_test(t, log_to_sink);
    tcase_add_test(t, log_to_stderr);
    tcase_add_test(t, log_threads);
    return test_main(s);
}
