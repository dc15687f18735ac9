/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs on disk: one small JSON file for each machine and model, named by the hash of what they belong
 * to; the same words stand inside and are compared.  Times are integers (picoseconds), so that no
 * locale matters.  Beside them stands how far drafts came (survival_file.c).  Whatever cannot be read is
 * measured again: a file is never trusted with more than time.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/alloc.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "engine/cost.h"
#include "engine/json.h"
#include "engine/survival.h"

#define FORMAT    1u
#define MAX_FILE  65536u
#define MAX_PS    1e16 /* of one call: nearly three hours */
#define PS_PER_NS 1000.0

static const char *const kinds[COST_KINDS] = {"target", "drafter", "inject"};

void costs_machine(char buf[64])
{
    (void)snprintf(buf, 64, "unknown CPU");
#ifdef __x86_64__
    uint32_t r[12] = {0}, max = __get_cpuid_max(0x80000000u, NULL);
    if (max < 0x80000004u)
        return;
    for (uint32_t i = 0; i < 3; i++)
        (void)__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
    char name[49] = {0};
    memcpy(name, r, sizeof(r));
    size_t n = strlen(name);
    while (n && name[n - 1] == ' ')
        name[--n] = '\0';
    for (size_t i = 0; i < n; i++) /* it goes into a JSON string */
        if (name[i] < ' ' || name[i] > '~' || name[i] == '"' || name[i] == '\\')
            name[i] = '?';
    (void)snprintf(buf, 64, "%s", name + strspn(name, " "));
#endif
}

static int path_of(const char *dir, const char *key, struct strbuf *b, struct error *err)
{
    int r = strbuf_addf(b, "%s/%016llx.json", dir,
                        (unsigned long long)hash_bytes(key, strlen(key), FORMAT));
    return r < 0 ? ERR_NOMEM(err) : 0;
}

/* ---- reading --------------------------------------------------------------------------------------- */

static int read_ps(const json_t *v, const struct js_obj *o, const char *key, double *ret_ns,
                   struct error *err)
{
    double ps = json_is_integer(v) ? (double)json_integer_value(v) : -1;
    if (!(ps >= 0 && ps <= MAX_PS))
        return ERR(err, FORMAT, "%s: \"%s%s\": a time is not an integer from 0 to %g", o->file,
                   o->path, key, MAX_PS);
    *ret_ns = ps / PS_PER_NS;
    return 0;
}

static int read_one(const struct js_obj *o, const char *key, double *ret_ns, struct error *err)
{
    return read_ps(json_object_get(o->o, key), o, key, ret_ns, err);
}

static int read_table(const struct js_obj *root, const char *kind, struct cost_table *t,
                      struct error *err)
{
    struct js_obj o;
    json_t *ps = NULL, *seen = NULL;
    int r = js_object(root, kind, &o, err);
    if (r == 0)
        r = js_array(&o, "ps", &ps, err);
    if (r == 0)
        r = js_array(&o, "seen", &seen, err);
    if (r > 0 ||
        (r == 0 && (json_array_size(ps) != COST_SIZES || json_array_size(seen) != COST_SIZES)))
        return ERR(err, FORMAT, "%s: \"%s\" has not the %d sizes of this version", root->file, kind,
                   COST_SIZES);
    for (size_t i = 0; i < COST_SIZES && r == 0; i++) {
        r = read_ps(json_array_get(ps, i), &o, "ps", &t->ns[i], err);
        const json_t *n = json_array_get(seen, i);
        json_int_t k = json_is_integer(n) ? json_integer_value(n) : -1;
        if (r == 0 && (k < 0 || k > UINT32_MAX || (k == 0) != (t->ns[i] == 0)))
            return ERR(err, FORMAT, "%s: \"%s.seen\": entry %zu does not fit its time", root->file,
                       kind, i);
        t->seen[i] = (uint32_t)k;
    }
    if (r == 0)
        r = read_one(&o, "entry_ps", &t->entry_ns, err);
    return r == 0 ? read_one(&o, "row_ps", &t->row_ns, err) : r;
}

