/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-client add and rm: files in the model store.  A model is read and checked as the daemon would do it,
 * copied, and hashed on the way: NAME.sha256 beside it is what `sha256sum -c` reads.
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
#include "client/cli-sha256.h"
#include "client/cli.h"
#include "engine/model_file.h"

static int store_path(const struct cli *c, struct strbuf *b)
{
    const char *own = cli_own(c, "store"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
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

/* Copies one regular file beside its place, then renames it there.  A line "HASH  name" goes to sums. */
static int copy_file(struct cli *c, const char *from, const char *to, const char *name,
                     struct strbuf *sums)
{
    enum { CHUNK = 1 << 20 };
    struct error e = {0};
    struct strbuf part = {0};
    struct sha256 hash;
    uint64_t size = 0, done = 0;
    char hex[65];
    int status = CLI_OK, in = fd_open_regular(from, &size, &e), out = -1;
    if (in < 0)
        return cli_fail_text(c, CLI_FAILED, "%s", e.msg);
    char *buf = mem_alloc(CHUNK);
    if (!buf || strbuf_addf(&part, "%s.part", to) < 0)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    else
        out = open(part.s, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    sha256_init(&hash);
    while (status == CLI_OK && out >= 0 && done < size) {
        ssize_t n = read(in, buf, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || fd_write_all(out, buf, (size_t)n) < 0)
            break;
        sha256_add(&hash, buf, (size_t)n);
        done += (uint64_t)n;
    }
    if (status == CLI_OK && (out < 0 || done != size || fsync(out) < 0 || rename(part.s, to) < 0)) {
        status = cli_fail_text(c, CLI_FAILED, "%s: %s", to, strerror(errno ? errno : EIO));
        unlink(part.s);
    }
    sha256_hex(&hash, hex);
    if (status == CLI_OK && strbuf_addf(sums, "%s  %s\n", hex, name) < 0)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    fd_close(in);
    fd_close(out);
    strbuf_done(&part);
    mem_free(buf);
    return status;
}

static int copy_folder(struct cli *c, const char *from, const char *to, const char *name,
                       struct strbuf *sums)
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
        struct strbuf a = {0}, b = {0}, n = {0};
        struct stat st;
        if (strbuf_addf(&a, "%s/%s", from, e->d_name) < 0 ||
            strbuf_addf(&b, "%s/%s", to, e->d_name) < 0 ||
            strbuf_addf(&n, "%s/%s", name, e->d_name) < 0)
            status = cli_fail_text(c, CLI_FAILED, "out of memory");
        else if (stat(a.s, &st) == 0 && S_ISREG(st.st_mode))
            status = copy_file(c, a.s, b.s, n.s, sums);
        strbuf_done(&a);
        strbuf_done(&b);
        strbuf_done(&n);
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
            status =
                cli_fail_text(c, CLI_FAILED, "%s: a folder with a model has a config.json", path);
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

/* As the daemon reads it: every key, every tensor, every extent. */
static int check_model(struct cli *c, const char *path)
{
    struct error e = {0};
    struct model_file *m = NULL;
    int r = model_file_open(path, &m, &e);
    model_file_free(m);
    return r < 0 ? cli_fail_text(c, CLI_FAILED, "%s", e.msg) : CLI_OK;
}

/* NAME.sha256, or its removal with text NULL. */
static int write_sums(struct cli *c, const char *model, const struct strbuf *sums)
{
    struct strbuf path = {0};
    struct error e = {0};
    int status = CLI_OK;
    if (strbuf_addf(&path, "%s.sha256", model) < 0)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    else if (!sums)
        unlink(path.s); /* models that were put there by hand have none */
    else if (file_write_atomic(path.s, sums->s, sums->len, &e) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s", e.msg);
    strbuf_done(&path);
    return status;
}

int cli_add(struct cli *c)
{
    struct strbuf store = {0}, to = {0}, sums = {0};
    struct error e = {0};
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
        status =
            cli_usage_error(c, "--name: \"%s\" must be a file name that begins with no dot", name);
    if (status == CLI_OK)
        status = check_model(c, from);
    if (status == CLI_OK &&
        (store_path(c, &store) < 0 || strbuf_addf(&to, "%s/%s", store.s, name) < 0))
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    if (status == CLI_OK && folders_make(store.s, 0755, &e) < 0)
        status = cli_fail_text(c, CLI_FAILED, "%s", e.msg);
    if (status == CLI_OK && access(to.s, F_OK) == 0)
        status = cli_fail_text(c, CLI_FAILED, "%s: exists already", to.s);
    if (status == CLI_OK)
        status = folder ? copy_folder(c, from, to.s, name, &sums)
                        : copy_file(c, from, to.s, name, &sums);
    if (status == CLI_OK)
        status = write_sums(c, to.s, &sums);
    if (status == CLI_OK && c->json)
        cli_print_json(json_pack("{s:s, s:s, s:s}", "name", name, "path", to.s, "sha256", sums.s));
    else if (status == CLI_OK)
        printf("%s\n%s", to.s, sums.s);
    strbuf_done(&sums);
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
    if (status == CLI_OK)
        status = write_sums(c, path.s, NULL);
    if (status == CLI_OK && c->json)
        cli_print_json(json_pack("{s:b}", "ok", 1));
    strbuf_done(&path);
    return status;
}
