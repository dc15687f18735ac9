/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far drafts came, beside the costs on disk: the next engine begins with what this one learnt.
 * Integers, as costs are: thousandths of observations, millionths of probabilities.
 */
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "engine/json.h"
#include "engine/survival.h"

#define PER_OBSERVATION 1000.0
#define PER_ONE         1e6
#define MOST_SEEN       1e6 /* observations of one kind; fading keeps them below 500 */

enum {
    N_BINS = SURVIVAL_BINS,
    N_CELLS = SURVIVAL_PASSES * SURVIVAL_DEPTHS * SURVIVAL_BINS,
    N_ODDS = N_BINS + N_CELLS + SURVIVAL_MATCHES,
    N_CURVES = SURVIVAL_WINDOWS * DRAFT_MAX_PASSES,
};

/* Odds and curves by one number, in the order of the file. */
static struct odds *odds_at(struct survival *s, size_t i)
{
    if (i < N_BINS)
        return &s->bin[i];
    i -= N_BINS;
    return i < N_CELLS
               ? &s->cell[i / N_BINS / SURVIVAL_DEPTHS][i / N_BINS % SURVIVAL_DEPTHS][i % N_BINS]
               : &s->match[i - N_CELLS];
}

static struct curve *curve_at(struct survival *s, size_t i)
{
    return &s->curve[i / DRAFT_MAX_PASSES][i % DRAFT_MAX_PASSES];
}

/* ---- writing --------------------------------------------------------------------------------------- */

static int add_number(struct strbuf *b, double x)
{
    const char end = b->len ? b->s[b->len - 1] : '[';
    return strbuf_addf(b, "%s%llu", end == '[' ? "" : ", ", (unsigned long long)(x + 0.5));
}

int survival_write(const struct survival *of, struct strbuf *b)
{
    struct survival s = *of;
    int r = strbuf_addf(b, "{\"of\": \"%016llx\",\n  \"odds\": [", (unsigned long long)s.of);
    for (size_t i = 0; i < N_ODDS && r >= 0; i++) {
        const struct odds *o = odds_at(&s, i);
        r = add_number(b, o->hits * PER_OBSERVATION);
        if (r >= 0)
            r = add_number(b, o->n * PER_OBSERVATION);
    }
    if (r >= 0)
        r = strbuf_adds(b, "],\n  \"curves\": [");
    for (size_t i = 0; i < N_CURVES && r >= 0; i++) {
        const struct curve *c = curve_at(&s, i);
        r = add_number(b, c->n);
        for (size_t k = 0; k < SURVIVAL_NODES && r >= 0; k++)
            r = add_number(b, (double)c->reach[k] * PER_ONE);
    }
    return r < 0 ? r : strbuf_adds(b, "]}");
}

/* ---- reading --------------------------------------------------------------------------------------- */

static int list_of(const struct js_obj *o, const char *key, size_t n, json_t **ret,
                   struct error *err)
{
    int r = js_array(o, key, ret, err);
    if (r > 0 || (r == 0 && json_array_size(*ret) != n))
        return ERR(err, FORMAT, "%s: \"%s%s\" has not the %zu numbers of this version", o->file,
                   o->path, key, n);
    return r;
}

/* Entry i of a list as a number from 0 to most, in units of 1 / per. */
static int number_at(const struct js_obj *o, const char *key, const json_t *list, size_t i,
                     double per, double most, double *ret, struct error *err)
{
    const json_t *v = json_array_get(list, i);
    const double x = json_is_integer(v) ? (double)json_integer_value(v) / per : -1;
    if (!(x >= 0 && x <= most))
        return ERR(err, FORMAT, "%s: \"%s%s\": entry %zu is not an integer from 0 to %.0f", o->file,
                   o->path, key, i, most * per);
    *ret = x;
    return 0;
}

static int read_curve(const struct js_obj *o, const json_t *list, size_t at, struct curve *c,
                      struct error *err)
{
    double x, before = 1;
    int r = number_at(o, "curves", list, at, 1, UINT32_MAX, &x, err);
    if (r < 0)
        return r;
    c->n = (uint32_t)x;
    for (size_t k = 0; k < SURVIVAL_NODES; k++, before = x) {
        r = number_at(o, "curves", list, at + 1 + k, PER_ONE, before, &x, err);
        if (r < 0)
            return r;
        c->reach[k] = (float)x;
    }
    return 0;
}

int survival_read(const struct js_obj *o, struct survival *ret, struct error *err)
{
    struct survival s;
    json_t *odds = NULL, *curves = NULL;
    const char *of = "";
    char want[17];
    memset(&s, 0, sizeof(s));
    s.of = ret->of;
    (void)snprintf(want, sizeof(want), "%016llx", (unsigned long long)s.of);
    int r = js_str(o, "of", &of, err);
    if (r < 0)
        return r;
    r = list_of(o, "odds", 2 * (size_t)N_ODDS, &odds, err);
    if (r == 0)
        r = list_of(o, "curves", N_CURVES * (1 + (size_t)SURVIVAL_NODES), &curves, err);
    for (size_t i = 0; i < N_ODDS && r == 0; i++) {
        struct odds *x = odds_at(&s, i);
        r = number_at(o, "odds", odds, 2 * i + 1, PER_OBSERVATION, MOST_SEEN, &x->n, err);
        if (r == 0)
            r = number_at(o, "odds", odds, 2 * i, PER_OBSERVATION, x->n, &x->hits, err);
    }
    for (size_t i = 0; i < N_CURVES && r == 0; i++)
        r = read_curve(o, curves, i * (1 + (size_t)SURVIVAL_NODES), curve_at(&s, i), err);
    if (r == 0 && !strcmp(of, want))
        *ret = s;
    return r;
}
