/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration files.  inih reads lines; what it would cut or pass over without a word is looked at
 * before, and every key and every fault has its file and line.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/strbuf.h"
#include "daemon/config-internal.h"
#include "daemon/config-values.h"

#define MAX_FILE (1u << 20)
/* The ini parser cuts longer lines and names of sections without a word. */
#define MAX_LINE    190u
#define MAX_SECTION 49u
/* What a section becomes that could not be read. */
#define LOST "[\001]"

/* As many sections as there are, and the models that there may be: more are faults by themselves. */
#define MAX_SECTIONS 260u

/* One file being read. */
struct reading {
    struct config *c;
    const char *path;
    struct config_faults *faults;
    struct error *err;
    char *text; /* a copy, in which wrong lines are blanked */
    size_t len, at;
    unsigned line;      /* that the parser has been given last */
    int failed;         /* the error that ended it */
    struct strbuf seen; /* "section key" of this file, a NUL after each: for duplicates */
    bool lost;          /* some section is LOST */
    struct strbuf bad;  /* name of a section that cannot be, told once; or "" */
    struct {
        size_t start, bytes, line; /* of its name in the text */
    } sections[MAX_SECTIONS];
    size_t n_sections;
};

static void reading_done(struct reading *r)
{
    mem_free(r->text);
    strbuf_done(&r->seen);
    strbuf_done(&r->bad);
}

/* "file:line" before what is wrong; goes on where all faults are wanted. */
static int line_fault(struct reading *r, int code, size_t line)
{
    const struct config_place place = {.file = (char *)(uintptr_t)r->path, .line = line};
    return config_tell(r->faults, code, &place, r->err);
}

static int once(struct reading *r, const char *section, const char *key)
{
    _cleanup_strbuf_ struct strbuf name = {0};
    if (strbuf_addf(&name, "%s %s", section, key) < 0)
        return ERR_NOMEM(r->err);
    for (size_t i = 0; i < r->seen.len; i += strlen(r->seen.s + i) + 1)
        if (strcmp(r->seen.s + i, name.s) == 0)
            return ERR(r->err, FORMAT, "[%s] %s: given twice in this file", section, key);
    return strbuf_add(&r->seen, name.s, name.len + 1) < 0 ? ERR_NOMEM(r->err) : 0;
}

/* "[section] " before what value_set() says. */
static int in_section(const char *section, int r, struct error *err)
{
    if (r < 0 && r != DEDIT_E_NOMEM) {
        const struct error e = *err;
        error_set(err, r, e.file, e.line, "[%s] %s", section, e.msg);
    }
    return r;
}

static int set_daemon_key(struct config *c, const char *section, const char *key, const char *value,
                          const struct config_place *place, struct error *err)
{
    bool section_known = false;
    for (size_t i = 0; i < n_daemon_options; i++) {
        const struct option_desc *o = &daemon_options[i];
        if (strcmp(o->section, section) != 0)
            continue;
        section_known = true;
        if (strcmp(o->key, key) != 0)
            continue;
        int r = in_section(section, value_set(o, c, value, err), err);
        if (r == 0 && config_place_set(&c->origins[i], place) < 0)
            r = ERR_NOMEM(err);
        return r;
    }
    if (!section_known)
        return ERR(err, FORMAT,
                   "[%s]: unknown section; daemon, limits, policy and \"model NAME\" are known",
                   section);
    return ERR(err, FORMAT, "[%s] %s: unknown key", section, key);
}

static int set_model_key(struct config *c, const char *section, const char *key, const char *value,
                         const struct config_place *place, struct error *err)
{
    const char *name = section + strlen("model ");
    struct model_config_entry *m = config_find_model(c, name);
    int r = m ? 0 : config_add_model(c, name, &m, err);
    if (r == 0 && !m->place.file && config_place_set(&m->place, place) < 0)
        r = ERR_NOMEM(err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n_model_options; i++) {
        if (strcmp(model_options[i].key, key) != 0)
            continue;
        r = in_section(section, value_set(&model_options[i], m, value, err), err);
        if (r == 0 && config_place_set(&m->origins[i], place) < 0)
            r = ERR_NOMEM(err);
        return r;
    }
    return ERR(err, FORMAT, "[model %s] %s: unknown key", name, key);
}

static bool is_section(struct config *c, const char *section)
{
    if (strncmp(section, "model ", 6) == 0)
        return config_find_model(c, section + 6) != NULL;
    for (size_t i = 0; i < n_daemon_options; i++)
        if (strcmp(daemon_options[i].section, section) == 0)
            return true;
    return false;
}

