/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sink for all threads.  The mutex makes lines whole and lets log_set_sink promise that the old
 * sink is not running any more when it returns; a sink must not log.
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MSG_BYTES  1024
#define LINE_BYTES 2048

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static log_sink_fn sink;
static void *sink_arg;
/* Relaxed: a line more or less around a change of level does not matter. */
static _Atomic int max_level = LOG_LEVEL_INFO;

/* A line must stay one line: what a file or a peer put into it cannot start another. */
static void one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = ' ';
}

static void to_stderr(enum log_level level, const char *topic, const char *msg, const char *fields)
{
    char line[LINE_BYTES];
    int n = snprintf(line, sizeof(line) - 1, "<%d>%s: %s", (int)level, topic, msg);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof(line) - 1 ? (size_t)n : sizeof(line) - 2;
    for (const char *f = fields; f && *f; f += strlen(f) + 1) {
        n = snprintf(line + len, sizeof(line) - 1 - len, " %s", f);
        if (n < 0 || (size_t)n >= sizeof(line) - 1 - len) {
            line[len] = '\0'; /* a field that does not fit is left out whole */
            break;
        }
        len += (size_t)n;
    }
    one_line(line);
    line[len++] = '\n';
    for (size_t done = 0; done < len;) {
        ssize_t w = write(STDERR_FILENO, line + done, len - done);
        if (w < 0 && errno != EINTR)
            return; /* nowhere left to complain */
        if (w > 0)
            done += (size_t)w;
    }
}

void log_set_sink(log_sink_fn fn, void *arg)
{
    pthread_mutex_lock(&lock);
    sink = fn;
    sink_arg = arg;
    pthread_mutex_unlock(&lock);
}

void log_set_level(enum log_level max)
{
    atomic_store_explicit(&max_level, (int)max, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&max_level, memory_order_relaxed);
}

void log_write(enum log_level level, const char *topic, const char *fields, const char *fmt, ...)
{
    if (level > log_get_level())
        return;
    int saved = errno;
    char msg[MSG_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    one_line(msg);
    pthread_mutex_lock(&lock);
    if (sink)
        sink(sink_arg, level, topic, msg, fields);
    else
        to_stderr(level, topic, msg, fields);
    pthread_mutex_unlock(&lock);
    errno = saved;
}
