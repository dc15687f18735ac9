/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token ring: how decided tokens reach a reader through shared memory.
 *
 * Two memory files.  The ring itself belongs to the daemon: it is mapped writable once and then
 * sealed (SHRINK, GROW, FUTURE_WRITE, SEAL), so that a client can map it read-only and nothing else.
 * The cursor page belongs to the client (read position, "I am asleep" flag); the daemon treats it
 * as hostile: each word is loaded once, checked, and never read again.
 *
 * Positions are bytes since the ring was made, monotonically increasing 64-bit numbers; position p
 * lies at data[p % capacity].  Records are 8-byte aligned and never wrap: a PAD record fills the
 * rest of the lap.  All records of one commit become visible by one release store of write_pos.
 *
 * Waking: the writer stores write_pos (release), issues a full fence, loads `asleep`; the reader
 * stores `asleep`, issues a full fence, loads write_pos.  One of the two sees the other, so no
 * periodic re-check is needed.  The wake itself is one write to the slot's eventfd.
 *
 * Back-pressure: when a record does not fit, the writer stores `stalled`, issues a full fence and
 * loads read_pos; the reader stores read_pos, issues a full fence and loads `stalled`, and when at
 * least half of the ring is free it sends one RingMoved message per stall.
 *
 * Endianness and sizes: little-endian, fixed width, asserted below.  Layout version RING_VERSION.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

#define RING_MAGIC 0x474e5244u /* "DRNG" */
#define RING_VERSION 1u
#define RING_HEADER_BYTES 4096u
#define RING_CURSOR_BYTES 4096u
#define RING_MAX_TOKENS 64u       /* tokens of one TOKENS record */
#define RING_MAX_ALTERNATIVES 21u /* the chosen one and up to 20 more */
#define RING_MAX_RECORD 32768u    /* bytes, header included */
#define RING_MIN_CAPACITY (4u * RING_MAX_RECORD)
#define RING_MAX_CAPACITY (1u << 26)

struct ring_header {
    uint32_t magic;
    uint16_t version;
    uint16_t header_bytes; /* RING_HEADER_BYTES: data starts there */
    uint32_t capacity;     /* bytes of data, a power of two */
    uint32_t reserved0;
    uint8_t pad0[48];
    /* cache line 1: written at each commit */
    uint64_t write_pos; /* release store by the daemon */
    uint32_t futex;     /* incremented at each wake, for readers that wait on it */
    uint32_t state;     /* enum ring_state */
    uint32_t stalled;   /* 0, or the number of the stall that waits for the reader to move */
    uint8_t pad1[44];
    /* cache line 2: written per request */
    uint64_t request_id;
    uint64_t start_pos; /* where its records begin */
    uint8_t pad2[48];
};
enum ring_state { RING_IDLE = 0, RING_ACTIVE = 1, RING_ENDED = 2 };
_Static_assert(sizeof(struct ring_header) == 192, "ring_header layout");
_Static_assert(offsetof(struct ring_header, write_pos) == 64, "ring_header layout");
_Static_assert(offsetof(struct ring_header, request_id) == 128, "ring_header layout");

struct ring_cursor {
    uint64_t read_pos; /* everything before is free for the daemon */
    uint8_t pad0[56];
    uint32_t asleep; /* 1: wake me */
    uint8_t pad1[60];
};
_Static_assert(sizeof(struct ring_cursor) == 128, "ring_cursor layout");
_Static_assert(offsetof(struct ring_cursor, asleep) == 64, "ring_cursor layout");

enum ring_record_type {
    RING_PAD = 0,      /* skip */
    RING_TOKENS = 1,   /* struct ring_tokens */
    RING_ROUND = 2,    /* struct ring_round, only when asked for */
    RING_FINISHED = 3, /* struct ring_finished: last record of a request */
    RING_FAILED = 4,   /* struct ring_failed: last record of a request */
};
struct ring_record {
    uint32_t size; /* bytes, this header included; multiple of 8 */
    uint16_t type; /* enum ring_record_type; unknown types are skipped by readers */
    uint16_t flags; /* FINISHED: enum ring_method; else 0 */
};
_Static_assert(sizeof(struct ring_record) == 8, "ring_record layout");

/* Tokens of one commit.  After the fixed part: tokens[n], then alternatives (in token order,
 * n_alternatives of each), then text_bytes of UTF-8; each token's text is whole UTF-8. */
