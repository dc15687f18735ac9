/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of a configuration once all of it is read, and of what it names on disk. */
#include <errno.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "daemon/config-internal.h"
#include "daemon/config-values.h"
#include "engine/device.h"
#include "engine/drafter_file.h"
#include "proto/packet.h"
#include "proto/ring.h"

struct checking {
    const struct config *c;
    struct config_faults *faults;
    struct error *err;
};

/* ---- places -------------------------------------------------------------------------------------- */

static size_t number_of(const struct option_desc *o, size_t n, const char *key)
{
    size_t i = 0;
    while (i < n && strcmp(o[i].key, key) != 0)
        i++;
    return i;
}

/* "file:line: " or "command line: " where a value came from; "" for a default. */
static int add_place(struct strbuf *b, const char *origin)
{
    return origin ? strbuf_addf(b, "%s: ", origin) : 0;
}

/* A value of the daemon that is wrong: its place, its section and key, and the rule. */
static int __attribute__((format(printf, 4, 5)))
key_fault(struct checking *k, int code, const char *key, const char *fmt, ...)
{
    const size_t i = number_of(daemon_options, n_daemon_options, key);
    _cleanup_strbuf_ struct strbuf b = {0};
    char rule[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(rule, sizeof rule, fmt, ap);
    va_end(ap);
    if (add_place(&b, k->c->origins[i]) < 0 ||
        strbuf_addf(&b, "[%s] %s: %s", daemon_options[i].section, key, rule) < 0)
        return ERR_NOMEM(k->err);
    return config_fault(k->faults, error_set(k->err, code, __FILE__, __LINE__, "%s", b.s), k->err);
}

/* The same of a model; what is wrong is in k->err. */
static int model_fault(struct checking *k, const struct model_config_entry *m, const char *key)
{
    const char *origin =
        m->origins ? m->origins[number_of(model_options, n_model_options, key)] : NULL;
    _cleanup_strbuf_ struct strbuf b = {0};
    const int code = k->err->code;
    if (code == DEDIT_E_NOMEM)
        return code;
    if (add_place(&b, origin ? origin : m->place) < 0 ||
        strbuf_addf(&b, "[model %s] %s", m->name, key) < 0)
        return ERR_NOMEM(k->err);
    return config_fault(k->faults, error_prefix(k->err, code, "%s", b.s), k->err);
}

/* ---- values -------------------------------------------------------------------------------------- */

static int range_fault(struct checking *k, const char *key, uint64_t v, uint64_t least,
                       uint64_t most)
{
    return v < least || v > most ? key_fault(k, DEDIT_E_INVALID, key, "%llu, must be %llu to %llu",
                                             (unsigned long long)v, (unsigned long long)least,
                                             (unsigned long long)most)
                                 : 0;
}

static int check_numbers(struct checking *k)
{
    const struct config *c = k->c;
    int r = range_fault(k, "max_connections", c->max_connections, 1, 100000);
    if (r == 0)
        r = range_fault(k, "max_requests", c->max_requests, 1, 1000000);
    if (r == 0)
        r = range_fault(k, "max_requests_per_connection", c->max_requests_per_connection, 1, 2048);
    if (r == 0)
        r = range_fault(k, "max_models", c->max_models, 1, UINT32_MAX);
    if (r == 0 && (c->ring_bytes < RING_MIN_CAPACITY || c->ring_bytes > c->max_ring_bytes))
        r = key_fault(k, DEDIT_E_INVALID, "ring_bytes", "%u, must be %u to max_ring_bytes (%llu)",
                      c->ring_bytes, RING_MIN_CAPACITY, (unsigned long long)c->max_ring_bytes);
    if (r == 0 && c->max_ring_bytes > RING_MAX_CAPACITY)
        r = key_fault(k, DEDIT_E_INVALID, "max_ring_bytes", "%llu, at most %u",
                      (unsigned long long)c->max_ring_bytes, RING_MAX_CAPACITY);
    if (r == 0 && c->min_priority > c->max_priority)
        r = key_fault(k, DEDIT_E_INVALID, "min_priority", "%d is over max_priority (%d)",
                      c->min_priority, c->max_priority);
    return r;
}

/* A relative path that is not there lies in the folder of models. */
static int find_in_model_dir(const struct config *c, char **path, struct error *err)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    if (!*path || **path == '/' || access(*path, F_OK) == 0)
        return 0;
    if (strbuf_addf(&b, "%s/%s", c->model_dir, *path) < 0)
        return ERR_NOMEM(err);
    mem_free(*path);
    *path = TAKE_PTR(b.s);
    return 0;
}

