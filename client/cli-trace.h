/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds for people to look at: what was drafted in each pass, what editing changed, what was verified. */
#pragma once

#include "client/cli.h"

struct cli_trace;
/* NULL: printed why. */
struct cli_trace *cli_trace_new(struct cli *c, int *ret_status);
struct cli_trace *cli_trace_free(struct cli_trace *t);
/* A ROUND event, then the TOKENS event of its commit.  CLI_OK, or the exit status. */
int cli_trace_round(struct cli_trace *t, const struct dedit_event *ev);
int cli_trace_tokens(struct cli_trace *t, const struct dedit_event *ev);
