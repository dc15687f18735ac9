/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What systemd is told: readiness, status, progress of a long start, watchdog.  Without NOTIFY_SOCKET
 * every call is a no-op.  Loop thread.
 */
#pragma once

#include "base/error.h"

struct server;
struct sdglue;

/* Starts the timers: the watchdog's (half its period), and one a second until the daemon is ready. */
int sdglue_new(struct server *s, struct sdglue **ret, struct error *err);
struct sdglue *sdglue_free(struct sdglue *g);
/* READY=1 once: the socket answers and the models that are loaded at start have settled. */
void sdglue_ready(struct sdglue *g);
void sdglue_reloading(struct sdglue *g); /* then sdglue_reloaded */
void sdglue_reloaded(struct sdglue *g);
void sdglue_stopping(struct sdglue *g);
void sdglue_failed(struct sdglue *g, int error); /* an errno; STOPPING=1 with it, once */
void sdglue_status(struct sdglue *g); /* STATUS= from the server's state, when it has changed */
