/* SPDX-License-Identifier: Apache-2.0 */
/* dedit.conf, drop-ins and flags: the last word wins, a mistake is named with its place. */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "daemon/config.h"
#include "tests/unit/util.h"

#define ARGS(...)                                                                                  \
    (const char *[])                                                                               \
    {                                                                                              \
        "dedit-d", __VA_ARGS__, NULL                                                               \
    }

static char file[512];

static void write_file(const char *path, const char *text)
{
    struct error err = {0};
    ck_ok(file_write_atomic(path, text, strlen(text), &err), &err);
}

/* The configuration file of this test. */
static void conf(const char *text)
{
    if (!file[0])
        snprintf(file, sizeof file, "%s/dedit.conf", test_tmpdir());
    write_file(file, text);
}

static int load(const char *const *args, struct config **ret, struct error *err)
{
    enum config_action action;
    int n = 0;
    while (args[n])
        n++;
    return config_load(n, (char **)(uintptr_t)args, ret, &action, err);
}

static struct config *load_ok(const char *const *args)
{
    struct config *c = NULL;
    struct error err = {0};
    ck_ok(load(args, &c, &err), &err);
    return c;
}

/* Wrong text: the message has the file, the line and these words. */
static void wrong(const char *text, int line, const char *words)
{
    struct config *c = NULL;
    struct error err = {0};
    char place[600];
    conf(text);
    int r = load(ARGS("--config", file), &c, &err);
    ck_assert_msg(r < 0 && !c, "accepted: %s", text);
    snprintf(place, sizeof place, "%s:%d: ", file, line);
    ck_assert_msg(!line || strstr(err.msg, place), "%s has no %s", err.msg, place);
    ck_assert_msg(strstr(err.msg, words) != NULL, "%s has no %s", err.msg, words);
}

START_TEST(defaults_are_those_of_the_manual)
{
    conf("");
    struct config *c = load_ok(ARGS("--config", file));
    ck_assert_uint_eq(c->socket_mode, 0660);
    ck_assert_uint_eq(c->max_models, 4);
    ck_assert_uint_eq(c->max_connections, 1024);
    ck_assert_uint_eq(c->max_requests, 4096);
    ck_assert_uint_eq(c->max_prompt_bytes, 16 << 20);
    ck_assert_uint_eq(c->ring_bytes, 256 << 10);
    ck_assert_uint_eq(c->drain_timeout_ns, 8000000000ull);
    ck_assert_uint_eq(c->ring_stall_timeout_ns, 30000000000ull);
    ck_assert_int_eq(c->min_priority, 0);
    ck_assert_int_eq(c->max_priority, 100);
    ck_assert_int_eq(c->event_loop, LOOP_AUTO);
    config_free(c);
}
END_TEST

START_TEST(files_then_dropins_then_flags)
{
    char dir[600], path[700];
    conf("[daemon]\nthreads = 1\nmax_models = 1\nlog_level = debug\n[limits]\nring_bytes = 1M\n"
         "[model a]\npath = /m/a\n");
    snprintf(dir, sizeof dir, "%s.d", file);
    ck_assert_int_eq(mkdir(dir, 0755), 0);
    snprintf(path, sizeof path, "%s/20.conf", dir);
    write_file(path, "[daemon]\nthreads = 3\n[model a]\nkv_dtype = bf16\nexactness = fast\n");
    snprintf(path, sizeof path, "%s/10.conf", dir);
    write_file(path, "[daemon]\nthreads = 2\nmax_models = 2\n");
    snprintf(path, sizeof path, "%s/30.txt", dir);
    write_file(path, "[nonsense\n");
    struct config *c = load_ok(ARGS("--config", file, "--max-models=7", "--model", "b=/m/b"));
    ck_assert_uint_eq(c->threads, 3);
    ck_assert_uint_eq(c->max_models, 7);
    ck_assert_uint_eq(c->ring_bytes, 1 << 20);
    ck_assert_int_eq(c->log_level, 7);
    ck_assert_uint_eq(c->n_models, 2);
    ck_assert_str_eq(c->models[0].path, "/m/a");
    ck_assert_int_eq(c->models[0].engine.kv_type, DK_KV_BF16);
    ck_assert(c->models[0].engine.fast && !c->models[1].engine.fast);
    ck_assert(!c->models[0].preload && c->models[1].preload);
    ck_assert_str_eq(c->default_model, "b");
    config_free(c);
    snprintf(path, sizeof path, "%s/40.conf", dir);
    write_file(path, "\n\n[limits]\nmax_request = 1\n");
    struct error err = {0};
    ck_fails(load(ARGS("--config", file), &c, &err), FORMAT, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "40.conf:4: [limits] max_request: unknown key"));
    static const char *const names[] = {"10.conf", "20.conf", "30.txt", "40.conf"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}
