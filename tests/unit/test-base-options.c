/* SPDX-License-Identifier: Apache-2.0 */
/* Option tables: what is taken, what is refused and with which words, the text of --help. */
#include <string.h>

#include "base/options.h"
#include "tests/unit/util.h"

enum { OPT_NUMBER = 300, OPT_FLAG, OPT_LONG };
static const struct option_def first[] = {
    {OPT_NUMBER, "number", "N", "a number (default: 3)"},
    {OPT_FLAG, "flag", NULL, "no value"},
    {0, NULL, NULL, NULL},
};
static const struct option_def second[] = {
    {OPT_LONG, "a-rather-long-name", "SOMETHING", "first line\nsecond (default: none)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {first, second, NULL};

struct got {
    uint32_t number;
    bool flag;
    const char *text;
};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct got *g = ctx;
    if (id == OPT_NUMBER)
        return option_u32(arg, 1, 9, &g->number, err);
    if (id == OPT_FLAG)
        g->flag = true;
    else
        g->text = arg;
    return 0;
}

static int go(const char *const *words, struct got *g, int *ret_first, char **argv,
              struct error *err)
{
    static char copies[16][64];
    int argc = 1;
    argv[0] = copies[0];
    for (; words[argc - 1]; argc++) {
        snprintf(copies[argc], sizeof(copies[argc]), "%s", words[argc - 1]);
        argv[argc] = copies[argc];
    }
    argv[argc] = NULL;
    *g = (struct got){0};
    *err = (struct error){0};
    return options_read(groups, argc, argv, set, g, ret_first, err);
}

START_TEST(taken)
{
    const char *const words[] = {"one",          "--number", "7",       "two", "--flag",
                                 "--a-rather=x", "--",       "--three", NULL};
    char *argv[16];
    struct got g;
    struct error err;
    int k = 0;
    ck_ok(go(words, &g, &k, argv, &err), &err);
    ck_assert(g.number == 7 && g.flag);
    ck_assert_str_eq(g.text, "x"); /* a beginning that is only one option's */
    ck_assert_str_eq(argv[k], "one");
    ck_assert_str_eq(argv[k + 2], "--three");
    const char *const help[] = {"--number", "2", "--help", "--nonsense", NULL};
    ck_assert_int_eq(go(help, &g, &k, argv, &err), 1);
}
END_TEST

static const struct {
    const char *words[3], *message;
} wrong[] = {
    {{"--numbr", "3", NULL}, "option --numbr is unknown or ambiguous; did you mean --number?"},
    {{"--nmuber=3", NULL}, "did you mean --number?"},
    {{"--something-else", NULL}, "option --something-else is unknown or ambiguous"},
    {{"--flag=3", NULL}, "option --flag takes no value"},
    {{"--number", NULL}, "option --number needs a value"},
    {{"--number=10", NULL}, "--number: \"10\" is not an integer from 1 to 9"},
    {{"-x", NULL}, "option -x is unknown"},
    /* getopt_long() is still at the word, or past it. */
    {{"-xy", NULL}, "option -x is unknown"},
    {{"--flag", "-xy", NULL}, "option -x is unknown"},
    {{"word", "-:", NULL}, "option -: is unknown"},
    {{"--flag", "-\303\251", NULL}, "option -\303\251 is unknown"},
    {{"--flag", "-\001", NULL}, "option -? is unknown"},
};
START_TEST(refused)
{
    char *argv[16];
    struct got g;
    struct error err;
    int k = 0;
    ck_assert_int_eq(go(wrong[_i].words, &g, &k, argv, &err), DEDIT_E_INVALID);
    ck_assert_msg(strstr(err.msg, wrong[_i].message), "%s", err.msg);
}
END_TEST

START_TEST(help_text)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    ck_assert_int_eq(options_help(groups, &text), 0);
    ck_assert_str_eq(text.s, "\n  --number N                  a number (default: 3)\n"
                             "  --flag                      no value\n"
                             "\n  --a-rather-long-name SOMETHING\n"
                             "                              first line\n"
                             "                              second (default: none)\n"
                             "\n  --help                      this text\n");
    for (struct test_oom oom = {0}; test_oom_next(&oom);) {
        _cleanup_strbuf_ struct strbuf t = {0};
        int r = options_help(groups, &t);
        ck_assert(r == 0 || (r == DEDIT_E_NOMEM && oom.failed));
    }
}
END_TEST

START_TEST(distance)
{
    ck_assert_uint_eq(name_distance("", "abc"), 3);
    ck_assert_uint_eq(name_distance("abc", "abc"), 0);
    ck_assert_uint_eq(name_distance("kitten", "sitting"), 3);
    ck_assert_uint_eq(name_distance("a", "a-name-that-is-much-too-long-to-be-one-of-ours"), 100);
}
END_TEST

START_TEST(values)
{
    struct error err = {0};
    uint32_t list[3];
    uint64_t big;
    int32_t i;
    float f;
    size_t n;
    ck_ok(option_u32_list("1,22,3", 1, list, 3, &n, &err), &err);
    ck_assert(n == 3 && list[1] == 22);
    ck_fails(option_u32_list("1,2,3,4", 1, list, 3, &n, &err), INVALID, &err);
    ck_fails(option_u32_list("1,,3", 1, list, 3, &n, &err), INVALID, &err);
    ck_fails(option_u32_list("0", 1, list, 3, &n, &err), INVALID, &err);
    ck_ok(option_float_in("0.5", 0, 1, &f, &err), &err);
    ck_fails(option_float_in("1.5", 0, 1, &f, &err), INVALID, &err);
    ck_fails(option_float("x", &f, &err), INVALID, &err);
    ck_fails(option_float("1e39", &f, &err), INVALID, &err);
    ck_ok(option_size("2K", &big, &err), &err);
    ck_assert_uint_eq(big, 2048);
    ck_fails(option_size("2Q", &big, &err), INVALID, &err);
    ck_fails(option_u64("-1", &big, &err), INVALID, &err);
    ck_ok(option_i32("-5", -9, 9, &i, &err), &err);
    ck_fails(option_i32("10", -9, 9, &i, &err), INVALID, &err);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base-options");
    TCase *tc = test_case(s, "options");
    tcase_add_test(tc, taken);
    tcase_add_loop_test(tc, refused, 0, ARRAY_LEN(wrong));
    tcase_add_test(tc, help_text);
    tcase_add_test(tc, distance);
    tcase_add_test(tc, values);
    return test_main(s);
}
