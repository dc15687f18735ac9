/* SPDX-License-Identifier: Apache-2.0 */
/* base: errors, allocation, arenas, strings, hash, clock, log. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/util.h"

START_TEST(error_names)
{
    ck_assert_str_eq(error_name(DEDIT_E_FORMAT), "bad-format");
    ck_assert_str_eq(error_name(0), "ok");
    ck_assert_str_eq(error_name(-1), "unknown");
    ck_assert_str_eq(error_name(1), "unknown");
    ck_assert_str_eq(error_name(-DEDIT_E_BASE), "unknown");
    ck_assert_str_eq(error_name(INT32_MIN), "unknown");
}
END_TEST

START_TEST(arena_limit)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(64);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(arena_alloc(a, 50));
    ck_assert_ptr_null(arena_alloc(a, 1));
    ck_assert_uint_eq(arena_used(a), 64);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base");
    TCase *t = test_case(s, "error");
    tcase_add_test(t, error_names);
    t = test_case(s, "alloc");
    tcase_add_test(t, arena_limit);
    return test_main(s);
}
