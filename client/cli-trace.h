/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rounds of one answer: what each pass drafted, what the target took.  Collected from ROUND and
 * TOKENS events, shown on a terminal (generate --trace), kept as JSON lines (--trace-json), made a
 * page of (trace-html).  The lines are described in dedit-client(1).
 */
#pragma once

#include "client/cli.h"

struct trace;
/* show: rounds are printed on standard output; path: the file of JSON lines, or NULL.  NULL: printed
 * why not. */
struct trace *trace_new(struct cli *c, struct dedit_client *d, bool show, const char *path);
/* Takes any event; prints the rounds whose text has been decided.  False: memory or the file failed,
 * which trace_end() reports. */
bool trace_event(struct trace *t, const struct dedit_event *ev);
/* Prints what is left and a summary, ends the file.  Returns an exit status. */
int trace_end(struct trace *t, const struct dedit_event *end);
void trace_free(struct trace *t);