static bool names_drafter(const struct model_config_entry *m)
{
    return m->drafter && strcmp(m->drafter, "none") != 0;
}

/* Paths become those that are opened. */
static int finish_model(struct checking *k, struct config *c, struct model_config_entry *m)
{
    int r = 0;
    if (!m->path) {
        ERR(k->err, INVALID, "must be set");
        r = model_fault(k, m, "path");
    } else {
        r = find_in_model_dir(c, &m->path, k->err);
    }
    if (r == 0 && names_drafter(m))
        r = find_in_model_dir(c, &m->drafter, k->err);
    if (r == 0 && device_check(m->device ? m->device : "auto", k->err) < 0) {
        k->err->code = DEDIT_E_INVALID;
        r = model_fault(k, m, "device");
    }
    if (r == 0 && m->engine.fast && c->exact) {
        ERR(k->err, INVALID, "fast does not go with exact = yes");
        r = model_fault(k, m, "exactness");
    }
    if (r == 0 && (m->engine.cohorts < 1 || m->engine.cohorts > 2)) {
        ERR(k->err, INVALID, "%u, must be 1 or 2", m->engine.cohorts);
        r = model_fault(k, m, "cohorts");
    }
    return r;
}

int config_check_values(struct config *c, struct config_faults *faults, struct error *err)
{
    struct checking k = {.c = c, .faults = faults, .err = err};
    enum dk_tier tier = DK_TIER_C;
    bool found = !c->default_model;
    int r = check_numbers(&k);
    if (r == 0 &&
        dk_tier_choose(c->cpu_tier ? c->cpu_tier : getenv("DEDIT_CPU_TIER"), &tier, err) < 0)
        r = config_fault(faults, err->code, err);
    for (size_t i = 0; i < c->n_models && r == 0; i++) {
        struct model_config_entry *m = &c->models[i];
        r = finish_model(&k, c, m);
        m->engine.tier = tier;
        m->engine.n_threads = c->threads;
        m->engine.exact = c->exact;
        found |= c->default_model && strcmp(c->default_model, m->name) == 0;
    }
    if (r == 0 && !found)
        r = key_fault(&k, DEDIT_E_NOT_FOUND, "default_model", "there is no section [model %s]",
                      c->default_model);
    return r;
}

/* ---- paths --------------------------------------------------------------------------------------- */

/* A model and the drafter that is named for it, as loading opens them; one that lies beside it is left out when it is
 * wrong, so it is no fault. */
static int check_model(struct checking *k, const struct model_config_entry *m)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL, *d = NULL;
    if (!m->path)
        return 0;
    if (model_file_open(m->path, &f, k->err) < 0) {
        int r = model_fault(k, m, "path");
        bool is;
        /* Without the model: whether it is one at all. */
        if (r == 0 && names_drafter(m) && drafter_file_is(m->drafter, &is, k->err) < 0)
            r = model_fault(k, m, "drafter");
        return r;
    }
    return names_drafter(m) && drafter_file_open(m->drafter, model_file_config(f), &d, k->err) < 0
               ? model_fault(k, m, "drafter")
               : 0;
}

static int folder_fault(struct checking *k, const char *key, const char *folder, int mode)
{
    struct stat st;
    if (stat(folder, &st) < 0)
        return key_fault(k, DEDIT_E_IO, key, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return key_fault(k, DEDIT_E_IO, key, "%s: is no folder", folder);
    if (access(folder, mode) < 0)
        return key_fault(k, DEDIT_E_IO, key, "%s: %s (user %u)", folder, strerror(errno),
                         (unsigned)geteuid());
    return 0;
}

/* Something is made at this path: in a folder that is there and takes new files. */
static int made_fault(struct checking *k, const char *key, const char *path, size_t most)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    _cleanup_strbuf_ struct strbuf folder = {0};
    if (!path || strcmp(path, "none") == 0)
        return 0;
    if (strlen(path) > most)
        return key_fault(k, DEDIT_E_LIMIT, key, "%s: %zu bytes, the limit is %zu", path,
                         strlen(path), most);
    if (slash == path ? strbuf_adds(&folder, "/")
        : slash       ? strbuf_add(&folder, path, (size_t)(slash - path))
                      : strbuf_adds(&folder, "."))
        return ERR_NOMEM(k->err);
    return folder_fault(k, key, folder.s, W_OK | X_OK);
}

