/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-client add: a model, or the drafter of one, into the model store.  It is read and checked as
 * the daemon would do it, copied into the folder .NAME.adding, and hashed on the way.  The model, and
 * then NAME.sha256, which is what `sha256sum -c` reads, appear when all of it is there; nothing that is
 * there already is touched.  The lock of that folder keeps a second add of the name out; what one that
 * was killed left there is removed by the next.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/parse.h"
#include "client/cli-sha256.h"
#include "client/cli-store.h"
#include "engine/drafter_file.h"

struct adding {
    struct cli *c;
    char *from;
    const char *name;
    bool folder; /* the source is one */
    bool drafter;
    struct strbuf store, to, to_sums; /* in the store */
    struct strbuf stage, staged;      /* .NAME.adding, and the copy in it */
    struct strbuf sums;               /* text of NAME.sha256 */
    json_t *files;                    /* name -> hash */
};

/* ---- copying ----------------------------------------------------------------------------------- */

/* What one line of a .sha256 file and JSON can hold. */
static bool is_printable(const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return false;
    return utf8_valid(s, strlen(s));
}

/* One regular file; a line "HASH  name" goes to sums. */
static int copy_file(struct adding *a, const char *from, const char *to, const char *name)
{
    enum { CHUNK = 1 << 20 };
    struct error e = {0};
    struct sha256 hash;
    uint64_t size = 0, done = 0;
    char hex[65];
    if (!is_printable(name))
        return cli_fail_text(a->c, CLI_FAILED,
                             "%s: a file's name must be UTF-8 without control characters", from);
    _cleanup_free_ char *buf = mem_alloc(CHUNK);
    if (!buf)
        return cli_fail_text(a->c, CLI_FAILED, "out of memory");
    _cleanup_fd_ int in = fd_open_regular(from, &size, &e);
    if (in < 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s", e.msg);
    _cleanup_fd_ int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    sha256_init(&hash);
    errno = out < 0 ? errno : 0;
    while (out >= 0 && done < size && !cli_interrupted) {
        errno = 0;
        ssize_t n = read(in, buf, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || fd_write_all(out, buf, (size_t)n) < 0)
            break;
        sha256_add(&hash, buf, (size_t)n);
        done += (uint64_t)n;
    }
    if (cli_interrupted)
        return CLI_INTERRUPTED;
    if (out < 0 || done != size || fsync(out) < 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s: cannot copy it to %s: %s", from, a->store.s,
                             errno ? strerror(errno) : "its length changed meanwhile");
    sha256_hex(&hash, hex);
    if (strbuf_addf(&a->sums, "%s  %s\n", hex, name) < 0 ||
        json_object_set_new(a->files, name, json_string(hex)) < 0)
        return cli_fail_text(a->c, CLI_FAILED, "out of memory");
    return CLI_OK;
}

static int copy_folder(struct adding *a)
{
    DIR *d = opendir(a->from);
    int status = CLI_OK;
    if (!d || mkdir(a->staged.s, 0755) < 0) {
        status =
            cli_fail_text(a->c, CLI_FAILED, "%s: %s", d ? a->store.s : a->from, strerror(errno));
        if (d)
            closedir(d);
        return status;
    }
    while (status == CLI_OK) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (!e && errno)
            status = cli_fail_text(a->c, CLI_FAILED, "%s: %s", a->from, strerror(errno));
        if (!e)
            break;
        _cleanup_strbuf_ struct strbuf from = {0}, to = {0}, name = {0};
        struct stat st;
        if (strbuf_addf(&from, "%s/%s", a->from, e->d_name) < 0 ||
            strbuf_addf(&to, "%s/%s", a->staged.s, e->d_name) < 0 ||
            strbuf_addf(&name, "%s/%s", a->name, e->d_name) < 0)
            status = cli_fail_text(a->c, CLI_FAILED, "out of memory");
        else if (stat(from.s, &st) == 0 && S_ISREG(st.st_mode))
            status = copy_file(a, from.s, to.s, name.s);
    }
    closedir(d);
    return status;
}

/* ---- checking ---------------------------------------------------------------------------------- */

