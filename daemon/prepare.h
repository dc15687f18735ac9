/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt becomes token ids: on the loop when it is short, on a worker when it is long. */
#pragma once

#include "daemon/job.h"

/* Text up to this many bytes is prepared on the loop thread (well under a millisecond). */
#define PREPARE_INLINE_BYTES 4096u

/* Uses j->model's tokenizer, which the model's `preparing` count keeps alive.  The result or
 * j->prepare_error is in the job. */
void prepare_job(void *job);
/* What can only be judged with the ids: their range, the context, the model's limits.  Loop thread. */
int prepare_check(struct job *j, struct error *err);
