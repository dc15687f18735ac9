/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-client add: a model, or the drafter of one, into the model store.  It is read and checked as
 * the daemon would do it, copied into the folder .NAME.adding, and hashed on the way.  The model and
 * NAME.sha256, which is what `sha256sum -c` reads, appear when all of it is there; nothing that is
 * there already is touched, but for sums whose model is gone.
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
    struct strbuf store;
    struct store_stage stage;
    struct strbuf sums; /* text of NAME.sha256 */
    json_t *files;      /* name -> hash */
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
    if (!d || mkdir(a->stage.item.s, 0755) < 0) {
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
            strbuf_addf(&to, "%s/%s", a->stage.item.s, e->d_name) < 0 ||
            strbuf_addf(&name, "%s/%s", a->name, e->d_name) < 0)
            status = cli_fail_text(a->c, CLI_FAILED, "out of memory");
        else if (stat(from.s, &st) == 0 && S_ISREG(st.st_mode))
            status = copy_file(a, from.s, to.s, name.s);
    }
    closedir(d);
    if (status == CLI_OK)
        store_sync_folder(a->stage.item.s);
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

static const char *drafter_end(const struct adding *a)
{
    return a->folder ? DRAFTER_END_FOLDER : DRAFTER_END_FILE;
}

static int check_name(const struct adding *a)
{
    const char *rule = NULL;
    if (!store_name(a->name))
        rule = "must be a file name of less than 200 bytes that begins with no dot";
    else if (!is_printable(a->name))
        rule = "must be UTF-8 without control characters";
    else if (store_ends_with(a->name, ".sha256"))
        rule = "must not end in .sha256, as the files with sums do";
    else if (!a->drafter && store_is_drafter(a->name))
        rule = "ends as a drafter's does, and this is none";
    else if (a->drafter && !store_ends_with(a->name, drafter_end(a)))
        rule = a->folder ? "must be MODEL" DRAFTER_END_FOLDER ": a drafter lies beside its model"
                         : "must be MODEL" DRAFTER_END_FILE ": a drafter lies beside its model";
    else if (a->drafter && store_ends_with(a->name, a->folder ? ".gguf" DRAFTER_END_FOLDER
                                                              : ".gguf" DRAFTER_END_FILE))
        rule = "must be MODEL without .gguf before what a drafter ends in: that of x.gguf is "
               "x" DRAFTER_END_FOLDER ", or x" DRAFTER_END_FILE;
    return rule ? cli_usage_error(a->c, "--name: \"%s\" %s", a->name, rule) : CLI_OK;
}

static int check_drafter_of(struct adding *a, const char *drafter, const char *model)
{
    struct error e = {0};
    _cleanup_(model_file_freep) struct model_file *m = NULL, *d = NULL;
    int r = model_file_open(model, &m, &e);
    if (r == 0)
        r = drafter_file_open(drafter, model_file_config(m), &d, &e);
    if (r == 0)
        return CLI_OK;
    return strcmp(drafter, a->from) == 0
               ? cli_fail_text(a->c, CLI_FAILED, "%s", e.msg)
               : cli_fail_text(a->c, CLI_FAILED,
                               "%s would be the drafter of %s, too, and is none: %s; name another "
                               "one with --name",
                               drafter, a->name, e.msg);
}

/* A drafter lies beside NAME.gguf and the folder NAME: it must be that of each which is there. */
static int check_drafter(struct adding *a)
{
    const char *end = drafter_end(a), *other = a->folder ? DRAFTER_END_FILE : DRAFTER_END_FOLDER;
    const size_t n = strlen(a->name) - strlen(end);
    _cleanup_strbuf_ struct strbuf path = {0};
    int found = 0, status = CLI_OK;
    for (int folder = 0; folder < 2 && status == CLI_OK; folder++) {
        if (store_member(&path, a->store.s, a->name, n, folder ? "" : ".gguf") < 0)
            return cli_fail_text(a->c, CLI_FAILED, "out of memory");
        if (!store_has(path.s))
            continue;
        found++;
        status = check_drafter_of(a, a->from, path.s);
    }
    if (status != CLI_OK)
        return status;
    if (!found)
        return cli_fail_text(
            a->c, CLI_FAILED,
            "%s is a drafter: its model, \"%.*s.gguf\" or \"%.*s\", is not in %s; add it "
            "first, or name another one with --name MODEL%s",
            a->from, (int)n, a->name, (int)n, a->name, a->store.s, end);
    if (store_member(&path, a->store.s, a->name, n, other) < 0)
        return cli_fail_text(a->c, CLI_FAILED, "out of memory");
    return store_has(path.s)
               ? cli_fail_text(a->c, CLI_FAILED, "%s: exists already, and a model has one drafter",
                               path.s)
               : CLI_OK;
}

