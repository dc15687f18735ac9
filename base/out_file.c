/* SPDX-License-Identifier: Apache-2.0 */
#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

/* Whether path is there and no regular file. */
static bool is_special(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

static int check_place(const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/'), *at = path;
    _cleanup_free_ char *folder = NULL;
    if (!is_special(path)) { /* a new file appears beside it */
        at = folder = mem_strndup(slash ? path : ".", slash > path ? (size_t)(slash - path) : 1);
        if (!folder)
            return ERR_NOMEM(err);
    }
    return access(at, W_OK) < 0 ? ERR(err, IO, "%s: cannot write: %s", path, strerror(errno)) : 0;
}

int out_file_open(struct out_file *o, const char *path, struct error *err)
{
    *o = (struct out_file){.path = path};
    int r = check_place(path, err);
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
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
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
    if (r == 0 && is_special(o->path))
        r = write_through(o->path, o->text, o->len, err);
    else if (r == 0)
        r = file_write_atomic(o->path, o->text, o->len, err);
    out_file_drop(o);
    return r;
}
