/* SPDX-License-Identifier: Apache-2.0 */
/* Where values come from, and what is wrong: gathered with its place, and told in the order of files and lines. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "daemon/config-internal.h"

/* ---- places -------------------------------------------------------------------------------------- */

int config_place_set(struct config_place *to, const struct config_place *from)
{
    char *file = mem_strdup(from->file);
    if (!file)
        return DEDIT_E_NOMEM;
    mem_free(to->file);
    *to = (struct config_place){.file = file, .line = from->line};
    return 0;
}

int config_place_print(const struct config_place *p, struct strbuf *b)
{
    return p->line ? strbuf_addf(b, "%s:%zu", p->file, p->line) : strbuf_adds(b, p->file);
}

/* ---- faults -------------------------------------------------------------------------------------- */

/* "file:line: " before the message, or "command line: ". */
static int prefix_place(struct error *err, int code, const struct config_place *place)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    if (!place || !place->file)
        return code;
    if (config_place_print(place, &b) < 0)
        return ERR_NOMEM(err);
    return error_prefix(err, code, "%s", b.s);
}

static int add(struct config_faults *f, const struct config_place *place, const char *text)
{
    struct config_fault *grown = mem_realloc_array(f->list, f->n + 1, sizeof *grown);
    if (!grown)
        return DEDIT_E_NOMEM;
    f->list = grown;
    struct config_fault *new = &f->list[f->n];
    *new = (struct config_fault){.text = mem_strdup(text), .number = f->n};
    if (!new->text)
        return DEDIT_E_NOMEM;
    f->n++;
    return place && place->line ? config_place_set(&new->place, place) : 0;
}

int config_tell(struct config_faults *f, int r, const struct config_place *place, struct error *err)
{
    if (r >= 0 || r == DEDIT_E_NOMEM)
        return r;
    r = prefix_place(err, r, place);
    if (!f || r == DEDIT_E_NOMEM)
        return r;
    if (add(f, place, err->msg) < 0)
        return ERR_NOMEM(err);
    f->wrong++;
    *err = (struct error){0};
    return 0;
}

int config_warn(struct config_faults *f, const struct config_place *place, struct error *err)
{
    if (!f || err->code == DEDIT_E_NOMEM)
        return err->code == DEDIT_E_NOMEM ? err->code : 0;
    int r = error_prefix(err, err->code, "warning");
    r = prefix_place(err, r, place);
    if (r == DEDIT_E_NOMEM || add(f, place, err->msg) < 0)
        return ERR_NOMEM(err);
    *err = (struct error){0};
    return 0;
}

/* What has no line comes last, as it was found; dedit.conf is read before dedit.conf.d/x.conf. */
static int by_place(const void *a, const void *b)
{
    const struct config_fault *x = a, *y = b;
    const size_t l = x->place.line, m = y->place.line;
    int r = !l - !m;
    if (r == 0 && l)
        r = strcmp(x->place.file, y->place.file);
    if (r == 0)
        r = (l > m) - (l < m);
    return r ? r : (x->number > y->number) - (x->number < y->number);
}

int config_faults_text(struct config_faults *f, char **ret, struct error *err)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    int r = strbuf_reserve(&b, 1);
    if (f->n)
        qsort(f->list, f->n, sizeof *f->list, by_place);
    for (size_t i = 0; i < f->n && r == 0; i++)
        r = strbuf_addf(&b, "%s\n", f->list[i].text);
    if (r < 0)
        return ERR_NOMEM(err);
    *ret = TAKE_PTR(b.s);
    return 0;
}

void config_faults_done(struct config_faults *f)
{
    for (size_t i = 0; i < f->n; i++) {
        mem_free(f->list[i].text);
        mem_free(f->list[i].place.file);
    }
    mem_free(f->list);
    *f = (struct config_faults){0};
}
