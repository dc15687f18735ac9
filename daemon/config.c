/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults, files, drop-ins and flags become one configuration. */
#include "daemon/config.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/options.h"
#include "base/strbuf.h"
#include "daemon/config-internal.h"
#include "daemon/config-values.h"

#define STANDARD_FILE DEDIT_SYSCONFDIR "/dedit/dedit.conf"
#define MAX_MODELS    256u

/* ---- objects ---------------------------------------------------------------------------------------------- */

static struct config *config_new(struct error *err)
{
    struct config *c = mem_zalloc(sizeof *c);
    if (c)
        c->origins = mem_calloc(n_daemon_options, sizeof *c->origins);
    if (!c || !c->origins) {
        ERR_NOMEM(err);
        return config_free(c);
    }
    for (size_t i = 0; i < n_daemon_options; i++)
        if (value_set(&daemon_options[i], c, daemon_options[i].standard, err) < 0)
            return config_free(c);
    return c;
}

struct config *config_free(struct config *c)
{
    if (!c)
        return NULL;
    for (size_t i = 0; i < n_daemon_options; i++) {
        value_free(&daemon_options[i], c);
        if (c->origins)
            mem_free(c->origins[i].file);
    }
    mem_free(c->origins);
    for (size_t k = 0; k < c->n_models; k++) {
        for (size_t i = 0; i < n_model_options; i++)
            value_free(&model_options[i], &c->models[k]);
        for (size_t i = 0; c->models[k].origins && i < n_model_options; i++)
            mem_free(c->models[k].origins[i].file);
        mem_free(c->models[k].origins);
        mem_free(c->models[k].place.file);
        mem_free(c->models[k].name);
    }
    mem_free(c->models);
    mem_free(c);
    return NULL;
}

struct model_config_entry *config_find_model(struct config *c, const char *name)
{
    for (size_t i = 0; i < c->n_models; i++)
        if (strcmp(c->models[i].name, name) == 0)
            return &c->models[i];
    return NULL;
}

int config_add_model(struct config *c, const char *name, struct model_config_entry **ret,
                     struct error *err)
{
    if (!*name || strlen(name) > 100)
        return ERR(err, INVALID, "[model %.100s]: a name has 1 to 100 bytes", name);
    for (const char *s = name; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("._-:", *s))
            return ERR(err, INVALID,
                       "[model %s]: names are made of letters, digits and . _ - :", name);
    if (c->n_models == MAX_MODELS)
        return ERR(err, LIMIT, "more than %u models", MAX_MODELS);
    struct model_config_entry *grown =
        mem_realloc_array(c->models, c->n_models + 1, sizeof *c->models);
    if (!grown)
        return ERR_NOMEM(err);
    c->models = grown;
    struct model_config_entry *m = &c->models[c->n_models];
    memset(m, 0, sizeof *m);
    engine_config_init(&m->engine);
    m->name = mem_strdup(name);
    if (!m->name)
        return ERR_NOMEM(err);
    c->n_models++;
    m->origins = mem_calloc(n_model_options, sizeof *m->origins);
    if (!m->origins)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < n_model_options; i++) {
        int r = value_set(&model_options[i], m, model_options[i].standard, err);
        if (r < 0)
            return r;
    }
    *ret = m;
    return 0;
}

/* ---- flags ------------------------------------------------------------------------------------------------------ */

enum {
    FLAG_HELP = 1000,
    FLAG_VERSION,
    FLAG_CHECK,
    FLAG_PRINT,
    FLAG_CONFIG,
    FLAG_MODEL,
    FLAG_OPTION
};

struct flags {
    struct option *list; /* for getopt_long; names are owned */
    size_t n;
};

static void flags_done(struct flags *f)
{
    for (size_t i = 0; f->list && i < f->n; i++)
        mem_free((void *)(uintptr_t)f->list[i].name);
    mem_free(f->list);
}

static int flag_add(struct flags *f, const char *name, int has_arg, int val)
{
    char *s = mem_strdup(name);
    if (!s)
        return DEDIT_E_NOMEM;
    for (char *c = s; *c; c++)
        if (*c == '_')
            *c = '-';
    f->list[f->n++] = (struct option){s, has_arg, NULL, val};
    return 0;
}

