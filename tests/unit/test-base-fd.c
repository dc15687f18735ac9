/* SPDX-License-Identifier: Apache-2.0 */
/* base/fd.h: descriptors, files, mappings, sealed memory files. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/line.h"
#include "base/mapguard.h"
#include "base/out_file.h"
#include "tests/unit/util.h"

static const char *in_tmp(const char *name)
{
    static char ring[4][512];
    static unsigned next;
    char *buf = ring[next++ % 4];
    snprintf(buf, sizeof(ring[0]), "%s/%s", test_tmpdir(), name);
    return buf;
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(counts)
{
    int n = fd_count();
    {
        _cleanup_fd_ int fd = dup(0);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fd_count(), n + 1);
    }
    ck_assert_int_eq(fd_count(), n);
    errno = EXDEV;
    ck_assert_int_eq(fd_close(-1), -1);
    ck_assert_int_eq(fd_close(987654), -1);
    ck_assert_int_eq(errno, EXDEV);
    int fd = dup(0), taken = TAKE_FD(fd);
    ck_assert_int_eq(fd, -1);
    ck_assert_int_eq(fd_close(taken), -1);
    ck_assert_int_eq(fd_count(), n);
}
END_TEST

START_TEST(open_regular)
{
    struct error e = {0};
    uint64_t size = 0;
    const char *path = in_tmp("a");
    write_file(path, "hello", 5);
    int fd = fd_open_regular(path, &size, &e);
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_eq(size, 5);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    fd_close(fd);
    fd_close(fd_open_regular(path, NULL, NULL));

    ck_fails(fd_open_regular("", NULL, &e), INVALID, &e);
    ck_fails(fd_open_regular(test_tmpdir(), NULL, &e), INVALID, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "is a directory"));
    ck_fails(fd_open_regular("/dev/null", NULL, &e), INVALID, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "/dev/null"));
    /* Nobody writes to this FIFO: opening it must not hang. */
    const char *fifo = in_tmp("fifo");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_fails(fd_open_regular(fifo, NULL, &e), INVALID, &e);
    ck_fails(fd_open_regular(in_tmp("a/b/c"), NULL, &e), NOT_FOUND, &e);
    ck_assert_msg(strstr(e.msg, "/a is not a directory") != NULL, "%s", e.msg);
}
END_TEST

START_TEST(open_names_first_component)
{
    struct error e = {0};
    char want[600];
    ck_fails(fd_open_regular(in_tmp("no/such/file"), NULL, &e), NOT_FOUND, &e);
    snprintf(want, sizeof(want), "%s/no/such/file: %s/no: No such file", test_tmpdir(),
             test_tmpdir());
    ck_assert_msg(!strncmp(e.msg, want, strlen(want)), "%s", e.msg);
    ck_fails(fd_open_regular(in_tmp("gone"), NULL, &e), NOT_FOUND, &e);
    snprintf(want, sizeof(want), "%s/gone: No such file", test_tmpdir());
    ck_assert_msg(!strncmp(e.msg, want, strlen(want)), "%s", e.msg);
    ck_fails(fd_open_regular("relative/none", NULL, &e), NOT_FOUND, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "relative: No such"));
    /* "/../x" walks and a trailing slash on a file */
    write_file(in_tmp("f"), "", 0);
    ck_fails(fd_open_regular(in_tmp("f/"), NULL, &e), NOT_FOUND, &e);
    ck_assert_msg(strstr(e.msg, "is not a directory") != NULL, "%s", e.msg);
}
END_TEST

/* As root access rights do not bind, so the child becomes somebody else first. */
START_TEST(open_denied)
{
    struct error e = {0};
    const char *path = in_tmp("secret");
    write_file(path, "x", 1);
    ck_assert_int_eq(chmod(path, 0), 0);
    ck_assert_int_eq(chmod(test_tmpdir(), 0755), 0);
    bool root = geteuid() == 0;
    if (root)
        ck_assert_int_eq(seteuid(65534), 0);
    ck_fails(fd_open_regular(path, NULL, &e), DENIED, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "Permission denied"));
    if (root)
        ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod(test_tmpdir(), 0700), 0);
    if (root) {
        ck_assert_int_eq(seteuid(65534), 0);
        ck_fails(fd_open_regular(path, NULL, &e), DENIED, &e);
        ck_assert_msg(strstr(e.msg, "may not be searched") != NULL, "%s", e.msg);
        ck_assert_int_eq(seteuid(0), 0);
    }
}
END_TEST

