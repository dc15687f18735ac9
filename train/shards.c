/* SPDX-License-Identifier: Apache-2.0 */
/* Shards on disk: found again, cut to whole lines, appended to, synced. */
#include "train/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"

#define MAX_SHARDS 100000u
#define BUFFER     ((size_t)256 << 10)
/* Numbers of recipes have few digits. */
#define DUMP       (JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10))
#define PATH_BYTES 4200u

struct shards {
    struct shards_options o;
    char *dir, *prefix;
    int dir_fd, fd;
    uint32_t shard; /* being written */
    uint64_t size;  /* of it, buffered bytes included */
    struct strbuf buffer;
    uint64_t synced_at;
    bool dirty; /* written, not synced */
};

struct shards *shards_free(struct shards *s)
{
    if (!s)
        return NULL;
    fd_close(s->fd);
    fd_close(s->dir_fd); /* gives the lock back */
    strbuf_done(&s->buffer);
    json_decref(s->o.header);
    mem_free(s->dir);
    mem_free(s->prefix);
    mem_free(s);
    return NULL;
}

static void path_of(const struct shards *s, uint32_t shard, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%.4000s/%.100s-%05u.jsonl", s->dir, s->prefix, shard);
}

static int io_error(const struct shards *s, const char *what, struct error *err)
{
    char path[PATH_BYTES];
    path_of(s, s->shard, path);
    return ERR(err, IO, "%s: %s: %s", path, what, strerror(errno));
}

/* ---- writing ------------------------------------------------------------------------------------- */

static int flush(struct shards *s, struct error *err)
{
    for (size_t at = 0; at < s->buffer.len;) {
        ssize_t n = write(s->fd, s->buffer.s + at, s->buffer.len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int r = io_error(s, "cannot write", err);
            /* What is left is written again, should there be a next time: the file is cut to it then. */
            strbuf_clear(&s->buffer);
            return r;
        }
        at += (size_t)n;
        s->dirty = true;
    }
    strbuf_clear(&s->buffer);
    return 0;
}

int shards_sync(struct shards *s, bool now, struct error *err)
{
    if (!now && clock_now_ns() - s->synced_at < s->o.sync_ns)
        return 0;
    int r = flush(s, err);
    if (r < 0)
        return r;
    if (s->dirty && fsync(s->fd) < 0)
        return io_error(s, "cannot sync", err);
    s->dirty = false;
    s->synced_at = clock_now_ns();
    return 0;
}

static int add_header(struct shards *s, struct error *err)
{
    json_auto_t *o = json_pack("{s:i, s:i}", "dedit_data", DATA_FORMAT, "shard", (int)s->shard);
    if (!o || json_object_update(o, s->o.header) < 0)
        return ERR_NOMEM(err);
    _cleanup_free_ char *text = json_dumps(o, DUMP);
    size_t was = s->buffer.len;
    if (!text || strbuf_adds(&s->buffer, text) < 0 || strbuf_addc(&s->buffer, '\n') < 0)
        return ERR_NOMEM(err);
    s->size = s->buffer.len - was;
    return 0;
}

static int new_shard(struct shards *s, uint32_t shard, struct error *err)
{
    char path[PATH_BYTES];
    if (shard >= MAX_SHARDS)
        return ERR(err, LIMIT, "%s: more than %u shards", s->dir, MAX_SHARDS);
    s->fd = fd_close(s->fd);
    s->shard = shard;
    path_of(s, shard, path);
    s->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return io_error(s, "cannot create", err);
    if (fsync(s->dir_fd) < 0)
        return io_error(s, "cannot sync its folder", err);
    return add_header(s, err);
}

int shards_add(struct shards *s, const char *line, size_t len, struct error *err)
{
    if (s->size >= s->o.shard_bytes) {
        int r = shards_sync(s, true, err);
        if (r == 0)
            r = new_shard(s, s->shard + 1, err);
        if (r < 0)
            return r;
    }
    if (strbuf_add(&s->buffer, line, len) < 0)
        return ERR_NOMEM(err);
    s->size += len;
    return s->buffer.len < BUFFER ? shards_sync(s, false, err) : flush(s, err);
}

/* ---- what is there ------------------------------------------------------------------------------- */

/* Every member of `want`, and of objects in it, is in `is`; the first other one is named. */
static int same_members(json_t *want, const json_t *is, const char *path, struct error *err)
{
    const char *key;
    json_t *w;
    json_object_foreach(want, key, w)
    {
        const json_t *v = json_object_get(is, key);
        if (v && json_equal(v, w))
            continue;
        if (json_is_object(v) && json_is_object(w)) {
            int r = same_members(w, v, path, err);
            if (r < 0)
                return r;
        }
        _cleanup_free_ char *a = v ? json_dumps(v, DUMP | JSON_ENCODE_ANY) : NULL;
        _cleanup_free_ char *b = json_dumps(w, DUMP | JSON_ENCODE_ANY);
        return ERR(err, MISMATCH,
                   "%s: written with other options: \"%s\" is %.100s there, %.100s now; take "
                   "another folder",
                   path, key, a ? a : "absent", b ? b : "?");
    }
    return 0;
}

