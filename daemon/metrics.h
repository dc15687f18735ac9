/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon counts, and its Prometheus text.  Loop thread. */
#pragma once

#include "base/error.h"
#include "base/strbuf.h"

struct server;
struct job;
struct metrics;

int metrics_new(struct metrics **ret, struct error *err);
struct metrics *metrics_free(struct metrics *m);
void metrics_job_ended(struct metrics *m, const struct job *j);
void metrics_ring_stalled(struct metrics *m);
/* Appends the text format; gauges are read from the server. 0 or DEDIT_E_NOMEM. */
int metrics_render(struct metrics *m, const struct server *s, struct strbuf *out);
