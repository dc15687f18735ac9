/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-d: reads options, opens the socket, and runs the loop until it is told to stop. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mapguard.h"
#include "daemon/config.h"
#include "daemon/journal.h"
#include "daemon/listen.h"
#include "daemon/metrics-http.h"
#include "daemon/sdglue.h"
#include "daemon/server.h"

#include <config.h>

/* Exit codes: the unit restarts on all but EXIT_CONFIG (RestartPreventExitStatus). */
enum {
    EXIT_RUNTIME = 1,
    EXIT_DEVICE = 75, /* EX_TEMPFAIL: a device was lost, which another process may find again */
    EXIT_CONFIG = 78
};

struct daemon {
    struct server server;
    struct listener listener;
    int argc;
    char **argv;
    int signal_fd;
    struct loop_source *signal_source;
    unsigned stops; /* SIGTERM and SIGINT so far */
    struct sdglue *systemd;
    struct metrics_http *metrics;
};

static int read_again(struct daemon *d, struct error *err)
{
    struct config *c = NULL;
    _cleanup_free_ char *note = NULL;
    int r = config_reload(d->server.config, d->argc, d->argv, &c, &note, err);
    if (r == 0) {
        r = server_apply(&d->server, c, err);
        if (r < 0)
            config_free(c);
    }
    if (r == 0 && note)
        log_write(LOG_LEVEL_WARNING, "config", NULL, "needs a restart: %s", note);
    return r;
}

static int reload(void *arg, struct error *err)
{
    struct daemon *d = arg;
    struct error own = {0};
    struct error *e = err ? err : &own;

    sdglue_reloading(d->systemd);
    int r = read_again(d, e);
    if (r < 0)
        log_write(LOG_LEVEL_ERR, "config", NULL, "reload refused, nothing changed: %s", e->msg);
    else
        log_write(LOG_LEVEL_INFO, "config", NULL, "configuration reloaded");
    log_set_level((enum log_level)d->server.config->log_level);
    sdglue_reloaded(d->systemd);
    return r;
}

static void on_signal(void *arg, unsigned events)
{
    struct daemon *d = arg;
    struct signalfd_siginfo i;
    (void)events;
    while (read(d->signal_fd, &i, sizeof i) == (ssize_t)sizeof i) {
        if (i.ssi_signo == SIGHUP) {
            reload(d, NULL);
            continue;
        }
        sdglue_stopping(d->systemd);
        if (d->stops++ == 0)
            server_drain(&d->server, true);
        else
            server_stop_now(&d->server);
    }
}

static int watch_signals(struct daemon *d, struct error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ,
           SIG_IGN); /* a limit on file sizes holds for shared memory too: EFBIG, not the end */
    d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (d->signal_fd < 0)
        return ERR(err, IO, "signalfd: %s", strerror(errno));
    return loop_add(d->server.loop, d->signal_fd, LOOP_READ, on_signal, d, &d->signal_source, err);
}

/* A model that was to be loaded at start and cannot be: said once, and not tried again. */
static int check_start(const struct server *s, bool *ret_settled, struct error *err)
{
    *ret_settled = true;
    for (const struct model *m = s->models; m; m = m->next) {
        if (!m->config.preload)
            continue;
        if (m->state == MODEL_LOADING)
            *ret_settled = false;
        if (m->state == MODEL_FAILED) {
            *err = m->error;
            return error_prefix(err, err->code, "model %s", m->name);
        }
    }
    return 0;
}

static int serve(struct daemon *d, bool *ret_started, struct error *err)
{
    struct server *s = &d->server;
    bool settled = false;
    int r = 0;
    while (r == 0 && !(s->stopping && server_idle(s))) {
        if (!*ret_started && !s->stopping) {
            r = check_start(s, &settled, err);
            if (r < 0)
                break;
            if (settled) {
                *ret_started = true;
                sdglue_ready(d->systemd);
            }
        }
        sdglue_status(d->systemd);
        r = loop_once(s->loop, err);
        if (s->fatal.code)
            sdglue_failed(d->systemd, EIO);
    }
    if (r == 0 && s->fatal.code) {
        *err = s->fatal;
        r = s->fatal.code;
    }
    return r;
}

