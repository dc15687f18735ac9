/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli-store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "engine/drafter_file.h"

#define ADDING ".adding"
#define SUMS   ".sha256"

/* ---- names --------------------------------------------------------------------------------------- */

int store_path(const struct cli *c, struct strbuf *b)
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

bool store_name(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < 200 && s[0] != '.' && !strchr(s, '/');
}

bool store_ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

bool store_is_drafter(const char *name)
{
    return store_ends_with(name, DRAFTER_END_FILE) || store_ends_with(name, DRAFTER_END_FOLDER);
}

size_t store_stem(const char *name)
{
    return strlen(name) - (store_ends_with(name, ".gguf") ? strlen(".gguf") : 0);
}

int store_member(struct strbuf *b, const char *store, const char *name, size_t n, const char *end)
{
    strbuf_clear(b);
    return strbuf_addf(b, "%s/%.*s%s", store, (int)n, name, end);
}

bool store_has(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- removing ------------------------------------------------------------------------------------ */

static int remove_at(int dir, const char *name);

/* All that is in a folder, which is closed. */
static int empty_folder(DIR *d)
{
    int r = 0;
    for (const struct dirent *e; r == 0;) {
        errno = 0;
        e = readdir(d);
        if (!e) {
            r = errno ? -1 : 0;
            break;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = remove_at(dirfd(d), e->d_name);
    }
    const int why = errno;
    closedir(d);
    errno = why;
    return r;
}

/* A file, or a folder with all that is in it; links are not followed.  What is not there is removed. */
static int remove_at(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return 0;
    /* Of a folder; EPERM has other reasons, too. */
    const int why = errno;
    if (why != EISDIR && why != EPERM)
        return -1;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        errno = errno == ENOTDIR ? why : errno;
        fd_close(fd);
        return -1;
    }
    return empty_folder(d) < 0 ? -1 : unlinkat(dir, name, AT_REMOVEDIR);
}

static int remove_path(const char *path, struct error *err)
{
    return remove_at(AT_FDCWD, path) < 0
               ? ERR(err, IO, "%s: cannot be removed: %s", path, strerror(errno))
               : 0;
}

/* ---- the folder of one name ----------------------------------------------------------------------- */

void store_sync_folder(const char *path)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)fsync(fd);
}

/* Of both folders that a stage works in, what was done so far is there after a crash before what is done next. */
static void sync_names(const struct store_stage *s)
{
    store_sync_folder(s->path.s);
    store_sync_folder(s->store.s);
}

static int set_paths(struct store_stage *s, struct cli *c, const char *store, const char *name)
{
    *s = (struct store_stage){.c = c, .lock = -1};
    return strbuf_adds(&s->store, store) < 0 ||
                   strbuf_addf(&s->path, "%s/.%s" ADDING, store, name) < 0 ||
                   strbuf_addf(&s->mark, "%s/.sums", s->path.s) < 0 ||
                   strbuf_addf(&s->item, "%s/%s", s->path.s, name) < 0 ||
                   strbuf_addf(&s->item_sums, "%s" SUMS, s->item.s) < 0 ||
                   strbuf_addf(&s->to, "%s/%s", store, name) < 0 ||
                   strbuf_addf(&s->to_sums, "%s" SUMS, s->to.s) < 0
               ? cli_fail_text(c, CLI_FAILED, "out of memory")
               : CLI_OK;
}

