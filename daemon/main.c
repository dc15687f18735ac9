/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-d: reads options, opens the socket, and runs the loop until it is told to stop. */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/config.h"
#include "daemon/listen.h"
#include "daemon/server.h"

#include <config.h>

/* Exit codes: the unit does not restart on EXIT_CONFIG (RestartPreventExitStatus). */
enum { EXIT_RUNTIME = 1, EXIT_CONFIG = 78 };

struct daemon {
    struct server server;
    struct listener listener;
    int argc;
    char **argv;
    int signal_fd;
    struct loop_source *signal_source;
    unsigned stops; /* SIGTERM and SIGINT so far */
};

static int reload(void *arg, struct error *err)
{
    struct daemon *d = arg;
    struct config *c = NULL;
    _cleanup_free_ char *note = NULL;

    int r = config_reload(d->server.config, d->argc, d->argv, &c, &note, err);
    if (r == 0) {
        r = server_apply(&d->server, c, err);
        if (r < 0)
            config_free(c);
    }
    if (r < 0) {
        log_write(LOG_LEVEL_ERR, "config", NULL, "reload refused, nothing changed: %s",
                  err ? err->msg : "");
        return r;
    }
    if (note)
        log_write(LOG_LEVEL_WARNING, "config", NULL, "needs a restart: %s", note);
    log_write(LOG_LEVEL_INFO, "config", NULL, "configuration reloaded");
    return 0;
}

static void on_signal(void *arg, unsigned events)
{
    struct daemon *d = arg;
    struct signalfd_siginfo i;
    struct error err = {0};
    (void)events;
    while (read(d->signal_fd, &i, sizeof i) == (ssize_t)sizeof i) {
        if (i.ssi_signo == SIGHUP) {
            reload(d, &err);
            continue;
        }
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
    d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (d->signal_fd < 0)
        return ERR(err, IO, "signalfd: %s", strerror(errno));
    return loop_add(d->server.loop, d->signal_fd, LOOP_READ, on_signal, d, &d->signal_source, err);
}

static int run(struct daemon *d, struct config *c, struct error *err)
{
    struct server *s = &d->server;
    int fd = -1;
    int r = server_init(s, c, err);
    if (r == 0)
        r = watch_signals(d, err);
    if (r == 0)
        r = listener_open(&d->listener, c, &fd, err);
    if (r == 0)
        r = server_listen(s, fd, err);
    if (r == 0)
        log_write(LOG_LEVEL_INFO, "daemon", NULL, "dedit-d " PACKAGE_VERSION " listens on %s (%s)",
                  d->listener.path, loop_backend(s->loop));
    while (r == 0 && !(s->stopping && server_idle(s)))
        r = loop_once(s->loop, err);
    listener_close(&d->listener);
    loop_remove(d->signal_source);
    server_done(s);
    fd_close(d->signal_fd);
    return r;
}

int main(int argc, char **argv)
{
    static struct daemon d = {.signal_fd = -1};
    struct error err = {0};
    struct config *c = NULL;
    enum config_action action = CONFIG_RUN;

    d.argc = argc;
    d.argv = argv;
    if (config_load(argc, argv, &c, &action, &err) < 0) {
        fprintf(stderr, "dedit-d: %s\n", err.msg);
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
        return 0;
    case CONFIG_PRINT: {
        int e = config_print(c, STDOUT_FILENO);
        config_free(c);
        return e < 0 ? EXIT_RUNTIME : 0;
    }
    case CONFIG_RUN:
        break;
    }
    log_set_level((enum log_level)c->log_level);
    int r = run(&d, c, &err);
    if (r < 0) {
        log_write(LOG_LEVEL_ERR, "daemon", NULL, "%s", err.msg);
        return EXIT_RUNTIME;
    }
    return 0;
}