END_TEST

START_TEST(mistakes_are_named_with_file_and_line)
{
    char text[700];
    wrong("[daemon]\n\nthread = 1\n", 3, "[daemon] thread: unknown key");
    wrong("[demon]\nthreads = 1\n", 2, "[demon]: unknown section");
    wrong("threads = 1\n", 1, "unknown section");
    wrong("[daemon]\nthreads\n", 2, "neither [section] nor key = value");
    wrong("[daemon]\nthreads = many\n", 2, "threads: \"many\" is no value");
    wrong("[daemon]\nthreads = -1\n", 2, "threads");
    wrong("[daemon]\nthreads = 99999999999\n", 2, "threads");
    wrong("[daemon]\nthreads = 1\nthreads = 1\n", 3, "given twice");
    wrong("[daemon]\nsocket_mode = 0888\n", 2, "socket_mode");
    wrong("[daemon]\nsocket_mode = 01777\n", 2, "socket_mode");
    wrong("[daemon]\nexact = perhaps\n", 2, "exact");
    wrong("[daemon]\nlog_level = loud\n", 2, "log_level");
    wrong("[daemon]\ndrain_timeout = 5 parsecs\n", 2, "drain_timeout");
    wrong("[daemon]\ndrain_timeout = 99999d\n", 2, "drain_timeout");
    wrong("[limits]\nmax_prompt_bytes = 1X\n", 2, "max_prompt_bytes");
    wrong("[limits]\nring_bytes = 5G\n", 2, "ring_bytes");
    wrong("[limits]\nring_bytes = 8M\n", 0,
          "ring_bytes: 8388608, must be 131072 to max_ring_bytes");
    wrong("[limits]\nmax_ring_bytes = 1G\n", 0, "max_ring_bytes");
    wrong("[limits]\nmax_requests = 0\n", 0, "max_requests: 0, must be 1");
    wrong("[limits]\nmax_connections = 0\n", 0, "max_connections: 0, must be 1");
    wrong("[limits]\nmax_requests_per_connection = 4000\n", 0, "must be 1 to 2048");
    wrong("[daemon]\nmax_models = 0\n", 0, "max_models");
    wrong("[policy]\nmin_priority = 5\nmax_priority = 4\n", 0, "min_priority: 5 is over");
    wrong("[policy]\nprivileged_uids = root\n", 2, "privileged_uids");
    wrong("[model a]\nchat_format = chatml\n", 0, "[model a] path: must be set");
    wrong("[model a]\npath = /x\nspeed = 9\n", 3, "[model a] speed: unknown key");
    wrong("[model a]\n", 1, "[model NAME] without path");
    wrong("# x\n[model a]\n ; y\n\n[daemon]\nthreads = 1\n", 2, "[model NAME] without path");
    wrong("[model a/b]\npath = /x\n", 2, "letters, digits");
    wrong("[daemon]\ndefault_model = z\n[model a]\npath = /x\n", 0, "no section [model z]");
    /* The key, not the variable that it goes before. */
    wrong("[daemon]\ncpu_tier = mmx\n", 2, "[daemon] cpu_tier: 'mmx' is not one of c, avx2");
    setenv("DEDIT_CPU_TIER", "sse", 1);
    wrong("[daemon]\ncpu_tier = mmx\n", 2, "[daemon] cpu_tier: 'mmx' is not one of");
    struct error err = {0};
    struct config *c = NULL;
    conf("");
    ck_fails(load(ARGS("--config", file), &c, &err), INVALID, &err);
    ck_assert_str_eq(err.msg, "DEDIT_CPU_TIER: 'sse' is not one of c, avx2, avx512, amx");
    ck_fails(load(ARGS("--config", file, "--cpu-tier", "x"), &c, &err), INVALID, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "command line: [daemon] cpu_tier: 'x' is not"));
    unsetenv("DEDIT_CPU_TIER");
    wrong("[model a]\npath = x\ndevice = gpu\n", 0, "cuda:N");
    wrong("[model a]\nexactness = loose\n", 2,
          "exactness: \"loose\" is no value of the form strict|fast");
    wrong("[model a]\npath = x\ncohorts = 3\n", 0, "[model a] cohorts: 3, must be 1 or 2");
    wrong("[daemon]\nexact = yes\n[model a]\npath = x\nexactness = fast\n", 0,
          "[model a] exactness: fast does not go with exact = yes");
    wrong("[model a]\npath = /x\n\n [model a]\npreload = yes\n", 4,
          "[model a]: given twice in this file, first in line 1");
    wrong("; x\n[daemon]\nthreads = 1\n[limits]\n[daemon]\n", 5,
          "[daemon]: given twice in this file, first in line 2");
    /* A byte order mark is no part of the first line. */
    wrong("\xef\xbb\xbf[model a]\n", 1, "a [model NAME] without path");
    wrong("\xef\xbb\xbf[daemon]\nthread = 1\n", 2, "[daemon] thread: unknown key");
    /* Longer than the ini parser's buffers: never cut, always refused. */
    snprintf(text, sizeof text, "[daemon]\nsocket = /%0200d\n", 0);
    wrong(text, 2, "a line has at most 190");
    snprintf(text, sizeof text, "[model %050d]\npath = /x\n", 0);
    wrong(text, 1, "[section] of 56 bytes, at most 49");
}
END_TEST