/* Takes the lock: 0; 1: somebody has it, or the folder went away; -1 with errno. */
static int try_lock(struct store_stage *s)
{
    _cleanup_fd_ int fd = open(s->path.s, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 1 : -1;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? 1 : -1;
    if (!fd_is_named(fd, s->path.s, AT_SYMLINK_NOFOLLOW))
        return 1;
    s->lock = TAKE_FD(fd);
    return 0;
}

int store_stage_begin(struct store_stage *s, struct cli *c, const char *store, const char *name)
{
    int status = set_paths(s, c, store, name), r = 1;
    if (status != CLI_OK)
        return status;
    /* Who looks for leftovers holds the lock for a moment. */
    for (int i = 0; r > 0 && i < 20; i++) {
        if (i)
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        if (mkdir(s->path.s, 0700) < 0 && errno != EEXIST)
            return cli_fail_text(c, CLI_FAILED, "%s: cannot write there: %s", store,
                                 strerror(errno));
        r = try_lock(s);
    }
    if (r > 0)
        return cli_fail_text(c, CLI_FAILED, "%s: another dedit-client is adding or removing it",
                             s->to.s);
    if (r < 0)
        return cli_fail_text(c, CLI_FAILED, "%s: %s", s->path.s, strerror(errno));
    return store_stage_undo(s);
}

/* The mark goes when the sums are gone for good, and the copy when the mark is: without it nobody would know whose the
 * sums are. */
static int undo(struct store_stage *s, struct error *err)
{
    int r = 0;
    if (store_has(s->mark.s)) {
        if (store_has(s->item.s) && !store_has(s->item_sums.s)) {
            r = remove_path(s->to_sums.s, err);
            store_sync_folder(s->store.s);
        }
        if (r == 0)
            r = remove_path(s->mark.s, err);
        store_sync_folder(s->path.s);
    }
    if (r == 0)
        r = remove_path(s->item.s, err);
    if (r == 0)
        r = remove_path(s->item_sums.s, err);
    if (r < 0)
        return r;
    DIR *d = opendir(s->path.s); /* what else there may be */
    return !d || empty_folder(d) < 0
               ? ERR(err, IO, "%s: cannot be emptied: %s", s->path.s, strerror(errno))
               : 0;
}

int store_stage_undo(struct store_stage *s)
{
    struct error e = {0};
    return undo(s, &e) < 0 ? cli_fail_text(s->c, CLI_FAILED, "%s", e.msg) : CLI_OK;
}

/* From here on the sums in the store go with what is in the folder. */
static int set_mark(struct store_stage *s)
{
    _cleanup_fd_ int fd = open(s->mark.s, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cli_fail_text(s->c, CLI_FAILED, "%s: %s", s->mark.s, strerror(errno));
    store_sync_folder(s->path.s);
    return CLI_OK;
}

/* Takes its name only where that is free; file systems that cannot do so at once were looked at under the lock. */
static int rename_new(struct store_stage *s, const char *from, const char *to)
{
    int r = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (r < 0 && (errno == EINVAL || errno == ENOSYS))
        r = rename(from, to);
    if (r < 0)
        return cli_fail_text(s->c, CLI_FAILED, "%s: %s", to,
                             errno == EEXIST ? "exists already" : strerror(errno));
    return CLI_OK;
}

static int write_sums(struct store_stage *s, const char *sums, size_t len)
{
    _cleanup_fd_ int fd =
        open(s->item_sums.s, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    return fd < 0 || fd_write_all(fd, sums, len) < 0 || fsync(fd) < 0
               ? cli_fail_text(s->c, CLI_FAILED, "%s: cannot write: %s", s->to_sums.s,
                               strerror(errno))
               : CLI_OK;
}

int store_stage_publish(struct store_stage *s, const char *sums, size_t len)
{
    int status = write_sums(s, sums, len);
    if (status == CLI_OK)
        status = set_mark(s);
    if (status == CLI_OK && s->stray && rename(s->item_sums.s, s->to_sums.s) < 0)
        status = cli_fail_text(s->c, CLI_FAILED, "%s: %s", s->to_sums.s, strerror(errno));
    else if (status == CLI_OK && !s->stray)
        status = rename_new(s, s->item_sums.s, s->to_sums.s);
    sync_names(s);
    if (status == CLI_OK)
        status = rename_new(s, s->item.s, s->to.s);
    if (status != CLI_OK)
        return status;
    sync_names(s);
    (void)unlink(s->mark.s);
    return CLI_OK;
}

int store_stage_withdraw(struct store_stage *s)
{
    struct error e = {0};
    if (!store_has(s->to.s)) /* sums alone: the model was removed by other means */
        return remove_path(s->to_sums.s, &e) < 0 ? cli_fail_text(s->c, CLI_FAILED, "%s", e.msg)
                                                 : CLI_OK;
    int status = set_mark(s);
    if (status == CLI_OK)
        status = rename_new(s, s->to.s, s->item.s);
    sync_names(s);
    if (status == CLI_OK)
        return store_stage_undo(s);
    (void)unlink(s->mark.s);
    return status;
}

void store_stage_end(struct store_stage *s)
{
    if (s->lock >= 0)
        (void)rmdir(s->path.s); /* stays where it is not empty: to be tried again */
    s->lock = fd_close(s->lock);
    strbuf_done(&s->store);
    strbuf_done(&s->path);
    strbuf_done(&s->mark);
    strbuf_done(&s->item);
    strbuf_done(&s->item_sums);
    strbuf_done(&s->to);
    strbuf_done(&s->to_sums);
}

/* ---- what dead processes left --------------------------------------------------------------------- */

/* NAME of ".NAME.adding"; false: it is another file.  Any that fits: a drafter's may be longer than what add takes. */
static bool staged_name(const char *file, char *ret, size_t size)
{
    if (file[0] != '.' || file[1] == '.' || !store_ends_with(file + 1, ADDING))
        return false;
    int n = snprintf(ret, size, "%.*s", (int)(strlen(file + 1) - strlen(ADDING)), file + 1);
    return n > 0 && (size_t)n < size;
}

static int sweep_one(struct cli *c, const char *store, const char *name, struct error *err)
{
    struct store_stage s;
    int r = 0, status = set_paths(&s, c, store, name);
    if (status == CLI_OK && try_lock(&s) == 0) {
        if (rmdir(s.path.s) ==
            0) { /* empty: not worth a word; and somebody may have made another one */
            s.lock = fd_close(s.lock);
        } else {
            r = undo(&s, err);
            if (r == 0 && !c->quiet && !c->json)
                fprintf(stderr, "%s: removed what is left of a command that was killed\n",
                        s.path.s);
        }
    }
    store_stage_end(&s);
    return status == CLI_OK ? r : ERR_NOMEM(err);
}

int store_sweep(struct cli *c, const char *store, const char *name, bool *ret_had)
{
    DIR *d = opendir(store);
    int status = CLI_OK;
    if (ret_had)
        *ret_had = false;
    for (const struct dirent *e; d && status == CLI_OK && (e = readdir(d));) {
        char staged[256];
        struct error err = {0};
        if (!staged_name(e->d_name, staged, sizeof staged))
            continue;
        const bool own = strcmp(staged, name) == 0;
        if (ret_had && own)
            *ret_had = true;
        if (sweep_one(c, store, staged, &err) == 0)
            continue;
        if (own)
            status = cli_fail_text(c, CLI_FAILED, "%s", err.msg);
        else if (!c->json) /* which is in nobody's way */
            fprintf(stderr, "%s; left as it is\n", err.msg);
    }
    if (d)
        closedir(d);
    return status;
}