struct ring_tokens {
    struct ring_record rec;
    uint64_t round;          /* verification rounds of this request so far, from 0 */
    uint32_t n_tokens;       /* 1..RING_MAX_TOKENS, or 0 when only text was released */
    uint32_t n_alternatives; /* of all tokens together */
    uint32_t text_bytes;
    uint32_t first_index; /* index of the first token among the request's tokens */
};
_Static_assert(sizeof(struct ring_tokens) == 32, "ring_tokens layout");
struct ring_token {
    uint32_t id;
    uint16_t flags; /* RING_TOKEN_* */
    uint16_t n_alternatives;
    float logprob;      /* natural log; 0 when not asked for */
    uint32_t text_bytes; /* this token's share of the text, in order */
};
_Static_assert(sizeof(struct ring_token) == 16, "ring_token layout");
struct ring_alternative {
    uint32_t id;
    float logprob;
};
_Static_assert(sizeof(struct ring_alternative) == 8, "ring_alternative layout");
enum {
    RING_TOKEN_DRAFTED = 1,
    RING_TOKEN_EDITED = 2,
    RING_TOKEN_BONUS = 4,
    RING_TOKEN_REASONING = 8 /* inside the model's thinking part */
};

/* One verification round.  After the fixed part: accepted[passes] (uint32, tokens of each pass that
 * agree, from the first on, with what was committed), confidence[window] (float), draft[passes][window]
 * (uint32, the anchor's row left 0), node_token[nodes] (uint32), node_parent[nodes] (int32, -1: the
 * anchor).  window and passes are 0 when no block was drafted. */
struct ring_round {
    struct ring_record rec;
    uint64_t round;
    uint32_t window, passes;
    uint32_t nodes;     /* rows verified beside the anchor */
    uint32_t committed; /* tokens, bonus included */
};
_Static_assert(sizeof(struct ring_round) == 32, "ring_round layout");

struct ring_finished {
    struct ring_record rec;
    uint32_t reason; /* enum ring_finish */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    uint64_t queued_ns, first_token_ns, total_ns; /* since submit */
    uint64_t rounds, drafted_tokens, accepted_tokens;
    uint64_t seed;
    uint32_t preemptions;
    uint32_t stop_bytes; /* the stop string met, or the token id in decimal, follows */
    uint64_t committed_tokens; /* by the rounds counted in `rounds`: those that verified a draft */
};
_Static_assert(sizeof(struct ring_finished) == 96, "ring_finished layout");
/* What most tokens of the answer came from; readers take unknown numbers for 0. */
enum ring_method {
    RING_METHOD_UNKNOWN,
    RING_METHOD_AR,
    RING_METHOD_NGRAM,
    RING_METHOD_DFLASH,
    RING_METHOD_DEDIT,
    RING_METHOD_DDTREE
};
/* "ar", ...; static.  NULL for 0 and numbers that are none.  A name that is none is 0; so is NULL. */
const char *ring_method_name(uint32_t method);
uint16_t ring_method_parse(const char *name);
enum ring_finish {
    RING_FINISH_STOP = 1,
    RING_FINISH_LENGTH = 2,
    RING_FINISH_CANCELLED = 3,
};
/* The request ended without a whole answer.  Text follows: message_bytes of UTF-8. */
struct ring_failed {
    struct ring_record rec;
    int32_t code; /* DEDIT_E_* */
    uint32_t completion_tokens;
    uint32_t reason; /* enum ring_failure */
    uint32_t message_bytes;
};
_Static_assert(sizeof(struct ring_failed) == 24, "ring_failed layout");
enum ring_failure {
    RING_FAILURE_ERROR = 1,
    RING_FAILURE_TIMEOUT = 2,
    RING_FAILURE_SHUTDOWN = 3,
    RING_FAILURE_STALLED = 4 /* the reader did not move for ring_stall_timeout */
};

/* ---- one validator for all sides ---------------------------------------------------------------- */

/* A checked record: pointers into it, every count proven to fit. */
struct ring_view {
    enum ring_record_type type;
    uint32_t size;
    const struct ring_tokens *tokens;
    const struct ring_token *token; /* tokens->n_tokens */
    const struct ring_alternative *alternatives;
    const char *text; /* text_bytes / message_bytes / stop_bytes */
    uint32_t text_bytes;
    const struct ring_round *round;
    const uint32_t *accepted;
    const float *confidence;
    const uint32_t *draft, *node_token;
    const int32_t *node_parent;
    const struct ring_finished *finished;
    const struct ring_failed *failed;
};
/* rec: avail readable bytes that nobody changes meanwhile.  0, 1 for a record to be skipped (PAD or
 * unknown type; size is set), or DEDIT_E_PROTOCOL with the rule that is broken. */