START_TEST(read_whole)
{
    struct error e = {0};
    size_t len = 0;
    char *s = NULL;
    const char *path = in_tmp("r");
    write_file(path, "a\0bc", 4);
    ck_ok(file_read(path, 4, &s, &len, &e), &e);
    ck_assert_uint_eq(len, 4);
    ck_assert(!memcmp(s, "a\0bc", 5));
    mem_free(s);
    ck_ok(file_read(path, SIZE_MAX - 2, &s, NULL, &e), &e);
    mem_free(s);
    s = NULL;
    ck_fails(file_read(path, 3, &s, &len, &e), LIMIT, &e);
    ck_assert_ptr_null(s);
    ck_assert_ptr_nonnull(strstr(e.msg, "at most 3"));
    write_file(path, "", 0);
    ck_ok(file_read(path, 0, &s, &len, &e), &e);
    ck_assert_str_eq(s, "");
    ck_assert_uint_eq(len, 0);
    mem_free(s);
    ck_fails(file_read(in_tmp("none"), 10, &s, &len, &e), NOT_FOUND, &e);
}
END_TEST

/* A file in /proc says it has 0 bytes, so the buffer has to grow; and the limit must still hold. */
START_TEST(read_growing)
{
    struct error e = {0};
    size_t len = 0;
    char *s = NULL;
    ck_ok(file_read("/proc/self/maps", 1 << 20, &s, &len, &e), &e);
    ck_assert_uint_gt(len, 100);
    ck_assert_uint_eq(strlen(s), len);
    mem_free(s);
    for (size_t max = 0; max < 100; max += 33)
        ck_fails(file_read("/proc/self/maps", max, &s, &len, &e), LIMIT, &e);
    ck_fails(file_read("/proc/self/mem", 100, &s, &len, &e), IO, &e);
}
END_TEST

START_TEST(read_oom)
{
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct error e = {0};
        char *s = NULL;
        int r = file_read("/proc/self/maps", 1 << 20, &s, NULL, &e);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        mem_free(s);
    }
    ck_assert_uint_ge(o.nth, 2);
    o = (struct test_oom){0};
    while (test_oom_next(&o)) {
        struct error e = {0};
        int r = fd_open_regular("/nowhere/at/all", NULL, &e);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : DEDIT_E_NOT_FOUND);
    }
}
END_TEST

START_TEST(write_atomic)
{
    struct error e = {0};
    char *s = NULL;
    const char *path = in_tmp("w");
    umask(027);
    ck_ok(file_write_atomic(path, "one", 3, &e), &e);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0640);
    ck_ok(file_write_atomic(path, "two!", 4, &e), &e);
    ck_ok(file_read(path, 100, &s, NULL, &e), &e);
    ck_assert_str_eq(s, "two!");
    mem_free(s);
    ck_fails(file_write_atomic(in_tmp("no/w"), "x", 1, &e), IO, &e);
    ck_fails(file_write_atomic("", "x", 1, &e), INVALID, &e);
    /* A folder cannot be replaced by a file: the new file must not stay behind. */
    const char *dir = in_tmp("dir");
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_fails(file_write_atomic(dir, "x", 1, &e), IO, &e);
    ck_assert_int_eq(rmdir(dir), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(test_tmpdir()), 0);
}
END_TEST

START_TEST(folders)
{
    struct error e = {0};
    struct stat st;
    umask(022);
    for (int again = 0; again < 2; again++) {
        ck_ok(folders_make(in_tmp("a/b//c/"), 0750, &e), &e);
        ck_assert_int_eq(stat(in_tmp("a/b/c"), &st), 0);
        ck_assert_uint_eq(st.st_mode, S_IFDIR | 0750);
    }
    ck_ok(folders_make("/", 0777, &e), &e);
    ck_fails(folders_make("", 0777, &e), INVALID, &e);
    write_file(in_tmp("a/file"), "x", 1);
    ck_fails(folders_make(in_tmp("a/file"), 0777, &e), IO, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "a/file: cannot create: there is a file"));
    ck_fails(folders_make(in_tmp("a/file/d"), 0777, &e), IO, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "a/file: cannot create: there is a file"));
}
END_TEST

static void check_text(const char *path, const char *want)
{
    struct error e = {0};
    char *s = NULL;
    ck_ok(file_read(path, 100, &s, NULL, &e), &e);
    ck_assert_str_eq(s, want);
    mem_free(s);
}

