/* SPDX-License-Identifier: Apache-2.0 */
#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
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
    _cleanup_free_ char *in = folder_of(a), *beside = folder_of(b);
    return in && beside && strcmp(name_of(a), name_of(b)) == 0 && stat(in, &x) == 0 &&
           stat(beside, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
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
    if (link && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return ERR(err, IO, "%s: cannot write: it is a link to a folder", path);
    if (access(path, W_OK) < 0 && !(link && errno == ENOENT))
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
