/* SPDX-License-Identifier: Apache-2.0 */
/* base/parse.h: numbers whatever the locale, and UTF-8. */
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/parse.h"
#include "tests/unit/util.h"

START_TEST(integers)
{
    uint64_t u = 7;
    int64_t i = 7;
    uint32_t w = 7;
    ck_assert(parse_u64("0", &u) == 0 && u == 0);
    ck_assert(parse_u64("18446744073709551615", &u) == 0 && u == UINT64_MAX);
    ck_assert(parse_u64("00012", &u) == 0 && u == 12);
    ck_assert_int_eq(parse_u64("18446744073709551616", &u), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_u64("99999999999999999999999999", &u), DEDIT_E_LIMIT);
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "0x10",
                                      "1e3",
                                      "1.0",
                                      "a",
                                      "1\n",
                                      "99999999999999999999999999x",
                                      "\xd9\xa1"};
    for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
        ck_assert_msg(parse_u64(bad[k], &u) == DEDIT_E_INVALID, "%s", bad[k]);
        if (strcmp(bad[k], "-1"))
            ck_assert_msg(parse_i64(bad[k], &i) == DEDIT_E_INVALID, "%s", bad[k]);
        ck_assert_msg(parse_u32(bad[k], 100, &w) == DEDIT_E_INVALID, "%s", bad[k]);
    }
    ck_assert_uint_eq(u, 12);
    ck_assert(parse_i64("-9223372036854775808", &i) == 0 && i == INT64_MIN);
    ck_assert(parse_i64("9223372036854775807", &i) == 0 && i == INT64_MAX);
    ck_assert(parse_i64("-0", &i) == 0 && i == 0);
    ck_assert_int_eq(parse_i64("9223372036854775808", &i), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_i64("-9223372036854775809", &i), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_i64("--1", &i), DEDIT_E_INVALID);
    ck_assert_int_eq(parse_i64("-", &i), DEDIT_E_INVALID);
    ck_assert_int_eq(i, 0);
    ck_assert(parse_u32("100", 100, &w) == 0 && w == 100);
    ck_assert_int_eq(parse_u32("101", 100, &w), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_u32("4294967296", UINT32_MAX, &w), DEDIT_E_LIMIT);
    ck_assert_uint_eq(w, 100);
}
END_TEST

static void doubles_of_this_locale(void)
{
    static const struct {
        const char *s;
        double v;
    } good[] = {
        {"0", 0},
        {"1.5", 1.5},
        {"-2", -2},
        {"+3.25", 3.25},
        {".5", 0.5},
        {"5.", 5},
        {"1e3", 1000},
        {"1E+3", 1000},
        {"25e-1", 2.5},
        {"1e-400", 0},
        {"0.1", 0.1},
        {"5e-324", 5e-324},
        {"1.7976931348623157e308", DBL_MAX},
        {"0.000001", 1e-6},
        {"123456789.125", 123456789.125},
    };
    static const char *const bad[] = {
        "",      ".",   "-",         "e5",  "1e",    "1e+", "1,5",     "1.5.2", " 1",     "1 ",
        "0x1p3", "inf", "-infinity", "nan", "1_000", "1f",  "1.5e2.5", "++1",   "\u22121"};
    double v = 42;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ck_assert_msg(parse_double(good[i].s, &v) == 0, "%s", good[i].s);
        ck_assert_msg(!memcmp(&v, &good[i].v, sizeof(v)), "%s: %a", good[i].s, v);
    }
    v = 42;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(parse_double(bad[i], &v) == DEDIT_E_INVALID, "%s", bad[i]);
    ck_assert_int_eq(parse_double("1e309", &v), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_double("-1e999999999999", &v), DEDIT_E_LIMIT);
    ck_assert_double_eq(v, 42);

    static const struct {
        double v;
        const char *s;
    } out[] = {
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {0, "0"},
        {-0.0, "-0"},
        {1e300, "1e+300"},
        {5e-324, "5e-324"},
        {2.5, "2.5"},
        {1e21, "1e+21"},
        {123456.75, "123456.75"},
        {0.1 + 0.2, "0.30000000000000004"},
        {HUGE_VAL, "inf"},
        {-HUGE_VAL, "-inf"},
        {-1234567, "-1234567"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
    };
    char buf[32];
    for (size_t i = 0; i < ARRAY_LEN(out); i++)
        ck_assert_str_eq(format_double(out[i].v, buf), out[i].s);
    ck_assert_ptr_eq(format_double(1, buf), buf);
    ck_assert_ptr_nonnull(strstr(format_double(strtod("nan", NULL), buf), "nan"));
    /* Reads back to the same bits, and no shorter precision does. */
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = hash_mix64(x += 0x9e3779b97f4a7c15u);
        double d, back;
        memcpy(&d, &bits, sizeof(d));
        if (!isfinite(d))
            continue;
        ck_fast(strlen(format_double(d, buf)) < sizeof(buf));
        if (parse_double(buf, &back) < 0 || memcmp(&d, &back, sizeof(d)))
            ck_abort_msg("%a as %s", d, buf);
    }
}