static void print_to(const char *path, const char *text)
{
    struct error e = {0};
    struct out_file o;
    ck_ok(out_file_open(&o, path, &e), &e);
    fputs(text, o.f);
    ck_ok(out_file_close(&o, &e), &e);
    ck_assert_ptr_null(o.f);
}

/* What a command prints into a file: whole, or what was there before. */
START_TEST(out_files)
{
    struct error e = {0};
    struct out_file o;
    const char *path = in_tmp("w");
    print_to(path, "one\n");
    check_text(path, "one\n");
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_ok(out_file_open(&o, path, &e), &e);
    fputs("two, and not for long\n", o.f);
    out_file_drop(&o);
    out_file_drop(&o);
    check_text(path, "one\n");

    signal(SIGXFSZ, SIG_IGN);
    struct rlimit lim = {.rlim_cur = 2, .rlim_max = RLIM_INFINITY}, old;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    lim.rlim_max = old.rlim_max;
    ck_ok(out_file_open(&o, path, &e), &e);
    fputs("three\n", o.f);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &lim), 0);
    ck_fails(out_file_close(&o, &e), IO, &e);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    check_text(path, "one\n");

    print_to(path, "four\n"); /* and its mode stays */
    check_text(path, "four\n");
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(unlink(path), 0);
    /* What can never be written is told before anything is printed. */
    ck_fails(out_file_open(&o, "", &e), INVALID, &e);
    ck_fails(out_file_open(&o, test_tmpdir(), &e), IO, &e);
    ck_fails(out_file_open(&o, in_tmp("x/"), &e), IO, &e);
    ck_fails(out_file_open(&o, in_tmp("no/w"), &e), IO, &e);
    ck_assert_int_eq(rmdir(test_tmpdir()), 0); /* nothing else is there */
}
END_TEST

/* What is no file of its own gets the text as it is: a pipe, and what links lead to. */
START_TEST(out_files_as_they_are)
{
    char text[16] = "", path[4200], to[4200];
    snprintf(path, sizeof(path), "%s/w", test_tmpdir());
    snprintf(to, sizeof(to), "%s/to", test_tmpdir());
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    ck_assert_int_ge(fd, 0);
    print_to(path, "pipe\n");
    ck_assert_int_eq(read(fd, text, sizeof(text) - 1), 5);
    ck_assert_str_eq(text, "pipe\n");
    close(fd);
    ck_assert_int_eq(unlink(path), 0);

    struct stat st;
    ck_assert_int_eq(symlink(to, path), 0);
    print_to(path, "a new file, and a long one\n"); /* the link dangled */
    print_to(path, "link\n");
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    check_text(to, "link\n");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(unlink(to), 0);

    /* Links to nowhere are told before anything is printed; what they make counts as that file. */
    struct error e = {0};
    struct out_file o;
    char second[4200];
    snprintf(second, sizeof(second), "%s/second", test_tmpdir());
    ck_assert_int_eq(symlink("second", path), 0);
    ck_assert_int_eq(symlink("to", second), 0);
    ck_assert(file_is_same(path, to) && file_is_same(path, second));
    const struct out_use twice[] = {{"--a", path}, {"--b", to}};
    ck_fails(out_files_check(twice, 2, NULL, 0, &e), INVALID, &e);
    print_to(path, "through two\n");
    check_text(to, "through two\n");
    ck_assert_int_eq(unlink(to), 0);
    ck_assert_int_eq(unlink(second), 0);
    ck_assert_int_eq(symlink("no/such/folder", second), 0);
    ck_fails(out_file_open(&o, path, &e), IO, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "no/such/folder"));
    ck_assert_int_eq(unlink(second), 0);
    ck_assert_int_eq(symlink("w", second), 0); /* a ring */
    ck_fails(out_file_open(&o, path, &e), IO, &e);
    ck_assert_int_eq(unlink(second), 0);
    ck_assert_int_eq(unlink(path), 0);

    /* "/dev/stdout" is a link, too. */
    fd = open(to, O_RDWR | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    print_to(path, "out\n");
    close(fd);
    check_text(to, "out\n");
    ck_assert_int_eq(unlink(to), 0);
    ck_assert_int_eq(rmdir(test_tmpdir()), 0);
}
END_TEST

