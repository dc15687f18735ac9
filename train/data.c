/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of conversations in memory.  Ids of all samples stand in one array, spans in another; a sample
 * is a place in both.  Samples keep the order of files and lines.
 */
#include "train/data.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/hash.h"

struct entry {
    uint64_t first_id, line, hash;
    uint64_t first_span;
    uint32_t n, n_spans, n_supervised;
    uint32_t file;
    uint16_t kind;
    uint16_t end;
};

struct data_file {
    char *path;
    dev_t dev;
    ino_t ino;
    uint64_t before; /* another file whose device and inode have the same hash, or NO_FILE */
};
#define NO_FILE UINT64_MAX

struct data_set {
    struct data_options options;
    uint32_t *ids;
    uint64_t n_ids, cap_ids;
    struct data_span *spans;
    uint64_t n_spans, cap_spans;
    struct entry *entries;
    uint64_t n, cap;
    struct data_file *files;
    size_t n_files;
    struct u64map file_ids; /* device and inode, hashed -> the last file of that hash */
    char kinds[DATA_MAX_KINDS][DATA_MAX_NAME];
    struct u64map seen; /* hashes of samples */
    struct data_set_info info;
    uint32_t file; /* being read */
};

struct data_set *data_set_free(struct data_set *d)
{
    if (!d)
        return NULL;
    mem_free(d->ids);
    mem_free(d->spans);
    mem_free(d->entries);
    for (size_t i = 0; i < d->n_files; i++)
        mem_free(d->files[i].path);
    mem_free(d->files);
    u64map_done(&d->seen);
    u64map_done(&d->file_ids);
    mem_free(d);
    return NULL;
}

/* Room for `more` elements behind n. */
static int grow(void **p, uint64_t n, uint64_t *cap, uint64_t more, size_t size)
{
    if (n + more <= *cap)
        return 0;
    uint64_t want = *cap + *cap / 2 + 1024;
    if (want < n + more)
        want = n + more;
    void *grown = mem_realloc_array(*p, want, size);
    if (!grown)
        return DEDIT_E_NOMEM;
    *p = grown;
    *cap = want;
    return 0;
}

/* Number of this name; the last place is for all that find none. */
static uint16_t kind_of(struct data_set *d, const char *name)
{
    for (uint32_t i = 0; i < d->info.n_kinds; i++)
        if (!strcmp(d->kinds[i], name))
            return (uint16_t)i;
    if (d->info.n_kinds == DATA_MAX_KINDS)
        return DATA_MAX_KINDS - 1;
    snprintf(d->kinds[d->info.n_kinds], DATA_MAX_NAME, "%s",
             d->info.n_kinds == DATA_MAX_KINDS - 1 ? "other" : name);
    return (uint16_t)d->info.n_kinds++;
}

static uint64_t hash_of(const struct data_record *r, uint32_t n)
{
    uint64_t h = hash_bytes(r->ids.ids, n * sizeof(uint32_t), 1);
    return r->n_spans ? hash_bytes(r->spans, r->n_spans * sizeof(struct data_span), h) : h;
}

/* Cuts spans at n; tokens that stay supervised. */
static uint32_t clip_spans(const struct data_record *r, uint32_t n, uint32_t *ret_n_spans)
{
    uint32_t sum = 0, k = 0;
    for (; k < r->n_spans && r->spans[k].begin < n; k++)
        sum += (r->spans[k].end < n ? r->spans[k].end : n) - r->spans[k].begin;
    *ret_n_spans = k;
    return sum;
}

static int add_entry(struct data_set *d, const struct data_record *r, const struct entry *e)
{
    if (grow((void **)&d->ids, d->n_ids, &d->cap_ids, e->n, sizeof(uint32_t)) < 0 ||
        grow((void **)&d->spans, d->n_spans, &d->cap_spans, e->n_spans, sizeof(struct data_span)) <
            0 ||
        grow((void **)&d->entries, d->n, &d->cap, 1, sizeof(struct entry)) < 0 ||
        u64map_put(&d->seen, e->hash, d->n) < 0)
        return DEDIT_E_NOMEM;
    memcpy(d->ids + d->n_ids, r->ids.ids, e->n * sizeof(uint32_t));
    for (uint32_t i = 0; i < e->n_spans; i++) {
        struct data_span s = r->spans[i];
        d->spans[d->n_spans + i] = (struct data_span){s.begin, s.end < e->n ? s.end : e->n};
    }
    d->entries[d->n] = *e;
    d->entries[d->n].first_id = d->n_ids;
    d->entries[d->n].first_span = d->n_spans;
    d->n_ids += e->n;
    d->n_spans += e->n_spans;
    d->n++;
    return 0;
}

