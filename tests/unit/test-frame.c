/* SPDX-License-Identifier: Apache-2.0 */
/* The test frame itself: leaks, crashes and wrong floats must show as failures, skips as skips. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/unit/util.h"

START_TEST(in_good)
{
}
END_TEST

START_TEST(in_leak_fd)
{
    ck_assert_int_ge(dup(0), 0);
}
END_TEST

START_TEST(in_leak_mem)
{
    /* A real leak for the counter; LeakSanitizer is told by keeping a pointer to it. */
    static void *volatile keep;
    keep = mem_alloc(10);
    ck_assert_ptr_nonnull(keep);
}
END_TEST

START_TEST(in_crash)
{
    abort();
}
END_TEST

START_TEST(in_skip)
{
    TEST_SKIP("no such device");
}
END_TEST

START_TEST(in_nan)
{
    float a[2] = {1, (float)strtof("nan", NULL)}, b[2] = {1, 2};
    test_floats_close("nan", a, b, 2, 1e30, 1e30);
}
END_TEST

START_TEST(in_bits)
{
    float a[1] = {0.0f}, b[1] = {-0.0f};
    test_floats_equal("zeros", a, b, 1);
}
END_TEST

/* Runs one inner test in a child and returns what it wrote on stdout. */
static void run_inner(const TTest *test, char *out, size_t cap, int *ret_status)
{
    int p[2];
    ck_assert_int_eq(pipe(p), 0);
    fflush(stdout);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(p[1], 1);
        close(p[0]);
        close(p[1]);
        Suite *s = suite_create("inner");
        tcase_add_test(test_case(s, "case"), test);
        int r = test_main(s);
        fflush(stdout);
        _exit(r);
    }
    close(p[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(p[0], out + len, cap - 1 - len)) > 0;)
        len += (size_t)n;
    out[len] = '\0';
    close(p[0]);
    ck_assert_int_eq(waitpid(pid, ret_status, 0), pid);
}

static void expect(const TTest *test, bool success, const char *text)
{
    char out[4096];
    int status;
    run_inner(test, out, sizeof(out), &status);
    ck_assert_msg(strstr(out, text) != NULL, "\"%s\" is not in: %s", text, out);
    ck_assert_msg(strstr(out, "1..1\n") != NULL, "no plan in: %s", out);
    ck_assert_int_eq(WIFEXITED(status) && WEXITSTATUS(status) == 0, success);
}

START_TEST(good)
{
    expect(in_good, true, "ok 1 - case:in_good\n");
}
END_TEST

START_TEST(leaks)
{
    expect(in_leak_fd, false, "not ok 1 - case:in_leak_fd: descriptors: ");
    expect(in_leak_mem, false, "not ok 1 - case:in_leak_mem: allocations: ");
}
END_TEST

START_TEST(crash)
{
    expect(in_crash, false, "not ok 1 - case:in_crash: ");
}
END_TEST

START_TEST(skip)
{
    expect(in_skip, true, "ok 1 - case:in_skip # SKIP no such device");
}
END_TEST

START_TEST(floats)
{
    expect(in_nan, false, "worst [1]: got nan, want 2");
    expect(in_bits, false, "zeros: [0]: got 0x0p+0, want -0x0p+0");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("frame");
    TCase *t = test_case(s, "frame");
    tcase_add_test(t, good);
    tcase_add_test(t, leaks);
    tcase_add_test(t, crash);
    tcase_add_test(t, skip);
    tcase_add_test(t, floats);
    return test_main(s);
}
