/* SPDX-License-Identifier: Apache-2.0 */
#include "train/csv.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/parse.h"

#define MAX_BYTES   ((size_t)1 << 30)
#define MAX_COLUMNS 256u

void csv_done(struct csv *c)
{
    mem_free(c->text);
    mem_free(c->names);
    mem_free(c->values);
    *c = (struct csv){0};
}

int csv_column(const struct csv *c, const char *name)
{
    for (size_t i = 0; i < c->n_columns; i++)
        if (!strcmp(c->names[i], name))
            return (int)i;
    return -1;
}

/* Cuts the line at its commas; pieces, at most max + 1 are counted. */
static size_t split(char *line, char **pieces, size_t max)
{
    size_t n = 0;
    for (char *s = line;; s++) {
        char *end = strchr(s, ',');
        if (n < max)
            pieces[n] = s;
        n++;
        if (!end || n > max)
            return n;
        *end = '\0';
        s = end;
    }
}

static int add_row(struct csv *c, char **pieces, const char *path, size_t line, struct error *err)
{
    if (c->n_rows == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 256;
        double *grown = mem_realloc_array(c->values, cap, c->n_columns * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM(err);
        c->values = grown;
        c->cap = cap;
    }
    for (size_t i = 0; i < c->n_columns; i++) {
        double *v = &c->values[c->n_rows * c->n_columns + i];
        if (!pieces[i][0])
            *v = (double)NAN;
        else if (parse_double(pieces[i], v) < 0)
            return ERR(err, FORMAT, "%s:%zu: column \"%.64s\": \"%.64s\" is not a number", path,
                       line, c->names[i], pieces[i]);
    }
    c->n_rows++;
    return 0;
}

static int read_lines(struct csv *c, size_t len, const char *path, struct error *err)
{
    char *pieces[MAX_COLUMNS];
    size_t line = 0;
    for (char *at = c->text, *end; at < c->text + len; at = end + 1) {
        end = memchr(at, '\n', (size_t)(c->text + len - at));
        if (!end)
            break;
        *end = '\0';
        line++;
        if (strlen(at) != (size_t)(end - at))
            return ERR(err, FORMAT, "%s:%zu: a NUL byte", path, line);
        size_t n = split(at, pieces, MAX_COLUMNS);
        if (n > MAX_COLUMNS)
            return ERR(err, LIMIT, "%s:%zu: more than %u columns", path, line, MAX_COLUMNS);
        if (line == 1) {
            c->names = mem_memdup(pieces, n * sizeof(*pieces));
            if (!c->names)
                return ERR_NOMEM(err);
            c->n_columns = n;
            continue;
        }
        if (n != c->n_columns)
            return ERR(err, FORMAT, "%s:%zu: %zu columns; the first line has %zu", path, line, n,
                       c->n_columns);
        int r = add_row(c, pieces, path, line, err);
        if (r < 0)
            return r;
    }
    return line ? 0 : ERR(err, FORMAT, "%s: no line", path);
}

int csv_parse(char *take, size_t len, const char *name, struct csv *ret, struct error *err)
{
    struct csv c = {.text = take};
    int r = read_lines(&c, len, name, err);
    if (r < 0)
        csv_done(&c);
    else
        *ret = c;
    return r;
}

int csv_read(const char *path, struct csv *ret, struct error *err)
{
    char *text = NULL;
    size_t len;
    int r = file_read(path, MAX_BYTES, &text, &len, err);
    return r < 0 ? r : csv_parse(text, len, path, ret, err);
}