int config_check_paths(const struct config *c, struct config_faults *faults, struct error *err)
{
    struct checking k = {.c = c, .faults = faults, .err = err};
    const size_t dir = number_of(daemon_options, n_daemon_options, "model_dir");
    struct stat st;
    int r = made_fault(&k, "socket", c->socket_path, WIRE_MAX_PATH);
    if (r == 0)
        r = made_fault(&k, "metrics_socket", c->metrics_socket, WIRE_MAX_PATH);
    if (r == 0)
        r = made_fault(&k, "metrics_textfile", c->metrics_textfile, SIZE_MAX);
    if (r == 0 && c->socket_group && !getgrnam(c->socket_group))
        r = key_fault(&k, DEDIT_E_NOT_FOUND, "socket_group", "there is no group %s",
                      c->socket_group);
    if (r == 0 && c->origins[dir])
        r = folder_fault(&k, "model_dir", c->model_dir, R_OK | X_OK);
    /* Made where it is not there. */
    if (r == 0 && c->costs_dir && strcmp(c->costs_dir, "none") != 0 && stat(c->costs_dir, &st) == 0)
        r = folder_fault(&k, "costs_dir", c->costs_dir, W_OK | X_OK);
    for (size_t i = 0; i < c->n_models && r == 0; i++)
        r = check_model(&k, &c->models[i]);
    return r;
}

/* ---- order --------------------------------------------------------------------------------------- */

/* A fault as it is sorted: file, then line; what has no place comes last, as it was found. */
struct placed {
    const char *text;
    size_t bytes, file_bytes; /* file_bytes: "file" of "file:line: ", or 0 */
    uint32_t line;
    size_t number;
};

static void find_place(struct placed *p)
{
    const char *end = p->text + p->bytes;
    for (const char *s = p->text; (s = memchr(s, ':', (size_t)(end - s))); s++) {
        const size_t n = strspn(s + 1, "0123456789");
        char digits[12];
        if (!n || n >= sizeof digits || s[n + 1] != ':')
            continue;
        memcpy(digits, s + 1, n);
        digits[n] = 0;
        if (parse_u32(digits, UINT32_MAX, &p->line) == 0)
            p->file_bytes = (size_t)(s - p->text);
        return;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    const size_t n = x->file_bytes < y->file_bytes ? x->file_bytes : y->file_bytes;
    int r = !x->file_bytes - !y->file_bytes;
    if (r == 0)
        r = memcmp(x->text, y->text, n);
    if (r == 0) /* dedit.conf is read before dedit.conf.d/x.conf */
        r = (x->file_bytes > y->file_bytes) - (x->file_bytes < y->file_bytes);
    if (r == 0)
        r = (x->line > y->line) - (x->line < y->line);
    return r ? r : (x->number > y->number) - (x->number < y->number);
}

int config_sort_faults(struct config_faults *f, struct error *err)
{
    _cleanup_strbuf_ struct strbuf sorted = {0};
    _cleanup_free_ struct placed *list = mem_calloc(f->n + 1, sizeof *list);
    const char *s = f->text.s;
    if (!list || strbuf_reserve(&sorted, f->text.len + 1) < 0)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < f->n; i++, s += list[i - 1].bytes) {
        list[i] = (struct placed){.text = s, .bytes = strcspn(s, "\n") + 1, .number = i};
        find_place(&list[i]);
    }
    qsort(list, f->n, sizeof *list, by_place);
    for (size_t i = 0; i < f->n; i++)
        if (strbuf_add(&sorted, list[i].text, list[i].bytes) < 0)
            return ERR_NOMEM(err);
    strbuf_done(&f->text);
    f->text = sorted;
    sorted = (struct strbuf){0};
    return 0;
}
