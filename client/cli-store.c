/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-client add and rm: files in the model store.  The file's kind is checked here; whether it is a
 * model that works is the daemon's word when it loads it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/strbuf.h"
#include "client/cli.h"

static int store_path(const struct cli *c, struct strbuf *b)
{
    const char *own = cli_own(c, "store"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own)
        return strbuf_adds(b, own);
    if (geteuid() == 0)
        return strbuf_adds(b, "/var/lib/dedit/models");
    if (cache && *cache)
        return strbuf_addf(b, "%s/dedit/models", cache);
    return strbuf_addf(b, "%s/.cache/dedit/models", home && *home ? home : "");
}

static bool good_name(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < 200 && s[0] != '.' && !strchr(s, '/');
}

/* The folder and its parents. */
static int make_folders(char *path)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p)
            continue;
        char was = *p;
        *p = 0;
        int r = mkdir(path, 0755);
        int e = errno;
        *p = was;
        if (r < 0 && e != EEXIST) {
            errno = e;
            return -1;
        }
        if (!was)
            return 0;
    }
}

/* Copies one regular file beside its place, then renames it there. */
static int copy_file(struct cli *c, const char *from, const char *to)
{
    struct error e = {0};
    struct strbuf part = {0};
    uint64_t size = 0;
    int status = CLI_OK, in = fd_open_regular(from, &size, &e), out = -1;
    if (in < 0)
        return cli_fail_text(c, CLI_FAILED, "%s", e.msg);
    if (strbuf_addf(&part, "%s.part", to) < 0)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    else
        out = open(part.s, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    for (uint64_t done = 0; status == CLI_OK && out >= 0 && done < size;) {
        ssize_t n = copy_file_range(in, NULL, out, NULL, size - done, 0);
        if (n <= 0) {
            char buf[65536];
            n = read(in, buf, sizeof buf);
            if (n > 0)
                n = write(out, buf, (size_t)n);
        }
        if (n <= 0)
            break;
        done += (uint64_t)n;
    }
    struct stat st;
    if (status == CLI_OK && (out < 0 || fstat(out, &st) < 0 || (uint64_t)st.st_size != size ||
                             fsync(out) < 0 || rename(part.s, to) < 0)) {
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", to, strerror(errno ? errno : EIO));
        unlink(part.s);
    }
    fd_close(in);
    fd_close(out);
    strbuf_done(&part);
    return status;
}

static int copy_folder(struct cli *c, const char *from, const char *to)
{
    DIR *d = opendir(from);
    int status = CLI_OK;
    if (!d || (mkdir(to, 0755) < 0 && errno != EEXIST)) {
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", d ? to : from, strerror(errno));
        if (d)
            closedir(d);
        return status;
    }
    for (struct dirent *e; status == CLI_OK && (e = readdir(d));) {
        struct strbuf a = {0}, b = {0};
        struct stat st;
        if (strbuf_addf(&a, "%s/%s", from, e->d_name) < 0 ||
            strbuf_addf(&b, "%s/%s", to, e->d_name) < 0)
            status = cli_fail_text(c, CLI_FAILED, "out of memory");
        else if (stat(a.s, &st) == 0 && S_ISREG(st.st_mode))
            status = copy_file(c, a.s, b.s);
        strbuf_done(&a);
        strbuf_done(&b);
    }
    closedir(d);
    return status;
}

/* A GGUF file, or a folder with config.json and weights. */
static int check_source(struct cli *c, const char *path, bool *ret_folder)
{
    struct stat st;
    struct strbuf b = {0};
    char magic[4] = "";
    int status = CLI_OK;
    if (stat(path, &st) < 0)
        return cli_fail_text(c, CLI_FAILED, "%s: %s", path, strerror(errno));
    *ret_folder = S_ISDIR(st.st_mode);
    if (*ret_folder) {
        if (strbuf_addf(&b, "%s/config.json", path) < 0 || access(b.s, R_OK) < 0)
            status = cli_fail_text(c, CLI_FAILED, "%s: a folder with a model has a config.json", path);
        strbuf_done(&b);
        return status;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, magic, sizeof magic) : -1;
    fd_close(fd);
    if (n != 4 || memcmp(magic, "GGUF", 4) != 0)
        return cli_fail_text(c, CLI_FAILED, "%s: neither a GGUF file nor a folder with config.json",
                             path);
    return CLI_OK;
}

int cli_add(struct cli *c)
{
    struct strbuf store = {0}, to = {0};
    bool folder = false;
    if (c->argc != 1)
        return cli_usage_error(c, "which file or folder?");
    char *from = mem_strdup(c->argv[0]);
    if (!from)
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    while (strlen(from) > 1 && from[strlen(from) - 1] == '/')
        from[strlen(from) - 1] = 0;
    const char *name = cli_own(c, "name"), *slash = strrchr(from, '/');
    int status = check_source(c, from, &folder);
    if (!name)
        name = slash ? slash + 1 : from;
    if (status == CLI_OK && !good_name(name))
        status = cli_usage_error(c, "--name: \"%s\" must be a file name that begins with no dot", name);
    if (status == CLI_OK && (store_path(c, &store) < 0 || strbuf_addf(&to, "%s/%s", store.s, name) < 0))
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    if (status == CLI_OK && make_folders(store.s) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", store.s, strerror(errno));
    if (status == CLI_OK && access(to.s, F_OK) == 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: exists already", to.s);
    if (status == CLI_OK)
        status = folder ? copy_folder(c, from, to.s) : copy_file(c, from, to.s);
    if (status == CLI_OK && c->json)
        cli_print_json(json_pack("{s:s, s:s}", "name", name, "path", to.s));
    else if (status == CLI_OK)
        printf("%s\n", to.s);
    strbuf_done(&store);
    strbuf_done(&to);
    mem_free(from);
    return status;
}

static int remove_folder(struct cli *c, const char *path)
{
    DIR *d = opendir(path);
    int status = CLI_OK;
    if (!d)
        return cli_fail_text(c, CLI_FAILED, "%s: %s", path, strerror(errno));
    for (struct dirent *e; status == CLI_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) < 0)
            status = cli_fail_text(c, CLI_FAILED, "%s/%s: %s", path, e->d_name, strerror(errno));
    }
    closedir(d);
    if (status == CLI_OK && rmdir(path) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", path, strerror(errno));
    return status;
}

int cli_rm(struct cli *c)
{
    struct strbuf path = {0};
    struct stat st;
    int status = CLI_OK;
    if (c->argc != 1 || !good_name(c->argv[0]))
        return cli_usage_error(c, "which model of the store?");
    if (store_path(c, &path) < 0 || strbuf_addf(&path, "/%s", c->argv[0]) < 0)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    else if (lstat(path.s, &st) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", path.s, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = remove_folder(c, path.s);
    else if (unlink(path.s) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", path.s, strerror(errno));
    if (status == CLI_OK && c->json)
        cli_print_json(json_pack("{s:b}", "ok", 1));
    strbuf_done(&path);
    return status;
}