/* Called for each key.  Always 1: what is wrong is told here, with its line. */
static int on_key(void *user, const char *section, const char *key, const char *value)
{
    struct reading *r = user;
    const struct config_place place = {.file = (char *)(uintptr_t)r->path, .line = r->line};
    if (r->failed || (r->bad.len && strcmp(r->bad.s, section) == 0) ||
        (r->lost && strcmp(section, "\001") == 0))
        return 1;
    strbuf_clear(&r->bad);
    int e = once(r, section, key);
    if (e == 0 && strncmp(section, "model ", 6) == 0)
        e = set_model_key(r->c, section, key, value, &place, r->err);
    else if (e == 0)
        e = set_daemon_key(r->c, section, key, value, &place, r->err);
    if (e < 0 && !is_section(r->c, section) && strbuf_adds(&r->bad, section) < 0)
        e = ERR_NOMEM(r->err);
    r->failed = line_fault(r, e, r->line);
    return 1;
}

/* Length of the name when the line, without blanks before it, is a [section]. */
static size_t section_bytes(const char *line, size_t len)
{
    if (!len || line[0] != '[')
        return 0;
    const char *end = memchr(line, ']', len);
    return end ? (size_t)(end - line) - 1 : 0;
}

/* A line that is wrong is told once, and read as an empty one then; the keys of a section that is wrong are passed
 * over. */
static int blank_line(struct reading *r, size_t start, size_t end, int code, size_t line)
{
    const bool section = end - start >= strlen(LOST) && r->text[start] == '[';
    memset(r->text + start, ' ', end - start);
    if (section) {
        memcpy(r->text + start, LOST, strlen(LOST));
        r->lost = true;
    }
    return line_fault(r, code, line);
}

/* A section has one place in a file: who wrote it twice has mostly forgotten to change the name. */
static int section_once(struct reading *r, size_t start, size_t bytes, size_t line)
{
    const char *name = r->text + start;
    for (size_t i = 0; i < r->n_sections; i++)
        if (r->sections[i].bytes == bytes && !memcmp(r->text + r->sections[i].start, name, bytes))
            return line_fault(r,
                              ERR(r->err, FORMAT,
                                  "[%.*s]: given twice in this file, first in line %zu", (int)bytes,
                                  name, r->sections[i].line),
                              line);
    if (r->n_sections < MAX_SECTIONS) {
        r->sections[r->n_sections].start = start;
        r->sections[r->n_sections].bytes = bytes;
        r->sections[r->n_sections++].line = line;
    }
    return 0;
}

/* One line of check_lines(); *bare: line of a [model] that has had no key yet, or 0. */
static int check_line(struct reading *r, size_t start, size_t end, size_t line, size_t *bare)
{
    const size_t len = end - start;
    if (memchr(r->text + start, 0, len))
        return blank_line(r, start, end, ERR(r->err, FORMAT, "a NUL byte"), line);
    if (len > MAX_LINE)
        return blank_line(r, start, end,
                          ERR(r->err, FORMAT, "%zu bytes, a line has at most %u", len, MAX_LINE),
                          line);
    while (start < end && isspace((unsigned char)r->text[start]))
        start++;
    const char *s = r->text + start;
    const size_t name = section_bytes(s, end - start);
    if (name > MAX_SECTION)
        return blank_line(
            r, start, end,
            ERR(r->err, FORMAT, "[section] of %zu bytes, at most %u", name, MAX_SECTION), line);
    const char first = start < end ? *s : 0;
    int e = 0;
    if (*bare && first == '[') {
        e = line_fault(r, ERR(r->err, FORMAT, "a [model NAME] without path"), *bare);
        *bare = 0;
    }
    if (e == 0 && name)
        e = section_once(r, start + 1, name, line);
    if (first == '[')
        *bare = name > 6 && memcmp(s, "[model ", 7) == 0 ? line : 0;
    else if (first && first != '#' && first != ';')
        *bare = 0;
    return e;
}

/* What the parser would pass over: overlong lines, NUL bytes, models without a key (it tells of keys only). */
static int check_lines(struct reading *r)
{
    size_t line = 1, start = 0, bare = 0;
    int e = 0;
    for (size_t i = 0; i <= r->len && e == 0; i++) {
        if (i < r->len && r->text[i] != '\n')
            continue;
        e = check_line(r, start, i, line++, &bare);
        start = i + 1;
    }
    return e == 0 && bare ? line_fault(r, ERR(r->err, FORMAT, "a [model NAME] without path"), bare)
                          : e;
}

/* As fgets(), for lines that were looked at: what is too long is blank.  The parser says of its own errors only which
 * line the first is in. */
