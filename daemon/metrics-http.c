/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/metrics-http.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "daemon/listen.h"
#include "daemon/server.h"
#include "proto/packet.h"

#define MAX_FETCHES 16u
#define MAX_REQUEST 4096u
/* A fetch that has not ended by then is over. */
#define FETCH_NS 5000000000u

/* One connection: reads a request's head, writes one answer, closes. */
struct fetch {
    struct metrics_http *http; /* NULL: the place is free */
    int fd;
    struct loop_source *source;
    struct loop_timer *timer;
    char head[MAX_REQUEST];
    size_t n;
    struct strbuf answer;
    size_t sent;
};

struct metrics_http {
    struct server *server;
    char path[WIRE_MAX_PATH + 1]; /* "": no socket */
    bool own;                     /* the file of that name */
    struct loop_source *listener;
    int listen_fd;
    struct loop_timer *timer; /* of the text file */
    struct fetch fetches[MAX_FETCHES];
};

static void end(struct fetch *f)
{
    loop_remove(f->source);
    loop_timer_free(f->timer);
    fd_close(f->fd);
    strbuf_done(&f->answer);
    *f = (struct fetch){.fd = -1};
}

static void on_timeout(void *arg)
{
    end(arg);
}

static int answer(struct fetch *f, const char *status, const char *type, const char *body,
                  size_t len)
{
    int r = strbuf_addf(&f->answer,
                        "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                        "Connection: close\r\n\r\n",
                        status, type, len);
    return r < 0 ? r : strbuf_add(&f->answer, body, len);
}

static int refuse(struct fetch *f, const char *status)
{
    return answer(f, status, "text/plain; charset=utf-8", status, strlen(status));
}

/* The request line: only GET of / and /metrics, in HTTP/1.x. */
static int respond(struct fetch *f)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    char *save = NULL;
    char *line = strtok_r(f->head, "\r\n", &save);
    char *method = line ? strtok_r(line, " ", &save) : NULL;
    const char *target = method ? strtok_r(NULL, " ", &save) : NULL;
    const char *version = target ? strtok_r(NULL, " ", &save) : NULL;
    if (!version || strncmp(version, "HTTP/1.", 7) != 0 || strtok_r(NULL, " ", &save))
        return refuse(f, "400 Bad Request");
    if (strcmp(method, "GET") != 0)
        return refuse(f, "405 Method Not Allowed");
    if (strcmp(target, "/metrics") != 0 && strcmp(target, "/") != 0)
        return refuse(f, "404 Not Found");
    if (metrics_render(f->http->server->metrics, f->http->server, &text) < 0)
        return refuse(f, "503 Service Unavailable");
    return answer(f, "200 OK", "text/plain; version=0.0.4; charset=utf-8", text.s, text.len);
}

static void write_some(struct fetch *f)
{
    struct error err = {0};
    while (f->sent < f->answer.len) {
        ssize_t n = send(f->fd, f->answer.s + f->sent, f->answer.len - f->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (loop_modify(f->source, LOOP_WRITE, &err) < 0)
                end(f);
            return;
        }
        if (n < 0)
            break;
        f->sent += (size_t)n;
    }
    end(f);
}

static void on_ready(void *arg, unsigned events)
{
    struct fetch *f = arg;
    if (f->answer.len) {
        if (events & LOOP_HANGUP)
            end(f);
        else
            write_some(f);
        return;
    }
    ssize_t n = recv(f->fd, f->head + f->n, sizeof f->head - 1 - f->n, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end(f);
        return;
    }
    f->n += (size_t)n;
    f->head[f->n] = 0;
    int r = 0;
    if (strstr(f->head, "\r\n\r\n") || strstr(f->head, "\n\n"))
        r = respond(f);
    else if (f->n == sizeof f->head - 1)
        r = refuse(f, "431 Request Header Fields Too Large");
    else
        return;
    if (r < 0)
        end(f);
    else
        write_some(f);
}

static void on_connection(void *arg, int fd)
{
    struct metrics_http *h = arg;
    struct error err = {0};
    struct fetch *f = h->fetches;
    while (f < h->fetches + MAX_FETCHES && f->http)
        f++;
    if (f == h->fetches + MAX_FETCHES) {
        fd_close(fd);
        return;
    }
    f->http = h;
    f->fd = fd;
    if (loop_timer_new(h->server->loop, on_timeout, f, &f->timer, &err) < 0 ||
        loop_add(h->server->loop, fd, LOOP_READ, on_ready, f, &f->source, &err) < 0) {
        end(f);
        return;
    }
    loop_timer_set(f->timer, clock_now_ns() + FETCH_NS);
}

/* ---- the text file ---------------------------------------------------------------------------------------- */