START_TEST(doubles)
{
    doubles_of_this_locale();
}
END_TEST

/* A locale with a decimal comma, compiled into the test's own folder. */
START_TEST(doubles_decimal_comma)
{
    char cmd[1024], path[512];
    const char *dir = test_tmpdir();
    snprintf(path, sizeof(path), "%s/de_DE.UTF-8", dir);
    snprintf(cmd, sizeof(cmd), "localedef --no-archive -c -i de_DE -f UTF-8 '%s' >/dev/null 2>&1",
             path);
    /* Its status tells of warnings too; what counts is whether the locale can be chosen. */
    if (system(cmd) < 0)
        ck_abort_msg("no shell");
    setenv("LOCPATH", dir, 1);
    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        TEST_SKIP("localedef cannot build de_DE.UTF-8 (Debian package: locales)");
    char buf[64];
    snprintf(buf, sizeof(buf), "%.1f", 1.5);
    ck_assert_str_eq(buf, "1,5"); /* the trap is set */
    doubles_of_this_locale();
    snprintf(buf, sizeof(buf), "%.1f", 1.5);
    ck_assert_str_eq(buf, "1,5"); /* and format_double put the locale back */
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", path);
    ck_assert_int_eq(system(cmd), 0);
}
END_TEST

START_TEST(bools)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false",
                                                                                "off", "0"};
    static const char *const bad[] = {"", "YES", "2", "tru", "yes ", "y"};
    bool b;
    for (size_t i = 0; i < 4; i++) {
        b = false;
        ck_assert(parse_bool(yes[i], &b) == 0 && b);
        ck_assert(parse_bool(no[i], &b) == 0 && !b);
    }
    b = true;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_int_eq(parse_bool(bad[i], &b), DEDIT_E_INVALID);
    ck_assert(b);
}
END_TEST

START_TEST(sizes)
{
    uint64_t v = 9;
    ck_assert(parse_size("0", &v) == 0 && v == 0);
    ck_assert(parse_size("17", &v) == 0 && v == 17);
    ck_assert(parse_size("64K", &v) == 0 && v == 65536);
    ck_assert(parse_size("3M", &v) == 0 && v == 3u << 20);
    ck_assert(parse_size("2G", &v) == 0 && v == 2147483648u);
    ck_assert(parse_size("16777215T", &v) == 0 && v == 16777215ull << 40);
    ck_assert_int_eq(parse_size("16777216T", &v), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_size("18446744073709551616", &v), DEDIT_E_LIMIT);
    static const char *const bad[] = {"", "K", "1k", "1KB", "1 K", "1.5G", "-1", "1P", "1KK"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(parse_size(bad[i], &v) == DEDIT_E_INVALID, "%s", bad[i]);
    ck_assert_uint_eq(v, 16777215ull << 40);
}
END_TEST

START_TEST(durations)
{
    static const struct {
        const char *s;
        uint64_t ns;
    } good[] = {
        {"0", 0},
        {"5", 5000000000},
        {"1.5", 1500000000},
        {"5s", 5000000000},
        {"200ms", 200000000},
        {"3us", 3000},
        {"7ns", 7},
        {"1.9ns", 1},
        {"0.0000000019s", 1},
        {"1.25us", 1250},
        {"0.123456ms", 123456},
        {"2min", 120000000000},
        {"1h", 3600000000000},
        {"1d", 86400000000000},
        {"1h 30min", 5400000000000},
        {"1min30s", 90000000000},
        {"0.5h", 1800000000000},
        {"213503d", 18446659200000000000u},
        {"0.99999999999999s", 999999999},
    };
    static const char *const bad[] = {"",     "s",   "1x", "1 s",  "-1s",  "1.s",  ".5s", "1s ",
                                      "1s 2", "5 5", "1S", "1sec", "1e3s", "1,5s", " 1s"};
    uint64_t v = 0;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ck_assert_msg(parse_duration_ns(good[i].s, &v) == 0, "%s", good[i].s);
        ck_assert_msg(v == good[i].ns, "%s: %llu", good[i].s, (unsigned long long)v);
    }
    v = 5;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(parse_duration_ns(bad[i], &v) == DEDIT_E_INVALID, "%s", bad[i]);
    ck_assert_int_eq(parse_duration_ns("213504d", &v), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_duration_ns("213503d 24h", &v), DEDIT_E_LIMIT);
    ck_assert_int_eq(parse_duration_ns("99999999999999999999", &v), DEDIT_E_LIMIT);
    ck_assert_uint_eq(v, 5);
}
END_TEST