static char *next_line(char *buf, int size, void *stream)
{
    struct reading *r = stream;
    if (r->at >= r->len || size < 2)
        return NULL;
    const char *s = r->text + r->at, *nl = memchr(s, '\n', r->len - r->at);
    const size_t n = nl ? (size_t)(nl - s) : r->len - r->at;
    const size_t give = n > MAX_LINE || n + 2 > (size_t)size ? strlen(LOST) : n;
    memcpy(buf, s, give);
    buf[give] = '\n';
    buf[give + 1] = 0;
    r->at += n + 1;
    r->line++;
    return buf;
}

static int parse(struct reading *r, ini_handler handler)
{
    r->at = 0;
    r->line = 0;
    return ini_parse_stream(next_line, r, handler, r);
}

static int pass_over(void *user, const char *section, const char *key, const char *value)
{
    (void)user;
    (void)section;
    (void)key;
    (void)value;
    return 1;
}

/* Lines that the parser cannot read. */
static int check_syntax(struct reading *r)
{
    enum { MOST = 100 }; /* each is found by a look at the whole text */
    int e = 0, line, found = 0;
    while (e == 0 && (line = parse(r, pass_over)) != 0) {
        if (found++ == MOST)
            return ERR(r->err, FORMAT,
                       "%s: more than %d lines are neither [section] nor key = value: this is no "
                       "configuration",
                       r->path, MOST);
        size_t start = 0, end, n = 1;
        if (line < 0)
            return ERR_NOMEM(r->err);
        for (; n < (size_t)line; n++)
            start = (size_t)((char *)memchr(r->text + start, '\n', r->len - start) - r->text) + 1;
        const char *nl = memchr(r->text + start, '\n', r->len - start);
        end = nl ? (size_t)(nl - r->text) : r->len;
        e = blank_line(r, start, end, ERR(r->err, FORMAT, "neither [section] nor key = value"), n);
    }
    return e;
}

static int read_text(struct config *c, const char *path, const char *text, size_t len,
                     struct config_faults *faults, struct error *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8; editors put it there */
    if (len >= 3 && memcmp(text, mark, 3) == 0) {
        text += 3;
        len -= 3;
    }
    _cleanup_(reading_done) struct reading r = {
        .c = c, .path = path, .faults = faults, .err = err, .len = len};
    r.text = mem_alloc(len + 1);
    if (!r.text)
        return ERR_NOMEM(err);
    memcpy(r.text, text, len);
    r.text[len] = 0;
    int e = check_lines(&r);
    if (e == 0)
        e = check_syntax(&r);
    if (e < 0)
        return e;
    return parse(&r, on_key) < 0 ? ERR_NOMEM(err) : r.failed;
}

int config_read_text(struct config *c, const char *path, const char *text, size_t len,
                     struct error *err)
{
    return read_text(c, path, text, len, NULL, err);
}

static int read_file(struct config *c, const char *path, struct config_faults *faults,
                     struct error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = file_read(path, MAX_FILE, &text, &len, err);
    return r < 0 ? config_tell(faults, r, NULL, err) : read_text(c, path, text, len, faults, err);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_conf(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 5 && d->d_name[0] != '.' && strcmp(d->d_name + n - 5, ".conf") == 0;
}

/* dedit.conf.d beside the file, in the order of the names. */
static int read_dropins(struct config *c, const char *file, struct config_faults *faults,
                        struct error *err)
{
    _cleanup_strbuf_ struct strbuf dir = {0};
    struct dirent **list = NULL;
    int r = 0;
    if (strbuf_addf(&dir, "%s.d", file) < 0)
        return ERR_NOMEM(err);
    int n = scandir(dir.s, &list, is_conf, by_name);
    if (n < 0)
        return errno == ENOENT
                   ? 0
                   : config_tell(faults, ERR(err, IO, "%s: %s", dir.s, strerror(errno)), NULL, err);
    for (int i = 0; i < n; i++) {
        _cleanup_strbuf_ struct strbuf path = {0};
        if (r == 0 && strbuf_addf(&path, "%s/%s", dir.s, list[i]->d_name) < 0)
            r = ERR_NOMEM(err);
        if (r == 0)
            r = read_file(c, path.s, faults, err);
        free(list[i]);
    }
    free(list);
    return r;
}

int config_read_files(struct config *c, const char *file, bool named, struct config_faults *faults,
                      struct error *err)
{
    int r = named || access(file, F_OK) == 0 ? read_file(c, file, faults, err) : 0;
    return r < 0 ? r : read_dropins(c, file, faults, err);
}