/* A write that fails half-way (here: a file size limit) leaves the old content and nothing else. */
START_TEST(write_atomic_no_space)
{
    struct error e = {0};
    char *s = NULL, big[4096];
    const char *path = in_tmp("w");
    memset(big, 'x', sizeof(big));
    ck_ok(file_write_atomic(path, "old", 3, &e), &e);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit lim = {.rlim_cur = 1000, .rlim_max = RLIM_INFINITY}, old;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    lim.rlim_max = old.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &lim), 0);
    ck_fails(file_write_atomic(path, big, sizeof(big), &e), IO, &e);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_ptr_nonnull(strstr(e.msg, "File too large"));
    ck_ok(file_read(path, 100, &s, NULL, &e), &e);
    ck_assert_str_eq(s, "old");
    mem_free(s);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(test_tmpdir()), 0);
}
END_TEST

/* Pages of the mapping at addr that this process has mapped. */
static long resident_pages(const void *addr)
{
    long n = 0;
    char want[64], line[256];
    snprintf(want, sizeof(want), "%lx-", (unsigned long)(uintptr_t)addr);
    FILE *f = fopen("/proc/self/smaps", "re");
    bool mine = false;
    while (f && fgets(line, sizeof(line), f)) {
        if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
            mine = !strncmp(line, want, strlen(want));
        if (mine && sscanf(line, "Rss: %ld kB", &n) == 1)
            break;
    }
    if (f)
        fclose(f);
    return n / 4;
}

START_TEST(map)
{
    struct error e = {0};
    struct file_map m = {0};
    enum { PAGES = 10 };
    static char data[PAGES * 4096 + 100];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7 % 251);
    const char *path = in_tmp("m");
    write_file(path, data, sizeof(data));
    ck_ok(file_map_open(path, &m, &e), &e);
    ck_assert_uint_eq(m.size, sizeof(data));
    ck_assert(!memcmp(m.addr, data, sizeof(data)));
    ck_assert_int_eq(resident_pages(m.addr), PAGES + 1);
    file_map_release(&m, 100, 3 * 4096); /* pages 1 and 2 are wholly inside */
    ck_assert_int_eq(resident_pages(m.addr), PAGES + 1 - 2);
    file_map_release(&m, 10, 100); /* no whole page */
    file_map_release(&m, sizeof(data), 1);
    file_map_release(&m, SIZE_MAX, SIZE_MAX);
    ck_assert_int_eq(resident_pages(m.addr), PAGES + 1 - 2);
    file_map_release(&m, 0, SIZE_MAX);
    ck_assert_int_eq(resident_pages(m.addr), 0);
    ck_assert(!memcmp(m.addr, data, sizeof(data)));
    file_map_done(&m);
    ck_assert(!m.addr && !m.size);
    file_map_done(&m);
    file_map_release(&m, 0, 1);
    write_file(path, "", 0);
    ck_ok(file_map_open(path, &m, &e), &e);
    ck_assert(!m.addr && !m.size);
    file_map_done(&m);
    ck_fails(file_map_open(in_tmp("none"), &m, &e), NOT_FOUND, &e);
}
END_TEST

START_TEST(memfds)
{
    struct error e = {0};
    size_t size = 0;
    _cleanup_fd_ int fd = memfd_new("ring", 10000, &e);
    ck_assert_int_ge(fd, 0);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_int_eq(st.st_size, 10000);
    ck_assert_int_ge(st.st_blocks * 512, 10000); /* reserved, not only promised */
    ck_ok(memfd_check(fd, 0, 10000, &size, &e), &e);
    ck_assert_uint_eq(size, 10000);
    ck_fails(memfd_check(fd, 0, 10001, NULL, &e), INVALID, &e);
    ck_fails(memfd_check(fd, F_SEAL_SHRINK, 0, NULL, &e), INVALID, &e);
    ck_ok(memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW, &e), &e);
    ck_ok(memfd_check(fd, F_SEAL_SHRINK | F_SEAL_GROW, 1, NULL, &e), &e);
    ck_fails(memfd_check(fd, F_SEAL_SHRINK | F_SEAL_WRITE, 0, NULL, &e), INVALID, &e);
    ck_assert_int_lt(ftruncate(fd, 5000), 0);
    void *p = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert(p != MAP_FAILED);
    ck_fails(memfd_seal(fd, F_SEAL_WRITE, &e), DENIED, &e); /* a writable mapping is in the way */
    munmap(p, 10000);
    ck_ok(memfd_seal(fd, F_SEAL_WRITE | F_SEAL_SEAL, &e), &e);
    ck_fails(memfd_seal(fd, F_SEAL_FUTURE_WRITE, &e), DENIED, &e);
    _cleanup_fd_ int empty = memfd_new("empty", 0, &e);
    ck_assert_int_ge(empty, 0);
}
END_TEST