/* Every code point there and back, and nothing else. */
START_TEST(utf8_all_code_points)
{
    for (uint32_t cp = 0; cp < 0x110100; cp++) {
        char s[4];
        uint32_t back = UINT32_MAX;
        size_t n = utf8_encode(cp, s);
        if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) {
            ck_fast(n == 0);
            continue;
        }
        ck_fast(n == (cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4));
        ck_fast(utf8_decode(s, n, &back) == n);
        ck_fast(back == cp);
        for (size_t cut = 0; cut < n; cut++)
            ck_fast(utf8_decode(s, cut, &back) == 0);
    }
    char s[4];
    ck_fast(utf8_encode(UINT32_MAX, s) == 0);
}
END_TEST

/* Every sequence of up to three bytes, and the four-byte ones at the edges: what decodes must be
 * what utf8_encode makes of the result. */
START_TEST(utf8_all_sequences)
{
    unsigned accepted = 0;
    for (uint32_t x = 0; x < 1u << 24; x++) {
        char s[3] = {(char)(x >> 16), (char)(x >> 8), (char)x}, back[4];
        uint32_t cp;
        size_t n = utf8_decode(s, 3, &cp);
        if (!n)
            continue;
        if (utf8_encode(cp, back) != n || memcmp(s, back, n))
            ck_abort_msg("%06x decodes to U+%04X", x, cp);
        accepted += n == 3;
    }
    ck_fast(accepted == 0x10000 - 0x800 - 0x800);
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xed\xbf\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xfe",
                                      "\xc2",
                                      "\xc2\x20",
                                      "\xe2\x82",
                                      "\xe2\x82\x20",
                                      "\xf0\x9f\x98",
                                      "\xf0\x9f\x98\x20",
                                      "\xf8\x88\x80\x80\x80"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        uint32_t cp;
        char ok[16];
        ck_assert_msg(utf8_decode(bad[i], strlen(bad[i]), &cp) == 0, "bad %zu", i);
        snprintf(ok, sizeof(ok), "ok%s", bad[i]);
        ck_fast(!utf8_valid(ok, strlen(ok)));
    }
    ck_fast(utf8_valid("", 0));
    ck_fast(utf8_valid("a\0b", 3));
    ck_fast(utf8_valid("\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf\xef\xbf\xbf", 13));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base-parse");
    TCase *t = test_case(s, "numbers");
    tcase_add_test(t, integers);
    tcase_add_test(t, doubles);
    tcase_add_test(t, doubles_decimal_comma);
    tcase_add_test(t, bools);
    tcase_add_test(t, sizes);
    tcase_add_test(t, durations);
    t = test_case(s, "utf8");
    tcase_add_test(t, utf8_all_code_points);
    tcase_add_test(t, utf8_all_sequences);
    return test_main(s);
}
