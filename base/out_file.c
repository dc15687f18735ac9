/* SPDX-License-Identifier: Apache-2.0 */
#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return mem_strndup(slash ? path : ".", slash > path ? (size_t)(slash - path) : 1);
}

/* Whether new files can appear beside path. */
static bool folder_is_writable(const char *path)
{
    _cleanup_free_ char *folder = folder_of(path);
    return folder && access(folder, W_OK | X_OK) == 0;
}

/* ---- what is read is not written over ----------------------------------------------------------- */

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Where a link to what is not there yet leads; the path itself when it is none.  NULL: nowhere, or no memory. */
static char *end_of(const char *path)
{
    enum { MAX_LINKS = 40 };
    char to[PATH_MAX];
    char *at = mem_strdup(path);
    for (int i = 0; at && i < MAX_LINKS; i++) {
        ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0)
            return at;
        to[n] = 0;
        const char *slash = strrchr(at, '/');
        const size_t in = to[0] != '/' && slash ? (size_t)(slash - at) + 1 : 0;
        char *next = mem_alloc(in + (size_t)n + 1);
        if (next) {
            memcpy(next, at, in);
            memcpy(next + in, to, (size_t)n + 1);
        }
        mem_free(at);
        at = next;
    }
    mem_free(at);
    return NULL;
}

bool file_is_same(const char *a, const char *b)
{
    struct stat x, y;
    const int there = stat(a, &x) == 0, other = stat(b, &y) == 0;
    if (there != other)
        return false;
    /* Terminals, pipes and /dev/null take any number of outputs. */
    if (there)
        return x.st_dev == y.st_dev && x.st_ino == y.st_ino &&
               (S_ISREG(x.st_mode) || S_ISDIR(x.st_mode));
    _cleanup_free_ char *first = end_of(a), *second = end_of(b);
    if (!first || !second || strcmp(name_of(first), name_of(second)) != 0)
        return false;
    _cleanup_free_ char *in = folder_of(first), *beside = folder_of(second);
    return in && beside && stat(in, &x) == 0 && stat(beside, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Whether a path is there and is what a model's or drafter's folder is read from. */
static bool is_part_of(const char *path, const char *folder)
{
    static const char *const parts[] = {".json", ".jsonl", ".safetensors"};
    const char *dot = strrchr(name_of(path), '.');
    bool part = false;
    for (size_t i = 0; dot && i < ARRAY_LEN(parts); i++)
        part |= strcmp(dot, parts[i]) == 0;
    _cleanup_free_ char *in = part && access(path, F_OK) == 0 ? folder_of(path) : NULL;
    return in && file_is_same(in, folder);
}

int out_files_check(const struct out_use *outs, size_t n_outs, const char *const *ins, size_t n_ins,
                    struct error *err)
{
    for (size_t i = 0; i < n_outs; i++) {
        const struct out_use *o = &outs[i];
        for (size_t k = 0; o->path && k < n_ins; k++)
            if (ins[k] && (file_is_same(o->path, ins[k]) || is_part_of(o->path, ins[k])))
                return ERR(err, INVALID,
                           "%s: %s is what is read%s%s; a file that is written must be another one",
                           o->option, o->path, strcmp(o->path, ins[k]) == 0 ? "" : " as ",
                           strcmp(o->path, ins[k]) == 0 ? "" : ins[k]);
        for (size_t k = 0; o->path && k < i; k++)
            if (outs[k].path && file_is_same(o->path, outs[k].path))
                return ERR(err, INVALID, "%s: %s is what %s writes; each needs a file of its own",
                           o->option, o->path, outs[k].option);
    }
    return 0;
}

/* ---- one file ------------------------------------------------------------------------------------ */

/* How path is going to be written: 0 replaced or made, 1 as it is. */
static int how(const char *path, struct error *err)
{
    struct stat st;
    if (!*path)
        return ERR(err, INVALID, "an empty file name was given");
    if (lstat(path, &st) < 0) {
        if (errno != ENOENT)
            return ERR(err, IO, "%s: cannot write: %s", path, strerror(errno));
        if (path[strlen(path) - 1] == '/' || !folder_is_writable(path))
            return ERR(err, IO, "%s: cannot write: no such folder, or it cannot be written", path);
        return 0;
    }
    if (S_ISDIR(st.st_mode))
        return ERR(err, IO, "%s: cannot write: it is a folder", path);
    const bool link = S_ISLNK(st.st_mode);
    if (link && stat(path, &st) < 0 && errno == ENOENT) {
        _cleanup_free_ char *end = end_of(path);
        if (!end || !*end || end[strlen(end) - 1] == '/' || !folder_is_writable(end))
            return ERR(err, IO,
                       "%s: cannot write: it is a link to %s, and there is no such folder, or it "
                       "cannot be written",
                       path, end ? end : "nowhere");
        return 1;
    }
    if (link && S_ISDIR(st.st_mode))
        return ERR(err, IO, "%s: cannot write: it is a link to a folder", path);
    if (access(path, W_OK) < 0)
        return ERR(err, IO, "%s: cannot write: %s", path, strerror(errno));
    return link || !S_ISREG(st.st_mode) || !folder_is_writable(path);
}

int out_file_open(struct out_file *o, const char *path, struct error *err)
{
    int r = how(path, err);
    *o = (struct out_file){.path = path, .through = r > 0};
    if (r < 0)
        return r;
    o->f = open_memstream(&o->text, &o->len);
    return o->f ? 0 : ERR_NOMEM(err);
}

void out_file_drop(struct out_file *o)
{
    if (o->f)
        (void)fclose(o->f);
    free(o->text); /* the C library's */
    *o = (struct out_file){0};
}

static int write_through(const char *path, const char *text, size_t len, struct error *err)
{
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0)
        return ERR(err, IO, "%s: cannot open: %s", path, strerror(errno));
    return fd_write_all(fd, text, len) < 0
               ? ERR(err, IO, "%s: cannot write: %s", path, strerror(errno))
               : 0;
}

int out_file_close(struct out_file *o, struct error *err)
{
    const bool bad = ferror(o->f) != 0;
    int r = fclose(o->f) || bad ? ERR_NOMEM(err) : 0;
    o->f = NULL;
    if (r == 0)
        r = o->through ? write_through(o->path, o->text, o->len, err)
                       : file_write_atomic(o->path, o->text, o->len, err);
    out_file_drop(o);
    return r;
}