START_TEST(a_file_may_have_many_keys)
{
    char text[8000] = "";
    size_t n = 0;
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "[model m%d]\npath = /x\npreload = no\n",
                              i);
    conf(text);
    struct config *c = load_ok(ARGS("--config", file));
    ck_assert_uint_eq(c->n_models, 100);
    config_free(c);
    snprintf(text + n, sizeof text - n, "[model m99]\npath = /y\n");
    wrong(text, 301, "[model m99]: given twice in this file, first in line 298");
}
END_TEST

START_TEST(wrong_flags_are_named)
{
    static const struct {
        const char *flag, *words;
    } bad[] = {{"--thread-count=1", "--thread-count=1: unknown option"},
               {"-q", "-q: unknown option"},
               {"-xy", "-x: unknown option"},
               {"--threads=x", "command line: threads"},
               {"what", "what: unexpected argument"},
               {"--socket=/a\n[x]", "socket"},
               {"--socket=/a ;b", "socket"},
               {"--model=a b=/x", "letters"},
               {"--model=a=", "[model a] path: must be set"}};
    conf("");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct config *c = NULL;
        struct error err = {0};
        ck_assert_int_lt(load(ARGS("--config", file, bad[i].flag), &c, &err), 0);
        ck_assert_msg(strstr(err.msg, bad[i].words) != NULL, "%s has no %s", err.msg, bad[i].words);
    }
    struct config *c = NULL;
    struct error err = {0};
    ck_fails(load(ARGS("--config", file, "--threads"), &c, &err), INVALID, &err);
    ck_assert_str_eq(err.msg, "--threads: needs a value");
    ck_fails(load(ARGS("--config", "/nonexistent/x"), &c, &err), NOT_FOUND, &err);
}
END_TEST

