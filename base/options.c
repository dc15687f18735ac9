/* SPDX-License-Identifier: Apache-2.0 */
/* Option tables: getopt_long and --help from one source; values with clear errors. */
#include "base/options.h"

#include <getopt.h>
#include <string.h>

#include "base/parse.h"

enum { OPT_HELP = 256 };
#define LETTERS ":h"

/* ---- names --------------------------------------------------------------------------------------- */

unsigned name_distance(const char *a, const char *b)
{
    unsigned row[40];
    size_t n = strlen(b);
    if (n >= sizeof(row) / sizeof(row[0]))
        return 100;
    for (size_t k = 0; k <= n; k++)
        row[k] = (unsigned)k;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t k = 0; k < n; k++) {
            unsigned best = diagonal + (a[i] != b[k]);
            diagonal = row[k + 1];
            if (row[k + 1] + 1 < best)
                best = row[k + 1] + 1;
            if (row[k] + 1 < best)
                best = row[k] + 1;
            row[k + 1] = best;
        }
    }
    return row[n];
}

static const struct option_def *find(const struct option_def *const *groups, int id)
{
    for (size_t g = 0; groups[g]; g++)
        for (const struct option_def *o = groups[g]; o->id; o++)
            if (o->id == id)
                return o;
    return NULL;
}

/* The option meant by "--word" or "--word=value", or NULL. */
static const char *nearest(const struct option_def *const *groups, const char *given)
{
    char word[40];
    const char *best = NULL;
    unsigned least = NAME_NEAR + 1;
    if (strncmp(given, "--", 2) != 0)
        return NULL;
    size_t n = strcspn(given + 2, "=");
    if (n >= sizeof(word))
        return NULL;
    memcpy(word, given + 2, n);
    word[n] = '\0';
    for (size_t g = 0; groups[g]; g++)
        for (const struct option_def *o = groups[g]; o->id; o++) {
            unsigned d = name_distance(word, o->name);
            if (d < least) {
                least = d;
                best = o->name;
            }
        }
    return best;
}

/* ---- reading ------------------------------------------------------------------------------------- */

const char *option_refused(char **argv, const char *letters, char buf[4])
{
    /* 0: a long one that is unknown; a known letter: the long one of that number, with a value that it has not. */
    if (optopt == 0 || optopt > 255 || (optopt != ':' && strchr(letters, optopt)))
        return argv[optind - 1];
    if (optopt > ' ' && optopt < 0x7f) {
        memcpy(buf, "-x", 3);
        buf[1] = (char)optopt;
        return buf;
    }
    /* Of several bytes, of which getopt_long() knows nothing: the word, at which it still is or is not any more. */
    const char *word = argv[optind];
    return word && word[0] == '-' && strchr(word, optopt) ? word : argv[optind - 1];
}

static int refuse(const struct option_def *const *groups, int id, char **argv, struct error *err)
{
    char buf[4];
    if (id == ':')
        return ERR(err, INVALID, "option %s needs a value", argv[optind - 1]);
    if (optopt >= 256 && find(groups, optopt))
        return ERR(err, INVALID, "option --%s takes no value", find(groups, optopt)->name);
    const char *given = option_refused(argv, LETTERS, buf);
    const char *near = nearest(groups, given);
    if (near)
        return ERR(err, INVALID, "option %s is unknown or ambiguous; did you mean --%s?", given,
                   near);
    return ERR(err, INVALID, "option %s is unknown or ambiguous", given);
}

int options_read(const struct option_def *const *groups, int argc, char **argv, option_set_fn set,
                 void *ctx, int *ret_first, struct error *err)
{
    struct option list[OPTIONS_MAX + 2] = {{"help", no_argument, NULL, OPT_HELP}};
    size_t n = 1;
    for (size_t g = 0; groups[g]; g++)
        for (const struct option_def *o = groups[g]; o->id; o++) {
            if (n > OPTIONS_MAX)
                return ERR(err, INTERNAL, "more than %d options", OPTIONS_MAX);
            list[n++] =
                (struct option){o->name, o->arg ? required_argument : no_argument, NULL, o->id};
        }
    opterr = 0;
    optind = 1;
    for (;;) {
        /* Arguments may stand before options; getopt_long moves them to the end. */
        int id = getopt_long(argc, argv, LETTERS, list, NULL);
        if (id == -1)
            break;
        if (id == OPT_HELP || id == 'h')
            return 1;
        const struct option_def *o = find(groups, id);
        if (!o)
            return refuse(groups, id, argv, err);
        int r = set(ctx, id, optarg, err);
        if (r < 0)
            return error_prefix(err, r, "--%s", o->name);
    }
    *ret_first = optind;
    return 0;
}

