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

#include "base/clock.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/parse.h"

/* One id a topic: the catalog explains what the topic's warnings and errors mean. */
static const struct {
    const char *topic, *id;
} ids[] = {
    {"daemon", "d0a3f1d2b6f84a0c9d0f5b1c6e7a8b90"},  {"model", "5b9e0c6f7d1e4f7a8a3b2c1d0e9f8a71"},
    {"config", "1f4c7b2a9d3e4b6f8c5d6e7f8a9b0c12"},  {"loop", "8e2d1c0b9a8f4e7d6c5b4a3f2e1d0c93"},
    {"engine", "c3b2a1f0e9d84c7b6a5f4e3d2c1b0a94"},  {"watchdog", "7a6b5c4d3e2f41a0b9c8d7e6f5a4b3c5"},
    {"metrics", "2e3f4a5b6c7d48e9fa0b1c2d3e4f5a66"}, {"peer", "9c8d7e6f5a4b43c2d1e0f9a8b7c6d5e7"},
};

/* Topics whose lines a peer can cause: at most BURST in WINDOW_NS, then one line that counts. */
#define BURST 20u
#define WINDOW_NS 10000000000u
static struct {
    uint64_t since;
    unsigned n, dropped;
} rate; /* loop thread only: "peer" lines come from nowhere else */

static bool limited(const char *topic)
{
    if (strcmp(topic, "peer") != 0)
        return false;
    uint64_t now = clock_now_ns();
    if (now - rate.since > WINDOW_NS) {
        unsigned dropped = rate.dropped;
        rate.since = now;
        rate.n = rate.dropped = 0;
        if (dropped)
            log_write(LOG_LEVEL_NOTICE, "daemon", NULL, "%u lines about peers were left out", dropped);
    }
    if (rate.n++ < BURST)
        return false;
    rate.dropped++;
    return true;
}

static void to_journal(void *arg, enum log_level level, const char *topic, const char *msg,
                       const char *fields)
{
    const char *id = NULL;
    (void)arg;
    (void)fields;
    if (limited(topic))
        return;
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

static void to_stderr(void *arg, enum log_level level, const char *topic, const char *msg,
                      const char *fields)
{
    (void)arg;
    (void)fields;
    if (!limited(topic))
        fprintf(stderr, "<%d>%s: %s\n", (int)level, topic, msg);
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
    log_set_sink(stderr_is_journal() ? to_journal : to_stderr, NULL);
}