static int take(void *arg, const struct data_record *r, uint64_t line, struct error *err)
{
    struct data_set *d = arg;
    struct entry e = {.n = (uint32_t)r->ids.len, .line = line, .file = d->file, .end = r->end};
    uint64_t other;
    if (d->options.max_len && e.n > d->options.max_len) {
        e.n = d->options.max_len;
        d->info.n_cut++;
    }
    e.n_supervised = clip_spans(r, e.n, &e.n_spans);
    if (e.n_supervised == 0) {
        if (r->n_supervised == 0 && !d->options.skip_unsupervised)
            return ERR(err, FORMAT,
                       "%s:%llu: nothing to train on: \"response_spans\" has no tokens",
                       d->files[d->file].path, (unsigned long long)line);
        if (d->info.n_unsupervised++ == 0) {
            d->info.skipped_file = d->files[d->file].path;
            d->info.skipped_line = line;
        }
        return 0;
    }
    e.hash = hash_of(r, e.n);
    if (u64map_get(&d->seen, e.hash, &other)) {
        d->info.n_duplicates++;
        if (!d->options.keep_duplicates)
            return 0;
    }
    e.kind = kind_of(d, r->kind);
    if (add_entry(d, r, &e) < 0)
        return ERR_NOMEM(err);
    d->info.n_tokens += e.n;
    d->info.n_supervised += e.n_supervised;
    d->info.hash = hash_mix64(d->info.hash ^ e.hash);
    if (e.n > d->info.max_len)
        d->info.max_len = e.n;
    return 0;
}

/* ---- files --------------------------------------------------------------------------------------- */

/* The file that is this one by whatever name, if it is there already; pipes and terminals are read as often as they
 * are named. */
static const struct data_file *find_file(const struct data_set *d, uint64_t key,
                                         const struct stat *st)
{
    uint64_t i;
    if (!u64map_get(&d->file_ids, key, &i))
        return NULL;
    for (; i != NO_FILE; i = d->files[i].before)
        if (d->files[i].dev == st->st_dev && d->files[i].ino == st->st_ino)
            return &d->files[i];
    return NULL;
}

static int add_file(struct data_set *d, const char *path, struct error *err)
{
    struct stat st;
    struct data_file f = {.before = NO_FILE};
    const bool known = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    const uint64_t key = known ? hash_mix64(st.st_ino ^ hash_mix64(st.st_dev)) : 0;
    const struct data_file *same = known ? find_file(d, key, &st) : NULL;
    if (same)
        return ERR(err, INVALID, "%s: is given twice%s%s; each file of data is read once", path,
                   strcmp(path, same->path) ? ", also as " : "",
                   strcmp(path, same->path) ? same->path : "");
    struct data_file *grown = mem_realloc_array(d->files, d->n_files + 1, sizeof(*grown));
    if (!grown)
        return ERR_NOMEM(err);
    d->files = grown;
    f.path = mem_strdup(path);
    if (!f.path)
        return ERR_NOMEM(err);
    if (known) {
        f.dev = st.st_dev;
        f.ino = st.st_ino;
        (void)u64map_get(&d->file_ids, key, &f.before);
    }
    d->files[d->n_files] = f;
    d->n_files++;
    return known && u64map_put(&d->file_ids, key, d->n_files - 1) < 0 ? ERR_NOMEM(err) : 0;
}

static int ends_with(const struct dirent *e, const char *end)
{
    const size_t n = strlen(e->d_name), m = strlen(end);
    return e->d_name[0] != '.' && n > m && !strcmp(e->d_name + n - m, end);
}

static int is_shard(const struct dirent *e)
{
    return ends_with(e, ".jsonl");
}

