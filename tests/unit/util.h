/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program shares: a main that speaks TAP, a leak check around each test, paths of
 * test data, JSON-lines files, and comparison of float arrays.
 */
#pragma once

#include <check.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/*
 * Adds a case whose tests each run in a process of their own and fail when, at their end, there are
 * more (or fewer) descriptors or mem_* allocations than at their start.  Time limit 120 s a test.
 */
TCase *test_case(Suite *s, const char *name);
/* Runs the suite, prints TAP on stdout, frees it; returns main's exit status.  Environment:
 * CK_FORK=no for a debugger, CK_RUN_CASE=name for one case. */
int test_main(Suite *s);

/* Skips the rest of this test.  scripts/test accepts a skip for missing hardware only, so for that
 * there is a form of its own: TEST_SKIP_HARDWARE("no AMX"). */
#define TEST_SKIP(...)          ck_abort_msg("SKIP: " __VA_ARGS__)
#define TEST_SKIP_HARDWARE(...) ck_abort_msg("SKIP: hardware: " __VA_ARGS__)

/* "$top_srcdir/rel".  Static ring of eight buffers. */
const char *test_path(const char *rel);
/* Whether this build has the emulated CUDA device; DEDIT_CUDA_EMU then names its library. */
bool test_emulated_device(void);
/* The default model's file ($DEDIT_TEST_MODEL, else the user's cache, where models/fetch puts it);
 * skips the test when it is not there. */
const char *test_default_model(void);
/* A new empty directory, removed with all its files (one level) when the test's process ends. */
const char *test_tmpdir(void);

/* One JSON value a line; every line that is not empty must parse. */
struct jsonl {
    FILE *f;
    char *line;
    size_t cap;
    int number; /* of the last line returned, from 1 */
    const char *path;
};
void jsonl_open(struct jsonl *j, const char *path); /* fails the test when it cannot */
json_t *jsonl_next(struct jsonl *j);                /* new reference; NULL at the end */
void jsonl_close(struct jsonl *j);
/* Members that must exist and have this type, or the test fails and names line and key. */
json_t *jsonl_get(const struct jsonl *j, json_t *o, const char *key);
const char *jsonl_str(const struct jsonl *j, json_t *o, const char *key);
int64_t jsonl_int(const struct jsonl *j, json_t *o, const char *key);
double jsonl_num(const struct jsonl *j, json_t *o, const char *key);

/* Fails unless |got - want| <= abs_tol + rel_tol * |want| for every element (NaN never passes);
 * the message has the worst index.  floats_equal compares bits. */
void test_floats_close(const char *what, const float *got, const float *want, size_t n,
                       double abs_tol, double rel_tol);
void test_floats_equal(const char *what, const float *got, const float *want, size_t n);

/* ck_assert for hot loops: those of libcheck write to a pipe even when they hold. */
#define ck_fast(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s does not hold", #condition);                                          \
    } while (0)

/* Checks a return value against 0 (or a code) and shows the error's message otherwise. */
#define ck_ok(r, err)                                                                              \
    do {                                                                                           \
        int ck_r_ = (r);                                                                           \
        ck_assert_msg(ck_r_ == 0, "%s: %s: %s", #r, error_name(ck_r_), (err)->msg);                \
    } while (0)
#define ck_fails(r, CODE, err)                                                                     \
    do {                                                                                           \
        int ck_r_ = (r);                                                                           \
        ck_assert_msg(ck_r_ == DEDIT_E_##CODE, "%s: %s (%s), wanted %s", #r, error_name(ck_r_),    \
                      (err)->msg, error_name(DEDIT_E_##CODE));                                     \
    } while (0)

/*
 * Allocation torture: for (n = 0; test_oom_next(&o); ) { run; } makes the n-th allocation of each
 * run fail, n = 0, 1, ..., until a run in which none failed.  Each run must end in NOMEM or, the
 * last one, success; the caller asserts that with o.failed.
 */
struct test_oom {
    size_t nth, seen;
    bool started, failed; /* failed: an allocation of the run just made was refused */
};
bool test_oom_next(struct test_oom *o);
