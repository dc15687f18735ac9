/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What generate does with a request that was submitted: prints its events, or keeps the answer, or
 * both.
 */
#pragma once

#include "base/strbuf.h"
#include "client/cli-trace.h"
#include "client/cli.h"

/* An answer as a whole.  All zero is a valid start. */
struct answer {
    struct strbuf text;
    uint32_t *ids;
    size_t n, room;
    const char *finish_reason; /* static */
    struct dedit_usage usage;
};
void answer_done(struct answer *a);

/*
 * Reads r to its end.  show: prints text (or JSON events) as they come, and the statistics; t: rounds
 * go there, which print the text themselves with --trace; keep: the answer is added to it.  t and keep
 * may be NULL.  Ctrl-C cancels.  Returns an exit status; what went wrong has been printed.
 */
int answer_read(const struct cli *c, struct dedit_request *r, bool show, struct trace *t,
                struct answer *keep);

/*
 * generate --compare: the request as it was asked for, printed, then the same with plain decoding; one
 * line for each, the ratio of their speeds, and whether tokens, text and reason of the end are equal.
 */
int answer_compare(struct cli *c, struct dedit_client *d);