static int flags_init(struct flags *f)
{
    f->list = mem_calloc(n_daemon_options + 8, sizeof *f->list);
    int r = f->list ? 0 : DEDIT_E_NOMEM;
    static const struct {
        const char *name;
        int has_arg, val;
    } fixed[] = {{"help", 0, FLAG_HELP},          {"version", 0, FLAG_VERSION},
                 {"check-config", 0, FLAG_CHECK}, {"print-config", 0, FLAG_PRINT},
                 {"config", 1, FLAG_CONFIG},      {"model", 1, FLAG_MODEL}};
    for (size_t i = 0; i < ARRAY_LEN(fixed) && r == 0; i++)
        r = flag_add(f, fixed[i].name, fixed[i].has_arg, fixed[i].val);
    for (size_t i = 0; i < n_daemon_options && r == 0; i++)
        r = flag_add(f, daemon_options[i].key, 1, FLAG_OPTION + (int)i);
    return r;
}

/* --model PATH or NAME=PATH: a model that is loaded at start; the first one is the default. */
static int model_flag(struct config *c, const char *arg, struct error *err)
{
    size_t option = 0;
    char name[101];
    const char *path = arg, *eq = strchr(arg, '=');
    struct model_config_entry *m;
    if (eq && !memchr(arg, '/', (size_t)(eq - arg))) {
        path = eq + 1;
        snprintf(name, sizeof name, "%.*s", (int)(eq - arg), arg);
    } else {
        size_t end = strlen(arg);
        while (end > 1 && arg[end - 1] == '/')
            end--;
        size_t start = end;
        while (start > 0 && arg[start - 1] != '/')
            start--;
        snprintf(name, sizeof name, "%.*s", (int)(end - start), arg + start);
        size_t n = strlen(name);
        if (n > 5 && strcmp(name + n - 5, ".gguf") == 0)
            name[n - 5] = 0;
    }
    m = config_find_model(c, name);
    int r = m ? 0 : config_add_model(c, name, &m, err);
    while (strcmp(model_options[option].key, "path") != 0)
        option++;
    if (r == 0)
        r = value_set(&model_options[option], m, path, err);
    if (r == 0 && config_place_set(&m->origins[option], &CONFIG_FLAG) < 0)
        r = ERR_NOMEM(err);
    if (r < 0)
        return r;
    m->preload = true;
    if (!c->default_model)
        c->default_model = mem_strdup(name);
    return c->default_model ? 0 : ERR_NOMEM(err);
}

/* First pass: which file, and what is asked for.  Second: values. */
static int read_flags(struct config *c, int argc, char **argv, bool values, const char **ret_file,
                      enum config_action *ret_action, struct config_faults *faults,
                      struct error *err)
{
    _cleanup_(flags_done) struct flags f = {0};
    char buf[4];
    int r = flags_init(&f) < 0 ? ERR_NOMEM(err) : 0;
    optind = 0; /* start again */
    opterr = 0;
    while (r == 0) {
        int v = getopt_long(argc, argv, ":", f.list, NULL);
        if (v == -1)
            break;
        if (v == ':')
            return ERR(err, INVALID, "%s: needs a value", argv[optind - 1]);
        if (v == '?')
            return ERR(err, INVALID, "%s: unknown option, see --help",
                       option_refused(argv, ":", buf));
        if (v == FLAG_HELP)
            *ret_action = CONFIG_HELP;
        else if (v == FLAG_VERSION)
            *ret_action = CONFIG_VERSION;
        else if (v == FLAG_CHECK)
            *ret_action = CONFIG_CHECK;
        else if (v == FLAG_PRINT)
            *ret_action = CONFIG_PRINT;
        else if (v == FLAG_CONFIG)
            *ret_file = optarg;
        else if (!values)
            continue;
        else if (v == FLAG_MODEL)
            r = config_tell(faults, model_flag(c, optarg, err), &CONFIG_FLAG, err);
        else {
            size_t i = (size_t)(v - FLAG_OPTION);
            r = value_set(&daemon_options[i], c, optarg, err);
            if (r < 0)
                r = config_tell(faults, r, &CONFIG_FLAG, err);
            else if (config_place_set(&c->origins[i], &CONFIG_FLAG) < 0)
                r = ERR_NOMEM(err);
        }
    }
    if (r == 0 && optind < argc)
        r = ERR(err, INVALID, "%s: unexpected argument, see --help", argv[optind]);
    return r;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */

static int standard_model_dir(struct config *c)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *state = getenv("STATE_DIRECTORY"); /* systemd's: folders, separated by colons */
    int r = 0;
    if (c->model_dir)
        return 0;
    if (state && *state)
        r = strbuf_addf(&b, "%.*s/models", (int)strcspn(state, ":"), state);
    else if (geteuid() != 0 && cache && *cache)
        r = strbuf_addf(&b, "%s/dedit/models", cache);
    else if (geteuid() != 0 && home && *home)
        r = strbuf_addf(&b, "%s/.cache/dedit/models", home);
    else
        r = strbuf_adds(&b, "/var/lib/dedit/models");
    c->model_dir = TAKE_PTR(b.s);
    return r;
}

