/* SPDX-License-Identifier: Apache-2.0 */
/* What users hold: limits by name and value, charges that are released exactly. */
#include <string.h>

#include "daemon/config-values.h"
#include "daemon/config.h"
#include "daemon/quota.h"
#include "tests/unit/util.h"

START_TEST(a_refusal_names_limit_value_and_what_is_held)
{
    for (int k = 0; k < QUOTA_KIND_COUNT; k++) {
        struct quota q = {0};
        struct error err = {0};
        struct account *a = quota_account(&q, 4711);
        q.limit[k] = 1000;
        ck_ok(quota_charge(&q, a, (enum quota_kind)k, 900, &err), &err);
        ck_fails(quota_charge(&q, a, (enum quota_kind)k, 101, &err), LIMIT, &err);
        char want[200];
        snprintf(want, sizeof want,
                 "%s: user 4711 holds 900 and asks for 101 more, the limit is 1000",
                 quota_kind_name((enum quota_kind)k));
        ck_assert_str_eq(err.msg, want);
        ck_assert_uint_eq(a->used[k], 900); /* a refusal charges nothing */
        ck_assert_uint_eq(q.refused, 1);
        ck_ok(quota_charge(&q, a, (enum quota_kind)k, 100, &err), &err);
        ck_fails(quota_charge(&q, a, (enum quota_kind)k, 1, &err), LIMIT, &err);
        ck_fails(quota_charge(&q, a, (enum quota_kind)k, UINT64_MAX, &err), LIMIT, &err);
        ck_fails(quota_charge(&q, a, (enum quota_kind)k, UINT64_MAX - 999, &err), LIMIT, &err);
        quota_unref(&q, a);
    }
}
END_TEST

/* What a refusal says can be looked up in dedit.conf. */
START_TEST(limits_are_called_as_in_the_configuration)
{
    for (int k = 0; k < QUOTA_KIND_COUNT; k++) {
        bool found = false;
        for (size_t i = 0; i < n_daemon_options; i++)
            found |= strcmp(daemon_options[i].key, quota_kind_name((enum quota_kind)k)) == 0 &&
                     strcmp(daemon_options[i].section, "limits") == 0;
        ck_assert_msg(found, "%s", quota_kind_name((enum quota_kind)k));
    }
}
END_TEST

START_TEST(zero_is_no_limit)
{
    struct quota q = {0};
    struct error err = {0};
    struct account *a = quota_account(&q, 1);
    ck_ok(quota_charge(&q, a, QUOTA_RING_BYTES, 1ull << 60, &err), &err);
    quota_release(a, QUOTA_RING_BYTES, 1ull << 60);
    ck_assert_uint_eq(a->used[QUOTA_RING_BYTES], 0);
    quota_unref(&q, a);
}
END_TEST

START_TEST(accounts_live_as_long_as_they_are_used)
{
    struct quota q = {0};
    struct account *a = quota_account(&q, 1), *b = quota_account(&q, 2);
    ck_assert_ptr_ne(a, b);
    ck_assert_ptr_eq(quota_account(&q, 1), a);
    quota_unref(&q, a);
    ck_assert_ptr_eq(quota_account(&q, 1), a);
    quota_unref(&q, a);
    quota_unref(&q, a);
    ck_assert_ptr_eq(q.accounts, b);
    quota_unref(&q, b);
    ck_assert_ptr_null(q.accounts);
    quota_unref(&q, NULL);
}
END_TEST

/* Random charges and releases of several users against a plain count. */
START_TEST(random_charges_and_releases_are_exact)
{
    enum { USERS = 5, HELD = 400, STEPS = 200000 };
    struct quota q = {.limit = {7, 100, 5000, 0, 64}};
    struct held {
        int user, kind;
        uint64_t n;
    } held[HELD];
    uint64_t sum[USERS][QUOTA_KIND_COUNT] = {{0}}, refused = 0;
    struct account *a[USERS];
    unsigned n = 0, seed = 3, granted = 0;
    for (int u = 0; u < USERS; u++)
        a[u] = quota_account(&q, (uid_t)(1000 + u));
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        int u = (int)(seed >> 8) % USERS, k = (int)(seed >> 12) % QUOTA_KIND_COUNT;
        if (n == HELD || (n && seed >> 31)) {
            unsigned i = (seed >> 4) % n;
            struct held h = held[i];
            held[i] = held[--n];
            quota_release(a[h.user], (enum quota_kind)h.kind, h.n);
            sum[h.user][h.kind] -= h.n;
        } else {
            struct error err = {0};
            uint64_t want = (seed >> 16) % 60;
            bool fits = !q.limit[k] || sum[u][k] + want <= q.limit[k];
            int r = quota_charge(&q, a[u], (enum quota_kind)k, want, &err);
            if (r != (fits ? 0 : DEDIT_E_LIMIT))
                ck_abort_msg("step %d: %s, wanted %s", step, err.msg,
                             fits ? "a grant" : "a refusal");
            refused += !fits;
            if (fits) {
                held[n++] = (struct held){u, k, want};
                sum[u][k] += want;
                granted++;
            }
        }
        for (int v = 0; v < USERS; v++)
            if (memcmp(a[v]->used, sum[v], sizeof sum[v]) != 0)
                ck_abort_msg("step %d: user %d is charged something else than it holds", step, v);
    }
    ck_assert_uint_gt(granted, STEPS / 10);
    ck_assert_uint_gt(refused, STEPS / 100);
    ck_assert_uint_eq(q.refused, refused);
    while (n--)
        quota_release(a[held[n].user], (enum quota_kind)held[n].kind, held[n].n);
    for (int u = 0; u < USERS; u++) {
        for (int k = 0; k < QUOTA_KIND_COUNT; k++)
            ck_assert_uint_eq(a[u]->used[k], 0);
        quota_unref(&q, a[u]);
    }
    ck_assert_ptr_null(q.accounts);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quota");
    TCase *t = test_case(s, "quota");
    tcase_add_test(t, a_refusal_names_limit_value_and_what_is_held);
    tcase_add_test(t, limits_are_called_as_in_the_configuration);
    tcase_add_test(t, zero_is_no_limit);
    tcase_add_test(t, accounts_live_as_long_as_they_are_used);
    tcase_add_test(t, random_charges_and_releases_are_exact);
    return test_main(s);
}