START_TEST(names_of_models_come_from_their_paths)
{
    static const struct {
        const char *flag, *name, *path;
    } good[] = {{"/m/SmolLM2.gguf", "SmolLM2", "/m/SmolLM2.gguf"},
                {"/m/folder/", "folder", "/m/folder/"},
                {"x=/m/a=b", "x", "/m/a=b"},
                {"/m/a=b.gguf", NULL, NULL}};
    conf("");
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct config *c = NULL;
        struct error err = {0};
        int r = load(ARGS("--config", file, "--model", good[i].flag), &c, &err);
        ck_assert_int_eq(r < 0, good[i].name == NULL);
        if (!good[i].name)
            continue;
        ck_assert_str_eq(c->models[0].name, good[i].name);
        ck_assert_str_eq(c->models[0].path, good[i].path);
        config_free(c);
    }
}
END_TEST

static char *print(const struct config *c)
{
    struct error err = {0};
    char path[600], *text = NULL;
    size_t len;
    snprintf(path, sizeof path, "%s/printed", test_tmpdir());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_eq(config_print(c, fd), 0);
    close(fd);
    ck_ok(file_read(path, 1 << 20, &text, &len, &err), &err);
    return text;
}

START_TEST(the_printed_configuration_reads_the_same)
{
    conf(
        "[daemon]\nsocket = /run/x y\nmetrics_interval = 1500us\n[limits]\nmax_queue_time = 90s\n"
        "[policy]\nprivileged_uids = 3 4\nmin_priority = -7\n[model a]\npath = /m\ndtype = bf16\n");
    struct config *c = load_ok(ARGS("--config", file, "--drain-timeout", "7ns"));
    char *one = print(c);
    static const char *const lines[] = {"\nsocket = /run/x y\n",
                                        "\nmetrics_interval = 1500us\n",
                                        "\nmax_queue_time = 90s\n",
                                        "\nprivileged_uids = 3 4\n",
                                        "\nmin_priority = -7\n",
                                        "\ndtype = bf16\n",
                                        "\n; command line\ndrain_timeout = 7ns\n"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        ck_assert_msg(strstr(one, lines[i]) != NULL, "%s has no %s", one, lines[i]);
    conf(one);
    struct config *d = load_ok(ARGS("--config", file));
    char *two = print(d);
    for (char *a = one, *b = two; *a || *b;) { /* but for where the values came from */
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (*a != ';')
            ck_assert_msg(n == m && !memcmp(a, b, n), "%.*s became %.*s", (int)n, a, (int)m, b);
        a += n + (a[n] != 0);
        b += m + (b[m] != 0);
    }
    mem_free(one);
    mem_free(two);
    config_free(c);
    config_free(d);
}
END_TEST

/* Or what is printed from it would lie one folder deeper each time. */
START_TEST(a_relative_folder_of_models_is_made_absolute)
{
    char here[PATH_MAX], want[PATH_MAX + 32];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    conf("[daemon]\nmodel_dir = no/such\n[model a]\npath = m\n[model b]\npath = /m\n");
    struct config *c = load_ok(ARGS("--config", file));
    snprintf(want, sizeof want, "%s/no/such", here);
    ck_assert_str_eq(c->model_dir, want);
    snprintf(want, sizeof want, "%s/no/such/m", here);
    ck_assert_str_eq(c->models[0].path, want);
    ck_assert_str_eq(c->models[1].path, "/m");
    char *one = print(c);
    conf(one);
    struct config *d = load_ok(ARGS("--config", file));
    ck_assert_str_eq(d->models[0].path, want);
    mem_free(one);
    config_free(c);
    config_free(d);
}
END_TEST

START_TEST(a_reload_keeps_what_needs_a_restart)
{
    struct error err = {0};
    struct config *d = NULL;
    char *note = NULL;
    conf("[daemon]\nsocket = /a\nmax_models = 1\n");
    const char **args = ARGS("--config", file);
    struct config *c = load_ok(args);
    ck_ok(config_reload(c, 3, (char **)(uintptr_t)args, &d, &note, &err), &err);
    ck_assert_ptr_null(note);
    config_free(d);
    conf("[daemon]\nsocket = /b\nmax_models = 2\nevent_loop = epoll\n");
    ck_ok(config_reload(c, 3, (char **)(uintptr_t)args, &d, &note, &err), &err);
    ck_assert_str_eq(note, "socket, event_loop");
    ck_assert_str_eq(d->socket_path, "/a");
    ck_assert_int_eq(d->event_loop, LOOP_AUTO);
    ck_assert_uint_eq(d->max_models, 2);
    mem_free(note);
    config_free(d);
    conf("[daemon]\nsocket = /b\nmax = 2\n");
    d = NULL;
    ck_fails(config_reload(c, 3, (char **)(uintptr_t)args, &d, &note, &err), FORMAT, &err);
    ck_assert_ptr_null(d);
    config_free(c);
}
END_TEST

/* Each with its place; what follows from another one is not told. */
START_TEST(all_faults_are_told)
{
    static const char *const wanted[] = {
        ":1: []: unknown section",
        ":3: [daemon] max_models: \"many\" is no value of the form models",
        ":4: neither [section] nor key = value",
        ":5: neither [section] nor key = value",
        ":8: [limits] max_requests: 0, must be 1 to 1000000",
        ":9: [limits] max_request: unknown key",
        ":10: [limits] max_requests: given twice in this file",
        ":12: [limit]: unknown section",
        ":15: [model x] path: must be set",
        ":16: a [model NAME] without path",
        ":18: [model y] path: /nowhere/m.gguf: /nowhere: No such file or directory",
        ":19: [model y] preload: \"maybe\" is no value of the form yes|no",
        ":20: [model y] drafter: /nowhere/d: /nowhere: No such file or directory",
        ":22: 307 bytes, a line has at most 190",
        ":23: [model z] device: device \"gpu\": must be auto, cpu, cuda or cuda:N",
        ":25: [section] of 60 bytes, at most 49",
        "command line: [daemon] socket: /nowhere: No such file or directory",
        "command line: threads: \"x\" is no value of the form threads",
        "command line: [daemon] default_model: there is no section [model q]",
    };
    struct error err = {0};
    char lines[4096], *text = NULL;
    size_t n = 0;
    snprintf(lines, sizeof lines,
             "stray = 1\n[daemon]\nmax_models = many\nnonsense\n[limits\nmax_requests = 0\n"
             "[limits]\nmax_requests = 0\nmax_request = 1\nmax_requests = 1\n[limit]\na = 1\n"
             "b = 2\n[model x]\npreload = yes\n[model bare]\n[model y]\npath = /nowhere/m.gguf\n"
             "preload = maybe\ndrafter = /nowhere/d\n[model z]\nlong = %0300d\ndevice = gpu\n"
             "path = %s\n[%060d]\nkey = 1\n",
             0, test_path("tests/golden/models/a_llama_tied"), 0);
    conf(lines);
    const char **args = ARGS("--check-config", "--config", file, "--socket", "/nowhere/s",
                             "--threads", "x", "--default-model", "q");
    ck_ok(config_check(10, (char **)(uintptr_t)args, &text, &n, &err), &err);
    const char *before = text;
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) { /* those of the file in its order */
        const char *at = strstr(text, wanted[i]);
        ck_assert_msg(at != NULL, "%s is not in\n%s", wanted[i], text);
        ck_assert_msg(at >= before || *wanted[i] != ':', "%s: order\n%s", wanted[i], text);
        before = at;
    }
    ck_assert_msg(n == ARRAY_LEN(wanted), "%zu:\n%s", n, text);
    mem_free(text);
    /* Nothing is wrong; and without --check-config nothing on disk is looked at. */
    snprintf(lines, sizeof lines, "[model z]\npath = %s\n",
             test_path("tests/golden/models/a_llama_tied"));
    conf(lines);
    ck_ok(config_check(4, (char **)(uintptr_t)ARGS("--check-config", "--config", file), &text, &n,
                       &err),
          &err);
    ck_assert_msg(n == 0 && !*text, "%s", text);
    mem_free(text);
    conf("[model z]\npath = /nowhere/m\n");
    ck_ok(config_check(3, (char **)(uintptr_t)ARGS("--config", file), &text, &n, &err), &err);
    ck_assert_uint_eq(n, 0);
    mem_free(text);
}
END_TEST