START_TEST(memfd_refusals)
{
    struct error e = {0};
    const char *path = in_tmp("f");
    write_file(path, "hello", 5);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    int p[2];
    ck_fails(memfd_check(fd, F_SEAL_WRITE, 1, NULL, &e), INVALID, &e);
    ck_fails(memfd_check(-1, 0, 0, NULL, &e), INVALID, &e);
    ck_assert_int_eq(pipe(p), 0);
    ck_fails(memfd_check(p[0], 0, 0, NULL, &e), INVALID, &e);
    close(p[0]);
    close(p[1]);
    ck_fails(memfd_new("huge", SIZE_MAX, &e), LIMIT, &e);
    ck_fails(memfd_new("large", (size_t)1 << 50, &e), LIMIT, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "memory file large: "));
    /* Space that cannot be reserved (here: a file size limit) is an error now, not SIGBUS later. */
    struct rlimit old, lim;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    lim = old;
    lim.rlim_cur = 4096;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &lim), 0);
    ck_fails(memfd_new("limited", 8192, &e), IO, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "cannot reserve 8192 bytes"));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    /* No descriptor left. */
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    lim = old;
    lim.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
    ck_fails(memfd_new("none", 1, &e), LIMIT, &e);
    ck_fails(fd_open_regular(path, NULL, &e), IO, &e);
    ck_assert_int_eq(fd_count(), -1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_fails(memfd_seal(-1, F_SEAL_WRITE, &e), IO, &e);
}
END_TEST

/* A mapped file that gets shorter reads as zeros, is counted, and ends nobody. */
START_TEST(files_that_shrink_while_mapped)
{
    char path[600];
    static char data[5 * 4096];
    struct file_map m;
    struct error err = {0};
    snprintf(path, sizeof path, "%s/f", test_tmpdir());
    memset(data, 'x', sizeof data);
    ck_assert_int_eq(file_write_atomic(path, data, sizeof data, &err), 0);
    ck_assert_int_eq(file_map_open(path, &m, &err), 0);
    const volatile char *p = m.addr;
    ck_assert_int_eq(p[4 * 4096], 'x');
    ck_assert_int_eq(truncate(path, 4096 + 10), 0);
    pid_t child = fork(); /* without the guard it is the end, as ever */
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGBUS, SIG_DFL);
        _exit(p[3 * 4096]);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    ck_assert_int_eq(map_guard_install(&err), 0);
    uint64_t before = map_guard_faults();
    ck_assert_int_eq(p[0], 'x');
    ck_assert_int_eq(p[4096 + 9], 'x');
    ck_assert_uint_eq(map_guard_faults(), before);
    ck_assert_int_eq(p[2 * 4096 + 7], 0);
    ck_assert_int_eq(p[4 * 4096], 0);
    ck_assert_int_eq(p[4 * 4096 + 1], 0);
    ck_assert_uint_eq(map_guard_faults(), before + 2);
    /* Other faults end the process: no file of ours was read. */
    child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        map_guard_remove(m.addr);
        _exit(p[3 * 4096]);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    file_map_done(&m);
    signal(SIGBUS, SIG_DFL);
}
END_TEST

