/* SPDX-License-Identifier: Apache-2.0 */
/* Option tables: getopt_long and --help from one source; values with clear errors. */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"
#include "bench/bench.h"

#define MAX_OPTIONS 64
#define OPT_HELP    256

static void help(const struct bench_command *c)
{
    printf("usage: dedit-bench %s [OPTION...]%s%s\n%s\n", c->name, *c->args ? " " : "", c->args,
           c->summary);
    for (size_t g = 0; c->groups[g]; g++) {
        putchar('\n');
        for (const struct bench_opt *o = c->groups[g]; o->id; o++) {
            int width = printf("  --%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
            /* Help starts in column 30; its own lines are indented alike. */
            const char *text = o->help;
            if (width > 28) {
                putchar('\n');
                width = 0;
            }
            while (*text) {
                size_t n = strcspn(text, "\n");
                printf("%*s%.*s\n", 30 - width, "", (int)n, text);
                text += n + (text[n] == '\n');
                width = 0;
            }
        }
    }
    printf("\n  --help%*sthis text\n", 22, "");
}

static const struct bench_opt *find(const struct bench_command *c, int id)
{
    for (size_t g = 0; c->groups[g]; g++)
        for (const struct bench_opt *o = c->groups[g]; o->id; o++)
            if (o->id == id)
                return o;
    return NULL;
}

int bench_fail(const struct bench_command *c, int status, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "dedit-bench %s: ", c->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return status;
}

int bench_options(const struct bench_command *c, int argc, char **argv, void *ctx, int *ret_first,
                  int *ret_status)
{
    struct option list[MAX_OPTIONS + 2] = {{"help", no_argument, NULL, OPT_HELP}};
    size_t n = 1;
    for (size_t g = 0; c->groups[g]; g++)
        for (const struct bench_opt *o = c->groups[g]; o->id && n <= MAX_OPTIONS; o++)
            list[n++] =
                (struct option){o->name, o->arg ? required_argument : no_argument, NULL, o->id};
    opterr = 0;
    optind = 1;
    for (;;) {
        /* Arguments may stand before options; getopt_long moves them to the end. */
        int id = getopt_long(argc, argv, ":h", list, NULL);
        if (id == -1)
            break;
        if (id == OPT_HELP || id == 'h') {
            help(c);
            *ret_status = BENCH_OK;
            return -1;
        }
        const struct bench_opt *o = find(c, id);
        if (!o) {
            const char *why = id == ':' ? "needs a value" : "is unknown or ambiguous";
            *ret_status = bench_fail(c, BENCH_USAGE, "option %s %s; see dedit-bench %s --help",
                                     argv[optind - 1], why, c->name);
            return -1;
        }
        struct error err = {0};
        if (c->set(ctx, id, optarg, &err) < 0) {
            *ret_status = bench_fail(c, BENCH_USAGE, "--%s: %s", o->name, err.msg);
            return -1;
        }
    }
    *ret_first = optind;
    return 0;
}

int bench_u32(const char *arg, uint32_t min, uint32_t max, uint32_t *ret, struct error *err)
{
    uint32_t v;
    if (parse_u32(arg, max, &v) < 0 || v < min)
        return ERR(err, INVALID, "\"%s\" is not an integer from %u to %u", arg, min, max);
    *ret = v;
    return 0;
}

int bench_u64(const char *arg, uint64_t *ret, struct error *err)
{
    if (parse_u64(arg, ret) < 0)
        return ERR(err, INVALID, "\"%s\" is not an integer from 0 to 18446744073709551615", arg);
    return 0;
}

int bench_i32(const char *arg, int32_t min, int32_t max, int32_t *ret, struct error *err)
{
    int64_t v;
    if (parse_i64(arg, &v) < 0 || v < min || v > max)
        return ERR(err, INVALID, "\"%s\" is not an integer from %d to %d", arg, min, max);
    *ret = (int32_t)v;
    return 0;
}

int bench_float(const char *arg, float *ret, struct error *err)
{
    double v;
    if (parse_double(arg, &v) < 0 || v > 3.4e38 || v < -3.4e38)
        return ERR(err, INVALID, "\"%s\" is not a number", arg);
    *ret = (float)v;
    return 0;
}

int bench_u32_list(const char *arg, uint32_t *ret, size_t max, size_t *ret_n, struct error *err)
{
    size_t n = 0;
    for (const char *s = arg;; s++) {
        char word[16];
        size_t len = strcspn(s, ",");
        if (n == max || len >= sizeof(word))
            return ERR(err, INVALID, "\"%s\" is not a list of at most %zu numbers", arg, max);
        memcpy(word, s, len);
        word[len] = '\0';
        int r = bench_u32(word, 1, 1u << 20, &ret[n++], err);
        if (r < 0)
            return r;
        s += len;
        if (!*s)
            break;
    }
    *ret_n = n;
    return 0;
}
