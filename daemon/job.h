/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request of one peer, from Submit to its end.
 *
 *   PREPARING  a worker tokenises the prompt       WAITING  its model is being loaded
 *   QUEUED     in the fair queue of its model      RUNNING  the engine thread has it
 *   ENDED      the Finished event is made
 *
 * The loop thread owns a job; while it is PREPARING the worker, and while it is RUNNING the engine
 * thread, own the fields marked so.  Hand-over is a message in a queue.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "daemon/quota.h"
#include "engine/engine.h"
#include "proto/ring.h"

struct peer;
struct model;
struct slot;
struct server;
struct loop_timer;

enum job_state { JOB_PREPARING, JOB_WAITING, JOB_QUEUED, JOB_RUNNING, JOB_ENDED };
enum job_prompt { JOB_TEXT, JOB_IDS, JOB_CHAT };

/* Why a job ends before the engine says so; goes to the engine thread with the cancellation. */
enum job_cancel {
    JOB_NOT_CANCELLED,
    JOB_CANCEL_CLIENT,   /* Cancel message */
    JOB_CANCEL_GONE,     /* its peer is gone: nobody wants a last record */
    JOB_CANCEL_TIMEOUT,  /* timeout_ms */
    JOB_CANCEL_SHUTDOWN, /* the daemon or its model ends */
    JOB_CANCEL_STALLED,  /* ring_stall_timeout */
};

struct job {
    struct job *prev, *next;           /* of the peer's list */
    struct job *queue_prev, *queue_next; /* of the model's fair queue or waiting list */
    uint64_t id;         /* within the connection */
    uint64_t tag;        /* of the Submit message */
    struct peer *peer;   /* NULL once it is gone */
    struct account *account;
    struct model *model;
    struct slot *slot;   /* NULL with no_ring */
    enum job_state state;
    enum job_cancel cancel;
    int32_t priority;
    uint64_t submitted_ns, deadline_ns; /* monotonic; 0: none */
    uint64_t uid_namespace;             /* prefix cache */
    uint64_t prompt_bytes, kv_blocks;   /* charged to the account */
    bool kv_charged;
    uint64_t served_charged;            /* tokens that fair_pop has charged its user for */
    bool ordered;        /* a Cancel or Resume order was sent: one may still be under way */
    enum job_cancel asked; /* newest wish to end it that was passed on */
    bool accepted;       /* Accepted was sent: the end is an event, not an answer */
    bool ending;         /* atomic: its last record is about to be published; engine thread */
    uint64_t stalled_since_ns;          /* 0: its reader keeps up */
    struct loop_timer *timer;           /* the earliest of deadline, queue time and stall */
    struct server *server;

    /* ---- the prompt; worker while PREPARING, constant afterwards */
    enum job_prompt prompt_kind;
    struct arena *arena;       /* everything below that is a pointer lives there */
    char *text;
    size_t text_len;
    bool parse_special, add_bos;
    struct chat_message *messages;
    size_t n_messages;
    struct chat_options chat;
    enum chat_format format;   /* the client's wish (has_format), else the model's */
    bool has_format;
    uint32_t *ids; /* into token_list below, or the arena */
    size_t n_ids;
    struct token_list tokens;
    struct error prepare_error;

    struct sampling_params sampling; /* arrays live in the arena */
    struct drafting_params drafting; /* want_rounds in it */
    bool want_text, skip_special;

    /* ---- engine thread while RUNNING */
    struct request *request;
    struct job *ended_next; /* the engine has ended it, the report comes after the step */
    bool stalled;
    bool resume_asked;       /* loop thread: a Resume message is under way */
    uint32_t n_tokens;       /* given to the reader so far */
    uint64_t round;
    bool in_reasoning;
    struct strbuf output;    /* no_ring: the text ... */
    struct token_list output_ids; /* ... and ids */
    bool output_cut;

    /* ---- the end, filled by whoever ends it */
    enum finish_reason finish;
    struct error error;      /* code 0: a whole answer */
    struct engine_usage usage;
    char stop_reason[SAMPLING_MAX_STOP_BYTES + 1];
};

struct job *job_new(void);      /* NULL when out of memory */
struct job *job_free(struct job *j); /* does not touch accounts, slots and lists */
/* Sets the error that belongs to a cancellation. */
void job_set_cancel_error(struct job *j);
