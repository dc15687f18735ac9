/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics for others to fetch: HTTP GET on a Unix socket of their own, and a text file for
 * node-exporter.  Loop thread; a client that is slow, silent or wrong costs one of a few places.
 */
#pragma once

#include "base/error.h"

struct server;
struct metrics_http;
struct config;

/* Opens what the configuration asks for; the socket lies beside the daemon's (daemon_socket) unless it has a
 * path of its own. */
int metrics_http_new(struct server *s, const char *daemon_socket, struct metrics_http **ret,
                     struct error *err);
/* Where its socket lies, as snprintf() does it; 0: there is none. */
int metrics_http_path(const struct config *c, const char *daemon_socket, char *buf, size_t size);
struct metrics_http *metrics_http_free(struct metrics_http *h);