/* A large file that is something else: it ends after a hundred lines, not after an hour. */
START_TEST(a_text_that_is_no_configuration)
{
    enum { LINES = 100000, TOLD = 100 };
    static const char line[] = "nonsense\n";
    struct error err = {0};
    char *text = NULL, *lines = mem_alloc(LINES * (sizeof line - 1) + 1);
    size_t n = 0;
    for (size_t i = 0; i <= LINES; i++)
        memcpy(lines + (i < LINES ? i : LINES - 1) * (sizeof line - 1), line, sizeof line);
    conf(lines);
    const char **args = ARGS("--check-config", "--config", file);
    ck_ok(config_check(4, (char **)(uintptr_t)args, &text, &n, &err), &err);
    ck_assert_uint_eq(n, TOLD + 1);
    ck_assert_ptr_nonnull(strstr(text, ":100: neither [section] nor key = value\n"));
    ck_assert_ptr_null(strstr(text, ":101: "));
    ck_assert_ptr_nonnull(strstr(text,
                                 ": more than 100 lines are neither [section] nor key = value: "
                                 "this is no configuration\n"));
    mem_free(text);
    lines[TOLD * (sizeof line - 1)] = 0; /* a hundred are told, and no more is said */
    conf(lines);
    ck_ok(config_check(4, (char **)(uintptr_t)args, &text, &n, &err), &err);
    ck_assert_uint_eq(n, TOLD);
    mem_free(text);
    mem_free(lines);
}
END_TEST