/* What the daemon will find beside the model. */
static int check_beside(struct adding *a)
{
    int status = CLI_OK;
    for (size_t i = 0; i < ARRAY_LEN(DRAFTER_ENDS) && status == CLI_OK; i++) {
        _cleanup_strbuf_ struct strbuf path = {0};
        if (store_member(&path, a->store.s, a->name, store_stem(a->name), DRAFTER_ENDS[i]) < 0)
            return cli_fail_text(a->c, CLI_FAILED, "out of memory");
        if (!store_has(path.s))
            continue;
        status = check_drafter_of(a, path.s, a->from);
        if (status == CLI_OK && !a->c->json && !a->c->quiet)
            fprintf(stderr, "%s is its drafter\n", path.s);
        break; /* the daemon takes the first one */
    }
    return status;
}

/* As the daemon reads it: every key, every tensor, every extent; a drafter for its model. */
static int check_model(struct adding *a)
{
    struct error e = {0};
    _cleanup_(model_file_freep) struct model_file *m = NULL;
    if (a->drafter)
        return check_drafter(a);
    return model_file_open(a->from, &m, &e) < 0 ? cli_fail_text(a->c, CLI_FAILED, "%s", e.msg)
                                                : check_beside(a);
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

/* Whether a text is what add writes for this name: lines "HASH  NAME" and "HASH  NAME/FILE". */
static bool is_sums_of(const char *text, const char *name)
{
    const size_t n = strlen(name);
    const char *s = text, *end;
    for (; (end = strchr(s, '\n')); s = end + 1) {
        const char *after = s + 66 + n;
        if (strspn(s, "0123456789abcdef") != 64 || strncmp(s + 64, "  ", 2) != 0 ||
            strncmp(s + 66, name, n) != 0 || (*after != '\n' && *after != '/'))
            return false;
    }
    return s != text && !*s;
}

/* Sums whose model somebody removed by other means are in nobody's way; another file of that name is. */
static int look_at_sums(struct adding *a)
{
    enum { MAX_SUMS = 1 << 20 };
    const char *path = a->stage.to_sums.s;
    _cleanup_free_ char *text = NULL;
    struct error e = {0};
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? CLI_OK
                               : cli_fail_text(a->c, CLI_FAILED, "%s: %s", path, strerror(errno));
    a->stage.stray = S_ISREG(st.st_mode) && file_read(path, MAX_SUMS, &text, NULL, &e) == 0 &&
                     is_sums_of(text, a->name);
    if (!a->stage.stray)
        return cli_fail_text(a->c, CLI_FAILED,
                             "%s: exists already, and is not what add writes for %s", path,
                             a->name);
    if (!a->c->json && !a->c->quiet)
        fprintf(stderr, "%s is of a model that is gone, and is replaced\n", path);
    return CLI_OK;
}

static int add_locked(struct adding *a)
{
    int status = is_free(a, a->stage.to.s);
    if (status == CLI_OK)
        status = look_at_sums(a);
    if (status != CLI_OK)
        return status;
    status = a->folder ? copy_folder(a) : copy_file(a, a->from, a->stage.item.s, a->name);
    if (status == CLI_OK)
        status = store_stage_publish(&a->stage, a->sums.s, a->sums.len);
    if (status != CLI_OK)
        (void)store_stage_undo(&a->stage);
    return status;
}

static int add_to_store(struct adding *a)
{
    struct error e = {0};
    if (folders_make(a->store.s, 0755, &e) < 0)
        return cli_fail_text(a->c, CLI_FAILED, "%s", e.msg);
    int status = store_stage_begin(&a->stage, a->c, a->store.s, a->name);
    return status == CLI_OK ? add_locked(a) : status;
}

static void print_added(const struct adding *a)
{
    const char *hash = a->folder ? NULL : json_string_value(json_object_get(a->files, a->name));
    if (a->c->json)
        cli_print_json(json_pack("{s:s, s:s, s:s?, s:O}", "name", a->name, "path", a->stage.to.s,
                                 "sha256", hash, "files", a->files));
    else
        printf("%s\n%s", a->stage.to.s, a->sums.s);
}

int cli_add(struct cli *c)
{
    struct adding a = {.c = c, .name = cli_own(c, "name"), .stage = {.lock = -1}};
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
    if (status == CLI_OK && (store_path(c, &a.store) < 0 || !(a.files = json_object())))
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    cli_catch_end(true);
    if (status == CLI_OK)
        status = store_sweep(c, a.store.s, a.name, NULL);
    if (status == CLI_OK)
        status = check_model(&a);
    if (status == CLI_OK)
        status = add_to_store(&a);
    if (status == CLI_OK)
        print_added(&a);
    if (status == CLI_INTERRUPTED)
        status = 128 + cli_interrupted;
    store_stage_end(&a.stage);
    cli_catch_end(false);
    strbuf_done(&a.store);
    strbuf_done(&a.sums);
    json_decref(a.files);
    mem_free(a.from);
    return status;
}
