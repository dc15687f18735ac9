/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: options, complaints, signals. */
#include "train/cli.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

volatile sig_atomic_t train_stop;

static void on_signal(int sig)
{
    (void)sig;
    train_stop = 1;
}

void train_catch_signals(void)
{
    /* Once: the next one has its usual effect. */
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    (void)sigaction(SIGINT, &sa, NULL);
    (void)sigaction(SIGTERM, &sa, NULL);
}

static int help(const struct train_command *c)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    if (options_help(c->groups, &text) < 0)
        return train_fail(c, TRAIN_FAILED, "out of memory");
    printf("usage: dedit-train %s [OPTION...]%s%s\n%s\n%s", c->name, *c->args ? " " : "", c->args,
           c->summary, text.s);
    return TRAIN_OK;
}

int train_options(const struct train_command *c, int argc, char **argv, void *ctx, int *ret_first,
                  int *ret_status)
{
    struct error err = {0};
    int r = options_read(c->groups, argc, argv, c->set, ctx, ret_first, &err);
    if (r == 0)
        return 0;
    if (r > 0)
        *ret_status = help(c);
    else
        *ret_status = train_fail(c, TRAIN_USAGE, "%s; see dedit-train %s --help", err.msg, c->name);
    return -1;
}

int train_fail(const struct train_command *c, int status, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "dedit-train %s: ", c->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return status;
}

int train_error(const struct train_command *c, const struct error *err)
{
    return train_fail(c, TRAIN_FAILED, "%s", err->msg);
}

int train_model_path(const struct engine_options *e, char *buf, size_t size, struct error *err)
{
    if (!e->model)
        return engine_default_model(buf, size, err);
    int n = snprintf(buf, size, "%s", e->model);
    return n < 0 || (size_t)n >= size ? ERR(err, LIMIT, "--model: the path is too long") : 0;
}