static void on_textfile(void *arg)
{
    struct metrics_http *h = arg;
    const struct config *c = h->server->config;
    _cleanup_strbuf_ struct strbuf text = {0};
    struct error err = {0};
    if (c->metrics_textfile && (metrics_render(h->server->metrics, h->server, &text) < 0 ||
                                file_write_atomic(c->metrics_textfile, text.s, text.len, &err) < 0))
        log_write(LOG_LEVEL_WARNING, "metrics", NULL, "metrics_textfile: %s", err.msg);
    loop_timer_set(h->timer, c->metrics_textfile ? clock_now_ns() + c->metrics_interval_ns : 0);
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

/* metrics.sock beside dedit.sock, x-metrics.sock beside x.sock, x-metrics beside x: two sockets of one folder never
 * have one name for their metrics. */
static int path_beside(const char *daemon_socket, char *buf, size_t size)
{
    static const char end[] = ".sock";
    const char *slash = strrchr(daemon_socket, '/'), *name = slash ? slash + 1 : daemon_socket;
    const int dir = slash ? (int)(slash - daemon_socket) : 1;
    size_t n = strlen(name);
    const bool ends = n > strlen(end) && strcmp(name + n - strlen(end), end) == 0;
    const bool standard = strcmp(name, "dedit.sock") == 0;
    n = standard ? 0 : ends ? n - strlen(end) : n;
    return snprintf(buf, size, "%.*s/%.*s%smetrics%s", dir, slash ? daemon_socket : ".", (int)n,
                    name, standard ? "" : "-", ends ? end : "");
}

/* Which key and flag, which path, and what is wrong with it. */
static int refuse_path(const char *path, int code, const char *rule, struct error *err)
{
    return error_set(err, code, __FILE__, __LINE__,
                     "metrics_socket (--metrics-socket): %s: %s; name another path, or none", path,
                     rule);
}

int metrics_http_path(const struct config *c, const char *daemon_socket, char *buf, size_t size)
{
    const char *own = c->metrics_socket;
    if (own && strcmp(own, "none") == 0)
        return 0;
    return own ? snprintf(buf, size, "%s", own) : path_beside(daemon_socket, buf, size);
}

static int choose_path(struct metrics_http *h, const char *daemon_socket, struct error *err)
{
    const char *own = h->server->config->metrics_socket;
    char path[4096] = "", rule[64];
    int n = metrics_http_path(h->server->config, daemon_socket, path, sizeof path);
    if (n >= 0 && (size_t)n < sizeof h->path) {
        memcpy(h->path, path, (size_t)n + 1);
        return 0;
    }
    snprintf(rule, sizeof rule, "%d bytes, the limit is %u", n, WIRE_MAX_PATH);
    struct error why = {0};
    refuse_path(path, DEDIT_E_LIMIT, rule, &why);
    if (own) {
        *err = why;
        return why.code;
    }
    log_write(LOG_LEVEL_WARNING, "metrics", NULL, "%s; there is no such socket", why.msg);
    return 0;
}

/* A socket that nobody serves is replaced. */
static int clear_path(const struct metrics_http *h, const struct sockaddr_un *a, struct error *err)
{
    struct stat st;
    if (lstat(h->path, &st) < 0)
        return errno == ENOENT ? 0 : refuse_path(h->path, DEDIT_E_IO, strerror(errno), err);
    if (!S_ISSOCK(st.st_mode))
        return refuse_path(h->path, DEDIT_E_BUSY, "exists and is no socket", err);
    if (listener_in_use(a, SOCK_STREAM))
        return refuse_path(h->path, DEDIT_E_BUSY, "another program listens there", err);
    return unlink(h->path) < 0 ? refuse_path(h->path, DEDIT_E_IO, strerror(errno), err) : 0;
}

static int bind_path(struct metrics_http *h, int fd, const struct sockaddr_un *a, struct error *err)
{
    int r = clear_path(h, a, err);
    if (r == 0 && bind(fd, (const struct sockaddr *)a, sizeof *a) < 0)
        r = refuse_path(h->path, DEDIT_E_IO, strerror(errno), err);
    h->own = r == 0;
    if (r == 0 && (chmod(h->path, h->server->config->socket_mode) < 0 || listen(fd, 16) < 0))
        r = refuse_path(h->path, DEDIT_E_IO, strerror(errno), err);
    return r;
}

static int open_socket(struct metrics_http *h, struct error *err)
{
    struct sockaddr_un a;
    int r = wire_address(h->path, &a, err);
    if (r < 0)
        return r;
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return ERR(err, IO, "socket: %s", strerror(errno));
    r = bind_path(h, fd, &a, err);
    if (r < 0)
        return r;
    h->listen_fd = TAKE_FD(fd);
    return loop_add_accept(h->server->loop, h->listen_fd, on_connection, h, &h->listener, err);
}

int metrics_http_new(struct server *s, const char *daemon_socket, struct metrics_http **ret,
                     struct error *err)
{
    struct metrics_http *h = mem_zalloc(sizeof *h);
    if (!h)
        return ERR_NOMEM(err);
    h->server = s;
    h->listen_fd = -1;
    for (size_t i = 0; i < MAX_FETCHES; i++)
        h->fetches[i].fd = -1;
    int r = choose_path(h, daemon_socket, err);
    if (r == 0 && h->path[0])
        r = open_socket(h, err);
    if (r == 0)
        r = loop_timer_new(s->loop, on_textfile, h, &h->timer, err);
    if (r < 0) {
        metrics_http_free(h);
        return r;
    }
    on_textfile(h);
    *ret = h;
    return 0;
}

struct metrics_http *metrics_http_free(struct metrics_http *h)
{
    if (!h)
        return NULL;
    for (size_t i = 0; i < MAX_FETCHES; i++)
        if (h->fetches[i].http)
            end(&h->fetches[i]);
    loop_timer_free(h->timer);
    loop_remove(h->listener);
    fd_close(h->listen_fd);
    if (h->own)
        unlink(h->path);
    mem_free(h);
    return NULL;
}
