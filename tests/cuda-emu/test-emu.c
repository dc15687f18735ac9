/* SPDX-License-Identifier: Apache-2.0 */
/* The runner of CUDA kernels finds what it claims to find, and the emulated runtime defers and fails. */
#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "kernels/cuda/open.h"
#include "tests/cuda-emu/emu.h"
#include "tests/unit/util.h"

static const char *library(const char *name)
{
    static char path[4096];
    const char *dir = getenv("top_builddir");
    snprintf(path, sizeof(path), "%s/%s", dir ? dir : ".", name);
    return path;
}

static void *symbol(void *h, const char *name)
{
    void *p = dlsym(h, name);
    ck_assert_msg(p, "%s", dlerror());
    return p;
}

/* Runs a case in a process of its own; says what it wrote to stderr.  Returns the exit status, or
 * 1000 + the signal. */
static int run_case(const char *name, const char *order, char *text, size_t size)
{
    int fd[2];
    ck_assert_int_eq(pipe(fd), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(fd[1], 2);
        setenv("CUEMU_ORDER", order, 1);
        setenv("CUEMU_STREAMS", "1", 1);
        void *h = dlopen(library("tests/cuda-emu/libbugs.so"), RTLD_NOW | RTLD_LOCAL);
        if (!h) {
            fprintf(stderr, "%s\n", dlerror());
            _exit(98);
        }
        int (*run)(const char *);
        void *p = dlsym(h, "emu_case");
        memcpy(&run, &p, sizeof(run));
        _exit(run ? run(name) : 97);
    }
    close(fd[1]);
    size_t n = 0;
    for (ssize_t r; n + 1 < size && (r = read(fd[0], text + n, size - 1 - n)) > 0;)
        n += (size_t)r;
    text[n] = 0;
    close(fd[0]);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static const char *const right[] = {"reverse",    "sums",         "parts",       "tile",
                                    "copy_async", "many_threads", "many_shared", "wide_grid",
                                    "empty_grid", "streams"};
static const char *const orders[] = {"forward", "backward", "strided"};

START_TEST(right_kernels)
{
    char text[8192];
    for (size_t o = 0; o < sizeof(orders) / sizeof(*orders); o++) {
        int r = run_case(right[_i], orders[o], text, sizeof(text));
        ck_assert_msg(r == 0, "%s, %s: %d %s", right[_i], orders[o], r, text);
    }
}
END_TEST

/* What must be said about a kernel.  Sanitized builds leave some findings to the sanitizer, which has
 * its own words, and some kinds to the other builds. */
static const struct {
    const char *name, *finding;
    bool everywhere; /* found by the runner itself */
} wrong[] = {
    {"race", "shared memory", false}, /* depending on the order, of bytes that are not there yet */
    {"race_in_warp", "race in shared memory", false},
    {"race_again", "race in shared memory", false},
    {"uninitialised", "not initialised", false},
    {"past_shared", "outside of its variables", false},
    {"past_global", "outside of device memory", false},
    {"host_memory", "outside of device memory", false},
    {"divergent_barrier", "divergent barrier", true},
    {"divergent_shuffle", "divergent shuffle", true},
    {"exited_lane", "exit", true},
    {"outside_mask", "not in the mask", true},
    {"misaligned", "misaligned", false},
    {"no_event", "race between streams", true},
    {"old_event", "race between streams", true},
    {"old_wait", "race between streams", true},
    {"kernels_without_event", "race between streams", false},
    {"one_of_two_readers", "a store after a load", true},
};

START_TEST(wrong_kernels)
{
    char text[8192];
#ifdef DEDIT_SANITIZED
    if (!wrong[_i].everywhere)
        return;
#endif
    for (size_t o = 0; o < sizeof(orders) / sizeof(*orders); o++) {
        int r = run_case(wrong[_i].name, orders[o], text, sizeof(text));
        ck_assert_msg(r != 0 && strstr(text, wrong[_i].finding), "%s, %s: %d %s", wrong[_i].name,
                      orders[o], r, text);
    }
}
END_TEST

/* ---- the runtime --------------------------------------------------------------------------------------- */

static const struct dcu_api *a;
static void (*fail_at)(long, int, int);
static void (*count)(struct emu_counts *);

static void open_emu(void)
{
    struct error err = {0};
    void *h, *p;
    ck_assert_msg(dcu_open(library("libdedit-cuda-emu.so"), &a, &err) == 0, "%s", err.msg);
    ck_assert_str_eq(a->built, "emu");
    h = dlopen(library("libdedit-cuda-emu.so"), RTLD_NOW | RTLD_LOCAL);
    p = symbol(h, "emu_fail_at");
    memcpy(&fail_at, &p, sizeof(fail_at));
    p = symbol(h, "emu_count");
    memcpy(&count, &p, sizeof(count));
}

START_TEST(work_is_deferred)
{
    dcu_stream s, t;
    dcu_event e;
    void *d, *h;
    ck_assert_int_eq(a->stream_new(&s) | a->stream_new(&t) | a->event_new(&e, 0), 0);
    ck_assert_int_eq(a->alloc(&d, 64) | a->host_alloc(&h, 64), 0);
    int *host = h;
    host[0] = 1;
    ck_assert_int_eq(a->copy_in(s, d, h, 4), 0);
    host[0] = 2; /* too early: the copy has not been made */
    ck_assert_int_eq(a->stream_wait(s), 0);
    host[0] = 3;
    ck_assert_int_eq(a->copy_out(s, h, d, 4), 0);
    ck_assert_int_eq(host[0], 3); /* nor has this one */
    ck_assert_int_eq(a->stream_wait(s), 0);
    ck_assert_int_eq(host[0], 2);
    /* t's copy follows what s does before the event, and s's later work waits. */
    ck_assert_int_eq(a->fill(s, d, 5, 4) | a->event_record(e, s) | a->fill(s, d, 6, 4), 0);
    ck_assert_int_eq(a->event_order(t, e) | a->copy_out(t, h, d, 4) | a->stream_wait(t), 0);
    ck_assert_int_eq(host[0], 0x05050505);
    ck_assert_int_eq(a->copy_out(s, h, d, 4) | a->stream_wait(s), 0);
    ck_assert_int_eq(host[0], 0x06060606);
    ck_assert_int_ne(a->copy_in(s, h, d, 4), 0); /* not a device pointer */
    a->event_free(e);
    a->free(d);
    a->host_free(h);
    a->stream_free(s);
    a->stream_free(t);
}
END_TEST

START_TEST(graphs_are_replayed)
{
    dcu_stream s;
    dcu_graph g;
    void *d, *h;
    ck_assert_int_eq(a->stream_new(&s) | a->alloc(&d, 64) | a->host_alloc(&h, 64), 0);
    int *host = h;
    ck_assert_int_eq(a->capture_begin(s), 0);
    ck_assert_int_eq(a->copy_in(s, d, h, 4) | a->copy_out(s, host + 1, d, 4), 0);
    ck_assert_int_ne(a->stream_wait(s), 0); /* not while it records */
    ck_assert_int_ne(a->capture_end(s, &g), 0);
    ck_assert_int_eq(a->capture_begin(s), 0);
    ck_assert_int_eq(a->copy_in(s, d, h, 4) | a->copy_out(s, host + 1, d, 4), 0);
    ck_assert_int_eq(a->capture_end(s, &g), 0);
    for (int i = 0; i < 3; i++) {
        host[0] = 7 + i; /* new contents, the same graph */
        ck_assert_int_eq(a->graph_launch(g, s) | a->stream_wait(s), 0);
        ck_assert_int_eq(host[1], 7 + i);
    }
    a->graph_free(g);
    a->free(d);
    a->host_free(h);
    a->stream_free(s);
    struct emu_counts c;
    count(&c);
    ck_assert_uint_eq(c.blocks + c.pinned + c.streams + c.graphs, 0);
}
END_TEST

START_TEST(failures_are_errors)
{
    struct error err = {0};
    struct dcu_device d;
    void *p;
    fail_at(0, 2, 0);
    int r = a->alloc(&p, 64);
    ck_assert_int_eq(dcu_error(a, r, &err, "loading"), DEDIT_E_NOMEM);
    ck_assert_msg(strstr(err.msg, "out of memory"), "%s", err.msg);
    fail_at(0, 700, 1); /* an illegal access stays */
    ck_assert_int_eq(a->alloc(&p, 64), 700);
    ck_assert_int_eq(a->alloc(&p, 64), 700);
    fail_at(-1, 0, 0);
    ck_assert_int_eq(a->alloc(&p, 64), 0);
    a->free(p);
    ck_assert_int_eq(dcu_device_check(a, 0, &d, &err), 0);
    ck_assert_str_eq(d.name, "emu");
    ck_assert_int_eq(dcu_device_check(a, 1, &d, &err), DEDIT_E_NOT_FOUND);
    setenv("CUEMU_MAJOR", "7", 1);
    ck_assert_int_eq(dcu_device_check(a, 0, &d, &err), DEDIT_E_UNSUPPORTED);
    setenv("CUEMU_DEVICES", "0", 1);
    ck_assert_int_eq(dcu_device_check(a, 0, &d, &err), DEDIT_E_NOT_FOUND);
    ck_assert_int_eq(dcu_open("/nonexistent/libdedit-cuda.so", &a, &err), DEDIT_E_NOT_FOUND);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("emu");
    TCase *t = test_case(s, "runner");
    tcase_add_loop_test(t, right_kernels, 0, sizeof(right) / sizeof(*right));
    tcase_add_loop_test(t, wrong_kernels, 0, sizeof(wrong) / sizeof(*wrong));
    t = test_case(s, "runtime");
    tcase_add_checked_fixture(t, open_emu, NULL);
    tcase_add_test(t, work_is_deferred);
    tcase_add_test(t, graphs_are_replayed);
    tcase_add_test(t, failures_are_errors);
    return test_main(s);
}
