/* SPDX-License-Identifier: Apache-2.0 */
/* From the engine's callbacks to records in the request's ring.  Engine thread. */
#pragma once

#include "daemon/job.h"

/* engine_sink.tokens: 0, or 1 when the ring has no room for one more commit (park the request). */
int sink_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n);
/* A ROUND record before the tokens of its commit, published with them. */
void sink_round(struct job *j, const struct engine_round *info);
/* Text that the engine still held back when the answer ended. */
void sink_flush_text(struct job *j, const char *text, size_t len);
/* The last record, if the ring has room for it; the socket's Finished carries the end in any case. */
void sink_end(struct job *j);
/* A stalled ring has room again? */
bool sink_can_resume(struct job *j);