/* ---- help ---------------------------------------------------------------------------------------- */

/* Help starts in column 30; its own lines are indented alike. */
static int help_line(const struct option_def *o, struct strbuf *out)
{
    const size_t was = out->len;
    const char *text = o->help;
    int r = strbuf_addf(out, "  --%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    size_t width = out->len - was;
    if (r == 0 && width > 28) {
        r = strbuf_addc(out, '\n');
        width = 0;
    }
    while (r == 0 && *text) {
        size_t n = strcspn(text, "\n");
        r = strbuf_addf(out, "%*s%.*s\n", (int)(30 - width), "", (int)n, text);
        text += n + (text[n] == '\n');
        width = 0;
    }
    return r;
}

int options_help(const struct option_def *const *groups, struct strbuf *out)
{
    int r = 0;
    for (size_t g = 0; groups[g] && r == 0; g++) {
        r = strbuf_addc(out, '\n');
        for (const struct option_def *o = groups[g]; o->id && r == 0; o++)
            r = help_line(o, out);
    }
    return r < 0 ? r : strbuf_addf(out, "\n  --help%*sthis text\n", 22, "");
}

/* ---- values -------------------------------------------------------------------------------------- */

int option_u32(const char *arg, uint32_t min, uint32_t max, uint32_t *ret, struct error *err)
{
    uint32_t v;
    if (parse_u32(arg, max, &v) < 0 || v < min)
        return ERR(err, INVALID, "\"%s\" is not an integer from %u to %u", arg, min, max);
    *ret = v;
    return 0;
}

int option_u64(const char *arg, uint64_t *ret, struct error *err)
{
    if (parse_u64(arg, ret) < 0)
        return ERR(err, INVALID, "\"%s\" is not an integer from 0 to 18446744073709551615", arg);
    return 0;
}

int option_i32(const char *arg, int32_t min, int32_t max, int32_t *ret, struct error *err)
{
    int64_t v;
    if (parse_i64(arg, &v) < 0 || v < min || v > max)
        return ERR(err, INVALID, "\"%s\" is not an integer from %d to %d", arg, min, max);
    *ret = (int32_t)v;
    return 0;
}

int option_float(const char *arg, float *ret, struct error *err)
{
    double v;
    if (parse_double(arg, &v) < 0 || v > 3.4e38 || v < -3.4e38)
        return ERR(err, INVALID, "\"%s\" is not a number", arg);
    *ret = (float)v;
    return 0;
}

int option_float_in(const char *arg, double min, double max, float *ret, struct error *err)
{
    double v;
    if (parse_double(arg, &v) < 0 || !(v >= min && v <= max))
        return ERR(err, INVALID, "\"%s\" is not a number from %g to %g", arg, min, max);
    *ret = (float)v;
    return 0;
}

int option_size(const char *arg, uint64_t *ret, struct error *err)
{
    if (parse_size(arg, ret) < 0)
        return ERR(err, INVALID, "\"%s\" is not a number of bytes (K, M, G, T may follow)", arg);
    return 0;
}

int option_u32_list(const char *arg, uint32_t min, uint32_t *ret, size_t max, size_t *ret_n,
                    struct error *err)
{
    size_t n = 0;
    for (const char *s = arg;; s++) {
        char word[16];
        size_t len = strcspn(s, ",");
        if (n == max || len >= sizeof(word))
            return ERR(err, INVALID, "\"%s\" is not a list of at most %zu numbers", arg, max);
        memcpy(word, s, len);
        word[len] = '\0';
        int r = option_u32(word, min, 1u << 20, &ret[n++], err);
        if (r < 0)
            return r;
        s += len;
        if (!*s)
            break;
    }
    *ret_n = n;
    return 0;
}
