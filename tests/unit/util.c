/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the test programs; see util.h. */
#include "tests/unit/util.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/line.h"

#define TEST_TIMEOUT_S 900 /* for what hangs; a busy machine is no fault */

static int fds_before;
static size_t mem_before;
static char tmpdir[256];

static void remove_tmpdir(void)
{
    if (!tmpdir[0])
        return;
    DIR *d = opendir(tmpdir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            (void)unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    (void)rmdir(tmpdir);
    tmpdir[0] = '\0';
}

static void setup(void)
{
    fds_before = fd_count();
    mem_before = mem_live_count();
}

static void teardown(void)
{
    remove_tmpdir();
    mem_set_fail_hook(NULL, NULL);
    int fds = fd_count();
    size_t mem = mem_live_count();
    ck_assert_msg(fds == fds_before, "descriptors: %d at the start, %d at the end", fds_before,
                  fds);
    ck_assert_msg(mem == mem_before, "allocations: %zu at the start, %zu at the end", mem_before,
                  mem);
}

TCase *test_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, TEST_TIMEOUT_S);
    suite_add_tcase(s, t);
    return t;
}

/* check writes "not ok 3 - file:case:name: SKIP: reason" for a skipped test; TAP wants
 * "ok 3 - case:name # SKIP reason".  Other lines pass unchanged, but for the file before the case,
 * which differs between a pass and a failure. */
static void print_tap(const char *log)
{
    const char *skip = strstr(log, ": SKIP: ");
    int num, at = 0;
    if (sscanf(log, "%*[a-z ] %d - %n", &num, &at) != 1 || !at) {
        fputs(log, stdout);
        return;
    }
    bool bad = !strncmp(log, "not ok", 6);
    const char *file = log + at, *colon = strchr(file, ':');
    const char *name = colon ? colon + 1 : file;
    if (skip && bad)
        printf("ok %d - %.*s # SKIP %s", num, (int)(skip - name), name, skip + strlen(": SKIP: "));
    else if (bad)
        printf("not ok %d - %s", num, name);
    else
        printf("ok %d - %.*s\n", num, (int)(strrchr(name, ':') - name), name);
}