/* A GGUF file, or a folder with config.json and weights. */
static int check_source(struct adding *a)
{
    struct stat st;
    struct error e = {0};
    char magic[4] = "";
    if (stat(a->from, &st) < 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s: %s", a->from, strerror(errno));
    a->folder = S_ISDIR(st.st_mode);
    if (a->folder) {
        _cleanup_strbuf_ struct strbuf b = {0};
        if (strbuf_addf(&b, "%s/config.json", a->from) < 0 || access(b.s, R_OK) < 0)
            return cli_fail_text(a->c, CLI_FAILED, "%s: a folder with a model has a config.json",
                                 a->from);
    } else {
        _cleanup_fd_ int fd = open(a->from, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        ssize_t n = fd >= 0 ? read(fd, magic, sizeof magic) : -1;
        if (n != 4 || memcmp(magic, "GGUF", 4) != 0)
            return cli_fail_text(a->c, CLI_FAILED,
                                 "%s: neither a GGUF file nor a folder with config.json", a->from);
    }
    return drafter_file_is(a->from, &a->drafter, &e) < 0
               ? cli_fail_text(a->c, CLI_FAILED, "%s", e.msg)
               : CLI_OK;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

static int check_name(const struct adding *a)
{
    const char *rule = NULL;
    if (!store_name(a->name))
        rule = "must be a file name of less than 200 bytes that begins with no dot";
    else if (!is_printable(a->name))
        rule = "must be UTF-8 without control characters";
    else if (ends_with(a->name, ".sha256"))
        rule = "must not end in .sha256, as the files with sums do";
    else if (!a->drafter && (ends_with(a->name, ".drafter") || ends_with(a->name, ".drafter.gguf")))
        rule = "ends as a drafter's does, and this is none";
    else if (a->drafter && !ends_with(a->name, a->folder ? ".drafter" : ".drafter.gguf"))
        rule = a->folder ? "must be MODEL.drafter: a drafter lies beside its model"
                         : "must be MODEL.drafter.gguf: a drafter lies beside its model";
    return rule ? cli_usage_error(a->c, "--name: \"%s\" %s", a->name, rule) : CLI_OK;
}

/* The model of the store that a drafter of this name lies beside. */
static int find_model(struct adding *a, struct strbuf *ret)
{
    const size_t n = strlen(a->name) - strlen(a->folder ? ".drafter" : ".drafter.gguf");
    for (int folder = 0; folder < 2; folder++) {
        strbuf_clear(ret);
        if (strbuf_addf(ret, "%s/%.*s%s", a->store.s, (int)n, a->name, folder ? "" : ".gguf") < 0)
            return cli_fail_text(a->c, CLI_FAILED, "out of memory");
        if (access(ret->s, F_OK) == 0)
            return CLI_OK;
    }
    return cli_fail_text(
        a->c, CLI_FAILED,
        "%s is a drafter: its model, \"%.*s.gguf\" or \"%.*s\", is not in %s; add it "
        "first, or name another one with --name MODEL%s",
        a->from, (int)n, a->name, (int)n, a->name, a->store.s,
        a->folder ? ".drafter" : ".drafter.gguf");
}

/* As the daemon reads it: every key, every tensor, every extent; a drafter for its model. */
static int check_model(struct adding *a)
{
    struct error e = {0};
    _cleanup_strbuf_ struct strbuf model = {0};
    _cleanup_(model_file_freep) struct model_file *m = NULL, *drafter = NULL;
    int status = a->drafter ? find_model(a, &model) : CLI_OK;
    if (status != CLI_OK)
        return status;
    int r = model_file_open(a->drafter ? model.s : a->from, &m, &e);
    if (r == 0 && a->drafter)
        r = drafter_file_open(a->from, model_file_config(m), &drafter, &e);
    return r < 0 ? cli_fail_text(a->c, CLI_FAILED, "%s", e.msg) : CLI_OK;
}

/* ---- the store ----------------------------------------------------------------------------------- */

static int is_free(struct adding *a, const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s: exists already", path);
    return errno == ENOENT ? CLI_OK
                           : cli_fail_text(a->c, CLI_FAILED, "%s: %s", path, strerror(errno));
}

/* The copy of this run, or of one that was killed. */
static int clear_stage(struct adding *a)
{
    struct stat st;
    if (lstat(a->staged.s, &st) < 0)
        return CLI_OK;
    if (S_ISDIR(st.st_mode))
        return store_remove_folder(a->c, a->staged.s);
    return unlink(a->staged.s) < 0
               ? cli_fail_text(a->c, CLI_FAILED, "%s: %s", a->staged.s, strerror(errno))
               : CLI_OK;
}

/* Takes its name only where that is free; file systems that cannot do so at once were looked at under the lock. */
static int rename_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EINVAL || errno == ENOSYS ? rename(from, to) : -1;
}

static int publish(struct adding *a)
{
    struct error e = {0};
    if (rename_new(a->staged.s, a->to.s) < 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s: %s", a->to.s, strerror(errno));
    /* Syncs the folder, and so the model's name.  Killed in between, the model is there without sums. */
    if (file_write_atomic(a->to_sums.s, a->sums.s, a->sums.len, &e) == 0)
        return CLI_OK;
    const int status = cli_fail_text(a->c, CLI_FAILED, "%s", e.msg);
    (void)rename(a->to.s, a->staged.s);
    return status;
}

static int add_locked(struct adding *a)
{
    int status = is_free(a, a->to.s);
    if (status == CLI_OK)
        status = is_free(a, a->to_sums.s);
    if (status == CLI_OK)
        status = clear_stage(a);
    if (status != CLI_OK)
        return status;
    status = a->folder ? copy_folder(a) : copy_file(a, a->from, a->staged.s, a->name);
    if (status == CLI_OK)
        status = publish(a);
    if (status != CLI_OK)
        (void)clear_stage(a);
    return status;
}

static int add_to_store(struct adding *a)
{
    struct error e = {0};
    if (folders_make(a->store.s, 0755, &e) < 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s", e.msg);
    if (mkdir(a->stage.s, 0700) < 0 && errno != EEXIST)
        return cli_fail_text(a->c, CLI_FAILED, "%s: cannot write there: %s", a->store.s,
                             strerror(errno));
    _cleanup_fd_ int lock = folder_lock(a->stage.s, "another dedit-client add", &e);
    if (lock < 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s", e.msg);
    const int status = add_locked(a);
    (void)rmdir(a->stage.s);
    return status;
}

static int set_paths(struct adding *a)
{
    return store_path(a->c, &a->store) < 0 ||
                   strbuf_addf(&a->to, "%s/%s", a->store.s, a->name) < 0 ||
                   strbuf_addf(&a->to_sums, "%s.sha256", a->to.s) < 0 ||
                   strbuf_addf(&a->stage, "%s/.%s.adding", a->store.s, a->name) < 0 ||
                   strbuf_addf(&a->staged, "%s/%s", a->stage.s, a->name) < 0 ||
                   !(a->files = json_object())
               ? cli_fail_text(a->c, CLI_FAILED, "out of memory")
               : CLI_OK;
}

static void print_added(const struct adding *a)
{
    const char *hash = a->folder ? NULL : json_string_value(json_object_get(a->files, a->name));
    if (a->c->json)
        cli_print_json(json_pack("{s:s, s:s, s:s?, s:O}", "name", a->name, "path", a->to.s,
                                 "sha256", hash, "files", a->files));
    else
        printf("%s\n%s", a->to.s, a->sums.s);
}

int cli_add(struct cli *c)
{
    struct adding a = {.c = c, .name = cli_own(c, "name")};
    if (c->argc != 1)
        return cli_usage_error(c, "which file or folder?");
    a.from = mem_strdup(c->argv[0]);
    if (!a.from)
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    while (strlen(a.from) > 1 && a.from[strlen(a.from) - 1] == '/')
        a.from[strlen(a.from) - 1] = 0;
    const char *slash = strrchr(a.from, '/');
    if (!a.name)
        a.name = slash ? slash + 1 : a.from;
    int status = check_source(&a);
    if (status == CLI_OK)
        status = check_name(&a);
    if (status == CLI_OK)
        status = set_paths(&a);
    if (status == CLI_OK)
        status = check_model(&a);
    cli_catch_interrupt(true);
    if (status == CLI_OK)
        status = add_to_store(&a);
    cli_catch_interrupt(false);
    if (status == CLI_OK)
        print_added(&a);
    strbuf_done(&a.store);
    strbuf_done(&a.to);
    strbuf_done(&a.to_sums);
    strbuf_done(&a.stage);
    strbuf_done(&a.staged);
    strbuf_done(&a.sums);
    json_decref(a.files);
    mem_free(a.from);
    return status;
}
