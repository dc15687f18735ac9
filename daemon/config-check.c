/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of a configuration once all of it is read, and of what it names on disk. */
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "daemon/config-internal.h"
#include "daemon/config-values.h"
#include "daemon/listen.h"
#include "daemon/metrics-http.h"
#include "engine/chat.h"
#include "engine/device.h"
#include "engine/drafter_file.h"
#include "proto/packet.h"
#include "proto/ring.h"

struct checking {
    const struct config *c;
    struct config_faults *faults;
    struct error *err;
    bool warn; /* what is found keeps no daemon from starting */
};

static size_t number_of(const struct option_desc *o, size_t n, const char *key)
{
    size_t i = 0;
    while (i < n && strcmp(o[i].key, key) != 0)
        i++;
    return i;
}

/* A value of the daemon that is wrong: its section and key, and the rule. */
static int __attribute__((format(printf, 4, 5)))
key_fault(struct checking *k, int code, const char *key, const char *fmt, ...)
{
    const size_t i = number_of(daemon_options, n_daemon_options, key);
    char rule[sizeof k->err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(rule, sizeof rule, fmt, ap);
    va_end(ap);
    error_set(k->err, code, __FILE__, __LINE__, "[%s] %s: %s", daemon_options[i].section, key,
              rule);
    return k->warn ? config_warn(k->faults, &k->c->origins[i], k->err)
                   : config_tell(k->faults, code, &k->c->origins[i], k->err);
}

/* The same of a model; what is wrong is in k->err. */
static int model_fault(struct checking *k, const struct model_config_entry *m, const char *key)
{
    const struct config_place *p =
        m->origins ? &m->origins[number_of(model_options, n_model_options, key)] : &m->place;
    const int code = k->err->code;
    if (code != DEDIT_E_NOMEM)
        error_prefix(k->err, code, "[model %s] %s", m->name, key);
    return config_tell(k->faults, code, p->file ? p : &m->place, k->err);
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
    enum chat_format format;
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
    if (r == 0 && m->chat_format && !chat_format_parse(m->chat_format, &format)) {
        ERR(k->err, INVALID, "\"%s\" is not chatml, qwen3, smollm2 or llama3", m->chat_format);
        r = model_fault(k, m, "chat_format");
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

static int not_at(struct checking *k, const char *key, const char *path, const char *other,
                  const char *what)
{
    return *path && *other && listener_is_at(path, other)
               ? key_fault(k, DEDIT_E_INVALID, key, "%s: is %s; name another path, or none", path,
                           what)
               : 0;
}

/* One would take the place of the other: who binds a socket there, or writes a file, removes what it finds. */
static int check_apart(struct checking *k)
{
    static const char clients[] = "the socket that clients connect to",
                      metrics[] = "the socket of the metrics";
    const char *file = k->c->metrics_textfile ? k->c->metrics_textfile : "";
    char socket[LISTENER_PATH] = "", http[PATH_MAX] = "";
    struct error e = {0}; /* what is wrong with the socket is told where it is looked at */
    if (listener_inherited(socket, true, &e) <= 0 && listener_path(k->c, socket, &e) < 0)
        return 0;
    const int n = metrics_http_path(k->c, socket, http, sizeof http);
    if (n < 0 || (size_t)n >= sizeof http)
        http[0] = 0;
    int r = not_at(k, "metrics_socket", http, socket, clients);
    if (r == 0)
        r = not_at(k, "metrics_textfile", file, socket, clients);
    return r == 0 ? not_at(k, "metrics_textfile", file, http, metrics) : r;
}

static int choose_tier(struct checking *k, enum dk_tier *ret)
{
    const char *forced = k->c->cpu_tier ? k->c->cpu_tier : getenv("DEDIT_CPU_TIER");
    const int r = dk_tier_choose(forced, ret, k->err);
    if (r == 0 || k->c->cpu_tier)
        return r == 0 ? 0 : key_fault(k, r, "cpu_tier", "%s", k->err->msg);
    return config_tell(k->faults, error_prefix(k->err, r, "DEDIT_CPU_TIER"), NULL, k->err);
}

int config_check_values(struct config *c, struct config_faults *faults, struct error *err)
{
    struct checking k = {.c = c, .faults = faults, .err = err};
    bool found = !c->default_model;
    int r = check_numbers(&k);
    if (r == 0)
        r = choose_tier(&k, &c->tier);
    if (r == 0)
        r = check_apart(&k);
    for (size_t i = 0; i < c->n_models && r == 0; i++) {
        struct model_config_entry *m = &c->models[i];
        r = finish_model(&k, c, m);
        m->engine.tier = c->tier;
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

/* What the engine says before it takes memory; faults that are told already are left out, and `auto` takes what it finds. */
static int check_engine(struct checking *k, const struct model_config_entry *m,
                        struct model_file *f)
{
    struct engine_config e = m->engine;
    const char *key = "path";
    const bool told = device_check(m->device, k->err) < 0;
    e.device = told || strcmp(m->device, "auto") == 0 ? "cpu" : m->device;
    e.fast = e.fast && !e.exact && !told;
    e.memory_limit = k->c->memory_limit;
    *k->err = (struct error){0};
    if (engine_check(f, &e, &key, k->err) == 0)
        return 0;
    if (strcmp(key, "memory_limit") != 0)
        return model_fault(k, m, key);
    const int code = k->err->code;
    return code == DEDIT_E_NOMEM ? code
                                 : key_fault(k, code, key, "[model %s]: %s", m->name, k->err->msg);
}

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
    int r = check_engine(k, m, f);
    return r == 0 && names_drafter(m) &&
                   drafter_file_open(m->drafter, model_file_config(f), &d, k->err) < 0
               ? model_fault(k, m, "drafter")
               : r;
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

/* A socket is made there: what is no socket stays. */
static int socket_fault(struct checking *k, const char *key, const char *path)
{
    struct stat st;
    int r = made_fault(k, key, path, WIRE_MAX_PATH);
    return r == 0 && path && lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode)
               ? key_fault(k, DEDIT_E_BUSY, key, "%s: exists and is no socket", path)
               : r;
}

static bool in_group(gid_t group)
{
    gid_t list[NGROUPS_MAX];
    bool is = geteuid() == 0 || getegid() == group;
    const int n = getgroups(NGROUPS_MAX, list);
    for (int i = 0; i < n; i++)
        is |= list[i] == group;
    return is;
}

/* The socket of clients, where the daemon makes it: systemd's has its path and its rights from the unit. */
static int check_socket(struct checking *k)
{
    const struct config *c = k->c;
    char path[LISTENER_PATH];
    int r = listener_inherited(path, true, k->err);
    if (r != 0)
        return r < 0 ? config_tell(k->faults, r, NULL, k->err) : 0;
    r = socket_fault(k, "socket", c->socket_path);
    const struct group *g = c->socket_group ? getgrnam(c->socket_group) : NULL;
    if (r == 0 && c->socket_group && !g)
        return key_fault(k, DEDIT_E_NOT_FOUND, "socket_group", "there is no group %s",
                         c->socket_group);
    return r == 0 && g && !in_group(g->gr_gid)
               ? key_fault(k, DEDIT_E_DENIED, "socket_group", "user %u is not in the group %s",
                           (unsigned)geteuid(), c->socket_group)
               : r;
}

static int check_loop(struct checking *k)
{
    struct error why = {0};
    struct loop *l = NULL;
    int r = k->c->event_loop == LOOP_AUTO ? 0 : loop_new(k->c->event_loop, &l, &why, k->err);
    loop_free(l);
    return r < 0 ? key_fault(k, r, "event_loop", "%s", k->err->msg) : 0;
}

/* A start says what these are about, if at all, and goes on. */
static int check_optional(struct checking *k)
{
    const struct config *c = k->c;
    const size_t dir = number_of(daemon_options, n_daemon_options, "model_dir");
    struct stat st;
    k->warn = true;
    int r = made_fault(k, "metrics_textfile", c->metrics_textfile, SIZE_MAX);
    if (r == 0 && c->metrics_textfile && stat(c->metrics_textfile, &st) == 0 && S_ISDIR(st.st_mode))
        r = key_fault(k, DEDIT_E_IO, "metrics_textfile", "%s: is a folder", c->metrics_textfile);
    if (r == 0 && c->origins[dir].file)
        r = folder_fault(k, "model_dir", c->model_dir, R_OK | X_OK);
    /* Made where it is not there. */
    if (r == 0 && c->costs_dir && strcmp(c->costs_dir, "none") != 0 && stat(c->costs_dir, &st) == 0)
        r = folder_fault(k, "costs_dir", c->costs_dir, W_OK | X_OK);
    k->warn = false;
    return r;
}

int config_check_paths(const struct config *c, struct config_faults *faults, struct error *err)
{
    struct checking k = {.c = c, .faults = faults, .err = err};
    int r = check_socket(&k);
    if (r == 0)
        r = socket_fault(&k, "metrics_socket", c->metrics_socket);
    if (r == 0)
        r = check_loop(&k);
    if (r == 0)
        r = check_optional(&k);
    for (size_t i = 0; i < c->n_models && r == 0; i++)
        r = check_model(&k, &c->models[i]);
    return r;
}