/* What is read is not written over, whatever name it is given by; nor are two outputs one file. */
START_TEST(out_files_apart)
{
    struct error e = {0};
    char a[520], folder[520], link[520], around[520], part[520], other[520];
    snprintf(a, sizeof(a), "%s/a", test_tmpdir());
    snprintf(folder, sizeof(folder), "%s/m", test_tmpdir());
    snprintf(link, sizeof(link), "%s/link", test_tmpdir());
    snprintf(around, sizeof(around), "%s/m/../a", test_tmpdir());
    snprintf(part, sizeof(part), "%s/m/config.json", test_tmpdir());
    snprintf(other, sizeof(other), "%s/m/../new", test_tmpdir());
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    write_file(a, "x", 1);
    write_file(part, "{}", 2);
    ck_assert_int_eq(symlink(a, link), 0);

    const char *const ins[] = {NULL, a, folder};
    const char *const bad[] = {a, link, around, folder, part};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const struct out_use o[] = {{"--csv", NULL}, {"--svg", bad[i]}};
        ck_fails(out_files_check(o, 2, ins, ARRAY_LEN(ins), &e), INVALID, &e);
        ck_assert_ptr_nonnull(strstr(e.msg, "--svg: "));
        ck_assert_ptr_nonnull(strstr(e.msg, bad[i]));
    }
    const char *const good[] = {in_tmp("new"), in_tmp("m/table.csv"), in_tmp("m/new.json"),
                                "/dev/null"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        const struct out_use o = {"--csv", good[i]};
        ck_ok(out_files_check(&o, 1, ins, ARRAY_LEN(ins), &e), &e);
    }
    const struct out_use twice[] = {{"--csv", in_tmp("new")}, {"--svg", other}};
    ck_fails(out_files_check(twice, 2, ins, ARRAY_LEN(ins), &e), INVALID, &e);
    ck_assert_ptr_nonnull(strstr(e.msg, "what --csv writes"));
    const struct out_use nowhere[] = {{"--csv", "/dev/null"}, {"--svg", "/dev/null"}};
    ck_ok(out_files_check(nowhere, 2, ins, ARRAY_LEN(ins), &e), &e);
    ck_assert(!file_is_same("/dev/null", "/dev/null"));
    ck_assert(!file_is_same(in_tmp("new"), in_tmp("newer")));

    ck_assert_int_eq(unlink(part), 0);
    ck_assert_int_eq(unlink(link), 0);
    ck_assert_int_eq(unlink(a), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

static ssize_t two_lines_and_a_fault(void *cookie, char *buf, size_t size)
{
    static const char text[] = "one\n \t\n";
    int *calls = cookie;
    if ((*calls)++ || size < sizeof text) {
        errno = EIO;
        return -1;
    }
    memcpy(buf, text, sizeof text - 1);
    return sizeof text - 1;
}

/* The end, and what is no end although no line came. */
START_TEST(lines)
{
    struct error e = {0};
    char *line = NULL, text[] = "\n  \none\r\n\ttwo";
    size_t cap = 0;
    int calls = 0;
    FILE *f = fmemopen(text, strlen(text), "r");
    ck_assert_int_eq(line_read(f, "a file", &line, &cap, &e), 1);
    ck_assert_int_eq(line_read_next(f, "a file", &line, &cap, &e), 5);
    ck_assert_str_eq(line, "one\r\n");
    ck_assert_int_eq(line_read_next(f, "a file", &line, &cap, &e), 4);
    ck_assert_str_eq(line, "\ttwo");
    ck_assert_int_eq(line_read_next(f, "a file", &line, &cap, &e), 0);
    ck_assert_int_eq(line_read(f, "a file", &line, &cap, &e), 0);
    fclose(f);

    f = fopencookie(&calls, "r", (cookie_io_functions_t){.read = two_lines_and_a_fault});
    ck_assert_int_eq(line_read(f, "a file", &line, &cap, &e), 4);
    ck_fails((int)line_read_next(f, "a file", &line, &cap, &e), IO, &e);
    ck_assert_str_eq(e.msg, "a file: Input/output error");
    fclose(f);

    f = fopen(test_tmpdir(), "r");
    ck_fails((int)line_read(f, "a folder", &line, &cap, &e), IO, &e);
    ck_assert_str_eq(e.msg, "a folder: Is a directory");
    fclose(f);
    free(line);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base-fd");
    TCase *t = test_case(s, "fd");
    tcase_add_test(t, counts);
    tcase_add_test(t, open_regular);
    tcase_add_test(t, open_names_first_component);
    tcase_add_test(t, open_denied);
    t = test_case(s, "file");
    tcase_add_test(t, read_whole);
    tcase_add_test(t, read_growing);
    tcase_add_test(t, read_oom);
    tcase_add_test(t, write_atomic);
    tcase_add_test(t, folders);
    tcase_add_test(t, lines);
    tcase_add_test(t, out_files);
    tcase_add_test(t, out_files_as_they_are);
    tcase_add_test(t, out_files_apart);
    tcase_add_test(t, write_atomic_no_space);
    tcase_add_test(t, map);
    tcase_add_test(t, files_that_shrink_while_mapped);
    t = test_case(s, "memfd");
    tcase_add_test(t, memfds);
    tcase_add_test(t, memfd_refusals);
    return test_main(s);
}