/* Is the header that of this run, but for the shard's number? */
static int check_header(const struct shards *s, const char *line, size_t len, const char *path,
                        uint32_t shard, struct error *err)
{
    json_auto_t *o = NULL;
    int r = js_parse_object(line, len, path, &o, err);
    if (r < 0)
        return r;
    if (json_integer_value(json_object_get(o, "shard")) != (json_int_t)shard)
        return ERR(err, FORMAT, "%s: its header is not that of shard %u", path, shard);
    /* Of versions that did not write it, which may have been another one; nobody can tell. */
    if (!json_object_get(o, "dtype") && json_object_get(s->o.header, "dtype") &&
        json_object_set_new(o, "dtype", json_string("file")) < 0)
        return ERR_NOMEM(err);
    return same_members(s->o.header, o, path, err);
}

struct walk {
    struct shards *s;
    int (*found)(void *arg, const struct data_record *r, const char *line, size_t len,
                 struct error *err);
    void *arg;
    struct shards_found result;
    struct data_record record;
};

/* A line of a shard.  1: it is incomplete, or, in the last shard, damaged. */
static int walk_line(struct walk *w, const char *path, uint32_t shard, bool last, const char *line,
                     const char *end, uint64_t number, struct error *err)
{
    struct data_header h;
    if (!end)
        return last ? 1 : ERR(err, FORMAT, "%s: the last line is incomplete", path);
    const size_t len = (size_t)(end - line);
    int r = data_parse_line(line, len, path, number, w->s->o.vocab_size, &w->record, &h, err);
    if (r < 0)
        return last && r == DEDIT_E_FORMAT ? 1 : r;
    if (number == 1)
        return r == 1 ? check_header(w->s, line, len, path, shard, err)
                      : ERR(err, FORMAT, "%s: no header in line 1", path);
    if (r != 0)
        return ERR(err, FORMAT, "%s:%llu: no conversation", path, (unsigned long long)number);
    w->result.lines++;
    return w->found(w->arg, &w->record, line, len, err);
}

/* Bytes of whole lines. */
static int walk_shard(struct walk *w, uint32_t shard, bool last, uint64_t *ret_size,
                      struct error *err)
{
    char path[PATH_BYTES];
    struct file_map map = {0};
    size_t at = 0;
    path_of(w->s, shard, path);
    int r = file_map_open(path, &map, err);
    for (uint64_t number = 1; r == 0 && at < map.size; number++) {
        const char *line = (const char *)map.addr + at;
        const char *end = memchr(line, '\n', map.size - at);
        r = walk_line(w, path, shard, last, line, end, number, err);
        if (r == 0)
            at += (size_t)(end - line) + 1;
    }
    w->result.cut_bytes += r == 1 ? map.size - at : 0;
    file_map_done(&map);
    *ret_size = at;
    return r < 0 ? r : 0;
}

static int reopen_last(struct shards *s, uint32_t shard, uint64_t size, struct error *err)
{
    char path[PATH_BYTES];
    path_of(s, shard, path);
    s->shard = shard;
    s->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (s->fd < 0)
        return io_error(s, "cannot open for writing", err);
    if (ftruncate(s->fd, (off_t)size) < 0 || fsync(s->fd) < 0)
        return io_error(s, "cannot cut the incomplete end off", err);
    s->size = size;
    return size ? 0 : add_header(s, err);
}

static bool exists(const struct shards *s, uint32_t shard)
{
    char path[PATH_BYTES];
    struct stat st;
    path_of(s, shard, path);
    return lstat(path, &st) == 0;
}

static int open_folder(struct shards *s, struct error *err)
{
    if (mkdir(s->dir, 0777) < 0 && errno != EEXIST)
        return ERR(err, IO, "%s: cannot create: %s", s->dir, strerror(errno));
    s->dir_fd = folder_lock(s->dir, "another process", err);
    return s->dir_fd < 0 ? s->dir_fd : 0;
}

static int open_all(struct shards *s, struct walk *w, struct error *err)
{
    uint32_t n = 0;
    uint64_t size = 0;
    int r = open_folder(s, err);
    if (r < 0)
        return r;
    while (n < MAX_SHARDS && exists(s, n))
        n++;
    w->result.shards = n;
    if (n && s->o.fresh)
        return ERR(err, BUSY, "%s: there are shards already", s->dir);
    for (uint32_t i = 0; i < n; i++)
        if ((r = walk_shard(w, i, i + 1 == n, &size, err)) < 0)
            return r;
    return n ? reopen_last(s, n - 1, size, err) : new_shard(s, 0, err);
}

int shards_open(const struct shards_options *o,
                int (*found)(void *arg, const struct data_record *r, const char *line, size_t len,
                             struct error *err),
                void *arg, struct shards **ret, struct shards_found *ret_found, struct error *err)
{
    _cleanup_(shards_freep) struct shards *s = mem_zalloc(sizeof(*s));
    if (!s)
        return ERR_NOMEM(err);
    *s = (struct shards){.o = *o, .dir_fd = -1, .fd = -1, .synced_at = clock_now_ns()};
    json_incref(s->o.header);
    s->dir = mem_strdup(o->dir);
    s->prefix = mem_strdup(o->prefix);
    if (!s->dir || !s->prefix)
        return ERR_NOMEM(err);
    struct walk w = {.s = s, .found = found, .arg = arg};
    int r = open_all(s, &w, err);
    data_record_done(&w.record);
    if (r < 0)
        return r;
    *ret_found = w.result;
    *ret = TAKE_PTR(s);
    return 0;
}