static int is_packed(const struct dirent *e)
{
    return ends_with(e, ".jsonl.xz");
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Why a folder gives nothing. */
static int no_shard(const char *path, struct error *err)
{
    struct dirent **list = NULL;
    const int n = scandir(path, &list, is_packed, by_name);
    int r = n > 0 ? ERR(err, NOT_FOUND,
                        "%s: no *.jsonl file; \"xz -dk %s/%s\" unpacks one that is there", path,
                        path, list[0]->d_name)
                  : ERR(err, NOT_FOUND, "%s: no *.jsonl file", path);
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    return r;
}

static int add_path(struct data_set *d, const char *path, struct error *err)
{
    struct stat st;
    struct dirent **list = NULL;
    if (stat(path, &st) < 0)
        return error_set(err, errno == ENOENT ? DEDIT_E_NOT_FOUND : DEDIT_E_IO, __FILE__, __LINE__,
                         "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return add_file(d, path, err);
    int n = scandir(path, &list, is_shard, by_name), r = 0;
    if (n < 0)
        return ERR(err, IO, "%s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char file[4096];
        int len = snprintf(file, sizeof(file), "%s/%s", path, list[i]->d_name);
        if (r == 0)
            r = len < 0 || (size_t)len >= sizeof(file)
                    ? ERR(err, LIMIT, "%s: the path is too long", path)
                    : add_file(d, file, err);
        free(list[i]);
    }
    free(list);
    return r == 0 && n == 0 ? no_shard(path, err) : r;
}

int data_set_open(const char *const *paths, size_t n_paths, const struct data_options *o,
                  struct data_set **ret, struct error *err)
{
    _cleanup_(data_set_freep) struct data_set *d = mem_zalloc(sizeof(*d));
    if (!d || u64map_init(&d->seen, 1024) < 0 || u64map_init(&d->file_ids, 64) < 0)
        return ERR_NOMEM(err);
    d->options = *o;
    int r = 0;
    for (size_t i = 0; i < n_paths && r == 0; i++)
        r = add_path(d, paths[i], err);
    for (size_t i = 0; i < d->n_files && r == 0; i++) {
        struct data_header h;
        d->file = (uint32_t)i;
        r = data_read_file(d->files[i].path, o->vocab_size, &h, take, d, err);
        if (r == 0 && h.present && !d->info.target[0])
            memcpy(d->info.target, h.target, sizeof(h.target));
        if (r == 0 && h.n_blank && !d->info.n_blank) {
            d->info.blank_file = d->files[i].path;
            d->info.blank_line = h.first_blank;
        }
        d->info.n_blank += r == 0 ? h.n_blank : 0;
    }
    if (r < 0)
        return r;
    if (d->n == 0 && d->info.n_unsupervised)
        return ERR(err, FORMAT,
                   "%s:%llu: no answer to train on; of %llu conversations none has one",
                   d->info.skipped_file, (unsigned long long)d->info.skipped_line,
                   (unsigned long long)d->info.n_unsupervised);
    if (d->n == 0)
        return ERR(err, FORMAT, "%s%s: no conversation to train on", n_paths ? paths[0] : "no file",
                   n_paths > 1 ? ", ..." : "");
    *ret = TAKE_PTR(d);
    return 0;
}

/* ---- reading it ---------------------------------------------------------------------------------- */

void data_set_get_info(const struct data_set *d, struct data_set_info *ret)
{
    *ret = d->info;
    ret->n = d->n;
    ret->bytes = d->cap_ids * sizeof(*d->ids) + d->cap_spans * sizeof(*d->spans) +
                 d->cap * sizeof(*d->entries) + d->seen.cap * 17;
}

uint64_t data_set_size(const struct data_set *d)
{
    return d->n;
}

void data_set_sample(const struct data_set *d, uint64_t i, struct data_sample *ret)
{
    const struct entry *e = &d->entries[i];
    *ret = (struct data_sample){
        .ids = d->ids + e->first_id,
        .n = e->n,
        .spans = d->spans + e->first_span,
        .n_spans = e->n_spans,
        .n_supervised = e->n_supervised,
        .hash = e->hash,
        .kind = e->kind,
        .end = (enum data_end)e->end,
        .file = d->files[e->file].path,
        .line = e->line,
    };
}

const char *data_set_kind(const struct data_set *d, uint32_t kind)
{
    return kind < d->info.n_kinds ? d->kinds[kind] : "";
}

void data_sample_mask(const struct data_sample *s, uint8_t *mask)
{
    memset(mask, 0, s->n);
    for (uint32_t i = 0; i < s->n_spans; i++)
        memset(mask + s->spans[i].begin, 1, s->spans[i].end - s->spans[i].begin);
}

bool data_sample_held_out(const struct data_sample *s, double share)
{
    /* The top 53 bits are a fraction of 1. */
    return (double)(hash_mix64(s->hash ^ UINT64_C(0x68656c64)) >> 11) * 0x1p-53 < share;
}

void data_set_count(const struct data_set *d, uint64_t *counts, uint32_t vocab_size)
{
    for (uint64_t i = 0; i < d->n; i++) {
        struct data_sample s;
        data_set_sample(d, i, &s);
        for (uint32_t k = 0; k < s.n_spans; k++)
            for (uint32_t t = s.spans[k].begin; t < s.spans[k].end; t++)
                if (s.ids[t] < vocab_size)
                    counts[s.ids[t]]++;
    }
}