int costs_parse(struct costs *c, struct survival *s, const char *text, size_t len, const char *name,
                const char *key, struct error *err)
{
    json_auto_t *v = NULL;
    struct costs got;
    uint32_t format = 0;
    const char *k = NULL;
    costs_init(&got);
    int r = js_parse_object(text, len, name, &v, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(v, name), drafts;
    r = js_u32(&o, "dedit_costs", 0, UINT32_MAX, &format, err);
    if (r < 0)
        return r;
    if (r > 0 || format != FORMAT)
        return ERR(err, FORMAT, "%s: no file of costs of this version", name);
    r = js_str(&o, "key", &k, err);
    if (r < 0)
        return r;
    if (r > 0 || strcmp(k, key) != 0)
        return ERR(err, MISMATCH, "%s: \"key\" is \"%.200s\", of another machine or model", name,
                   k ? k : "");
    for (int i = 0; i < COST_KINDS && r == 0; i++)
        r = read_table(&o, kinds[i], &got.table[i], err);
    if (r == 0)
        r = js_object(&o, "drafts", &drafts, err);
    if (r == 0)
        r = survival_read(&drafts, s, err);
    if (r < 0)
        return r;
    *c = got;
    return 0;
}

int costs_read(struct costs *c, struct survival *s, const char *dir, const char *key,
               struct error *err)
{
    _cleanup_strbuf_ struct strbuf path = {0};
    _cleanup_free_ char *text = NULL;
    size_t len = 0;
    struct stat st;
    int r = path_of(dir, key, &path, err);
    if (r < 0)
        return r;
    if (stat(path.s, &st) < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 1;
    r = file_read(path.s, MAX_FILE, &text, &len, err);
    return r < 0 ? r : costs_parse(c, s, text, len, path.s, key, err);
}

/* ---- writing --------------------------------------------------------------------------------------- */

static int add_table(struct strbuf *b, const char *kind, const struct cost_table *t)
{
    int r = strbuf_addf(b, ",\n \"%s\": {\"ps\": [", kind);
    for (int i = 0; i < COST_SIZES && r >= 0; i++)
        r = strbuf_addf(b, "%s%llu", i ? ", " : "", (unsigned long long)(t->ns[i] * PS_PER_NS));
    if (r >= 0)
        r = strbuf_adds(b, "],\n  \"seen\": [");
    /* A time that is rounded to nothing was never seen. */
    for (int i = 0; i < COST_SIZES && r >= 0; i++)
        r = strbuf_addf(b, "%s%u", i ? ", " : "",
                        t->ns[i] * PS_PER_NS < 1 ? 0
                        : t->seen[i]             ? t->seen[i]
                                                 : 1);
    if (r >= 0)
        r = strbuf_addf(b, "],\n  \"entry_ps\": %llu, \"row_ps\": %llu}",
                        (unsigned long long)(t->entry_ns * PS_PER_NS),
                        (unsigned long long)(t->row_ns * PS_PER_NS));
    return r;
}

int costs_write(const struct costs *c, const struct survival *s, const char *dir, const char *key,
                struct error *err)
{
    _cleanup_strbuf_ struct strbuf b = {0}, path = {0};
    int r = strbuf_addf(&b, "{\"dedit_costs\": %u,\n \"key\": \"%s\"", FORMAT, key);
    for (int i = 0; i < COST_KINDS && r >= 0; i++)
        r = add_table(&b, kinds[i], &c->table[i]);
    if (r >= 0 && (r = strbuf_adds(&b, ",\n \"drafts\": ")) >= 0)
        r = survival_write(s, &b);
    if (r < 0 || strbuf_adds(&b, "}\n") < 0)
        return ERR_NOMEM(err);
    r = path_of(dir, key, &path, err);
    if (r == 0)
        r = folders_make(dir, 0777, err); /* a new user has no cache folder yet */
    return r < 0 ? r : file_write_atomic(path.s, b.s, b.len, err);
}
