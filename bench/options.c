/* SPDX-License-Identifier: Apache-2.0 */
/* How the commands read their options and tell what is wrong. */
#include <stdarg.h>
#include <stdio.h>

#include "bench/bench.h"

static int help(const struct bench_command *c)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    if (options_help(c->groups, &text) < 0)
        return bench_fail(c, BENCH_FAILED, "out of memory");
    printf("usage: dedit-bench %s [OPTION...]%s%s\n%s\n%s", c->name, *c->args ? " " : "", c->args,
           c->summary, text.s);
    return BENCH_OK;
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
    struct error err = {0};
    int r = options_read(c->groups, argc, argv, c->set, ctx, ret_first, &err);
    if (r == 0)
        return 0;
    if (r > 0)
        *ret_status = help(c);
    else
        *ret_status = bench_fail(c, BENCH_USAGE, "%s; see dedit-bench %s --help", err.msg, c->name);
    return -1;
}
