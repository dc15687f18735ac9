/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/journal.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"

/* One id a topic: the catalog explains what the topic's warnings and errors mean. */
static const struct {
    const char *topic, *id;
} ids[] = {
    {"daemon", "d0a3f1d2b6f84a0c9d0f5b1c6e7a8b90"},
    {"model", "5b9e0c6f7d1e4f7a8a3b2c1d0e9f8a71"},
    {"config", "1f4c7b2a9d3e4b6f8c5d6e7f8a9b0c12"},
    {"loop", "8e2d1c0b9a8f4e7d6c5b4a3f2e1d0c93"},
    {"engine", "c3b2a1f0e9d84c7b6a5f4e3d2c1b0a94"},
    {"device", "4d5e6f7a8b9c40d1a2b3c4d5e6f7a8b7"},
    {"watchdog", "7a6b5c4d3e2f41a0b9c8d7e6f5a4b3c5"},
    {"metrics", "2e3f4a5b6c7d48e9fa0b1c2d3e4f5a66"},
    {"peer", "9c8d7e6f5a4b43c2d1e0f9a8b7c6d5e7"},
};

/* Topics whose lines a peer can cause (a request may load a model): at most BURST in WINDOW_NS, and the
 * next one tells how many were left out.  Run by whoever logs, one at a time (base/log.c). */
#define BURST     20u
#define WINDOW_NS 10000000000u
static struct {
    const char *topic;
    uint64_t since;
    unsigned n, dropped;
} limits[] = {{.topic = "peer"}, {.topic = "model"}};

/* *ret_dropped: lines of this topic that were left out before this one. */
static bool limited(const char *topic, unsigned *ret_dropped)
{
    uint64_t now = clock_now_ns();
    size_t i = 0;
    *ret_dropped = 0;
    while (i < ARRAY_LEN(limits) && strcmp(limits[i].topic, topic) != 0)
        i++;
    if (i == ARRAY_LEN(limits))
        return false;
    if (now - limits[i].since > WINDOW_NS) {
        *ret_dropped = limits[i].dropped;
        limits[i].since = now;
        limits[i].n = limits[i].dropped = 0;
    }
    if (limits[i].n++ < BURST)
        return false;
    limits[i].dropped++;
    return true;
}

static void journal_line(enum log_level level, const char *topic, const char *msg)
{
    const char *id = NULL;
    for (size_t i = 0; i < ARRAY_LEN(ids) && level <= LOG_LEVEL_WARNING; i++)
        if (strcmp(ids[i].topic, topic) == 0)
            id = ids[i].id;
    if (id)
        sd_journal_send("MESSAGE=%s: %s", topic, msg, "PRIORITY=%d", (int)level, "DEDIT_TOPIC=%s",
                        topic, "MESSAGE_ID=%s", id, NULL);
    else
        sd_journal_send("MESSAGE=%s: %s", topic, msg, "PRIORITY=%d", (int)level, "DEDIT_TOPIC=%s",
                        topic, NULL);
}

static void stderr_line(enum log_level level, const char *topic, const char *msg)
{
    fprintf(stderr, "<%d>%s: %s\n", (int)level, topic, msg);
}

/* arg: NULL for standard error. */
static void sink(void *arg, enum log_level level, const char *topic, const char *msg,
                 const char *fields)
{
    bool journal = arg != NULL;
    char text[64];
    unsigned dropped;
    (void)fields;
    if (limited(topic, &dropped))
        return;
    void (*line)(enum log_level, const char *, const char *) = journal ? journal_line : stderr_line;
    if (dropped) {
        snprintf(text, sizeof text, "%u lines were left out before the next one", dropped);
        line(LOG_LEVEL_NOTICE, topic, text);
    }
    line(level, topic, msg);
}

/* JOURNAL_STREAM is "device:inode" of the journal's socket when standard error is it. */
static bool stderr_is_journal(void)
{
    const char *v = getenv("JOURNAL_STREAM");
    const char *colon = v ? strchr(v, ':') : NULL;
    char device[24];
    uint64_t dev, ino;
    struct stat st;
    if (!colon || (size_t)(colon - v) >= sizeof device)
        return false;
    memcpy(device, v, (size_t)(colon - v));
    device[colon - v] = 0;
    return parse_u64(device, &dev) == 0 && parse_u64(colon + 1, &ino) == 0 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void journal_init(void)
{
    static char journal;
    log_set_sink(sink, stderr_is_journal() ? &journal : NULL);
}
