/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines with a level, a topic and key=value fields, handed to one sink.  Libraries and the
 * engine log at debug only; whoever ends an error's journey logs it once.  Any thread. */
#pragma once

enum log_level { LOG_LEVEL_ERR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_NOTICE = 5, LOG_LEVEL_INFO = 6,
                 LOG_LEVEL_DEBUG = 7 };

/* fields: "KEY=value\0KEY=value\0\0" or NULL. */
typedef void (*log_sink_fn)(void *arg, enum log_level level, const char *topic, const char *msg,
                            const char *fields);
void log_set_sink(log_sink_fn fn, void *arg); /* NULL: "<n>topic: msg" on stderr */
void log_set_level(enum log_level max);
enum log_level log_get_level(void);
void log_write(enum log_level level, const char *topic, const char *fields, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#define log_debug(topic, ...)                                                                      \
    do {                                                                                           \
        if (log_get_level() >= LOG_LEVEL_DEBUG)                                                    \
            log_write(LOG_LEVEL_DEBUG, topic, NULL, __VA_ARGS__);                                  \
    } while (0)
