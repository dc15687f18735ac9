/* SPDX-License-Identifier: Apache-2.0 */
/* engine/kv: reference counts, eviction order, look-ups, and the invariants under random use. */
#include <string.h>

#include "base/alloc.h"
#include "engine/kv.h"
#include "tests/unit/util.h"

static void fill(uint32_t tokens[16], uint32_t first)
{
    for (uint32_t i = 0; i < 16; i++)
        tokens[i] = first + i;
}

static struct kv_pool *pool_of(uint32_t n)
{
    struct kv_pool *p = NULL;
    struct error err = {0};
    ck_ok(kv_pool_new(n, &p, &err), &err);
    return p;
}

static uint32_t take(struct kv_pool *p)
{
    uint32_t b = UINT32_MAX;
    ck_assert_int_eq(kv_block_take(p, &b), 0);
    ck_assert_uint_lt(b, kv_pool_total(p));
    ck_assert_uint_eq(kv_block_refs(p, b), 1);
    return b;
}

START_TEST(sizes)
{
    struct kv_pool *p = NULL;
    struct error err = {0};
    ck_fails(kv_pool_new(0, &p, &err), INVALID, &err);
    ck_fails(kv_pool_new(UINT32_MAX, &p, &err), INVALID, &err);
    p = pool_of(1);
    ck_assert_uint_eq(kv_pool_available(p), 1);
    uint32_t b = take(p), c;
    ck_assert_int_eq(kv_block_take(p, &c), DEDIT_E_CONTEXT_FULL);
    kv_block_unref(p, b);
    ck_assert_uint_eq(kv_pool_available(p), 1);
    kv_pool_free(p);
    ck_assert_ptr_null(kv_pool_free(NULL));
}
END_TEST

START_TEST(take_all)
{
    struct kv_pool *p = pool_of(100);
    bool seen[100] = {false};
    for (int i = 0; i < 100; i++) {
        uint32_t b = take(p);
        ck_assert(!seen[b]);
        seen[b] = true;
    }
    ck_assert_uint_eq(kv_pool_available(p), 0);
    for (uint32_t b = 0; b < 100; b++) {
        kv_block_ref(p, b);
        kv_block_unref(p, b);
        ck_assert_uint_eq(kv_block_refs(p, b), 1);
        kv_block_unref(p, b);
    }
    ck_assert_uint_eq(kv_pool_available(p), 100);
    ck_assert_uint_eq(kv_pool_cached(p), 0);
    kv_pool_free(p);
}
END_TEST

START_TEST(find_compares_everything)
{
    struct kv_pool *p = pool_of(4);
    uint32_t t[16], other[16], got = 99, b = take(p);
    fill(t, 7);
    fill(other, 7);
    other[15] ^= 1;
    uint64_t h = kv_hash(0, t, 1000);
    ck_assert(!kv_find(p, h, 0, t, 1000, &got));
    kv_block_publish(p, b, h, 0, t, 1000);
    ck_assert(kv_block_published(p, b));
    /* The right hash with anything else wrong is no hit. */
    ck_assert(!kv_find(p, h, 0, other, 1000, &got));
    ck_assert(!kv_find(p, h, 1, t, 1000, &got));
    ck_assert(!kv_find(p, h, 0, t, 1001, &got));
    ck_assert(!kv_find(p, h + 1, 0, t, 1000, &got));
    ck_assert_uint_eq(got, 99);
    ck_assert(kv_find(p, h, 0, t, 1000, &got));
    ck_assert_uint_eq(got, b);
    ck_assert_uint_eq(kv_block_refs(p, b), 2);
    kv_pool_free(p);
}
END_TEST

START_TEST(hash_depends_on_all)
{
    uint32_t t[16];
    fill(t, 0);
    uint64_t h = kv_hash(5, t, 6);
    ck_assert(kv_hash(5, t, 6) == h);
    ck_assert(kv_hash(4, t, 6) != h);
    ck_assert(kv_hash(5, t, 7) != h);
    for (int i = 0; i < 16; i++) {
        t[i] ^= 0x80000000u;
        ck_assert(kv_hash(5, t, 6) != h);
        t[i] ^= 0x80000000u;
    }
}
END_TEST

START_TEST(evicts_least_recently_used)
{
    struct kv_pool *p = pool_of(3);
    uint32_t t[16], b[3], got;
    uint64_t h[3];
    for (uint32_t i = 0; i < 3; i++) {
        b[i] = take(p);
        fill(t, 100 * i);
        h[i] = kv_hash(0, t, 0);
        kv_block_publish(p, b[i], h[i], 0, t, 0);
    }
    kv_block_unref(p, b[1]);
    kv_block_unref(p, b[0]);
    kv_block_unref(p, b[2]);
    ck_assert_uint_eq(kv_pool_cached(p), 3);
    ck_assert_uint_eq(kv_pool_available(p), 3);
    /* Used again: block 1 becomes the youngest. */
    fill(t, 100);
    ck_assert(kv_find(p, h[1], 0, t, 0, &got));
    ck_assert_uint_eq(kv_pool_cached(p), 2);
    kv_block_unref(p, got);
    ck_assert_uint_eq(take(p), b[0]);
    ck_assert(!kv_block_published(p, b[0]));
    fill(t, 0);
    ck_assert(!kv_find(p, h[0], 0, t, 0, &got));
    ck_assert_uint_eq(take(p), b[2]);
    ck_assert_uint_eq(take(p), b[1]);
    ck_assert_int_eq(kv_block_take(p, &got), DEDIT_E_CONTEXT_FULL);
    kv_pool_free(p);
}
END_TEST