static int run(struct daemon *d, struct config *c, bool *ret_started, struct error *err)
{
    struct server *s = &d->server;
    int fd = -1;
    int r = server_init(s, c, err);
    if (r == 0) {
        s->reload = reload;
        s->reload_arg = d;
        r = watch_signals(d, err);
    }
    if (r == 0)
        r = listener_open(&d->listener, c, &fd, err);
    if (r == 0)
        r = server_listen(s, fd, err);
    if (r == 0)
        r = metrics_http_new(s, d->listener.path, &d->metrics, err);
    if (r == 0)
        r = sdglue_new(s, &d->systemd, err);
    if (r == 0) {
        log_write(LOG_LEVEL_INFO, "daemon", NULL, "dedit-d " PACKAGE_VERSION " listens on %s (%s)",
                  d->listener.path, loop_backend(s->loop));
        r = serve(d, ret_started, err);
    }
    d->systemd = sdglue_free(d->systemd);
    d->metrics = metrics_http_free(d->metrics);
    listener_close(&d->listener);
    if ((r == 0 || r == DEDIT_E_DEVICE_LOST) && server_loading(s)) {
        /* A load cannot be stopped and may take minutes; nobody waits for it any more. */
        log_write(LOG_LEVEL_INFO, "daemon", NULL, "stopped while a model was being loaded");
        return r; /* with the threads as they are */
    }
    loop_remove(d->signal_source);
    server_done(s);
    fd_close(d->signal_fd);
    return r;
}

/* All that is wrong, a line each; true: nothing is. */
static bool say_faults(int argc, char **argv, const struct error *first)
{
    _cleanup_free_ char *text = NULL;
    size_t n = 0;
    struct error err = {0};
    int r = config_check(argc, argv, &text, &n, &err);
    if (r < 0 || (n == 0 && first->code)) /* which is gone meanwhile */
        fprintf(stderr, "dedit-d: %s\n", first->code ? first->msg : err.msg);
    for (const char *s = text; r == 0 && *s; s = strchr(s, '\n') + 1)
        fprintf(stderr, "dedit-d: %.*s\n", (int)strcspn(s, "\n"), s);
    return r == 0 && n == 0 && !first->code;
}

int main(int argc, char **argv)
{
    static struct daemon d = {.signal_fd = -1, .listener = LISTENER_NONE};
    struct error err = {0};
    struct config *c = NULL;
    enum config_action action = CONFIG_RUN;

    d.argc = argc;
    d.argv = argv;
    if (config_load(argc, argv, &c, &action, &err) < 0) {
        say_faults(argc, argv, &err);
        return EXIT_CONFIG;
    }
    switch (action) {
    case CONFIG_HELP:
        fputs(config_help(), stdout);
        config_free(c);
        return 0;
    case CONFIG_VERSION:
        puts(PACKAGE_STRING);
        config_free(c);
        return 0;
    case CONFIG_CHECK:
        config_free(c);
        return say_faults(argc, argv, &err) ? 0 : EXIT_CONFIG;
    case CONFIG_PRINT: {
        int e = config_print(c, STDOUT_FILENO);
        config_free(c);
        return e < 0 ? EXIT_RUNTIME : 0;
    }
    case CONFIG_RUN:
        break;
    }
    journal_init();
    if (map_guard_install(&err) < 0) {
        fprintf(stderr, "dedit-d: %s\n", err.msg);
        config_free(c);
        return EXIT_RUNTIME;
    }
    log_set_level((enum log_level)c->log_level);
    bool started = false;
    int r = run(&d, c, &started, &err);
    if (r < 0) {
        if (!d.server.fatal.code) /* which has been logged */
            log_write(LOG_LEVEL_ERR, "daemon", NULL, "%s", err.msg);
        return r == DEDIT_E_DEVICE_LOST ? EXIT_DEVICE : started ? EXIT_RUNTIME : EXIT_CONFIG;
    }
    return 0;
}