/* Where what was measured is kept: costs_dir, else the cache folder. */
static int standard_costs_dir(struct config *c)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *cache = getenv("CACHE_DIRECTORY"); /* systemd's: folders, separated by colons */
    int r = 0;
    if (c->costs_dir)
        return 0;
    if (cache && *cache)
        r = strbuf_addf(&b, "%.*s/costs", (int)strcspn(cache, ":"), cache);
    else if (xdg && xdg[0] == '/')
        r = strbuf_addf(&b, "%s/dedit/costs", xdg);
    else if (home && home[0] == '/')
        r = strbuf_addf(&b, "%s/.cache/dedit/costs", home);
    c->costs_dir = TAKE_PTR(b.s);
    return r;
}

/* Paths below it are printed and read again, and the daemon may be asked from elsewhere. */
static int absolute_model_dir(struct config *c, struct error *err)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    char here[PATH_MAX];
    if (c->model_dir[0] == '/')
        return 0;
    if (!getcwd(here, sizeof here))
        return ERR(err, IO, "model_dir: \"%s\" is relative, and the working directory: %s",
                   c->model_dir, strerror(errno));
    if (strbuf_addf(&b, "%s/%s", here, c->model_dir) < 0)
        return ERR_NOMEM(err);
    mem_free(c->model_dir);
    c->model_dir = TAKE_PTR(b.s);
    return 0;
}

static int load(int argc, char **argv, struct config **ret, enum config_action *ret_action,
                struct config_faults *faults, struct error *err)
{
    const char *file = NULL;
    enum config_action action = CONFIG_RUN;
    _cleanup_(config_freep) struct config *c = config_new(err);
    if (!c)
        return DEDIT_E_NOMEM;
    int r = read_flags(c, argc, argv, false, &file, &action, faults, err);
    if (r == 0 && (action == CONFIG_HELP || action == CONFIG_VERSION)) {
        *ret_action = action;
        *ret = TAKE_PTR(c);
        return 0;
    }
    if (r == 0)
        r = config_read_files(c, file ? file : STANDARD_FILE, file != NULL, faults, err);
    if (r == 0)
        r = read_flags(c, argc, argv, true, &file, &action, faults, err);
    if (r == 0 && (standard_model_dir(c) < 0 || standard_costs_dir(c) < 0))
        r = ERR_NOMEM(err);
    if (r == 0)
        r = absolute_model_dir(c, err);
    if (r == 0)
        r = config_check_values(c, faults, err);
    if (r < 0)
        return r;
    *ret_action = action;
    *ret = TAKE_PTR(c);
    return 0;
}

int config_load(int argc, char **argv, struct config **ret, enum config_action *ret_action,
                struct error *err)
{
    return load(argc, argv, ret, ret_action, NULL, err);
}

int config_check(int argc, char **argv, char **ret_text, size_t *ret_n, struct error *err)
{
    _cleanup_(config_faults_done) struct config_faults f = {0};
    struct config *made = NULL;
    enum config_action action = CONFIG_RUN;
    int r = config_tell(&f, load(argc, argv, &made, &action, &f, err), NULL, err);
    _cleanup_(config_freep) struct config *c = made;
    if (r == 0 && c && action == CONFIG_CHECK)
        r = config_check_paths(c, &f, err);
    if (r == 0)
        r = config_faults_text(&f, ret_text, err);
    if (r == 0)
        *ret_n = f.wrong;
    return r;
}

/* What belongs to things that exist already: the socket, the loop, the threads' queues. */
static bool needs_restart(const struct option_desc *o)
{
    static const char *const keys[] = {"socket",         "socket_mode", "socket_group",
                                       "metrics_socket", "event_loop",  "max_requests"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strcmp(o->key, keys[i]) == 0)
            return true;
    return false;
}