START_TEST(allocations_may_fail_while_faults_are_told)
{
    struct test_oom o = {0};
    conf("[daemon]\nx = 1\n[limits]\nnonsense\n[model a]\npath = /nowhere\ndrafter = /no\n");
    const char **args = ARGS("--check-config", "--config", file, "--threads", "x");
    while (test_oom_next(&o)) {
        struct error err = {0};
        char *text = NULL;
        size_t n = 0;
        int r = config_check(6, (char **)(uintptr_t)args, &text, &n, &err);
        ck_assert_msg(r == 0 || (o.failed && r == DEDIT_E_NOMEM), "%s", err.msg);
        ck_assert(r < 0 || o.failed || n == 5);
        mem_free(text);
    }
}
END_TEST

START_TEST(allocations_may_fail)
{
    struct test_oom o = {0};
    conf("[daemon]\nsocket = /run/x\n[policy]\nprivileged_uids = 3 4\n[model a]\npath = m\n");
    const char **args = ARGS("--config", file, "--model", "b=/m/b", "--threads", "2");
    while (test_oom_next(&o)) {
        struct config *c = NULL;
        struct error err = {0};
        int r = load(args, &c, &err);
        ck_assert_msg(r == (o.failed ? DEDIT_E_NOMEM : 0), "%s", err.msg);
        config_free(c);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("daemon-config");
    TCase *t = test_case(s, "config");
    tcase_add_test(t, defaults_are_those_of_the_manual);
    tcase_add_test(t, files_then_dropins_then_flags);
    tcase_add_test(t, mistakes_are_named_with_file_and_line);
    tcase_add_test(t, a_file_may_have_many_keys);
    tcase_add_test(t, wrong_flags_are_named);
    tcase_add_test(t, names_of_models_come_from_their_paths);
    tcase_add_test(t, the_printed_configuration_reads_the_same);
    tcase_add_test(t, a_relative_folder_of_models_is_made_absolute);
    tcase_add_test(t, a_reload_keeps_what_needs_a_restart);
    tcase_add_test(t, all_faults_are_told);
    tcase_add_test(t, a_text_that_is_no_configuration);
    tcase_add_test(t, allocations_may_fail_while_faults_are_told);
    tcase_add_test(t, allocations_may_fail);
    return test_main(s);
}
