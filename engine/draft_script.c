/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts of proposals: one JSON object a line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/line.h"
#include "engine/json.h"
#include "engine/method.h"

#define MAX_LINE 65536u

struct nodes {
    json_t *tokens, *parents, *confidence;
};

static int node(const struct js_obj *o, const struct nodes *n, size_t i, struct proposal *p,
                struct error *err)
{
    const json_t *token = json_array_get(n->tokens, i);
    json_int_t id = json_integer_value(token), parent = (json_int_t)i - 1;
    double c = -1;
    if (!json_is_integer(token) || id < 0 || id > UINT32_MAX)
        return ERR(err, FORMAT, "%s: tokens[%zu]: must be a token id", o->file, i);
    if (n->parents) {
        const json_t *v = json_array_get(n->parents, i);
        parent = json_integer_value(v);
        if (!json_is_integer(v) || parent < -1 || parent >= (json_int_t)i)
            return ERR(err, FORMAT, "%s: parents[%zu]: must be -1 to %d", o->file, i, (int)i - 1);
    }
    if (n->confidence) {
        const json_t *v = json_array_get(n->confidence, i);
        c = json_number_value(v);
        if (!json_is_number(v) || !(c >= 0 && c <= 1))
            return ERR(err, FORMAT, "%s: confidence[%zu]: must be 0 to 1", o->file, i);
    }
    if (proposal_add(p, (uint32_t)id, (int)parent, (float)c) < 0)
        return ERR(err, LIMIT, "%s: tokens: more than %u nodes, or deeper than %u", o->file,
                   PROPOSAL_MAX_NODES, PROPOSAL_MAX_DEPTH);
    return 0;
}

static int same_length(const struct js_obj *o, const char *key, const json_t *a, size_t n,
                       struct error *err)
{
    if (a && json_array_size(a) != n)
        return ERR(err, FORMAT, "%s: %s: %zu entries for %zu tokens", o->file, key,
                   json_array_size(a), n);
    return 0;
}

static int parse_round(const struct js_obj *o, struct draft_script_round *t, struct error *err)
{
    struct nodes n = {0};
    int r = js_u32(o, "at", 0, UINT32_MAX, &t->at, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: at: is missing", o->file);
    if (r == 0)
        r = js_u32(o, "passes", 0, DRAFT_MAX_PASSES, &t->passes, err);
    if (r >= 0)
        r = js_array(o, "tokens", &n.tokens, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: tokens: is missing", o->file);
    if (r == 0)
        r = js_array(o, "parents", &n.parents, err);
    if (r >= 0)
        r = js_array(o, "confidence", &n.confidence, err);
    size_t count = json_array_size(n.tokens);
    if (r >= 0)
        r = same_length(o, "parents", n.parents, count, err);
    if (r >= 0)
        r = same_length(o, "confidence", n.confidence, count, err);
    for (size_t i = 0; i < count && r >= 0; i++)
        r = node(o, &n, i, &t->proposal, err);
    return r < 0 ? r : 0;
}

static int add_line(struct draft_script *s, const char *line, size_t len, const char *path,
                    unsigned number, struct error *err)
{
    json_auto_t *v = NULL;
    char name[4200];
    (void)snprintf(name, sizeof(name), "%s:%u", path, number);
    if (len > MAX_LINE)
        return ERR(err, LIMIT, "%s: %zu bytes, at most %u", name, len, MAX_LINE);
    int r = js_parse_line(line, len, path, number, &v, err);
    if (r < 0)
        return r;
    void *grown = mem_realloc_array(s->rounds, s->n + 1, sizeof(*s->rounds));
    if (!grown)
        return ERR_NOMEM(err);
    s->rounds = grown;
    struct draft_script_round *t = &s->rounds[s->n];
    memset(t, 0, sizeof(*t));
    struct js_obj o = js_root(v, name);
    r = parse_round(&o, t, err);
    if (r < 0)
        return r;
    if (s->n && t->at <= s->rounds[s->n - 1].at)
        return ERR(err, FORMAT, "%s: at: must ascend, %u follows %u", name, t->at,
                   s->rounds[s->n - 1].at);
    s->n++;
    return 0;
}

int draft_script_read(const char *path, struct draft_script *ret, struct error *err)
{
    struct draft_script s = {0};
    char *line = NULL;
    size_t cap = 0;
    int r = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return ERR(err, IO, "%s: %s", path, strerror(errno));
    for (unsigned number = 1; r == 0; number++) {
        const long n = line_read(f, path, &line, &cap, err);
        if (n <= 0) {
            r = (int)n;
            break;
        }
        r = add_line(&s, line, (size_t)n, path, number, err);
    }
    free(line); /* the C library's */
    (void)fclose(f);
    if (r < 0) {
        draft_script_done(&s);
        return r;
    }
    *ret = s;
    return 0;
}

void draft_script_done(struct draft_script *s)
{
    mem_free(s->rounds);
    *s = (struct draft_script){0};
}