int config_reload(const struct config *old, int argc, char **argv, struct config **ret,
                  char **ret_note, struct error *err)
{
    struct config *made = NULL;
    enum config_action action;
    _cleanup_strbuf_ struct strbuf note = {0};
    int r = config_load(argc, argv, &made, &action, err);
    _cleanup_(config_freep) struct config *c = made;
    if (r < 0)
        return r;
    for (size_t i = 0; i < n_daemon_options && r == 0; i++) {
        const struct option_desc *o = &daemon_options[i];
        _cleanup_strbuf_ struct strbuf was = {0}, is = {0};
        if (!needs_restart(o))
            continue;
        if (strbuf_reserve(&was, 1) < 0 || strbuf_reserve(&is, 1) < 0 ||
            value_print(o, old, &was) < 0 || value_print(o, c, &is) < 0)
            return ERR_NOMEM(err);
        if (strcmp(was.s, is.s) == 0)
            continue;
        r = value_set(o, c, was.s, err);
        if (r == 0 && strbuf_addf(&note, "%s%s", note.len ? ", " : "", o->key) < 0)
            r = ERR_NOMEM(err);
    }
    if (r < 0)
        return r;
    *ret_note = TAKE_PTR(note.s);
    *ret = TAKE_PTR(c);
    return 0;
}

/* ---- printing -------------------------------------------------------------------------------------------------------- */

static int print_options(const struct config *c, struct strbuf *b)
{
    const char *section = "";
    int r = 0;
    for (size_t i = 0; i < n_daemon_options && r == 0; i++) {
        const struct option_desc *o = &daemon_options[i];
        if (strcmp(section, o->section) != 0) {
            section = o->section;
            r = strbuf_addf(b, "%s[%s]\n", i ? "\n" : "", section);
        }
        if (r == 0)
            r = strbuf_adds(b, "; ");
        if (r == 0)
            r = c->origins[i].file ? config_place_print(&c->origins[i], b)
                                   : strbuf_adds(b, "default");
        if (r == 0)
            r = strbuf_addf(b, "\n%s = ", o->key);
        if (r == 0)
            r = value_print(o, c, b);
        if (r == 0)
            r = strbuf_addc(b, '\n');
    }
    return r;
}

int config_print(const struct config *c, int fd)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    int r = print_options(c, &b);
    for (size_t k = 0; k < c->n_models && r == 0; k++) {
        r = strbuf_addf(&b, "\n[model %s]\n", c->models[k].name);
        for (size_t i = 0; i < n_model_options && r == 0; i++) {
            r = strbuf_addf(&b, "%s = ", model_options[i].key);
            if (r == 0)
                r = value_print(&model_options[i], &c->models[k], &b);
            if (r == 0)
                r = strbuf_addc(&b, '\n');
        }
    }
    for (size_t done = 0; r == 0 && done < b.len;) {
        ssize_t n = write(fd, b.s + done, b.len - done);
        if (n < 0)
            return DEDIT_E_IO;
        done += (size_t)n;
    }
    return r;
}

const char *config_help(void)
{
    static struct strbuf b; /* made once, at the command line */
    if (b.len)
        return b.s;
    int r = strbuf_adds(
        &b, "dedit-d: serves language models to local programs\n\n"
            "usage: dedit-d [--config FILE] [--model [NAME=]PATH]... [options]\n\n"
            "  --config FILE          configuration (" STANDARD_FILE " and dedit.conf.d/*.conf)\n"
            "  --model [NAME=]PATH    load this model at start; the first one is the default\n"
            "  --check-config         read everything, say all that is wrong, exit\n"
            "  --print-config         print the effective configuration, exit\n"
            "  --help, --version\n\n"
            "Every key of dedit.conf(5) is an option:\n");
    for (size_t i = 0; i < n_daemon_options && r == 0; i++) {
        const struct option_desc *o = &daemon_options[i];
        char flag[64];
        snprintf(flag, sizeof flag, "--%s", o->key);
        for (char *s = flag; *s; s++)
            if (*s == '_')
                *s = '-';
        r = strbuf_addf(&b, "  %s %s\n        %s (default: %s)\n", flag, o->unit, o->help,
                        *o->standard ? o->standard : "empty");
    }
    return r < 0 ? "" : b.s;
}
