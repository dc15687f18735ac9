/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job.h"

/* Prompt, sampling arrays and strings of one request; a prompt file is copied into it. */
#define JOB_ARENA_LIMIT (256u << 20)

struct job *job_new(void)
{
    struct job *j = mem_zalloc(sizeof *j);
    if (!j)
        return NULL;
    j->arena = arena_new(JOB_ARENA_LIMIT);
    if (!j->arena) {
        mem_free(j);
        return NULL;
    }
    return j;
}

struct job *job_free(struct job *j)
{
    if (!j)
        return NULL;
    token_list_done(&j->tokens);
    token_list_done(&j->output_ids);
    strbuf_done(&j->output);
    arena_free(j->arena);
    mem_free(j);
    return NULL;
}

void job_set_cancel_error(struct job *j)
{
    switch (j->cancel) {
    case JOB_NOT_CANCELLED:
    case JOB_CANCEL_CLIENT:
    case JOB_CANCEL_GONE:
        break; /* a whole answer that ended early on the client's wish */
    case JOB_CANCEL_TIMEOUT:
        ERR(&j->error, TIMEOUT, "the deadline of %llu ms has passed (timeout_ms)",
            (unsigned long long)((j->deadline_ns - j->submitted_ns) / 1000000u));
        break;
    case JOB_CANCEL_SHUTDOWN:
        ERR(&j->error, CLOSED, "the daemon is shutting down, or the model is being unloaded");
        break;
    case JOB_CANCEL_STALLED:
        ERR(&j->error, TIMEOUT, "the reader did not move for the ring_stall_timeout");
        break;
    }
}