START_TEST(publishing_twice)
{
    struct kv_pool *p = pool_of(2);
    uint32_t t[16], a = take(p), b = take(p), got;
    fill(t, 1);
    uint64_t h = kv_hash(0, t, 0);
    kv_block_publish(p, a, h, 0, t, 0);
    kv_block_publish(p, b, h, 0, t, 0);
    kv_block_publish(p, a, h, 0, t, 0);
    ck_assert(!kv_block_published(p, b));
    kv_block_unref(p, b);
    ck_assert_uint_eq(kv_pool_cached(p), 0);
    ck_assert(kv_find(p, h, 0, t, 0, &got));
    ck_assert_uint_eq(got, a);
    kv_pool_free(p);
}
END_TEST

START_TEST(withdraw)
{
    struct kv_pool *p = pool_of(2);
    uint32_t t[16], a = take(p), b = take(p), got;
    fill(t, 1);
    uint64_t h = kv_hash(0, t, 0);
    kv_block_publish(p, a, h, 0, t, 0);
    kv_block_withdraw(p, a); /* held */
    ck_assert(!kv_find(p, h, 0, t, 0, &got));
    kv_block_publish(p, b, h, 0, t, 0);
    kv_block_unref(p, b);
    kv_block_withdraw(p, b); /* cached */
    kv_block_withdraw(p, b);
    ck_assert(!kv_find(p, h, 0, t, 0, &got));
    ck_assert_uint_eq(kv_pool_cached(p), 0);
    ck_assert_uint_eq(kv_pool_available(p), 1);
    kv_pool_free(p);
}
END_TEST

START_TEST(drafter_marks)
{
    struct kv_pool *p = pool_of(1);
    uint32_t b = take(p);
    ck_assert_uint_eq(kv_block_drafted(p, b), 0);
    kv_block_set_drafted(p, b, 0x8001);
    ck_assert_uint_eq(kv_block_drafted(p, b), 0x8001);
    kv_block_unref(p, b);
    b = take(p);
    ck_assert_uint_eq(kv_block_drafted(p, b), 0); /* not inherited */
    kv_pool_free(p);
}
END_TEST

/* A model of the pool in plain arrays, compared after each of many random calls. */
START_TEST(random_use)
{
    enum { N = 24, KEYS = 40 };
    struct kv_pool *p = pool_of(N);
    uint32_t refs[N] = {0};
    int key_of[N];
    memset(key_of, -1, sizeof(key_of)); /* -1: not published */
    uint64_t rnd = 12345;
    for (int step = 0; step < 200000; step++) {
        rnd = rnd * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t op = (uint32_t)(rnd >> 60), b = (uint32_t)(rnd >> 33) % N, got;
        uint32_t key = (uint32_t)(rnd >> 20) % KEYS, t[16];
        fill(t, 1000 * key);
        uint64_t h = kv_hash(0, t, 0);
        if (op < 5) {
            int r = kv_block_take(p, &got);
            uint32_t held = 0;
            for (int i = 0; i < N; i++)
                held += refs[i] > 0;
            ck_assert_int_eq(r, held == N ? DEDIT_E_CONTEXT_FULL : 0);
            if (r == 0) {
                ck_assert_uint_eq(refs[got], 0);
                refs[got] = 1;
                key_of[got] = -1;
            }
        } else if (op < 8 && refs[b]) {
            kv_block_ref(p, b);
            refs[b]++;
        } else if (op < 13 && refs[b]) {
            kv_block_unref(p, b);
            refs[b]--;
        } else if (op < 14 && refs[b]) {
            bool there = false;
            for (int i = 0; i < N; i++)
                there = there || key_of[i] == (int)key;
            kv_block_publish(p, b, h, 0, t, 0);
            if (!there && key_of[b] < 0)
                key_of[b] = (int)key;
        } else if (op < 15) {
            kv_block_withdraw(p, b);
            key_of[b] = -1;
        } else {
            int want = -1;
            for (int i = 0; i < N; i++)
                if (key_of[i] == (int)key)
                    want = i;
            bool found = kv_find(p, h, 0, t, 0, &got);
            ck_assert_int_eq(found, want >= 0);
            if (found) {
                ck_assert_int_eq((int)got, want);
                refs[got]++;
            }
        }
        uint32_t held = 0, cached = 0;
        for (uint32_t i = 0; i < N; i++) {
            ck_assert_uint_eq(kv_block_refs(p, i), refs[i]);
            held += refs[i] > 0;
            cached += refs[i] == 0 && key_of[i] >= 0;
        }
        ck_assert_uint_eq(kv_pool_available(p), N - held);
        ck_assert_uint_eq(kv_pool_cached(p), cached);
    }
    kv_pool_free(p);
}
END_TEST

START_TEST(without_memory)
{
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct kv_pool *p = NULL;
        struct error err = {0};
        int r = kv_pool_new(32, &p, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        kv_pool_free(p);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kv");
    TCase *t = test_case(s, "kv");
    tcase_add_test(t, sizes);
    tcase_add_test(t, take_all);
    tcase_add_test(t, find_compares_everything);
    tcase_add_test(t, hash_depends_on_all);
    tcase_add_test(t, evicts_least_recently_used);
    tcase_add_test(t, publishing_twice);
    tcase_add_test(t, withdraw);
    tcase_add_test(t, drafter_marks);
    tcase_add_test(t, random_use);
    tcase_add_test(t, without_memory);
    return test_main(s);
}