int test_main(Suite *s)
{
    char path[64];
    int fd = memfd_create("tap", MFD_CLOEXEC);
    if (fd < 0) {
        perror("memfd_create");
        return EXIT_FAILURE;
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    SRunner *r = srunner_create(s);
    srunner_set_tap(r, path);
    srunner_run_all(r, CK_SILENT);
    srunner_free(r);
    FILE *f = fdopen(fd, "r");
    char *line = NULL;
    size_t cap = 0;
    bool failed = false;
    int tests = 0;
    struct error err = {0};
    long n = 0;
    while (f && (n = line_read(f, path, &line, &cap, &err)) > 0) {
        failed |= !strncmp(line, "not ok", 6) && !strstr(line, ": SKIP: ");
        tests += !strncmp(line, "ok", 2) || !strncmp(line, "not ok", 6);
        print_tap(line);
    }
    free(line);
    if (f)
        fclose(f);
    if (n < 0) {
        printf("Bail out! %s\n", err.msg);
        failed = true;
    }
    if (!tests) {
        puts("Bail out! no test ran");
        failed = true;
    }
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

const char *test_path(const char *rel)
{
    static char ring[8][512];
    static unsigned next;
    const char *top = getenv("top_srcdir");
    char *buf = ring[next++ % 8];
    snprintf(buf, sizeof(ring[0]), "%s/%s", top ? top : ".", rel);
    return buf;
}

bool test_emulated_device(void)
{
    char path[4096];
    const char *dir = getenv("top_builddir");
    (void)snprintf(path, sizeof(path), "%s/libdedit-cuda-emu.so", dir ? dir : ".");
    if (!getenv("DEDIT_CUDA_EMU") && access(path, R_OK) == 0)
        setenv("DEDIT_CUDA_EMU", path, 1);
    return getenv("DEDIT_CUDA_EMU") != NULL;
}

const char *test_default_model(void)
{
    static char path[512];
    const char *given = getenv("DEDIT_TEST_MODEL"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME"), *file = "dedit/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (given && *given)
        snprintf(path, sizeof(path), "%s", given);
    else if (cache && *cache)
        snprintf(path, sizeof(path), "%s/%s", cache, file);
    else
        snprintf(path, sizeof(path), "%s/.cache/%s", home ? home : "", file);
    if (access(path, R_OK) < 0)
        TEST_SKIP("the default model is not at %s (models/fetch gets it)", path);
    return path;
}

const char *test_tmpdir(void)
{
    if (!tmpdir[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(tmpdir, sizeof(tmpdir), "%s/dedit-test-XXXXXX", base ? base : "/tmp");
        ck_assert_msg(mkdtemp(tmpdir) != NULL, "%s: %s", tmpdir, strerror(errno));
        atexit(remove_tmpdir);
    }
    return tmpdir;
}

void jsonl_open(struct jsonl *j, const char *path)
{
    memset(j, 0, sizeof(*j));
    j->path = path;
    j->f = fopen(path, "re");
    ck_assert_msg(j->f != NULL, "%s: %s", path, strerror(errno));
}

json_t *jsonl_next(struct jsonl *j)
{
    for (;;) {
        struct error err = {0};
        const long n = line_read(j->f, j->path, &j->line, &j->cap, &err);
        ck_assert_msg(n >= 0, "%s", err.msg);
        if (n == 0)
            return NULL;
        j->number++;
        if (strspn(j->line, " \t\r\n") == (size_t)n)
            continue;
        json_error_t e;
        json_t *v = json_loadb(j->line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        ck_assert_msg(v != NULL, "%s:%d: %s", j->path, j->number, e.text);
        return v;
    }
}

void jsonl_close(struct jsonl *j)
{
    if (j->f)
        fclose(j->f);
    free(j->line);
    memset(j, 0, sizeof(*j));
}

json_t *jsonl_get(const struct jsonl *j, json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    ck_assert_msg(v != NULL, "%s:%d: no \"%s\"", j->path, j->number, key);
    return v;
}

const char *jsonl_str(const struct jsonl *j, json_t *o, const char *key)
{
    json_t *v = jsonl_get(j, o, key);
    ck_assert_msg(json_is_string(v), "%s:%d: \"%s\" is not a string", j->path, j->number, key);
    return json_string_value(v);
}

int64_t jsonl_int(const struct jsonl *j, json_t *o, const char *key)
{
    json_t *v = jsonl_get(j, o, key);
    ck_assert_msg(json_is_integer(v), "%s:%d: \"%s\" is not an integer", j->path, j->number, key);
    return json_integer_value(v);
}

double jsonl_num(const struct jsonl *j, json_t *o, const char *key)
{
    json_t *v = jsonl_get(j, o, key);
    ck_assert_msg(json_is_number(v), "%s:%d: \"%s\" is not a number", j->path, j->number, key);
    return json_number_value(v);
}

void test_floats_close(const char *what, const float *got, const float *want, size_t n,
                       double abs_tol, double rel_tol)
{
    size_t bad = 0, worst = 0;
    double excess = 0;
    for (size_t i = 0; i < n; i++) {
        double tol = abs_tol + rel_tol * fabs((double)want[i]);
        double diff = fabs((double)got[i] - (double)want[i]);
        if (diff <= tol)
            continue;
        /* A NaN on either side compares false above and counts as infinitely far. */
        double over = diff > tol ? diff - tol : HUGE_VAL;
        if (!bad++ || over > excess) {
            excess = over;
            worst = i;
        }
    }
    ck_assert_msg(bad == 0, "%s: %zu of %zu differ; worst [%zu]: got %.9g, want %.9g", what, bad, n,
                  worst, n ? (double)got[worst] : 0, n ? (double)want[worst] : 0);
}

void test_floats_equal(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(!memcmp(&got[i], &want[i], sizeof(float)), "%s: [%zu]: got %a, want %a", what,
                      i, (double)got[i], (double)want[i]);
}

static bool fail_nth(void *arg, size_t bytes)
{
    struct test_oom *o = arg;
    (void)bytes;
    if (o->seen++ != o->nth)
        return false;
    o->failed = true;
    return true;
}

bool test_oom_next(struct test_oom *o)
{
    if (o->started) {
        if (!o->failed) {
            mem_set_fail_hook(NULL, NULL);
            return false;
        }
        o->nth++;
    }
    o->started = true;
    o->failed = false;
    o->seen = 0;
    mem_set_fail_hook(fail_nth, o);
    return true;
}
