/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of a run: which is the newest, which may go. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "train/checkpoint.h"

#define PREFIX "step-"
#define SUFFIX ".safetensors"

struct steps {
    uint64_t *v;
    size_t n;
};

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* "step-N.safetensors" exactly as written. */
static bool step_of(const char *name, uint64_t *ret)
{
    char digits[32];
    size_t n = strlen(name), head = strlen(PREFIX), tail = strlen(SUFFIX);
    if (n <= head + tail || n - head - tail >= sizeof(digits) || strncmp(name, PREFIX, head) != 0 ||
        strcmp(name + n - tail, SUFFIX) != 0)
        return false;
    memcpy(digits, name + head, n - head - tail);
    digits[n - head - tail] = '\0';
    return parse_u64(digits, ret) == 0;
}

static int list(const char *folder, struct steps *ret, struct error *err)
{
    DIR *d = opendir(folder);
    const struct dirent *e;
    int r = 0;
    if (!d)
        return error_set(err, errno == ENOENT ? DEDIT_E_NOT_FOUND : DEDIT_E_IO, __FILE__, __LINE__,
                         "%s: cannot read the folder: %s", folder, strerror(errno));
    while (r == 0 && (e = readdir(d))) {
        uint64_t step;
        if (!step_of(e->d_name, &step))
            continue;
        uint64_t *more = mem_realloc_array(ret->v, ret->n + 1, sizeof(*more));
        if (!more) {
            r = ERR_NOMEM(err);
            break;
        }
        ret->v = more;
        ret->v[ret->n++] = step;
    }
    closedir(d);
    if (ret->n)
        qsort(ret->v, ret->n, sizeof(*ret->v), descending);
    return r;
}

static int path_of(const char *folder, uint64_t step, struct strbuf *b)
{
    strbuf_clear(b);
    return strbuf_addf(b, "%s/" PREFIX "%09" PRIu64 SUFFIX, folder, step);
}

int checkpoint_newest(const char *folder, struct train_state *ret, char **ret_path,
                      void (*skipped)(void *arg, const char *why), void *arg, struct error *err)
{
    struct steps s = {0};
    _cleanup_strbuf_ struct strbuf path = {0};
    int r = list(folder, &s, err);
    bool found = false;
    struct error newest = {0};
    for (size_t i = 0; r == 0 && !found && i < s.n; i++) {
        struct error why = {0};
        if (path_of(folder, s.v[i], &path) < 0) {
            r = ERR_NOMEM(err);
            break;
        }
        int got = checkpoint_read(path.s, ret, &why);
        if (got == DEDIT_E_NOMEM)
            r = ERR_NOMEM(err);
        else if (got < 0 && skipped)
            skipped(arg, why.msg);
        if (i == 0)
            newest = why;
        found = got == 0;
    }
    /* Damaged ones are no empty folder: who starts over there would write over what is left. */
    if (r == 0 && !found && s.n)
        r = ERR(err, FORMAT, "%s: no checkpoint that can be read; the newest: %s", folder,
                newest.msg);
    else if (r == 0 && !found)
        r = ERR(err, NOT_FOUND, "%s: no checkpoint that can be read", folder);
    mem_free(s.v);
    if (r == 0 && ret_path) {
        *ret_path = mem_strdup(path.s);
        if (!*ret_path) {
            train_state_done(ret);
            r = ERR_NOMEM(err);
        }
    }
    return r;
}

int checkpoint_write_in(const char *folder, const struct train_state *s, uint32_t keep,
                        struct error *err)
{
    struct steps old = {0};
    _cleanup_strbuf_ struct strbuf path = {0};
    if (path_of(folder, s->step, &path) < 0)
        return ERR_NOMEM(err);
    int r = checkpoint_write(path.s, s, err);
    if (r < 0)
        return r;
    /* Only now that a newer one is safe may old ones go; those of later steps are another run's. */
    if (list(folder, &old, NULL) == 0) {
        uint32_t have = 0;
        for (size_t i = 0; i < old.n; i++)
            if (old.v[i] <= s->step && ++have > (keep ? keep : 1) &&
                path_of(folder, old.v[i], &path) == 0)
                (void)unlink(path.s);
    }
    mem_free(old.v);
    return 0;
}

int checkpoint_open(const char *path, struct train_state *ret, struct error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return checkpoint_newest(path, ret, NULL, NULL, NULL, err);
    return checkpoint_read(path, ret, err);
}