int ring_validate(const void *rec, size_t avail, struct ring_view *ret, struct error *err);

/* ---- writer (daemon) ---------------------------------------------------------------------------- */

struct ring_writer {
    struct ring_header *header;       /* writable mapping */
    uint8_t *data;
    const struct ring_cursor *cursor; /* hostile */
    uint32_t capacity;                /* own copy: the mapping is never asked */
    uint64_t write_pos;               /* published */
    uint64_t pending;                 /* reserved and filled, not yet published */
    uint64_t last_read;               /* newest read position that passed the checks */
    uint64_t wakes;                   /* eventfd writes so far */
    uint32_t stalls;                  /* stalls so far */
    int ring_fd, cursor_fd, event_fd;
};
/* Makes both memory files (space really reserved), maps and seals the ring.  capacity: a power of
 * two in RING_MIN_CAPACITY..RING_MAX_CAPACITY. */
int ring_writer_init(struct ring_writer *w, uint32_t capacity, struct error *err);
void ring_writer_done(struct ring_writer *w); /* a zeroed one with fds -1 is fine */
/* Starts a request: its records begin at the returned position. */
uint64_t ring_writer_begin(struct ring_writer *w, uint64_t request_id);
void ring_writer_end(struct ring_writer *w); /* state ENDED, after the last record's publish */
/* True when the reader has consumed everything that was published. */
int ring_writer_drained(struct ring_writer *w, bool *ret, struct error *err);
/* Room for a record of `size` bytes (multiple of 8, <= RING_MAX_RECORD): 0 and *ret, 1 when the ring
 * is full, DEDIT_E_PROTOCOL when the client's cursor is not plausible. */
int ring_reserve(struct ring_writer *w, uint32_t size, void **ret, struct error *err);
/* Makes all reserved records visible by one release store; wakes the reader when it is asleep (at
 * most one write).  Without pending records: nothing. */
void ring_publish(struct ring_writer *w);
void ring_discard(struct ring_writer *w); /* drops what is reserved and not published */
/* After ring_reserve returned 1: announces the stall.  0: at least half of the ring is free after
 * all, go on; 1: stalled, RingMoved or a later ring_writer_stalled tells; or DEDIT_E_PROTOCOL. */
int ring_writer_stall(struct ring_writer *w, struct error *err);
/* Has a stalled ring half of its room again?  0 yes (the stall is over), 1 no, or PROTOCOL. */
int ring_writer_stalled(struct ring_writer *w, struct error *err);

/* ---- reader (library, tests) -------------------------------------------------------------------- */

struct ring_reader {
    const struct ring_header *header; /* read-only mapping */
    const uint8_t *data;
    struct ring_cursor *cursor;
    uint32_t capacity;
    uint64_t read_pos;
    uint64_t published_pos; /* read position that the daemon was told */
    uint32_t stall_told;    /* newest stall that RingMoved was sent for */
    size_t ring_bytes;
    int ring_fd, cursor_fd, event_fd;
};
/* Takes the three descriptors over in any case. Checks seals, sizes and the header. */
int ring_reader_init(struct ring_reader *r, int ring_fd, int cursor_fd, int event_fd,
                     struct error *err);
void ring_reader_done(struct ring_reader *r);
/* Skips what an older request left unread. */
void ring_reader_begin(struct ring_reader *r, uint64_t start_pos);
/* Next record: 0 and *ret (valid until ring_reader_advance), 1 when there is none, or
 * DEDIT_E_PROTOCOL. Skipped records are consumed on the way. */
int ring_reader_next(struct ring_reader *r, struct ring_view *ret, struct error *err);
void ring_reader_advance(struct ring_reader *r, uint32_t size); /* past the record of that size */
/* Tells the daemon the position (one store).  true: the writer is stalled and has room again; send
 * one RingMoved for this slot. */
bool ring_reader_release(struct ring_reader *r);
/* Announces sleep; ring_reader_release first.  true: sleep now, event_fd will wake; false: something
 * came meanwhile. */
bool ring_reader_sleep(struct ring_reader *r);
void ring_reader_awake(struct ring_reader *r); /* after waking: clears the flag, drains event_fd */
